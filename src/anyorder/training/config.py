"""How a training run goes, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
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
    "binary-cross-entropy": functools.partial(_distance, F.binary_cross_entropy_with_logits),  # of labels 0 and 1
    "mse": functools.partial(_distance, F.mse_loss),
    "l1": functools.partial(_distance, F.l1_loss),
    "huber": functools.partial(_distance, F.huber_loss),
    "poisson": functools.partial(_distance, F.poisson_nll_loss),  # of the logarithm of the rate
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
}
SCHEDULES = ("one-cycle", "plateau", "constant")


def _setting(default: Any, check: Callable[..., Any], **rule: Any) -> Any:
    """A field with the rule that :class:`TrainConfig` checks; None is refused where its type has no None."""
    return field(default=default, metadata={"check": functools.partial(check, **rule)})


def _device(name: str, value: Any) -> str:
    found = [torch.accelerator.current_accelerator().type] if torch.accelerator.is_available() else []  # type: ignore
    one_of(name, str(value).partition(":")[0], ["auto", "cpu", *found])
    return str(value)


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a training run, checked when they are made.

    Args:
        optimizer: A name of :data:`OPTIMIZERS`.
        schedule: "one-cycle", "constant", or "plateau": the learning rate is halved after ``plateau_patience``
            epochs without progress.
        clip: The largest norm of the gradient; None for no limit.
        shuffle: Read each set in a fresh random ordering every epoch. With ``shuffle_within=w`` every element stays
            inside its window of w consecutive elements.
        truncate: Number of elements for truncated backpropagation, see :func:`train`.
        patience: Stop after this many epochs without a better validation metric.
        maximize: Whether a larger ``metric`` is better.
        gap_every: Epochs between two measurements of the order gap on 64 fixed sets; 0 for never.
        checkpoint_seconds: The least time between two checkpoints; 0 writes one after each step.
        mixed_precision: "no", "fp16", "bf16" or None for the choice of ``accelerate launch``. Validation is always
            in full precision.
        device: "auto" or the name of a torch device.
        tensorboard: A folder for TensorBoard's files.

    >>> TrainConfig(epochs=20, schedule="plateau").learning_rate
    0.003
    """

    epochs: int = _setting(100, whole_number)
    batch_size: int = _setting(128, whole_number)
    optimizer: str = _setting("adam", one_of, allowed=tuple(OPTIMIZERS))
    learning_rate: float = _setting(3e-3, real_number, above=0)
    weight_decay: float = _setting(0.0, real_number, at_least=0)
    schedule: str = _setting("one-cycle", one_of, allowed=SCHEDULES)
    plateau_patience: int = _setting(5, whole_number, minimum=0)
    clip: float | None = _setting(1.0, real_number, above=0)
    shuffle: bool = False
    shuffle_within: int | None = _setting(None, whole_number, minimum=2)
    truncate: int | None = _setting(None, whole_number, minimum=2)
    patience: int | None = _setting(None, whole_number)
    maximize: bool = False
    seed: int = _setting(0, whole_number, minimum=0)
    gap_every: int = _setting(1, whole_number, minimum=0)
    checkpoint_seconds: float = _setting(30.0, real_number, at_least=0)
    mixed_precision: str | None = _setting(None, one_of, allowed=("no", "fp16", "bf16"))
    device: str = _setting("auto", _device)
    tensorboard: str | Path | None = None

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            name, value = setting.name, getattr(self, setting.name)
            if "check" in setting.metadata and not (value is None and "None" in str(setting.type)):
                object.__setattr__(self, name, setting.metadata["check"](name, value))  # plain, also of numpy's
        if self.shuffle_within is not None and not self.shuffle:
            raise InputError(f"shuffle_within={self.shuffle_within} needs shuffle=True")

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser over ``parameters``."""
        on_cpu = all(p.device.type == "cpu" and p.is_floating_point() for p in parameters)
        fused = {"fused": True} if on_cpu and self.optimizer != "rmsprop" else {}  # one call, not ten a parameter
        return OPTIMIZERS[self.optimizer](parameters, lr=self.learning_rate, weight_decay=self.weight_decay, **fused)

    def make_schedule(self, optimizer: torch.optim.Optimizer, steps: int, *, validated: bool) -> Any:
        """The schedule of a run of ``steps``; "plateau" follows validation if there is any."""
        if self.schedule == "one-cycle":
            cycles = self.optimizer != "rmsprop"  # which has no momentum
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, steps + 1, cycle_momentum=cycles)
        mode: Any = "max" if self.maximize and validated else "min"
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, factor=0.5, patience=self.plateau_patience)


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
