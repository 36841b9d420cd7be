"""Sweeps on a real Ray cluster: a head without processors and two workers of one each, all on this machine."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import toy_experiment
from anyorder.checks import InputError
from anyorder.paper.runner.rows import read_rows
from anyorder.paper.runner.sweep import sweep
from anyorder.paper.runner.trial import Experiment, Plan, grid

pytestmark = pytest.mark.ray

# Python runs a module of this name when it starts: the nodes and their workers find no anyorder but what Ray unpacked.
SITECUSTOMIZE = """
import os, sys
sys.path[:] = [p for p in sys.path if "runtime_resources" in p or not os.path.isdir(os.path.join(p, "anyorder"))]
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("python")
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(2):
            nodes.add_node(num_cpus=1)
    yield nodes
    nodes.shutdown()


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "home"))


def figures(rows):
    """What must not depend on where a trial ran."""
    return sorted(str({k: row[k] for k in ("trial", "setting", "validation", "metrics", "selected")}) for row in rows)


def start_driver(out: Path, address: str, pids: Path) -> subprocess.Popen:
    call = "import sys, toy_experiment; toy_experiment.sweep_on_ray(*sys.argv[1:])"
    command = [sys.executable, "-c", call, str(out), address, str(pids)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[1])


def wait_for_trials(driver: subprocess.Popen, path: Path, number: int) -> None:
    deadline = time.monotonic() + 180
    while len({row["trial"] for row in read_rows(path)}) < number:
        assert driver.poll() is None, "the driver ended early"
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.02)


def test_a_killed_worker_a_lost_node_and_a_killed_driver_cost_no_row_and_repeat_none(nodes, tmp_path):
    path, pids = tmp_path / "ray" / "toy.jsonl", tmp_path / "pids"
    pids.mkdir()
    driver = start_driver(path.parent, nodes.address, pids)
    wait_for_trials(driver, path, 4)
    while not (running := list(pids.iterdir())):
        time.sleep(0.01)
    os.kill(int(running[0].name), signal.SIGKILL)  # the worker's process, in the middle of a trial
    wait_for_trials(driver, path, 8)
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)  # a machine is unplugged
    wait_for_trials(driver, path, 12)
    nodes.add_node(num_cpus=1)
    driver.kill()
    driver.wait()
    before = read_rows(path)
    assert len({row["trial"] for row in before}) < 24
    assert start_driver(path.parent, nodes.address, pids).wait(timeout=180) == 0
    rows = read_rows(path)
    assert {row["trial"]: row["seconds"] for row in before}.items() <= {r["trial"]: r["seconds"] for r in rows}.items()
    assert len({row["trial"] for row in rows}) == 24
    assert len({(row["trial"], row["setting"]["length"]) for row in rows}) == len(rows) == 48
    local = sweep(toy_experiment.toy(sleep=0.3, pids=str(pids)), "smoke", out=tmp_path / "local", jobs=2, only=["a"])
    assert figures(rows) == figures(local)


OWN_TRIALS = """
def run(trial, data, workdir, by):
    import anyorder
    shown = {"setting": {"package": anyorder.__file__}, "metrics": {"answer": data["answer"] * factor() * by}}
    return [{"validation": {"loss": 0.0}, "parameters": 0, **shown}]

def factor():
    return 2

def load(scale):
    import pathlib
    file = pathlib.Path(FILE)
    answer = int(file.read_text())
    file.unlink()
    return {"answer": answer}
"""


def test_code_and_data_reach_workers_that_have_neither(nodes, tmp_path):
    (tmp_path / "data.txt").write_text("21")
    source = tmp_path / "own_trials.py"
    source.write_text(OWN_TRIALS.replace("FILE", repr(str(tmp_path / "data.txt"))))
    spec = importlib.util.spec_from_file_location("own_trials", source)
    own = importlib.util.module_from_spec(spec)
    sys.modules["own_trials"] = own
    spec.loader.exec_module(own)
    source.unlink()
    plan = Plan(methods={"mine": grid(weight=[1.0, 2.0])}, seeds=1)
    run = functools.partial(own.run, by=3)
    experiment = Experiment("own", "", "", run=run, plans={"smoke": plan}, data=own.load)
    rows = sweep(experiment, "smoke", out=tmp_path / "rows", engine="ray", address=nodes.address)
    assert [row["metrics"]["answer"] for row in rows] == [126, 126]
    assert all("runtime_resources" in row["setting"]["package"] for row in rows)  # not the one the driver runs
    assert not (tmp_path / "data.txt").exists()


def test_an_error_before_the_first_trial_leaves_no_ray_behind(nodes, tmp_path):
    import ray

    there = {"out": tmp_path, "engine": "ray", "address": nodes.address}
    with pytest.raises(InputError, match="toy is in none of the folders searched"):
        sweep(replace(toy_experiment.toy(), data=toy_experiment.no_data), "smoke", **there)
    assert not ray.is_initialized()
