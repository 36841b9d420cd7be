"""Rows become figures: small pictures of the lines of a :class:`Chart`, means over seeds with their intervals."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure as Canvas  # without pyplot: no global state, nothing to close
from PIL import Image

from anyorder.paper.report.verdicts import Sample, by_seed
from anyorder.paper.runner.trial import Chart, Experiment, Row, spelled

COLOURS = ["#2457c5", "#b4540a", "#1b7a46", "#8a3ffc", "#b3261e", "#8a6100", "#5b6472", "#0f7b8a", "#c2185b"]
LOGARITHMIC = ("mae", "rmse", "state_gap_squared")  # drawn on a logarithmic axis
Lines = dict[str, dict[float, Sample]]  # of each method: places, and the seeds' values there


@dataclass(frozen=True)
class Figure:
    """A picture as a data: address, and its words for those who cannot see it."""

    address: str
    alt: str


def figures_of(experiment: Experiment, scale: str, rows: Sequence[Row]) -> list[Figure]:
    """The figures of an experiment's charts, one for each value of a chart's ``split``."""
    over = experiment.plan(scale).over
    numeric = [
        key
        for key, values in over.items()
        if len(values) > 1 and all(isinstance(value, int | float) for value in values)
    ]
    split = next((key for key in over if key not in numeric), None)
    default = [Chart(key, experiment.headline, split=split) for key in numeric[:1]]
    order = list(dict.fromkeys(method for plan in experiment.plans.values() for method in plan.methods))
    figures = []
    for chart in experiment.charts or default:
        found = {row["setting"].get(chart.split) for row in rows} - {None}
        for value in sorted(found) if chart.split else [None]:
            lines = lines_of(chart, [row for row in rows if row["setting"].get(chart.split) in (value, None)])
            if any(len(points) > 1 for points in lines.values()):
                title = spelled({chart.split: value}) if chart.split else experiment.name
                colours = {method: COLOURS[order.index(method) % len(COLOURS)] for method in order if method in lines}
                what = f"{_words(chart.metric)} against {_words(chart.x)}"
                figures.append(Figure(_draw(chart, lines, colours, title), f"{experiment.name}, {title}: {what}"))
    return figures


def lines_of(chart: Chart, rows: Sequence[Row]) -> Lines:
    """The lines of ``chart`` through the chosen rows, a line a method; no gaps that are 0 but for rounding."""
    values: dict[tuple[str, float], list[tuple[int, float]]] = {}
    for row in (row for row in rows if row["selected"]):
        for x, y in _points(chart, row):
            if y > 1e-9 or chart.metric not in LOGARITHMIC:
                values.setdefault((row["method"], x), []).append((row["seed"], y))
    lines: Lines = {method: {} for method, _ in values}
    for (method, x), found in sorted(values.items()):
        lines[method][x] = by_seed(found, f"{chart.metric} of {method} at {chart.x} {x:g}")
    return lines


def _points(chart: Chart, row: Row) -> Iterable[tuple[float, float]]:
    if chart.curve:
        curve = row.get("curve") or {chart.x: [], chart.metric: []}
        yield from ((x, y) for x, y in zip(curve[chart.x], curve[chart.metric], strict=True) if y is not None)
    elif chart.metric in row["metrics"] and isinstance(x := row["setting"].get(chart.x), int | float):
        yield float(x), row["metrics"][chart.metric]


def _draw(chart: Chart, lines: Lines, colours: dict[str, str], title: str) -> str:
    """A PNG of few colours as a data: address; 95 % intervals, on a logarithmic axis those of the logarithms."""
    canvas = Canvas(figsize=(4.6, 3.0 + 0.18 * math.ceil(len(lines) / 3)), layout="constrained")
    axes = canvas.add_subplot()
    logarithmic = chart.metric in LOGARITHMIC
    back = math.exp if logarithmic else float
    for method, colour in colours.items():
        bands = []
        for sample in lines[method].values():
            shown = Sample({seed: math.log(v) for seed, v in sample.values.items()}) if logarithmic else sample
            bands.append([back(value) for value in (shown.mean, *shown.interval)])
        middle, low, high = zip(*bands, strict=True)
        axes.plot(list(lines[method]), middle, "o-", color=colour, ms=3, linewidth=1.6, label=method)
        axes.fill_between(list(lines[method]), low, high, color=colour, alpha=0.15, linewidth=0)  # none of one seed
    if chart.log and any(0.0 in points for points in lines.values()):
        axes.set_xscale("symlog", linthresh=1e-3)
    elif chart.log:
        axes.set_xscale("log")
    if logarithmic:
        axes.set_yscale("log")
    axes.grid(axis="y", color="#e9e6df")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set(xlabel=_words(chart.x), ylabel=_words(chart.metric))
    axes.set_title(title, fontsize=11, loc="left")
    canvas.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    drawn, small = io.BytesIO(), io.BytesIO()
    canvas.savefig(drawn, format="png", dpi=100)
    Image.open(drawn).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(small.getvalue()).decode()


def _words(name: str) -> str:
    return name.replace("_", " ").replace("validation", "validation accuracy")
