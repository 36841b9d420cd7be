"""Proof by exhaustion: does a recurrence ignore order on every multiset over a finite alphabet?

The reachable states are explored breadth first and merged when bit-equal, so each distinct state is stepped once per
letter. Two facts decide:

- If f(f(s,a),b) and f(f(s,b),a) are the same state for every reachable s and all letters a, b, then all orderings of a
  multiset end in one state: adjacent swaps lead from any ordering to any other.
- If the reachable states repeat, the table of steps is complete, and what holds in it holds for every length.

Otherwise the end states of each multiset are collected from the table and compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.checks import InputError, checked_batch, real_number, whole_number
from anyorder.models.base import ACTIVATIONS, Standardised
from anyorder.models.deep_sets import DeepSets
from anyorder.models.janossy import JanossyPooling
from anyorder.models.recurrent import RecurrentSetModel
from anyorder.recurrences.base import evaluating, recurrence
from anyorder.recurrences.trajectory import State, tree_leaves, tree_map

_ROWS = 4096  # states stepped at once
_MULTISETS = 1_000_000
_ELEMENTWISE = {nn.Identity, nn.Sequential, nn.Linear, nn.Dropout, *ACTIVATIONS.values()}

Counts = tuple[int, ...]  # how often each letter occurs in a multiset


@dataclass(frozen=True)
class Proof:
    """What :func:`certify` found.

    - ``invariant``: the end states (or read-outs) of every multiset agree within ``tolerance``, in every component.
    - ``max_gap``: the largest difference of a component between two orderings of a multiset.
    - ``counterexample``: two orderings ``[m, D]`` of the shortest multiset that breaks the tolerance, or None.
    - ``closed``: the reachable states repeat and all swaps commute, or there is a counterexample: the verdict holds for
      every length.
    - ``states_visited``, ``steps``: distinct states, and evaluations of the step.
    """

    invariant: bool
    max_gap: float
    counterexample: tuple[Tensor, Tensor] | None
    closed: bool
    states_visited: int
    steps: int
    max_length: int
    tolerance: float

    def __str__(self) -> str:
        effort = f"{self.states_visited:,} distinct states, {self.steps:,} steps"
        if self.counterexample is not None:
            first, second = (each.squeeze(1).tolist() for each in self.counterexample)
            gap = f"the largest gap up to length {self.max_length} is {self.max_gap:.6g}"
            return f"Order matters: {first} and {second} end apart; {gap} ({effort})."
        length = "for every length" if self.closed else f"up to length {self.max_length}"
        within = f" within {self.tolerance:g}" if self.tolerance else ""
        return f"Certified {length}: all orderings agree{within} ({effort})."


def certify(
    r: Any,
    alphabet: Tensor,
    max_length: int = 12,
    *,
    readout: Callable[[State], Tensor] | None = None,
    tolerance: float = 0.0,
    max_states: int = 1_000_000,
) -> Proof:
    """Decide whether ``r`` ignores the order of every multiset of at most ``max_length`` letters.

    Args:
        r: A recurrence (anything with ``start(batch)`` and ``step(element, state)``), a torch module, or a model with
            ``encode`` and ``recurrence``, whose encoder must consist of linear layers and activations.
        alphabet: The letters ``[k, D]``.
        max_length: The largest number of letters.
        readout: ``readout(state) -> [B, …]``, to be compared instead of the states.
        tolerance: The largest difference of a component that still counts as equal. States merge only if bit-equal.
        max_states: The largest number of distinct states.

    >>> from anyorder.recurrences import known
    >>> proof = certify(known.parity(), torch.tensor([[0.0], [1.0]]))
    >>> proof.invariant, proof.closed, proof.states_visited
    (True, True, 2)
    >>> import anyorder as ao
    >>> digits = ao.recurrence(lambda element, state: 10 * state + element, start=torch.zeros(1, 1))
    >>> print(certify(digits, torch.tensor([[1.0], [2.0]]), max_length=3))  # doctest: +ELLIPSIS
    Order matters: [1.0, 2.0] and [2.0, 1.0] end apart; the largest gap up to length 3 is 99 ...
    """
    max_length = whole_number("max_length", max_length)
    tolerance = real_number("tolerance", tolerance, at_least=0.0)
    max_states = whole_number("max_states", max_states)
    given = checked_batch(torch.as_tensor(alphabet)[:, None], name="alphabet")[0][:, 0].detach()
    with torch.no_grad(), evaluating(r, readout):
        letters = given
        if hasattr(r, "recurrence") and hasattr(r, "encode"):
            letters, r = _encoded(r, letters), r.recurrence
        r = r if hasattr(r, "start") and hasattr(r, "step") else recurrence(r)
        shown, after = _explore(r, letters, max_length, max_states, readout)
    known = after >= 0
    max_gap, pair, closed = 0.0, None, bool(known.all())
    if not _commutes(after):
        max_gap, pair = _compare(after, shown, max_length, tolerance)
        closed = closed and pair is not None
    example = None if pair is None else (given[list(pair[0])], given[list(pair[1])])
    return Proof(pair is None, max_gap, example, closed, len(after), int(known.sum()), max_length, tolerance)


def _explore(
    r: Any, letters: Tensor, max_length: int, max_states: int, readout: Callable[[State], Tensor] | None
) -> tuple[np.ndarray, np.ndarray]:
    """The distinct states (or read-outs) as numbers ``[S, …]``, and where each letter leads ``[S, k]``.

    It is -1 for the states of the last level, whose steps are not made.
    """
    frontier = tree_map(lambda leaf: leaf.detach()[:1].clone(), r.start(1))
    number = {_keys(frontier)[0]: 0}
    parts: list[State] = []
    steps: list[np.ndarray] = []
    for length in range(1, max_length + 1):
        fresh: list[State] = []
        for part in _batches(frontier):
            columns = []
            for letter in letters:
                before, state = len(number), r.step(letter.expand(_rows(part), -1), part)
                columns.append([number.setdefault(key, len(number)) for key in _keys(state)])
                found, first = np.unique(columns[-1], return_index=True)
                fresh.append(tree_map(lambda leaf, new=first[found >= before]: leaf.detach()[new], state))
                if len(number) > max_states:
                    raise InputError(
                        f"max_states = {max_states} distinct states are too few for length {length}; lower max_length, "
                        "take fewer letters, or raise max_states"
                    )
            parts.append(part)
            steps.append(np.array(columns).T)
        frontier = tree_map(lambda *leaves: torch.cat(leaves), *fresh)
        if not _rows(frontier):
            break
    parts += _batches(frontier)
    shown = [_flat(part if readout is None else readout(part), _rows(part)) for part in parts]
    return np.concatenate(shown), np.concatenate([*steps, np.full((_rows(frontier), len(letters)), -1)])


def _commutes(after: np.ndarray) -> bool:
    """Whether every known swap of two letters ends in the same state."""
    made = after[(after >= 0).all(axis=1)]
    swaps = ((after[made[:, a], b], after[made[:, b], a]) for a, b in combinations(range(after.shape[1]), 2))
    return all(((one == other) | (one < 0) | (other < 0)).all() for one, other in swaps)


def _compare(
    after: np.ndarray, shown: np.ndarray, max_length: int, tolerance: float
) -> tuple[float, tuple[list[int], list[int]] | None]:
    """The largest gap over all multisets, and two orderings of the shortest one that breaks the tolerance."""
    k = after.shape[1]
    ends: dict[Counts, np.ndarray] = {(0,) * k: np.zeros(1, dtype=np.int64)}
    level, max_gap = list(ends), 0.0
    worst: Counts | None = None
    for _ in range(max_length):
        level = sorted({_add(counts, a, 1) for counts in level for a in range(k)})
        if len(ends) + len(level) > _MULTISETS:
            raise InputError(f"max_length gives more than {_MULTISETS} multisets; lower it or take fewer letters")
        gaps: dict[Counts, float] = {}
        for counts in level:
            ways = [after[ends[_add(counts, a, -1)], a] for a in range(k) if counts[a]]
            ends[counts] = np.unique(np.concatenate(ways))
            gaps[counts] = float(np.ptp(shown[ends[counts]], axis=0).max())
        largest = max(gaps, key=gaps.__getitem__)
        max_gap = max(max_gap, gaps[largest])
        if worst is None and gaps[largest] > tolerance:
            worst = largest
    if worst is None:
        return max_gap, None
    states = ends[worst]
    component = shown[states][:, np.ptp(shown[states], axis=0).argmax()]
    low, high = (_word(after, ends, worst, states[at]) for at in (component.argmin(), component.argmax()))
    return max_gap, (low, high)


def _word(after: np.ndarray, ends: dict[Counts, np.ndarray], counts: Counts, state: int) -> list[int]:
    """An ordering of ``counts`` that ends in ``state``."""
    word: list[int] = []
    while any(counts):
        steps = ((a, _add(counts, a, -1)) for a, times in enumerate(counts) if times)
        found = ((a, fewer, before) for a, fewer in steps for before in ends[fewer] if after[before, a] == state)
        a, counts, state = next(found)
        word.append(a)
    return word[::-1]


def _elementwise(model: Any) -> bool:
    """Whether the model's encoder reads each element by itself, whatever its weights."""
    if type(model) in (Standardised, JanossyPooling):
        return _elementwise(model.inner if type(model) is Standardised else model.sequence)
    if type(model) not in (RecurrentSetModel, DeepSets):
        return False
    encoder = model.encoder if type(model) is RecurrentSetModel else model.phi
    return all(type(m) in _ELEMENTWISE and not (m._forward_hooks or m._forward_pre_hooks) for m in encoder.modules())


def _encoded(model: Any, letters: Tensor) -> Tensor:
    """The encoder's output for each letter, ``[k, E]``."""
    if getattr(model, "orderings", 1) > 1 or not _elementwise(model):
        raise InputError(
            "the model must read each element by itself and in one ordering: an encoder of linear layers and "
            "activations does, with model.orderings = 1 (otherwise encode the letters and certify model.recurrence)"
        )
    return model.encode(letters[:, None])[:, 0]


def _batches(state: State) -> list[State]:
    return [tree_map(lambda leaf, b=begin: leaf[b : b + _ROWS], state) for begin in range(0, _rows(state), _ROWS)]


def _rows(state: State) -> int:
    return tree_leaves(state)[0].shape[0]


def _keys(state: State) -> list[bytes]:
    """One key per row: the bits of the whole state, so that 0.0 and -0.0 stay apart."""
    blocks = [leaf.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy() for leaf in tree_leaves(state)]
    return [b"".join(parts) for parts in zip(*(map(bytes, block) for block in blocks), strict=True)]


def _flat(state: State, rows: int) -> np.ndarray:
    """A state or read-out as numbers ``[B, S]``; whole numbers beyond float64's stay Python's own."""
    parts = []
    for leaf in tree_leaves(state):
        numbers = torch.as_tensor(leaf).detach().cpu().reshape(rows, -1)
        if numbers.is_complex():
            numbers = torch.view_as_real(numbers.resolve_conj()).flatten(1)
        large = not numbers.is_floating_point() and bool((numbers.abs() > 2**53).any())
        parts.append(numbers.numpy().astype(object) if large else numbers.double().numpy())
        if not large and not np.isfinite(parts[-1]).all():
            raise InputError("a reachable state or its readout must be finite; got NaN or an infinite value")
    return np.concatenate(parts, axis=1)


def _add(counts: Counts, a: int, change: int) -> Counts:
    return (*counts[:a], counts[a] + change, *counts[a + 1 :])
