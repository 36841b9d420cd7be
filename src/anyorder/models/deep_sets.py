"""DeepSets: an MLP of every element, pooled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import one_of
from anyorder.models.base import ACTIVATIONS, Embedding, SetModel, mlp, pool
from anyorder.recurrences.base import recurrence
from anyorder.recurrences.trajectory import State


class EquivariantMax(nn.Module):
    """x_i -> Γ x_i − Λ max_j x_j + b: DeepSets' equivariant layer for point clouds."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_features, out_features)
        self.shared = nn.Linear(in_features, out_features, bias=False)

    def forward(self, elements: Tensor, mask: Tensor | None) -> Tensor:
        return self.own(elements) - self.shared(pool(elements, mask, "max"))[:, None]


class DeepSets(SetModel):
    """y = ρ(pool φ(x_i)) (Zaheer et al., 2017), ``pooling`` by "sum", "mean" or "max".

    ``phi``: widths of φ, ``activation`` after every layer; ``rho``: hidden widths of ρ. ``dropout`` acts before every
    linear layer of ρ. ``equivariant=True``: every layer of φ sees the set's maximum (:class:`EquivariantMax`), as in
    the point-cloud version. Without it the model streams: ``encode``, ``recurrence`` and ``readout`` give the same
    output element by element.

    >>> DeepSets(3, 2, phi=(32, 16), pooling="max")(torch.randn(5, 7, 3)).shape
    torch.Size([5, 2])
    """

    name = "deepsets"
    invariant = True
    streams = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        phi: Sequence[int] = (64, 64),
        rho: Sequence[int] = (64,),
        pooling: str = "sum",
        *,
        equivariant: bool = False,
        activation: str = "relu",
        dropout: float = 0.0,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        self.pooling = one_of("pooling", pooling, _POOL_STEPS)
        widths = (self.element_features, *phi)
        if equivariant:
            layers = zip(widths, phi, strict=False)
            self.phi: nn.Module = nn.ModuleList(EquivariantMax(before, after) for before, after in layers)
            self.streams = False
        else:
            self.phi = mlp(self.element_features, phi, None, activation)
            start = torch.zeros(1, widths[-1])
            count = torch.zeros(1, 1, dtype=torch.int64)  # exact for any number of elements, in any precision
            self.recurrence = recurrence(_POOL_STEPS[pooling], start=start if pooling == "sum" else (start, count))
        self.rho = nn.Sequential(nn.Dropout(dropout), *mlp(widths[-1], rho, out_features, activation, dropout))
        self.activation = ACTIVATIONS[activation]()

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, _, mask = self.masked(elements, lengths)
        if isinstance(self.phi, nn.ModuleList):
            for layer in self.phi:
                elements = self.activation(layer(elements, mask))
        else:
            elements = self.phi(elements)
        return self.rho(pool(elements, mask, self.pooling))

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ of every element, ``[B, T, D] -> [B, T, W]``; padding is read as zeros."""
        return self.phi(self.masked(elements, lengths)[0])

    def readout(self, state: State) -> Tensor:
        """ρ of a pooled state: the sum; or (mean, count); or (max, count)."""
        return self.rho(state if self.pooling == "sum" else state[0])


def _running_mean(element: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    mean, count = state
    return mean + (element - mean) / (count + 1), count + 1


def _running_max(element: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    top, count = state
    return torch.where(count > 0, torch.maximum(top, element), element), count + 1


_POOL_STEPS: dict[str, Callable[[Tensor, Any], Any]] = {"sum": torch.add, "mean": _running_mean, "max": _running_max}
