"""What a scan leaves behind: states as trees of tensors, and the trajectory of those it passed.

A state is a tensor or a nested tuple, list or dict of tensors, batch axis first. A scan keeps its states as time-major
rows (:class:`Layout`), joined or computed when first asked for, and :class:`Trajectory` gathers them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.checks import InputError, InputTypeError

if TYPE_CHECKING:
    from anyorder.recurrences.base import Recurrence

State = Any  # a tensor, or a nested tuple, list or dict of tensors


def tree_map(function: Callable[..., Any], tree: State, *others: State) -> State:
    """Apply ``function`` to each tensor of ``tree`` and its mates in ``others``; the nesting is kept.

    >>> tree_map(torch.add, (torch.ones(1), torch.zeros(1)), (torch.ones(1), torch.ones(1)))
    (tensor([2.]), tensor([1.]))
    """
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(o[key] for o in others)) for key in tree}
    if isinstance(tree, (tuple, list)):
        parts = [tree_map(function, *mates) for mates in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *others)


def by_sample(leaf: Tensor) -> Tensor:
    """A tensor of a state, ``[B]`` or ``[B, …]``, as one row a sample ``[B, F]``."""
    return leaf.flatten(1) if leaf.dim() > 1 else leaf[:, None]


def tree_leaves(tree: State) -> list[Tensor]:
    """The tensors of a state, in a fixed order."""
    leaves: list[Tensor] = []
    tree_map(leaves.append, tree)
    return leaves


class Trajectory:
    """The states a scan passed through, kept as the scan left them and gathered when asked for.

    ``last``: the state after each sample's own last element. ``at(index)``: states after that many elements.
    ``states``: all of them, with an axis 1 of length T + 1; ``states[:, 0]`` is the start state, and beyond a
    sample's length its last state repeats. ``elements``, ``lengths`` and ``recurrence`` are the scan's own.
    ``repeatable`` tells that stepping gives the same states again, as it does not after dropout or outside the autocast
    that the scan ran under; ``recorded`` that it may have a graph for gradients. ``begun``: the state it went on from,
    None if it began at the recurrence's start.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        elements: Tensor,
        lengths: Tensor | None,
        start: State,
        last: State,
        select: Callable[[Tensor], State] | None,
        layout: Layout,
        repeatable: bool,
        begun: State | None,
    ) -> None:
        self.recurrence = recurrence
        self.elements = elements
        self.lengths = lengths
        self.last = last
        self.repeatable = repeatable
        self.recorded = torch.is_grad_enabled()
        self.begun = begun
        self._start = start
        self._select = select
        self._layout = layout

    def at(self, index: Tensor) -> State:
        """States after ``index`` elements: ``[B]`` or ``[B, P]`` whole numbers give ``[B, …]`` or ``[B, P, …]``."""
        batch, longest = self.elements.shape[:2]
        index = torch.as_tensor(index, device=self.elements.device)
        if index.is_floating_point() or index.dtype == torch.bool:
            raise InputTypeError(f"index must be whole numbers; got dtype {index.dtype}")
        if index.dim() not in (1, 2) or index.shape[0] != batch:
            raise InputError(f"index must have shape [{batch}] or [{batch}, P]; got {list(index.shape)}")
        index = index.long()
        if index.numel() and not torch.compiler.is_compiling():
            low, high = int(index.min()), int(index.max())
            if low < 0 or high > longest:
                raise InputError(f"index must be from 0 to T = {longest}; got {low if low < 0 else high}")
        sample = torch.arange(batch, device=index.device)
        if index.dim() == 2:
            sample = sample.repeat_interleave(index.shape[1])
        rows = self.rows(sample, index.reshape(-1))
        return tree_map(lambda leaf: leaf.reshape(index.shape + leaf.shape[1:]), rows)

    @property
    def output(self) -> State:
        """What the torch module returns at the last element, h of the top layer; of an own step the last state."""
        return self.recurrence.output(self.last)

    @property
    def in_half_precision(self) -> bool:
        """Whether some of what it holds is in half precision, as autocast makes it."""
        leaves = [self.elements, *tree_leaves(self.last)]
        return any(leaf.dtype in (torch.float16, torch.bfloat16) for leaf in leaves)

    @property
    def states(self) -> State:
        batch, longest = self.elements.shape[:2]
        every = torch.arange(longest + 1, device=self.elements.device)
        return self.at(every.expand(batch, longest + 1))

    def rows(self, sample: Tensor, count: Tensor) -> State:
        """States of ``sample [R]`` after ``count [R]`` elements, as a state of batch R (no checks)."""
        start = tree_map(lambda leaf: leaf.index_select(0, sample), self._start)
        if self._select is None:
            return start
        if self.lengths is not None:
            count = torch.minimum(count, self.lengths[sample])
        states = self._select(self._layout.row(sample, count))
        before_any = count == 0

        def choose(first: Tensor, later: Tensor) -> Tensor:
            return torch.where(before_any.reshape(-1, *[1] * (later.dim() - 1)), first.to(later.dtype), later)

        return tree_map(choose, start, states)


class Layout:
    """Where a state is kept: time-major rows, the samples of each step sorted by length, ended ones left out."""

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
        running = self.batch - ended_by  # samples with more than t elements, t = 0 … T − 1
        self.offset = running.cumsum(0) - running
        self.sizes = [size for size in running.tolist() if size > 0]

    def row(self, sample: Tensor, count: Tensor) -> Tensor:
        step = (count - 1).clamp(min=0)
        if not self.ragged:
            return step * self.batch + sample
        return self.offset[step] + self.rank[sample] * (count > 0)

    def pack(self, elements: Tensor) -> Tensor:
        """``elements [B, T, D]`` as time-major rows ``[sum of lengths, D]``; padding is left behind."""
        if not self.ragged:
            return elements.transpose(0, 1).reshape(-1, elements.shape[2])
        sizes = torch.tensor(self.sizes, device=self.device)
        taken = torch.arange(self.batch, device=self.device) < sizes[:, None]  # [longest in the batch, B]
        time, place = taken.nonzero(as_tuple=True)
        return elements[self.order[place], time]

    def previous(self, first: Tensor, rows: Tensor) -> Tensor:
        """The row before each row: ``first [B, …]`` before the first step, then ``rows`` of the step before."""
        if not self.ragged:
            return torch.cat([first, rows[: -self.batch]])
        start = self.offset[: len(self.sizes)].tolist()
        before = [
            torch.arange(size, device=self.device) + begin for size, begin in zip(self.sizes[1:], start, strict=False)
        ]
        first = first[self.order[: self.sizes[0]]]
        return torch.cat([first, rows.index_select(0, torch.cat(before))]) if before else first

    def sort(self, state: State) -> State:
        return tree_map(lambda leaf: leaf[self.order], state) if self.ragged else state

    def unsort(self, state: State) -> State:
        return tree_map(lambda leaf: leaf[self.rank], state) if self.ragged else state


class Kept:
    """Rows computed from a pass when first asked for, and kept unless a look without gradients made them."""

    _rows: State = None

    def rows(self) -> State:
        if self._rows is not None:
            return self._rows
        with_graph = any(leaf.requires_grad for leaf in self._source())
        with torch.set_grad_enabled(with_graph and torch.is_grad_enabled()):
            rows = self._make()
        if torch.is_grad_enabled() or not (with_graph or torch.is_inference_mode_enabled()):
            self._rows = rows
        return rows

    def _source(self) -> list[Tensor]:
        """Tensors of the pass, which have a graph if it was recorded."""
        raise TypeError(f"{type(self).__name__} must define _source")

    def _make(self) -> State:
        raise TypeError(f"{type(self).__name__} must define _make")


class Rows(Kept):
    """States of successive steps, joined into rows when the first of them is asked for."""

    def __init__(self, steps: list[State]) -> None:
        self._steps = steps

    def _source(self) -> list[Tensor]:
        return tree_leaves(self._steps[-1])

    def _make(self) -> State:
        return self._steps[0] if len(self._steps) == 1 else tree_map(lambda *rows: torch.cat(rows), *self._steps)

    def select(self, row: Tensor) -> State:
        return tree_map(lambda leaf: leaf.index_select(0, row), self.rows())


class LSTMRows(Kept):
    """The (h, c) of an LSTM layer after every step, from its outputs h alone.

    The kernel gives back every h but only the last c. Given all h, the gates of every step are one matrix
    product, and c_t = f_t c_{t−1} + i_t g_t is elementwise. Computed when first asked for.
    """

    def __init__(
        self,
        inputs: Tensor,
        outputs: Tensor,
        first: State,
        weights: list[Tensor],
        bias: bool,
        layout: Layout,
    ) -> None:
        self._inputs, self._outputs, self._first = inputs, outputs, first
        self._weights, self._bias, self._layout = weights, bias, layout

    def _source(self) -> list[Tensor]:
        return [self._outputs]

    def _make(self) -> Tensor:
        h, c = self._first
        gates = self._weights[0].shape[0] // 4 * 3  # i, f and g; the output gate is in h already
        w_ih, w_hh = (w[:gates] for w in self._weights[:2])
        b_ih, b_hh = (b[:gates] for b in self._weights[2:4]) if self._bias else (None, None)
        before = self._layout.previous(h, self._outputs)
        i, f, g = (F.linear(self._inputs, w_ih, b_ih) + F.linear(before, w_hh, b_hh)).chunk(3, dim=1)
        forget, add = f.sigmoid(), i.sigmoid() * g.tanh()
        c = self._layout.sort(c)
        sizes = self._layout.sizes
        cells = []
        for keep, new in zip(forget.split(sizes), add.split(sizes), strict=True):
            c = torch.addcmul(new, keep, c[: len(new)])
            cells.append(c)
        return torch.cat(cells)

    def select(self, row: Tensor) -> State:
        return self._outputs.index_select(0, row), self.rows().index_select(0, row)


def shapes(state: State) -> Any:
    """Structure and shapes, a list being as good as a tuple."""
    if isinstance(state, dict):
        return {key: shapes(value) for key, value in state.items()}
    if isinstance(state, (tuple, list)):
        return ["parts", *map(shapes, state)]
    return state.shape


def form(state: State) -> Any:
    """Structure, with the kinds of its parts, and shapes."""
    if isinstance(state, dict):
        return {key: form(value) for key, value in state.items()}
    if isinstance(state, (tuple, list)):
        return (type(state).__name__, *map(form, state))
    return state.shape if isinstance(state, Tensor) else type(state).__name__


def spell(form: Any) -> str:
    """A form in words, for an error."""
    if isinstance(form, dict):
        return "{" + ", ".join(f"{key!r}: {spell(value)}" for key, value in form.items()) + "}"
    if isinstance(form, torch.Size):
        return str(list(form))
    if isinstance(form, tuple):
        return form[0] + "(" + ", ".join(map(spell, form[1:])) + ")"
    return str(form)
