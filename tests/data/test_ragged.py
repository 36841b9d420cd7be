import numpy as np
import pytest
import torch

import anyorder as ao
from anyorder.audits.predictor import Sets


def test_pad_keeps_every_element_and_fills_the_rest() -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(3, 2), np.empty((0, 2), np.float32), np.ones((1, 2), np.float32)]
    elements, lengths = ao.pad(arrays, value=-1.0)
    assert elements.shape == (3, 3, 2)
    assert elements.dtype == torch.float32
    assert lengths.tolist() == [3, 0, 1]
    for row, array in zip(elements, arrays, strict=True):
        assert row[: len(array)].tolist() == array.tolist()
        assert (row[len(array) :] == -1.0).all()


def test_pad_takes_sets_of_numbers_tensors_and_mixed_types() -> None:
    elements, lengths = ao.pad([[1, 2, 3], torch.tensor([4.5])])
    assert elements[..., 0].tolist() == [[1.0, 2.0, 3.0], [4.5, 0.0, 0.0]]
    assert lengths.tolist() == [3, 1]


def test_the_dtype_is_that_of_the_elements() -> None:
    assert ao.pad([[1.0, 2.0], [3]])[0].dtype == torch.float32
    assert ao.pad([[1, 2], []])[0].dtype == torch.int64
    assert ao.pad([np.ones(2, "f4"), []])[0].dtype == torch.float32
    assert ao.pad([[[1.0, 2.0]], np.zeros((0, 2))])[0].dtype == torch.float32
    assert ao.pad([np.ones(2)])[0].dtype == ao.pad([list(np.ones(2))])[0].dtype == torch.float64
    assert ao.pad([[], []])[0].dtype == torch.float32
    assert ao.RecurrentSetModel(1, 1)(*ao.pad([[1.0, 2.0], [3.0], []])).shape == (3, 1)


def test_pad_is_differentiable() -> None:
    part = torch.ones(2, 1, requires_grad=True)
    ao.pad([part, torch.zeros(3, 1)])[0].sum().backward()
    assert part.grad.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("arrays", "error", "match"),
    [
        ([], ValueError, "at least one array; got an empty list"),
        ("abc", TypeError, "a list of arrays"),
        (3, TypeError, "a list of arrays"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], ValueError, "array 0 has 3, array 1 has 4"),
        ([np.zeros((0, 2)), np.zeros((2, 3)), np.zeros((2, 4))], ValueError, "array 1 has 3, array 2 has 4"),
        ([np.zeros((0, 2)), np.zeros((0, 3))], ValueError, "array 0 has 2, array 1 has 3"),
        ([np.zeros((2, 3, 4))], ValueError, r"array 0 must have shape \[n, D\] or \[n\]; got \[2, 3, 4\]"),
        ([[1.0], ["a"]], TypeError, "array 1 is not an array of numbers"),
        ([np.zeros((2, 0))], ValueError, "at least one feature"),
    ],
)
def test_pad_refuses_what_is_not_a_list_of_sets(arrays, error, match) -> None:
    with pytest.raises(error, match=match):
        ao.pad(arrays)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_a_batch_vector_in_any_order_gives_the_same_sets(dtype) -> None:
    x = torch.randn(7, 3, requires_grad=True)
    batch = torch.tensor([2, 0, 2, 2, 0, 3, 2])
    elements, lengths = ao.pyg.pad_from_batch(x, batch.to(dtype), batch_size=5)
    assert lengths.tolist() == [2, 0, 4, 1, 0]
    for b in range(5):
        assert torch.equal(elements[b, : lengths[b]], x[batch == b])
    elements.sum().backward()
    assert (x.grad == 1).all()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ao.pyg.pad_from_batch(torch.zeros(3), torch.zeros(3).long()), r"x must have shape \[N, D\]"),
        (lambda: ao.pyg.pad_from_batch(torch.zeros(3, 1), torch.zeros(2).long()), r"one whole number a row of x"),
        (lambda: ao.pyg.pad_from_batch(torch.zeros(3, 1), torch.zeros(3)), "one whole number a row of x"),
        (lambda: ao.pyg.pad_from_batch(torch.zeros(1, 1), torch.tensor([-1])), "must not be negative"),
        (lambda: ao.pyg.pad_from_batch(torch.zeros(1, 1), torch.tensor([4]), 2), "batch_size must be at least 5"),
    ],
)
def test_a_wrong_batch_vector_is_refused(call, match) -> None:
    with pytest.raises(ValueError, match=match):
        call()


def test_sets_that_are_all_empty_are_nothing_to_ask_a_predictor() -> None:
    with pytest.raises(ao.checks.InputError, match="at least one set with elements; got 2 empty sets"):
        Sets.of([np.empty((0, 2)), np.empty((0, 2))])
    assert len(Sets.of([np.empty((0, 2)), np.ones((1, 2))])) == 2


def test_empty_sets_of_another_width_are_padded_like_others() -> None:
    elements, lengths = ao.pad([np.zeros((0, 5)), np.ones((3, 2))])
    assert elements.shape == (2, 3, 2)
    assert lengths.tolist() == [0, 3]
    assert elements[1].eq(1).all()


def test_a_value_that_the_elements_cannot_hold_is_refused() -> None:
    with pytest.raises(
        ao.checks.InputError, match=r"value must be a whole number, as the elements are \(torch.int64\); got 0.5"
    ):
        ao.pad([[1, 2], [3]], value=0.5)
    with pytest.raises(ao.checks.InputError, match="value must be finite; got nan"):
        ao.pad([[1, 2], [3]], value=float("nan"))
    assert ao.pad([[1, 2], [3]], value=-1)[0].flatten().tolist() == [1, 2, 3, -1]


def test_the_flat_form_is_of_tensors() -> None:
    with pytest.raises(ao.checks.InputTypeError, match="x must be a tensor; got ndarray"):
        ao.pyg.pad_from_batch(np.zeros((2, 2)), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ao.checks.InputTypeError, match="batch must be a tensor; got list"):
        ao.pyg.pad_from_batch(torch.zeros(2, 2), [0, 1])
