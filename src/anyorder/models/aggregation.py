"""Several aggregators side by side: principal neighbourhood aggregation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anyorder.checks import real_number
from anyorder.models.base import Embedding, SetModel, mlp, pool

_AGGREGATORS = ("mean", "max", "min", "std")


class MultiAggregation(SetModel):
    """ρ of several aggregators times several size scalers (Corso et al., 2020).

    The mean, maximum, minimum and standard deviation of φ(x_i) are each taken times 1, times log(n + 1)/δ and times
    δ/log(n + 1), with δ = log(``typical_size`` + 1). n counts as at least 1, so an empty set has a finite output.

    >>> MultiAggregation(3, 2)(torch.randn(5, 7, 3)).shape
    torch.Size([5, 2])
    """

    name = "multi-aggregation"
    invariant = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        phi: Sequence[int] = (64, 64),
        rho: Sequence[int] = (64,),
        typical_size: float = 10.0,
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        self.scale = math.log(real_number("typical_size", typical_size, above=0.0) + 1.0)
        self.phi = mlp(self.element_features, phi, None, activation)
        width = [self.element_features, *phi][-1] * len(_AGGREGATORS) * 3
        self.rho = nn.Sequential(nn.Dropout(dropout), *mlp(width, rho, out_features, activation, dropout))

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, lengths, mask = self.masked(elements, lengths)
        encoded = self.phi(elements)
        pooled = torch.cat([pool(encoded, mask, how) for how in _AGGREGATORS], dim=1)
        size = pooled.new_full((len(pooled),), elements.shape[1]) if lengths is None else lengths.clamp(min=1)
        ratio = (size.to(pooled.dtype) + 1).log()[:, None] / self.scale
        return self.rho(torch.cat([pooled * scale for scale in (torch.ones_like(ratio), ratio, 1 / ratio)], dim=1))
