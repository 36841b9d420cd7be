"""Sets of any kind behind two methods: numbers kept flat, and lists of anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder.checks import InputError, InputTypeError, checked_elements, checked_lengths
from anyorder.data.sets import SetData

Orderings = np.ndarray | list[np.ndarray]  # a row per set, of its own places first


def sets_of(sets: Any, lengths: Any = None, *, time_first: bool = False) -> NumberSets | ListedSets:
    """Numbers as :class:`NumberSets`; texts, dicts, rows of dataframes and anything else as :class:`ListedSets`."""
    if not isinstance(sets, (list, tuple)):
        return NumberSets(sets, lengths, time_first)
    if lengths is not None:
        raise InputError("lengths must be None when the sets are a list: each of them has its own length")
    full = next((one for one in sets if not hasattr(one, "__len__") or len(one)), None)
    if full is None or hasattr(full, "columns") or isinstance(full, (str, bytes, dict)) or not _is_numeric(full):
        return ListedSets(sets)
    return NumberSets(sets)


def _is_numeric(one: Any) -> bool:
    try:
        return isinstance(one, Tensor) or np.asarray(one).dtype.kind in "biuf"
    except ValueError:  # lists of different lengths
        return False


class NumberSets:
    """Sets of numbers, kept flat. A batch is a fresh copy of the kind of array that was given, padded by ``fill``.

    ``sizes [N]``: the number of elements of each set. ``width``: the length to which batches are padded (None: the
    largest set of the batch). ``ragged``: whether a predictor may get lengths. ``listed``: given as a list of arrays.
    """

    def __init__(self, sets: Any, lengths: Any = None, time_first: bool = False) -> None:
        self.listed = isinstance(sets, (list, tuple))
        self.ragged = self.listed or lengths is not None
        self._numpy = not isinstance(sets[0] if self.listed else sets, Tensor)
        self.width: int | None = None
        if self.listed:
            data = SetData.of(sets)
            self.flat, sizes = data.elements, data.lengths
        else:
            block = checked_elements(torch.from_numpy(sets) if isinstance(sets, np.ndarray) else sets, "sets").detach()
            block = block.transpose(0, 1) if time_first else block
            self.width = block.shape[1]
            known = checked_lengths(lengths, block)
            sizes = block.new_full(block.shape[:1], self.width, dtype=torch.int64) if known is None else known
            self.flat = block[torch.arange(self.width, device=block.device) < sizes[:, None]]
        self.sizes = sizes.cpu().numpy()
        self._starts = np.cumsum(self.sizes) - self.sizes
        self.fill = 0.0
        self.features = int(self.flat.shape[1])

    def take(self, rows: np.ndarray, orderings: Orderings) -> Any:
        """A copy ``[R, width, D]`` of these sets, each in its ordering."""
        sizes = self.sizes[rows]
        width = self.width or max(int(sizes.max()), 1)
        places = np.tile(np.arange(width), (len(rows), 1))
        if isinstance(orderings, np.ndarray):
            places[:, : orderings.shape[1]] = orderings[:, :width]
        else:
            for row, ordering in zip(places, orderings, strict=True):
                row[: min(len(ordering), width)] = ordering[:width]
        padding = np.arange(width) >= sizes[:, None]
        places += self._starts[rows][:, None]
        places[padding] = -1
        flat = self.flat if len(self.flat) else self.flat.new_zeros(1, self.features)  # all sets are empty
        copy = flat[torch.from_numpy(places)]
        if padding.any():
            copy[torch.from_numpy(padding)] = self.fill
        return copy.numpy() if self._numpy else copy

    def elements(self, row: int) -> np.ndarray:
        """The elements ``[n, D]`` of a set in the given order."""
        begin = self._starts[row]
        return self.flat[begin : begin + self.sizes[row]].cpu().numpy()

    def shown(self, row: int, ordering: np.ndarray) -> np.ndarray:
        """A set in an ordering."""
        return self.elements(row)[ordering]


class ListedSets:
    """Sets whose elements are texts, dicts, objects, or the rows of a dataframe. A batch is a list of sets."""

    listed, ragged, width, features = True, True, None, 1

    def __init__(self, sets: Sequence[Any]) -> None:
        if not sets:
            raise InputError("sets must hold at least one set")
        for i, one in enumerate(sets):
            if isinstance(one, (str, bytes, dict)) or not hasattr(one, "__len__") or not hasattr(one, "__getitem__"):
                raise InputTypeError(f"sets must be lists of elements or dataframes; set {i} is a {type(one).__name__}")
        self._sets = sets
        self.sizes = np.array([len(one) for one in sets])

    def take(self, rows: np.ndarray, orderings: Orderings) -> list[Any]:
        """These sets, each in its ordering, as new lists or dataframes."""
        return [self.shown(row, order[: self.sizes[row]]) for row, order in zip(rows, orderings, strict=True)]

    def shown(self, row: int, order: np.ndarray) -> Any:
        """A set in an ordering."""
        one = self._sets[row]
        if hasattr(one, "iloc"):
            return one.iloc[order]
        return one[order.tolist()] if hasattr(one, "columns") else [one[i] for i in order]

    def elements(self, row: int) -> np.ndarray:
        """The elements of a set ``[n, 1]``, or the rows ``[n, columns]`` of a dataframe, as objects."""
        one = self._sets[row]
        if hasattr(one, "to_numpy"):
            return np.asarray(one.to_numpy()).astype(object).reshape(len(one), -1)
        table = np.empty((len(one), 1), dtype=object)
        for place, element in enumerate(one):
            table[place, 0] = element
        return table
