"""Several aggregators side by side: principal neighbourhood aggregation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anyorder.checks import one_of, real_number
from anyorder.models.base import Embedding, SetModel, mlp, pool

_AGGREGATORS = ("mean", "max", "min", "std", "sum")
_SCALERS = ("identity", "amplification", "attenuation")


class MultiAggregation(SetModel):
    """ρ of several aggregators times several size scalers (Corso et al., 2020).

    Each of ``aggregators`` ("mean", "max", "min", "std", "sum") of φ(x_i) is taken times each of ``scalers``:
    "identity" 1, "amplification" log(n + 1)/δ, "attenuation" δ/log(n + 1), with δ = log(``typical_size`` + 1).
    The scalers take n as at least 1, so an empty set has a finite output.

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
        aggregators: Sequence[str] = ("mean", "max", "min", "std"),
        scalers: Sequence[str] = ("identity", "amplification", "attenuation"),
        typical_size: float = 10.0,
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        self.aggregators = [one_of("aggregators", how, _AGGREGATORS) for how in aggregators]
        self.scalers = [one_of("scalers", how, _SCALERS) for how in scalers]
        self.scale = math.log(real_number("typical_size", typical_size, above=0.0) + 1.0)
        self.phi = mlp(self.element_features, phi, None, activation)
        width = [self.element_features, *phi][-1] * len(self.aggregators) * len(self.scalers)
        self.rho = nn.Sequential(nn.Dropout(dropout), *mlp(width, rho, out_features, activation, dropout))

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, lengths, mask = self.masked(elements, lengths)
        encoded = self.phi(elements)
        pooled = torch.cat([pool(encoded, mask, how) for how in self.aggregators], dim=1)
        size = pooled.new_full((len(pooled),), elements.shape[1]) if lengths is None else lengths.clamp(min=1)
        ratio = (size.to(pooled.dtype) + 1).log()[:, None] / self.scale
        factor = {"identity": torch.ones_like(ratio), "amplification": ratio, "attenuation": 1 / ratio}
        return self.rho(torch.cat([pooled * factor[scaler] for scaler in self.scalers], dim=1))
