"""Rows become tables of bare numbers, which the pages print as they are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from anyorder.paper.report.verdicts import LOWER, Comparison, figure, longest, sample_of
from anyorder.paper.runner.trial import MANY_ORDERINGS, ONE_ORDERING, Experiment, Row, Setting, spelled, varied


@dataclass(frozen=True)
class Table:
    """A caption, the columns' heads, and rows of texts."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def difference(c: Comparison) -> str:
    """The mean difference, its 95 % interval, and the corrected p-value."""
    digits = 3 if abs(c.ours.mean) < 10 else 1
    if len(c.gap) < 2:
        return f"{c.gap.mean:+.{digits}f}"
    low, high = c.gap.interval
    return f"{c.gap.mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f}), p {max(c.p, 0.001):.2g}"


def tables_of(
    experiment: Experiment, rows: Sequence[Row], comparisons: Sequence[Comparison], before: Sequence[Row]
) -> list[Table]:
    """The tables of one experiment at one scale, also of rows from before; those that have rows."""
    if not rows:
        return []
    plan, scale = experiment.plan(rows[0]["scale"]), rows[0]["scale"]
    published = []
    for e in (e for e in experiment.expected if e.paper is not None):
        paper = f"{e.paper:g}" + ("" if e.sd is None else f" ± {e.sd:g}")
        published.append([spelled(e.where), figure_at(experiment, rows, before, e.method, e.metric, e.where), paper])
    goals = []
    for c in (c for c in comparisons if isinstance(c.theirs, float) and experiment.reported == "not tried"):
        figures = [f"{figure(experiment, rows, method, c.metric, c.place)[1]}" for method in plan.methods]
        goals.append([c.where, c.metric, f"{'≤' if c.metric in LOWER else '≥'} {c.theirs:g}", *figures])
    heads = ["where", "metric", "one", "ours", "other", "its figure", "difference, 95 % interval, p", "better?"]
    told = [
        [c.where, c.metric, c.one, f"{c.ours}", c.other, f"{c.theirs}", difference(c), c.holds] for c in comparisons
    ]
    edge = [[method, spelled({key: value})] for method, key, value in experiment.at_the_edge(scale, rows)]
    tables = [
        Table("The paper's figures beside ours at its setting", ["where", "ours", "paper"], published),
        Table("Figures to reach", ["where", "metric", "goal", *plan.methods], goals),
        Table("What decides, seed by seed", heads, told),
        choices_table(experiment, scale, rows),
        Table("Choices at the end of their grid", ["method", "chosen"], edge),
        replace(choices_table(experiment, scale, before), caption="† Of an earlier declaration: they decide nothing"),
    ]
    return [table for table in tables if table.rows]


def choices_table(experiment: Experiment, scale: str, rows: Sequence[Row]) -> Table:
    """A line a method and place: its chosen setting and its figures over seeds, at the longest test length."""
    plan, metric = experiment.plan(scale), experiment.headline
    chosen = longest([row for row in rows if row["selected"]])
    heads = {
        metric: metric,
        metric + ONE_ORDERING: "one ordering",
        metric + MANY_ORDERINGS: MANY_ORDERINGS.replace("_", " ").strip(),
        "train_loss": "train loss",
        "state_gap_squared": "state gap²",
        "final_weight": "final weight",
        "step_rate_over_plain_torch": "speed",
    }
    heads = {key: head for key, head in heads.items() if any(key in row["metrics"] for row in chosen)}
    order = list(plan.methods)

    def place(row: Row) -> tuple[list[int], int]:
        own = [(list(values), row["setting"].get(key)) for key, values in plan.over.items()]
        return [values.index(value) if value in values else -1 for values, value in own], order.index(row["method"])

    lines = []
    for (_, number), group in itertools.groupby(sorted(chosen, key=place), key=place):
        found, method = list(group), order[number]
        here, samples = found[0]["setting"], [sample_of(found, key) for key in heads]
        where = [key for key in [*plan.over, *["length"] * ("lengths" in here)] if here.get(key) is not None]
        choice = [key for key in varied(plan.methods[method]) if here.get(key) is not None]
        words = [method, *(spelled({key: here[key] for key in keys}) for keys in (where, choice))]
        figures = [f"{s}" if m.startswith(metric) else f"{s.mean:.4g}" for m, s in zip(heads, samples, strict=True)]
        cost = f"{found[0]['parameters']:,}", f"{median(row['seconds'] for row in found):.0f}"
        lines.append([*words, *figures, f"{len(found)}", *cost])
    columns = ["method", "where", "chosen", *heads.values(), "seeds", "parameters", "seconds"]
    return Table("Each method's choice by validation: test figures", columns, lines)


def figure_at(
    experiment: Experiment, rows: Sequence[Row], before: Sequence[Row], name: str, metric: str, where: Setting
) -> str:
    """A method and its figure: ``sire 0.985 ± 0.002``; with † of rows from before; nothing without rows."""
    for some, mark in ((rows, ""), (before, "†")):
        method, sample = figure(experiment, some, name, metric, where)
        if sample:
            return f"{method} {sample}{mark}"
    return ""
