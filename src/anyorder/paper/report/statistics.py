"""Means over seeds with their intervals, paired differences, and what they say about a claim."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from scipy import stats

from anyorder.checks import InputError
from anyorder.paper.runner.trial import Row, Setting


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
    """Mean ± standard deviation over seeds; of a single seed its value."""
    if len(sample) == 1:
        return f"{sample.mean:.{digits}f} (one seed)"
    return f"{sample.mean:.{digits}f} ± {sample.sd:.{digits}f}"


def difference(one: Sample, other: Sample, digits: int = 3, *, words: str = "95 % interval ") -> str:
    """The paired difference with its 95 % interval; of a single seed without."""
    gap = one.minus(other)
    if len(gap) < 2:
        return f"{gap.mean:+.{digits}f} (one seed)" if len(gap) else "no seed in common"
    return f"{gap.mean:+.{digits}f} ({words}{gap.low:+.{digits}f} to {gap.high:+.{digits}f})"


Verdict = Literal["holds", "does not hold", "not clear"]


@dataclass(frozen=True)
class Claim:
    """A sentence with its numbers, and whether it holds: None where that is not for the numbers to say.

    Claims of the same ``table`` (its caption) are lines of it, ``cells`` their columns. ``short`` is what a summary
    says of the whole experiment. A claim ``beside`` the experiment's own has a verdict and does not decide that.
    """

    text: str
    verdict: Verdict | None = None
    table: str = ""
    cells: Mapping[str, str] = field(default_factory=dict)
    short: str = ""
    beside: bool = False


def ahead(one: Sample, other: Sample, *, lower: bool = False) -> Verdict | None:
    """Whether ``one`` is better, seed by seed: not clear where the 95 % interval of the difference contains 0.

    None below two seeds in common: they have no interval.

    >>> one = Sample({0: 0.90, 1: 0.93, 2: 0.91})
    >>> ahead(one, Sample({0: 0.80, 1: 0.82, 2: 0.81})), ahead(one, Sample({0: 0.91, 1: 0.92, 2: 0.91}))
    ('holds', 'not clear')
    """
    gap = other.minus(one) if lower else one.minus(other)
    return None if len(gap) < 2 else _beyond(gap.low, gap.high, 0.0)


def level(one: Sample, other: Sample, margin: float) -> Verdict | None:
    """Whether ``one`` is less than ``margin`` behind: not clear where the 95 % interval contains that difference.

    >>> level(Sample({0: 0.900, 1: 0.902, 2: 0.901}), Sample({0: 0.910, 1: 0.910, 2: 0.910}), 0.02)
    'holds'
    """
    gap = one.minus(other)
    return None if len(gap) < 2 else _beyond(gap.low, gap.high, -margin)


def _beyond(low: float, high: float, bar: float) -> Verdict:
    if low > bar:
        return "holds"
    return "does not hold" if high < bar else "not clear"


def matching(rows: Sequence[Row], where: Setting) -> list[Row]:
    """The rows whose setting has the values of ``where``."""
    return [row for row in rows if all(row["setting"].get(key) == value for key, value in where.items())]


def sample_of(
    rows: Sequence[Row], metric: str, method: str | None = None, *, part: str = "metrics", **where: Any
) -> Sample:
    """``metric`` by seed, of the rows of ``method`` that match ``where``; ``part``: test split or "validation"."""
    found = [row for row in matching(rows, where) if method is None or row["method"] == method]
    return by_seed(((row["seed"], row[part][metric]) for row in found if metric in row[part]), metric)


def by_seed(values: Iterable[tuple[int, float]], what: str) -> Sample:
    """A sample of (seed, value) pairs; two values of one seed would hide each other and are refused."""
    found: dict[int, float] = {}
    for seed, value in values:
        if seed in found:
            raise InputError(f"{what} has two values of seed {seed}; the rows must differ in no other setting")
        found[seed] = value
    return Sample(found)


def accuracy_by_labels(rows: Sequence[Row], method: str) -> dict[int, Sample]:
    """The accuracy of ``method`` at each number of labels it was given, fewest first."""
    mine = [row for row in rows if row["method"] == method]
    return {
        number: sample_of(mine, "accuracy", labels=number) for number in sorted({r["setting"]["labels"] for r in mine})
    }


def labels_for(curve: Mapping[int, Sample], goal: float, seeds: Sequence[int] | None = None) -> float:
    """How many labels ``goal`` takes: between measured numbers, straight on a logarithmic axis.

    The fewest measured where that suffices, infinity where the most does not. ``seeds`` (with repetitions) are those
    to average over, None: all.
    """
    before: tuple[float, float] | None = None
    for number, sample in curve.items():
        mean = sample.mean if seeds is None else sum(sample.values[seed] for seed in seeds) / len(seeds)
        if mean >= goal:
            if before is None:
                return float(number)
            share = (goal - before[1]) / (mean - before[1])
            return math.exp(math.log(before[0]) + share * (math.log(number) - math.log(before[0])))
        before = (number, mean)
    return math.inf


def times_fewer(
    mine: Mapping[int, Sample], theirs: Mapping[int, Sample], goal: float, draws: int = 2000
) -> tuple[float, float] | None:
    """The 95 % interval of how many times fewer labels ``mine`` takes, by bootstrap over the seeds both have.

    None below two such seeds. Where both take the fewest measured, or neither reaches the goal, they count as equal.
    """
    seeds = sorted(set.intersection(*(set(sample.values) for curve in (mine, theirs) for sample in curve.values())))
    if len(seeds) < 2:
        return None
    generator, found = random.Random(0), []
    for _ in range(draws):
        drawn = generator.choices(seeds, k=len(seeds))
        ours, others = labels_for(mine, goal, drawn), labels_for(theirs, goal, drawn)
        found.append(1.0 if ours == others else others / ours)
    found.sort()
    return found[round(0.025 * draws)], found[-1 - round(0.025 * draws)]


def fewer(interval: tuple[float, float] | None) -> Verdict | None:
    """Whether the interval of ``times_fewer`` lies above one."""
    return None if interval is None else _beyond(*interval, 1.0)
