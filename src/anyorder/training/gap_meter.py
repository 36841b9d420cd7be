"""The order gap of a model while it learns."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from accelerate.utils import reduce
from torch import Tensor, nn

from anyorder.data.sets import SetData
from anyorder.penalties.order_gap import order_gap
from anyorder.recurrences.base import Recurrence
from anyorder.training.batches import generator_of, piece_sizes
from anyorder.training.config import TrainConfig

Batch = tuple[Tensor, Tensor | None]


class GapMeter:
    """Measures the order gap in eval mode: of ``config.gap_samples`` fixed samples of ``data``, or of a batch.

    With ``config.truncate`` so many samples are taken that they hold no more elements than a step reads, two at least.
    """

    def __init__(self, model: nn.Module, data: SetData, config: TrainConfig, device: torch.device, world: int) -> None:
        self.model, self.data, self.config, self.device, self.world = model, data, config, device, world

    def of_fixed(self) -> float | None:
        """The gap of the fixed samples, always by the same draws; None where there is none to measure."""
        if self._fixed is None:
            return None
        return self._of(self._fixed, generator_of(self.device, self.config.seed, 3))

    def of_batch(self, batch: Batch, draws: torch.Generator) -> float:
        """The gap of a global batch, else of the fixed samples, NaN where neither has two sets with a pair."""
        first = piece_sizes(*batch, None)[0][: self._count(batch)]
        measured = torch.zeros(2, dtype=torch.float64, device=self.device)  # sum of the gaps, how many there are
        if int((first >= 2).sum()) >= 2:
            measured[0], measured[1] = self._of(batch, draws), 1
        if self.world > 1:
            measured = reduce(measured, "sum")
        total, count = measured.tolist()
        if count:
            return total / count
        gap = self.of_fixed()
        return math.nan if gap is None else gap

    @cached_property
    def _fixed(self) -> Batch | None:
        first = torch.arange(min(self.config.gap_samples, len(self.data)), device=self.data.offsets.device)
        measurable = has_recurrence(self.model) and not getattr(self.model, "invariant", False)
        if not measurable or int((self.data.lengths[first] >= 2).sum()) < 2:
            return None
        return self.data.batch(first)

    def _of(self, batch: Batch, draws: torch.Generator) -> float:
        count = self._count(batch)
        elements, lengths = (None if part is None else part[:count] for part in batch)
        was_training = self.model.training
        self.model.eval()
        gap = order_gap(self.model, elements, lengths, generator=draws)  # type: ignore[arg-type]
        self.model.train(was_training)
        return float(gap)

    def _count(self, batch: Batch) -> int:
        config = self.config
        if config.truncate is None:
            return config.gap_samples
        return max(2, min(config.gap_samples, config.batch_size * config.truncate // max(1, batch[0].shape[1])))


def has_recurrence(model: nn.Module) -> bool:
    """Whether a model encodes elements and scans them by a recurrence."""
    return isinstance(getattr(model, "recurrence", None), Recurrence) and hasattr(model, "encode")
