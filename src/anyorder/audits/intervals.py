"""A mean with its bootstrap interval, and numbers as they are read."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import numpy as np

_NORMAL = NormalDist()
_BLOCK = 1_000_000  # numbers drawn at once


Interval = tuple[float, float]


class Estimate(float):
    """A number that knows its 95 % interval ``ci`` (None: of one sample) and how many ``sets`` it averages."""

    ci: Interval | None
    sets: int

    def __new__(cls, value: float, ci: Interval | None, sets: int) -> Estimate:
        self = super().__new__(cls, value)
        self.ci = ci
        self.sets = sets
        return self

    def __getnewargs__(self) -> tuple[float, Interval | None, int]:  # type: ignore[override]
        return float(self), self.ci, self.sets


def estimate(values: np.ndarray, rng: np.random.Generator, resamples: int = 1000) -> Estimate:
    """The mean of ``values [N]`` and its interval.

    >>> e = estimate(np.array([1.0, 1.0, 1.0]), np.random.default_rng(0))
    >>> e, e.ci, e.sets
    (1.0, (1.0, 1.0), 3)
    """
    return Estimate(float(values.mean()), bootstrap_interval(values, rng, resamples), len(values))


def bootstrap_interval(
    values: np.ndarray, rng: np.random.Generator, resamples: int = 2000, level: float = 0.95
) -> Interval | None:
    """Bias-corrected and accelerated (BCa) bootstrap interval of the mean of ``values [N]``.

    Resampled means θ* are read at the levels Φ(z₀ + (z₀ + z)/(1 − a(z₀ + z))), where z₀ = Φ⁻¹(P(θ* < θ)) corrects
    the bias and a = skewness/(6√N) the skew. Constant values have an interval of no width; one value has none, nor
    have values too large to square.
    """
    count, mean = len(values), float(values.mean())
    centred = values - mean
    with np.errstate(over="ignore"):
        deviation = float(np.sqrt((centred**2).mean()))
    if count < 2 or not np.isfinite(deviation):
        return None
    if deviation <= 1e-12 * abs(mean):
        return mean, mean
    means = np.empty(resamples)
    block = max(1, _BLOCK // count)
    for begin in range(0, resamples, block):
        rows = min(block, resamples - begin)
        means[begin : begin + rows] = values[rng.integers(count, size=(rows, count))].mean(axis=1)
    below = ((means < mean).mean() + (means <= mean).mean()) / 2
    bias = _NORMAL.inv_cdf(min(max(below, 1 / resamples), 1 - 1 / resamples))
    skew = float(((centred / deviation) ** 3).mean()) / (6 * np.sqrt(count))
    levels = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        z = bias + _NORMAL.inv_cdf(tail)
        levels.append(_NORMAL.cdf(bias + z / (1 - skew * z)))
    low, high = np.quantile(means, levels)
    return float(low), float(high)


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
    """Three digits are enough to read; a dash for what has no value."""
    return f"{value:.3g}" if np.isfinite(value) else "–"


def percent(value: float) -> str:
    """A share in percent, three digits."""
    return f"{100 * value:.3g} %"


def interval(ci: Interval | None, write: Callable[[float], str] = short) -> str:
    """An interval to be read; a dash where there is none."""
    return "–" if ci is None else f"{write(ci[0])} to {write(ci[1])}"
