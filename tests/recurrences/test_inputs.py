"""Packed sequences, nested tensors and masks in place of elements and lengths; modules inside wrappers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence

import anyorder as ao
from anyorder.checks import InputError, InputTypeError

SIZES = [3, 5, 1, 4]


def forms(sets: list[Tensor]) -> dict[str, Any]:
    elements, lengths = ao.pad(sets)
    return {
        "packed": pack_sequence(sets, enforce_sorted=False),
        "packed time first": pack_padded_sequence(elements.transpose(0, 1), lengths, enforce_sorted=False),
        "jagged": torch.nested.as_nested_tensor(sets, layout=torch.jagged),
    }


FORMS = list(forms([torch.zeros(1, 2)]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_scan_a_penalty_and_a_gap_read_them_as_the_padded_batch(form: str, batch_first: bool) -> None:
    sets = [torch.randn(n, 2).requires_grad_() for n in SIZES]
    gru = nn.GRU(2, 4, batch_first=batch_first)
    padded, lengths = ao.pad(sets)
    given, r = forms(sets)[form], ao.recurrence(gru)
    padded = padded if batch_first else padded.transpose(0, 1)
    one, other = r.scan(given), r.scan(padded, lengths)
    assert torch.equal(one.last, other.last)
    assert one.lengths.tolist() == SIZES
    for measure in (ao.SIRE(), ao.SIRE(window=1), ao.SubsetPenalty(), ao.order_gap):
        values = [
            measure(gru, *batch, generator=torch.Generator().manual_seed(0)) for batch in ((given,), (padded, lengths))
        ]
        assert values[0] == values[1] > 0
    gradients = [torch.autograd.grad(t.last.square().sum(), sets) for t in (one, other)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_and_given_states_take_them_too(form: str) -> None:
    sets = [torch.randn(n, 2) for n in SIZES]
    model, (padded, lengths), given = ao.RecurrentSetModel(2, 1), ao.pad(sets), forms(sets)[form]
    for measure in (ao.SIRE(), ao.order_gap):
        values = [
            measure(model, *batch, generator=torch.Generator().manual_seed(0))
            for batch in ((given,), (padded, lengths))
        ]
        assert values[0] == values[1]
    states = torch.nn.functional.pad(padded.cumsum(1), (0, 0, 1, 0))
    t = ao.Trajectory.of(states, given, step=lambda element, state: state + element)
    torch.testing.assert_close(t.last, torch.stack([each.sum(0) for each in sets]))


def test_a_nested_tensor_may_hold_empty_sets_and_whole_numbers() -> None:
    nested = torch.nested.nested_tensor([torch.tensor([[1], [2]]), torch.zeros(0, 1).long()], layout=torch.jagged)
    t = ao.recurrence(lambda element, state: state + element, start=torch.zeros(1, 1).long()).scan(nested)
    assert t.last.tolist() == [[3], [0]]


@pytest.mark.parametrize("form", FORMS)
def test_lengths_beside_what_carries_them_are_refused(form: str) -> None:
    given = forms([torch.randn(n, 2) for n in SIZES])[form]
    with pytest.raises(InputError, match="lengths"):
        ao.recurrence(nn.GRU(2, 4)).scan(given, torch.tensor(SIZES))
    flat = {"jagged": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)}
    with pytest.raises(InputError, match="elements"):
        ao.SIRE()(nn.GRU(2, 4), flat.get(form, pack_sequence([torch.zeros(3), torch.zeros(2)])))


@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_a_mask_given_as_lengths_is_told_what_to_write(shape: tuple[int, ...]) -> None:
    gru, elements, mask = nn.GRU(2, 4, batch_first=True), torch.zeros(3, 5, 2), torch.ones(shape).bool()
    calls = (ao.recurrence(gru).scan, lambda *batch: ao.SIRE()(gru, *batch), lambda *batch: ao.order_gap(gru, *batch))
    for call in calls:
        with pytest.raises(InputTypeError, match=r"lengths .* mask\.sum\(1\)"):
            call(elements, mask)
    ao.recurrence(gru).scan(elements, torch.ones(3, 5).bool().sum(1))


@pytest.fixture
def process_group():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


WRAPPERS = {
    "compiled": torch.compile,
    "data parallel": nn.DataParallel,
    "distributed": DistributedDataParallel,
    "both": lambda module: torch.compile(DistributedDataParallel(module)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_module_behind_a_wrapper_is_read(wrapper: str, process_group) -> None:
    elements = torch.randn(4, 5, 2)
    gru, model, cell = nn.GRU(2, 4, batch_first=True), ao.RecurrentSetModel(2, 1), nn.GRUCell(2, 4)
    wrap = WRAPPERS[wrapper]
    assert ao.recurrence(wrap(gru)).module is gru
    assert ao.recurrence(wrap(cell)).module is cell
    own = ao.recurrence(wrap(model.recurrence))
    assert own is model.recurrence
    for subject in (gru, cell, model):
        for measure in (ao.SIRE(), ao.SubsetPenalty(), ao.order_gap):
            values = [
                measure(each, elements, generator=torch.Generator().manual_seed(0)) for each in (subject, wrap(subject))
            ]
            assert values[0] == values[1]


@pytest.mark.parametrize("wrap", [lambda module: module, torch.compile, nn.DataParallel])
def test_a_bidirectional_module_is_refused_with_the_reason(wrap) -> None:
    module, elements = wrap(nn.LSTM(2, 4, bidirectional=True, batch_first=True)), torch.zeros(3, 5, 2)
    calls = (ao.recurrence, lambda m: ao.SIRE()(m, elements), lambda m: ao.order_gap(m, elements))
    for call in calls:
        with pytest.raises(InputError, match=r"LSTM .* bidirectional .* both ends"):
            call(module)
