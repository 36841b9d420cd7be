"""Ragged sets in memory, and how long tables become them.

A long table has one row an element, a column that says which set the row belongs to, and feature columns.
It is read in blocks, so memory stays proportional to the numbers kept, not to the text of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from anyorder.checks import InputError, one_of, real_number
from anyorder.data.sets import SetData
from anyorder.estimators.columns import Columns, Feature, column_names

TASKS = ("classification", "regression")
MISSING = ("error", "drop-row", "mean", "zero")


@dataclass(frozen=True)
class TableSchema:
    """What was learnt from a training table, so that another table can be read the same way.

    ``classes`` are the target's values in the order of the class numbers, None for regression.
    """

    set_id: str
    features: tuple[Feature, ...]
    target: str | None = None
    time: str | None = None
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
                time=None if values["time"] is None else str(values["time"]),
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
        columns = self._gather(source, self.set_id, self.target if with_target else None, self.time, progress)
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
    time: str | None = None,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    missing: str = "error",
    task: str | None = None,
    progress: bool | None = None,
) -> tuple[SetData, TableSchema]:
    """Read a long table (CSV, Parquet, npz, or a DataFrame) into sets, and say how it was encoded.

    Rows of one ``set_id`` form a set, in the order of the ``time`` column (else of the rows). ``features``
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
        time=time,
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
    time: str | None = None,
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
    target, time = (None if name is None else str(name) for name in (target, time))
    features = None if features is None else [str(name) for name in features]
    kinds = {str(name): "category" for name in categorical}
    columns = Columns(source, set_id, target, time, features, kinds, missing, progress)
    if columns.rows == 0:
        raise InputError(f"every row of {columns.source} has a missing value; drop-row leaves nothing to learn from")
    learnt = tuple(columns.learn(name) for name in columns.names)
    found, classes = (None, None) if target is None else columns.label(task, None)
    table = _table(columns, TableSchema(set_id, learnt, target, time, missing, found, classes))
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
