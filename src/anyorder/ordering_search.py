"""Finding the ordering of a set that changes a predictor's answer most.

Up to 7 elements all orderings are tried. Beyond, a population of orderings is improved: it begins with informed
guesses (reversed, sorted along features and random directions) and random ones; then the best are changed a
little (two elements swapped, a run moved, a run reversed) and the better of old and new kept. All sets are
searched side by side, so that the predictor is always asked in batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

EXACT_SIZE = 7
_PARENTS = 6

Evaluate = Callable[[np.ndarray, np.ndarray], np.ndarray]  # which set [R], orders [R, T] -> gaps [R]


@dataclass
class Search:
    """The search on one set of ``size`` elements: the worst ordering so far and how many were tried."""

    size: int
    order: np.ndarray
    gap: float = 0.0
    tried: int = 0
    exact: bool = False
    population: list[tuple[float, np.ndarray]] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)

    def learn(self, orders: np.ndarray, gaps: np.ndarray) -> None:
        self.tried += len(orders)
        self.population += list(zip(gaps.tolist(), orders, strict=True))
        self.population.sort(key=lambda pair: -pair[0])
        self.population = self.population[:_PARENTS]
        if self.population[0][0] > self.gap:
            self.gap, self.order = self.population[0]


def search_orderings(
    evaluate: Evaluate,
    elements: list[np.ndarray],
    budget: int,
    rng: np.random.Generator,
    *,
    starts: list[np.ndarray] | None = None,
    expired: Callable[[], bool] = lambda: False,
) -> list[Search]:
    """Search each set of ``elements`` (arrays ``[n, D]``, n ≥ 2) with ``budget`` evaluations a set.

    ``starts``: an ordering known to be bad for each. Sets of at most 7 elements are enumerated whatever the
    budget. ``expired()`` ends the search early, between rounds.
    """
    width = max(len(e) for e in elements)
    searches = [Search(len(e), np.arange(len(e))) for e in elements]
    _enumerate(evaluate, searches, width, expired)
    open_ones = [i for i, search in enumerate(searches) if search.size > EXACT_SIZE]
    proposals = {
        i: _guesses(elements[i], max(budget // 4, 1), rng, None if starts is None else starts[i])[:budget]
        for i in open_ones
    }
    while any(len(p) for p in proposals.values()) and not expired():
        which = np.concatenate([np.full(len(p), i) for i, p in proposals.items()]).astype(np.int64)
        gaps = evaluate(which, np.concatenate([_widen(p, width) for p in proposals.values() if len(p)]))
        for i in open_ones:
            if len(proposals[i]):
                searches[i].learn(proposals[i], gaps[which == i])
        proposals = {i: _children(searches[i], budget, rng) for i in open_ones}
    return searches


def _enumerate(evaluate: Evaluate, searches: list[Search], width: int, expired: Callable[[], bool]) -> None:
    for i, search in enumerate(searches):
        if search.size > EXACT_SIZE or expired():
            continue
        orders = np.array(list(permutations(range(search.size))))
        search.learn(orders, evaluate(np.full(len(orders), i), _widen(orders, width)))
        search.exact = True


def _guesses(elements: np.ndarray, count: int, rng: np.random.Generator, start: np.ndarray | None) -> np.ndarray:
    """Reversed, sorted along up to four features and two random directions (both ways), and random orderings."""
    n, features = elements.shape
    numbers = np.nan_to_num(elements.astype(np.float64))
    keys = [numbers[:, j] for j in range(min(features, 4))]
    keys += [numbers @ rng.standard_normal(features) for _ in range(2 if features > 1 else 0)]
    orders = [] if start is None else [start]
    orders.append(np.arange(n)[::-1])
    for key in keys:
        ascending = np.argsort(key, kind="stable")
        orders += [ascending, ascending[::-1]]
    orders = orders[:count]
    orders += [rng.permutation(n) for _ in range(count - len(orders))]
    return np.array(orders)


def _children(search: Search, budget: int, rng: np.random.Generator) -> np.ndarray:
    """New orderings, each one or two small changes away from one of the best, none seen before."""
    wanted = min(max(budget // 16, 8), budget - search.tried)
    parents = [order for _, order in search.population]
    weights = 0.5 ** np.arange(len(parents))
    weights /= weights.sum()
    children: list[np.ndarray] = []
    for _ in range(4 * max(wanted, 0)):
        if len(children) == wanted:
            break
        child = parents[rng.choice(len(parents), p=weights)]
        for _ in range(1 + (rng.random() < 0.3)):
            child = _change(child, rng)
        if (key := child.tobytes()) not in search.seen:
            search.seen.add(key)
            children.append(child)
    return np.array(children).reshape(len(children), search.size)


def _change(order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Swap two elements, move a run elsewhere, or reverse a run; runs are mostly short."""
    n = len(order)
    child = order.copy()
    kind = rng.random()
    if kind < 0.4:
        i, j = rng.choice(n, 2, replace=False)
        child[i], child[j] = child[j], child[i]
        return child
    length = min(n - 1, math.ceil(n ** rng.random()))
    begin = int(rng.integers(n - length + 1))
    run = order[begin : begin + length]
    if kind < 0.8:
        rest = np.delete(order, slice(begin, begin + length))
        return np.insert(rest, int(rng.integers(len(rest) + 1)), run)
    child[begin : begin + length] = run[::-1]
    return child


def _widen(orders: np.ndarray, width: int) -> np.ndarray:
    """Orders ``[R, n]`` with the positions of padding behind: ``[R, width]``."""
    tail = np.arange(orders.shape[1], width)
    return np.concatenate([orders, np.broadcast_to(tail, (len(orders), len(tail)))], axis=1)
