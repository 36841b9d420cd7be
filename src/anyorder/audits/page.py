"""Audits as pictures and as self-contained pages.

Each figure is drawn once: with matplotlib's colours for a picture file, or as SVG whose colours are the page's own
variables, so that it follows light and dark mode. Reports and comparisons are those of ``audit_report``, which
imports this module when a page is asked for.
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
from anyorder.checks import InputError
from anyorder.files import write_atomically

_FLOOR = 1e-5
_ROWS_SHOWN = 16
_FEATURES_SHOWN = 4
_FORMATS = ("png", "svg", "pdf")

INK, QUIET, BLUE, SOFT, ORANGE, GRID = "#1d2430", "#5b6472", "#2457c5", "#dbe6fb", "#b4540a", "#e9e6df"
_VARIABLES = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    BLUE: "var(--blue)",
    SOFT: "var(--blue-soft)",
    ORANGE: "var(--orange)",
    GRID: "var(--grid)",
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "ytick.major.size": 0,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True)
class Figure:
    """A drawing, its words for those who cannot see it, and a caption."""

    name: str
    draw: Callable[[Axes], None]
    alt: str
    caption: str
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
    """Our style; a name with letters the picture's font lacks is drawn with boxes, without a warning."""
    with rc_context({**_STYLE, **changes}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def _page_style(style: str) -> str:
    style = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", style)
    style = re.sub(r"font: (?:bold|700) ([\d.]+px) [^;\"]*", r"font-size: \1; font-weight: 650", style)
    for colour, variable in _VARIABLES.items():
        style = style.replace(colour, variable)
    return style


def report_figures(report: Any) -> list[Figure]:
    """The figures of a report that have something to show, the swaps first."""
    figures = []
    if report.by_distance:
        figures.append(
            _curve(
                "distance",
                report.by_distance,
                "Swapping two elements, by distance",
                "distance (1: neighbours)",
                "distance",
                "What exchanging two elements does to the output. Zero means that order is ignored, "
                "a rise that moving elements far matters more than exchanging neighbours.",
            )
        )
    if report.by_position:
        figures.append(
            _curve(
                "position",
                report.by_position,
                "Swapping one element, by its position",
                "position in the given order (first = 0)",
                "position",
                "What exchanging the element at this position with any other does. Higher at the end "
                "means that the model remembers best what it read last.",
            )
        )
    figures.append(_distribution(report.set_gaps))
    if len(report.by_size) > 1:
        figures.append(
            _curve(
                "size",
                report.by_size,
                "A random order, by size of the set",
                "elements in the set",
                "size",
                "The mean gap of sets of this many elements.",
            )
        )
    if report.state_gap:
        figures.append(
            _curve(
                "prefix",
                report.state_gap,
                "States after the first m elements",
                "elements read (m)",
                "prefix length",
                "Squared distance between the states of two orders, over that between different sets. 0: the state "
                "ignores order; 1: order matters as much as content.",
                unit="relative state gap",
            )
        )
    return figures


def _curve(
    name: str, values: dict[int, Estimate], title: str, label: str, word: str, caption: str, unit: str = "gap"
) -> Figure:
    x = np.array(list(values))
    y = np.array([float(v) for v in values.values()])
    low, high = np.array([v.ci or (np.nan, np.nan) for v in values.values()]).T
    band = "" if np.isnan(low).all() else " with 95 % band"

    def draw(axes: Axes) -> None:
        axes.fill_between(x, low, high, color=SOFT, linewidth=0)
        axes.plot(x, y, color=BLUE, linewidth=2, marker="o", markersize=4.5 if len(x) < 30 else 0)
        axes.set(title=title, xlabel=label, ylabel=unit)
        axes.set_ylim(0, _headroom(np.fmax(y, high).max()))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))

    top = int(y.argmax())
    alt = (
        f"Line chart{band}: {title.lower()}. The {unit} is {short(y[0])} at {word} {x[0]} and "
        f"{short(y[-1])} at {word} {x[-1]}; the largest is {short(y[top])} at {word} {x[top]}."
    )
    return Figure(name, draw, alt, caption)


def _distribution(gaps: np.ndarray) -> Figure:
    def draw(axes: Axes) -> None:
        bins = np.linspace(0, _headroom(gaps.max()), 25).tolist()
        axes.hist(gaps, bins=bins, color=BLUE, rwidth=0.88)
        axes.axvline(gaps.mean(), color=ORANGE, linewidth=2)
        axes.set(title="How the sets differ", xlabel="mean gap of the set (line: mean of all)", ylabel="sets")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))

    middle, upper = np.quantile(gaps, [0.5, 0.95])
    alt = (
        f"Histogram of the mean gap of {len(gaps):,} sets: half are below {short(middle)}, 95 % below "
        f"{short(upper)}, the largest is {short(gaps.max())}."
    )
    return Figure(
        "distribution", draw, alt, "A long tail to the right would mean that a few sets carry most of the dependence."
    )


def worst_figure(case: Any, name: str) -> Figure | None:
    """The two orders side by side, a line an element; None for sets too large to read."""
    n = len(case.ordering)
    if n > 24:
        return None

    def draw(axes: Axes) -> None:
        for place, element in enumerate(case.ordering):
            moved = place != element
            axes.plot([0, 1], [element, place], color=BLUE if moved else QUIET, linewidth=1.6, alpha=0.8)
            axes.annotate(str(element), (0, element), (-10, 0), textcoords="offset points", ha="right", va="center")
            axes.annotate(str(element), (1, place), (10, 0), textcoords="offset points", ha="left", va="center")
        axes.scatter([0, 1] * n, np.repeat(np.arange(n), 2), s=16, color=INK, zorder=3)
        axes.set(title="Where each element goes", xlim=(-0.25, 1.25), ylim=(n - 0.5, -0.8))
        axes.set_xticks([0, 1], ["given order", "worst order found"])
        axes.tick_params(axis="x", length=0, colors=INK)
        axes.set_yticks([])
        axes.spines["bottom"].set_visible(False)
        axes.grid(False)

    alt = (
        f"Lines from the given order to the worst order found for sample {case.name}; "
        f"the elements then stand in the order {', '.join(map(str, case.ordering))}."
    )
    return Figure(name, draw, alt, "", height=1.2 + 0.2 * n)


def comparison_figure(comparison: Any) -> Figure:
    """Score against relative order gap, a point a model; the choices no other model beats are filled."""
    rows = comparison.table()
    gaps = np.array([row["order_gap"] for row in rows])
    scored = all(row["score"] is not None for row in rows)
    metric = "accuracy" if rows[0]["metric"] == "accuracy" else "RMSE"
    scores = np.array([row["score"] if scored else i for i, row in enumerate(rows)], dtype=float)
    shown = np.clip(gaps, _FLOOR, 1e6)

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        for rank, i in enumerate(np.argsort(shown, kind="stable")):  # neighbours take turns above and below
            fill = BLUE if rows[i]["choice"] else "none"
            axes.scatter(shown[i], scores[i], s=64, color=fill, edgecolor=BLUE, linewidth=2, zorder=3)
            offset = (0, 9) if rank % 2 else (0, -17)
            axes.annotate(
                _clipped(rows[i]["model"]),
                (shown[i], scores[i]),
                offset,
                textcoords="offset points",
                ha="center",
                parse_math=False,
            )
        axes.margins(0.2, 0.25)
        axes.set_xlim(min(shown.min(), 0.01) / 3, max(shown.max(), 1) * 3)
        axes.grid(True, axis="both")
        axes.set_title(f"{metric[0].upper()}{metric[1:]} against order gap" if scored else "Order gap")
        axes.set_xlabel("relative order gap")
        if scored:
            axes.set_ylabel(f"{metric}, given order")
            if metric == "accuracy":
                axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= 1])
        else:
            axes.set_yticks([])

    listed = "; ".join(
        f"{row['model']}: gap {short(row['order_gap'])}" + (f", {metric} {short(row['score'])}" if scored else "")
        for row in rows
    )
    choices = ", ".join(row["model"] for row in rows if row["choice"])
    better = f", {'up' if metric == 'accuracy' else 'down'} is better" if scored else ""
    caption = (
        f"Left is steadier (1: order matters as much as content){better}. Filled: no other model is better in "
        f"both. Gaps below {_FLOOR:.5f} are drawn there."
    )
    alt = f"Scatter plot of {len(rows)} models. {listed}. No other model is better in both than: {choices}."
    return Figure("comparison", draw, alt, caption, height=3.4)


def save_picture(figures: list[Figure], path: str | os.PathLike[str]) -> None:
    """The figures as one picture file."""
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in _FORMATS:
        raise InputError(f"a picture must end in {', '.join('.' + f for f in _FORMATS)}; got {path.name!r}")
    columns = min(2, len(figures))
    rows = math.ceil(len(figures) / columns)
    buffer = io.BytesIO()
    with _drawing({"figure.facecolor": "white", "savefig.facecolor": "white", "svg.hashsalt": path.name}):
        canvas = Canvas(figsize=(5.4 * columns, 3.2 * rows), layout="constrained")
        for at, figure in enumerate(figures):
            figure.draw(canvas.add_subplot(rows, columns, at + 1))
        canvas.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, buffer.getvalue())


def write_report(report: Any, path: str | os.PathLike[str], title: str | None) -> None:
    """The page of one audit."""
    cases = [_case(case, f"worst{i}", report.feature_names) for i, case in enumerate(report.worst[:3])]
    curves = [
        ("Swaps by distance", "distance", report.by_distance),
        ("Swaps by position", "position", report.by_position),
        ("Random orders by size", "size", report.by_size),
        ("States by prefix length", "prefix", report.state_gap or {}),
    ]
    page = render(
        "audit.html.j2",
        title=title or "Does order matter?",
        report=report,
        verdict=report.verdict(),
        figures=report_figures(report),
        cases=cases if report.worst_gap > 0 else [],
        curves=[curve for curve in curves if curve[2]],
    )
    write_atomically(path, page)


def write_comparison(comparison: Any, path: str | os.PathLike[str], title: str | None) -> None:
    """The page that compares several audits."""
    page = render(
        "comparison.html.j2",
        title=title or "Which model ignores order?",
        comparison=comparison,
        rows=comparison.table(),
        drawing=comparison_figure(comparison),
    )
    write_atomically(path, page)


def render(template: str, **values: Any) -> str:
    """A page from one of the package's templates; everything that is not markup is escaped."""
    environment = Environment(
        loader=PackageLoader("anyorder.audits", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(short=short, percent=percent, interval=interval)
    environment.globals.update(as_percent=percent)
    return environment.get_template(template).render(version=__version__, **values)


def _case(case: Any, name: str, features: list[str] | None) -> dict[str, Any]:
    """What the page says of one worst sample: both orders beside each other, cut to a readable size."""
    n, width = case.elements.shape
    columns = (features or [f"feature {j}" for j in range(width)])[:_FEATURES_SHOWN]

    def cells(element: int) -> list[str]:
        return [_value(v) for v in case.elements[element, : len(columns)]]

    places = list(range(n))
    if n > _ROWS_SHOWN:
        places[_ROWS_SHOWN // 2 : -_ROWS_SHOWN // 2] = []
    rows = [
        {"place": place, "given": cells(place), "element": int(element), "worst": cells(element)}
        for place, element in zip(places, case.ordering[places], strict=True)
    ]
    return {
        "case": case,
        "columns": columns,
        "more_columns": width - len(columns),
        "rows": rows,
        "more_rows": n - len(rows),
        "gap_after": len(rows) // 2,
        "figure": worst_figure(case, name),
        "output": _outputs(case.output),
        "worst_output": _outputs(case.worst_output),
    }


def _outputs(values: np.ndarray) -> str:
    shown = ", ".join(short(v) for v in values[:6])
    return shown if len(values) <= 6 else f"{shown}, … ({len(values)} in all)"


def _value(value: Any) -> str:
    return short(float(value)) if np.issubdtype(type(value), np.floating) else str(value)


def _clipped(name: str) -> str:
    name = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    return name if len(name) <= 18 else name[:17] + "…"


def _headroom(top: float) -> float:
    return 1.08 * float(top) if top > 0 else 1.0
