"""What the training loop costs: over a bare PyTorch loop, in memory on long sets, and on two processes.

The bare loop is what one would write by hand for nn.GRU and nn.Linear: n = 10, 80 units, batch 128, Adam, one-cycle,
clipping; one thread. Memory is the growth of the peak resident size of a process of its own. Two processes are
started by ``accelerate launch`` and share the global batch of one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import anyorder as ao
from anyorder.data.sets import SetData
from anyorder.training.config import TrainConfig
from anyorder.training.loop import train
from benchmarks.timing import entry, medians, peak_memory

SETTING = "GRU 80, n = 10, batch 128"


class Bare(nn.Module):
    """The same network by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 80, batch_first=True)
        self.start = nn.Parameter(torch.zeros(1, 1, 80))
        self.readout = nn.Linear(80, 1)

    def forward(self, elements: Tensor) -> Tensor:
        return self.readout(self.gru(elements, self.start.expand(1, len(elements), 80).contiguous())[1][0])


def bare_loop(elements: Tensor, targets: Tensor, epochs: int) -> None:
    torch.manual_seed(0)
    model = Bare()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    steps = -(-len(elements) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs * steps + 1)
    for _ in range(epochs):
        total = torch.zeros(())
        for index in torch.randperm(len(elements)).split(128):
            loss = F.mse_loss(model(elements[index])[:, 0], targets[index])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.detach()


def our_loop(data: SetData, epochs: int) -> None:
    torch.manual_seed(0)
    config = TrainConfig(epochs=epochs, batch_size=128, gap_every=0, device="cpu")
    train(ao.RecurrentSetModel(1, 1, hidden=80), "mse", data, config=config, progress=False)


def over_bare_loop(quick: bool) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    elements = torch.rand(128 * (4 if quick else 20), 10, 1, generator=torch.Generator().manual_seed(0))
    targets = elements.sum((1, 2))
    data = SetData.of(elements, targets)
    epochs = 1 if quick else 2
    contenders = {"bare": lambda: bare_loop(elements, targets, epochs), "ours": lambda: our_loop(data, epochs)}
    seconds = medians(contenders, repetitions=3 if quick else 25)
    torch.set_num_threads(threads)
    return seconds["ours"] / seconds["bare"]


def peak_of_a_step(n: int, window: int, hidden: int = 128, batch: int = 16) -> float:
    """Bytes by which a few steps raise this process's peak resident size, after a small run has warmed all up."""
    torch.set_num_threads(1)

    def run(length: int, window: int) -> None:
        data = SetData.of(torch.rand(batch, length, 3), torch.rand(batch))
        config = TrainConfig(epochs=2, batch_size=batch, truncate=window, device="cpu")
        model = ao.RecurrentSetModel(3, 1, hidden=hidden)
        penalty = ao.SIRE(prefixes="given", window=1)
        train(model, "mse", data, config=config, penalty=penalty, penalty_weight=1.0, progress=False)

    run(8, 4)
    before = peak_memory()
    run(n, window)
    return peak_memory() - before


def data_parallel(out: str, epochs: int) -> None:
    """Train on this process's share of each batch; every process says how long it took, the first keeps its weights."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    data = SetData.of(torch.rand(2048, 50, 3, generator=g), torch.rand(2048, generator=g))
    torch.manual_seed(0)
    model = ao.RecurrentSetModel(3, 1, hidden=128)
    config = TrainConfig(epochs=1, batch_size=256, gap_every=0, schedule="constant", device="cpu")
    train(ao.RecurrentSetModel(3, 1, hidden=128), "mse", data, config=config, progress=False)  # warms up
    config = TrainConfig(epochs=epochs, batch_size=256, gap_every=0, schedule="constant", device="cpu")
    begin = time.perf_counter()
    train(model, "mse", data, config=config, progress=False)
    seconds = time.perf_counter() - begin
    rank = int(os.environ.get("RANK", "0"))
    Path(out, f"seconds-{rank}.json").write_text(json.dumps(seconds))
    if rank == 0:
        save_file(model.state_dict(), str(Path(out, "weights.safetensors")))


def in_a_process(call: str, launcher: list[str] | None = None) -> str:
    code = f"from benchmarks.loop import *\n{call}\n"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "run.py")
        script.write_text(code)
        return subprocess.check_output([sys.executable, *(launcher or []), str(script)], text=True, env=env)


def over_one_process(epochs: int) -> tuple[float, float]:
    """Seconds of two processes over one's on the same batches, and the largest difference of a weight."""
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    seconds, weights = [], []
    for how in (None, launcher):
        with tempfile.TemporaryDirectory() as out:
            in_a_process(f"data_parallel({out!r}, {epochs})", how)
            seconds.append(max(json.loads(file.read_text()) for file in Path(out).glob("seconds-*.json")))
            weights.append(load_file(str(Path(out, "weights.safetensors"))))
    apart = max((weights[0][name] - weights[1][name]).abs().max().item() for name in weights[0])
    return seconds[1] / seconds[0], apart


def run(quick: bool = False) -> dict[str, Any]:
    """All figures of this part; ``quick`` only shows that they can be taken."""
    long, window = (250, 50) if quick else (5000, 1000)
    peaks = [float(in_a_process(f"print(peak_of_a_step({n}, {window}))")) for n in (window, long)]
    ratio, apart = over_one_process(1 if quick else 6)
    return {
        "loop_over_bare_loop": entry(
            over_bare_loop(quick),
            f"a step of anyorder.training.train over one of a bare PyTorch loop on nn.GRU ({SETTING}), no penalty",
            goal=1.10,
        ),
        "tbptt_memory_5000_over_1000": entry(
            peaks[1] / max(peaks[0], 1.0),
            "peak memory of truncated backpropagation with SIRE, window 1000: n = 5000 over 1000 (GRU 128, batch 16)",
            goal=1.3,
        ),
        "two_processes_over_one": entry(
            ratio,
            f"time of two data-parallel processes over one's, same global batch of 256, GRU 128, n = 50 "
            f"(weights end at most {apart:.0e} apart)",
        ),
    }
