"""Means over seeds with their intervals, paired differences, and what they say about a claim."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from scipy import stats

from anyorder._checks import InputError
from anyorder.paper.trials import Row, Setting


@dataclass(frozen=True)
class Sample:
    """A figure of several seeds: ``values[seed]``.

    >>> s = Sample({0: 0.9, 1: 1.0, 2: 0.95})
    >>> f"{s.mean:.2f} ± {s.sd:.2f}, {s.low:.2f} to {s.high:.2f}"
    '0.95 ± 0.05, 0.83 to 1.07'
    """

    values: dict[int, float]

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def mean(self) -> float:
        """The mean over seeds; nan of none."""
        return sum(self.values.values()) / len(self.values) if self.values else math.nan

    @cached_property
    def sd(self) -> float:
        """The standard deviation between seeds; 0 of one."""
        if len(self.values) < 2:
            return 0.0
        return math.sqrt(sum((v - self.mean) ** 2 for v in self.values.values()) / (len(self.values) - 1))

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean (Student's t); nan of fewer than two seeds."""
        number = len(self.values)
        if number < 2:
            return math.nan
        return float(stats.t.ppf(0.975, number - 1)) * self.sd / math.sqrt(number)

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def minus(self, other: Sample) -> Sample:
        """The difference seed by seed: both saw the same sets."""
        return Sample({seed: v - other.values[seed] for seed, v in self.values.items() if seed in other.values})


def pm(sample: Sample, digits: int = 3) -> str:
    """Mean ± standard deviation over seeds."""
    return f"{sample.mean:.{digits}f} ± {sample.sd:.{digits}f}"


def difference(one: Sample, other: Sample, digits: int = 3) -> str:
    """The paired difference with its 95 % interval."""
    gap = one.minus(other)
    return f"{gap.mean:+.{digits}f} (95 % interval {gap.low:+.{digits}f} to {gap.high:+.{digits}f})"


Verdict = Literal["holds", "does not hold", "not clear"]


@dataclass(frozen=True)
class Claim:
    """A sentence with its numbers, and whether it holds: None where that is not for the numbers to say."""

    text: str
    verdict: Verdict | None = None


def held(outcome: bool) -> Verdict:
    """The verdict on what a single comparison of means decides."""
    return "holds" if outcome else "does not hold"


def ahead(one: Sample, other: Sample, *, lower: bool = False) -> Verdict:
    """Whether ``one`` is better, seed by seed: not clear where the 95 % interval of the difference contains 0.

    >>> one = Sample({0: 0.90, 1: 0.93, 2: 0.91})
    >>> ahead(one, Sample({0: 0.80, 1: 0.82, 2: 0.81})), ahead(one, Sample({0: 0.91, 1: 0.92, 2: 0.91}))
    ('holds', 'not clear')
    """
    gap = other.minus(one) if lower else one.minus(other)
    if gap.low > 0:
        return "holds"
    return "does not hold" if gap.high < 0 else "not clear"


def matching(rows: Sequence[Row], where: Setting) -> list[Row]:
    """The rows whose setting has the values of ``where``."""
    return [row for row in rows if all(row["setting"].get(key) == value for key, value in where.items())]


def sample_of(rows: Sequence[Row], metric: str, method: str | None = None, **where: Any) -> Sample:
    """``metric`` by seed, of the rows of ``method`` that match ``where``."""
    found = [row for row in matching(rows, where) if method is None or row["method"] == method]
    return by_seed(((row["seed"], row["metrics"][metric]) for row in found if metric in row["metrics"]), metric)


def by_seed(values: Iterable[tuple[int, float]], what: str) -> Sample:
    """A sample of (seed, value) pairs; two values of one seed would hide each other and are refused."""
    found: dict[int, float] = {}
    for seed, value in values:
        if seed in found:
            raise InputError(f"{what} has two values of seed {seed}; the rows must differ in no other setting")
        found[seed] = value
    return Sample(found)


def labels_for(rows: Sequence[Row], method: str, goal: float, metric: str = "accuracy", **where: Any) -> float | None:
    """How many labels ``method`` needs for ``goal``: between measured numbers, straight on a logarithmic axis.

    None if it does not reach the goal at the largest number measured.
    """
    mine = [row for row in matching(rows, where) if row["method"] == method]
    means = [
        (number, sample_of(mine, metric, labels=number).mean)
        for number in sorted({r["setting"]["labels"] for r in mine})
    ]
    before: tuple[float, float] | None = None
    for number, mean in means:
        if mean >= goal:
            if before is None:
                return float(number)
            share = (goal - before[1]) / (mean - before[1])
            return math.exp(math.log(before[0]) + share * (math.log(number) - math.log(before[0])))
        before = (number, mean)
    return None
