"""Any predictor as one function: rows of sets in, numbers ``[R, K]`` out.

A predictor may be a torch module, a recurrence, an estimator with ``predict_proba`` or ``predict``, an ONNX
session, or a function of ``(elements, lengths)`` or of ``elements`` alone. It gets the kind of array that was
given (numpy or torch, its dtype and device), always a fresh copy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, checked_lengths
from anyorder.data.sets import join
from anyorder.recurrences.base import Recurrence, owners_of, recurrence
from anyorder.recurrences.trajectory import tree_leaves


def recurrence_of(predict: Any) -> nn.Module | None:
    """The recurrence a predictor is, or the model with ``recurrence`` and ``encode`` that it is, has or belongs to."""
    for owner in owners_of(predict):
        has_one = isinstance(getattr(owner, "recurrence", None), Recurrence) and hasattr(owner, "encode")
        if isinstance(owner, Recurrence) or has_one:
            return owner
    return None


def in_layout(predict: Any, elements: Any) -> tuple[Any, Any]:
    """A torch module as its recurrence, and elements that it reads time first as ``[N, T, D]``."""
    predict = recurrence(predict) if isinstance(predict, nn.RNNBase) else predict
    time_first = isinstance(predict, Recurrence) and not predict.batch_first
    return predict, elements.swapaxes(0, 1) if time_first and getattr(elements, "ndim", 0) == 3 else elements


def says_regressor(predict: Any) -> bool:
    """Whether a predictor is a scikit-learn estimator, or a method of one, that says it is a regressor."""
    owner = getattr(predict, "__self__", predict)
    if isinstance(owner, type) or not hasattr(owner, "__sklearn_tags__"):
        return False
    from sklearn.base import is_regressor

    return is_regressor(owner)


@dataclass(frozen=True)
class Sets:
    """The sets as they were given, and ``sizes [N]``.

    An array stays ``elements [N, T, D]`` (numpy or torch). A list of arrays is kept flat, ``elements [total, D]``,
    set ``i`` from ``starts[i]`` on, and padded only as far as each batch needs. ``ragged`` tells that lengths were
    given, ``listed`` that the sets came as a list of arrays.
    """

    elements: Any
    sizes: np.ndarray
    ragged: bool
    listed: bool
    starts: np.ndarray | None = None

    @classmethod
    def of(cls, elements: Any, lengths: Any = None) -> Sets:
        if isinstance(elements, (list, tuple)):
            if lengths is not None:
                raise InputError("lengths must be None when elements is a list of arrays: each has its own")
            flat, sizes = join(elements)
            if len(flat) == 0:
                raise InputError(f"elements must hold at least one set with elements; got {len(sizes)} empty sets")
            kind = flat if isinstance(elements[0], Tensor) else flat.numpy()
            return cls(kind, sizes, True, True, np.cumsum(sizes) - sizes)
        if not isinstance(elements, (Tensor, np.ndarray)):
            raise InputTypeError(
                "elements must be a tensor or a numpy array [N, T, D], or a list of arrays [n, D]; "
                f"got {type(elements).__name__}"
            )
        if elements.ndim != 3 or 0 in elements.shape:
            raise InputError(f"elements must have shape [N, T, D], none of them 0; got {list(elements.shape)}")
        count, longest = elements.shape[:2]
        if lengths is None:
            return cls(elements, np.full(count, longest), False, False)
        checked = checked_lengths(lengths, torch.empty(count, longest, 0))
        return cls(elements, checked.numpy(), True, False)  # type: ignore[union-attr]

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def features(self) -> int:
        return int(self.elements.shape[-1])

    @property
    def longest(self) -> int:
        return self.width(int(self.sizes.max()))

    def width(self, size: int) -> int:
        """The length to which a batch is padded whose largest set is of this size."""
        return int(self.elements.shape[1]) if self.starts is None else max(size, 1)

    def take(self, samples: np.ndarray, orders: np.ndarray | None = None) -> Any:
        """A copy ``[R, width, D]`` of these samples, each with its elements in the order of its row of ``orders``.

        ``orders [R, M]`` are of the first M elements; what stands behind a set's own size is padding.
        """
        sizes = self.sizes[samples]
        index = np.tile(np.arange(self.width(int(sizes.max()))), (len(samples), 1))
        if orders is not None:
            index[:, : orders.shape[1]] = orders[:, : index.shape[1]]
        if self.starts is None:
            return self._pick((samples[:, None], index))
        padding = np.arange(index.shape[1]) >= sizes[:, None]
        index += self.starts[samples][:, None]
        index[padding] = 0
        rows = self._pick((index,))
        rows[padding if isinstance(rows, np.ndarray) else torch.as_tensor(padding, device=rows.device)] = 0
        return rows

    def _pick(self, index: tuple[np.ndarray, ...]) -> Any:
        if isinstance(self.elements, np.ndarray):
            return self.elements[index]
        return self.elements.detach()[tuple(torch.as_tensor(i, device=self.elements.device) for i in index)]


class Predictor:
    """``predictor(samples [R], orders [R, T]) -> float64 [R, K]`` on the sets it was made for.

    ``classes``: what the columns stand for, when the predictor knows. ``hard``: it returns classes rather
    than scores; text is turned into one column a class.
    """

    def __init__(self, predict: Any, sets: Sets, classes: Sequence[Any] | None = None) -> None:
        self.sets = sets
        self.hard = False
        self.evaluations = 0
        self.columns: int | None = None
        own_classes = getattr(predict, "classes_", None)
        self.knows_classes = own_classes is not None
        self.classes = list(own_classes) if own_classes is not None else list(classes or [])
        self._call, self._form = self._adapt(predict)
        self._is_function = self._call is predict

    def _adapt(self, predict: Any) -> tuple[Callable[..., Any], str]:
        """The call, and what it takes: "padded" (elements, lengths), "exact" (sets of one size) or "list"."""
        if isinstance(predict, Recurrence):
            return lambda x, n: _flat_state(predict.scan_encoded(*_tensors_for(predict, x, n)).last), "padded"
        if isinstance(predict, nn.Module):
            takes_lengths = _takes_lengths(_unwrapped(predict).forward)
            if takes_lengths:
                return lambda x, n: predict(*_tensors_for(predict, x, n)), "padded"
            return lambda x: predict(_tensors_for(predict, x)[0]), "exact"
        if hasattr(predict, "predict_proba"):
            return predict.predict_proba, "list"
        if hasattr(predict, "predict"):
            self.hard = self.knows_classes
            return predict.predict, "list"
        if hasattr(predict, "run") and hasattr(predict, "get_inputs"):
            return _onnx_call(predict)
        if not callable(predict) or isinstance(predict, type):
            raise InputTypeError(
                "predict must be a function of (elements, lengths), a torch module, a recurrence, an estimator "
                f"with predict, or an ONNX session; got {predict!r}"
            )
        if _takes_lengths(predict):
            return predict, "padded"
        return predict, "list" if self.sets.listed else "exact"

    @property
    def takes_lengths(self) -> bool:
        return self._form != "exact"

    def __call__(self, samples: np.ndarray, orders: np.ndarray | None = None, *, watch: bool = False) -> np.ndarray:
        """Outputs of ``samples`` in the order given by ``orders``; ``watch``: refuse a predictor that writes."""
        elements = self.sets.take(samples, orders)
        sizes = self.sets.sizes[samples]
        before = _copy(elements) if watch else None
        try:
            with torch.no_grad():
                outputs = self._rows(elements, sizes)
        except (InputError, InputTypeError):
            raise
        except Exception as error:
            raise self._explain(error, samples) from error
        if before is not None and not _same(before, elements):
            raise InputError(
                "predict changed its input in place; its answer would depend on what ran before "
                "(let it work on a copy: predict=lambda elements, lengths: f(elements.copy(), lengths))"
            )
        if not np.isfinite(outputs).all():
            row = int((~np.isfinite(outputs)).any(axis=1).argmax())
            where = "as given" if orders is None else f"in the order {orders[row, : sizes[row]].tolist()}"
            raise InputError(f"predict returned NaN or an infinite value for sample {samples[row]} {where}")
        self.evaluations += len(samples)
        return outputs

    def _rows(self, elements: Any, sizes: np.ndarray) -> np.ndarray:
        if self._form == "list":
            ragged = [row[:size] for row, size in zip(elements, sizes.tolist(), strict=True)]
            return self._numbers(self._call(ragged), len(sizes))
        if self._form == "padded":
            lengths: Any = None
            if self.sets.ragged:
                lengths = sizes.copy()
                if isinstance(elements, Tensor):
                    lengths = torch.as_tensor(lengths, device=elements.device)
            return self._numbers(self._call(elements, lengths), len(sizes))
        outputs: np.ndarray | None = None
        for size in np.unique(sizes):
            rows = np.flatnonzero(sizes == size)
            part = elements if len(rows) == len(sizes) else elements[rows]
            numbers = self._numbers(self._call(part[:, : int(size)]), len(rows))
            outputs = np.empty((len(sizes), numbers.shape[1])) if outputs is None else outputs
            outputs[rows] = numbers
        assert outputs is not None
        return outputs

    def _numbers(self, output: Any, rows: int) -> np.ndarray:
        """What predict returned as float64 ``[rows, K]``."""
        if isinstance(output, Tensor):
            output = output.detach().cpu()
            output = (output.float() if output.dtype == torch.bfloat16 else output).numpy()
        try:
            values = np.asarray(output)
        except ValueError:
            raise InputError("predict must return one array [R] or [R, K]; got rows of different shapes") from None
        if values.ndim not in (1, 2) or values.shape[0] != rows or values.size == 0:
            raise InputError(
                f"predict must return an array [R] or [R, K], one row a sample; for {rows} samples it returned "
                f"shape {list(values.shape)}"
            )
        if values.dtype.kind in "USO" or (self.hard and values.ndim == 1):
            values = self._one_column_a_class(values.reshape(rows, -1)[:, 0])
        elif values.dtype.kind not in "biuf":
            raise InputTypeError(f"predict must return numbers or class names; got dtype {values.dtype}")
        values = values.reshape(rows, -1).astype(np.float64)
        if self.columns is None:
            self.columns = values.shape[1]
        if values.shape[1] != self.columns:
            raise InputError(
                f"predict must always return the same number of columns; it returned {self.columns} first "
                f"and then {values.shape[1]}"
            )
        return values

    def _one_column_a_class(self, named: np.ndarray) -> np.ndarray:
        if not self.classes:
            raise InputError("predict returned class names; pass class_names=[...], all it may return")
        index = {name: i for i, name in enumerate(self.classes)}
        self.hard = True
        try:
            return np.eye(len(index))[[index[name] for name in named.tolist()]]
        except KeyError as unknown:
            raise InputError(f"predict returned the class {unknown}, which is not in {self.classes}") from None

    def _explain(self, error: Exception, samples: np.ndarray) -> InputError:
        """Say whether predict fails on every set or only on the small ones."""
        cause = f"{type(error).__name__}: {error}"
        samples = np.append(samples, self.sets.sizes.argmax())
        sizes = self.sets.sizes[samples]
        distinct = np.unique(sizes)
        works = []
        for size in distinct:
            try:
                with torch.no_grad():
                    one = samples[sizes == size][:1]
                    self._rows(self.sets.take(one), self.sets.sizes[one])
                works.append(size)
            except Exception:
                continue
        if works and len(works) < len(distinct):
            needs = min(works)
            failed = sorted(set(distinct.tolist()) - set(works))
            hint = (
                f"it works from {needs} elements on; leave smaller sets out"
                if max(failed) < needs
                else ("leave those out")
            )
            return InputError(f"predict failed on sets of size {_join(failed)} ({cause}); {hint}")
        hint = ""
        if self._form == "list" and self._is_function:
            hint = (
                "; it was given a list of arrays [n, D], as the sets came: let it take (elements, lengths), or pass "
                "elements and lengths (anyorder.pad makes them of a list), and it gets arrays"
            )
        return InputError(f"predict failed on sets of size {_join(distinct.tolist())} ({cause}){hint}")


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module behind torch.compile or a data-parallel wrapper, whose own forward takes anything."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while hasattr(module, "_orig_mod") or isinstance(module, parallel):
        module = module.module if isinstance(module, parallel) else module._orig_mod  # type: ignore[assignment]
    return module


def _takes_lengths(function: Callable[..., Any]) -> bool:
    """Whether a function of the elements also takes their lengths, by name or as a second needed argument."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    if "lengths" in parameters:
        return True
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    return len(needed) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters.values())


def _tensors_for(module: nn.Module, elements: Any, lengths: Any = None) -> tuple[Tensor, Tensor | None]:
    """``elements`` as the module's parameters want them, when they came as numpy, and ``lengths`` beside them."""
    tensor = torch.as_tensor(elements)
    parameter = next(module.parameters(), None)
    if not isinstance(elements, Tensor) and parameter is not None and tensor.is_floating_point():
        tensor = tensor.to(parameter.device, parameter.dtype)
    return tensor, None if lengths is None else torch.as_tensor(lengths, device=tensor.device)


def _flat_state(state: Any) -> Tensor:
    return torch.cat([leaf.reshape(leaf.shape[0], -1) for leaf in tree_leaves(state)], dim=1)


def _onnx_call(session: Any) -> tuple[Callable[..., Any], str]:
    inputs = [node.name for node in session.get_inputs()]
    if "state_0" in inputs:
        part = "one step" if "element" in inputs else "the read-out"
        raise InputError(
            f"this ONNX session is {part} of an exported recurrence (it takes {', '.join(inputs)}) and reads no whole "
            "set; pass the model itself (anyorder.load of its folder), or a function of (elements, lengths) that runs "
            "the step over a set's elements and then the read-out"
        )

    def numpy(value: Any) -> Any:
        return value.detach().cpu().numpy() if isinstance(value, Tensor) else value

    def run(elements: Any, lengths: Any = None) -> Any:
        given = [elements] if len(inputs) == 1 else [elements, lengths]
        if len(given) == 2 and lengths is None:
            given[1] = np.full(len(elements), elements.shape[1], dtype=np.int64)
        return session.run(None, dict(zip(inputs, map(numpy, given), strict=True)))[0]

    if len(inputs) > 2:
        raise InputError(f"an ONNX session must take elements, or elements and lengths; it takes {inputs}")
    return run, "exact" if len(inputs) == 1 else "padded"


def _copy(elements: Any) -> Any:
    return elements.clone() if isinstance(elements, Tensor) else elements.copy()


def _same(one: Any, other: Any) -> bool:
    """Equal, NaN counting as equal to itself (padding and missing values may be NaN)."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _join(sizes: list[int]) -> str:
    shown = ", ".join(map(str, sizes[:8]))
    return shown if len(sizes) <= 8 else f"{shown} and {len(sizes) - 8} more"
