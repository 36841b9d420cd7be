"""Whether each claim holds on our rows: figures over seeds, the comparisons that decide, and the verdict."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy import stats

from anyorder.checks import InputError
from anyorder.paper.runner.trial import EPOCHS, LABELS, Experiment, Row, Setting, Trial, Versus, spelled

YES, NO, OPEN = "yes", "no", "open"
GOAL = 0.9
LOWER = ("mae", "rmse", "state_gap_squared", LABELS, EPOCHS)  # metrics of which less is better
KINDS = ("best sire", "best other", "best with", "best without")
Rows = Sequence[Row]


# --- figures over seeds


@dataclass(frozen=True)
class Sample:
    """A figure of several seeds: ``values[seed]``."""

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
        return fmean(self.values.values()) if self.values else math.nan

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

    def p_value(self, mean: float) -> float:
        """The two-sided p of a t-test that the mean is ``mean``; 1 of fewer than two seeds."""
        if len(self) < 2 or self.mean == mean:
            return 1.0
        error = self.sd / math.sqrt(len(self))
        return float(2 * stats.t.sf(abs(self.mean - mean) / error, len(self) - 1)) if error else 0.0

    def minus(self, other: Sample | float) -> Sample:
        """The difference seed by seed, both saw the same sets; or from a number."""
        if isinstance(other, Sample):
            return Sample({seed: v - other.values[seed] for seed, v in self.values.items() if seed in other.values})
        return Sample({seed: value - other for seed, value in self.values.items()})


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of a family of tests, corrected by Holm: each times the number of those not smaller, in order."""
    ranks = np.argsort(np.argsort(p_values, kind="stable"))
    stepped = np.sort(p_values) * np.arange(len(p_values), 0, -1)
    return [float(p) for p in np.maximum.accumulate(stepped).clip(max=1.0)[ranks]]


def matching(rows: Rows, where: Setting) -> list[Row]:
    """The rows whose settings agree with ``where``; one that a row lacks agrees with every value."""
    return [row for row in rows if all(row["setting"].get(key) in (None, value) for key, value in where.items())]


def sample_of(rows: Rows, metric: str, method: str | None = None, **where: Any) -> Sample:
    """``metric`` by seed, of the rows of ``method`` that agree with ``where``.

    At the longest test length and the fewest orderings that they have.
    """
    found = longest([row for row in matching(rows, where) if method is None or row["method"] == method])
    if metric == LABELS:
        return _labels_needed(found)
    figures = [_epochs(row) if metric == EPOCHS else row["metrics"].get(metric) for row in found]
    known = [(row["seed"], figure) for row, figure in zip(found, figures, strict=True) if figure is not None]
    return by_seed(known, metric)


def by_seed(values: Sequence[tuple[int, float]], what: str) -> Sample:
    """A sample of (seed, value) pairs; two values of one seed would hide each other and are refused."""
    if len(dict(values)) < len(values):
        raise InputError(f"{what} has two values of a seed; the rows must differ in no other setting")
    return Sample(dict(values))


def longest(rows: Rows) -> list[Row]:
    """Of a model tested at several lengths, or by several orderings, the rows of the longest and the fewest."""

    def place(row: Row) -> tuple[float, int]:
        return -row["setting"].get("length", 0), row["reads"]

    first: dict[str, tuple[float, int]] = {}
    for row in rows:
        first[row["trial"]] = min(first.get(row["trial"], place(row)), place(row))
    return [row for row in rows if place(row) == first[row["trial"]]]


def _labels_needed(rows: Rows) -> Sample:
    """By seed, the labels for ``GOAL``: between two measured numbers, straight on a logarithmic axis."""
    needed = {}
    for seed in {row["seed"] for row in rows}:
        curve = sorted((r["setting"]["labels"], r["metrics"]["accuracy"]) for r in rows if r["seed"] == seed)
        if len(curve) < 2:
            continue
        above = next((i for i, (_, accuracy) in enumerate(curve) if accuracy >= GOAL), len(curve) - 1)
        (fewer, low), (more, high) = curve[max(above - 1, 0)], curve[above]
        inside = low < GOAL <= high
        needed[seed] = fewer * (more / fewer) ** ((GOAL - low) / (high - low)) if inside else float(more)
    return Sample(needed)


def _epochs(row: Row, goal: float = 0.8) -> float:
    """The epoch at which validation accuracy first reaches ``goal``; the last one if it does not."""
    curve = row["curve"]
    reached = (e for e, value in zip(curve["epoch"], curve["accuracy"], strict=True) if value >= goal)
    return float(next(reached, curve["epoch"][-1]))


# --- comparisons and verdicts


@dataclass(frozen=True)
class Comparison:
    """One figure against another, or against a goal; ``p`` is corrected for all comparisons of a claim."""

    place: Setting
    metric: str
    one: str
    ours: Sample
    other: str
    theirs: Sample | float
    margin: float
    p: float = math.nan

    @property
    def where(self) -> str:
        """The place in words."""
        return spelled(self.place)

    @property
    def gap(self) -> Sample:
        """The difference seed by seed."""
        return self.ours.minus(self.theirs)

    @property
    def ahead(self) -> float:
        """How far the mean is above the bar, in the direction that is better."""
        return self.gap.mean * (-1 if self.metric in LOWER else 1) + self.margin

    @property
    def holds(self) -> str:
        """Yes or no where p is below .05; the mean of two seeds decides that a goal is met."""
        clear = self.p < 0.05
        met = clear if isinstance(self.theirs, Sample) else len(self.ours) > 1
        return YES if met and self.ahead >= 0 else NO if clear and self.ahead < 0 else OPEN


def judge(experiment: Experiment, rows: Rows, left: Sequence[Trial] = ()) -> tuple[str, list[Comparison]]:
    """The verdict on a claim, and the comparisons that it rests on.

    Without ``tests`` the first method is compared with each of the others, in every reported place. One comparison
    that fails refutes the claim. The verdict is open while one is open and none fails, while a trial is ``left`` that
    one needs, and while a model has not learnt what ``needs`` asks.
    """
    if not rows:
        return "not run", []
    plan = experiment.plan(rows[0]["scale"])
    first, *others = plan.methods
    tests = experiment.tests or [Versus(first, m, {key: list(v) for key, v in plan.over.items()}) for m in others]
    found, needs = compare(experiment, tests, rows), compare(experiment, experiment.needs, rows)
    results = {comparison.holds for comparison in found}
    named = {f"{name}" for test in tests for name in (test.one, test.other)}
    waits = any(_is(name, trial.method) for name in named for trial in left)
    if waits or any(need.holds != YES for need in needs):
        verdict = "open"
    elif NO in results:
        verdict = "not reproduced"
    else:
        smaller = experiment.reported != "not tried" and rows[0]["scale"] != "paper"
        verdict = "reproduced" + " at smaller scale" * smaller if results == {YES} else "open"
    return verdict, [*needs, *found]


def _is(name: str, method: str) -> bool:
    """Whether ``name`` stands for ``method``. Names in claims of the paper leave out folds, which it does not have."""
    ours = name in ("best with", "best without")
    penalised = name in ("best sire", "best with")
    return name == method or (name in KINDS and ("sire" in method) == penalised and (ours or "fold" not in method))


def compare(experiment: Experiment, tests: Sequence[Versus], rows: Rows) -> list[Comparison]:
    """The comparisons of which both sides have a seed in common, corrected as one family."""
    found = [c for test in tests for c in _compared(experiment, test, rows) if c.one != c.other and c.gap]
    corrected = holm([c.gap.p_value(c.margin * (1 if c.metric in LOWER else -1)) for c in found])
    return [replace(c, p=p) for c, p in zip(found, corrected, strict=True)]


def _compared(experiment: Experiment, test: Versus, rows: Rows) -> Iterator[Comparison]:
    metric = test.metric or experiment.headline
    several = {key: value if isinstance(value, list) else [value] for key, value in test.where.items()}
    for values in itertools.product(*several.values()):
        where = dict(zip(several, values, strict=True))
        one, ours = figure(experiment, rows, test.one, metric, where)
        if isinstance(test.other, str):
            other, theirs = figure(experiment, rows, test.other, metric, {**where, **test.against})
            other = ", ".join(filter(None, [other, spelled(test.against)]))
            yield Comparison(where, metric, one, ours, other, theirs, test.margin)
        else:
            yield Comparison(where, metric, one, ours, "goal", test.other, test.margin)


def figure(experiment: Experiment, rows: Rows, name: str, metric: str, where: Setting) -> tuple[str, Sample]:
    """A method, or the best of a kind by validation, and the figure of its choice at a place."""
    here = [row for row in matching(rows, where) if row["selected"]]
    if name in KINDS:
        methods = sorted({row["method"] for row in here if _is(name, row["method"])})
        name = max(methods, key=lambda method: _validated(experiment, here, method), default=name)
    return name, sample_of(here, metric, name)


def earlier(experiment: Experiment, rows: Rows) -> list[Row]:
    """What rows of an earlier declaration would choose: a method's best by validation of those with the most seeds."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        plan, setting = experiment.plan(row["scale"]), row["setting"]
        place = f"{row['method']} {[setting.get(key) for key in plan.over]}"
        candidate = f"{[(key, setting[key]) for key in sorted(setting.keys() - {*plan.over, 'length'})]}"
        if row["method"] in plan.methods:
            found.setdefault(place, {}).setdefault(candidate, []).append({**row, "selected": True})
    best = [max(c.values(), key=lambda r: (len(r), _validated(experiment, r, r[0]["method"]))) for c in found.values()]
    return [row for group in best for row in group]


def _validated(experiment: Experiment, rows: Rows, method: str) -> float:
    values = [experiment.figure(row["validation"]) for row in rows if row["method"] == method]
    mean = fmean(values)
    return mean if math.isfinite(mean) else -math.inf
