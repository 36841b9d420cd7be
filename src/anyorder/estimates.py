"""A mean with its bootstrap interval, and numbers as they are read."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

_NORMAL = NormalDist()
_BLOCK = 1_000_000  # numbers drawn at once


class Estimate(float):
    """A number that knows its 95 % interval ``ci`` and how many ``samples`` it averages."""

    ci: tuple[float, float]
    samples: int

    def __new__(cls, value: float, ci: tuple[float, float], samples: int) -> Estimate:
        self = super().__new__(cls, value)
        self.ci = ci
        self.samples = samples
        return self

    def __getnewargs__(self) -> tuple[float, tuple[float, float], int]:  # type: ignore[override]
        return float(self), self.ci, self.samples


def estimate(values: np.ndarray, rng: np.random.Generator, resamples: int = 1000) -> Estimate:
    """The mean of ``values [N]`` and its interval.

    >>> e = estimate(np.array([1.0, 1.0, 1.0]), np.random.default_rng(0))
    >>> e, e.ci, e.samples
    (1.0, (1.0, 1.0), 3)
    """
    return Estimate(float(values.mean()), bootstrap_interval(values, rng, resamples), len(values))


def bootstrap_interval(
    values: np.ndarray, rng: np.random.Generator, resamples: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """Bias-corrected and accelerated (BCa) bootstrap interval of the mean of ``values [N]``.

    Resampled means θ* are read at the levels Φ(z₀ + (z₀ + z)/(1 − a(z₀ + z))), where z₀ = Φ⁻¹(P(θ* < θ)) corrects
    the bias and a = skewness/(6√N) the skew. Constant values have an interval of no width.
    """
    count, mean = len(values), float(values.mean())
    centred = values - mean
    deviation = float(np.sqrt((centred**2).mean()))
    if count < 2 or deviation <= 1e-12 * abs(mean):
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


def short(value: float) -> str:
    """Three digits are enough to read."""
    return f"{value:.3g}"


def percent(value: float) -> str:
    """A share in percent, three digits."""
    return f"{100 * value:.3g} %"
