from __future__ import annotations

import pickle
import re
import resource
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from anyorder.deploy.save import tensors_from_bytes, tensors_to_bytes
from anyorder.models import MODELS
from anyorder.recurrences.trajectory import tree_leaves

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


def test_a_reset_is_of_all_streams_and_leaves_the_model_alone():
    model = recurrent()
    before = [parameter.clone() for parameter in model.parameters()]
    fresh = ao.Stream(model, streams=3)
    at_first = fresh.value()
    fresh.reset()
    fresh.update(torch.randn(3, 4, D))
    fresh.reset()
    assert fresh.seen.tolist() == [0, 0, 0]
    assert torch.equal(fresh.value(), at_first)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


def test_a_reset_is_of_the_streams_named_alone():
    stream = ao.Stream(recurrent(), streams=3)
    for index, seen in (
        ([], [2, 2, 2]),
        ([-1, 0], [0, 2, 0]),
        (1, [2, 0, 2]),
        (np.array([True, False, True]), [0, 2, 0]),
    ):
        stream.reset()
        stream.update(torch.ones(3, 2, D))
        stream.reset(index)
        assert stream.seen.tolist() == seen
    for index in ([5], [0, -4]):
        with pytest.raises(InputError, match=r"index must be from 0 to 2, of 3 streams; got \["):
            stream.reset(index)
    for index in ([0.5], torch.tensor([True]), [True] * 4):
        with pytest.raises(InputTypeError, match="index must be whole numbers, or a mask of all 3 streams; got"):
            stream.reset(index)
    with pytest.raises(InputTypeError, match="index must be numbers of streams or a mask of them; got 'all'"):
        stream.reset("all")
    assert stream.seen.tolist() == [0, 2, 0]


def test_streams_of_one_keep_their_axis_and_hand_out_their_counts():
    stream = ao.Stream(recurrent(), streams=1)
    stream.update(torch.ones(1, 2, D))
    assert stream.value().shape == (1, 2)
    stream.seen.add_(5)
    assert stream.seen.tolist() == [2]


def test_a_chunk_that_is_refused_half_way_is_not_taken_at_all(monkeypatch):
    from anyorder.deploy import stream as streaming

    monkeypatch.setattr(streaming, "_PIECE", 4)
    elements = torch.ones(10, D)
    elements[9] = float("nan")
    stream, several = ao.Stream(recurrent()), ao.Stream(recurrent(), streams=2)
    before = stream.value(), several.value()
    with pytest.raises(InputError, match="must be finite"):
        stream.update(elements)
    with pytest.raises(InputError, match="must be finite"):
        several.update(elements.expand(2, 10, D), [10, 3])
    assert torch.equal(stream.value(), before[0])
    assert torch.equal(several.value(), before[1])
    assert (stream.seen, several.seen.tolist()) == (0, [0, 0])


def test_a_model_in_double_precision_is_fed_in_it():
    model = recurrent().double().eval()
    elements = torch.randn(6, D, dtype=torch.float64)
    stream = ao.Stream(model)
    stream.update(elements)
    with torch.no_grad():
        torch.testing.assert_close(stream.value(), model(elements[None])[0], atol=1e-12, rtol=1e-12)


def test_a_first_chunk_of_a_batch_makes_as_many_streams():
    model = recurrent().eval()
    elements = torch.randn(4, 5, D)
    stream = ao.Stream(model)
    stream.update(elements[:, :3], [3, 1, 0, 2])
    stream.update(elements[:, 3])
    stream.update(elements[:, 4:])
    assert stream.seen.tolist() == [5, 3, 2, 4]
    with torch.no_grad():
        torch.testing.assert_close(stream.value()[0], model(elements)[0], atol=1e-6, rtol=1e-6)


def test_dropout_is_off_in_a_stream_and_the_model_goes_on_training():
    model = recurrent(cell="lstm", layers=2).train()
    model.encoder.eval()
    stream = ao.Stream(model)
    stream.update(torch.randn(5, D))
    assert torch.equal(stream.value(), stream.value())
    assert model.training
    assert model.readout.dropout.training
    assert not model.encoder.training


def test_a_stream_keeps_no_graph_and_hands_out_copies():
    stream = ao.Stream(recurrent())
    stream.update(torch.randn(5, D, requires_grad=True))
    assert not any(leaf.requires_grad for leaf in tree_leaves(stream._state))
    r = ao.Stream(ao.known.sum())
    r.update([1.0])
    r.value().add_(100)
    assert r.value().item() == 1


@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is a POSIX call")
def test_memory_does_not_grow_with_what_has_gone_by():
    stream = ao.Stream(ao.RecurrentSetModel(512, 2, hidden=6))
    stream.update(torch.randn(5000, 512))
    small = len(stream.snapshot())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(8):
        stream.update(torch.ones(5000, 512))  # ten megabytes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes
    assert len(stream.snapshot()) == small < 1000
    assert stream.seen == 45_000


def test_long_chunks_are_read_in_pieces_that_change_nothing(monkeypatch):
    from anyorder.deploy import stream as streaming

    model = recurrent(cell="lstm").eval()
    elements = torch.randn(3, 50, D)
    lengths = torch.tensor([50, 17, 0])
    monkeypatch.setattr(streaming, "_PIECE", 7)
    stream = ao.Stream(model, streams=3)
    stream.update(elements, lengths)
    with torch.no_grad():
        torch.testing.assert_close(stream.value(), model(elements, lengths), atol=1e-6, rtol=1e-6)


def test_numbers_lists_and_integers_are_taken():
    stream = ao.Stream(ao.known.sum())
    stream.update([1])
    stream.update(np.array([[2.0], [3.0]]))
    stream.update(torch.tensor([4], dtype=torch.int32))
    assert stream.value().tolist() == [10]


def test_an_embedding_reads_integers():
    model = ao.RecurrentSetModel(1, 2, hidden=4, embedding=(10, 3, "learned")).eval()
    stream = ao.Stream(model)
    stream.update([3])
    stream.update([[4], [5]])
    with torch.no_grad():
        torch.testing.assert_close(stream.value(), model(torch.tensor([[[3], [4], [5]]]))[0])


def test_a_state_of_whole_numbers_does_not_round_the_elements():
    start = torch.zeros(1, 1, dtype=torch.int64)
    above = ao.recurrence(lambda element, state: state + (element > 0.5).long(), start=start)
    stream = ao.Stream(above)
    stream.update(torch.tensor([[0.7], [0.9], [0.2]]))
    assert stream.value().tolist() == [2]


def test_a_state_keeps_its_dtype_in_a_snapshot():
    thirds = ao.recurrence(lambda element, state: state.double() + element.double() / 3, start=torch.zeros(1, 1))
    stream = ao.Stream(thirds)
    stream.update(torch.rand(10, 1))
    again = ao.Stream.restore(thirds, stream.snapshot())
    assert again.value().dtype == torch.float64
    assert torch.equal(again.value(), stream.value())


def test_a_part_that_trains_by_itself_drops_nothing_and_goes_on_training():
    model = recurrent().eval()
    model.readout.train()
    stream = ao.Stream(model)
    stream.update(torch.randn(5, D))
    assert torch.equal(stream.value(), stream.value())
    assert [model.training, model.readout.dropout.training] == [False, True]


def test_a_stream_may_be_made_and_fed_in_inference_mode():
    model, elements = recurrent(), torch.randn(3, D)
    with torch.inference_mode():
        stream = ao.Stream(model)
        stream.update(elements[0])
    stream.update(elements[1])
    assert stream.seen == 2
    with torch.inference_mode():
        stream.update(elements[2])
    stream.reset()
    assert stream.seen == 0
    torch.testing.assert_close(stream.value(), ao.Stream(model).value())


def test_other_cells_stream_too():
    product = ao.recurrence(lambda element, state: {"p": state["p"] * element}, start={"p": torch.ones(1, 1)})
    stream = ao.Stream(product)
    stream.update([[2.0], [5.0]])
    stream = ao.Stream.restore(product, stream.snapshot())
    stream.update([3.0])
    assert stream.value()["p"].tolist() == [30]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_streams_or_is_refused_with_the_reason(name):
    model = MODELS[name](D, 2)
    if model.streams:
        ao.Stream(model)
    else:
        with pytest.raises(InputError, match=f"{type(model).__name__} cannot stream: it looks at the whole set"):
            ao.Stream(model)


def test_models_that_need_the_whole_set_are_refused():
    with pytest.raises(InputError, match="DeepSets cannot stream"):
        ao.Stream(ao.DeepSets(D, 2, equivariant=True))
    with pytest.raises(InputError, match="averages over 5 orderings of the whole set"):
        ao.Stream(recurrent(orderings=5))
    with pytest.raises(InputTypeError, match="takes a set model or a Recurrence; got function"):
        ao.Stream(lambda x: x)


def test_wrong_shapes_are_refused_and_leave_the_stream_as_it_was():
    stream, several = ao.Stream(recurrent()), ao.Stream(recurrent(), streams=2)
    stream.update(torch.ones(D))
    before = stream.value()
    for bad, message in [
        (torch.ones(1, 1, D), r"an element has shape \[D\], a chunk \[n, D\]"),
        (torch.ones(D + 1), "must have 3 features"),
        ([1.0, float("nan"), 0.0], "must be finite"),
    ]:
        with pytest.raises(InputError, match=message):
            stream.update(bad)
    stream.update([])  # no elements
    assert torch.equal(stream.value(), before)
    assert stream.seen == 1
    with pytest.raises(InputError, match=r"of 2 streams, elements have shape \[2, D\]"):
        several.update(torch.ones(3, D))
    with pytest.raises(InputError, match="lengths must be 2 whole numbers from 0 to 1"):
        several.update(torch.ones(2, D), [1, 2])
    with pytest.raises(InputError, match=r"lengths must be 2 whole numbers from 0 to 5; got \[1.5, 2.5\]"):
        several.update(torch.ones(2, 5, D), [1.5, 2.5])
    assert several.seen.tolist() == [0, 0]
    first = ao.Stream(recurrent())
    with pytest.raises(InputError, match="must have 3 features"):
        first.update(torch.ones(4, 5, D + 1))
    first.update(torch.ones(D))  # one stream, since the four were refused
    assert first.seen == 1
    with pytest.raises(InputError, match=r"lengths must be 2 whole numbers from 0 to 1; got \[1, -1\]"):
        several.update(torch.ones(2, D), [1, -1])
    with pytest.raises(InputError, match="lengths are for several streams"):
        stream.update(torch.ones(2, D), [2])
    with pytest.raises(InputError, match="streams must be at least 1"):
        ao.Stream(recurrent(), streams=0)


def test_snapshots_of_others_are_refused():
    model = recurrent()
    snapshot = ao.Stream(model).snapshot()
    with pytest.raises(InputError, match="taken with other weights"):
        ao.Stream.restore(recurrent(cell="rnn"), snapshot)
    other = recurrent()
    with torch.no_grad():
        next(other.parameters()).add_(1)
    with pytest.raises(InputError, match="taken with other weights"):
        ao.Stream.restore(other, snapshot)
    with pytest.raises(InputError, match="not a snapshot of a stream"):
        ao.Stream.restore(model, tensors_to_bytes({"w": torch.ones(1)}))
    with pytest.raises(InputError, match="damaged"):
        ao.Stream.restore(model, snapshot[:-1])
    with pytest.raises(InputError, match="pickle or a zip"):
        ao.Stream.restore(model, pickle.dumps([1]))
    with pytest.raises(InputTypeError, match="a snapshot is bytes"):
        ao.Stream.restore(model, "text")


def test_a_snapshot_of_another_pooling_is_refused_and_one_of_an_earlier_version_is_not():
    mean, largest = ao.DeepSets(D, 2, phi=(4,), pooling="mean"), ao.DeepSets(D, 2, phi=(4,), pooling="max")
    largest.load_state_dict(mean.state_dict())
    stream = ao.Stream(mean)
    stream.update(torch.randn(5, D))
    with pytest.raises(InputError, match="taken with another pooling: 'mean' there, 'max' here"):
        ao.Stream.restore(largest, stream.snapshot())
    tensors, metadata = tensors_from_bytes(stream.snapshot())
    del metadata["stream"]["built"]  # as it was once written
    assert torch.equal(ao.Stream.restore(mean, tensors_to_bytes(tensors, metadata)).value(), stream.value())


def test_a_snapshot_with_the_wrong_state_is_refused():
    from anyorder.deploy.stream import _fingerprint

    model = recurrent()
    forged = tensors_to_bytes(
        {"state_0": torch.ones(1, 99), "seen": torch.zeros(1, dtype=torch.int64)},
        {"stream": {"streams": None, "model": _fingerprint(model)}},
    )
    with pytest.raises(InputError, match=r"does not fit this model: state_0 must have shape \[1, 6\]"):
        ao.Stream.restore(model, forged)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"state_0": torch.ones(1, 6).double()}, "state_0 must be torch.float32, it is torch.float64; take it again"),
        ({"state_0": torch.full((1, 6), float("nan"))}, "state_0 holds NaN or an infinite value; start the stream"),
        ({"state_0": torch.full((1, 6), -float("inf"))}, "state_0 holds NaN or an infinite value; start the stream"),
        ({"seen": torch.tensor([-1])}, "it does not count the elements seen"),
        ({"seen": torch.tensor([0.5])}, "it does not count the elements seen"),
    ],
)
def test_a_snapshot_of_numbers_that_no_stream_holds_is_refused(changed, message):
    model = recurrent()
    tensors, metadata = tensors_from_bytes(ao.Stream(model).snapshot())
    with pytest.raises(InputError, match=f"the snapshot is damaged: {message}"):
        ao.Stream.restore(model, tensors_to_bytes({**tensors, **changed}, metadata))


def test_an_earlier_snapshot_has_a_state_of_the_models_kind():
    model = recurrent()
    tensors, metadata = tensors_from_bytes(ao.Stream(model).snapshot())
    del metadata["stream"]["dtypes"]  # as it was once written
    ao.Stream.restore(model, tensors_to_bytes(tensors, metadata))
    tensors["state_0"] = tensors["state_0"].long()
    with pytest.raises(InputError, match=r"state_0 must be torch\.float32, it is torch\.int64"):
        ao.Stream.restore(model, tensors_to_bytes(tensors, metadata))


def test_a_snapshot_keeps_the_infinities_a_recurrence_starts_from_and_the_precision_it_ran_in():
    largest = ao.recurrence(torch.maximum, start=torch.full((1, 1), -float("inf")))
    assert ao.Stream.restore(largest, ao.Stream(largest).snapshot()).value().item() == -float("inf")
    stream = ao.Stream(recurrent(cell="rnn"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stream.update(torch.ones(2, D))
    assert torch.equal(tree_leaves(ao.Stream.restore(stream.model, stream.snapshot())._state)[0], stream._state)


@pytest.mark.parametrize("streams", [10**12, 3])
def test_a_snapshot_that_speaks_of_other_streams_is_refused_before_room_is_made(streams):
    model = recurrent()
    tensors, metadata = tensors_from_bytes(ao.Stream(model, streams=2).snapshot())
    metadata["stream"]["streams"] = streams
    with pytest.raises(InputError, match=f"does not hold the {streams} streams it speaks of"):
        ao.Stream.restore(model, tensors_to_bytes(tensors, metadata))


def test_the_page_on_streaming_runs():
    page = Path(__file__).parents[2] / "docs" / "streaming.md"
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
