"""The ordering of a set that changes a predictor's output most: hill climbing with new starts.

Up to 7 elements all orderings are tried. Beyond, the search begins with the set reversed, sorted by a feature or along
a direction, and at random. Then it tries small changes of the worst ordering so far, and the set sorted along a
direction near the best one. All sets are searched side by side, so that the predictor reads many orderings at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from itertools import islice, permutations

import numpy as np

EXACT_SIZE = 7
_NUMBERS = 1_000_000  # places of the orderings that a set proposes at once

# which set [R] and its orderings -> the gaps of the first ones; fewer than R end the search
Evaluate = Callable[[np.ndarray, list[np.ndarray]], np.ndarray]
Move = tuple[np.ndarray, np.ndarray | None]  # an ordering, and the direction that it is sorted along, if any


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
    while proposed := {i: moves for i, proposals in running.items() if (moves := next(proposals, None))}:
        which = np.repeat(list(proposed), [len(moves) for moves in proposed.values()])
        gaps = evaluate(which, [order for moves in proposed.values() for order, _ in moves])
        for i, moves in proposed.items():
            searches[i].learn(moves, gaps[which[: len(gaps)] == i])
        if len(gaps) < len(which):
            break
    return searches


class Search:
    """The search on one set: the worst ``order`` so far, its ``gap``, and how many were ``tried``."""

    def __init__(self, elements: np.ndarray, budget: int, rng: np.random.Generator, start: np.ndarray | None) -> None:
        self.size, self._budget, self._rng, self._start = len(elements), budget, rng, start
        self.order, self.gap, self.tried = np.arange(self.size), 0.0, 0
        self._numbers = np.nan_to_num(elements.astype(np.float64))
        scale = self._numbers.std(axis=0)
        self._standard = (self._numbers - self._numbers.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
        self._direction: tuple[float, np.ndarray | None] = (-1.0, None)  # the best to sort along
        self._seen: set[int] = set()

    @property
    def exact(self) -> bool:
        """Whether all orderings were tried."""
        return self.size <= EXACT_SIZE and self.tried == math.factorial(self.size)

    def learn(self, moves: list[Move], gaps: np.ndarray) -> None:
        """Keep the worst of the orderings whose gaps are known, and the best direction."""
        self.tried += len(gaps)
        for (order, direction), gap in zip(moves, gaps.tolist(), strict=False):
            if gap > self.gap:
                self.gap, self.order = gap, order
            if direction is not None and gap > self._direction[0]:
                self._direction = gap, direction

    def proposals(self) -> Generator[list[Move], None, None]:
        """Yield orderings to try, a batch at a time; :meth:`learn` is called between them."""
        if self.size <= EXACT_SIZE:
            yield [(np.array(order), None) for order in permutations(range(self.size))]
            return
        most, first = max(1, _NUMBERS // self.size), max(self._budget // 4, 1)
        guesses = islice(filter(self._is_new, self._guesses(first)), first)
        while moves := list(islice(guesses, most)):
            yield moves
        while (left := self._budget - self.tried) > 0:
            wanted = min(max(self._budget // 32, 8), left, most)
            moves = list(islice(filter(self._is_new, (self._change() for _ in range(4 * wanted))), wanted))
            if not moves:
                return
            yield moves

    def _is_new(self, move: Move) -> bool:
        key = hash(move[0].tobytes())
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _guesses(self, count: int) -> Iterator[Move]:
        """The start, the set reversed, sorted both ways by its keys and along directions, and at random."""
        if self._start is not None:
            yield self._start, None
        yield np.arange(self.size)[::-1].copy(), None
        x, features = self._numbers, self._numbers.shape[1]
        keys = [np.abs(x - centre).sum(axis=1) for centre in (x[-1], x[0], x.mean(axis=0))] if features > 1 else []
        some = range(features) if 4 * features <= count else self._rng.permutation(features)[: count // 4]
        for key in [*keys, *(x[:, j] for j in some)]:
            ascending = np.argsort(key, kind="stable")
            yield from ((ascending, None), (ascending[::-1].copy(), None))
        for _ in range(int(0.4 * count) if features > 1 else 0):
            yield self._sorted(self._rng.choice([-1.0, 1.0], features))
        for _ in range(4 * count):
            yield self._rng.permutation(self.size), None

    def _sorted(self, direction: np.ndarray) -> Move:
        return np.argsort(self._standard @ direction, kind="stable"), direction

    def _change(self) -> Move:
        """A sort along a direction near the best, or the worst ordering with elements or runs exchanged."""
        rng, direction, order = self._rng, self._direction[1], self.order.copy()
        if direction is not None and rng.random() < 0.25:
            turn = np.where(rng.random(len(direction)) < 0.3, rng.standard_normal(len(direction)), 0.0)
            return self._sorted(direction + 1.5 * turn)
        for _ in range(rng.geometric(0.7)):  # more than one leads out of a local maximum
            if rng.random() < 0.8:
                places = rng.choice(self.size, 2, replace=False)
                order[places] = order[places[::-1]]
            else:
                begin, middle, end = sorted(rng.choice(self.size + 1, 3, replace=False))
                order[begin:end] = np.roll(order[begin:end], begin - middle)
        return order, None
