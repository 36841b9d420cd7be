"""Rows become tables of bare numbers, which the pages print as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from anyorder.paper.report.verdicts import LOWER, Comparison, Sample, figure, longest, sample_of
from anyorder.paper.runner.trial import ONE_ORDERING, Experiment, Row, Setting, spelled, varied


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


def comparisons_table(comparisons: Iterable[Comparison]) -> Table:
    """What was compared with what, or with a goal."""
    heads = ["where", "metric", "one", "ours", "other", "its figure", "difference, 95 % interval, p", "better?"]
    rows = [
        [c.where, c.metric, c.one, f"{c.ours}", c.other, f"{c.theirs}", difference(c), c.holds] for c in comparisons
    ]
    return Table("What decides, seed by seed", heads, rows)


def expected_table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """The paper's figures beside ours at its setting."""
    lines = []
    for e in (e for e in experiment.expected if e.paper is not None):
        _, ours = figure(experiment, rows, e.method, e.metric, e.where)
        spread = "" if e.sd is None else f" ± {e.sd:g}"
        lines.append([spelled(dict(e.where)), e.method, f"{e.paper:g}{spread}", f"{ours}"])
    return Table("The paper's figures beside ours at its setting", ["where", "method", "paper", "ours"], lines)


def goals_table(experiment: Experiment, rows: Sequence[Row], comparisons: Sequence[Comparison]) -> Table:
    """The goals of an experiment of our own, and the figure of every method there."""
    methods = list(experiment.plan(rows[0]["scale"]).methods) if rows else []
    goals = [c for c in comparisons if isinstance(c.theirs, float) and experiment.reported == "not tried"]
    lines = []
    for c in goals:
        figures = [f"{figure(experiment, rows, method, c.metric, c.place)[1]}" for method in methods]
        lines.append([c.where, c.metric, f"{'≤' if c.metric in LOWER else '≥'} {c.theirs:g}", *figures])
    return Table("Figures to reach", ["where", "metric", "goal", *methods], lines)


def choices_table(experiment: Experiment, scale: str, rows: Sequence[Row]) -> Table:
    """A line a method and cell: its chosen setting and its figures over seeds, at the longest test length."""
    plan, metric = experiment.plan(scale), experiment.headline
    chosen = longest([row for row in rows if row["selected"]])
    heads = {
        metric: metric,
        metric + ONE_ORDERING: "one ordering",
        "accuracy_20_orderings": "20 orderings",
        "train_loss": "train loss",
        "state_gap_squared": "state gap²",
        "final_weight": "final weight",
        "step_rate_over_plain_torch": "speed",
    }
    heads = {key: head for key, head in heads.items() if any(key in row["metrics"] for row in chosen)}
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in chosen:
        keys = [*plan.over, "length"] if "lengths" in row["setting"] else plan.over
        choice = _spelled(row, varied(plan.methods[row["method"]]))
        groups.setdefault((row["method"], _spelled(row, keys), choice), []).append(row)
    lines = []
    for (method, where, choice), found in groups.items():
        samples = {key: sample_of(found, key) for key in heads}
        figures = [str(s) if key.startswith((metric, "accuracy")) else _digits(s) for key, s in samples.items()]
        seconds = f"{median(row['seconds'] for row in found):.0f}"
        lines.append([method, where, choice, *figures, f"{len(found)}", f"{found[0]['parameters']:,}", seconds])
    columns = ["method", "where", "chosen", *heads.values(), "seeds", "parameters", "seconds"]
    return Table("Each method's choice by validation: test figures", columns, _in_order(lines))


def figure_at(experiment: Experiment, rows: Sequence[Row], name: str, metric: str, where: Setting) -> str:
    """A method and its figure: ``sire 0.985 ± 0.002``; nothing without rows."""
    method, sample = figure(experiment, rows, name, metric, where)
    return f"{method} {sample}" if sample else ""


def _in_order(lines: list[list[str]]) -> list[list[str]]:
    """Lines by place and method, numbers in a place by their size."""

    def key(line: list[str]) -> tuple[Any, ...]:
        words = [word.strip(",") for word in line[1].split()]
        return [(float(w), "") if w.replace(".", "").isdigit() else (-1.0, w) for w in words], line[0]

    return sorted(lines, key=key)


def _spelled(row: Row, keys: Iterable[str]) -> str:
    return spelled({key: row["setting"][key] for key in keys if row["setting"].get(key) is not None})


def _digits(sample: Sample) -> str:
    return f"{sample.mean:.4g}" if sample else ""
