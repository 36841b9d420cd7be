"""How a run of the training loop goes, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyorder.checks import InputError, InputTypeError, one_of, real_number, whole_number
from anyorder.training.progress import Record

Loss = Callable[[Tensor, Tensor], Tensor]


def _distance(measure: Callable[..., Tensor], output: Tensor, target: Tensor) -> Tensor:
    """``measure`` of each number to its own target, whole ones too; nothing is broadcast."""
    if output.shape != target.shape:
        raise InputError(
            f"the loss compares outputs and targets of one shape; the model gives {list(output.shape)}, the targets "
            f"of the batch are {list(target.shape)}"
        )
    kind = torch.promote_types(torch.promote_types(output.dtype, target.dtype), torch.float32)
    return measure(output.to(kind), target.to(kind), reduction="none")


LOSSES: dict[str, Loss] = {
    "cross-entropy": functools.partial(F.cross_entropy, reduction="none"),
    "mse": functools.partial(_distance, F.mse_loss),
    "l1": functools.partial(_distance, F.l1_loss),
    "huber": functools.partial(_distance, F.huber_loss),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
}
SCHEDULES = ("one-cycle", "plateau", "constant")
PRECISIONS = ("no", "fp16", "bf16")


@dataclass(frozen=True)
class TrainConfig:
    """How a run goes. Everything is checked here, before any data is touched.

    ``optimizer``: a name of :data:`OPTIMIZERS`, or a callable from parameters to an optimiser (which then owns
    ``learning_rate`` and ``weight_decay``, except for the peak of the one-cycle schedule). ``schedule``:
    "one-cycle", "plateau" (``learning_rate`` times ``plateau_factor`` after ``plateau_patience`` epochs without
    progress) or "constant". ``clip``: the largest norm of the gradient. ``shuffle=True``: a fresh random
    ordering of each sample every epoch, with ``shuffle_within=w`` one that leaves every element inside its window of w
    consecutive ones. ``truncate``: truncated backpropagation, see :func:`train`. ``patience``: stop after so many
    epochs without a better validation metric. ``maximize``: a larger ``metric`` is better.
    ``gap_every``: epochs between two measurements of the order gap on ``gap_samples`` fixed samples (0: never).
    ``checkpoint_seconds``: the least time between two checkpoints (0: after each step).
    ``mixed_precision``: "no", "fp16", "bf16" or None (what ``accelerate launch`` says). Validation is always in full
    precision.
    ``device``: "auto" or a name torch knows.
    ``tensorboard``: a folder for its files, or True: ``tensorboard`` in the ``workdir``.

    >>> TrainConfig(epochs=20, schedule="plateau").learning_rate
    0.003
    """

    epochs: int = 100
    batch_size: int = 128
    optimizer: str | Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = "adam"
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    schedule: str = "one-cycle"
    plateau_patience: int = 5
    plateau_factor: float = 0.5
    clip: float | None = 1.0
    shuffle: bool = False
    shuffle_within: int | None = None
    truncate: int | None = None
    patience: int | None = None
    maximize: bool = False
    seed: int = 0
    gap_every: int = 1
    gap_samples: int = 64
    checkpoint_seconds: float = 30.0
    mixed_precision: str | None = None
    device: str = "auto"
    tensorboard: bool | str | Path = False

    def __post_init__(self) -> None:
        least = {"plateau_patience": 0, "shuffle_within": 2, "truncate": 2, "seed": 0, "gap_every": 0, "gap_samples": 2}
        for name in ("epochs", "batch_size", "patience", *least):
            if (value := getattr(self, name)) is not None or name not in ("patience", "shuffle_within", "truncate"):
                object.__setattr__(self, name, whole_number(name, value, least.get(name, 1)))
        if not callable(self.optimizer):
            one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("schedule", self.schedule, SCHEDULES)
        rules: dict[str, dict[str, float]] = {
            "learning_rate": {"above": 0},
            "weight_decay": {"at_least": 0},
            "plateau_factor": {"above": 0, "below": 1},
            "clip": {"above": 0},
            "checkpoint_seconds": {"at_least": 0},
        }
        for name, rule in rules.items():
            if (value := getattr(self, name)) is not None or name != "clip":
                object.__setattr__(self, name, real_number(name, value, **rule))
        if self.shuffle_within is not None and not self.shuffle:
            raise InputError(f"shuffle_within={self.shuffle_within} needs shuffle=True")
        one_of("mixed_precision", self.mixed_precision, [None, *PRECISIONS])
        if isinstance(self.maximize, str):
            raise InputTypeError(f"maximize must be True or False; got {self.maximize!r}")
        folder = isinstance(self.tensorboard, (str, Path))
        kinds = {"maximize": bool, "tensorboard": str if folder else bool, "device": str}
        for name, kind in kinds.items():  # numpy's, torch's
            object.__setattr__(self, name, kind(getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values (an own optimiser by its name)."""
        values = dataclasses.asdict(self)
        if callable(self.optimizer):
            values["optimizer"] = getattr(self.optimizer, "__qualname__", repr(self.optimizer))
        return values

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser named or given, over ``parameters``."""
        if callable(self.optimizer):
            return self.optimizer(parameters)
        on_cpu = all(p.device.type == "cpu" and p.is_floating_point() for p in parameters)
        fused = {"fused": True} if on_cpu and self.optimizer != "rmsprop" else {}  # one call, not ten a parameter
        return OPTIMIZERS[self.optimizer](parameters, lr=self.learning_rate, weight_decay=self.weight_decay, **fused)

    def make_schedule(self, optimizer: torch.optim.Optimizer, steps: int, *, validated: bool) -> Any:
        """The schedule of a run of so many ``steps``; a plateau is of the validation figure if there is one."""
        if self.schedule == "one-cycle":
            cycles = self.optimizer in ("adam", "adamw", "sgd")  # the momentum of others is not ours to move
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, steps + 1, cycle_momentum=cycles)
        mode: Any = "max" if self.maximize and validated else "min"
        return torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode, factor=self.plateau_factor, patience=self.plateau_patience
        )


@dataclass
class TrainResult:
    """What a run leaves behind; the model holds its best weights (the last ones without validation).

    ``history``: a dict an epoch with ``epoch``, ``step``, ``loss``, ``penalty``, ``penalty_weight``, ``gap``,
    ``validation``, ``learning_rate``, ``samples_per_second``, ``seconds``; what was not measured is None.
    ``stopped``: "finished", "patience" or "diverged".
    """

    history: list[Record] = field(default_factory=list)
    best_epoch: int | None = None
    best_validation: float | None = None
    steps: int = 0
    seconds: float = 0.0
    stopped: str = "finished"
