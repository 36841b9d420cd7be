"""Trials become rows: on local processes or a Ray cluster, resumable after any interruption.

The rows file ``<out>/<experiment>.jsonl`` is the only record of what is finished. It is replaced as a whole (write,
sync, rename) each time a trial ends, so a kill at any moment loses the trials under way and nothing else. What a
trial keeps while it runs (checkpoints) lives in ``ANYORDER_HOME`` and is removed when its rows are written.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import multiprocessing
import multiprocessing.connection
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from anyorder import __version__
from anyorder.checks import Diverged, InputError, one_of, whole_number
from anyorder.files import home, locked
from anyorder.paper.experiments import experiment_named
from anyorder.paper.runner.rows import read_rows, rows_path, write_rows
from anyorder.paper.runner.trial import Experiment, Row, Run, Trial, duration, spelled, varied

LOST_WORKER_RETRIES = 3

# An engine yields (trial, rows, None) or (trial, None, what went wrong) as trials end, in any order.
Finished = tuple[Trial, list[Row] | None, str | None]


@dataclass(frozen=True)
class Origin:
    """What the rows of a sweep have in common: the command, the commit of the code, and where checkpoints lie."""

    command: str = ""
    commit: str | None = None
    out: str = ""

    def workdir(self, experiment: str, key: str) -> Path:
        """The folder of a trial's checkpoints: one of its own for each folder of rows."""
        place = hashlib.sha256(self.out.encode()).hexdigest()[:6]
        return home() / "trials" / experiment / f"{key}-{place}"


def sweep(
    experiment: Experiment,
    scale: str,
    *,
    out: str | Path,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    only: Sequence[str] | None = None,
    seeds: int | None = None,
    command: str | None = None,
    on_finish: Callable[[Trial, list[Row] | None, str | None], None] | None = None,
) -> list[Row]:
    """Run every trial of ``experiment`` at ``scale`` that ``out`` has no rows of yet; return all rows of the file.

    ``jobs`` is the number of local processes (None: as many as there are cores for, ``experiment.cpus`` each).
    ``on_finish(trial, rows, problem)`` is called as each trial ends. A trial that raises is reported there,
    skipped, and tried again by the next sweep.
    """
    _check_options(engine, jobs, address, experiment.gpus, seeds)
    path = rows_path(out, experiment.name)
    command = command or f"anyorder reproduce {experiment.name} --scale {scale}"
    origin = Origin(command, commit(), str(path.absolute().parent))
    with locked(path, path.with_name(f".{path.name}.lock")):
        for draft in path.parent.glob(f".{path.name}.*.tmp"):  # left by a kill in the middle of a write
            draft.unlink(missing_ok=True)
        rows = read_rows(path)
        failed: list[Row] = []
        while todo := unfinished(experiment.trials(scale, rows, only=only, seeds=seeds), [*rows, *failed]):
            if engine == "local":
                finished = local_engine(experiment, todo, origin, jobs=jobs or jobs_for(experiment.cpus))
            else:
                from anyorder.paper.runner.ray import ray_engine

                finished = ray_engine(experiment, todo, origin, address=address)
            with contextlib.closing(finished):
                for trial, new, problem in finished:
                    if new is None:
                        failed.append({"trial": trial.key})
                    else:
                        rows = experiment.with_selection([*rows, *new], scale)
                        write_rows(path, rows)
                        shutil.rmtree(origin.workdir(trial.experiment, trial.key), ignore_errors=True)
                    if on_finish is not None:
                        on_finish(trial, new, problem)
        write_rows(path, experiment.with_selection(rows, scale))
        for key in {row["trial"] for row in rows}:  # left by a kill just after a row was written
            shutil.rmtree(origin.workdir(experiment.name, key), ignore_errors=True)
        return read_rows(path)


def _check_options(engine: str, jobs: int | None, address: str | None, gpus: float, seeds: int | None) -> None:
    """Refuse options that the engine would ignore, and GPUs that this machine does not have."""
    if one_of("engine", engine, ("local", "ray")) == "local" and address is not None:
        raise InputError(f"address {address} is that of a Ray head; choose the engine ray as well, or leave it out")
    if engine == "ray" and jobs is not None:
        raise InputError("jobs counts local processes; with the engine ray the cluster decides, so leave it out")
    if engine == "local" and gpus and not torch.accelerator.is_available():
        raise InputError(f"gpus is {gpus:g}, but torch finds no GPU on this machine; leave it out to use processors")
    for name, value in (("jobs", jobs), ("seeds", seeds)):
        if value is not None:
            whole_number(name, value)


def jobs_for(cpus: int) -> int:
    """How many local processes of ``cpus`` threads this machine has cores for; at least one."""
    return max(1, (os.cpu_count() or 1) // max(1, cpus))


def unfinished(trials: Sequence[Trial], rows: Sequence[Row]) -> list[Trial]:
    """The trials that have no rows yet."""
    done = {row["trial"] for row in rows}
    return [trial for trial in trials if trial.key not in done]


@functools.cache
def commit() -> str | None:
    """The commit of the checkout that this package is run from; None of an installed one."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


# --- one trial


def run_trial(run: Run, trial: Trial, data: Any = None, origin: Origin | None = None) -> list[Row]:
    """Run one trial in this process (``run`` is an experiment's) and return its rows, one an outcome."""
    origin = origin or Origin()
    began = time.perf_counter()
    try:
        outcomes = run(trial, data, origin.workdir(trial.experiment, trial.key))
    except Diverged:  # an outcome too: its setting is not chosen, and the trial is not run again
        outcomes = [{"validation": {}, "metrics": {"diverged": 1.0}, "parameters": 0}]
    common = {
        **{key: value for key, value in vars(trial).items() if key != "setting"},
        "selected": False,
        "seconds": round(time.perf_counter() - began, 3),
        "commit": origin.commit,
        "threads": torch.get_num_threads(),
        "versions": {"anyorder": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "command": origin.command,
        "trial": trial.key,
        "trial_rows": len(outcomes),
    }
    defaults = {"reads": 1, "steps": None}
    return [{**defaults, **o, **common, "setting": {**trial.setting, **o.get("setting", {})}} for o in outcomes]


def attempt(run: Run, trial: Trial, data: Any, origin: Origin) -> tuple[list[Row] | None, str | None]:
    """The rows of a trial, or what went wrong: one bad trial does not end a sweep, which reports it."""
    try:
        return run_trial(run, trial, data, origin), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def settle_process(threads: int = 1) -> None:
    """What a process that trains does first: it takes its threads, and loses no time on denormal numbers."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)


# --- local processes


def local_engine(
    experiment: Experiment, trials: Sequence[Trial], origin: Origin, *, jobs: int
) -> Generator[Finished, None, None]:
    """``jobs`` pools of one process each: one that dies costs its own trial only, which is tried again."""
    typed_in = module_of(experiment.run) == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    context: Any = multiprocessing.get_context("fork" if typed_in else "forkserver")
    if not typed_in:  # a function from a notebook or a prompt has no file that another process could import
        context.set_forkserver_preload([__name__])  # torch is imported once, not once a process
    leash, hold = context.Pipe(duplex=False)
    begin = (leash, hold, dict(os.environ), experiment.cpus, experiment.run, experiment.data)
    waiting, deaths = deque(trials), Counter[str]()
    idle: list[ProcessPoolExecutor] = []
    running: dict[Future[Any], tuple[ProcessPoolExecutor, Trial]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                pool = idle.pop() if idle else ProcessPoolExecutor(1, context, _begin, begin)
                with contextlib.suppress(BrokenProcessPool):  # its process died while it was idle: another one, then
                    running[pool.submit(_work, waiting[0], origin)] = pool, waiting[0]
                    waiting.popleft()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                pool, trial = running.pop(future)
                try:
                    rows, problem = future.result()
                    idle.append(pool)
                except BrokenProcessPool:
                    deaths[trial.key] += 1
                    if deaths[trial.key] <= LOST_WORKER_RETRIES:
                        waiting.appendleft(trial)
                        continue
                    rows, problem = None, f"its process died {deaths[trial.key]} times"
                yield trial, rows, problem
    finally:
        hold.close()  # the processes leave
        for pool in [*idle, *(pool for pool, _ in running.values())]:
            pool.shutdown(cancel_futures=True)


_given: dict[str, Any] = {}  # to this process, by the sweep that started it


def _begin(leash: Any, hold: Any, environment: dict[str, str], cpus: int, run: Run, load: Any) -> None:
    """Make a process ready for trials; it leaves when the sweep ends, however that ends."""
    hold.close()  # the sweep's alone
    threading.Thread(target=_leave_at_the_end_of, args=(leash,), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)  # the sweep's, not that of the server this process was forked from
    settle_process(cpus)
    _given.update(run=run, load=load)


def _leave_at_the_end_of(leash: Any) -> None:
    multiprocessing.connection.wait([leash])
    os._exit(1)


def _work(trial: Trial, origin: Origin) -> tuple[list[Row] | None, str | None]:
    if "data" not in _given:  # an error here ends the sweep: no other process would fare better
        _given["data"] = None if _given["load"] is None else _given["load"](trial.scale)
    return attempt(_given["run"], trial, _given["data"], origin)


def module_of(function: Any) -> str:
    """The module of a function, also inside functools.partial."""
    return getattr(function, "func", function).__module__


# --- one command a table or figure


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
    """Run what is missing of an experiment, the plan shown first; returns the problems of trials that failed.

    ``name`` is one of ours or one of your own, ``my_module:EXPERIMENT``. A trial gets ``cpus`` threads and, with
    ``gpus`` (a share of one will do), trains on the GPU it finds; None: what the experiment declares, one thread and no
    GPU.
    """
    experiment = experiment_named(name)
    _check_options(engine, jobs, address, gpus or 0, seeds)
    experiment = replace(experiment, cpus=cpus or experiment.cpus, gpus=gpus or experiment.gpus)
    if experiment.gpus and ":" not in name:  # ours take a device
        run: Any = experiment.run
        experiment = replace(experiment, run=functools.partial(run, device="auto"))
    plan, rows = experiment.plan(scale), read_rows(rows_path(out, experiment.name))
    trials = experiment.trials(scale, rows, only=only, seeds=seeds, guess=True)
    left = unfinished(trials, rows)
    seconds = experiment.estimated_seconds(left)
    print(f"{experiment.name}, {scale} scale. {experiment.claim}\nHow: {experiment.choices}")
    told = f"{len(left)} of {len(trials)} trials to run: about {duration(seconds)} of one core's time"
    if engine == "local":
        processes = min(jobs or jobs_for(experiment.cpus), max(1, len(left)))
        told += f", {duration(seconds / processes)} on {processes} process{'es' if processes > 1 else ''}"
    print(told, flush=True)
    if dry_run or not left:
        return []
    done, problems = itertools.count(1), list[str]()

    def finished(trial: Trial, rows: list[Row] | None, problem: str | None) -> None:
        shown = {key: trial.setting.get(key) for key in [*plan.over, *varied(plan.methods[trial.method])]}
        shown = {key: value for key, value in shown.items() if value is not None}
        where, figure = f"{trial.method}: {spelled({**shown, 'seed': trial.seed})}", "failed"
        if rows is None:
            problems.append(f"failed: {trial.experiment} {where}: {problem}")
        else:  # whoever watches should not see the test sets before the choices are made
            value = experiment.figure(rows[-1]["validation"])
            figure = "diverged" if math.isnan(value) else f"validation {experiment.select} {abs(value):.4f}"
        print(f"[{next(done)}/{len(left)}] {where}: {figure}", flush=True)

    command = f"anyorder reproduce {name} --scale {scale}" + (f" --seeds {seeds}" if seeds else "")
    command += f" --gpus {gpus:g}" if gpus else ""
    options: dict[str, Any] = {"out": out, "jobs": jobs, "engine": engine, "address": address, "seeds": seeds}
    rows = sweep(experiment, scale, only=only, command=command, on_finish=finished, **options)
    for method, key, value in experiment.at_the_edge(scale, rows):
        print(f"{method}: the chosen {key.replace('_', ' ')} {value:g} ends its grid, which should be extended")
    print(*problems, sep="\n", end="\n" * bool(problems), file=sys.stderr)
    print(f"{next(done) - 1 - len(problems)} trials finished; rows in {rows_path(out, experiment.name)}")
    return problems
