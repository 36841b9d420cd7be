"""SIRE: the penalty on what a swap of two elements changes in a reachable state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyorder.checks import InputError, one_of, whole_number
from anyorder.data.orderings import random_below, random_orderings, random_partners
from anyorder.penalties.base import Batch, Penalty, halves
from anyorder.recurrences.base import Recurrence
from anyorder.recurrences.trajectory import State, tree_map


@dataclass(frozen=True)
class SIRE(Penalty):
    """E ‖f(s, a, b) − f(s, b, a)‖² over reachable states s and pairs of elements (equation 13 of the paper).

    Args:
        prefixes: ``"random"`` (default without a window) draws m uniformly from {0 … n−2}, an ordered selection of
            m elements as the prefix that leads to s, and two further distinct elements. ``"given"`` takes the set's
            first m elements and the pair (x_{m+1}, x_j), j uniform in {m+2 … n}: states of the pass are reused.
        window: the largest distance j − m − 1; implies given prefixes. With 1 a draw costs two steps.
        pairs: draws per set.
        partners: ``"set"``, or ``"batch"`` to take both elements from other sets of the batch.
        relative: divide by the mean squared distance between end states of different sets.
        through_states: False stops the gradient at s, so only the two steps of each branch learn.

    >>> import anyorder as ao
    >>> gru = ao.recurrence(torch.nn.GRU(3, 16, batch_first=True))
    >>> trajectory = gru.scan(torch.randn(8, 10, 3))
    >>> value = SIRE(window=1)(trajectory, generator=torch.Generator().manual_seed(0))
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
        prefixes = self.prefixes or ("random" if self.window is None else "given")
        object.__setattr__(self, "prefixes", one_of("prefixes", prefixes, ["random", "given"]))
        one_of("partners", self.partners, ["set", "batch"])
        if self.window is not None:
            object.__setattr__(self, "window", whole_number("window", self.window))
            if (prefixes, self.partners) != ("given", "set"):
                raise InputError(
                    "window is a distance within the given order of a set; it needs prefixes='given' and "
                    f"partners='set', got prefixes={prefixes!r} and partners={self.partners!r}"
                )

    @property
    def compares_sets(self) -> bool:
        return self.relative or self.partners == "batch"

    def branches(self, batch: Batch, sample: Tensor, generator: torch.Generator | None) -> tuple[State, State]:
        length = batch.counts[sample]
        before = random_below(length - 1, generator)  # m elements stand before the pair
        if self.prefixes == "random":
            order = random_orderings(length, batch.elements.shape[1], 1, generator)[:, 0]
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.through_states):
                state = batch.end_state(sample, order, before)
            places = order.gather(1, before[:, None] + torch.arange(2, device=before.device))
        elif self.partners == "set":
            return self._of_given_order(batch, sample, before, length, generator)
        else:
            state = self._reached(batch, sample, before)
        if self.partners == "batch":
            drawn = [random_partners(batch.counts, sample, generator) for _ in range(2)]
            a, b = (batch.elements[other, position] for other, position in drawn)
        else:
            a, b = batch.elements[sample[:, None], places].unbind(1)  # the pair follows the prefix in its ordering
        return _swap(batch.recurrence, state, a, b)

    def _reached(self, batch: Batch, sample: Tensor, before: Tensor) -> State:
        """The states of the pass after ``before [R]`` elements of each set."""
        state = batch.trajectory.rows(sample, before)
        return state if self.through_states else tree_map(torch.detach, state)

    def _of_given_order(
        self, batch: Batch, sample: Tensor, before: Tensor, length: Tensor, generator: torch.Generator | None
    ) -> tuple[State, State]:
        reach = length - 1 - before
        if self.window is not None:
            reach = reach.clamp(max=self.window)
        partner = before + 1 + random_below(reach, generator)
        a, b = batch.elements[sample[:, None], torch.stack([before, partner], 1)].unbind(1)
        trajectory, step = batch.trajectory, batch.recurrence.step
        if not trajectory.repeatable or not self.through_states:  # share the pass's state, step both branches
            return _swap(batch.recurrence, self._reached(batch, sample, before), a, b)
        done = 2 if self.window == 1 else 1  # steps of f(s, a, b) that the pass has made
        state, ahead = halves(trajectory.rows(sample.repeat(2), torch.cat([before, before + done])))
        straight = ahead if self.window == 1 else step(b, ahead)
        return straight, step(a, step(b, state))


def _swap(r: Recurrence, state: State, a: Tensor, b: Tensor) -> tuple[State, State]:
    """f(s, a, b) and f(s, b, a), stepped together as one batch."""
    twice = tree_map(lambda leaf: torch.cat([leaf, leaf]), state)
    return halves(r.step(torch.cat([b, a]), r.step(torch.cat([a, b]), twice)))
