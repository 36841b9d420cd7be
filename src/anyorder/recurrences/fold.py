"""Fold: a recurrence whose coefficients depend on the element alone, so that its order gap has a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, checked_batch, checked_ties, one_of, whole_number
from anyorder.data.sets import filled
from anyorder.recurrences.base import Passed, Recurrence
from anyorder.recurrences.kernels import fold
from anyorder.recurrences.kernels.fold import Channels, Coefficients
from anyorder.recurrences.pairs import Pairs
from anyorder.recurrences.trajectory import Layout, Rows, State, Trajectory


class Standardise(nn.Module):
    """(s − μ) / σ, with μ and σ of the first batch that is seen in training, then fixed.

    A channel that hardly varies is divided by a tenth of the mean σ. Products lie in [−1, 1] and stay as they are.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: Channels) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels.size))
        self.register_buffer("scale", torch.ones(channels.size))
        self._products = slice(channels.product)
        self._fitted = False
        self.register_load_state_dict_post_hook(_keep)

    def forward(self, states: Tensor) -> Tensor:
        if self.training and not self._fitted and len(states) > 1 and not torch.compiler.is_compiling():
            self._fit(states.detach().flatten(0, -2))
        return (states - self.mean) / self.scale

    @torch.no_grad()
    def _fit(self, states: Tensor) -> None:
        scale, mean = torch.std_mean(states, 0)
        scale = scale.clamp_min(0.1 * scale.mean() + 1e-6)
        mean[self._products], scale[self._products] = 0.0, 1.0
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        self._fitted = True


def _keep(module: Standardise, _: Any) -> None:
    module._fitted = True  # loaded units are not replaced by those of the next batch


class Fold(Recurrence):
    """A stack of channels that read one element x at a time, with coefficients that are functions of x alone.

    | kind     | step                             | commutes where                             |
    |----------|----------------------------------|--------------------------------------------|
    | affine   | s' = (1 − c(x))·s + b(x), s₀ = 0 | c ≡ 0: a sum; b = κc: a product around κ   |
    | product  | s' = (1 − c(x))·s, s₀ = 1        | everywhere                                 |
    | sum      | s' = s + b(x), s₀ = 0            | everywhere                                 |
    | max      | s' = max(s, β(x))                | everywhere                                 |
    | maxplus  | s' = max(s + α(x), β(x))         | α ≡ 0, and sums clipped by one constant    |

    c = 1 − cos θ(x) lies in [0, 2]; θ, b, α and β are linear in ``width`` ReLU features of x. The swap gap of an affine
    channel, c(x)b(y) − b(x)c(y), does not depend on the state: the mean square over all pairs of a set is
    2[(Σc²)(Σb²) − (Σcb)²] / (n(n − 1)), which :class:`SIRE` uses in place of draws.

    Args:
        in_features: D, the features of an element.
        channels: the number of channels (half affine, a quarter product, a quarter max), or a dict of numbers by
            kind.
        layers: A layer above the first reads the element and the standardised states of the layer below. Order then
            enters its coefficients, so its gap is sampled.
        width: the number of ReLU features of each layer.

    State: ``[B, C]``; of L > 1 layers ``[B, L, C]``.

    >>> import anyorder as ao
    >>> fold = ao.Fold(3, {"affine": 12, "max": 4})
    >>> t = fold.scan(torch.randn(5, 7, 3))
    >>> t.last.shape, ao.SIRE()(t).item() >= 0
    (torch.Size([5, 16]), True)
    """

    def __init__(
        self, in_features: int, channels: int | Mapping[str, int] = 64, *, layers: int = 1, width: int = 64
    ) -> None:
        in_features, width = whole_number("in_features", in_features), whole_number("width", width)
        kinds, layers = channels_of(channels), whole_number("layers", layers, maximum=1000)
        size = kinds.size
        start = torch.zeros(1, size)
        start[:, : kinds.product] = 1.0
        start[:, kinds.linear :] = -1.0
        super().__init__(start if layers == 1 else start[:, None].repeat(1, layers, 1))
        self.in_features, self.channels, self.layers, self.width = in_features, kinds, layers, width
        inputs = [in_features] + [in_features + size] * (layers - 1)
        self.features: Any = nn.ModuleList(nn.Linear(read, width) for read in inputs)
        self.coefficients: Any = nn.ModuleList(nn.Linear(width, kinds.coefficients) for _ in inputs)
        self.standardise: Any = nn.ModuleList(Standardise(kinds) for _ in inputs[1:])
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew: affine channels begin near sums, max-plus channels as maxima."""
        product, turning = self.channels.product, self.channels.middle.stop
        for features, out in zip(self.features, self.coefficients, strict=True):
            features.reset_parameters()
            out.reset_parameters()
            nn.init.normal_(out.weight[:product], 0.0, 1.0 / self.width**0.5)
            nn.init.normal_(out.weight[product:turning], 0.0, 0.1 / self.width**0.5)
            out.bias[:turning] = 0.0
            alpha = self.channels.coefficients - self.channels.maxplus
            out.weight[alpha:] = out.bias[alpha:] = 0.0

    def extra_repr(self) -> str:
        kinds = {kind: count for kind, count in asdict(self.channels).items() if count}
        return f"{self.in_features}, {kinds}, layers={self.layers}, width={self.width}"

    def _readable(self, elements: Tensor) -> Tensor:
        weight = self.features[0].weight
        readable = elements.dtype == weight.dtype or torch.is_autocast_enabled(elements.device.type)
        if elements.shape[2] != self.in_features or not readable:
            kind = InputError if readable else InputTypeError
            raise kind(
                f"elements must have {self.in_features} features (in_features) of {weight.dtype}, the dtype of the "
                f"weights; got {elements.shape[2]} of {elements.dtype}"
            )
        return elements.to(weight.dtype)

    def output(self, state: State) -> State:
        return state if self.layers == 1 else state[..., -1, :]

    def step(self, element: Tensor, state: State) -> State:
        new: list[Tensor] = []
        cut, read = self.channels.linear, element
        for layer in range(self.layers):
            if layer:
                read = torch.cat([element, self.standardise[layer - 1](new[-1])], 1)
            c, b, beta, alpha = self.coefficients_of(read, layer)
            old = state if self.layers == 1 else state[:, layer]
            linear = (1 - c) * old[:, :cut] + b
            greatest = torch.maximum(old[:, cut:] + F.pad(alpha, (self.channels.max, 0)), beta)
            new.append(torch.cat([linear, greatest], 1))
        return self._stack(new)

    def coefficients_of(self, rows: Tensor, layer: int = 0) -> Coefficients:
        """c, b, β and α of ``rows [N, D]``."""
        columns = self.coefficients[layer](self.features[layer](rows).relu())
        return Coefficients.of(columns.to(self.features[0].weight.dtype), self.channels)

    def closed_form_gap(self, trajectory: Trajectory, pairs: Pairs) -> tuple[Tensor, Tensor | None]:
        """The exact gaps of the first layer's channels, but for max-plus; the others are not covered."""
        channels, size = self.channels, self.channels.size
        if pairs.every and trajectory.kept is not None:
            n = trajectory.counts[:, None]
            gaps = trajectory.kept * (2 / (n * (n - 1)).clamp(min=1).to(trajectory.kept.dtype))
        else:
            gaps = pairs.mean_squared_gap(*self._affine(trajectory.elements, trajectory.lengths)[:2])
        gaps = F.pad(gaps.to(trajectory.last.dtype), (channels.product, self.layers * size - channels.middle.stop))
        if self.layers == 1 and not channels.maxplus:
            return gaps, None
        return gaps, torch.arange(gaps.shape[1], device=gaps.device) < channels.linear + channels.max

    @torch.no_grad()
    def settle(self, elements: Tensor, lengths: Tensor | None = None, *, within: float = 0.1) -> int:
        """Turn affine channels that are nearly sums into sums, and return how many.

        A channel is nearly a sum if c(x) stays below ``within`` on all elements of the batch. Its c becomes 0, so that
        it adds b(x) up without a bound on the length. Read the validation metric before and after.

        >>> Fold(2, {"affine": 8}).settle(torch.randn(4, 6, 2))
        8
        """
        elements, lengths = checked_batch(elements, lengths)
        elements = self._readable(elements)
        nearly = (self._affine(elements, lengths)[0].amax((0, 1)) < within).nonzero()[:, 0]
        for parameter in self.coefficients[0].parameters():
            parameter[self.channels.product + nearly] = 0.0
        return len(nearly)

    def order_bound(self, elements: Tensor, lengths: Tensor | None = None, *, ties: Tensor | None = None) -> Tensor:
        """A bound ``[B]`` on the distance between the end states of any two orderings of each set.

        ‖Δ‖² ≤ N Σ det over the affine channels, with N pairs of elements and det = (Σc²)(Σb²) − (Σcb)², plus
        ((n − 1) Σ|α|)² of each max-plus channel. With ``ties [B, T]``: any two orderings within ties.

        >>> fold = Fold(2, {"affine": 4, "max": 4})
        >>> x, order = torch.randn(1, 6, 2), torch.randperm(6)
        >>> gap = torch.linalg.vector_norm(fold.scan(x).last - fold.scan(x[:, order]).last)
        >>> bool(gap <= fold.order_bound(x)[0] + 1e-6)
        True
        """
        if self.layers > 1:
            raise InputError(f"layers must be 1: the gap of an upper layer has no closed form; got {self.layers}")
        elements, lengths = checked_batch(elements, lengths)
        elements = self._readable(elements)
        groups = None if ties is None else checked_ties(ties, elements, lengths)
        counts = torch.full((len(elements),), elements.shape[1]) if lengths is None else lengths
        pairs = Pairs(counts.to(elements.device), elements.shape[1], groups, 0, ties is None)
        c, b, alpha = self._affine(elements, lengths)
        det, number = pairs.squared_sum(c, b)
        shifts = (alpha.double().abs().sum(1) * (counts[:, None] - 1).clamp(min=0)).square()
        return (number * det.sum(1) + shifts.sum(1)).sqrt()

    def _affine(self, elements: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """c and b of the affine channels and α, ``[B, T, …]``, 0 in the padding."""
        c, b, _, alpha = self.coefficients_of(filled(elements, lengths).flatten(0, 1))
        parts = [
            x.unflatten(0, elements.shape[:2]) for x in (c[:, self.channels.middle], b[:, self.channels.middle], alpha)
        ]
        if lengths is not None:
            padding = torch.arange(elements.shape[1], device=elements.device) >= lengths[:, None]
            parts = [part.masked_fill(padding[:, :, None], 0) for part in parts]
        return parts[0], parts[1], parts[2]

    def _form(self, batch_size: int) -> State:
        return self.start(batch_size)

    def _run(self, rows: Tensor, layout: Layout, start: State, dropout: bool, last_alone: bool) -> Passed:
        passed: list[tuple[Tensor, Tensor, Tensor, Rows]] = []
        for layer in range(self.layers):
            read = torch.cat([rows, self.standardise[layer - 1](passed[-1][0])], 1) if layer else rows
            first = layout.sort(start if self.layers == 1 else start[:, layer])
            passed.append(self._run_layer(read, layout, first, layer))
        _, ends, dets, made = zip(*passed, strict=True)
        lasts = [layout.unsort(end) for end in ends]
        _require_finite(lasts)
        det = layout.unsort(F.pad(dets[0], (0, 0, 0, layout.batch - len(dets[0]))))
        return Passed(self._stack(lasts), lambda row: self._stack([states.select(row) for states in made]), kept=det)

    def _run_layer(
        self, rows: Tensor, layout: Layout, first: Tensor, layer: int
    ) -> tuple[Tensor, Tensor, Tensor, Rows]:
        """The states that are there already, the last, det, and all states, made anew where they are not there."""
        maps = (self.features[layer], self.coefficients[layer])
        weights = [parameter for linear in maps for parameter in (linear.weight, linear.bias)]
        drawn = self.layers > 1 or self.channels.maxplus > 0  # a penalty will draw from the states
        scan = partial(fold.scan, rows, layout.sizes, first, self.channels, weights)
        states, last, det = scan(every=drawn)
        return states, last, det, Rows(lambda: states if len(states) else scan(every=True)[0])

    def _stack(self, layers: list[Tensor]) -> Tensor:
        return layers[0] if self.layers == 1 else torch.stack(layers, 1)


def channels_of(channels: int | Mapping[str, int]) -> Channels:
    """How many channels of each kind; a number is half affine, a quarter product and a quarter max."""
    if not isinstance(channels, Mapping):
        total = whole_number("channels", channels)
        return Channels(affine=total - 2 * (total // 4), product=total // 4, max=total // 4)
    kinds = list(asdict(Channels()))
    counts = Channels(**{one_of("channels", kind, kinds): whole_number(kind, n, 0) for kind, n in channels.items()})
    if counts.size == 0:
        raise InputError(f"channels must hold at least one channel of {', '.join(kinds)}; got {dict(channels)}")
    return counts


def _require_finite(lasts: list[Tensor]) -> None:
    """Refuse states that have overflowed. Their gradients would be NaN."""
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:
        return
    if not all(bool(torch.isfinite(last.detach().sum())) for last in lasts):
        raise InputError(
            "elements must be small enough for a Fold's states, which overflowed; standardise the elements, "
            "or lower the learning rate"
        )
