"""SetData: the sets that were put in come out, alone, chosen or padded."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from anyorder import SetData, pad
from anyorder.checks import InputError, InputTypeError

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
    elements, lengths = ragged.batch([3, 2])  # of one size
    assert lengths is None
    assert elements.tolist() == [[[5.0, 50.0]], [[4.0, 40.0]]]


@pytest.mark.parametrize("index", [[2, 0, -1], np.array([2, 0, 3])])
def test_select_keeps_each_set_with_its_target_and_weight(ragged, index):
    chosen = ragged.select(index)
    assert chosen.lengths.tolist() == [1, 3, 1]
    assert chosen.elements[:, 0].tolist() == [4, 1, 2, 3, 5]
    assert chosen.targets.tolist() == [2, 0, 3]
    assert chosen.weights.tolist() == [3, 1, 4]
    assert ragged.select(np.array([False, True, False, True])).targets.tolist() == [1, 3]


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_a_block_and_a_list_of_its_rows_are_the_same_sets(kind):
    block = np.arange(24.0).reshape(4, 3, 2)
    whole, listed = SetData.of(kind(block)), SetData.of(list(kind(block)))
    assert whole.common_length == 3
    assert torch.equal(whole.elements, listed.elements)
    assert torch.equal(whole.offsets, listed.offsets)
    elements, lengths = whole.batch(torch.tensor([-1, 1]))
    assert lengths is None
    assert elements.numpy().tolist() == block[[3, 1]].tolist()


def test_two_axes_are_sets_of_numbers_and_an_object_array_is_a_list():
    data = SetData.of(np.ones((5, 7), dtype=np.float32), dtype=torch.float64)
    assert data.batch([0])[0].shape == (1, 7, 1)
    assert data.elements.dtype == torch.float64
    listed = np.empty(2, dtype=object)
    listed[:] = [np.ones((2, 3)), np.ones((1, 3))]
    assert SetData.of(listed).lengths.tolist() == [2, 1]


def test_set_data_of_set_data_replaces_only_what_is_given(ragged):
    again = SetData.of(ragged, y=pd.Series([5, 6, 7, 8], index=[7, 3, 1, 0]), dtype=torch.float32)
    assert again.targets.tolist() == [5, 6, 7, 8]
    assert again.weights.tolist() == [1, 2, 3, 4]
    assert again.elements.dtype == torch.float32
    assert torch.equal(again.offsets, ragged.offsets)


def test_nan_of_a_neighbour_never_reaches_padding():
    data = SetData.of([[float("nan")], [1.0, 2.0], [3.0]])
    assert data.batch([1, 2])[0].isfinite().all()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: SetData.of([]), "set"),
        (lambda: SetData.of(np.ones(3)), "shape"),
        (lambda: SetData.of([np.ones((2, 3)), np.ones((2, 4))]), "features"),
        (lambda: SetData.of([[1.0]], y=[1, 2]), "targets"),
        (lambda: SetData.of([[1.0]], weights=[1, 2]), "weights"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0, 4, 3])), "offsets"),
        (lambda: SetData.of(RAGGED).select([0, 4]), "index"),
        (lambda: SetData.of([["a", "b"]]), "number"),
    ],
)
def test_bad_sets_are_refused(make, name):
    with pytest.raises((InputError, InputTypeError), match=name):
        make()
