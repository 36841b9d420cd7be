"""Streams: any chunks give what the whole set gives, and snapshots continue."""

from __future__ import annotations

import resource
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from anyorder.files import tensors_from_bytes, tensors_to_bytes
from anyorder.models import MODELS

D = 3


def recurrent(**options):
    torch.manual_seed(0)
    model = ao.RecurrentSetModel(D, 2, hidden=6, dropout=0.5, **options)
    for name, parameter in model.named_parameters():
        if "start" in name:
            nn.init.normal_(parameter)
    return model


STREAMING = {
    "gru": lambda: recurrent(),
    "lstm": lambda: recurrent(cell="lstm", encoder=(5,), readout=(4,)),
    "rnn": lambda: recurrent(cell="rnn", learned_start=False),
    "relu-rnn": lambda: recurrent(cell="relu-rnn"),
    "deep lstm": lambda: recurrent(cell="lstm", layers=3),
    "fold": lambda: recurrent(cell="fold", layers=2, readout=(4,), bilinear=2),
    "deep gru": lambda: recurrent(layers=2),
    "relu": lambda: recurrent(cell="relu", state_features=4),
    "in own units": lambda: MODELS["standardised"](D, 2).set_units([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 7.0, 0.5),
    "deepsets sum": lambda: ao.DeepSets(D, 2, phi=(5,)),
    "deepsets mean": lambda: ao.DeepSets(D, 2, phi=(5,), pooling="mean"),
    "deepsets max": lambda: ao.DeepSets(D, 2, phi=(5,), pooling="max"),
}


def chunks(total, cuts):
    edges = sorted({0, total, *(c % (total + 1) for c in cuts)})
    return pairwise(edges)


@pytest.mark.parametrize("name", STREAMING)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(total=st.integers(0, 20), cuts=st.lists(st.integers(0, 100), max_size=6), again=st.integers(0, 5))
def test_any_chunks_give_what_the_whole_set_gives(name, total, cuts, again):
    model = STREAMING[name]()
    elements = torch.randn(total, D, generator=torch.Generator().manual_seed(total))
    stream = ao.Stream(model)
    for number, (begin, end) in enumerate(chunks(total, cuts)):
        one = end - begin == 1
        stream.update(elements[begin] if one else elements[begin:end])
        if number == again:
            stream = ao.Stream.restore(model, stream.snapshot())
    with torch.no_grad():
        expected = model.eval()(elements[None], torch.tensor([total]))[0]
    torch.testing.assert_close(stream.value(), expected, atol=1e-6, rtol=1e-6)
    assert stream.seen == total


@pytest.mark.parametrize("name", STREAMING)
def test_streams_side_by_side_do_not_touch_each_other(name):
    model = STREAMING[name]().eval()
    generator = torch.Generator().manual_seed(1)
    elements = torch.randn(4, 9, D, generator=generator)
    together, alone = ao.Stream(model, streams=4), [ao.Stream(model) for _ in range(4)]
    for begin, end in ((0, 1), (1, 5), (5, 9)):
        lengths = torch.tensor([end - begin, 0, 1, (begin + end) % 2])
        chunk = elements[:, begin:end].clone()
        for row, length in enumerate(lengths):
            alone[row].update(chunk[row, :length])
            chunk[row, length:] = float("nan")
        together.update(chunk, lengths)
    assert together.seen.tolist() == [s.seen for s in alone] == [9, 0, 3, 1]
    torch.testing.assert_close(together.value(), torch.stack([s.value() for s in alone]), atol=1e-6, rtol=1e-6)
    together.update(elements[:, 0])
    alone[2].update(elements[2, 0])
    torch.testing.assert_close(together.value()[2], alone[2].value(), atol=1e-6, rtol=1e-6)
    together.reset([0, 2])
    assert together.seen.tolist() == [0, 1, 0, 2]
    torch.testing.assert_close(together.value()[0], ao.Stream(model).value())
    restored = ao.Stream.restore(model, together.snapshot())
    assert torch.equal(restored.value(), together.value())
    assert restored.seen.tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_a_model_with_units_takes_them_out_before_it_rounds(kind):
    """Near 2³¹ float32 tells apart only every 128th whole number."""
    model = MODELS["standardised"](1, 2).set_units([2.0**31], [100.0]).eval()
    steps = np.array([[3.0], [-40.0], [77.0]])
    stream = ao.Stream(model)
    stream.update((2.0**31 + steps).astype(kind))
    expected = model.inner(torch.tensor(steps / 100, dtype=torch.float32)[None])[0]
    torch.testing.assert_close(stream.value(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(model(torch.tensor(2.0**31 + steps)[None])[0], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("index", "seen"),
    [
        (None, [0, 0, 0]),
        ([], [2, 2, 2]),
        ([-1, 0], [0, 2, 0]),
        (1, [2, 0, 2]),
        (np.array([True, False, True]), [0, 2, 0]),
        (torch.tensor([False, True, True]), [2, 0, 0]),
    ],
)
def test_a_reset_is_of_the_streams_named_alone(index, seen):
    model = recurrent()
    before = [parameter.clone() for parameter in model.parameters()]
    stream = ao.Stream(model, streams=3)
    first = stream.value()
    stream.update(torch.ones(3, 2, D))
    stream.reset(index)
    assert stream.seen.tolist() == seen
    assert (stream.value() == first).all(1).tolist() == [count == 0 for count in seen]
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


def test_a_long_chunk_is_read_as_one_and_refused_as_one():
    model = recurrent().eval()
    elements = torch.randn(2, 5000, D)
    lengths = torch.tensor([5000, 17])
    stream = ao.Stream(model, streams=2)
    stream.update(elements, lengths)
    with torch.no_grad():
        torch.testing.assert_close(stream.value(), model(elements, lengths), atol=1e-6, rtol=1e-6)
    before = stream.value()
    elements[0, 4999] = float("nan")
    with pytest.raises(InputError, match="elements"):
        stream.update(elements, lengths)
    assert torch.equal(stream.value(), before)
    assert stream.seen.tolist() == [5000, 17]


@pytest.mark.parametrize("model", [recurrent().double(), ao.RecurrentSetModel(1, 2, embedding=(10, 3, "learned"))])
def test_elements_are_read_in_the_models_dtype(model):
    elements = torch.randn(6, D, dtype=torch.float64) if model.in_features == D else torch.tensor([[3], [4], [5]])
    stream = ao.Stream(model)
    stream.update(elements[0].tolist())
    stream.update(elements[1:].numpy())
    with torch.no_grad():
        torch.testing.assert_close(stream.value(), model.eval()(elements[None])[0], atol=1e-6, rtol=1e-6)


def test_dropout_is_off_in_a_stream_and_the_model_goes_on_training():
    for model, mode in ((recurrent(layers=2).train(), True), (recurrent().eval(), False)):
        model.readout.train()
        model.encoder.eval()
        stream = ao.Stream(model)
        stream.update(torch.randn(5, D))
        assert torch.equal(stream.value(), stream.value())
        assert [model.training, model.readout.dropout.training, model.encoder.training] == [mode, True, False]


def test_a_stream_keeps_no_graph_and_hands_out_copies():
    stream = ao.Stream(ao.known.sum())
    stream.update(torch.ones(5, 1, requires_grad=True))
    assert not stream.value().requires_grad
    stream.value().add_(100)
    assert stream.value().item() == 5
    stream = ao.Stream(recurrent(), streams=1)  # of one stream, which keeps its axis
    stream.update(torch.ones(1, 2, D))
    assert stream.value().shape == (1, 2)
    stream.seen.add_(5)
    assert stream.seen.tolist() == [2]


@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is a POSIX call")
def test_memory_does_not_grow_with_the_elements():
    stream = ao.Stream(ao.RecurrentSetModel(512, 2, hidden=6))
    stream.update(torch.randn(5000, 512))
    small = len(stream.snapshot())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(8):
        stream.update(torch.ones(5000, 512))  # ten megabytes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes
    assert len(stream.snapshot()) == small < 1000
    assert stream.seen == 45_000


def test_a_state_keeps_its_dtype_and_does_not_round_the_elements():
    start = torch.zeros(1, 1, dtype=torch.int64)
    above = ao.recurrence(lambda element, state: state + (element > 0.5).long(), start=start)
    thirds = ao.recurrence(lambda element, state: state.double() + element.double() / 3, start=torch.zeros(1, 1))
    for recurrence, dtype in ((above, torch.int64), (thirds, torch.float64)):
        stream = ao.Stream(recurrence)
        stream.update(torch.tensor([[0.7], [0.9], [0.2]]))
        again = ao.Stream.restore(recurrence, stream.snapshot())
        assert again.value().dtype == dtype
        assert again.value().item() == pytest.approx(2 if dtype == torch.int64 else 0.6)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_streams_or_is_refused(name):
    model = MODELS[name](D, 2)
    if model.streams:
        ao.Stream(model)
    else:
        with pytest.raises(InputError, match=f"{type(model).__name__} cannot stream"):
            ao.Stream(model)
    for whole in (ao.DeepSets(D, 2, equivariant=True), recurrent(orderings=5), lambda x: x):
        with pytest.raises(InputError, match="cannot stream"):
            ao.Stream(whole)
    with pytest.raises(InputError, match="streams"):
        ao.Stream(recurrent(), streams=0)


@pytest.mark.parametrize(
    ("streams", "chunk", "lengths", "match"),
    [
        (None, torch.ones(1, 1, D), None, "elements"),  # after the first chunk
        (None, torch.ones(D + 1), None, "features"),
        (None, [1.0, float("nan"), 0.0], None, "finite"),
        (2, torch.ones(3, D), None, "elements"),
        (2, torch.ones(2, D), [1, 2], "lengths"),
        (2, torch.ones(2, D), [1, -1], "lengths"),
        (2, torch.ones(2, 5, D), [1.5, 2.5], "lengths"),
    ],
)
def test_wrong_chunks_are_refused_and_leave_the_stream_as_it_was(streams, chunk, lengths, match):
    stream = ao.Stream(recurrent(), streams=streams)
    stream.update(torch.ones(D) if streams is None else torch.ones(streams, D))
    before = stream.value()
    with pytest.raises((InputError, InputTypeError), match=match):
        stream.update(chunk, lengths)
    stream.update(torch.ones(0, D) if streams is None else torch.ones(2, 0, D))  # no elements
    assert torch.equal(stream.value(), before)
    assert (stream.seen == 1) if streams is None else (stream.seen.tolist() == [1, 1])


def other_weights(model):
    with torch.no_grad():
        next(model.parameters()).add_(1)
    return model


def same_weights(model, other):
    other.load_state_dict(model.state_dict())
    return other


MEAN = ao.DeepSets(D, 2, phi=(4,), pooling="mean")
FOREIGN = {
    "another cell": lambda: (recurrent(cell="rnn"), ao.Stream(recurrent()).snapshot()),
    "other weights": lambda: (other_weights(recurrent()), ao.Stream(recurrent()).snapshot()),
    "another pooling": lambda: (
        same_weights(MEAN, ao.DeepSets(D, 2, phi=(4,), pooling="max")),
        ao.Stream(MEAN).snapshot(),
    ),
    "no snapshot": lambda: (recurrent(), tensors_to_bytes({"w": torch.ones(1)})),
    "another state": lambda: (recurrent(), forged(state_0=torch.full((1, 99), float("nan")))),
    "another count": lambda: (recurrent(), forged(seen=torch.tensor([-1]))),
}


def forged(**tensors):
    saved, metadata = tensors_from_bytes(ao.Stream(recurrent()).snapshot())
    return tensors_to_bytes({**saved, **tensors}, metadata)


@pytest.mark.parametrize("case", FOREIGN)
def test_snapshots_that_are_foreign_or_damaged_are_refused(case):
    model, snapshot = FOREIGN[case]()
    with pytest.raises(InputError, match="snapshot"):
        ao.Stream.restore(model, snapshot)


def test_a_snapshot_keeps_the_infinities_a_recurrence_starts_from_and_the_precision_it_ran_in():
    largest = ao.recurrence(torch.maximum, start=torch.full((1, 1), -float("inf")))
    assert ao.Stream.restore(largest, ao.Stream(largest).snapshot()).value().item() == -float("inf")
    stream = ao.Stream(recurrent(cell="rnn"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stream.update(torch.ones(2, D))
    assert ao.Stream.restore(stream.model, stream.snapshot()).snapshot() == stream.snapshot()


@pytest.mark.parametrize("streams", [None, 3])
def test_static_features_are_joined_when_the_value_is_read(streams):
    model = ao.RecurrentSetModel(D, 2, hidden=8, static_features=2).eval()
    elements, static = torch.randn(3, 5, D), torch.randn(3, 2)
    stream = ao.Stream(model, streams)
    stream.update(elements if streams else elements[0])
    with torch.no_grad():
        expected = model(elements, static=static)
    value = stream.value(static if streams else static[0].tolist())
    torch.testing.assert_close(value, expected if streams else expected[0], atol=1e-6, rtol=1e-6)
    with pytest.raises(InputError, match="static"):
        stream.value()
