"""Means over seeds with their intervals, paired differences, and how many labels a goal takes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import stdev
from typing import Any

from scipy import stats

from anyorder.checks import InputError
from anyorder.paper.runner.trial import Row, Setting


@dataclass(frozen=True)
class Sample:
    """A figure of several seeds: ``values[seed]``.

    >>> s = Sample({0: 0.9, 1: 1.0, 2: 0.95})
    >>> print(s, [round(end, 2) for end in s.interval])
    0.950 ± 0.050 [0.83, 1.07]
    """

    values: Mapping[int, float]

    def __len__(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        """Mean ± standard deviation over seeds; of a single seed its value."""
        if not self.values:
            return ""
        digits = 3 if abs(self.mean) < 10 else 1
        return f"{self.mean:.{digits}f}" + (f" ± {self.sd:.{digits}f}" if len(self) > 1 else "")

    @cached_property
    def mean(self) -> float:
        """The mean over seeds; nan of none."""
        return sum(self.values.values()) / len(self.values) if self.values else math.nan

    @cached_property
    def sd(self) -> float:
        """The standard deviation between seeds; 0 of one."""
        return stdev(self.values.values()) if len(self) > 1 else 0.0

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean (Student's t); nan of fewer than two seeds."""
        if len(self) < 2:
            return math.nan, math.nan
        half = float(stats.t.ppf(0.975, len(self) - 1)) * self.sd / math.sqrt(len(self))
        return self.mean - half, self.mean + half

    def minus(self, other: Sample) -> Sample:
        """The difference seed by seed: both saw the same sets."""
        return Sample({seed: v - other.values[seed] for seed, v in self.values.items() if seed in other.values})


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


Curve = Mapping[int, Sample]  # accuracy by the number of labels, fewest first


def labels_for(curve: Curve, goal: float, seeds: Sequence[int] | None = None) -> float:
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


def times_fewer(mine: Curve, theirs: Curve, goal: float, draws: int = 2000) -> tuple[float, float] | None:
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
