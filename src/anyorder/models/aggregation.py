"""Several aggregators side by side, as in principal neighbourhood aggregation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anyorder.checks import one_of, real_number
from anyorder.models.base import ACTIVATIONS, Embedding, SetModel, choices, layer_widths, mlp, pool, probability


class MultiAggregation(SetModel):
    """Several aggregators times several size scalers, side by side (PNA; Corso et al., 2020), then ρ.

    Each of ``aggregators`` (of "mean", "max", "min", "std", "sum") of φ(x_i) is taken times each of ``scalers``:
    "identity" 1, "amplification" log(n + 1)/δ, "attenuation" δ/log(n + 1), with δ = log(``typical_size`` + 1).
    n counts from 1 in the scalers, so that an empty set has a finite answer.

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
        phi, rho = layer_widths("phi", phi, empty=False), layer_widths("rho", rho)
        self.aggregators = choices("aggregators", aggregators, ("mean", "max", "min", "std", "sum"))
        self.scalers = choices("scalers", scalers, ("identity", "amplification", "attenuation"))
        self.scale = math.log(real_number("typical_size", typical_size, above=0.0) + 1.0)
        one_of("activation", activation, ACTIVATIONS)
        probability("dropout", dropout)
        self.phi = mlp(self.door.features, phi, None, activation)
        width = phi[-1] * len(self.aggregators) * len(self.scalers)
        self.rho = nn.Sequential(nn.Dropout(dropout), *mlp(width, rho, out_features, activation, dropout))
        self._built_with(
            phi=phi, rho=rho, aggregators=self.aggregators, scalers=self.scalers, typical_size=typical_size,
            activation=activation, dropout=dropout, embedding=embedding,
        )  # fmt: skip

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, lengths, mask = self.door(elements, lengths)
        encoded = self.phi(elements)
        pooled = torch.cat([pool(encoded, mask, how) for how in self.aggregators], dim=1)
        size = pooled.new_full((len(pooled),), elements.shape[1]) if lengths is None else lengths.clamp(min=1)
        ratio = (size.to(pooled.dtype) + 1).log()[:, None] / self.scale
        factor = {"identity": torch.ones_like(ratio), "amplification": ratio, "attenuation": 1 / ratio}
        return self.rho(torch.cat([pooled * factor[scaler] for scaler in self.scalers], dim=1))
