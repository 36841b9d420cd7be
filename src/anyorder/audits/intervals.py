"""A mean with its bootstrap interval, and numbers as they are read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anyorder.checks import extra

_SKEWED = 1000  # up to this many values the interval is corrected for skew, which takes their number squared

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
        return {"gap": float(self), "low": low, "high": high, "sets": self.sets}


def estimate(values: np.ndarray, rng: np.random.Generator) -> Estimate:
    """The mean of ``values [N]`` and its interval.

    >>> e = estimate(np.array([1.0, 1.0, 1.0]), np.random.default_rng(0))
    >>> e, e.ci, e.sets
    (1.0, (1.0, 1.0), 3)
    """
    return Estimate(float(values.mean()), bootstrap_interval(values, rng, 1000), len(values))


def bootstrap_interval(values: np.ndarray, rng: np.random.Generator, resamples: int = 2000) -> Interval | None:
    """The 95 % bootstrap interval of the mean of ``values [N]``, corrected for bias and skew (BCa).

    None for one value, and for values too large to square. Of more than 1,000 values it is the percentile interval.
    """
    count, mean = len(values), float(values.mean())
    with np.errstate(over="ignore"):
        deviation = float(np.sqrt(((values - mean) ** 2).mean()))
    if count < 2 or not np.isfinite(deviation):
        return None
    if deviation <= 1e-12 * abs(mean):
        return mean, mean
    found = extra("scipy.stats", "audit", "an audit").bootstrap(
        (values,),
        np.mean,
        n_resamples=resamples,
        method="BCa" if count <= _SKEWED else "percentile",
        batch=max(1, 1_000_000 // count),
        rng=rng,
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def rate_interval(rates: np.ndarray, rng: np.random.Generator) -> Interval | None:
    """:func:`bootstrap_interval` of shares from 0 to 1, and an exact bound where all N of them are equal.

    N equal draws leave room for a share u of others, (1 − u)^N = 0.025, each of them 0 or 1.

    >>> low, high = rate_interval(np.zeros(20), np.random.default_rng(0))
    >>> low, round(high, 3)
    (0.0, 0.168)
    """
    count, rate = len(rates), float(rates.mean())
    if count < 2 or rates.min() < rates.max():
        return bootstrap_interval(rates, rng)
    others = 1 - 0.025 ** (1 / count)
    return rate * (1 - others), rate * (1 - others) + others


def short(value: float) -> str:
    """A number of three digits; a dash for NaN and infinity."""
    return f"{value:.3g}" if np.isfinite(value) else "–"


def percent(value: float) -> str:
    """A share in percent, three digits."""
    return f"{100 * value:.3g} %"


def interval(ci: Interval | None, write: Callable[[float], str] = short) -> str:
    """An interval in words; a dash where there is none."""
    return "–" if ci is None else f"{write(ci[0])} to {write(ci[1])}"
