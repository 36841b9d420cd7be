"""The ordering of a set that changes a predictor's output most: hill climbing by swaps.

Up to 7 elements all orderings are tried. Beyond, the search begins with the set reversed, sorted by features and along
random directions, and at random. Then it swaps elements of the worst ordering so far. All sets are searched side by
side, so that the predictor reads many orderings at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice, permutations

import numpy as np

EXACT_SIZE = 7
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
    running = [search.proposals() for search in searches]
    while any(proposed := [next(proposals, []) for proposals in running]):
        which = np.repeat(np.arange(len(searches)), [len(orders) for orders in proposed])
        gaps = evaluate(which, [order for orders in proposed for order in orders])
        for i, (search, orders) in enumerate(zip(searches, proposed, strict=True)):
            search.learn(orders, gaps[which[: len(gaps)] == i])
        if len(gaps) < len(which):
            break
    return searches


class Search:
    """The search on one set: the worst ``order`` so far, its ``gap``, and how many were ``tried``."""

    def __init__(self, elements: np.ndarray, budget: int, rng: np.random.Generator, start: np.ndarray | None) -> None:
        self.size, self._budget, self._rng, self._start = len(elements), budget, rng, start
        self.order, self.gap, self.tried = np.arange(self.size), 0.0, 0
        numbers = np.nan_to_num(elements.astype(np.float64))
        self._numbers = (numbers - numbers.mean(axis=0)) / np.maximum(numbers.std(axis=0), 1e-300)
        self._seen: set[int] = set()

    @property
    def exact(self) -> bool:
        """Whether all orderings were tried."""
        return self.size <= EXACT_SIZE and self.tried == math.factorial(self.size)

    def learn(self, orders: list[np.ndarray], gaps: np.ndarray) -> None:
        """Keep the worst of the orderings whose gaps are known."""
        self.tried += len(gaps)
        if gaps.max(initial=0.0) > self.gap:
            self.order, self.gap = orders[gaps.argmax()], float(gaps.max())

    def proposals(self) -> Iterator[list[np.ndarray]]:
        """Yield orderings to try, a batch at a time; :meth:`learn` is called between them."""
        if self.size <= EXACT_SIZE:
            yield [np.array(order) for order in permutations(range(self.size))]
            return
        most, first = max(1, _NUMBERS // self.size), max(self._budget // 4, 1)
        guesses = islice(filter(self._is_new, self._guesses(first)), first)
        while orders := list(islice(guesses, most)):
            yield orders
        while (left := self._budget - self.tried) > 0:
            wanted = min(max(self._budget // 32, 8), left, most)
            orders = list(islice(filter(self._is_new, (self._swapped() for _ in range(4 * wanted))), wanted))
            if not orders:
                return
            yield orders

    def _is_new(self, order: np.ndarray) -> bool:
        key = hash(order.tobytes())
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _guesses(self, count: int) -> Iterator[np.ndarray]:
        """The start, the set reversed, sorted both ways by features and along random directions, and at random."""
        if self._start is not None:
            yield self._start
        yield np.arange(self.size)[::-1].copy()
        features = self._numbers.shape[1]
        for j in self._rng.permutation(features)[: count // 4]:
            yield from (np.argsort(sign * self._numbers[:, j], kind="stable") for sign in (1, -1))
        for _ in range(int(0.7 * count) if features > 1 else 0):
            yield np.argsort(self._numbers @ self._rng.standard_normal(features), kind="stable")
        for _ in range(4 * count):
            yield self._rng.permutation(self.size)

    def _swapped(self) -> np.ndarray:
        """The worst ordering with elements swapped: more than two now and then, to leave a local maximum."""
        order = self.order.copy()
        for _ in range(self._rng.geometric(0.7)):
            places = self._rng.choice(self.size, 2, replace=False)
            order[places] = order[places[::-1]]
        return order
