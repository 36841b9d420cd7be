"""A GRU's step and its way back, for :func:`anyorder.recurrences.kernels.scan.scan`.

The gates are r, z and n: state ← n + z (state − n), with n = tanh(… + r · m) and m = w_hn state + b_hn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyorder.recurrences.kernels.scan import affine

TWO_SIDED = True  # from the side of the rows, n is not behind r: its gradient is another


def split(w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor, ...]:
    """The bias of the rows; for r and z, then for m, the weights and bias that a step reads."""
    r_and_z = 2 * w_hh.shape[1]
    bias = torch.cat([b_ih[:r_and_z] + b_hh[:r_and_z], b_ih[r_and_z:]])
    return bias, w_hh[:r_and_z].t(), w_hh[r_and_z:].t(), b_hh[r_and_z:]


def views(gates: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    """What a step writes: r and z together, then each gate, then m."""
    return gates[:, : 2 * m.shape[1]], *gates.chunk(3, 1), m


def step(state: list[Tensor], weights: Sequence[Tensor], after: Tensor, *parts: Tensor) -> list[Tensor]:
    """The next state, written to ``after``; the gates hold what the rows contribute."""
    rz, r, z, n, m = parts
    to_rz, to_m, bias = weights
    affine(rz, state[0], to_rz, out=rz).sigmoid_()
    n.addcmul_(r, affine(bias, state[0], to_m, out=m)).tanh_()
    return [torch.lerp(n, state[0], z, out=after)]


def factors(gates: Tensor, m: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What the gradient of the state is multiplied by, for each gate's input ``[R, 3, H]``; what ``back`` reads."""
    r, z, n = gates.chunk(3, 1)
    keep = 1 - z
    to_n = torch.addcmul(keep, n * n, keep, value=-1)
    to_gates = gates.new_empty(len(gates), 3, m.shape[1])
    torch.mul(to_n * m, r - r * r, out=to_gates[:, 0])
    torch.mul(before[0] - n, keep.mul_(z), out=to_gates[:, 1])
    torch.mul(to_n, r, out=to_gates[:, 2])
    return to_gates, (to_gates, to_n, z)


def back(running: list[Tensor], spread: Tensor, recurrent: Tensor, row: Tensor, *factors: Tensor) -> None:
    """Multiply the factors by the gradient of the state (``spread`` over the gates) and take it a step back."""
    gates, to_n, z = factors
    gates.mul_(spread)
    to_n.mul_(running[0])
    affine(running[0].mul_(z), row, recurrent, out=running[0])
