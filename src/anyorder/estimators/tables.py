"""Long tables as sets: frames and files in, :class:`SetData` and a schema that reads the next table out.

A long table has one row an element, a column that names the row's set, and feature columns. A column of times orders
the rows of a set. Rows of one time are a tie: their order is an accident, and no feature tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_string_dtype

from anyorder.checks import InputError, one_of
from anyorder.estimators.columns import as_times, numbers_of, parsed, refuse_rows, target_values
from anyorder.estimators.features import Feature, learn_features
from anyorder.estimators.schema import MISSING, MULTILABEL, TASKS, Table, TableSchema, complete_rows
from anyorder.estimators.sources import open_table, read_columns

_ROW_NUMBERS = {"", "__index_level_0__"}  # the names that pandas gives them in CSV and Parquet
_MOST_UNNAMED = 50_000  # columns that are features although nobody named them
_WILD = 1e4  # times the range of nearly all values of a column


class TableWarning(UserWarning):
    """Something in a table is probably not what its owner means."""


def read_table(
    source: Any,
    *,
    set_id: str,
    target: str | Sequence[str] | None = None,
    time: str | None = None,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    missing: str = "error",
    task: str | None = None,
    static: Sequence[str] = (),
    name: str | None = None,
    value: str | None = None,
    tie_within: str | float | None = None,
    ignore: Sequence[str] = (),
) -> Table:
    """The sets of a long table, and the schema that encodes them.

    Args:
        source: The path of a CSV, TSV or Parquet file (``.csv.gz`` too), a DataFrame, an Arrow table, or a mapping of
            columns.
        set_id: Name of the column that names each row's set.
        target: Name of the target column. A text or boolean target means classification, a float one regression.
            Several names are several numbers, or labels of 0 and 1.
        time: Name of the column of times that orders the rows of a set. Default: the order of the rows. Rows of one
            time are a tie (``Table.data.ties``).
        features: Names of the feature columns. Default: every other column but those in ``ignore``, if they are at
            most 50,000.
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
    given = {"time": time, "name": name}
    roles = {"set_id": str(set_id), **{role: str(column) for role, column in given.items() if column is not None}}
    of_sets, of_names = [*map(str, static or ())], [] if value is None else [str(value)]
    targets = [*map(str, target)] if isinstance(target, (list, tuple)) else [] if target is None else [str(target)]
    opened = open_table(source)
    taken = {*roles.values(), *targets, *of_sets, *of_names, *map(str, ignore or ())}
    chosen = [column for column in opened.columns if column not in taken] if features is None else [*map(str, features)]
    if not (chosen or name or time) or (features is None and _ROW_NUMBERS & {*chosen}):
        raise InputError(
            f"{opened.name} must have feature columns, all with names; got {chosen[:3]} besides {roles} (pandas "
            "writes row numbers without a name; to_csv(index=False) leaves them out)"
        )
    if features is None and len(chosen) > _MOST_UNNAMED:
        raise InputError(
            f"features must be named, for {opened.name} has {len(chosen):,} columns to learn from; at most "
            f"{_MOST_UNNAMED:,} are taken unnamed"
        )
    categories = [one_of("categorical", str(column), [*chosen, *of_sets]) for column in categorical or ()]
    lists = {"features": chosen, "static": of_sets, "value": of_names}
    frame = read_columns(opened, roles, lists, targets, categories)
    kept = complete_rows(frame, lists, missing)
    if kept.empty:
        raise InputError(f"no row of {opened.name} is complete; choose another rule for missing than {missing!r}")
    learnt = learn_features(kept, chosen, categories)
    if name is not None:
        learnt = (Feature.named(kept, roles["name"], of_names[0]), *learnt)
    first = kept[~kept[roles["set_id"]].duplicated()]
    whole = learn_features(first, of_sets, categories)
    classes = None
    if targets:
        task, classes = _task(kept[targets], task)
    schema = TableSchema(
        roles["set_id"], learnt, tuple(targets), roles.get("time"), missing, task, classes, whole, tie_within
    )
    if time is not None:
        gaps = schema._ties(kept, pd.factorize(kept[roles["set_id"]])[0])[3]
        schema = replace(schema, gap=float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0)
    table = schema.sets_of(frame, targets)
    full = table.data.lengths > 0
    data, notes = table.data.select(full), [*table.notes, *_traps(kept, schema)]
    if classes is not None:
        assert data.targets is not None
        alone = np.flatnonzero(np.bincount(data.targets.numpy(), minlength=len(classes)) == 1)
        notes += [f"class {classes[i]!r} of {targets[0]!r} has one set; give it more, or leave it out" for i in alone]
    return replace(table, data=data, set_ids=table.set_ids[full.numpy()], notes=notes)


def column_of_sets(source: Any, schema: TableSchema, role: str, column: str) -> tuple[pd.Series, bool]:
    """The value of each set in a column, indexed by set, and whether the values are times: then the earliest."""
    roles = {"set_id": schema.set_id, role: column}
    frame = read_columns(open_table(source), roles, {})
    values = frame[column]
    dated = column == schema.time or values.dtype.kind == "M" or _are_dates(values)
    if dated:
        values = pd.Series(as_times(values)[0], values.index)
    found = values.groupby(frame[schema.set_id], sort=False).min()
    if not dated:
        varies, advice = values != frame[schema.set_id].map(found), f"give each set ({schema.set_id}) one value"
        refuse_rows(varies, f"{role} column {column!r} varies inside a set", advice)
    return found, dated


def _are_dates(values: pd.Series) -> bool:
    """Whether texts are dates; years alone may be the names of groups."""
    if not is_string_dtype(values) or parsed(values).notna().any():
        return False
    return bool(pd.to_datetime(values, errors="coerce", utc=True, format="ISO8601").notna().all())


def _traps(frame: pd.DataFrame, schema: TableSchema) -> list[str]:
    """What in a training table is probably not what its owner means, a line each."""
    features = (*schema.features, *schema.static)
    values = numbers_of(frame, [feature.name for feature in features if not feature.categories])
    low, middle, high = values.quantile([0.01, 0.5, 0.99]).to_numpy()
    far = (values - middle).abs()
    wild = far.max() / _WILD > high - low
    counts = (values.diff().iloc[1:] == 1).all() & (len(values) > 9)
    notes = [
        f"{name}: {values[name][at]:.3g} in row {at} is far from all other values and hides their differences; correct "
        "it, or leave the row out"
        for name, at in far.loc[:, wild & (high > low)].idxmax().items()
    ]
    advice = "the column counts the rows, so it tells nothing of new ones; leave it out"
    notes += [f"{name}: {advice}" for name in counts.index[counts]]
    for feature in features:
        named = feature.categories and feature.value is None
        if named and (line := _strange_categories(pd.Series(feature.categories), len(frame))):
            notes.append(f"{feature.name}: {line}")
    few = frame[frame.iloc[:, :64].duplicated(keep=False)]  # a copy is one in these columns too
    twice = few.duplicated()
    if twice.any() and (schema.time is not None or (len(few) == len(frame) and few.duplicated(keep=False).all())):
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


def _task(columns: pd.DataFrame, task: str | None) -> tuple[str, tuple[Any, ...] | None]:
    """The task of the target columns, and the classes of a single one in their order."""
    if columns.shape[1] > 1:
        known = [_task_of(columns[name], task) for name in columns]
        if len({task for task, _ in known}) > 1:
            raise InputError(f"targets {[*columns]} must be all amounts or all labels of 0 and 1; got some of each")
        return (MULTILABEL if known[0][0] == "classification" else "regression"), None
    return _task_of(columns.iloc[:, 0], task)


def _task_of(column: pd.Series, task: str | None) -> tuple[str, tuple[Any, ...] | None]:
    values, fault = target_values(column.drop_duplicates()).drop_duplicates(), None
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
