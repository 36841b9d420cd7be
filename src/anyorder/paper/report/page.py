"""Rows become pages: ``RESULTS.md`` and one self-contained ``report.html``, every number in them from the rows."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from anyorder.audits.page import Figure, render, save_picture
from anyorder.checks import InputError
from anyorder.deploy.save import write_atomically
from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.report.charts import default_charts, draw, labels_figure
from anyorder.paper.report.pictures import picture_of
from anyorder.paper.report.statistics import Claim, Sample, matching, pm, sample_of
from anyorder.paper.report.verdicts import claims_of
from anyorder.paper.runner.rows import read_rows, rows_path
from anyorder.paper.runner.trial import Experiment, Row, duration, is_number, spelled, varied

TONES = {"holds": "good", "does not hold": "bad", "fails in part": "bad"}  # every other verdict is "fair"
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
    seconds_left: float
    seconds_in_full: float
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
    def outlook(self) -> str:
        """What is left to run of this scale, and the paper's own protocol, by estimate and the pace of the rows."""
        left = f"About {duration(self.seconds_left)} are left. " if self.seconds_left else ""
        full = f"The full protocol, --scale paper, takes about {duration(self.seconds_in_full)}."
        return f"{left}{full if self.scale == 'laptop' else ''}".rstrip()

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


@dataclass(frozen=True)
class Unrun:
    """An experiment that has no rows: what would make them, and how long that takes by estimate."""

    experiment: Experiment
    command: str
    seconds: float


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
    names = {"tones": TONES, "pm": pm, "digits": digits, "duration": duration, "speed": SPEED, "legend": LEGEND}
    write_atomically(page, render("report.html.j2", sections=sections, unrun=unrun(sections), **names))
    labels = [labels_figure(section.rows) for section in sections if section.experiment.name == "labels"]
    if not labels or labels[0] is None:
        return text, page
    save_picture([labels[0]], folder / "labels.svg")
    return text, page, folder / "labels.svg"


def unrun(sections: Sequence[Section]) -> list[Unrun]:
    """The experiments that have no section."""
    shown = {section.experiment.name for section in sections}
    left = [experiment for name, experiment in EXPERIMENTS.items() if name not in shown]
    return [Unrun(e, command_of(e, "laptop"), estimated_seconds(e, "laptop")) for e in left]


def command_of(experiment: Experiment, scale: str) -> str:
    """The command that makes the rows."""
    return f"anyorder reproduce {experiment.name} --scale {scale}"


def estimated_seconds(experiment: Experiment, scale: str) -> float:
    """What all trials of a scale cost on one core, by the measured seconds that the plan declares."""
    return experiment.estimated_seconds(experiment.trials(scale, guess=True))


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
    planned = {trial.key: trial for trial in experiment.trials(scale, rows, guess=True)}
    most = max([experiment.plan(scale).seeds, *(row["seed"] + 1 for row in rows)])
    declared = {trial.key: trial for trial in experiment.trials(scale, rows, guess=True, seeds=most)}
    rows = [row for row in rows if row["trial"] in declared]  # rows of an earlier declaration are not shown
    for row in rows:
        declared[row["trial"]].require(row)
    seconds = {row["trial"]: row["seconds"] for row in rows}
    estimate = experiment.estimated_seconds([declared[key] for key in seconds])
    pace = sum(seconds.values()) / estimate if estimate else 1.0  # of the machine that made the rows
    return Section(
        experiment=experiment,
        scale=scale,
        rows=rows,
        finished=len(planned.keys() & seconds.keys()),
        planned=len(planned),
        hours=sum(seconds.values()) / 3600,
        seconds_left=pace * experiment.estimated_seconds([planned[key] for key in planned.keys() - seconds.keys()]),
        seconds_in_full=pace * estimated_seconds(experiment, "paper"),
        command=command_of(experiment, scale),
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
                sample_of(found, "state_gap_squared"),
                sample_of(found, "step_rate_over_plain_torch"),
                found[0]["parameters"],
                median(row["seconds"] for row in found),
            )
        )
    order = list(plan.methods)
    return sorted(entries, key=lambda e: (_natural(e.cell), order.index(e.method)))


def _rank(length: Any) -> float:
    return length if is_number(length) else length[-1]


def _natural(text: str) -> list[Any]:
    return [(0, float(word), "") if word.replace(".", "", 1).isdigit() else (1, 0.0, word) for word in text.split()]


def _candidate(candidates: Sequence[Any], row: Row) -> dict[str, Any]:
    """The settings in which a method's candidates differ, as this row has them."""
    return {key: row["setting"][key] for key in varied(candidates) if key in row["setting"]}


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
        found.append(
            Comparison(what, paper, ours, accepted, None if free or len(ours) < 2 else low <= ours.mean <= high)
        )
    return found


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
    if left := unrun(sections):
        lines += ["", "Not run here:", "", "| experiment | claim | paper | command | time of one core, by estimate |"]
        lines += ["|---|---|---|---|---|"]
        for u in left:
            told = f"{u.experiment.name} | {u.experiment.short} | {u.experiment.reported}"
            lines.append(f"| {told} | `{u.command}` | {duration(u.seconds)} |")
    lines += ["", LEGEND]
    for s in sections:
        lines += ["", f"## {s.experiment.name} ({s.scale})", "", f"**Claim.** {s.experiment.claim}", ""]
        lines += [f"**How.** {s.experiment.how(s.scale)}", "", f"`{s.command}`: {s.finished} of {s.planned} trials, "]
        lines[-1] += f"{s.hours:.2f} hours of one core. {s.outlook}".rstrip()
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
