"""Ragged sets in memory, and how long tables become them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder._checks import InputError, InputTypeError
from anyorder.ragged import _as_set


@dataclass(frozen=True, eq=False)
class SetData:
    """Many sets of different sizes, kept flat: set ``i`` is ``elements[offsets[i]:offsets[i + 1]]``.

    ``elements [total, D]``, ``offsets [N + 1]`` int64, ``targets [N]`` or ``[N, K]``, ``weights [N]``.

    >>> data = SetData.of([[1.0, 2.0, 3.0], [4.0]], y=[0, 1])
    >>> elements, lengths = data.batch([1, 0])
    >>> elements[:, :, 0].tolist(), lengths.tolist(), data.targets.tolist()
    ([[4.0, 0.0, 0.0], [1.0, 2.0, 3.0]], [1, 3], [0, 1])
    """

    elements: Tensor
    offsets: Tensor
    targets: Tensor | None = None
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if self.elements.dim() != 2 or self.elements.shape[1] == 0:
            raise InputError(
                f"elements must have shape [total, D] with D at least 1; got {list(self.elements.shape)}"
            )
        if self.offsets.dtype != torch.int64 or self.offsets.dim() != 1 or len(self.offsets) < 2:
            raise InputError(
                "offsets must be int64 of shape [N + 1] with N at least 1; "
                f"got {self.offsets.dtype} of shape {list(self.offsets.shape)}"
            )
        first, last, least = int(self.offsets[0]), int(self.offsets[-1]), int(self.offsets.diff().min())
        if first != 0 or last != len(self.elements) or least < 0:
            raise InputError(
                f"offsets must rise from 0 to {len(self.elements)}, the number of elements; "
                f"got {first} to {last}, smallest step {least}"
            )
        for name, values in (("targets", self.targets), ("weights", self.weights)):
            if values is not None and len(values) != len(self):
                raise InputError(f"{name} must hold one row a set, {len(self)}; got {len(values)}")

    @classmethod
    def of(cls, X: Any, y: Any = None, weights: Any = None, *, dtype: torch.dtype | None = None) -> SetData:
        """Sets from a list of arrays ``[n_i, D]``, an array ``[N, T, D]``, or ``[N, T]`` (sets of numbers).

        A SetData is taken as it is, with ``y`` and ``weights`` replaced where given. ``dtype`` converts the
        elements; None keeps theirs.
        """
        if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1:
            X = list(X)
        if isinstance(X, SetData):
            elements, offsets = X.elements, X.offsets
            y = X.targets if y is None else y
            weights = X.weights if weights is None else weights
        elif isinstance(X, Sequence) and not isinstance(X, (str, bytes)):
            elements, offsets = _flat(X)
        else:
            elements, offsets = _flat_block(X)
        return cls(elements if dtype is None else elements.to(dtype), offsets, *_as_rows(y, weights))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """The size of each set, ``[N]`` int64."""
        return self.offsets.diff()

    @cached_property
    def common_length(self) -> int | None:
        """The size of every set if all are equal, else None."""
        low, high = int(self.lengths.min()), int(self.lengths.max())
        return low if low == high else None

    def select(self, index: Any) -> SetData:
        """The sets at ``index`` (whole numbers, or a mask), in that order."""
        index = self._as_index(index)
        lengths = self.lengths[index]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        rows = torch.repeat_interleave(self.offsets[index] - offsets[:-1], lengths)
        rows += torch.arange(len(rows), device=rows.device)
        return SetData(
            self.elements.index_select(0, rows),
            offsets,
            None if self.targets is None else self.targets[index],
            None if self.weights is None else self.weights[index],
        )

    def batch(self, index: Any) -> tuple[Tensor, Tensor | None]:
        """``elements [B, T, D]`` padded with zeros to the longest of these sets, and ``lengths [B]``.

        ``lengths`` is None when these sets are all of one size.
        """
        index = self._as_index(index)
        features = self.elements.shape[1]
        if self.common_length is not None:
            block = self.elements.view(len(self), self.common_length, features)
            return block.index_select(0, index), None
        lengths = self.lengths[index]
        shortest, longest = (int(v) for v in lengths.aminmax())
        position = torch.arange(longest, device=lengths.device)
        rows = self.offsets[index][:, None] + position
        if shortest == longest:
            return self.elements.index_select(0, rows.flatten()).view(-1, longest, features), None
        padding = position >= lengths[:, None]
        rows = rows.masked_fill_(padding, 0)
        elements = self.elements.index_select(0, rows.flatten()).view(-1, longest, features)
        return elements.masked_fill_(padding[:, :, None], 0), lengths

    def to(self, device: torch.device | str) -> SetData:
        """The same sets on another device."""
        targets = None if self.targets is None else self.targets.to(device)
        weights = None if self.weights is None else self.weights.to(device)
        return SetData(self.elements.to(device), self.offsets.to(device), targets, weights)

    def _as_index(self, index: Any) -> Tensor:
        index = torch.as_tensor(index, device=self.offsets.device)
        if index.dtype == torch.bool:
            index = index.nonzero()[:, 0]
        if index.numel() == 0:
            raise InputError("index must name at least one set; got none")
        return index.to(torch.int64)


def _as_rows(*columns: Any) -> list[Tensor | None]:
    return [None if column is None else torch.as_tensor(column) for column in columns]


def _flat(sets: Sequence[Any]) -> tuple[Tensor, Tensor]:
    if len(sets) == 0:
        raise InputError("there must be at least one set; got an empty list")
    arrays = [_as_set(array, index) for index, array in enumerate(sets)]
    filled = [(i, a) for i, a in enumerate(arrays) if len(a)]
    for i, array in filled:
        if array.shape[1] != filled[0][1].shape[1]:
            raise InputError(
                f"every set must have the same number of features; set {filled[0][0]} has "
                f"{filled[0][1].shape[1]}, set {i} has {array.shape[1]}"
            )
    lengths = torch.tensor([0, *(len(a) for a in arrays)], dtype=torch.int64)
    elements = torch.cat([a for _, a in filled]) if filled else arrays[0]
    return elements, lengths.cumsum(0).to(elements.device)


def _flat_block(block: Any) -> tuple[Tensor, Tensor]:
    try:
        block = block if isinstance(block, Tensor) else torch.as_tensor(np.asarray(block))
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            "X must be a list of arrays [n, D], an array [N, T, D] or [N, T]; "
            f"got {type(block).__name__}: {error}"
        ) from None
    if block.dim() == 2:
        block = block[:, :, None]
    if block.dim() != 3 or block.shape[0] == 0:
        raise InputError(
            f"X must have shape [N, T, D] or [N, T] with at least one set; got {list(block.shape)}"
        )
    sets, size, features = block.shape
    return block.reshape(sets * size, features), torch.arange(sets + 1, device=block.device) * size
