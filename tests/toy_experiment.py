"""A declared experiment that costs nothing: its figures are arithmetic of its setting."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch

from anyorder.checks import InputError
from anyorder.paper.runner.sweep import sweep
from anyorder.paper.runner.trial import Experiment, Plan, Trial, grid


def run(trial: Trial, data: object, workdir: Path) -> list[dict]:
    workdir.mkdir(parents=True, exist_ok=True)
    mark = Path(trial.setting.get("pids", workdir)) / str(os.getpid())  # "trials run in this process"
    mark.touch()
    time.sleep(trial.setting.get("sleep", 0.0))
    mark.unlink()
    if trial.setting.get("raises") == trial.seed:
        raise RuntimeError("seed 1 does not like it")
    again = trial.setting.get("forever") or not (workdir / "died").exists()
    if trial.setting.get("dies") == trial.seed and again:
        (workdir / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    weight = trial.setting["weight"]
    loss = (weight - 3) ** 2 + 0.01 * trial.seed
    return [
        {
            "setting": {"length": length},
            "validation": {"loss": loss},
            "metrics": {"accuracy": 1.0 / (1.0 + loss) / length},
            "parameters": 10,
        }
        for length in (1, 2)
    ]


def report_threads(trial: Trial, data: object, workdir: Path) -> list[dict]:
    return [{**run(trial, data, workdir)[0], "metrics": {"threads": torch.get_num_threads()}}]


def no_data(scale: str) -> None:
    raise InputError("toy is in none of the folders searched; put it there")


def counted_data(scale: str) -> None:
    """Leaves a file each time it is called, in the folder that ``ANYORDER_HOME`` names."""
    (Path(os.environ["ANYORDER_HOME"]) / f"loaded-{os.getpid()}-{time.monotonic_ns()}").touch()


def toy(name: str = "toy", **fixed: object) -> Experiment:
    """Method "a" chooses among four weights (3 is best), "b" has one; two sizes; three seeds."""
    plan = Plan(
        methods={"a": grid(weight=[1.0, 2.0, 3.0, 5.0]), "b": grid(weight=[2.5])},
        over={"n": [5, 10]},
        fixed=fixed,
        seeds=3,
        seconds=2.0,
    )
    two_stage = Plan(plan.methods, plan.over, plan.fixed, seeds=3, tune_on={"n": 5}, tune_seeds=1, seconds=2.0)
    return Experiment(
        name=name, claim="", choices="", run=run, plans={"smoke": plan, "laptop": two_stage}, select="loss"
    )


def sweep_on_ray(out: str, address: str, pids: str) -> None:
    """24 trials on a Ray cluster; each notes its process in the folder ``pids`` while it runs."""
    sweep(toy(sleep=0.3, pids=pids), "smoke", out=out, engine="ray", address=address, only=["a"])
