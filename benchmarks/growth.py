"""How time and memory grow with n, hidden size and pairs, and how near a step comes to the machine's own speed.

Draws docs/figures/growth.png: seconds of a training step against n on log axes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import anyorder as ao
from benchmarks.timing import entry, medians, peak_memory

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "growth.png"
LENGTHS = [100, 300, 1000, 3000, 10000]
FEATURES, HIDDEN, BATCH = 8, 64, 8


def run(quick: bool = False) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    lengths = [20, 40] if quick else LENGTHS
    seconds = {n: medians(_steps(n), 3) for n in lengths}
    if not quick:
        _draw(seconds)
    return {**_slopes(seconds), **_hidden(quick), **_pairs(quick), **_memory(lengths, quick), **_throughput(quick)}


def _training_step(model: nn.Module, elements: torch.Tensor, penalty: Any = None) -> Callable[[], None]:
    targets = torch.zeros(len(elements), 1)
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(0)

    def run() -> None:
        if penalty is None:
            loss = nn.functional.mse_loss(model(elements), targets)
        else:
            output, trajectory = model(elements, return_trajectory=True)
            loss = nn.functional.mse_loss(output, targets) + 0.1 * penalty(trajectory, generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def _steps(n: int, hidden: int = HIDDEN) -> dict[str, Callable[[], None]]:
    torch.manual_seed(0)
    elements = torch.randn(BATCH, n, FEATURES)
    recurrent = ao.RecurrentSetModel(FEATURES, 1, hidden=hidden)
    return {
        "plain": _training_step(recurrent, elements),
        "SIRE prefix": _training_step(recurrent, elements, ao.SIRE(prefixes="given", window=1)),
        "SIRE subset": _training_step(recurrent, elements, ao.SIRE()),
        "SubsetPenalty": _training_step(recurrent, elements, ao.SubsetPenalty()),
        "Set Transformer": _training_step(ao.SetTransformer(FEATURES, 1, hidden=hidden), elements),
    }


def _slopes(seconds: dict[int, dict[str, float]]) -> dict[str, dict[str, Any]]:
    """The exponent k of time ~ n^k for each line, and the largest drift of a SIRE line against the plain one."""
    log_n = np.log(list(seconds))
    entries = {}
    for name in next(iter(seconds.values())):
        slope = np.polyfit(log_n, np.log([by_name[name] for by_name in seconds.values()]), 1)[0]
        key = "growth_exponent_" + name.lower().replace(" ", "_")
        entries[key] = entry(
            slope, f"k in seconds ~ n^k of a training step, {name}, n = {min(seconds)} … {max(seconds)}"
        )
    plain = entries["growth_exponent_plain"]["value"]
    for name in ("sire_prefix", "sire_subset"):
        drift = abs(entries[f"growth_exponent_{name}"]["value"] - plain)
        entries[f"growth_drift_{name}"] = entry(
            drift, f"exponents of the {name.replace('_', ' ')} step and the plain one apart: 0 is parallel", goal=0.1
        )
    return entries


def _hidden(quick: bool) -> dict[str, dict[str, Any]]:
    sizes = [8, 16] if quick else [64, 128, 256, 512]
    seconds = [medians({"plain": _steps(20 if quick else 100, size)["plain"]}, 3)["plain"] for size in sizes]
    slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
    what = f"k in seconds ~ hidden^k of the plain training step, hidden = {sizes[0]} … {sizes[-1]}, n = 100"
    return {"growth_exponent_hidden": entry(slope, what)}


def _pairs(quick: bool) -> dict[str, dict[str, Any]]:
    torch.manual_seed(0)
    elements = torch.randn(BATCH, 20 if quick else 100, FEATURES)
    model = ao.RecurrentSetModel(FEATURES, 1, hidden=HIDDEN)
    pairs = [1, 4] if quick else [1, 2, 4, 8, 16, 32]
    seconds = medians(
        {str(p): _training_step(model, elements, ao.SIRE(prefixes="given", window=1, pairs=p)) for p in pairs},
        2 if quick else 7,
    )
    slope = np.polyfit(pairs, [seconds[str(p)] / seconds["1"] for p in pairs], 1)[0]
    return {"growth_per_pair": entry(slope, "share of a step that each further adjacent pair a sample adds, n = 100")}


def _memory(lengths: list[int], quick: bool) -> dict[str, dict[str, Any]]:
    """Numbers kept by a plain and a penalised step, from peak resident memory in processes of their own."""
    entries = {}
    for kind in ["plain"] if quick else ["plain", "prefix", "subset"]:
        short, long = (_peak(kind, n) for n in (lengths[0], lengths[-1]))
        slope = (long - short) / (lengths[-1] - lengths[0]) / BATCH / HIDDEN / 4
        entries[f"memory_floats_per_step_{kind}"] = entry(
            slope, f"numbers kept for each element and hidden unit by a training step ({kind}), beyond n = {lengths[0]}"
        )
    return entries


def _peak(kind: str, n: int) -> float:
    code = f"from benchmarks.growth import peak_of; print(peak_of({kind!r}, {n}))"
    root = Path(__file__).parent.parent
    return float(
        subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    )


def peak_of(kind: str, n: int) -> float:
    """Bytes resident at the peak of one training step in this process."""
    torch.set_num_threads(1)
    steps = _steps(n)
    steps[{"plain": "plain", "prefix": "SIRE prefix", "subset": "SIRE subset"}[kind]]()
    return peak_memory()


def _throughput(quick: bool) -> dict[str, dict[str, Any]]:
    """Training steps of our model over torch's bare modules, and the share of the matrix-product speed reached."""
    torch.manual_seed(0)
    batch, n, hidden = (8, 20, 16) if quick else (64, 100, 256)
    elements = torch.randn(batch, n, FEATURES)
    entries = {}
    for kind, module in (("gru", nn.GRU), ("lstm", nn.LSTM), ("rnn", nn.RNN)):
        bare = _Bare(module(FEATURES, hidden, batch_first=True))
        ours = ao.RecurrentSetModel(FEATURES, 1, cell=kind, hidden=hidden)
        seconds = medians(
            {"bare": _training_step(bare, elements), "ours": _training_step(ours, elements)}, 2 if quick else 7
        )
        entries[f"throughput_over_nn_{kind}"] = entry(
            seconds["bare"] / seconds["ours"],
            f"samples a second, RecurrentSetModel over nn.{kind.upper()}, hidden {hidden}, n = {n}",
            better="higher",
        )
        if kind == "gru":
            # Forward, gradient of the state, gradient of the weights: three products a step and gate.
            operations = 3 * 2 * batch * n * 3 * hidden * (hidden + FEATURES)
            share = operations / seconds["ours"] / _matrix_speed(256 if quick else 1024)
            entries["share_of_matrix_speed"] = entry(
                share,
                "floating-point operations a second of the GRU step over those of a 1024³ product",
                better="higher",
            )
    return entries


class _Bare(nn.Module):
    def __init__(self, module: nn.RNNBase) -> None:
        super().__init__()
        self.module, self.readout = module, nn.Linear(module.hidden_size, 1)

    def forward(self, elements: torch.Tensor) -> torch.Tensor:
        return self.readout(self.module(elements)[0][:, -1])


def _matrix_speed(size: int) -> float:
    a, b = torch.randn(size, size), torch.randn(size, size)
    begin, repetitions = time.perf_counter(), 10
    for _ in range(repetitions):
        a @ b
    return 2 * size**3 * repetitions / (time.perf_counter() - begin)


def _draw(seconds: dict[int, dict[str, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name in next(iter(seconds.values())):
        axes.loglog(list(seconds), [by_name[name] for by_name in seconds.values()], marker="o", label=name)
    axes.set(
        xlabel="elements in a set, n",
        ylabel="seconds a training step",
        title=f"GRU of {HIDDEN}, batch {BATCH}, one thread",
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=120)
    plt.close(figure)
