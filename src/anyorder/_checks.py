"""One voice for input errors: what was wrong, the rule, what was received, what to do.

Every error a user can cause is an :class:`InputError` (a ``ValueError``) or an :class:`InputTypeError`
(a ``TypeError``), raised at the door by one of the functions below. Inside, values are trusted. The command
line turns both into one line on stderr and exit status 2; anything else that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from anyorder._rules import Diverged, InputError, InputTypeError, one_of, real_number, whole_number

__all__ = [
    "Diverged",
    "InputError",
    "InputTypeError",
    "checked_elements",
    "checked_lengths",
    "finite_checks",
    "one_of",
    "real_number",
    "require_finite",
    "whole_number",
]

_check_finite = True


@contextmanager
def finite_checks(enabled: bool) -> Iterator[None]:
    """Turn the check for NaN and infinite elements on or off inside a ``with`` block.

    The check is one pass over the elements of each scan. It is on by default; on a GPU it waits for the
    device, so a tuned training loop may want it off.

    >>> import anyorder as ao
    >>> with ao.finite_checks(False):
    ...     pass  # scans in here do not look for NaN
    """
    global _check_finite
    before, _check_finite = _check_finite, enabled
    try:
        yield
    finally:
        _check_finite = before


def checked_elements(elements: Any, name: str = "elements") -> Tensor:
    """``elements`` if it is a non-empty batch ``[B, T, D]`` with at least one feature."""
    if not isinstance(elements, Tensor):
        raise InputTypeError(
            f"{name} must be a tensor [B, T, D]; got {type(elements).__name__} "
            "(anyorder.pad makes one from a list of arrays)"
        )
    shape = list(elements.shape)
    if elements.dim() != 3:
        raise InputError(f"{name} must have three axes [B, T, D]; got shape {shape}")
    if shape[0] == 0:
        raise InputError(f"{name} must hold at least one sample; got an empty batch, shape {shape}")
    if shape[2] == 0:
        raise InputError(f"{name} must have at least one feature; got shape {shape}")
    return elements


def checked_lengths(lengths: Any, elements: Tensor, name: str = "lengths") -> Tensor | None:
    """``lengths`` as int64 on the elements' device: one a sample, each from 0 to T; None means all T."""
    if lengths is None:
        return None
    if not isinstance(lengths, Tensor):
        try:
            lengths = torch.as_tensor(lengths)
        except (TypeError, ValueError, RuntimeError):
            raise InputTypeError(f"{name} must be whole numbers, one a sample; got {lengths!r}") from None
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise InputTypeError(f"{name} must be whole numbers (int64); got dtype {lengths.dtype}")
    batch, longest = elements.shape[:2]
    if lengths.dim() != 1 or lengths.shape[0] != batch:
        raise InputError(f"{name} must have shape [{batch}], one number a sample; got shape {list(lengths.shape)}")
    lengths = lengths.to(device=elements.device, dtype=torch.int64)
    if not torch.compiler.is_compiling():
        low, high = torch.stack([lengths.min(), lengths.max()]).tolist()
        if low < 0:
            at = int(lengths.argmin())
            raise InputError(f"{name} must not be negative; got {low} for sample {at}")
        if high > longest:
            at = int(lengths.argmax())
            raise InputError(f"{name} must be at most T = {longest}; got {high} for sample {at}")
    return lengths


def require_finite(elements: Tensor, lengths: Tensor | None, name: str = "elements") -> None:
    """Refuse NaN and infinite values inside the lengths. Padding may hold anything.

    One sum decides in the usual case; only when it is not finite (padding with NaN, a true fault, or an
    overflow) is each element looked at.
    """
    if not _check_finite or not elements.is_floating_point() or torch.compiler.is_compiling():
        return
    values = elements.detach()
    if torch._C._functorch.maybe_current_level() is not None or bool(torch.isfinite(values.sum())):
        return
    bad = ~torch.isfinite(values).all(dim=2)
    if lengths is not None:
        bad &= torch.arange(values.shape[1], device=values.device) < lengths[:, None]
    if bool(bad.any()):
        sample, position = bad.nonzero()[0].tolist()
        raise InputError(
            f"{name} must be finite inside the lengths; sample {sample} holds NaN or an infinite value at "
            f"position {position} (clean the data, or anyorder.finite_checks(False) to skip this check)"
        )
