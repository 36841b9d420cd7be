"""Any predictor can be audited: what it gets, what it may return, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder.recurrences import known
from predictors import last, rng, total


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


def test_modules_get_tensors_whatever_was_given_and_behind_a_wrapper_what_they_take():
    class MaskedSum(nn.Module):
        def forward(self, elements, lengths):
            inside = torch.arange(elements.shape[1]) < lengths.unsqueeze(1)
            return (elements * inside[:, :, None]).sum(1)

    class Total(nn.Module):
        def forward(self, elements):
            return elements.sum(1)

    x = np.random.default_rng(0).standard_normal((3, 4, 1))
    for module in (MaskedSum(), torch.compile(Total(), backend="eager"), nn.DataParallel(Total())):
        for sets in ((x, [4, 2, 3]), ([x[0], x[1, :2], x[2, :3]],)):
            assert ao.audit(module, *sets, orderings=4, generator=rng()).worst_gap < 1e-6


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
    assert listed.notes == ["1 of 2 sets have no two elements to reorder. Their change is 0."]


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
    assert report.worst[0].given_class in ("low", "high")

    class Hard:
        classes_ = Estimator.classes_

        def predict(self, sets):
            return Estimator().predict(sets)

    hard = ao.audit(Hard(), sets, labels=labels, generator=rng())
    assert hard.task == "classification"
    assert hard.flip_rate == report.flip_rate
    assert hard.accuracy == 1.0
    assert hard.output_gap == pytest.approx(hard.flip_rate)  # one column a class, two change by 1 of 2
    bound = ao.audit(Estimator().predict_proba, sets, generator=rng())
    assert bound.output_gap == report.output_gap


def test_an_onnx_session():
    """A session of a whole model is read; the step of an export, which takes a state, says what to pass instead."""
    onnx = pytest.importorskip("onnx", reason="needs the extra: pip install anyorder[onnx]")
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra: pip install anyorder[onnx]")
    kind, helper = onnx.TensorProto, onnx.helper

    def session(*inputs):
        """A graph that returns the last element."""
        gather = helper.make_node("Gather", ["elements", "at"], ["output"], axis=1)
        given = [helper.make_tensor_value_info(name, kind.FLOAT, ["B", "T", 1]) for name in inputs]
        output = [helper.make_tensor_value_info("output", kind.FLOAT, ["B", 1])]
        graph = helper.make_graph([gather], "g", given, output, [helper.make_tensor("at", kind.INT64, [], [-1])])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    x = np.random.default_rng(0).standard_normal((20, 5, 1)).astype(np.float32)
    report = ao.audit(session("elements"), x, generator=rng())
    assert report.output_gap == pytest.approx(ao.audit(last, x, generator=rng()).output_gap, rel=1e-6)
    with pytest.raises(ao.checks.InputError, match="pass the model itself"):
        ao.audit(session("elements", "state_0"), x)


def test_modules_are_asked_in_evaluation_mode_and_get_their_mode_back():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 2))
    model[1].train()
    model[2].eval()
    report = ao.audit(model, torch.randn(10, 4, 1), generator=rng())
    assert not report.batch_dependent
    assert model[1].training
    assert not model[2].training
    numpy = ao.audit(model, np.random.default_rng(0).standard_normal((10, 4, 1)), generator=rng())
    assert numpy.output_gap > 0


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


def test_a_list_and_a_padded_array_give_the_same_figures():
    x = np.random.default_rng(0).standard_normal((40, 30, 2))
    sizes = np.random.default_rng(1).integers(1, 31, 40)
    padded = ao.audit(last, x, sizes, generator=rng(), orderings=9, search=40)
    listed = ao.audit(last, [row[:n] for row, n in zip(x, sizes, strict=True)], generator=rng(), orderings=9, search=40)
    blocks = ao.audit(last, x, sizes, generator=rng(), orderings=9, search=40, batch_size=7)
    figures = [{k: v for k, v in r.to_dict().items() if k != "calls"} for r in (padded, listed, blocks)]
    assert figures[0] == figures[1] == figures[2]


def test_a_list_is_padded_only_as_far_as_each_batch_needs():
    """999 sets of 3 and one of 5,000 numbers are 64 KB, and 40 MB if all are padded to the longest."""
    sets = [np.random.default_rng(i).standard_normal((3, 1)) for i in range(999)]
    sets.append(np.random.default_rng(0).standard_normal((5000, 1)))
    asked = []

    def spy(elements, lengths):
        asked.append(elements.size)
        return last(elements, lengths)

    ao.audit(spy, sets, orderings=2, search=10, generator=rng())
    assert sum(asked) < 20 * sum(map(len, sets)) * 10


def test_an_estimator_that_says_it_is_a_regressor_is_audited_as_one():
    x = np.random.default_rng(0).standard_normal((12, 4, 1))
    y = np.stack([x.sum((1, 2)), x.max((1, 2))], axis=1)
    fitted = ao.SetRegressor(epochs=1, model_options={"hidden": 4}, random_state=0).fit(x, y)
    for predict in (fitted, fitted.predict):
        report = ao.audit(predict, x, labels=y, orderings=2, search=0, generator=rng())
        assert (report.task, report.flip_rate) == ("regression", None)
        assert report.rmse > 0


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_torch_module_reads_time_first_unless_it_is_batch_first(kind):
    """The figures are those of the batch-first module with the same weights; lengths are of the sets."""
    first, second = kind(3, 8, batch_first=True), kind(3, 8)
    second.load_state_dict(first.state_dict())
    x, lengths = torch.randn(10, 6, 3, generator=rng()), torch.arange(10) % 6 + 1
    for sizes in (None, lengths):
        one = ao.audit(first, x, sizes, orderings=4, search=20, generator=rng())
        for module in (second, ao.recurrence(second)):
            other = ao.audit(module, x.transpose(0, 1), sizes, orderings=4, search=20, generator=rng())
            assert (other.task, other.sets) == ("regression", 10)
            assert other.output_gap == pytest.approx(one.output_gap, rel=1e-5)
            assert other.worst_gap == pytest.approx(one.worst_gap, rel=1e-5)
            assert list(other.state_order_gap.values()) == pytest.approx(list(one.state_order_gap.values()), rel=1e-4)
    listed = ao.audit(second, list(x), orderings=4, search=20, generator=rng())
    assert listed.output_gap == pytest.approx(ao.audit(first, x, orderings=4, generator=rng()).output_gap, rel=1e-5)
    with pytest.raises(ao.checks.InputError, match="lengths"):
        ao.audit(second, x.transpose(0, 1), torch.full((6,), 3), generator=rng())


def test_a_cell_is_read_as_a_recurrence():
    report = ao.audit(nn.GRUCell(3, 4), torch.randn(5, 4, 3), orderings=2, search=0, generator=rng())
    assert set(report.state_order_gap) == {2, 3, 4}


@pytest.mark.parametrize("lengths", [None, torch.tensor([4, 2, 3, 4, 1])])
def test_static_features_go_with_their_sets(lengths):
    """Each set's mean less its static feature, which is the mean, is 0, in every form."""
    x = torch.randn(5, 4, 1, generator=rng())
    sizes = [4] * 5 if lengths is None else lengths.tolist()
    means = torch.stack([one[:n].mean(0) for one, n in zip(x, sizes, strict=True)])

    def padded(elements, lengths, static):
        own = [elements.shape[1]] * len(elements) if lengths is None else lengths
        return torch.stack([one[:n].mean(0) for one, n in zip(elements, own, strict=True)]) - static

    for predict in (padded, lambda elements, static: elements.mean(1) - static):
        report = ao.audit(predict, x, lengths, static=means, labels=means * 0, generator=rng())
        assert report.rmse < 1e-6


def test_padding_is_never_read_and_is_zero():
    x = torch.randn(6, 5, 2, generator=rng())
    lengths = torch.tensor([5, 3, 1, 2, 4, 5])
    dirty = x.masked_fill((torch.arange(5) >= lengths[:, None])[:, :, None], float("nan"))
    for predict in (ao.DeepSets(2, 3), last, lambda e: e.mean(1)):
        clean = ao.audit(predict, x, lengths, orderings=2, search=0, generator=rng())
        assert ao.audit(predict, dirty, lengths, orderings=2, search=0, generator=rng()).output_gap == clean.output_gap
    for sevens in (np.full((3, 4, 1), 7.0), torch.full((3, 4, 1), 7.0)):
        assert ao.audit(total, sevens, [4, 1, 2], labels=[28, 7, 14], search=0, generator=rng()).rmse == 0


def test_a_predictor_that_writes_into_its_input_changes_nothing():
    x = np.random.default_rng(0).standard_normal((5, 4, 1))
    given = x.copy()

    def centred(elements):
        elements -= elements.mean(1, keepdims=True) + 1
        return elements[:, 0]

    report = ao.audit(centred, x, generator=rng())
    assert (x == given).all()
    assert report.output_gap == ao.audit(lambda e: centred(e.copy()), x, generator=rng()).output_gap


@pytest.mark.parametrize(
    ("predict", "message"),
    [
        (lambda e: e[:1, 0], r"predict must return .*shape \[1, 1\]"),
        (lambda e: e, r"predict must return .*shape \[5, 4, 1\]"),
        (lambda e: 3.0, r"predict must return .*shape \[\]"),
        (lambda e: [[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]], "predict failed"),
        (lambda e: np.tile(e[:, 0], (1, int(1 + (e[0, 0, 0] > 0)))), r"predict must return .*shape \[\d+, 2\]"),
        (lambda e: e[:, 0] * 1j, "predict must return .*complex"),
        (lambda e: 1 / 0, "predict failed .*4 elements .ZeroDivisionError"),
        (lambda e: np.where(e[:, -1] == 1, np.nan, e[:, -1]), r"finite .*set [0-9] .order: ."),
        (lambda e: e[:, 0] * np.inf, "finite .*set 0 .order: .0, 1"),
        (3, "predict must be a function"),
    ],
)
def test_wrong_predictors_are_refused(predict, message):
    x = np.zeros((5, 4, 1))
    x[:, 1] = 1
    with pytest.raises((ao.checks.InputError, ao.checks.InputTypeError), match=message):
        ao.audit(predict, x, generator=rng())


def test_a_predictor_that_needs_some_elements():
    def variance(elements):
        if elements.shape[1] < 2:
            raise ValueError("a variance needs two numbers")
        return elements.var(1)

    sets = torch.randn(6, 4, 1)
    assert ao.audit(variance, sets, torch.tensor([2, 3, 4, 4, 4, 4]), generator=rng()).worst_gap < 1e-5
    with pytest.raises(ao.checks.InputError, match=r"predict failed .*1 to 1 elements .*two numbers"):
        ao.audit(variance, sets, torch.tensor([1, 2, 4, 4, 4, 4]), generator=rng())
    with pytest.raises(ao.checks.InputError, match="predict failed on a list of sets"):
        ao.audit(lambda e: e.sum(1), [np.ones((2, 1)), np.ones((1, 1))], generator=rng())


@pytest.mark.parametrize(
    ("change", "error", "name"),
    [
        ({"generator": 0}, TypeError, "Generator"),
        ({"sets": "abc"}, TypeError, "sets"),
        ({"sets": np.zeros((3, 4))}, ValueError, "sets"),
        ({"sets": np.zeros((0, 4, 1))}, ValueError, "sets"),
        ({"sets": [np.zeros((2, 1))], "lengths": [2]}, ValueError, "lengths"),
        ({"lengths": [1, 2, 9]}, ValueError, "lengths"),
        ({"task": "clasification"}, ValueError, "task .*'classification'"),
        ({"orderings": 0}, ValueError, "orderings"),
        ({"search": -1}, ValueError, "search"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"labels": [1, 2]}, ValueError, "labels"),
        ({"labels": ["a", "b", "c"]}, ValueError, "could not convert"),
        ({"labels": [1.0, math.nan, 0.0]}, ValueError, "labels"),
        ({"labels": np.zeros((3, 2))}, ValueError, "labels"),
        ({"feature_names": ["a", "b"]}, ValueError, "feature_names must hold 1 names; got 2"),
        ({"set_names": ["a"]}, ValueError, "set_names must hold 3 names; got 1"),
        ({"predict": {}}, ValueError, "predict must be one model or several"),
        ({"predict": {"bad": lambda e: 1 / 0}}, ValueError, "model 'bad': predict failed"),
        ({"predict": {"two": lambda e: np.concatenate([last(e)] * 2, 1), "one": last}}, ValueError, "'two': class"),
    ],
)
def test_refusals(change, error, name):
    arguments = {"predict": last, "sets": np.zeros((3, 4, 1)), "lengths": None, **change}
    with pytest.raises(error, match=name):
        ao.audit(arguments.pop("predict"), arguments.pop("sets"), arguments.pop("lengths"), **arguments)


@pytest.mark.parametrize(
    ("features", "labels", "options"),
    [
        (2, [0, 1, 2], {}),
        (2, ["a", "b", "c"], {"class_names": ["a", "b"]}),
        (2, [0.5, 1, 1], {}),
        (2, np.zeros((3, 2), dtype=int), {}),
        (2, [0, 1], {}),
        (1, [-1, 1, 1], {"task": "classification"}),
        (1, [1, 2, 1], {"task": "classification"}),
    ],
)
def test_labels_that_are_no_classes_are_refused(features, labels, options):
    scores = np.random.default_rng(0).standard_normal((3, 4, features))
    with pytest.raises(ao.checks.InputError, match="labels"):
        ao.audit(last, scores, labels=labels, **options)


def test_labels_are_numbers_or_names_of_classes():
    scores = np.random.default_rng(0).standard_normal((3, 4, 1))
    signs = ao.audit(lambda e: np.sign(last(e)), scores, labels=np.sign(scores[:, -1, 0]), task="classification")
    assert signs.accuracy == 1.0  # class numbers, whatever they are
    named = ao.audit(total, np.zeros((3, 4, 2)), labels=["a", "a", "b"], class_names=["a", "b"], generator=rng())
    assert named.accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize("largest", [0, 39])
def test_dependence_on_the_other_sets_of_a_batch_is_said(largest):
    x = np.random.default_rng(0).standard_normal((40, 5, 1)).clip(-1, 1)
    x[largest] *= 9
    for predict in (lambda e: e.sum(1) - e.sum(1).mean(), lambda e: e.sum((1, 2)) / np.abs(e).max()):
        report = ao.audit(predict, x, generator=rng(), search=0)
        assert report.batch_dependent
        assert str(report).startswith("The output for a set depends on the other sets in the batch")
        assert not ao.audit(predict, x, generator=rng(), batch_size=1, search=0).batch_dependent


def test_a_set_without_elements():
    """Only the sum of a recurrence that starts at 0 has an output for it; its state is the start."""
    x = torch.randn(3, 4, 1, generator=rng())
    for lengths in ([0, 4, 2], [0, 0, 0]):
        report = ao.audit(known.sum(), x, lengths, orderings=2, search=0, generator=rng())
        assert report.worst_gap < 1e-5
