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
from anyorder.paper.report.tables import Table, choices_table, comparisons_table, headline, weights_table
from anyorder.paper.report.verdicts import judge
from anyorder.paper.runner.rows import read_rows, rows_path
from anyorder.paper.runner.trial import Experiment, Row

LEGEND = """\
±: standard deviation over seeds. Verdicts rest on 95 % intervals of paired differences and on accepted bands for means.
Open (seeds): an interval holds the bar, or there is one seed. Open (budget): trials are missing, or a model did not
fit. A band set by us decides where the paper's figure lies in it. State gap²: the squared distance of the end states of
two orderings over that of two sets; 0: order is ignored. Speed: training steps a second over those of plain PyTorch
without a penalty. Seconds: the median over seeds. Lines in figures are means over seeds, bands their 95 % intervals."""


@dataclass(frozen=True)
class Section:
    """An experiment at one scale as the pages show it; its lines of the summary and of the table of trials."""

    experiment: Experiment
    scale: str
    verdict: str
    summary: Sequence[str]
    trials: Sequence[str]
    tables: Sequence[Table]
    figures: Sequence[Figure]


def write_report(folder: str | Path) -> tuple[Path, Path]:
    """Write ``RESULTS.md`` and ``report.html`` beside the rows in ``folder``; returns their paths."""
    folder = Path(folder)
    sections = [section for name in EXPERIMENTS for section in sections_of(folder, name)]
    if not any(section.tables for section in sections):
        raise InputError(f"folder holds no rows: {folder}; anyorder reproduce … --out {folder} makes them")
    columns = ["experiment", "claim", "paper", "ours", "seeds", "verdict"]
    summary = Table("All experiments", columns, [s.summary for s in sections])
    columns = ["experiment", "command", "trials", "hours of one core"]
    trials = Table("Trials", columns, [s.trials for s in sections])
    text = ["# Results", "Made from the rows in this folder by `anyorder report results`.", summary.markdown()]
    text += [LEGEND, trials.markdown()]
    for s in (section for section in sections if section.tables):
        text += [f"## {s.summary[0]}", f"**{s.verdict}.** {s.experiment.claim}", s.experiment.remark]
        text += [s.experiment.how(s.scale), *(table.markdown() for table in s.tables)]
    write_atomically(folder / "RESULTS.md", "\n\n".join(filter(None, text)) + "\n")
    page = render("report.html.j2", sections=sections, summary=summary, trials=trials, legend=LEGEND)
    write_atomically(folder / "report.html", page)
    return folder / "RESULTS.md", folder / "report.html"


def sections_of(folder: Path, name: str) -> list[Section]:
    """The sections of one experiment, the largest scale that has rows first; smoke rows only if there are no others."""
    rows = read_rows(rows_path(folder, name))
    scales = [scale for scale in ("paper", "laptop") if any(row["scale"] == scale for row in rows)]
    scales = scales or ["smoke" if rows else "laptop"]
    return [section_of(EXPERIMENTS[name], scale, [row for row in rows if row["scale"] == scale]) for scale in scales]


def section_of(experiment: Experiment, scale: str, rows: list[Row]) -> Section:
    """Everything the pages say about one experiment at one scale."""
    rows = experiment.with_selection(rows, scale)  # those on disk may have been marked before candidates were added
    planned = {trial.key for trial in experiment.trials(scale, rows, guess=True)}
    most = max([experiment.plan(scale).seeds, *(row["seed"] + 1 for row in rows)])
    declared = {trial.key for trial in experiment.trials(scale, rows, guess=True, seeds=most)}
    rows = [row for row in rows if row["trial"] in declared]  # rows of an earlier declaration are not shown
    seconds = {row["trial"]: row["seconds"] for row in rows}
    left = planned - seconds.keys()
    chosen = [row for row in rows if row["selected"]]
    verdict, comparisons = judge(experiment, rows, not left)
    seeds = Counter(method for method, _ in {(row["method"], row["seed"]) for row in chosen})
    title = experiment.name if scale == "laptop" else f"{experiment.name} ({scale})"
    figures = headline(experiment, chosen, comparisons)
    command = f"anyorder reproduce {experiment.name} --scale {scale}"
    tables = [comparisons_table(comparisons), choices_table(experiment, scale, rows), weights_table(experiment, rows)]
    return Section(
        experiment=experiment,
        scale=scale,
        verdict=verdict,
        summary=[title, experiment.short, experiment.reported, figures, f"{min(seeds.values(), default='')}", verdict],
        trials=[
            title,
            f"`{command}`",
            f"{len(planned) - len(left)}/{len(planned)}",
            f"{sum(seconds.values()) / 3600:.2f}",
        ],
        tables=[table for table in tables if table.rows],
        figures=figures_of(experiment, scale, rows),
    )
