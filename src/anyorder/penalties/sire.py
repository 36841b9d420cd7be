"""SIRE: the penalty on what a swap of two elements changes in a reachable state."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anyorder.checks import InputError, one_of, whole_number
from anyorder.data.orderings import random_below, random_orderings, random_partners
from anyorder.penalties.base import RelativePenalty, end_state, halves
from anyorder.recurrences.base import Recurrence
from anyorder.recurrences.pairs import Pairs
from anyorder.recurrences.trajectory import State, Trajectory, tree_map


@dataclass(frozen=True, kw_only=True)
class SIRE(RelativePenalty):
    """E ‖f(s, a, b) − f(s, b, a)‖² over reachable states s and pairs of elements (equation 13 of the paper).

    A component of the state counts in units of twice its variance between the end states of different sets, and the
    value is the mean over components. ``relative=False`` gives the paper's sum over components. Where the recurrence
    has a closed form (:class:`anyorder.Fold`), the value is exact; elsewhere it is the mean of ``pairs`` draws a set.

    Args:
        prefixes: ``"random"`` (default without window and ties) draws m uniformly from {0 … n−2}, an ordered selection
            of m elements as the prefix that leads to s, and two further distinct elements. ``"given"`` takes the
            set's first m elements and the pair (x_{m+1}, x_j), j uniform in {m+2 … n}: states of the pass are reused.
        window: the largest distance j − m − 1; implies given prefixes. With ties it counts distinct times.
        ties: True takes pairs within ties, given as ``ties=`` in the call; with a window, also pairs of near times.
            A tie of k elements counts k − 1 times, so the value does not depend on its accidental order.
        pairs: draws per set.
        partners: ``"set"``, or ``"batch"`` to take both elements from other sets of the batch.
        relative: divide by the variance between end states of different sets.
        of: what is compared: None for the whole state, names of leaves, the number of a layer, or a function of the
            state (``of=model.readout``).
        through_states: False stops the gradient at s, so only the two steps of each branch learn.
        reduction: ``"mean"`` over the sets that have a pair, or ``"none"`` for a value a set.

    >>> import anyorder as ao
    >>> gru = ao.recurrence(torch.nn.GRU(3, 16, batch_first=True))
    >>> trajectory = gru.scan(torch.randn(8, 10, 3))
    >>> value = SIRE(window=1)(trajectory, generator=torch.Generator().manual_seed(0))
    >>> (0.1 * value).backward()
    """

    prefixes: str | None = None
    window: int | None = None
    ties: bool | None = None
    partners: str = "set"
    through_states: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = self.window is not None or bool(self.ties)
        prefixes = self.prefixes or ("given" if ordered else "random")
        object.__setattr__(self, "prefixes", one_of("prefixes", prefixes, ["random", "given"]))
        one_of("partners", self.partners, ["set", "batch"])
        if self.window is not None:
            object.__setattr__(self, "window", whole_number("window", self.window))
        if ordered and (prefixes, self.partners) != ("given", "set"):
            raise InputError(
                "window and ties are about the given order of a set; they need prefixes='given' and partners='set', "
                f"got prefixes={prefixes!r} and partners={self.partners!r}"
            )

    @property
    def compares_sets(self) -> bool:
        return self.relative or self.partners == "batch"

    def of_shuffled(self, recurrence: Recurrence) -> SIRE:
        """The same law for sets that are read in a fresh random ordering: their own prefixes are random.

        States of the pass then serve as the states before the pairs, which costs no further scan.
        """
        drawn = self.prefixes == "random" and self.partners == "set" and self.through_states
        closed = type(recurrence).closed_form_gap is not Recurrence.closed_form_gap
        return self if closed or not drawn else replace(self, prefixes="given")

    def gaps(self, trajectory: Trajectory, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        if bool(self.ties) != (trajectory.ties is not None):
            raise InputError("ties=True and the argument ties of the call go together; got one without the other")
        longest, every = trajectory.elements.shape[1], self.prefixes == "random" or self.partners == "batch"
        pairs = Pairs(trajectory.counts, longest, trajectory.ties, self.window, every)
        counts, closed = pairs.counts, None
        if self.of is None and self.partners == "set":
            closed = trajectory.recurrence.closed_form_gap(trajectory, pairs)
        exact, covered = closed or (None, None)
        if exact is not None and covered is None:
            return exact, counts
        sample = counts.nonzero()[:, 0].repeat_interleave(self.pairs)
        if len(sample) == 0:
            return self.none(trajectory)
        sampled = self.squared_gaps(*self._branches(trajectory, pairs, sample, generator), sample, trajectory)
        if exact is None or covered is None:
            return sampled, counts
        return torch.where(covered, exact.to(sampled), sampled), counts

    def _branches(
        self, trajectory: Trajectory, pairs: Pairs, sample: Tensor, generator: torch.Generator | None
    ) -> tuple[State, State]:
        """f(s, a, b) and f(s, b, a), one row per draw; ``sample [R]`` is the set of each draw."""
        r, length = trajectory.recurrence, trajectory.counts[sample]
        if self.prefixes == "given" and self.partners == "set":
            return self._of_given_order(trajectory, sample, *pairs.draw(sample, generator))
        before = random_below(length - 1, generator)  # m elements stand before the pair
        if self.prefixes == "random":
            order = random_orderings(length, trajectory.elements.shape[1], 1, generator)[:, 0]
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.through_states):
                state = end_state(trajectory, sample, order, before)
            places = order.gather(1, before[:, None] + torch.arange(2, device=before.device))
        else:
            state = self._reached(trajectory, sample, before)
        if self.partners == "batch":
            drawn = [random_partners(trajectory.counts, sample, generator) for _ in range(2)]
            a, b = (trajectory.elements[other, position] for other, position in drawn)
        else:
            a, b = trajectory.elements[sample[:, None], places].unbind(1)  # the pair follows the prefix
        return swapped(r, state, a, b)

    def _reached(self, trajectory: Trajectory, sample: Tensor, before: Tensor) -> State:
        """The states of the pass after ``before [R]`` elements of each set."""
        state = trajectory.rows(sample, before)
        return state if self.through_states else tree_map(torch.detach, state)

    def _of_given_order(
        self, trajectory: Trajectory, sample: Tensor, before: Tensor, partner: Tensor
    ) -> tuple[State, State]:
        a, b = trajectory.elements[sample[:, None], torch.stack([before, partner], 1)].unbind(1)
        step = trajectory.recurrence.step
        if not trajectory.repeatable or not self.through_states:  # share the pass's state, step both branches
            return swapped(trajectory.recurrence, self._reached(trajectory, sample, before), a, b)
        done = 2 if self.window == 1 and not self.ties else 1  # steps of f(s, a, b) that the pass has made
        reached = trajectory.rows(sample.repeat(2), torch.cat([before, before + done]))
        if done == 2:
            state, ahead = halves(reached)
            return ahead, step(a, step(b, state))
        after_b, ahead = halves(step(torch.cat([b, b]), reached))
        return ahead, step(a, after_b)


def swapped(r: Recurrence, state: State, a: Tensor, b: Tensor) -> tuple[State, State]:
    """f(s, a, b) and f(s, b, a), stepped together as one batch."""
    twice = tree_map(lambda leaf: torch.cat([leaf, leaf]), state)
    return halves(r.step(torch.cat([b, a]), r.step(torch.cat([a, b]), twice)))
