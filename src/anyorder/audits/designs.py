"""Which orderings of a set an audit reads."""

from __future__ import annotations

import math
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
from torch import Tensor

from anyorder.checks import InputError, one_of

DESIGNS = ("random", "balanced", "all", "rotations", "ties")
_ALL = 7  # elements of the largest set of which all orderings are read


class Design:
    """The orderings of each set: ``counts [N]`` of them, 0 where nothing can move.

    "random" and "ties" draw each ordering anew. "balanced" are the rows of a Williams square whose elements are drawn
    at random for each set: every element stands at every place, and every ordered pair side by side, equally often.
    "rotations" and "all" are complete.

    >>> design = Design("balanced", np.array([4]), 0)
    >>> orders = design.orders(np.zeros(4, int), np.arange(4), np.random.default_rng(0))
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
        self._runs = None if ties is None else _runs(ties, sizes)
        distinct = sizes if self._runs is None else np.array([len(np.unique(runs)) for runs in self._runs])
        movable = sizes >= 2 if self._runs is None else distinct < sizes
        if name == "all" and sizes.max() > _ALL:
            raise InputError(f"design='all' is for sets of at most {_ALL} elements; got one of {sizes.max()}")
        every = [math.factorial(min(size, _ALL)) for size in sizes]
        each = {"balanced": sizes * (1 + sizes % 2), "rotations": sizes, "all": every}.get(name, orderings)
        self.counts = np.where(movable, each, 0)

    def orders(self, rows: np.ndarray, numbers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The ordering of each set ``[R, longest]`` with this number; padding stays behind it."""
        sizes = self.sizes[rows]
        width = int(sizes.max())
        if self.drawn:
            keys = np.tile(1.0 + width + np.arange(width), (len(rows), 1))
            keys[np.arange(width) < sizes[:, None]] = rng.random(int(sizes.sum()))  # the same whatever the block
            if self._runs is not None:
                for key, row in zip(keys, rows, strict=True):
                    key[: self.sizes[row]] += self._runs[row]
            return keys.argsort(axis=1)
        orders = np.tile(np.arange(width), (len(rows), 1))
        for order, row, number in zip(orders, rows.tolist(), numbers.tolist(), strict=True):
            size = int(self.sizes[row])
            order[:size] = _complete(self.name, size)[number]
            if self.name == "balanced":
                if row not in self._labels:
                    self._labels[row] = rng.permutation(size)
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
