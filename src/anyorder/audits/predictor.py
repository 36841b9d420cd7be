"""Any predictor as one function: sets and their orderings in, outputs ``[R, K]`` out."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, checked_elements, checked_lengths
from anyorder.data.sets import SetData
from anyorder.recurrences.base import Recurrence, owners_of, recurrence
from anyorder.recurrences.trajectory import tree_leaves

_NUMBERS = 2_000_000  # numbers of the elements of one block
_ORDERING_NUMBERS = 4  # numbers that cost as much memory as a place in an ordering
_ROWS = 1024
_FIRST_ROWS = 64  # rows of the first block under a time budget

Orderings = np.ndarray | Sequence[np.ndarray] | None  # a row per set, of its own places first; None: the given order


class Clock:
    """The time budget, and the progress line on stderr."""

    def __init__(self, seconds: float | None = None, progress: bool | None = False) -> None:
        self.seconds, self.rows, self.cut = seconds, 0, list[str]()
        self._show = sys.stderr.isatty() if progress is None else progress
        self._begin, self._shown, self._phase, self._end = time.monotonic(), 0.0, "", 0

    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def past(self, share: float, part: str = "") -> bool:
        """Whether this share of the time budget is spent; if so, ``part`` of the audit is noted as cut."""
        over = self.seconds is not None and self.elapsed() > share * self.seconds
        if over and part and part not in self.cut:
            self.cut.append(part)
        return over

    def phase(self, name: str, total: int) -> None:
        self._phase, self._end, self._shown = name, self.rows + total, -1.0

    def advance(self, rows: int) -> None:
        self.rows += rows
        if self._show and time.monotonic() > self._shown + 0.2:
            self._shown = time.monotonic()
            left = max(self._end - self.rows, 0)
            print(f"\r\033[K{self._phase}: {left:,} to go", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._show:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Predictor:
    """``predictor(rows [R], orderings) -> outputs [R, K]``, float64, for the sets it was made with.

    ``predict`` may be a torch module, a recurrence, an estimator, an ONNX session, or a function of
    ``(elements, lengths)`` or of ``elements``. It gets a fresh copy of the kind of array that was given. ``sizes [N]``:
    the number of elements of each set. ``width`` and ``fill``: the length to which batches are padded (None: the
    largest set of the batch) and the padding's value. ``columns``: K, once known.
    """

    def __init__(
        self,
        predict: Any,
        elements: Any,
        lengths: Any = None,
        *,
        class_names: Sequence[str] | None = None,
        batch_size: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(predict, (nn.RNNBase, nn.RNNCellBase)):
            predict = recurrence(predict)
        self.predict = predict
        listed = isinstance(elements, (list, tuple))
        self.ragged = listed or lengths is not None
        self._numpy = not isinstance(elements[0] if listed and len(elements) else elements, Tensor)
        self.width: int | None = None
        if listed:
            if lengths is not None:
                raise InputError("lengths must be None when elements is a list: each array has its own length")
            data = SetData.of(elements)
            self.flat, sizes = data.elements, data.lengths
        else:
            time_first = isinstance(predict, Recurrence) and not predict.batch_first
            block = torch.from_numpy(elements) if isinstance(elements, np.ndarray) else elements
            block = checked_elements(block).detach()
            block = block.transpose(0, 1) if time_first else block
            self.width = block.shape[1]
            known = checked_lengths(lengths, block)
            sizes = block.new_full(block.shape[:1], self.width, dtype=torch.int64) if known is None else known
            self.flat = block[torch.arange(self.width, device=block.device) < sizes[:, None]]
        self.sizes = sizes.cpu().numpy()
        self._starts = np.cumsum(self.sizes) - self.sizes
        self.fill, self.batch_size, self.clock = 0.0, batch_size, clock or Clock()
        self.columns: int | None = None
        own = getattr(predict, "classes_", None)
        self.knows_classes = own is not None
        self.classes: list[Any] = list(class_names or []) if own is None else list(own)
        self._call, self._form = _adapted(predict, listed)
        gives_scores = self._form != "list" or hasattr(predict, "predict_proba")
        self.returns_classes = self.knows_classes and not gives_scores
        self.whole, self.threshold = False, 0.0

    @property
    def takes_lengths(self) -> bool:
        return self._form != "exact"

    def take(self, rows: np.ndarray, orderings: Orderings = None) -> Any:
        """A copy ``[R, width, D]`` of these sets, each in its ordering."""
        sizes = self.sizes[rows]
        width = self.width or max(int(sizes.max()), 1)
        places = np.tile(np.arange(width), (len(rows), 1))
        for row, ordering in zip(places, () if orderings is None else orderings, strict=False):
            row[: len(ordering)] = ordering
        padding = np.arange(width) >= sizes[:, None]
        places += self._starts[rows][:, None]
        places[padding] = -1
        flat = self.flat if len(self.flat) else self.flat.new_zeros(1, self.flat.shape[1])  # all sets are empty
        copy = flat[torch.from_numpy(places)]
        copy[torch.from_numpy(padding)] = self.fill
        return copy.numpy() if self._numpy else copy

    def __call__(self, rows: np.ndarray, orderings: Orderings = None) -> np.ndarray:
        """The outputs for these sets in these orderings, in one call of ``predict``."""
        with torch.no_grad():
            outputs = self._outputs(self.take(rows, orderings), self.sizes[rows])
        if not np.isfinite(outputs).all():
            row = int((~np.isfinite(outputs)).any(axis=1).argmax())
            order = "given" if orderings is None else orderings[row][: self.sizes[rows[row]]].tolist()
            raise InputError(f"predict must return finite numbers; got others for set {rows[row]} (order: {order})")
        self.clock.advance(len(rows))
        return outputs

    def _outputs(self, elements: Any, sizes: np.ndarray) -> np.ndarray:
        if self._form == "list":
            return self._ask(sizes, [row[:n] for row, n in zip(elements, sizes, strict=True)])
        if self._form == "padded":
            lengths: Any = sizes.copy() if self.ragged else None
            if self.ragged and isinstance(elements, Tensor):
                lengths = torch.as_tensor(lengths, device=elements.device)
            return self._ask(sizes, elements, lengths)
        places = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
        parts = [self._ask(sizes[rows], elements[rows, : int(sizes[rows[0]])]) for rows in places]
        return np.concatenate(parts)[np.argsort(np.concatenate(places))]

    def _ask(self, sizes: np.ndarray, *arguments: Any) -> np.ndarray:
        """What predict returns as float64 ``[R, K]``; class names become one column a class."""
        try:
            output = self._call(*arguments)
            if isinstance(output, Tensor):
                output = output.detach().cpu()
                output = output.float() if output.dtype == torch.bfloat16 else output
            values = np.asarray(output)
        except Exception as error:
            form = {"list": "a list of arrays [n, D]", "padded": "(elements, lengths)", "exact": "elements"}[self._form]
            raise InputError(
                f"predict failed on {form} with sets of {sizes.min()} to {sizes.max()} elements "
                f"({type(error).__name__}: {error})"
            ) from error
        self.returns_classes |= values.dtype.kind in "USO"
        if self.returns_classes and values.shape in ((len(sizes),), (len(sizes), 1)):
            names = values.ravel().tolist()
            if unknown := [name for name in names if name not in self.classes]:
                raise InputError(f"class_names must hold every class that predict returns; {unknown[0]!r} is missing")
            values = np.eye(len(self.classes))[[self.classes.index(name) for name in names]]
        rows = values.reshape(len(values), -1) if values.ndim in (1, 2) else np.empty((0, 0))
        if rows.shape != (len(sizes), self.columns or max(rows.shape[1], 1)) or values.dtype.kind not in "biuf":
            raise InputError(
                f"predict must return numbers or class names, [R] or [R, K] with the same K in every call; "
                f"got {values.dtype} of shape {list(values.shape)} for {len(sizes)} sets"
            )
        self.columns = rows.shape[1]
        return rows.astype(np.float64)

    # Blocks
    def block_rows(self, size: int) -> int:
        """The number of rows of a block whose largest set is of this size; one row is always taken whole."""
        if self.batch_size is not None:
            return self.batch_size
        row = max(self.width or size, 1) * max(int(self.flat.shape[1]), _ORDERING_NUMBERS)
        rows = min(max(1, _NUMBERS // row), _ROWS)
        if self.clock.seconds is None:
            return rows
        pace = self.clock.rows / max(self.clock.elapsed(), 1e-9)
        return min(rows, max(1, int(0.05 * self.clock.seconds * pace)) if self.clock.rows else _FIRST_ROWS)

    def blocks(self, rows: np.ndarray) -> Iterator[slice]:
        """Slices of ``rows``, in their order, of the size of a block each."""
        sizes, begin = self.sizes[rows], 0
        while begin < len(rows):
            count = self.block_rows(1)
            while count > (fit := self.block_rows(int(sizes[begin : begin + count].max()))):
                count = max(fit, count // 2)
            yield slice(begin, begin + count)
            begin += count

    # Classes and labels
    def learn_kind(self, given: np.ndarray) -> None:
        """Tell class numbers, probabilities and scores apart by the outputs in the given order."""
        self.whole = bool((given == np.round(given)).all())
        self.threshold = 0.5 if ((given >= 0) & (given <= 1)).all() else 0.0

    def class_of(self, outputs: np.ndarray) -> np.ndarray:
        """The predicted class numbers ``[R]``."""
        if outputs.shape[1] > 1:
            return outputs.argmax(axis=1)
        if self.whole:
            return np.round(outputs[:, 0]).astype(np.int64)
        return (outputs[:, 0] > self.threshold).astype(np.int64)

    def truth(self, labels: Any, task: str) -> np.ndarray:
        """``labels`` as class numbers ``[N]`` or values ``[N, K]``."""
        values = np.atleast_1d(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
        values = values.reshape(len(values), -1)
        count, text = len(self.sizes), values.dtype.kind in "USO"
        if task == "regression":
            if values.shape != (count, self.columns) or not np.isfinite(values := values.astype(np.float64)).all():
                raise InputError(f"labels must be finite numbers [{count}, {self.columns}]; got {list(values.shape)}")
            return values
        if values.shape != (count, 1):
            raise InputError(f"labels must be {count} classes, one per set; got shape {list(values.shape)}")
        if self.columns == 1 and self.whole and not text:  # predict returns class numbers itself
            return values[:, 0].astype(np.int64)
        allowed = self.classes if self.knows_classes or text else range(max(self.columns or 0, 2))
        numbers = {value: number for number, value in enumerate(allowed)}
        if unknown := [value for value in values[:, 0].tolist() if value not in numbers]:
            raise InputError(f"labels must be of the classes {list(allowed)[:9]}; got {unknown[:5]}")
        return np.array([numbers[value] for value in values[:, 0].tolist()])


def end_states(model: Any, elements: Any, lengths: Any = None) -> Tensor:
    """The states ``[B, S]`` of a recurrence, or of a model with ``encode`` and ``recurrence``, after these sets."""
    elements, lengths = _tensors_for(model, elements, lengths)
    if not isinstance(model, Recurrence):
        elements, model = model.encode(elements), model.recurrence
    leaves = tree_leaves(model.scan_encoded(elements, lengths).last)
    return torch.cat([leaf.flatten(1) for leaf in leaves], dim=1)


def _adapted(predict: Any, listed: bool) -> tuple[Callable[..., Any], str]:
    """The call and what it takes: "padded" (elements, lengths), "exact" (sets of one size) or a "list"."""
    if isinstance(predict, Recurrence):
        return partial(end_states, predict), "padded"
    if isinstance(predict, nn.Module):
        if _takes_lengths(_unwrapped(predict).forward):
            return lambda x, n: predict(*_tensors_for(predict, x, n)), "padded"
        return lambda x: predict(_tensors_for(predict, x)[0]), "exact"
    if hasattr(predict, "predict_proba") or hasattr(predict, "predict"):
        return getattr(predict, "predict_proba", None) or predict.predict, "list"
    if hasattr(predict, "run") and hasattr(predict, "get_inputs"):
        return _onnx_call(predict)
    if not callable(predict) or isinstance(predict, type):
        raise InputTypeError(
            "predict must be a function of (elements, lengths), a torch module, a recurrence, an estimator or an "
            f"ONNX session; got {predict!r}"
        )
    return predict, "padded" if _takes_lengths(predict) else "list" if listed else "exact"


def recurrence_of(predict: Any) -> nn.Module | None:
    """The recurrence, or the model with ``recurrence`` and ``encode``, that a predictor is, has or belongs to."""
    for owner in owners_of(predict):
        has_one = isinstance(getattr(owner, "recurrence", None), Recurrence) and hasattr(owner, "encode")
        if isinstance(owner, Recurrence) or has_one:
            return owner
    return None


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module behind torch.compile or a data-parallel wrapper, whose own forward takes anything."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while hasattr(module, "_orig_mod") or isinstance(module, parallel):
        module = module.module if isinstance(module, parallel) else module._orig_mod  # type: ignore[assignment]
    return module


def _takes_lengths(function: Callable[..., Any]) -> bool:
    """Whether a function takes lengths too, by name or as a second needed argument."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    needed = [p for p in parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    many = len(needed) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    return many or "lengths" in parameters


def _tensors_for(module: nn.Module, elements: Any, lengths: Any = None) -> tuple[Tensor, Tensor | None]:
    """Tensors of what was given; numbers from numpy become the dtype and device of the module's parameters."""
    tensor = torch.as_tensor(elements)
    parameter = next(module.parameters(), None)
    if not isinstance(elements, Tensor) and parameter is not None and tensor.is_floating_point():
        tensor = tensor.to(parameter.device, parameter.dtype)
    return tensor, None if lengths is None else torch.as_tensor(lengths, device=tensor.device)


def _onnx_call(session: Any) -> tuple[Callable[..., Any], str]:
    inputs = [node.name for node in session.get_inputs()]
    if "state_0" in inputs or len(inputs) > 2:
        raise InputError(
            f"predict must be an ONNX session that takes elements, or elements and lengths; this one takes {inputs}. "
            "An exported step or read-out reads no whole set: pass the model itself (anyorder.load of its folder)"
        )

    def run(elements: Any, lengths: Any = None) -> Any:
        if lengths is None:
            lengths = np.full(len(elements), elements.shape[1], dtype=np.int64)
        values = (np.asarray(value.cpu() if isinstance(value, Tensor) else value) for value in (elements, lengths))
        return session.run(None, dict(zip(inputs, values, strict=False)))[0]

    return run, "exact" if len(inputs) == 1 else "padded"
