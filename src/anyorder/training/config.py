"""How a training run goes, and what it leaves behind."""

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

from anyorder.checks import InputError, one_of, real_number, whole_number
from anyorder.training.progress import Record

Loss = Callable[[Tensor, Tensor], Tensor]


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """The loss of class numbers ``[B]`` or shares of the classes ``[B, K]``."""
    if not target.is_floating_point():
        target = target.long() if target.dim() == 1 else target.float()
    return F.cross_entropy(output, target, reduction="none")


def _distance(measure: Callable[..., Tensor], output: Tensor, target: Tensor) -> Tensor:
    """``measure`` of each output to its own target; nothing is broadcast."""
    if output.shape != target.shape:
        raise InputError(f"targets must have the shape of the outputs, {list(output.shape)}; got {list(target.shape)}")
    kind = torch.promote_types(torch.promote_types(output.dtype, target.dtype), torch.float32)
    return measure(output.to(kind), target.to(kind), reduction="none")


LOSSES: dict[str, Loss] = {
    "cross-entropy": _cross_entropy,
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

# The least value of a whole number, the bounds of a real one.
_RULES: dict[str, int | dict[str, float]] = {
    "epochs": 1,
    "batch_size": 1,
    "learning_rate": {"above": 0},
    "weight_decay": {"at_least": 0},
    "plateau_patience": 0,
    "plateau_factor": {"above": 0, "below": 1},
    "clip": {"above": 0},
    "shuffle_within": 2,
    "truncate": 2,
    "patience": 1,
    "seed": 0,
    "gap_every": 0,
    "gap_samples": 2,
    "checkpoint_seconds": {"at_least": 0},
}
_OPTIONAL = ("clip", "shuffle_within", "truncate", "patience")


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a training run, checked when they are made.

    Args:
        optimizer: A name of :data:`OPTIMIZERS`, or a callable from parameters to an optimiser. A callable sets its
            own learning rate and weight decay; ``learning_rate`` is then only the peak of the one-cycle schedule.
        schedule: "one-cycle", "constant", or "plateau": the learning rate is multiplied by ``plateau_factor`` after
            ``plateau_patience`` epochs without progress.
        clip: The largest norm of the gradient; None for no limit.
        shuffle: Read each set in a fresh random ordering every epoch. With ``shuffle_within=w`` every element stays
            inside its window of w consecutive elements.
        truncate: Number of elements for truncated backpropagation, see :func:`train`.
        patience: Stop after this many epochs without a better validation metric.
        maximize: Whether a larger ``metric`` is better.
        gap_every: Epochs between two measurements of the order gap on ``gap_samples`` fixed sets; 0 for never.
        checkpoint_seconds: The least time between two checkpoints; 0 writes one after each step.
        mixed_precision: "no", "fp16", "bf16" or None for the choice of ``accelerate launch``. Validation is always
            in full precision.
        device: "auto" or the name of a torch device.
        tensorboard: A folder for TensorBoard's files; True for ``tensorboard`` in the ``workdir``.

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
        plain: dict[str, Any] = {}  # JSON values, also of numpy's numbers
        for name, rule in _RULES.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                plain[name] = (
                    real_number(name, value, **rule) if isinstance(rule, dict) else whole_number(name, value, rule)
                )
        if not callable(self.optimizer):
            one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("mixed_precision", self.mixed_precision, (None, *PRECISIONS))
        if self.shuffle_within is not None and not self.shuffle:
            raise InputError(f"shuffle_within={self.shuffle_within} needs shuffle=True")
        plain["maximize"] = bool(one_of("maximize", self.maximize, (False, True)))
        plain["device"] = str(self.device)
        plain["tensorboard"] = str(self.tensorboard) if isinstance(self.tensorboard, Path) else self.tensorboard
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values; an optimiser of the user's by its name."""
        values = dataclasses.asdict(self)
        if callable(self.optimizer):
            values["optimizer"] = getattr(self.optimizer, "__qualname__", repr(self.optimizer))
        return values

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser over ``parameters``."""
        if callable(self.optimizer):
            return self.optimizer(parameters)
        on_cpu = all(p.device.type == "cpu" and p.is_floating_point() for p in parameters)
        fused = {"fused": True} if on_cpu and self.optimizer != "rmsprop" else {}  # one call, not ten a parameter
        return OPTIMIZERS[self.optimizer](parameters, lr=self.learning_rate, weight_decay=self.weight_decay, **fused)

    def make_schedule(self, optimizer: torch.optim.Optimizer, steps: int, *, validated: bool) -> Any:
        """The schedule of a run of ``steps``; "plateau" follows validation if there is any."""
        if self.schedule == "one-cycle":
            cycles = self.optimizer in ("adam", "adamw", "sgd")  # leave the momentum of other optimisers alone
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, steps + 1, cycle_momentum=cycles)
        mode: Any = "max" if self.maximize and validated else "min"
        return torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode, factor=self.plateau_factor, patience=self.plateau_patience
        )


@dataclass
class TrainResult:
    """The history of a run; the model holds its best weights.

    ``history``: a dict for each epoch with ``epoch``, ``step``, ``loss``, ``penalty``, ``penalty_weight``, ``gap``,
    ``validation``, ``learning_rate``, ``samples_per_second``, ``seconds``; None where nothing was measured.
    ``stopped``: "finished", "patience" or "diverged".
    """

    history: list[Record] = field(default_factory=list)
    best_epoch: int | None = None
    best_validation: float | None = None
    steps: int = 0
    seconds: float = 0.0
    stopped: str = "finished"
