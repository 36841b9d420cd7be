"""What bfloat16 saves on this processor: a training step with SIRE under autocast against the same in single precision.

GRU of 256 units, batch 64, n = 100; one thread. All ratios are medians of interleaved repetitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import anyorder as ao
from anyorder.training.objective import Batch, task_and_penalty
from benchmarks.timing import entry, medians

FEATURES, CLASSES = 256, 10


def run(quick: bool = False) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    batch, n, hidden = (8, 20, 16) if quick else (64, 100, 256)
    elements, labels = torch.randn(batch, n, FEATURES), torch.randint(0, CLASSES, (batch,))
    model = ao.RecurrentSetModel(FEATURES, CLASSES, hidden=hidden)
    penalised = ao.SIRE(prefixes="given", window=1)
    gru, readout = nn.GRU(FEATURES, hidden, batch_first=True), nn.Linear(hidden, CLASSES)
    ours, torchs = (torch.optim.Adam(part.parameters(), fused=True) for part in (model, nn.ModuleList([gru, readout])))

    def with_sire() -> torch.Tensor:
        output, penalty = task_and_penalty(model, penalised, Batch(elements))
        return nn.functional.cross_entropy(output, labels) + 0.1 * penalty

    def plain_torch() -> torch.Tensor:
        return nn.functional.cross_entropy(readout(gru(elements)[0][:, -1]), labels)

    def step(loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer, *, mixed: bool) -> Callable[[], None]:
        def take() -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                value = loss()
            value.backward()
            optimizer.step()

        return take

    seconds = medians(
        {
            "sire": step(with_sire, ours, mixed=False),
            "sire, bf16": step(with_sire, ours, mixed=True),
            "nn.GRU": step(plain_torch, torchs, mixed=False),
            "nn.GRU, bf16": step(plain_torch, torchs, mixed=True),
        },
        2 if quick else 15,
    )
    what = 'training step with SIRE(prefixes="given", window=1) under autocast to bfloat16 over'
    return {
        "bf16_sire_over_single": entry(seconds["sire, bf16"] / seconds["sire"], f"{what} the same in single precision"),
        "bf16_sire_over_nn_gru": entry(
            seconds["sire, bf16"] / seconds["nn.GRU, bf16"], f"{what} the plain step of nn.GRU under it"
        ),
        "bf16_nn_gru_over_single": entry(
            seconds["nn.GRU, bf16"] / seconds["nn.GRU"],
            "plain training step of nn.GRU under autocast to bfloat16 over the same in single precision",
        ),
    }
