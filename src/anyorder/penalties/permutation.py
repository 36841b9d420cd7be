"""The penalty over two orderings of whole sets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyorder.penalties.subset import SubsetPenalty


@dataclass(frozen=True, kw_only=True)
class PermutationPenalty(SubsetPenalty):
    """E ‖f(s₀, x_π̂) − f(s₀, x_π̃)‖²: :class:`SubsetPenalty` on whole sets, two uniform orderings of each.

    >>> PermutationPenalty()(torch.nn.GRU(3, 16, batch_first=True), torch.randn(8, 10, 3)).shape
    torch.Size([])
    """

    def _size(self, length: Tensor, generator: torch.Generator | None) -> Tensor:
        return length
