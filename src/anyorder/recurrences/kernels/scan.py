"""What our own passes of a GRU and an LSTM over packed rows on a CPU have in common.

torch's CPU kernels leave a graph of a dozen nodes a step, and their backward pass adds a small matrix product to the
weights' gradients at each. Ours are one autograd function a layer: a few calls in place a step, and the weights'
gradients are one large product for every stretch of steps. Stretches are short enough to stay in the processor's cache.

Under autocast to bfloat16 their matrix products are computed in it, and nothing else is: states, what is done to them
and their gradients stay in the precision of the weights, so that small changes of a state add up over many steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

STRETCH = 2**18  # numbers in the gates of a stretch of steps: a megabyte in single precision


def applies(rows: Tensor) -> bool:
    """Whether they can stand in for torch's kernels: eager, on a CPU, nothing transformed."""
    return (
        rows.device.type == "cpu"
        and torch.is_grad_enabled()  # without gradients torch's kernels are as fast
        and rounded_to() in (None, torch.bfloat16)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def rounded_to() -> torch.dtype | None:
    """The precision that autocast wants for matrix products on a CPU; None where it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def rounded(precision: torch.dtype | None, *tensors: Tensor) -> list[Tensor]:
    """The tensors in that precision, as they are if it is None."""
    return [tensor if precision is None else tensor.to(precision) for tensor in tensors]


def affine(bias: Tensor, factor: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
    """``bias + factor @ weights``: computed in the precision of the weights and bias, given in that of the factor."""
    if factor.dtype == weights.dtype:
        return torch.addmm(bias, factor, weights, out=out)
    value = torch.addmm(bias, factor.to(weights.dtype), weights)
    return value.to(factor.dtype) if out is None else out.copy_(value)


def product(factor: Tensor, weights: Tensor, out: Tensor) -> Tensor:
    """``factor @ weights`` into ``out``, computed in the precision of the weights."""
    if factor.dtype == weights.dtype:
        return torch.mm(factor, weights, out=out)
    return out.copy_(torch.mm(factor.to(weights.dtype), weights))


def add_product(total: Tensor, factor: Tensor, other: Tensor) -> Tensor:
    """Add ``factor @ other``, computed in the precision of ``other``, to ``total``."""
    if factor.dtype == other.dtype:
        return total.addmm_(factor, other)
    return total.add_(torch.mm(factor.to(other.dtype), other))


def stretches(sizes: Sequence[int], width: int) -> Iterator[range]:
    """Steps in runs, in order; the gates of a run, ``width`` numbers a row, are at most ``STRETCH`` numbers.

    >>> list(stretches([4, 4, 4, 3, 1], STRETCH // 8))
    [range(0, 2), range(2, 5)]
    """
    begin = count = 0
    for step, size in enumerate(sizes):
        if step > begin and (count + size) * width > STRETCH:
            yield range(begin, step)
            begin, count = step, 0
        count += size
    yield range(begin, len(sizes))


def rows_before(first: Tensor, states: Tensor, steps: range, sizes: Sequence[int], offsets: Sequence[int]) -> Tensor:
    """The states that the rows of ``steps`` were computed from: ``first``, or those of the step before."""
    return torch.cat([states[offsets[t - 1] :][: sizes[t]] if t else first[: sizes[0]] for t in steps])
