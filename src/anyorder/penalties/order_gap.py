"""How much order matters to the output of a model or a recurrence, as one number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, checked_batch, checked_ties, whole_number
from anyorder.data.orderings import random_orderings, reorder
from anyorder.data.sets import filled
from anyorder.penalties.base import components
from anyorder.recurrences.base import Recurrence, evaluating, recurrence, unwrapped


class OrderGap(float):
    """A float, with the ``standard_error`` of its value over sets (jackknife)."""

    standard_error: float

    @property
    def value(self) -> float:
        """The gap as a plain float."""
        return float(self)


@torch.no_grad()
def order_gap(
    subject: Recurrence | nn.Module,
    elements: Tensor,
    lengths: Tensor | None = None,
    *,
    draws: int = 1,
    ties: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> OrderGap:
    """How far a random reordering moves the output, over how far apart the outputs of different sets are.

    √(mean ‖f(xπ) − f(x)‖² / mean ‖f(x) − f(y)‖²), where xπ is a random reordering of x, and y another set. 0: order
    is ignored. Near 1: order matters as much as content. If all outputs of the batch coincide, the gap is 0 or
    infinite.

    Args:
        subject: a model ``(elements, lengths) -> [B, K]``; or a recurrence or torch module, whose output at the last
            element is taken. It is read in eval mode.
        elements: ``[B, T, D]``; ``[T, B, D]`` for a torch module with ``batch_first=False``.
        draws: random orderings of each set.
        ties: ``[B, T]``; elements of equal value are a tie, and only ties are reordered.

    >>> from anyorder.recurrences import known
    >>> gap = order_gap(known.sum(), torch.arange(12.0).reshape(3, 4, 1))
    >>> gap.value, gap.standard_error
    (0.0, 0.0)
    """
    subject = unwrapped(subject)
    read, batch_first = _reader(subject)
    elements, lengths = checked_batch(elements, lengths, batch_first=batch_first)
    if len(elements) < 2:
        raise InputError("elements must hold at least two sets, whose outputs differ; got one")
    groups = None if ties is None else checked_ties(ties, elements, lengths)
    counts = torch.full((len(elements),), elements.shape[1]) if lengths is None else lengths
    draws = whole_number("draws", draws)
    orders = random_orderings(counts.to(elements.device), elements.shape[1], draws, generator, ties=groups)
    with evaluating(subject):
        given = read(elements, lengths)
        moved = torch.stack([(read(reorder(elements, o), lengths) - given).square().sum(1) for o in orders.unbind(1)])
    moved, sets = moved.mean(0).double(), len(given)
    apart = (given - given.mean(0)).square().sum(1).double()  # of each set from the mean of all
    gap = OrderGap(_ratio(moved.mean(), 2 * apart.sum() / (sets - 1)))
    without = _ratio(
        (moved.sum() - moved) / (sets - 1), 2 * (apart.sum() - apart * sets / (sets - 1)) / max(1, sets - 2)
    )
    gap.standard_error = float((without - without.mean()).square().sum().mul((sets - 1) / sets).sqrt())
    return gap


def _reader(subject: Recurrence | nn.Module) -> tuple[Callable[[Tensor, Tensor | None], Tensor], bool]:
    """The output of a batch as ``[B, K]``, and whether the batch comes first."""
    if isinstance(subject, nn.Module) and not isinstance(subject, (Recurrence, nn.RNNBase, nn.RNNCellBase)):
        return lambda x, n: components(subject(filled(x, n), n) if n is not None else subject(x)), True
    r = recurrence(subject)
    return lambda x, n: components(r.scan_encoded(x, n, dropout=False).output), r.batch_first


def _ratio(moved: Tensor, apart: Tensor) -> Tensor:
    """√(moved / apart); 0 where nothing moved."""
    return torch.where(moved > 0, (moved / apart.clamp(min=0)).sqrt(), 0.0)
