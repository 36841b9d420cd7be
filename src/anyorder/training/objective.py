"""Task output and penalty of a batch in one forward, and what a model or a penalty makes possible."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
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


class Objective(nn.Module):
    """Task output and penalty in one forward, to wrap or compile as one module.

    ``forward(elements [B, T, D], lengths, generator, penalty_on) -> (output [B, K], penalty scalar)``. The penalty
    reuses the trajectory of the pass; with ``penalty_on = (elements, lengths, ties)`` it is taken on these (unlabeled)
    sets instead. ``ties [B, T]`` go to a penalty within ties, ``static [B, S]`` to the model. Under autocast the
    penalty runs in full precision, since bfloat16 cannot tell two nearly equal states apart; where the pass kept its
    states in bfloat16, they are computed again.

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
        penalty_on: Sequence[Tensor | None] | None = None,
        *,
        ties: Tensor | None = None,
        static: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        given: dict[str, Any] = {} if static is None else {"static": static}
        if self.penalty is None:
            return self.model(elements, lengths, **given), elements.new_zeros((), dtype=torch.float32)
        device = elements.device.type
        mixed = torch.is_autocast_enabled(device)
        trajectory, batch = None, Batch(*(penalty_on or (elements, lengths, ties)))  # type: ignore[arg-type]
        if penalty_on is None and self._reuses:
            output, trajectory = self.model(elements, lengths, return_trajectory=True, **given)
        else:
            output = self.model(elements, lengths, **given)
        options: dict[str, Any] = {"ties": batch.ties} if within_ties(self.penalty) else {}
        with torch.autocast(device, enabled=False) if mixed else nullcontext():
            if trajectory is None or (mixed and trajectory.in_half_precision):
                return output, self.penalty(self.model, *batch[:2], generator=generator, **options)
            return output, self.penalty(trajectory, generator=generator, **options)


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


def reads_in_windows(model: nn.Module) -> bool:
    """Whether truncated backpropagation works: the model encodes, scans, reads out."""
    return has_recurrence(model) and hasattr(getattr(model, "inner", model), "readout")
