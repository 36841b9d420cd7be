"""One voice for input errors: what was wrong, the rule, what was received, what to do.

Every error a user can cause is an :class:`InputError` (a ``ValueError``) or an :class:`InputTypeError`
(a ``TypeError``), raised once, at the public function where the value enters. The command line turns both
into one line on stderr and exit status 2.
"""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line checks its flags before torch is imported
    from torch import Tensor


class InputError(ValueError):
    """A value breaks a rule; the message says which value, which rule, and what to do."""


class Diverged(InputError):
    """A training whose loss or validation figure was never finite: there is no model to give back."""


class InputTypeError(TypeError):
    """An argument is of the wrong kind; the message says what was expected and what was received."""


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """``value`` if it is one of ``allowed``; otherwise an error that lists them and guesses what was meant."""
    allowed = list(allowed)
    if value in allowed:
        return value
    close = difflib.get_close_matches(str(value), [str(a) for a in allowed], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}{hint}")


def whole_number(name: str, value: Any, minimum: int = 1, maximum: int = 2**63 - 1) -> int:
    """``value`` as an int from ``minimum`` to ``maximum``, which is the largest that 64 bits hold."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputTypeError(f"{name} must be a whole number; got {value!r} ({type(value).__name__})")
    if int(value) < minimum:
        raise InputError(f"{name} must be at least {minimum}; got {int(value)}")
    if int(value) > maximum:
        raise InputError(f"{name} must be at most {maximum}; got {int(value)}")
    return int(value)


def real_number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> float:
    """``value`` as a finite float within the bounds given; text is not read as a number."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise InputTypeError(f"{name} must be a number; got {value!r} ({type(value).__name__})") from None
    except OverflowError:
        number = math.inf
    rules = [
        (math.isfinite(number), "finite"),
        (at_least is None or number >= at_least, f"at least {at_least}"),
        (above is None or number > above, f"above {above}"),
        (at_most is None or number <= at_most, f"at most {at_most}"),
        (below is None or number < below, f"below {below}"),
    ]
    for holds, rule in rules:
        if not holds:
            raise InputError(f"{name} must be {rule}; got {number}")
    return number


def extra(module: str, extra: str, what: str = "this") -> Any:
    """The imported ``module``; an :class:`InputError` that names the extra to install if it is missing.

    >>> extra("json", "tables").dumps({})
    '{}'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("anyorder"):
            raise
        raise InputError(f"{what} needs {error.name}: pip install 'anyorder[{extra}]'") from None


_check_finite = True


@contextmanager
def finite_checks(enabled: bool) -> Iterator[None]:
    """Turn the check for NaN and infinite elements on or off inside a ``with`` block.

    The check is one pass over the elements of each scan. It is on by default; on a GPU it waits for the
    device, so a tuned training loop may want it off.

    >>> with finite_checks(False):
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
    from torch import Tensor

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
    import torch
    from torch import Tensor

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
    import torch

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
            f"position {position} (clean the data, or anyorder.checks.finite_checks(False) to skip this check)"
        )
