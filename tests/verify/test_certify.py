"""certify: agrees with enumeration of all sequences, closes, shows counterexamples, and does little work."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder.models import Standardised
from anyorder.recurrences import known
from anyorder.recurrences.trajectory import tree_leaves

BITS = torch.tensor([[0.0], [1.0]])


def enumerate_gap(r, alphabet, length, readout=None):
    """The largest component-wise difference between two orderings of one multiset, over all k^L sequences."""
    ends = defaultdict(list)
    state = r.start(1)
    level = [((), state)]
    for _ in range(length):
        level = [((*word, a), r.step(alphabet[a][None], state)) for word, state in level for a in range(len(alphabet))]
        for word, state in level:
            shown = state if readout is None else readout(state)
            flat = torch.cat([leaf.flatten().double() for leaf in tree_leaves(shown)])
            ends[tuple(sorted(word))].append(flat)
    return max((torch.stack(group).amax(0) - torch.stack(group).amin(0)).max().item() for group in ends.values())


def seeded(module, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_agrees_with_enumeration_on_random_networks(kind, seed):
    r = ao.recurrence(seeded(kind(2, 3, num_layers=1 + seed % 2), seed))
    alphabet = torch.randn(3, 2, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        expected = enumerate_gap(r, alphabet, 4)
    proof = ao.certify(r, alphabet, max_length=4)
    assert proof.max_gap == pytest.approx(expected, rel=1e-5)
    assert proof.invariant is False
    first, second = proof.counterexample
    assert sorted(first.tolist()) == sorted(second.tolist())
    ends = [tree_leaves(r.scan(word[None]).last) for word in proof.counterexample]
    assert max((a - b).abs().max().item() for a, b in zip(*ends, strict=True)) > 0


def automaton(table, start=0):
    """A recurrence that looks its next state up: letters and states are whole numbers."""
    return ao.recurrence(
        lambda element, state: table[state.long()[:, 0], element.long()[:, 0]][:, None].to(state),
        start=torch.full((1, 1), float(start)),
    )


@pytest.mark.parametrize("seed", range(36))
def test_agrees_with_enumeration_on_random_automata(seed):
    generator = torch.Generator().manual_seed(seed)
    states, letters = 2 + seed % 4, 2 + seed % 2
    table = torch.randint(states, (states, letters), generator=generator)
    if seed % 3 == 0:  # a commuting one: every letter adds to the state
        table = (torch.arange(states)[:, None] + torch.randint(states, (letters,), generator=generator)) % states
    r, alphabet = automaton(table), torch.arange(float(letters))[:, None]
    fold = torch.randint(2, (states,), generator=generator).float()
    for readout in (None, lambda state: fold[state.long()]):
        proof = ao.certify(r, alphabet, max_length=6, readout=readout)
        assert proof.max_gap == enumerate_gap(r, alphabet, 6, readout)
        assert proof.invariant == (proof.max_gap == 0) == (proof.counterexample is None)
        if proof.invariant and proof.closed:  # then it holds beyond max_length too
            assert enumerate_gap(r, alphabet, 8 if letters == 2 else 7, readout) == 0
        if proof.counterexample is not None:
            ends = [r.scan(word[None]).last for word in proof.counterexample]
            assert not torch.equal(*(ends if readout is None else map(readout, ends)))
    if seed % 3 == 0:
        assert ao.certify(r, alphabet, max_length=6).closed


@pytest.mark.parametrize(
    ("r", "letters", "length", "states", "says"),
    [
        (known.parity(), [0.0, 1.0], 16, 2, "every length"),
        (known.sum(), [1.0, 2.0, -5.0], 10, None, "up to length 10"),  # which never closes
    ],
)
def test_known_invariants_are_certified_with_few_steps(r, letters, length, states, says):
    proof = ao.certify(r, torch.tensor(letters)[:, None], max_length=length)
    assert proof.invariant
    assert proof.closed == (says == "every length")
    assert (proof.max_gap, proof.counterexample) == (0.0, None)
    assert states in (None, proof.states_visited)
    assert proof.steps <= sum(len(letters) ** m for m in range(1, length + 1)) / 50  # all sequences, prefixes shared
    assert says in str(proof)


def test_closed_needs_room_for_the_swap():
    """A letter that matters only after another: length 2 tells nothing of the swap at depth 1."""
    table = torch.tensor([[1, 1], [2, 3], [2, 3], [3, 2]])  # ab and ba agree from 0, not from 1
    r, alphabet = automaton(table), torch.tensor([[0.0], [1.0]])
    short = ao.certify(r, alphabet, max_length=1)
    assert short.invariant
    assert not short.closed
    assert not ao.certify(r, alphabet, max_length=3).invariant


@pytest.mark.parametrize(
    ("table", "fold"),
    [
        ([[1, 2], [0, 3], [3, 1], [1, 0]], [0.0, 0.0, 0.0, 1.0]),
        ([[3, 5], [4, 5], [0, 4], [0, 4], [3, 1], [1, 5]], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),  # a swap alone never does
    ],
)
def test_states_that_repeat_do_not_close_a_read_out_that_will_disagree(table, fold):
    """All states are known after 3 letters and every read-out agrees so far, yet longer multisets disagree."""
    table, fold = torch.tensor(table), torch.tensor(fold)
    r, alphabet = automaton(table), torch.tensor([[0.0], [1.0]])
    proof = ao.certify(r, alphabet, max_length=3, readout=lambda state: fold[state.long()])
    assert proof.invariant
    assert not proof.closed
    longer = ao.certify(r, alphabet, max_length=8, readout=lambda state: fold[state.long()])
    assert not longer.invariant
    assert longer.closed


@pytest.mark.parametrize("place", [1, 2, 4])
@pytest.mark.parametrize("forgets", [False, True])
def test_a_swap_at_the_very_end_is_seen_and_remembered(place, forgets):
    """The state keeps the element at one place, for good or until the next: the shortest counterexample ends there."""

    def keep(element, state):
        count, kept = state
        return count + 1, torch.where(count == place, element, 0 * kept if forgets else kept)

    r = ao.recurrence(keep, start=(torch.zeros(1, 1), torch.zeros(1, 1)))
    assert ao.certify(r, BITS, max_length=place).invariant
    for longer in (1, 3):
        proof = ao.certify(r, BITS, max_length=place + longer)
        assert proof.max_gap == 1.0
        assert [len(word) for word in proof.counterexample] == [place + 1] * 2


def test_tolerance_and_readout():
    leaky = ao.recurrence(lambda element, state: 0.5 * state + element, start=torch.zeros(1, 1))
    gap = enumerate_gap(leaky, BITS, 5)
    assert ao.certify(leaky, BITS, 5, tolerance=gap).invariant
    refused = ao.certify(leaky, BITS, 5, tolerance=gap - 1e-6)
    assert not refused.invariant
    assert refused.max_gap == gap
    assert ao.certify(leaky, BITS, 5, readout=lambda state: state * 0).invariant
    assert not refused.closed  # its states go on
    shortest = ao.certify(leaky, BITS, 5).counterexample
    assert [len(word) for word in shortest] == [2, 2]
    assert "Order matters: [" in str(ao.certify(leaky, BITS, 5))


def test_zeros_of_both_signs_stay_apart_but_agree():
    """-0.0 equals 0.0 as a number and is another state: 1/s tells them apart one step later."""
    signed = ao.recurrence(
        lambda element, state: torch.where(state == 0, state.new_tensor(-0.0).copysign(element), state),
        start=torch.zeros(1, 1),
    )
    proof = ao.certify(signed, torch.tensor([[1.0], [-1.0]]), max_length=4)
    assert proof.states_visited == 2
    assert proof.invariant
    sign = ao.certify(signed, torch.tensor([[1.0], [-1.0]]), 4, readout=lambda s: torch.copysign(s + 1, s))
    assert not sign.invariant


def test_nested_states_models_and_embeddings():
    model = ao.RecurrentSetModel(2, 3, cell="lstm", hidden=4, layers=2)
    letters = torch.randn(2, 2, generator=torch.Generator().manual_seed(0))
    proof = ao.certify(model, letters, max_length=4)
    recurrence, encoded = model.recurrence, model.encode(letters[None])[0]
    with torch.no_grad():
        assert proof.max_gap == pytest.approx(enumerate_gap(recurrence, encoded, 4), rel=1e-4)
    assert model.training  # evaluated in eval mode, handed back in its own
    read = ao.certify(model, letters, max_length=4, readout=model.readout)
    assert read.max_gap != proof.max_gap


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"alphabet": torch.zeros(2)}, "alphabet"),
        ({"alphabet": torch.zeros(0, 1)}, "alphabet"),
        ({"alphabet": torch.tensor([[float("nan")]])}, "alphabet"),
        ({"max_length": 0}, "max_length"),
        ({"max_states": 0}, "max_states"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"r": print}, "recurrence takes"),
        ({"readout": lambda state: state / 0}, "readout must be finite"),
    ],
)
def test_refusals(change, name):
    arguments = {"r": known.parity(), "alphabet": BITS, **change}
    with pytest.raises((ao.checks.InputError, ao.checks.InputTypeError), match=name):
        ao.certify(**arguments)


class Places(nn.Module):
    """An encoder that weighs an element by its place."""

    def forward(self, x):
        return x * (1 + torch.arange(x.shape[1], dtype=x.dtype))[None, :, None]


@pytest.mark.parametrize("standardised", [False, True])
def test_an_encoder_of_layers_is_trusted_and_any_other_refused(standardised):
    encoder = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    with torch.no_grad():
        encoder[0].weight.fill_(1.0), encoder[0].bias.zero_()
    options = {"cell": known.parity(), "encoder": encoder}
    model = Standardised(1, 1, "recurrent", options) if standardised else ao.RecurrentSetModel(1, 1, **options)
    assert ao.certify(model, BITS).closed
    encoder[0].register_forward_hook(lambda module, inputs, output: output)
    for refused in (
        model,
        ao.RecurrentSetModel(1, 1, cell=known.sum(), encoder=Places()),
        ao.RecurrentSetModel(1, 1, orderings=3),
    ):
        with pytest.raises(ao.checks.InputError, match=r"by itself .*model\.orderings = 1"):
            ao.certify(refused, BITS)


def test_whole_numbers_beyond_those_of_float64_are_compared_exactly():
    large = ao.recurrence(lambda e, s: 3 * s + e, start=torch.full((1, 1), 2**55, dtype=torch.int64))
    bits = torch.tensor([[0], [1]])
    proof = ao.certify(large, bits, max_length=3)
    assert not proof.invariant
    assert proof.max_gap == 8.0  # 100 and 001 in base 3
    counted = ao.recurrence(lambda e, s: s + e, start=torch.full((1, 1), 2**60, dtype=torch.int64))
    assert ao.certify(counted, bits, max_length=3).invariant


def test_too_many_states_and_infinite_states_are_refused():
    digits = ao.recurrence(lambda element, state: 10 * state + element, start=torch.zeros(1, 1))
    with pytest.raises(ao.checks.InputError, match=r"max_states = 100 .*length 7"):
        ao.certify(digits, BITS, max_length=12, max_states=100)
    assert ao.certify(known.sum(), BITS, max_length=4, max_states=5).states_visited == 5  # as many as are allowed
    explosive = ao.recurrence(lambda element, state: state * 1e30 + 1e30, start=torch.ones(1, 1))
    with pytest.raises(ao.checks.InputError, match="must be finite"):
        ao.certify(explosive, BITS, max_length=4)


def test_swaps_that_commute_need_no_list_of_multisets() -> None:
    """A sum of 1,500 bits has more than a million multisets up to that length."""
    proof = ao.certify(known.sum(), BITS, max_length=1500)
    assert (proof.invariant, proof.closed, proof.states_visited) == (True, False, 1501)
