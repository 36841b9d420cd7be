"""Two workers of a Ray cluster against one: the time of the same sweep, start-up of the cluster aside.

Eight trials of the paper's sum task, equally long, on real nodes of one processor each. The cluster is up and each
worker has run a trial before the clock starts; a sweep's time is from the first dispatch to the last row on disk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.runner.sweep import sweep
from anyorder.paper.runner.trial import Experiment, Plan, grid
from benchmarks.timing import entry

TRIALS = 8


def run(quick: bool = False) -> dict[str, Any]:
    """``two_workers_over_one``: the share of one worker's time that two need."""
    trials, steps, repetitions = (4, 20, 1) if quick else (TRIALS, 600, 2)
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("ANYORDER_HOME")
        os.environ["ANYORDER_HOME"] = str(Path(folder) / "home")
        try:
            ratio = statistics.median(_ratios(Path(folder), trials, steps, repetitions))
        finally:
            os.environ.pop("ANYORDER_HOME") if before is None else os.environ.update(ANYORDER_HOME=before)
    what = f"time of {trials} equal trials on two Ray workers over one, cluster already up"
    return {"two_workers_over_one": entry(ratio, what, goal=0.6)}


def _ratios(folder: Path, trials: int, steps: int, repetitions: int) -> list[float]:
    import ray
    from ray.cluster_utils import Cluster

    times: dict[int, list[float]] = {1: [], 2: []}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for workers in (1, 2):
            cluster.add_node(num_cpus=1)
            ray.init(address=cluster.address, log_to_driver=False, logging_level=40)
            try:
                for repetition in range(repetitions + 1):  # the first warms the workers up
                    began = time.perf_counter()
                    sweep(equal_trials(trials, steps), "smoke", out=folder / f"{workers}-{repetition}", engine="ray")
                    if repetition:
                        times[workers].append(time.perf_counter() - began)
            finally:
                ray.shutdown()
    finally:
        cluster.shutdown()
    return [two / one for one, two in zip(times[1], times[2], strict=True)]


def equal_trials(number: int, steps: int) -> Experiment:
    """``number`` trials of plain training on sum that differ in their seed alone."""
    experiment = EXPERIMENTS["sub-vs-sire"]
    fixed = {**experiment.plan("laptop").fixed, "steps": steps, "curve": False}
    plan = Plan(methods={"plain": grid(learning_rate=[0.005])}, fixed=fixed, seeds=number)
    return replace(experiment, plans={"smoke": plan})
