"""The same trials on a Ray cluster: code and data travel with them, a lost worker's trial is tried again."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any

from anyorder.estimators.ray import cluster
from anyorder.paper.runner.sweep import LOST_WORKER_RETRIES, Finished, Origin, attempt, module_of, settle_process
from anyorder.paper.runner.trial import Experiment, Run, Trial


def ray_engine(
    experiment: Experiment, trials: Sequence[Trial], origin: Origin, *, address: str | None = None
) -> Generator[Finished, None, None]:
    """Trials and their rows as they end, from the cluster whose head is at ``address``.

    ``ray start --head`` prints the address; None starts Ray on this machine alone.
    """
    data = None if experiment.data is None else experiment.data(trials[0].scale)
    with cluster(address) as ray:
        send_by_value(experiment.run)
        needs = {"num_cpus": experiment.cpus, "num_gpus": experiment.gpus, "max_retries": LOST_WORKER_RETRIES}
        run, shared = ray.remote(**needs)(_run), ray.put(data)
        running = {run.remote(experiment.run, experiment.cpus, trial, shared, origin): trial for trial in trials}
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            trial = running.pop(ready)
            try:
                rows, problem = ray.get(ready)
            except ray.exceptions.RayError as error:
                rows, problem = None, f"{type(error).__name__}: {str(error).splitlines()[0]}"
            yield trial, rows, problem


def _run(run: Run, cpus: int, trial: Trial, data: Any, origin: Origin) -> Any:
    settle_process(cpus)
    answer = attempt(run, trial, data, origin)
    shutil.rmtree(origin.workdir(trial.experiment, trial.key), ignore_errors=True)
    return answer


def send_by_value(function: Callable[..., Any]) -> None:
    """Let a trial function from a user's own file travel with its trials: the workers need not have that file."""
    from ray import cloudpickle

    module = sys.modules.get(module_of(function))
    if module is None or module.__name__.partition(".")[0] in {"anyorder", *sys.stdlib_module_names}:
        return
    if "site-packages" not in (getattr(module, "__file__", None) or "site-packages"):
        cloudpickle.register_pickle_by_value(module)
