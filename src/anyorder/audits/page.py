"""Audits as pictures and as self-contained pages.

A figure is drawn with matplotlib's colours for a picture file. On a page it is SVG whose colours are the page's
variables, so it follows light and dark mode.
"""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from anyorder import __version__
from anyorder.audits.intervals import Estimate, interval, percent, short
from anyorder.audits.report import BIASES, CURVES, plain
from anyorder.files import write_atomically

_FLOOR = 1e-5  # the smallest order gap drawn
_STYLE = Path(__file__).with_name("templates") / "figures.mplstyle"

_COLOURS = {  # as in figures.mplstyle, and their names in the pages' style
    "ink": "#1d2430",
    "quiet": "#5b6472",
    "blue": "#2457c5",
    "blue-soft": "#dbe6fb",
    "orange": "#b4540a",
    "grid": "#e9e6df",
}
BLUE, SOFT, ORANGE = (_COLOURS[name] for name in ("blue", "blue-soft", "orange"))


@dataclass(frozen=True)
class Figure:
    """A drawing, its alternative text, and a caption."""

    name: str
    draw: Callable[[Axes], None]
    alt: str
    caption: str = ""
    height: float = 2.7

    def svg(self) -> Markup:
        """The drawing as inline SVG in the page's colours, its ids made unique by the figure's name."""
        buffer = io.StringIO()
        with _drawing({"svg.hashsalt": self.name}):
            canvas = Canvas(figsize=(4.6, self.height), layout="constrained")
            self.draw(canvas.add_subplot())
            canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        text = buffer.getvalue()
        text = text[text.index("<svg") :].replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
        text = re.sub(r'style="[^"]*"', lambda match: _page_style(match.group()), text)
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", text)
        return Markup(text)


@contextmanager
def _drawing(changes: Any) -> Iterator[None]:
    """Our style; letters that the font lacks become boxes, without a warning."""
    with rc_context(changes, fname=_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def _page_style(style: str) -> str:
    style = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", style)
    style = re.sub(r"font: (?:bold|700) ([\d.]+px) [^;\"]*", r"font-size: \1; font-weight: 650", style)
    for name, colour in _COLOURS.items():
        style = style.replace(colour, f"var(--{name})")
    return style


def report_figures(report: Any) -> list[Figure]:
    """The figures of a report that have something to show."""
    curves = {name: getattr(report, name) or {} for name in CURVES}
    figures = [_curve(name, curve) for name, curve in curves.items() if len(curve) > (name == "by_size")]
    biases = [_bias(name, getattr(report, name)) for name in BIASES if getattr(report, name)]
    return [*biases, *figures, _distribution(report.set_changes)]


def _bias(name: str, values: dict[Any, Estimate]) -> Figure:
    _, title, label, unit = BIASES[name]
    shares = 100 * np.array(list(map(float, values.values())))
    ends = 100 * np.array([value.ci or (np.nan, np.nan) for value in values.values()])

    def draw(axes: Axes) -> None:
        axes.axhline(0, color=ORANGE, linewidth=1)
        axes.vlines(range(len(shares)), ends[:, 0], ends[:, 1], color=BLUE, linewidth=2)
        axes.scatter(range(len(shares)), shares, color=BLUE, zorder=3)
        axes.set_xticks(range(len(shares)), [_clipped(str(key)).replace("$", r"\$") for key in values])
        axes.set(title=title, xlabel=label, ylabel=unit)

    top = int(np.abs(shares).argmax())
    alt = f"Points with 95 % intervals: {title.lower()}. The largest is {short(shares[top])} at {list(values)[top]}."
    return Figure(name, draw, alt)


def _curve(name: str, values: dict[int, Estimate]) -> Figure:
    key, title, label, unit = CURVES[name]
    x, y = list(values), np.array(list(map(float, values.values())))
    band = " with 95 % band" if any(value.ci for value in values.values()) else ""

    def draw(axes: Axes) -> None:
        draw_curve(axes, values)
        axes.set(title=title, xlabel=label, ylabel=unit)

    first, last, top = (f"{short(y[i])} at {key} {x[i]}" for i in (0, -1, y.argmax()))
    alt = f"Line chart{band}: {title.lower()}. The {unit} is {first} and {last}. The largest is {top}."
    return Figure(name, draw, alt)


def draw_curve(axes: Axes, values: dict[int, Estimate], colour: str = BLUE, band: Any = SOFT, name: str = "") -> None:
    """A line with its intervals as a band, from 0 upwards."""
    x, size = list(values), 4.5 if len(values) < 30 else 0
    low, high = np.array([value.ci or (np.nan, np.nan) for value in values.values()]).T
    axes.fill_between(x, low, high, color=band, linewidth=0)
    axes.plot(x, list(values.values()), color=colour, linewidth=2, marker="o", markersize=size, label=name)
    axes.set_ylim(bottom=min(0.0, float(np.nanmin(np.append(low, 0.0)))))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))


def _distribution(changes: np.ndarray) -> Figure:
    def draw(axes: Axes) -> None:
        axes.hist(changes, bins=24, range=(0, float(changes.max()) or 1.0), color=BLUE, rwidth=0.88)
        axes.axvline(changes.mean(), color=ORANGE, linewidth=2)
        axes.set(title="How the sets differ", xlabel="mean change of the output (line: all sets)", ylabel="sets")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))

    middle, upper = np.quantile(changes, [0.5, 0.95])
    alt = (
        f"Histogram of the mean change of the output of {len(changes):,} sets. Half of them are below {short(middle)}, "
        f"95 % below {short(upper)}. The largest is {short(changes.max())}."
    )
    return Figure("distribution", draw, alt)


def comparison_figure(comparison: Any) -> Figure:
    """The metric against the order gap, one point per model; filled if no other model beats it."""
    rows = comparison.table()
    scored = all(row["score"] is not None for row in rows)
    metric = "accuracy" if rows[0]["metric"] == "accuracy" else "RMSE"
    scores = np.array([row["score"] if scored else i for i, row in enumerate(rows)], dtype=float)
    shown = np.clip([row["order_gap"] for row in rows], _FLOOR, 1e6)

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        for rank, i in enumerate(np.argsort(shown, kind="stable")):  # neighbours take turns above and below
            point, fill = (shown[i], scores[i]), BLUE if rows[i]["choice"] else "none"
            axes.scatter(*point, s=64, color=fill, edgecolor=BLUE, linewidth=2, zorder=3)
            name, offset = _clipped(rows[i]["model"]), (0, 9 if rank % 2 else -17)
            axes.annotate(name, point, offset, textcoords="offset points", ha="center", parse_math=False)
        axes.margins(0.2, 0.25)
        axes.set_xlim(min(shown.min(), 0.01) / 3, max(shown.max(), 1) * 3)
        axes.grid(True, axis="both")
        title = f"{metric[0].upper()}{metric[1:]} against order gap" if scored else "Order gap"
        axes.set(title=title, xlabel="order gap", ylabel=f"{metric}, given order" if scored else "")
        ticks = [tick for tick in axes.get_yticks() if metric != "accuracy" or 0 <= tick <= 1]
        axes.set_yticks(ticks if scored else [])

    listed = "; ".join(
        f"{row['model']}: order gap {short(row['order_gap'])}" + (f", {metric} {short(row['score'])}" if scored else "")
        for row in rows
    )
    better = f" {'Up' if metric == 'accuracy' else 'Down'} is better." if scored else ""
    caption = (
        f"Left: order matters less (1: as much as content).{better} Filled: no other model is better beyond "
        f"chance. Order gaps below {_FLOOR:.5f} are drawn there."
    )
    choices = ", ".join(row["model"] for row in rows if row["choice"])
    alt = f"Scatter plot of {len(rows)} models. {listed}. No other model is better beyond chance than: {choices}."
    return Figure("comparison", draw, alt, caption, height=3.4)


def save_picture(figures: list[Figure], path: str | os.PathLike[str]) -> None:
    """The figures as one picture file."""
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    columns = min(2, len(figures))
    rows = math.ceil(len(figures) / columns)
    buffer = io.BytesIO()
    with _drawing({"figure.facecolor": "white", "savefig.facecolor": "white", "svg.hashsalt": path.name}):
        canvas = Canvas(figsize=(5.4 * columns, 3.2 * rows), layout="constrained")
        for at, figure in enumerate(figures):
            figure.draw(canvas.add_subplot(rows, columns, at + 1))
        canvas.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, buffer.getvalue())


def write_report(report: Any, path: str | os.PathLike[str], title: str) -> None:
    """The page of one audit."""
    values = {"report": report, "verdict": report.verdict(), "figures": report_figures(report)}
    write_atomically(path, render("audit.html.j2", title=title, curves=CURVES, biases=BIASES, **values))


def write_comparison(comparison: Any, path: str | os.PathLike[str], title: str) -> None:
    """The page that compares several audits."""
    values = {"comparison": comparison, "rows": comparison.table(), "drawing": comparison_figure(comparison)}
    write_atomically(path, render("comparison.html.j2", title=title, **values))


def render(template: str, **values: Any) -> str:
    """A page from one of the package's templates; on a page of HTML everything that is not markup is escaped."""
    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    options["autoescape"] = ".html" in template
    environment = Environment(loader=PackageLoader("anyorder.audits", "templates"), **options)
    environment.filters.update(short=short, percent=percent, interval=interval, value=_value)
    environment.globals.update(as_percent=percent, as_short=short)  # macros of another file see these only
    return environment.get_template(template).render(version=__version__, **values)


def _value(value: Any) -> str:
    return short(float(value)) if np.issubdtype(type(value), np.floating) else _clipped(str(value), most=80)


def _clipped(text: str, most: int = 18) -> str:
    text = plain(text)
    return text if len(text) <= most else text[: most - 1] + "…"
