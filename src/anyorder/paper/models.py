"""Models that only the experiments use: an image network, and peers of a penalised recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyorder.models import SetModel
from anyorder.recurrences.base import recurrence


class SmallCNN(SetModel):
    """The image network of the Locally Perturbed MNIST comparison: 2 convolutions, 2 fully connected layers.

    It reads full sets of ``side²`` pixels in raster order, ``elements [B, side², in_features]``.
    """

    name = "cnn"

    def __init__(self, in_features: int, out_features: int, side: int = 28, *, dropout: float = 0.0) -> None:
        super().__init__(in_features, out_features)
        self.side = side
        self.layers = nn.Sequential(
            nn.Conv2d(self.in_features, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Dropout(dropout), nn.Linear(64 * (side // 4) ** 2, 128), nn.ReLU(),
            nn.Dropout(dropout), nn.Linear(128, out_features),
        )  # fmt: skip

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.layers(elements.transpose(1, 2).unflatten(2, (self.side, self.side)))


class CommutativeMonoid(SetModel):
    """A balanced tree of a commutative GRU: a learnable commutative monoid (Ong and Veličković, 2022).

    x ∘ y = (GRU(x, y) + GRU(y, x)) / 2

    The operation commutes; nothing makes it associative, so another order of the elements gives another tree.
    """

    name = "monoid"

    def __init__(
        self, in_features: int, out_features: int, hidden: int = 64, *, embedding: tuple[int, int, str] | None = None
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        self.phi, self.join = nn.Linear(self.element_features, hidden), nn.GRUCell(hidden, hidden)
        self.rho = nn.Linear(hidden, out_features)

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, _, mask = self.masked(elements, lengths)
        nodes = torch.tanh(self.phi(elements))
        there = nodes.new_ones(nodes.shape[:2], dtype=torch.bool) if mask is None else mask
        while nodes.shape[1] > 1:
            odd = nodes.shape[1] % 2
            nodes, there = F.pad(nodes, (0, 0, 0, odd)), F.pad(there, (0, odd))
            one, other = nodes[:, ::2].flatten(0, 1), nodes[:, 1::2].flatten(0, 1)
            joined = ((self.join(one, other) + self.join(other, one)) / 2).unflatten(0, (len(nodes), -1))
            nodes = torch.where(there[:, 1::2, None], joined, nodes[:, ::2])  # what has no partner goes up as it is
            there = there[:, ::2]
        return self.rho(nodes[:, 0])


class MambaBlock(nn.Module):
    """A step of a Mamba-style block: a short convolution of ``inputs``, then a selective linear recurrence ``ssm``.

    The gate and the projection that follow in Mamba are left out: only the state is read.
    """

    def __init__(self, width: int, states: int = 8, taps: int = 4) -> None:
        super().__init__()
        self.enter, self.select = nn.Linear(width, width), nn.Linear(width, width + states)
        self.taps = nn.Parameter(torch.randn(width, taps) / taps)
        self.log_decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))

    def start(self, batch: int) -> dict[str, Tensor]:
        zeros = self.log_decay.new_zeros(batch, *self.log_decay.shape)
        return {"inputs": self.taps.new_zeros(batch, *self.taps.shape), "ssm": zeros}

    def forward(self, element: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        inputs = torch.cat([state["inputs"][:, :, 1:], self.enter(element)[:, :, None]], 2)
        u = F.silu((inputs * self.taps).sum(2))
        delta, b = self.select(u).split(self.log_decay.shape, 1)
        delta = F.softplus(delta)[:, :, None]
        ssm = torch.exp(-delta * self.log_decay.exp()) * state["ssm"] + delta * b[:, None] * u[:, :, None]
        return {"inputs": inputs, "ssm": ssm}


class ReadStateSpace(nn.Sequential):
    """A hidden layer on the state-space part of a block's last state, without its buffer of inputs."""

    def forward(self, state: dict[str, Tensor]) -> Tensor:
        return super().forward(state["ssm"].flatten(1))


def mamba(width: int, out_features: int) -> dict[str, Any]:
    """The arguments of RecurrentSetModel for one block on a layer of ``width`` units."""
    block = MambaBlock(width)
    read = ReadStateSpace(nn.Linear(block.log_decay.numel(), width), nn.ReLU(), nn.Linear(width, out_features))
    return {"cell": recurrence(block, start=block.start), "encoder": (width,), "readout": read}
