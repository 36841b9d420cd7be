"""Any predictor as one function: sets and their orderings in, outputs ``[R, K]`` out."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.audits.cache import Cache
from anyorder.audits.elements import ListedSets, NumberSets, Orderings, sets_of
from anyorder.checks import InputError, InputTypeError
from anyorder.recurrences.base import Recurrence, owners_of, recurrence, unwrapped
from anyorder.recurrences.trajectory import tree_leaves

_NUMBERS = 2_000_000  # numbers of the elements of one batch
_ORDERING_NUMBERS = 4  # numbers that cost as much memory as a place in an ordering
_ROWS = 1024
_FORMS = {"single": "one set", "list": "a list of sets", "padded": "(elements, lengths)", "exact": "elements"}


class Progress:
    """The number of calls, and a line on stderr."""

    def __init__(self, show: bool | None = False) -> None:
        self.calls, self.limit = 0, sys.maxsize
        self._show, self._shown = sys.stderr.isatty() if show is None else show, 0.0

    def announce(self, plan: dict[str, int], always: bool) -> None:
        """Allow as many calls as are planned."""
        self.limit = sum(plan.values())
        if self._show or always:
            parts = ", ".join(f"{part} {calls:,}" for part, calls in plan.items() if calls)
            print(f"audit: at most {self.limit:,} calls ({parts})", file=sys.stderr, flush=True)

    def advance(self, rows: int) -> None:
        self.calls += rows
        if self._show and time.monotonic() > self._shown + 0.2:
            self._shown = time.monotonic()
            print(f"\r\033[K{self.calls:,} calls made", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._show:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Predictor:
    """``predictor(rows [R], orderings) -> outputs [R, K]``, float64, for the sets it was made with.

    ``predict`` may be a torch module, a recurrence, an estimator, an ONNX session, or a function, async or not. Of
    numbers it gets batches; of anything else one set, or a list of ``batch_size`` sets. An answer that is a label or
    names a place becomes one column: the number of its class. A row of NaN stands for an answer that ``parse`` could
    not read. ``columns``: K, once known. ``form``: what a call gets.
    """

    def __init__(
        self,
        predict: Any,
        sets: Any,
        lengths: Any = None,
        *,
        static: Any = None,
        class_names: Sequence[str] | None = None,
        equivariant: Any = None,
        parse: Callable[[Any], Any] | None = None,
        batch_size: int | None = None,
        concurrency: int = 1,
        cache: Any = None,
        progress: bool | None = False,
        name: str = "",
    ) -> None:
        if isinstance(predict, (nn.RNNBase, nn.RNNCellBase)):
            predict = recurrence(predict)
        self.predict = predict
        time_first = isinstance(predict, Recurrence) and not predict.batch_first
        self.sets: NumberSets | ListedSets = sets_of(sets, lengths, time_first=time_first)
        self.sizes, self.numeric = self.sets.sizes, isinstance(self.sets, NumberSets)
        self._static = static
        if static is not None and len(static) != len(self.sizes):
            raise InputError(f"static must hold a row for each of the {len(self.sizes)} sets; got {len(static)}")
        self.progress, self._parse, self._equivariant = Progress(progress), parse, equivariant
        self.names_places = equivariant is True
        self._cache = None if cache is None else Cache(cache, name)
        self.batch_size, self._concurrency, self.unparsed = batch_size, concurrency, 0
        self.columns: int | None = None
        own = getattr(predict, "classes_", None)
        self.knows_classes = own is not None
        self.classes: list[Any] = list(class_names or []) if own is None else list(own)
        self._call, self.form = _adapted(predict, self.sets.listed)
        if not self.numeric:
            self.form = "list" if batch_size is not None or _is_estimator(predict) else "single"
            if isinstance(predict, (Recurrence, nn.Module)):
                raise InputError("predict must be a function or an estimator if the elements are no numbers")
        gives_scores = self.form != "list" or hasattr(predict, "predict_proba")
        self.labels = self.knows_classes and not gives_scores
        self._classes = {name: number for number, name in enumerate(self.classes)}
        self.whole, self.threshold = False, 0.0
        self._pool = ThreadPoolExecutor(concurrency) if concurrency > 1 else None
        self._loop = asyncio.new_event_loop()  # in a thread, since a notebook runs one of its own
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._cache is not None:
            self._cache.close()
        self.progress.close()

    # From sets to answers
    def __call__(self, rows: np.ndarray, orderings: Orderings | None = None) -> np.ndarray:
        """The outputs for these sets in these orderings; None: the given order."""
        if orderings is None:
            orderings = np.tile(np.arange(self.sizes[rows].max()), (len(rows), 1))
        answers = self._answers(rows, orderings)
        if self._parse is not None:
            answers = [self._parsed(answer) for answer in answers]
        if self._equivariant is not None:
            own = zip(answers, orderings, self.sizes[rows], strict=True)
            answers = [self._undone(answer, order[:size]) for answer, order, size in own]
        unread = np.zeros(len(rows), dtype=bool)
        if isinstance(answers, list):
            unread = np.array([answer is None for answer in answers])
            answers = [answer for answer in answers if answer is not None]
            self.unparsed += int(unread.sum())
        numbers = self._numbers(answers)
        outputs = np.full((len(rows), numbers.shape[1]), np.nan)
        outputs[~unread] = numbers
        if (bad := ~np.isfinite(outputs).all(axis=1) & ~unread).any():
            row = int(bad.argmax())
            order = orderings[row][: self.sizes[rows[row]]].tolist()
            raise InputError(f"predict must return finite numbers; got others for set {rows[row]} (order: {order})")
        return outputs

    def _answers(self, rows: np.ndarray, orderings: Orderings) -> Any:
        """What predict returns, an array or a list, batch by batch; what the cache knows is not read again."""
        missing, keys, known = np.arange(len(rows)), list[str](), dict[str, Any]()
        if self._cache is not None:
            beside = [None if self._static is None else self._static[row] for row in rows]
            own = zip(rows, orderings, self.sizes[rows], beside, strict=True)
            keys = self._cache.keys([[self.sets.shown(row, o[:n]), static] for row, o, n, static in own])
            known = self._cache.get(keys)
            missing = np.array([i for i, key in enumerate(keys) if key not in known], dtype=np.int64)
        step = self._batch_rows(int(self.sizes[rows].max()))
        batches = [missing[begin : begin + step] for begin in range(0, len(missing), step)]

        def read(at: np.ndarray) -> Any:
            picked = orderings[at] if isinstance(orderings, np.ndarray) else [orderings[i] for i in at]
            return self._asked(rows[at], picked)

        found = []
        for at, answers in zip(batches, (self._pool.map if self._pool else map)(read, batches), strict=True):
            self.progress.advance(len(at))
            found.append(answers)
            if self._cache is not None:
                known |= self._cache.put(dict(zip((keys[i] for i in at), answers, strict=True)))
        if self._cache is not None:
            return [known[key] for key in keys]
        return np.concatenate(found) if isinstance(found[0], np.ndarray) else [one for part in found for one in part]

    def _asked(self, rows: np.ndarray, orderings: Orderings) -> Any:
        """One call of predict (of "exact", one a size): an array ``[R]`` or ``[R, K]``, or a list of R answers."""
        sizes = self.sizes[rows]
        if self.form == "exact" and sizes.min() < sizes.max():
            places = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
            parts = [self._asked(rows[at], [orderings[i] for i in at]) for at in places]
            return np.concatenate(parts)[np.argsort(np.concatenate(places))]
        batch: Any = self.sets.take(rows, orderings)
        arguments, static = [batch], {}
        if self._static is not None:
            pick = hasattr(self._static, "shape")
            static["static"] = self._static[rows] if pick else [self._static[row] for row in rows]
        if self.form == "single":
            arguments, static = batch, {name: values[0] for name, values in static.items()}
        elif self.form == "padded":
            lengths = sizes.copy() if self.sets.ragged else None
            as_tensor = self.sets.ragged and isinstance(batch, Tensor)
            arguments.append(torch.as_tensor(lengths, device=batch.device) if as_tensor else lengths)
        elif self.form == "exact":
            arguments = [batch[:, : int(sizes[0])]]
        elif self.numeric:
            arguments = [[one[:size] for one, size in zip(batch, sizes, strict=True)]]
        try:
            with torch.no_grad():
                output = self._value(self._call(*arguments, **static))
                return [output] if self.form == "single" else self._checked(output, len(rows))
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"predict failed on {_FORMS[self.form]} with sets of {sizes.min()} to {sizes.max()} elements "
                f"({type(error).__name__}: {error})"
            ) from error

    def _value(self, output: Any) -> Any:
        """What predict returned, awaited if it is to be, and no longer a tensor."""
        if inspect.isawaitable(output):
            output = asyncio.run_coroutine_threadsafe(_awaited(output), self._loop).result()
        if isinstance(output, Tensor):
            output = output.detach().cpu()
            output = (output.float() if output.dtype == torch.bfloat16 else output).numpy()
        return output

    def _checked(self, output: Any, count: int) -> Any:
        """``output`` as an array, or as a list of answers of mixed kinds, if it holds ``count`` answers."""
        mixed = self._parse is not None or self._equivariant is not None
        if isinstance(output, list) and len(output) == count and (mixed or any(one is None for one in output)):
            return output
        values = np.asarray(output)
        kind, shape = values.dtype.kind, values.shape
        numbers = len(shape) in (1, 2) and 0 not in shape and kind in "biuf"
        if not (numbers or (kind in "USO" and shape[1:] in ((), (1,)))) or len(values) != count:
            raise InputError(
                f"predict must return numbers or labels, [R] or [R, K]; "
                f"got {values.dtype} of shape {list(shape)} for {count} sets"
            )
        return values if numbers else values.ravel().tolist()

    # From answers to numbers
    def _parsed(self, answer: Any) -> Any:
        try:
            return None if answer is None else self._parse(answer)  # type: ignore[misc]
        except (ValueError, LookupError):
            return None

    def _undone(self, answer: Any, order: np.ndarray) -> Any:
        """An answer about places as one about elements, which are named by their place in the given order."""
        if answer is None:
            return None
        if not self.names_places:
            return self._equivariant(answer, order)
        values = np.asarray(answer)
        if values.ndim == 1 and len(values) >= max(len(order), 2):
            scores = values.copy()
            scores[order] = values[: len(order)]
            return scores
        place = place_named(values.item() if values.size == 1 else answer)
        if place is None:
            return answer
        if not 0 <= place < len(order):
            raise InputError(f"predict must name one of the {len(order)} places of a set; got {answer!r}")
        return Element(order[place])

    def _numbers(self, answers: Any) -> np.ndarray:
        """Answers as float64 ``[R, K]``: labels as the number of their class."""
        if not len(answers):
            return np.empty((0, self.columns or 1))
        if self.columns is None:
            self.labels |= isinstance(answers[0], (str, Element))
        try:
            listed = np.ravel(answers).tolist() if isinstance(answers, np.ndarray) else answers
            values = [[self.class_number(label)] for label in listed] if self.labels else answers
            numbers = np.array(values, dtype=np.float64).reshape(len(answers), -1)
        except (TypeError, ValueError):
            raise InputError(f"predict must return numbers of one shape, or labels; got {answers[:3]!r}") from None
        self.columns = self.columns or numbers.shape[1]
        if numbers.shape[1] != self.columns:
            got = f"shape {list(numbers.shape)} after K = {self.columns}"
            raise InputError(f"predict must return [R] or [R, K] with the same K in every call; got {got}")
        return numbers

    def class_number(self, label: Any) -> int:
        """The number of a label; a new one for a label that was not seen before. Elements are 0, 1, …, others < 0."""
        if isinstance(label, Element):
            return int(label)
        number = self._classes.setdefault(label, len(self._classes))
        if number == len(self.classes):
            self.classes.append(label)
        return -1 - number if self.names_places else number

    def class_name(self, number: int) -> str:
        if self.names_places and self.labels:
            return f"element {number}" if number >= 0 else str(self.classes[-1 - number])
        return str(self.classes[number]) if 0 <= number < len(self.classes) else str(number)

    # Blocks
    def _batch_rows(self, size: int) -> int:
        """The number of rows of a call whose largest set is of this size; one row is always taken whole."""
        if self.batch_size is not None or self.form == "single":
            return self.batch_size or 1
        row = max(self.sets.width or size, 1) * max(self.sets.features, _ORDERING_NUMBERS)
        return min(max(1, _NUMBERS // row), _ROWS)

    def block_rows(self, size: int) -> int:
        """The number of rows of a block, which is several calls if they run side by side or are small."""
        calls = 1 if self.numeric and self._pool is None else 4 * self._concurrency
        return calls * self._batch_rows(size)

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
        self.whole = self.labels or bool((given == np.round(given)).all())
        self.threshold = 0.5 if ((given >= 0) & (given <= 1)).all() else 0.0

    def class_of(self, outputs: np.ndarray) -> np.ndarray:
        """The predicted class numbers ``[R]``; anything for answers that were not read."""
        outputs = np.nan_to_num(outputs)
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
        if self.names_places:
            pairs = zip(values[:, 0].tolist(), self.sizes, strict=True)
            elements = [self._undone(value, np.arange(size)) for value, size in pairs]
            return np.array([self.class_number(e) if self.labels else int(e) for e in elements])
        if self.labels and not self.knows_classes:
            return np.array([self.class_number(value) for value in values[:, 0].tolist()])
        if self.columns == 1 and self.whole and not text and not self.labels:  # predict returns class numbers itself
            return values[:, 0].astype(np.int64)
        allowed = self.classes if self.knows_classes or text else range(max(self.columns or 0, 2))
        numbers = {value: number for number, value in enumerate(allowed)}
        if unknown := [value for value in values[:, 0].tolist() if value not in numbers]:
            raise InputError(f"labels must be of the classes {list(allowed)[:9]}; got {unknown[:5]}")
        return np.array([numbers[value] for value in values[:, 0].tolist()])


class Element(int):
    """The answer that an element is the one, by its place in the given order."""


def place_named(answer: Any) -> int | None:
    """The place that a whole number (from 0) or a letter (from A) names.

    >>> place_named(1), place_named("B"), place_named(" b"), place_named("tie")
    (1, 1, 1, None)
    """
    if isinstance(answer, str):
        letter = answer.strip().upper()
        return ord(letter) - ord("A") if len(letter) == 1 and "A" <= letter <= "Z" else None
    if isinstance(answer, (int, float)) and int(answer) == answer:
        return int(answer)
    return None


async def _awaited(output: Any) -> Any:
    return await output


def _is_estimator(predict: Any) -> bool:
    return hasattr(predict, "predict_proba") or hasattr(predict, "predict")


def _adapted(predict: Any, listed: bool) -> tuple[Callable[..., Any], str]:
    """The call and what it takes: "padded" (elements, lengths), "exact" (sets of one size) or a "list"."""
    if isinstance(predict, Recurrence):
        return partial(_end_states, predict), "padded"
    if isinstance(predict, nn.Module):
        if _takes_lengths(unwrapped(predict).forward):
            return lambda x, n, **static: predict(*tensors_for(predict, x, n), **static), "padded"
        return lambda x, **static: predict(tensors_for(predict, x)[0], **static), "exact"
    if _is_estimator(predict):
        return getattr(predict, "predict_proba", None) or predict.predict, "list"
    if hasattr(predict, "run") and hasattr(predict, "get_inputs"):
        return _onnx_call(predict)
    if not callable(predict) or isinstance(predict, type):
        raise InputTypeError(
            "predict must be a function of (elements, lengths), a torch module, a recurrence, an estimator or an "
            f"ONNX session; got {predict!r}"
        )
    return predict, "padded" if _takes_lengths(predict) else "list" if listed else "exact"


def _end_states(model: Recurrence, elements: Any, lengths: Any) -> Tensor:
    """The states ``[B, S]`` of a recurrence after these sets."""
    leaves = tree_leaves(model.scan_encoded(*tensors_for(model, elements, lengths)).last)
    return torch.cat([leaf.flatten(1) for leaf in leaves], dim=1)


def recurrence_of(predict: Any) -> tuple[Recurrence, Any] | None:
    """The recurrence that a predictor is, has or belongs to, and its owner: itself, or a model with ``encode``."""
    for owner in owners_of(predict):
        inside = getattr(owner, "recurrence", None) if hasattr(owner, "encode") else owner
        if isinstance(inside, Recurrence):
            return inside, owner
    return None


def _takes_lengths(function: Callable[..., Any]) -> bool:
    """Whether a function takes lengths too, by name or as a second needed argument."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    own = [p for p in parameters.values() if p.name != "static"]
    needed = [p for p in own if p.kind <= p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    many = len(needed) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    return many or "lengths" in parameters


def tensors_for(module: nn.Module, elements: Any, lengths: Any = None) -> tuple[Tensor, Tensor | None]:
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
        full = np.full(len(elements), elements.shape[1]) if lengths is None else lengths
        return session.run(None, dict(zip(inputs, map(np.asarray, (elements, full)), strict=False)))[0]

    return run, "exact" if len(inputs) == 1 else "padded"
