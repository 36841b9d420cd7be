"""Long tables as sets: frames and files in, :class:`SetData` and a schema that reads the next table out.

A long table has one row an element, a column that names the row's set, and feature columns.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import torch
from pandas.api.types import is_numeric_dtype, is_string_dtype
from torch import Tensor

from anyorder.checks import InputError, one_of, real_number
from anyorder.data.sets import SetData

TASKS = ("classification", "regression")
MISSING = ("error", "drop-row", "mean", "zero")
MOST_CATEGORIES = 1000
_ROW_NUMBERS = {"", "__index_level_0__"}  # the names that pandas gives them in CSV and Parquet
_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class Feature:
    """How one column becomes numbers: ``(value - mean) / scale`` or, with categories, one 0/1 column each."""

    name: str
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return len(self.categories) or 1

    @classmethod
    def learn(cls, name: str, column: pd.Series, categorical: bool) -> Feature:
        """The feature of a training column. Text is a category, unless most of its first values are numbers."""
        head = column.dropna()[:1000]
        if categorical or (is_string_dtype(head) and not _parsed(head).notna().mean() > 0.5):
            known = sorted(_text(column).dropna().unique())
            if not 0 < len(known) <= MOST_CATEGORIES:
                raise InputError(
                    f"feature {name!r} is text with {len(known)} different values; a category has 1 to "
                    f"{MOST_CATEGORIES} (leave it out of the features, or turn it into numbers)"
                )
            return cls(name, categories=tuple(known))
        with warnings.catch_warnings(action="ignore"):
            values = _numbers(name, column).dropna().to_numpy()
            mean, scale = float(np.mean(values)), float(np.std(values))
        if not np.isfinite(scale):
            raise InputError(f"feature {name!r} has no numbers, infinite ones, or some beyond 1e150; leave it out")
        return cls(name, mean, scale if scale > 1e-12 * max(abs(mean), 1e-300) else 1.0)

    def encode(self, column: pd.Series, missing: str) -> tuple[np.ndarray, int]:
        """Columns ``[rows, width]``, and the number of rows whose category is unknown (all zeros)."""
        if self.categories:
            codes = pd.Index(self.categories).get_indexer(pd.Index(_text(column)))
            return codes[:, None] == np.arange(self.width), int((column.notna() & (codes < 0)).sum())
        numbers = _numbers(self.name, column).fillna(0.0 if missing == "zero" else self.mean)
        block = (numbers - self.mean) / self.scale
        what = f"feature {self.name!r} is infinite, or too far from the training values (mean {self.mean:.3g})"
        _refuse(block.abs() > _LARGEST, what, "correct it, or leave the row out")
        return block.to_numpy()[:, None], 0

    def decode(self, block: np.ndarray) -> np.ndarray:
        """What stood in the table, from columns ``[rows, width]``."""
        if not self.categories:
            return self.mean + self.scale * block[:, 0]
        return np.array([*self.categories, "–"], dtype=object)[np.where(block.any(1), block.argmax(1), -1)]


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
                real_number("mean", feature.mean)
                real_number("scale", feature.scale, above=0)
            one_of("task", values["task"], TASKS if values["target"] else (None,))
            one_of("missing", values["missing"], MISSING)
            classes = tuple(values["classes"]) if values["task"] == "classification" else None
            hash(classes)  # names and numbers; not lists
            return cls(**{**values, "features": features, "classes": classes})
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"this is not a table schema of anyorder: {str(error)[:200]}") from None

    def read(self, source: Any, *, with_target: bool = False) -> Table:
        """Another table with the same columns, with the target if it is wanted and there.

        Every set of the table stays. A set whose rows were all dropped is empty.
        """
        opened = _open(source)
        target = self.target if with_target and self.target in opened.schema.names else None
        roles = {"set_id": self.set_id, "time": self.time, "target": target}
        return self._sets(_read(opened, source, roles, self._names), target)

    def encode(self, rows: Any) -> Tensor:
        """Rows (a frame, or a mapping of columns) as elements ``[n, D]``, for a stream of events."""
        frame = _read(_open(rows), rows, {}, self._names)
        return self._elements(_complete(frame, self._names, self.missing))[0]

    def decode(self, elements: Any) -> np.ndarray:
        """Elements ``[n, D]`` as they stood in the table: a column a feature, its number or its category.

        >>> drug = Feature("drug", categories=("x", "y"))
        >>> schema = TableSchema("patient", (Feature("dose", mean=5.0, scale=2.0), drug))
        >>> schema.decode([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]).tolist()  # the second has an unknown category
        [[7.0, 'y'], [5.0, '–']]
        """
        edges = np.cumsum([feature.width for feature in self.features])[:-1]
        blocks = np.split(np.asarray(elements, dtype=np.float64), edges, axis=1)
        columns = [feature.decode(block) for feature, block in zip(self.features, blocks, strict=True)]
        return np.stack([column.astype(object) for column in columns], axis=1)

    @property
    def _names(self) -> list[str]:
        return [feature.name for feature in self.features]

    def _sets(self, frame: pd.DataFrame, target: str | None) -> Table:
        """The rows grouped by set in the order of first appearance, sorted by time; ties stay as in the table."""
        numbers, ids = pd.factorize(frame[self.set_id])
        kept = _complete(frame, self._names, self.missing)
        elements, unseen = self._elements(kept)
        sets = numbers[kept.index - 1]
        order = np.lexsort([sets] if self.time is None else [_ranks(kept[self.time]), sets])
        targets = None
        if target is not None:
            labels = self._labels(kept[target])
            of_set = np.zeros(len(ids), dtype=labels.to_numpy().dtype)
            of_set[sets] = labels
            advice = f"give each set ({self.set_id}) one target"
            _refuse(labels != of_set[sets], f"target {target!r} varies inside a set", advice)
            targets = torch.from_numpy(of_set)
        offsets = np.concatenate([[0], np.bincount(sets, minlength=len(ids)).cumsum()])
        data = SetData(elements[torch.from_numpy(order)], torch.from_numpy(offsets), targets)
        return Table(data, self, ids, unseen, len(frame) - len(kept))

    def _elements(self, frame: pd.DataFrame) -> tuple[Tensor, dict[str, int]]:
        """``elements [rows, D]`` float32, and how many rows of each feature hold unknown categories."""
        elements = np.empty((len(frame), self.width), dtype=np.float32)
        unseen, at = {}, 0
        for feature in self.features:
            block, unknown = feature.encode(frame[feature.name], self.missing)
            elements[:, at : at + feature.width] = block
            at += feature.width
            if unknown:
                unseen[feature.name] = unknown
        return torch.from_numpy(elements), unseen

    def _labels(self, column: pd.Series) -> pd.Series:
        """The target of each row: its class number, or its value as float64."""
        rows, distinct = pd.factorize(column)
        if self.classes is None:
            values = pd.to_numeric(_values(pd.Series(distinct)), errors="coerce").to_numpy(dtype=np.float64)
            labels = pd.Series(values[rows], column.index)
            far = ~(labels.abs() <= _LARGEST)
            _refuse(far, f"target {self.target!r} is no number that float32 holds", "correct it")
            return labels
        known = {value: number for number, value in enumerate(self.classes)}
        names = (_text if isinstance(self.classes[0], str) else _values)(pd.Series(distinct)).tolist()
        labels = pd.Series(np.array([known.get(name, -1) for name in names], dtype=np.int64)[rows], column.index)
        unknown = labels < 0
        shown = names[rows[unknown.argmax()]] if len(rows) else ""
        advice = f"the model's classes are {', '.join(map(str, self.classes[:10]))}"
        _refuse(unknown, f"target {self.target!r} holds an unknown class ({shown!r})", advice)
        return labels


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read: the sets, the schema, each set's own id, and what had to be mended."""

    data: SetData
    schema: TableSchema
    set_ids: pd.Index
    unseen: dict[str, int]  # feature -> rows whose category the schema does not know (encoded as all zeros)
    dropped: int  # rows left out by missing="drop-row"

    @property
    def labels(self) -> np.ndarray | None:
        """The target of each set as it stands in the table."""
        targets, classes = self.data.targets, self.schema.classes
        return None if targets is None else targets.numpy() if classes is None else np.array(classes)[targets.numpy()]


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
) -> Table:
    """The sets of a long table, and the schema that encodes them.

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
    >>> table = read_table(rows, set_id="day", target="ok")
    >>> table.data.lengths.tolist(), table.labels.tolist(), table.data.elements.shape
    ([2, 1], ['y', 'n'], torch.Size([3, 3]))
    """
    one_of("missing", missing, MISSING)
    one_of("task", task, (None, *TASKS))
    given = {"set_id": set_id, "time": time, "target": target}
    roles = {role: str(name) for role, name in given.items() if name is not None}  # pandas may name by numbers
    opened = _open(source)
    columns = opened.schema.names
    chosen = [name for name in columns if name not in roles.values()] if features is None else [*map(str, features)]
    if not chosen or (features is None and _ROW_NUMBERS & {*chosen}):
        raise InputError(
            f"{_called(source)} must have feature columns, all with names; got {chosen[:3]} besides {roles} (pandas "
            "writes row numbers without a name; to_csv(index=False) leaves them out)"
        )
    categories = [one_of("categorical", str(name), chosen) for name in categorical]
    frame = _read(opened, source, roles, chosen)
    kept = _complete(frame, chosen, missing)
    if kept.empty:
        raise InputError(f"no row of {_called(source)} is complete; choose another rule for missing than {missing!r}")
    learnt = tuple(Feature.learn(name, kept[name], name in categories) for name in chosen)
    classes = None
    if target is not None:
        task, classes = _task(kept[roles["target"]], task)
    schema = TableSchema(roles["set_id"], learnt, roles.get("target"), roles.get("time"), missing, task, classes)
    table = schema._sets(frame, schema.target)
    full = table.data.lengths > 0
    return replace(table, data=table.data.select(full), set_ids=table.set_ids[full.numpy()])


# The values of a column --------------------------------------------------------------------------------------------


def _complete(frame: pd.DataFrame, features: list[str], missing: str) -> pd.DataFrame:
    """The rows to keep: all of them, or those without a gap."""
    if missing == "error":
        for name in features:
            advice = "fill the gaps, or choose another rule for missing"
            _refuse(frame[name].isna(), f"feature {name!r} is missing", advice)
    return frame.dropna(subset=features) if missing == "drop-row" else frame


def _text(column: pd.Series) -> pd.Series:
    """A column as text. Whole numbers are written alike, whether the column holds gaps or not."""
    return pa.array(column, from_pandas=True).cast(pa.string()).to_pandas().set_axis(column.index)


def _parsed(column: pd.Series) -> pd.Series:
    """A column as float64: true is 1, false is 0, NaN where there is no number."""
    if is_numeric_dtype(column):
        return column.astype("float64")
    plain = _text(column).astype("str").str.strip().str.lower().replace({"true": "1", "false": "0"})
    return pd.to_numeric(plain.where(plain.str.isascii()), errors="coerce").astype("float64")


def _numbers(name: str, column: pd.Series) -> pd.Series:
    """A feature as float64, NaN where it is missing."""
    numbers = _parsed(column)
    others = numbers.isna() & column.notna()
    shown = str(next(iter(column[others]), ""))
    advice = "correct it, name the column in categorical, or use it as time"
    _refuse(others, f"feature {name!r} holds text among its numbers: {shown!r}", advice)
    return numbers


def _ranks(column: pd.Series) -> np.ndarray:
    """Whole numbers in the order of the times; equal times have equal numbers."""
    if is_string_dtype(column):
        texts = column.str.strip()
        times = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
        read = max(pd.to_numeric(texts, errors="coerce"), times, key=lambda values: values.notna().sum())
        advice = "write all times as numbers, or all like 2024-05-31 12:00:00"
        _refuse(read.isna(), f"time column {column.name!r} cannot be read", advice)
        column = read
    return pd.factorize(column, sort=True)[0]


def _values(targets: pd.Series) -> pd.Series:
    """The values of a target as booleans, whole numbers, floats or, if not all are numbers, as texts."""
    if is_numeric_dtype(targets):
        return targets
    texts = _text(targets)
    plain = texts.str.strip()
    if plain.str.lower().isin(["true", "false"]).all():
        return plain.str.lower() == "true"
    numbers = pd.to_numeric(plain, errors="coerce")
    return texts if numbers.isna().any() else numbers


def _task(column: pd.Series, task: str | None) -> tuple[str, tuple[Any, ...] | None]:
    """The task of a target column, and the classes in their order."""
    values, fault = _values(column.drop_duplicates()), None
    kind = values.dtype.kind
    if task is None:
        mixed = kind == "O" and pd.to_numeric(values, errors="coerce").notna().any()
        fault = "may hold classes or amounts; say which with the task" if kind in "iu" or mixed else None
        task = "regression" if kind == "f" else "classification"
    if task == "regression" and not fault:
        return task, None
    if kind == "f" and ((values % 1 == 0) & (values.abs() < 2**63)).all():
        values = values.astype("int64")
    if len(values) < 2 or values.dtype.kind == "f":
        fault = "must hold two classes or more, names or whole numbers"
    if fault:
        raise InputError(f"target {column.name!r} {fault}; its values are such as {values[:3].tolist()}")
    return task, tuple(sorted(values.tolist()))


def _refuse(bad: pd.Series, what: str, advice: str) -> None:
    """Raise an error that names the first rows where ``bad``. Its index counts from 1 and has the table's name."""
    if bad.any():
        rows = ", ".join(map(str, bad.index[bad][:3])) + (", …" if bad.sum() > 3 else "")
        raise InputError(f"{what} in row {rows} of {bad.index.name}; {advice}")


# From files and frames to columns ----------------------------------------------------------------------------------


def _called(source: Any) -> str:
    return str(source) if isinstance(source, (str, Path)) else "the table"


def _open(source: Any) -> pyarrow.dataset.Dataset:
    """A table whose columns can be read. Those of a text file are text."""
    if isinstance(source, (str, Path)):
        ending = Path(source).name.lower().removesuffix(".gz").rpartition(".")[2]
        one_of(f"the ending of {source}", ending, ("csv", "tsv", "txt", "parquet", "pq"))
    with _one_line_errors(source):
        if isinstance(source, (str, Path)):
            if ending in ("parquet", "pq"):
                return pyarrow.dataset.dataset(source)
            text = pyarrow.dataset.CsvFileFormat(
                pyarrow.csv.ParseOptions(delimiter="\t" if ending == "tsv" else ",", newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True),
            )
            names = pyarrow.dataset.dataset(source, format=text).schema.names
            return pyarrow.dataset.dataset(source, pa.schema([(name, pa.string()) for name in names]), format=text)
        if hasattr(source, "to_arrow"):  # polars
            source = source.to_arrow()
        if not isinstance(source, pa.Table):
            source = pa.Table.from_pandas(pd.DataFrame(source), preserve_index=False)
        return pyarrow.dataset.dataset(source)


def _read(
    opened: pyarrow.dataset.Dataset, source: Any, roles: Mapping[str, str | None], features: list[str]
) -> pd.DataFrame:
    """The columns in question, once it is known that they are there and that each has one purpose."""
    special = {role: name for role, name in roles.items() if name is not None}
    purposes = [*special.items(), *(("features", name) for name in features)]
    wanted = [name for _, name in purposes]
    there = opened.schema.names
    for names in (there, wanted):
        [(name, count)] = Counter(names).most_common(1) or [("", 0)]
        if count > 1:
            raise InputError(f"column {name!r} is there twice; name each column once, for one purpose")
    known = {*there}
    for role, name in purposes:
        if name not in known:
            one_of(role, name, there)
    with _one_line_errors(source):
        table = opened.to_table(wanted)
        plain = [getattr(field.type, "value_type", field.type) for field in table.schema]  # of a dictionary
        frame = table.cast(pa.schema([*zip(wanted, plain, strict=True)])).to_pandas(ignore_metadata=True)
    if frame.empty:
        raise InputError(f"{_called(source)} has no rows")
    frame.index = pd.RangeIndex(1, len(frame) + 1, name=_called(source))
    for role, name in special.items():
        _refuse(frame[name].isna(), f"{role} column {name!r} is missing", "every row needs a value")
    return frame


@contextmanager
def _one_line_errors(source: Any) -> Iterator[None]:
    """What is wrong with a table becomes one line."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        words = str(error).splitlines()[0].rpartition("': ")[2]
        raise InputError(f"{_called(source)} cannot be read as a table: {words}") from None
