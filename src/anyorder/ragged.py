"""Sets of different sizes as one padded batch: from a list of arrays, or from a batch vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder._checks import InputError, InputTypeError, real_number, whole_number


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
