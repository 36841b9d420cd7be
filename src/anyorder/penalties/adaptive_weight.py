"""A penalty weight that seeks a target gap."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from anyorder.checks import real_number


@dataclass
class AdaptiveWeight:
    """A penalty weight that seeks a target gap: dual ascent on log weight, within bounds.

    Each update adds ``rate`` × log(gap / target) to log(weight), at most ``rate`` in either direction. A gap above
    the target raises the weight, one below lowers it. The gap is usually :func:`anyorder.order_gap` of the last batch.

    >>> weight = AdaptiveWeight(target=0.05)
    >>> weight.update(0.5) > 1.0
    True
    """

    target: float = 0.05
    weight: float = 1.0
    rate: float = 0.1
    bounds: tuple[float, float] = (1e-4, 1e4)

    def __post_init__(self) -> None:
        self.target = real_number("target", self.target, above=0)
        self.rate = real_number("rate", self.rate, above=0)
        low, high = self.bounds
        low = real_number("bounds[0]", low, above=0)
        self.bounds = (low, real_number("bounds[1]", high, at_least=low))
        self.weight = real_number("weight", self.weight, at_least=low, at_most=self.bounds[1])

    def update(self, gap: float | Tensor) -> float:
        """The new weight, moved towards where the gap meets the target."""
        gap = min(float(gap), 1e300)  # an infinite gap is one above the target
        excess = math.log(max(real_number("gap", gap, at_least=0), 1e-300) / self.target)
        weight = self.weight * math.exp(self.rate * min(1.0, max(-1.0, excess)))
        self.weight = min(self.bounds[1], max(self.bounds[0], weight))
        return self.weight

    def state_dict(self) -> dict[str, Any]:
        """All settings and the weight as JSON-able values."""
        return {**asdict(self), "bounds": list(self.bounds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.__dict__.update(AdaptiveWeight(**{**state, "bounds": tuple(state["bounds"])}).__dict__)
