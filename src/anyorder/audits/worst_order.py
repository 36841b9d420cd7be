"""The ordering of a set that changes a predictor's output most: hill climbing with restarts.

Up to 7 elements all orderings are tried. Beyond, six climbers start from the worst of the first guesses: the set
reversed, sorted by a feature or along a direction, and at random. A climber takes a small change of its ordering when
the gap grows. A restart, the set sorted along a new direction, replaces the lowest climber if it is worse. All sets are
searched side by side, so that the predictor reads many orderings at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice, permutations

import numpy as np

EXACT_SIZE = 7
_CLIMBERS = 6
_NUMBERS = 1_000_000  # places of the orderings that a set proposes at once

# which set [R] and its orderings -> the gaps of the first ones; fewer than R end the search
Evaluate = Callable[[np.ndarray, list[np.ndarray]], np.ndarray]


def search_orderings(
    evaluate: Evaluate,
    elements: list[np.ndarray],
    budget: int,
    rng: np.random.Generator,
    starts: list[np.ndarray] | None = None,
) -> list[Search]:
    """The searches of all sets ``elements`` (arrays ``[n, D]``, n ≥ 2), with ``budget`` evaluations a set.

    ``starts``: an ordering of each set that is known to be bad. Sets of at most 7 elements are enumerated whatever
    the budget.
    """
    searches = [Search(x, budget, rng, None if starts is None else starts[i]) for i, x in enumerate(elements)]
    running = {i: search.proposals() for i, search in enumerate(searches)}
    proposed = {i: next(proposals) for i, proposals in running.items()}
    while proposed:
        which = np.repeat(list(proposed), [len(orders) for orders in proposed.values()])
        gaps = evaluate(which, [order for orders in proposed.values() for order in orders])
        for i, orders in proposed.items():
            searches[i].learn(orders, gaps[which[: len(gaps)] == i])
        if len(gaps) < len(which):
            break
        for i in list(proposed):
            try:
                proposed[i] = running[i].send(gaps[which == i])
            except StopIteration:
                del proposed[i]
    return searches


@dataclass
class _Move:
    """An ordering to try: a change of a climber's that swaps two places or not, or a sort along a direction."""

    order: np.ndarray
    climber: int | None = None
    places: tuple[int, int] | None = None
    direction: np.ndarray | None = None


class Search:
    """The search on one set: the worst ``order`` so far, its ``gap``, and how many were ``tried``."""

    def __init__(self, elements: np.ndarray, budget: int, rng: np.random.Generator, start: np.ndarray | None) -> None:
        self.size, self._budget, self._rng, self._start = len(elements), budget, rng, start
        self.order, self.gap, self.tried = np.arange(self.size), 0.0, 0
        self._numbers = np.nan_to_num(elements.astype(np.float64))
        scale = self._numbers.std(axis=0)
        self._standard = (self._numbers - self._numbers.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
        self._climbers: list[tuple[float, np.ndarray]] = []
        self._felt = np.zeros(self.size)  # how far swaps at each place moved the gap
        self._direction: tuple[float, np.ndarray | None] = (-1.0, None)  # the best to sort along
        self._seen: set[int] = set()

    @property
    def exact(self) -> bool:
        """Whether all orderings were tried."""
        return self.size <= EXACT_SIZE and self.tried == math.factorial(self.size)

    def learn(self, orders: list[np.ndarray], gaps: np.ndarray) -> None:
        """Keep the worst of the orderings whose gaps are known."""
        self.tried += len(gaps)
        if len(gaps) and gaps.max() > self.gap:
            self.gap, self.order = float(gaps.max()), orders[int(gaps.argmax())]

    def proposals(self) -> Generator[list[np.ndarray], np.ndarray, None]:
        """Yield orderings to try, a batch at a time; receive their gaps."""
        if self.size <= EXACT_SIZE:
            yield [np.array(order) for order in permutations(range(self.size))]
            return
        most = max(1, _NUMBERS // self.size)
        first = max(self._budget // 4, 1)
        guesses = islice((move for move in self._guesses(first) if self._is_new(move.order)), first)
        while moves := list(islice(guesses, most)):
            self._climb(moves, (yield [move.order for move in moves]))
        while (left := self._budget - self.tried) > 0:
            wanted = min(max(self._budget // 32, 8), left, most)
            changes = (self._change() for _ in range(4 * wanted))
            moves = list(islice((move for move in changes if self._is_new(move.order)), wanted))
            if not moves:
                return
            self._climb(moves, (yield [move.order for move in moves]))

    def _climb(self, moves: list[_Move], gaps: np.ndarray) -> None:
        before = [gap for gap, _ in self._climbers]
        for move, gap in zip(moves, gaps.tolist(), strict=False):
            if move.direction is not None and gap > self._direction[0]:
                self._direction = gap, move.direction
            if move.places is not None and move.climber is not None:
                self._felt[list(move.places)] += abs(gap - before[move.climber])
            if len(self._climbers) < _CLIMBERS:
                self._climbers.append((gap, move.order))
                continue
            rival = move.climber
            if rival is None:
                rival = min(range(_CLIMBERS), key=lambda i: self._climbers[i][0])
            if gap > self._climbers[rival][0]:
                self._climbers[rival] = gap, move.order

    def _is_new(self, order: np.ndarray) -> bool:
        key = hash(order.tobytes())
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _guesses(self, count: int) -> Iterator[_Move]:
        """The start, the set reversed, sorted both ways by its keys and along directions, and at random."""
        if self._start is not None:
            yield _Move(self._start)
        yield _Move(np.arange(self.size)[::-1].copy())
        x, features = self._numbers, self._numbers.shape[1]
        keys = [np.abs(x - centre).sum(axis=1) for centre in (x[-1], x[0], x.mean(axis=0))] if features > 1 else []
        some = range(features) if 4 * features <= count else self._rng.permutation(features)[: count // 4]
        for key in [*keys, *(x[:, j] for j in some)]:
            ascending = np.argsort(key, kind="stable")
            yield from (_Move(ascending), _Move(ascending[::-1].copy()))
        for _ in range(int(0.4 * count) if features > 1 else 0):
            yield self._sorted(self._rng.choice([-1.0, 1.0], features))
        for _ in range(4 * count):
            yield _Move(self._rng.permutation(self.size))

    def _sorted(self, direction: np.ndarray) -> _Move:
        return _Move(np.argsort(self._standard @ direction, kind="stable"), direction=direction)

    def _change(self) -> _Move:
        """A sort along a direction near the best, or a small change of a climber's ordering, most often the worst's."""
        rng, direction = self._rng, self._direction[1]
        if direction is not None and rng.random() < 0.25:
            turn = np.where(rng.random(len(direction)) < 0.3, rng.standard_normal(len(direction)), 0.0)
            return self._sorted(direction + 1.5 * turn)
        ranks = np.argsort(np.argsort([-gap for gap, _ in self._climbers]))
        weights = 0.6**ranks
        climber = int(rng.choice(len(ranks), p=weights / weights.sum()))
        order, places = self._changed(self._climbers[climber][1])
        return _Move(order, climber, places)

    def _changed(self, order: np.ndarray) -> tuple[np.ndarray, tuple[int, int] | None]:
        """Swap two elements, mostly where swaps were felt, or exchange two neighbouring runs."""
        n, rng, child = self.size, self._rng, order.copy()
        if rng.random() < 0.8:
            felt = self._felt if self._felt.any() else (np.arange(n) % (n - 1) == 0).astype(float)  # both ends at first
            i, j = int(rng.choice(n, p=0.2 / n + 0.8 * felt / felt.sum())), int(rng.integers(n - 1))
            j += j >= i
            child[[i, j]] = child[[j, i]]
            return child, (i, j)
        begin, middle, end = sorted(rng.choice(n + 1, 3, replace=False))
        child[begin:end] = np.roll(order[begin:end], begin - middle)
        return child, None
