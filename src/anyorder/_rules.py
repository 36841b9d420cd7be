"""The rules that need no torch: the errors a user can cause, and the checks of a name or a number.

The command line goes by them before it imports anything heavy; :mod:`anyorder._checks` adds those of tensors.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any


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
