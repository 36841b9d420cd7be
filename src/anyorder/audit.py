"""How much order matters to a predictor: figures with intervals, the worst ordering found, a page.

``x`` is a set in the given order, ``xπ`` the same set in a uniformly random one. Everything is measured by asking
the predictor: it may be a torch module, a recurrence, an estimator, an ONNX session or a function of arrays.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder._checks import InputError, InputTypeError, one_of, real_number, whole_number
from anyorder.audit_report import ROUNDING, Comparison, Report, WorstCase
from anyorder.estimates import Estimate, bootstrap_interval, estimate, rate_interval, short
from anyorder.ordering_search import search_orderings
from anyorder.orderings import random_orderings
from anyorder.predictors import Predictor, Sets, evaluating
from anyorder.recurrence import Recurrence
from anyorder.trajectory import tree_leaves

_CURVE_SAMPLES = 256  # samples whose swaps are measured
_CURVE_DRAWS = 4
_CURVE_POINTS = 24


def audit(
    predict: Any,
    elements: Any,
    lengths: Any = None,
    *,
    labels: Any = None,
    task: str = "auto",
    permutations: int = 32,
    generator: torch.Generator | None = None,
    search: int = 400,
    search_samples: int = 8,
    batch_size: int | None = None,
    seconds: float | None = None,
    progress: bool | None = None,
    class_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    sample_names: Sequence[str] | None = None,
) -> Report:
    """Measure how much the order of the elements matters to ``predict``.

    ``predict(elements, lengths) -> [R]`` or ``[R, K]`` gets the kind of array given: ``elements [N, T, D]`` numpy or
    torch, or a list of arrays ``[n, D]``, which estimators and functions of one argument get as a list. More
    than one output column means classification (``task="auto"``); one column is a class if it is text, and with
    ``task="classification"`` a probability (all within 0 and 1: threshold 0.5), a score (threshold 0) or a
    class number. ``labels``: class numbers or names, or values, for accuracy or RMSE as given and shuffled.

    ``permutations`` orderings a sample are drawn; then ``search`` orderings are tried on each of the
    ``search_samples`` samples that moved most (all orderings up to 7 elements). ``seconds`` is a time budget:
    draws and search end early when it is spent, and the report says so. The ``generator`` is the only
    randomness. Modules are asked in evaluation mode, without gradient.

    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.arange(12.0).reshape(3, 4, 1)
    >>> print(audit(lambda elements, lengths: elements.sum(dim=1), x, generator=g))
    Order does not matter. None of the 96 random orderings of 3 sets, ...
    >>> report = audit(lambda elements, lengths: elements[:, -1], x, generator=g)
    >>> report.worst_gap, int(report.worst_ordering[-1])
    (3.0, 0)
    """
    task = one_of("task", task, ("auto", "classification", "regression"))
    settings = _Settings(
        permutations=whole_number("permutations", permutations),
        search=whole_number("search", search, minimum=0),
        search_samples=whole_number("search_samples", search_samples),
        batch_size=None if batch_size is None else whole_number("batch_size", batch_size),
        seconds=None if seconds is None else real_number("seconds", seconds, above=0.0),
        progress=progress,
    )
    sets = Sets.of(elements, lengths)
    predictor = Predictor(predict, sets, class_names)
    with evaluating(predict):
        run = _Audit(predictor, sets, settings, generator)
        run.names = _Names(
            _checked_names("class_names", class_names, None) or [str(c) for c in predictor.classes],
            _checked_names("feature_names", feature_names, int(sets.elements.shape[2])),
            _checked_names("sample_names", sample_names, len(sets)),
        )
        with run.clock.bar():
            return run.report(predict, task, labels)


def compare(models: Mapping[str, Any], elements: Any, lengths: Any = None, **options: Any) -> Comparison:
    """Audit several models, ``{name: predict}``, on the same sets and the same random orderings.

    ``options`` are those of :func:`audit`; with ``labels`` the comparison shows score against order gap.

    >>> x = torch.arange(12.0).reshape(3, 4, 1)
    >>> models = {"sum": lambda elements: elements.sum(dim=1), "last": lambda elements: elements[:, -1]}
    >>> print(compare(models, x, generator=torch.Generator().manual_seed(0)))
    sum ignores order.
    """
    if not isinstance(models, Mapping):
        raise InputTypeError(f"models must be a dict of name: predict; got {type(models).__name__}")
    if not models:
        raise InputError("models must hold at least one predictor; got an empty dict")
    seed = _seed(options.pop("generator", None))
    reports: dict[str, Report] = {}
    for name, predict in models.items():
        generator = torch.Generator().manual_seed(seed)
        try:
            report = audit(predict, elements, lengths, generator=generator, **options)
        except InputError as error:
            raise InputError(f"model {name!r}: {error}") from error
        for other, first in reports.items():
            if first.task != report.task:
                raise InputError(
                    f"models must be of one kind: {other!r} is audited as {first.task}, {name!r} as {report.task}; "
                    "compare them apart, or say which with task="
                )
        reports[str(name)] = report
    return Comparison(reports)


@dataclass(frozen=True)
class _Settings:
    permutations: int
    search: int
    search_samples: int
    batch_size: int | None
    seconds: float | None
    progress: bool | None


@dataclass(frozen=True)
class _Names:
    classes: list[str]
    features: list[str] | None
    samples: list[str] | None

    def of_class(self, index: int) -> str:
        return self.classes[index] if 0 <= index < len(self.classes) else str(index)


class _Clock:
    """The time budget and the progress bar (shown on a terminal, or when asked for)."""

    def __init__(self, settings: _Settings) -> None:
        self._begin = time.monotonic()
        self._seconds = settings.seconds
        self._bar: Any = None
        wanted = settings.progress
        self._show = sys.stderr.isatty() if wanted is None else bool(wanted)

    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def past(self, share: float) -> bool:
        """Whether this share of the budget is spent."""
        return self._seconds is not None and self.elapsed() > share * self._seconds

    def bar(self) -> Any:
        if not self._show:
            return nullcontext()
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True, force_terminal=True), transient=True)
        self._task = self._bar.add_task("auditing", total=None)
        return self._bar

    def phase(self, words: str, total: int) -> None:
        if self._bar is not None:
            self._bar.reset(self._task, description=words, total=total)

    def advance(self, rows: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, rows)


class _Audit:
    """One audit: asks the predictor in batches and adds up what it hears. Holds O(N) numbers, never N × T × P."""

    names: _Names

    def __init__(
        self, predictor: Predictor, sets: Sets, settings: _Settings, generator: torch.Generator | None
    ) -> None:
        self.predictor, self.sets, self.settings, self.generator = predictor, sets, settings, generator
        self.rng = np.random.default_rng(_seed(generator))
        self.clock = _Clock(settings)
        row = sets.longest * int(sets.elements.shape[2])
        self.rows = settings.batch_size or int(np.clip(2_000_000 // row, 1, 1024))
        self.notes: list[str] = []

    def report(self, predict: Any, task: str, labels: Any) -> Report:
        self.given = self._ask_as_given()
        if task == "auto":
            many = self.given.shape[1] > 1 and not isinstance(predict, Recurrence)
            task = "classification" if many or self.predictor.hard else "regression"
        self.task = task
        spread = self._spread()
        repeat_gap, random = self._ask_again(spread)
        truth = None if labels is None else self._checked_labels(labels)
        self.classes = self._classes(self.given) if task == "classification" else None

        movable = np.flatnonzero(self.sets.sizes >= 2)
        if len(movable) < len(self.sets):
            few = len(self.sets) - len(movable)
            self.notes.append(f"{few:,} of {len(self.sets):,} sets have fewer than two elements; their gap is 0.")
        totals = self._shuffle(movable, truth)
        curve = self.rng.choice(movable, min(len(movable), _CURVE_SAMPLES), replace=False)
        by_distance = self._curve(curve, "distance", 0.65)
        by_position = self._curve(curve, "position", 0.78)
        state_gap = self._states(predict, curve)
        worst = self._search(totals.candidates, totals.draws)

        gaps = totals.gap / totals.draws
        classifies = self.classes is not None
        flips = totals.flip / totals.draws
        return Report(
            task=task,
            samples=len(self.sets),
            permutations=totals.draws,
            output_gap=float(gaps.mean()),
            output_gap_ci=bootstrap_interval(gaps, self.rng),
            spread=spread,
            flip_rate=float(flips.mean()) if classifies else None,
            flip_rate_ci=rate_interval(flips, self.rng) if classifies else None,
            ever_flipped=float((flips > 0).mean()) if classifies else None,
            flips=self._flips(totals),
            by_distance=by_distance,
            by_position=by_position,
            by_size=self._by_size(gaps),
            state_gap=state_gap,
            worst_gap=worst[0].gap if worst else 0.0,
            worst_sample=worst[0].sample if worst else None,
            worst_ordering=worst[0].ordering if worst else None,
            worst=worst[:5],
            accuracy=self._score(truth, self.given) if classifies and truth is not None else None,
            accuracy_shuffled=totals.mean_score(len(self.sets)) if classifies and truth is not None else None,
            rmse=self._score(truth, self.given) ** 0.5 if not classifies and truth is not None else None,
            rmse_shuffled=(totals.mean_score(len(self.sets)) ** 0.5 if not classifies and truth is not None else None),
            sample_gaps=gaps,
            sizes=self.sets.sizes,
            repeat_gap=repeat_gap,
            random=random,
            evaluations=self.predictor.evaluations,
            seconds=self.clock.elapsed(),
            notes=self.notes,
            feature_names=self.names.features,
        )

    # Asking
    def _ask(self, samples: np.ndarray, orders: np.ndarray, *, watch: bool = False) -> np.ndarray:
        parts = []
        for begin in range(0, len(samples), self.rows):
            part = slice(begin, begin + self.rows)
            parts.append(self.predictor(samples[part], orders[part], watch=watch))
            self.clock.advance(len(parts[-1]))
        return np.concatenate(parts)

    def _ask_as_given(self) -> np.ndarray:
        self.clock.phase("given order", len(self.sets))
        parts = []
        for begin in range(0, len(self.sets), self.rows):
            samples = np.arange(begin, min(begin + self.rows, len(self.sets)))
            parts.append(self.predictor(samples, watch=begin == 0))
            self.clock.advance(len(samples))
        return np.concatenate(parts)

    def _ask_again(self, spread: float) -> tuple[float, bool]:
        """Ask twice for the same: the same batch for randomness, then others beside them for batch mates."""
        first = np.arange(min(self.rows, len(self.sets), 256))
        same = self.given[first] if len(first) == min(self.rows, len(self.sets)) else self.predictor(first)
        repeat_gap = float(np.abs(self.predictor(first) - same).mean())
        scale = max(spread, float(np.abs(same).mean()) * 1e-3, 1e-12)
        random = repeat_gap > 1e-6 * scale
        if random:
            self.notes.append(
                f"The predictor is random: asked twice for the same sets in the same order, its answers were "
                f"{short(repeat_gap)} apart on average. The figures mix this noise with the effect of order; "
                "make it deterministic (evaluation mode, a fixed seed) and audit again."
            )
        elif len(first) >= 4:
            fewer = np.flip(first[: len(first) // 2]).copy()
            apart = float(np.abs(self.predictor(fewer) - same[fewer]).mean())
            if apart > ROUNDING * scale:
                self.notes.append(
                    "The predictor's answer for a set depends on the other sets in the batch: asked in a smaller "
                    f"one, it is {short(apart)} away on average. The figures mix this with the effect of order."
                )
        return repeat_gap, random

    def _spread(self) -> float:
        """Mean |f(x) − f(y)| over different samples: the yardstick of a gap."""
        count = len(self.given)
        if count < 2:
            return 0.0
        order = self.rng.permutation(count)
        shifts = self.rng.choice(np.arange(1, count), min(count - 1, 16), replace=False)
        apart = [np.abs(self.given[order] - self.given[np.roll(order, s)]).mean() for s in shifts]
        return float(np.mean(apart))

    # Random orderings
    def _shuffle(self, movable: np.ndarray, truth: np.ndarray | None) -> _Totals:
        totals = _Totals(len(self.sets), self.settings.search_samples)
        if truth is not None:
            fixed = np.setdiff1d(np.arange(len(self.sets)), movable)
            totals.fixed_score = self._score(truth[fixed], self.given[fixed]) * len(fixed) if len(fixed) else 0.0
            totals.scored = True
        wanted = self.settings.permutations
        self.clock.phase("random orderings", wanted * len(movable))
        while totals.draws < wanted and len(movable) and not (totals.draws and self.clock.past(0.5)):
            draws = min(wanted - totals.draws, max(1, self.rows // len(movable)))
            for begin in range(0, len(movable), self.rows):
                samples = movable[begin : begin + self.rows]
                orders = random_orderings(
                    torch.from_numpy(self.sets.sizes[samples]), self.sets.longest, draws, self.generator
                ).numpy()
                rows = np.repeat(samples, draws)
                flat = orders.reshape(len(rows), -1)
                outputs = self._ask(rows, flat)
                gaps = np.abs(outputs - self.given[rows]).mean(axis=1)
                np.add.at(totals.gap, rows, gaps)
                totals.keep_worst(rows, gaps, flat)
                if self.classes is not None:
                    changed = self._classes(outputs)
                    flipped = changed != self.classes[rows]
                    np.add.at(totals.flip, rows, flipped)
                    totals.flips.update(
                        zip(self.classes[rows][flipped].tolist(), changed[flipped].tolist(), strict=True)
                    )
                if truth is not None:
                    totals.score += self._score(truth[rows], outputs) * len(rows)
            totals.draws += draws
        if len(movable) == 0:
            totals.draws = wanted
        elif totals.draws < wanted:
            self.notes.append(f"The time budget ended the random orderings after {totals.draws} of {wanted} a sample.")
        return totals

    # Swaps
    def _curve(self, samples: np.ndarray, kind: str, share: float) -> dict[int, Estimate]:
        """The gap of one swap by the distance of the two elements, or by the position of one of them."""
        sizes = self.sets.sizes[samples]
        most = int(sizes.max(initial=0))
        if most < 2:
            return {}
        points = _points(1, most - 1, geometric=True) if kind == "distance" else _points(0, most - 1)
        total = np.zeros((len(points), len(samples)))
        count = np.zeros_like(total)
        draws = min(_CURVE_DRAWS, self.settings.permutations)
        self.clock.phase(f"swaps by {kind}", draws * sum(int((sizes > p).sum()) for p in points))
        for _, (at, point) in product(range(draws), enumerate(points)):
            if self.clock.past(share):
                self.notes.append(f"The time budget cut the swaps by {kind} short.")
                break
            eligible = np.flatnonzero(sizes > point)
            n = sizes[eligible]
            if kind == "distance":
                i = (self.rng.random(len(n)) * (n - point)).astype(np.int64)
                j = i + point
            else:
                i = np.full(len(n), point)
                j = (self.rng.random(len(n)) * (n - 1)).astype(np.int64)
                j += j >= i
            orders = np.tile(np.arange(self.sets.longest), (len(n), 1))
            rows = np.arange(len(n))
            orders[rows, i], orders[rows, j] = j, i
            total[at, eligible] += self._gaps(samples[eligible], orders)
            count[at, eligible] += 1
        return {
            point: estimate(total[at, count[at] > 0] / count[at, count[at] > 0], self.rng)
            for at, point in enumerate(points)
            if count[at].any()
        }

    def _gaps(self, samples: np.ndarray, orders: np.ndarray) -> np.ndarray:
        return np.abs(self._ask(samples, orders) - self.given[samples]).mean(axis=1)

    def _by_size(self, gaps: np.ndarray) -> dict[int, Estimate]:
        sizes = self.sets.sizes
        distinct = np.unique(sizes)
        if len(distinct) > _CURVE_POINTS:
            edges = np.quantile(sizes, np.linspace(0, 1, 13)[:-1], method="lower")
            distinct = np.unique(np.append(edges, sizes.min()))
        group = np.searchsorted(distinct, sizes, side="right") - 1
        return {int(size): estimate(gaps[group == g], self.rng) for g, size in enumerate(distinct)}

    # States of a recurrence
    def _states(self, predict: Any, samples: np.ndarray) -> dict[int, Estimate] | None:
        """Squared distance between states of the first m elements in two orders, over that between samples."""
        if isinstance(predict, Recurrence):
            r, encode = predict, None
        elif isinstance(getattr(predict, "recurrence", None), Recurrence) and hasattr(predict, "encode"):
            r, encode = predict.recurrence, predict.encode
        else:
            return None
        gaps: dict[int, Estimate] = {}
        sizes = self.sets.sizes[samples]
        parameter = next(r.parameters(), None)
        points = _points(2, int(sizes.max(initial=1)), most=12)
        self.clock.phase("states by prefix length", len(points))
        for m in points:
            enough = samples[sizes >= m]
            if self.clock.past(0.85):
                self.notes.append("The time budget cut the states by prefix length short.")
                break
            if len(enough) < 2:
                continue
            given: list[np.ndarray] = []
            shuffled: list[np.ndarray] = []
            for begin in range(0, len(enough), self.rows):
                prefix = torch.as_tensor(self.sets.take(enough[begin : begin + self.rows]))[:, :m]
                if parameter is not None and prefix.is_floating_point():
                    prefix = prefix.to(parameter)
                order = random_orderings(torch.full((len(prefix),), m), m, 1, self.generator)[:, 0]
                mixed = prefix[torch.arange(len(prefix))[:, None], order]
                for which, kept in ((prefix, given), (mixed, shuffled)):
                    with torch.no_grad():
                        state = tree_leaves(r.scan(which if encode is None else encode(which)).last)
                    kept.append(torch.cat([s.flatten(1).double().cpu() for s in state], 1).numpy())
            one, other = np.concatenate(given), np.concatenate(shuffled)
            between = 2 * float(one.var(axis=0, ddof=1).sum())  # mean squared distance of different samples
            eps = max(torch.finfo(s.dtype).eps if s.is_floating_point() else 0.0 for s in state)
            between = max(between, eps**2 * float((one**2).sum(axis=1).mean()))  # at least their rounding error
            moved = ((one - other) ** 2).sum(axis=1)
            if between > 0:
                gaps[m] = estimate(moved / between, self.rng)
            elif not moved.any():
                gaps[m] = estimate(moved, self.rng)
            self.clock.advance(1)
        return gaps

    # The worst
    def _search(self, candidates: dict[int, tuple[float, np.ndarray]], draws: int) -> list[WorstCase]:
        if not candidates:
            return []
        chosen = sorted(candidates, key=lambda sample: -candidates[sample][0])
        sizes = self.sets.sizes[chosen]
        samples = np.array(chosen)
        sets = [_numpy(self.sets.take(samples[i : i + 1]))[0, :n] for i, n in enumerate(sizes)]
        starts = [candidates[sample][1][:n] for sample, n in zip(chosen, sizes, strict=True)]
        cases = []
        if self.settings.search:
            self.clock.phase("worst orderings", self.settings.search * len(chosen))

            def evaluate(which: np.ndarray, orders: np.ndarray) -> np.ndarray:
                tail = np.arange(orders.shape[1], self.sets.longest)
                tail = np.broadcast_to(tail, (len(orders), len(tail)))
                return self._gaps(samples[which], np.concatenate([orders, tail], axis=1))

            found = search_orderings(
                evaluate, sets, self.settings.search, self.rng, starts=starts, expired=lambda: self.clock.past(1.0)
            )
            if self.clock.past(1.0):
                self.notes.append("The time budget ended the search for the worst ordering early.")
        for i, sample in enumerate(chosen):
            gap, order, exact, tried = candidates[sample][0], starts[i], False, draws
            if self.settings.search:
                tried += found[i].tried
                exact = found[i].exact
                if found[i].gap >= gap:
                    gap, order = found[i].gap, found[i].order
            cases.append((gap, sample, order, exact, tried, sets[i]))
        cases.sort(key=lambda case: -case[0])
        return [self._worst_case(*case) for case in cases]

    def _worst_case(
        self, gap: float, sample: int, order: np.ndarray, exact: bool, tried: int, elements: np.ndarray
    ) -> WorstCase:
        whole = np.concatenate([order, np.arange(len(order), self.sets.longest)])
        output = self.predictor(np.array([sample, sample]), np.stack([np.sort(whole), whole]))[1:]
        named = self.names.samples
        case = WorstCase(
            sample=sample,
            name=str(sample) if named is None else named[sample],
            gap=gap,
            ordering=np.array(order),
            exact=exact,
            tried=tried,
            elements=elements,
            output=self.given[sample],
            worst_output=output[0],
        )
        if self.classes is None:
            return case
        one, other = int(self.classes[sample]), int(self._classes(output)[0])
        return replace(case, given_class=self.names.of_class(one), worst_class=self.names.of_class(other))

    # Classes and labels
    def _classes(self, outputs: np.ndarray) -> np.ndarray:
        if outputs.shape[1] > 1:
            return outputs.argmax(axis=1)
        if (self.given == np.round(self.given)).all():
            return np.round(outputs[:, 0]).astype(np.int64)
        threshold = 0.5 if ((self.given >= 0) & (self.given <= 1)).all() else 0.0
        return (outputs[:, 0] > threshold).astype(np.int64)

    def _flips(self, totals: _Totals) -> list[tuple[str, str, float]]:
        asked = totals.draws * len(self.sets)
        return [
            (self.names.of_class(a), self.names.of_class(b), count / asked)
            for (a, b), count in totals.flips.most_common(12)
        ]

    def _checked_labels(self, labels: Any) -> np.ndarray:
        values = _numpy(labels)
        if values.ndim == 0 or len(values) != len(self.sets):
            raise InputError(
                f"labels must hold one entry a sample, {len(self.sets)} of them; got shape {list(values.shape)}"
            )
        if self.task == "regression":
            if values.dtype.kind not in "biuf":
                raise InputTypeError(f"labels of a regression must be numbers; got dtype {values.dtype}")
            values = values.reshape(len(values), -1).astype(np.float64)
            if not np.isfinite(values).all():
                at = int((~np.isfinite(values)).any(axis=1).argmax())
                raise InputError(f"labels must be finite; that of sample {at} is NaN or an infinite value")
            if values.shape[1] != self.given.shape[1]:
                raise InputError(
                    f"labels must have as many columns as predict returns, {self.given.shape[1]}; got {values.shape[1]}"
                )
            return values
        values = values.reshape(-1) if values.size == len(self.sets) else values
        if values.ndim != 1:
            raise InputError(f"labels of a classification must have shape [N]; got {list(values.shape)}")
        names = self.predictor.classes
        if self.predictor.knows_classes or values.dtype.kind in "USO":
            index = {name: i for i, name in enumerate(names)}
            unknown = sorted({str(v) for v in values.tolist() if v not in index})
            if unknown:
                raise InputError(f"labels hold classes predict does not know: {', '.join(unknown[:5])}")
            return np.array([index[v] for v in values.tolist()])
        if values.dtype.kind == "f" and (values == np.round(values)).all():
            values = values.astype(np.int64)
        if values.dtype.kind not in "biu":
            raise InputTypeError(f"labels of a classification must be class numbers or names; got {values.dtype}")
        columns = self.given.shape[1]
        if columns == 1 and (self.given != np.round(self.given)).any() and not np.isin(values, (0, 1)).all():
            raise InputError(
                "labels of one column of scores or probabilities must be 0 and 1, 1 for those above the threshold; "
                f"got {', '.join(map(str, np.unique(values)[:5]))}: map them, as in labels == {values.max()}"
            )
        if columns > 1 and (values.min() < 0 or values.max() >= columns):
            raise InputError(
                f"labels must be class numbers from 0 to {columns - 1}; got {values.min()} to {values.max()}"
            )
        return values.astype(np.int64)

    def _score(self, truth: np.ndarray | None, outputs: np.ndarray) -> float:
        """Accuracy, or the mean squared error."""
        assert truth is not None
        if self.task == "classification":
            return float((self._classes(outputs) == truth).mean())
        return float(((outputs - truth) ** 2).mean())


class _Totals:
    """Sums over random orderings, a number a sample, and the worst orderings of the samples that moved most."""

    def __init__(self, samples: int, keep: int) -> None:
        self.gap = np.zeros(samples)
        self.flip = np.zeros(samples)
        self.flips: Counter[tuple[int, int]] = Counter()
        self.draws = 0
        self.score = 0.0
        self.fixed_score = 0.0
        self.scored = False
        self.candidates: dict[int, tuple[float, np.ndarray]] = {}
        self._keep = keep

    def mean_score(self, samples: int) -> float:
        return (self.score / max(self.draws, 1) + self.fixed_score) / samples

    def keep_worst(self, rows: np.ndarray, gaps: np.ndarray, orders: np.ndarray) -> None:
        falling = np.argsort(-gaps, kind="stable")
        best = np.sort(np.unique(rows[falling], return_index=True)[1])  # where each sample comes first
        for row in falling[best[: self._keep]]:
            sample, gap = int(rows[row]), float(gaps[row])
            if sample not in self.candidates or gap > self.candidates[sample][0]:
                self.candidates[sample] = (gap, orders[row].copy())
        if len(self.candidates) > self._keep:
            ranked = sorted(self.candidates.items(), key=lambda item: -item[1][0])
            self.candidates = dict(ranked[: self._keep])


def _points(low: int, high: int, *, most: int = _CURVE_POINTS, geometric: bool = False) -> list[int]:
    """Whole numbers from ``low`` to ``high``: all of them if few, else spread out."""
    if high - low < most:
        return list(range(low, high + 1))
    spread = np.geomspace(low, high, most) if geometric else np.linspace(low, high, most)
    return np.unique(np.round(spread).astype(int)).tolist()


def _seed(generator: torch.Generator | None) -> int:
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


def _numpy(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _checked_names(what: str, names: Sequence[str] | None, expected: int | None) -> list[str] | None:
    if names is None:
        return None
    names = [str(name) for name in names]
    if expected is not None and len(names) != expected:
        raise InputError(f"{what} must hold {expected} names; got {len(names)}")
    return names
