"""Interrupted trainings: what is kept, what goes on, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from commands import TRAIN, visits

import anyorder as ao
from anyorder.cli.resume import Run
from anyorder.estimators import table_model
from anyorder.files import tensors_from_bytes, tensors_to_bytes
from anyorder.training.checkpoint import Checkpoint


@pytest.fixture
def interrupted(run, monkeypatch):
    """Train until so many checkpoints are written, one a step, and stop from the keyboard; returns what was said."""

    def call(words, checkpoints=1):
        written = []

        def write_if_due(self):
            if len(written) == checkpoints:
                raise KeyboardInterrupt
            written.append(self)
            self.write()

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "write_if_due", write_if_due)
            status, out, err = run(words)
        assert status == 130
        assert "Traceback" not in err
        return out

    return call


def test_a_resumed_training_ends_as_if_it_had_not_been_interrupted(succeed, refused, interrupted, table):
    assert "there is no checkpoint yet" in interrupted(TRAIN, checkpoints=0)
    assert "--resume continues" in interrupted(TRAIN)
    assert "continue it with --resume" in refused(TRAIN)
    succeed(f"{TRAIN} --resume")
    resumed = ao.load("model").model_.state_dict()
    assert os.listdir(table / "home" / "runs") == []
    succeed(f"{TRAIN} --force")
    for name, tensor in ao.load("model").model_.state_dict().items():
        assert torch.equal(tensor, resumed[name]), name


def test_a_finished_training_goes_on_for_more_epochs(succeed, refused, table):
    assert "nothing to resume" in refused(f"{TRAIN} --resume")
    succeed(TRAIN)
    longer = f"{TRAIN} --resume".replace("--epochs 2", "--epochs 4")
    succeed(longer)
    extended = ao.load("model")
    assert len(extended.history_) == 4
    succeed(longer.replace("--resume", "--force"))
    for name, tensor in ao.load("model").model_.state_dict().items():
        assert torch.equal(tensor, extended.model_.state_dict()[name]), name
    assert "epochs is 4 there and 2 here" in refused(f"{TRAIN} --resume")


def test_two_trainings_of_one_model_folder_are_refused(succeed, refused, table):
    with Run(Path("model")).lock():
        assert f"model is being written by process {os.getpid()}" in refused(TRAIN)
    succeed(TRAIN)
    assert os.listdir(table / "home" / "runs") == []


def test_a_model_that_could_not_be_saved_is_there_after_a_resume(succeed, refused, table, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(table_model, "save", lambda *a, **k: (_ for _ in ()).throw(OSError("the disk is full")))
        assert "the disk is full" in refused(TRAIN)
    assert not (table / "model").exists()
    succeed(f"{TRAIN} --resume")
    assert (table / "model").exists()


def test_a_training_is_not_resumed_with_other_options_or_on_another_table(refused, succeed, interrupted, table):
    visits(6, seed=5).drop(columns="outcome").to_csv("more.csv", index=False)
    visits(seed=3).to_csv("other.csv", index=False)
    interrupted(TRAIN)
    for change in ("--hidden 5", "--seed 1", "--penalty-weight 3", "--unlabeled more.csv"):
        assert "another" in refused(f"{TRAIN} --resume {change}")
    assert "another" in refused(f"{TRAIN} --resume".replace("t.csv", "other.csv"))
    succeed(f"{TRAIN} --resume")  # the refusals cost nothing


def test_a_training_of_several_processes_is_not_resumed_by_one(refused, interrupted, table):
    interrupted(TRAIN)
    (checkpoint,) = (table / "home").rglob("*.safetensors")
    tensors, metadata = tensors_from_bytes(checkpoint.read_bytes())
    metadata["run"]["processes"] = 2
    checkpoint.write_bytes(tensors_to_bytes(tensors, metadata))
    assert "processes" in refused(f"{TRAIN} --resume")
    assert checkpoint.exists()


def test_force_starts_afresh_whatever_the_unfinished_training_left(succeed, refused, interrupted, table):
    interrupted(TRAIN)
    (checkpoint,) = (table / "home").rglob("*.safetensors")
    checkpoint.write_bytes(b"damaged")
    assert "is no whole safetensors" in refused(f"{TRAIN} --resume")
    succeed(f"{TRAIN} --force")


def test_unfinished_trainings_are_known_by_the_model_they_write(succeed, interrupted, table):
    words = TRAIN.replace("--out model", "--out a/model")
    interrupted(words)
    succeed(TRAIN.replace("--out model", "--out b/model"))
    succeed(f"{words} --resume")
    assert {path.parts[-3] for path in table.rglob("model/config.json")} == {"a", "b"}


def test_a_resumed_training_replaces_the_model(succeed, interrupted, here):
    interrupted(f"{TRAIN} --seed 7 --force")
    succeed(f"{TRAIN} --seed 7 --resume")
    assert ao.load("model").random_state == 7


def test_force_never_replaces_what_is_no_model(refused, here):
    (here / "thesis").mkdir()
    (here / "thesis" / "chapter.txt").write_text("precious")
    words = TRAIN.replace("--out model", "--out thesis")
    assert "is not a model folder and is not replaced" in refused(f"{words} --force")
    assert (here / "thesis" / "chapter.txt").read_text() == "precious"


def test_a_training_that_is_refused_leaves_no_run_behind(refused, tmp_path):
    visits(outcome=lambda r: r.groupby("visit")["dose"].transform("sum")).to_csv("t.csv", index=False)
    assert "lower the learning rate" in refused(f"{TRAIN} --learning-rate 1e30 --validation-fraction 0")
    assert os.listdir(tmp_path / "home" / "runs") == []
