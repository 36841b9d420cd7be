"""Task output and penalty of a batch in one forward, and what a model or a penalty makes possible."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyorder.data.sets import SetData
from anyorder.models.base import sizes_of
from anyorder.recurrences.base import Recurrence


class Batch(NamedTuple):
    """Some sets: ``elements [B, T, D]``, ``lengths [B]``, ``ties [B, T]``, ``static [B, S]``."""

    elements: Tensor
    lengths: Tensor | None = None
    ties: Tensor | None = None
    static: Tensor | None = None

    @classmethod
    def of(cls, data: SetData, index: Tensor) -> Batch:
        static = None if data.static is None else data.static[index]
        return cls(*data.batch(index), data.ties_of(index), static)

    @property
    def sizes(self) -> Tensor:
        """The sizes ``[B]`` of the sets."""
        return sizes_of(self.elements, self.lengths)


class Given(nn.Module):
    """A model of (elements, lengths) alone, for sets with these static features."""

    def __init__(self, model: nn.Module, static: Tensor) -> None:
        super().__init__()
        self.model, self.static = model, static

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.model(elements, lengths, static=self.static)


def task_and_penalty(
    model: nn.Module,
    penalty: Callable[..., Tensor] | None,
    batch: Batch,
    generator: torch.Generator | None = None,
    penalty_on: Batch | None = None,
) -> tuple[Tensor, Tensor]:
    """The output ``[B, K]`` and the penalty, a scalar, in one forward; 0 without a penalty.

    The penalty reuses the trajectory of the pass, or is taken on the (unlabeled) sets of ``penalty_on``. Under autocast
    it runs in full precision, since bfloat16 cannot tell two nearly equal states apart. Where the pass kept its states
    in bfloat16, they are computed again.
    """
    given = {} if batch.static is None else {"static": batch.static}
    if penalty is None:
        return model(*batch[:2], **given), batch.elements.new_zeros((), dtype=torch.float32)
    if penalty_on is None and _returns_trajectory(type(model)):  # type: ignore[arg-type]
        output, trajectory = model(*batch[:2], return_trajectory=True, **given)
    else:
        output, trajectory = model(*batch[:2], **given), None
    device, on = batch.elements.device.type, penalty_on or batch
    mixed = torch.is_autocast_enabled(device)
    options = {"ties": on.ties} if within_ties(penalty) else {}
    with torch.autocast(device, enabled=False) if mixed else nullcontext():
        if trajectory is None or (mixed and trajectory.in_half_precision):
            return output, penalty(model, *on[:2], generator=generator, **options)
        return output, penalty(trajectory, generator=generator, **options)


@cache
def _returns_trajectory(kind: type[nn.Module]) -> bool:
    return "return_trajectory" in inspect.signature(kind.forward).parameters


def within_ties(penalty: Any) -> bool:
    """Whether a penalty takes its pairs within ties, and so needs them."""
    return bool(getattr(penalty, "ties", False))


def has_ties(batch: Batch) -> Tensor:
    """Whether each set ``[B]`` has a tie of two elements or more."""
    assert batch.ties is not None
    inside = torch.arange(1, batch.elements.shape[1], device=batch.ties.device) < batch.sizes[:, None]
    return ((batch.ties[:, 1:] == batch.ties[:, :-1]) & inside).any(1)


def has_recurrence(model: nn.Module) -> bool:
    """Whether a model encodes elements and scans them by a recurrence."""
    return isinstance(getattr(model, "recurrence", None), Recurrence) and hasattr(model, "encode")
