"""A layer of GRU over packed rows on a CPU: one function with a backward pass of its own.

A step forward is seven calls, a step back is five.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyorder.recurrences.kernels.scan import add_product, affine, product, rounded, rounded_to, rows_before, stretches


def scan(rows: Tensor, sizes: Sequence[int], first: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The state after each row ``[sum of sizes, H]``, and each set's last state ``[B, H]``.

    ``rows [sum of sizes, D]`` are time-major; step t reads ``sizes[t]`` of them, never more than the step before.
    ``first [B, H]`` may hold sets without any row. ``weights``: w_ih, w_hh and, if there are any, b_ih, b_hh, as
    torch.gru takes them.
    """
    w_ih, w_hh, *biases = weights
    b_ih, b_hh = biases or (w_hh.new_zeros(len(w_hh)), w_hh.new_zeros(len(w_hh)))
    return _Scan.apply(sizes, rounded_to(), rows, first, w_ih, w_hh, b_ih, b_hh)


class _Scan(torch.autograd.Function):
    """The gates are r, z and n: state ← n + z (state − n), with n = tanh(… + r · m) and m = w_hn state + b_hn."""

    @staticmethod
    def forward(
        ctx: Any, sizes: Sequence[int], precision: torch.dtype | None, rows: Tensor, first: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        w_ih, w_hh, b_ih, b_hh = weights
        hidden = w_hh.shape[1]
        states = rows.new_empty(len(rows), hidden)
        last = first.clone()
        offsets = [0, *accumulate(sizes)]
        kept: list[Tensor] = []
        state, inward, recurrent = first[: sizes[0]], *rounded(precision, w_ih.t(), w_hh.t())
        bias, recurrent_bias = rounded(precision, b_ih, b_hh)
        from_state = rows.new_empty(sizes[0], 3 * hidden)
        of_rz, of_n = from_state.split([2 * hidden, hidden], 1)
        for steps in stretches(sizes, 3 * hidden):
            span, counts = slice(offsets[steps.start], offsets[steps.stop]), sizes[steps.start : steps.stop]
            gates = affine(bias, rows[span], inward)
            m = rows.new_empty(len(gates), hidden)
            views = (gates[:, : 2 * hidden], *gates.split(hidden, 1), m, states[span])
            for rz, r, z, n, inner, after in zip(*(view.split(counts) for view in views), strict=True):
                size = len(after)
                if size < len(state):
                    last[size : len(state)] = state[size:]
                    state, from_state = state[:size], from_state[:size]
                    of_rz, of_n = of_rz[:size], of_n[:size]
                affine(recurrent_bias, state, recurrent, out=from_state)
                rz.add_(of_rz).sigmoid_()
                inner.copy_(of_n)
                n.addcmul_(r, inner).tanh_()
                state = torch.lerp(n, state, z, out=after)
            kept += [gates, m]
        last[: len(state)] = state
        ctx.sizes, ctx.precision = sizes, precision
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, first, w_ih, w_hh, states, *kept)
        return states, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_states: Tensor | None, to_last: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, first, w_ih, w_hh, states, *kept = ctx.saved_tensors
        hidden = w_hh.shape[1]
        inward, recurrent = rounded(ctx.precision, w_ih, w_hh)
        to_rows = torch.empty_like(rows) if ctx.needs_input_grad[2] else None
        to_w_ih, to_w_hh = torch.zeros_like(w_ih), torch.zeros_like(w_hh)
        to_b_ih, to_b_hh = w_hh.new_zeros(3 * hidden), w_hh.new_zeros(3 * hidden)
        carried = torch.zeros_like(first) if to_last is None else to_last.clone()  # gradient of the running state
        running = carried[:0]
        sizes, offsets = ctx.sizes, [0, *accumulate(ctx.sizes)]
        for steps in reversed(list(stretches(sizes, 3 * hidden))):
            span, counts = slice(offsets[steps.start], offsets[steps.stop]), sizes[steps.start : steps.stop]
            m, gates = kept.pop(), kept.pop()
            r, z, n = gates.split(hidden, 1)
            before = rows_before(first, states, steps, sizes, offsets)
            # What the gradient of the state is multiplied by, for the input of each gate; the same for all steps.
            keep = 1 - z
            to_n = torch.addcmul(keep, n * n, keep, value=-1)
            to_gates = gates.new_empty(len(gates), 3, hidden)
            torch.mul(to_n * m, r - r * r, out=to_gates[:, 0])
            torch.mul(before - n, keep.mul_(z), out=to_gates[:, 1])
            torch.mul(to_n, r, out=to_gates[:, 2])
            flat = to_gates.view(len(to_gates), -1)
            given = [None] * len(steps) if to_states is None else to_states[span].split(counts)
            views = (part.split(counts) for part in (to_gates, flat, to_n, z))
            for gate, row, direct, share, added in reversed(list(zip(*views, given, strict=True))):
                if len(row) > len(running):
                    running = carried[: len(row)]
                    spread = running.unsqueeze(1)
                if added is not None:
                    running.add_(added)
                gate.mul_(spread)
                direct.mul_(running)
                add_product(running.mul_(share), row, recurrent)
            add_product(to_w_hh, flat.t(), *rounded(ctx.precision, before))
            to_b_hh += flat.sum(0)
            to_gates[:, 2] = to_n  # from the side of the rows, n is not behind r
            add_product(to_w_ih, flat.t(), *rounded(ctx.precision, rows[span]))
            to_b_ih += flat.sum(0)
            if to_rows is not None:
                product(flat, inward, out=to_rows[span])
        return None, None, to_rows, carried, to_w_ih, to_w_hh, to_b_ih, to_b_hh
