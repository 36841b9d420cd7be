"""Long tables as sets: frames and files in, :class:`SetData` and a schema that reads the next table out.

A long table has one row an element, a column that names the row's set, and feature columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from anyorder.checks import InputError, one_of, real_number
from anyorder.data.sets import SetData
from anyorder.files import table_ending

TASKS = ("classification", "regression")
MISSING = ("error", "drop-row", "mean", "zero")
MOST_CATEGORIES = 1000
_ROW_NUMBERS = {"", "__index_level_0__"}  # the names that pandas gives them in CSV and Parquet
Columns = dict[str, pa.Array]  # the columns of a table by name


@dataclass(frozen=True)
class Feature:
    """How one column becomes numbers: ``(value - mean) / scale``, or one 0/1 column a category."""

    name: str
    kind: str  # "number" or "category"
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return 1 if self.kind == "number" else len(self.categories)

    @classmethod
    def learn(cls, name: str, values: pa.Array) -> Feature:
        """The feature of a training column, whose values are float64 or string (:func:`_values`)."""
        values = values.drop_null()
        if pa.types.is_string(values.type):
            known = sorted(values.unique().to_pylist())
            if not 0 < len(known) <= MOST_CATEGORIES:
                raise InputError(
                    f"feature {name!r} is text with {len(known)} different values; a category has 1 to "
                    f"{MOST_CATEGORIES} (leave it out of the features, or turn it into numbers)"
                )
            return cls(name, "category", categories=tuple(known))
        with warnings.catch_warnings(action="ignore"):
            mean, scale = float(np.mean(values)), float(np.std(values))
        if not np.isfinite(scale):
            raise InputError(f"feature {name!r} has no numbers, infinite ones, or some beyond 1e150; leave it out")
        return cls(name, "number", mean, scale if scale > 1e-12 * max(abs(mean), 1e-300) else 1.0)

    def encode(self, values: pa.Array, missing: str) -> tuple[np.ndarray, int]:
        """Columns ``[rows, width]``, and the number of rows whose category is unknown (all zeros)."""
        if self.kind == "number":
            column = (values.to_numpy(zero_copy_only=False) - self.mean) / self.scale
            gap = -self.mean / self.scale if missing == "zero" else 0.0
            return np.where(np.isnan(column), gap, column)[:, None], 0
        codes = pd.Index(self.categories).get_indexer(pd.Index(values.to_pandas()))
        unseen = (codes < 0) & ~values.is_null().to_numpy(zero_copy_only=False)
        return codes[:, None] == np.arange(self.width), int(unseen.sum())


@dataclass(frozen=True)
class TableSchema:
    """What was learnt from a training table, to read another table the same way.

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
        """The schema that :meth:`to_dict` wrote."""
        try:
            features = tuple(Feature(**{**f, "categories": tuple(f["categories"])}) for f in values["features"])
            for feature in features:
                one_of("kind", feature.kind, ("number", "category"))
                real_number("mean", feature.mean)
                real_number("scale", feature.scale, above=0)
            one_of("task", values["task"], TASKS if values["target"] else (None,))
            one_of("missing", values["missing"], MISSING)
            classes = tuple(values["classes"]) if values["task"] == "classification" else None
            hash(classes)  # names and numbers; not lists
            return cls(**{**values, "features": features, "classes": classes})
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"this is not a table schema of anyorder: {str(error)[:200]}") from None

    def read(self, source: Any, *, with_target: bool | None = False) -> Table:
        """Another table with the same columns. ``with_target=None`` reads the target if it is there.

        Every set of the table stays. A set whose rows were all dropped is empty.
        """
        if with_target is None:
            with_target = self.target in column_names(source)
        target = self.target if with_target else None
        features = [feature.name for feature in self.features]
        table = _read(source, {"set_id": self.set_id, "time": self.time, "target": target}, features)
        return _sets(table, self, target, source)

    def encode(self, rows: Any) -> Tensor:
        """Rows (a frame, or a mapping of columns) as elements ``[n, D]``, for a stream of events."""
        table = _read(rows, {}, [feature.name for feature in self.features])
        elements, keep, _ = _elements(table, self, rows)
        return torch.from_numpy(elements[keep])

    def decode(self, elements: Any) -> np.ndarray:
        """Elements ``[n, D]`` as they stood in the table: a column a feature, its number or its category.

        >>> drug = Feature("drug", "category", categories=("x", "y"))
        >>> schema = TableSchema("patient", (Feature("dose", "number", mean=5.0, scale=2.0), drug))
        >>> schema.decode([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]).tolist()  # the second has an unknown category
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


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read: the sets, the schema, each set's own id, and what had to be mended."""

    data: SetData
    schema: TableSchema
    set_ids: pa.Array
    unseen: dict[str, int]  # feature -> rows whose category the schema does not know (encoded as all zeros)
    dropped: int  # rows left out by missing="drop-row"


def read_table(source: Any, **options: Any) -> tuple[SetData, TableSchema]:
    """Sets and the schema that encodes them, from a long table.

    Args:
        source: The path of a CSV, TSV or Parquet file (``.csv.gz`` too), a DataFrame, an Arrow table, or a mapping of
            columns.
        set_id: Name of the column that names each row's set.
        target: Name of the target column. A text or boolean target means classification, a float one regression.
        time: Name of the column of times that orders the rows of a set. Default: the order of the rows.
        features: Names of the feature columns. Default: every other column.
        categorical: Features to read as categories although they are numbers.
        missing: What to do about missing features: "error" (default), "drop-row", "mean" or "zero".
        task: "classification" or "regression". A target of whole numbers needs it.

    Numbers are standardised. A text or categorical feature becomes one 0/1 column a category.

    >>> rows = pd.DataFrame({"day": [1, 1, 2], "load": [1.0, 3.0, 2.0], "sort": ["a", "b", "a"], "ok": ["y", "y", "n"]})
    >>> data, schema = read_table(rows, set_id="day", target="ok")
    >>> data.lengths.tolist(), data.targets.tolist(), schema.classes, data.elements.shape
    ([2, 1], [1, 0], ('n', 'y'), torch.Size([3, 3]))
    """
    table = learn_table(source, **options)
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
) -> Table:
    """The whole :class:`Table` that :func:`read_table` reads, with set ids and dropped rows."""
    one_of("missing", missing, MISSING)
    one_of("task", task, (None, *TASKS))
    roles = {"set_id": set_id, "time": time, "target": target}
    named = {role: str(name) for role, name in roles.items() if name is not None}  # pandas may name by numbers
    columns = column_names(source)
    chosen = [name for name in columns if name not in named.values()] if features is None else [*map(str, features)]
    if not chosen or (features is None and _ROW_NUMBERS & {*chosen}):
        raise InputError(
            f"{_called(source)} must have feature columns, all with names; got {chosen[:3]} besides {named} (pandas "
            "writes row numbers without a name; to_csv(index=False) leaves them out)"
        )
    categories = [one_of("categorical", str(name), chosen) for name in categorical]
    table = _read(source, named, chosen)
    kinds = {name: "category" if name in categories else _guess_kind(table[name]) for name in chosen}
    values = {name: _values(name, table[name], kind, source) for name, kind in kinds.items()}
    keep = _keep(values, missing, source)
    _refuse(~keep & (not keep.any()), "a feature is missing", source, "no row is complete: do not drop rows")
    learnt = tuple(Feature.learn(name, column.filter(pa.array(keep))) for name, column in values.items())
    classes = None
    if target is not None:
        task, classes = _task(table[named["target"]].filter(pa.array(keep)), named["target"], task)
    schema = TableSchema(named["set_id"], learnt, named.get("target"), named.get("time"), missing, task, classes)
    whole = _sets(table, schema, schema.target, source)
    full = whole.data.lengths > 0
    return replace(whole, data=whole.data.select(full), set_ids=whole.set_ids.filter(pa.array(full.numpy())))


# From columns to sets ----------------------------------------------------------------------------------------------


def _sets(table: Columns, schema: TableSchema, target: str | None, source: Any) -> Table:
    """The rows grouped by set in the order of first appearance, sorted by time; ties stay as in the table."""
    elements, keep, unseen = _elements(table, schema, source)
    ids = table[schema.set_id].dictionary_encode()
    sets = ids.indices.to_numpy()
    rows = np.flatnonzero(keep)
    keys = [sets[rows]]
    if schema.time is not None:
        keys.insert(0, _ranks(table[schema.time], schema.time, source)[rows])
    rows = rows[np.lexsort(keys)]
    lengths = np.bincount(sets[rows], minlength=len(ids.dictionary))
    offsets = np.concatenate([[0], lengths.cumsum()])
    targets = None
    if target is not None:
        labels = _labels(table[target], keep, schema, source)
        of_set = np.zeros(len(lengths), dtype=labels.dtype)
        of_set[sets[rows]] = labels[rows]
        advice = f"give each set ({schema.set_id}) one target"
        _refuse(keep & (labels != of_set[sets]), f"target {target!r} varies inside a set", source, advice)
        targets = torch.from_numpy(of_set)
    data = SetData(torch.from_numpy(elements[rows]), torch.from_numpy(offsets), targets)
    return Table(data, schema, ids.dictionary, unseen, int((~keep).sum()))


def _elements(table: Columns, schema: TableSchema, source: Any) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """``elements [rows, D]`` float32, the rows to keep, and how many rows of each feature hold unknown categories."""
    values = {f.name: _values(f.name, table[f.name], f.kind, source) for f in schema.features}
    keep = _keep(values, schema.missing, source)
    elements = np.empty((len(keep), schema.width), dtype=np.float32)
    unseen = {}
    at = 0
    for feature in schema.features:
        block, unknown = feature.encode(values.pop(feature.name), schema.missing)
        what = f"feature {feature.name!r} is infinite, or too far from the training values (mean {feature.mean:.3g})"
        _refuse((np.abs(block) > np.finfo(np.float32).max).any(1), what, source, "correct it, or leave the row out")
        elements[:, at : at + feature.width] = block
        at += feature.width
        if unknown:
            unseen[feature.name] = unknown
    return elements, keep, unseen


def _keep(values: Mapping[str, pa.Array], missing: str, source: Any) -> np.ndarray:
    """The rows to keep: all of them, or those without a gap."""
    gaps = {name: _nulls(column) for name, column in values.items()}
    if missing == "error":
        for name, gap in gaps.items():
            _refuse(gap, f"feature {name!r} is missing", source, "fill the gaps, or choose another rule for missing")
    complete = ~np.any([*gaps.values()], axis=0)
    return complete if missing == "drop-row" else np.ones_like(complete)


def _guess_kind(column: pa.Array) -> str:
    """Numbers or categories. A text column holds numbers if most of its first values are numbers."""
    head = column.drop_null()[:1000]
    return "number" if not pa.types.is_string(column.type) or _parsed(head).notna().mean() > 0.5 else "category"


def _values(name: str, column: pa.Array, kind: str, source: Any) -> pa.Array:
    """A feature's values as float64 or, of a category, as text; null where one is missing."""
    if kind == "category":
        return column.cast(pa.string())
    if _is_number(column.type):
        return column.cast(pa.float64(), safe=False)  # safe refuses whole numbers beyond 2**53
    numbers = _parsed(column.cast(pa.string())).to_numpy()
    others = np.isnan(numbers) & ~_nulls(column)
    shown = column[int(others.argmax())].as_py() if others.any() else ""
    advice = "correct it, name the column in categorical, or use it as time"
    _refuse(others, f"feature {name!r} holds text among its numbers: {str(shown)!r}", source, advice)
    return pa.array(numbers, from_pandas=True)


def _parsed(texts: pa.Array) -> pd.Series:
    """Texts as float64: true is 1, false is 0, NaN where a text is no number."""
    plain = texts.to_pandas().astype("str").str.strip().str.lower().replace({"true": "1", "false": "0"})
    return pd.to_numeric(plain.where(plain.str.isascii()), errors="coerce").astype("float64")


def _ranks(column: pa.Array, name: str, source: Any) -> np.ndarray:
    """Whole numbers in the order of the times; equal times have equal numbers."""
    if not pa.types.is_string(column.type):
        return pc.rank(column, tiebreaker="dense").to_numpy()
    texts = column.to_pandas().str.strip()
    times = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
    read = max(pd.to_numeric(texts, errors="coerce"), times, key=lambda values: values.notna().sum())
    advice = "write all times as numbers, or all like 2024-05-31 12:00:00"
    _refuse(read.isna().to_numpy(), f"time column {name!r} cannot be read", source, advice)
    return pd.factorize(read, sort=True)[0]


def _task(column: pa.Array, name: str, task: str | None) -> tuple[str, tuple[Any, ...] | None]:
    """The task of a target column, and the classes in their order."""
    values, fault = _target_values(column.unique()), None
    kind = values.dtype.kind
    if task is None:
        mixed = kind == "O" and pd.to_numeric(pd.Series(values), errors="coerce").notna().any()
        fault = "may hold classes or amounts; say which with the task" if kind in "iu" or mixed else None
        task = "regression" if kind == "f" else "classification"
    if task == "regression" and not fault:
        return task, None
    if kind == "f" and ((values % 1 == 0) & (np.abs(values) < 2**63)).all():
        values = values.astype(np.int64)
    if len(values) < 2 or values.dtype.kind == "f":
        fault = "must hold two classes or more, names or whole numbers"
    if fault:
        raise InputError(f"target {name!r} {fault}; its values are such as {values[:3].tolist()}")
    return task, tuple(sorted(values.tolist()))


def _labels(column: pa.Array, keep: np.ndarray, schema: TableSchema, source: Any) -> np.ndarray:
    """The target of each row: its class number, or its value as float64. Rows that are not kept may hold anything."""
    codes = column.dictionary_encode()
    rows = codes.indices.to_numpy()
    if schema.classes is None:
        values = pd.to_numeric(pd.Series(_target_values(codes.dictionary)), errors="coerce")
        numbers = values.to_numpy(dtype=np.float64)[rows]
        far = ~(np.abs(numbers) <= np.finfo(np.float32).max)
        _refuse(keep & far, f"target {schema.target!r} is no number that float32 holds", source, "correct it")
        return numbers
    text = pa.types.is_string(codes.dictionary.type) and isinstance(schema.classes[0], str)
    values = codes.dictionary.to_pylist() if text else _target_values(codes.dictionary).tolist()
    known = {c: number for number, c in enumerate(schema.classes)}
    labels = np.array([known.get(value, -1) for value in values])[rows]
    unknown = keep & (labels < 0)
    shown = values[rows[unknown.argmax()]]
    advice = f"the model's classes are {', '.join(map(str, schema.classes[:10]))}"
    _refuse(unknown, f"target {schema.target!r} holds an unknown class ({shown!r})", source, advice)
    return labels


def _target_values(distinct: pa.Array) -> np.ndarray:
    """The distinct values of a target as booleans, whole numbers, floats or, if not all are numbers, as texts."""
    if not pa.types.is_string(distinct.type):
        return distinct.to_numpy(zero_copy_only=False) if _is_number(distinct.type) else np.array(distinct.to_pylist())
    texts = distinct.to_pandas().str.strip()
    if texts.str.lower().isin(["true", "false"]).all():
        return (texts.str.lower() == "true").to_numpy(dtype=bool)
    numbers = pd.to_numeric(texts, errors="coerce")
    return distinct.to_numpy(zero_copy_only=False) if numbers.isna().any() else numbers.to_numpy()


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _nulls(column: pa.Array) -> np.ndarray:
    return column.is_null().to_numpy(zero_copy_only=False)


def _refuse(bad: np.ndarray, what: str, source: Any, advice: str) -> None:
    """Raise an error that names the first rows where ``bad``, counted from 1."""
    if bad.any():
        rows = ", ".join(map(str, np.flatnonzero(bad)[:3] + 1)) + (", …" if bad.sum() > 3 else "")
        raise InputError(f"{what} in row {rows} of {_called(source)}; {advice}")


# From files and frames to columns ----------------------------------------------------------------------------------


def _called(source: Any) -> str:
    return str(source) if isinstance(source, (str, Path)) else "the table"


def column_names(source: Any) -> list[str]:
    """The names of a table's columns. Of a CSV or Parquet file, only the header is read."""
    if not isinstance(source, (str, Path)):
        return _arrow(source, None).column_names
    with _one_line_errors(source):
        if table_ending(source) in ("parquet", "pq"):
            return pyarrow.parquet.ParquetFile(source).schema_arrow.names
        return pyarrow.csv.open_csv(source, parse_options=_separated(source)).schema.names


def _read(source: Any, named: Mapping[str, str | None], features: list[str]) -> Columns:
    """The columns in question, once it is known that they are there and that each has one purpose."""
    available = column_names(source)
    special = {role: name for role, name in named.items() if name is not None}
    purposes = [*special.items(), *(("features", name) for name in features)]
    wanted = [name for _, name in purposes]
    for names in (available, wanted):
        if len({*names}) < len(names):
            twice = max(names, key=names.count)
            raise InputError(f"column {twice!r} is there twice; name each column once, for one purpose")
    for role, name in purposes:
        one_of(role, name, available)
    table = _arrow(source, wanted)
    if len(table) == 0:
        raise InputError(f"{_called(source)} has no rows")
    columns = {name: _plain(table[name]) for name in wanted}
    for role, name in special.items():
        _refuse(_nulls(columns[name]), f"{role} column {name!r} is missing", source, "every row needs a value")
    return columns


def _arrow(source: Any, columns: list[str] | None) -> pa.Table:
    """A table with some columns or more. Of a CSV file, they are text."""
    if isinstance(source, (str, Path)):
        with _one_line_errors(source):
            if table_ending(source) in ("parquet", "pq"):
                return pyarrow.parquet.ParquetFile(source).read(columns)
            types = dict.fromkeys(columns or [], pa.string())
            convert = pyarrow.csv.ConvertOptions(column_types=types, include_columns=columns, strings_can_be_null=True)
            return pyarrow.csv.read_csv(source, parse_options=_separated(source), convert_options=convert)
    if isinstance(source, pa.Table):
        return source
    if hasattr(source, "to_arrow"):  # polars
        return source.to_arrow()
    if isinstance(source, Mapping):
        source = {name: values if np.ndim(values) else [values] for name, values in source.items()}
    return pa.Table.from_pandas(pd.DataFrame(source), preserve_index=False)


def _separated(path: str | Path) -> pyarrow.csv.ParseOptions:
    return pyarrow.csv.ParseOptions(delimiter="\t" if table_ending(path) == "tsv" else ",", newlines_in_values=True)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array: dictionaries as what they stand for, one type of text, NaN as null."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type) or pa.types.is_null(array.type):
        array = array.cast(pa.string())
    return pc.if_else(array.is_null(nan_is_null=True), None, array) if pa.types.is_floating(array.type) else array


@contextmanager
def _one_line_errors(path: str | Path) -> Iterator[None]:
    """What is wrong with a file becomes one line."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from None
