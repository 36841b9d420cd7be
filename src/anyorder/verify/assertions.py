"""Assertions for other people's tests: order, padding and chunks must not change what a model says.

They raise AssertionError with the two inputs and outputs side by side, and take what :func:`anyorder.audit` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder.audits.predictor import Predictor, Sets, in_layout
from anyorder.checks import InputError, InputTypeError, checked_batch, real_number, whole_number
from anyorder.data.orderings import random_orderings
from anyorder.data.sets import filled
from anyorder.recurrences.base import Recurrence, evaluating, recurrence
from anyorder.recurrences.trajectory import State, tree_leaves, tree_map

_ROWS = 1024


def assert_order_invariant(
    model: Any,
    elements: Any,
    lengths: Any = None,
    *,
    atol: float = 1e-5,
    rtol: float = 0.0,
    orderings: int = 8,
    generator: torch.Generator | None = None,
) -> None:
    """Fail unless every sample's output is the same reversed and in ``orderings`` random orders.

    Same means |f(xπ) − f(x)| ≤ atol + rtol·|f(x)| in every component.

    >>> x = torch.tensor([[[1.0], [2.0], [4.0]]])
    >>> assert_order_invariant(lambda elements: elements.sum(dim=1), x)
    >>> assert_order_invariant(lambda elements: elements[:, -1], x, generator=torch.Generator().manual_seed(0))
    Traceback (most recent call last):
        ...
    AssertionError: the output depends on the order of the elements (largest difference 3, allowed 1e-05)
      sample 0, order [0, 1, 2] (given): [4.0]
      sample 0, order [2, 1, 0]:         [1.0]
    """
    orderings = whole_number("orderings", orderings)
    sets, predictor = _prepare(model, elements, lengths)
    with evaluating(model):
        given = _ask(predictor, np.arange(len(sets)), None)
        worst: tuple[float, int, np.ndarray, np.ndarray] | None = None
        sizes = torch.from_numpy(sets.sizes)
        orders = _reversed(sets)
        for _ in range(orderings + 1):
            outputs = _ask(predictor, np.arange(len(sets)), orders)
            excess = _excess(outputs, given, atol, rtol)
            sample = int(excess.max(axis=1).argmax())
            largest = float(excess[sample].max())
            if largest > 0 and (worst is None or largest > worst[0]):
                worst = (largest, sample, orders[sample, : sets.sizes[sample]], outputs[sample])
            orders = random_orderings(sizes, sets.longest, 1, generator)[:, 0].numpy()
    if worst is None:
        return
    _, sample, order, output = worst
    one = f"  sample {sample}, order {list(range(len(order)))} (given):"
    other = f"  sample {sample}, order {order.tolist()}:"
    raise AssertionError(
        f"the output depends on the order of the elements ({_difference(output, given[sample], atol, rtol)})\n"
        f"{one} {given[sample].tolist()}\n{other.ljust(len(one))} {output.tolist()}"
    )


def assert_padding_invariant(
    model: Any,
    elements: Any,
    lengths: Any,
    *,
    atol: float = 1e-5,
    rtol: float = 0.0,
    fills: Sequence[float] = (0.0, 1000.0, float("nan")),
    extra: int = 3,
) -> None:
    """Fail if what stands behind a set's last element, or how much of it, or the rest of the batch, is felt.

    Each sample is asked alone without padding, and in the batch with its padding and ``extra`` more positions set to
    each of ``fills`` (NaN is left out for whole numbers).

    >>> x, lengths = torch.ones(2, 3, 1), torch.tensor([3, 1])
    >>> def mean(elements, lengths):
    ...     inside = torch.arange(elements.shape[1]) < lengths[:, None]
    ...     return elements[..., 0].masked_fill(~inside, 0.0).sum(dim=1) / lengths
    >>> assert_padding_invariant(mean, x, lengths)
    """
    if lengths is None and not isinstance(elements, (list, tuple)):
        raise InputError("assert_padding_invariant needs lengths: without them there is no padding to test")
    extra = whole_number("extra", extra, minimum=0)
    sets, predictor = _prepare(model, elements, lengths)
    if not predictor.takes_lengths:
        raise InputTypeError("assert_padding_invariant needs a model that takes lengths: model(elements, lengths)")
    whole_numbers = not torch.as_tensor(sets.elements).is_floating_point()
    fills = [fill for fill in fills if not whole_numbers or fill == fill]
    if not fills:
        raise InputError("fills must name at least one number to set padding to (NaN is none for whole numbers)")
    with evaluating(model):
        alone = [_alone(model, sets, sample) for sample in range(len(sets))]
        given = np.concatenate(alone)
        for fill in fills:
            padded = _padded(sets, fill, extra)
            try:
                outputs = _ask(Predictor(model, padded), np.arange(len(sets)), None)
            except InputError as error:
                raise AssertionError(f"padding set to {fill:g} reaches the output: {error}") from error
            excess = _excess(outputs, given, atol, rtol)
            if (excess > 0).any() or np.isnan(excess).any():
                sample = int(np.nan_to_num(excess, nan=np.inf).max(axis=1).argmax())
                size = int(sets.sizes[sample])
                raise AssertionError(
                    "the output depends on padding or batch mates "
                    f"({_difference(outputs[sample], given[sample], atol, rtol)})\n"
                    f"  sample {sample}, its {size} elements alone: {given[sample].tolist()}\n"
                    f"  in the batch, {sets.longest + extra - size} positions of padding set to {fill:g}: "
                    f"{outputs[sample].tolist()}"
                )


def assert_chunking_invariant(
    model: Any,
    elements: Tensor,
    lengths: Any = None,
    *,
    atol: float = 1e-5,
    rtol: float = 0.0,
    chunks: Sequence[int] = (1, 2, 3, 7),
) -> None:
    """Fail unless reading the elements in pieces, the state carried over, ends where reading them at once does.

    ``model``: a recurrence, anything :func:`anyorder.recurrence` takes, or a model with ``encode``, ``recurrence`` and
    ``readout``.

    >>> assert_chunking_invariant(torch.nn.GRU(2, 4, batch_first=True), torch.randn(3, 8, 2), torch.tensor([8, 5, 1]))
    """
    if len(chunks) == 0:
        raise InputError("chunks must name at least one number of elements to read at once; got none")
    r, encode, readout = _parts(model)
    elements, known = checked_batch(elements, lengths, batch_first=hasattr(model, "encode") or r.batch_first)
    sizes = torch.full((elements.shape[0],), elements.shape[1], device=elements.device) if known is None else known
    elements = filled(elements, known)  # an encoder reads all it is given
    with torch.no_grad(), evaluating(model, r):
        whole = _numbers(readout(r.scan_encoded(encode(elements), known).last))
        for size in chunks:
            size = whole_number("chunks", size)
            state: State = r.start(elements.shape[0])
            for begin in range(0, elements.shape[1], size):
                piece = encode(elements[:, begin : begin + size])
                state = r.scan_encoded(piece, (sizes - begin).clamp(0, piece.shape[1]), state=state).last
            pieces = _numbers(readout(state))
            excess = _excess(pieces, whole, atol, rtol)
            if not (excess <= 0).all():
                sample = int(np.nan_to_num(excess, nan=np.inf).max(axis=1).argmax())
                raise AssertionError(
                    f"the output depends on the pieces the elements arrive in "
                    f"({_difference(pieces[sample], whole[sample], atol, rtol)})\n"
                    f"  sample {sample}, all {int(sizes[sample])} elements at once: {whole[sample].tolist()}\n"
                    f"  sample {sample}, in pieces of {size}: {pieces[sample].tolist()}"
                )


def _prepare(model: Any, elements: Any, lengths: Any) -> tuple[Sets, Predictor]:
    model, elements = in_layout(model, elements)
    sets = Sets.of(elements, lengths)
    return sets, Predictor(model, sets)


def _ask(predictor: Predictor, samples: np.ndarray, orders: np.ndarray | None) -> np.ndarray:
    parts = []
    for begin in range(0, len(samples), _ROWS):
        part = slice(begin, begin + _ROWS)
        parts.append(predictor(samples[part], None if orders is None else orders[part]))
    return np.concatenate(parts)


def _reversed(sets: Sets) -> np.ndarray:
    position = np.arange(sets.longest)
    sizes = sets.sizes[:, None]
    return np.where(position < sizes, sizes - 1 - position, position)


def _excess(outputs: np.ndarray, given: np.ndarray, atol: float, rtol: float) -> np.ndarray:
    """How far each component is beyond what is allowed; positive is a failure."""
    real_number("atol", atol, at_least=0.0)
    real_number("rtol", rtol, at_least=0.0)
    return np.abs(outputs - given) - (atol + rtol * np.abs(given))


def _difference(output: np.ndarray, given: np.ndarray, atol: float, rtol: float) -> str:
    allowed = f"{atol:g}" if rtol == 0 else f"{atol:g} + {rtol:g} of the value"
    return f"largest difference {np.abs(output - given).max():.6g}, allowed {allowed}"


def _alone(model: Any, sets: Sets, sample: int) -> np.ndarray:
    """One sample by itself, without padding (an empty one keeps a position of zeros)."""
    size = int(sets.sizes[sample])
    elements = sets.take(np.array([sample]))[:, : max(size, 1)]
    one = Sets(elements if size else elements * 0, np.array([size]), sets.ragged, sets.listed)
    return _ask(Predictor(model, one), np.zeros(1, dtype=np.int64), None)


def _padded(sets: Sets, fill: float, extra: int) -> Sets:
    data = torch.as_tensor(sets.take(np.arange(len(sets))))
    wide = data.new_full((len(sets), sets.longest + extra, data.shape[2]), fill)
    inside = torch.arange(sets.longest) < torch.from_numpy(sets.sizes)[:, None]
    inside = inside.to(data.device)
    wide[:, : sets.longest][inside] = data[inside]
    return Sets(wide if isinstance(sets.elements, Tensor) else wide.numpy(), sets.sizes, True, sets.listed)


def _parts(model: Any) -> tuple[Recurrence, Callable[[Tensor], Tensor], Callable[[State], Any]]:
    if isinstance(getattr(model, "recurrence", None), Recurrence):
        if not (hasattr(model, "encode") and hasattr(model, "readout")):
            raise InputTypeError("a model with a recurrence must also have encode and readout")
        return model.recurrence, model.encode, model.readout
    return recurrence(model), lambda elements: elements, lambda state: state


def _numbers(output: State) -> np.ndarray:
    leaves = [leaf.detach().cpu().double().flatten(1) for leaf in tree_leaves(tree_map(torch.as_tensor, output))]
    return torch.cat(leaves, dim=1).numpy()
