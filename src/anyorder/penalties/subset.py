"""The penalty over random subsets in two orderings each (the paper's SUB)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyorder.checks import InputError
from anyorder.data.orderings import random_below, random_orderings
from anyorder.penalties.base import RelativePenalty, end_state, halves
from anyorder.recurrences.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class SubsetPenalty(RelativePenalty):
    """E ‖f(s₀, x'_π̂) − f(s₀, x'_π̃)‖² over random subsets x' and two orderings of each (equation 10 of the paper).

    The size m of x' is uniform in {2 … n}, x' is a uniform subset of that size, the orderings are uniform.

    >>> SubsetPenalty(pairs=2)(torch.nn.GRU(3, 16, batch_first=True), torch.randn(8, 10, 3)).shape
    torch.Size([])
    """

    def gaps(self, trajectory: Trajectory, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        if trajectory.ties is not None:
            raise InputError(f"ties go with SIRE or order_gap; {type(self).__name__} reorders whole sets")
        counts = (trajectory.counts >= 2).long()
        sample = counts.nonzero()[:, 0].repeat_interleave(self.pairs)
        if len(sample) == 0:
            return self.none(trajectory)
        length, longest = trajectory.counts[sample], trajectory.elements.shape[1]
        size = self._size(length, generator)
        one = random_orderings(length, longest, 1, generator)[:, 0]
        other = one.gather(1, random_orderings(size, longest, 1, generator)[:, 0])
        ends = end_state(trajectory, sample.repeat(2), torch.cat([one, other]), size.repeat(2))
        return self.squared_gaps(*halves(ends), sample, trajectory), counts

    def _size(self, length: Tensor, generator: torch.Generator | None) -> Tensor:
        return 2 + random_below(length - 1, generator)
