"""Finding the ordering of a set that changes a predictor's answer most.

Up to 7 elements all orderings are tried. Beyond, a few orderings are improved beside each other. They are the best
of a first round of guesses: reversed, sorted along features, random directions and the distance from the first, last
and mean element, and random ones. Each is then changed a little (two elements swapped, a run moved, a run reversed)
and gives way to a change that is worse for the predictor; swaps go most often where they were felt most. Now and then
the set is sorted along a direction near the best one so far. All sets are searched side by side, in blocks, so that
the predictor is asked for many orderings at once and few are held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import islice, permutations

import numpy as np

EXACT_SIZE = 7
_BEST = 6

Evaluate = Callable[[np.ndarray, np.ndarray], np.ndarray]  # which set [R], orders [R, longest of these] -> gaps [R]


@dataclass
class Proposal:
    """An ordering to try for set ``which``.

    ``parent``: which of the best it was made from, whose gap was ``before``; ``places``: the two positions it swaps;
    ``direction``: along which it sorts the set.
    """

    which: int
    order: np.ndarray
    parent: int | None = None
    before: float = 0.0
    places: tuple[int, int] | None = None
    direction: np.ndarray | None = None


@dataclass
class Search:
    """The search on one set ``elements [n, D]``: the worst ordering so far and how many were tried.

    ``best``: the orderings to improve, with their gaps; ``felt [n]``: how much the swaps of each position moved the
    gap; ``direction [D]``: the best to sort along; ``seen``: hashes of what was proposed.
    """

    elements: np.ndarray
    order: np.ndarray = field(init=False)
    gap: float = 0.0
    tried: int = 0
    best: list[tuple[float, np.ndarray]] = field(default_factory=list)
    felt: np.ndarray = field(init=False)
    direction: np.ndarray | None = None
    direction_gap: float = -1.0
    seen: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.order = np.arange(self.size)
        self.felt = np.zeros(self.size)

    @property
    def size(self) -> int:
        return len(self.elements)

    @property
    def small(self) -> bool:
        return self.size <= EXACT_SIZE

    @property
    def exact(self) -> bool:
        """Whether all orderings were tried."""
        return self.small and self.tried == math.factorial(self.size)

    @cached_property
    def standard(self) -> np.ndarray:
        """The elements as numbers, each feature of mean 0 and variance 1."""
        numbers = np.nan_to_num(self.elements.astype(np.float64))
        scale = numbers.std(axis=0)
        return (numbers - numbers.mean(axis=0)) / np.where(scale > 0, scale, 1.0)

    def learn(self, proposal: Proposal, gap: float) -> None:
        self.tried += 1
        if gap > self.gap:
            self.gap, self.order = gap, proposal.order
        if proposal.direction is not None and gap > self.direction_gap:
            self.direction, self.direction_gap = proposal.direction, gap
        if proposal.places is not None:
            self.felt[list(proposal.places)] += abs(gap - proposal.before)
        if len(self.best) < _BEST:
            self.best.append((gap, proposal.order))
            return
        rival = proposal.parent
        if rival is None:
            rival = min(range(_BEST), key=lambda i: self.best[i][0])
        if gap > self.best[rival][0]:
            self.best[rival] = (gap, proposal.order)

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
    searches = [Search(each) for each in elements]

    def first_round() -> Iterator[Proposal]:
        for i, search in enumerate(searches):
            if search.small:
                yield from (Proposal(i, np.array(order)) for order in permutations(range(search.size)))
            else:
                guesses = _guesses(search, max(budget // 4, 1), rng, None if starts is None else starts[i])
                yield from (Proposal(i, order, direction=d) for order, d in guesses if search.is_new(order))

    def next_round() -> Iterator[Proposal]:
        for i, search in enumerate(searches):
            if not search.small:
                yield from _children(i, search, budget, rng)

    proposals, tried = first_round(), -1
    while tried < (tried := sum(search.tried for search in searches)):
        for block in _blocks(proposals, searches, room):
            if expired():
                return searches
            _try(block, searches, evaluate)
        proposals = next_round()
    return searches


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
    for proposal, gap in zip(block, evaluate(which, orders).tolist(), strict=True):
        searches[proposal.which].learn(proposal, gap)


Guess = tuple[np.ndarray, np.ndarray | None]  # an ordering, and the direction it sorts along


def _guesses(search: Search, count: int, rng: np.random.Generator, start: np.ndarray | None) -> Iterator[Guess]:
    """``count`` orderings: the start, reversed, sorted both ways by each key, along directions, and random ones."""
    informed = 0
    for guess in islice(_informed(search, count, rng, start), count):
        informed += 1
        yield guess
    for _ in range(count - informed):
        yield rng.permutation(search.size), None


def _informed(search: Search, count: int, rng: np.random.Generator, start: np.ndarray | None) -> Iterator[Guess]:
    if start is not None:
        yield start, None
    yield np.arange(search.size)[::-1].copy(), None
    for key in _keys(search, count // 4, rng):
        ascending = np.argsort(key, kind="stable")
        yield ascending, None
        yield ascending[::-1].copy(), None
    features = search.standard.shape[1]
    for _ in range(int(0.4 * count) if features > 1 else 0):
        yield _sorted_along(search, rng.choice([-1.0, 1.0], features))


def _keys(search: Search, most: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The distance from the last, first and mean element, and features: all of them, or ``most`` at random."""
    numbers = np.nan_to_num(search.elements.astype(np.float64))
    features = numbers.shape[1]
    if features > 1:
        for centre in (numbers[-1], numbers[0], numbers.mean(axis=0)):
            yield np.abs(numbers - centre).sum(axis=1)
    for j in range(features) if features <= most else rng.permutation(features)[:most]:
        yield numbers[:, j]


def _sorted_along(search: Search, direction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.argsort(search.standard @ direction, kind="stable"), direction


def _children(which: int, search: Search, budget: int, rng: np.random.Generator) -> Iterator[Proposal]:
    """New orderings, each a small change away from one of the best, none proposed before."""
    wanted = min(max(budget // 32, 8), budget - search.tried)
    best = list(search.best)  # as they are now, however the children are cut into blocks
    direction, places = search.direction, _places(search)
    weights = 0.6 ** np.argsort(np.argsort([-gap for gap, _ in best]))
    weights /= weights.sum()
    for _ in range(4 * max(wanted, 0)):
        if wanted == 0:
            return
        if direction is not None and rng.random() < 0.25:
            turn = np.where(rng.random(len(direction)) < 0.3, rng.standard_normal(len(direction)), 0.0)
            order, near = _sorted_along(search, direction + 1.5 * turn)
            child = Proposal(which, order, direction=near)
        else:
            parent = int(rng.choice(len(best), p=weights))
            gap, order = best[parent]
            order, swapped = _change(order, places, rng)
            if rng.random() < 0.2:
                order, swapped = _change(order, places, rng)[0], None
            child = Proposal(which, order, parent, gap, swapped)
        if search.is_new(child.order):
            wanted -= 1
            yield child


def _places(search: Search) -> np.ndarray:
    """How likely each position is swapped: most swaps go where they were felt, at first to both ends."""
    felt = search.felt
    if not felt.any():
        felt = np.zeros(search.size)
        felt[[0, -1]] = 1.0
    return 0.2 / search.size + 0.8 * felt / felt.sum()


def _change(
    order: np.ndarray, places: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, tuple[int, int] | None]:
    """Swap two elements, move a run elsewhere, or reverse a run; runs are mostly short."""
    n = len(order)
    child = order.copy()
    kind = rng.random()
    if kind < 0.8:
        i, j = int(rng.choice(n, p=places)), int(rng.integers(n - 1))
        j += j >= i
        child[i], child[j] = child[j], child[i]
        return child, (i, j)
    length = min(n - 1, math.ceil(n ** rng.random()))
    begin = int(rng.integers(n - length + 1))
    run = order[begin : begin + length]
    if kind < 0.92:
        rest = np.delete(order, slice(begin, begin + length))
        return np.insert(rest, int(rng.integers(len(rest) + 1)), run), None
    child[begin : begin + length] = run[::-1]
    return child, None
