"""Assertions for test suites: order, padding and chunks must not change what a model returns.

They take what :func:`anyorder.audit` takes, and an AssertionError shows both inputs and both outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder.audits.elements import NumberSets
from anyorder.audits.intervals import interval
from anyorder.audits.predictor import Predictor
from anyorder.audits.report import Report
from anyorder.audits.run import audit
from anyorder.checks import InputError, checked_batch, real_number, whole_number
from anyorder.data.orderings import random_orderings
from anyorder.data.sets import filled
from anyorder.recurrences.base import Recurrence, evaluating, recurrence
from anyorder.recurrences.trajectory import State, tree_leaves


def assert_order_invariant(
    predict: Any,
    sets: Any,
    lengths: Any = None,
    *,
    atol: float = 1e-5,
    rtol: float = 0.0,
    orderings: int = 8,
    excess: float | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> None:
    """Fail if the order of the elements changes what ``predict`` returns; show the worst ordering found.

    Without ``excess`` every output must be the same, reversed and in ``orderings`` random orders: |f(xπ) − f(x)| ≤
    atol + rtol·|f(x)| in every component, or the same label. With ``excess``, for a predictor that samples, order may
    add that much to the flip rate of labels and classes, or else to the output gap, over the noise of reading a set
    again. It fails if the whole 95 % interval is above.

    ``options``: those of :func:`anyorder.audit`, such as ``parse``, ``equivariant``, ``batch_size``, ``concurrency``;
    with ``excess`` also ``design``, ``ties``, ``task``, ….

    >>> x = torch.tensor([[[1.0], [2.0], [4.0]]])
    >>> assert_order_invariant(lambda elements: elements.sum(dim=1), x)
    >>> assert_order_invariant(lambda elements: elements[:, -1], x, generator=torch.Generator().manual_seed(0))
    Traceback (most recent call last):
        ...
    AssertionError: the output depends on the order of the elements (largest difference 3, allowed 1e-05)
      set 0, order [0, 1, 2] (given): [4.0]
      set 0, order [2, 1, 0]: [1.0]
    """
    orderings = whole_number("orderings", orderings)
    if excess is not None:
        allowed = real_number("excess", excess, at_least=0.0)
        _require_little(audit(predict, sets, lengths, orderings=orderings, generator=generator, **options), allowed)
        return
    predictor = Predictor(predict, sets, lengths, **options)
    sizes, places = predictor.sizes[:, None], np.arange(predictor.sizes.max())
    backwards = np.where(places < sizes, sizes - 1 - places, places)
    drawn = random_orderings(torch.from_numpy(predictor.sizes), len(places), orderings, generator).transpose(0, 1)
    with evaluating(predict), closing(predictor):
        given = _outputs(predictor)
        found = [(orders, _outputs(predictor, orders)) for orders in (backwards, *drawn.numpy())]
    orders, outputs = max(found, key=lambda one: _differences(given, one[1]).max())

    def inputs(at: int) -> tuple[str, str]:
        order = orders[at, : predictor.sizes[at]].tolist()
        return f"order {sorted(order)} (given)", f"order {order}"

    what, name = "the order of the elements", predictor.class_name if predictor.labels else None
    _require_same(what, given, outputs, atol, rtol, inputs, name)


def _require_little(report: Report, allowed: float) -> None:
    """Raise an AssertionError if order adds more than is allowed, with the worst ordering."""
    rate = report.excess_flip_rate is not None
    figure, ci = report.excess_output_gap, report.excess_output_gap_ci
    if rate:
        figure, ci = report.excess_flip_rate or 0.0, report.excess_flip_rate_ci
    if (figure if ci is None else ci[0]) <= allowed:
        return
    case, name = report.worst[0], "flip rate" if rate else "output gap"
    order, outputs = case.ordering.tolist(), [case.output.tolist(), case.worst_output.tolist()]
    raise _failure(
        f"order adds {figure:.4g} to the {name} (95 % interval {interval(ci)}), allowed {allowed:g}",
        case.name,
        (f"order {sorted(order)} (given)", f"order {order}"),
        [case.given_class, case.worst_class] if rate else outputs,
    )


def assert_padding_invariant(
    model: Any,
    elements: Any,
    lengths: Any,
    *,
    atol: float = 1e-5,
    rtol: float = 0.0,
    fills: Sequence[float] = (0.0, 1000.0, float("nan")),
) -> None:
    """Fail if the output depends on the padding, on its amount, or on the other sets of the batch.

    Each set is read alone without padding, then in the batch with three more positions. All padding is set to each
    of ``fills`` in turn (not to NaN for whole numbers).

    >>> x, lengths = torch.ones(2, 3, 1), torch.tensor([3, 1])
    >>> def mean(elements, lengths):
    ...     inside = torch.arange(elements.shape[1]) < lengths[:, None]
    ...     return elements[..., 0].masked_fill(~inside, 0.0).sum(dim=1) / lengths
    >>> assert_padding_invariant(mean, x, lengths)
    """
    predictor = Predictor(model, elements, lengths)
    sets = predictor.sets
    with evaluating(model), closing(predictor):
        if not isinstance(sets, NumberSets) or not (predictor.form != "exact" and sets.ragged):
            raise InputError("lengths must be given, and the model must take them: model(elements, lengths)")
        sets.width = None
        given = np.concatenate([predictor(np.array([row])) for row in range(len(predictor.sizes))])
        sets.width = int(predictor.sizes.max()) + 3
        whole = not torch.as_tensor(sets.flat).is_floating_point()
        for fill in [fill for fill in fills if not (whole and np.isnan(fill))]:
            sets.fill = fill
            try:
                outputs = _outputs(predictor)
            except InputError as error:
                raise AssertionError(f"the output depends on padding set to {fill:g}: {error}") from error
            inputs = "alone", f"in the batch, padding set to {fill:g}"
            _require_same("padding or the other sets", given, outputs, atol, rtol, lambda at, two=inputs: two)


def assert_chunking_invariant(
    model: Any,
    elements: Tensor,
    lengths: Any = None,
    *,
    atol: float = 1e-5,
    rtol: float = 0.0,
    chunks: Sequence[int] = (1, 2, 3, 7),
) -> None:
    """Fail unless reading the elements in chunks, from state to state, ends where reading them at once does.

    ``model``: what :func:`anyorder.recurrence` takes, or a model with ``encode``, ``recurrence`` and ``readout``.

    >>> assert_chunking_invariant(torch.nn.GRU(2, 4, batch_first=True), torch.randn(3, 8, 2), torch.tensor([8, 5, 1]))
    """
    owned = isinstance(getattr(model, "recurrence", None), Recurrence)
    r = model.recurrence if owned else recurrence(model)
    elements, known = checked_batch(elements, lengths, batch_first=owned or r.batch_first)
    batch, longest = elements.shape[:2]
    sizes = torch.full((batch,), longest, device=elements.device) if known is None else known
    elements = filled(elements, known)  # an encoder reads the padding too

    def read(chunk: int) -> np.ndarray:
        state: State = r.start(batch)
        for begin in range(0, longest, chunk):
            piece = elements[:, begin : begin + chunk]
            here = (sizes - begin).clamp(0, piece.shape[1])
            state = r.scan_encoded(model.encode(piece) if owned else piece, here, state=state).last
        leaves = map(torch.as_tensor, tree_leaves(model.readout(state) if owned else state))
        return torch.cat([leaf.detach().cpu().double().flatten(1) for leaf in leaves], dim=1).numpy()

    with torch.no_grad(), evaluating(model, r):
        whole = read(max(1, longest))
        for size in chunks:
            inputs = "all at once", f"in chunks of {size}"
            found = read(whole_number("chunks", size))
            _require_same("the chunks", whole, found, atol, rtol, lambda at, inputs=inputs: inputs)


def _outputs(predictor: Predictor, orders: np.ndarray | None = None) -> np.ndarray:
    rows = np.arange(len(predictor.sizes))
    blocks = predictor.blocks(rows)
    return np.concatenate([predictor(rows[b], None if orders is None else orders[b]) for b in blocks])


def _differences(given: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """|outputs − given|; infinite where one of the two alone is NaN, an answer that could not be read."""
    neither = np.isnan(outputs) & np.isnan(given)
    return np.where(neither, 0.0, np.nan_to_num(np.abs(outputs - given), nan=np.inf))


def _require_same(
    what: str, given: np.ndarray, outputs: np.ndarray, atol: float, rtol: float, inputs: Any, class_name: Any = None
) -> None:
    """Raise an AssertionError with the set that differs most, both its inputs and both outputs.

    ``class_name`` names outputs that are class numbers, which must be equal.
    """
    allowed = real_number("atol", atol, at_least=0.0) + real_number("rtol", rtol, at_least=0.0) * np.abs(given)
    apart = _differences(given, outputs)
    excess = np.minimum(apart, 1.0) if class_name else apart - np.nan_to_num(allowed)
    if (excess <= 0).all():
        return
    at = int(excess.max(axis=1).argmax())
    bound = f"{atol:g}" if rtol == 0 else f"{atol:g} + {rtol:g} of the value"
    much = f"largest difference {np.abs(outputs[at] - given[at]).max():.6g}, allowed {bound}"
    shown = [given[at].tolist(), outputs[at].tolist()]
    if class_name:
        much = f"{(excess > 0).sum()} of {len(given)} sets"
        shown = [None if np.isnan(number) else class_name(int(number)) for (number,) in shown]
    raise _failure(f"the output depends on {what} ({much})", str(at), inputs(at), shown)


def _failure(headline: str, name: str, inputs: tuple[str, str], outputs: list[Any]) -> AssertionError:
    """What an assertion raises: a headline, and a set in both readings."""
    lines = [f"  set {name}, {how}: {output}" for how, output in zip(inputs, outputs, strict=True)]
    return AssertionError("\n".join([headline, *lines]))
