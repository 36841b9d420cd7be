"""A layer of LSTM over packed rows on a CPU: one function with a backward pass of its own.

It gives back every cell state as well, which torch's kernel does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyorder.recurrences.kernels.scan import add_product, affine, product, rounded, rounded_to, rows_before, stretches


def scan(
    rows: Tensor, sizes: Sequence[int], first: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h and c after each row ``[sum of sizes, H]``, then each set's last h and c ``[B, H]``.

    The arguments are those of the scan of a GRU, with the pair h and c as ``first``.
    """
    w_ih, w_hh, *biases = weights
    b_ih, b_hh = biases or (w_hh.new_zeros(len(w_hh)), w_hh.new_zeros(len(w_hh)))
    return _Scan.apply(sizes, rounded_to(), rows, *first, w_ih, w_hh, b_ih, b_hh)


class _Scan(torch.autograd.Function):
    """The gates are i, f, g and o: c ← f · c + i · g and h ← o · tanh(c)."""

    @staticmethod
    def forward(
        ctx: Any, sizes: Sequence[int], precision: torch.dtype | None, rows: Tensor, *first_and_weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first_h, first_c, w_ih, w_hh, b_ih, b_hh = first_and_weights
        hidden = w_hh.shape[1]
        every_h, every_c = rows.new_empty(2, len(rows), hidden)
        last_h, last_c = first_h.clone(), first_c.clone()
        offsets = [0, *accumulate(sizes)]
        kept: list[Tensor] = []
        h, c = first_h[: sizes[0]], first_c[: sizes[0]]
        inward, recurrent, bias = rounded(precision, w_ih.t(), w_hh.t(), b_ih + b_hh)
        for steps in stretches(sizes, 4 * hidden):
            span, counts = slice(offsets[steps.start], offsets[steps.stop]), sizes[steps.start : steps.stop]
            gates = affine(bias, rows[span], inward)
            squashed = rows.new_empty(len(gates), hidden)  # tanh(c)
            views = (gates, gates[:, : 2 * hidden], *gates.split(hidden, 1), squashed, every_h[span], every_c[span])
            for all_gates, i_and_f, i, f, g, o, tanh_c, next_h, next_c in zip(
                *(view.split(counts) for view in views), strict=True
            ):
                size = len(next_h)
                if size < len(h):
                    last_h[size : len(h)], last_c[size : len(h)] = h[size:], c[size:]
                    h, c = h[:size], c[:size]
                add_product(all_gates, h, recurrent)
                i_and_f.sigmoid_()
                g.tanh_()
                o.sigmoid_()
                c = torch.mul(f, c, out=next_c).addcmul_(i, g)
                h = torch.mul(o, torch.tanh(c, out=tanh_c), out=next_h)
            kept += [gates, squashed]
        last_h[: len(h)], last_c[: len(h)] = h, c
        ctx.sizes, ctx.precision = sizes, precision
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, first_h, first_c, w_ih, w_hh, every_h, every_c, *kept)
        return every_h, every_c, last_h, last_c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, first_h, first_c, w_ih, w_hh, every_h, every_c, *kept = ctx.saved_tensors
        to_h, to_c, to_last_h, to_last_c = given
        hidden = w_hh.shape[1]
        inward, recurrent = rounded(ctx.precision, w_ih, w_hh)
        to_rows = torch.empty_like(rows) if ctx.needs_input_grad[2] else None
        to_w_ih, to_w_hh = torch.zeros_like(w_ih), torch.zeros_like(w_hh)
        to_bias = w_hh.new_zeros(4 * hidden)
        # Gradients of the running h and c.
        carried_h = torch.zeros_like(first_h) if to_last_h is None else to_last_h.clone()
        carried_c = torch.zeros_like(first_c) if to_last_c is None else to_last_c.clone()
        running_h, running_c = carried_h[:0], carried_c[:0]
        sizes, offsets = ctx.sizes, [0, *accumulate(ctx.sizes)]
        for steps in reversed(list(stretches(sizes, 4 * hidden))):
            span, counts = slice(offsets[steps.start], offsets[steps.stop]), sizes[steps.start : steps.stop]
            tanh_c, gates = kept.pop(), kept.pop()
            i, f, g, o = gates.split(hidden, 1)
            before_h = rows_before(first_h, every_h, steps, sizes, offsets)
            before_c = rows_before(first_c, every_c, steps, sizes, offsets)
            # What the gradient of c (of h: the last) is multiplied by, for the input of each gate.
            to_gates = gates.new_empty(len(gates), 4, hidden)
            torch.mul(g, i - i * i, out=to_gates[:, 0])
            torch.mul(before_c, f - f * f, out=to_gates[:, 1])
            torch.mul(i, 1 - g * g, out=to_gates[:, 2])
            torch.mul(tanh_c, o - o * o, out=to_gates[:, 3])
            h_to_c = torch.addcmul(o, o * tanh_c, tanh_c, value=-1)
            flat = to_gates.view(len(to_gates), -1)
            nothing: list[Tensor | None] = [None] * len(steps)
            added = [nothing if to is None else to[span].split(counts) for to in (to_h, to_c)]
            views = (part.split(counts) for part in (to_gates[:, :3], to_gates[:, 3], flat, h_to_c, f))
            for of_c, of_h, row, through, keep, more_h, more_c in reversed(list(zip(*views, *added, strict=True))):
                if len(row) > len(running_h):
                    running_h, running_c = carried_h[: len(row)], carried_c[: len(row)]
                    spread = running_c.unsqueeze(1)
                if more_h is not None:
                    running_h.add_(more_h)
                if more_c is not None:
                    running_c.add_(more_c)
                running_c.addcmul_(running_h, through)
                of_c.mul_(spread)
                of_h.mul_(running_h)
                running_c.mul_(keep)
                product(row, recurrent, out=running_h)
            add_product(to_w_hh, flat.t(), *rounded(ctx.precision, before_h))
            add_product(to_w_ih, flat.t(), *rounded(ctx.precision, rows[span]))
            to_bias += flat.sum(0)
            if to_rows is not None:
                product(flat, inward, out=to_rows[span])
        return None, None, to_rows, carried_h, carried_c, to_w_ih, to_w_hh, to_bias, to_bias.clone()
