"""A penalty weight that seeks a target gap."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from anyorder.checks import InputError, InputTypeError, real_number


@dataclass
class AdaptiveWeight:
    """A penalty weight that seeks a target gap: dual ascent on log weight, within bounds.

    Each update moves log(weight) by ``rate`` × log(gap / target), at most ``rate`` either way: a gap above the
    target raises the weight, one below lowers it. ``gap`` is usually :func:`order_gap` of the last batch.

    >>> budget = AdaptiveWeight(target=0.01)
    >>> budget.update(0.5) > 1.0
    True
    """

    target: float = 0.01
    weight: float = 1.0
    rate: float = 0.1
    bounds: tuple[float, float] = (1e-4, 1e4)

    def __post_init__(self) -> None:
        self.target = real_number("target", self.target, above=0)
        self.rate = real_number("rate", self.rate, above=0)
        if not isinstance(self.bounds, (tuple, list)) or len(self.bounds) != 2:
            raise InputError(f"bounds must be (lower, upper); got {self.bounds!r}")
        low, high = self.bounds
        low, high = real_number("lower bound", low, above=0), real_number("upper bound", high, above=0)
        if low > high:
            raise InputError(f"bounds must be (lower, upper); got {self.bounds}")
        self.bounds = (low, high)
        self.weight = real_number("weight", self.weight, at_least=low, at_most=high)

    def update(self, gap: float | Tensor) -> float:
        """Move the weight towards where the gap meets the target; returns the new weight."""
        try:
            gap = float(gap)
        except (TypeError, ValueError, RuntimeError):  # a tensor of several
            raise InputTypeError(f"gap must be one number, such as order_gap gives; got {gap!r}") from None
        if math.isnan(gap) or gap < 0:
            raise InputError(f"gap must be a number of at least 0; got {gap} (has the training diverged?)")
        excess = math.log(max(gap, 1e-300) / self.target)
        weight = self.weight * math.exp(self.rate * min(1.0, max(-1.0, excess)))
        self.weight = min(self.bounds[1], max(self.bounds[0], weight))
        return self.weight

    def state_dict(self) -> dict[str, Any]:
        """All of it as JSON-able values."""
        return {**asdict(self), "bounds": list(self.bounds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        if not isinstance(state, dict) or state.keys() != asdict(self).keys():
            got = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise InputError(f"the state of a budget has {', '.join(asdict(self))}; got {got}")
        self.__dict__.update(replace(self, **state).__dict__)
