from collections import Counter
from itertools import permutations

import torch

from anyorder.data.orderings import random_below, random_orderings, random_partners


def chi_square(counts: Counter, cells: int, draws: int) -> float:
    expected = draws / cells
    return sum((counts.get(c, 0) - expected) ** 2 / expected for c in counts) + (cells - len(counts)) * expected


def test_orderings_are_uniform_over_a_samples_own_elements(generator) -> None:
    draws = 6000
    index = random_orderings(torch.tensor([3, 0, 4]), 4, draws, generator)
    assert (index[0, :, 3] == 3).all()
    assert (index[1] == torch.arange(4)).all()
    for row, size in ((index[0], 3), (index[2], 4)):
        counts = Counter(tuple(order[:size]) for order in row.tolist())
        cells = len(list(permutations(range(size))))
        assert len(counts) == cells
        assert chi_square(counts, cells, draws) < 2.2 * cells + 10  # far beyond the 99.9 % point


def test_orderings_within_windows_are_uniform_there_and_leave_no_window(generator) -> None:
    draws = 6000
    index = random_orderings(torch.tensor([8, 5, 0]), 8, draws, generator, within=3)
    for sample, windows in enumerate(([[0, 1, 2], [3, 4, 5], [6, 7]], [[0, 1, 2], [3, 4], [5], [6], [7]])):
        row = index[sample].tolist()
        for window in windows:
            counts = Counter(tuple(order[window[0] : window[-1] + 1]) for order in row)
            assert {*counts} == {*permutations(window)}
            assert chi_square(counts, len(counts), draws) < 2.2 * len(counts) + 10
        together = Counter(tuple(order[:5]) for order in row)  # one window's ordering says nothing of the next
        assert len(together) == (6 * 6 if sample == 0 else 6 * 2)
    assert (index[2] == torch.arange(8)).all()
    long = random_orderings(torch.tensor([70_000]), 70_000, 1, generator, within=7)[0, 0]
    assert torch.equal(long // 7, torch.arange(70_000) // 7)


def test_numbers_below_a_bound_are_uniform(generator) -> None:
    drawn = random_below(torch.full((9000,), 3), generator)
    assert chi_square(Counter(drawn.tolist()), 3, 9000) < 14
    assert random_below(torch.ones(5, dtype=torch.int64), generator).tolist() == [0] * 5


def test_draws_do_not_coarsen_with_the_default_dtype(generator) -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        drawn = random_below(torch.full((30_000,), 1000), generator)
        index = random_orderings(torch.tensor([400]), 600, 1, generator)[0, 0]
    finally:
        torch.set_default_dtype(before)
    assert len(drawn.unique()) == 1000
    assert index[400:].tolist() == list(range(400, 600))


def test_partners_skip_empty_samples_and_ones_own(generator) -> None:
    lengths = torch.tensor([2, 0, 3, 1])
    other, position = random_partners(lengths, torch.full((3000,), 2), generator)
    counts = Counter(zip(other.tolist(), position.tolist(), strict=True))
    assert set(counts) == {(0, 0), (0, 1), (3, 0)}
    assert abs(counts[(3, 0)] / 3000 - 0.5) < 0.05
