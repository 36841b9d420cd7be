"""What is learnt from a training table, to read other tables the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from anyorder.checks import InputError, one_of, real_number
from anyorder.data.sets import SetData
from anyorder.estimators.columns import LARGEST, as_text, as_times, refuse_rows, span_of, target_values
from anyorder.estimators.features import FARTHEST, Feature, feature_of, standardised
from anyorder.estimators.sources import open_table, read_columns

TASKS = ("classification", "regression")
MULTILABEL = "multilabel"  # classification with several targets of 0 and 1
MISSING = ("error", "drop-row", "mean", "zero")


@dataclass(frozen=True)
class TableSchema:
    """What was learnt from a training table, to read another table the same way.

    ``classes`` are the target's values in the order of the class numbers, None for other tasks. With ``time`` there are
    two more columns: the time since the set's start, and the logarithm of the time since the last distinct time, both
    in units of ``gap``, the typical time between two. All members of a tie have the same.
    """

    set_id: str
    features: tuple[Feature, ...]
    targets: tuple[str, ...] = ()
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
            features, static = (tuple(feature_of(f) for f in values[part]) for part in ("features", "static"))
            real_number("gap", values["gap"], above=0)
            one_of("task", values["task"], (*TASKS, MULTILABEL) if values["targets"] else (None,))
            one_of("missing", values["missing"], MISSING)
            classes = tuple(values["classes"]) if values["task"] == "classification" else None
            tuples = {"features": features, "static": static, "classes": classes, "targets": tuple(values["targets"])}
            hash((classes, tuples["targets"]))  # names and numbers; not lists
            return cls(**{**values, **tuples})
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"this is not a table schema of anyorder: {str(error)[:200]}") from None

    def read(self, source: Any, *, with_target: bool = False) -> Table:
        """Another table with the same columns, with the target if it is wanted and there.

        Every set of the table stays. A set whose rows were all dropped is empty.
        """
        opened = open_table(source)
        targets = self.targets if with_target and {*self.targets} <= {*opened.columns} else ()
        roles = {"set_id": self.set_id, "time": self.time}
        return self.sets_of(read_columns(opened, roles, self._columns, targets, self._texts), targets)

    def encode(self, rows: Any) -> Tensor:
        """Rows of one set (a frame, or a mapping of columns) as elements ``[n, D]``; with times, from its start on."""
        lists = {**self._columns, "static": []}
        frame = read_columns(open_table(rows), {"time": self.time}, lists, texts=self._texts)
        kept = complete_rows(frame, lists, self.missing)
        return self._ordered(kept, np.zeros(len(kept), dtype=np.int64), self._encoded(kept, self.features)[0])[0]

    def encode_static(self, row: Any) -> Tensor:
        """The static features of one set (a mapping of columns) as ``[1, S]``."""
        row = pd.DataFrame(row, index=[0]) if isinstance(row, Mapping) else row
        frame = read_columns(open_table(row), {}, {"static": self._columns["static"]}, texts=self._texts)
        return self._encoded(frame, self.static)[0]

    def ties_of_rows(self, rows: Any) -> tuple[np.ndarray, ...]:
        """The order in which rows of one set are read, and the tie of each row in that order."""
        frame = read_columns(open_table(rows), {"time": self.time}, {})
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

    @property
    def _texts(self) -> list[str]:
        """The columns that are read as text."""
        return [feature.name for feature in (*self.features, *self.static) if feature.categories]

    def sets_of(self, frame: pd.DataFrame, named: Sequence[str]) -> Table:
        """The rows grouped by set in the order of first appearance, sorted by time; ties stay as in the table."""
        numbers, ids = pd.factorize(frame[self.set_id])
        kept = complete_rows(frame, self._columns, self.missing)
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
                refuse_rows(differs, f"static feature {feature.name!r} varies inside a set", advice)
            static, more = self._encoded(first, self.static)
            unseen |= more
        columns = []
        for target in named:
            labels = self._labels(kept[target])
            of_set = np.zeros(len(ids), dtype=labels.to_numpy().dtype)
            of_set[sets] = labels
            advice = f"give each set ({self.set_id}) one target"
            refuse_rows(labels != of_set[sets], f"target {target!r} varies inside a set", advice)
            columns.append(torch.from_numpy(of_set))
        targets = torch.stack(columns, 1) if len(columns) > 1 else columns[0] if columns else None
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
        places, numbers, _ = _places(self.features)
        middle = elements[:, places[numbers]].abs().median(0).values if rows else torch.zeros(len(numbers))
        for at in (middle > FARTHEST).nonzero()[:, 0].tolist():
            name, far = self.features[numbers[at]].name, float(middle[at])
            line = f"{name}: half of the values are {far:.0f} or more standard deviations from the training mean"
            notes.append(f"{line}; check the unit")
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
        ranks, times, dated = as_times(frame[self.time])
        order = np.lexsort([ranks, sets])
        new_set = np.diff(sets[order], prepend=-1) != 0
        later = np.diff(ranks[order], prepend=-1) != 0
        if self.tie_within is not None:
            later = np.diff(times[order], prepend=-np.inf) > span_of(self.tie_within, dated)
        first = new_set | later
        ties = first.cumsum() - 1
        start, opens = times[order][first], new_set[first]
        since = start - start[opens][opens.cumsum() - 1]
        gaps = np.where(opens, 0.0, np.diff(start, prepend=0.0))
        return order[np.lexsort([order, ties])], ties, since, gaps

    def _encoded(self, frame: pd.DataFrame, features: Sequence[Feature]) -> tuple[Tensor, dict[str, int]]:
        """The features of rows as float32, and how many rows of each feature hold unknown categories."""
        places, numbers, categories = _places(features)
        elements = np.empty((len(frame), places[-1]), dtype=np.float32)
        elements[:, places[numbers]] = standardised(frame, [features[i] for i in numbers], self.missing)
        gaps = np.array([i for i in numbers if features[i].gaps], dtype=np.int64)
        elements[:, places[gaps] + 1] = frame[[features[i].name for i in gaps]].isna()
        unseen = {}
        for i in categories:
            elements[:, places[i] : places[i + 1]], unknown = features[i].encode(frame, self.missing)
            if unknown:
                unseen[features[i].name] = unknown
        return torch.from_numpy(elements), unseen

    def _labels(self, column: pd.Series) -> pd.Series:
        """The target of each row: its class number, or its value as float64."""
        rows, distinct = pd.factorize(column)
        if self.classes is None:
            values = pd.to_numeric(target_values(pd.Series(distinct)), errors="coerce").to_numpy(dtype=np.float64)
            labels = pd.Series(values[rows], column.index)
            far = ~(labels.abs() <= LARGEST)
            refuse_rows(far, f"target {column.name!r} is no number that float32 holds", "correct it")
            if self.task == MULTILABEL:
                refuse_rows(~labels.isin([0, 1]), f"target {column.name!r} is not 0 or 1", "correct it")
                labels = labels.astype(np.int64)
            return labels
        known = {value: number for number, value in enumerate(self.classes)}
        names = (as_text if isinstance(self.classes[0], str) else target_values)(pd.Series(distinct)).tolist()
        labels = pd.Series(np.array([known.get(name, -1) for name in names], dtype=np.int64)[rows], column.index)
        unknown = labels < 0
        shown = names[rows[unknown.argmax()]] if len(rows) else ""
        advice = f"the model's classes are {', '.join(map(str, self.classes[:10]))}"
        refuse_rows(unknown, f"target {column.name!r} holds an unknown class ({shown!r})", advice)
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
        """The target of each set as it stands in the table; of several targets ``[N, K]``."""
        targets, classes = self.data.targets, self.schema.classes
        return None if targets is None else targets.numpy() if classes is None else np.array(classes)[targets.numpy()]


def _places(features: Sequence[Feature]) -> tuple[np.ndarray, list[int], list[int]]:
    """Where the columns of each feature begin and the last ones end, and which features are numbers, and categories."""
    kinds = [bool(feature.categories) for feature in features]
    numbers, categories = ([i for i, kind in enumerate(kinds) if kind == wanted] for wanted in (False, True))
    return np.cumsum([0, *(feature.width for feature in features)]), numbers, categories


def complete_rows(frame: pd.DataFrame, lists: Mapping[str, list[str]], missing: str) -> pd.DataFrame:
    """The rows to keep: all of them, or those without a gap in a feature of their own."""
    if missing == "error":
        gaps = frame[[name for names in lists.values() for name in names]].isna()
        for name in gaps.columns[gaps.any()][:1]:
            advice = "fill the gaps, or choose another rule for missing"
            refuse_rows(gaps[name], f"feature {name!r} is missing", advice)
    of_rows = [name for purpose, names in lists.items() if purpose != "static" for name in names]
    return frame.dropna(subset=of_rows) if missing == "drop-row" else frame
