"""SIRE: the penalty on what the order of two successive elements does to a reachable state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyorder.checks import InputError, InputTypeError, one_of, whole_number
from anyorder.data.orderings import random_below, random_orderings, random_partners
from anyorder.penalties.base import Batch, Penalty, halves
from anyorder.recurrences.base import Recurrence
from anyorder.recurrences.trajectory import State, tree_map


@dataclass(frozen=True)
class SIRE(Penalty):
    """E ‖f(s, a, b) − f(s, b, a)‖² over reachable states s and pairs of elements (equation 13 of the paper).

    ``prefixes="random"``: m uniform in {0 … n−2}, a uniform ordered selection of m elements as prefix, two
    further distinct elements as the pair. ``prefixes="given"``: the sample's first m elements in the given
    order, the pair (x_{m+1}, x_j) with j uniform in {m+2 … n}, or at most ``window`` places on: states of the
    pass are reused, and with ``window=1`` (the adjacent swap) a draw costs two steps. ``pairs``: draws a sample.
    ``partners="batch"`` takes the pair from other samples of the batch, independent of s. ``relative=True``
    divides by the mean squared distance between end states of different samples. ``through_states=False`` takes the
    states as given: gradients reach the two steps of each branch and nothing before them, which is cheaper for subsets.

    >>> import anyorder as ao
    >>> gru = ao.recurrence(torch.nn.GRU(3, 16, batch_first=True))
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
    def compares_sets(self) -> bool:
        return self.relative or self.partners == "batch"

    def _branches(self, batch: Batch, sample: Tensor, generator: torch.Generator | None) -> tuple[State, State]:
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
        return swap(batch.recurrence, state, a, b)

    def _reached(self, batch: Batch, sample: Tensor, before: Tensor) -> State:
        """The states of the pass after ``before [R]`` elements of each ``sample [R]``."""
        state = batch.trajectory.rows(sample, before)
        return state if self.through_states else tree_map(torch.detach, state)

    def _prefix_branches(
        self,
        batch: Batch,
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
            return swap(batch.recurrence, self._reached(batch, sample, before), a, b)
        further = 2 if self.window == 1 else 1  # what the pass has done already of f(s, a, b)
        both = trajectory.rows(sample.repeat(2), torch.cat([before, before + further]))
        state, ahead = halves(both)
        straight = ahead if self.window == 1 else step(b, ahead)
        return straight, step(a, step(b, state))


def swap(r: Recurrence, state: State, a: Tensor, b: Tensor) -> tuple[State, State]:
    """f(s, a, b) and f(s, b, a), stepped together as one batch."""
    twice = tree_map(lambda leaf: torch.cat([leaf, leaf]), state)
    return halves(r.step(torch.cat([b, a]), r.step(torch.cat([a, b]), twice)))
