"""One training loop: task loss plus penalty, on one process or many, resumable to the step.

A run is a pure function of its data, its :class:`TrainConfig` and the weights it starts from. Batches depend on
(seed, step) alone, random draws on generators of the loop's own, so a run that is killed and started again in the
same ``workdir`` ends with the weights of one that was not. The global generator is left as it was found.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.utils import broadcast, reduce
from torch import Tensor, nn

from anyorder.checks import Diverged, InputError, InputTypeError, one_of, real_number
from anyorder.data.orderings import reorder
from anyorder.data.sets import SetData
from anyorder.penalties import AdaptiveWeight
from anyorder.recurrences.trajectory import tree_map
from anyorder.training.batches import Deck, generator_of, mean_one, piece_sizes, pieces, processes, seed_of, together
from anyorder.training.checkpoint import Checkpoint, own_randomness
from anyorder.training.config import LOSSES, OPTIMIZERS, Loss, TrainConfig, TrainResult
from anyorder.training.gap_meter import Batch, GapMeter, has_recurrence
from anyorder.training.predict import matched, orderings_of, parameter_of, placed, predict_shared
from anyorder.training.processor import denormals_flushed, threads_for
from anyorder.training.progress import Journal, Record, Silent, display

__all__ = ["LOSSES", "OPTIMIZERS", "Objective", "TrainConfig", "TrainResult", "reads_in_windows", "train"]

Augment = Callable[[Tensor, Tensor | None, torch.Generator, float], Batch]

_BUDGET_EVERY = 10  # steps between two looks at the gap by an AdaptiveWeight


class Objective(nn.Module):
    """Task output and penalty in one forward, the module to wrap for data parallelism or compilation.

    ``forward(elements [B, T, D], lengths, generator, penalty_on) -> (output [B, K], penalty scalar)``. The
    penalty reuses the pass's own trajectory; with ``penalty_on = (elements, lengths)`` it is taken on those
    (unlabeled) samples instead. Under autocast its own steps are in full precision, since two nearly equal states
    cannot be told apart in bfloat16; where the pass kept its states in bfloat16 too, they are computed anew.

    >>> import anyorder as ao
    >>> objective = Objective(ao.RecurrentSetModel(3, 1), ao.SIRE())
    >>> output, penalty = objective(torch.randn(4, 5, 3))
    >>> output.shape, penalty.shape
    (torch.Size([4, 1]), torch.Size([]))
    """

    def __init__(self, model: nn.Module, penalty: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.model = model
        self.penalty = penalty
        self._reuses = "return_trajectory" in inspect.signature(model.forward).parameters

    def forward(
        self,
        elements: Tensor,
        lengths: Tensor | None = None,
        generator: torch.Generator | None = None,
        penalty_on: Batch | None = None,
    ) -> tuple[Tensor, Tensor]:
        if self.penalty is None:
            return self.model(elements, lengths), elements.new_zeros((), dtype=torch.float32)
        device = elements.device.type
        mixed = torch.is_autocast_enabled(device)
        trajectory = None
        if penalty_on is None and self._reuses:
            output, trajectory = self.model(elements, lengths, return_trajectory=True)
        else:
            output = self.model(elements, lengths)
        with torch.autocast(device, enabled=False) if mixed else nullcontext():
            if trajectory is not None and not (mixed and trajectory.in_half_precision):
                return output, self.penalty(trajectory, generator=generator)
            batch = (elements, lengths) if penalty_on is None else penalty_on
            return output, self.penalty(self.model, *batch, generator=generator)


def train(
    model: nn.Module,
    loss: str | Loss,
    data: SetData,
    *,
    config: TrainConfig | None = None,
    penalty: Callable[..., Tensor] | None = None,
    penalty_weight: float | Callable[[float], float] | AdaptiveWeight = 0.0,
    validation: SetData | None = None,
    unlabeled: SetData | None = None,
    metric: Callable[[Tensor, Tensor], float] | None = None,
    augment: Augment | None = None,
    workdir: str | Path | None = None,
    progress: bool | None = None,
    log: Callable[[Record], None] | None = None,
) -> TrainResult:
    """Minimise mean task loss + ``penalty_weight`` · penalty, and leave the best weights in ``model``.

    ``loss``: a name of :data:`LOSSES` or a callable (outputs, targets) -> a scalar mean or one value a sample
    (needed with ``data.weights``, which are scaled to mean 1). Outputs ``[B, 1]`` meet targets ``[B]`` as ``[B]``.
    ``penalty_weight``: a number, a callable of the share done (0 to 1), or an ``AdaptiveWeight``, which looks at
    the order gap of the batch every ten steps (of ``gap_samples`` fixed samples where the batch has no two sets
    with a pair). A batch or window of one sample has no penalty if this compares samples. ``unlabeled``: the
    penalty is taken on batches of its own, drawn from labeled and unlabeled samples together. ``validation`` with
    ``metric(outputs, targets)`` (default: the loss, by the weights given) picks the best epoch (of
    an ``AdaptiveWeight``: among those whose order gap is within twice its target, if there are).
    ``augment(elements, lengths, generator, share)`` makes the batch that is learnt from, of as many samples, out of the
    one drawn; it draws from ``generator`` alone, and ``share`` is that done of the run (0 to 1). ``workdir``:
    checkpoints and ``log.jsonl``; a run found there is continued (one on other data or with other settings is
    refused), a finished one returned at once. ``progress``: None shows a bar on a terminal and lines elsewhere.

    ``config.truncate = w`` truncates backpropagation. The loss is taken after each sample's last element, and its
    gradient flows through the last w elements alone: the state that enters them is computed exactly but held
    constant, so nothing before hears of the loss (a learned start state does, from samples of at most w elements).
    What comes before is scanned w elements at a time, the state passed on without gradient. The penalty is the mean
    over all (sample, window) pairs with two elements or more, its gradient confined to the window. One optimiser
    step a batch, whose memory does not grow with the length; the order gap is measured on fewer samples where they are
    longer, and validation on batches of at most 2¹⁷ elements.

    Under ``accelerate launch --multi_gpu --num_processes P`` (on the CPU too) or ``torchrun`` the batch is shared among
    the processes and the gradients summed: the same step as one process takes, except that each draws its own subsets.

    >>> import anyorder as ao
    >>> data = SetData.of(torch.rand(32, 4, 1), torch.rand(32))
    >>> result = train(ao.RecurrentSetModel(1, 1, hidden=8), "mse", data, penalty=ao.SIRE(), penalty_weight=1.0,
    ...                config=TrainConfig(epochs=2), progress=False)
    >>> result.steps, len(result.history)
    (2, 2)
    """
    config = config or TrainConfig()
    if not callable(loss):
        one_of("loss", loss, LOSSES)
    _check_data(data, validation, unlabeled)
    if loss == "cross-entropy":
        data = _with_class_numbers("data", data, model)
        validation = None if validation is None else _with_class_numbers("validation", validation, model)
    if validation is None and (config.patience is not None or metric is not None):
        raise InputError("patience and metric need validation data; got validation=None")
    if penalty is not None and (isinstance(penalty, type) or not callable(penalty)):
        raise InputTypeError(f"penalty must be a penalty, such as anyorder.SIRE(), or a callable; got {penalty!r}")
    if penalty is None and (unlabeled is not None or penalty_weight != 0.0):
        raise InputError("penalty_weight and unlabeled serve a penalty; got penalty=None (anyorder.SIRE() is one)")
    if config.truncate is not None and not reads_in_windows(model):
        raise InputError(f"truncate needs a recurrent model (RecurrentSetModel); got {type(model).__name__}")
    if augment is not None and not callable(augment):
        raise InputTypeError(f"augment must be a callable of elements, lengths, generator and share; got {augment!r}")
    run = _Run(model, loss, data, config, penalty, penalty_weight, validation, unlabeled, metric, augment)
    work = min(config.batch_size, len(data)) * sum(p.numel() for p in run.parameters)
    randomness = own_randomness(run.device, seed_of(config.seed, run.rank, 2))
    with randomness, threads_for(work, run.device), denormals_flushed():
        return run.go(None if workdir is None else _folder(workdir), progress, log)


def _folder(workdir: str | Path) -> Path:
    if Path(workdir).exists() and not Path(workdir).is_dir():
        raise InputError(f"workdir must be a folder; {workdir} is a file")
    return Path(workdir)


def _check_data(data: SetData, validation: SetData | None, unlabeled: SetData | None) -> None:
    """Refuse data that are none, or do not fit each other."""
    for name, part in {"data": data, "validation": validation, "unlabeled": unlabeled}.items():
        if not isinstance(part, SetData) and (part is not None or name == "data"):
            raise InputTypeError(
                f"{name} must be a SetData (SetData.of makes one from a list of arrays); got {type(part).__name__}"
            )
        if part is not None and part.weights is not None and part.weights.dim() != 1:
            raise InputError(f"{name}.weights must be one number a sample; got shape {list(part.weights.shape)}")
    if data.targets is None:
        raise InputError("data must have targets; got a SetData without (put those samples in unlabeled)")
    if validation is not None and validation.targets is None:
        raise InputError("validation must have targets; got a SetData without")
    for name, part in {"validation": validation, "unlabeled": unlabeled}.items():
        if part is not None and part.elements.shape[1] != data.elements.shape[1]:
            raise InputError(
                f"{name} must have the {data.elements.shape[1]} features of data; got {part.elements.shape[1]}"
            )


def _with_class_numbers(name: str, data: SetData, model: nn.Module) -> SetData:
    """``data`` with its targets as int64, once each is known to be a class that the model has an output for."""
    targets = data.targets
    if targets is None:
        return data
    outputs = getattr(model, "out_features", None)
    if targets.dim() > 1:  # shares of the classes
        if isinstance(outputs, int) and list(targets.shape[1:]) != [outputs]:
            raise InputError(
                f"cross-entropy takes class numbers [N], or shares of the {outputs} classes [N, {outputs}]; "
                f"{name}.targets are {list(targets.shape)}"
            )
        return data if targets.is_floating_point() else dataclasses.replace(data, targets=targets.float())
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise InputTypeError(f"cross-entropy takes class numbers (int64); {name}.targets are {targets.dtype}")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or (isinstance(outputs, int) and high >= outputs):
        last = "" if outputs is None else f" to {outputs - 1}, one an output of the model"
        raise InputError(
            f"cross-entropy takes class numbers from 0{last}; {name}.targets hold {low if low < 0 else high}"
        )
    return dataclasses.replace(data, targets=targets.to(torch.int64))


class _Run:
    """A run in progress: everything that changes while it goes, how to take a step, and how to write it down."""

    def __init__(
        self,
        model: nn.Module,
        loss: str | Loss,
        data: SetData,
        config: TrainConfig,
        penalty: Callable[..., Tensor] | None,
        penalty_weight: float | Callable[[float], float] | AdaptiveWeight,
        validation: SetData | None,
        unlabeled: SetData | None,
        metric: Callable[[Tensor, Tensor], float] | None,
        augment: Augment | None,
    ) -> None:
        here = processes(config.device)
        self.rank, self.world = here.process_index, here.num_processes
        self.device = here.device if config.device == "auto" else _device(config.device)
        self.config, self.model, self.metric, self.augment = config, model.to(self.device), metric, augment
        self.loss: Loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.loss_name = loss if isinstance(loss, str) else getattr(loss, "__qualname__", type(loss).__name__)
        if self.world > 1:  # all start from the first one's weights
            broadcast(list(model.state_dict().values()))
        like = parameter_of(model)
        self.data = placed(data, like)
        self.validation = None if validation is None else placed(validation, like)
        if self.data.weights is not None:
            weights = mean_one(self.data.weights.to(like.dtype), "data.weights")
            self.data = dataclasses.replace(self.data, weights=weights)
        self.validation_weights = None
        if self.validation is not None and self.validation.weights is not None and metric is None:
            self.validation_weights = mean_one(self.validation.weights.to(like.dtype), "validation.weights")
        self.penalty, self.weight = penalty, penalty_weight
        if not callable(penalty_weight) and not isinstance(penalty_weight, AdaptiveWeight):
            self.weight = real_number("penalty_weight", penalty_weight, at_least=0)
        self.plain, self.objective = Objective(model), Objective(model, penalty)
        self.deck = Deck(len(data), config.batch_size, seed_of(config.seed, 0), self.device)
        self.penalty_data = None if unlabeled is None else together(self.data, placed(unlabeled, like))
        if self.penalty_data is not None:
            self.penalty_deck = Deck(len(self.penalty_data), config.batch_size, seed_of(config.seed, 1), self.device)
        self.needs_mates = getattr(penalty, "compares_sets", False)
        samples = min(len(self.penalty_data or data), config.batch_size)
        if self.needs_mates and samples <= self.world:
            raise InputError(
                "a penalty with relative=True or partners='batch' compares the samples of a batch, and no process gets "
                f"two: batch_size is {config.batch_size}, of {len(self.penalty_data or data)} samples, on {self.world} "
                "process(es) (raise batch_size, or use a penalty without)"
            )
        self.total_steps = config.epochs * self.deck.batches
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = config.make_optimizer(self.parameters)
        self.schedule = config.make_schedule(self.optimizer, self.total_steps, validated=self.validation is not None)
        precision = config.mixed_precision or accelerate.utils.parse_choice_from_env("ACCELERATE_MIXED_PRECISION", "no")
        self.precision = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.orderings = generator_of(self.device, config.seed, self.rank, 0)
        self.draws = generator_of(self.device, config.seed, self.rank, 1)
        self.gaps = GapMeter(self.model, self.validation or self.data, config, self.device, self.world)
        self.result = TrainResult()
        self.finished = False
        self.best: dict[str, Tensor] | None = None
        self.sums = torch.zeros(
            2, dtype=torch.float64, device=self.device
        )  # of the loss over samples and of the penalty over steps
        self.penalised = 0  # steps of this epoch that had a penalty
        self.epoch_started = 0.0

    def step(self) -> None:
        steps = self.result.steps
        weight = self.penalty_weight()
        index, share = self._my_part(self.deck.batch(steps))
        batch = self.data.batch(index)
        if self.config.shuffle:
            fresh = orderings_of(*batch, 1, self.orderings, self.config.shuffle_within)[:, 0]
            batch = reorder(batch[0], fresh), batch[1]
        batch = self._augmented(batch)
        penalty_on, penalty_share = None, share
        if weight and self.penalty_data is not None:
            part, penalty_share = self._my_part(self.penalty_deck.batch(steps))
            penalty_on = self._augmented(self.penalty_data.batch(part))
        if weight:
            penalty_share = self._penalty_share(penalty_on or batch, penalty_share)
        self.optimizer.zero_grad()
        backward = self._backward if self.config.truncate is None else self._backward_in_windows
        loss, penalty = backward(batch, index, share, weight * penalty_share, penalty_on)
        self._update()
        self.sums[0] += loss * (len(index) if share else 0)
        if weight:
            self.sums[1] += penalty * penalty_share
            self.penalised += 1
        self.result.steps += 1
        if isinstance(self.weight, AdaptiveWeight) and steps % _BUDGET_EVERY == 0:
            gap = self.gaps.of_batch(penalty_on or batch, self.draws)
            if not math.isnan(gap):  # nothing to measure, or a loss that the end of the epoch finds to be NaN
                self.weight.update(gap)

    def _augmented(self, batch: Batch) -> Batch:
        if self.augment is None:
            return batch
        elements, lengths = self.augment(*batch, self.orderings, self.result.steps / self.total_steps)
        if len(elements) != len(batch[0]):
            raise InputError(f"augment must keep the {len(batch[0])} samples of a batch; it made {len(elements)}")
        return elements, lengths

    def _backward(
        self, batch: Batch, index: Tensor, share: float, weight: float, penalty_on: Batch | None
    ) -> tuple[Tensor, Tensor]:
        """Add the gradients of the weighted sum; returns task loss and penalty (0 at weight 0)."""
        objective = self.objective if weight else self.plain
        with self._autocast():
            output, penalty = objective(*batch, self.draws, penalty_on)
            loss = self._task_loss(output, index)
        total = loss * share if self.world > 1 else loss
        if weight:
            total = total + weight * penalty
        self.scaler.scale(total).backward()
        return loss.detach(), penalty.detach()

    def _backward_in_windows(
        self, batch: Batch, index: Tensor, share: float, weight: float, penalty_on: Batch | None
    ) -> tuple[Tensor, Tensor]:
        """The same by truncated backpropagation."""
        if penalty_on is None:
            return self._window_by_window(batch, weight, index, share)
        loss, _ = self._window_by_window(batch, 0.0, index, share)
        return loss, self._window_by_window(penalty_on, weight, None, 0.0)[1]

    def _window_by_window(
        self, batch: Batch, weight: float, index: Tensor | None, share: float
    ) -> tuple[Tensor, Tensor]:
        """Penalise every window, and take the loss at the end if ``index`` is given.

        Each window's graph is freed before the next is scanned. Penalised windows run in full precision.
        """
        model: Any = self.model
        assert self.config.truncate is not None
        loss, mean = torch.zeros(2, device=self.device)
        pairs = self._pairs(batch).clamp(min=1) if weight else 1
        state, begun = None, torch.zeros(len(batch[0]), dtype=torch.bool, device=self.device)
        for elements, lengths, is_last in pieces(*batch, self.config.truncate):
            total: Any = None
            ends = is_last and index is not None
            with torch.set_grad_enabled(bool(weight) or ends), nullcontext() if weight else self._autocast():
                start = model.recurrence.start(len(elements))  # where nothing was read yet, its gradient flows
                state = start if state is None else tree_map(functools.partial(_where, begun), state, start)
                encoded = model.encode(elements, lengths)
                trajectory = model.recurrence.scan_encoded(encoded, lengths, state=state, last_alone=not weight)
                if weight and self._has_mates(lengths):
                    penalty = self.objective.penalty(trajectory, generator=self.draws)  # type: ignore[misc]
                    penalty = penalty * ((lengths >= 2).sum() / pairs)
                    mean = mean + penalty.detach()
                    total = weight * penalty
                if ends:
                    loss = self._task_loss(model.readout(trajectory.last), index)  # type: ignore[arg-type]
                    total = loss * share if total is None else total + loss * share
            if total is not None:
                self.scaler.scale(total).backward()
            state, begun = tree_map(torch.detach, trajectory.last), begun | (lengths > 0)
            trajectory = penalty = total = None  # lets go of this window's states before the next is scanned
        return loss.detach(), mean

    def _update(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is None:  # untouched by this batch, say of empty sets: 0, as on several processes
                parameter.grad = torch.zeros_like(parameter)
        if self.world > 1:
            _sum_gradients(self.parameters)
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.config.schedule == "one-cycle":
            self.schedule.step()

    def _task_loss(self, output: Tensor, index: Tensor) -> Tensor:
        assert self.data.targets is not None
        targets = self.data.targets[index]
        value = self.loss(*matched(output, targets))
        if self.data.weights is not None:
            if value.dim() == 0:
                raise InputError(
                    "with weights the loss must return one value a sample; got a scalar (reduction='none')"
                )
            value = value.reshape(len(index), -1).mean(1) * self.data.weights[index]
        return value.mean()

    def penalty_weight(self) -> float:
        """The weight of the next step."""
        if isinstance(self.weight, AdaptiveWeight):
            return self.weight.weight
        if callable(self.weight):
            share = self.result.steps / self.total_steps
            return real_number(f"penalty_weight({share:.4g})", self.weight(share), at_least=0)
        return self.weight

    def _my_part(self, index: Tensor) -> tuple[Tensor, float]:
        """This process's samples of a global batch, and its share of the batch's mean."""
        if self.world == 1:
            return index, 1.0
        mine = index.tensor_split(self.world)[self.rank]
        if len(mine) == 0:  # fewer samples than processes: take part without counting
            return index[:1], 0.0
        return mine, len(mine) / len(index)

    def _pairs(self, batch: Batch) -> Tensor:
        """How many (sample, window) pairs of a batch hold two elements or more, and so have a penalty."""
        windows = [sizes for sizes in piece_sizes(*batch, self.config.truncate) if self._has_mates(sizes)]
        return torch.stack([(sizes >= 2).sum() for sizes in windows] or [torch.tensor(0, device=self.device)]).sum()

    def _has_mates(self, lengths: Tensor) -> bool:
        """Whether the penalty finds in samples of these lengths the others it compares each with."""
        return not self.needs_mates or int((lengths > 0).sum()) >= 2

    def _penalty_share(self, batch: Batch, share: float) -> float:
        """This process's share of the mean penalty of the global batch."""
        if self.world == 1:
            return float(self._pairs(batch) > 0) if self.needs_mates else 1.0
        mine = self._pairs(batch) * (share > 0)
        return float(mine / reduce(mine, "sum").clamp(min=1))

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.precision is None else torch.autocast(self.device.type, self.precision)

    def go(self, workdir: Path | None, progress: bool | None, log: Callable[[Record], None] | None) -> TrainResult:
        """Train until the end, from the checkpoint in ``workdir`` if there is one."""
        checkpoint = None if workdir is None else Checkpoint(self, workdir)
        if checkpoint is not None:
            checkpoint.resume()
        main, result = self.rank == 0, self.result
        shown = display(progress, self.total_steps, result.steps) if main else Silent()
        journal = Journal(
            workdir if main else None, main and self.config.tensorboard, log if main else None, result.history
        )
        clock = time.monotonic() - result.seconds
        try:
            while not self.finished:
                self.model.train()
                while result.steps < self.deck.batches * (len(result.history) + 1):
                    self.step()
                    result.seconds = time.monotonic() - clock
                    shown.step(result.steps)
                    if checkpoint is not None and checkpoint.due():
                        checkpoint.write()
                record = self._end_epoch()
                result.seconds = time.monotonic() - clock
                journal.epoch(record)
                shown.epoch(record)
                if checkpoint is not None and (self.finished or checkpoint.due()):
                    checkpoint.write()
        finally:
            shown.close()
            journal.close()
        if self.world > 1 and progress is not False:
            rate = len(self.data) * len(result.history) / self.world / max(result.seconds, 1e-9)
            print(f"process {self.rank} of {self.world}: {rate:,.0f} samples a second", file=sys.stderr, flush=True)
        if self.best is not None:
            self.model.load_state_dict(self.best)
        self.model.eval()
        return result

    def _end_epoch(self) -> Record:
        config, result = self.config, self.result
        loss, penalty = self._epoch_means()
        epoch = len(result.history)
        seconds = result.seconds - self.epoch_started
        due = config.gap_every and (epoch + 1) % config.gap_every == 0
        gap = self.gaps.of_fixed() if due else None
        validation = self._validate()
        record = {
            "epoch": epoch,
            "step": result.steps,
            "loss": loss,
            "penalty": penalty,
            "penalty_weight": self.penalty_weight() if self.penalty is not None else None,
            "gap": gap,
            "validation": validation,
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "samples_per_second": len(self.data) / max(seconds, 1e-9),
            "seconds": seconds,
        }
        result.history.append(record)
        self.sums.zero_()
        self.penalised, self.epoch_started = 0, result.seconds
        if not math.isfinite(loss):
            return self._diverged(record, "loss", loss)
        if validation is not None and self._is_better(record):
            result.best_epoch, result.best_validation = epoch, validation
            self.best = {name: value.clone() for name, value in self.model.state_dict().items()}
        if config.schedule == "plateau":
            self.schedule.step(loss if validation is None else validation)
        if config.patience is not None and epoch - (result.best_epoch or 0) >= config.patience:
            result.stopped = "patience"
        self.finished = result.stopped != "finished" or epoch + 1 == config.epochs
        if self.finished and validation is not None and self.best is None:
            return self._diverged(record, "validation figure, never finite,", validation)
        return record

    def _diverged(self, record: Record, what: str, value: float) -> Record:
        message = f"the {what} is {value} in epoch {record['epoch']}: lower learning_rate or penalty_weight"
        if self.best is None:
            raise Diverged(f"training diverged, {message}")
        warnings.warn(
            f"training stopped, {message}; the weights of epoch {self.result.best_epoch} are kept", stacklevel=2
        )
        self.result.stopped, self.finished = "diverged", True
        return record

    def _epoch_means(self) -> tuple[float, float | None]:
        sums = torch.cat([self.sums, self.sums.new_tensor([self.penalised])])
        if self.world > 1:
            sums = reduce(sums, "sum")
        loss, penalty, penalised = sums.tolist()
        return loss / len(self.data), penalty * self.world / penalised if penalised else None

    def _is_better(self, record: Record) -> bool:
        """Whether an epoch is kept rather than the best before it.

        Under an ``AdaptiveWeight`` a gap nearer to its target counts first; within twice the target all are alike.
        """
        value, best = record["validation"], self.result.best_validation
        if not math.isfinite(value):
            return False
        if best is None or self.result.best_epoch is None:
            return True
        if isinstance(self.weight, AdaptiveWeight):
            near = 2 * self.weight.target
            gaps = [entry["gap"] for entry in (record, self.result.history[self.result.best_epoch])]
            mine, theirs = (math.inf if gap is None else max(gap, near) for gap in gaps)
            if mine != theirs:
                return mine < theirs
        return value > best if self.config.maximize else value < best

    def _validate(self) -> float | None:
        if self.validation is None:
            return None
        assert self.validation.targets is not None
        # In full precision whatever the training is in: that is how the model will be used.
        outputs = predict_shared(self.model, self.validation, self.rank, self.world).float()
        outputs, targets = matched(outputs, self.validation.targets)
        if self.metric is not None:
            return float(self.metric(outputs, targets))
        value = self.loss(outputs, targets)
        if self.validation_weights is not None and value.dim():
            value = value.reshape(len(value), -1).mean(1) * self.validation_weights
        return float(value.mean())


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"device must be 'auto' or one torch has here, such as 'cpu'; got {name!r}: {reason}"
        ) from None
    return device


def reads_in_windows(model: nn.Module) -> bool:
    """Whether a model can be trained by truncated backpropagation: it encodes, scans and reads out."""
    return has_recurrence(model) and hasattr(getattr(model, "inner", model), "readout")


def _where(rows: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *[1] * (one.dim() - 1)), one, other)


def _sum_gradients(parameters: list[nn.Parameter]) -> None:
    """Sum the gradients over the processes, as one message."""
    grads: list[Tensor] = [p.grad for p in parameters]  # type: ignore[misc]
    flat = reduce(torch.cat([g.flatten() for g in grads]), "sum")
    for grad, total in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(total.view_as(grad))
