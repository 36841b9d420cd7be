"""The training step of every recurrent arm on real data against the same network in plain PyTorch (nn.GRU, no penalty).

The sets have the sizes of the real ones and random content: the time of a step depends on nothing else.
"""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from anyorder.data.sets import SetData
from anyorder.models.recurrent import RecurrentSetModel
from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.runner.arms import build_model, build_penalty
from anyorder.paper.runner.trial import shuffles
from anyorder.training.config import TrainConfig
from anyorder.training.loop import train
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
        plan = EXPERIMENTS[name].plan("smoke" if quick else "laptop")
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
    config = TrainConfig(
        batch_size=batch,
        shuffle=shuffles(method),
        shuffle_within=setting.get("shuffle_within"),
        mixed_precision=setting.get("mixed_precision"),
        gap_every=0,
        device="cpu",
    )
    model = build_model(method, setting, features, classes, seed=0)
    penalty = build_penalty(method, setting, model)
    penalised = {} if penalty is None else {"penalty": penalty, "penalty_weight": setting["penalty_weight"]}
    return rate_over_plain_torch(model, data, config, **penalised)


def rate_over_plain_torch(
    model: RecurrentSetModel, data: SetData, config: TrainConfig, *, batches: int = 3, rounds: int = 3, **penalised: Any
) -> float:
    """How fast a few training steps are against the same network in plain PyTorch: nn.GRU, no penalty, Adam.

    Both take the same batches in turn, in the same precision, their steps alone being timed; the best of ``rounds``
    counts.
    """
    some = data.select(torch.arange(batches * config.batch_size) % len(data))
    ours, plain = [], []
    for _ in range(rounds):
        few, own = replace(config, epochs=1), copy.deepcopy(model).train()
        ours.append(train(own, "cross-entropy", some, config=few, progress=False, **penalised).seconds)
        plain.append(_plain_torch_seconds(model, some, config))
    return min(plain) / min(ours)


def _plain_torch_seconds(model: RecurrentSetModel, data: SetData, config: TrainConfig) -> float:
    """An epoch over ``data`` with the encoder and the read-out of ``model`` around a torch.nn.GRU of its size."""
    width, hidden = model.encode(data.batch(torch.arange(1))[0]).shape[2], model.recurrence.start(1).shape[-1]
    encoder, head = (copy.deepcopy(part).train() for part in (model.encoder, model.readout))
    gru = nn.GRU(width, hidden, batch_first=True)
    optimizer = torch.optim.Adam([*encoder.parameters(), *gru.parameters(), *head.parameters()])
    assert data.targets is not None
    began = time.perf_counter()
    for index in torch.arange(len(data)).split(config.batch_size):
        elements, _ = data.batch(index)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=config.mixed_precision == "bf16"):
            states, _ = gru(encoder(elements))
            loss = nn.functional.cross_entropy(head(states[:, -1]), data.targets[index])
        loss.backward()
        optimizer.step()
    return time.perf_counter() - began
