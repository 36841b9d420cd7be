"""What an audit found, in figures and in words."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyorder.audits.intervals import Estimate, Interval, interval, percent, short

ROUNDING = 1e-4  # of the spread between samples: below, a difference has no practical meaning
_ROUNDING_OF_OUTPUT = 1e-6  # the same of the output itself, where there is no spread to compare with


@dataclass(frozen=True)
class WorstCase:
    """A sample and the ordering of it that moved the output most; ``exact``: all its orderings were tried."""

    sample: int
    name: str
    gap: float
    ordering: np.ndarray
    exact: bool
    tried: int
    elements: np.ndarray
    output: np.ndarray
    worst_output: np.ndarray
    given_class: str | None = None
    worst_class: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The result in words: a ``headline``, a ``detail``, and a ``tone`` ("good", "fair" or "bad")."""

    tone: str
    headline: str
    detail: str


@dataclass(frozen=True)
class Report:
    """What :func:`audit` measured.

    ``output_gap``: mean of |f(xπ) − f(x)| over samples, orderings and output components; ``order_gap``: the
    same divided by ``spread``, the mean |f(x) − f(y)| between different samples. ``flip_rate``
    (classification): how often a random ordering changes the predicted class. ``by_distance[d]``: the gap of
    swapping two elements d apart; ``by_position[p]``: of swapping the element at position p (from 0) with any
    other; ``by_size[n]``: of a random ordering of sets of n elements (with many sizes, of n and up to the next
    key); ``state_gap[m]`` (a recurrence): mean squared distance between the states after the first m elements in
    the given and in a random order, over that between different samples (at least the states' rounding error; where
    all of them are the same zeros and order moves some, m is left out). Each value of these is an
    :class:`~anyorder.estimates.Estimate`: a float with ``ci`` and ``samples``. ``worst_ordering`` are the
    positions of ``worst_set``'s elements in the order that gave ``worst_gap``. Intervals are 95 % bootstrap
    intervals over samples, None of one sample; of a flip rate equal in all samples, exact bounds. ``audited``: the
    samples that ``set_gaps`` and ``sizes`` speak of, fewer than were given where the time budget was short;
    ``repeat_gap`` is None where it left no time to ask twice. ``batch_gap``: how far an answer moves with the other
    sets in the batch, 0 where it does not.
    """

    task: str
    sets: int
    orderings: int
    output_gap: float
    output_gap_ci: Interval | None
    spread: float
    flip_rate: float | None
    flip_rate_ci: Interval | None
    ever_flipped: float | None
    flips: list[tuple[str, str, float]]
    by_distance: dict[int, Estimate]
    by_position: dict[int, Estimate]
    by_size: dict[int, Estimate]
    state_gap: dict[int, Estimate] | None
    worst_gap: float
    worst_set: int | None
    worst_ordering: np.ndarray | None
    worst: list[WorstCase]
    accuracy: float | None
    accuracy_shuffled: float | None
    rmse: float | None
    rmse_shuffled: float | None
    set_gaps: np.ndarray
    sizes: np.ndarray
    repeat_gap: float | None
    random: bool
    evaluations: int
    seconds: float
    notes: list[str] = field(default_factory=list)
    feature_names: list[str] | None = None
    audited: np.ndarray | None = None
    batch_gap: float = 0.0

    @property
    def order_gap(self) -> float:
        if self.output_gap == 0:
            return 0.0
        return self.output_gap / self.spread if self.spread > 0 else float("inf")

    @property
    def blurred(self) -> bool:
        """Whether more than the order of a set moves its output: chance, or the other sets in the batch."""
        return self.random or self.batch_gap > 0

    @property
    def searched(self) -> bool:
        """Whether orderings beyond the random ones were tried."""
        return any(case.tried > self.orderings for case in self.worst)

    def verdict(self) -> Verdict:
        """The result in words."""
        return _verdict(self)

    def __str__(self) -> str:
        verdict = self.verdict()
        return f"{verdict.headline} {verdict.detail}"

    def to_dict(self) -> dict[str, Any]:
        """Every figure, ready for JSON."""
        plain = {
            key: value
            for key, value in vars(self).items()
            if key not in ("set_gaps", "sizes", "worst", "worst_ordering", "flips", "feature_names", "audited")
        }
        for key, name in (("by_distance", "distance"), ("by_position", "position"), ("by_size", "size")):
            plain[key] = _records(getattr(self, key), name)
        plain["state_gap"] = None if self.state_gap is None else _records(self.state_gap, "prefix")
        plain["worst_ordering"] = None if self.worst_ordering is None else self.worst_ordering.tolist()
        plain["flips"] = [{"from": a, "to": b, "rate": rate} for a, b, rate in self.flips]
        plain["order_gap"] = self.order_gap if np.isfinite(self.order_gap) else None
        for key in ("output_gap_ci", "flip_rate_ci"):
            plain[key] = None if plain[key] is None else list(plain[key])
        plain["verdict"] = str(self)
        return plain

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the figures into one picture; the ending (.png, .svg, .pdf) decides the format."""
        from anyorder.audits.page import report_figures, save_picture

        save_picture(report_figures(self), path)

    def html(self, path: str | os.PathLike[str], *, title: str | None = None) -> None:
        """Write one self-contained page: verdict, pictures, worst samples, numbers, how it was measured."""
        from anyorder.audits.page import write_report

        write_report(self, path, title)


@dataclass(frozen=True)
class Comparison:
    """Reports of several models on the same sets and orderings, by name."""

    reports: dict[str, Report]

    def __getitem__(self, name: str) -> Report:
        return self.reports[name]

    def table(self) -> list[dict[str, Any]]:
        """One row a model: its score (accuracy, or RMSE) as given and shuffled, and its order gap.

        ``choice`` marks the models no other beats in both score and gap.
        """
        rows = []
        for name, report in self.reports.items():
            classifies = report.task == "classification"
            rows.append(
                {
                    "model": name,
                    "metric": "accuracy" if classifies else "rmse",
                    "score": report.accuracy if classifies else report.rmse,
                    "shuffled": report.accuracy_shuffled if classifies else report.rmse_shuffled,
                    "order_gap": report.order_gap,
                    "output_gap": report.output_gap,
                    "flip_rate": report.flip_rate,
                    "worst_gap": report.worst_gap,
                }
            )
        for row in rows:
            row["choice"] = not any(_beats(other, row) for other in rows)
        return rows

    def __str__(self) -> str:
        rows = self.table()
        steady, text = self._steadiest(rows)
        scored = [row for row in rows if row["score"] is not None]
        if scored:
            best = _best(scored)
            score = percent(best["score"]) if best["metric"] == "accuracy" else short(best["score"])
            named = f"has the best {'accuracy' if best['metric'] == 'accuracy' else 'RMSE'} ({score})"
            beside = "" if steady is None else f" with a relative gap of {short(best['order_gap'])}"
            text += f" and {named}" if best is steady else f"; {best['model']} {named}{beside}"
        random = [name for name, report in self.reports.items() if report.random]
        mates = [name for name, report in self.reports.items() if report.batch_gap > 0]
        text += f". Random, so that the gap is partly noise: {', '.join(random)}" if random else ""
        return text + (f". Answers depend on the other sets in the batch: {', '.join(mates)}." if mates else ".")

    def _steadiest(self, rows: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
        """The row of the model that depends on order least, None where that cannot be told, and a clause about it."""
        if not any((report.sizes >= 2).any() for report in self.reports.values()):
            return None, "No set has two elements, so there is nothing to reorder"
        told = [row for row in rows if not self.reports[row["model"]].blurred]
        if not told:
            return None, "The effect of order cannot be told apart"
        ignoring = [row for row in told if self.reports[row["model"]].verdict().tone == "good"]
        steady = min(ignoring or told, key=lambda row: row["order_gap"])
        gap = steady["order_gap"]
        if ignoring:
            return steady, f"{steady['model']} ignores order"
        if not np.isfinite(gap):
            return None, "Different sets get the same output, so there is nothing to compare the effect of order with"
        rarely = f", largest difference {short(steady['worst_gap'])}" if gap <= ROUNDING else ""
        return steady, f"{steady['model']} depends on order least (relative gap {short(gap)}{rarely})"

    def to_dict(self) -> dict[str, Any]:
        """The table and every report, ready for JSON."""
        rows = [
            {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
            for row in self.table()
        ]
        return {"table": rows, "reports": {name: report.to_dict() for name, report in self.reports.items()}}

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw score against order gap, one point a model."""
        from anyorder.audits.page import comparison_figure, save_picture

        save_picture([comparison_figure(self)], path)

    def html(self, path: str | os.PathLike[str], *, title: str | None = None) -> None:
        """Write one self-contained page that compares the models."""
        from anyorder.audits.page import write_comparison

        write_comparison(self, path, title)


def _verdict(report: Report) -> Verdict:
    movable = int((report.sizes >= 2).sum())
    tried = f"{report.orderings * movable:,} random orderings of {movable:,} sets"
    worst = f"The largest difference found is {short(report.worst_gap)}"
    if report.worst_set is not None:
        worst += f" (sample {report.worst[0].name})"
    if report.random and report.repeat_gap is not None:
        return Verdict(
            "fair",
            "The predictor is random, so the effect of order cannot be told apart.",
            f"Asked twice for the same order, its answers are {short(report.repeat_gap)} apart on average; in "
            f"another order {short(report.output_gap)}. Make it deterministic and audit again.",
        )
    if report.batch_gap > 0:
        return Verdict(
            "fair",
            "The answer for a set depends on the other sets in the batch, so the effect of order cannot be told apart.",
            f"Asked in smaller batches, the answers are {short(report.batch_gap)} away on average; in another order "
            f"{short(report.output_gap)}. Audit again with batch_size=1, or make each answer depend on its own set.",
        )
    if movable == 0:
        return Verdict(
            "fair", "There is nothing to reorder.", "No set has two elements; audit larger sets to learn about order."
        )
    if report.worst_gap == 0:
        search = ", and no ordering of the search," if report.searched else ""
        detail = f"None of the {tried}{search} changed the output at all."
        if report.flip_rate_ci is not None:
            detail += (
                f" At 95 %, a random order changes the class in at most {percent(report.flip_rate_ci[1])} of cases."
            )
        return Verdict("good", "Order does not matter.", detail)
    flipped = report.flip_rate or 0.0
    size = float(np.abs(report.worst[0].output).mean())
    if report.worst_gap <= (ROUNDING * report.spread or _ROUNDING_OF_OUTPUT * size) and not flipped:
        beside = f"two different sets are {short(report.spread)} apart on average"
        return Verdict(
            "good",
            "Order makes no practical difference.",
            f"{worst}, while {beside if report.spread > 0 else f'the output itself is about {short(size)}'}.",
        )
    moved = f"moves the output by {short(report.output_gap)} on average{_in_words(report.output_gap_ci, short)}"
    if report.spread > 0:
        moved += f", where two different sets are {short(report.spread)} apart"
    if report.flip_rate is not None:
        flips = f"{percent(report.flip_rate)} of cases{_in_words(report.flip_rate_ci, percent)}"
        moved = f"changes the predicted class in {flips} and {moved}"
    strong = (report.order_gap >= 0.5 and report.spread > 0) or flipped >= 0.1
    weak = report.order_gap < 0.05 and flipped < 0.01
    degree = " strongly" if strong else " a little" if weak else " noticeably" if report.spread > 0 else ""
    detail = f"A random order {moved}. {worst}."
    if report.spread == 0:
        alike = "There is one set only" if report.sets == 1 else "All sets get the same output"
        detail += f" {alike}, so there is no difference between sets to compare this with."
    if report.accuracy is not None and report.accuracy_shuffled is not None:
        detail += f" Accuracy is {percent(report.accuracy)} as given and {percent(report.accuracy_shuffled)} shuffled."
    if report.rmse is not None and report.rmse_shuffled is not None:
        detail += f" RMSE is {short(report.rmse)} as given and {short(report.rmse_shuffled)} shuffled."
    return Verdict("bad" if strong else "fair", f"Order matters{degree}.", detail)


def _in_words(ci: Interval | None, write: Callable[[float], str]) -> str:
    return "" if ci is None else f" (95 % interval {interval(ci, write)})"


def _beats(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """At least as good in score and gap, and better in one."""
    gain = 0.0
    if one["score"] is not None and other["score"] is not None:
        gain = one["score"] - other["score"] if one["metric"] == "accuracy" else other["score"] - one["score"]
    steadier = other["order_gap"] - one["order_gap"]
    return gain >= 0 and steadier >= 0 and (gain > 0 or steadier > 0)


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    pick: Callable[..., Any] = max if rows[0]["metric"] == "accuracy" else min
    return pick(rows, key=lambda row: row["score"])


def _records(estimates: dict[int, Estimate], name: str) -> list[dict[str, Any]]:
    return [
        {name: key, "gap": float(value), **_bounds(value.ci), "samples": value.sets} for key, value in estimates.items()
    ]


def _bounds(ci: Interval | None) -> dict[str, float | None]:
    low, high = ci or (None, None)
    return {"low": low, "high": high}
