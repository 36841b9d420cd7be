"""What a fold costs: a training step beside nn.GRU and DeepSets, the exact penalty, and other ways to scan.

Batch 128, 128 channels or units, 3 features, one thread; ratios of medians of interleaved repetitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import anyorder as ao
from benchmarks.timing import entry, medians

FEATURES = 3
MIXTURES: dict[str, list[str]] = {"default mixture": [], "affine alone": ["affine"]}


class Steps:
    """Training steps on one batch: forward, backward and Adam."""

    def __init__(self, n: int, batch: int = 128, width: int = 128) -> None:
        torch.manual_seed(0)
        self.elements = torch.randn(batch, n, FEATURES)
        self.gru = nn.GRU(FEATURES, width, batch_first=True)
        self.phi = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        kinds = {name: dict.fromkeys(alone, width) or width for name, alone in MIXTURES.items()}
        self.folds = {name: ao.Fold(FEATURES, channels) for name, channels in kinds.items()}
        self.heads = nn.ModuleDict({name: nn.Linear(width, 1) for name in ("gru", "phi", "fold")})
        self.sire = ao.SIRE()

    def step(
        self, module: nn.Module, head: str, end: Callable[[], tuple[Tensor, Tensor | float]]
    ) -> Callable[[], None]:
        optimizer = torch.optim.Adam([*module.parameters(), *self.heads[head].parameters()])

        def run() -> None:
            state, penalty = end()
            loss = self.heads[head](state).square().mean() + penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return run

    def contenders(self) -> dict[str, Callable[[], None]]:
        x = self.elements
        steps = {
            "gru": self.step(self.gru, "gru", lambda: (self.gru(x)[1][0], 0.0)),
            "deepsets": self.step(self.phi, "phi", lambda: (self.phi(x).sum(1), 0.0)),
        }
        for name, fold in self.folds.items():

            def plain(fold: ao.Fold = fold) -> tuple[Tensor, float]:
                return fold.scan(x).last, 0.0

            def penalised(fold: ao.Fold = fold) -> tuple[Tensor, Tensor]:
                trajectory = fold.scan(x)
                return trajectory.last, self.sire(trajectory)

            steps[name] = self.step(fold, "fold", plain)
            steps[f"{name}, SIRE"] = self.step(fold, "fold", penalised)
        return steps


def run(quick: bool = False) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    size: dict[str, int] = {"batch": 8, "width": 16} if quick else {}
    measured: dict[str, dict[str, Any]] = {}
    for n, repetitions in ((100, 25), (1000, 5)):
        n, repetitions = (n // 10, 2) if quick else (n, repetitions)
        seconds = medians(Steps(n, **size).contenders(), repetitions)
        for name in MIXTURES:
            key, main = f"{'fold' if name == 'default mixture' else 'fold_affine'}_{{}}_{n}", name == "default mixture"
            step, sire, what = seconds[name], seconds[f"{name}, SIRE"], f"training step of a Fold ({name}), n = {n}"
            measured |= {
                key.format("over_nn_gru"): entry(
                    step / seconds["gru"], f"{what}, over nn.GRU", goal=0.4 if main else None
                ),
                key.format("over_deepsets"): entry(
                    step / seconds["deepsets"], f"{what}, over DeepSets", goal=2.0 if main and n <= 100 else None
                ),
                key.format("sire_over_plain"): entry(
                    sire / step, f"{what}, with SIRE over without", goal=1.03 if main else None
                ),
            }
    return {**measured, **_scans(quick)}


def _scans(quick: bool) -> dict[str, dict[str, Any]]:
    """The ways to scan s' = a·s + b, forward and backward, over the one that the library takes on a CPU."""
    n, batch, width = (10, 4, 8) if quick else (100, 128, 128)
    a, b = torch.rand(n, batch, width, requires_grad=True), torch.randn(n, batch, width, requires_grad=True)

    def loop() -> Tensor:
        state = b[0]
        for t in range(1, n):
            state = a[t] * state + b[t]
        return state

    def doubling() -> Tensor:
        keep, add, reach = a, b, 1
        while reach < n:
            add = torch.cat([add[:reach], keep[reach:] * add[:-reach] + add[reach:]])
            keep = torch.cat([keep[:reach], keep[reach:] * keep[:-reach]])
            reach *= 2
        return add[-1]

    def chunks() -> Tensor:
        state, size = torch.zeros_like(b[0]), 10
        for keep, add in zip(a.split(size), b.split(size), strict=True):
            inner = add[0]
            for t in range(1, len(add)):
                inner = keep[t] * inner + add[t]
            state = keep.prod(0) * state + inner
        return state

    fold = ao.Fold(FEATURES, {"affine": width})
    x = torch.randn(batch, n, FEATURES)
    ways = {"loop": loop, "doubling": doubling, "chunks": chunks, "library": lambda: fold.scan(x).last}
    seconds = medians({name: lambda way=way: way().sum().backward() for name, way in ways.items()}, 2 if quick else 15)
    what = "of s' = a·s + b alone, over a Fold's whole layer (features, coefficients and scan), n = 100"
    return {
        f"scan_{name}_over_fold": entry(seconds[name] / seconds["library"], f"{name} {what}")
        for name in ("loop", "doubling", "chunks")
    }
