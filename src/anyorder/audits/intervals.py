"""A mean with its 95 % interval in closed form, and numbers as they are read.

``docs/audit.md`` says how often the intervals cover; ``tests/audits/test_intervals.py`` measures it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anyorder.checks import extra

_LEVEL = 0.975
_HEAVY = 0.5  # share of the largest possible skewness from which a note is made

Interval = tuple[float, float]


class Estimate(float):
    """A mean, with its 95 % interval ``ci`` (None for one set) and the number of ``sets``."""

    ci: Interval | None
    sets: int

    def __new__(cls, value: float, ci: Interval | None, sets: int) -> Estimate:
        self = super().__new__(cls, value)
        self.ci, self.sets = ci, sets
        return self

    def to_dict(self) -> dict[str, float | None]:
        low, high = self.ci or (None, None)
        return {"value": float(self), "low": low, "high": high, "sets": self.sets}


def estimate(values: np.ndarray) -> Estimate:
    """The mean of ``values [N]`` and its interval.

    >>> e = estimate(np.array([1.0, 1.0, 1.0]))
    >>> e, e.ci, e.sets
    (1.0, (1.0, 1.0), 3)
    """
    return Estimate(float(values.mean()), mean_interval(values), len(values))


def mean_interval(values: np.ndarray, *, bounded: bool = False) -> Interval | None:
    """The 95 % interval of the mean of ``values [N]``; None for one value, and for values too large to square.

    Student's t, with Hall's (1992) correction for skew at the end where the long tail is. That end is moved further
    out the nearer the sample's skewness is to the largest that N values can have, about √N: the sample of a heavy
    tail shows too little of it (unless the values are ``bounded``). The other end is the farther of the two.
    """
    count, mean = len(values), float(values.mean())
    deviations = values - mean
    largest = float(np.abs(deviations).max())
    if count < 2 or not largest < 1e150:
        return None
    if largest <= 1e-12 * abs(mean):
        return mean, mean
    error = float(values.std(ddof=1)) / count**0.5
    skew = _skewness(values)
    lean = skew / count**0.5
    quantile = float(extra("scipy.special", "audit", "an audit").stdtrit(count - 1, _LEVEL))
    wide = quantile * (1 if bounded else 1 + 3 * max(abs(lean) - 0.2, 0.0))

    def hall(t: float) -> float:
        return t if abs(lean) < 1e-6 else 3 / lean * (float(np.cbrt(1 + lean * (t - lean / 6))) - 1)

    if lean >= 0:
        return mean - error * max(quantile, hall(quantile)), mean - error * min(hall(-wide), -quantile)
    return mean - error * max(hall(wide), quantile), mean + error * max(quantile, -hall(-quantile))


def root(ci: Interval | None) -> Interval | None:
    """The interval of the square root."""
    return ci and (max(ci[0], 0.0) ** 0.5, max(ci[1], 0.0) ** 0.5)


def heavy_tailed(values: np.ndarray) -> bool:
    """Whether so few of the values make up the mean that its interval may cover less than it says."""
    return len(values) > 2 and abs(_skewness(values)) > _HEAVY * len(values) ** 0.5


def rate_interval(rates: np.ndarray) -> Interval | None:
    """The 95 % interval of the mean of shares ``rates [N]`` from 0 to 1.

    The hull of :func:`mean_interval` and of Clopper and Pearson's, for as many draws as have the variance of the
    shares (Korn and Graubard), or N where all shares are equal.

    >>> low, high = rate_interval(np.zeros(20))
    >>> low, round(high, 3)
    (0.0, 0.168)
    """
    count, rate, variance = len(rates), float(rates.mean()), float(rates.var())
    skewed = mean_interval(rates, bounded=True)
    if skewed is None:
        return None
    special = extra("scipy.special", "audit", "an audit")
    shrink = (float(special.ndtri(_LEVEL)) / float(special.stdtrit(count - 1, _LEVEL))) ** 2
    draws = count if variance < 1e-12 else (count - 1) * rate * (1 - rate) / variance * shrink
    hits = rate * draws
    low = 0.0 if rate <= 0 else float(special.betaincinv(hits, draws - hits + 1, 1 - _LEVEL))
    high = 1.0 if rate >= 1 else float(special.betaincinv(hits + 1, draws - hits, _LEVEL))
    return max(min(low, skewed[0]), 0.0), min(max(high, skewed[1]), 1.0)


def _skewness(values: np.ndarray) -> float:
    deviations = values - values.mean()
    scaled = deviations / (np.abs(deviations).max() or 1.0)
    return float((scaled**3).mean() / max((scaled**2).mean() ** 1.5, 1e-30))


def short(value: float) -> str:
    """A number of three digits; a dash for NaN and infinity."""
    return f"{value:.3g}" if np.isfinite(value) else "–"


def percent(value: float) -> str:
    """A share in percent, three digits."""
    return f"{100 * value:.3g} %"


def interval(ci: Interval | None, write: Callable[[float], str] = short) -> str:
    """An interval in words; a dash where there is none."""
    return "–" if ci is None else f"{write(ci[0])} to {write(ci[1])}"
