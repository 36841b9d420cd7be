"""The audit: known order dependence gives known figures, intervals cover, the search beats chance."""

from __future__ import annotations

import importlib
import json
import math
import re
import time
import tracemalloc
from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder.audits.intervals import bootstrap_interval, rate_interval
from anyorder.audits.worst_order import search_orderings
from anyorder.recurrences import known

MEAN_DISTANCE = 2 / math.sqrt(math.pi)  # E|a − b| of two standard normal numbers


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def total(elements, lengths=None):
    return elements.sum(1)


def last(elements, lengths=None):
    if lengths is None:
        return elements[:, -1]
    return elements[np.arange(len(elements)), np.asarray(lengths) - 1]


def half_range(elements, lengths=None):
    half = elements.shape[1] // 2
    return elements[:, :half].max(1) - elements[:, half:].min(1)


def last_three(elements, lengths=None):
    return elements[:, -3:].sum(1)


def rises_within_two(elements, lengths=None):
    """How many elements exceed one of the two before them: order beyond the window is never seen."""
    one, two = elements[:, 1:] > elements[:, :-1], elements[:, 2:] > elements[:, :-2]
    return one.sum(1) + two.sum(1)


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


@pytest.mark.parametrize("f", [total, last, half_range, last_three, rises_within_two])
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
    draws = np.random.default_rng(0).standard_normal((600, 9, 1))
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
    assert {(a, b) for a, b, _ in report.flips} == {("0", "1"), ("1", "0")}
    assert sum(rate for *_, rate in report.flips) == pytest.approx(report.flip_rate)
    assert report.spread == pytest.approx(MEAN_DISTANCE, rel=0.1)
    assert report.verdict().tone == "bad"


def test_a_window_limits_the_distance_curve():
    """Only the last w = 3 of 12 elements count: a swap d apart is felt if it crosses the border."""
    n, w = 12, 3
    x = np.random.default_rng(1).standard_normal((256, n, 1))
    report = ao.audit(lambda e: e[:, -w:].sum(1), x, generator=rng(0), orderings=8, search=0)
    for d, value in report.by_distance.items():
        crossing = sum(1 for i in range(n - d) if i < n - w <= i + d)
        assert value == pytest.approx(MEAN_DISTANCE * crossing / (n - d), rel=0.35)
    inside = np.mean([report.by_position[p] for p in range(n - w, n)])
    outside = np.mean([report.by_position[p] for p in range(n - w)])
    assert inside == pytest.approx(MEAN_DISTANCE * (n - w) / (n - 1), rel=0.1)
    assert outside == pytest.approx(MEAN_DISTANCE * w / (n - 1), rel=0.1)


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


def test_intervals_cover_the_truth():
    """200 repetitions at nominal 95 %: output gap and flip rate of a model that reads the last element."""
    n, covered, flips_covered, distances = 5, 0, 0, []
    source = np.random.default_rng(11)
    for repetition in range(200):
        x = source.standard_normal((60, n, 1))
        report = ao.audit(
            lambda e: np.concatenate([e[:, -1], -e[:, -1]], axis=1),
            x,
            orderings=6,
            search=0,
            generator=rng(repetition),
        )
        low, high = report.output_gap_ci
        covered += low <= MEAN_DISTANCE * (n - 1) / n <= high
        low, high = report.flip_rate_ci
        flips_covered += low <= (n - 1) / n / 2 <= high
        low, high = report.by_distance[1].ci
        distances.append(low <= MEAN_DISTANCE / (n - 1) <= high)
    for count in (covered, flips_covered, sum(distances)):
        assert 180 <= count <= 198


def test_the_interval_of_rare_flips_covers_the_truth_too():
    """The class is whether the last of four numbers exceeds 0.98: a fifth of such audits of 20 sets see no flip."""
    truth = 2 * 0.02 * 0.98 * 3 / 4
    covered, unseen = 0, 0
    for repetition in range(100):
        x = torch.rand(20, 4, 1, generator=rng(repetition))
        report = ao.audit(lambda e: e[:, -1] > 0.98, x, task="classification", search=0, generator=rng(repetition))
        low, high = report.flip_rate_ci
        assert low < high
        covered += low <= truth <= high
        unseen += report.flip_rate == 0
    assert unseen >= 10
    assert covered >= 90


@pytest.mark.parametrize(("rate", "expected"), [(0.0, (0.0, 0.1684)), (1.0, (0.8316, 1.0)), (0.5, (0.4158, 0.5842))])
def test_equal_rates_have_exact_bounds(rate, expected):
    assert rate_interval(np.full(20, rate), np.random.default_rng(0)) == pytest.approx(expected, abs=1e-4)


def test_one_set_has_no_interval_and_nothing_to_compare_with(tmp_path):
    x = np.random.default_rng(0).standard_normal((1, 5, 1))
    report = ao.audit(last, x, generator=rng())
    assert report.output_gap_ci is report.by_size[5].ci is None
    assert str(report).startswith("Order matters. A random order moves the output by")
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
    assert "nothing to compare the effect of order with" in str(ao.audit({"last": last}, x, generator=rng()))


def test_the_verdict_says_only_what_was_done():
    x = np.ones((6, 3, 1))
    sizes = [1, 3, 1, 2, 0, 3]
    assert "None of the 12 random orderings of 3 sets changed the output at all." in str(
        ao.audit(total, x, sizes, orderings=4, search=0, generator=rng())
    )
    assert "and no ordering of the search, changed" in str(ao.audit(total, x, sizes, generator=rng()))
    assert str(ao.audit(total, x, np.ones(6, int), generator=rng())).startswith("There is nothing to reorder.")
    report = ao.audit(last, torch.randn(2000, 30, 1), orderings=10000, seconds=0.05, search=0, generator=rng())
    assert report.orderings < 10000
    assert {case.tried for case in report.worst} == {report.orderings}


def test_bootstrap_of_a_mean_agrees_with_theory():
    values = np.random.default_rng(0).standard_normal(400)
    low, high = bootstrap_interval(values, np.random.default_rng(1), 4000)
    error = values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=error / 5)


def test_values_too_large_to_square_have_no_interval():
    assert bootstrap_interval(np.array([0.0, 1e300, 2e300]), np.random.default_rng(0)) is None


def random_gru(seed, features=2):
    torch.manual_seed(seed)
    return ao.RecurrentSetModel(features, 3, hidden=12).eval()


@pytest.mark.parametrize("n", [9, 24])
def test_search_finds_worse_orderings_than_chance(n):
    """At least as bad as the best of equally many random orderings in 95 % of cases, and worse on average."""
    budget, cases, wins, gains = 200, 40, 0, []
    for case in range(cases):
        source = np.random.default_rng(case)
        x = source.standard_normal((n, 2)).astype(np.float32)
        model = random_gru(case)

        def gaps(which, orders, x=x, model=model):
            with torch.no_grad():
                outputs = model(torch.from_numpy(x[orders]))
                return (outputs - model(torch.from_numpy(x)[None])).abs().mean(1).double().numpy()

        found = search_orderings(gaps, [x], budget, source)[0]
        assert found.tried <= budget
        assert sorted(found.order) == list(range(n))
        chance = gaps(None, np.array([source.permutation(n) for _ in range(budget)])).max()
        wins += found.gap >= chance
        gains.append(found.gap / chance)
    assert wins >= 0.95 * cases
    assert np.mean(gains) > 1.05


def first_minus_last(elements):
    return elements[:, 0] - elements[:, -1]


KINDS = [total, last, first_minus_last, half_range, last_three, rises_within_two]


@pytest.mark.parametrize("n", [10, 24, 100])
@pytest.mark.parametrize(("features", "read"), [(1, "all"), (8, "all"), (8, "last")])
def test_search_beats_chance_on_predictors_of_known_dependence(n, features, read):
    """With the default budget, of all features or of the last of eight; the random draws before it count as well."""
    cases, budget, draws = 6, 400, 32
    wins = 0
    for f, case in product(KINDS, range(cases)):
        source = np.random.default_rng(case)
        x = source.standard_normal((n, features))
        seen = slice(None) if read == "all" else slice(-1, None)

        def gaps(which, orders, f=f, x=x, seen=seen):
            return np.abs(f(x[orders][..., seen]) - f(x[None][..., seen])).mean(1)

        first = np.array([source.permutation(n) for _ in range(draws)])
        start = first[gaps(None, first).argmax()]
        found = search_orderings(gaps, [x], budget, source, starts=[start])[0]
        assert found.tried <= budget
        chance = gaps(None, np.array([source.permutation(n) for _ in range(budget + draws)])).max()
        wins += found.gap >= chance - 1e-9
    assert wins >= 0.95 * cases * len(KINDS)


def test_search_stops_within_a_block_and_holds_hashes_only():
    """Enumeration too: 5,040 orderings are asked for in blocks, and none after time is up."""
    calls = []

    def gaps(which, orders):
        calls.append(orders.shape)
        return orders[:, -1].astype(float)

    sets = [np.zeros((7, 1)), np.zeros((50, 2))]
    rooms = {7: 100, 50: 5}
    early = search_orderings(
        gaps, sets, 64, np.random.default_rng(0), expired=lambda: len(calls) == 3, room=rooms.__getitem__
    )
    assert calls == [(100, 7)] * 3
    assert (early[0].tried, early[0].exact, early[1].tried) == (300, False, 0)
    calls.clear()
    whole = search_orderings(gaps, sets, 64, np.random.default_rng(0), room=rooms.__getitem__)
    assert sum(shape[0] for shape in calls) == math.factorial(7) + 64
    assert max(rows for rows, width in calls if width == 50) == 5
    assert whole[0].exact
    assert {len(key) for key in whole[1].seen} == {12}


@pytest.mark.parametrize("n", [2, 5, 7])
def test_search_is_exact_up_to_seven_elements(n):
    x = torch.randn(6, n, 2, generator=rng(n))
    model = random_gru(n)
    report = ao.audit(model, x, generator=rng(), orderings=4, search_sets=3)
    assert len(report.worst) == 3
    orders = torch.tensor(list(permutations(range(n))))
    for case in report.worst:
        assert case.exact
        with torch.no_grad():
            every = (model(x[case.sample][orders]) - model(x[case.sample][None])).abs().mean(1)
        assert case.gap == pytest.approx(every.max().item(), rel=1e-4)
    with torch.no_grad():
        chosen = model(x[report.worst_set][report.worst_ordering][None]) - model(x[[report.worst_set]])
    assert chosen.abs().mean().item() == pytest.approx(report.worst_gap, rel=1e-4)


def test_the_worst_of_all_samples_is_reported():
    x = np.random.default_rng(2).standard_normal((30, 10, 1))
    x[17, 3] = 100.0
    report = ao.audit(last, x, generator=rng())
    assert report.worst_set == 17
    assert report.worst_ordering[-1] == 3
    assert report.worst_gap == pytest.approx(abs(100 - x[17, -1, 0]))


def test_a_sample_that_always_moves_crowds_out_no_other():
    """The quiet set moves in one of its 720 orders, by far the most; the loud one a little in every order."""
    x = np.array([[3.0, 1, 4, 0, 5, 2], [10, 11, 12, 13, 14, 15]])[:, :, None]

    def predict(elements):
        quiet, reverse = elements[:, :, 0].min(1) == 10, (np.diff(elements[:, :, 0]) < 0).all(1)
        return np.where(quiet, 1e6 * reverse, 1e3 * elements[:, -1, 0])

    report = ao.audit(predict, x, generator=rng(), search=1000)
    assert report.worst_gap == 1e6
    assert [case.sample for case in report.worst] == [1, 0]


def test_state_gap_by_prefix_length():
    """A state that is the last element: after m elements the relative gap is (m − 1)/m."""
    keep = ao.recurrence(lambda element, state: element.clone(), start=torch.zeros(1, 2))
    report = ao.audit(keep, torch.randn(256, 6, 2, generator=rng(4)), generator=rng())
    assert report.task == "regression"
    assert list(report.state_gap) == [2, 3, 4, 5, 6]
    for m, value in report.state_gap.items():
        assert value == pytest.approx((m - 1) / m, rel=0.2)
    summing = ao.audit(known.sum(), torch.randint(9, (20, 6, 1), generator=rng()).float(), generator=rng())
    assert set(summing.state_gap.values()) == {0.0}
    assert ao.audit(total, torch.zeros(3, 4, 1), generator=rng()).state_gap is None
    model = ao.audit(random_gru(0), torch.randn(20, 6, 2), torch.tensor([6, 3] * 10), generator=rng())
    assert 0 < model.state_gap[6] < 2
    assert model.state_gap[6].sets == 10


@pytest.mark.parametrize(("first", "prefixes"), [(3.0, {2, 3, 4}), (0.0, {3, 4})])
def test_state_gap_of_sets_that_begin_alike(first, prefixes):
    """After two elements all sets are in one state: what moves there is held against its rounding error."""
    keep = ao.recurrence(lambda element, state: element.clone(), start=torch.zeros(1, 1))
    x = torch.randn(16, 4, 1, generator=rng())
    x[:, :2] = torch.tensor([[7.0], [first]])
    report = ao.audit(keep, x, generator=rng())
    assert set(report.state_gap) == prefixes
    assert 0 < max(report.state_gap.values()) < 1e16
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("model", ["recurrent", "deepsets", "set-transformer"])
def test_state_gap_of_an_estimator_is_that_of_its_model(model):
    sets = [np.random.default_rng(i).standard_normal((3 + i % 3, 2)) for i in range(20)]
    estimator = ao.SetClassifier(model=model, epochs=1, random_state=0).fit(sets, [i % 2 for i in range(20)])
    estimator.model_.train()  # audited in evaluation mode all the same
    gaps = [ao.audit(p, sets, generator=rng(), search=0).state_gap for p in (estimator, estimator.predict_proba)]
    assert gaps[0] == gaps[1] == ao.audit(estimator.model_, sets, generator=rng(), search=0).state_gap
    assert estimator.model_.training
    assert (gaps[0] is None) == (model == "set-transformer")  # which has no states
    if gaps[0] is not None:
        assert list(gaps[0]) == [2, 3, 4, 5]
        assert (max(gaps[0].values()) > 1e-9) == (model == "recurrent")


def test_predict_gets_the_kind_of_array_it_was_given():
    seen = []

    def spy(elements, lengths):
        seen.append((type(elements), elements.dtype, type(lengths)))
        return elements[:, 0, 0]

    x = np.zeros((4, 3, 2), dtype=np.float32)
    ao.audit(spy, x, generator=rng())
    ao.audit(spy, x, np.array([3, 2, 1, 3]), generator=rng())
    ao.audit(spy, torch.zeros(4, 3, 2, dtype=torch.int64), generator=rng())
    ao.audit(spy, torch.zeros(4, 3, 2), torch.tensor([3, 2, 1, 3]), generator=rng())
    ao.audit(spy, [x[0], x[1, :2]], generator=rng())
    none = type(None)
    assert list(dict.fromkeys(seen)) == [
        (np.ndarray, np.float32, none),
        (np.ndarray, np.float32, np.ndarray),
        (torch.Tensor, torch.int64, none),
        (torch.Tensor, torch.float32, torch.Tensor),
    ]


def test_a_module_behind_a_wrapper_is_asked_what_it_takes():
    class Total(nn.Module):
        def forward(self, elements):
            return elements.sum(1)

    x = np.random.default_rng(0).standard_normal((3, 4, 1))
    for wrapped in (torch.compile(Total(), backend="eager"), nn.DataParallel(Total())):
        assert ao.audit(wrapped, x, [4, 2, 3], orderings=4).output_gap < 1e-6


def test_a_module_gets_tensors_whatever_was_given():
    class MaskedSum(nn.Module):
        def forward(self, elements, lengths):
            inside = torch.arange(elements.shape[1]) < lengths.unsqueeze(1)
            return (elements * inside[:, :, None]).sum(1)

    x = np.random.default_rng(0).standard_normal((3, 4, 1))
    for sets in ((x, [4, 2, 3]), ([x[0], x[1, :2], x[2, :3]],)):
        assert ao.audit(MaskedSum(), *sets, generator=rng()).worst_gap < 1e-9


def test_a_function_of_elements_alone_gets_sets_of_one_size_or_a_list():
    sizes = set()

    def mean(elements):
        sizes.add(elements.shape[1])
        return elements.mean(1)

    x = torch.arange(24.0).reshape(3, 8, 1)
    x[0, 2:] = float("nan")  # padding must not be read
    report = ao.audit(mean, x, torch.tensor([2, 5, 8]), generator=rng())
    assert sizes == {2, 5, 8}
    assert report.worst_gap < 1e-5
    listed = ao.audit(lambda sets: [float(s.sum()) for s in sets], [np.ones((3, 1)), np.ones((1, 1))], generator=rng())
    assert listed.output_gap == 0
    assert listed.notes == ["1 of 2 sets have fewer than two elements; their gap is 0."]


class Estimator:
    """The last element decides; classes are names."""

    classes_ = np.array(["low", "high"])

    def predict_proba(self, sets, orderings=1):
        p = np.array([1 / (1 + math.exp(-s[-1, 0])) for s in sets])
        return np.stack([1 - p, p], axis=1)

    def predict(self, sets):
        return self.classes_[self.predict_proba(sets).argmax(1)]


def test_estimators_with_and_without_probabilities():
    sets = [np.random.default_rng(i).standard_normal((3 + i % 4, 1)) for i in range(40)]
    labels = Estimator().predict(sets)
    report = ao.audit(Estimator(), sets, labels=labels, generator=rng())
    assert report.accuracy == 1.0
    assert {a for a, *_ in report.flips} == {"low", "high"}

    class Hard:
        classes_ = Estimator.classes_

        def predict(self, sets):
            return Estimator().predict(sets)

    hard = ao.audit(Hard(), sets, labels=labels, generator=rng())
    assert hard.task == "classification"
    assert hard.flip_rate == report.flip_rate
    assert hard.output_gap == pytest.approx(hard.flip_rate)  # one column a class, two change by 1 of 2
    bound = ao.audit(Estimator().predict_proba, sets, generator=rng())
    assert bound.output_gap == report.output_gap


def test_an_onnx_session():
    onnx = pytest.importorskip("onnx", reason="needs the extra: pip install anyorder[onnx]")
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra: pip install anyorder[onnx]")
    kind, helper = onnx.TensorProto, onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Gather", ["elements", "at"], ["output"], axis=1)],
        "last",
        [helper.make_tensor_value_info("elements", kind.FLOAT, ["B", "T", 1])],
        [helper.make_tensor_value_info("output", kind.FLOAT, ["B", 1])],
        [helper.make_tensor("at", kind.INT64, [], [-1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((20, 5, 1)).astype(np.float32)
    report = ao.audit(session, x, generator=rng())
    assert report.output_gap == pytest.approx(ao.audit(last, x, generator=rng()).output_gap, rel=1e-6)


def test_the_step_and_the_readout_of_an_export_say_what_to_pass_instead(tmp_path):
    pytest.importorskip("onnxscript", reason="needs the extra: pip install anyorder[onnx]")
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra: pip install anyorder[onnx]")
    from anyorder.deploy.onnx import export_onnx

    paths = export_onnx(ao.RecurrentSetModel(1, 2, hidden=4), tmp_path / "m.onnx")[:2]
    for path, part in zip(paths, (r"one step .* \(it takes element, state_0\)", "the read-out"), strict=True):
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        with pytest.raises(ao.checks.InputError, match=rf"is {part} .*pass the model itself \(anyorder.load"):
            ao.audit(session, np.zeros((4, 3, 1), np.float32))


def test_modules_are_asked_in_evaluation_mode_and_get_their_mode_back():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 2))
    model[1].train()
    model[2].eval()
    report = ao.audit(model, torch.randn(10, 4, 1), generator=rng())
    assert not report.random
    assert model[1].training
    assert not model[2].training
    numpy = ao.audit(model, np.random.default_rng(0).standard_normal((10, 4, 1)), generator=rng())
    assert numpy.output_gap > 0


def test_the_generator_is_the_only_randomness():
    x = torch.randn(30, 9, 2, generator=rng())
    model = random_gru(1)
    before = torch.get_rng_state()
    one = ao.audit(model, x, generator=rng(5), search=60)
    assert torch.equal(before, torch.get_rng_state())
    two, other = (ao.audit(model, x, generator=rng(seed), search=60) for seed in (5, 6))
    drop = ("seconds",)
    figures = [{k: v for k, v in r.to_dict().items() if k not in drop} for r in (one, two, other)]
    assert figures[0] == figures[1] != figures[2]
    torch.manual_seed(3)
    first = ao.audit(model, x, search=0).output_gap
    torch.manual_seed(3)
    assert ao.audit(model, x, search=0).output_gap == first


def test_to_dict_is_json():
    report = ao.audit(random_gru(1), torch.randn(9, 5, 2), labels=torch.zeros(9, dtype=torch.int64), generator=rng())
    figures = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert figures["by_distance"][0].keys() == {"distance", "gap", "low", "high", "samples"}
    assert figures["worst_ordering"] == report.worst_ordering.tolist()
    assert figures["verdict"] == str(report)


def test_one_column_classification():
    x = np.random.default_rng(0).standard_normal((50, 5, 1))
    probability = ao.audit(lambda e: 1 / (1 + np.exp(-e[:, -1])), x, task="classification", generator=rng())
    score = ao.audit(lambda e: e[:, -1], x, task="classification", generator=rng())
    hard = ao.audit(lambda e: e[:, -1, 0] > 0, x, task="classification", labels=x[:, -1, 0] > 0, generator=rng())
    assert probability.flip_rate == score.flip_rate == hard.flip_rate > 0.2
    assert hard.accuracy == 1.0
    named = ao.audit(lambda e: np.where(e[:, -1, 0] > 0, "up", "down"), x, class_names=["down", "up"], generator=rng())
    assert named.task == "classification"
    assert named.flip_rate == hard.flip_rate


def test_regression_scores():
    x = np.random.default_rng(0).standard_normal((300, 5, 1))
    report = ao.audit(last, x, labels=x[:, -1, 0], generator=rng())
    assert report.task == "regression"
    assert report.flip_rate is None
    assert report.accuracy is None
    assert report.rmse == 0.0
    assert report.rmse_shuffled == pytest.approx(math.sqrt(2 * 4 / 5), rel=0.05)  # E(a − b)² = 2


def test_time_budget_is_kept_and_told():
    def slow(elements, lengths):
        time.sleep(0.02)
        return elements[:, -1]

    begin = time.monotonic()
    report = ao.audit(slow, torch.randn(200, 30, 1), orderings=5000, batch_size=100, seconds=1.0, generator=rng())
    assert time.monotonic() - begin < 2.5
    assert 1 <= report.orderings < 5000
    assert any("time budget ended the random orderings" in note for note in report.notes)
    hurried = ao.audit(slow, torch.randn(20, 5, 1), seconds=1e-9, generator=rng())
    assert hurried.orderings >= 1
    assert hurried.worst_gap > 0


def test_a_curve_that_was_cut_is_told_of(monkeypatch):
    """Every question takes a second of a clock of its own: both curves end with some points measured."""
    monkeypatch.setattr(
        importlib.import_module("anyorder.audits.asking"), "time", SimpleNamespace(monotonic=lambda: now[0])
    )
    now = [0]

    def slow(elements):
        now[0] += 1
        return elements[:, -1]

    for seconds, cut in ((16, True), (1000, False)):
        report = ao.audit(slow, torch.randn(10, 6, 1), orderings=4, seconds=seconds, search=0, generator=rng())
        assert report.by_distance
        assert report.by_position
        for kind in ("distance", "position"):
            assert (f"The time budget cut the swaps by {kind} short." in report.notes) == cut


@pytest.mark.parametrize(("samples", "size", "batch_size"), [(20, 7, None), (3000, 10, None), (8, 40, 5), (400, 3, 1)])
def test_the_time_budget_is_kept_to_within_one_block(monkeypatch, samples, size, batch_size):
    """Every row takes a second of a clock of its own; what is still asked when time is up is one block at most."""
    monkeypatch.setattr(
        importlib.import_module("anyorder.audits.asking"), "time", SimpleNamespace(monotonic=lambda: now[0])
    )
    now, blocks, x = [0], [], np.random.default_rng(0).standard_normal((samples, size, 1))

    def slow(elements):
        now[0] += len(elements)
        blocks.append(len(elements))
        return elements[:, -1]

    for seconds in (300, 1500, 6000):
        now[0] = 0
        blocks.clear()
        report = ao.audit(slow, x, seconds=seconds, batch_size=batch_size, generator=rng())
        assert now[0] <= seconds + max(blocks)
        assert max(blocks) <= seconds / 4
        assert report.worst_gap > 0
        assert len(report.set_gaps) == len(report.sizes) == report.sets
        part = f"The time budget was enough for {report.sets:,} of {samples:,} sets, drawn at random"
        assert (report.sets < samples) == any(part in note for note in report.notes)
    assert (report.sets == samples) == (samples < 3000)


def test_the_part_of_the_sets_that_a_time_budget_allows_is_random(monkeypatch):
    """The first half of the sets have one element and the other half move: a part of them shows both alike."""
    monkeypatch.setattr(
        importlib.import_module("anyorder.audits.asking"), "time", SimpleNamespace(monotonic=lambda: now[0])
    )
    now, x = [0], np.random.default_rng(0).standard_normal((2000, 5, 1))
    sizes = np.repeat([1, 5], 1000)

    def slow(elements, lengths):
        now[0] += 1
        return last(elements, lengths)

    for seconds in (10, 30):  # ends within the first random orderings, or within the given order
        now[0] = 0
        report = ao.audit(slow, x, sizes, seconds=seconds, batch_size=50, generator=rng())
        assert 50 <= report.sets < 1000
        assert (report.sizes == sizes[report.audited]).all()
        assert 0.3 < (report.sizes == 5).mean() < 0.7
        assert report.sizes[report.audited == report.worst_set] == [5]
        assert report.output_gap == pytest.approx(MEAN_DISTANCE * 4 / 5 / 2, rel=0.4)


def test_memory_follows_neither_permutations_nor_samples():
    rows = []

    def spy(elements, lengths):
        rows.append(elements.size)
        return elements[:, -1]

    x = np.random.default_rng(0).standard_normal((2000, 50, 4)).astype(np.float32)
    peaks = [peak_memory(lambda p=p: ao.audit(spy, x, orderings=p, search=50, generator=rng())) for p in (2, 40)]
    assert max(rows) <= 2_000_000
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 40e6


def peak_memory(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("others", [5000, 7])
def test_memory_of_long_sets_is_that_of_a_block(others):
    """Ten sets of 5,000 numbers, or one and nine of 7 whose orderings are all tried: 0.4 MB of data."""
    x = np.random.default_rng(0).standard_normal((10, 5000, 1))
    sizes = np.array([5000, *[others] * 9])
    options = {"orderings": 2, "search": 400, "search_sets": 4}
    assert peak_memory(lambda: ao.audit(last, x, sizes, generator=rng(), **options)) < 30e6


def test_memory_grows_with_a_set_and_not_with_its_orderings():
    """Ten times as long sets, beyond the size of a block: no more than ten times the memory, few copies of a set."""
    peaks = []
    for size in (100_000, 1_000_000):
        x = [np.random.default_rng(0).standard_normal((size, 1)), *np.zeros((20, 3, 1))]
        peaks.append(
            peak_memory(
                lambda x=x: ao.audit(
                    lambda e, n: e[np.arange(len(e)), n - 1], x, search=8, orderings=2, generator=rng()
                )
            )
        )
    assert peaks[1] < 30 * 8e6
    assert peaks[1] < 10 * peaks[0]


def test_a_list_is_padded_only_as_far_as_each_batch_needs():
    """999 sets of 3 and one of 5,000 numbers are 64 KB, and 40 MB if all are padded to the longest."""
    sets = [np.random.default_rng(i).standard_normal((3, 1)) for i in range(999)]
    sets.append(np.random.default_rng(0).standard_normal((5000, 1)))
    asked = []

    def spy(elements, lengths):
        asked.append(elements.size)
        return last(elements, lengths)

    assert peak_memory(lambda: ao.audit(spy, sets, orderings=2, search=10, generator=rng())) < 30e6
    assert sum(asked) < 20 * sum(map(len, sets)) * 10


def test_a_list_and_a_padded_array_give_the_same_figures():
    x = np.random.default_rng(0).standard_normal((40, 30, 2))
    sizes = np.random.default_rng(1).integers(1, 31, 40)
    padded = ao.audit(last, x, sizes, generator=rng(), orderings=9, search=40)
    listed = ao.audit(last, [row[:n] for row, n in zip(x, sizes, strict=True)], generator=rng(), orderings=9, search=40)
    blocks = ao.audit(last, x, sizes, generator=rng(), orderings=9, search=40, batch_size=7)
    figures = [
        {k: v for k, v in r.to_dict().items() if k not in ("seconds", "evaluations")} for r in (padded, listed, blocks)
    ]
    assert figures[0] == figures[1] == figures[2]


def test_progress_is_shown_when_asked_for(capsys):
    ao.audit(last, torch.randn(20, 5, 1), progress=True, generator=rng())
    shown = capsys.readouterr()
    assert "orderings" in shown.err
    assert shown.out == ""
    ao.audit(last, torch.randn(20, 5, 1), generator=rng())
    assert capsys.readouterr().err == ""


# Bad input


def test_nan_names_the_sample_and_the_order():
    x = np.arange(12.0).reshape(3, 4, 1)
    with pytest.raises(ao.checks.InputError, match="NaN or an infinite value for sample 1 as given"):
        ao.audit(lambda e: np.where(e[:, -1] == 7, np.nan, e[:, -1]), x, generator=rng())
    with pytest.raises(ao.checks.InputError, match=r"for sample \d in the order \[\d, \d, \d, 0\]"):
        ao.audit(lambda e: np.where(e[:, -1] % 4 == 0, np.inf, e[:, -1]), x, generator=rng())


@pytest.mark.parametrize(
    ("predict", "message"),
    [
        (lambda e: e[:1, 0], r"one row a sample; for 5 samples it returned shape \[1, 1\]"),
        (lambda e: e, r"it returned shape \[5, 4, 1\]"),
        (lambda e: 3.0, r"it returned shape \[\]"),
        (lambda e: [[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]], "rows of different shapes"),
        (lambda e: np.tile(e[:, 0], (1, int(1 + (e[0, 0, 0] > 0)))), "always return the same number of columns"),
        (lambda e: np.array(["a"] * len(e)), "class names; pass class_names="),
        (lambda e: e[:, 0] * 1j, "numbers or class names; got dtype complex"),
        (lambda e: 1 / 0, "predict failed on sets of size 4 .ZeroDivisionError"),
    ],
)
def test_wrong_outputs_are_refused(predict, message):
    x = np.zeros((5, 4, 1))
    x[:, 1] = 1
    with pytest.raises((ao.checks.InputError, ao.checks.InputTypeError), match=message):
        ao.audit(predict, x, generator=rng())


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_predictor_that_writes_into_its_input_is_refused(kind):
    x = np.ones((5, 4, 1))
    given = x.copy()

    def centred(elements):
        elements -= elements.mean(1, keepdims=True) + 1
        return elements[:, 0]

    with pytest.raises(ao.checks.InputError, match="predict changed its input in place"):
        ao.audit(centred, x if kind == "numpy" else torch.from_numpy(x), generator=rng())
    assert (x == given).all()


def test_a_random_predictor_is_detected_and_said():
    noise = np.random.default_rng(0)
    report = ao.audit(lambda e: e.sum(1) + noise.standard_normal((len(e), 1)), np.ones((40, 5, 1)), generator=rng())
    assert report.random
    assert report.repeat_gap == pytest.approx(MEAN_DISTANCE, rel=0.4)
    assert "random" in str(report)
    assert any("asked twice" in note for note in report.notes)
    assert not ao.audit(last, np.ones((40, 5, 1)), generator=rng()).random


def test_dependence_on_batch_mates_is_said():
    x = np.random.default_rng(0).standard_normal((40, 5, 1))
    for predict in (lambda e: e.sum(1) - e.sum(1).mean(), lambda e: e.sum((1, 2)) / np.abs(e).max()):
        report = ao.audit(predict, x, generator=rng())
        assert any("depends on the other sets in the batch" in note for note in report.notes)
        assert str(report).startswith("The answer for a set depends on the other sets in the batch")
        assert report.batch_gap > 1e-3
        assert not ao.audit(predict, x, generator=rng(), batch_size=1, search=0).batch_gap


def test_batch_mates_are_felt_whichever_half_of_the_batch_they_are_in():
    for largest in (0, 39):
        x = np.random.default_rng(0).standard_normal((40, 5, 1)).clip(-1, 1)
        x[largest] *= 9
        report = ao.audit(lambda e: e.sum((1, 2)) / np.abs(e).max(), x, generator=rng(), search=0)
        assert report.batch_gap > 0
        assert ao.audit({"own": total}, x, search=0).reports["own"].batch_gap == 0


def test_a_comparison_says_whose_answers_depend_on_batch_mates():
    x = np.random.default_rng(0).standard_normal((40, 5, 1))
    models = {"centred": lambda e: e.sum(1) - e.sum(1).mean(), "last": last}
    words = str(ao.audit(models, x, search=0, generator=rng()))
    assert "last depends on order least" in words
    assert words.endswith("Answers depend on the other sets in the batch: centred.")


def test_an_estimator_that_says_it_is_a_regressor_is_audited_as_one():
    x = np.random.default_rng(0).standard_normal((12, 4, 1))
    y = np.stack([x.sum((1, 2)), x.max((1, 2))], axis=1)
    fitted = ao.SetRegressor(epochs=1, model_options={"hidden": 4}, random_state=0).fit(x, y)
    for predict in (fitted, fitted.predict):
        report = ao.audit(predict, x, labels=y, orderings=2, search=0, generator=rng())
        assert (report.task, report.flip_rate) == ("regression", None)
        assert report.rmse > 0


def test_a_function_that_cannot_read_a_list_is_told_it_was_given_one():
    with pytest.raises(
        ao.checks.InputError, match=r"size 1, 2 .*it was given a list of arrays \[n, D\].*anyorder.pad makes"
    ):
        ao.audit(lambda e: e.sum(1), [np.ones((2, 1)), np.ones((1, 1))], generator=rng())
    elements, lengths = ao.pad([np.ones((2, 1)), np.ones((1, 1))])
    assert ao.audit(lambda e: e.sum(1), elements, lengths, generator=rng()).worst_gap == 0


def test_a_predictor_that_needs_some_elements():
    def variance(elements):
        if elements.shape[1] < 2:
            raise ValueError("a variance needs two numbers")
        return elements.var(1)

    sets = torch.randn(6, 4, 1)
    assert ao.audit(variance, sets, torch.tensor([2, 3, 4, 4, 4, 4]), generator=rng()).worst_gap < 1e-5
    with pytest.raises(ao.checks.InputError, match=r"failed on sets of size 1 .*two numbers.*from 2 elements on"):
        ao.audit(variance, sets, torch.tensor([1, 2, 4, 4, 4, 4]), generator=rng())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"predict": 3}, TypeError, "predict must be a function"),
        ({"generator": 0}, TypeError, "generator must be one of torch, .* got 0"),
        ({"elements": "abc"}, TypeError, "elements must be a tensor or a numpy array"),
        ({"elements": np.zeros((3, 4))}, ValueError, r"must have shape \[N, T, D\].*got \[3, 4\]"),
        ({"elements": np.zeros((0, 4, 1))}, ValueError, r"none of them 0; got \[0, 4, 1\]"),
        ({"elements": [np.zeros((2, 1))], "lengths": [2]}, ValueError, "lengths must be None"),
        ({"elements": [np.zeros((0, 2))] * 2}, ValueError, "at least one set with elements; got 2 empty sets"),
        ({"lengths": [1, 2, 9]}, ValueError, "lengths must be .* T = 4"),
        ({"task": "clasification"}, ValueError, "did you mean 'classification'"),
        ({"orderings": 0}, ValueError, "orderings must be at least 1"),
        ({"search": -1}, ValueError, "search must be at least 0"),
        ({"seconds": 0}, ValueError, "seconds must be above 0"),
        ({"labels": [1, 2]}, ValueError, "labels must hold one entry a sample, 3 of them"),
        ({"labels": ["a", "b", "c"]}, TypeError, "labels of a regression must be numbers"),
        ({"labels": [1.0, math.nan, 0.0]}, ValueError, "labels must be finite; that of sample 1 is NaN"),
        ({"labels": np.zeros((3, 2))}, ValueError, "as many columns as predict returns, 1; got 2"),
        ({"feature_names": ["a", "b"]}, ValueError, "feature_names must hold 1 names; got 2"),
        ({"set_names": ["a"]}, ValueError, "set_names must hold 3 names; got 1"),
    ],
)
def test_refusals(change, error, message):
    arguments = {"predict": last, "elements": np.zeros((3, 4, 1)), "lengths": None, **change}
    with pytest.raises(error, match=message):
        ao.audit(arguments.pop("predict"), arguments.pop("elements"), arguments.pop("lengths"), **arguments)


def test_labels_of_a_classification_are_checked():
    x = np.zeros((3, 4, 2))
    with pytest.raises(ao.checks.InputError, match="class numbers from 0 to 1; got 0 to 2"):
        ao.audit(total, x, labels=[0, 1, 2])
    with pytest.raises(ao.checks.InputError, match="classes predict does not know: c"):
        ao.audit(total, x, labels=["a", "b", "c"], class_names=["a", "b"])
    with pytest.raises(ao.checks.InputTypeError, match="class numbers or names; got float64"):
        ao.audit(total, x, labels=[0.5, 1, 1])
    with pytest.raises(ao.checks.InputError, match=r"must have shape \[N\]; got \[3, 2\]"):
        ao.audit(total, x, labels=np.zeros((3, 2), dtype=int))
    scores = np.random.default_rng(0).standard_normal((3, 4, 1))
    for labels in ([-1, 1, 1], [1, 2, 1]):
        with pytest.raises(ao.checks.InputError, match=rf"must be 0 and 1, .* map them, as in labels == {max(labels)}"):
            ao.audit(last, scores, labels=labels, task="classification")
    signs = ao.audit(lambda e: np.sign(last(e)), scores, labels=np.sign(scores[:, -1, 0]), task="classification")
    assert signs.accuracy == 1.0  # class numbers, whatever they are
    named = ao.audit(total, x, labels=["a", "a", "b"], class_names=["a", "b"], generator=rng())
    assert named.accuracy == pytest.approx(2 / 3)


def test_sets_that_cannot_be_reordered():
    report = ao.audit(last, np.ones((3, 1, 1)), labels=np.ones(3), generator=rng())
    assert report.output_gap == report.worst_gap == 0
    assert report.worst_set is None
    assert report.by_distance == {}
    assert report.rmse == report.rmse_shuffled == 0
    mixed = ao.audit(total, np.ones((4, 3, 1)), [1, 3, 1, 2], labels=np.zeros(4), generator=rng())
    assert mixed.rmse == mixed.rmse_shuffled == 3.0
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


def test_compare_uses_the_same_orderings_and_marks_the_choices():
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
    assert rows["sum"]["choice"]
    assert not rows["last"]["choice"]
    assert rows["sum"]["score"] == 1.0
    assert str(comparison) == "sum ignores order and has the best accuracy (100 %)."
    json.dumps(comparison.to_dict(), allow_nan=False)


def rises(elements):
    """The sum, and 100 more in the one order that rises."""
    return elements.sum(1) + 100.0 * (np.diff(elements, axis=1) > 0).all(1)


def test_compare_says_what_its_reports_say():
    noise = np.random.default_rng(0)
    models = {"rises": rises, "noise": lambda elements: noise.standard_normal(len(elements))}
    x = np.arange(12.0).reshape(2, 6, 1)[:, ::-1]
    with_search = ao.audit({"rises": rises}, x, generator=rng(), orderings=1, search=1000)
    assert with_search["rises"].order_gap == 0.0
    assert str(with_search) == "rises depends on order least (relative gap 0, largest difference 100)."
    both = ao.audit({"sum": total, **models}, x, labels=x.sum(1), generator=rng(), orderings=1, search=1000)
    assert str(both) == ("sum ignores order and has the best RMSE (0). Random, so that the gap is partly noise: noise.")
    random = ao.audit({"noise": models["noise"]}, x, generator=rng())
    assert str(random) == ("The effect of order cannot be told apart. Random, so that the gap is partly noise: noise.")
    single = ao.audit({"sum": total}, np.ones((3, 1, 1)), labels=np.ones(3), generator=rng())
    assert str(single) == "No set has two elements, so there is nothing to reorder; sum has the best RMSE (0)."


def test_the_metric_is_that_of_the_task_with_and_without_labels():
    comparison = ao.audit({"sum": total}, np.zeros((3, 4, 2)), generator=rng())
    assert [row["metric"] for row in comparison.table()] == ["accuracy"]


def test_compare_refusals():
    with pytest.raises(ao.checks.InputError, match="at least one predictor"):
        ao.audit({}, np.zeros((3, 4, 1)))
    with pytest.raises(ao.checks.InputError, match="'two' is audited as classification, 'one' as regression"):
        ao.audit({"two": lambda e: np.concatenate([last(e)] * 2, 1), "one": last}, np.ones((3, 4, 1)))
    with pytest.raises(ao.checks.InputError, match="model 'bad': predict failed"):
        ao.audit({"bad": lambda e: 1 / 0}, np.zeros((3, 4, 1)))
