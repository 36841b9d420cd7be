"""One command a table or figure: say what will be run and for how long, run it, show how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from anyorder.checks import InputError, one_of, real_number, whole_number
from anyorder.paper.experiments import EXPERIMENTS, GROUPS
from anyorder.paper.runner.sweep import check_engine, earlier_seconds, jobs_for, read_rows, rows_path, sweep
from anyorder.paper.runner.trial import Experiment, Row, Trial, duration


def reproduce(
    name: str,
    scale: str = "laptop",
    *,
    out: str | Path = "results",
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    only: Sequence[str] | None = None,
    seeds: int | None = None,
    dry_run: bool = False,
) -> list[str]:
    """Run what is missing of an experiment, showing the plan first; returns the problems of trials that failed.

    ``name`` may be a group ("synthetic", "real"): its total time is shown, then its experiments run one by one.
    A trial gets ``cpus`` threads and, with ``gpus`` (a share of one will do), trains on the GPU it finds; None: what
    the experiment declares, one thread and no GPU.
    """
    one_of("experiment", name, [*EXPERIMENTS, *GROUPS])
    one_of("engine", engine, ("local", "ray"))
    for each in GROUPS.get(name, [name]):
        EXPERIMENTS[each].plan(scale)  # refuses a scale it does not have
    jobs = None if jobs is None else whole_number("jobs", jobs)
    seeds = None if seeds is None else whole_number("seeds", seeds)
    cpus = None if cpus is None else whole_number("cpus", cpus)
    gpus = None if gpus is None else real_number("gpus", gpus, at_least=0)
    check_engine(engine, jobs, address, gpus or 0)
    options: dict[str, Any] = {"only": only, "seeds": seeds}
    if name in GROUPS:
        rows_path(out, name)  # what is wrong with the folder is wrong for all
        chosen = _of_group(name, scale, only)
        total = sum(_estimate(each, scale, out, {**options, "only": methods}) for each, methods in chosen.items())
        print(f"{name}, {scale} scale: {', '.join(chosen)}. About {duration(total)} of one core's time in all.\n")
        more: dict[str, Any] = {"jobs": jobs, "engine": engine, "address": address, "cpus": cpus, "gpus": gpus}
        more |= {"dry_run": dry_run, "seeds": seeds}
        return [p for each, methods in chosen.items() for p in _one_of_a_group(each, methods, scale, out, more)]
    experiment = EXPERIMENTS[name]
    experiment = replace(experiment, cpus=cpus or experiment.cpus, gpus=experiment.gpus if gpus is None else gpus)
    if experiment.gpus:
        run: Any = experiment.run  # that of an experiment of the paper: it takes a device
        experiment = replace(experiment, run=partial(run, device="auto"))
    rows, trials, left = _plan(name, scale, out, options)
    processes = min(jobs or jobs_for(experiment.cpus), max(1, len(left)))
    print(plan_text(experiment, scale, trials, left, processes if engine == "local" else None), flush=True)
    searched = experiment.plan(scale).tune_seeds or experiment.plan(scale).seeds
    if seeds is not None and seeds < searched:
        print(f"Settings are chosen from {searched} seeds; with {seeds} the report shows candidates and no choice.")
    if dry_run or not left:
        return []
    command = f"anyorder reproduce {name} --scale {scale}" + (f" --seeds {seeds}" if seeds else "")
    command += f" --gpus {gpus:g}" if gpus else ""
    with _Display(experiment, scale, trials, rows, left, processes) as display:
        sweep(
            experiment, scale, out=out, jobs=jobs, engine=engine, address=address, only=only, seeds=seeds,
            command=command, on_finish=display.finished,
        )  # fmt: skip
    print(f"{display.count - len(display.problems)} trials finished; rows in {rows_path(out, name)}")
    return display.problems


def _plan(
    name: str, scale: str, out: str | Path, options: dict[str, Any]
) -> tuple[list[Row], list[Trial], list[Trial]]:
    """The rows there are, all trials, and those still to run."""
    rows = read_rows(rows_path(out, name))
    trials = EXPERIMENTS[name].trials(scale, rows, guess=True, **options)
    done = {row["trial"] for row in rows}
    return rows, trials, [trial for trial in trials if trial.key not in done]


def _of_group(name: str, scale: str, only: Sequence[str] | None) -> dict[str, list[str] | None]:
    """The experiments of a group with the methods to run of each (None: all), without those that have none of them."""
    if only is None:
        return dict.fromkeys(GROUPS[name])
    methods = {each: EXPERIMENTS[each].plan(scale).methods for each in GROUPS[name]}
    known = {method for mine in methods.values() for method in mine}
    wanted = [one_of("only", method, sorted(known)) for method in only]
    chosen = {each: [method for method in wanted if method in mine] for each, mine in methods.items()}
    return {each: mine for each, mine in chosen.items() if mine}


def _estimate(name: str, scale: str, out: str | Path, options: dict[str, Any]) -> float:
    """Seconds of what is left of an experiment; 0 where its rows cannot be read, which it will say in its turn."""
    try:
        return EXPERIMENTS[name].estimated_seconds(_plan(name, scale, out, options)[2])
    except InputError:
        return 0.0


def _one_of_a_group(
    name: str, only: list[str] | None, scale: str, out: str | Path, options: dict[str, Any]
) -> list[str]:
    """Reproduce ``name``; where it cannot even start, for want of data say, that is its problem and no one else's."""
    try:
        return reproduce(name, scale, out=out, only=only, **options)
    except InputError as error:
        print(f"{name} is left out: {error}", flush=True)
        return [f"{name}: {error}"]


def plan_text(
    experiment: Experiment, scale: str, trials: Sequence[Trial], left: Sequence[Trial], processes: int | None
) -> str:
    """What a sweep is about to do, and how long it should take."""
    seconds = experiment.estimated_seconds(left)
    lines = [
        f"{experiment.name}, {scale} scale. {experiment.claim}",
        f"How: {experiment.how(scale)}",
    ]
    for method, candidates in experiment.plan(scale).methods.items():
        mine = [trial for trial in trials if trial.method == method]
        waiting = sum(trial.method == method for trial in left)
        if mine:
            lines.append(
                f"  {method}: {len(candidates)} candidate settings, {len(mine)} trials, {len(mine) - waiting} finished"
            )
    lines.append(f"{len(left)} of {len(trials)} trials to run: about {duration(seconds)} of one core's time")
    if processes:
        lines[-1] += f", {duration(seconds / processes)} on {processes} process{'es' if processes > 1 else ''}"
    return "\n".join(lines)


class _Display:
    """A live table on a terminal, a line a trial elsewhere."""

    def __init__(
        self,
        experiment: Experiment,
        scale: str,
        trials: Sequence[Trial],
        rows: Sequence[Row],
        left: Sequence[Trial],
        processes: int,
    ) -> None:
        self.experiment, self.processes = experiment, processes
        self.problems: list[str] = []
        self.all = {name: sum(t.method == name for t in trials) for name in experiment.plan(scale).methods}
        self.left = {trial.key: trial for trial in left}
        self.rows = [row for row in rows if row["scale"] == scale]
        self.total, self.count = len(left), 0
        self.expected_seconds = experiment.estimated_seconds(left)
        self.worked = 0.0  # estimated seconds of what this sweep has finished
        self.earlier = {trial.key: earlier_seconds(trial) for trial in left}  # what it finds done of each trial
        self.paced = False  # whether a trial has been run from its beginning
        self.began = time.monotonic()
        console = Console()
        self.live = Live(self._table(), console=console, refresh_per_second=2) if console.is_terminal else None

    def __enter__(self) -> _Display:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live is not None:
            self.live.stop()
        for problem in self.problems:
            print(problem, file=sys.stderr)

    def finished(self, trial: Trial, rows: list[Row] | None, problem: str | None, left: int) -> None:
        self.count += 1
        estimate, earlier = self.experiment.estimated_seconds([trial]), self.earlier.get(trial.key, 0.0)
        found = min(earlier / rows[0]["seconds"], 1.0) if rows and earlier else 0.0  # the share that was done before
        self.worked += estimate * (1 - found)
        self.expected_seconds -= estimate * found
        self.paced = self.paced or not earlier
        where = f"{trial.method} {_varied(self.experiment, trial)} seed {trial.seed}"
        if problem is not None:
            self.problems.append(f"failed: {trial.experiment} {where}: {problem}")
        self.rows += rows or []
        if self.live is not None:
            self.live.update(self._table())
        else:
            figure = "failed" if rows is None else _figure(rows[-1:], self.experiment)
            print(f"[{self.count}/{self.total}] {where}: {figure}; {self._remaining()} left", flush=True)

    def _remaining(self) -> str:
        elapsed = time.monotonic() - self.began
        left = max(self.expected_seconds - self.worked, 0)
        if not self.paced:  # a trial that was continued near its end says little of how long one takes
            return duration(left / self.processes)
        return duration(elapsed * left / self.worked)

    def _table(self) -> Table:
        table = Table(title=f"{self.experiment.name}: {self.count}/{self.total}, {self._remaining()} left")
        for column in ("method", "finished", "mean of all", "seconds a trial"):
            table.add_column(column)
        for method, number in self.all.items():
            rows = [row for row in self.rows if row["method"] == method]
            seconds = {row["trial"]: row["seconds"] for row in rows}
            mean = f"{sum(seconds.values()) / len(seconds):.1f}" if seconds else ""
            table.add_row(method, f"{len(seconds)}/{number}", _figure(rows, self.experiment), mean)
        return table


def _figure(rows: Sequence[Row], experiment: Experiment) -> str:
    """The mean validation figure: whoever watches a sweep should not see the test sets before the choices are made."""
    for metric in (experiment.headline, experiment.select):
        values = [row["validation"][metric] for row in rows if metric in row["validation"]]
        if values:
            return f"validation {metric} {sum(values) / len(values):.4f}"
    return ""


def _varied(experiment: Experiment, trial: Trial) -> str:
    """What tells this trial from its method's others."""
    plan = experiment.plan(trial.scale)
    keys = [*plan.over, *(key for candidate in plan.methods[trial.method] for key in candidate)]
    return " ".join(f"{key}={trial.setting[key]}" for key in dict.fromkeys(keys) if trial.setting[key] is not None)
