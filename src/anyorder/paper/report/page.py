"""Rows become pages: ``RESULTS.md`` and one self-contained ``report.html``, every number in them from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anyorder.audits.page import render
from anyorder.checks import InputError
from anyorder.files import write_atomically
from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.report.figures import Figure, figures_of
from anyorder.paper.report.tables import Table, difference, figure_at, tables_of
from anyorder.paper.report.verdicts import NO, OPEN, YES, Comparison, earlier, judge
from anyorder.paper.runner.rows import read_rows, rows_path
from anyorder.paper.runner.trial import Experiment, Row, duration, spelled

FIRST_SCREEN = ("parity", "labels", "half-range", "pointcloud")  # the first figure of each stands there


@dataclass(frozen=True)
class Section:
    """An experiment at one scale as both pages show it; the first table has the cells, and ``lines`` below them."""

    experiment: Experiment
    scale: str
    anchor: str
    verdict: str
    extent: str
    cells: Sequence[Sequence[str]]
    lines: Sequence[str]
    seeds: Sequence[int]
    trials: int
    seconds: float
    command: str
    tables: Sequence[Table]
    figures: Sequence[Figure]


def write_report(folder: str | Path, experiments: Sequence[Experiment] = ()) -> tuple[Path, Path]:
    """Write ``RESULTS.md`` and ``report.html`` beside the rows in ``folder``; returns their paths.

    ``experiments`` are those of your own. Ours are shown if the folder has rows of one of them.
    """
    folder = Path(folder)
    ours = EXPERIMENTS.values() if any(rows_path(folder, name).exists() for name in EXPERIMENTS) else ()
    sections = [section for each in (*ours, *experiments) for section in sections_of(folder, each)]
    shown = [section for section in sections if section.trials]
    if not shown:
        raise InputError(f"folder holds no rows: {folder}; name an experiment of your own as my_module:EXPERIMENT")
    drawn = {section.experiment.name: section for section in shown if section.figures}
    first = [drawn[name] for name in FIRST_SCREEN if name in drawn] or list(drawn.values())[:4]
    for section in first:
        write_atomically(folder / "figures" / f"{section.anchor}.png", section.figures[0].png)
    sections.sort(key=lambda section: [*FIRST_SCREEN, section.experiment.name].index(section.experiment.name))
    papers = [section for section in sections if section.experiment.reported != "not tried"]
    others = [section for section in sections if section.experiment.reported == "not tried"]
    parts = {"Claims of the paper": papers, "Beyond the paper": others} if papers else {"Claims": others}
    for name in ("RESULTS.md", "report.html"):
        page = render(f"{name}.j2", parts=parts, shown=shown, first=first)
        write_atomically(folder / name, page)
    return folder / "RESULTS.md", folder / "report.html"


def sections_of(folder: Path, experiment: Experiment) -> list[Section]:
    """The sections of one experiment, the largest scale that has rows first; smoke rows only if there are no others."""
    rows = read_rows(rows_path(folder, experiment.name))
    scales = [scale for scale in reversed([*experiment.plans]) if any(row["scale"] == scale for row in rows)]
    scales = [scale for scale in scales if scale != "smoke"] or scales
    scales = scales or [min(experiment.plans, key=lambda scale: scale != "laptop")]
    return [section_of(experiment, scale, [row for row in rows if row["scale"] == scale]) for scale in scales]


def section_of(experiment: Experiment, scale: str, rows: list[Row]) -> Section:
    """Everything the pages say about one experiment at one scale."""
    command = rows[-1]["command"] if rows else f"anyorder reproduce {experiment.name} --scale {scale}"
    spent = sum({row["trial"]: row["seconds"] for row in rows}.values())
    rows = experiment.with_selection(rows, scale)  # those on disk may have been marked before candidates were added
    planned = experiment.trials(scale, rows, guess=True)
    most = max([experiment.plan(scale).seeds, *(row["seed"] + 1 for row in rows)])
    declared = {trial.key for trial in experiment.trials(scale, rows, guess=True, seeds=most)}
    before = earlier(experiment, [row for row in rows if row["trial"] not in declared])  # these decide nothing
    rows = [row for row in rows if row["trial"] in declared]
    done = {row["trial"] for row in rows}
    left = [trial for trial in planned if trial.key not in done]
    verdict, comparisons = judge(experiment, rows, left)
    metric = (experiment.tests[0].metric if experiment.tests else "") or experiment.headline
    at = experiment.at or {key: values[0] for key, values in experiment.plan(scale).over.items()}
    here = [e for e in experiment.expected if all(at.get(key, value) == value for key, value in e.where.items())]
    seeds = sorted(Counter(m for m, _ in {(row["method"], row["seed"]) for row in rows if row["selected"]}).values())
    numbers = "–".join(dict.fromkeys(f"{number}" for number in (*seeds[:1], *seeds[-1:])))
    extent = [metric.replace("_", " ") * (metric != "accuracy"), spelled(at), duration(spent)]
    extent.insert(2, f"{numbers} seed{'s' * (numbers != '1')}" * bool(seeds))
    remaining = f"{len(left)} of {len(planned)} trials left, about {duration(experiment.estimated_seconds(left))}"
    return Section(
        experiment=experiment,
        scale=scale,
        anchor=experiment.name + f"-{scale}" * (scale != "laptop"),
        verdict=verdict,
        extent=", ".join(filter(None, extent)) if rows else "",
        cells=[
            [experiment.reported, *(f"{e.method} {e.paper:g}" for e in here if e.paper is not None)],
            [figure_at(experiment, rows, before, e.method, e.metric, {**at, **e.where}) for e in here],
            [figure_at(experiment, rows, before, kind, metric, at) for kind in ("best with", "best without")],
        ],
        lines=[experiment.decided.get(verdict, ""), decided(verdict, comparisons), remaining * bool(left)],
        seeds=seeds,
        trials=len(done),
        seconds=spent,
        command=command,
        tables=tables_of(experiment, rows, comparisons, before),
        figures=figures_of(experiment, scale, rows) if rows else [],
    )


def decided(verdict: str, comparisons: Sequence[Comparison]) -> str:
    """The comparison that decided. If all hold it is the weakest; else the clearest with the result of the verdict."""
    wanted = {"not reproduced": NO, "open": OPEN}.get(verdict, YES)
    made = sorted((c for c in comparisons if c.holds == wanted), key=lambda c: c.p) or list(comparisons)
    if not made:
        return ""
    c = made[-1] if wanted == YES else made[0]
    held = f"{sum(c.holds == YES for c in comparisons)} of {len(comparisons)} comparisons hold"
    return f"{': '.join(filter(None, [c.where, c.one]))} {c.ours}, {c.other} {c.theirs}; {difference(c)}; {held}"
