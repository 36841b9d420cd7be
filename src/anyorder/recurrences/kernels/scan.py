"""Our own passes of a GRU and an LSTM over packed rows on a CPU.

torch's CPU kernels leave a graph of a dozen nodes a step, and their backward pass adds a small matrix product to the
weights' gradients at each. Ours are one autograd function a layer: a few calls in place a step, and the weights'
gradients are one large product for every stretch of steps. Stretches are short enough to stay in the processor's cache.

Under autocast to bfloat16 their matrix products are computed in it, and nothing else is: states, what is done to them
and their gradients stay in the precision of the weights, so that small changes of a state add up over many steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

STRETCH = 2**18  # numbers in the gates of a stretch of steps: a megabyte in single precision


def applies(rows: Tensor) -> bool:
    """Whether they can stand in for torch's kernels; without gradients those are as fast."""
    return eager(rows) and torch.is_grad_enabled() and _precision(rows) in (rows.dtype, torch.bfloat16)


def eager(rows: Tensor) -> bool:
    """Whether a loop over the steps is run as it stands, on a CPU and with nothing transformed."""
    return (
        rows.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def scan(
    cell: ModuleType, rows: Tensor, sizes: Sequence[int], first: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The state after each row, ``[sum of sizes, H]`` a tensor, and each set's last state, ``[B, H]`` a tensor.

    Args:
        cell: the module ``gru`` or ``lstm``, which computes a step and its way back.
        rows: ``[sum of sizes, D]``, time-major; step t reads ``sizes[t]`` of them, never more than the step before.
        first: the tensors of the first state, ``[B, H]`` each; it may hold sets without any row.
        weights: w_ih, w_hh and, if there are any, b_ih, b_hh, as torch's kernel takes them.
    """
    w_ih, w_hh, *biases = weights
    b_ih, b_hh = biases or w_hh.new_zeros(2, len(w_hh))
    outputs = _Scan.apply(cell, sizes, rows, w_ih, w_hh, b_ih, b_hh, *first)
    return outputs[: len(first)], outputs[len(first) :]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cell: Any, sizes: Sequence[int], rows: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        w_ih, w_hh, b_ih, b_hh, *first = given
        hidden = w_hh.shape[1]
        states = [rows.new_empty(len(rows), hidden) for _ in first]
        last = [leaf.clone() for leaf in first]
        state = [leaf[: sizes[0]] for leaf in first]
        precision = _precision(rows)
        inward, (bias, *weights) = w_ih.t().to(precision), cell.split(w_hh.to(precision), b_ih, b_hh)
        kept: list[Tensor] = []
        for steps, span in _stretches(sizes, len(w_hh)):
            gates = affine(bias, rows[span], inward)
            memory = rows.new_empty(len(gates), hidden)
            views = (*(leaf[span] for leaf in states), *cell.views(gates, memory))
            for parts in zip(*(view.split(sizes[steps]) for view in views), strict=True):
                size = len(parts[0])
                if size < len(state[0]):
                    for ended, leaf in zip(last, state, strict=True):
                        ended[size : len(leaf)] = leaf[size:]
                    state = [leaf[:size] for leaf in state]
                state = cell.step(state, weights, *parts)
            kept += [gates, memory]
        for ended, leaf in zip(last, state, strict=True):
            ended[: len(leaf)] = leaf
        ctx.cell, ctx.sizes, ctx.precision = cell, sizes, precision
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, w_ih, w_hh, *first, *states, *kept)
        return *states, *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        cell, sizes, precision, leaves = ctx.cell, ctx.sizes, ctx.precision, len(given) // 2
        rows, w_ih, w_hh, *kept = ctx.saved_tensors
        first, states, kept = kept[:leaves], kept[leaves : 2 * leaves], kept[2 * leaves :]
        inward, recurrent = w_ih.to(precision), w_hh.to(precision)
        to_rows = torch.zeros_like(rows) if ctx.needs_input_grad[2] else None
        to_w_ih, to_w_hh = torch.zeros_like(w_ih), torch.zeros_like(w_hh)
        to_b_ih, to_b_hh = w_hh.new_zeros(len(w_hh)), w_hh.new_zeros(len(w_hh))
        to_last = zip(first, given[leaves:], strict=True)
        carried = [torch.zeros_like(leaf) if to is None else to.clone() for leaf, to in to_last]
        running = [leaf[:0] for leaf in carried]  # the gradient of the running state
        reached = [[leaf, *passed.split(sizes)] for leaf, passed in zip(first, states, strict=True)]
        for steps, span in reversed(list(_stretches(sizes, len(w_hh)))):
            counts, memory, gates = sizes[steps], kept.pop(), kept.pop()
            before = [torch.cat([leaf[t][:n] for t, n in enumerate(counts, steps.start)]) for leaf in reached]
            to_gates, views = cell.factors(gates, memory, before)
            flat = to_gates.flatten(1)
            nothing: list[Tensor | None] = [None] * len(counts)
            added = zip(*(nothing if to is None else to[span].split(counts) for to in given[:leaves]), strict=True)
            parts = zip(*(view.split(counts) for view in (flat, *views)), strict=True)
            for more, (row, *factors) in reversed(list(zip(added, parts, strict=True))):
                if len(row) > len(running[0]):
                    running = [leaf[: len(row)] for leaf in carried]
                    spread = running[-1].unsqueeze(1)
                for leaf, to in zip(running, more, strict=True):
                    if to is not None:
                        leaf.add_(to)
                cell.back(running, spread, recurrent, row, *factors)
            affine(to_w_hh, flat.t(), before[0].to(precision), out=to_w_hh)
            to_b_hh += flat.sum(0)
            if cell.TWO_SIDED:
                to_gates[:, 2] = views[1]
            affine(to_w_ih, flat.t(), rows[span].to(precision), out=to_w_ih)
            to_b_ih += flat.sum(0)
            if to_rows is not None:
                affine(to_rows[span], flat, inward, out=to_rows[span])
        return None, None, to_rows, to_w_ih, to_w_hh, to_b_ih, to_b_hh, *carried


def affine(shift: Tensor, factor: Tensor, weights: Tensor, out: Tensor | None = None, beta: int = 1) -> Tensor:
    """``beta * shift + factor @ weights``: the product in the precision of the weights, the sum in the shift's."""
    if factor.dtype == weights.dtype:
        return torch.addmm(shift, factor, weights, out=out, beta=beta)
    return torch.add(torch.mm(factor.to(weights.dtype), weights), shift, out=out, alpha=beta)


def _precision(rows: Tensor) -> torch.dtype:
    """The precision of matrix products: that of autocast, or else of the rows."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else rows.dtype


def _stretches(sizes: Sequence[int], width: int) -> Iterator[tuple[slice, slice]]:
    """Steps in runs, in order, and their rows; a run's gates, ``width`` numbers a row, are at most ``STRETCH`` numbers.

    >>> list(_stretches([4, 4, 4, 3, 1], STRETCH // 8))
    [(slice(0, 2, None), slice(0, 8, None)), (slice(2, 5, None), slice(8, 16, None))]
    """
    begin = row = end = 0
    for step, size in enumerate(sizes):
        if step > begin and (end + size - row) * width > STRETCH:
            yield slice(begin, step), slice(row, end)
            begin, row = step, end
        end += size
    yield slice(begin, len(sizes)), slice(row, end)
