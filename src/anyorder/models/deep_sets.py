"""DeepSets: an MLP of every element, pooled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, one_of
from anyorder.models.base import ACTIVATIONS, Embedding, SetModel, layer_widths, mlp, pool, probability
from anyorder.recurrences.base import recurrence
from anyorder.recurrences.trajectory import State, tree_leaves


class EquivariantMax(nn.Module):
    """x_i -> Γ x_i − Λ max_j x_j + b: DeepSets' equivariant layer for point clouds, the maximum taken over the set."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_features, out_features)
        self.shared = nn.Linear(in_features, out_features, bias=False)

    def forward(self, elements: Tensor, mask: Tensor | None) -> Tensor:
        return self.own(elements) - self.shared(pool(elements, mask, "max"))[:, None]


class DeepSets(SetModel):
    """y = ρ(pool φ(x_i)) (Zaheer et al., 2017), ``pooling`` by "sum", "mean" or "max".

    ``phi``: widths of φ, ``activation`` after every layer; ``rho``: hidden widths of ρ. ``equivariant=True`` makes
    every layer of φ see the set's maximum (:class:`EquivariantMax`), as the point-cloud version does; the model then
    holds the whole set. ``dropout`` acts before every linear layer of ρ. Without equivariant layers the pooling
    is a recurrence that commutes: ``encode``, ``recurrence`` and ``readout`` stream it.

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
        phi, rho = layer_widths("phi", phi, empty=False), layer_widths("rho", rho)
        self.pooling = one_of("pooling", pooling, _POOL_STEPS)
        one_of("activation", activation, ACTIVATIONS)
        probability("dropout", dropout)
        self.equivariant = bool(equivariant)
        width = self.door.features
        if equivariant:
            shapes = zip((width, *phi), phi, strict=False)
            self.phi: nn.Module = nn.ModuleList(EquivariantMax(before, after) for before, after in shapes)
            self.streams = False
        else:
            self.phi = mlp(width, phi, None, activation)
            start = torch.zeros(1, phi[-1])
            count = torch.zeros(1, 1, dtype=torch.int64)  # exact however many elements there are, in any precision
            self.recurrence = recurrence(_POOL_STEPS[pooling], start=start if pooling == "sum" else (start, count))
        self.rho = nn.Sequential(nn.Dropout(dropout), *mlp(phi[-1], rho, out_features, activation, dropout))
        self.activation = ACTIVATIONS[activation]()
        self._built_with(
            phi=phi, rho=rho, pooling=pooling, equivariant=equivariant, activation=activation, dropout=dropout,
            embedding=embedding,
        )  # fmt: skip

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, _, mask = self.door(elements, lengths)
        if isinstance(self.phi, nn.ModuleList):
            for layer in self.phi:
                elements = self.activation(layer(elements, mask))
        else:
            elements = self.phi(elements)
        return self.rho(pool(elements, mask, self.pooling))

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ of every element, ``[B, T, D] -> [B, T, W]``; padding beyond ``lengths`` is read as zeros."""
        if self.equivariant:
            raise InputError("equivariant layers need the whole set: this DeepSets cannot encode element by element")
        return self.phi(self.door(elements, lengths)[0])

    def readout(self, state: State) -> Tensor:
        """ρ of a pooled state: the sum; or (mean, count); or (max, count)."""
        return self.rho(state if self.pooling == "sum" else state[0])

    def _state_size(self) -> int | None:
        return None if self.equivariant else sum(leaf.numel() for leaf in tree_leaves(self.recurrence.start(1)))


def _add(element: Tensor, state: Tensor) -> Tensor:
    return state + element


def _running_mean(element: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    mean, count = state
    return mean + (element - mean) / (count + 1), count + 1


def _running_max(element: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    top, count = state
    return torch.where(count > 0, torch.maximum(top, element), element), count + 1


_POOL_STEPS: dict[str, Callable[[Tensor, Any], Any]] = {"sum": _add, "mean": _running_mean, "max": _running_max}
