"""How much order matters to a recurrence's end state, as one number."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyorder.penalties.permutation import PermutationPenalty
from anyorder.recurrences.base import Recurrence


@torch.no_grad()
def order_gap(
    subject: Recurrence | nn.Module,
    elements: Tensor,
    lengths: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """How much order matters to the end state: one number to log, without gradient.

    0: order is ignored. Near 1: order matters as much as content. If all end states of the batch coincide, the gap is
    0 or very large. Arguments as for a penalty: ``[T, B, D]`` for a torch module with ``batch_first=False``.

    >>> from anyorder.recurrences import known
    >>> order_gap(known.sum(), torch.arange(12.0).reshape(3, 4, 1)).item()
    0.0
    """
    return PermutationPenalty(relative=True)(subject, elements, lengths, generator=generator)
