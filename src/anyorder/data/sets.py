"""Sets of different sizes: one ragged container, and padded batches from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyorder.checks import InputError, InputTypeError


@dataclass(frozen=True, eq=False)
class SetData:
    """Many sets of different sizes, kept flat: set ``i`` is ``elements[offsets[i]:offsets[i + 1]]``.

    ``elements [total, D]``, ``offsets [N + 1]`` int64, ``targets [N]`` or ``[N, K]``, ``weights [N]``. Elements of
    equal ``ties [total]`` share a time and stand together. ``static [N, S]`` are features of each set as a whole.

    >>> data = SetData.of([[1.0, 2.0, 3.0], [4.0]], y=[0, 1])
    >>> elements, lengths = data.batch([1, 0])
    >>> elements[:, :, 0].tolist(), lengths.tolist(), data.targets.tolist()
    ([[4.0, 0.0, 0.0], [1.0, 2.0, 3.0]], [1, 3], [0, 1])
    """

    elements: Tensor
    offsets: Tensor
    targets: Tensor | None = None
    weights: Tensor | None = None
    ties: Tensor | None = None
    static: Tensor | None = None

    def __post_init__(self) -> None:
        elements, offsets = self.elements, self.offsets
        flat = elements.dim() == 2 and elements.shape[1] > 0
        listed = offsets.dtype == torch.int64 and offsets.dim() == 1 and len(offsets) > 1
        if not (flat and listed and offsets[0] == 0 and offsets[-1] == len(elements) and offsets.diff().min() >= 0):
            raise InputError(
                "elements must have shape [total, D] and offsets must rise from 0 to total, int64 of shape [N + 1]; "
                f"got {list(elements.shape)} and {offsets.dtype} of shape {list(offsets.shape)}"
            )
        count, total = len(self), len(elements)
        rules = {"targets": (count, (1, 2)), "weights": (count, (1,)), "static": (count, (2,)), "ties": (total, (1,))}
        for name, (rows, axes) in rules.items():
            values = getattr(self, name)
            if values is not None and (len(values) != rows or values.dim() not in axes):
                rule = f"{rows} rows, one per {'element' if name == 'ties' else 'set'}, and {axes[-1]} axes at most"
                raise InputError(f"{name} must have {rule}; got shape {list(values.shape)}")

    @classmethod
    def of(
        cls,
        X: Any,
        y: Any = None,
        weights: Any = None,
        *,
        ties: Any = None,
        static: Any = None,
        dtype: torch.dtype | None = None,
    ) -> SetData:
        """Sets from a list of arrays ``[n_i, D]`` or ``[n_i]``, or from an array ``[N, T, D]`` or ``[N, T]``.

        An array without a feature axis holds numbers (D = 1). Python's floats become torch's default dtype; arrays
        keep theirs, unless ``dtype`` is given. ``ties`` is a list of arrays ``[n_i]``, or ``[N, T]``. A SetData is
        taken as it is, with what else is given replaced.
        """
        if isinstance(X, SetData):
            elements, offsets = X.elements, X.offsets
            y = X.targets if y is None else y
            weights = X.weights if weights is None else weights
            static = X.static if static is None else static
        elif (isinstance(X, Sequence) and not isinstance(X, str)) or (isinstance(X, np.ndarray) and X.dtype == object):
            sets = [_with_features(f"set {i}", _numbers(f"set {i}", array), 1) for i, array in enumerate(X)]
            full = [s for s in sets if len(s)] or sets[:1]  # an empty set has no say in dtype and width
            widths = sorted({s.shape[1] for s in full})
            if len(widths) != 1:
                raise InputError(f"the arrays must be sets of the same number of features; got {len(sets)}, {widths}")
            elements = torch.cat(full)
            offsets = torch.tensor([0, *(len(s) for s in sets)], device=elements.device).cumsum(0)
        else:
            block = _with_features("X", _numbers("X", X), 2)
            elements = block.flatten(0, 1)
            offsets = torch.arange(len(block) + 1, device=block.device) * block.shape[1]
        given = {"targets": y, "weights": weights, "static": static}
        of_sets = {name: None if value is None else _numbers(name, value) for name, value in given.items()}
        if ties is not None:
            of_elements = cls.of(ties)
            if not torch.equal(of_elements.offsets, offsets):
                raise InputError("ties must hold one number per element, in sets of the same sizes as the elements")
            ties = of_elements.elements[:, 0]
        elif isinstance(X, SetData):
            ties = X.ties
        return cls(elements.to(dtype or elements.dtype), offsets, ties=ties, **of_sets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """The size of each set, ``[N]`` int64."""
        return self.offsets.diff()

    @cached_property
    def common_length(self) -> int | None:
        """The size of every set if all are equal, else None."""
        low, high = self.lengths.aminmax()
        return int(low) if low == high else None

    def select(self, index: Any) -> SetData:
        """The sets at ``index``: whole numbers (negative ones count from the end) or a mask."""
        index = self._positions(index)
        lengths = self.lengths[index]
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        rows = torch.repeat_interleave(self.offsets[index] - offsets[:-1], lengths)
        rows += torch.arange(len(rows), device=rows.device)
        of_sets = (self.targets, self.weights, self.static)
        targets, weights, static = (None if value is None else value[index] for value in of_sets)
        ties = None if self.ties is None else self.ties[rows]
        return SetData(self.elements.index_select(0, rows), offsets, targets, weights, ties, static)

    def batch(self, index: Any, *, value: float = 0.0) -> tuple[Tensor, Tensor | None]:
        """``elements [B, T, D]``, padded with ``value`` to the longest of these sets, and ``lengths [B]``.

        ``lengths`` is None when these sets are all of one size.
        """
        index = self._positions(index)
        if self.common_length is not None:  # nothing to pad
            return self.elements.unflatten(0, (len(self), self.common_length)).index_select(0, index), None
        lengths = self.lengths[index]
        position = torch.arange(int(lengths.max()), device=lengths.device)
        padding = position >= lengths[:, None]
        rows = (self.offsets[index][:, None] + position).masked_fill_(padding, 0)
        elements = self.elements.index_select(0, rows.flatten()).view(*rows.shape, self.elements.shape[1])
        return (elements.masked_fill_(padding[:, :, None], value), lengths) if padding.any() else (elements, None)

    def ties_of(self, index: Any) -> Tensor | None:
        """``ties [B, T]`` of a batch, padded with 0; None if the data have none."""
        if self.ties is None:
            return None
        return replace(self, elements=self.ties[:, None]).batch(index)[0][:, :, 0]

    def _positions(self, index: Any) -> Tensor:
        device = self.offsets.device
        return torch.arange(len(self), device=device)[torch.as_tensor(index, device=device)]


def pad(arrays: Sequence[Any], *, value: float = 0.0) -> tuple[Tensor, Tensor]:
    """``elements [B, T, D]`` and ``lengths [B]`` from a list of arrays ``[n_i, D]`` or ``[n_i]``.

    >>> elements, lengths = pad([[1.0, 2.0, 3.0], [4.0]])
    >>> elements.shape, elements.dtype, lengths.tolist()
    (torch.Size([2, 3, 1]), torch.float32, [3, 1])
    """
    data = SetData.of(arrays if isinstance(arrays, (str, SetData)) else list(arrays))
    return data.batch(torch.arange(len(data)), value=value)[0], data.lengths


def filled(elements: Tensor, lengths: Tensor | None) -> Tensor:
    """``elements [B, T, D]`` with a true element in place of padding, for an encoder that reads everything.

    The element is the set's own first one; for an empty set that of the longest; zero if all are empty. An encoder may
    have an infinite gradient at anything that is no element, zero too, and infinity times 0 is NaN.
    """
    if lengths is None or elements.shape[1] == 0:
        return elements
    inside = torch.arange(elements.shape[1], device=elements.device) < lengths[:, None]
    first = torch.where(lengths[:, None] > 0, elements[:, 0], elements[lengths.argmax(), 0])
    return torch.where(inside[:, :, None], elements, torch.where(lengths.max() > 0, first, 0)[:, None])


def _with_features(name: str, array: Tensor, axes: int) -> Tensor:
    """``array`` with a feature axis behind ``axes`` others; an array without one holds numbers."""
    array = array[..., None] if array.dim() == axes else array
    if array.dim() != axes + 1 or (array.shape[-1] == 0 and len(array)):
        shape = "[n, D] or [n]" if axes == 1 else "[N, T, D] or [N, T]"
        raise InputError(f"{name} must have shape {shape} with D at least 1; got {list(array.shape)}")
    return array


def _numbers(name: str, values: Any) -> Tensor:
    """A tensor of arrays or nested lists; Python's floats, which have no dtype, become torch's default one."""
    if isinstance(values, Tensor):
        return values
    try:
        tensor = torch.as_tensor(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} must hold numbers; got {type(values).__name__}: {error}") from None
    while isinstance(values, (list, tuple)) and len(values):
        values = values[0]
    is_plain = type(values) in (float, int, bool, list, tuple)
    return tensor.to(torch.get_default_dtype()) if is_plain and tensor.dtype == torch.float64 else tensor
