"""An LSTM's step and its way back, for :func:`anyorder.recurrences.kernels.scan.scan`, which keeps every c too.

The gates are i, f, g and o: c ← f · c + i · g and h ← o · tanh(c).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyorder.recurrences.kernels.scan import affine

TWO_SIDED = False


def split(w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor, ...]:
    """The bias of the rows, then the weights that a step reads."""
    return b_ih + b_hh, w_hh.t()


def views(gates: Tensor, tanh_c: Tensor) -> tuple[Tensor, ...]:
    """What a step writes: all gates, i and f together, then each gate, then tanh(c)."""
    return gates, gates[:, : 2 * tanh_c.shape[1]], *gates.chunk(4, 1), tanh_c


def step(state: list[Tensor], weights: Sequence[Tensor], *parts: Tensor) -> list[Tensor]:
    """The next h and c, written to the first two parts; the gates hold what the rows contribute."""
    next_h, next_c, gates, i_and_f, i, f, g, o, tanh_c = parts
    h, c = state
    affine(gates, h, weights[0], out=gates)
    i_and_f.sigmoid_()
    g.tanh_()
    o.sigmoid_()
    c = torch.mul(f, c, out=next_c).addcmul_(i, g)
    return [torch.mul(o, torch.tanh(c, out=tanh_c), out=next_h), c]


def factors(gates: Tensor, tanh_c: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What the gradient of c (of h: the last) is multiplied by, for each gate's input; what ``back`` reads."""
    i, f, g, o = gates.chunk(4, 1)
    to_gates = gates.new_empty(len(gates), 4, tanh_c.shape[1])
    torch.mul(g, i - i * i, out=to_gates[:, 0])
    torch.mul(before[1], f - f * f, out=to_gates[:, 1])
    torch.mul(i, 1 - g * g, out=to_gates[:, 2])
    torch.mul(tanh_c, o - o * o, out=to_gates[:, 3])
    h_to_c = torch.addcmul(o, o * tanh_c, tanh_c, value=-1)
    return to_gates, (to_gates[:, :3], to_gates[:, 3], h_to_c, f)


def back(running: list[Tensor], spread: Tensor, recurrent: Tensor, row: Tensor, *factors: Tensor) -> None:
    """Multiply the factors by the gradients of h and c (``spread`` over the gates) and take these a step back."""
    of_c, of_h, through, f = factors
    to_h, to_c = running
    to_c.addcmul_(to_h, through)
    of_c.mul_(spread)
    of_h.mul_(to_h)
    to_c.mul_(f)
    affine(to_h, row, recurrent, out=to_h, beta=0)
