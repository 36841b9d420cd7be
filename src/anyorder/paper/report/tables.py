"""Rows become tables of bare numbers, which the pages print as they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import Any

from anyorder.paper.report.verdicts import Comparison, Sample, labels_curve, labels_needed, sample_of
from anyorder.paper.runner.trial import ONE_ORDERING, Experiment, Row, spelled, varied


@dataclass(frozen=True)
class Table:
    """A caption, the columns' heads, and rows of texts."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table in Markdown, its caption above it."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return f"{self.caption}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def comparisons_table(comparisons: Iterable[Comparison]) -> Table:
    """What was compared with what, and with the paper."""
    columns = ["where", "metric", "one", "ours", "other", "its figure", "difference, or accepted band", "better?"]
    rows = [[*astuple(c)[:7], c.holds + "*" * (not c.decides and bool(c.holds))] for c in comparisons]
    return Table("Compared, seed by seed, with 95 % intervals (*: does not decide the verdict)", columns, rows)


def choices_table(experiment: Experiment, scale: str, rows: Sequence[Row]) -> Table:
    """A line a method and cell: its chosen setting and its figures over seeds, at the longest test length."""
    plan, metric = experiment.plan(scale), experiment.headline
    chosen = _longest([row for row in rows if row["selected"]])
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


def weights_table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """The mean test figure of every candidate by its penalty weight."""
    groups: dict[tuple[str, str], dict[float, list[Row]]] = {}
    for row in _longest([row for row in rows if "penalty_weight" in row["setting"]]):
        other = {key: value for key, value in row["setting"].items() if key != "penalty_weight"}
        cells = groups.setdefault((row["method"], json.dumps(other, sort_keys=True)), {})
        cells.setdefault(row["setting"]["penalty_weight"], []).append(row)
    groups = {key: cells for key, cells in groups.items() if len(cells) > 1}
    weights = sorted({weight for cells in groups.values() for weight in cells})
    differing = varied([json.loads(other) for _, other in groups])
    lines = []
    for (method, _), cells in groups.items():
        found = [cells.get(weight, []) for weight in weights]
        means = [
            _digits(sample_of(cell, experiment.headline)) + "*" * any(r["selected"] for r in cell) for cell in found
        ]
        lines.append([method, _spelled(next(iter(cells.values()))[0], differing), *means])
    columns = ["method", "where", *(f"{weight:g}" for weight in weights)]
    return Table(f"Mean {experiment.headline} by penalty weight (*: chosen)", columns, _in_order(lines))


# Our figures in few words: the metric, the settings and the methods of a line of the summary.
SUMMARY: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "parity": ("accuracy", {"cell": "relu-rnn", "length": 100}, ("sire", "plain", "deepsets")),
    "sub-vs-sire": ("accuracy", {}, ("sire", "sub")),
    "half-range": ("accuracy", {"n": 20, "labels": 100000}, ("sire", "sire-prefix-1", "plain")),
    "lengths": ("mae", {"cell": "gru", "length": 100}, ("sire", "plain", "deepsets")),
    "sum": ("accuracy", {"n": 30}, ("sire", "sire+shuffle", "plain", "pi-sgd", "deepsets")),
    "range": ("accuracy", {"n": 30}, ("sire", "sire+shuffle", "plain", "pi-sgd", "deepsets")),
    "variance": ("rmse", {"n": 30}, ("sire", "sire+shuffle", "plain", "pi-sgd", "deepsets")),
    "ecg": ("accuracy", {"labels": 0.05}, ("sire", "plain", "deepsets")),
    "activity": ("accuracy", {"labels": 0.05}, ("sire", "plain", "deepsets")),
    "bags": ("accuracy", {"data": "elephant", "labels": 0.05}, ("sire", "plain", "deepsets")),
    "pointcloud": ("accuracy", {}, ("sire+shuffle", "pi-sgd", "deepsets", "set-transformer")),
    "pointcloud-1000": ("accuracy", {}, ("sire+shuffle", "deepsets")),
    "perturbed-mnist": ("accuracy", {}, ("sire-prefix-9", "sire-prefix-9+shuffle", "plain", "cnn")),
    "perturbed-digits": ("accuracy", {}, ("sire", "sire-prefix-1", "plain", "cnn")),
}


def headline(experiment: Experiment, chosen: Sequence[Row], comparisons: Sequence[Comparison]) -> str:
    """Our figures in few words: those of :data:`SUMMARY`, or of the first comparison."""
    if experiment.name == "labels":
        shown = ("sire", "sire+shuffle", "plain", "pi-sgd", "deepsets")
        curves = {method: labels_curve(chosen, method, alphabet=20) for method in shown}
        needed = "; ".join(f"{method} {labels_needed(curve)[1]}" for method, curve in curves.items() if curve)
        return f"labels for accuracy 0.9, alphabet 20: {needed}" if needed else ""
    if experiment.name not in SUMMARY:
        return "".join(f"{c.one} {c.ours}; {c.other} {c.theirs}" for c in comparisons[:1])
    metric, where, methods = SUMMARY[experiment.name]
    here = [row for row in chosen if all(row["setting"].get(key) in (value, None) for key, value in where.items())]
    samples = {method: sample_of(here, metric, method) for method in methods}
    found = "; ".join(f"{method} {sample}" for method, sample in samples.items() if sample)
    place = ", ".join(filter(None, [metric * (metric != "accuracy"), spelled(where)]))
    return f"{place}: {found}" if place and found else found


def _longest(rows: Sequence[Row]) -> list[Row]:
    """Of a model tested at several lengths, the rows of the longest."""
    longest = Counter[str]()
    for row in rows:
        longest[row["trial"]] = max(longest[row["trial"]], row["setting"].get("length", 0))
    return [row for row in rows if row["setting"].get("length", 0) == longest[row["trial"]]]


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
