"""What the penalties share: the batch they are computed on, the mean over sets, the relative form.

A penalty compares whole states (every layer; h and c of an LSTM) by the squared Euclidean norm of their difference,
averaged over draws and over the sets with at least two elements. It needs no labels, adds no dropout, and draws
from ``generator`` alone.

Two orderings of n elements are up to n(n − 1)/2 adjacent swaps apart, so SIRE needs a weight about n²/4 times
that of SubsetPenalty. Search weights over decades, 1e-3 to 1e3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, checked_batch, whole_number
from anyorder.data.orderings import reorder
from anyorder.data.sets import filled
from anyorder.recurrences.base import Recurrence, may_drop, modules_off, recurrence
from anyorder.recurrences.trajectory import State, Trajectory, by_sample, tree_leaves, tree_map


class Penalty(ABC):
    """A penalty on the dependence of a recurrence on order: a frozen dataclass that defines :meth:`branches`.

    ``pairs``: draws per set. ``relative=True`` divides by the mean squared distance between end states of different
    sets, so that neither the unit of the states nor shrinking them changes the value.
    """

    pairs: int
    relative: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", whole_number("pairs", self.pairs))

    def __call__(
        self,
        subject: Trajectory | Recurrence | nn.Module,
        elements: Tensor | None = None,
        lengths: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The penalty as a scalar with a gradient.

        Args:
            subject: a trajectory, alone; or a recurrence, torch module or model, with elements.
            elements: ``[B, T, D]``; ``[T, B, D]`` for a torch module with ``batch_first=False``.
            lengths: ``[B]``, from 0 to T; None reads all T elements.
            generator: the only source of random numbers; None takes torch's default generator.
        """
        batch = Batch.of(subject, elements, lengths)
        if self.relative and batch.elements.shape[0] < 2:
            raise InputError("relative=True needs at least two sets in the batch, whose end states differ; got one")
        sample = batch.sets_with_a_pair()
        if sample.numel() == 0:
            return batch.zero()
        value = squared_distance(*self.branches(batch, sample.repeat_interleave(self.pairs), generator)).mean()
        return value / batch.spread() if self.relative else value

    @abstractmethod
    def branches(self, batch: Batch, sample: Tensor, generator: torch.Generator | None) -> tuple[State, State]:
        """The two states to compare, one row per draw; ``sample [R]`` is the set of each draw."""

    @property
    def compares_sets(self) -> bool:
        """Whether a set is compared with others of the batch, which must then hold two sets with elements."""
        return self.relative

    def config(self) -> dict[str, Any]:
        """The penalty as a JSON-able dict, for ``anyorder.penalties.penalty_from_config``."""
        return {"name": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass
class Batch:
    """A recurrence and the encoded batch ``[B, T, D]`` that it reads; the trajectory is made when it is needed."""

    recurrence: Recurrence
    elements: Tensor
    lengths: Tensor | None
    scanned: Trajectory | None = None
    resumed_from: State | None = None  # None: the recurrence's own start

    @classmethod
    def of(cls, subject: Trajectory | Recurrence | nn.Module, elements: Tensor | None, lengths: Tensor | None) -> Batch:
        """The batch of a penalty's arguments, checked."""
        if isinstance(subject, Trajectory) == (elements is not None):
            raise InputError("give a trajectory alone, or elements with a recurrence, a torch module or a model")
        if isinstance(subject, Trajectory):
            return cls._of_trajectory(subject)
        if isinstance(getattr(subject, "recurrence", None), Recurrence) and hasattr(subject, "encode"):
            elements, lengths = checked_batch(elements, lengths)
            with modules_off([module for module in subject.modules() if may_drop(module)]):
                encoded = subject.encode(filled(elements, lengths))  # type: ignore[operator]
            return cls(subject.recurrence, encoded, lengths)  # type: ignore[arg-type]
        wrapped = recurrence(subject)
        elements, lengths = checked_batch(elements, lengths, batch_first=wrapped.batch_first)
        return cls(wrapped, elements, lengths)

    @classmethod
    def _of_trajectory(cls, given: Trajectory) -> Batch:
        """The batch of a trajectory, which is made again if its gradients are wanted and were not recorded.

        So is one in half precision after autocast has ended: it does not tell two nearly equal states apart.
        """
        r, elements, state = given.recurrence, given.elements, given.resumed_from
        unrecorded = torch.is_grad_enabled() and not given.recorded
        dtype = next((p.dtype for p in r.parameters() if p.is_floating_point()), torch.float16)
        if given.in_half_precision and dtype.itemsize > 2 and not torch.is_autocast_enabled(elements.device.type):
            unrecorded, elements = True, elements.to(dtype) if elements.is_floating_point() else elements
            if state is not None:
                state = tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, state)
        return cls(r, elements, given.lengths, None if unrecorded else given, state)

    @cached_property
    def counts(self) -> Tensor:
        """The number of elements of each set, ``[B]``."""
        batch, longest = self.elements.shape[:2]
        return torch.full((batch,), longest, device=self.elements.device) if self.lengths is None else self.lengths

    @cached_property
    def trajectory(self) -> Trajectory:
        if self.scanned is not None:
            return self.scanned
        return self.recurrence.scan_encoded(self.elements, self.lengths, state=self.resumed_from, dropout=False)

    def sets_with_a_pair(self) -> Tensor:
        """The indices of the sets with at least two elements."""
        batch, longest = self.elements.shape[:2]
        every = torch.arange(batch, device=self.elements.device)
        if self.lengths is None:
            return every if longest >= 2 else every[:0]
        return every[self.lengths >= 2]

    def end_state(self, sample: Tensor, order: Tensor, length: Tensor) -> State:
        """End states of the first ``length [R]`` elements of the sets ``sample [R]`` in the order ``order [R, T]``."""
        chosen = reorder(self.elements[sample], order[:, : int(length.max())])
        state = self.resumed_from
        if state is not None:
            state = tree_map(lambda leaf: leaf.index_select(0, sample), state)
        return self.recurrence.scan_encoded(chosen, length, state=state, dropout=False, last_alone=True).last

    def spread(self) -> Tensor:
        """Mean squared distance between end states of different sets: 2/(B − 1) Σ ‖s_i − s̄‖².

        It is at least the rounding error of the states. Sets that end closer together cannot be told apart.
        """
        sets = self.elements.shape[0]
        ends = [_exact(leaf) for leaf in tree_leaves(self.trajectory.last)]
        mean = torch.stack([end.sub(end.mean(0)).square().sum() for end in ends]).sum() * (2.0 / (sets - 1))
        size = torch.stack([end.detach().square().sum() for end in ends]).sum() / sets
        limits = torch.finfo(mean.dtype)
        return torch.maximum(mean, (limits.eps**2 * size).clamp_min(limits.tiny))

    def zero(self) -> Tensor:
        """0 with a gradient of 0 for all that the recurrence reads: no set has two elements."""
        parts: list[Tensor] = [p for p in self.recurrence.parameters() if p.requires_grad]
        if self.elements.is_floating_point():
            parts.append(self.elements)
        parts += [_exact(leaf) for leaf in tree_leaves(self.trajectory.last)]
        return torch.stack([part.flatten()[:0].sum().to(torch.get_default_dtype()) for part in parts]).sum()


def halves(state: State) -> tuple[State, State]:
    """The first and the second half of a state's batch."""
    return tuple(tree_map(lambda leaf, i=i: leaf.chunk(2)[i], state) for i in range(2))


def squared_distance(one: State, other: State) -> Tensor:
    """Squared Euclidean distance of two states, one number per row ``[R]``."""
    gaps = tree_map(lambda p, q: by_sample((_exact(p) - _exact(q)).square()).sum(1), one, other)
    return torch.stack(tree_leaves(gaps)).sum(0)


def _exact(leaf: Tensor) -> Tensor:
    """Real numbers of at least single precision to square and sum; a complex number becomes two real ones."""
    if leaf.is_complex():
        return torch.view_as_real(leaf.resolve_conj())
    if not leaf.is_floating_point():
        return leaf.double()
    return leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf
