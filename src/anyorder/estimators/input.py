"""What a user brings to an estimator, as sets: arrays, tensors, lists of either or of DataFrames."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from anyorder.checks import InputError, InputTypeError
from anyorder.data.sets import SetData


def as_sets(X: Any, embeds: bool) -> SetData:
    """Sets from what a user brings, in scikit-learn's words where the fault is one it knows.

    Elements are int64 if they are to be embedded, else float32 if they were, else float64.
    """
    if isinstance(X, SetData):
        data = SetData(X.elements, X.offsets)
    elif isinstance(X, Tensor):
        data = SetData.of(X)
    elif _is_list_of_sets(X):
        data = SetData.of([_in_full(part) for part in X])
    else:
        array = check_array(X, allow_nd=True, dtype="numeric", input_name="X")
        data = SetData.of(array)
    _refuse(~torch.isfinite(data.elements), data, InputError, "X contains NaN or infinity in {}")
    if embeds and data.elements.is_floating_point():
        fractions = data.elements != data.elements.round()
        _refuse(fractions, data, InputTypeError, "an embedding reads whole numbers; X holds a fraction in {}")
    dtype = torch.int64 if embeds else torch.float32 if data.elements.dtype == torch.float32 else torch.float64
    return dataclasses.replace(data, elements=data.elements.to(dtype))


def _in_full(part: Any) -> Any:
    """A set of Python's own numbers with all their digits, which torch's default dtype does not hold."""
    try:
        return np.asarray(part) if isinstance(part, (list, tuple)) else part
    except (TypeError, ValueError):  # for SetData to refuse
        return part


def _refuse(faults: Tensor, data: SetData, error: type[Exception], words: str) -> None:
    """Raise ``error``, saying where the first fault is, if there is one."""
    if bool(faults.any()):
        row = int(faults.any(1).nonzero()[0])
        sample = int(torch.searchsorted(data.offsets, row, right=True)) - 1
        raise error(words.format(f"set {sample}, at element {row - int(data.offsets[sample])}"))


def _is_list_of_sets(X: Any) -> bool:
    if isinstance(X, np.ndarray):
        return X.dtype == object and X.ndim == 1 and len(X) > 0 and np.ndim(X[0]) > 0
    return isinstance(X, Sequence) and not isinstance(X, (str, bytes)) and len(X) > 0 and np.ndim(X[0]) > 0


def column_names(X: Any) -> list[str] | None:
    """The names of the columns where the sets are DataFrames, the same in all; None where there are none.

    As in scikit-learn, columns are named if every name is a text.

    >>> import pandas as pd
    >>> column_names([pd.DataFrame({"a": [1.0], "b": [2.0]}), np.ones((3, 2))])
    ['a', 'b']
    """
    if not _is_list_of_sets(X):
        return None
    named = [(index, [*getattr(part, "columns", ())]) for index, part in enumerate(X)]
    named = [(index, names) for index, names in named if names and all(isinstance(name, str) for name in names)]
    for index, names in named:
        require_same_columns(f"set {named[0][0]}", named[0][1], f"set {index}", names)
    return named[0][1] if named else None


def require_same_columns(one: str, names: Sequence[str], other: str, others: Sequence[str]) -> None:
    """Refuse columns of other names, or in another order: a model knows them by their places."""
    if [*names] == [*others]:
        return
    same = "in another order" if sorted(names) == sorted(others) else "with other names"
    raise InputError(
        f"the columns of {other} are {_shown(others)}, {same} than those of {one}, {_shown(names)}; bring them into "
        "one order (frame[names])"
    )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
