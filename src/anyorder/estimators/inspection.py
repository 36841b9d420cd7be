"""What a table's model rests on: its columns, single rows, the order of rows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from anyorder.audits.intervals import Estimate, mean_interval
from anyorder.audits.run import audit
from anyorder.data.sets import SetData
from anyorder.estimators.metrics import loss_of, main_metric
from anyorder.estimators.schema import Table

if TYPE_CHECKING:
    from anyorder.estimators.table_model import TableModel

_KINDS = 12  # kinds of rows in the picture of an audit


def importance(model: TableModel, table: Table, repeats: int) -> pd.DataFrame:
    """How much worse the main metric gets when a feature's values are dealt to other rows, or sets, at random."""
    data, schema, draws = table.data, model.schema, np.random.default_rng(model.random_state)
    increase, rows, truth = f"{main_metric(schema.task)}_increase", [], data.targets.numpy()  # type: ignore[union-attr]

    def loss(of: SetData) -> float:
        return loss_of(schema.task, truth, model._outputs(model._joined(of)))

    widths = {kind: [(f.name, f.width) for f in getattr(schema, role)] for kind, role in _ROLES.items()}
    widths["elements"] += [(schema.time, 2)] if schema.time is not None else []
    given = loss(data)
    for kind, named in widths.items():
        ends = np.cumsum([width for _, width in named])
        for (name, width), end in zip(named, ends.tolist(), strict=True):
            worse, columns = [], slice(end - width, end)
            for _ in range(repeats):
                values = getattr(data, kind).clone()
                values[:, columns] = values[torch.from_numpy(draws.permutation(len(values)))][:, columns]
                worse.append(loss(dataclasses.replace(data, **{kind: values})) - given)
            rows.append({"feature": name, increase: np.mean(worse), "spread": np.std(worse)})
    return pd.DataFrame(rows).sort_values(increase, ascending=False, ignore_index=True)


_ROLES = {"elements": "features", "static": "static"}


def left_out(model: TableModel, table: Table, sets: int, rows: int, seed: int) -> pd.DataFrame:
    """How far the output moves (``change``) when one row is left out of its set, the largest first."""
    draws, schema = np.random.default_rng(seed), model.schema
    chosen = np.sort(draws.permutation(np.flatnonzero(table.data.lengths > 1))[:sets])
    if len(chosen) == 0:
        return pd.DataFrame({schema.set_id: [], "change": []})
    data = table.data.select(chosen)
    spans = np.split(np.arange(len(data.elements)), data.offsets[1:-1])
    drawn = [np.sort(draws.permutation(span)[:rows]) for span in spans]
    owner, row = np.repeat(np.arange(len(data)), [*map(len, drawn)]), np.concatenate(drawn)
    kept = [np.delete(spans[i], r - spans[i][0]) for i, r in zip(owner, row, strict=True)]
    flat, offsets = torch.from_numpy(np.concatenate(kept)), torch.tensor([0, *map(len, kept)]).cumsum(0)
    ties, static = None if data.ties is None else data.ties[flat], None if data.static is None else data.static[owner]
    reduced = SetData(data.elements[flat], offsets, ties=ties, static=static)
    given, moved = (model._outputs(model._joined(part)) for part in (data, reduced))
    found = pd.DataFrame(schema.decode(data.elements[row]), columns=[feature.name for feature in schema.features])
    found.insert(0, schema.set_id, table.set_ids[chosen[owner]])
    found["change"] = np.abs(moved - given[owner]).reshape(len(row), -1).mean(1)
    return found.sort_values("change", ascending=False, kind="stable", ignore_index=True)


def audited(model: TableModel, table: Table, sets: int, seed: int, options: dict[str, Any]) -> Any:
    """The audit of at most ``sets`` sets: does the order of the rows in the table matter?"""
    data, schema = model._joined(table.data), model.schema
    chosen = data.lengths.nonzero()[:, 0]
    if len(chosen) > sets:
        draws = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))
        chosen = chosen[draws[:sets].sort().values]

    def outputs(orders: list[Any]) -> np.ndarray:
        rows = [torch.as_tensor(order)[:, 0].long() for order in orders]  # of the elements, in another order
        if data.ties is not None:
            rows = [row[data.ties[row].argsort(stable=True)] for row in rows]
        numbers = torch.bucketize(torch.stack([row[0] for row in rows]), data.offsets, right=True) - 1
        static = None if data.static is None else data.static[numbers]
        offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
        return model._outputs(SetData(data.elements[torch.cat(rows)], offsets, static=static))

    rows = torch.arange(len(data.elements), dtype=torch.float64)[:, None]
    labels = None if data.targets is None else data.targets[chosen].numpy()
    elements = [rows[data.offsets[i] : data.offsets[i + 1]].numpy() for i in chosen.tolist()]
    options["set_names"] = [str(table.set_ids[i]) for i in chosen.tolist()]
    classes = None if schema.classes is None else [str(c) for c in schema.classes]
    task = "regression" if classes is None else "classification"
    report = audit(outputs, elements, labels=labels, task=task, class_names=classes, **options)
    shown = [
        dataclasses.replace(case, elements=schema.decode(data.elements[case.elements[:, 0].astype(int)]))
        for case in report.worst
    ]
    kinds = _kinds_of_rows(model, left_out(model, table, min(sets, 100), 32, seed), report.spread)
    names = [feature.name for feature in schema.features]
    return dataclasses.replace(report, worst=shown, feature_names=names, left_out=kinds)


def _kinds_of_rows(model: TableModel, rows: pd.DataFrame, spread: float) -> dict[str, Estimate] | None:
    """The mean change of the kinds of rows that matter most: categories, or quarters of the first number."""
    features = sorted(model.schema.features, key=lambda feature: not feature.categories)  # categories first
    if rows.empty or not spread or not features:
        return None
    column, named = rows[features[0].name], bool(features[0].categories)
    kinds = column.str.partition(" = ")[0] if named else pd.qcut(column.astype(float), 4, duplicates="drop")
    changes = (rows["change"] / spread).groupby(kinds.astype(str)).agg(["mean", list]).nlargest(_KINDS, "mean")["list"]
    lists = {str(name): np.array(values) for name, values in changes.items()}
    return {name: Estimate(found.mean(), mean_interval(found), len(found)) for name, found in lists.items()}
