"""Tasks: labels against plain Python on random sets, samplers, metrics."""

from __future__ import annotations

import statistics

import pytest
import torch

from anyorder.paper.data.tasks import TASKS, splits

IN_PLAIN_PYTHON = {
    "parity": lambda x: sum(x) % 2,
    "mod-3": lambda x: sum(x) % 3,
    "sum": sum,
    "range": lambda x: max(x) - min(x),
    "variance": statistics.pvariance,
    "half-range": lambda x: max(x[: len(x) // 2]) - min(x[len(x) // 2 :]),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("n", [2, 7, (2, 9)])
def test_labels_are_what_plain_python_says(name, n):
    assert set(IN_PLAIN_PYTHON) == set(TASKS)
    data = TASKS[name].sample(50, n, alphabet=12, generator=seeded())
    for i in range(len(data)):
        values = data.elements[data.offsets[i] : data.offsets[i + 1], 0].tolist()
        assert data.targets[i].item() == pytest.approx(IN_PLAIN_PYTHON[name](values), rel=1e-6)


def test_sampler_covers_alphabet_and_sizes_evenly():
    data = TASKS["sum"].sample(6000, (2, 4), alphabet=5, generator=seeded())
    shares = torch.bincount(data.elements[:, 0], minlength=5) / len(data.elements)
    assert torch.allclose(shares, torch.full((5,), 0.2), atol=0.02)
    sizes = torch.bincount(data.lengths, minlength=5)[2:] / len(data)
    assert torch.allclose(sizes, torch.full((3,), 1 / 3), atol=0.03)


def test_splits_depend_on_name_and_seed_and_a_smaller_one_is_part_of_a_larger():
    few = splits(TASKS["sum"], {"train": 30, "test": 50}, 6, alphabet=20, seed=3)
    many = splits(TASKS["sum"], {"train": 300}, 6, alphabet=20, seed=3)
    other = splits(TASKS["sum"], {"train": 300}, 6, alphabet=20, seed=4)
    assert torch.equal(few["train"].elements, many["train"].elements[: 30 * 6])
    assert not torch.equal(few["test"].elements[: 30 * 6], few["train"].elements)
    assert not torch.equal(other["train"].elements, many["train"].elements)


def test_metrics_of_each_kind():
    outputs, targets = torch.tensor([[1.4], [2.6], [3.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    figures = TASKS["sum"].metrics(outputs, targets)
    assert figures["accuracy"] == pytest.approx(2 / 3)
    assert figures["mae"] == pytest.approx(1 / 3)
    assert figures["rmse"] == pytest.approx((0.52 / 3) ** 0.5)
    assert "accuracy" not in TASKS["variance"].metrics(outputs, targets)
    logits = torch.tensor([[2.0], [-1.0], [0.5]])
    assert TASKS["parity"].metrics(logits, torch.tensor([[1.0], [0.0], [0.0]]))["accuracy"] == pytest.approx(2 / 3)


def test_losses_are_those_of_the_paper():
    outputs, targets = torch.tensor([[3.0], [1.0]]), torch.tensor([[1.0], [1.0]])
    assert TASKS["sum"].loss(outputs, targets).item() == 1.0
    assert TASKS["parity"].loss(torch.zeros(2, 1), targets).item() == pytest.approx(0.6931, abs=1e-4)
