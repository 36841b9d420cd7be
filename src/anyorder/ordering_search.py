"""Finding the ordering of a set that changes a predictor's answer most.

Up to 7 elements all orderings are tried. Beyond, a population of orderings is improved: it begins with informed
guesses (reversed, sorted along features, random directions and the distance from the first, last and mean element)
and random ones; then the best are changed a little (two elements swapped, a run moved, a run reversed) and the
better of old and new kept. Swaps go most often to the positions whose swaps were felt most. All sets are searched
side by side in blocks, so that the predictor is asked for many orderings at once and few are held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import permutations

import numpy as np

EXACT_SIZE = 7
_PARENTS = 6

Evaluate = Callable[[np.ndarray, np.ndarray], np.ndarray]  # which set [R], orders [R, longest of these] -> gaps [R]


@dataclass
class Proposal:
    """An ordering to try; ``places``: the two it swaps in an ordering whose gap was ``before``."""

    which: int
    order: np.ndarray
    places: tuple[int, int] | None = None
    before: float = 0.0


@dataclass
class Search:
    """The search on one set of ``size`` elements: the worst ordering so far and how many were tried.

    ``felt [size]``: how much the swaps of each position moved the gap; ``seen``: hashes of what was proposed.
    """

    size: int
    order: np.ndarray
    gap: float = 0.0
    tried: int = 0
    exact: bool = False
    population: list[tuple[float, np.ndarray]] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)
    felt: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.felt = np.zeros(self.size)

    def learn(self, proposals: list[Proposal], gaps: np.ndarray) -> None:
        self.tried += len(proposals)
        self.population += [(float(gap), p.order) for gap, p in zip(gaps, proposals, strict=True)]
        self.population.sort(key=lambda pair: -pair[0])
        del self.population[_PARENTS:]
        if self.population[0][0] > self.gap:
            self.gap, self.order = self.population[0]
        for gap, proposal in zip(gaps.tolist(), proposals, strict=True):
            if proposal.places is not None:
                self.felt[list(proposal.places)] += abs(gap - proposal.before)

    def is_new(self, order: np.ndarray) -> bool:
        """Whether this ordering was not proposed before; from now on it was."""
        key = blake2b(order.tobytes(), digest_size=12).digest()
        new = key not in self.seen
        self.seen.add(key)
        return new


def search_orderings(
    evaluate: Evaluate,
    elements: list[np.ndarray],
    budget: int,
    rng: np.random.Generator,
    *,
    starts: list[np.ndarray] | None = None,
    expired: Callable[[], bool] = lambda: False,
    room: Callable[[int], int] = lambda size: 1024,
) -> list[Search]:
    """Search each set of ``elements`` (arrays ``[n, D]``, n ≥ 2) with ``budget`` evaluations a set.

    ``starts``: an ordering known to be bad for each. Sets of at most 7 elements are enumerated whatever the
    budget. ``room(size)``: how many orderings of sets of up to that size are evaluated at once. ``expired()`` ends
    the search early, before any evaluation.
    """
    searches = [Search(len(e), np.arange(len(e))) for e in elements]

    def first_round() -> Iterator[Proposal]:
        for i, (search, each) in enumerate(zip(searches, elements, strict=True)):
            if search.size <= EXACT_SIZE:
                yield from (Proposal(i, np.array(order)) for order in permutations(range(search.size)))
            else:
                guesses = _guesses(each, max(budget // 4, 1), rng, None if starts is None else starts[i])
                yield from (Proposal(i, order) for order in guesses if search.is_new(order))

    proposals = first_round()
    while True:
        before = sum(search.tried for search in searches)
        for block in _blocks(proposals, searches, room):
            if expired():
                return searches
            _try(block, searches, evaluate)
        for search in searches:
            search.exact = search.tried == math.factorial(search.size) if search.size <= EXACT_SIZE else False
        if sum(search.tried for search in searches) == before:
            return searches
        proposals = (
            child
            for i, search in enumerate(searches)
            if search.size > EXACT_SIZE
            for child in _children(i, search, budget, rng)
        )


def _blocks(
    proposals: Iterator[Proposal], searches: list[Search], room: Callable[[int], int]
) -> Iterator[list[Proposal]]:
    block: list[Proposal] = []
    longest = 0
    for proposal in proposals:
        longest = max(longest, searches[proposal.which].size)
        if block and len(block) >= room(longest):
            yield block
            block, longest = [], searches[proposal.which].size
        block.append(proposal)
    if block:
        yield block


def _try(block: list[Proposal], searches: list[Search], evaluate: Evaluate) -> None:
    which = np.array([proposal.which for proposal in block])
    sizes = np.array([searches[i].size for i in which])
    orders = np.tile(np.arange(sizes.max()), (len(block), 1))
    for row, proposal in zip(orders, block, strict=True):
        row[: len(proposal.order)] = proposal.order
    gaps = evaluate(which, orders)
    for i in np.unique(which):
        searches[i].learn([p for p in block if p.which == i], gaps[which == i])


def _guesses(
    elements: np.ndarray, count: int, rng: np.random.Generator, start: np.ndarray | None
) -> Iterator[np.ndarray]:
    """``count`` orderings: the start, reversed, sorted both ways along each key, and random ones."""
    n = len(elements)
    orders = 0
    for order in _informed(elements, count, rng, start):
        yield order
        orders += 1
        if orders == count:
            return
    for _ in range(count - orders):
        yield rng.permutation(n)


def _informed(
    elements: np.ndarray, count: int, rng: np.random.Generator, start: np.ndarray | None
) -> Iterator[np.ndarray]:
    if start is not None:
        yield start
    yield np.arange(len(elements))[::-1].copy()
    for key in _keys(elements, count // 2, rng):
        ascending = np.argsort(key, kind="stable")
        yield ascending
        yield ascending[::-1].copy()


def _keys(elements: np.ndarray, most: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """What to sort by: the distance from the last, first and mean element, features, random directions."""
    numbers = np.nan_to_num(elements.astype(np.float64))
    features = numbers.shape[1]
    if features > 1:
        for centre in (numbers[-1], numbers[0], numbers.mean(axis=0)):
            yield np.abs(numbers - centre).sum(axis=1)
    if features > 1:
        for _ in range(2):
            yield numbers @ rng.standard_normal(features)
    for j in range(features) if features <= most else rng.permutation(features):
        yield numbers[:, j]


def _children(which: int, search: Search, budget: int, rng: np.random.Generator) -> Iterator[Proposal]:
    """New orderings, each one or two small changes away from one of the best, none proposed before."""
    wanted = min(max(budget // 16, 8), budget - search.tried)
    parents = list(search.population)  # as they are now, however the children are cut into blocks
    weights = 0.5 ** np.arange(len(parents))
    weights /= weights.sum()
    places = _places(search)
    for _ in range(4 * max(wanted, 0)):
        if wanted == 0:
            return
        before, order = parents[rng.choice(len(parents), p=weights)]
        child, swapped = _change(order, places, rng)
        if rng.random() < 0.3:
            child, swapped = _change(child, places, rng)[0], None
        if search.is_new(child):
            wanted -= 1
            yield Proposal(which, child, swapped, before)


def _places(search: Search) -> np.ndarray:
    """How likely each position is swapped: half of the swaps go where they were felt, at first to both ends."""
    felt = search.felt
    if not felt.any():
        felt = np.zeros(search.size)
        felt[[0, -1]] = 1.0
    return 0.5 / search.size + 0.5 * felt / felt.sum()


def _change(
    order: np.ndarray, places: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, tuple[int, int] | None]:
    """Swap two elements, move a run elsewhere, or reverse a run; runs are mostly short."""
    n = len(order)
    child = order.copy()
    kind = rng.random()
    if kind < 0.6:
        i, j = int(rng.choice(n, p=places)), int(rng.integers(n - 1))
        j += j >= i
        child[i], child[j] = child[j], child[i]
        return child, (i, j)
    length = min(n - 1, math.ceil(n ** rng.random()))
    begin = int(rng.integers(n - length + 1))
    run = order[begin : begin + length]
    if kind < 0.85:
        rest = np.delete(order, slice(begin, begin + length))
        return np.insert(rest, int(rng.integers(len(rest) + 1)), run), None
    child[begin : begin + length] = run[::-1]
    return child, None
