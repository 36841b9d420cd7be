"""Rows become figures: small pictures of the lines of a :class:`Chart`, means over seeds with their intervals."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas  # without pyplot: no global state, nothing to close
from PIL import Image

from anyorder.paper.report.statistics import Sample, by_seed
from anyorder.paper.runner.trial import Chart, Experiment, Row, is_number, spelled

COLOURS = ["#2457c5", "#b4540a", "#1b7a46", "#8a3ffc", "#b3261e", "#8a6100", "#5b6472", "#0f7b8a", "#c2185b"]
LOGARITHMIC = ("mae", "rmse", "state_gap_squared")  # drawn on a logarithmic axis


@dataclass(frozen=True)
class Figure:
    """A picture as a data: address, and its words for those who cannot see it."""

    address: str
    alt: str


def figures_of(experiment: Experiment, scale: str, rows: Sequence[Row]) -> list[Figure]:
    """The figures of an experiment's charts, one for each value of a chart's ``split``."""
    over = experiment.plan(scale).over
    numeric = [key for key, values in over.items() if len(values) > 1 and all(map(is_number, values))]
    default = [Chart(key, experiment.headline, [k for k in over if k != key]) for key in numeric[:1]]
    return [
        figure
        for chart in experiment.charts or default
        for title, mine in _panels(chart, rows)
        if (figure := _draw(experiment, chart, mine, title))
    ]


def _panels(chart: Chart, rows: Sequence[Row]) -> Iterable[tuple[str, Sequence[Row]]]:
    """The title and the rows of each figure of a chart."""
    found = {json.dumps(value): value for row in rows if (value := row["setting"].get(chart.split)) is not None}
    for value in sorted(found.values()) if chart.split else [None]:
        title = spelled({chart.split: value}) if chart.split else ""
        yield title, [row for row in rows if row["setting"].get(chart.split) in (value, None)]


@dataclass(frozen=True)
class Line:
    """Points of a figure: where, and the seeds' values there."""

    label: str
    points: dict[float, Sample]


def lines_of(chart: Chart, rows: Sequence[Row]) -> list[Line]:
    """The lines of ``chart`` through the chosen rows, a line a method and value of the settings ``by``."""
    groups: dict[str, dict[float, list[tuple[int, float]]]] = {}
    for row in (row for row in rows if row["selected"]):
        by = [row["setting"][key] for key in chart.by if row["setting"].get(key) is not None]
        for x, y in _points(chart, row):
            label = ", ".join([row["method"], *map(str, by)])
            groups.setdefault(label, {}).setdefault(x, []).append((row["seed"], y))
    return [
        Line(label, {x: by_seed(v, f"{chart.metric} of {label} at {chart.x} {x:g}") for x, v in sorted(points.items())})
        for label, points in groups.items()
    ]


def _points(chart: Chart, row: Row) -> Iterable[tuple[float, float]]:
    if chart.curve:
        curve = row.get("curve") or {chart.x: [], chart.metric: []}
        yield from ((x, y) for x, y in zip(curve[chart.x], curve[chart.metric], strict=True) if y is not None)
    elif chart.metric in row["metrics"] and is_number(x := row["setting"].get(chart.x)):
        yield float(x), row["metrics"][chart.metric]


def _draw(experiment: Experiment, chart: Chart, rows: Sequence[Row], title: str) -> Figure | None:
    """A chart's picture; None where no line has two points."""
    order = list(dict.fromkeys(method for plan in experiment.plans.values() for method in plan.methods))
    logarithmic = chart.metric in LOGARITHMIC
    lines = sorted(lines_of(chart, rows), key=lambda line: order.index(line.label.split(",")[0]))
    if logarithmic:  # where order is ignored but for rounding, there is nothing to draw
        lines = [
            Line(line.label, {x: s for x, s in line.points.items() if min(s.values.values()) > 1e-9}) for line in lines
        ]
    lines = [line for line in lines if line.points]
    if not any(len(line.points) > 1 for line in lines):
        return None
    metric = chart.metric.replace("_", " ").replace("validation", "validation accuracy")
    columns = 1 if max(len(line.label) for line in lines) > 25 else 3
    canvas = Canvas(figsize=(4.6, 3.0 + 0.18 * math.ceil(len(lines) / columns)), layout="constrained")
    axes = canvas.add_subplot()
    for number, line in enumerate(lines):
        colour = COLOURS[(number if chart.by else order.index(line.label)) % len(COLOURS)]
        _plot(axes, line, colour, logarithmic)
    if chart.log and any(0.0 in line.points for line in lines):
        axes.set_xscale("symlog", linthresh=1e-3)
    elif chart.log:
        axes.set_xscale("log")
    if logarithmic:
        axes.set_yscale("log")
    axes.grid(axis="y", color="#e9e6df")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set(xlabel=chart.x.replace("_", " "), ylabel=metric)
    axes.set_title(title or experiment.name, fontsize=11, loc="left")
    canvas.legend(loc="outside lower center", ncols=columns, fontsize=9, frameon=False)
    alt = f"{experiment.name}{', ' + title if title else ''}: {metric} against {chart.x.replace('_', ' ')}"
    return Figure(_address(canvas), alt)


def _plot(axes: Axes, line: Line, colour: str, logarithmic: bool) -> None:
    """Means and 95 % intervals; on a logarithmic axis those of the logarithms, which cannot reach 0."""
    bands = []
    for sample in line.points.values():
        logs = Sample({seed: math.log(value) for seed, value in sample.values.items()}) if logarithmic else sample
        band = logs.mean, logs.low, logs.high
        bands.append([math.exp(value) for value in band] if logarithmic else band)
    middle, low, high = zip(*bands, strict=True)
    axes.plot(list(line.points), middle, "o-", color=colour, ms=3, linewidth=1.6, label=line.label)
    axes.fill_between(list(line.points), low, high, color=colour, alpha=0.15, linewidth=0)  # nothing of a single seed


def _address(canvas: Canvas) -> str:
    """A PNG of few colours as a data: address."""
    drawn, small = io.BytesIO(), io.BytesIO()
    canvas.savefig(drawn, format="png", dpi=100)
    Image.open(drawn).convert("RGB").quantize(48).save(small, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(small.getvalue()).decode()
