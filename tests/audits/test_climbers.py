"""The climbers of the search for the worst ordering."""

import numpy as np

from anyorder.audits.worst_order import search_orderings


def test_the_climbers_start_from_the_worst_guesses() -> None:
    """Until a change is known to be better, every swap is one of the six guesses with the largest gaps."""
    source, read = np.random.default_rng(0), []
    weights = source.standard_normal(20)

    def evaluate(which, orders):
        read.append((orders, np.abs([weights @ order for order in orders])))
        return read[-1][1]

    search_orderings(evaluate, [source.standard_normal((20, 1))], 400, source)
    (guesses, gaps), (changes, _) = read[:2]
    swapped = [int(np.argmin((guesses != change).sum(1))) for change in changes]
    parents = [i for i, change in zip(swapped, changes, strict=True) if (guesses[i] != change).sum() == 2]
    assert len(parents) >= 4
    assert gaps[parents].min() >= np.sort(gaps)[-6]
