"""Rows become figures: the lines of a :class:`Chart`, means over seeds with their intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from anyorder.audits.page import Figure
from anyorder.paper.report.statistics import Sample, by_seed, matching
from anyorder.paper.runner.trial import Chart, Experiment, Row, is_number, spelled, varied

COLOURS = ["#2457c5", "#b4540a", "#1b7a46", "#8a3ffc", "#b3261e", "#8a6100", "#5b6472", "#0f7b8a", "#c2185b"]
LOGARITHMIC = ("mae", "rmse", "state_gap_squared")  # drawn on a logarithmic axis
ROUNDING = 1e-9  # an order gap below this is that of a model which ignores order exactly
CURVES = {
    "accuracy": "validation accuracy",
    "validation": "validation accuracy",
    "loss": "training loss (of standardised targets)",
    "gap": "validation order gap",
}


def default_charts(experiment: Experiment, scale: str) -> list[Chart]:
    """The chosen settings over each reported number, and all candidates of the search over the penalty weight."""
    plan = experiment.plan(scale)
    numeric = [key for key, values in plan.over.items() if len(values) > 1 and all(is_number(v) for v in values)]
    charts = [
        Chart(
            key,
            experiment.headline,
            [k for k in plan.over if k != key],
            log=_spans_decades(plan.over[key]),
            minus=minus,
        )
        for key in numeric
        for minus in ([None, "plain"] if "plain" in plan.methods else [None])
    ]
    weights = {c.get("penalty_weight") for candidates in plan.methods.values() for c in candidates}
    if len(weights - {None}) > 1:
        split, rest = next(iter(plan.over), None), list(plan.over)[1:]
        searches = [varied(candidates) for candidates in plan.methods.values()]
        beside = {key for keys in searches if "penalty_weight" in keys for key in keys} - {"penalty_weight"}
        by = [*rest, *sorted(beside)]
        charts.append(Chart("penalty_weight", experiment.headline, by, split, every=True, log=True, where=plan.tune_on))
    return charts


def _spans_decades(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 10


@dataclass(frozen=True)
class Line:
    """Points of a figure: where, and the seeds' values there."""

    label: str
    points: dict[float, Sample]

    @property
    def positive(self) -> Line:
        """The points a logarithmic axis can show: of more than rounding."""
        return Line(self.label, {x: s for x, s in self.points.items() if min(s.values.values()) > ROUNDING})


def lines_of(chart: Chart, rows: Sequence[Row]) -> list[Line]:
    """The lines of ``chart`` through ``rows``; a line with the single place nan is level (it has no ``chart.x``)."""
    if not chart.every:
        rows = [row for row in rows if row["selected"]]
    groups: dict[str, dict[float, list[tuple[int, float]]]] = {}
    for row in matching(rows, chart.where):
        by = {key: row["setting"][key] for key in chart.by if row["setting"].get(key) is not None}
        label = ", ".join([row["method"], *(spelled({k: v}) if is_number(v) else str(v) for k, v in by.items())])
        for x, y in _points(chart, row):
            groups.setdefault(label, {}).setdefault(x, []).append((row["seed"], y))
    lines = [
        Line(label, {x: by_seed(v, f"{chart.metric} of {label} at {chart.x} {x:g}") for x, v in sorted(points.items())})
        for label, points in groups.items()
    ]
    return lines if chart.minus is None else _differences(lines, chart.minus)


def _differences(lines: list[Line], base: str) -> list[Line]:
    """Each line minus the base's of the same settings, seed by seed, where both have at least one seed in common."""
    points_of, found = {line.label: line.points for line in lines}, []
    for line in lines:
        method, comma, place = line.label.partition(",")
        theirs = points_of.get(base + comma + place, {})
        points = {x: sample.minus(theirs[x]) for x, sample in line.points.items() if x in theirs}
        if method != base:
            found.append(Line(line.label, {x: sample for x, sample in points.items() if len(sample)}))
    return found


def _points(chart: Chart, row: Row) -> Iterable[tuple[float, float]]:
    if chart.curve:
        curve = row.get("curve") or {chart.x: [], chart.metric: []}
        for x, y in zip(curve[chart.x], curve[chart.metric], strict=True):
            if y is not None:  # a model without a state has no gap to draw
                yield x, y
    elif chart.metric in row["metrics"]:
        x = row["setting"].get(chart.x)
        if is_number(x):
            yield float(x), row["metrics"][chart.metric]
        elif chart.every and row["selected"]:
            yield math.nan, row["metrics"][chart.metric]


def draw(experiment: Experiment, chart: Chart, rows: Sequence[Row], name: str) -> list[Figure]:
    """The figures of a chart: one, or one for each value of ``chart.split``."""
    if chart.split is None:
        return _figure(experiment, chart, rows, name, "")
    values = {json.dumps(row["setting"].get(chart.split)): row["setting"].get(chart.split) for row in rows}
    plans = reversed(list(experiment.plans.values()))  # the smallest has only some of the values
    declared = [value for plan in plans for value in plan.over.get(chart.split, [])]
    figures = []
    for number, value in enumerate(v for v in dict.fromkeys(declared) if v in values.values()):
        mine = [row for row in rows if row["setting"].get(chart.split) in (value, None)]
        title = ", ".join([*(v for v in chart.where.values() if isinstance(v, str)), spelled({chart.split: value})])
        figures += _figure(experiment, chart, mine, f"{name}-{number}", title)
    return figures


def _figure(experiment: Experiment, chart: Chart, rows: Sequence[Row], name: str, title: str) -> list[Figure]:
    order = [method for plan in experiment.plans.values() for method in plan.methods]
    lines = sorted(lines_of(chart, rows), key=lambda line: order.index(line.label.split(",")[0]))
    logarithmic = chart.minus is None and chart.metric in LOGARITHMIC
    exact = [line.label for line in lines if logarithmic and line.points and not line.positive.points]
    lines = [line.positive if logarithmic else line for line in lines]
    lines = [line for line in lines if line.points]
    if not any(len(line.points) > 1 for line in lines):
        return []

    methods = list(dict.fromkeys(order))
    figure = (CURVES if chart.curve else {}).get(chart.metric, chart.metric.replace("_", " "))
    figure += f" minus that of {chart.minus}" if chart.minus else ""

    def colour_of(number: int, label: str) -> str:  # a method has the same colour in every figure of an experiment
        return COLOURS[(number if chart.by else methods.index(label)) % len(COLOURS)]

    def paint(axes: Axes) -> None:
        for number, line in enumerate(lines):
            colour = colour_of(number, line.label)
            places = [x for x in line.points if not math.isnan(x)]
            if not places:
                middle, _, _ = _band(next(iter(line.points.values())), logarithmic)
                axes.axhline(middle, color=colour, linestyle="--", linewidth=1.2, label=f"{line.label} (its choice)")
                continue
            _plot(axes, {x: line.points[x] for x in places}, colour, line.label, logarithmic)
        if chart.log and any(0.0 in line.points for line in lines):
            axes.set_xscale("symlog", linthresh=1e-3)
        elif chart.log:
            axes.set_xscale("log")
        if chart.minus is not None:
            axes.axhline(0, color="#5b6472", linewidth=1)
        elif chart.metric == "accuracy":
            bottom, top = accuracy_limits(*axes.get_ylim())
            axes.set_ylim(bottom, top)
            axes.set_yticks([tick for tick in axes.get_yticks() if bottom <= tick <= 1.0001])
        elif logarithmic:
            axes.set_yscale("log")
        if chart.x == "epoch":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(chart.x.replace("_", " "))
        axes.set_ylabel(figure)
        axes.set_title(title or experiment.name)
        axes.figure.legend(loc="outside lower center", ncols=columns, fontsize=9, frameon=False)

    longest = max(len(line.label) + 13 * all(math.isnan(x) for x in line.points) for line in lines)
    columns = 3 if longest < 18 else 2 if longest < 28 else 1
    fewest, seeds = (end(len(s) for line in lines for s in line.points.values()) for end in (min, max))
    ends = "; ".join(f"{line.label} {list(line.points.values())[-1].mean:.3g}" for line in lines)
    what = f"{figure} against {chart.x.replace('_', ' ')}"
    mean = "geometric mean" if logarithmic else "mean"
    of = "one seed" if seeds == 1 else f"{mean} and 95 % interval of {seeds} seeds"
    of += f", {fewest} in places" if fewest < seeds else ""
    caption = f"{what[0].upper()}{what[1:]}; {of}{', paired by seed' if chart.minus else ''}."
    caption += f" Left out, 0 but for rounding: {', '.join(exact)}." if exact else ""
    alt = f"Line chart of {what}{', ' + title if title else ''}. At the end: {ends}."
    return [Figure(name, paint, alt, caption, 3.1 + 0.2 * math.ceil(len(lines) / columns))]


def accuracy_limits(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis of accuracies whose data fill ``low`` to ``high``: 1 is shown only where it is near.

    >>> accuracy_limits(0.5, 0.9), accuracy_limits(-0.02, 0.3)
    ((0.5, 1.015), (0.0, 0.3))
    """
    low = max(0.0, low)
    near = 1 - high < (high - low) / 2
    return low, 1 + 0.03 * (1 - low) if near else high


def _band(sample: Sample, logarithmic: bool) -> tuple[float, float, float]:
    """Mean and 95 % interval; on a logarithmic axis those of the logarithms, which cannot reach 0."""
    if not logarithmic:
        return sample.mean, sample.low, sample.high
    logs = Sample({seed: math.log(value) for seed, value in sample.values.items()})
    return math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high)


def _plot(axes: Axes, points: dict[float, Sample], colour: str, label: str, logarithmic: bool = False) -> None:
    bands = {x: _band(sample, logarithmic) for x, sample in points.items()}
    axes.plot(list(bands), [b[0] for b in bands.values()], "o-", color=colour, ms=3, linewidth=1.6, label=label)
    shaded = {x: bands[x] for x, sample in points.items() if len(sample) > 1}
    lows, highs = [b[1] for b in shaded.values()], [b[2] for b in shaded.values()]
    axes.fill_between(list(shaded), lows, highs, color=colour, alpha=0.15, linewidth=0)


def labels_figure(rows: Sequence[Row]) -> Figure | None:
    """Accuracy against the number of labels for five methods, to stand by itself; None without rows of them."""
    names = {
        "plain": "plain GRU",
        "sire": "GRU with SIRE",
        "pi-sgd": "π-SGD",
        "deepsets": "DeepSets",
        "sire+shuffle": "SIRE, a fresh order each epoch",
    }
    lines = {line.label: line for line in lines_of(Chart("labels", where={"alphabet": 20}), rows)}
    lines = {names[method]: lines[method] for method in names if method in lines}
    if not lines:
        return None
    places = sorted({x for line in lines.values() for x in line.points})

    def paint(axes: Axes) -> None:
        for colour, (name, line) in zip(COLOURS, lines.items(), strict=False):
            _plot(axes, line.points, colour, name)
        axes.set(xscale="log", xlabel="labelled samples", ylabel="accuracy", ylim=(0, 1.02))
        axes.set_title("Sum of ten numbers below 20")
        axes.set_xticks(places, [f"{place:,.0f}" for place in places])
        axes.minorticks_off()
        axes.legend(loc="lower right")

    return Figure("labels", paint, "", "")
