"""How much order matters to a predictor: figures with intervals, the worst ordering found, a page.

``x`` is a set in the given order, ``xπ`` the same set in a uniformly random one. Everything is measured by asking
the predictor: it may be a torch module, a recurrence, an estimator, an ONNX session or a function of arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyorder.audits.asking import Asker, Clock
from anyorder.audits.intervals import Estimate, bootstrap_interval, estimate, rate_interval, short
from anyorder.audits.labels import Judge
from anyorder.audits.predictor import Predictor, Sets, in_layout, recurrence_of, says_regressor
from anyorder.audits.report import ROUNDING, Comparison, Report, WorstCase
from anyorder.audits.worst_order import search_orderings
from anyorder.checks import InputError, InputTypeError, one_of, real_number, whole_number
from anyorder.recurrences.base import Recurrence, evaluating
from anyorder.recurrences.trajectory import tree_leaves

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
    orderings: int = 32,
    generator: torch.Generator | None = None,
    search: int = 400,
    search_sets: int = 8,
    batch_size: int | None = None,
    seconds: float | None = None,
    progress: bool | None = None,
    class_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    set_names: Sequence[str] | None = None,
) -> Any:
    """Measure how much the order of the elements matters to ``predict``; a dict of predictors is compared.

    ``predict(elements, lengths) -> [R]`` or ``[R, K]`` gets the kind of array given: ``elements [N, T, D]`` numpy or
    torch, or a list of arrays ``[n, D]``, which estimators and functions of one argument get as a list. More
    than one output column means classification (``task="auto"``); one column is a class if it is text, and with
    ``task="classification"`` a probability (all within 0 and 1: threshold 0.5), a score (threshold 0) or a
    class number. ``labels``: class numbers or names, or values, for accuracy or RMSE as given and shuffled.

    ``orderings`` orderings a sample are drawn; then ``search`` orderings are tried on each of the
    ``search_sets`` samples that moved most (all orderings up to 7 elements). ``seconds`` is a time budget, kept
    to within one block of sets asked together: draws and search end early when it is spent, and where it is not
    enough to ask for all sets, a random part of them is audited; the report says so. The ``generator`` is the only
    randomness. Modules are asked in evaluation mode, without gradient.

    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.arange(12.0).reshape(3, 4, 1)
    >>> print(audit(lambda elements, lengths: elements.sum(dim=1), x, generator=g))
    Order does not matter. None of the 96 random orderings of 3 sets, ...
    >>> report = audit(lambda elements, lengths: elements[:, -1], x, generator=g)
    >>> report.worst_gap, int(report.worst_ordering[-1])
    (3.0, 0)
    >>> models = {"sum": lambda elements: elements.sum(dim=1), "last": lambda elements: elements[:, -1]}
    >>> print(audit(models, x, generator=g))
    sum ignores order.
    """
    if isinstance(predict, Mapping):
        options = {
            "labels": labels,
            "task": task,
            "orderings": orderings,
            "search": search,
            "search_sets": search_sets,
            "batch_size": batch_size,
            "seconds": seconds,
            "progress": progress,
            "class_names": class_names,
            "feature_names": feature_names,
            "set_names": set_names,
        }
        return _compare(predict, elements, lengths, generator, options)
    task = one_of("task", task, ("auto", "classification", "regression"))
    settings = _Settings(
        orderings=whole_number("orderings", orderings),
        search=whole_number("search", search, minimum=0),
        search_sets=whole_number("search_sets", search_sets),
        batch_size=None if batch_size is None else whole_number("batch_size", batch_size),
        seconds=None if seconds is None else real_number("seconds", seconds, above=0.0),
        progress=progress,
    )
    predict, elements = in_layout(predict, elements)
    sets = Sets.of(elements, lengths)
    predictor = Predictor(predict, sets, class_names)
    with evaluating(predict):
        run = _Audit(predictor, sets, settings, generator)
        run.names = _Names(
            _checked_names("class_names", class_names, None) or [str(c) for c in predictor.classes],
            _checked_names("feature_names", feature_names, sets.features),
            _checked_names("set_names", set_names, len(sets)),
        )
        with run.clock.bar():
            return run.report(predict, task, labels)


def _compare(
    models: Mapping[str, Any],
    elements: Any,
    lengths: Any,
    generator: torch.Generator | None,
    options: dict[str, Any],
) -> Comparison:
    """The audits of several models on the same sets and the same random orderings."""
    if not models:
        raise InputError("models must hold at least one predictor; got an empty dict")
    seed = _seed(generator)
    reports: dict[str, Report] = {}
    for name, predict in models.items():
        generator = torch.Generator().manual_seed(seed)
        try:
            report: Any = audit(predict, elements, lengths, generator=generator, **options)
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
    orderings: int
    search: int
    search_sets: int
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


class _Audit:
    """One audit: asks the predictor in blocks and adds up what it hears. Holds O(N) numbers, never N × T × P."""

    names: _Names

    def __init__(
        self, predictor: Predictor, sets: Sets, settings: _Settings, generator: torch.Generator | None
    ) -> None:
        self.predictor, self.sets, self.settings = predictor, sets, settings
        self.rng = np.random.default_rng(_seed(generator))
        self.clock = Clock(settings.seconds, settings.progress)
        self.ask = Asker(predictor, self.clock, settings.batch_size)
        self.notes: list[str] = []
        self.batch_gap = 0.0

    def report(self, predict: Any, task: str, labels: Any) -> Report:
        order = self._ask_as_given()
        known = self.given[np.sort(order)]
        if task == "auto":
            many = known.shape[1] > 1 and not isinstance(predict, Recurrence) and not says_regressor(predict)
            task = "classification" if many or self.predictor.hard else "regression"
        self.judge = Judge(task, known, self.predictor)
        spread = self._spread(known)
        repeat_gap, random = self._ask_again(spread)
        truth = None if labels is None else self.judge.truth(labels, len(self.sets))
        classifies = task == "classification"
        self.classes = np.full(len(self.sets), -1)
        if classifies:
            self.classes[order] = self.judge.classes(self.given[order])

        totals, audited = self._shuffle(order, truth)
        movable = audited[self.sets.sizes[audited] >= 2]
        if len(movable) < len(audited):
            few = len(audited) - len(movable)
            self.notes.append(f"{few:,} of {len(audited):,} sets have fewer than two elements; their gap is 0.")
        curve = self.rng.choice(movable, min(len(movable), _CURVE_SAMPLES), replace=False)
        curve = curve[np.argsort(self.sets.sizes[curve], kind="stable")]
        by_distance = self._curve(curve, "distance", 0.65)
        by_position = self._curve(curve, "position", 0.78)
        state_gap = self._states(predict, curve)
        draws = int(totals.asked[movable].min()) if len(movable) else self.settings.orderings
        worst = self._search(totals.candidates, draws)

        gaps = totals.mean(totals.gap)[audited]
        flips = totals.mean(totals.flip)[audited]
        score = shuffled = None
        if truth is not None:
            as_given = self.judge.scores(truth[audited], self.given[audited])
            moved = np.where(totals.asked[audited] > 0, totals.mean(totals.score)[audited], as_given)
            score, shuffled = float(as_given.mean()), float(moved.mean())
        return Report(
            task=task,
            sets=len(audited),
            orderings=draws,
            output_gap=float(gaps.mean()),
            output_gap_ci=bootstrap_interval(gaps, self.rng),
            spread=spread,
            flip_rate=float(flips.mean()) if classifies else None,
            flip_rate_ci=rate_interval(flips, self.rng) if classifies else None,
            ever_flipped=float((flips > 0).mean()) if classifies else None,
            flips=self._flips(totals, len(movable) / len(audited)),
            by_distance=by_distance,
            by_position=by_position,
            by_size=self._by_size(gaps, self.sets.sizes[audited]),
            state_gap=state_gap,
            worst_gap=worst[0].gap if worst else 0.0,
            worst_set=worst[0].sample if worst else None,
            worst_ordering=worst[0].ordering if worst else None,
            worst=worst[:5],
            accuracy=score if classifies else None,
            accuracy_shuffled=shuffled if classifies else None,
            rmse=None if classifies or score is None else score**0.5,
            rmse_shuffled=None if classifies or shuffled is None else shuffled**0.5,
            set_gaps=gaps,
            sizes=self.sets.sizes[audited],
            repeat_gap=repeat_gap,
            random=random,
            batch_gap=self.batch_gap,
            evaluations=self.predictor.evaluations,
            seconds=self.clock.elapsed(),
            notes=self.notes,
            feature_names=self.names.features,
            audited=audited,
        )

    # The given order
    def _ask_as_given(self) -> np.ndarray:
        """Ask for every set, or for as many as a fifth of the time budget allows; which, in the order asked.

        Without a budget sets of like size come together; with one they come at random, so that those asked are a
        random part of them all.
        """
        self.clock.phase("given order", len(self.sets))
        order = self.rng.permutation(len(self.sets))
        if self.settings.seconds is None:
            order = np.argsort(self.sets.sizes, kind="stable")
        asked = 0
        for samples in self.ask.blocks(order):
            if asked and self.clock.past(0.2):
                break
            outputs = self.ask(samples, watch=asked == 0)
            if asked == 0:
                self.first = samples
                self.given = np.full((len(self.sets), outputs.shape[1]), np.nan)
            self.given[samples] = outputs
            asked += len(samples)
        return order[:asked]

    def _ask_again(self, spread: float) -> tuple[float | None, bool]:
        """Ask twice for the same: the same batch for randomness, then others beside them for batch mates."""
        first = self.first[:256]
        calls = 2 if len(first) < len(self.first) else 1
        if self.clock.past(0.3):
            self.notes.append(
                "The time budget left no time to ask twice for the same order, to tell a random predictor."
            )
            return None, False
        same = self.given[first] if calls == 1 else self.ask(first)
        repeat_gap = float(np.abs(self.ask(first) - same).mean())
        scale = max(spread, float(np.abs(same).mean()) * 1e-3, 1e-12)
        random = repeat_gap > 1e-6 * scale
        if random:
            self.notes.append(
                f"The predictor is random: asked twice for the same sets in the same order, its answers were "
                f"{short(repeat_gap)} apart on average. The figures mix this noise with the effect of order; "
                "make it deterministic (evaluation mode, a fixed seed) and audit again."
            )
        elif len(first) >= 4 and not self.clock.past(0.3):
            backwards = np.arange(len(first))[::-1]
            halves = [self.ask(first[rows]) - same[rows] for rows in np.array_split(backwards, 2)]
            apart = float(np.abs(np.concatenate(halves)).mean())
            if apart > ROUNDING * scale:
                self.batch_gap = apart
                self.notes.append(
                    "The predictor's answer for a set depends on the other sets in the batch: asked in a smaller "
                    f"one, it is {short(apart)} away on average. The figures mix this with the effect of order."
                )
        return repeat_gap, random

    def _spread(self, known: np.ndarray) -> float:
        """Mean |f(x) − f(y)| over different samples: the yardstick of a gap."""
        count = len(known)
        if count < 2:
            return 0.0
        order = self.rng.permutation(count)
        shifts = self.rng.choice(np.arange(1, count), min(count - 1, 16), replace=False)
        apart = [np.abs(known[order] - known[np.roll(order, s)]).mean() for s in shifts]
        return float(np.mean(apart))

    # Random orderings
    def _shuffle(self, order: np.ndarray, truth: np.ndarray | None) -> tuple[_Totals, np.ndarray]:
        """Sums over random orderings, and the samples audited: those of ``order`` before the time budget ended."""
        totals = _Totals(len(self.sets), self.settings.search_sets)
        places = np.flatnonzero(self.sets.sizes[order] >= 2)
        movable, wanted = order[places], self.settings.orderings
        self.clock.phase("random orderings", wanted * len(movable))
        done = 0
        for rows in self._passes(movable):
            if done and self.clock.past(0.5 if done >= len(movable) else 1.0):
                break
            orders = self._random_orders(rows)
            outputs = self.ask(rows, orders)
            gaps = np.abs(outputs - self.given[rows]).mean(axis=1)
            np.add.at(totals.asked, rows, 1)
            np.add.at(totals.gap, rows, gaps)
            totals.keep_worst(rows, gaps, orders, self.sets.sizes[rows], outputs)
            if self.judge.task == "classification":
                changed = self.judge.classes(outputs)
                flipped = changed != self.classes[rows]
                np.add.at(totals.flip, rows, flipped)
                totals.flips.update(zip(self.classes[rows][flipped].tolist(), changed[flipped].tolist(), strict=True))
            if truth is not None:
                np.add.at(totals.score, rows, self.judge.scores(truth[rows], outputs))
            done += len(rows)
        if done < len(movable):
            order = order[: places[done]]
        if len(order) < len(self.sets):
            self.notes.append(
                f"The time budget was enough for {len(order):,} of {len(self.sets):,} sets, drawn at random; "
                "the others were not audited."
            )
        if done < wanted * len(movable):
            draws = max(1, done // len(movable))
            self.notes.append(f"The time budget ended the random orderings after {draws} of {wanted} a sample.")
        return totals, np.sort(order)

    def _passes(self, movable: np.ndarray) -> Iterator[np.ndarray]:
        """Blocks of samples to reorder, all of them once, then again; several passes at once where they are few."""
        left = self.settings.orderings if len(movable) else 0
        while left:
            passes = min(left, max(1, self.ask.room(self.sets.longest) // len(movable)))
            yield from self.ask.blocks(np.tile(movable, passes))
            left -= passes

    def _random_orders(self, rows: np.ndarray) -> np.ndarray:
        """A uniformly random ordering of each of these samples; padding stays behind it."""
        sizes = self.sets.sizes[rows]
        inside = np.arange(sizes.max()) < sizes[:, None]
        keys = np.tile(1.0 + np.arange(sizes.max()), (len(rows), 1))
        keys[inside] = self.rng.random(int(sizes.sum()))
        return keys.argsort(axis=1)

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
        draws = min(_CURVE_DRAWS, self.settings.orderings)
        self.clock.phase(f"swaps by {kind}", draws * sum(int((sizes > p).sum()) for p in points))
        cut = False
        for _, (at, point) in product(range(draws), enumerate(points)):
            begin = int(np.searchsorted(sizes, point, side="right"))  # samples come by size
            for block in self.ask.blocks(samples[begin:]):
                if cut := cut or self.clock.past(share):
                    break
                orders = self._swaps(self.sets.sizes[block], kind, point)
                rows = slice(begin, begin + len(block))
                total[at, rows] += self._gaps(block, orders)
                count[at, rows] += 1
                begin += len(block)
        if cut:
            self.notes.append(f"The time budget cut the swaps by {kind} short.")
        return {
            point: estimate(total[at, count[at] > 0] / count[at, count[at] > 0], self.rng)
            for at, point in enumerate(points)
            if count[at].any()
        }

    def _swaps(self, sizes: np.ndarray, kind: str, point: int) -> np.ndarray:
        """The given order but for two elements, ``point`` apart or one of them at ``point``."""
        if kind == "distance":
            i = (self.rng.random(len(sizes)) * (sizes - point)).astype(np.int64)
            j = i + point
        else:
            i = np.full(len(sizes), point)
            j = (self.rng.random(len(sizes)) * (sizes - 1)).astype(np.int64)
            j += j >= i
        orders = np.tile(np.arange(sizes.max()), (len(sizes), 1))
        rows = np.arange(len(sizes))
        orders[rows, i], orders[rows, j] = j, i
        return orders

    def _gaps(self, samples: np.ndarray, orders: np.ndarray) -> np.ndarray:
        return np.abs(self.ask(samples, orders) - self.given[samples]).mean(axis=1)

    def _by_size(self, gaps: np.ndarray, sizes: np.ndarray) -> dict[int, Estimate]:
        distinct = np.unique(sizes)
        if len(distinct) > _CURVE_POINTS:
            edges = np.quantile(sizes, np.linspace(0, 1, 13)[:-1], method="lower")
            distinct = np.unique(np.append(edges, sizes.min()))
        group = np.searchsorted(distinct, sizes, side="right") - 1
        return {int(size): estimate(gaps[group == g], self.rng) for g, size in enumerate(distinct)}

    # States of a recurrence
    def _states(self, predict: Any, samples: np.ndarray) -> dict[int, Estimate] | None:
        """Squared distance between states of the first m elements in two orders, over that between samples."""
        model = recurrence_of(predict)
        if model is None:
            return None
        gaps: dict[int, Estimate] = {}
        sizes = self.sets.sizes[samples]
        points = _points(2, int(sizes.max(initial=1)), most=12)
        self.clock.phase("states by prefix length", len(points))
        for m in points:
            enough = samples[sizes >= m]
            if len(enough) < 2:
                continue
            given: list[np.ndarray] = []
            shuffled: list[np.ndarray] = []
            for block in self.ask.blocks(enough):
                if self.clock.past(0.85):
                    self.notes.append("The time budget cut the states by prefix length short.")
                    return gaps
                orders = self.rng.random((len(block), m)).argsort(axis=1)
                for kept, which in ((given, None), (shuffled, orders)):
                    state, eps = _end_states(model, self.sets.take(block, which)[:, :m])
                    kept.append(state)
            one, other = np.concatenate(given), np.concatenate(shuffled)
            between = 2 * float(one.var(axis=0, ddof=1).sum())  # mean squared distance of different samples
            between = max(between, eps**2 * float((one**2).sum(axis=1).mean()))  # at least their rounding error
            moved = ((one - other) ** 2).sum(axis=1)
            if between > 0:
                gaps[m] = estimate(moved / between, self.rng)
            elif not moved.any():
                gaps[m] = estimate(moved, self.rng)
            self.clock.advance(1)
        return gaps

    # The worst
    def _search(self, candidates: dict[int, _Candidate], draws: int) -> list[WorstCase]:
        if not candidates:
            return []
        samples = np.array(sorted(candidates, key=lambda sample: -candidates[sample].gap))
        worst = [candidates[sample] for sample in samples]
        sets = [_numpy(self.sets.take(samples[[i]]))[0, : len(case.order)] for i, case in enumerate(worst)]
        tried, exact = [draws] * len(worst), [False] * len(worst)

        def evaluate(which: np.ndarray, orders: np.ndarray) -> np.ndarray:
            outputs = self.ask(samples[which], orders)
            gaps = np.abs(outputs - self.given[samples[which]]).mean(axis=1)
            for row in _worst_rows(which, gaps):
                if gaps[row] > worst[which[row]].gap:
                    size = len(sets[which[row]])
                    worst[which[row]] = _Candidate(float(gaps[row]), orders[row, :size].copy(), outputs[row])
            return gaps

        if self.settings.search:
            self.clock.phase("worst orderings", self.settings.search * len(samples))
            found = search_orderings(
                evaluate,
                sets,
                self.settings.search,
                self.rng,
                starts=[case.order for case in worst],
                expired=lambda: self.clock.past(1.0),
                room=self.ask.room,
            )
            tried = [draws + search.tried for search in found]
            exact = [search.exact for search in found]
            if self.clock.past(1.0):
                self.notes.append("The time budget ended the search for the worst ordering early.")
        cases = zip(samples.tolist(), worst, sets, tried, exact, strict=True)
        return sorted((self._worst_case(*case) for case in cases), key=lambda case: -case.gap)

    def _worst_case(self, sample: int, worst: _Candidate, elements: np.ndarray, tried: int, exact: bool) -> WorstCase:
        named = self.names.samples
        case = WorstCase(
            sample=sample,
            name=str(sample) if named is None else named[sample],
            gap=worst.gap,
            ordering=worst.order,
            exact=exact,
            tried=tried,
            elements=elements,
            output=self.given[sample],
            worst_output=worst.output,
        )
        if self.judge.task != "classification":
            return case
        one, other = int(self.classes[sample]), int(self.judge.classes(worst.output[None])[0])
        return replace(case, given_class=self.names.of_class(one), worst_class=self.names.of_class(other))

    def _flips(self, totals: _Totals, movable: float) -> list[tuple[str, str, float]]:
        """Share of all random orderings that turn one class into another; of sets that cannot be reordered, none."""
        asked = totals.asked.sum() / movable if movable else 1
        return [
            (self.names.of_class(a), self.names.of_class(b), count / asked)
            for (a, b), count in totals.flips.most_common(12)
        ]


@dataclass(frozen=True)
class _Candidate:
    """The worst ordering of a sample so far, the gap it opens and the output in it."""

    gap: float
    order: np.ndarray
    output: np.ndarray


class _Totals:
    """Sums over random orderings, a number a sample, and the worst orderings of the samples that moved most."""

    def __init__(self, samples: int, keep: int) -> None:
        self.asked = np.zeros(samples, dtype=np.int64)
        self.gap = np.zeros(samples)
        self.flip = np.zeros(samples)
        self.score = np.zeros(samples)
        self.flips: Counter[tuple[int, int]] = Counter()
        self.candidates: dict[int, _Candidate] = {}
        self._keep = keep

    def mean(self, sums: np.ndarray) -> np.ndarray:
        return sums / np.maximum(self.asked, 1)

    def keep_worst(
        self, rows: np.ndarray, gaps: np.ndarray, orders: np.ndarray, sizes: np.ndarray, outputs: np.ndarray
    ) -> None:
        for row in _worst_rows(rows, gaps)[: self._keep]:
            sample, gap = int(rows[row]), float(gaps[row])
            if sample not in self.candidates or gap > self.candidates[sample].gap:
                self.candidates[sample] = _Candidate(gap, orders[row, : sizes[row]].copy(), outputs[row])
        if len(self.candidates) > self._keep:
            ranked = sorted(self.candidates.items(), key=lambda item: -item[1].gap)
            self.candidates = dict(ranked[: self._keep])


def _worst_rows(which: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Of each of ``which [R]`` the row with the largest gap, the largest first."""
    falling = np.argsort(-gaps, kind="stable")
    return falling[np.sort(np.unique(which[falling], return_index=True)[1])]


def _end_states(model: Any, elements: Any) -> tuple[np.ndarray, float]:
    """The states ``[B, S]`` after these elements ``[B, m, D]``, and the rounding error of their numbers."""
    elements = torch.as_tensor(elements)
    parameter = next(model.parameters(), None)
    if parameter is not None and elements.is_floating_point():
        elements = elements.to(parameter)
    with torch.no_grad():
        if isinstance(model, Recurrence):
            last = model.scan_encoded(elements).last
        else:
            last = model.recurrence.scan_encoded(model.encode(elements)).last
    leaves = tree_leaves(last)
    eps = max(torch.finfo(leaf.dtype).eps if leaf.is_floating_point() else 0.0 for leaf in leaves)
    return torch.cat([leaf.flatten(1).double().cpu() for leaf in leaves], 1).numpy(), eps


def _points(low: int, high: int, *, most: int = _CURVE_POINTS, geometric: bool = False) -> list[int]:
    """Whole numbers from ``low`` to ``high``: all of them if few, else spread out."""
    if high - low < most:
        return list(range(low, high + 1))
    spread = np.geomspace(low, high, most) if geometric else np.linspace(low, high, most)
    return np.unique(np.round(spread).astype(int)).tolist()


def _seed(generator: torch.Generator | None) -> int:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputTypeError(f"generator must be one of torch, torch.Generator().manual_seed(0) say; got {generator!r}")
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
