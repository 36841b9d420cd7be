from __future__ import annotations

import numpy as np
import pytest
import torch

from anyorder import InputError, InputTypeError, pad
from anyorder.tables import SetData

RAGGED = [[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]], np.empty((0, 2)), [[4.0, 40.0]], [[5.0, 50.0]]]


@pytest.fixture
def ragged():
    return SetData.of(RAGGED, y=[0, 1, 2, 3], weights=[1.0, 2.0, 3.0, 4.0])


def test_batch_agrees_with_pad_of_the_same_sets(ragged):
    for index in ([0, 1, 2], [2, 0], [3, 1]):
        elements, lengths = ragged.batch(index)
        expected, expected_lengths = pad([np.asarray(RAGGED[i]) for i in index])
        assert torch.equal(elements, expected)
        assert torch.equal(lengths, expected_lengths)


def test_batch_of_equal_sizes_has_no_lengths_and_is_only_as_long_as_they_are(ragged):
    elements, lengths = ragged.batch([3, 2])
    assert lengths is None
    assert elements.tolist() == [[[5.0, 50.0]], [[4.0, 40.0]]]


def test_select_keeps_each_set_with_its_target_and_weight(ragged):
    chosen = ragged.select([2, 0, 0])
    assert chosen.lengths.tolist() == [1, 3, 3]
    assert chosen.elements[:, 0].tolist() == [4, 1, 2, 3, 1, 2, 3]
    assert chosen.targets.tolist() == [2, 0, 0]
    assert chosen.weights.tolist() == [3, 1, 1]
    assert ragged.select(np.array([False, True, False, True])).targets.tolist() == [1, 3]


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_a_block_and_a_list_of_its_rows_are_the_same_sets(kind):
    block = np.arange(24.0).reshape(4, 3, 2)
    whole, listed = SetData.of(kind(block)), SetData.of(list(kind(block)))
    assert whole.common_length == 3
    assert torch.equal(whole.elements, listed.elements)
    assert torch.equal(whole.offsets, listed.offsets)
    elements, lengths = whole.batch(torch.tensor([3, 1]))
    assert lengths is None
    assert elements.numpy().tolist() == block[[3, 1]].tolist()


def test_two_axes_mean_sets_of_numbers():
    data = SetData.of(np.ones((5, 7), dtype=np.float32), dtype=torch.float64)
    assert data.batch([0])[0].shape == (1, 7, 1)
    assert data.elements.dtype == torch.float64


def test_an_object_array_of_arrays_is_a_list_of_them():
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.ones((2, 3)), np.ones((1, 3))]
    assert SetData.of(ragged).lengths.tolist() == [2, 1]


def test_set_data_of_set_data_replaces_only_what_is_given(ragged):
    again = SetData.of(ragged, y=[5, 6, 7, 8], dtype=torch.float32)
    assert again.targets.tolist() == [5, 6, 7, 8]
    assert again.weights.tolist() == [1, 2, 3, 4]
    assert again.elements.dtype == torch.float32
    assert torch.equal(again.offsets, ragged.offsets)


def test_nan_of_a_neighbour_never_reaches_padding():
    data = SetData.of([[float("nan")], [1.0, 2.0], [3.0]])
    assert data.batch([1, 2])[0].isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SetData.of([]), "at least one set"),
        (lambda: SetData.of(np.ones((0, 3, 2))), r"shape \[N, T, D\]"),
        (lambda: SetData.of(np.ones(3)), r"shape \[N, T, D\]"),
        (lambda: SetData.of([np.ones((2, 3)), np.ones((2, 4))]), "set 0 has 3, set 1 has 4"),
        (lambda: SetData.of([[1.0]], y=[1, 2]), "targets must hold one row a set, 1; got 2"),
        (lambda: SetData.of([[1.0]], weights=[1, 2]), "weights must hold one row a set"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0, 2])), "offsets must rise from 0 to 3"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0, 4, 3])), "smallest step -1"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0.0, 3.0])), "offsets must be int64"),
        (lambda: SetData(torch.ones(3), torch.tensor([0, 3])), r"elements must have shape \[total, D\]"),
        (lambda: SetData.of([[1.0]]).batch([]), "at least one set; got none"),
    ],
)
def test_bad_sets_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_text_is_refused():
    with pytest.raises(InputTypeError, match="X must be a list of arrays"):
        SetData.of(np.array([["a", "b"]]))
    with pytest.raises(InputTypeError, match="array 0 is not an array of numbers"):
        SetData.of([["a", "b"]])
