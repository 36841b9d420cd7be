"""Trials become rows: on local processes or a Ray cluster, resumable after any interruption.

The rows file ``<out>/<experiment>.jsonl`` is the only record of what is finished. It is replaced as a whole (write,
sync, rename) each time a trial ends, so a kill at any moment loses the trials under way and nothing else. What a
trial keeps while it runs (checkpoints) lives in ``ANYORDER_HOME`` and is removed when its rows are written.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from anyorder import __version__
from anyorder.checks import Diverged, InputError, InputTypeError, one_of, whole_number
from anyorder.files import home, write_atomically
from anyorder.paper.runner.rows import read_rows, rows_path, write_rows
from anyorder.paper.runner.trial import Experiment, Row, Run, Trial

LOST_WORKER_RETRIES = 3
EARLIER = "earlier_seconds.txt"  # in a trial's workdir

# An engine yields (trial, rows, None) or (trial, None, what went wrong) as trials end, in any order.
Finished = tuple[Trial, list[Row] | None, str | None]


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
    on_finish: Callable[[Trial, list[Row] | None, str | None, int], None] | None = None,
) -> list[Row]:
    """Run every trial of ``experiment`` at ``scale`` that ``out`` has no rows of yet; return all rows of the file.

    ``jobs`` is the number of local processes (None: as many as there are cores for, ``experiment.cpus`` each).
    ``on_finish(trial, rows, problem, left)`` is called as each trial ends. A trial that raises is reported there,
    skipped, and tried again by the next sweep.
    """
    one_of("engine", engine, ("local", "ray"))
    check_engine(engine, jobs, address, experiment.gpus)
    jobs = jobs_for(experiment.cpus) if jobs is None else whole_number("jobs", jobs)
    command = command or f"anyorder reproduce {experiment.name} --scale {scale}"
    path = rows_path(out, experiment.name)
    with _only_writer(path):
        rows = read_rows(path)
        failed: set[str] = set()
        while todo := _unfinished(experiment.trials(scale, rows, only=only, seeds=seeds), rows, failed):
            if engine == "local":
                finished = local_engine(experiment, todo, jobs=jobs, command=command)
            else:
                finished = ray_engine(experiment, todo, address=address, command=command)
            with contextlib.closing(finished):
                for number, (trial, new, problem) in enumerate(finished, start=1):
                    if new is None:
                        failed.add(trial.key)
                    else:
                        rows = experiment.with_selection([*rows, *new], scale, seeds=seeds)
                        write_rows(path, rows)
                        _forget(trial)
                    if on_finish is not None:
                        on_finish(trial, new, problem, len(todo) - number)
        write_rows(path, experiment.with_selection(rows, scale, seeds=seeds))
        return read_rows(path)


def check_engine(engine: str, jobs: int | None, address: str | None, gpus: float) -> None:
    """Refuse options that the engine would not look at, and GPUs this machine does not have."""
    if engine == "local" and address is not None:
        raise InputError(f"address {address} is that of a Ray head; choose the engine ray as well, or leave it out")
    if engine == "ray" and jobs is not None:
        raise InputError("jobs counts local processes; with the engine ray the cluster decides, so leave it out")
    if engine == "local" and gpus and not torch.accelerator.is_available():
        raise InputError(f"gpus is {gpus:g}, but torch finds no GPU on this machine; leave it out to use processors")


def jobs_for(cpus: int) -> int:
    """How many local processes of ``cpus`` threads this machine has cores for; at least one."""
    return max(1, (os.cpu_count() or 1) // max(1, cpus))


def _unfinished(trials: Sequence[Trial], rows: Sequence[Row], failed: set[str]) -> list[Trial]:
    done = {row["trial"] for row in rows} | failed
    return [trial for trial in trials if trial.key not in done]


def run_trial(run: Run, trial: Trial, data: Any = None, *, command: str = "") -> list[Row]:
    """Run one trial in this process (``run`` is an experiment's) and return its rows, one an outcome."""
    with _own(trial) as workdir:
        earlier = _earlier_seconds(workdir)
        write_atomically(workdir / EARLIER, str(earlier))
        began = time.perf_counter()
        try:
            outcomes = run(trial, data, workdir)
        except Diverged:  # an outcome too: its setting is not chosen, and the trial is not run again
            outcomes = [{"validation": {}, "metrics": {"diverged": 1.0}, "parameters": 0}]
        seconds = round(earlier + time.perf_counter() - began, 3)
    versions = {"anyorder": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return [
        {
            "experiment": trial.experiment,
            "method": trial.method,
            "setting": {**trial.setting, **outcome.get("setting", {})},
            "seed": trial.seed,
            "scale": trial.scale,
            "reads": outcome.get("reads", 1),
            "validation": outcome["validation"],
            "metrics": outcome["metrics"],
            "selected": False,
            "parameters": outcome["parameters"],
            "steps": outcome.get("steps"),
            "seconds": seconds,
            "commit": commit(),
            "threads": torch.get_num_threads(),
            "versions": versions,
            "command": command,
            "trial": trial.key,
            "trial_rows": len(outcomes),
            **({"curve": outcome["curve"]} if "curve" in outcome else {}),
        }
        for outcome in outcomes
    ]


@functools.cache
def commit() -> str | None:
    """The commit of the checkout that this package is run from; None of an installed one."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


# --- what a trial keeps while it runs


def _workdir(trial: Trial) -> Path:
    return home() / "trials" / trial.experiment / trial.key


@contextlib.contextmanager
def _own(trial: Trial) -> Iterator[Path]:
    """The workdir of a trial; one for this time alone where a sweep into another folder is running the same trial."""
    folder = _workdir(trial)
    with _locked(folder) as ours:
        if ours:
            yield folder
            return
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as private:
            yield Path(private)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock that lies beside ``path``, if nobody else holds it; it ends with its process."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def earlier_seconds(trial: Trial) -> float:
    """What interrupted runs of ``trial`` took for what they left in its workdir; 0 if they left nothing.

    Each run begins by writing this number into the file ``EARLIER``; the newest file says how far it came from there.
    What it did after that is lost, is done again, and counts once.
    """
    return _earlier_seconds(_workdir(trial))


def _earlier_seconds(folder: Path) -> float:
    if not (folder / EARLIER).exists():
        return 0.0
    newest = max(path.stat().st_mtime for path in folder.rglob("[!.]*") if path.is_file())
    return float((folder / EARLIER).read_text()) + newest - (folder / EARLIER).stat().st_mtime


def _forget(trial: Trial) -> None:
    """Remove the workdir of a finished trial, unless another sweep is running the same trial there."""
    folder = _workdir(trial)
    with _locked(folder) as ours:
        if ours:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_name(f".{folder.name}.lock").unlink(missing_ok=True)


@contextlib.contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Refuse a second sweep on the same rows file; the lock ends with its process, however that ends.

    It lies beside the rows, so that sweeps with different ``ANYORDER_HOME`` see each other's.
    """
    with _locked(path) as ours:
        if not ours:
            raise InputError(f"{path} is being written by another sweep; wait for it, or choose another folder")
        for draft in path.parent.glob(f".{path.name}.*.tmp"):  # left by a kill in the middle of a write
            draft.unlink(missing_ok=True)
        yield


# --- engines


def settle_process(threads: int = 1) -> None:
    """What a process that trains should do first: few threads, and no time lost on denormal numbers."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # asked for, so that a training keeps to it


def local_engine(
    experiment: Experiment, trials: Sequence[Trial], *, jobs: int, command: str = ""
) -> Generator[Finished, None, None]:
    """``jobs`` processes of ``experiment.cpus`` threads. One that dies costs its trial only, which is tried again."""
    typed_in = _written(experiment.run).__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    context: Any = multiprocessing.get_context("fork" if typed_in else "forkserver")
    if not typed_in:  # a function from a notebook or a prompt has no file that another process could import
        context.set_forkserver_preload([__name__])  # torch is imported once, not once a process
    waiting = list(reversed(trials))
    deaths: dict[str, int] = {}
    running: dict[Any, tuple[Any, Trial]] = {}  # connection -> its process, and the trial given to it

    def give(connection: Any, process: Any) -> None:
        trial = waiting.pop()
        running[connection] = (process, trial)
        with contextlib.suppress(BrokenPipeError):  # it died while idle: the wait below will tell
            connection.send(trial)

    def start() -> None:
        ours, theirs = context.Pipe()
        load, scale = experiment.data, waiting[-1].scale
        work = (theirs, dict(os.environ), experiment.cpus, experiment.run, load, scale, command)
        process = context.Process(target=_work, args=work, daemon=True)
        process.start()
        theirs.close()
        give(ours, process)

    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                start()
            ready: list[Any] = multiprocessing.connection.wait(list(running))
            for connection in ready:
                process, trial = running.pop(connection)
                try:
                    answer: tuple[list[Row] | None, str | None] | Exception | None = connection.recv()
                except (EOFError, OSError):
                    answer = None
                if isinstance(answer, Exception):  # no data: no other process would fare better
                    process.join()
                    raise answer
                if answer is not None and waiting:
                    give(connection, process)
                else:
                    with contextlib.suppress(BrokenPipeError):  # it is gone already
                        connection.send(None)
                    connection.close()
                    process.join()
                if answer is not None:
                    yield trial, *answer
                    continue
                deaths[trial.key] = deaths.get(trial.key, 0) + 1
                if deaths[trial.key] <= LOST_WORKER_RETRIES:
                    waiting.append(trial)
                else:
                    yield trial, None, f"its process died {deaths[trial.key]} times, exit code {process.exitcode}"
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()


def _work(
    connection: Any,
    environment: dict[str, str],
    cpus: int,
    run: Run,
    load: Callable[[str], Any] | None,
    scale: str,
    command: str,
) -> None:
    """The life of a local worker: receive a trial, run it, send its rows; leave with its parent."""
    os.environ.clear()
    os.environ.update(environment)  # the sweep's, not that of the server this process was forked from
    settle_process(cpus)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        data = None if load is None else load(scale)
    except (InputError, InputTypeError, OSError) as error:
        connection.send(InputError(f"no data for this sweep: {error}"))
        return
    except Exception:
        connection.send(RuntimeError(f"the data could not be loaded\n{traceback.format_exc()}"))
        return
    while (trial := connection.recv()) is not None:
        connection.send(_attempt(run, trial, data, command))


def _attempt(run: Run, trial: Trial, data: Any, command: str) -> tuple[list[Row] | None, str | None]:
    try:
        return run_trial(run, trial, data, command=command), None
    except Exception as error:  # one bad trial must not end the sweep; it is reported when it ends
        return None, f"{type(error).__name__}: {error}"


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def ray_engine(
    experiment: Experiment, trials: Sequence[Trial], *, address: str | None = None, command: str = ""
) -> Generator[Finished, None, None]:
    """The same trials on a Ray cluster: code and data travel with them, a lost worker's trial is tried again.

    ``address`` is that of the head (``ray start --head`` prints it); None starts Ray on this machine alone.
    """
    try:
        import ray
    except ImportError:
        raise InputError(
            "the Ray engine needs an extra: pip install -c constraints.txt '.[ray]' in a checkout"
        ) from None
    data = None if experiment.data is None else experiment.data(trials[0].scale)
    ours = not ray.is_initialized()
    if ours:
        _require_answer(address)
        code = {"py_modules": [str(Path(__file__).resolve().parents[1])], "excludes": ["__pycache__"]}
        ray.init(address=address or "local", runtime_env=code, log_to_driver=False, logging_level=40)
    try:
        _send_by_value(experiment.run)
        run = ray.remote(num_cpus=experiment.cpus, num_gpus=experiment.gpus, max_retries=LOST_WORKER_RETRIES)(
            _run_remotely
        )
        shared = ray.put(data)
        running = {run.remote(experiment.run, experiment.cpus, trial, shared, command): trial for trial in trials}
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            trial = running.pop(ready)
            try:
                rows, problem = ray.get(ready)
            except ray.exceptions.RayError as error:
                rows, problem = None, f"{type(error).__name__}: {str(error).splitlines()[0]}"
            yield trial, rows, problem
    finally:
        if ours:
            ray.shutdown()


def _require_answer(address: str | None) -> None:
    """Refuse an address nobody listens at; Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise InputError(
                f"no Ray head answers at {address} ({error}); `ray start --head` prints the address to use"
            ) from None


def _run_remotely(run: Run, cpus: int, trial: Trial, data: Any, command: str) -> Any:
    settle_process(cpus)
    answer = _attempt(run, trial, data, command)
    _forget(trial)
    return answer


def _send_by_value(function: Callable[..., Any]) -> None:
    """Let a trial function from a user's own file travel with its trials: the workers need not have that file."""
    from ray import cloudpickle

    module = sys.modules.get(_written(function).__module__)
    if module is None or module.__name__.partition(".")[0] in {"anyorder", *sys.stdlib_module_names}:
        return
    if "site-packages" not in (getattr(module, "__file__", None) or "site-packages"):
        cloudpickle.register_pickle_by_value(module)


def _written(function: Any) -> Any:
    """The function somebody wrote, inside any functools.partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function
