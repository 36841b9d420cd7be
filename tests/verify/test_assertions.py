"""The assertions pass on what is invariant, fail on what is not, and show the two inputs and outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder.recurrences import known
from anyorder.verify.assertions import assert_chunking_invariant, assert_order_invariant, assert_padding_invariant


@pytest.fixture
def ragged(generator):
    return torch.randn(6, 8, 2, generator=generator), torch.tensor([8, 5, 1, 0, 3, 8])


def masked_sum(elements, lengths):
    inside = torch.arange(elements.shape[1]) < lengths[:, None]
    return torch.where(inside[:, :, None], elements, 0.0).sum(1)


def test_order(ragged, generator):
    elements, lengths = ragged
    assert_order_invariant(masked_sum, elements, lengths, generator=generator)
    assert_order_invariant(lambda e: e.max(1), elements.numpy(), generator=generator)
    assert_order_invariant(known.max(), elements[:, :, :1].abs() + 1, generator=generator)
    assert_order_invariant(ao.DeepSets(2, 3), elements, lengths, generator=generator)
    with pytest.raises(AssertionError, match="depends on the order"):
        assert_order_invariant(ao.RecurrentSetModel(2, 3), elements, lengths, generator=generator)


def test_order_tolerances(generator):
    x = torch.tensor([[[100.0], [101.0]]])
    assert_order_invariant(lambda e: e[:, -1], x, atol=1.0, generator=generator)
    assert_order_invariant(lambda e: e[:, -1], x, atol=0.0, rtol=0.01, generator=generator)
    with pytest.raises(AssertionError, match=r"allowed 0 \+ 0.001 of the value"):
        assert_order_invariant(lambda e: e[:, -1], x, atol=0.0, rtol=0.001, generator=generator)
    with pytest.raises(ao.checks.InputError, match="atol"):
        assert_order_invariant(lambda e: e[:, -1], x, atol=-1.0)
    with pytest.raises(ao.checks.InputError, match="orderings"):
        assert_order_invariant(lambda e: e[:, -1], x, orderings=0)


def test_a_rare_dependence_is_found_by_enough_permutations(generator):
    """Only one of 24 orderings differs, and it is not the reversed one."""
    x = torch.arange(4.0)[None, :, None]
    rare = torch.tensor([1.0, 3.0, 0.0, 2.0])

    def predict(elements):
        return (elements[:, :, 0] == rare).all(1).float()

    assert_order_invariant(predict, x, orderings=1, generator=torch.Generator().manual_seed(1))
    with pytest.raises(AssertionError, match=r"order \[1, 3, 0, 2\]"):
        assert_order_invariant(predict, x, orderings=200, generator=generator)
    rare = torch.tensor([3.0, 2.0, 1.0, 0.0])  # the reversed order is always tried
    with pytest.raises(AssertionError, match=r"order \[3, 2, 1, 0\]"):
        assert_order_invariant(predict, x, orderings=1, generator=torch.Generator().manual_seed(1))


def test_order_of_texts_and_labels(generator):
    words = [["plum", "fig"], ["kiwi", "apricot", "pear"]]
    assert_order_invariant(lambda s: max(s, key=len), words, generator=generator)
    assert_order_invariant(lambda s: "AB"[s.index(min(s, key=len))], [["a", "bb"]] * 3, equivariant=True)
    with pytest.raises(AssertionError) as failure:
        assert_order_invariant(
            lambda sets: [s[0] for s in sets], words, batch_size=2, concurrency=2, generator=generator
        )
    assert "2 of 2 sets" in str(failure.value)
    assert "set 0, order [0, 1] (given): plum" in str(failure.value)
    assert "set 0, order [1, 0]: fig" in str(failure.value)
    assert_order_invariant(lambda s: max(s, key=len), words, parse=lambda a: None if a == "plum" else 1.0)  # in neither
    with pytest.raises(AssertionError, match="depends on the order"):  # read in one order only
        assert_order_invariant(lambda s: s[0], words, parse=lambda a: None if a == "fig" else 1.0)


def test_a_tolerance_on_the_excess():
    """A coin passes, one that reads the last element now and then does not; the worst ordering is shown."""
    source = np.random.default_rng(0)
    x = source.integers(2, size=(200, 4, 1)).astype(float)

    def predict(weight):
        return lambda e: np.where(source.random(len(e)) < weight, e[:, -1, 0], source.integers(2, size=len(e)))

    options = {"task": "classification", "search": 0}
    with pytest.raises(AssertionError, match="depends on the order"):
        assert_order_invariant(predict(0.0), x)
    assert_order_invariant(predict(0.0), x, excess=0.02, generator=torch.Generator().manual_seed(0), **options)
    assert_order_invariant(predict(0.7), x, excess=0.3, generator=torch.Generator().manual_seed(0), **options)
    with pytest.raises(AssertionError, match=r"adds 0\.\d+ to the flip rate .*allowed 0.05") as failure:
        assert_order_invariant(predict(0.7), x, excess=0.05, generator=torch.Generator().manual_seed(0), **options)
    assert str(failure.value).count("order [") == 2
    assert_order_invariant(lambda e: e[:, -1], np.ones((9, 3, 1)), excess=0)
    numbers = np.random.default_rng(0).standard_normal((60, 4, 1))
    with pytest.raises(AssertionError, match="to the output gap"):
        assert_order_invariant(lambda e: e[:, -1], numbers, excess=0.1)
    with pytest.raises(ao.checks.InputError, match="excess"):
        assert_order_invariant(lambda e: e[:, -1], numbers, excess=-1)


def test_padding(ragged):
    elements, lengths = ragged
    for model in (masked_sum, ao.RecurrentSetModel(2, 3), ao.DeepSets(2, 3)):
        assert_padding_invariant(model, elements, lengths)
    assert_padding_invariant(masked_sum, torch.randint(9, (3, 4, 2)), torch.tensor([4, 2, 1]))

    def numpy_sum(elements, lengths):
        return np.array([e[:n].sum() for e, n in zip(elements, lengths, strict=True)])

    assert_padding_invariant(numpy_sum, np.ones((3, 4, 1)), np.array([4, 2, 0]))

    def multiplied(elements, lengths):  # 0 · NaN is NaN
        return (elements * (torch.arange(elements.shape[1]) < lengths[:, None])[:, :, None]).sum(1)

    assert_padding_invariant(multiplied, elements, lengths, fills=(0.0, 1000.0))
    with pytest.raises(AssertionError, match="padding set to nan"):
        assert_padding_invariant(multiplied, elements, lengths)
    with pytest.raises(AssertionError, match="padding set to 1000"):
        assert_padding_invariant(lambda e, lengths: e.sum(1), elements, lengths)
    with pytest.raises(AssertionError, match="depends on padding"):  # extra zeros are felt
        assert_padding_invariant(lambda e, lengths: masked_sum(e, lengths) + e.shape[1], elements, lengths, fills=(0,))
    full = torch.full((6,), 8)
    with pytest.raises(AssertionError, match="depends on padding"):  # sets without padding get some
        assert_padding_invariant(lambda e, lengths: masked_sum(e, lengths) + (e.shape[1] > 8), elements, full)
    with pytest.raises(AssertionError) as failure:  # the batch is felt
        assert_padding_invariant(
            lambda e, lengths: masked_sum(e, lengths) - masked_sum(e, lengths).mean(0), elements, lengths
        )
    assert "alone: [0.0, 0.0]" in str(failure.value)


def test_padding_refusals(ragged):
    for model, lengths in ((masked_sum, None), (lambda e: e.sum(1), ragged[1])):
        with pytest.raises(ao.checks.InputError, match="lengths"):
            assert_padding_invariant(model, ragged[0], lengths)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_chunks(kind, ragged):
    first, second = kind(2, 5, num_layers=2, batch_first=True), kind(2, 5, num_layers=2)
    assert_chunking_invariant(first, *ragged)
    assert_chunking_invariant(second, ragged[0].transpose(0, 1), ragged[1])
    assert_chunking_invariant(known.sum(), ragged[0][:, :, :1])


def test_chunks_of_sets_whose_padding_holds_anything(ragged):
    elements, lengths = ragged
    padding = (torch.arange(8) >= lengths[:, None])[:, :, None]
    assert_chunking_invariant(ao.RecurrentSetModel(2, 3), elements.masked_fill(padding, float("nan")), lengths)
    embedded = ao.RecurrentSetModel(1, 3, embedding=(9, 4, "learned"))
    assert_chunking_invariant(embedded, torch.randint(9, (6, 8, 1)).masked_fill(padding, -1), lengths)


def test_chunk_failure_shows_both_outputs(ragged):
    class Forgetful(type(known.sum())):
        """Forgets the state that it should go on from."""

        def scan_encoded(self, elements, lengths=None, *, state=None, **options):
            scale = 1.0 if state is None or not state.any() else self.scale
            return super().scan_encoded(scale * elements, lengths, state=None, **options)

    r = known.sum()
    r.__class__, r.scale = Forgetful, 1.0
    with pytest.raises(AssertionError) as failure:
        assert_chunking_invariant(r, torch.ones(1, 4, 1), chunks=(2,))
    assert str(failure.value) == (
        "the output depends on the chunks (largest difference 2, allowed 1e-05)\n"
        "  set 0, all at once: [4.0]\n"
        "  set 0, in chunks of 2: [2.0]"
    )
    r.scale = float("nan")
    with pytest.raises(AssertionError, match="depends on the chunks"):
        assert_chunking_invariant(r, torch.ones(1, 4, 1), chunks=(2,))
    with pytest.raises(ao.checks.InputError, match="chunks must be"):
        assert_chunking_invariant(r, torch.ones(1, 4, 1), chunks=(0,))
