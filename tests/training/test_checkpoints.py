"""Checkpoints: an interrupted run ends as one that was not, and another run is refused."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import anyorder as ao
from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.files import tensors_from_bytes, tensors_to_bytes
from anyorder.training import checkpoint as checkpoints
from trainings import SIRE, Scaled, flat, model, ragged, sums, trained, weighted


def steps_in(workdir: Path) -> int:
    """How many steps the checkpoint holds."""
    path = workdir / "checkpoint.safetensors"
    return tensors_from_bytes(path.read_bytes())[1]["result"]["steps"] if path.exists() else 0


def stop_after(epochs: int):
    def log(record: dict) -> None:
        if record["epoch"] + 1 == epochs:
            raise KeyboardInterrupt

    return log


@pytest.mark.parametrize("schedule", ["one-cycle", "plateau"])
@pytest.mark.parametrize(("optimizer", "best"), [("adam", None), ("sgd", 0)])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, schedule, optimizer, best):
    def go(workdir: Path | None, log=None, epoch=0):
        worse_and_worse = iter(range(epoch, 6))
        return trained(
            ragged(), start=model(dropout=0.3), penalty=SIRE, workdir=workdir, log=log, epochs=6, shuffle=True,
            penalty_weight=ao.AdaptiveWeight(target=1e-3) if best is None else 1.0, unlabeled=sums(24),
            validation=sums(seed=3), metric=None if best is None else lambda *_: next(worse_and_worse),
            augment=Scaled(), schedule=schedule, optimizer=optimizer, checkpoint_seconds=0.0, plateau_patience=1,
        )  # fmt: skip

    whole, expected = go(None)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, stop_after(3))
    (tmp_path / ".checkpoint.safetensors.0123abcd.tmp").write_bytes(b"half a chec")  # what a killed run was writing
    resumed, result = go(tmp_path, epoch=2)  # its end was not written
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.safetensors", "log.jsonl"]
    assert result.best_epoch == (expected.best_epoch if best is None else best)
    finished, again = go(tmp_path)
    assert again == result  # at once, since it took no more seconds
    assert all(torch.equal(flat(whole), flat(other)) for other in (resumed, finished))
    for ours, theirs in zip(result.history, expected.history, strict=True):
        assert {**ours, "seconds": 0, "samples_per_second": 0} == {**theirs, "seconds": 0, "samples_per_second": 0}
    logged = [json.loads(line)["epoch"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert logged == list(range(6))


def test_a_full_disk_is_said_and_the_last_checkpoint_is_intact(tmp_path):
    """A limit on file size stands for the disk: the write fails half-way, as on a full one."""
    trained_epochs = 2

    def fill_the_disk(record: dict) -> None:
        if record["epoch"] + 1 == trained_epochs:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match="checkpoint"):
            trained(sums(), workdir=tmp_path, epochs=5, checkpoint_seconds=0.0, log=fill_the_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert steps_in(tmp_path) == 6  # the last step before the disk was full
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.safetensors", "log.jsonl"]
    resumed, _ = trained(sums(), workdir=tmp_path, epochs=5, checkpoint_seconds=0.0)
    assert torch.equal(flat(resumed), flat(trained(sums(), epochs=5)[0]))


OTHER_RUNS = {
    "learning_rate": {"learning_rate": 0.1},
    "hidden": {"start": lambda: model(hidden=7)},
    "readout_dropout": {"start": lambda: model(readout_dropout=0.5)},
    "model": {"start": lambda: ao.DeepSets(1, 1)},
    "data": {"data": sums(seed=3)},
    "data in other sets": {"data": SetData(sums().elements, torch.tensor([0, 4, *range(10, 241, 5)]), sums().targets)},
    "data with other targets": {"data": SetData.of(sums(), -sums().targets)},
    "data with weights": {"data": weighted(torch.linspace(0.5, 1.5, 48))},
    "validation": {"validation": sums(seed=4)},
    "unlabeled": {"unlabeled": sums(seed=4)},
    "penalty": {"penalty": ao.SubsetPenalty()},
    "penalty_weight": {"penalty_weight": 2.0},
    "penalty_weight by itself": {"penalty_weight": ao.AdaptiveWeight(target=0.1)},
    "loss": {"loss": "l1"},
    "augment": {"augment": Scaled(3.0)},
    "metric": {"metric": lambda outputs, targets: float((outputs - targets).abs().max())},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The options of a finished run, which may be repeated as it is."""
    run = {"data": sums(), "validation": sums(seed=1), "unlabeled": sums(seed=2), "penalty": SIRE, "epochs": 1}
    run |= {"penalty_weight": 1.0, "augment": Scaled(), "workdir": tmp_path_factory.mktemp("run")}
    assert trained(**run)[1] == trained(**run)[1]
    return run


@pytest.fixture
def listening():
    """Ctrl-C raises, also in a process that was started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_ctrl_c_inside_a_step_keeps_that_step(tmp_path):
    stops, seen = [], []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(len(seen))
        if len(seen) in stops:
            signal.raise_signal(signal.SIGINT)
        return F.mse_loss(output, target)

    expected, _ = trained(sums(), loss=loss, epochs=4)
    stops.append(len(seen) + 5)
    with pytest.raises(KeyboardInterrupt):
        trained(sums(), workdir=tmp_path, loss=loss, epochs=4)
    assert steps_in(tmp_path) == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert torch.equal(flat(trained(sums(), workdir=tmp_path, loss=loss, epochs=4)[0]), flat(expected))


@pytest.mark.parametrize("schedule", ["constant", "plateau", "one-cycle"])
def test_a_finished_run_goes_on_for_more_epochs(tmp_path, schedule):
    options = {"data": sums(), "validation": sums(seed=1), "schedule": schedule}
    trained(**options, workdir=tmp_path, epochs=2)
    if schedule == "one-cycle":  # its learning rates depend on the number of epochs
        with pytest.raises(InputError, match="epochs is 2 there and 5 here"):
            trained(**options, workdir=tmp_path, epochs=5)
        return
    longer, result = trained(**options, workdir=tmp_path, epochs=5)
    assert torch.equal(flat(longer), flat(trained(**options, epochs=5)[0]))
    assert len(result.history) == 5


def test_a_run_that_lost_patience_goes_on_with_more_of_it(tmp_path):
    options = {"data": sums(), "validation": sums(seed=1), "metric": lambda *_: 1.0, "epochs": 9, "workdir": tmp_path}
    epochs = [len(trained(**options, patience=patience)[1].history) for patience in (2, 2, 4, None)]
    assert epochs == [3, 3, 5, 9]


@pytest.mark.parametrize("case", OTHER_RUNS)
def test_another_run_in_the_same_workdir_is_refused(finished, case):
    options = {**finished, **OTHER_RUNS[case]}
    start = options.pop("start", model)()
    with pytest.raises(InputError, match=f"another run: {case.split()[0]}"):
        trained(**options, start=start)


@pytest.mark.parametrize("change", [lambda tensor: torch.zeros(7), torch.Tensor.double])
def test_a_checkpoint_whose_state_does_not_fit_is_refused(tmp_path, change):
    """Its digest is right, so it was changed on purpose. The attack changes ids, names and the form of states."""
    trained(sums(), workdir=tmp_path)
    path, moment = tmp_path / "checkpoint.safetensors", "state/optimizer/state/0/exp_avg"
    tensors, metadata = tensors_from_bytes(path.read_bytes())
    path.write_bytes(tensors_to_bytes({**tensors, moment: change(tensors[moment])}, metadata))
    with pytest.raises(InputError, match="does not fit this run: the state/optimizer"):
        trained(sums(), workdir=tmp_path)


def test_two_runs_in_one_workdir_are_refused(tmp_path):
    def second(record):
        with pytest.raises(InputError, match=f"{tmp_path.name} is being written by process {os.getpid()}"):
            trained(sums(), workdir=tmp_path)
        others.append(trained(sums(), workdir=tmp_path / "other"))

    others = []
    trained(sums(), workdir=tmp_path, epochs=1, log=second)
    assert len(others) == 1


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(tensors_to_bytes({"w": torch.ones(2)}))
    with pytest.raises(InputError, match="another run"):
        trained(sums(), workdir=tmp_path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"checkpoint\.safetensors"):
        trained(sums(), workdir=tmp_path)


def test_checkpoints_are_written_as_often_as_asked_and_no_more(tmp_path, monkeypatch):
    clock, seen = [100.0], []
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: clock[0])

    def loss(output: Tensor, target: Tensor) -> Tensor:
        clock[0] += 10.0  # a step takes ten seconds
        seen.append(steps_in(tmp_path))
        return F.mse_loss(output, target)

    trained(sums(), workdir=tmp_path, loss=loss, epochs=4, checkpoint_seconds=50.0)
    assert [*dict.fromkeys(seen), steps_in(tmp_path)] == [0, 5, 10, 12]  # after each fifty seconds, and at the end
