"""Recurrences whose answer is known: sum, max and parity, each in a few ReLU gates.

They commute in exact arithmetic, so every penalty is exactly 0 on whole numbers. Their cell is that of Theorem 4.
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

    >>> cell = TwoLayerReLUCell(in_features=3, state_features=2, hidden=8)
    >>> recurrence(cell, start=torch.zeros(1, 2)).scan(torch.randn(5, 7, 3)).last.shape
    torch.Size([5, 2])
    """

    def __init__(self, in_features: int, state_features: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        hidden = whole_number("hidden", hidden)
        self.from_element = nn.Linear(in_features, hidden, bias=bias)  # W₂ and B
        self.from_state = nn.Linear(state_features, hidden, bias=False)  # W₃
        self.to_state = nn.Linear(hidden, state_features, bias=False)  # W₁

    def forward(self, element: Tensor, state: Tensor) -> Tensor:
        return self.to_state(torch.relu(self.from_element(element) + self.from_state(state)))


def parity() -> Recurrence:
    """Parity of bits: s' = (x + s) mod 2 = ReLU(a) − ReLU(a − 1) − ReLU(a − 3) with a = 2x + 2s.

    >>> r = parity()
    >>> r.scan(torch.tensor([[[1.0], [1.0], [1.0]]])).last.item()
    1.0
    """
    return _from_gates(to_state=[1, -1, -1], element=[2, 2, 2], state=[2, 2, 2], bias=[0, -1, -3])


def sum() -> Recurrence:
    """The sum: s' = ReLU(x + s) − ReLU(−x − s).

    >>> sum().scan(torch.tensor([[[1.0], [-4.0]]])).last.item()
    -3.0
    """
    return _from_gates(to_state=[1, -1], element=[1, -1], state=[1, -1])


def max() -> Recurrence:
    """The maximum of positive numbers: s' = ½ [ReLU(x + s) − ReLU(−x − s) + ReLU(x − s) + ReLU(s − x)].

    >>> max().scan(torch.tensor([[[3.0], [7.0], [5.0]]])).last.item()
    7.0
    """
    return _from_gates(to_state=[0.5, -0.5, 0.5, 0.5], element=[1, -1, 1, -1], state=[1, -1, -1, 1])


def _from_gates(
    to_state: Sequence[float], element: Sequence[float], state: Sequence[float], bias: Sequence[float] | None = None
) -> Recurrence:
    cell = TwoLayerReLUCell(1, 1, len(to_state), bias=bias is not None)
    numbers = {"to_state.weight": [to_state], "from_element.weight": [[w] for w in element]}
    numbers |= {"from_state.weight": [[w] for w in state]}
    numbers |= {} if bias is None else {"from_element.bias": bias}
    cell.load_state_dict({name: torch.tensor(values, dtype=torch.float32) for name, values in numbers.items()})
    return recurrence(cell, start=torch.zeros(1, 1))
