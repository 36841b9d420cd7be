"""How much order matters to a predictor: one audit, from the calls to the report.

``x`` is a set in its given order, ``xπ`` the same set in another one, ``f`` the predictor.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from anyorder.audits.designs import Design
from anyorder.audits.intervals import Estimate, estimate, heavy_tailed, mean_interval, rate_interval, root
from anyorder.audits.predictor import Predictor, recurrence_of, tensors_for
from anyorder.audits.report import ROUNDING, Comparison, Report, WorstCase
from anyorder.audits.worst_order import EXACT_SIZE, search_orderings
from anyorder.checks import InputError, one_of, whole_number
from anyorder.penalties.order_gap import order_gap
from anyorder.recurrences.base import Recurrence, evaluating

_CURVE_SETS = 256  # sets whose swaps are measured
_CURVE_DRAWS = 4
_POINTS = 24  # of a curve, or places and classes of a bias
_BATCH_SETS = 256  # sets that are read in other batches
_REPEATS = 8  # readings in the same order, if the first of them shows noise
_SEARCHED = 8  # sets whose worst ordering is searched


def audit(
    predict: Any,
    sets: Any,
    lengths: Any = None,
    *,
    labels: Any = None,
    static: Any = None,
    design: str = "random",
    orderings: int = 32,
    ties: Any = None,
    equivariant: bool | Callable[[Any, np.ndarray], Any] | None = None,
    parse: Callable[[Any], Any] | None = None,
    batch_size: int | None = None,
    concurrency: int = 1,
    max_calls: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    generator: torch.Generator | None = None,
    task: str = "auto",
    search: int | None = None,
    progress: bool | None = None,
    class_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    set_names: Sequence[str] | None = None,
) -> Any:
    """A :class:`Report` of how much the order of the elements matters to ``predict``.

    Each set is read in its given order, in the same order again, and in the orderings of the design. What order adds
    to the noise of the second reading is the excess. A call is one set in one ordering; their number is announced.

    Args:
        predict: A torch module, a recurrence, an estimator, an ONNX session, or a function, async or not. Of numbers
            it takes ``(elements, lengths)`` or ``elements`` and returns ``[R]``, ``[R, K]`` or R labels. Of anything
            else it takes one set, or with ``batch_size`` a list of them. A dict ``{name: predict}`` gives a
            :class:`Comparison` on the same orderings.
        sets: ``[N, T, D]``, numpy or torch, a list of arrays ``[n, D]``, or a list of sets of any elements: lists of
            texts, dicts, paths, objects, or dataframes whose rows are elements.
        lengths: The sizes ``[N]`` of the sets of an array.
        labels: Class numbers or names, or values: for the accuracy or the RMSE, and for the bias of labels.
        static: Features of the sets ``[N, S]``, handed to predict as ``static=``.
        design: "random" orderings; "balanced" ones (Williams squares: n or 2n orderings of n elements); "all" of sets
            of at most 7 elements; "rotations"; "ties": random within ties only.
        orderings: The number of random orderings of each set.
        ties: Values for each element of each set; equal ones that stand together are a tie.
        equivariant: True if answers name a place (0, 1, … or A, B, …) or are scores of places, or a function of
            ``(answer, ordering)`` that returns the answer about the given order.
        parse: A function of an answer that returns a label, a number or scores, and None if it cannot be read.
        batch_size: The number of sets of each call of predict.
        concurrency: The number of calls of predict that run side by side.
        max_calls: The largest number of calls. Fewer random orderings are read, and less is searched.
        cache: A file that keeps the answers, so that an interrupted audit goes on.
        generator: The only source of randomness.
        task: "classification", "regression" or "auto": classification if predict returns labels or more than one
            column. A single column is a class number, a probability (threshold 0.5) or a score (threshold 0).
        search: The number of orderings tried on each of the 8 sets that moved most, to find the worst. By default 400
            of random orderings of numbers, else 0.
        progress: Whether to show progress on stderr. By default only on a terminal.
        class_names, feature_names, set_names: The names on the page.

    >>> x = torch.arange(12.0).reshape(3, 4, 1)
    >>> print(audit(lambda elements, lengths: elements.sum(dim=1), x))
    Order does not matter. None of the 96 orderings of 3 sets, ...
    >>> report = audit(lambda elements, lengths: elements[:, -1], x)
    >>> report.worst_gap, int(report.worst_ordering[-1])
    (3.0, 0)
    """
    one_of("task", task, ("auto", "classification", "regression"))
    for name, value in {"orderings": orderings, "batch_size": batch_size, "max_calls": max_calls}.items():
        whole_number(name, 1 if value is None else value)
    whole_number("concurrency", concurrency)
    whole_number("search", search or 0, minimum=0)
    seed = int(torch.randint(2**62, (), generator=generator, device=getattr(generator, "device", "cpu")))
    models = predict if isinstance(predict, Mapping) else {"": predict}
    reports: dict[str, Report] = {}
    options = {"static": static, "class_names": class_names, "equivariant": equivariant, "parse": parse}
    options |= {"batch_size": batch_size, "concurrency": concurrency, "cache": cache, "progress": progress}
    names = {"feature": feature_names, "set": set_names}
    for name, model in models.items():
        try:
            predictor = Predictor(model, sets, lengths, name=str(name), **options)
            with closing(predictor), evaluating(model):
                drawn = Design(design, predictor.sizes, orderings, ties)
                run = _Audit(predictor, drawn, seed, names, search, max_calls)
                reports[str(name)] = run.report(task, labels)
        except InputError as error:
            raise InputError(f"model {name!r}: {error}" if isinstance(predict, Mapping) else str(error)) from error
    tasks = {report.task for report in reports.values()}
    if len(tasks) != 1:
        kinds = ", ".join(f"{name!r}: {report.task}" for name, report in reports.items())
        raise InputError(f"predict must be one model or several of one task; got {kinds or 'an empty dict'}")
    return Comparison(reports) if isinstance(predict, Mapping) else reports[""]


class _Audit:
    """One audit. It reads sets in blocks and keeps a few numbers per set, whatever the number of orderings."""

    def __init__(
        self,
        predictor: Predictor,
        design: Design,
        seed: int,
        names: dict[str, Any],
        search: int | None,
        max_calls: int | None,
    ) -> None:
        self.predictor, self.design, self.names = predictor, design, names
        self.rng, self.generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.sizes, self.progress = predictor.sizes, predictor.progress
        for kind, count in (("feature", predictor.sets.features), ("set", len(self.sizes))):
            if names[kind] is not None and len(names[kind]) != count:
                raise InputError(f"{kind}_names must hold {count} names; got {len(names[kind])}")
        self.worst: dict[int, tuple[float, np.ndarray, np.ndarray]] = {}  # of the worst sets: change, ordering, output
        self.notes: list[str] = []
        self._plan(search, max_calls)

    def _plan(self, search: int | None, max_calls: int | None) -> None:
        """Share out the calls, announce them, and see to it that there are no more."""
        sets, design = len(self.sizes), self.design
        movable, left = int((design.counts > 0).sum()), math.inf if max_calls is None else max_calls - 2 * sets
        if left < design.counts.sum():
            each = int(left // max(movable, 1))
            if not design.drawn or each < 1:
                needed = 2 * sets + int(design.counts.sum() if not design.drawn else movable)
                raise InputError(f"max_calls must be at least {needed:,} for {sets:,} sets; got {max_calls}")
            wanted = int(design.counts.max())
            self.notes.append(f"max_calls={max_calls:,} allows {each} of {wanted} orderings of each set.")
            design.counts = np.minimum(design.counts, each)
        left -= int(design.counts.sum())
        self.repeats = int(min(_REPEATS, max(design.counts.max(), 1), 1 + left // sets))
        left -= (self.repeats - 1) * sets
        batched = self.predictor.form != "single" and self.predictor.batch_size != 1
        again = 3 * min(_BATCH_SETS, sets) if batched and sets >= 4 else 0
        self.other_batches = again if left >= again else 0
        left -= self.other_batches
        largest, free = int(self.sizes.max()), design.name == "random" and self.predictor.numeric
        swaps = min(_CURVE_SETS, movable) * (min(_POINTS, largest - 1) + min(_POINTS, largest))
        self.draws = int(min(_CURVE_DRAWS, design.counts.max(), left // max(swaps, 1))) if free else 0
        left -= self.draws * swaps
        wanted = (400 if free else 0) if search is None else search
        self.search = int(min(wanted, left // _SEARCHED)) if design.name == "random" else 0
        exact = math.factorial(EXACT_SIZE) if self.search and self.sizes.min() <= EXACT_SIZE else 0
        plan = {
            "given order": sets,
            "the same again": self.repeats * sets,
            "other batches": self.other_batches,
            "orderings": int(design.counts.sum()),
            "swaps": self.draws * swaps,
            "search": int(min(_SEARCHED * max(self.search, exact), left)),
        }
        self.progress.announce(plan, always=not self.predictor.numeric)

    def report(self, task: str, labels: Any) -> Report:
        """The whole audit."""
        predictor, rows = self.predictor, np.argsort(self.sizes, kind="stable")
        self.given = self._reread(rows)
        read = np.isfinite(self.given).all(axis=1)
        if not read.any():
            raise InputError("parse must read some answers; it could not read any in the given order")
        predictor.learn_kind(self.given[read])
        self.classifies = predictor.labels or task == "classification" or (task == "auto" and self._gives_classes())
        task = "classification" if self.classifies else "regression"
        self.truth = None if labels is None else predictor.truth(labels, task)
        spread, spread_square = self._spread(self.given[read])
        floor = self._floor(rows, spread)
        moved = self._orderings(rows)
        audited = np.flatnonzero(read & (floor[0] > 0) & ((moved[0] > 0) | (self.design.counts == 0)))
        if not len(audited):
            raise InputError("parse must read the answers of a set in both orders; it could not for any set")
        changes, squares, flips, shuffled = moved[1:, audited] / np.maximum(moved[0, audited], 1)
        again, again_square, again_flips, _ = floor[1:, audited] / floor[0, audited]
        movable = audited[self.design.counts[audited] > 0]
        self.noise = np.zeros(len(self.sizes))
        self.noise[audited] = again
        some = self.rng.choice(movable, min(len(movable), _CURVE_SETS), replace=False)
        some = some[np.argsort(self.sizes[some], kind="stable")]
        curves = {kind: self._swaps(some, kind) for kind in ("distance", "position")}
        draws = int(self.design.counts[movable].max()) if len(movable) else int(self.design.counts.max())
        worst = self._search(self.search, draws)

        if heavy_tailed(changes):
            self.notes.append("A few sets make up most of the change. Its 95 % interval may cover less than 92 %.")
        apart = max(spread_square - float(again_square.mean()), 0.0)
        ratios = self._ratios(audited, squares - again_square, apart)
        scores, set_scores = dict[str, Any](), None
        if self.truth is not None:
            set_scores = self._measured(audited, self.given[audited])[-1]
            shuffled = np.where(moved[0, audited] > 0, shuffled, set_scores)
            metric, power = ("accuracy", 1.0) if self.classifies else ("rmse", 0.5)
            scores |= {metric: float(set_scores.mean()) ** power, f"{metric}_shuffled": float(shuffled.mean()) ** power}
        kinds: dict[str, Any] = {"output_gap": (changes, again, mean_interval)}
        kinds |= {"flip_rate": (flips, again_flips, rate_interval)} if self.classifies else {}
        figures: dict[str, Any] = {}
        for name, (raw, noise, interval) in kinds.items():
            paired = mean_interval if noise.any() else interval
            for part, values, of in (
                ("", raw, interval),
                ("noise_", noise, interval),
                ("excess_", raw - noise, paired),
            ):
                figures |= {part + name: float(values.mean()), f"{part}{name}_ci": of(values)}
        return Report(
            task=task,
            design=self.design.name,
            sets=len(audited),
            orderings=draws,
            **figures,
            spread=spread,
            order_gap=max(float(ratios.mean()), 0.0) ** 0.5,
            order_gap_ci=root(mean_interval(ratios)) if np.isfinite(ratios).all() else None,
            position_bias=self._position_bias(movable),
            label_bias=self._label_bias(movable),
            by_distance=curves["distance"],
            by_position=curves["position"],
            by_size=self._by_size(changes, self.sizes[audited]),
            state_order_gap=self._prefixes(some) if self.draws else None,
            worst=worst,
            **scores,
            set_changes=changes,
            set_scores=set_scores,
            set_ratios=ratios,
            sizes=self.sizes[audited],
            audited=audited,
            batch_dependent=self.batch_dependent,
            calls=self.progress.calls,
            unparsed=predictor.unparsed,
            notes=self._notes(audited),
            feature_names=self.names["feature"],
        )

    def _notes(self, audited: np.ndarray) -> list[str]:
        notes, few = self.notes, int((self.design.counts[audited] == 0).sum())
        if few:
            what = "ties" if self.design.name == "ties" else "two elements"
            notes.append(f"{few:,} of {len(audited):,} sets have no {what} to reorder. Their change is 0.")
        if self.predictor.unparsed:
            notes.append(f"{self.predictor.unparsed:,} answers could not be read. They are left out.")
        if len(audited) < len(self.sizes):
            notes.append(f"{len(self.sizes) - len(audited):,} sets are left out, since too few answers could be read.")
        return notes

    def _gives_classes(self) -> bool:
        predict = self.predictor.predict
        tags = getattr(getattr(predict, "__self__", predict), "__sklearn_tags__", None)
        values = isinstance(predict, Recurrence) or (tags is not None and tags().estimator_type == "regressor")
        return (self.predictor.columns or 1) > 1 and not values

    def _read(self, rows: np.ndarray, orders: Any = None) -> Iterator[tuple[slice, Any, np.ndarray]]:
        """Blocks of ``rows``, their orderings and outputs, as long as there are calls left.

        ``orders``: their orderings, or a function of a block that draws them.
        """
        for block in self.predictor.blocks(rows):
            left = self.progress.limit - self.progress.calls
            block = slice(block.start, min(block.stop, len(rows), block.start + left))
            if block.stop <= block.start:
                return
            drawn = orders(block) if callable(orders) else None if orders is None else orders[block]
            yield block, drawn, self.predictor(rows[block], drawn)

    def _reread(self, rows: np.ndarray) -> np.ndarray:
        """The outputs of all sets in the given order, in the order of the sets."""
        outputs = np.concatenate([found for *_, found in self._read(rows)])
        given = np.empty_like(outputs)
        given[rows] = outputs
        return given

    def _classes(self, outputs: np.ndarray) -> np.ndarray:
        """The predicted class numbers; 0 in a regression."""
        return self.predictor.class_of(outputs) if self.classifies else np.zeros(len(outputs), dtype=np.int64)

    def _measured(self, rows: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """``[5, R]``: whether both answers were read, mean change of the output, its square, whether the class changed,
        and the score. The change of a label is 1."""
        change, now = outputs - self.given[rows], self._classes(outputs)
        read = np.isfinite(change).all(axis=1)
        score = np.zeros(len(rows))
        if self.truth is not None:
            truth = self.truth[rows]
            score = now == truth if self.classifies else ((outputs - truth) ** 2).mean(axis=1)
        flipped = now != self._classes(self.given[rows])
        if self.predictor.labels:
            change = flipped[:, None].astype(float)
        found = np.stack([read, np.abs(change).mean(axis=1), (change**2).mean(axis=1), flipped, score])
        return np.where(read, found, 0.0)

    # The given order, and the same again
    def _spread(self, known: np.ndarray) -> tuple[float, float]:
        """The mean of |f(x) − f(y)| and of its square over all pairs of different sets."""
        count = len(known)
        pairs = max(count * (count - 1) / 2, 1)
        if self.predictor.labels:
            alike = np.unique(known, return_counts=True)[1]
            different = (count**2 - float((alike.astype(float) ** 2).sum())) / 2 / pairs
            return different, different
        ranked = np.sort(known - known[0], axis=0)
        weights = 2.0 * np.arange(count)[:, None] - count + 1
        square = float(ranked.var(axis=0).mean()) * count**2 / pairs
        return float((weights * ranked).sum(axis=0).mean() / pairs), square

    def _ratios(self, audited: np.ndarray, squares: np.ndarray, apart: float) -> np.ndarray:
        """Values of the sets whose mean is the squared order gap, and whose spread is that of the ratio."""
        if apart <= 0:
            return np.zeros(len(squares)) if not squares.any() else np.full(len(squares), np.inf)
        ratio = max(float(squares.mean()) / apart, 0.0)
        given = self.given[audited]
        own = ((given - given.mean(axis=0)) ** 2).mean(axis=1) * (0 if self.predictor.labels else 2)
        own = own if own.mean() > 0 else np.ones(len(own))
        return squares / apart - ratio * (own / own.mean() - 1)

    def _floor(self, rows: np.ndarray, spread: float) -> np.ndarray:
        """Read all sets again in the same order, more often if they change; sums ``[5, N]`` as :meth:`_orderings`."""
        sums = np.zeros((5, len(self.sizes)))
        scale = max(spread, float(np.nanmean(np.abs(self.given))) * 1e-3, 1e-12)
        for number in range(self.repeats):
            sums += self._measured(np.arange(len(rows)), self._reread(rows))
            steady = sums[1].sum() <= 1e-6 * scale * max(sums[0].sum(), 1)
            if steady and number == 0:
                break
        self.batch_dependent = False
        some = rows[: min(_BATCH_SETS, self.predictor.block_rows(int(self.sizes.max())))]
        if self.other_batches and steady and len(some) >= 4:
            halves = np.array_split(some[::-1], 2)
            apart = np.concatenate([self.predictor(half) for half in halves]) - self.predictor(some)[::-1]
            self.batch_dependent = bool(np.nanmean(np.abs(apart)) > ROUNDING * scale)
        return sums

    # The orderings of the design
    def _orderings(self, rows: np.ndarray) -> np.ndarray:
        """Read the orderings of the design. Returns sums ``[5, N]`` of what :meth:`_measured` returns."""
        counts, sums = self.design.counts, np.zeros((5, len(self.sizes)))
        movable = rows[counts[rows] > 0]
        self.votes = np.zeros((len(self.sizes), _POINTS))
        most, begin = int(counts.max(initial=0)), 0
        while begin < most:
            longest = int(self.sizes[movable].max())
            passes = max(1, self.predictor.block_rows(longest) // len(movable))  # several where sets are few
            numbers = np.arange(begin, min(begin + passes, most))
            which, at = np.nonzero(counts[movable] > numbers[:, None])
            tiled, numbers, begin = movable[at], numbers[which], begin + passes

            def draw(block: slice, rows: np.ndarray = tiled, numbers: np.ndarray = numbers) -> np.ndarray:
                return self.design.orders(rows[block], numbers[block], self.rng)

            for block, orders, outputs in self._read(tiled, draw):
                chosen = tiled[block]
                found = self._measured(chosen, outputs)
                for total, values in zip(sums, found, strict=True):
                    total += np.bincount(chosen, values, len(total))
                self._keep_worst(chosen, found[1], orders, outputs)
                self._count_votes(chosen, found[0] > 0, orders, outputs)
        return sums

    def _count_votes(self, rows: np.ndarray, read: np.ndarray, orders: np.ndarray, outputs: np.ndarray) -> None:
        """Count the places, or else the classes, that the answers name."""
        votes = self._classes(outputs)
        if self.predictor.names_places:
            places = orders.argsort(axis=1)
            read = read & (votes >= 0) & (votes < self.sizes[rows])
            votes = places[np.arange(len(rows)), np.clip(votes, 0, orders.shape[1] - 1)]
        few = read & (votes >= 0) & (votes < _POINTS)
        np.add.at(self.votes, (rows[few], votes[few]), 1)

    def _position_bias(self, rows: np.ndarray) -> dict[int, Estimate] | None:
        """How often each place is chosen, less 1/n: each element stands at each place equally often."""
        if not self.predictor.names_places or self.design.name == "ties":
            return None
        rows = rows[self.votes[rows].any(axis=1)]
        beyond = self.votes[rows] / self.votes[rows].sum(axis=1, keepdims=True) - 1 / self.sizes[rows][:, None]
        places = range(min(_POINTS, int(self.sizes[rows].max(initial=0))))
        return {place: estimate(beyond[self.sizes[rows] > place, place]) for place in places}

    def _label_bias(self, rows: np.ndarray) -> dict[str, Estimate] | None:
        """How often each class is predicted, less how often it is the true one."""
        if self.predictor.names_places or not self.classifies or self.truth is None:
            return None
        shares = self.votes[rows] / np.maximum(self.votes[rows].sum(axis=1, keepdims=True), 1)
        beyond = shares - (self.truth[rows][:, None] == np.arange(_POINTS))
        used = np.flatnonzero(np.abs(beyond).any(axis=0))
        return {self.predictor.class_name(int(number)): estimate(beyond[:, number]) for number in used}

    def _keep_worst(self, rows: np.ndarray, changes: np.ndarray, orders: Any, outputs: np.ndarray) -> None:
        """Remember the worst ordering of the sets that moved most, at most 8 of them."""
        falling = np.argsort(-changes, kind="stable")
        first = np.sort(np.unique(rows[falling], return_index=True)[1])  # the worst row of each set, the worst first
        for row in falling[first][:_SEARCHED]:
            at, change = int(rows[row]), float(changes[row])
            if at not in self.worst or change > self.worst[at][0]:
                self.worst[at] = change, orders[row][: self.sizes[at]].copy(), outputs[row]
        self.worst = dict(sorted(self.worst.items(), key=lambda item: -item[1][0])[:_SEARCHED])

    # Swaps
    def _swaps(self, rows: np.ndarray, kind: str) -> dict[int, Estimate]:
        """The change by one swap, less the noise, by the distance of the two elements or the position of one."""
        sizes = self.sizes[rows]
        last = int(sizes.max(initial=1)) - 1
        points = _points(1 if kind == "distance" else 0, last)
        total, count = np.zeros((2, len(points), len(rows)))
        for _, (at, point) in product(range(self.draws), enumerate(points)):
            large = np.flatnonzero(sizes > point)
            draw = partial(self._swapped, rows[large], kind, point)
            for block, _, outputs in self._read(rows[large], draw):
                found = self._measured(rows[large[block]], outputs)
                total[at, large[block]] += found[1]
                count[at, large[block]] += found[0]
        means = (t[c > 0] / c[c > 0] - self.noise[rows[c > 0]] for t, c in zip(total, count, strict=True))
        return {point: estimate(values) for point, values in zip(points, means, strict=True) if len(values)}

    def _swapped(self, rows: np.ndarray, kind: str, point: int, block: slice) -> np.ndarray:
        """The given order but for two elements, ``point`` apart or one of them at ``point``."""
        sizes = self.sizes[rows[block]]
        places = np.arange(len(sizes))
        i = (self.rng.random(len(sizes)) * (sizes - (point if kind == "distance" else 1))).astype(np.int64)
        j = i + point if kind == "distance" else np.full(len(sizes), point)
        i = i + (i >= j)
        orders = np.tile(np.arange(sizes.max()), (len(sizes), 1))
        orders[places, i], orders[places, j] = j, i
        return orders

    def _by_size(self, changes: np.ndarray, sizes: np.ndarray) -> dict[int, Estimate]:
        distinct = np.unique(sizes)
        if len(distinct) > _POINTS:
            distinct = np.unique(np.quantile(sizes, np.linspace(0, 1, 13)[:-1], method="lower"))
        group = np.searchsorted(distinct, sizes, side="right") - 1
        return {int(size): estimate(changes[group == g]) for g, size in enumerate(distinct)}

    # A recurrence
    @torch.no_grad()
    def _prefixes(self, rows: np.ndarray) -> dict[int, Estimate] | None:
        """The order gap of a recurrence after the first m elements."""
        inside = recurrence_of(self.predictor.predict)
        if inside is None:
            return None
        (recurrence, owner), gaps = inside, dict[int, Estimate]()
        for m in _points(2, int(self.sizes[rows].max(initial=1))):
            some = rows[self.sizes[rows] >= m][: self.predictor.block_rows(m)]
            if len(some) < 2:
                continue
            taken = self.predictor.sets.take(some, np.tile(np.arange(m), (len(some), 1)))
            elements = tensors_for(owner, taken)[0][:, :m]
            encoded = elements if owner is recurrence else owner.encode(elements)
            encoded = encoded if recurrence.batch_first else encoded.transpose(0, 1)
            gap = order_gap(recurrence, encoded, generator=self.generator)
            if np.isfinite(gap):  # not all sets in one state
                error = 1.96 * gap.standard_error
                gaps[m] = Estimate(gap, (max(gap - error, 0.0), gap + error), len(some))
        return gaps

    # The worst
    def _search(self, budget: int, draws: int) -> list[WorstCase]:
        rows = np.array(list(self.worst), dtype=np.int64)
        sets = [self.predictor.sets.elements(row) for row in rows]
        keys = sets if self.predictor.numeric else [np.arange(float(len(one)))[:, None] for one in sets]

        def evaluate(which: np.ndarray, orders: list[np.ndarray]) -> np.ndarray:
            changes = [np.empty(0)]
            for block, drawn, outputs in self._read(rows[which], orders):
                changes.append(self._measured(rows[which[block]], outputs)[1])
                self._keep_worst(rows[which[block]], changes[-1], drawn, outputs)
            return np.concatenate(changes)

        starts = [self.worst[row][1] for row in rows]
        searches = search_orderings(evaluate, keys, budget, self.rng, starts) if budget else [None] * len(rows)
        cases = []
        for row, elements, found in zip(rows.tolist(), sets, searches, strict=True):
            change, order, output = self.worst[row]
            two = self.predictor.class_of(np.stack([self.given[row], output])).tolist()
            classes = tuple(map(self.predictor.class_name, two)) if self.classifies else (None, None)
            name = str(row if self.names["set"] is None else self.names["set"][row])
            tried, exact = (draws + found.tried, found.exact) if found else (draws, self.design.name == "all")
            cases.append(WorstCase(row, name, change, order, exact, tried, elements, self.given[row], output, *classes))
        return sorted(cases, key=lambda case: -case.change)[:5]


def _points(low: int, high: int) -> list[int]:
    """Whole numbers from ``low`` to ``high``: all of them if few, else spread out, evenly from 0."""
    if high - low < _POINTS:
        return list(range(low, high + 1))
    spread = np.geomspace(low, high, _POINTS) if low else np.linspace(low, high, _POINTS)
    return np.unique(np.round(spread).astype(int)).tolist()
