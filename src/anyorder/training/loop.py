"""One training loop: task loss plus penalty, resumable to the step.

A run is a pure function of its data, its :class:`TrainConfig` and the weights it starts from. Batches depend on
(seed, step) alone and random draws on generators of the loop's own. So a run that is killed and started again in the
same ``workdir`` ends with the weights of an uninterrupted run. The global generator keeps its state.
"""

from __future__ import annotations

import functools
import math
import os
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anyorder.checks import Diverged, InputError, one_of, real_number
from anyorder.data.orderings import random_orderings, reorder
from anyorder.data.sets import SetData
from anyorder.files import locked
from anyorder.penalties import SIRE, AdaptiveWeight
from anyorder.penalties.order_gap import order_gap
from anyorder.recurrences.base import evaluating
from anyorder.recurrences.trajectory import tree_map
from anyorder.training.batches import Deck, generator_of, piece_sizes, pieces, processes, seed_of, summed
from anyorder.training.checkpoint import Checkpoint, own_randomness
from anyorder.training.config import LOSSES, Loss, TrainConfig, TrainResult
from anyorder.training.objective import Batch, Given, has_recurrence, has_ties, task_and_penalty, within_ties
from anyorder.training.predict import matched, placed, predict
from anyorder.training.progress import Journal, Record
from anyorder.training.rules import rules_of

Augment = Callable[[Tensor, Tensor | None, torch.Generator, float], tuple[Tensor, Tensor | None]]

_WEIGHT_EVERY = 10  # steps between two updates of an AdaptiveWeight
_GAP_SETS = 64  # whose order gap is measured


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
    """The history of a training of ``model``, which keeps its best weights.

    Minimises mean task loss + ``penalty_weight`` · penalty.

    Args:
        loss: A name of :data:`LOSSES`, or a callable (outputs, targets) -> a scalar mean or one value a set.
            ``data.weights``, scaled to mean 1, need one value a set. Outputs ``[B, 1]`` meet targets ``[B]`` as
            ``[B]``.
        penalty_weight: A number, a callable of the share of the run done (0 to 1), or an ``AdaptiveWeight``, which
            is updated every ten steps by the order gap of the batch (if no two of its sets have a pair: of fixed
            sets).
        validation: Data whose ``metric(outputs, targets)`` (default: the loss) picks the best epoch. Under an
            ``AdaptiveWeight``, epochs within twice its target order gap come first.
        unlabeled: Sets without targets. The penalty is then taken on batches of its own, from labeled and unlabeled
            sets together.
        augment: ``augment(elements, lengths, generator, share)`` makes the batch to learn from, with as many sets.
            It draws from ``generator`` alone; ``share`` is the share of the run done (0 to 1).
        workdir: Folder of the checkpoint and ``log.jsonl``. The run in this folder is continued; a run with other data
            or settings is refused.
        progress: False shows nothing; None and True show the figures of each epoch on stderr.
        log: Called with the record of each epoch, see :class:`TrainResult`.

    ``config.truncate = w`` truncates backpropagation. The loss is taken after each set's last element, and its
    gradient flows through the last w elements alone. The state that enters them is computed exactly and held
    constant, so earlier elements receive no gradient. The penalty is the mean over all (set, window) pairs with two
    elements or more. Memory does not grow with the length of the sets.

    Data with ``ties`` are shuffled within ties alone, a ``SIRE(ties=True)`` takes its pairs there, and the order gap is
    that of reorderings within ties. Their ``static`` features go to the model.

    Under ``accelerate launch --multi_gpu --num_processes P`` (on the CPU too) or ``torchrun`` the batch is shared among
    the processes and the gradients are summed: the same step as on one process, with subsets drawn by each process.

    >>> import anyorder as ao
    >>> data = SetData.of(torch.rand(32, 4, 1), torch.rand(32))
    >>> result = train(ao.RecurrentSetModel(1, 1, hidden=8), "mse", data, penalty=ao.SIRE(), penalty_weight=1.0,
    ...                config=TrainConfig(epochs=2), progress=False)
    >>> result.steps, len(result.history)
    (2, 2)
    """
    run = _Run(
        model, loss, data, config or TrainConfig(), penalty, penalty_weight, validation, unlabeled, metric, augment
    )
    workdir = None if workdir is None else Path(workdir)
    alone = nullcontext() if workdir is None or run.rank else locked(workdir, workdir / ".lock")
    with alone, own_randomness(run.device, seed_of(run.config.seed, run.rank, 2)):
        return run.go(workdir, progress, log)


@dataclass
class _Run:
    """A run in progress: the arguments of :func:`train` and all that changes."""

    model: nn.Module
    loss: Any
    data: SetData
    config: TrainConfig
    penalty: Any
    penalty_weight: Any
    validation: SetData | None
    unlabeled: SetData | None  # from set-up on together with the labeled sets
    metric: Callable[[Tensor, Tensor], float] | None
    augment: Augment | None

    def __post_init__(self) -> None:
        config, model = self.config, self.model
        if not callable(self.loss):
            one_of("loss", self.loss, LOSSES)
        if not callable(self.penalty_weight) and not isinstance(self.penalty_weight, AdaptiveWeight):
            self.penalty_weight = real_number("penalty_weight", self.penalty_weight, at_least=0)
        here = processes(config.device)
        self.rank, self.world = here.process_index, here.num_processes
        self.compares_sets = getattr(self.penalty, "compares_sets", False)
        for rule, holds in rules_of(self):
            if not holds:
                raise InputError(rule)
        self.device = here.device if config.device == "auto" else torch.device(config.device)
        model.to(self.device)
        if self.world > 1:  # all start from the first one's weights
            for value in model.state_dict().values():
                dist.broadcast(value, 0)
        self.data = placed(self.data, model)
        self.validation = None if self.validation is None else placed(self.validation, model)
        self.deck = Deck(len(self.data), config.batch_size, seed_of(config.seed, 0), self.device)
        if self.unlabeled is not None:
            one, other = self.data, placed(self.unlabeled, model)
            offsets = torch.cat([one.offsets, one.offsets[-1] + other.offsets[1:]])
            ties = None if one.ties is None or other.ties is None else torch.cat([one.ties, other.ties])
            self.unlabeled = SetData(torch.cat([one.elements, other.elements]), offsets, ties=ties)
            self.penalty_deck = Deck(len(self.unlabeled), config.batch_size, seed_of(config.seed, 1), self.device)
        self.loss_of: Any = LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        uniform = config.shuffle and config.shuffle_within is None and self.data.ties is None
        if uniform and self.unlabeled is None and isinstance(self.penalty, SIRE) and has_recurrence(model):
            self.penalty = self.penalty.of_shuffled(model.recurrence)  # type: ignore[arg-type]
        self.total_steps = config.epochs * self.deck.batches
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = config.make_optimizer(self.parameters)
        self.schedule = config.make_schedule(self.optimizer, self.total_steps, validated=self.validation is not None)
        precision = config.mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        self.precision = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.orderings = generator_of(self.device, config.seed, self.rank, 0)
        self.draws = generator_of(self.device, config.seed, self.rank, 1)
        self.result = TrainResult()
        self.best: dict[str, Tensor] | None = None
        # Of this epoch: the loss over sets, the penalties over steps, and how many steps had a penalty.
        self.sums = torch.zeros(3, dtype=torch.float64, device=self.device)

    @property
    def epochs_without_progress(self) -> int:
        return len(self.result.history) - 1 - (self.result.best_epoch or 0)

    @property
    def finished(self) -> bool:
        return self.result.stopped != "finished" or len(self.result.history) == self.config.epochs

    def step(self) -> None:
        steps = self.result.steps
        weight = self.weight()
        index, share = self._my_part(self.deck.batch(steps))
        batch = Batch.of(self.data, index)
        if self.config.shuffle:
            size, within = batch.elements.shape[1], self.config.shuffle_within
            draws = self.orderings
            fresh = random_orderings(batch.sizes, size, generator=draws, within=within, ties=batch.ties)[:, 0]
            batch = batch._replace(elements=reorder(batch.elements, fresh))
        batch = self._augmented(batch)
        penalty_on, penalty_share = None, share
        if weight and self.unlabeled is not None:
            part, penalty_share = self._my_part(self.penalty_deck.batch(steps))
            penalty_on = self._augmented(Batch.of(self.unlabeled, part))
        if weight:
            penalty_share = self._penalty_share(penalty_on or batch, penalty_share)
        self.optimizer.zero_grad()
        if self.config.truncate is None:
            loss, penalty = self._backward(batch, index, share, weight * penalty_share, penalty_on)
        else:
            loss, penalty = self._window_by_window(batch, 0.0 if penalty_on else weight * penalty_share, index, share)
            if penalty_on:
                _, penalty = self._window_by_window(penalty_on, weight * penalty_share, None, 0.0)
        self._update()
        self.sums[0] += loss * (len(index) if share else 0)
        if weight:
            self.sums[1] += penalty * penalty_share
            self.sums[2] += 1
        self.result.steps += 1
        if isinstance(self.penalty_weight, AdaptiveWeight) and steps % _WEIGHT_EVERY == 0:
            gap = self._gap(penalty_on or batch, self.draws)
            known = torch.tensor([gap or 0.0, gap is not None], dtype=torch.float64, device=self.device)
            total, count = summed(known).tolist()
            gap = total / count if count else self._gap_of_fixed_sets()
            if gap is not None and not math.isnan(gap):  # of a NaN the end of the epoch will tell
                self.penalty_weight.update(gap)

    def weight(self) -> float:
        """The penalty weight of the next step."""
        if isinstance(self.penalty_weight, AdaptiveWeight):
            return self.penalty_weight.weight
        if callable(self.penalty_weight):
            share = self.result.steps / self.total_steps
            return real_number("penalty_weight", self.penalty_weight(share), at_least=0)
        return self.penalty_weight

    def _augmented(self, batch: Batch) -> Batch:
        if self.augment is None:
            return batch
        elements, lengths = self.augment(*batch[:2], self.orderings, self.result.steps / self.total_steps)
        if len(elements) != len(batch.elements):
            raise InputError(f"augment must keep the {len(batch.elements)} sets of a batch; got {len(elements)}")
        return batch._replace(elements=elements, lengths=lengths)

    def _backward(
        self, batch: Batch, index: Tensor, share: float, weight: float, penalty_on: Batch | None
    ) -> tuple[Tensor, Tensor]:
        """Task loss and penalty (0 at weight 0), once their gradients are added."""
        with self._autocast():
            penalty_of = self.penalty if weight else None
            output, penalty = task_and_penalty(self.model, penalty_of, batch, self.draws, penalty_on)
            loss = self._task_loss(output, self.data, index)
        total = loss * share
        if weight:
            total = total + weight * penalty
        self.scaler.scale(total).backward()
        return loss.detach(), penalty.detach()

    def _window_by_window(
        self, batch: Batch, weight: float, index: Tensor | None, share: float
    ) -> tuple[Tensor, Tensor]:
        """The same by truncated backpropagation; no loss without ``index``.

        Each window's graph is freed before the next is scanned. Penalised windows run in full precision.
        """
        model: Any = self.model
        assert self.config.truncate is not None
        loss, mean = torch.zeros(2, device=self.device)
        pairs = self._all_pairs(batch) if weight else 0
        state, begun = None, torch.zeros(len(batch.elements), dtype=torch.bool, device=self.device)
        for elements, lengths, is_last in pieces(*batch[:2], self.config.truncate):
            total: Any = None
            ends = is_last and index is not None
            with torch.set_grad_enabled(bool(weight) or ends), nullcontext() if weight else self._autocast():
                start = model.recurrence.start(len(elements))  # its gradient flows where nothing was read before
                state = start if state is None else tree_map(functools.partial(_where, begun), state, start)
                encoded = model.encode(elements, lengths)
                trajectory = model.recurrence.scan_encoded(encoded, lengths, state=state, last_alone=not weight)
                if weight and (here := self._pairs(lengths)) > 0:
                    penalty = self.penalty(trajectory, generator=self.draws) * (here / pairs)
                    mean = mean + penalty.detach()
                    total = weight * penalty
                if ends:
                    given = () if batch.static is None else (batch.static,)
                    output = model.readout(trajectory.last, *given)
                    loss = self._task_loss(output, self.data, index)  # type: ignore[arg-type]
                    total = loss * share if total is None else total + loss * share
            if total is not None:
                self.scaler.scale(total).backward()
            state, begun = tree_map(torch.detach, trajectory.last), begun | (lengths > 0)
            trajectory = penalty = total = None  # free this window's states before the next is scanned
        return loss.detach(), mean

    def _update(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is None:  # unused by this batch, say of empty sets: 0, as on several processes
                parameter.grad = torch.zeros_like(parameter)
        if self.world > 1:
            grads: list[Tensor] = [p.grad for p in self.parameters]  # type: ignore[misc]
            sums = summed(torch.cat([g.flatten() for g in grads]))  # one message
            for grad, total in zip(grads, sums.split([g.numel() for g in grads]), strict=True):
                grad.copy_(total.view_as(grad))
        self.scaler.unscale_(self.optimizer)
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.config.schedule == "one-cycle":
            self.schedule.step()

    def _task_loss(self, output: Tensor, data: SetData, index: Tensor | slice) -> Tensor:
        """The mean loss of outputs, weighted as their sets are; a loss that is a mean cannot be."""
        targets: Tensor = data.targets[index]  # type: ignore[index]
        value = self.loss_of(*matched(output, targets))
        if data.weights is not None and value.dim():
            value = value.reshape(len(output), -1).mean(1) * data.weights[index]
        elif data.weights is not None and data is self.data:
            raise InputError("loss must return one value a set with data.weights; got a scalar (reduction='none')")
        return value.mean()

    def _my_part(self, index: Tensor) -> tuple[Tensor, float]:
        """This process's sets of a global batch, and its share of the batch's mean."""
        mine = index.tensor_split(self.world)[self.rank]
        if len(mine) == 0:  # fewer sets than processes: take part without counting
            return index[:1], 0.0
        return mine, len(mine) / len(index)

    def _pairs(self, sizes: Tensor) -> Tensor:
        """How many sets of a window, ``sizes [..., B]``, have a pair; none of one that has nothing to compare with."""
        pairs = (sizes >= 2).sum(-1)
        return pairs * ((sizes > 0).sum(-1) >= 2) if self.compares_sets else pairs

    def _all_pairs(self, batch: Batch) -> Tensor:
        """How many (set, window) pairs of a batch are penalised."""
        sizes = piece_sizes(*batch[:2], self.config.truncate)
        if within_ties(self.penalty) and self.penalty.window is None:
            sizes = [torch.where(has_ties(batch), sizes[0], sizes[0].clamp(max=1))]
        return self._pairs(torch.stack(sizes)).sum()

    def _penalty_share(self, batch: Batch, share: float) -> float:
        """This process's share of the mean penalty of the global batch."""
        if self.world == 1:
            return float(self._all_pairs(batch) > 0) if self.compares_sets else 1.0
        mine = self._all_pairs(batch) * (share > 0)
        return float(mine / summed(mine.clone()).clamp(min=1))

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.precision is None else torch.autocast(self.device.type, self.precision)

    def _gap(self, batch: Batch, draws: torch.Generator) -> float | None:
        """The order gap of a batch's first sets, within ties if there are; None if no two of them have a pair.

        With ``config.truncate`` no more elements are read than in a step, but two sets at least.
        """
        config, count = self.config, _GAP_SETS
        if config.truncate is not None:
            count = max(2, min(count, config.batch_size * config.truncate // max(1, batch.elements.shape[1])))
        batch = Batch(*(None if part is None else part[:count] for part in batch))  # type: ignore[arg-type]
        movable = batch.sizes >= 2 if batch.ties is None else has_ties(batch)
        if int(movable.sum()) < 2:
            return None
        model = self.model if batch.static is None else Given(self.model, batch.static)
        with evaluating(model):
            return float(order_gap(model, *batch[:2], ties=batch.ties, generator=draws))

    def _gap_of_fixed_sets(self) -> float | None:
        """The order gap of the same sets by the same draws each time; None where order is no question."""
        if not has_recurrence(self.model) or getattr(self.model, "invariant", False):
            return None
        data = self.validation or self.data
        fixed = Batch.of(data, torch.arange(min(_GAP_SETS, len(data)), device=self.device))
        return self._gap(fixed, generator_of(self.device, self.config.seed, 3))

    def go(self, workdir: Path | None, progress: bool | None, log: Callable[[Record], None] | None) -> TrainResult:
        """Train until the end, from the checkpoint in ``workdir`` if there is one."""
        checkpoint = None if workdir is None else Checkpoint(self, workdir)
        if checkpoint is not None:
            checkpoint.resume()
        result, journal = self.result, Journal(self, workdir, progress is not False, log)
        clock = time.monotonic() - result.seconds
        with closing(journal), checkpoint or nullcontext():
            while not self.finished:
                self.model.train()
                while result.steps < self.deck.batches * (len(result.history) + 1):
                    self.step()
                    result.seconds = time.monotonic() - clock
                    if checkpoint is not None:
                        checkpoint.write_if_due()
                record = self._end_epoch()
                result.seconds = time.monotonic() - clock
                journal.epoch(record)
                if checkpoint is not None:
                    checkpoint.write_if_due()
        if self.best is not None:
            self.model.load_state_dict(self.best)
        self.model.eval()
        return result

    def _end_epoch(self) -> Record:
        config, result = self.config, self.result
        loss, penalty, penalised = summed(self.sums.clone()).tolist()
        self.sums.zero_()
        loss /= len(self.data)
        epoch = len(result.history)
        seconds = result.seconds - sum(record["seconds"] for record in result.history)
        due = config.gap_every and (epoch + 1) % config.gap_every == 0
        record = {
            "epoch": epoch,
            "step": result.steps,
            "loss": loss,
            "penalty": penalty * self.world / penalised if penalised else None,
            "penalty_weight": self.weight() if self.penalty is not None else None,
            "gap": self._gap_of_fixed_sets() if due else None,
            "validation": self._validate(),
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "samples_per_second": len(self.data) / max(seconds, 1e-9),
            "seconds": seconds,
        }
        result.history.append(record)
        if not math.isfinite(loss):
            self._diverged("loss", loss)
            return record
        validation = record["validation"]
        if validation is not None and math.isfinite(validation) and self._is_best(record):
            result.best_epoch, result.best_validation = epoch, validation
            self.best = {name: value.clone() for name, value in self.model.state_dict().items()}
        if config.schedule == "plateau":
            self.schedule.step(loss if validation is None else validation)
        if config.patience is not None and self.epochs_without_progress >= config.patience:
            result.stopped = "patience"
        if self.finished and validation is not None and self.best is None:
            self._diverged("validation metric", validation)
        return record

    def _diverged(self, what: str, value: float) -> None:
        """Stop with the best weights, or with an error if there are none."""
        epoch = len(self.result.history) - 1
        message = f"the {what} is {value} in epoch {epoch}; lower learning_rate or penalty_weight"
        if self.best is None:
            raise Diverged(f"training diverged: {message}")
        kept = f"the weights of epoch {self.result.best_epoch} are kept"
        warnings.warn(f"training stopped: {message} ({kept})", stacklevel=2)
        self.result.stopped = "diverged"

    def _is_best(self, record: Record) -> bool:
        """Whether an epoch is better than the best before it.

        Under an ``AdaptiveWeight`` a gap nearer to its target comes first; all gaps within twice the target are alike.
        """

        def rank(record: Record) -> tuple[float, float]:
            gap = 0.0
            if isinstance(self.penalty_weight, AdaptiveWeight):
                gap = max(math.inf if record["gap"] is None else record["gap"], 2 * self.penalty_weight.target)
            return gap, -record["validation"] if self.config.maximize else record["validation"]

        best = self.result.best_epoch
        return best is None or rank(record) < rank(self.result.history[best])

    def _validate(self) -> float | None:
        """The validation metric, always in full precision."""
        if self.validation is None:
            return None
        outputs = self._outputs(self.validation).float()
        if self.metric is None:
            return float(self._task_loss(outputs, self.validation, slice(None)))
        return float(self.metric(*matched(outputs, self.validation.targets)))  # type: ignore[arg-type]

    def _outputs(self, data: SetData) -> Tensor:
        mine = torch.arange(len(data), device=self.device).tensor_split(self.world)[self.rank]
        part = predict(self.model, data.select(mine if len(mine) else [0]))
        whole = part.new_zeros(len(data), *part.shape[1:])
        whole[mine] = part[: len(mine)]
        return summed(whole)


def _where(rows: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *[1] * (one.dim() - 1)), one, other)
