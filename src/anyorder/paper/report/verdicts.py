"""Whether each claim holds on our rows: what is compared with what, and the verdict that it comes to."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import stdev
from typing import Any

from scipy import stats

from anyorder.checks import InputError
from anyorder.paper.runner.trial import Experiment, Row, Setting, spelled, without_penalty

YES, NO, SEEDS, BUDGET = "yes", "no", "open (seeds)", "open (budget)"
EPOCHS = "epochs to accuracy 0.8"
LOWER = ("mae", "rmse", "state_gap_squared", EPOCHS)  # metrics of which less is better
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


def matching(rows: Rows, where: Setting) -> list[Row]:
    """The rows whose setting has the values of ``where``."""
    return [row for row in rows if all(row["setting"].get(key) == value for key, value in where.items())]


def sample_of(rows: Rows, metric: str, method: str | None = None, *, part: str = "metrics", **where: Any) -> Sample:
    """``metric`` by seed, of the rows of ``method`` that match ``where``; ``part``: test split or "validation"."""
    found = [row for row in matching(rows, where) if method is None or row["method"] == method]
    return by_seed([(row["seed"], row[part][metric]) for row in found if metric in row[part]], metric)


def by_seed(values: Sequence[tuple[int, float]], what: str) -> Sample:
    """A sample of (seed, value) pairs; two values of one seed would hide each other and are refused."""
    if len(dict(values)) < len(values):
        raise InputError(f"{what} has two values of a seed; the rows must differ in no other setting")
    return Sample(dict(values))


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


# --- what is compared


@dataclass(frozen=True)
class Comparison:
    """One figure against another: a line of a table. ``decides``: the verdict rests on it too."""

    where: str
    metric: str
    one: str
    ours: str
    other: str
    theirs: str
    difference: str
    holds: str
    decides: bool = True


@dataclass(frozen=True)
class Versus:
    """Which methods are compared, in each combination of the settings ``over`` (None: every value).

    ``one`` and ``other`` name a method, "each" or the "best" (by validation loss) "SIRE" or "other"; ``other`` may be
    "its base", the same training without the penalty. ``margin``: so much behind still counts as level.
    """

    one: str
    other: str
    metric: str = "accuracy"
    over: Mapping[str, Sequence[Any] | None] = field(default_factory=dict)
    margin: float = 0.0
    decides: bool = True


_RIVALS = ("plain", "pi-sgd", "deepsets")
COMPARED = {
    "parity": [],
    "sub-vs-sire": [Versus("sire", "sub"), Versus("sire", "plain", decides=False)],
    "labels": [Versus("each SIRE", other, over={"alphabet": (100,), "labels": (10000,)}) for other in _RIVALS],
    "half-range": [Versus("each SIRE", "plain", over={"n": None, "labels": None})],
    "dial": [],
    "fold": [Versus("fold-sire", other, over={"case": None, "length": None}) for other in ("fold", "invariant")],
    "lengths": [
        Versus("each SIRE", other, "mae", {"cell": None, "length": (20, 100)}) for other in ("its base", "deepsets")
    ],
    "sum": [
        *(Versus("best SIRE", other, over={"n": (10, 15, 20, 25, 30)}) for other in ("plain", "pi-sgd")),
        Versus("best SIRE", "deepsets", over={"n": (5, 10, 15, 20, 25)}, decides=False),
        Versus("best SIRE", "deepsets", over={"n": (30,)}),  # the claim is about large n
    ],
    "range": [Versus("best SIRE", "best other", over={"n": None}, margin=0.02)],
    "variance": [Versus("best SIRE", "deepsets", "rmse", {"n": None})],
    "pointcloud": [
        *(Versus("each SIRE", other) for other in ("deepsets", "its base")),
        Versus("each other", "plain", decides=False),
    ],
}


def judge(experiment: Experiment, rows: Rows, finished: bool) -> tuple[str, list[Comparison]]:
    """The verdict on an experiment's claim in the words of the pages, and the comparisons of its chosen rows.

    One comparison that does not hold refutes the claim, one that is open leaves it open.
    """
    chosen = [row for row in rows if row["selected"]]
    found = [*_with_the_paper(experiment, chosen), *_comparisons(experiment, chosen, rows)]
    decided = {comparison.holds for comparison in found if comparison.decides}
    if not rows:
        return "not run", found
    if not finished:
        return BUDGET, found
    if NO in decided:
        return "not reproduced", found
    if decided == {YES}:
        return "reproduced" + " at smaller scale" * any(row["scale"] != "paper" for row in rows), found
    return "open (seeds, budget)" if {SEEDS, BUDGET} <= decided else BUDGET if BUDGET in decided else SEEDS, found


def _with_the_paper(experiment: Experiment, chosen: Rows) -> Iterator[Comparison]:
    """The declared figures; one decides where its accepted band has a paper's figure in it."""
    for expected in experiment.expected:
        low, high = expected.band
        ours = sample_of(chosen, expected.metric, expected.method, **expected.where)
        paper = f"{expected.paper:g}" + (f" ± {expected.sd:g}" if expected.sd is not None else "")
        where, decides = spelled(dict(expected.where)), -math.inf < low <= expected.paper <= high
        yield from _within(where, expected.metric, expected.method, ours, low, high, decides, paper=paper)


def _within(
    where: str, metric: str, name: str, ours: Sample, low: float, high: float, decides: bool, paper: str = ""
) -> Iterator[Comparison]:
    """Whether a mean lies in a band; two seeds at least, and nothing to say of a band without bounds."""
    free = math.isinf(low) and math.isinf(high)
    band = "" if free else f"≥ {low:g}" if high >= 1 else f"< {high:g}" if low <= 0 else f"{low:g} to {high:g}"
    holds = "" if free else SEEDS if len(ours) < 2 else YES if low <= ours.mean <= high else NO
    if ours:
        yield Comparison(where, metric, name, str(ours), "paper" if paper else "", paper, band, holds, decides)


def _comparisons(experiment: Experiment, chosen: Rows, rows: Rows) -> Iterator[Comparison]:
    """Method against method; an experiment that declares nothing is compared with and without its penalties."""
    over: dict[str, Sequence[Any] | None] = dict.fromkeys(next(iter(experiment.plans.values())).over)
    metrics = ("accuracy", "macro_f1") if experiment.name == "ecg" else (experiment.headline,)
    default = [Versus("each SIRE", "its base", metric, over) for metric in metrics]
    default += [Versus("each other", "plain", metric, over, decides=False) for metric in metrics]
    for versus in COMPARED.get(experiment.name, default):
        yield from _versus(versus, chosen)
    if experiment.name not in COMPARED and "labels" in over:
        yield from _most_where_few(chosen, experiment.headline, [key for key in over if key != "labels"])
    own = {"parity": _parity, "sub-vs-sire": _weights_and_epochs, "labels": _labels, "dial": _dial}
    if chosen and experiment.name in own:
        yield from own[experiment.name](chosen, rows)


Side = tuple[str, Sample]


def compare(
    where: str, metric: str, one: Side, other: Side, *, margin: float = 0.0, decides: bool = True
) -> Iterator[Comparison]:
    """Whether ``one`` is better than ``other`` seed by seed, or less than ``margin`` behind.

    Open where the 95 % interval of the paired difference holds that bar, or where one seed has none. Nothing where
    they have no seed in common.
    """
    (name, ours), (rival, theirs) = one, other
    if name != rival and (gap := ours.minus(theirs)):
        (low, high), digits = gap.interval, 3 if abs(ours.mean) < 10 else 1
        interval = f" ({low:+.{digits}f} to {high:+.{digits}f})" if len(gap) > 1 else ""
        difference = f"{gap.mean:+.{digits}f}{interval}"
        if metric in LOWER:
            low, high = -high, -low
        holds = YES if low > -margin else NO if high < -margin else SEEDS
        yield Comparison(where, metric, name, str(ours), rival, str(theirs), difference, holds, decides)


def _versus(versus: Versus, chosen: Rows) -> Iterator[Comparison]:
    for cell in _cells(chosen, versus.over):
        here = matching(chosen, cell)
        for one in _named(versus.one, here):
            for other in [without_penalty(one)] if versus.other == "its base" else _named(versus.other, here):
                data = {row["setting"].get("data") for row in here if row["method"] == one}
                theirs = [row for row in chosen if row["method"] == other and row["setting"].get("data") in data]
                shared = {key: value for key, value in cell.items() if _values(theirs, key)}  # DeepSets has no cell
                sides = (one, sample_of(here, versus.metric, one)), (other, sample_of(theirs, versus.metric, **shared))
                yield from compare(spelled(cell), versus.metric, *sides, margin=versus.margin, decides=versus.decides)


def _named(name: str, here: Rows) -> list[str]:
    """The methods that a name of :class:`Versus` stands for: one, or each or the best (by validation) of a kind."""
    which, _, kind = name.partition(" ")
    if not kind:
        return [name]
    methods = [method for method in _methods(here) if not method.startswith("fold")]  # the paper has none
    methods = [method for method in methods if method.startswith("sire") == (kind == "SIRE")]
    if which == "each":
        return methods
    losses = {method: sample_of(here, "loss", method, part="validation").mean for method in methods}
    return sorted(losses, key=lambda method: losses[method])[:1]


def _cells(rows: Rows, over: Mapping[str, Sequence[Any] | None]) -> list[dict[str, Any]]:
    values = [allowed or _values(rows, key) for key, allowed in over.items()]
    return [dict(zip(over, combination, strict=True)) for combination in itertools.product(*values)]


def _values(rows: Rows, key: str) -> list[Any]:
    return sorted({row["setting"][key] for row in rows if row["setting"].get(key) is not None})


def _methods(rows: Rows) -> list[str]:
    return sorted({row["method"] for row in rows})


# --- what single experiments compare


def _most_where_few(chosen: Rows, metric: str, over: Sequence[str]) -> Iterator[Comparison]:
    """Whether the gain over no penalty is larger with the fewest labels than with the most."""
    shares = _values(chosen, "labels")
    for cell, method in itertools.product(_cells(chosen, dict.fromkeys(over)), _methods(chosen)):
        if method.startswith("sire") and len(shares) > 1:
            sides = []
            for place in ({**cell, "labels": share} for share in (shares[0], shares[-1])):
                mine, base = (sample_of(chosen, metric, m, **place) for m in (method, without_penalty(method)))
                sides.append((f"{method}, gain with labels {place['labels']:g}", mine.minus(base)))
            yield from compare(spelled(cell), metric, *sides)


def _parity(chosen: Rows, rows: Rows, goal: float = 0.99) -> Iterator[Comparison]:
    """The paper does not name its cell, so one that reaches ``goal`` without penalty is enough."""
    far = matching(chosen, {"length": 100})
    best = max((sample_of(far, "accuracy", "plain", cell=cell).mean for cell in _values(far, "cell")), default=0.0)
    for cell, method in itertools.product(_values(far, "cell"), ("plain", "sire")):
        ours = sample_of(far, "accuracy", method, cell=cell)
        decides = method == "plain" and ours.mean == best
        yield from _within(f"cell {cell}, length 100", "accuracy", method, ours, goal, 1.0, decides)
    pooled, short = sample_of(far, "accuracy", "deepsets"), sample_of(chosen, "accuracy", "deepsets", length=10)
    for comparison in _within("length 100", "accuracy", "deepsets", pooled, -math.inf, goal, decides=True):
        # where it has not fitted the training lengths, it has not failed to go beyond them
        yield replace(comparison, holds=BUDGET) if short.mean < goal else comparison


def _weights_and_epochs(chosen: Rows, rows: Rows) -> Iterator[Comparison]:
    """SIRE against SUB at the paper's own weights, .001 to .1, and by how fast each converges at its best."""
    sides, epochs = [], []
    for method in ("sire", "sub"):
        sides.append((f"{method}-paper", sample_of(chosen, "accuracy", f"{method}-paper")))
        curves = {row["seed"]: row["curve"] for row in chosen if row["method"] == method and row.get("curve")}
        reached = {seed: _reached(curve) for seed, curve in curves.items()}
        epochs.append((method, Sample({} if math.inf in reached.values() else reached)))
    yield from compare("the paper's weights", "accuracy", *sides)
    yield from compare("", EPOCHS, *epochs)


def _reached(curve: Mapping[str, Sequence[float]], goal: float = 0.8) -> float:
    """The epoch at which validation accuracy first reaches ``goal``."""
    return next((e for e, value in zip(curve["epoch"], curve["accuracy"], strict=True) if value >= goal), math.inf)


def _labels(chosen: Rows, rows: Rows, goal: float = 0.9) -> Iterator[Comparison]:
    """How many times fewer labels each SIRE needs, where it or its rival reaches the goal."""
    for alphabet in _values(chosen, "alphabet"):
        curves = {method: labels_curve(chosen, method, alphabet=alphabet) for method in _methods(chosen)}
        for mine, rival in itertools.product(curves, _RIVALS):
            if not mine.startswith("sire") or not curves[mine] or not curves.get(rival):
                continue
            (ours, our_text), (theirs, their_text) = (labels_needed(curves[method], goal) for method in (mine, rival))
            low, high = times_fewer(curves[mine], curves[rival], goal) or (math.nan, math.nan)
            known = not {our_text[0], their_text[0]} & {">", "≤"}
            ratio = f"÷ {theirs / ours:.2g} ({low:.2g} to {high:.2g})" if known else ""
            holds = YES if low > 1 else NO if high < 1 else SEEDS
            if min(ours, theirs) < math.inf:
                what = f"labels for {goal}"
                yield Comparison(f"alphabet {alphabet}", what, mine, our_text, rival, their_text, ratio, holds)


def labels_curve(rows: Rows, method: str, **where: Any) -> Curve:
    """The accuracy of ``method`` at each number of labels it was given, fewest first."""
    mine = [row for row in matching(rows, where) if row["method"] == method]
    return {number: sample_of(mine, "accuracy", labels=number) for number in _values(mine, "labels")}


def labels_needed(curve: Curve, goal: float = 0.9) -> tuple[float, str]:
    """How many labels ``goal`` takes, and in words: a number, or a bound where it lies outside those measured."""
    number, fewest, most = labels_for(curve, goal), min(curve), max(curve)
    return number, f"> {most:,}" if math.isinf(number) else f"≤ {fewest:,}" if number <= fewest else f"{number:,.0f}"


def _dial(chosen: Rows, rows: Rows) -> Iterator[Comparison]:
    """Whether the largest weight has a smaller gap than the least."""
    mine = [row for row in chosen if row["method"] == "sire"]
    ends = [end(_values(mine, "penalty_weight"), default=0.0) for end in (max, min)]
    sides = [(f"sire, weight {w:g}", sample_of(mine, "state_gap_squared", penalty_weight=w)) for w in ends]
    yield from compare("", "state_gap_squared", *sides)
