"""Penalties on the dependence of a recurrence on order, and a weight that seeks a target gap.

All three compare whole states (every layer; h and c of an LSTM) by the squared Euclidean norm of their
difference, averaged over draws and over the samples that have at least two elements. They need no labels,
never add dropout of their own, and draw from ``generator`` alone.

Two orderings of n elements are up to n(n − 1)/2 adjacent swaps apart, so SIRE wants a weight some n²/4 times
SubsetPenalty's. Search weights over decades, 1e-3 to 1e3.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import (
    InputError,
    InputTypeError,
    checked_elements,
    checked_lengths,
    one_of,
    real_number,
    require_finite,
    whole_number,
)
from anyorder.data.orderings import random_below, random_orderings, random_partners, reorder
from anyorder.data.sets import filled
from anyorder.recurrences.base import Recurrence, may_drop, modules_off, recurrence
from anyorder.recurrences.trajectory import State, Trajectory, by_sample, tree_leaves, tree_map


class _Penalty:
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
        batch = _Batch.of(subject, elements, lengths)
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
    def needs_mates(self) -> bool:
        """Whether samples are held against others of the batch, so that it must hold two with elements."""
        return self.relative

    def _branches(self, batch: _Batch, sample: Tensor, generator: torch.Generator | None) -> tuple[State, State]:
        """The two states to compare, one row a draw; ``sample [R]`` names the sample of each draw."""
        raise TypeError(f"{type(self).__name__} must define _branches")

    def config(self) -> dict[str, Any]:
        """The penalty as a JSON-able dict; :func:`penalty_from_config` makes it again."""
        return {"name": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class SIRE(_Penalty):
    """E ‖f(s, a, b) − f(s, b, a)‖² over reachable states s and pairs of elements (equation 13 of the paper).

    ``prefixes="random"``: m uniform in {0 … n−2}, a uniform ordered selection of m elements as prefix, two
    further distinct elements as the pair. ``prefixes="given"``: the sample's first m elements in the given
    order, the pair (x_{m+1}, x_j) with j uniform in {m+2 … n}, or at most ``window`` places on: states of the
    pass are reused, and with ``window=1`` (the adjacent swap) a draw costs two steps. ``pairs``: draws a sample.
    ``partners="batch"`` takes the pair from other samples of the batch, independent of s. ``relative=True``
    divides by the mean squared distance between end states of different samples. ``through_states=False`` takes the
    states as given: gradients reach the two steps of each branch and nothing before them, which is cheaper for subsets.

    >>> gru = recurrence(nn.GRU(3, 16))
    >>> elements, g = torch.randn(8, 10, 3), torch.Generator().manual_seed(0)
    >>> trajectory = gru.scan(elements)
    >>> value = SIRE(prefixes="given", window=1)(trajectory, generator=g)
    >>> (0.1 * value).backward()
    """

    prefixes: str | None = None
    window: int | None = None
    pairs: int = 1
    partners: str = "set"
    relative: bool = True
    through_states: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.through_states, bool):
            raise InputTypeError(f"through_states must be True or False; got {self.through_states!r}")
        if self.prefixes is None:
            object.__setattr__(self, "prefixes", "random" if self.window is None else "given")
        one_of("prefixes", self.prefixes, ["random", "given"])
        one_of("partners", self.partners, ["set", "batch"])
        if self.window is None:
            return
        object.__setattr__(self, "window", whole_number("window", self.window))
        if self.prefixes == "random":
            raise InputError(
                "window limits how far apart two elements of the given order may be, and prefixes='random' draws "
                "orders of its own; use prefixes='given' with window, or no window"
            )
        if self.partners == "batch":
            raise InputError(
                "window limits the distance inside a sample, and partners='batch' takes the pair from other "
                "samples; use partners='set' with window, or no window"
            )

    @property
    def needs_mates(self) -> bool:
        return self.relative or self.partners == "batch"

    def _branches(self, batch: _Batch, sample: Tensor, generator: torch.Generator | None) -> tuple[State, State]:
        length = batch.lengths[sample]
        before = random_below(length - 1, generator)  # m elements stand before the pair
        if self.prefixes == "random":
            order = random_orderings(length, batch.longest, 1, generator)[:, 0]
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.through_states):
                state = batch.end_state(sample, order, before)
            at = before[:, None] + torch.arange(2, device=before.device)
            places = order.gather(1, at)  # the pair follows the prefix in the same ordering
        if self.partners == "batch":
            rows = [random_partners(batch.lengths, sample, generator) for _ in range(2)]
            a, b = (batch.elements[other, position] for other, position in rows)
        elif self.prefixes == "random":
            a, b = batch.elements[sample[:, None], places].unbind(1)
        else:
            return self._prefix_branches(batch, sample, before, length, generator)
        if self.prefixes == "given":
            state = self._reached(batch, sample, before)
        return _swap(batch.recurrence, state, a, b)

    def _reached(self, batch: _Batch, sample: Tensor, before: Tensor) -> State:
        """The states of the pass after ``before [R]`` elements of each ``sample [R]``."""
        state = batch.trajectory.rows(sample, before)
        return state if self.through_states else tree_map(torch.detach, state)

    def _prefix_branches(
        self,
        batch: _Batch,
        sample: Tensor,
        before: Tensor,
        length: Tensor,
        generator: torch.Generator | None,
    ) -> tuple[State, State]:
        reach = length - 1 - before
        if self.window is not None:
            reach = reach.clamp(max=self.window)
        partner = before + 1 + random_below(reach, generator)
        a, b = batch.elements[sample[:, None], torch.stack([before, partner], 1)].unbind(1)
        trajectory, step = batch.trajectory, batch.recurrence.step
        if not trajectory.repeatable or not self.through_states:
            # the pass cannot be had again by stepping, or its steps are not to learn: share its state, step both
            return _swap(batch.recurrence, self._reached(batch, sample, before), a, b)
        further = 2 if self.window == 1 else 1  # what the pass has done already of f(s, a, b)
        both = trajectory.rows(sample.repeat(2), torch.cat([before, before + further]))
        state, ahead = _halves(both)
        straight = ahead if self.window == 1 else step(b, ahead)
        return straight, step(a, step(b, state))


@dataclass(frozen=True)
class SubsetPenalty(_Penalty):
    """E ‖f(s₀, x'_π̂) − f(s₀, x'_π̃)‖² over random subsets and two orderings of each (equation 10 of the paper).

    m uniform in {2 … n}, a uniform subset x' of that size, two independent uniform orderings of it.

    >>> SubsetPenalty(pairs=2)(recurrence(nn.GRU(3, 16)), torch.randn(8, 10, 3)).shape
    torch.Size([])
    """

    pairs: int = 1
    relative: bool = True

    def _branches(self, batch: _Batch, sample: Tensor, generator: torch.Generator | None) -> tuple[State, State]:
        length = batch.lengths[sample]
        size = self._size(length, generator)
        one = random_orderings(length, batch.longest, 1, generator)[:, 0]
        other = one.gather(1, random_orderings(size, batch.longest, 1, generator)[:, 0])
        return _halves(batch.end_state(sample.repeat(2), torch.cat([one, other]), size.repeat(2)))

    def _size(self, length: Tensor, generator: torch.Generator | None) -> Tensor:
        return 2 + random_below(length - 1, generator)


@dataclass(frozen=True)
class PermutationPenalty(SubsetPenalty):
    """E ‖f(s₀, x_π̂) − f(s₀, x_π̃)‖²: :class:`SubsetPenalty` on whole samples, two independent uniform orderings of each.

    >>> PermutationPenalty(relative=True)(recurrence(nn.GRU(3, 16)), torch.randn(8, 10, 3)).shape
    torch.Size([])
    """

    def _size(self, length: Tensor, generator: torch.Generator | None) -> Tensor:
        return length


@torch.no_grad()
def order_gap(
    subject: Recurrence | nn.Module,
    elements: Tensor,
    lengths: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """How much order matters to the end state, as one number to log (no gradient).

    0: order is ignored. Near 1: order matters as much as content. Of samples that all end alike, whose content
    cannot be told apart, it is 0 if order is ignored and else very large: the distance between them is taken to be
    the rounding error of their states.

    >>> from anyorder.recurrences import known
    >>> order_gap(known.sum(), torch.arange(12.0).reshape(3, 4, 1)).item()
    0.0
    """
    return PermutationPenalty(relative=True)(subject, elements, lengths, generator=generator)


def penalty_from_config(config: dict[str, Any]) -> _Penalty:
    """The penalty a :meth:`config` dict describes."""
    kinds = {kind.__name__: kind for kind in (SIRE, SubsetPenalty, PermutationPenalty)}
    options = dict(config)
    kind = kinds[one_of("penalty name", options.pop("name", None), kinds)]
    unknown = sorted(set(options) - set(kind.__dataclass_fields__))
    if unknown:
        raise InputError(f"{kind.__name__} has no option {unknown[0]!r}")
    return kind(**options)


@dataclass
class _Batch:
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
    ) -> _Batch:
        if isinstance(subject, Trajectory):
            if elements is not None or lengths is not None:
                raise InputError("a trajectory brings its own elements and lengths; pass the trajectory alone")
            return cls._of_trajectory(subject)
        if elements is None:
            raise InputError("elements are needed: penalty(recurrence_or_model, elements, lengths)")
        elements = checked_elements(elements)
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
    def _of_trajectory(cls, given: Trajectory) -> _Batch:
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


def _swap(r: Recurrence, state: State, a: Tensor, b: Tensor) -> tuple[State, State]:
    """f(s, a, b) and f(s, b, a), stepped together as one batch."""
    twice = tree_map(lambda leaf: torch.cat([leaf, leaf]), state)
    return _halves(r.step(torch.cat([b, a]), r.step(torch.cat([a, b]), twice)))


def _halves(state: State) -> tuple[State, State]:
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


@dataclass
class AdaptiveWeight:
    """A penalty weight that seeks a target gap: dual ascent on log weight, within bounds.

    Each update moves log(weight) by ``rate`` × log(gap / target), at most ``rate`` either way: a gap above the
    target raises the weight, one below lowers it. ``gap`` is usually :func:`order_gap` of the last batch.

    >>> budget = AdaptiveWeight(target=0.01)
    >>> budget.update(0.5) > 1.0
    True
    """

    target: float = 0.01
    weight: float = 1.0
    rate: float = 0.1
    bounds: tuple[float, float] = (1e-4, 1e4)

    def __post_init__(self) -> None:
        self.target = real_number("target", self.target, above=0)
        self.rate = real_number("rate", self.rate, above=0)
        if not isinstance(self.bounds, (tuple, list)) or len(self.bounds) != 2:
            raise InputError(f"bounds must be (lower, upper); got {self.bounds!r}")
        low, high = self.bounds
        low, high = real_number("lower bound", low, above=0), real_number("upper bound", high, above=0)
        if low > high:
            raise InputError(f"bounds must be (lower, upper); got {self.bounds}")
        self.bounds = (low, high)
        self.weight = real_number("weight", self.weight, at_least=low, at_most=high)

    def update(self, gap: float | Tensor) -> float:
        """Move the weight towards where the gap meets the target; returns the new weight."""
        try:
            gap = float(gap)
        except (TypeError, ValueError, RuntimeError):  # a tensor of several
            raise InputTypeError(f"gap must be one number, such as order_gap gives; got {gap!r}") from None
        if math.isnan(gap) or gap < 0:
            raise InputError(f"gap must be a number of at least 0; got {gap} (has the training diverged?)")
        excess = math.log(max(gap, 1e-300) / self.target)
        weight = self.weight * math.exp(self.rate * min(1.0, max(-1.0, excess)))
        self.weight = min(self.bounds[1], max(self.bounds[0], weight))
        return self.weight

    def state_dict(self) -> dict[str, Any]:
        """All of it as JSON-able values."""
        return {**asdict(self), "bounds": list(self.bounds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        if not isinstance(state, dict) or state.keys() != asdict(self).keys():
            got = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise InputError(f"the state of a budget has {', '.join(asdict(self))}; got {got}")
        self.__dict__.update(replace(self, **state).__dict__)
