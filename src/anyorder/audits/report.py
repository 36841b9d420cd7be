"""What an audit found, in figures and in words."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from anyorder.audits.intervals import Estimate, Interval, interval, percent, short
from anyorder.checks import extra

ROUNDING = 1e-4  # of the difference between sets: a smaller one has no practical meaning
_ROUNDING_OF_OUTPUT = 1e-6  # the same of the output itself, where all sets get the same one
_BLURRED = {
    "random": ("The predictor is random", "Make it deterministic (evaluation mode, a fixed seed) and audit again."),
    "batch": ("The output for a set depends on the other sets in the batch", "Audit again with batch_size=1."),
}
_ARRAYS = ("set_gaps", "sizes", "audited", "worst", "feature_names")  # not in to_dict


@dataclass(frozen=True)
class WorstCase:
    """The ordering of set ``index`` that moved its output most; ``exact``: all its orderings were tried."""

    index: int
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


class Curve(NamedTuple):
    """How a curve of a :class:`Report` is named, in JSON (``key``) and in its picture."""

    key: str
    title: str
    label: str
    unit: str = "change of the output"


CURVES = {
    "by_distance": Curve("distance", "Swapping two elements, by distance", "distance (1: neighbours)"),
    "by_position": Curve("position", "Swapping one element, by its position", "position (first = 0)"),
    "by_size": Curve("size", "A random order, by size of the set", "elements in the set"),
    "state_gap": Curve("prefix", "States after the first m elements", "elements read (m)", "order gap of the state"),
}


class Verdict(NamedTuple):
    """The result in words: a ``headline``, a ``detail``, and a ``tone`` ("good", "fair" or "bad")."""

    tone: str
    headline: str
    detail: str


@dataclass(frozen=True)
class Report:
    """What :func:`anyorder.audit` measured: ``x`` is a set as given, ``xπ`` in a random order, ``y`` another set.

    - ``output_gap``: mean |f(xπ) − f(x)| over sets, orderings and output columns; ``spread``: mean |f(x) − f(y)|.
    - ``order_gap``: the root mean square of f(xπ) − f(x) over that of f(x) − f(y). 0: order is ignored. Near 1: order
      matters as much as content.
    - ``flip_rate`` (classification): how often a random order changes the predicted class; ``flips``: from which class
      to which; ``ever_flipped``: for which share of the sets.
    - ``by_distance[d]``, ``by_position[p]``: the mean change of the output when two elements d apart, or the element at
      p and any other, are swapped; ``by_size[n]``: under a random order of sets of n elements (or up to the next key).
    - ``state_gap[m]`` (a recurrence): the order gap of the states after m elements.
    - ``worst``: the worst orderings found, the worst first; ``worst_gap``, ``worst_set`` and ``worst_ordering`` of it.
    - ``repeat_gap``: mean change when a set is read again in the same order (None: no time); ``blurred``: "random" or
      "batch" (it depends on the other sets in the batch) if that change is no rounding, else "".
    - ``audited``: the sets behind ``set_gaps`` and ``sizes``; fewer than were given if the time budget was short.

    Intervals are 95 % bootstrap intervals over sets, None for one set. The curves' values are :class:`Estimate`: floats
    with ``ci`` and ``sets``. A flip rate equal in all sets has exact bounds.
    """

    task: str
    sets: int
    orderings: int
    output_gap: float
    output_gap_ci: Interval | None
    spread: float
    order_gap: float
    flip_rate: float | None
    flip_rate_ci: Interval | None
    ever_flipped: float | None
    flips: list[tuple[str, str, float]]
    by_distance: dict[int, Estimate]
    by_position: dict[int, Estimate]
    by_size: dict[int, Estimate]
    state_gap: dict[int, Estimate] | None
    worst: list[WorstCase]
    accuracy: float | None
    accuracy_shuffled: float | None
    rmse: float | None
    rmse_shuffled: float | None
    set_gaps: np.ndarray
    sizes: np.ndarray
    audited: np.ndarray
    repeat_gap: float | None
    blurred: str
    evaluations: int
    seconds: float
    notes: list[str]
    feature_names: list[str] | None = None

    @property
    def worst_gap(self) -> float:
        return self.worst[0].gap if self.worst else 0.0

    @property
    def worst_set(self) -> int | None:
        return self.worst[0].index if self.worst else None

    @property
    def worst_ordering(self) -> np.ndarray | None:
        return self.worst[0].ordering if self.worst else None

    @property
    def searched(self) -> bool:
        """Whether orderings beyond the random ones were tried."""
        return any(case.tried > self.orderings for case in self.worst)

    @property
    def scores(self) -> tuple[str, Callable[[float], str], float | None, float | None]:
        """The metric of the task, how it is written, and its value as given and shuffled (None without labels)."""
        if self.task == "classification":
            return "accuracy", percent, self.accuracy, self.accuracy_shuffled
        return "RMSE", short, self.rmse, self.rmse_shuffled

    def verdict(self) -> Verdict:
        """The result in words."""
        movable = int((self.sizes >= 2).sum())
        moved, apart = short(self.output_gap), short(self.spread)
        if self.blurred:
            cause, advice = _BLURRED[self.blurred]
            again = f"Reading a set again moves its output by {short(self.repeat_gap or 0.0)} in the same order"
            headline = f"{cause}, so the effect of order cannot be told apart."
            return Verdict("fair", headline, f"{again}, by {moved} in another. {advice}")
        if movable == 0:
            return Verdict("fair", "There is nothing to reorder.", "No set has two elements. Audit larger sets.")
        if self.worst_gap == 0:
            search = ", and no ordering of the search," if self.searched else ""
            tried = f"{self.orderings * movable:,} random orderings of {movable:,} sets"
            detail = f"None of the {tried}{search} changed the output."
            if self.flip_rate_ci is not None:
                most = percent(self.flip_rate_ci[1])
                detail += f" At 95 %, a random order changes the class in at most {most} of cases."
            return Verdict("good", "Order does not matter.", detail)
        worst = f"The largest change found is {short(self.worst_gap)} (set {self.worst[0].name})"
        flipped, size = self.flip_rate or 0.0, float(np.abs(self.worst[0].output).mean())
        if self.worst_gap <= (ROUNDING * self.spread or _ROUNDING_OF_OUTPUT * size) and not flipped:
            beside = f"the output itself is about {short(size)}"
            beside = f"two different sets differ by {apart} on average" if self.spread else beside
            return Verdict("good", "Order makes no practical difference.", f"{worst}, while {beside}.")
        strong = (self.order_gap >= 0.5 and self.spread > 0) or flipped >= 0.1
        weak = self.order_gap < 0.05 and flipped < 0.01
        degree = " strongly" if strong else " a little" if weak else " noticeably" if self.spread else ""
        effect = f"moves the output by {moved} on average{_in_words(self.output_gap_ci, short)}"
        if self.flip_rate is not None:
            flips = f"{percent(self.flip_rate)} of cases{_in_words(self.flip_rate_ci, percent)}"
            effect = f"changes the predicted class in {flips} and {effect}"
        alike = "There is one set only" if self.sets == 1 else "All sets get the same output"
        beside = f"{alike}, so there is no difference between sets to compare this with."
        beside = f"Two different sets differ by {apart}." if self.spread else beside
        detail = f"A random order {effect}. {worst}. {beside}"
        metric, write, given, shuffled = self.scores
        if given is not None and shuffled is not None:
            detail += f" {metric[0].upper()}{metric[1:]} is {write(given)} as given and {write(shuffled)} shuffled."
        return Verdict("bad" if strong else "fair", f"Order matters{degree}.", detail)

    def __str__(self) -> str:
        return " ".join(self.verdict()[1:])

    def to_dict(self) -> dict[str, Any]:
        """Every figure, ready for JSON."""
        plain = {key: _finite(value) for key, value in vars(self).items() if key not in _ARRAYS}
        for name, (key, *_) in CURVES.items():
            curve = getattr(self, name)
            plain[name] = None if curve is None else [{key: at} | value.to_dict() for at, value in curve.items()]
        plain["flips"] = [{"from": one, "to": other, "rate": rate} for one, other, rate in self.flips]
        plain |= {"worst_gap": self.worst_gap, "worst_set": self.worst_set, "verdict": str(self)}
        plain["worst_ordering"] = None if self.worst_ordering is None else self.worst_ordering.tolist()
        return plain

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the figures into one picture; the ending (.png, .svg, .pdf) is the format."""
        page = _page()
        page.save_picture(page.report_figures(self), path)

    def html(self, path: str | os.PathLike[str], *, title: str = "Does order matter?") -> None:
        """Write one self-contained page: verdict, pictures, worst sets, numbers, how it was measured."""
        _page().write_report(self, path, title)


@dataclass(frozen=True)
class Comparison:
    """The reports of several models on the same sets and orderings, by name."""

    reports: dict[str, Report]

    def __getitem__(self, name: str) -> Report:
        return self.reports[name]

    def table(self) -> list[dict[str, Any]]:
        """One row per model: its metric as given and shuffled, and its gaps.

        ``choice`` marks the models that no other beats in both metric and order gap.
        """
        rows: list[dict[str, Any]] = []
        for name, report in self.reports.items():
            metric, _, given, shuffled = report.scores
            gaps = {key: getattr(report, key) for key in ("order_gap", "output_gap", "flip_rate", "worst_gap")}
            rows.append({"model": name, "metric": metric.lower(), "score": given, "shuffled": shuffled} | gaps)
        signs = (-1.0 if row["metric"] == "accuracy" else 1.0 for row in rows)
        costs = [(sign * (row["score"] or 0.0), row["order_gap"]) for sign, row in zip(signs, rows, strict=True)]
        for row, (loss, gap) in zip(rows, costs, strict=True):
            row["choice"] = not any(x <= loss and y <= gap and (x, y) != (loss, gap) for x, y in costs)
        return rows

    def __str__(self) -> str:
        rows = [["model", "order gap", "flip rate", "metric", "shuffled", "choice"]]
        for row in self.table():
            report = self.reports[row["model"]]
            writers = {"flip_rate": percent, "score": report.scores[1], "shuffled": report.scores[1]}
            figures = ["–" if row[key] is None else write(row[key]) for key, write in writers.items()]
            choice = report.blurred or ("choice" if row["choice"] else "")
            rows.append([row["model"], short(row["order_gap"]), *figures, choice])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """The table and every report, ready for JSON."""
        rows = [{key: _finite(value) for key, value in row.items()} for row in self.table()]
        return {"table": rows, "reports": {name: report.to_dict() for name, report in self.reports.items()}}

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the metric against the order gap, one point per model."""
        page = _page()
        page.save_picture([page.comparison_figure(self)], path)

    def html(self, path: str | os.PathLike[str], *, title: str = "Which model ignores order?") -> None:
        """Write one self-contained page that compares the models."""
        _page().write_comparison(self, path, title)


def _page() -> Any:
    return extra("anyorder.audits.page", "audit", "a page or a picture")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _in_words(ci: Interval | None, write: Callable[[float], str]) -> str:
    return "" if ci is None else f" (95 % interval {interval(ci, write)})"
