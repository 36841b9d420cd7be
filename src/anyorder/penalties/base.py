"""What the penalties share: the trajectory they read, the gap of two states by component, the mean over sets.

Two orderings of n elements are up to n(n − 1)/2 adjacent swaps apart, so SIRE needs a weight about n²/4 times
that of SubsetPenalty. Search weights over decades, 1e-3 to 1e3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, checked_batch, checked_ties, one_of, whole_number
from anyorder.data.orderings import reorder
from anyorder.data.sets import filled
from anyorder.recurrences.base import Recurrence, may_drop, modules_off, owners_of, recurrence, unwrapped
from anyorder.recurrences.trajectory import State, Trajectory, by_sample, tree_leaves, tree_map

Of = str | Sequence[str] | int | Callable[[State], State] | None


class Penalty(ABC):
    """A penalty on the dependence of a recurrence on order; a subclass defines :meth:`per_set`.

    >>> class LastStep(Penalty):
    ...     "The squared change of the state by the last element."
    ...     def per_set(self, trajectory, generator):
    ...         before = trajectory.at(trajectory.counts - 1)
    ...         return (trajectory.last - before).square().sum(1), trajectory.counts.clamp(max=1)
    >>> LastStep()(torch.nn.GRU(3, 16, batch_first=True), torch.randn(8, 10, 3)).shape
    torch.Size([])
    """

    reduction: str = "mean"
    counts: Tensor  # of the last call: 1 for each set [B] that has a pair, otherwise 0

    @abstractmethod
    def per_set(self, trajectory: Trajectory, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The value of each set ``[B]``, 0 where a set does not count, and ``[B]`` whether it counts, 1 or 0."""

    def __call__(
        self,
        subject: Trajectory | Recurrence | nn.Module,
        elements: Tensor | None = None,
        lengths: Tensor | None = None,
        *,
        ties: Tensor | None = None,
        weights: Tensor | None = None,
        spread: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The mean over the sets that count, with a gradient; ``[B]`` with ``reduction="none"``.

        Args:
            subject: a trajectory, alone; or a recurrence, torch module or model, with elements.
            elements: ``[B, T, D]``; ``[T, B, D]`` for a torch module with ``batch_first=False``. Or a PackedSequence
                or a nested tensor, which carry their lengths.
            lengths: ``[B]``, from 0 to T; None reads all T elements.
            ties: ``[B, T]``, numbers or times. Elements of equal value are a tie and stand together.
            weights: ``[B]``, a weight of each set in the mean, at least 0.
            spread: :meth:`RelativePenalty.spread` of a larger batch, in place of this batch's.
            generator: the only source of random numbers; None takes torch's default generator.
        """
        trajectory = trajectory_of(subject, elements, lengths)
        if ties is not None or spread is not None:
            ties = None if ties is None else checked_ties(ties, trajectory.elements, trajectory.lengths)
            trajectory = replace(trajectory, ties=ties, spread=spread)
        values, counts = self.per_set(trajectory, generator)
        object.__setattr__(self, "counts", counts)
        if self.reduction == "none":
            if weights is not None:
                raise InputError("weights are those of a mean; with reduction='none' multiply the values by them")
            return values
        if weights is None:
            return values.sum() / counts.sum().clamp(min=1)
        share = counts * _checked_weights(weights, values)
        total = share.sum()
        return (values * share).sum() / torch.where(total > 0, total, 1.0)

    def config(self) -> dict[str, Any]:
        """The penalty as a JSON-able dict, for ``anyorder.penalties.penalty_from_config``."""
        settings = asdict(self)  # type: ignore[call-overload]
        if callable(settings.get("of")):
            raise InputError("of is a function, which a configuration cannot describe; name a leaf or a layer")
        return {"name": type(self).__name__, **settings}


@dataclass(frozen=True, kw_only=True)
class RelativePenalty(Penalty):
    """A penalty on the squared gaps of a state's components, in units of their variance if ``relative``."""

    pairs: int = 1
    relative: bool = True
    of: Of = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", whole_number("pairs", self.pairs))
        one_of("reduction", self.reduction, ["mean", "none"])
        if isinstance(self.of, list):
            object.__setattr__(self, "of", tuple(self.of))

    @abstractmethod
    def gaps(self, trajectory: Trajectory, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The mean squared gap of each set and component ``[B, K]``, and whether a set has a pair, ``[B]``."""

    @property
    def compares_sets(self) -> bool:
        """Whether a set is compared with others of the batch, which must then hold two sets with elements."""
        return self.relative

    def per_set(self, trajectory: Trajectory, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        gaps, counts = self.gaps(trajectory, generator)
        if not self.relative:
            return gaps.sum(1), counts
        spread = trajectory.spread
        if spread is None:
            if len(trajectory.elements) < 2:
                raise InputError("relative=True needs two sets in the batch, or spread= of a larger one; got one set")
            spread = self.spread(trajectory.last, trajectory.recurrence)
        if spread.shape != gaps.shape[1:]:
            raise InputError(f"spread must hold {gaps.shape[1]} components; got shape {list(spread.shape)}")
        return (gaps * spread.to(gaps).reciprocal()).mean(1), counts

    def spread(self, ends: State, of: Recurrence | None = None) -> Tensor:
        """Twice the variance ``[K]`` of each component between the end states of different sets.

        It is at least 1e-6 of the mean over components, and at least the rounding error of the states.
        """
        ends = self.components(ends, of)
        variance, size, limits = (
            ends.sub(ends.mean(0)).square().sum(0) / (len(ends) - 1),
            ends.detach().square().mean(),
            torch.finfo(ends.dtype),
        )
        floor = torch.maximum(1e-6 * variance.detach().mean(), (limits.eps**2 * size).clamp_min(limits.tiny))
        return 2 * torch.maximum(variance, floor)

    def components(self, state: State, recurrence: Recurrence | None = None) -> Tensor:
        """The part ``of`` a state that is compared, ``[B, K]``."""
        return components(part_of(state, self.of, recurrence))

    def squared_gaps(self, one: State, other: State, sample: Tensor, trajectory: Trajectory) -> Tensor:
        """The mean over the draws of each set, ``[B, K]``, of the squared difference of two states."""
        r = trajectory.recurrence
        square = (self.components(one, r) - self.components(other, r)).square()
        drawn = square.unflatten(0, (-1, self.pairs)).mean(1)
        return square.new_zeros(len(trajectory.elements), drawn.shape[1]).index_add(0, sample[:: self.pairs], drawn)

    def none(self, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
        """The gaps of a batch in which no set has a pair: 0, with a gradient of 0 for what the recurrence reads."""
        ends = self.components(trajectory.last, trajectory.recurrence)
        parts: list[Tensor] = [p for p in trajectory.recurrence.parameters() if p.requires_grad]
        parts += [trajectory.elements] if trajectory.elements.is_floating_point() else []
        zero = torch.stack([ends.flatten()[:0].sum(), *(p.flatten()[:0].sum().to(ends) for p in parts)]).sum()
        return torch.zeros_like(ends.detach()) + zero, torch.zeros_like(trajectory.counts)


def trajectory_of(
    subject: Trajectory | Recurrence | nn.Module, elements: Tensor | None, lengths: Tensor | None
) -> Trajectory:
    """The trajectory of a penalty's arguments, checked; without dropout, which two orderings would not share."""
    if isinstance(subject, Trajectory) == (elements is not None):
        raise InputError("give a trajectory alone, or elements with a recurrence, a torch module or a model")
    if isinstance(subject, Trajectory):
        return _readable(subject)
    model = unwrapped(subject)
    if isinstance(getattr(model, "recurrence", None), Recurrence) and hasattr(model, "encode"):
        elements, lengths = checked_batch(elements, lengths)
        with modules_off([module for module in model.modules() if may_drop(module)]):
            encoded = model.encode(filled(elements, lengths))
        return model.recurrence.scan_encoded(encoded, lengths, dropout=False)
    wrapped = recurrence(model)
    elements, lengths = checked_batch(elements, lengths, batch_first=wrapped.batch_first)
    return wrapped.scan_encoded(elements, lengths, dropout=False)


def _readable(given: Trajectory) -> Trajectory:
    """The trajectory, made again if its gradients are wanted and were not recorded.

    So is one in half precision after autocast has ended: it does not tell two nearly equal states apart.
    """
    r, elements, state = given.recurrence, given.elements, given.resumed_from
    again = torch.is_grad_enabled() and not given.recorded
    dtype = next((p.dtype for p in r.parameters() if p.is_floating_point()), torch.float16)
    if given.in_half_precision and dtype.itemsize > 2 and not torch.is_autocast_enabled(elements.device.type):
        again, elements = True, elements.to(dtype) if elements.is_floating_point() else elements
        if state is not None:
            state = tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, state)
    return r.scan_encoded(elements, given.lengths, state=state, dropout=False) if again else given


def _checked_weights(weights: Tensor, values: Tensor) -> Tensor:
    """The weights ``[B]`` of the sets in the dtype of their values."""
    weights = torch.as_tensor(weights)
    if weights.shape != values.shape or not bool((weights >= 0).all()):
        raise InputError(f"weights must be {len(values)} numbers of at least 0, one per set; got {weights}")
    return weights.to(values)


def end_state(trajectory: Trajectory, sample: Tensor, order: Tensor, length: Tensor) -> State:
    """End states of the first ``length [R]`` elements of the sets ``sample [R]`` in the order ``order [R, T]``."""
    chosen = reorder(trajectory.elements[sample], order[:, : int(length.max())])
    state = trajectory.resumed_from
    if state is not None:
        state = tree_map(lambda leaf: leaf.index_select(0, sample), state)
    return trajectory.recurrence.scan_encoded(chosen, length, state=state, dropout=False, last_alone=True).last


def halves(state: State) -> tuple[State, State]:
    """The first and the second half of a state's batch."""
    return tuple(tree_map(lambda leaf, i=i: leaf.chunk(2)[i], state) for i in range(2))


def part_of(state: State, of: Of, recurrence: Recurrence | None = None) -> State:
    """The leaves with these names, a layer, or what a function makes of a state; all of it for None.

    A function that is a module, or the method of one, applies no dropout, which two orderings would not share.
    """
    if of is None:
        return state
    if callable(of):
        modules = [m for owner in owners_of(of) if isinstance(owner, nn.Module) for m in owner.modules()]
        with modules_off([module for module in modules if may_drop(module)]):
            return of(state)
    if isinstance(of, int):
        layers = getattr(recurrence, "layers", 1)
        if not 0 <= of < layers:
            raise InputError(f"of must be a layer from 0 to {layers - 1}; got {of}")
        return state if layers == 1 else tree_map(lambda leaf: leaf[:, of], state)
    named = state if isinstance(state, dict) else dict(zip(getattr(recurrence, "leaves", ()), state, strict=False))
    if not named:
        raise InputTypeError(f"of names a leaf, {of!r}, of a state without names; give a layer or a function")
    return [named[one_of("of", name, named)] for name in ([of] if isinstance(of, str) else of)]


def components(state: State) -> Tensor:
    """The numbers of a state side by side, ``[B, K]``, in at least single precision."""
    parts = [by_sample(_exact(leaf)) for leaf in tree_leaves(state)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _exact(leaf: Tensor) -> Tensor:
    """Real numbers of at least single precision to square and sum; a complex number becomes two real ones."""
    if leaf.is_complex():
        return torch.view_as_real(leaf.resolve_conj())
    if not leaf.is_floating_point():
        return leaf.double()
    return leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf
