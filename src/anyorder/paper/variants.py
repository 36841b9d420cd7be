"""Training sets a little different each time they are read, and small ones first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHARE_OF_SMALL = 0.5  # of a training that begins with small sets


@dataclass(frozen=True)
class Variants:
    """What :func:`anyorder.training.train` takes as ``augment``.

    ``stretch``: every set is stretched along each feature by a factor of its own, from 1/``stretch`` to ``stretch``,
    even in logarithm. ``begin_with``: in the first half of the training only so many elements of each set are read, the
    first ones in the order it has then, so that early steps cost less and a recurrence learns from short sequences.

    >>> elements, _ = Variants(begin_with=2)(torch.ones(3, 5, 1), None, torch.Generator(), 0.1)
    >>> elements.shape
    torch.Size([3, 2, 1])
    """

    stretch: float = 1.0
    begin_with: int | None = None

    def __call__(
        self, elements: Tensor, lengths: Tensor | None, generator: torch.Generator, share: float
    ) -> tuple[Tensor, Tensor | None]:
        if self.begin_with is not None and share < SHARE_OF_SMALL:
            elements = elements[:, : self.begin_with]
            lengths = None if lengths is None else lengths.clamp(max=self.begin_with)
        if self.stretch != 1.0:
            drawn = torch.rand(len(elements), 1, elements.shape[2], generator=generator, device=elements.device)
            elements = elements * self.stretch ** (2 * drawn - 1)
        return elements, lengths
