"""Training sets a little different each time they are read, and small ones first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyorder.data.orderings import reorder
from anyorder.training.predict import orderings_of


@dataclass(frozen=True)
class Variants:
    """What :func:`anyorder.training.train` takes as ``augment``.

    ``stretch``: every set is stretched along each feature by a factor of its own, from 1/``stretch`` to ``stretch``,
    even in logarithm. ``stages``, pairs of a share of the training and a number: up to that share only so many elements
    of each set are read, so that early steps cost less and a recurrence learns from short sequences first. They are the
    first ones in the order the set has then; with ``anew`` a random choice made each time, in that order.

    >>> variants, generator = Variants(stages=((0.5, 2),)), torch.Generator()
    >>> [variants(torch.ones(3, 5, 1), None, generator, share)[0].shape[1] for share in (0.4, 0.5)]
    [2, 5]
    """

    stretch: float = 1.0
    stages: tuple[tuple[float, int], ...] = ()
    anew: bool = False

    def __call__(
        self, elements: Tensor, lengths: Tensor | None, generator: torch.Generator, share: float
    ) -> tuple[Tensor, Tensor | None]:
        most = next((number for end, number in self.stages if share < end), elements.shape[1])
        if most < elements.shape[1]:
            if self.anew:
                fresh = orderings_of(elements, lengths, 1, generator)[:, 0, :most]
                elements = reorder(elements, fresh.sort().values)
            elements = elements[:, :most]
            lengths = None if lengths is None else lengths.clamp(max=most)
        if self.stretch != 1.0:
            drawn = torch.rand(len(elements), 1, elements.shape[2], generator=generator, device=elements.device)
            elements = elements * self.stretch ** (2 * drawn - 1)
        return elements, lengths
