"""The penalty over random subsets in two orderings each (the paper's SUB)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyorder.data.orderings import random_below, random_orderings
from anyorder.penalties.base import Batch, Penalty, halves
from anyorder.recurrences.trajectory import State


@dataclass(frozen=True)
class SubsetPenalty(Penalty):
    """E ‖f(s₀, x'_π̂) − f(s₀, x'_π̃)‖² over random subsets x' and two orderings of each (equation 10 of the paper).

    The size m of x' is uniform in {2 … n}, x' is a uniform subset of that size, the orderings are uniform.

    >>> SubsetPenalty(pairs=2)(torch.nn.GRU(3, 16, batch_first=True), torch.randn(8, 10, 3)).shape
    torch.Size([])
    """

    pairs: int = 1
    relative: bool = True

    def branches(self, batch: Batch, sample: Tensor, generator: torch.Generator | None) -> tuple[State, State]:
        length = batch.counts[sample]
        size = self._size(length, generator)
        one = random_orderings(length, batch.elements.shape[1], 1, generator)[:, 0]
        other = one.gather(1, random_orderings(size, batch.elements.shape[1], 1, generator)[:, 0])
        return halves(batch.end_state(sample.repeat(2), torch.cat([one, other]), size.repeat(2)))

    def _size(self, length: Tensor, generator: torch.Generator | None) -> Tensor:
        return 2 + random_below(length - 1, generator)
