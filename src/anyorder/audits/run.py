"""How much order matters to a predictor: one audit, from the calls to the report.

``x`` is a set in its given order, ``xπ`` the same set in a uniformly random one, ``f`` the predictor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from anyorder.audits.intervals import Estimate, bootstrap_interval, estimate, rate_interval
from anyorder.audits.predictor import Clock, Predictor, end_states, recurrence_of
from anyorder.audits.report import ROUNDING, Comparison, Report, WorstCase
from anyorder.audits.worst_order import search_orderings
from anyorder.checks import InputError, one_of, real_number, whole_number
from anyorder.recurrences.base import Recurrence, evaluating

_CURVE_SETS = 256  # sets whose swaps are measured
_CURVE_DRAWS = 4
_CURVE_POINTS = 24
_REPEATED = 256  # sets that are read twice in the same order


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
    """A :class:`Report` of how much the order of the elements matters to ``predict``.

    Args:
        predict: A torch module, a recurrence, an estimator, an ONNX session, or a function of ``(elements, lengths)``
            or of ``elements`` that returns ``[R]`` or ``[R, K]``. A dict ``{name: predict}`` gives a
            :class:`Comparison` on the same orderings.
        elements: ``[N, T, D]``, numpy or torch, or a list of arrays ``[n, D]``. ``predict`` gets the same kind.
            A torch module with ``batch_first=False`` reads ``[T, N, D]``.
        lengths: The sizes ``[N]`` of the sets of an array.
        labels: Class numbers or names, or values: for the accuracy or the RMSE, as given and shuffled.
        task: "classification", "regression" or "auto": classification if predict returns class names or more than
            one column. A single column is a class number, a probability (threshold 0.5) or a score (threshold 0).
        orderings: The number of random orderings of each set.
        generator: The only source of randomness.
        search: The number of orderings tried on each of the ``search_sets`` sets that moved most, to find the worst.
        batch_size: The number of rows of each call. By default a call holds up to two million numbers.
        seconds: A time budget, kept to within one call.
        progress: Whether to show progress on stderr. By default only on a terminal.
        class_names, feature_names, set_names: The names on the page.

    >>> x = torch.arange(12.0).reshape(3, 4, 1)
    >>> print(audit(lambda elements, lengths: elements.sum(dim=1), x))
    Order does not matter. None of the 96 random orderings of 3 sets, ...
    >>> report = audit(lambda elements, lengths: elements[:, -1], x)
    >>> report.worst_gap, int(report.worst_ordering[-1])
    (3.0, 0)
    """
    one_of("task", task, ("auto", "classification", "regression"))
    whole_number("orderings", orderings)
    whole_number("search", search, minimum=0)
    whole_number("search_sets", search_sets)
    batch_size = None if batch_size is None else whole_number("batch_size", batch_size)
    seconds = None if seconds is None else real_number("seconds", seconds, above=0.0)
    seed = int(torch.randint(2**62, (), generator=generator, device=getattr(generator, "device", "cpu")))
    models = predict if isinstance(predict, Mapping) else {"": predict}
    reports: dict[str, Report] = {}
    for name, model in models.items():
        clock = Clock(seconds, progress)
        try:
            predictor = Predictor(model, elements, lengths, class_names=class_names, batch_size=batch_size, clock=clock)
            names = {"class": class_names or predictor.classes, "feature": feature_names, "set": set_names}
            _check_names(names, predictor)
            with evaluating(model):
                run = _Audit(predictor, seed, orderings, names)
                reports[str(name)] = run.report(task, labels, search, search_sets)
        except InputError as error:
            raise InputError(f"model {name!r}: {error}" if isinstance(predict, Mapping) else str(error)) from error
        finally:
            clock.close()
    tasks = {report.task for report in reports.values()}
    if len(tasks) != 1:
        kinds = ", ".join(f"{name!r}: {report.task}" for name, report in reports.items())
        raise InputError(f"predict must be one model or several of one task; got {kinds or 'an empty dict'}")
    return Comparison(reports) if isinstance(predict, Mapping) else reports[""]


def _check_names(names: dict[str, Any], predictor: Predictor) -> None:
    for kind, count in (("feature", predictor.flat.shape[-1]), ("set", len(predictor.sizes))):
        if names[kind] is not None and len(names[kind]) != count:
            raise InputError(f"{kind}_names must hold {count} names; got {len(names[kind])}")


class _Audit:
    """One audit. It reads sets in blocks and keeps a few numbers per set, whatever the number of orderings."""

    def __init__(self, predictor: Predictor, seed: int, orderings: int, names: dict[str, Any]) -> None:
        self.predictor, self.orderings, self.names = predictor, orderings, names
        self.rng = np.random.default_rng(seed)
        self.sizes, self.clock = predictor.sizes, predictor.clock
        self.flips: Counter[tuple[int, int]] = Counter()
        self.worst: dict[int, tuple[float, np.ndarray, np.ndarray]] = {}  # of the worst sets: gap, ordering, output

    def report(self, task: str, labels: Any, search: int, search_sets: int) -> Report:
        """The whole audit. Each part may use the time budget up to its share."""
        read = self._read_given()
        self.predictor.learn_kind(self.given[read])
        self.classifies = task == "classification" or (task == "auto" and self._gives_classes())
        task = "classification" if self.classifies else "regression"
        self.truth = None if labels is None else self.predictor.truth(labels, task)
        spread, spread_square = self._spread(self.given[np.sort(read)])
        repeat_gap, blurred = self._repeat(read, spread)
        audited, (count, *sums) = self._shuffle(read, search_sets)
        movable = audited[self.sizes[audited] >= 2]
        some = self.rng.choice(movable, min(len(movable), _CURVE_SETS), replace=False)
        some = some[np.argsort(self.sizes[some], kind="stable")]
        by_distance, by_position = self._swaps(some, "distance", 0.65), self._swaps(some, "position", 0.78)
        state_gap = self._states(some)
        draws = int(count[movable].min()) if len(movable) else self.orderings
        worst = self._search(search, draws)

        gaps, squares, flips, shuffled = (total[audited] / np.maximum(count[audited], 1) for total in sums)
        square = float(squares.mean())
        scores: dict[str, Any] = dict.fromkeys(("accuracy", "accuracy_shuffled", "rmse", "rmse_shuffled"))
        if self.truth is not None:
            given = self._measured(audited, self.given[audited])[-1]
            shuffled = np.where(count[audited] > 0, shuffled, given)
            metric, root = ("accuracy", 1.0) if self.classifies else ("rmse", 0.5)
            scores |= {metric: float(given.mean()) ** root, f"{metric}_shuffled": float(shuffled.mean()) ** root}
        drawn = len(movable) / len(audited) / max(count.sum(), 1.0)  # of a set that cannot move, none flips
        names = self._class_name
        return Report(
            task=task,
            sets=len(audited),
            orderings=draws,
            output_gap=float(gaps.mean()),
            output_gap_ci=bootstrap_interval(gaps, self.rng),
            spread=spread,
            order_gap=0.0 if square == 0 else float(np.sqrt(square / spread_square)) if spread_square else np.inf,
            flip_rate=float(flips.mean()) if self.classifies else None,
            flip_rate_ci=rate_interval(flips, self.rng) if self.classifies else None,
            ever_flipped=float((flips > 0).mean()) if self.classifies else None,
            flips=[(names(one), names(other), n * drawn) for (one, other), n in self.flips.most_common(12)],
            by_distance=by_distance,
            by_position=by_position,
            by_size=self._by_size(gaps, self.sizes[audited]),
            state_gap=state_gap,
            worst=worst,
            **scores,
            set_gaps=gaps,
            sizes=self.sizes[audited],
            audited=audited,
            repeat_gap=repeat_gap,
            blurred=blurred,
            evaluations=self.clock.rows,
            seconds=self.clock.elapsed(),
            notes=self._notes(draws, audited),
            feature_names=self.names["feature"],
        )

    def _notes(self, draws: int, audited: np.ndarray) -> list[str]:
        notes, few = [], int((self.sizes[audited] < 2).sum())
        if few:
            notes.append(f"{few:,} of {len(audited):,} sets have fewer than two elements. Their gap is 0.")
        if len(audited) < len(self.sizes):
            notes.append(
                f"The time budget was enough for {len(audited):,} of {len(self.sizes):,} sets, drawn at random. "
                "The others were not audited."
            )
        if self.clock.cut:
            drawn = f" Random orderings per set: {draws} of {self.orderings}." if draws < self.orderings else ""
            notes.append(f"The time budget cut short: {', '.join(self.clock.cut)}.{drawn}")
        return notes

    def _gives_classes(self) -> bool:
        predict = self.predictor.predict
        tags = getattr(getattr(predict, "__self__", predict), "__sklearn_tags__", None)
        values = isinstance(predict, Recurrence) or (tags is not None and tags().estimator_type == "regressor")
        return self.predictor.returns_classes or ((self.predictor.columns or 1) > 1 and not values)

    def _read(
        self, rows: np.ndarray, share: float, part: str, orders: Any = None, *, once: bool = False
    ) -> Iterator[tuple[slice, Any, np.ndarray]]:
        """Blocks of ``rows``, their orderings and outputs, until this share of the time budget is spent.

        ``orders``: their orderings, or a function that draws those of a block. ``once``: one block is always read.
        """
        for block in self.predictor.blocks(rows):
            if not (once and block.start == 0) and self.clock.past(share, part):
                return
            drawn = orders(rows[block]) if callable(orders) else None if orders is None else orders[block]
            yield block, drawn, self.predictor(rows[block], drawn)

    def _classes(self, outputs: np.ndarray) -> np.ndarray:
        """The predicted class numbers; 0 in a regression."""
        return self.predictor.class_of(outputs) if self.classifies else np.zeros(len(outputs), dtype=np.int64)

    def _measured(self, rows: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """``[4, R]``: mean change of the output, its square, whether the class changed, and the score."""
        change, now = outputs - self.given[rows], self._classes(outputs)
        score = np.zeros(len(rows))
        if self.truth is not None:
            truth = self.truth[rows]
            score = now == truth if self.classifies else ((outputs - truth) ** 2).mean(axis=1)
        flipped = now != self._classes(self.given[rows])
        return np.stack([np.abs(change).mean(axis=1), (change**2).mean(axis=1), flipped, score])

    def _class_name(self, index: int) -> str:
        names = self.names["class"]
        return str(names[index]) if 0 <= index < len(names) else str(index)

    # The given order
    def _read_given(self) -> np.ndarray:
        """Read every set, or as many as the time budget allows; returns them in the order of reading.

        Without a budget sets of like size come together. With one they come at random, so that those read are a
        random part of all.
        """
        self.clock.phase("given order", len(self.sizes))
        order = self.rng.permutation(len(self.sizes))
        if self.clock.seconds is None:
            order = np.argsort(self.sizes, kind="stable")
        outputs = np.concatenate([outputs for *_, outputs in self._read(order, 0.2, "", once=True)])
        self.given = np.full((len(self.sizes), outputs.shape[1]), np.nan)
        self.given[order[: len(outputs)]] = outputs
        return order[: len(outputs)]

    def _spread(self, known: np.ndarray) -> tuple[float, float]:
        """The mean of |f(x) − f(y)| and of its square over all pairs of different sets."""
        count, ranked = len(known), np.sort(known - known[0], axis=0)
        weights = 2.0 * np.arange(count)[:, None] - count + 1
        pairs = max(count * (count - 1) / 2, 1)
        square = float(ranked.var(axis=0).mean()) * count**2 / pairs
        return float((weights * ranked).sum(axis=0).mean() / pairs), square

    def _repeat(self, read: np.ndarray, spread: float) -> tuple[float | None, str]:
        """How far outputs change when sets are read again in the same order, and why: "random", "batch" or ""."""
        if self.clock.past(0.3, "repeated reading"):
            return None, ""
        some = read[: min(_REPEATED, self.predictor.block_rows(int(self.sizes[read].max())))]
        same = self.predictor(some)
        scale = max(spread, float(np.abs(same).mean()) * 1e-3, 1e-12)
        noise = float(np.abs(self.predictor(some) - same).mean())
        if noise > 1e-6 * scale or len(some) < 4 or self.clock.past(0.3):
            return noise, "random" if noise > 1e-6 * scale else ""
        halves = [self.predictor(some[rows]) - same[rows] for rows in np.array_split(np.arange(len(some))[::-1], 2)]
        apart = float(np.abs(np.concatenate(halves)).mean())
        return (apart, "batch") if apart > ROUNDING * scale else (noise, "")

    # Random orderings
    def _shuffle(self, read: np.ndarray, keep: int) -> tuple[np.ndarray, np.ndarray]:
        """Read random orderings. Returns the sets that the time budget allowed, sorted, and sums over orderings.

        The sums ``[5, N]`` are the number of orderings and what :meth:`_measured` returns.
        """
        movable, left, sums = read[self.sizes[read] >= 2], self.orderings, np.zeros((5, len(self.sizes)))
        self.clock.phase("random orderings", self.orderings * len(movable))
        while left and len(movable):
            longest = int(self.sizes[movable].max())
            passes = min(left, max(1, self.predictor.block_rows(longest) // len(movable)))  # several where sets are few
            tiled, first = np.tile(movable, passes), left == self.orderings
            left, share = left - passes, 1.0 if first else 0.5
            reading = self._read(tiled, share, "random orderings", self._random_orders, once=first)
            for block, orders, outputs in reading:
                rows = tiled[block]
                found = self._measured(rows, outputs)
                np.add.at(sums.T, rows, np.stack([np.ones(len(rows)), *found], axis=1))
                self._keep_worst(rows, found[0], orders, outputs, keep)
                changed = found[2] > 0
                pairs = self._classes(self.given[rows[changed]]), self._classes(outputs[changed])
                self.flips.update(zip(*(numbers.tolist() for numbers in pairs), strict=True))
        unread = np.flatnonzero((sums[0, read] == 0) & (self.sizes[read] >= 2))
        return np.sort(read[: unread[0]] if len(unread) else read), sums

    def _random_orders(self, rows: np.ndarray) -> np.ndarray:
        """A uniformly random ordering of each set ``[R, longest]``; padding stays behind it."""
        sizes = self.sizes[rows]
        keys = np.tile(1.0 + np.arange(sizes.max()), (len(rows), 1))
        keys[np.arange(sizes.max()) < sizes[:, None]] = self.rng.random(int(sizes.sum()))
        return keys.argsort(axis=1)

    def _keep_worst(self, rows: np.ndarray, gaps: np.ndarray, orders: Any, outputs: np.ndarray, keep: int) -> None:
        """Remember the worst ordering of the sets that moved most, at most ``keep`` of them."""
        falling = np.argsort(-gaps, kind="stable")
        first = np.sort(np.unique(rows[falling], return_index=True)[1])  # the worst row of each set, the worst first
        for row in falling[first][:keep]:
            at, gap = int(rows[row]), float(gaps[row])
            if at not in self.worst or gap > self.worst[at][0]:
                self.worst[at] = gap, orders[row][: self.sizes[at]].copy(), outputs[row]
        self.worst = dict(sorted(self.worst.items(), key=lambda item: -item[1][0])[:keep])

    # Swaps
    def _swaps(self, rows: np.ndarray, kind: str, share: float) -> dict[int, Estimate]:
        """The gap of one swap by the distance of the two elements, or by the position of one of them."""
        sizes, part = self.sizes[rows], f"swaps by {kind}"
        last = int(sizes.max(initial=1)) - 1
        points = _points(1, last, geometric=True) if kind == "distance" else _points(0, last)
        total, count = np.zeros((2, len(points), len(rows)))
        draws = min(_CURVE_DRAWS, self.orderings)
        self.clock.phase(part, draws * sum(int((sizes > point).sum()) for point in points))
        for _, (at, point) in product(range(draws), enumerate(points)):
            large = np.flatnonzero(sizes > point)
            draw = partial(self._swapped, kind=kind, point=point)
            for block, _, outputs in self._read(rows[large], share, part, draw):
                total[at, large[block]] += self._measured(rows[large[block]], outputs)[0]
                count[at, large[block]] += 1
        means = {point: t[c > 0] / c[c > 0] for point, t, c in zip(points, total, count, strict=True)}
        return {point: estimate(values, self.rng) for point, values in means.items() if len(values)}

    def _swapped(self, sets: np.ndarray, kind: str, point: int) -> np.ndarray:
        """The given order but for two elements, ``point`` apart or one of them at ``point``."""
        sizes, rows = self.sizes[sets], np.arange(len(sets))
        i = (self.rng.random(len(sizes)) * (sizes - (point if kind == "distance" else 1))).astype(np.int64)
        j = i + point if kind == "distance" else np.full(len(sizes), point)
        i = i + (i >= j)
        orders = np.tile(np.arange(sizes.max()), (len(sizes), 1))
        orders[rows, i], orders[rows, j] = j, i
        return orders

    def _by_size(self, gaps: np.ndarray, sizes: np.ndarray) -> dict[int, Estimate]:
        distinct = np.unique(sizes)
        if len(distinct) > _CURVE_POINTS:
            distinct = np.unique(np.quantile(sizes, np.linspace(0, 1, 13)[:-1], method="lower"))
        group = np.searchsorted(distinct, sizes, side="right") - 1
        return {int(size): estimate(gaps[group == g], self.rng) for g, size in enumerate(distinct)}

    # States of a recurrence
    def _states(self, rows: np.ndarray) -> dict[int, Estimate] | None:
        """The order gap of the states after the first m elements."""
        model = recurrence_of(self.predictor.predict)
        if model is None:
            return None
        gaps: dict[int, Estimate] = {}
        for m in _points(2, int(self.sizes[rows].max(initial=1)), most=12):
            some = rows[self.sizes[rows] >= m][: self.predictor.block_rows(m)]
            if len(some) < 2 or self.clock.past(0.85, "states after m elements"):
                continue
            orders = self.rng.random((len(some), m)).argsort(axis=1)
            taken = (torch.as_tensor(self.predictor.take(some, o)[:, :m]).cpu().numpy() for o in (None, orders))
            with torch.no_grad():
                one, other = (end_states(model, elements).double().cpu().numpy() for elements in taken)
            between = 2 * float(one.var(axis=0, ddof=1).sum())  # mean squared distance of different sets
            between = max(between, 1e-13 * float((one**2).sum(axis=1).mean()))  # at least their rounding error
            moved = ((one - other) ** 2).sum(axis=1)
            if between > 0 or not moved.any():
                square = estimate(moved / (between or 1.0), self.rng)
                ci = square.ci and (max(square.ci[0], 0.0) ** 0.5, square.ci[1] ** 0.5)
                gaps[m] = Estimate(square**0.5, ci, square.sets)
        return gaps

    # The worst
    def _search(self, budget: int, draws: int) -> list[WorstCase]:
        rows = np.array(list(self.worst), dtype=np.int64)
        sets = [np.asarray(torch.as_tensor(self.predictor.take(rows[[i]]))[0].cpu()) for i in range(len(rows))]
        sets = [elements[: self.sizes[row]] for row, elements in zip(rows, sets, strict=True)]

        def evaluate(which: np.ndarray, orders: list[np.ndarray]) -> np.ndarray:
            gaps = [np.empty(0)]
            for block, drawn, outputs in self._read(rows[which], 1.0, "the search for the worst ordering", orders):
                gaps.append(self._measured(rows[which[block]], outputs)[0])
                self._keep_worst(rows[which[block]], gaps[-1], drawn, outputs, len(rows))
            return np.concatenate(gaps)

        self.clock.phase("worst orderings", budget * len(rows))
        starts = [self.worst[row][1] for row in rows]
        searches = search_orderings(evaluate, sets, budget, self.rng, starts) if budget else [None] * len(rows)
        cases = []
        for row, elements, found in zip(rows.tolist(), sets, searches, strict=True):
            gap, order, output = self.worst[row]
            two = self.predictor.class_of(np.stack([self.given[row], output])).tolist()
            classes = tuple(map(self._class_name, two)) if self.classifies else (None, None)
            name = str(row if self.names["set"] is None else self.names["set"][row])
            tried, exact = (draws + found.tried, found.exact) if found else (draws, False)
            cases.append(WorstCase(row, name, gap, order, exact, tried, elements, self.given[row], output, *classes))
        return sorted(cases, key=lambda case: -case.gap)[:5]


def _points(low: int, high: int, *, most: int = _CURVE_POINTS, geometric: bool = False) -> list[int]:
    """Whole numbers from ``low`` to ``high``: all of them if few, else spread out."""
    if high - low < most:
        return list(range(low, high + 1))
    spread = np.geomspace(low, high, most) if geometric else np.linspace(low, high, most)
    return np.unique(np.round(spread).astype(int)).tolist()
