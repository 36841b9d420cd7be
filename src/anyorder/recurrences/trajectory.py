"""What a scan leaves behind: the states that it passed, kept as rows and gathered when they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyorder.checks import InputError, checked_batch

if TYPE_CHECKING:
    from anyorder.recurrences.base import Recurrence

State = Any  # a tensor, or a nested tuple, list or dict of tensors


def tree_map(function: Callable[..., Any], tree: State, *others: State) -> State:
    """The results of ``function`` on each tensor of ``tree`` and those at its place in ``others``.

    >>> tree_map(torch.add, (torch.ones(1), torch.zeros(1)), (torch.ones(1), torch.ones(1)))
    (tensor([2.]), tensor([1.]))
    """
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(o[key] for o in others)) for key in tree}
    if isinstance(tree, (tuple, list)):
        parts = [tree_map(function, *leaves) for leaves in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *others)


def tree_leaves(tree: State) -> list[Tensor]:
    """The tensors of a state, in a fixed order."""
    leaves: list[Tensor] = []
    tree_map(leaves.append, tree)
    return leaves


def by_sample(leaf: Tensor) -> Tensor:
    """A tensor of a state, ``[B]`` or ``[B, …]``, as one row per set, ``[B, F]``."""
    return leaf.flatten(1) if leaf.dim() > 1 else leaf[:, None]


@dataclass(eq=False)
class Trajectory:
    """The states that a scan passed through, batch first whatever the module's ``batch_first``.

    Attributes:
        recurrence: the recurrence that made the scan.
        elements: ``[B, T, D]``, time second.
        lengths: ``[B]``, or None if every set has T elements.
        start: the state before the first element.
        last: the state after each set's own last element.
        passed: the states of ``set [R]`` after ``count [R]`` of its elements, at least one; None if none was read.
        repeatable: whether ``recurrence.step`` gives these states again. Dropout and autocast prevent that.
        resumed_from: the state that the scan was given; None if it began at the recurrence's own start.
        recorded: whether gradients were recorded.
        ties: ``[B, T]``, equal where elements share a time; None if no times are known.
        spread: what a relative penalty divides by, in place of the variances of this batch.
        kept: what the scan keeps for :meth:`Recurrence.closed_form_gap`.
    """

    recurrence: Recurrence
    elements: Tensor
    lengths: Tensor | None
    start: State
    last: State
    passed: Callable[[Tensor, Tensor], State] | None
    repeatable: bool = True
    resumed_from: State | None = None
    recorded: bool = field(default_factory=torch.is_grad_enabled)
    ties: Tensor | None = None
    spread: Tensor | None = None
    kept: Any = None

    @classmethod
    def of(
        cls, states: State, elements: Tensor, lengths: Tensor | None = None, *, step: Callable[[Tensor, State], State]
    ) -> Trajectory:
        """The trajectory of states ``[B, T + 1, …]`` that you have already, the start first.

        >>> x = torch.randn(4, 5, 2)
        >>> states = torch.nn.functional.pad(x.cumsum(1), (0, 0, 1, 0))
        >>> Trajectory.of(states, x, step=lambda element, state: state + element).last.shape
        torch.Size([4, 2])
        """
        from anyorder.recurrences.base import of_states

        elements, lengths = checked_batch(elements, lengths)
        return of_states(states, elements, lengths, step)

    @property
    def counts(self) -> Tensor:
        """The number of elements of each set, ``[B]``."""
        batch, longest = self.elements.shape[:2]
        return torch.full((batch,), longest, device=self.elements.device) if self.lengths is None else self.lengths

    @property
    def output(self) -> State:
        """What a torch module or a step returns at the last element; without an output, the last state."""
        return self.recurrence.output_of(self)

    @property
    def states(self) -> State:
        """All states, with an axis 1 of length T + 1. Index 0 is the start; after the end the last state repeats."""
        batch, longest = self.elements.shape[:2]
        return self.at(torch.arange(longest + 1).expand(batch, -1))

    def at(self, index: Tensor) -> State:
        """States after ``index`` elements: ``[B]`` or ``[B, P]`` whole numbers give ``[B, …]`` or ``[B, P, …]``."""
        batch, longest = self.elements.shape[:2]
        given = torch.as_tensor(index, device=self.elements.device)
        fits = given.dim() in (1, 2) and len(given) == batch
        fits = fits and not given.is_floating_point() and given.dtype != torch.bool
        index = given.long()
        if fits and not torch.compiler.is_compiling():
            fits = bool(((index >= 0) & (index <= longest)).all())
        if not fits:
            raise InputError(
                f"index must be whole numbers from 0 to T = {longest} of shape [{batch}] or [{batch}, P]; got {index}"
            )
        sample = torch.arange(batch, device=index.device).repeat_interleave(index[0].numel())
        states = self.rows(sample, index.flatten())
        return tree_map(lambda leaf: leaf.reshape(index.shape + leaf.shape[1:]), states)

    def rows(self, sample: Tensor, count: Tensor) -> State:
        """States of the sets ``sample [R]`` after ``count [R]`` elements, as a state of batch R, without checks."""
        start = tree_map(lambda leaf: leaf.index_select(0, sample), self.start)
        if self.passed is None:
            return start
        if self.lengths is not None:
            count = torch.minimum(count, self.lengths[sample])
        at_start = count == 0

        def choose(first: Tensor, later: Tensor) -> Tensor:
            return torch.where(at_start.reshape(-1, *[1] * (later.dim() - 1)), first.to(later.dtype), later)

        return tree_map(choose, start, self.passed(sample, count))

    @property
    def in_half_precision(self) -> bool:
        """Whether elements or states are in half precision, as autocast makes them."""
        leaves = [self.elements, *tree_leaves(self.last)]
        return any(leaf.dtype in (torch.float16, torch.bfloat16) for leaf in leaves)


class Layout:
    """Where a scan keeps each state: rows ordered by time, then by length; sets leave when they end."""

    def __init__(self, elements: Tensor, lengths: Tensor | None) -> None:
        self.batch, self.longest = elements.shape[:2]
        self.device = elements.device
        self.ragged = lengths is not None and bool((lengths < self.longest).any())
        if lengths is None or not self.ragged:
            self.sizes = [self.batch] * self.longest
            return
        ordered, self.order = lengths.sort(descending=True, stable=True)
        self.rank = torch.empty_like(self.order)
        self.rank[self.order] = torch.arange(self.batch, device=self.device)
        ended_by = torch.bincount(ordered, minlength=self.longest + 1).cumsum(0)[:-1]
        running = self.batch - ended_by  # sets with more than t elements, t = 0 … T − 1
        self.offset = running.cumsum(0) - running
        self.sizes = [size for size in running.tolist() if size > 0]

    def row(self, sample: Tensor, count: Tensor) -> Tensor:
        """The row of each set's state after ``count`` elements; of a count of 0 any row."""
        step = (count - 1).clamp(min=0)
        if not self.ragged:
            return step * self.batch + sample
        return self.offset[step] + self.rank[sample] * (count > 0)

    def pack(self, elements: Tensor) -> Tensor:
        """``elements [B, T, D]`` as rows ``[sum of lengths, D]``, without the padding."""
        if not self.ragged:
            return elements.transpose(0, 1).reshape(-1, elements.shape[2])
        sizes = torch.tensor(self.sizes, device=self.device)
        taken = torch.arange(self.batch, device=self.device) < sizes[:, None]  # [longest in the batch, B]
        time, place = taken.nonzero(as_tuple=True)
        return elements[self.order[place], time]

    def run(self, read: Callable[[Tensor, State], State], rows: Tensor, start: State) -> State:
        """The last state of each set; ``read(elements [steps, sets, D], state)`` takes the steps until a set ends."""
        # torch's kernel for packed rows would do, but on a CPU its backward pass is quadratic in the number of steps
        parts = [(size, len(list(steps))) for size, steps in groupby(self.sizes)]
        state, running, finished = self.sort(start), self.batch, []  # finished: the longest last
        for (size, steps), part in zip(parts, rows.split([size * steps for size, steps in parts]), strict=True):
            if size < running:
                finished.append(tree_map(lambda leaf, size=size: leaf[size:], state))
                state = tree_map(lambda leaf, size=size: leaf[:size], state)
            running, state = size, read(part.reshape(steps, size, -1), state)
        return self.unsort(concatenated([state, *reversed(finished)]))

    def steps(self, step: Callable[[Tensor, State], State], rows: Tensor, start: State) -> tuple[list[State], State]:
        """The states after each step, and the last state of each set."""
        passed: list[State] = []

        def read(elements: Tensor, state: State) -> State:
            for element in elements:
                state = step(element, state)
                passed.append(state)
            return state

        last = self.run(read, rows, start)
        return passed, last

    def sort(self, state: State) -> State:
        """A state of the batch with the longest set first."""
        return tree_map(lambda leaf: leaf[self.order], state) if self.ragged else state

    def unsort(self, state: State) -> State:
        """A sorted state in the order of the batch."""
        return tree_map(lambda leaf: leaf[self.rank], state) if self.ragged else state


class Rows:
    """States as rows that are made when first read, with the scan's own gradients, and then kept."""

    def __init__(self, make: Callable[[], State]) -> None:
        self._make, self._recorded = make, torch.is_grad_enabled()
        self._kept: State = None

    def select(self, row: Tensor) -> State:
        """The states in these rows, as a state of batch R."""
        if self._kept is None:
            with torch.inference_mode(False), torch.set_grad_enabled(self._recorded):
                self._kept = self._make()
        return tree_map(lambda leaf: leaf.index_select(0, row), self._kept)


def concatenated(parts: list[State]) -> State:
    """Batches of states, one behind the other."""
    return parts[0] if len(parts) == 1 else tree_map(lambda *leaves: torch.cat(leaves), *parts)
