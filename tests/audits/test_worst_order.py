"""The search for the worst ordering: exact where it can be, better than chance and than it was, within its budget."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
import torch

import anyorder as ao
from anyorder.audits.worst_order import search_orderings
from predictors import KNOWN

KINDS = [*KNOWN, lambda e: e[:, 0] - e[:, -1]]


def search(predict, x, budget, source, starts=None):
    """The search on one set, and how often it asked."""
    asked = 0

    def gaps(which, orders):
        nonlocal asked
        asked += len(orders)
        return np.abs(predict(x[np.stack(orders)]) - predict(x[None])).mean(1)

    return search_orderings(gaps, [x], budget, source, starts)[0], asked


def random_gru(case, features=2):
    torch.manual_seed(case)
    model = ao.RecurrentSetModel(features, 3, hidden=12).eval()

    @torch.no_grad()
    def predict(elements):
        return model(torch.from_numpy(elements.astype(np.float32))).double().numpy()

    return predict


# Mean over 40 models of the worst gap that the search before this one found with the same budget.
@pytest.mark.parametrize(("n", "before"), [(9, 0.14066), (24, 0.20124)])
def test_search_finds_no_less_than_before_and_more_than_chance(n, before):
    """At least as much as equally many random orderings in 95 % of cases, and more on average."""
    budget, cases, wins, found = 200, 40, 0, []
    for case in range(cases):
        source, predict = np.random.default_rng(case), random_gru(case)
        x = source.standard_normal((n, 2)).astype(np.float32)
        worst, asked = search(predict, x, budget, source)
        assert asked == worst.tried <= budget
        assert sorted(worst.order) == list(range(n))
        assert np.abs(predict(x[worst.order][None]) - predict(x[None])).mean() == pytest.approx(worst.gap, rel=1e-4)
        orders = np.array([source.permutation(n) for _ in range(budget)])
        wins += worst.gap >= np.abs(predict(x[orders]) - predict(x[None])).mean(1).max()
        found.append(worst.gap)
    assert wins >= 0.95 * cases
    assert np.mean(found) >= 0.995 * before


@pytest.mark.parametrize("n", [10, 24, 100])
@pytest.mark.parametrize(("features", "read"), [(1, slice(None)), (8, slice(None)), (8, slice(-1, None))])
def test_search_beats_chance_on_predictors_of_known_dependence(n, features, read):
    """With the default budget, of all features or of the last of eight; the random draws before it count too."""
    cases, budget, draws, wins = 6, 400, 32, 0
    for f, case in product(KINDS, range(cases)):
        source = np.random.default_rng(case)
        x = source.standard_normal((n, features))

        def predict(elements, f=f):
            return f(elements[..., read])

        first = np.array([source.permutation(n) for _ in range(draws)])
        start = first[np.abs(predict(x[first]) - predict(x[None])).mean(1).argmax()]
        worst, asked = search(predict, x, budget, source, [start])
        assert asked == worst.tried <= budget
        orders = np.array([source.permutation(n) for _ in range(budget + draws)])
        wins += worst.gap >= np.abs(predict(x[orders]) - predict(x[None])).mean(1).max() - 1e-9
    assert wins >= 0.95 * cases * len(KINDS)


@pytest.mark.parametrize("n", [2, 5, 7])
def test_search_is_exact_up_to_seven_elements(n):
    source = np.random.default_rng(n)
    x, predict = source.standard_normal((n, 2)), random_gru(n)
    worst, asked = search(predict, x, 1, source)
    every = np.abs(predict(x[np.array(list(permutations(range(n))))]) - predict(x[None])).mean(1)
    assert asked == math.factorial(n)
    assert worst.exact
    assert worst.gap == pytest.approx(every.max())
    eight = search(predict, source.standard_normal((8, 2)), 60, source)[0]
    assert (eight.exact, eight.tried) == (False, 60)


def test_a_bad_start_and_no_ordering_twice():
    """Sorted along nothing, a set of equal elements: the start is asked first, and every ordering once."""
    seen = []

    def gaps(which, orders):
        seen.extend(tuple(order.tolist()) for order in orders)
        return np.arange(len(seen) - len(orders), len(seen), dtype=float)

    start = np.array([7, 0, 1, 2, 3, 4, 5, 6])
    search_orderings(gaps, [np.zeros((8, 1))], 100, np.random.default_rng(0), [start])
    assert seen[0] == tuple(start)
    assert tuple(range(8))[::-1] in seen
    assert len(set(seen)) == len(seen) == 100


def test_search_ends_when_fewer_gaps_come_back():
    """Sets of 7 and of 50 side by side; the answers stop after 300 orderings."""

    def gaps(which, orders):
        assert [len(order) for order in orders] == np.array([7, 50])[which].tolist()
        return np.array([order[-1] for order in orders], dtype=float)[:300]

    few, many = search_orderings(gaps, [np.zeros((7, 1)), np.zeros((50, 2))], 64, np.random.default_rng(0))
    assert (few.tried, few.exact, many.tried) == (300, False, 0)
    assert few.gap == 6.0


def test_a_long_set_proposes_few_orderings_at_once():
    """The orderings of a set of 400,000 elements are not all made together."""
    sizes = []

    def gaps(which, orders):
        sizes.append(len(orders))
        return np.zeros(len(orders))

    worst = search_orderings(gaps, [np.zeros((400_000, 1))], 12, np.random.default_rng(0))[0]
    assert max(sizes) == 2
    assert worst.tried == 12
