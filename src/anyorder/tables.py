"""Ragged sets in memory, and how long tables become them.

A long table has one row an element, a column that says which set the row belongs to, and feature columns.
It is read in blocks, so memory stays proportional to the numbers kept, not to the text of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from anyorder._checks import InputError, InputTypeError, one_of, real_number
from anyorder._columns import Columns, Feature, column_names
from anyorder._names import MISSING, TASKS
from anyorder.ragged import _as_set


@dataclass(frozen=True, eq=False)
class SetData:
    """Many sets of different sizes, kept flat: set ``i`` is ``elements[offsets[i]:offsets[i + 1]]``.

    ``elements [total, D]``, ``offsets [N + 1]`` int64, ``targets [N]`` or ``[N, K]``, ``weights [N]``.

    >>> data = SetData.of([[1.0, 2.0, 3.0], [4.0]], y=[0, 1])
    >>> elements, lengths = data.batch([1, 0])
    >>> elements[:, :, 0].tolist(), lengths.tolist(), data.targets.tolist()
    ([[4.0, 0.0, 0.0], [1.0, 2.0, 3.0]], [1, 3], [0, 1])
    """

    elements: Tensor
    offsets: Tensor
    targets: Tensor | None = None
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if self.elements.dim() != 2 or self.elements.shape[1] == 0:
            raise InputError(f"elements must have shape [total, D] with D at least 1; got {list(self.elements.shape)}")
        if self.offsets.dtype != torch.int64 or self.offsets.dim() != 1 or len(self.offsets) < 2:
            raise InputError(
                "offsets must be int64 of shape [N + 1] with N at least 1; "
                f"got {self.offsets.dtype} of shape {list(self.offsets.shape)}"
            )
        first, last, least = int(self.offsets[0]), int(self.offsets[-1]), int(self.offsets.diff().min())
        if first != 0 or last != len(self.elements) or least < 0:
            raise InputError(
                f"offsets must rise from 0 to {len(self.elements)}, the number of elements; "
                f"got {first} to {last}, smallest step {least}"
            )
        for name, values in (("targets", self.targets), ("weights", self.weights)):
            if values is not None and len(values) != len(self):
                raise InputError(f"{name} must hold one row a set, {len(self)}; got {len(values)}")

    @classmethod
    def of(cls, X: Any, y: Any = None, weights: Any = None, *, dtype: torch.dtype | None = None) -> SetData:
        """Sets from a list of arrays ``[n_i, D]``, an array ``[N, T, D]``, or ``[N, T]`` (sets of numbers).

        A SetData is taken as it is, with ``y`` and ``weights`` replaced where given. ``dtype`` converts the
        elements; None keeps theirs.
        """
        if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1:
            X = list(X)
        if isinstance(X, SetData):
            elements, offsets = X.elements, X.offsets
            y = X.targets if y is None else y
            weights = X.weights if weights is None else weights
        elif isinstance(X, Sequence) and not isinstance(X, (str, bytes)):
            elements, offsets = _flat(X)
        else:
            elements, offsets = _flat_block(X)
        elements = elements if dtype is None else elements.to(dtype)
        return cls(elements, offsets, _as_rows("y", y), _as_rows("weights", weights))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """The size of each set, ``[N]`` int64."""
        return self.offsets.diff()

    @cached_property
    def common_length(self) -> int | None:
        """The size of every set if all are equal, else None."""
        low, high = int(self.lengths.min()), int(self.lengths.max())
        return low if low == high else None

    def select(self, index: Any) -> SetData:
        """The sets at ``index`` (whole numbers, negative ones counted from the end, or a mask), in that order."""
        index = self._as_index(index)
        lengths = self.lengths[index]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        rows = torch.repeat_interleave(self.offsets[index] - offsets[:-1], lengths)
        rows += torch.arange(len(rows), device=rows.device)
        return SetData(
            self.elements.index_select(0, rows),
            offsets,
            None if self.targets is None else self.targets[index],
            None if self.weights is None else self.weights[index],
        )

    def batch(self, index: Any) -> tuple[Tensor, Tensor | None]:
        """``elements [B, T, D]`` padded with zeros to the longest of these sets, and ``lengths [B]``.

        ``lengths`` is None when these sets are all of one size.
        """
        index = self._as_index(index)
        features = self.elements.shape[1]
        if self.common_length is not None:
            block = self.elements.view(len(self), self.common_length, features)
            return block.index_select(0, index), None
        lengths = self.lengths[index]
        shortest, longest = (int(v) for v in lengths.aminmax())
        position = torch.arange(longest, device=lengths.device)
        rows = self.offsets[index][:, None] + position
        if shortest == longest:
            return self.elements.index_select(0, rows.flatten()).view(len(index), longest, features), None
        padding = position >= lengths[:, None]
        rows = rows.masked_fill_(padding, 0)
        elements = self.elements.index_select(0, rows.flatten()).view(len(index), longest, features)
        return elements.masked_fill_(padding[:, :, None], 0), lengths

    def to(self, device: torch.device | str) -> SetData:
        """The same sets on another device."""
        targets = None if self.targets is None else self.targets.to(device)
        weights = None if self.weights is None else self.weights.to(device)
        return SetData(self.elements.to(device), self.offsets.to(device), targets, weights)

    def _as_index(self, index: Any) -> Tensor:
        index = torch.as_tensor(index, device=self.offsets.device)
        count = len(self)
        if index.dtype == torch.bool:
            if index.shape != (count,):
                raise InputError(f"a mask must have shape [{count}], one value a set; got {list(index.shape)}")
            index = index.nonzero()[:, 0]
        if index.numel() == 0:
            raise InputError("index must name at least one set; got none")
        if index.is_floating_point():
            raise InputTypeError(f"index must be whole numbers or a mask; got dtype {index.dtype}")
        index = index.to(torch.int64)
        low, high = (int(v) for v in index.aminmax())
        if low < -count or high >= count:
            raise InputError(
                f"index must be from {-count} to {count - 1}, of {count} sets; got {low if low < -count else high}"
            )
        return index if low >= 0 else index.remainder(count)


def _as_rows(name: str, rows: Any) -> Tensor | None:
    """A tensor of what was given; a list of Python's floats becomes torch's default dtype."""
    try:
        if rows is not None and not isinstance(rows, (Tensor, list, tuple)):
            rows = np.require(rows, requirements=["C", "W"])
        return None if rows is None else torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"{name} must hold numbers, one row a set; got {type(rows).__name__}: {error}") from None


def _flat(sets: Sequence[Any]) -> tuple[Tensor, Tensor]:
    if len(sets) == 0:
        raise InputError("there must be at least one set; got an empty list")
    arrays = [_as_set(array, index) for index, array in enumerate(sets)]
    filled = [(i, a) for i, a in enumerate(arrays) if len(a)]
    for i, array in filled:
        if array.shape[1] != filled[0][1].shape[1]:
            raise InputError(
                f"every set must have the same number of features; set {filled[0][0]} has "
                f"{filled[0][1].shape[1]}, set {i} has {array.shape[1]}"
            )
    lengths = torch.tensor([0, *(len(a) for a in arrays)], dtype=torch.int64)
    elements = torch.cat([a for _, a in filled]) if filled else arrays[0]
    return elements, lengths.cumsum(0).to(elements.device)


def _flat_block(block: Any) -> tuple[Tensor, Tensor]:
    try:
        block = block if isinstance(block, Tensor) else torch.as_tensor(np.require(block, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            f"X must be a list of arrays [n, D], an array [N, T, D] or [N, T]; got {type(block).__name__}: {error}"
        ) from None
    if block.dim() == 2:
        block = block[:, :, None]
    if block.dim() != 3 or block.shape[0] == 0:
        raise InputError(f"X must have shape [N, T, D] or [N, T] with at least one set; got {list(block.shape)}")
    sets, size, features = block.shape
    return block.reshape(sets * size, features), torch.arange(sets + 1, device=block.device) * size


@dataclass(frozen=True)
class TableSchema:
    """What was learnt from a training table, so that another table can be read the same way.

    ``classes`` are the target's values in the order of the class numbers, None for regression.
    """

    set_id: str
    features: tuple[Feature, ...]
    target: str | None = None
    order: str | None = None
    missing: str = "error"
    task: str | None = None
    classes: tuple[Any, ...] | None = None

    @property
    def width(self) -> int:
        """D, the number of columns after encoding."""
        return sum(feature.width for feature in self.features)

    def to_dict(self) -> dict[str, Any]:
        """The schema as JSON values; :meth:`from_dict` undoes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableSchema:
        """The schema that :meth:`to_dict` wrote; anything else is refused."""
        try:
            features = tuple(
                Feature(
                    name=str(f["name"]),
                    kind=one_of("kind", f["kind"], ("number", "category")),
                    mean=real_number("mean", f["mean"]),
                    scale=real_number("scale", f["scale"], above=0),
                    categories=tuple(str(c) for c in f["categories"]),
                )
                for f in values["features"]
            )
            task, classes = one_of("task", values["task"], (None, *TASKS)), values["classes"]
            if (classes is not None) != (task == "classification"):
                raise InputError(f"task {task!r} does not go with classes {classes!r}")
            if classes is not None and not all(isinstance(c, (str, int, float)) for c in list(classes)):
                raise InputError("classes must be names or numbers")
            return cls(
                set_id=str(values["set_id"]),
                features=features,
                target=None if values["target"] is None else str(values["target"]),
                order=None if values["order"] is None else str(values["order"]),
                missing=one_of("missing", values["missing"], MISSING),
                task=task,
                classes=None if classes is None else tuple(classes),
            )
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"this is not a table schema of anyorder: {str(error)[:200]}") from None

    @property
    def column_names(self) -> list[str]:
        """A name for each of the D columns: the feature's own, or ``feature=category``.

        >>> drug = Feature("drug", "category", categories=("x", "y"))
        >>> TableSchema("patient", (Feature("dose", "number"), drug)).column_names
        ['dose', 'drug=x', 'drug=y']
        """
        return [
            name
            for feature in self.features
            for name in ([f"{feature.name}={c}" for c in feature.categories] or [feature.name])
        ]

    def read(self, source: Any, *, with_target: bool | None = False, progress: bool | None = None) -> Table:
        """Read another table with the same columns; its target is ignored unless asked for (None: if it is there).

        Every set of the table stays, even one whose rows were all dropped (it is then empty).
        """
        if with_target is None:
            with_target = self.target in column_names(source)
        columns = self._gather(source, self.set_id, self.target if with_target else None, self.order, progress)
        return _table(columns, self)

    def encode(self, rows: Any) -> Tensor:
        """Rows (a DataFrame, or a mapping of columns) as elements ``[n, D]``, for a stream of events."""
        elements, _ = self._gather(rows, None, None, None, False).encoded(self.features, None)
        return torch.from_numpy(elements)

    def decode(self, elements: Any) -> np.ndarray:
        """Elements ``[n, D]`` as they stood in the table, a column a feature: its number, or its category's name.

        >>> drug = Feature("drug", "category", categories=("x", "y"))
        >>> schema = TableSchema("patient", (Feature("dose", "number", mean=5.0, scale=2.0), drug))
        >>> schema.decode([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]).tolist()  # the second: of no category it knows
        [[7.0, 'y'], [5.0, '–']]
        """
        values = np.asarray(elements, dtype=np.float64)
        rows = np.empty((len(values), len(self.features)), dtype=object)
        at = 0
        for column, feature in enumerate(self.features):
            block = values[:, at : at + feature.width]
            if feature.kind == "number":
                rows[:, column] = feature.mean + feature.scale * block[:, 0]
            else:
                names = np.array([*feature.categories, "–"], dtype=object)
                rows[:, column] = names[np.where(block.any(axis=1), block.argmax(axis=1), -1)]
            at += feature.width
        return rows

    def _gather(
        self, source: Any, set_id: str | None, target: str | None, order: str | None, progress: bool | None
    ) -> Columns:
        kinds = {feature.name: feature.kind for feature in self.features}
        columns = Columns(source, set_id, target, order, [*kinds], kinds, self.missing, progress)
        if target is not None:
            columns.label(self.task, self.classes)
        return columns


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read: the sets, the schema, each set's own id, and what had to be mended."""

    data: SetData
    schema: TableSchema
    set_ids: pa.Array
    unseen: dict[str, int]  # feature -> rows whose category the schema does not know (encoded as all zeros)
    dropped: int  # rows left out by missing="drop-row"


def read_table(
    source: Any,
    *,
    set_id: str,
    target: str | None = None,
    order: str | None = None,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    missing: str = "error",
    task: str | None = None,
    progress: bool | None = None,
) -> tuple[SetData, TableSchema]:
    """Read a long table (CSV, Parquet, npz, or a DataFrame) into sets, and say how it was encoded.

    Rows of one ``set_id`` form a set, in the order of the ``order`` column (else of the rows). ``features``
    defaults to every other column: numbers are standardised, text and ``categorical`` columns become one 0/1
    column a category. ``missing``: "error", "drop-row", "mean", or "zero". A text or boolean ``target`` means
    classification and a float one regression; otherwise ``task`` decides. ``progress=None`` shows a bar on a
    terminal.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"day": [1, 1, 2], "load": [1.0, 3.0, 2.0], "sort": ["a", "b", "a"], "ok": ["y", "y", "n"]})
    >>> data, schema = read_table(rows, set_id="day", target="ok")
    >>> data.lengths.tolist(), data.targets.tolist(), schema.classes, data.elements.shape
    ([2, 1], [1, 0], ('n', 'y'), torch.Size([3, 3]))
    """
    table = learn_table(
        source,
        set_id=set_id,
        target=target,
        order=order,
        features=features,
        categorical=categorical,
        missing=missing,
        task=task,
        progress=progress,
    )
    return table.data, table.schema


def learn_table(
    source: Any,
    *,
    set_id: str,
    target: str | None = None,
    order: str | None = None,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    missing: str = "error",
    task: str | None = None,
    progress: bool | None = None,
) -> Table:
    """:func:`read_table` with all that was found: set ids, rows dropped."""
    one_of("missing", missing, MISSING)
    if task is not None:
        one_of("task", task, TASKS)
    set_id = str(set_id)  # a DataFrame may name its columns by numbers; read, they are text
    target, order = (None if name is None else str(name) for name in (target, order))
    features = None if features is None else [str(name) for name in features]
    kinds = {str(name): "category" for name in categorical}
    columns = Columns(source, set_id, target, order, features, kinds, missing, progress)
    if columns.rows == 0:
        raise InputError(f"every row of {columns.source} has a missing value; drop-row leaves nothing to learn from")
    learnt = tuple(columns.learn(name) for name in columns.names)
    found, classes = (None, None) if target is None else columns.label(task, None)
    table = _table(columns, TableSchema(set_id, learnt, target, order, missing, found, classes))
    keep = table.data.lengths > 0
    if bool(keep.all()):
        return table
    ids = table.set_ids.filter(pa.array(keep.numpy()))
    return Table(table.data.select(keep), table.schema, ids, table.unseen, table.dropped)


def _table(columns: Columns, schema: TableSchema) -> Table:
    """Group the rows gathered into sets: by id, then by the order column, ties as in the table."""
    sets, ids = columns.set_numbers()
    order = columns.order_keys()
    rank = None
    if order is not None or bool((sets[1:] < sets[:-1]).any()):
        rows = np.argsort(sets, kind="stable") if order is None else np.lexsort((order, sets))
        rank = np.empty_like(rows)
        rank[rows] = np.arange(len(rows))
        sets = sets[rows]
    lengths = np.bincount(sets, minlength=len(ids))
    offsets = np.concatenate([[0], lengths.cumsum()])
    targets = None
    if columns.labels is not None:
        labels = columns.labels if rank is None else columns.labels[rows]
        of_set = np.zeros(len(ids), dtype=labels.dtype)
        of_set[lengths > 0] = labels[offsets[:-1][lengths > 0]]
        varies = labels != of_set[sets]
        if varies.any():
            at = sets[int(varies.argmax())]
            raise InputError(
                f"target {schema.target!r} must be the same in every row of a set; it varies inside set "
                f"{ids[at].as_py()!r} ({schema.set_id} column): give each set one target"
            )
        targets = torch.from_numpy(of_set if schema.classes else of_set.astype(np.float64))
    elements, unseen = columns.encoded(schema.features, rank)
    data = SetData(torch.from_numpy(elements), torch.from_numpy(offsets), targets)
    return Table(data, schema, ids, unseen, columns.dropped)
