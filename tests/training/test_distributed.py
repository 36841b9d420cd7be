"""Two processes against one on the same global batch: the same losses, the same weights, draws of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RUN = """
    import atexit, json, os, sys, torch, accelerate, anyorder as ao
    from anyorder.data.sets import SetData

    from anyorder.training.config import TrainConfig
    from anyorder.training.loop import train
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    out, jobs = sys.argv[1], json.loads(sys.argv[2])

    @atexit.register  # the last to run, since it is the first that was registered
    def note_what_is_left():
        names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
        with open(f"{out}/left-{os.environ.get('RANK', 0)}", "w") as file:
            json.dump([torch.distributed.is_initialized(), names], file)

    g = torch.Generator().manual_seed(0)

    def sets(sizes):
        return [torch.rand(n, 1, generator=g) for n in sizes]

    ragged = torch.randint(0, 3, (41,), generator=g).tolist()      # at most one pair each: nothing is left to chance
    data = {
        "pairs": SetData.of(sets(ragged), torch.rand(41, generator=g)),
        "long": SetData.of(torch.rand(41, 6, 1, generator=g), torch.rand(41, generator=g)),
    }
    validation = SetData.of(sets([2, 0, 1, 2, 2]), torch.rand(5, generator=g))
    unlabeled = SetData.of(sets([2] * 19))
    penalties = {
        "none": None, "swap": ao.SIRE(prefixes="given", window=1, relative=False), "subset": ao.SIRE(relative=False),
        "relative": ao.SIRE(),
    }

    class Stop(Exception):
        pass

    def run(model, job):
        epochs = iter(range(100))

        def metric(outputs, targets):
            if next(epochs) == job.get("stop"):
                raise Stop
            return (outputs - targets).square().mean()

        weight = ao.AdaptiveWeight(target=1e-9) if job.get("budget") else 3.0
        return train(
            model, "mse", data[job["data"]], penalty=penalties[job["penalty"]],
            penalty_weight=weight if job["penalty"] != "none" else 0.0, validation=validation, metric=metric,
            unlabeled=unlabeled if job.get("unlabeled") else None,
            workdir=job.get("workdir"), progress=job.get("progress", False),
            config=TrainConfig(**{"epochs": 4, "batch_size": 10, **job.get("config", {})}),
        )

    for job in jobs:
        torch.manual_seed(int(os.environ.get("RANK", "0")))  # each begins elsewhere: the first one's counts
        model = ao.RecurrentSetModel(1, 1, hidden=5)
        try:
            result = run(model, job)
        except Stop:
            continue
        process = accelerate.PartialState()
        name = f"{out}/{job['name']}-{process.process_index}-of-{process.num_processes}"
        save_file(model.state_dict(), name + ".safetensors")
        with open(name + ".json", "w") as file:
            json.dump(result.history, file)
    fitted = ao.SetRegressor(epochs=2, model_options={"hidden": 5}).fit(data["long"].elements.view(41, 6, 1), range(41))
    name = f"{out}/estimator-{process.process_index}-of-{process.num_processes}"
    save_file(fitted.model_.state_dict(), name + ".safetensors")
"""

JOBS = [
    {"name": "plain", "data": "pairs", "penalty": "none"},
    {"name": "penalised", "data": "pairs", "penalty": "swap"},
    {"name": "unlabeled", "data": "pairs", "penalty": "swap", "unlabeled": True},
    {"name": "windows", "data": "long", "penalty": "swap", "config": {"truncate": 2}},
    {"name": "drawn", "data": "long", "penalty": "subset"},
]


def launch(script: Path, processes: int, *arguments: str) -> str:
    """Run under ``accelerate launch`` (gloo), or by itself for one process; returns what went to stderr."""
    command = [sys.executable, str(script), *arguments]
    if processes > 1:
        options = ["--multi_gpu", "--num_processes", str(processes), "--num_machines", "1", "--mixed_precision", "no"]
        options += ["--main_process_port", "0", "--dynamo_backend", "no"]
        command = [sys.executable, "-m", "accelerate.commands.launch", *options, *command[1:]]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr[:6000]
    return done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    script = folder / "run.py"
    script.write_text(textwrap.dedent(RUN))
    launch(script, 1, str(folder), json.dumps(JOBS))
    resumed = {**JOBS[4], "name": "resumed", "workdir": str(folder / "work"), "config": {"checkpoint_seconds": 0.0}}
    alone = [  # samples that find themselves the only one of their process
        {"name": "budget", "data": "long", "penalty": "subset", "budget": True, "config": {"batch_size": 2}},
        {"name": "relative", "data": "long", "penalty": "relative"},
    ]
    jobs = [{**JOBS[0], "progress": True}, *JOBS[1:], {**resumed, "stop": 2}, resumed, *alone]
    said = launch(script, 2, str(folder), json.dumps(jobs))
    return folder, said


def weights(folder: Path, name: str, rank: int, world: int):
    from safetensors.torch import load_file

    return load_file(folder / f"{name}-{rank}-of-{world}.safetensors")


def history(folder: Path, name: str, rank: int, world: int):
    return json.loads((folder / f"{name}-{rank}-of-{world}.json").read_text())


SAME = ["plain", "penalised", "unlabeled", "windows"]


@pytest.mark.parametrize("name", [*SAME, "drawn", "resumed", "estimator", "budget", "relative"])
def test_all_processes_hold_the_same_weights(runs, name):
    one, other = (weights(runs[0], name, rank, 2) for rank in range(2))
    assert all(one[key].equal(other[key]) for key in one)


@pytest.mark.parametrize("name", SAME)
def test_two_processes_take_the_steps_of_one(runs, name):
    folder, _ = runs
    one, two = weights(folder, name, 0, 1), weights(folder, name, 0, 2)
    for key, value in one.items():
        assert (value - two[key]).abs().max() < 1e-5, key
    for ours, theirs in zip(history(folder, name, 0, 1), history(folder, name, 0, 2), strict=True):
        for figure in ("loss", "penalty", "validation"):
            assert theirs[figure] == (ours[figure] and pytest.approx(ours[figure], rel=1e-4)), figure


def test_each_process_draws_its_own_subsets(runs):
    one, two = (weights(runs[0], "drawn", 0, world) for world in (1, 2))
    assert max((one[key] - two[key]).abs().max().item() for key in one) > 1e-4


def test_a_run_of_two_processes_stopped_after_two_epochs_ends_as_if_it_had_not_been(runs):
    folder, _ = runs
    assert sorted(p.name for p in (folder / "work").iterdir()) == ["checkpoint.safetensors", "log.jsonl"]
    drawn, resumed = weights(folder, "drawn", 1, 2), weights(folder, "resumed", 1, 2)
    assert all(drawn[key].equal(resumed[key]) for key in drawn)


def test_no_process_ends_with_threads_of_the_group_left(runs):
    folder, _ = runs
    for rank in range(2):
        grouped, threads = json.loads((folder / f"left-{rank}").read_text())
        assert not grouped
        assert not [name for name in threads if "gloo" in name], threads


def test_the_first_process_alone_shows_the_epochs(runs):
    assert runs[1].count("epoch 4 of 4 · loss") == 1


@pytest.mark.parametrize("name", ["budget", "relative"])
def test_processes_with_one_sample_of_a_batch_go_on_and_agree(runs, name):
    folder, _ = runs
    mine, theirs = (history(folder, name, rank, 2) for rank in range(2))
    assert [r["penalty_weight"] for r in mine] == [r["penalty_weight"] for r in theirs]
    assert mine[-1]["penalty"] > 0
    assert (mine[-1]["penalty_weight"] > mine[0]["penalty_weight"]) == (name == "budget")
