"""Kills and damage where several processes work together: two under gloo, the workers of a DataLoader."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import anyorder as ao
from anyorder.checks import InputError

pytestmark = pytest.mark.attack

RUN = """
    import os, sys, torch, anyorder as ao
    from anyorder.data.sets import SetData
    from anyorder.training.config import TrainConfig
    from anyorder.training.loop import train

    torch.set_num_threads(1)
    torch.manual_seed(0)
    workdir, out = sys.argv[1:]
    data = SetData.of(torch.rand(64, 6, 1), torch.rand(64))
    model = ao.RecurrentSetModel(1, 1, hidden=4, dropout=0.2)
    config = TrainConfig(epochs=60, batch_size=16, shuffle=True, checkpoint_seconds=0.0)
    train(model, "mse", data, penalty=ao.SIRE(), penalty_weight=1.0, config=config, workdir=workdir, progress=False)
    if os.environ["RANK"] == "0":
        ao.save(model, out)
"""


def start(script: Path, workdir: Path, out: Path) -> subprocess.Popen[str]:
    """Two processes with gloo, in a group of their own."""
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    options += ["--main_process_port", "0", "--dynamo_backend", "no"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *options, str(script), str(workdir), str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True)


@pytest.mark.kill
def test_two_processes_killed_at_random_moments_end_with_the_same_weights_and_see_damage(tmp_path):
    script, moments = tmp_path / "run.py", random.Random(0)
    script.write_text(textwrap.dedent(RUN))
    whole = start(script, tmp_path / "whole", tmp_path / "expected")
    assert whole.wait(300) == 0, whole.stderr.read()[:6000]
    checkpoint = tmp_path / "work" / "checkpoint.safetensors"
    for _ in range(5):
        before, deadline = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0, time.monotonic() + 120
        launched = start(script, tmp_path / "work", tmp_path / "model")
        while not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > before) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.2))
        assert launched.poll() is None, launched.stderr.read()[:6000]
        os.killpg(launched.pid, signal.SIGKILL)
        launched.wait()
    last = start(script, tmp_path / "work", tmp_path / "model")
    assert last.wait(300) == 0, last.stderr.read()[:6000]
    one, other = (ao.load(tmp_path / name).state_dict() for name in ("expected", "model"))
    assert all(one[name].equal(other[name]) for name in one)
    damaged = bytearray(checkpoint.read_bytes())
    damaged[-1] ^= 1
    checkpoint.write_bytes(damaged)
    launched = start(script, tmp_path / "work", tmp_path / "model")
    _, said = launched.communicate(timeout=300)
    assert launched.returncode != 0
    assert "InputError: the SHA-256 of" in said


class Predictions(Dataset):
    """Each item is a set's output by the model of a folder, loaded where the item is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> torch.Tensor:
        elements = torch.randn(5, 3, generator=torch.Generator().manual_seed(number))
        model = ao.load(self.folder)
        stream = ao.Stream.restore(model, ao.Stream(model).snapshot())
        stream.update(elements)
        return torch.stack([model(elements[None])[0].detach(), stream.value()])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_workers_of_a_dataloader_read_as_their_parent_does(tmp_path, context):
    ao.save(ao.RecurrentSetModel(3, 2, hidden=4), tmp_path / "m")
    data = Predictions(tmp_path / "m")
    expected = torch.stack([data[number] for number in range(8)])
    loader = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context=context)
    assert torch.cat(list(loader)).allclose(expected, atol=1e-6)
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InputError, match="damaged"):
        list(loader)
