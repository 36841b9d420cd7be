"""Long tables as sets: frames and files in, :class:`SetData` and a schema that reads the next table out.

A long table has one row an element, a column that names the row's set, and feature columns. A column of times orders
the rows of a set. Rows of one time are a tie: their order is an accident, and no feature tells it.
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
_FARTHEST = 10.0  # standard deviations from the mean of a name's values
_HOUR = pd.Timedelta("1h")
_WILD = 1e4  # times the range of nearly all values of a column


class TableWarning(UserWarning):
    """Something in a table is probably not what its owner means."""


@dataclass(frozen=True)
class Feature:
    """How one column becomes numbers: ``(value - mean) / scale`` or, with categories, one 0/1 column each.

    With ``value``, the column names what another column measures. Each category has a second column with that value,
    in ``units`` (mean, scale) of its own, or 0: the first linear layer is then an embedding of the name, and of the
    value.
    """

    name: str
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    value: str | None = None
    units: tuple[tuple[float, float], ...] = ()

    @property
    def width(self) -> int:
        return (len(self.categories) or 1) * (1 if self.value is None else 2)

    @property
    def columns(self) -> list[str]:
        """The columns of the table that are read."""
        return [self.name] if self.value is None else [self.name, self.value]

    @classmethod
    def named(cls, frame: pd.DataFrame, name: str, value: str) -> Feature:
        """The feature of a long form: a column of names and a column of their values.

        The units of a name are those of its values between the quantiles .005 and .995, so a wild value spoils none.
        """
        feature = cls.learn(name, frame[name], categorical=True)
        groups = _numbers(value, frame[value]).groupby(_text(frame[name]))
        low, high = (groups.transform("quantile", share) for share in (0.005, 0.995))
        typical = _numbers(value, frame[value]).clip(low, high).groupby(_text(frame[name])).agg(["mean", "std"])
        typical = typical.reindex(list(feature.categories)).fillna({"mean": 0.0, "std": 0.0})
        if not np.isfinite(typical.to_numpy()).all():
            raise InputError(f"value column {value!r} holds infinite numbers, or some beyond 1e150; correct them")
        least = 1e-12 * typical["mean"].abs().clip(lower=1e-300)
        scale = typical["std"].where(typical["std"] > least, 1.0)
        units = tuple(zip(typical["mean"].tolist(), scale.tolist(), strict=True))
        return replace(feature, value=value, units=units)

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

    def encode(self, frame: pd.DataFrame, missing: str) -> tuple[np.ndarray, int]:
        """Columns ``[rows, width]``, and the number of rows whose category is unknown (all zeros)."""
        column = frame[self.name]
        if self.categories:
            codes = pd.Index(self.categories).get_indexer(pd.Index(_text(column)))
            block = codes[:, None] == np.arange(len(self.categories))
            if self.value is not None:
                mean, scale = np.array([*self.units, (0.0, 1.0)])[codes].T
                gaps = 0.0 if missing == "zero" else mean
                values = _numbers(self.value, frame[self.value])
                standard = (values.where(values.notna(), gaps) - mean) / scale
                block = np.hstack([block, block * standard.clip(-_FARTHEST, _FARTHEST).to_numpy()[:, None]])
            return block, int((column.notna() & (codes < 0)).sum())
        numbers = _numbers(self.name, column).fillna(0.0 if missing == "zero" else self.mean)
        block = (numbers - self.mean) / self.scale
        what = f"feature {self.name!r} is infinite, or too far from the training values (mean {self.mean:.3g})"
        _refuse(block.abs() > _LARGEST, what, "correct it, or leave the row out")
        return block.to_numpy()[:, None], 0

    def decode(self, block: np.ndarray) -> np.ndarray:
        """What stood in the table, from columns ``[rows, width]``."""
        if not self.categories:
            return self.mean + self.scale * block[:, 0]
        names, values = np.split(block, [len(self.categories)], axis=1)
        codes = np.where(names.any(1), names.argmax(1), -1)
        shown = np.array([*self.categories, "–"], dtype=object)[codes]
        if self.value is None:
            return shown
        mean, scale = np.array([*self.units, (0.0, 1.0)])[codes].T
        pairs = zip(shown, mean + scale * values.sum(1), strict=True)
        return np.array([f"{name} = {value:.4g}" for name, value in pairs], dtype=object)


@dataclass(frozen=True)
class TableSchema:
    """What was learnt from a training table, to read another table the same way.

    ``classes`` are the target's values in the order of the class numbers, None for regression. With ``time`` there are
    two more columns: the time since the set's start, and the logarithm of the time since the last distinct time, both
    in units of ``gap``, the typical time between two. All members of a tie have the same.
    """

    set_id: str
    features: tuple[Feature, ...]
    target: str | None = None
    time: str | None = None
    missing: str = "error"
    task: str | None = None
    classes: tuple[Any, ...] | None = None
    static: tuple[Feature, ...] = ()
    tie_within: str | float | None = None
    gap: float = 1.0

    @property
    def width(self) -> int:
        """D, the number of columns after encoding."""
        return sum(feature.width for feature in self.features) + (0 if self.time is None else 2)

    def to_dict(self) -> dict[str, Any]:
        """The schema as JSON values; :meth:`from_dict` undoes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableSchema:
        """The schema that :meth:`to_dict` wrote."""
        try:
            features, static = (tuple(_feature(f) for f in values[part]) for part in ("features", "static"))
            real_number("gap", values["gap"], above=0)
            one_of("task", values["task"], TASKS if values["target"] else (None,))
            one_of("missing", values["missing"], MISSING)
            classes = tuple(values["classes"]) if values["task"] == "classification" else None
            hash(classes)  # names and numbers; not lists
            return cls(**{**values, "features": features, "static": static, "classes": classes})
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"this is not a table schema of anyorder: {str(error)[:200]}") from None

    def read(self, source: Any, *, with_target: bool = False) -> Table:
        """Another table with the same columns, with the target if it is wanted and there.

        Every set of the table stays. A set whose rows were all dropped is empty.
        """
        opened = _open(source)
        target = self.target if with_target and self.target in opened.schema.names else None
        roles = {"set_id": self.set_id, "time": self.time, "target": target}
        return self._sets(_read(opened, source, roles, self._columns), target)

    def encode(self, rows: Any) -> Tensor:
        """Rows of one set (a frame, or a mapping of columns) as elements ``[n, D]``; with times, from its start on."""
        lists = {**self._columns, "static": []}
        frame = _read(_open(rows), rows, {"time": self.time}, lists)
        kept = _complete(frame, lists, self.missing)
        return self._ordered(kept, np.zeros(len(kept), dtype=np.int64), self._encoded(kept, self.features)[0])[0]

    def encode_static(self, row: Any) -> Tensor:
        """The static features of one set (a mapping of columns) as ``[1, S]``."""
        row = pd.DataFrame(row, index=[0]) if isinstance(row, Mapping) else row
        return self._encoded(_read(_open(row), row, {}, {"static": self._columns["static"]}), self.static)[0]

    def ties_of_rows(self, rows: Any) -> tuple[np.ndarray, ...]:
        """The order in which rows of one set are read, and the tie of each row in that order."""
        frame = _read(_open(rows), rows, {"time": self.time}, {})
        return self._ties(frame, np.zeros(len(frame), dtype=np.int64))[:2]

    def decode(self, elements: Any) -> np.ndarray:
        """Elements ``[n, D]`` as they stood in the table: a column a feature, its number or its category.

        >>> drug = Feature("drug", categories=("x", "y"))
        >>> schema = TableSchema("patient", (Feature("dose", mean=5.0, scale=2.0), drug))
        >>> schema.decode([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]).tolist()  # the second has an unknown category
        [[7.0, 'y'], [5.0, '–']]
        """
        edges = np.cumsum([feature.width for feature in self.features])
        blocks = np.split(np.asarray(elements, dtype=np.float64), edges, axis=1)[: len(edges)]
        columns = [feature.decode(block) for feature, block in zip(self.features, blocks, strict=True)]
        return np.stack([column.astype(object) for column in columns], axis=1)

    @property
    def _columns(self) -> dict[str, list[str]]:
        """The columns that are read, by their purpose."""
        return {
            "features": [column for feature in self.features for column in feature.columns],
            "static": [feature.name for feature in self.static],
        }

    def _sets(self, frame: pd.DataFrame, target: str | None) -> Table:
        """The rows grouped by set in the order of first appearance, sorted by time; ties stay as in the table."""
        numbers, ids = pd.factorize(frame[self.set_id])
        kept = _complete(frame, self._columns, self.missing)
        elements, unseen = self._encoded(kept, self.features)
        sets = numbers[kept.index - 1]
        elements, ties = self._ordered(kept, sets, elements)
        static = None
        if self.static:
            first = frame[~frame[self.set_id].duplicated()]  # in the order of the ids
            for feature in self.static:
                codes = pd.factorize(frame[feature.name])[0]
                differs = pd.Series(codes != codes[first.index - 1][numbers], frame.index)
                advice = f"give each set ({self.set_id}) one value, or use the column as a feature of its rows"
                _refuse(differs, f"static feature {feature.name!r} varies inside a set", advice)
            static, more = self._encoded(first, self.static)
            unseen |= more
        targets = None
        if target is not None:
            labels = self._labels(kept[target])
            of_set = np.zeros(len(ids), dtype=labels.to_numpy().dtype)
            of_set[sets] = labels
            advice = f"give each set ({self.set_id}) one target"
            _refuse(labels != of_set[sets], f"target {target!r} varies inside a set", advice)
            targets = torch.from_numpy(of_set)
        offsets = np.concatenate([[0], np.bincount(sets, minlength=len(ids)).cumsum()])
        data = SetData(elements, torch.from_numpy(offsets), targets, ties=ties, static=static)
        notes = self._notes(elements, len(kept), unseen)
        if dropped := len(frame) - len(kept):
            notes.append(f"{dropped} rows with missing values are left out")
        return Table(data, self, ids, unseen, dropped, notes)

    def _notes(self, elements: Tensor, rows: int, unseen: Mapping[str, int]) -> list[str]:
        """What is odd about encoded rows."""
        notes = [
            f"{name}: {count} rows hold a category that the training table did not have; it is read as no category"
            + ("; no row has a known one, so the column tells nothing: check how it is written" * (count == rows))
            for name, count in unseen.items()
        ]
        at = 0
        for feature in self.features:
            if not feature.categories and rows and (far := float(elements[:, at].abs().median())) > _FARTHEST:
                notes.append(
                    f"{feature.name}: half of the values are {far:.0f} or more standard deviations from the training "
                    "mean; check the unit"
                )
            at += feature.width
        return notes

    def _ordered(self, frame: pd.DataFrame, sets: np.ndarray, elements: Tensor) -> tuple[Tensor, Tensor | None]:
        """The rows set by set and sorted by time, with the features of time, and each row's tie."""
        if self.time is None:
            return elements[torch.from_numpy(np.argsort(sets, kind="stable"))], None
        order, ties, since, gaps = self._ties(frame, sets)
        times = np.stack([since / self.gap, np.log1p(gaps / self.gap)], 1).astype(np.float32)[ties]
        return torch.cat([elements[torch.from_numpy(order)], torch.from_numpy(times)], 1), torch.from_numpy(ties)

    def _ties(self, frame: pd.DataFrame, sets: np.ndarray) -> tuple[np.ndarray, ...]:
        """The order of the rows, the tie of each row in that order, and of each tie the times since start and last."""
        ranks, times, dated = _times(frame[self.time])
        order = np.lexsort([ranks, sets])
        new_set = np.diff(sets[order], prepend=-1) != 0
        later = np.diff(ranks[order], prepend=-1) != 0
        if self.tie_within is not None:
            later = np.diff(times[order], prepend=-np.inf) > _span(self.tie_within, dated)
        first = new_set | later
        ties = first.cumsum() - 1
        start, opens = times[order][first], new_set[first]
        since = start - start[opens][opens.cumsum() - 1]
        gaps = np.where(opens, 0.0, np.diff(start, prepend=0.0))
        return order[np.lexsort([order, ties])], ties, since, gaps

    def _encoded(self, frame: pd.DataFrame, features: Sequence[Feature]) -> tuple[Tensor, dict[str, int]]:
        """The features of rows as float32, and how many rows of each feature hold unknown categories."""
        elements = np.empty((len(frame), sum(feature.width for feature in features)), dtype=np.float32)
        unseen, at = {}, 0
        for feature in features:
            block, unknown = feature.encode(frame, self.missing)
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
    notes: list[str]  # what is odd, a line each

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
    static: Sequence[str] = (),
    name: str | None = None,
    value: str | None = None,
    tie_within: str | float | None = None,
) -> Table:
    """The sets of a long table, and the schema that encodes them.

    Args:
        source: The path of a CSV, TSV or Parquet file (``.csv.gz`` too), a DataFrame, an Arrow table, or a mapping of
            columns.
        set_id: Name of the column that names each row's set.
        target: Name of the target column. A text or boolean target means classification, a float one regression.
        time: Name of the column of times that orders the rows of a set. Default: the order of the rows. Rows of one
            time are a tie (``Table.data.ties``).
        features: Names of the feature columns. Default: every other column.
        categorical: Features to read as categories although they are numbers.
        missing: What to do about missing features: "error" (default), "drop-row", "mean" or "zero".
        task: "classification" or "regression". A target of whole numbers needs it.
        static: Names of columns that are features of the set as a whole (``Table.data.static``).
        name: Name of a column that says what a row measures, in a table of long form.
        value: Name of the column of the measured values. They are standardised by name.
        tie_within: Neighbours in time at most so far apart are a tie too: a number, or text such as "60s" for dates.

    Numbers are standardised. A text or categorical feature becomes one 0/1 column a category.

    >>> rows = pd.DataFrame({"day": [1, 1, 2], "load": [1.0, 3.0, 2.0], "sort": ["a", "b", "a"], "ok": ["y", "y", "n"]})
    >>> table = read_table(rows, set_id="day", target="ok")
    >>> table.data.lengths.tolist(), table.labels.tolist(), table.data.elements.shape
    ([2, 1], ['y', 'n'], torch.Size([3, 3]))
    """
    one_of("missing", missing, MISSING)
    one_of("task", task, (None, *TASKS))
    if (value is None) != (name is None) or (tie_within is not None and time is None):
        raise InputError("name and value go together, and tie_within needs time; got one without the other")
    given = {"set_id": set_id, "time": time, "target": target, "name": name}
    roles = {role: str(column) for role, column in given.items() if column is not None}  # pandas may name by numbers
    of_sets, of_names = [*map(str, static)], [] if value is None else [str(value)]
    opened = _open(source)
    others = [column for column in opened.schema.names if column not in {*roles.values(), *of_sets, *of_names}]
    chosen = others if features is None else [*map(str, features)]
    if not (chosen or name or time) or (features is None and _ROW_NUMBERS & {*chosen}):
        raise InputError(
            f"{_called(source)} must have feature columns, all with names; got {chosen[:3]} besides {roles} (pandas "
            "writes row numbers without a name; to_csv(index=False) leaves them out)"
        )
    categories = [one_of("categorical", str(column), [*chosen, *of_sets]) for column in categorical]
    lists = {"features": chosen, "static": of_sets, "value": of_names}
    frame = _read(opened, source, roles, lists)
    kept = _complete(frame, lists, missing)
    if kept.empty:
        raise InputError(f"no row of {_called(source)} is complete; choose another rule for missing than {missing!r}")
    learnt = tuple(Feature.learn(column, kept[column], column in categories) for column in chosen)
    if name is not None:
        learnt = (Feature.named(kept, roles["name"], of_names[0]), *learnt)
    first = kept[~kept[roles["set_id"]].duplicated()]
    whole = tuple(Feature.learn(column, first[column], column in categories) for column in of_sets)
    classes = None
    if target is not None:
        task, classes = _task(kept[roles["target"]], task)
    schema = TableSchema(
        roles["set_id"], learnt, roles.get("target"), roles.get("time"), missing, task, classes, whole, tie_within
    )
    if time is not None:
        gaps = schema._ties(kept, pd.factorize(kept[roles["set_id"]])[0])[3]
        schema = replace(schema, gap=float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0)
    table = schema._sets(frame, schema.target)
    full = table.data.lengths > 0
    data, notes = table.data.select(full), [*table.notes, *_traps(kept, schema)]
    if classes is not None:
        assert data.targets is not None
        alone = np.flatnonzero(np.bincount(data.targets.numpy(), minlength=len(classes)) == 1)
        notes += [f"class {classes[i]!r} of {target!r} has one set; give it more, or leave it out" for i in alone]
    return replace(table, data=data, set_ids=table.set_ids[full.numpy()], notes=notes)


def _traps(frame: pd.DataFrame, schema: TableSchema) -> list[str]:
    """What in a training table is probably not what its owner means, a line each."""
    notes = []
    for feature in (*schema.features, *schema.static):
        name, column = feature.name, frame[feature.name]
        if feature.categories and feature.value is None:
            if line := _strange_categories(pd.Series(feature.categories), len(frame)):
                notes.append(f"{name}: {line}")
        elif not feature.categories:
            values = _parsed(column)
            low, middle, high = values.quantile([0.01, 0.5, 0.99])
            far = (values - middle).abs()
            if 0 < high - low < far.max() / _WILD:
                at = int(far.to_numpy().argmax())
                line = f"{values.iloc[at]:.3g} in row {values.index[at]} is far from all other values"
                notes.append(f"{name}: {line} and hides their differences; correct it, or leave the row out")
            if len(values) > 9 and (values.diff().iloc[1:] == 1).all():
                notes.append(f"{name}: the column counts the rows, so it tells nothing of new ones; leave it out")
    twice = frame.duplicated()
    if twice.any() and (schema.time is not None or frame.duplicated(keep=False).all()):
        line = f"{int(twice.sum())} rows are copies of another one, the first in row {twice.idxmax()}"
        notes.append(f"{line}; drop them if they are no repeats")
    return notes


def _strange_categories(categories: pd.Series, rows: int) -> str:
    """What a column of text holds in place of categories; "" if they look like categories."""
    if categories.str.fullmatch(r"\s*-?[\d.]*\d,\d+\s*").mean() > 0.5:
        return f"the values look like numbers with a decimal comma, such as {categories[0]!r}; write a point"
    if len(categories) > max(20, rows // 4):
        dates = pd.to_datetime(categories, errors="coerce", format="mixed").notna().mean() > 0.5
        what = "the values look like dates" if dates else f"{len(categories)} categories for {rows} rows"
        return f"{what}; if they are numbers or times, write them as numbers, or use the column as time"
    return ""


# The values of a column --------------------------------------------------------------------------------------------


def _feature(values: Mapping[str, Any]) -> Feature:
    """The feature that a schema as JSON describes."""
    feature = Feature(
        **{**values, "categories": tuple(values["categories"]), "units": tuple(map(tuple, values["units"]))}
    )
    for mean, scale in ((feature.mean, feature.scale), *feature.units):
        real_number("mean", mean)
        real_number("scale", scale, above=0)
    named = feature.value is not None
    if len(feature.units) != named * len(feature.categories) or (named and not feature.units):
        raise InputError("units must be those of each category of a feature with values, and of no other")
    return feature


def _complete(frame: pd.DataFrame, lists: Mapping[str, list[str]], missing: str) -> pd.DataFrame:
    """The rows to keep: all of them, or those without a gap in a feature of their own."""
    if missing == "error":
        for name in [name for names in lists.values() for name in names]:
            advice = "fill the gaps, or choose another rule for missing"
            _refuse(frame[name].isna(), f"feature {name!r} is missing", advice)
    of_rows = [name for purpose, names in lists.items() if purpose != "static" for name in names]
    return frame.dropna(subset=of_rows) if missing == "drop-row" else frame


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


def _times(column: pd.Series) -> tuple[np.ndarray, np.ndarray, bool]:
    """Ranks of the times (equal times, equal ranks), the times since the earliest, and whether they are in hours."""
    if is_string_dtype(column):
        texts = column.str.strip()
        times = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
        read = max(pd.to_numeric(texts, errors="coerce"), times, key=lambda values: values.notna().sum())
        advice = "write all times as numbers, or all like 2024-05-31 12:00:00"
        _refuse(read.isna(), f"time column {column.name!r} cannot be read", advice)
        column = read
    elif column.dtype.kind == "O":  # dates, times of the day
        daily = hasattr(column.iloc[0], "hour")
        column = pd.to_timedelta(column.astype("str")) if daily else pd.to_datetime(column)
    dated = column.dtype.kind in "mM"
    since = column - column.min()  # exact also for whole numbers that float64 does not hold
    times = (since / _HOUR if dated else since).to_numpy(dtype=np.float64)
    advice = "write all times as finite numbers, or as dates"
    endless = pd.Series(~np.isfinite(times), column.index)
    _refuse(endless, f"time column {column.name!r} is infinite", advice)
    return pd.factorize(column, sort=True)[0], times, dated


def _span(within: str | float, dated: bool) -> float:
    """The length of ``tie_within`` on the scale of :func:`_times`."""
    numeric = pd.notna(pd.to_numeric(within, errors="coerce"))
    try:
        if numeric == dated:
            raise ValueError
        return real_number("tie_within", pd.Timedelta(within) / _HOUR if dated else float(within), at_least=0)
    except ValueError:
        form = 'text with a unit, such as "60s", for dates' if dated else "a number in the unit of the time column"
        raise InputError(f"tie_within must be {form}; got {within!r}") from None


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
    opened: pyarrow.dataset.Dataset, source: Any, roles: Mapping[str, str | None], lists: Mapping[str, list[str]]
) -> pd.DataFrame:
    """The columns in question, once it is known that they are there and that each has one purpose."""
    special = {role: name for role, name in roles.items() if name is not None}
    purposes = [*special.items(), *((purpose, name) for purpose, names in lists.items() for name in names)]
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
