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
from torch.autograd.function import once_differentiable

from anyorder.recurrences.kernels.scan import eager

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

    def split(self, columns: Tensor) -> tuple[Tensor, ...]:
        """θ, b, β and α of columns side by side."""
        return columns.split([self.middle.stop, self.affine + self.sum, self.greatest, self.maxplus], 1)


class Coefficients(NamedTuple):
    """c = 1 − a and b ``[N, linear]``, β ``[N, max + maxplus]`` and α ``[N, maxplus]``."""

    c: Tensor
    b: Tensor
    beta: Tensor
    alpha: Tensor

    @classmethod
    def of(cls, columns: Tensor, channels: Channels) -> Coefficients:
        """From θ, b, β, α side by side: a = cos θ, so c = 2 sin²(θ/2) is exact near 0."""
        theta, b, beta, alpha = channels.split(columns)
        c = torch.sin(theta * 0.5).square() * 2
        c = F.pad(c, (0, channels.sum)) if channels.sum else c  # c = 0: a sum
        return cls(c, F.pad(b, (channels.product, 0)) if channels.product else b, beta, alpha)  # b = 0: a product


def scan(
    rows: Tensor, sizes: Sequence[int], first: Tensor, channels: Channels, weights: Sequence[Tensor], every: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The state after each row ``[sum of sizes, C]``, each set's last ``[B, C]``, and det of sets that have rows.

    det ``[sizes[0], affine]`` is (Σc²)(Σb²) − (Σcb)², half the sum of the squared gaps over ordered pairs.
    ``rows [sum of sizes, D]`` are time-major; step t reads ``sizes[t]`` of them, never more than the step before.
    ``weights``: those of the two linear maps from a row to its features, and from features to coefficients.
    Without ``every`` the states after the rows may be left out.
    """
    if eager(rows):
        return _Layer.apply(rows, first, tuple(sizes), channels, every, *weights)
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
    c, b = c[:, channels.middle], b[:, channels.middle]
    cs, ds = _padded(c, sizes, 0.0), _padded(b - _direction(c, b) * c, sizes, 0.0)
    det = cs.square().sum(0) * ds.square().sum(0) - (cs * ds).sum(0).square()
    every_state = torch.cat(states, 2)  # the last state of a set repeats
    return _packed(every_state, sizes), torch.cat([every_state[-1], first[sizes[0] :]]), det.clamp(min=0)


class _Layer(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, rows: Tensor, first: Tensor, sizes: tuple[int, ...], channels: Channels, every: bool, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        width, last = channels.coefficients + len(weights[0]), first.clone()
        states = rows.new_empty(len(rows) if every else 0, first.shape[1])
        steps = max(1, BLOCK // (width * sizes[0]))
        sums = first.new_zeros(3, min(steps, len(sizes)), sizes[0], channels.affine)  # of steps that far apart
        kept, direction = [], first.new_zeros(channels.affine)
        blocks, few = list(_blocks(sizes, width)), len(rows) * width <= KEPT
        starts = first.new_empty(0 if few else len(blocks), *first.shape)
        for i, (span, n) in enumerate(blocks):
            features, columns, (c, b, *_), passed = _block(rows[span], last[:n], weights, channels)
            if few:
                kept += [features, columns, c, passed]
            else:
                starts[i, :n] = passed[0]
            last[:n] = passed[-1]
            if every:
                states[span] = passed[1:].flatten(0, 1)
            c, b = c[:, channels.middle], b[:, channels.middle]
            if span.start == 0:
                direction = _direction(c, b)
            shifted = torch.addcmul(b, c, direction, value=-1)
            for cs, ds in zip(c.split(steps * n), shifted.split(steps * n), strict=True):
                cs, ds = cs.unflatten(0, (-1, n)), ds.unflatten(0, (-1, n))
                for total, (x, y) in zip(sums[:, : len(cs), :n], ((cs, cs), (cs, ds), (ds, ds)), strict=True):
                    total.addcmul_(x, y)
        cc, cd, dd = sums.sum(1)
        cb = torch.addcmul(cd, cc, direction)
        bb = dd + direction * (cd + cb)
        ctx.save_for_backward(rows, first, starts, torch.stack([bb, cb, cc]), *weights, *kept)
        ctx.sizes, ctx.channels = sizes, channels
        ctx.set_materialize_grads(False)
        return states, last, (cc * dd - cd.square()).clamp_(min=0)

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        rows, first, starts, sums, *weights = ctx.saved_tensors
        weights, kept = weights[:4], weights[4:]
        to_states, to_last, to_det = given
        sizes, channels = ctx.sizes, ctx.channels
        to_weights = [torch.zeros_like(weight) for weight in weights]
        to_rows = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        running = torch.zeros_like(first) if to_last is None else to_last.clone()  # gradient of the running state
        cut, middle = channels.linear, channels.middle
        if to_det is not None:
            sums = 2 * to_det * sums
        width = channels.coefficients + len(weights[0])
        for i, (span, n) in reversed(list(enumerate(_blocks(sizes, width)))):
            if kept:
                passed, c, columns, features = (kept.pop() for _ in range(4))
            else:
                features, columns, (c, *_), passed = _block(rows[span], starts[i, :n], weights, channels)
            to_columns = torch.empty_like(columns)
            (_, b, beta, alpha), (to_theta, to_b, to_beta, to_alpha) = map(channels.split, (columns, to_columns))
            before = passed[:-1].flatten(0, 1)
            keep, total = torch.empty_like(before), torch.empty_like(before)
            torch.sub(1, c, out=keep[:, :cut])
            shift = F.pad(alpha, (channels.max, 0)) if channels.maxplus else 0
            stays = keep[:, cut:].copy_(before[:, cut:] + shift >= beta)  # the state is greatest, not the element
            grads = reversed([None] * (len(keep) // n) if to_states is None else to_states[span].split(n))
            share, later = keep.new_ones(()), running[:n]
            for grad, a, out in zip(grads, reversed(keep.split(n)), reversed(total.split(n)), strict=True):
                torch.mul(later, share, out=out) if grad is None else torch.addcmul(grad, later, share, out=out)
                share, later = a, out
            torch.mul(later, share, out=running[:n])
            to_c = (total[:, : middle.stop] * before[:, : middle.stop]).neg_()
            to_b.copy_(total[:, middle.start : cut])
            if to_det is not None:
                bb, cb, cc = sums[:, :n]
                both = c[:, middle], b[:, : channels.affine], to_c[:, middle.start :], to_b[:, : channels.affine]
                cs, bs, to_cs, to_bs = (x.unflatten(0, (-1, n)) for x in both)
                to_cs.addcmul_(cs, bb).addcmul_(bs, cb, value=-1)
                to_bs.addcmul_(bs, cc).addcmul_(cs, cb, value=-1)
            torch.mul(columns[:, : middle.stop].sin(), to_c, out=to_theta)
            greatest = total[:, cut:] * stays
            torch.sub(total[:, cut:], greatest, out=to_beta)
            to_alpha.copy_(greatest[:, channels.max :])
            to_features = torch.mm(to_columns, weights[2]).mul_(features > 0)
            for which, (left, right) in enumerate([(to_features, rows[span]), (to_columns, features)]):
                to_weights[2 * which].addmm_(left.t(), right)
                to_weights[2 * which + 1] += left.sum(0)
            if to_rows is not None:
                torch.mm(to_features, weights[0], out=to_rows[span])
        return to_rows, running, None, None, None, *to_weights


def _block(
    rows: Tensor, first: Tensor, weights: Sequence[Tensor], channels: Channels
) -> tuple[Tensor, Tensor, Coefficients, Tensor]:
    """The features of rows, θ, b, β, α side by side, the coefficients, and the states ``[steps + 1, n, C]``."""
    w_in, b_in, w_out, b_out = weights
    features = torch.addmm(b_in, rows, w_in.t()).relu_()
    columns = torch.addmm(b_out, features, w_out.t())
    c, b, beta, alpha = coefficients = Coefficients.of(columns, channels)
    n, shift = len(first), F.pad(alpha, (channels.max, 0)) if channels.maxplus else None
    states = first.new_empty(len(rows) // n + 1, n, first.shape[1])
    states[0] = first
    linear, greatest = states.split([channels.linear, channels.greatest], 2)
    for before, after, a, plus in zip(linear[:-1], linear[1:], (1 - c).split(n), b.split(n), strict=True):
        torch.addcmul(plus, a, before, out=after)
    for i, (before, after, floor) in enumerate(zip(greatest[:-1], greatest[1:], beta.split(n), strict=True)):
        raised = before if shift is None else before + shift[i * n : (i + 1) * n]
        torch.maximum(raised, floor, out=after)
    return features, columns, coefficients, states


def _direction(c: Tensor, b: Tensor) -> Tensor:
    """κ = Σcb / Σc² of each channel. The gaps of c and b − κc are those of c and b, and do not cancel if b ≈ κc."""
    c, b = c.detach(), b.detach()
    return (c * b).sum(0) / c.square().sum(0).clamp_min(torch.finfo(c.dtype).eps ** 2)


def _blocks(sizes: Sequence[int], width: int) -> Iterator[tuple[slice, int]]:
    """Runs of steps with the same number of rows: their rows, and the rows of a step."""
    start = 0
    for n, run in groupby(sizes):
        stop, most = start + n * len(list(run)), n * max(1, BLOCK // (width * n))
        while start < stop:
            span = slice(start, min(start + most, stop))
            yield span, n
            start = span.stop


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
