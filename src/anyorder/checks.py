"""One voice for input errors: the argument, the rule, what was received.

An error that a user can cause is an :class:`InputError` (a ``ValueError``) or an :class:`InputTypeError` (a
``TypeError``). It is raised once, by the public function where the value enters.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line checks its flags before torch is imported
    from torch import Tensor

_SHOWN = 40  # values that a message lists


class InputError(ValueError):
    """A value breaks a rule; the message names the argument, the rule and the value."""


class Diverged(InputError):
    """The loss or the validation metric of a training was never finite, so there is no model."""


class InputTypeError(TypeError):
    """An argument is of the wrong type; the message names the argument and what it got."""


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """``value`` if it is allowed; otherwise an error with the allowed values and the closest."""
    allowed = list(allowed)
    if value in allowed:
        return value
    close = difflib.get_close_matches(str(value), [str(a) for a in allowed], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(map(repr, allowed[:_SHOWN])) + f", … ({len(allowed):,} in all)" * (len(allowed) > _SHOWN)
    raise InputError(f"{name} must be one of {listed}; got {value!r}{hint}")


def whole_number(name: str, value: Any, minimum: int = 1, maximum: int = 2**63 - 1) -> int:
    """``value`` as an int from ``minimum`` to ``maximum``."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputTypeError(f"{name} must be a whole number; got {value!r} ({type(value).__name__})")
    number = int(value)
    if not minimum <= number <= maximum:
        rule = f"at least {minimum}" if number < minimum else f"at most {maximum}"
        raise InputError(f"{name} must be {rule}; got {number}")
    return number


def real_number(
    name: str, value: Any, *, at_least: float = -inf, above: float = -inf, at_most: float = inf, below: float = inf
) -> float:
    """``value`` as a finite float within the given bounds; text is not converted."""
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise InputTypeError(f"{name} must be a number; got {value!r}")
    number = float(value)
    if not (isfinite(number) and at_least <= number <= at_most and above < number < below):
        bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
        rules = [f"{rule} {bound}" for rule, bound in bounds.items() if isfinite(bound)]
        raise InputError(f"{name} must be {' and '.join(['finite', *rules])}; got {number}")
    return number


def extra(module: str, extra: str, what: str = "this") -> Any:
    """The imported ``module``; an :class:`InputError` that names the extra to install if it is missing.

    >>> extra("json", "tables").dumps({})
    '{}'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"{what} needs {error.name}: pip install 'anyorder[{extra}]'") from None


_check_finite = True


@contextmanager
def finite_checks(enabled: bool) -> Iterator[None]:
    """Switch the check for NaN and infinite elements on or off inside a ``with`` block.

    The check reads all elements once per scan. On a GPU it also waits for the device.

    >>> import torch, anyorder as ao
    >>> with finite_checks(False):
    ...     trajectory = ao.recurrence(torch.nn.GRU(3, 8, batch_first=True)).scan(torch.zeros(2, 4, 3))
    """
    global _check_finite
    before, _check_finite = _check_finite, enabled
    try:
        yield
    finally:
        _check_finite = before


def checked_batch(
    elements: Any, lengths: Any = None, *, batch_first: bool = True, name: str = "elements"
) -> tuple[Tensor, Tensor | None]:
    """A checked batch as ``elements [B, T, D]`` and ``lengths [B]``; ``batch_first=False`` reads ``[T, B, D]``.

    A PackedSequence or a nested tensor ``[B, j, D]`` carries its lengths and has no layout.
    """
    from torch.nn.utils.rnn import PackedSequence

    if isinstance(elements, PackedSequence) or getattr(elements, "is_nested", False):
        if lengths is not None:
            raise InputError(f"lengths must be left out: {name} carry their own; got lengths as well")
        elements, lengths, batch_first = *_padded(elements), True
    elements = checked_elements(elements, name, batch_first)
    elements = elements if batch_first else elements.transpose(0, 1)
    lengths = checked_lengths(lengths, elements)
    require_finite(elements, lengths, name)
    return elements, lengths


def _padded(elements: Any) -> tuple[Tensor, Tensor]:
    """A PackedSequence or a nested tensor as a padded tensor, batch first, and lengths."""
    import torch
    from torch.nn.utils import rnn

    if isinstance(elements, rnn.PackedSequence):
        return rnn.pad_packed_sequence(elements, batch_first=True)
    sets = elements.unbind()
    return rnn.pad_sequence(sets, batch_first=True), torch.tensor([len(each) for each in sets])


def checked_elements(elements: Any, name: str = "elements", batch_first: bool = True) -> Tensor:
    """``elements`` if it is a tensor of three axes with at least one set and one feature."""
    from torch import Tensor

    is_tensor = isinstance(elements, Tensor)
    if is_tensor and elements.dim() == 3 and elements.shape[0 if batch_first else 1] and elements.shape[2]:
        return elements
    axes = "[B, T, D]" if batch_first else "[T, B, D] (batch_first=False)"
    got = f"shape {list(elements.shape)}" if is_tensor else f"{type(elements).__name__} (anyorder.pad makes a tensor)"
    kind = InputError if is_tensor else InputTypeError
    raise kind(f"{name} must be a tensor {axes} with at least one set and one feature; got {got}")


def checked_lengths(lengths: Any, elements: Tensor) -> Tensor | None:
    """``lengths`` as int64 on the elements' device, each from 0 to T; None means all T."""
    import torch

    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths)
    batch, longest = elements.shape[:2]
    whole = not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)
    fits = whole and lengths.shape == (batch,)
    if fits and not torch.compiler.is_compiling():
        fits = bool(((lengths >= 0) & (lengths.long() <= longest)).all())
    if not fits:
        got = f"{lengths.flatten()[:8].tolist()} of shape {list(lengths.shape)}"
        kind = InputError if whole else InputTypeError
        hint = "; a mask gives them as mask.sum(1)" if lengths.dtype == torch.bool else ""
        raise kind(f"lengths must be {batch} whole numbers from 0 to T = {longest}, one per set; got {got}{hint}")
    return lengths.to(device=elements.device, dtype=torch.int64)


def checked_ties(ties: Any, elements: Tensor, lengths: Tensor | None, name: str = "ties") -> Tensor:
    """``ties [B, T]`` on the elements' device; equal values of a set must stand together."""
    import torch

    ties = torch.as_tensor(ties, device=elements.device)
    shape = elements.shape[:2]
    if ties.shape != shape or ties.is_complex():
        raise InputError(f"{name} must be numbers of shape {list(shape)}, one per element; got {list(ties.shape)}")
    if torch.compiler.is_compiling():
        return ties
    inside = torch.ones(shape, dtype=torch.bool, device=ties.device)
    if lengths is not None:
        inside = torch.arange(shape[1], device=ties.device) < lengths[:, None]
    ordered = ties.masked_fill(~inside, ties[inside].max() if bool(inside.any()) else 0).sort(1).values
    runs, distinct = ((x[:, 1:] != x[:, :-1]) & inside[:, 1:] for x in (ties, ordered))
    apart = (runs.sum(1) > distinct.sum(1)) | (ties.isnan() & inside).any(1)
    if bool(apart.any()):
        raise InputError(
            f"{name} must stand together, without NaN; set {int(apart.nonzero()[0])} returns to an earlier value "
            "(sort its elements by time)"
        )
    return ties


def require_finite(elements: Tensor, lengths: Tensor | None, name: str = "elements") -> None:
    """Refuse NaN and infinite values within the lengths; usually one sum decides. Padding may hold anything."""
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
        row, position = bad.nonzero()[0].tolist()
        raise InputError(
            f"{name} must be finite within the lengths; set {row} holds NaN or an infinite value at position "
            f"{position} (clean the data, or switch this check off: anyorder.checks.finite_checks(False))"
        )
