import numpy as np
import pandas as pd
import pytest
import torch

import anyorder as ao
from anyorder import SetData
from anyorder.checks import InputError, InputTypeError

RAGGED = [[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]], np.empty((0, 2)), [[4.0, 40.0]], [[5.0, 50.0]]]


@pytest.fixture
def ragged() -> SetData:
    return SetData.of(RAGGED, y=[0, 1, 2, 3], weights=[1.0, 2.0, 3.0, 4.0])


def test_pad_keeps_every_element_and_fills_the_rest() -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(3, 2), np.empty((0, 5), np.float32), np.ones((1, 2), np.float32)]
    elements, lengths = ao.pad(arrays, value=-1.0)
    assert elements.shape == (3, 3, 2)
    assert lengths.tolist() == [3, 0, 1]
    for row, array in zip(elements, arrays, strict=True):
        assert row[: len(array), : array.shape[1]].tolist() == array.tolist()
        assert (row[len(array) :] == -1.0).all()


def test_the_dtype_is_that_of_the_elements() -> None:
    assert ao.pad([[1.0, 2.0], [3]])[0].dtype == torch.float32
    assert ao.pad([[1, 2], []])[0].dtype == torch.int64
    assert ao.pad([np.ones(2, "f4"), []])[0].dtype == torch.float32
    assert ao.pad([[1, 2, 3], torch.tensor([4.5])])[0][..., 0].tolist() == [[1.0, 2.0, 3.0], [4.5, 0.0, 0.0]]
    assert ao.pad([np.ones(2)])[0].dtype == ao.pad([list(np.ones(2))])[0].dtype == torch.float64
    assert ao.pad([[], []])[0].shape == (2, 0, 1)
    assert SetData.of([[1.0]], y=[0.5]).targets.dtype == torch.float32
    assert SetData.of(np.ones((5, 7)), dtype=torch.float32).batch([0])[0].dtype == torch.float32


def test_ties_and_static_features_go_with_their_elements_and_sets() -> None:
    data = SetData.of(RAGGED, ties=[[7, 7, 9], [], [3], [4]], static=[[0.0], [1.0], [2.0], [3.0]])
    assert data.ties_of([2, 0]).tolist() == [[3, 0, 0], [7, 7, 9]]
    chosen = SetData.of(SetData.of(data.select([2, 0, 3]), weights=[4, 5, 6]), y=[1, 2, 3])
    assert (chosen.targets.tolist(), chosen.weights.tolist()) == ([1, 2, 3], [4, 5, 6])
    assert chosen.ties.tolist() == [3, 7, 7, 9, 4]
    assert chosen.static.tolist() == [[2.0], [0.0], [3.0]]
    assert SetData.of(RAGGED).ties_of([0]) is None


def test_batch_agrees_with_pad_of_the_same_sets(ragged) -> None:
    for index in ([0, 1, 2], [2, 0], [3, 1], [-1, -3]):
        elements, lengths = ragged.batch(index)
        expected, expected_lengths = ao.pad([np.asarray(RAGGED[i]) for i in index])
        assert torch.equal(elements, expected)
        assert torch.equal(lengths, expected_lengths)


def test_batch_of_equal_sizes_has_no_lengths_and_is_only_as_long_as_they_are(ragged) -> None:
    elements, lengths = ragged.batch([3, 2])
    assert lengths is None
    assert elements.tolist() == [[[5.0, 50.0]], [[4.0, 40.0]]]
    assert ragged.common_length is None


def test_select_keeps_each_set_with_its_target_and_weight(ragged) -> None:
    for index in ([2, 0, 0], torch.tensor([-2, -4, 0])):
        chosen = ragged.select(index)
        assert chosen.lengths.tolist() == [1, 3, 3]
        assert chosen.elements[:, 0].tolist() == [4, 1, 2, 3, 1, 2, 3]
        assert chosen.targets.tolist() == [2, 0, 0]
        assert chosen.weights.tolist() == [3, 1, 1]
    assert ragged.select(np.array([False, True, False, True])).targets.tolist() == [1, 3]


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_a_block_and_a_list_of_its_rows_are_the_same_sets(kind) -> None:
    block = np.arange(24.0).reshape(4, 3, 2)
    rows = np.empty(4, dtype=object)
    rows[:] = list(kind(block))
    whole = SetData.of(kind(block))
    assert whole.common_length == 3
    for listed in (SetData.of(list(kind(block))), SetData.of(rows)):
        assert torch.equal(whole.elements, listed.elements)
        assert torch.equal(whole.offsets, listed.offsets)
    elements, lengths = whole.batch(torch.tensor([3, -3]))
    assert lengths is None
    assert elements.numpy().tolist() == block[[3, 1]].tolist()
    assert SetData.of(block[:, :, 0]).batch([0])[0].shape == (1, 3, 1)


def test_targets_and_weights_may_be_series_of_any_index() -> None:
    y, weights = pd.Series([5, 6], index=[7, 3]), pd.Series([0.5, 1.5], index=["a", "b"])
    data = SetData.of([[1.0], [2.0]], y=y, weights=weights)
    assert (data.targets.tolist(), data.weights.tolist()) == ([5, 6], [0.5, 1.5])


def test_nan_of_a_neighbour_never_reaches_padding() -> None:
    data = SetData.of([[float("nan")], [1.0, 2.0], [3.0]])
    assert data.batch([1, 2])[0].isfinite().all()


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ao.pad([]), InputError, "sets"),
        (lambda: ao.pad("abc"), InputTypeError, "numbers"),
        (lambda: ao.pad([np.zeros((0, 2)), np.zeros((2, 3)), np.zeros((2, 4))]), InputError, "features"),
        (lambda: ao.pad([np.zeros((2, 3, 4))]), InputError, "set 0"),
        (lambda: ao.pad([[1.0], ["a"]]), InputTypeError, "set 1"),
        (lambda: ao.pad([np.zeros((2, 0))]), InputError, "set 0"),
        (lambda: SetData.of(np.ones((0, 3, 2))), InputError, "offsets"),
        (lambda: SetData.of(np.ones(3)), InputError, "X"),
        (lambda: SetData.of(np.array([["a", "b"]])), InputTypeError, "X"),
        (lambda: SetData.of([[1.0]], y=[1, 2]), InputError, "targets"),
        (lambda: SetData.of([[1.0]], y=["a"]), InputTypeError, "targets"),
        (lambda: SetData.of([[1.0]], weights=[1, 2]), InputError, "weights"),
        (lambda: SetData.of([[1.0]], static=[[1], [2]]), InputError, "static"),
        (lambda: SetData.of([[1.0]], static=[1]), InputError, "static"),
        (lambda: SetData.of([[1.0], [2.0, 3.0]], ties=[[1], [2]]), InputError, "ties"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0, 3]), ties=torch.ones(2)), InputError, "ties"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0, 2])), InputError, "offsets"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([1, 3])), InputError, "offsets"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0, 4, 3])), InputError, "offsets"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0.0, 3.0])), InputError, "offsets"),
        (lambda: SetData(torch.ones(3), torch.tensor([0, 3])), InputError, "elements"),
        (lambda: SetData.of(RAGGED).select([0, 4]), IndexError, "index"),
        (lambda: SetData.of(RAGGED).batch([-5]), IndexError, "index"),
        (lambda: SetData.of(RAGGED).select([True, False]), IndexError, "mask"),
        (lambda: SetData.of(RAGGED).select([0.5]), IndexError, "ind"),
    ],
)
def test_bad_sets_are_refused(make, error, match) -> None:
    with pytest.raises(error, match=match):
        make()
