"""Rows become figures: small pictures of a :class:`Chart`, means over seeds with their intervals."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas  # without pyplot: no global state, nothing to close
from PIL import Image

from anyorder.paper.report.verdicts import Sample, by_seed, longest, matching, sample_of
from anyorder.paper.runner.trial import Chart, Experiment, Row, Setting, spelled

COLOURS = ["#2457c5", "#b4540a", "#1b7a46", "#8a3ffc", "#b3261e", "#8a6100", "#5b6472", "#0f7b8a", "#c2185b"]
LOGARITHMIC = ("mae", "rmse", "state_gap_squared")  # drawn on a logarithmic axis
Lines = dict[str, dict[float, Sample]]  # of each method: places, and the seeds' values there


@dataclass(frozen=True)
class Figure:
    """A picture in PNG, and its words for those who cannot see it."""

    png: bytes
    alt: str

    @property
    def address(self) -> str:
        """The picture as a data: address."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


def figures_of(experiment: Experiment, scale: str, rows: Sequence[Row]) -> list[Figure]:
    """The figures of an experiment's charts that have something to show, one for each value of a chart's ``split``."""
    charts, over = experiment.charts, {k: v for k, v in experiment.plan(scale).over.items() if len(v) > 1}
    x = next((key for key, values in over.items() if all(isinstance(v, int | float) for v in values)), "method")
    others = [key for key in over if key != x]
    if not charts and len(others) < 2:
        charts = [Chart(x, experiment.headline, split=next(iter(others), None))]
    figures = []
    for chart in charts:
        values = sorted({row["setting"].get(chart.split) for row in rows} - {None}) if chart.split else []
        places: list[Setting] = [{chart.split: value} for value in values if chart.split]
        for place in places or [{}]:
            title = spelled(place) or chart.title or experiment.name
            figures.append(_draw(experiment, replace(chart, title=title, where={**chart.where, **place}), scale, rows))
    return [figure for figure in figures if figure is not None]


def lines_of(chart: Chart, rows: Sequence[Row]) -> Lines:
    """The lines of ``chart`` through the chosen rows, a line a method; no gaps that are 0 but for rounding."""
    values: dict[str, dict[float, list[tuple[int, float]]]] = {}
    chosen = matching([row for row in rows if row["selected"]], chart.where)
    for row in chosen if chart.x == "length" else longest(chosen):
        for x, y in _points(chart, row):
            if y > 1e-9 or chart.metric not in LOGARITHMIC:
                values.setdefault(row["method"], {}).setdefault(x, []).append((row["seed"], y))
    wanted = [method for method in chart.methods or values if method in values]
    return {m: {x: by_seed(values[m][x], f"{chart.metric} of {m}") for x in sorted(values[m])} for m in wanted}


def _points(chart: Chart, row: Row) -> Iterable[tuple[float, float]]:
    if chart.curve:
        curve = row.get("curve") or {chart.x: [], chart.metric: []}
        yield from ((x, y) for x, y in zip(curve[chart.x], curve[chart.metric], strict=True) if y is not None)
    elif chart.metric in row["metrics"] and isinstance(x := row["setting"].get(chart.x), int | float):
        yield float(x), row["metrics"][chart.metric]


def _draw(experiment: Experiment, chart: Chart, scale: str, rows: Sequence[Row]) -> Figure | None:
    """A picture of few colours; None of a single point."""
    order, chosen = list(experiment.plan(scale).methods), [row for row in rows if row["selected"]]
    lines = {method: points for method, points in lines_of(chart, rows).items() if len(points) > 1}
    dots = {}
    if chart.x == "method":
        samples = {method: sample_of(chosen, chart.metric, method, **chart.where) for method in chart.methods or order}
        dots = {method: sample for method, sample in samples.items() if sample}
    if len(dots) < 2 and not lines:
        return None
    canvas = Canvas(figsize=(4.2, 2.9 + 0.18 * math.ceil(len(lines) / 3)), layout="constrained")
    axes = canvas.add_subplot()
    axes.set_title(chart.title, fontsize=11, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    if dots:
        paper = {e.method: e.paper for e in experiment.expected if e.paper is not None and e.metric == chart.metric}
        _draw_dots(axes, dots, paper)
        axes.set_xlabel(_words(chart.metric))
    else:
        colours = {m: COLOURS[i % len(COLOURS)] for i, m in enumerate(chart.methods or order) if m in lines}
        _draw_lines(axes, chart, lines, colours)
        axes.set(xlabel=_words(chart.x), ylabel=_words(chart.metric))
    canvas.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    drawn, small = io.BytesIO(), io.BytesIO()
    canvas.savefig(drawn, format="png", dpi=110)
    Image.open(drawn).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    against = "method" if dots else _words(chart.x)
    return Figure(small.getvalue(), f"{experiment.name}, {chart.title}: {_words(chart.metric)} by {against}")


def _draw_dots(axes: Axes, dots: dict[str, Sample], paper: dict[str, float]) -> None:
    """A row a method: our mean with its 95 % interval, and the paper's figure."""
    heights = {method: -row for row, method in enumerate(dots)}
    for method, sample in dots.items():
        low, high = sample.interval
        axes.plot([low, high], [heights[method]] * 2, color=COLOURS[0], linewidth=1.6)  # nothing of one seed
    ours = [sample.mean for sample in dots.values()]
    axes.plot(ours, list(heights.values()), "o", color=COLOURS[0], ms=5, label="ours")
    known = [method for method in dots if method in paper]
    if known:
        theirs = [paper[method] for method in known]
        axes.plot(theirs, [heights[m] for m in known], "D", color=COLOURS[1], ms=6, mfc="none", label="the paper")
    axes.set_yticks(list(heights.values()), list(heights))
    axes.grid(axis="x", color="#e9e6df")


def _draw_lines(axes: Axes, chart: Chart, lines: Lines, colours: dict[str, str]) -> None:
    """A line a method with 95 % intervals, on a logarithmic axis those of the logarithms."""
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


def _words(name: str) -> str:
    return name.replace("_", " ").replace("validation", "validation accuracy")
