"""The training step of every recurrent arm on real data against the same network in plain PyTorch (nn.GRU, no penalty).

The sets have the sizes of the real ones and random content: the time of a step depends on nothing else.
"""

from __future__ import annotations

from typing import Any

import torch

from anyorder.data.sets import SetData
from anyorder.paper.experiments.real import REAL_EXPERIMENTS
from anyorder.paper.runner.real_runs import build_model, build_penalty, rate_over_plain_torch
from anyorder.paper.runner.trial import shuffles
from anyorder.training.loop import TrainConfig
from benchmarks.timing import entry

# elements of a set, features of an element, classes
SHAPES = {
    "ecg": (140, 1, 5),
    "activity": (128, 6, 6),
    "pointcloud": (100, 3, 40),
    "pointcloud-1000": (1000, 3, 40),
    "perturbed-mnist": (784, 1, 10),
}


def run(quick: bool = False) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    entries = {}
    for name, (elements, features, classes) in SHAPES.items():
        plan = REAL_EXPERIMENTS[name].plan("smoke" if quick else "laptop")
        elements = min(elements, 20) if quick else elements
        for method, candidates in plan.methods.items():
            setting = {**plan.fixed, **candidates[0]}
            if method in ("plain", "pi-sgd") or method.startswith("sire"):
                value = _rate(method, setting, elements, features, classes)
                key = f"step_rate_{name}_{method}".replace("-", "_").replace("+", "_")
                what = f"samples a second of a training step over plain PyTorch's, {name}, {method}, one thread"
                entries[key] = entry(value, what, better="higher")
    return entries


def _rate(method: str, setting: dict[str, Any], elements: int, features: int, classes: int) -> float:
    samples, batch = 3 * setting["batch_size"], setting["batch_size"]
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(samples, elements, features, generator=generator)
    data = SetData.of(values, torch.randint(classes, (samples,), generator=generator))
    order = "shuffle" if shuffles(method) else "keep"
    config = TrainConfig(
        batch_size=batch,
        order=order,
        shuffle_within=setting.get("shuffle_within"),
        mixed_precision=setting.get("mixed_precision"),
        gap_every=0,
        device="cpu",
    )
    penalty = build_penalty(method, setting)
    penalised = {} if penalty is None else {"penalty": penalty, "penalty_weight": setting["penalty_weight"]}
    return rate_over_plain_torch(build_model(method, setting, features, classes, seed=0), data, config, **penalised)
