"""Rows become pages: ``RESULTS.md`` and one self-contained ``report.html``, every number in them from the rows."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from anyorder._checks import InputError
from anyorder.audit_page import Figure, render, save_picture
from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.pictures import picture_of
from anyorder.paper.statistics import Claim, Sample, by_seed, matching, pm, sample_of
from anyorder.paper.sweep import read_rows, rows_path
from anyorder.paper.trials import Chart, Experiment, Row
from anyorder.paper.verdicts import claims_of
from anyorder.storage import write_atomically

COLOURS = ["#2457c5", "#b4540a", "#1b7a46", "#8a3ffc", "#b3261e", "#8a6100", "#5b6472", "#0f7b8a", "#c2185b"]
TONES = {"holds": "good", "does not hold": "bad", "fails in part": "bad"}  # every other verdict is "fair"
LOGARITHMIC = ("mae", "rmse", "order_gap")  # drawn on a logarithmic axis
ROUNDING = 1e-9  # an order gap below this is that of a model which ignores order exactly
CURVES = {
    "accuracy": "validation accuracy",
    "validation": "validation accuracy",
    "loss": "training loss (of standardised targets)",
    "gap": "validation order gap",
}

LEGEND = (
    "±: standard deviation over seeds. Order gap: 0, order is ignored; 1, it matters as much as content. Seconds: the "
    "median over seeds of a trial's time, on machines with other work to do (docs/cost.md compares costs). Accepted: a "
    "band set by us for the mean over seeds; where it leaves out the paper's figure, it does not decide the verdict."
)
SPEED = (
    "samples a second of a training step over those of the same network in plain PyTorch (nn.GRU, no penalty), timed "
    "in turn in the same process"
)


@dataclass(frozen=True)
class Entry:
    """One line of an experiment's table: a method in a cell, its chosen setting and its figures over seeds."""

    method: str
    cell: str
    chosen: str
    figure: Sample
    train_loss: Sample
    order_gap: Sample
    speed: Sample
    parameters: int
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """A number of the paper beside ours."""

    what: str
    paper: str
    ours: Sample
    accepted: str
    met: bool | None


@dataclass(frozen=True)
class Section:
    """An experiment as its page shows it."""

    experiment: Experiment
    scale: str
    rows: list[Row]
    finished: int
    planned: int
    hours: float
    command: str
    entries: list[Entry]
    comparisons: list[Comparison]
    claims: list[Claim]
    figures: list[Figure]
    picture: str | None
    searching: list[str]

    @property
    def title(self) -> str:
        """Its name, and its scale where that is not the one of the published numbers."""
        return self.experiment.name if self.scale == "laptop" else f"{self.experiment.name} ({self.scale})"

    @property
    def seeds(self) -> int:
        """The number of seeds of the chosen settings: the fewest of any."""
        return min((len(entry.figure) for entry in self.entries), default=0)

    @property
    def verdict(self) -> str:
        """What the claims that numbers can decide come to; "open" while trials are missing."""
        decided = {claim.verdict for claim in self.claims if claim.verdict is not None and not claim.beside}
        if self.finished < self.planned:
            return "open"
        if not decided:
            return "not judged"
        if len(decided) == 1:
            return decided.pop()
        return "fails in part" if "does not hold" in decided else "holds in part"

    @property
    def timed(self) -> bool:
        """Whether any training was timed against the same network in plain PyTorch."""
        return any(len(entry.speed) for entry in self.entries)

    @property
    def failing(self) -> list[str]:
        """What does not hold: claims that stand by themselves, and how many lines of each table."""
        found = [f"Not so: {claim.text}" for claim in self.claims if not claim.table and _fails(claim)]
        for caption, claims in self.tables.items():
            if lines := sum(map(_fails, claims)):
                judged = sum(claim.verdict is not None for claim in claims)
                found.append(f"{lines} of the {judged} comparisons in the table “{caption}”")
        return found

    @property
    def ours(self) -> str:
        """Our figures in few words: what the last claim with a short form says, else the numbers beside the paper's."""
        shorts = [claim.short for claim in self.claims if claim.short]
        found = shorts[-1] if shorts else "; ".join(f"{c.what} {pm(c.ours)}" for c in self.comparisons)
        return found or ("too small to judge" if self.finished == self.planned else "nothing chosen yet")

    @property
    def sentences(self) -> list[Claim]:
        """The claims that stand by themselves, without those of :attr:`failing`."""
        return [claim for claim in self.claims if not claim.table and not _fails(claim)]

    @property
    def tables(self) -> dict[str, list[Claim]]:
        """The claims that are lines of a table, by its caption."""
        captions = dict.fromkeys(claim.table for claim in self.claims if claim.table)
        return {caption: [claim for claim in self.claims if claim.table == caption] for caption in captions}


def _fails(claim: Claim) -> bool:
    return claim.verdict == "does not hold"


def write_report(folder: str | Path) -> tuple[Path, ...]:
    """Write ``RESULTS.md`` and ``report.html`` beside the rows in ``folder``, and ``labels.svg`` if it has rows of it.

    Returns the paths of what was written.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; anyorder reproduce … --out {folder} makes it and its rows")
    sections = [section for name in EXPERIMENTS for section in sections_of(folder, name)]
    if not sections:
        raise InputError(
            f"{folder} holds no rows of a known experiment; anyorder reproduce … --out {folder} makes them"
        )
    text, page = folder / "RESULTS.md", folder / "report.html"
    write_atomically(text, markdown(sections))
    names = {"tones": TONES, "pm": pm, "digits": digits, "speed": SPEED, "legend": LEGEND, "missing": missing(sections)}
    write_atomically(page, render("report.html.j2", sections=sections, **names))
    labels = [labels_figure(section) for section in sections if section.experiment.name == "labels"]
    if not labels or labels[0] is None:
        return text, page
    save_picture([labels[0]], folder / "labels.svg")
    return text, page, folder / "labels.svg"


def missing(sections: Sequence[Section]) -> str:
    """The experiments that have no rows yet, by name."""
    shown = {section.experiment.name for section in sections}
    return ", ".join(name for name in EXPERIMENTS if name not in shown)


def sections_of(folder: Path, name: str) -> list[Section]:
    """The sections of one experiment, the largest scale that has rows first; smoke rows only if there are no others."""
    rows = read_rows(rows_path(folder, name))
    scales = [scale for scale in ("paper", "laptop") if any(row["scale"] == scale for row in rows)]
    if not scales and rows:
        scales = ["smoke"]
    return [section_of(EXPERIMENTS[name], scale, [row for row in rows if row["scale"] == scale]) for scale in scales]


def section_of(experiment: Experiment, scale: str, rows: list[Row]) -> Section:
    """Everything the pages say about one experiment at one scale."""
    rows = experiment.with_selection(rows, scale)  # those on disk may have been marked before candidates were added
    keys = {trial.key for trial in experiment.trials(scale, rows, guess=True)}
    most = max([experiment.plan(scale).seeds, *(row["seed"] + 1 for row in rows)])
    declared = {trial.key for trial in experiment.trials(scale, rows, guess=True, seeds=most)}
    rows = [row for row in rows if row["trial"] in declared]  # rows of an earlier declaration are not shown
    seconds = {row["trial"]: row["seconds"] for row in rows}
    return Section(
        experiment=experiment,
        scale=scale,
        rows=rows,
        finished=len(keys & seconds.keys()),
        planned=len(keys),
        hours=sum(seconds.values()) / 3600,
        command=f"anyorder reproduce {experiment.name} --scale {scale}",
        entries=_entries(experiment, scale, rows),
        comparisons=_comparisons(experiment, rows),
        claims=claims_of(experiment, rows),
        figures=[
            figure
            for number, chart in enumerate(experiment.charts or default_charts(experiment, scale))
            for figure in draw(experiment, chart, rows, f"{experiment.name}-{number}")
        ],
        picture=_picture(experiment.name),
        searching=_searching(experiment, scale, rows),
    )


def _searching(experiment: Experiment, scale: str, rows: Sequence[Row]) -> list[str]:
    """The methods, and where, whose search has begun and is unfinished: nothing of theirs is chosen yet."""
    plan, found = experiment.plan(scale), []
    for method in plan.methods:
        mine = [row for row in rows if row["method"] == method]
        for cell in plan.cells():
            place = {key: value for key, value in cell.items() if key not in plan.tune_on}
            if matching(mine, place) and experiment.choice(scale, method, cell, rows) is None:
                found.append(f"{method} ({spelled(place)})" if place else method)
    return list(dict.fromkeys(found))


def default_charts(experiment: Experiment, scale: str) -> list[Chart]:
    """The chosen settings over each reported number, and every candidate over the penalty weight."""
    plan = experiment.plan(scale)
    numeric = [key for key, values in plan.over.items() if len(values) > 1 and all(_is_number(v) for v in values)]
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
        searches = [_varied(candidates) for candidates in plan.methods.values()]
        varied = {key for keys in searches if "penalty_weight" in keys for key in keys}
        by = [*rest, *sorted(varied - {"penalty_weight"})]
        charts.append(Chart("penalty_weight", experiment.headline, by, split, every=True, log=True))
    return charts


def _spans_decades(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 10


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# --- tables


def _entries(experiment: Experiment, scale: str, rows: Sequence[Row]) -> list[Entry]:
    plan = experiment.plan(scale)
    entries = []
    chosen = [row for row in rows if row["selected"]]
    longest: dict[str, Any] = {}
    for row in chosen:  # of a model tested at several lengths, the longest
        length = row["setting"].get("length", 0)
        if _rank(length) >= _rank(longest.get(row["trial"], 0)):
            longest[row["trial"]] = length
    chosen = [row for row in chosen if row["setting"].get("length", 0) == longest[row["trial"]]]
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in chosen:
        over = {key: row["setting"].get(key) for key in plan.over}
        candidate = _candidate(plan.methods[row["method"]], row)
        place = {**over, **({"length": longest[row["trial"]]} if "lengths" in row["setting"] else {})}
        key = (row["method"], spelled({k: v for k, v in place.items() if v is not None}), spelled(candidate))
        groups.setdefault(key, []).append(row)
    for (method, cell, candidate_text), found in groups.items():
        entries.append(
            Entry(
                method,
                cell,
                candidate_text,
                sample_of(found, experiment.headline),
                sample_of(found, "train_loss"),
                sample_of(found, "order_gap"),
                sample_of(found, "step_rate_over_plain_torch"),
                found[0]["parameters"],
                median(row["seconds"] for row in found),
            )
        )
    order = list(plan.methods)
    return sorted(entries, key=lambda e: (_natural(e.cell), order.index(e.method)))


def _rank(length: Any) -> float:
    return length if _is_number(length) else length[-1]


def _natural(text: str) -> list[Any]:
    return [(0, float(word), "") if word.replace(".", "", 1).isdigit() else (1, 0.0, word) for word in text.split()]


def _candidate(candidates: Sequence[Any], row: Row) -> dict[str, Any]:
    """The settings in which a method's candidates differ, as this row has them."""
    return {key: row["setting"][key] for key in _varied(candidates) if key in row["setting"]}


def _varied(candidates: Sequence[Any]) -> list[str]:
    """The settings in which candidates differ."""
    return sorted({key for c in candidates for key in c if len({json.dumps(d.get(key)) for d in candidates}) > 1})


def spelled(setting: dict[str, Any]) -> str:
    """A setting in words.

    >>> spelled({"penalty_weight": 10.0, "cell": "gru"})
    'penalty weight 10, cell gru'
    """
    return ", ".join(f"{key.replace('_', ' ')} {f'{v:g}' if isinstance(v, float) else v}" for key, v in setting.items())


def _comparisons(experiment: Experiment, rows: Sequence[Row]) -> list[Comparison]:
    chosen = [row for row in rows if row["selected"]]
    found = []
    for expected in experiment.expected:
        ours = sample_of(chosen, expected.metric, expected.method, **expected.where)
        if not len(ours):
            continue
        paper = "" if expected.paper is None else f"{expected.paper:g}"
        if expected.sd is not None:
            paper += f" ({expected.sd:g})"
        low, high = expected.band
        free = math.isinf(low) and math.isinf(high)
        place = spelled(dict(expected.where))
        what = f"{expected.method}{', ' + place if place else ''}: {expected.metric}"
        accepted = "" if free else f"at least {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"
        found.append(Comparison(what, paper, ours, accepted, None if free else low <= ours.mean <= high))
    return found


# --- figures


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
        label = ", ".join([row["method"], *(spelled({k: v}) if _is_number(v) else str(v) for k, v in by.items())])
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
        if _is_number(x):
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
        title = spelled({chart.split: value})
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
        if chart.log:
            axes.set_xscale("symlog", linthresh=1e-3) if any(0.0 in line.points for line in lines) else axes.set_xscale(
                "log"
            )
        if chart.minus is not None:
            axes.axhline(0, color="#5b6472", linewidth=1)
        elif chart.metric == "accuracy":
            bottom = max(0.0, axes.get_ylim()[0])
            high = axes.get_ylim()[1]
            near = 1 - high < (high - bottom) / 2  # then all of it is shown
            axes.set_ylim(bottom, 1 + 0.03 * (1 - bottom) if near else high)
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


def labels_figure(section: Section) -> Figure | None:
    """Accuracy against the number of labels for four methods, to stand by itself; None without rows of them."""
    names = {"plain": "plain GRU", "sire": "GRU with SIRE", "pi-sgd": "π-SGD", "deepsets": "DeepSets"}
    lines = {line.label: line for line in lines_of(Chart("labels", where={"alphabet": 20}), section.rows)}
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


def _picture(name: str) -> str | None:
    """The picture of an experiment's data as a data: address, where the data is there and whole."""
    try:
        figure = picture_of(name)
    except InputError:
        return None
    if figure is None:
        return None
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


# --- markdown


def digits(value: float) -> str:
    """A figure to be read beside others: four significant digits, nothing of nan.

    >>> digits(0.98765), digits(12345.6), digits(float("nan"))
    ('0.9877', '1.235e+04', '')
    """
    return "" if math.isnan(value) else f"{value:.4g}"


def summary_table(sections: Sequence[Section]) -> str:
    """A line an experiment, in Markdown: its claim, what the paper gives, ours and the verdict."""
    lines = ["| experiment | claim | paper | ours | verdict |", "|---|---|---|---|---|"]
    for s in sections:
        lines.append(f"| {s.title} | {s.experiment.short} | {s.experiment.reported} | {s.ours} | {s.verdict} |")
    return "\n".join(lines) + "\n"


def markdown(sections: Sequence[Section]) -> str:
    """``RESULTS.md``: a summary, then a section an experiment."""
    lines = [
        "# Results",
        "",
        "Made from the rows in this folder by `anyorder report results`; nothing is typed by hand.",
        "",
    ]
    lines += [summary_table(sections), "| experiment | scale | trials | seeds | hours |", "|---|---|---|---|---|"]
    for s in sections:
        trials = f"{s.finished}/{s.planned}"
        lines.append(f"| {s.experiment.name} | {s.scale} | {trials} | {s.seeds} | {s.hours:.2f} |")
    lines += ["", f"No rows yet: {missing(sections)}.", ""] if missing(sections) else [""]
    lines += [LEGEND]
    for s in sections:
        lines += ["", f"## {s.experiment.name} ({s.scale})", "", f"**Claim.** {s.experiment.claim}", ""]
        lines += [f"**How.** {s.experiment.how(s.scale)}", "", f"`{s.command}`: {s.finished} of {s.planned} trials, "]
        lines[-1] += f"{s.hours:.2f} hours of one core."
        if s.searching:
            lines += ["", f"Search unfinished, so nothing is chosen yet: {'; '.join(s.searching)}."]
        if s.comparisons:
            lines += ["", "| number | paper | ours | seeds | accepted | met |", "|---|---|---|---|---|---|"]
            for c in s.comparisons:
                met = {True: "yes", False: "no", None: ""}[c.met]
                lines.append(f"| {c.what} | {c.paper} | {pm(c.ours, 4)} | {len(c.ours)} | {c.accepted} | {met} |")
        if s.failing:
            lines += ["", f"**Where it does not hold.** {s.experiment.remark}".rstrip(), ""]
            lines += [f"- {text}." for text in s.failing]
        if s.sentences:
            lines += ["", "**What the rows say.**", ""]
            lines += [f"- {claim.verdict or 'seen'}: {claim.text}" for claim in s.sentences]
        for caption, claims in s.tables.items():
            lines += ["", f"{caption}:", "", f"| {' | '.join([*claims[0].cells, 'verdict'])} |"]
            lines.append("|---" * (len(claims[0].cells) + 1) + "|")
            lines += [f"| {' | '.join([*claim.cells.values(), claim.verdict or ''])} |" for claim in claims]
        if s.entries:
            figure = s.experiment.headline
            heads = ["method", "where", "chosen", figure, "seeds", "train loss", "order gap", "parameters", "seconds"]
            heads += ["speed"] if s.timed else []
            lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
            for e in s.entries:
                cells = [e.method, e.cell, e.chosen, pm(e.figure, 4), f"{len(e.figure)}", digits(e.train_loss.mean)]
                cells += [digits(e.order_gap.mean), f"{e.parameters:,}", f"{e.seconds:.0f}"]
                cells += [f"{e.speed.mean:.2f}" if len(e.speed) else ""] if s.timed else []
                lines.append(f"| {' | '.join(cells)} |")
            if s.timed:
                lines += ["", f"Speed: {SPEED}."]
    return "\n".join(lines) + "\n"
