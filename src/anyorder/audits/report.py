"""What an audit found, in figures and in words."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from anyorder.audits.intervals import Estimate, Interval, interval, mean_interval, percent, rate_interval, root, short
from anyorder.checks import extra

_SHARE = "percent of answers"
ROUNDING = 1e-4  # of the difference between sets: a smaller one has no practical meaning
_ROUNDING_OF_OUTPUT = 1e-6  # the same of the output itself, where all sets get the same one
_ARRAYS = ("set_changes", "set_scores", "set_ratios", "sizes", "audited", "worst", "feature_names")  # not in to_dict


@dataclass(frozen=True)
class WorstCase:
    """The ordering of set ``index`` that moved its output most, by ``change``; ``exact``: all were tried."""

    index: int
    name: str
    change: float
    ordering: np.ndarray
    exact: bool
    tried: int
    elements: np.ndarray
    output: np.ndarray
    worst_output: np.ndarray
    given_class: str | None = None
    worst_class: str | None = None


class Curve(NamedTuple):
    """How a curve or a bias of a :class:`Report` is named, in JSON (``key``) and in its picture."""

    key: str
    title: str
    label: str
    unit: str = "change of the output"


CURVES = {
    "by_distance": Curve("distance", "Swapping two elements, by distance", "distance (1: neighbours)"),
    "by_position": Curve("position", "Swapping one element, by its position", "position (first = 0)"),
    "by_size": Curve("size", "A random order, by size of the set", "elements in the set"),
    "state_order_gap": Curve("prefix", "The state after the first m elements", "elements read (m)", "order gap"),
}
BIASES = {
    "position_bias": Curve("place", "Places that answers name, beyond their due", "place (first = 0)", _SHARE),
    "label_bias": Curve("class", "Classes predicted, beyond the true ones", "class", _SHARE),
    "left_out": Curve("row", "What one row moves when it is left out", "row", "percent of the spread"),
}


class Verdict(NamedTuple):
    """The result in words: a ``headline``, a ``detail``, and a ``tone`` ("good", "fair" or "bad")."""

    tone: str
    headline: str
    detail: str


@dataclass(frozen=True)
class Report:
    """What :func:`anyorder.audit` measured: ``x`` is a set as given, ``xπ`` in an ordering, ``y`` another.

    - ``output_gap``: mean |f(xπ) − f(x)| over sets, orderings and output columns (of labels: how often they differ);
      ``noise_output_gap``: the same of x read again; ``excess_output_gap``: what order adds, the difference per set.
      ``spread``: mean |f(x) − f(y)|.
    - ``order_gap``: the root mean square of f(xπ) − f(x) over that of f(x) − f(y), both less the noise. 0: order is
      ignored. Near 1: order matters as much as content.
    - ``flip_rate``, ``noise_flip_rate``, ``excess_flip_rate`` (classification): how often the predicted class changes.
    - ``position_bias[p]``: how often the answer names place p, less 1/n (``equivariant=True``). ``label_bias[c]``: how
      often class c is predicted in the orderings, less how often it is true.
    - ``left_out[kind]`` (a TableModel): how far the output moves, in units of ``spread``, without a row of this kind.
    - ``by_distance[d]``, ``by_position[p]``: the mean change of the output, less the noise, when two elements d apart,
      or the element at p and any other, are swapped; ``by_size[n]``: in the orderings of sets of n elements (or up to
      the next key).
    - ``state_order_gap[m]`` (a recurrence): the order gap of what it returns after m elements.
    - ``worst``: the worst orderings found, the worst first; ``worst_gap``: the largest change of the output;
      ``worst_set`` and ``worst_ordering`` of it.
    - ``calls``: sets in an ordering that predict was given; ``unparsed``: answers that could not be read.
      ``batch_dependent``: whether the output of a set depends on the others in the batch.
    - ``audited``: the sets behind ``set_changes``, ``set_scores`` and ``sizes``.

    ``…_ci`` are 95 % intervals over sets, None for one set. The curves' and biases' values are :class:`Estimate`:
    floats with ``ci`` and ``sets``.
    """

    task: str
    design: str
    sets: int
    orderings: int
    output_gap: float
    output_gap_ci: Interval | None
    noise_output_gap: float
    noise_output_gap_ci: Interval | None
    excess_output_gap: float
    excess_output_gap_ci: Interval | None
    spread: float
    order_gap: float
    order_gap_ci: Interval | None
    position_bias: dict[int, Estimate] | None
    label_bias: dict[str, Estimate] | None
    by_distance: dict[int, Estimate]
    by_position: dict[int, Estimate]
    by_size: dict[int, Estimate]
    state_order_gap: dict[int, Estimate] | None
    worst: list[WorstCase]
    set_changes: np.ndarray
    set_scores: np.ndarray | None
    set_ratios: np.ndarray
    sizes: np.ndarray
    audited: np.ndarray
    batch_dependent: bool
    calls: int
    unparsed: int
    notes: list[str]
    flip_rate: float | None = None
    flip_rate_ci: Interval | None = None
    noise_flip_rate: float | None = None
    noise_flip_rate_ci: Interval | None = None
    excess_flip_rate: float | None = None
    excess_flip_rate_ci: Interval | None = None
    accuracy: float | None = None
    accuracy_shuffled: float | None = None
    rmse: float | None = None
    rmse_shuffled: float | None = None
    feature_names: list[str] | None = None
    left_out: dict[str, Estimate] | None = None

    @property
    def worst_gap(self) -> float:
        """The largest change of the output that was found."""
        return self.worst[0].change if self.worst else 0.0

    @property
    def worst_set(self) -> int | None:
        """The number of the set that moved most."""
        return self.worst[0].index if self.worst else None

    @property
    def worst_ordering(self) -> np.ndarray | None:
        """The ordering that moved it most."""
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
        movable = len(self.sizes) - int((self.sizes < 2).sum())
        apart = short(self.spread)
        if self.batch_dependent:
            headline = "The output for a set depends on the other sets in the batch."
            return Verdict("fair", headline, "The effect of order cannot be told apart. Audit again with batch_size=1.")
        if movable == 0 or not self.worst:
            return Verdict("fair", "There is nothing to reorder.", "No set has elements to reorder. Audit larger sets.")
        if self.noise_output_gap > _ROUNDING_OF_OUTPUT * max(self.spread, self.output_gap):
            return self._noisy_verdict()
        if self.worst_gap == 0:
            search = ", and no ordering of the search," if self.searched else ""
            tried = f"{self.orderings * movable:,} orderings of {movable:,} sets"
            detail = f"None of the {tried}{search} changed the output."
            if self.flip_rate_ci is not None:
                most = percent(self.flip_rate_ci[1])
                detail += f" At 95 %, another order changes the class in at most {most} of cases."
            return Verdict("good", "Order does not matter.", detail)
        worst = f"The largest change found is {short(self.worst_gap)} (set {plain(self.worst[0].name)})"
        flipped, size = self.flip_rate or 0.0, float(np.abs(self.worst[0].output).mean())
        if self.worst_gap <= (ROUNDING * self.spread or _ROUNDING_OF_OUTPUT * size) and not flipped:
            beside = f"the output itself is about {short(size)}"
            beside = f"two different sets differ by {apart} on average" if self.spread else beside
            return Verdict("good", "Order makes no practical difference.", f"{worst}, while {beside}.{self._also()}")
        effect = f"moves the output by {short(self.output_gap)} on average{_in_words(self.output_gap_ci, short)}"
        if self.flip_rate is not None:
            flips = f"{percent(self.flip_rate)} of cases{_in_words(self.flip_rate_ci, percent)}"
            effect = f"changes the predicted class in {flips} and {effect}"
        alike = "There is one set only" if self.sets == 1 else "All sets get the same output"
        beside = f"{alike}, so there is no difference between sets to compare this with."
        beside = f"Two different sets differ by {apart}." if self.spread else beside
        tone, degree = self._degree(flipped)
        detail = f"Another order {effect}. {worst}. {beside}{self._also()}"
        return Verdict(tone, f"Order {degree}.", detail)

    def _noisy_verdict(self) -> Verdict:
        """The result for a predictor that answers differently when asked the same again."""
        kind, what, write = "flip_rate", "changes the predicted class in {} of cases", percent
        if self.flip_rate is None:
            kind, what, write = "output_gap", "moves the output by {} on average", short
        raw, noise, excess = (getattr(self, f"{part}{kind}") for part in ("", "noise_", "excess_"))
        ci = getattr(self, f"excess_{kind}_ci")
        detail = f"Another order {what.format(write(raw))}. Reading the same order again gives {write(noise)}. "
        detail += f"Order adds {write(excess)}{_in_words(ci, write)}.{self._also()}"
        flipped = 0.0 if self.flip_rate is None else excess
        if ci is None or ci[0] <= 0:
            little = ci is not None and ci[1] <= 0.01 * (1 if kind == "flip_rate" else self.spread)
            headline = "Order adds nothing that stands out from the noise."
            return Verdict("good" if little else "fair", headline, detail)
        tone, degree = self._degree(flipped)
        return Verdict(tone, f"Order {degree}.", detail)

    def _degree(self, flipped: float) -> tuple[str, str]:
        if (self.order_gap >= 0.5 and self.spread > 0) or flipped >= 0.1:
            return "bad", "matters strongly"
        for gap, flips, degree in ((0.02, 0.005, "hardly matters"), (0.05, 0.01, "matters a little")):
            if self.order_gap < gap and flipped < flips:
                return "fair", degree
        return "fair", "matters noticeably" if self.spread else "matters"

    def _also(self) -> str:
        """The metric, and the place that answers prefer."""
        metric, write, given, shuffled = self.scores
        words = ""
        if given is not None and shuffled is not None:
            words = f" {metric[0].upper()}{metric[1:]} is {write(given)} as given and {write(shuffled)} shuffled."
        place = max(self.position_bias or (), key=lambda place: self.position_bias[place], default=None)  # type: ignore
        if place is not None and self.position_bias and (self.position_bias[place].ci or (0.0,))[0] > 0:
            bias = self.position_bias[place]
            words += f" Place {place} is named {percent(bias)} beyond its due{_in_words(bias.ci, percent)}."
        return words

    def __str__(self) -> str:
        return " ".join(self.verdict()[1:])

    def to_dict(self) -> dict[str, Any]:
        """Every figure, ready for JSON."""
        figures = {key: _finite(value) for key, value in vars(self).items() if key not in _ARRAYS}
        for name, (key, *_) in CURVES.items():
            curve = getattr(self, name)
            figures[name] = None if curve is None else [{key: at} | value.to_dict() for at, value in curve.items()]
        for name in BIASES:
            bias = getattr(self, name)
            figures[name] = bias and {str(key): value.to_dict() for key, value in bias.items()}
        figures |= {"worst_gap": self.worst_gap, "worst_set": self.worst_set, "verdict": str(self)}
        figures["worst_ordering"] = None if self.worst_ordering is None else self.worst_ordering.tolist()
        return figures

    def beaten_by(self, other: Report) -> bool:
        """Whether ``other`` is better in metric or order gap, beyond chance, and worse in neither."""
        _, mine, theirs = np.intersect1d(self.audited, other.audited, return_indices=True)
        differences = [_difference(self.set_ratios[mine], other.set_ratios[theirs])]
        if self.set_scores is not None and other.set_scores is not None:
            sign = -1 if self.task == "classification" else 1
            differences.append(sign * _difference(self.set_scores[mine], other.set_scores[theirs]))
        return max(differences) > 0 and min(differences) >= 0

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

        ``choice`` marks the models that no other beats: none is better in metric or order gap without being worse in
        the other. Better means that the 95 % interval of the difference, paired by sets, leaves out 0.
        """
        rows: list[dict[str, Any]] = []
        for name, report in self.reports.items():
            metric, _, given, shuffled = report.scores
            score_ci, scores = None, report.set_scores
            if scores is not None:
                score_ci = rate_interval(scores) if metric == "accuracy" else root(mean_interval(scores))
            row = {"model": name, "metric": metric.lower(), "score": given, "score_ci": score_ci, "shuffled": shuffled}
            gaps = ("order_gap", "order_gap_ci", "output_gap", "flip_rate", "flip_rate_ci", "worst_gap")
            row |= {key: getattr(report, key) for key in gaps}
            rows.append(row | {"choice": not any(map(report.beaten_by, self.reports.values()))})
        return rows

    def __str__(self) -> str:
        rows = [["model", "order gap", "flip rate", "metric", "shuffled", "choice"]]
        for row in self.table():
            report = self.reports[row["model"]]
            writers = {"flip_rate": percent, "score": report.scores[1], "shuffled": report.scores[1]}
            figures = ["–" if row[key] is None else write(row[key]) for key, write in writers.items()]
            choice = "batch" if report.batch_dependent else "choice" if row["choice"] else ""
            rows.append([plain(row["model"]), short(row["order_gap"]), *figures, choice])
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


def _difference(one: np.ndarray, other: np.ndarray) -> int:
    """The sign of the mean of ``one`` less ``other``, or 0 if its 95 % interval holds 0."""
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return int(np.isinf(one).any()) - int(np.isinf(other).any())
    low, high = mean_interval(one - other) or (0.0, 0.0)
    return int(low > 0) - int(high < 0)


def plain(name: str) -> str:
    """A name without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def _page() -> Any:
    return extra("anyorder.audits.page", "audit", "a page or a picture")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _in_words(ci: Interval | None, write: Callable[[float], str]) -> str:
    return "" if ci is None else f" (95 % interval {interval(ci, write)})"
