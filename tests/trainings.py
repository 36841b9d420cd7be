"""Small sets and short trainings for the tests of training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import anyorder as ao
from anyorder.data.sets import SetData
from anyorder.training.config import TrainConfig
from anyorder.training.loop import train

SIRE = ao.SIRE(relative=False)
SGD = {"epochs": 1, "schedule": "constant", "clip": None, "optimizer": "sgd", "learning_rate": 0.1}


def sums(samples: int = 48, length: int = 5, seed: int = 0) -> SetData:
    x = torch.rand(samples, length, 1, generator=torch.Generator().manual_seed(seed))
    return SetData.of(x, x.sum((1, 2)))


def ragged(samples: int = 40, seed: int = 0) -> SetData:
    g = torch.Generator().manual_seed(seed)
    sets = [torch.rand(int(n), 1, generator=g) for n in torch.randint(0, 9, (samples,), generator=g)]
    return SetData.of(sets, torch.stack([s.sum() for s in sets]))


def model(seed: int = 0, out: int = 1, **options) -> ao.RecurrentSetModel:
    torch.manual_seed(seed)
    return ao.RecurrentSetModel(1, out, **{"hidden": 6, **options})


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def trained(data: SetData, *, start: nn.Module | None = None, loss="mse", **options):
    subject = start or model()
    settings = {name: options.pop(name) for name in TrainConfig.__dataclass_fields__ if name in options}
    config = TrainConfig(**{"epochs": 3, "batch_size": 16, **settings})
    return subject, train(subject, loss, data, config=config, progress=False, **options)


def tied(samples: int = 24, seed: int = 0, **options) -> SetData:
    """Sets of six elements at four times: two ties of two elements."""
    x = torch.rand(samples, 6, 1, generator=torch.Generator().manual_seed(seed))
    return SetData.of(x, x[:, 0].sum(1) + x.sum((1, 2)), ties=torch.tensor([[0, 0, 1, 2, 2, 5]] * samples), **options)


class Watch(nn.Module):
    """Notes the elements that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.seen = nn.Parameter(torch.ones(1)), []

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.seen.append(elements[:, :, 0])
        return self.scale * elements.sum((1, 2))[:, None]


@dataclass(frozen=True)
class Scaled:
    """Every set times a random factor."""

    most: float = 2.0

    def __call__(self, elements, lengths, generator, share):
        return elements * (1 + (self.most - 1) * torch.rand(len(elements), 1, 1, generator=generator)), lengths


def weighted(weights: Tensor) -> SetData:
    return SetData.of(sums(), weights=weights)
