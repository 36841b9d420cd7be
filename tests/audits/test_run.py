"""The audit: known order dependence gives known figures, intervals cover, the search beats chance."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from itertools import permutations, product

import numpy as np
import pytest
import torch

import anyorder as ao
from anyorder.recurrences import known
from predictors import KNOWN, last, rng, total

MEAN_DISTANCE = 2 / math.sqrt(math.pi)  # E|a − b| of two standard normal numbers


def exact_figures(f, n):
    """Every figure for n independent fair bits, by enumeration of all sets and orderings."""
    x = np.array(list(product([0.0, 1.0], repeat=n)))[:, :, None]
    base = f(x).astype(float)

    def gap(orders):
        return float(np.mean([np.abs(f(x[:, order]) - base).mean() for order in orders]))

    def swapped(i, j):
        order = list(range(n))
        order[i], order[j] = j, i
        return order

    return {
        "output_gap": gap([list(order) for order in permutations(range(n))]),
        "by_distance": {d: gap([swapped(i, i + d) for i in range(n - d)]) for d in range(1, n)},
        "by_position": {p: gap([swapped(p, j) for j in range(n) if j != p]) for p in range(n)},
    }


@pytest.mark.parametrize("f", KNOWN)
def test_figures_equal_their_exact_values(f):
    n = 6
    truth = exact_figures(f, n)
    x = np.random.default_rng(5).integers(2, size=(400, n, 1)).astype(float)
    report = ao.audit(f, x, generator=rng(1), orderings=24)
    figures = [(report.output_gap, report.output_gap_ci, truth["output_gap"])]
    for name in ("by_distance", "by_position"):
        measured = getattr(report, name)
        assert list(measured) == list(truth[name])
        figures += [(value, value.ci, truth[name][key]) for key, value in measured.items()]
    assert report.by_size[n] == report.output_gap
    outside = 0
    for value, (low, high), expected in figures:
        assert low <= value <= high
        assert abs(value - expected) <= 1.0 * (high - low) + 1e-12  # four standard errors
        outside += not low - 1e-12 <= expected <= high + 1e-12
    assert outside <= 2  # of 12 intervals at 95 %


def test_the_last_element_in_closed_form():
    """Sets of 3, 5 and 9 normal numbers; the class is the sign of the last."""
    sizes = np.repeat([3, 5, 9], 200)
    draws = np.random.default_rng(1).standard_normal((600, 9, 1))
    report = ao.audit(
        lambda x, lengths: np.concatenate([last(x, lengths), -last(x, lengths)], axis=1),
        draws,
        sizes,
        generator=rng(3),
        labels=(last(draws, sizes)[:, 0] < 0).astype(int),
    )
    assert report.task == "classification"
    moved = np.mean([(n - 1) / n for n in (3, 5, 9)])
    assert report.output_gap_ci[0] <= MEAN_DISTANCE * moved <= report.output_gap_ci[1]
    assert report.flip_rate_ci[0] <= moved / 2 <= report.flip_rate_ci[1]
    for n in (3, 5, 9):
        low, high = report.by_size[n].ci
        assert low <= MEAN_DISTANCE * (n - 1) / n <= high
    assert report.accuracy == 1.0
    assert report.accuracy_shuffled == pytest.approx(1 - report.flip_rate)
    assert report.spread == pytest.approx(MEAN_DISTANCE, rel=0.1)
    assert report.verdict().tone == "bad"


def test_sums_are_told_to_ignore_order():
    x = torch.randint(-9, 9, (50, 8, 2), generator=rng()).float()
    report = ao.audit(total, x, generator=rng())
    assert report.output_gap == report.flip_rate == report.worst_gap == 0
    assert report.output_gap_ci == (0.0, 0.0)
    assert report.flip_rate_ci == pytest.approx((0.0, 1 - 0.025 ** (1 / 50)))
    assert set(report.by_distance.values()) == set(report.by_position.values()) == {0.0}
    assert str(report).startswith("Order does not matter.")
    rounded = ao.audit(total, torch.randn(50, 40, 1, generator=rng()), generator=rng())
    assert 0 < rounded.worst_gap < 1e-4
    assert str(rounded).startswith("Order makes no practical difference.")


def test_one_set_has_no_interval_and_nothing_to_compare_with(tmp_path):
    x = np.random.default_rng(0).standard_normal((1, 5, 1))
    report = ao.audit(last, x, generator=rng())
    assert report.output_gap_ci is report.by_size[5].ci is None
    assert str(report).startswith("Order matters. Another order moves the output by")
    assert "There is one set only, so there is no difference between sets to compare this with." in str(report)
    assert "interval" not in str(report)
    json.dumps(report.to_dict(), allow_nan=False)
    report.html(tmp_path / "one.html")
    report.plot(tmp_path / "one.png")
    page = (tmp_path / "one.html").read_text()
    assert "95 % interval –" in page
    assert not re.search(r">\s*(inf|nan|None)\b", page)
    alike = ao.audit(last, np.tile(x, (3, 1, 1)), generator=rng())
    assert "All sets get the same output, so" in str(alike)
    rounded = ao.audit(total, torch.rand(1, 10, 1, generator=rng()), generator=rng())
    assert "no practical difference" in str(rounded)
    assert "while the output itself is about" in str(rounded)
    assert report.order_gap == math.inf


def test_the_verdict_says_only_what_was_done():
    x = np.ones((6, 3, 1))
    sizes = [1, 3, 1, 2, 0, 3]
    assert "None of the 12 orderings of 3 sets changed the output." in str(
        ao.audit(total, x, sizes, orderings=4, search=0, generator=rng())
    )
    assert "and no ordering of the search, changed" in str(ao.audit(total, x, sizes, generator=rng()))
    assert str(ao.audit(total, x, np.ones(6, int), generator=rng())).startswith("There is nothing to reorder.")


def random_gru(seed, features=2):
    torch.manual_seed(seed)
    return ao.RecurrentSetModel(features, 3, hidden=12).eval()


def test_a_sample_that_always_moves_crowds_out_no_other():
    """The quiet set moves in one of its 720 orders, by far the most; the loud one a little in every order."""
    x = np.array([[3.0, 1, 4, 0, 5, 2], [10, 11, 12, 13, 14, 15]])[:, :, None]

    def predict(elements):
        quiet, reverse = elements[:, :, 0].min(1) == 10, (np.diff(elements[:, :, 0]) < 0).all(1)
        return np.where(quiet, 1e6 * reverse, 1e3 * elements[:, -1, 0])

    report = ao.audit(predict, x, generator=rng(), search=1000)
    assert report.worst_gap == 1e6
    assert [case.index for case in report.worst] == [1, 0]


def test_state_order_gap_by_prefix_length():
    """A state that is the last element: after m elements the order gap is √((m − 1)/m)."""
    keep = ao.recurrence(lambda element, state: element.clone(), start=torch.zeros(1, 2))
    report = ao.audit(keep, torch.randn(256, 6, 2, generator=rng(4)), generator=rng())
    assert report.task == "regression"
    assert list(report.state_order_gap) == [2, 3, 4, 5, 6]
    for m, value in report.state_order_gap.items():
        assert value == pytest.approx(math.sqrt((m - 1) / m), rel=0.15)
    summing = ao.audit(known.sum(), torch.randint(9, (20, 6, 1), generator=rng()).float(), generator=rng())
    assert set(summing.state_order_gap.values()) == {0.0}
    assert ao.audit(total, torch.zeros(3, 4, 1), generator=rng()).state_order_gap is None
    model = ao.audit(random_gru(0), torch.randn(20, 6, 2), torch.tensor([6, 3] * 10), generator=rng())
    assert 0 < model.state_order_gap[6] < 2
    assert model.state_order_gap[6].sets == 10


def test_state_order_gap_leaves_out_prefixes_that_are_alike():
    """After two elements all sets are in one state, and nothing to compare a gap with."""
    keep = ao.recurrence(lambda element, state: element.clone(), start=torch.zeros(1, 1))
    x = torch.randn(16, 4, 1, generator=rng())
    x[:, :2] = torch.tensor([[7.0], [3.0]])
    report = ao.audit(keep, x, generator=rng())
    assert set(report.state_order_gap) == {3, 4}
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("model", ["recurrent", "deepsets", "set-transformer"])
def test_state_order_gap_of_an_estimator_is_that_of_its_model(model):
    sets = [np.random.default_rng(i).standard_normal((3 + i % 3, 2)) for i in range(20)]
    estimator = ao.SetClassifier(model=model, epochs=1, random_state=0).fit(sets, [i % 2 for i in range(20)])
    estimator.model_.train()  # audited in evaluation mode all the same
    gaps = [ao.audit(p, sets, generator=rng(), search=0).state_order_gap for p in (estimator, estimator.predict_proba)]
    assert gaps[0] == gaps[1] == ao.audit(estimator.model_, sets, generator=rng(), search=0).state_order_gap
    assert estimator.model_.training
    assert (gaps[0] is None) == (model == "set-transformer")  # which has no states
    if gaps[0] is not None:
        assert list(gaps[0]) == [2, 3, 4, 5]
        assert (max(gaps[0].values()) > 1e-6) == (model == "recurrent")


def test_the_generator_is_the_only_randomness():
    x = torch.randn(30, 9, 2, generator=rng())
    model = random_gru(1)
    before = torch.get_rng_state()
    one = ao.audit(model, x, generator=rng(5), search=60)
    assert torch.equal(before, torch.get_rng_state())
    two, other = (ao.audit(model, x, generator=rng(seed), search=60) for seed in (5, 6))
    figures = [report.to_dict() for report in (one, two, other)]
    assert figures[0] == figures[1] != figures[2]
    torch.manual_seed(3)
    first = ao.audit(model, x, search=0).output_gap
    torch.manual_seed(3)
    assert ao.audit(model, x, search=0).output_gap == first


def test_to_dict_is_json():
    report = ao.audit(random_gru(1), torch.randn(9, 5, 2), labels=torch.zeros(9, dtype=torch.int64), generator=rng())
    figures = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert figures["by_distance"][0].keys() == {"distance", "value", "low", "high", "sets"}
    assert figures["worst_ordering"] == report.worst_ordering.tolist()
    assert figures["verdict"] == str(report)


def test_the_spread_is_the_mean_difference_of_all_pairs():
    x = np.array([0.0, 5.0, 1.0]).reshape(3, 1, 1)
    assert ao.audit(total, x, search=0, generator=rng()).spread == pytest.approx((5 + 1 + 4) / 3)


def test_regression_scores():
    x = np.random.default_rng(0).standard_normal((300, 5, 1))
    report = ao.audit(last, x, labels=x[:, -1, 0], generator=rng())
    assert report.task == "regression"
    assert report.flip_rate is None
    assert report.accuracy is None
    assert report.rmse == 0.0
    assert report.rmse_shuffled == pytest.approx(math.sqrt(2 * 4 / 5), rel=0.05)  # E(a − b)² = 2
    assert report.order_gap == pytest.approx(math.sqrt(4 / 5), rel=0.05)


def peak_memory(*arguments, **options):
    tracemalloc.start()
    try:
        ao.audit(*arguments, generator=rng(), **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_follows_neither_permutations_nor_samples():
    rows = []

    def spy(elements, lengths):
        rows.append(elements.size)
        return elements[:, -1]

    x = np.random.default_rng(0).standard_normal((2000, 50, 4)).astype(np.float32)
    few, many = (peak_memory(spy, x, orderings=orderings, search=50) for orderings in (2, 40))
    assert max(rows) <= 2_000_000
    assert many < min(1.2 * few, 40e6)


def test_memory_of_long_sets_is_that_of_a_block():
    """Ten sets, one of 1,000 numbers and nine of 7 whose orderings are all tried."""
    x = np.random.default_rng(0).standard_normal((10, 1000, 1))
    sizes = np.array([1000, *[7] * 9])
    assert peak_memory(last, x, sizes, orderings=2, search=400) < 30e6


def test_sets_that_cannot_be_reordered():
    report = ao.audit(last, np.ones((3, 1, 1)), labels=np.ones(3), generator=rng())
    assert report.output_gap == report.worst_gap == 0
    assert report.worst_set is None
    assert report.by_distance == {}
    assert report.rmse == report.rmse_shuffled == 0
    mixed = ao.audit(total, np.ones((4, 3, 1)), [1, 3, 1, 2], labels=np.zeros(4), generator=rng())
    assert mixed.rmse == mixed.rmse_shuffled == pytest.approx(math.sqrt(15 / 4))  # the padding does not count
    assert mixed.notes == ["2 of 4 sets have no two elements to reorder. Their change is 0."]
    empty = ao.audit(lambda e, n: np.asarray(n, float), np.ones((2, 3, 1)), [0, 3], generator=rng())
    assert empty.by_size.keys() == {0, 3}


def test_many_sizes_are_grouped():
    sizes = np.arange(2, 62)
    x = np.random.default_rng(0).standard_normal((60, 61, 1))
    report = ao.audit(last, x, sizes, generator=rng(), search=0)
    assert len(report.by_size) <= 24
    assert min(report.by_size) == 2
    assert sum(value.sets for value in report.by_size.values()) == 60
    assert min(report.by_distance) == 1
    assert max(report.by_distance) == 60


# Comparison


def test_a_comparison_uses_the_same_orderings_and_marks_the_choices():
    x = np.random.default_rng(0).standard_normal((80, 5, 1))
    labels = (x.sum(1)[:, 0] > 0).astype(int)

    def scores(value):
        return np.concatenate([-value, value], axis=1)

    models = {
        "sum": lambda e: scores(e.sum(1)),
        "last": lambda e: scores(e[:, -1]),
        "again": lambda e: scores(e[:, -1]),
    }
    comparison = ao.audit(models, x, labels=labels, generator=rng(), orderings=8)
    assert comparison["last"].output_gap == comparison["again"].output_gap
    rows = {row["model"]: row for row in comparison.table()}
    assert [rows[name]["choice"] for name in models] == [True, False, False]
    assert (rows["sum"]["metric"], rows["sum"]["score"]) == ("accuracy", 1.0)
    lines = str(comparison).splitlines()
    assert [line.split()[0] for line in lines] == ["model", "sum", "last", "again"]
    assert lines[1].split()[-1] == "choice"
    assert not lines[2].endswith("choice")
    json.dumps(comparison.to_dict(), allow_nan=False)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_smaller_error_and_a_smaller_order_gap_are_better(labelled):
    x = np.random.default_rng(0).standard_normal((80, 5, 1))
    models = {"good": total, "poor": lambda e: 2 * total(e), "last": last}
    labels = x.sum(1) if labelled else None
    rows = {row["model"]: row for row in ao.audit(models, x, labels=labels, search=0, generator=rng()).table()}
    assert rows["good"]["metric"] == "rmse"
    assert [rows[name]["choice"] for name in models] == [True, not labelled, False]
    assert (rows["good"]["score"] is None) == (not labelled)


def test_a_small_difference_is_no_choice():
    """66.7 % against 65 % on 60 sets: both are a choice. 66.7 % against 30 %: one is."""
    x = np.arange(60.0).reshape(60, 1, 1).repeat(4, axis=1)
    labels = np.ones(60, int)
    models = {f"{n}": lambda e, n=n: np.stack([e[:, 0, 0] >= n, e[:, 0, 0] < n], 1) for n in (40, 39, 18)}
    comparison = ao.audit(models, x, labels=labels, search=0, generator=rng())
    rows = {row["model"]: row for row in comparison.table()}
    assert [round(row["score"], 3) for row in rows.values()] == [0.667, 0.65, 0.3]
    assert [row["choice"] for row in rows.values()] == [True, True, False]
    assert rows["40"]["score_ci"][0] < 0.65 < rows["40"]["score_ci"][1]
    assert rows["40"]["order_gap_ci"] == (0.0, 0.0)
