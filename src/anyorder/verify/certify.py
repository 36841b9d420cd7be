"""Proof by exhaustion: does a recurrence ignore order on every multiset over a finite alphabet?

The reachable states are explored breadth first and merged when bit-equal, so each distinct state is stepped
once a letter: the cost follows the number of distinct states, not the k^L sequences. Two facts decide:

- If f(f(s,a),b) and f(f(s,b),a) are the same state for every reachable s and all letters a, b, then all
  orderings of a multiset end in one state (adjacent swaps lead from any ordering to any other).
- If the reachable states repeat, the table of steps is complete, and what holds in it holds for every length.

Otherwise the end states of each multiset are collected from the table and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, real_number, whole_number
from anyorder.models import DeepSets, JanossyPooling, RecurrentSetModel
from anyorder.models.base import ACTIVATIONS, Standardised
from anyorder.recurrences.base import evaluating
from anyorder.recurrences.trajectory import State, tree_leaves, tree_map

_ROWS = 4096  # states stepped at once
_MULTISETS = 1_000_000
_WORDS = 256  # random words an encoder is tried on
_ELEMENTWISE = {nn.Identity, nn.Sequential, nn.Linear, nn.Dropout, *ACTIVATIONS.values()}


@dataclass(frozen=True)
class Proof:
    """What :func:`certify` found.

    ``invariant``: every multiset's end states (or read-outs) agree within ``tolerance``, component by component.
    ``max_gap``: the largest difference of any component between two orderings of one multiset of at most
    ``max_length`` letters. ``counterexample``: two orderings ``[m, D]`` of one multiset that end further
    apart than ``tolerance`` (of the shortest such multiset, its furthest pair), or None. ``closed``: the
    reachable states repeat exactly and what is said of them holds for every length. ``states_visited`` and
    ``steps``: distinct states, and evaluations of f. ``encoder_sampled``: that the model's own encoder treats every
    element by itself was tried on sample words up to ``max_length``, not proved; nothing is then said beyond it.
    """

    invariant: bool
    max_gap: float
    counterexample: tuple[Tensor, Tensor] | None
    closed: bool
    states_visited: int
    steps: int
    max_length: int
    tolerance: float
    encoder_sampled: bool = False

    def __str__(self) -> str:
        effort = f"{self.states_visited:,} distinct states, {self.steps:,} steps"
        if self.encoder_sampled:
            effort += "; that the encoder treats every element by itself was tried on sample words, not proved"
        within = f" within {self.tolerance:g}" if self.tolerance else ""
        if self.counterexample is not None:
            first, second = (_spell(ordering) for ordering in self.counterexample)
            return (
                f"Order matters: {first} and {second} end apart; the largest gap up to length "
                f"{self.max_length} is {self.max_gap:.6g} ({effort})."
            )
        if self.closed:
            return f"Certified for every length: all orderings agree{within} ({effort})."
        return f"Certified up to length {self.max_length}: all orderings agree{within} ({effort})."


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

    ``r``: a recurrence (anything with ``start(batch)`` and ``step(element, state)``) or a model with ``encode``
    and ``recurrence``. ``alphabet [k, D]``: the letters. ``readout(state) -> [B, …]``: compare this instead of
    the states. States merge only when bit-equal; gaps are the largest difference of any component.

    A model's encoder must treat every element by itself. One of linear layers and activations does; any other is
    tried on sample words up to ``max_length`` and refused if it does not. That is no proof: the result says
    ``encoder_sampled`` and is never ``closed``.

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
    letters = _checked_alphabet(alphabet)
    with torch.no_grad(), evaluating(r):
        given, sampled = letters, False
        if hasattr(r, "recurrence") and hasattr(r, "encode"):
            letters, sampled = _encoded(r, letters, max_length)
            r = r.recurrence
        if not (hasattr(r, "start") and hasattr(r, "step")):
            raise InputTypeError(
                "certify takes a recurrence (start and step) or a model that has one; "
                f"got {type(r).__name__} (anyorder.recurrence makes one from a module or a step)"
            )
        table = _explore(r, letters, max_length, max_states)
        shown = table.states if readout is None else _read(readout, table)
        if _commutes(table, max_length):
            closed = table.closed and not sampled
            return Proof(True, 0.0, None, closed, len(shown), table.steps, max_length, tolerance, sampled)
        max_gap, pair = _compare(table, shown, max_length, tolerance)
        closed = table.closed and not sampled and (pair is not None or _classes_gap(table, shown) <= tolerance)
    example = None if pair is None else (given[list(pair[0])], given[list(pair[1])])
    return Proof(pair is None, max_gap, example, closed, len(shown), table.steps, max_length, tolerance, sampled)


@dataclass
class _Table:
    """Distinct states and where each letter leads: ``next[i, a]``, -1 where it was not asked."""

    states: np.ndarray  # [S, …] flattened to numbers
    trees: list[State]
    next: np.ndarray  # [S, k]
    depth: np.ndarray  # [S] the fewest letters that lead there
    steps: int

    @property
    def closed(self) -> bool:
        return bool((self.next >= 0).all())


def _explore(r: Any, letters: Tensor, max_length: int, max_states: int) -> _Table:
    k = letters.shape[0]
    start = tree_map(lambda leaf: leaf.detach()[:1].clone(), r.start(1))
    number = {_keys(start)[0]: 0}
    flats, trees, depth = [_flat(start)], [start], [0]
    rows: list[np.ndarray] = []
    frontier, steps, reached = start, 0, 1
    for length in range(max_length):
        count = _batch(frontier)
        following = np.empty((count, k), dtype=np.int64)
        fresh: list[State] = []
        for begin in range(0, count, _ROWS):
            chunk = tree_map(lambda leaf, b=begin: leaf[b : b + _ROWS], frontier)
            size = _batch(chunk)
            for a in range(k):
                state = r.step(letters[a].expand(size, -1), chunk)
                steps += size
                new = []
                for row, key in enumerate(_keys(state)):
                    index = number.setdefault(key, len(number))
                    if index == reached:
                        new.append(row)
                        reached += 1
                    following[begin + row, a] = index
                if new:
                    fresh.append(tree_map(lambda leaf, n=new: leaf.detach()[n].clone(), state))
                if reached > max_states:
                    raise InputError(
                        f"more than max_states = {max_states} distinct states at length {length + 1}; "
                        "lower max_length, take fewer letters, or raise max_states"
                    )
        rows.append(following)
        if not fresh:
            break
        frontier = tree_map(lambda *leaves: torch.cat(leaves), *fresh)
        flats.append(_flat(frontier))
        trees.append(frontier)
        depth += [length + 1] * _batch(frontier)
    unasked = reached - sum(len(block) for block in rows)
    table = np.concatenate([*rows, np.full((unasked, k), -1)])
    return _Table(np.concatenate(flats), trees, table, np.array(depth), steps)


def _commutes(table: _Table, max_length: int) -> bool:
    """Every swap of two letters, after any state that leaves room for them, ends in the same state."""
    room = np.full(len(table.next), True) if table.closed else table.depth <= max_length - 2
    table_next = table.next[room]
    for a, b in combinations(range(table.next.shape[1]), 2):
        if (table.next[table_next[:, a], b] != table.next[table_next[:, b], a]).any():
            return False
    return True


def _compare(
    table: _Table, shown: np.ndarray, max_length: int, tolerance: float
) -> tuple[float, tuple[tuple[int, ...], tuple[int, ...]] | None]:
    """The largest gap over all multisets, and two orderings of the shortest one that breaks the tolerance."""
    k = table.next.shape[1]
    ends: dict[tuple[int, ...], np.ndarray] = {(0,) * k: np.zeros(1, dtype=np.int64)}
    level, max_gap = list(ends), 0.0
    worst: tuple[float, tuple[int, ...]] | None = None
    for _ in range(max_length):
        level = sorted({_more(counts, a) for counts in level for a in range(k)})
        if len(ends) + len(level) > _MULTISETS:
            raise InputError(f"more than {_MULTISETS} multisets to compare; lower max_length or take fewer letters")
        found: tuple[float, tuple[int, ...]] | None = None
        for counts in level:
            parts = [table.next[ends[_less(counts, a)], a] for a in range(k) if counts[a]]
            ends[counts] = np.unique(np.concatenate(parts))
            values = shown[ends[counts]]
            gap = float((values.max(axis=0) - values.min(axis=0)).max()) if len(values) > 1 else 0.0
            max_gap = max(max_gap, gap)
            if gap > tolerance and (found is None or gap > found[0]):
                found = (gap, counts)
        worst = worst or found
    if worst is None:
        return max_gap, None
    counts = worst[1]
    values = shown[ends[counts]]
    component = int((values.max(axis=0) - values.min(axis=0)).argmax())
    low, high = (ends[counts][pick(values[:, component])] for pick in (np.argmin, np.argmax))
    return max_gap, (_word(table, ends, counts, low), _word(table, ends, counts, high))


def _word(table: _Table, ends: dict, counts: tuple[int, ...], state: int) -> tuple[int, ...]:
    """An ordering of ``counts`` that ends in ``state``."""
    word: list[int] = []
    while sum(counts):
        a, state = next(_before(table, ends, counts, state))
        counts = _less(counts, a)
        word.append(a)
    return tuple(reversed(word))


def _before(table: _Table, ends: dict, counts: tuple[int, ...], state: int) -> Iterator[tuple[int, int]]:
    for a in range(len(counts)):
        if counts[a]:
            previous = ends[_less(counts, a)]
            for match in previous[table.next[previous, a] == state]:
                yield a, int(match)


def _classes_gap(table: _Table, shown: np.ndarray) -> float:
    """A bound for every length of a closed table: the widest class of the congruence that swaps generate."""
    parent = list(range(len(table.next)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    k = table.next.shape[1]
    pending = [
        (int(table.next[table.next[s, a], b]), int(table.next[table.next[s, b], a]))
        for s in range(len(table.next))
        for a, b in combinations(range(k), 2)
    ]
    while pending:
        p, q = pending.pop()
        if root(p) != root(q):
            parent[root(p)] = root(q)
            pending += [(int(table.next[p, a]), int(table.next[q, a])) for a in range(k)]
    classes = np.array([root(i) for i in range(len(parent))])
    values = [shown[classes == c] for c in np.unique(classes)]
    return max(float((v.max(axis=0) - v.min(axis=0)).max()) for v in values)


def _read(readout: Callable[[State], Tensor], table: _Table) -> np.ndarray:
    parts = []
    with evaluating(readout):
        for tree in table.trees:
            for begin in range(0, _batch(tree), _ROWS):
                chunk = tree_map(lambda leaf, b=begin: leaf[b : b + _ROWS], tree)
                out = readout(chunk)
                if not isinstance(out, Tensor) or out.dim() == 0 or len(out) != _batch(chunk):
                    got = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
                    raise InputError(f"readout must give a tensor [{_batch(chunk)}, …] a batch; got {got}")
                parts.append(_flat(out, "readout"))
    return np.concatenate(parts)


def _elementwise(model: Any) -> bool:
    """Whether the model's encoder treats every element by itself by construction, whatever its weights."""
    if type(model) in (Standardised, JanossyPooling):
        return _elementwise(model.inner if type(model) is Standardised else model.sequence)
    if type(model) not in (RecurrentSetModel, DeepSets):
        return False
    encoder = model.encoder if type(model) is RecurrentSetModel else model.phi
    return all(type(m) in _ELEMENTWISE and not (m._forward_hooks or m._forward_pre_hooks) for m in encoder.modules())


def _encoded(model: Any, letters: Tensor, length: int) -> tuple[Tensor, bool]:
    """φ of each letter ``[k, E]``, and whether samples alone show that φ treats every element by itself."""
    if getattr(model, "orderings", 1) > 1:
        raise InputError(
            f"this {type(model).__name__} averages over {model.orderings} orderings of the whole set, which its states "
            "do not show; set model.orderings = 1"
        )
    alone = model.encode(letters[:, None])[:, 0]
    if _elementwise(model):
        return alone, False
    rounding = 1e3 * torch.finfo(alone.dtype).eps if alone.is_floating_point() else 0.0
    words = _sample_words(len(letters), length)
    for size in range(1, length + 1):
        word = words[:, :size]
        apart = (model.encode(letters[word]).double() - alone[word].double()).abs().max()
        if not bool(apart <= rounding * alone.double().abs().max()):
            raise InputError(
                "the model's encoder must treat every element by itself: here what it gives for an element depends on "
                "the element's place or its neighbours, so the states of single letters prove nothing; certify "
                "model.recurrence"
            )
    return alone, True


def _sample_words(k: int, length: int) -> Tensor:
    """Words ``[W, length]`` of k letters: each letter repeated, all of them in turn both ways, and random ones."""
    place, turn = torch.arange(length), torch.arange(k)[:, None]
    cycles = torch.cat([turn + step * place for step in (0, 1, -1)]) % k  # every letter at every place
    return torch.cat([cycles, torch.randint(k, (_WORDS, length), generator=torch.Generator().manual_seed(0))])


def _checked_alphabet(alphabet: Any) -> Tensor:
    if not isinstance(alphabet, Tensor):
        raise InputTypeError(f"alphabet must be a tensor [k, D]; got {type(alphabet).__name__}")
    if alphabet.dim() != 2 or 0 in alphabet.shape:
        raise InputError(f"alphabet must have shape [k, D], at least one letter; got {list(alphabet.shape)}")
    if alphabet.is_floating_point() and not bool(torch.isfinite(alphabet).all()):
        raise InputError("alphabet must be finite; it holds NaN or an infinite value")
    return alphabet.detach()


def _batch(state: State) -> int:
    return tree_leaves(state)[0].shape[0]


def _keys(state: State) -> list[bytes]:
    """One key a row: the bits of the whole state, so that 0.0 and -0.0 stay apart."""
    rows = [
        leaf.detach().cpu().contiguous().reshape(leaf.shape[0], -1).view(torch.uint8).numpy()
        for leaf in tree_leaves(state)
    ]
    return [b"".join(parts) for parts in zip(*(map(bytes, block) for block in rows), strict=True)]


def _flat(state: State, what: str = "step") -> np.ndarray:
    """A state as numbers ``[B, S]``; NaN and infinities are refused, since they compare with nothing."""
    parts = [_exact(leaf.detach().cpu().reshape(leaf.shape[0], -1)) for leaf in tree_leaves(state)]
    if not all(part.dtype == object or np.isfinite(part).all() for part in parts):
        raise InputError(f"{what} gave NaN or an infinite value on a reachable state; nothing can be proved")
    return np.concatenate(parts, axis=1)


def _exact(numbers: Tensor) -> np.ndarray:
    """float64; whole numbers that do not fit there as Python's own, a complex number as two real ones."""
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj()).flatten(1)
    if not numbers.is_floating_point():
        whole = numbers.numpy()
        if whole.dtype.itemsize == 8 and ((whole > 2**53) | (whole < -(2**53))).any():
            return whole.astype(object)
    return numbers.to(torch.float64).numpy()


def _more(counts: tuple[int, ...], a: int) -> tuple[int, ...]:
    return (*counts[:a], counts[a] + 1, *counts[a + 1 :])


def _less(counts: tuple[int, ...], a: int) -> tuple[int, ...]:
    return (*counts[:a], counts[a] - 1, *counts[a + 1 :])


def _spell(ordering: Tensor) -> str:
    return str(ordering.squeeze(1).tolist() if ordering.shape[1] == 1 else ordering.tolist())
