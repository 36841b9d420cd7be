"""The scans of a fold, s' = a·s + b and s' = max(s + α, β), with coefficients that do not depend on the state.

On a CPU a loop over the steps is fastest. A layer is one autograd function, from its rows to its states. It works in
blocks of steps that stay in the processor's cache, and computes the coefficients of a block again for its gradients.
Elsewhere (a GPU, torch.compile, vmap) the steps are combined by doubling, in log₂ T rounds of plain torch. Both ways
are exact where a coefficient is 0 or negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

BLOCK = 2**18  # numbers that a block of steps computes: a megabyte in single precision
KEPT = 2**23  # numbers that a layer keeps for its gradients; beyond, computing them again is faster
NEVER = -1e30  # β of a step that changes nothing


@dataclass(frozen=True)
class Channels:
    """How many channels of each kind a layer has, in the order of its state."""

    product: int = 0
    affine: int = 0
    sum: int = 0
    max: int = 0
    maxplus: int = 0

    @property
    def size(self) -> int:
        return self.linear + self.greatest

    @property
    def linear(self) -> int:
        return self.product + self.affine + self.sum

    @property
    def middle(self) -> slice:
        """The affine channels, which have both c and b."""
        return slice(self.product, self.product + self.affine)

    @property
    def greatest(self) -> int:
        return self.max + self.maxplus

    @property
    def coefficients(self) -> int:
        """The columns of a layer: θ of product and affine channels, b of affine channels and sums, β, α."""
        return self.linear + self.affine + self.greatest + self.maxplus


class Coefficients(NamedTuple):
    """c = 1 − a and b ``[N, linear]``, β ``[N, max + maxplus]`` and α ``[N, maxplus]``."""

    c: Tensor
    b: Tensor
    beta: Tensor
    alpha: Tensor

    @classmethod
    def of(cls, columns: Tensor, channels: Channels) -> Coefficients:
        """From θ, b, β, α side by side: a = cos θ, so c = 2 sin²(θ/2) is exact near 0."""
        turning, adding = channels.product + channels.affine, channels.affine + channels.sum
        theta, b, beta, alpha = columns.split([turning, adding, channels.greatest, channels.maxplus], 1)
        c = torch.sin(theta * 0.5).square() * 2
        c = F.pad(c, (0, channels.sum)) if channels.sum else c  # c = 0: a sum
        return cls(c, F.pad(b, (channels.product, 0)) if channels.product else b, beta, alpha)  # b = 0: a product


class Gram(NamedTuple):
    """Σc², Σcb and Σb² over each set's elements, ``[B, affine]`` in double precision."""

    cc: Tensor
    cb: Tensor
    bb: Tensor

    def determinant(self) -> Tensor:
        """(Σc²)(Σb²) − (Σcb)², half the sum of the squared gaps over ordered pairs."""
        return (self.cc * self.bb - self.cb.square()).clamp(min=0)


def scan(
    rows: Tensor, sizes: Sequence[int], first: Tensor, channels: Channels, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Gram]:
    """The state after each row ``[sum of sizes, C]``, each set's last ``[B, C]``, and Gram sums of sets that have rows.

    ``rows [sum of sizes, D]`` are time-major; step t reads ``sizes[t]`` of them, never more than the step before.
    ``weights``: those of the two linear maps from a row to its features, and from features to coefficients.
    """
    if _eager(rows):
        states, last, sums = _Layer.apply(rows, first, tuple(sizes), channels, *weights)
        return states, last, Gram(*sums)
    w_in, b_in, w_out, b_out = weights
    columns = F.linear(F.linear(rows, w_in, b_in).relu(), w_out, b_out).to(first.dtype)
    c, b, beta, alpha = Coefficients.of(columns, channels)
    states = []
    if channels.linear:
        keep, add = _padded(1 - c, sizes, 1.0), _padded(b, sizes, 0.0)
        keep, add = _doubled(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (keep, add))
        states.append(keep * first[: sizes[0], : channels.linear] + add)
    if channels.greatest:
        shift, floor = _padded(F.pad(alpha, (channels.max, 0)), sizes, 0.0), _padded(beta, sizes, NEVER)
        shift, floor = _doubled(lambda p, q: (p[0] + q[0], torch.maximum(p[1] + q[0], q[1])), (shift, floor))
        states.append(torch.maximum(first[: sizes[0], channels.linear :] + shift, floor))
    cs, bs = (_padded(x[:, channels.middle], sizes, 0.0).double() for x in (c, b))
    sums = Gram(cs.square().sum(0), (cs * bs).sum(0), bs.square().sum(0))
    every = torch.cat(states, 2)  # the last state of a set repeats
    return _packed(every, sizes), torch.cat([every[-1], first[sizes[0] :]]), sums


class _Layer(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, rows: Tensor, first: Tensor, sizes: tuple[int, ...], channels: Channels, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        states = rows.new_empty(len(rows), first.shape[1])
        sums = first.new_zeros(3, sizes[0], channels.affine, dtype=torch.float64)
        cut, width, last = channels.linear, channels.coefficients + len(weights[0]), first.clone()
        kept: list[Tensor] = []
        for span, begin, n in _blocks(sizes, width):
            c, b, beta, alpha = (block := _block(rows[span], weights, channels))[2:]
            if len(rows) * width <= KEPT:
                kept += block
            found = states[begin : begin + n] if span.start else first[:n]
            before = found[:, :cut]
            for a, plus, after in zip((1 - c).split(n), b.split(n), states[span, :cut].split(n), strict=True):
                before = torch.addcmul(plus, a, before, out=after)
            shifts, before = F.pad(alpha, (channels.max, 0)).split(n), found[:, cut:]
            for shift, floor, after in zip(shifts, beta.split(n), states[span, cut:].split(n), strict=True):
                before = torch.maximum(before + shift if channels.maxplus else before, floor, out=after)
            cs, bs = (x[:, channels.middle].double().unflatten(0, (-1, n)) for x in (c, b))
            for total, values in zip(sums[:, :n], (cs * cs, cs * bs, bs * bs), strict=True):
                total += values.sum(0)
            last[:n] = states[span.stop - n : span.stop]
        ctx.save_for_backward(rows, first, states, *weights, *kept)
        ctx.sizes, ctx.channels = sizes, channels
        ctx.set_materialize_grads(False)
        return states, last, sums

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        rows, first, states, *weights = ctx.saved_tensors
        weights, kept = weights[:4], weights[4:]
        to_states, to_last, to_sums = given
        sizes, channels = ctx.sizes, ctx.channels
        to_weights = [torch.zeros_like(weight) for weight in weights]
        to_rows = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        running = torch.zeros_like(first) if to_last is None else to_last.clone()  # gradient of the running state
        cut, middle = channels.linear, channels.middle
        if to_sums is not None:
            to_sums = torch.stack([2 * to_sums[0], to_sums[1], 2 * to_sums[2]]).to(rows.dtype)
        for span, begin, n in reversed(list(_blocks(sizes, channels.coefficients + len(weights[0])))):
            block = [kept.pop() for _ in range(6)][::-1] if kept else _block(rows[span], weights, channels)
            features, columns, c, b, beta, alpha = block
            before = states[begin : span.stop - n]
            if begin + n != span.start:  # the step before is the start, or has more rows
                found = states[begin : begin + n] if span.start else first[:n]
                before = torch.cat([found, states[span.start : span.stop - n]])
            shift = F.pad(alpha, (channels.max, 0)) if channels.maxplus else 0
            keep, total = torch.empty_like(before), torch.empty_like(before)
            torch.sub(1, c, out=keep[:, :cut])
            stays = keep[:, cut:].copy_(before[:, cut:] + shift >= beta)  # the state is greatest, not the element
            grads = reversed([None] * (len(keep) // n) if to_states is None else to_states[span].split(n))
            share, later = keep.new_ones(()), running[:n]
            for grad, a, out in zip(grads, reversed(keep.split(n)), reversed(total.split(n)), strict=True):
                torch.mul(later, share, out=out) if grad is None else torch.addcmul(grad, later, share, out=out)
                share, later = a, out
            torch.mul(later, share, out=running[:n])
            to_b, to_c = total[:, :cut].clone(), (total[:, :cut] * before[:, :cut]).neg_()
            if to_sums is not None:
                to_cc, to_cb, to_bb = to_sums[:, :n]
                cs, bs, to_cs, to_bs = (x[:, middle].unflatten(0, (-1, n)) for x in (c, b, to_c, to_b))
                to_cs.addcmul_(cs, to_cc).addcmul_(bs, to_cb)
                to_bs.addcmul_(cs, to_cb).addcmul_(bs, to_bb)
            greatest = total[:, cut:] * stays
            to_theta = columns[:, : middle.stop].sin().mul_(to_c[:, : middle.stop])
            parts = [to_theta, to_b[:, middle.start :], total[:, cut:] - greatest, greatest[:, channels.max :]]
            to_columns = torch.cat(parts, 1)
            to_features = torch.mm(to_columns, weights[2]).mul_(features > 0)
            for which, (left, right) in enumerate([(to_features, rows[span]), (to_columns, features)]):
                to_weights[2 * which].addmm_(left.t(), right)
                to_weights[2 * which + 1] += left.sum(0)
            if to_rows is not None:
                torch.mm(to_features, weights[0], out=to_rows[span])
        return to_rows, running, None, None, *to_weights


def _block(rows: Tensor, weights: Sequence[Tensor], channels: Channels) -> tuple[Tensor, ...]:
    """The features of rows, θ, b, β, α side by side, and the coefficients."""
    w_in, b_in, w_out, b_out = weights
    features = torch.addmm(b_in, rows, w_in.t()).relu_()
    columns = torch.addmm(b_out, features, w_out.t())
    return features, columns, *Coefficients.of(columns, channels)


def _blocks(sizes: Sequence[int], width: int) -> Iterator[tuple[slice, int, int]]:
    """Runs of steps with the same number of rows: their rows, where the step before begins, the rows of a step."""
    start = last = 0
    for n, run in groupby(sizes):
        stop, most = start + n * len(list(run)), n * max(1, BLOCK // (width * n))
        while start < stop:
            span = slice(start, min(start + most, stop))
            yield span, last, n
            start, last = span.stop, span.stop - n


def _eager(rows: Tensor) -> bool:
    return (
        rows.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _doubled(combine: Callable[..., tuple[Tensor, ...]], steps: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each step combined with all before it, ``[T, B, C]``."""
    reach, longest = 1, len(steps[0])
    while reach < longest:
        later = combine(tuple(x[:-reach] for x in steps), tuple(x[reach:] for x in steps))
        steps = tuple(torch.cat([x[:reach], y]) for x, y in zip(steps, later, strict=True))
        reach *= 2
    return steps


def _padded(rows: Tensor, sizes: Sequence[int], value: float) -> Tensor:
    """Rows as ``[T, B, C]``, with ``value`` where a set has ended."""
    if sizes[0] == sizes[-1]:
        return rows.reshape(len(sizes), sizes[0], rows.shape[1])
    return torch.stack([F.pad(step, (0, 0, 0, sizes[0] - len(step)), value=value) for step in rows.split(sizes)])


def _packed(states: Tensor, sizes: Sequence[int]) -> Tensor:
    if sizes[0] == sizes[-1]:
        return states.flatten(0, 1)
    return torch.cat([state[:size] for state, size in zip(states, sizes, strict=True)])
