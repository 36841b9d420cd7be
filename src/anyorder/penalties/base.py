"""Penalties on the dependence of a recurrence on order, and a weight that seeks a target gap.

All three compare whole states (every layer; h and c of an LSTM) by the squared Euclidean norm of their
difference, averaged over draws and over the samples that have at least two elements. They need no labels,
never add dropout of their own, and draw from ``generator`` alone.

Two orderings of n elements are up to n(n − 1)/2 adjacent swaps apart, so SIRE wants a weight some n²/4 times
SubsetPenalty's. Search weights over decades, 1e-3 to 1e3.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, checked_elements, checked_lengths, require_finite, whole_number
from anyorder.data.orderings import reorder
from anyorder.data.sets import filled
from anyorder.recurrences.base import Recurrence, may_drop, modules_off, recurrence
from anyorder.recurrences.trajectory import State, Trajectory, by_sample, tree_leaves, tree_map


class Penalty:
    """What the penalties share: finding the samples that have a pair, the mean, the relative form."""

    pairs: int
    relative: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", whole_number("pairs", self.pairs))
        if not isinstance(self.relative, bool):
            raise InputTypeError(f"relative must be True or False; got {self.relative!r}")

    def __call__(
        self,
        subject: Trajectory | Recurrence | nn.Module,
        elements: Tensor | None = None,
        lengths: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The penalty of a trajectory, or of a recurrence or model on ``elements [B, T, D]``: a scalar."""
        if not isinstance(generator, torch.Generator | None):
            raise InputTypeError(f"generator must be a torch.Generator or None; got {generator!r}")
        batch = Batch.of(subject, elements, lengths)
        if self.relative and batch.size < 2:
            raise InputError(
                "relative=True compares with the distance between samples and needs at least two in the batch; "
                f"got {batch.size}"
            )
        sample = batch.samples_with_a_pair()
        if sample.numel() == 0:
            return batch.zero()
        one, other = self._branches(batch, sample.repeat_interleave(self.pairs), generator)
        value = _squared_distance(one, other).mean()
        if self.relative:
            value = value / batch.spread()
        return value

    @property
    def compares_sets(self) -> bool:
        """Whether samples are held against others of the batch, so that it must hold two with elements."""
        return self.relative

    def _branches(self, batch: Batch, sample: Tensor, generator: torch.Generator | None) -> tuple[State, State]:
        """The two states to compare, one row a draw; ``sample [R]`` names the sample of each draw."""
        raise TypeError(f"{type(self).__name__} must define _branches")

    def config(self) -> dict[str, Any]:
        """The penalty as a JSON-able dict; :func:`penalty_from_config` makes it again."""
        return {"name": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass
class Batch:
    """What a penalty is computed on: encoded elements, lengths, a recurrence, and its trajectory once needed.

    ``begun``: the state that the trajectory went on from, None if it began at the recurrence's start.
    """

    recurrence: Recurrence
    elements: Tensor
    given_lengths: Tensor | None
    scanned: Trajectory | None = None
    begun: State | None = None

    @classmethod
    def of(
        cls,
        subject: Trajectory | Recurrence | nn.Module,
        elements: Tensor | None,
        lengths: Tensor | None,
    ) -> Batch:
        if isinstance(subject, Trajectory):
            if elements is not None or lengths is not None:
                raise InputError("a trajectory brings its own elements and lengths; pass the trajectory alone")
            return cls._of_trajectory(subject)
        if elements is None:
            raise InputError("elements are needed: penalty(recurrence_or_model, elements, lengths)")
        elements = checked_elements(elements)
        if isinstance(subject, (Recurrence, nn.RNNBase)) and not subject.batch_first:
            elements = elements.transpose(0, 1)
        lengths = checked_lengths(lengths, elements)
        require_finite(elements, lengths)
        inner = getattr(subject, "recurrence", None)
        if isinstance(inner, Recurrence) and hasattr(subject, "encode"):
            encoder = [module for module in subject.modules() if may_drop(module)]
            with modules_off(encoder):  # which would draw from a generator that is not ours
                return cls(inner, subject.encode(filled(elements, lengths)), lengths)  # type: ignore[operator]
        if isinstance(subject, nn.Module) and not isinstance(subject, (Recurrence, nn.RNNBase, nn.RNNCellBase)):
            raise InputError(
                f"{type(subject).__name__} has no recurrence to penalise; pass a model that has one and encodes, such "
                "as RecurrentSetModel, one of torch's modules and cells, or anyorder.recurrence(step, start=…)"
            )
        wrapped = recurrence(subject)
        wrapped._check_elements(elements)
        return cls(wrapped, elements, lengths)

    @classmethod
    def _of_trajectory(cls, given: Trajectory) -> Batch:
        """A batch that reuses the pass, or makes it anew where that serves no more.

        That is where gradients are wanted and it was made without, and where autocast made it in half precision and
        is over: weights in single precision cannot go on from it, nor tell two nearly equal states apart there.
        """
        r, elements, begun = given.recurrence, given.elements, given.begun
        dtype = next((p.dtype for p in r.parameters() if p.is_floating_point()), None)
        coarse = dtype not in (None, torch.float16, torch.bfloat16) and given.in_half_precision
        if coarse and not torch.is_autocast_enabled(elements.device.type):

            def finer(leaf: Tensor) -> Tensor:
                return leaf.to(dtype) if leaf.is_floating_point() else leaf

            begun = None if begun is None else tree_map(finer, begun)
            return cls(r, finer(elements), given.lengths, None, begun)
        wanted = torch.is_grad_enabled() and not given.recorded
        return cls(r, elements, given.lengths, None if wanted else given, begun)

    @property
    def size(self) -> int:
        return self.elements.shape[0]

    @property
    def longest(self) -> int:
        return self.elements.shape[1]

    @property
    def lengths(self) -> Tensor:
        if self.given_lengths is not None:
            return self.given_lengths
        return torch.full((self.size,), self.longest, device=self.elements.device)

    @property
    def trajectory(self) -> Trajectory:
        if self.scanned is None:
            self.scanned = self.recurrence.scan_unchecked(self.elements, self.given_lengths, state=self.begun)
        return self.scanned

    def samples_with_a_pair(self) -> Tensor:
        every = torch.arange(self.size, device=self.elements.device)
        if self.given_lengths is None:
            return every if self.longest >= 2 else every[:0]
        return every[self.given_lengths >= 2]

    def end_state(self, sample: Tensor, order: Tensor, length: Tensor) -> State:
        """End states of the first ``length [R]`` elements of each ``sample [R]`` in the order ``order [R, T]``."""
        longest = int(length.max())
        chosen = reorder(self.elements[sample], order[:, :longest])
        state = None if self.begun is None else tree_map(lambda leaf: leaf.index_select(0, sample), self.begun)
        return self.recurrence.scan_unchecked(chosen, length, state=state, last_alone=True).last

    def spread(self) -> Tensor:
        """Mean squared distance between end states of different samples: 2/(B−1) Σ ‖s_i − s̄‖².

        At least the rounding error of the states: below that, samples that end alike cannot be told apart.
        """
        ends = [_exact(leaf) for leaf in tree_leaves(self.trajectory.last)]
        mean = torch.stack([end.sub(end.mean(0)).square().sum() for end in ends]).sum() * (2.0 / (self.size - 1))
        size = torch.stack([end.detach().square().sum() for end in ends]).sum() / self.size
        limits = torch.finfo(mean.dtype)
        return torch.maximum(mean, (limits.eps**2 * size).clamp_min(limits.tiny))

    def zero(self) -> Tensor:
        """0 with a gradient that is 0, not missing: no sample has two elements."""
        parts: list[Tensor] = [p for p in self.recurrence.parameters() if p.requires_grad]
        if self.elements.is_floating_point():
            parts.append(self.elements)
        parts += [_exact(leaf) for leaf in tree_leaves(self.trajectory.last)]  # whatever else a step calls upon
        empty = [part.flatten()[:0].sum() for part in parts]
        return torch.stack([e.to(torch.get_default_dtype()) for e in empty]).sum() if empty else torch.zeros(())


def halves(state: State) -> tuple[State, State]:
    return tuple(tree_map(lambda leaf, i=i: leaf.chunk(2)[i], state) for i in range(2))


def _exact(leaf: Tensor) -> Tensor:
    """Real numbers to square and sum: half precision is too coarse for a small difference, and whole numbers and bools
    have no mean; a complex number is two real ones."""
    if leaf.is_complex():
        return torch.view_as_real(leaf.resolve_conj())
    if not leaf.is_floating_point():
        return leaf.double()
    return leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf


def _squared_distance(one: State, other: State) -> Tensor:
    """Squared Euclidean distance of two states, a number a row ``[R]``."""
    gaps = tree_map(lambda p, q: by_sample((_exact(p) - _exact(q)).square()).sum(1), one, other)
    leaves = tree_leaves(gaps)
    return torch.stack(leaves).sum(0) if len(leaves) > 1 else leaves[0]
