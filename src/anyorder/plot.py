"""Pictures of a training, a fold and an audit: ``ao.plot``. Each function returns matplotlib axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyorder.audits.page import BLUE, ORANGE, draw_curve
from anyorder.audits.report import CURVES
from anyorder.checks import InputError, InputTypeError, checked_batch, one_of
from anyorder.recurrences.fold import Fold

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (BLUE, ORANGE, "#1b7a46", "#8a3ffc", "#8a6100", "#5b6472")
_LINES = {"loss": "loss", "validation": "validation metric", "penalty": "penalty", "gap": "order gap"}


def history(training: Any, ax: Axes | None = None) -> Axes:
    """The loss, the validation metric, the penalty and the order gap of each epoch, on a logarithmic axis.

    Args:
        training: What :func:`anyorder.train` returned, a fitted estimator, or a list of records of epochs.

    >>> import anyorder as ao
    >>> data = ao.SetData.of(torch.rand(32, 4, 1), torch.rand(32))
    >>> result = ao.train(ao.RecurrentSetModel(1, 1, hidden=8), "mse", data, penalty=ao.SIRE(), penalty_weight=1.0,
    ...                   config=ao.TrainConfig(epochs=2), progress=False)
    >>> ao.plot.history(result).get_xlabel()
    'epoch'
    """
    records = getattr(training, "history_", getattr(training, "history", training))
    axes = _axes(ax)
    for (name, words), colour in zip(_LINES.items(), _COLOURS, strict=False):
        points = [(record["epoch"], record[name]) for record in records if record[name] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, label=words, linewidth=1.8)
    axes.set(xlabel="epoch", yscale="log")
    axes.legend(frameon=False)
    return axes


@torch.no_grad()
def channels(fold: Any, elements: Tensor, lengths: Tensor | None = None, ax: Axes | None = None) -> Axes:
    """The affine channels of a fold: how far each one is from a sum and from a product.

    Across: the root mean square of c, 0 for a sum. Up: the sine of the angle between c and b over all elements, 0 for
    a product around a fixed point. The penalty of a channel is 0 at the left edge and at the bottom.

    Args:
        fold: A :class:`anyorder.Fold`, or a model with one. Its first layer is drawn.
        elements: Sets ``[B, T, D]`` as the fold or the model reads them.

    >>> import anyorder as ao
    >>> ao.plot.channels(ao.Fold(3, {"affine": 16}), torch.randn(20, 5, 3)).get_xlabel()
    'distance from a sum'
    """
    elements, lengths = checked_batch(elements, lengths)
    inside = slice(None) if lengths is None else torch.arange(elements.shape[1]) < lengths[:, None]
    if not isinstance(fold, Fold):
        elements, fold = fold.encode(elements), fold.recurrence
    if not isinstance(fold, Fold) or not fold.channels.affine:
        raise InputTypeError("fold must be a Fold with affine channels, or a model with one")
    c, b = (
        part[:, fold.channels.middle]
        for part in fold.coefficients_of(elements[inside].reshape(-1, elements.shape[2]))[:2]
    )
    cosine = (c * b).sum(0) / (c.square().sum(0) * b.square().sum(0)).sqrt().clamp_min(1e-12)
    axes = _axes(ax)
    axes.axvspan(-0.02, 0.06, color="#e8f0f5")
    axes.axhspan(-0.02, 0.06, color="#f7ece8")
    places = c.square().mean(0).sqrt(), (1 - cosine.square()).clamp_min(0).sqrt()
    axes.scatter(*places, s=22, color="#2c6e91", edgecolor="white", linewidth=0.5, zorder=3)
    axes.set(xlabel="distance from a sum", ylabel="distance from a product", xlim=(-0.02, 1.6), ylim=(-0.02, 1.05))
    return axes


def curve(reports: Any, name: str = "state_order_gap", ax: Axes | None = None) -> Axes:
    """A curve of one or several audits with its 95 % intervals; by default the order gap after m elements.

    Args:
        reports: An :func:`anyorder.audit` of one model or of several, or a dict of reports.
        name: "state_order_gap" (of recurrences), "by_distance", "by_position" or "by_size".

    >>> import anyorder as ao
    >>> report = ao.audit(ao.RecurrentSetModel(3, 2), torch.randn(20, 6, 3), orderings=4)
    >>> ao.plot.curve(report).get_ylabel()
    'order gap'
    """
    _, title, label, unit = CURVES[one_of("name", name, CURVES)]
    found = getattr(reports, "reports", reports if isinstance(reports, Mapping) else {"": reports})
    curves = {model: getattr(report, name) for model, report in found.items()}
    if not any(curves.values()):
        raise InputError(f"name must be a curve that the reports have; none has {name!r}")
    axes = _axes(ax)
    for (model, values), colour in zip(curves.items(), _COLOURS * len(curves), strict=False):
        if values:
            draw_curve(axes, values, colour, (colour, 0.15), model)
    axes.set(title=title, xlabel=label, ylabel=unit)
    if len(curves) > 1:
        axes.legend(frameon=False)
    return axes


def _axes(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]
