"""Recurrences whose answer is known: sum, max and parity, each in a handful of ReLU gates.

They commute in exact arithmetic, so every penalty is exactly 0 on whole numbers. They serve tests, docs and
teaching, and the cell they share is the one of the paper's Theorem 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anyorder.checks import whole_number
from anyorder.recurrences.base import Recurrence, recurrence


class TwoLayerReLUCell(nn.Module):
    """The cell of Theorem 4: s' = W₁ ReLU(W₂ x + W₃ s + B), with ``hidden`` gates.

    ``element [B, in_features]``, ``state [B, state_features]``.
    """

    def __init__(self, in_features: int, state_features: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        in_features = whole_number("in_features", in_features)
        state_features = whole_number("state_features", state_features)
        hidden = whole_number("hidden", hidden)
        self.from_element = nn.Linear(in_features, hidden, bias=bias)  # W₂ and B
        self.from_state = nn.Linear(state_features, hidden, bias=False)  # W₃
        self.to_state = nn.Linear(hidden, state_features, bias=False)  # W₁

    def forward(self, element: Tensor, state: Tensor) -> Tensor:
        return self.to_state(torch.relu(self.from_element(element) + self.from_state(state)))


def parity() -> Recurrence:
    """Parity of bits with 3 gates and 12 parameters (Theorem 4): s' = (x + s) mod 2.

    With a = 2x + 2s, s' = ReLU(a) − ReLU(a − 1) − ReLU(a − 3).

    >>> r = parity()
    >>> r.scan(torch.tensor([[[1.0], [1.0], [1.0]]])).last.item()
    1.0
    >>> torch.cat([p.flatten() for p in r.parameters()]).numel()
    12
    """
    return _from_gates(to_state=[1, -1, -1], element=[2, 2, 2], state=[2, 2, 2], bias=[0, -1, -3])


def sum() -> Recurrence:
    """The sum with 2 gates and 6 parameters: s' = ReLU(x + s) − ReLU(−x − s).

    >>> sum().scan(torch.tensor([[[1.0], [-4.0]]])).last.item()
    -3.0
    """
    return _from_gates(to_state=[1, -1], element=[1, -1], state=[1, -1])


def max() -> Recurrence:
    """The maximum of positive numbers with 4 gates and 12 parameters, from s₀ = 0: s' = max(s, x).

    max(s, x) = ½ [ReLU(x + s) − ReLU(−x − s) + ReLU(x − s) + ReLU(s − x)].

    >>> max().scan(torch.tensor([[[3.0], [7.0], [5.0]]])).last.item()
    7.0
    """
    return _from_gates(to_state=[0.5, -0.5, 0.5, 0.5], element=[1, -1, 1, -1], state=[1, -1, -1, 1])


def _from_gates(
    to_state: Sequence[float],
    element: Sequence[float],
    state: Sequence[float],
    bias: Sequence[float] | None = None,
) -> Recurrence:
    cell = TwoLayerReLUCell(1, 1, len(to_state), bias=bias is not None)
    with torch.no_grad():
        cell.to_state.weight.copy_(torch.tensor([to_state]))
        cell.from_element.weight.copy_(torch.tensor(element)[:, None])
        cell.from_state.weight.copy_(torch.tensor(state)[:, None])
        if bias is not None:
            cell.from_element.bias.copy_(torch.tensor(bias))
    return recurrence(cell, start=torch.zeros(1, 1))
