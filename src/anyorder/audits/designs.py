"""Which orderings of a set an audit reads."""

from __future__ import annotations

import math
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from anyorder.checks import InputError, one_of
from anyorder.data.orderings import random_orderings
from anyorder.data.sets import pad

DESIGNS = ("random", "balanced", "all", "rotations", "ties")
_ALL = 7  # elements of the largest set of which all orderings are read


class Design:
    """The orderings of each set: ``counts [N]`` of them, 0 where nothing can move.

    "random" and "ties" draw each ordering anew. "balanced" are the rows of a Williams square whose elements are drawn
    at random for each set: every element stands at every place, and every ordered pair side by side, equally often.
    "rotations" and "all" are complete.

    >>> design = Design("balanced", np.array([4]), 0)
    >>> orders = design.orders(np.zeros(4, int), np.arange(4), torch.Generator())
    >>> design.counts.tolist(), sorted(orders[:, 0].tolist())
    ([4], [0, 1, 2, 3])
    """

    def __init__(self, name: str, sizes: np.ndarray, orderings: int, ties: Any = None) -> None:
        one_of("design", name, DESIGNS)
        if ties is not None and name == "random":
            name = "ties"
        if (ties is not None) != (name == "ties"):
            raise InputError(f"ties must be given with design='ties' and no other; got design={name!r}")
        self.name, self.sizes, self._labels = name, sizes, dict[int, np.ndarray]()
        self.drawn = name in ("random", "ties")
        self._runs: Tensor | None = None
        movable = sizes >= 2
        if ties is not None:
            runs = _runs(ties, sizes)
            self._runs, movable = pad(runs)[0][:, :, 0], np.array([len(set(run.tolist())) for run in runs]) < sizes
        if name == "all" and sizes.max() > _ALL:
            raise InputError(f"design='all' is for sets of at most {_ALL} elements; got one of {sizes.max()}")
        every = [math.factorial(min(size, _ALL)) for size in sizes]
        each = {"balanced": sizes * (1 + sizes % 2), "rotations": sizes, "all": every}.get(name, orderings)
        self.counts = np.where(movable, each, 0)

    def orders(self, rows: np.ndarray, numbers: np.ndarray, generator: Generator) -> np.ndarray:
        """The ordering of each set ``[R, longest]`` with this number; padding stays behind it."""
        sizes = self.sizes[rows]
        width = int(sizes.max())
        if self.drawn:
            ties = None if self._runs is None else self._runs[rows, :width]
            return random_orderings(torch.from_numpy(sizes), width, 1, generator, ties=ties)[:, 0].numpy()
        orders = np.tile(np.arange(width), (len(rows), 1))
        for order, row, number in zip(orders, rows.tolist(), numbers.tolist(), strict=True):
            size = int(self.sizes[row])
            order[:size] = _complete(self.name, size)[number]
            if self.name == "balanced":
                if row not in self._labels:
                    self._labels[row] = torch.randperm(size, generator=generator).numpy()
                order[:size] = self._labels[row][order[:size]]
        return orders


def williams(size: int) -> np.ndarray:
    """A Williams square of ``size`` rows, or of twice as many if ``size`` is odd.

    >>> williams(4).tolist()
    [[0, 3, 1, 2], [1, 0, 2, 3], [2, 1, 3, 0], [3, 2, 0, 1]]
    """
    first = np.zeros(size, dtype=np.int64)
    first[1::2] = size - 1 - np.arange(size // 2)
    first[2::2] = 1 + np.arange((size - 1) // 2)
    square = (first + np.arange(size)[:, None]) % size
    return square if size % 2 == 0 else np.concatenate([square, square[:, ::-1]])


@cache
def _complete(name: str, size: int) -> np.ndarray:
    """All orderings of a design that is not drawn."""
    if name == "all":
        return np.array(list(permutations(range(size))))
    return williams(size) if name == "balanced" else (np.arange(size) + np.arange(size)[:, None]) % size


def _runs(ties: Any, sizes: np.ndarray) -> list[np.ndarray]:
    """The number of the tie that each element of each set belongs to: equal values that stand together."""
    if len(ties) != len(sizes) or any(len(one) < size for one, size in zip(ties, sizes, strict=True)):
        raise InputError(f"ties must hold a value for each element of each of the {len(sizes)} sets")
    values = [
        np.asarray(one.cpu() if isinstance(one, Tensor) else one)[:size] for one, size in zip(ties, sizes, strict=True)
    ]
    return [np.append(0, np.cumsum(one[1:] != one[:-1]))[: len(one)] for one in values]
