"""Sets of different sizes as one padded batch: from a list of arrays, or from a batch vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder.checks import InputError, InputTypeError, real_number, whole_number


def pad(arrays: Sequence[Any], *, value: float = 0.0) -> tuple[Tensor, Tensor]:
    """Stack arrays ``[n_i, D]`` into ``elements [B, T, D]`` and ``lengths [B]``.

    An array ``[n_i]`` is taken as a set of numbers (D = 1). Sets may be empty, and then have no say in the dtype.
    As in torch, numpy's float64 stays float64 and Python's floats become torch's default dtype.

    >>> elements, lengths = pad([[1.0, 2.0, 3.0], [4.0]])
    >>> elements.shape, elements.dtype, lengths.tolist()
    (torch.Size([2, 3, 1]), torch.float32, [3, 1])
    """
    sets, dtype = _checked_sets(arrays)
    lengths = torch.tensor([s.shape[0] for s in sets], dtype=torch.int64, device=sets[0].device)
    width = next(s.shape[1] for s in sets if len(s) == lengths.max())
    if not dtype.is_floating_point and not dtype.is_complex and not real_number("value", value).is_integer():
        raise InputError(f"value must be a whole number, as the elements are ({dtype}); got {value!r}")
    elements = sets[0].new_full((len(sets), int(lengths.max()), width), value, dtype=dtype)
    for row, s in enumerate(sets):
        if len(s):
            elements[row, : len(s)] = s
    return elements, lengths


def filled(elements: Tensor, lengths: Tensor | None) -> Tensor:
    """``elements [B, T, D]`` with a true element wherever there is padding, for an encoder that reads everything.

    It is the sample's own first element, of an empty sample that of the longest; zero if all are empty. An encoder is
    made for elements: at anything else, zero too, its gradient may be infinite, and infinite times 0 is NaN.
    """
    if lengths is None or elements.shape[1] == 0:
        return elements
    first = elements[:, 0]
    other = torch.where(lengths.max() > 0, first[lengths.argmax()], torch.zeros_like(first[0]))
    first = torch.where(lengths[:, None] > 0, first, other)
    inside = torch.arange(elements.shape[1], device=elements.device) < lengths[:, None]
    return torch.where(inside[:, :, None], elements, first[:, None])


def join(arrays: Sequence[Any]) -> tuple[Tensor, np.ndarray]:
    """The same arrays one behind the other, ``elements [total, D]``, and their sizes ``[B]``; nothing is padded."""
    sets, dtype = _checked_sets(arrays)
    sizes = np.array([len(s) for s in sets])
    return torch.cat([s.to(dtype) for s in sets if len(s)] or sets[:1]), sizes


def _checked_sets(arrays: Sequence[Any]) -> tuple[list[Tensor], torch.dtype]:
    """The arrays as tensors ``[n_i, D]``, D the same in all that hold elements, and the dtype that fits them."""
    if isinstance(arrays, (str, bytes)) or not hasattr(arrays, "__len__"):
        raise InputTypeError(f"pad takes a list of arrays [n, D]; got {type(arrays).__name__}")
    if len(arrays) == 0:
        raise InputError("pad needs at least one array; got an empty list")
    sets = [_as_set(array, index) for index, array in enumerate(arrays)]
    filled = [i for i, s in enumerate(sets) if s.shape[0] > 0] or list(range(len(sets)))
    width = sets[filled[0]].shape[1]
    for i in filled:
        if sets[i].shape[1] != width:
            raise InputError(
                f"every array must have the same number of features; array {filled[0]} has {width}, "
                f"array {i} has {sets[i].shape[1]}"
            )
    if width == 0:
        raise InputError("arrays must have at least one feature; got arrays [n, 0]")
    return sets, reduce(torch.promote_types, [sets[i].dtype for i in filled])


def _as_set(array: Any, index: int) -> Tensor:
    try:
        tensor = array if isinstance(array, Tensor) else torch.as_tensor(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"array {index} is not an array of numbers [n, D]: {error}") from None
    if tensor.dtype == torch.float64 and _is_plain(array):
        tensor = tensor.to(torch.get_default_dtype())
    if tensor.dim() == 1:
        tensor = tensor[:, None]
    if tensor.dim() != 2:
        raise InputError(f"array {index} must have shape [n, D] or [n]; got {list(tensor.shape)}")
    return tensor


def _is_plain(array: Any) -> bool:
    """Whether it is of Python's own numbers, which have no dtype."""
    while isinstance(array, (list, tuple)) and len(array):
        array = array[0]
    return type(array) in (float, int, bool, list, tuple)


def pad_from_batch(x: Tensor, batch: Tensor, batch_size: int | None = None) -> tuple[Tensor, Tensor]:
    """Turn torch-geometric's flat form into ``elements [B, T, D]`` and ``lengths [B]``.

    ``x [N, D]`` holds the elements of all sets, ``batch [N]`` the set each row belongs to, in any order
    (rows of one set keep theirs). ``batch_size`` is needed when trailing sets are empty. Gradients flow.

    >>> x = torch.tensor([[1.0], [2.0], [3.0]])
    >>> elements, lengths = pad_from_batch(x, torch.tensor([0, 1, 1]))
    >>> elements[1, :, 0].tolist(), lengths.tolist()
    ([2.0, 3.0], [1, 2])
    """
    for name, given in {"x": x, "batch": batch}.items():
        if not isinstance(given, Tensor):
            raise InputTypeError(f"{name} must be a tensor; got {type(given).__name__}")
    if x.dim() != 2:
        raise InputError(f"x must have shape [N, D]; got {list(x.shape)}")
    if batch.shape != x.shape[:1] or batch.is_floating_point() or batch.dtype == torch.bool:
        raise InputError(
            f"batch must hold one whole number a row of x, shape [{x.shape[0]}]; "
            f"got {batch.dtype} of shape {list(batch.shape)}"
        )
    batch = batch.long()
    if batch.numel() and int(batch.min()) < 0:
        raise InputError(f"batch must not be negative; got {int(batch.min())}")
    needed = int(batch.max()) + 1 if batch.numel() else 0
    size = max(needed, 1) if batch_size is None else whole_number("batch_size", batch_size)
    if size < needed:
        raise InputError(f"batch_size must be at least {needed}, the sets in batch; got {size}")
    lengths = torch.bincount(batch, minlength=size)
    order = torch.argsort(batch, stable=True)
    starts = lengths.cumsum(0) - lengths
    sorted_batch = batch[order]
    position = torch.arange(x.shape[0], device=x.device) - starts[sorted_batch]
    longest = int(lengths.max())
    flat = x.new_zeros(size * longest, x.shape[1])
    flat = flat.index_copy(0, sorted_batch * longest + position, x[order])
    return flat.view(size, longest, x.shape[1]), lengths


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
            raise InputError(f"elements must have shape [total, D] with D at least 1; got {list(self.elements.shape)}")
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
        elements = elements if dtype is None else elements.to(dtype)
        return cls(elements, offsets, _as_rows("y", y), _as_rows("weights", weights))

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
        """The sets at ``index`` (whole numbers, negative ones counted from the end, or a mask), in that order."""
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
            return self.elements.index_select(0, rows.flatten()).view(len(index), longest, features), None
        padding = position >= lengths[:, None]
        rows = rows.masked_fill_(padding, 0)
        elements = self.elements.index_select(0, rows.flatten()).view(len(index), longest, features)
        return elements.masked_fill_(padding[:, :, None], 0), lengths

    def to(self, device: torch.device | str) -> SetData:
        """The same sets on another device."""
        targets = None if self.targets is None else self.targets.to(device)
        weights = None if self.weights is None else self.weights.to(device)
        return SetData(self.elements.to(device), self.offsets.to(device), targets, weights)

    def _as_index(self, index: Any) -> Tensor:
        index = torch.as_tensor(index, device=self.offsets.device)
        count = len(self)
        if index.dtype == torch.bool:
            if index.shape != (count,):
                raise InputError(f"a mask must have shape [{count}], one value a set; got {list(index.shape)}")
            index = index.nonzero()[:, 0]
        if index.numel() == 0:
            raise InputError("index must name at least one set; got none")
        if index.is_floating_point():
            raise InputTypeError(f"index must be whole numbers or a mask; got dtype {index.dtype}")
        index = index.to(torch.int64)
        low, high = (int(v) for v in index.aminmax())
        if low < -count or high >= count:
            raise InputError(
                f"index must be from {-count} to {count - 1}, of {count} sets; got {low if low < -count else high}"
            )
        return index if low >= 0 else index.remainder(count)


def _as_rows(name: str, rows: Any) -> Tensor | None:
    """A tensor of what was given; a list of Python's floats becomes torch's default dtype."""
    try:
        if rows is not None and not isinstance(rows, (Tensor, list, tuple)):
            rows = np.require(rows, requirements=["C", "W"])
        return None if rows is None else torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"{name} must hold numbers, one row a set; got {type(rows).__name__}: {error}") from None


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
        block = block if isinstance(block, Tensor) else torch.as_tensor(np.require(block, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            f"X must be a list of arrays [n, D], an array [N, T, D] or [N, T]; got {type(block).__name__}: {error}"
        ) from None
    if block.dim() == 2:
        block = block[:, :, None]
    if block.dim() != 3 or block.shape[0] == 0:
        raise InputError(f"X must have shape [N, T, D] or [N, T] with at least one set; got {list(block.shape)}")
    sets, size, features = block.shape
    return block.reshape(sets * size, features), torch.arange(sets + 1, device=block.device) * size
