"""How far a proof reaches, and what it may cost."""

import pytest
import torch

import anyorder as ao
from anyorder.checks import InputError
from anyorder.recurrences import known

BITS = torch.tensor([[0.0], [1.0]])


def test_a_counterexample_among_states_that_go_on_does_not_close() -> None:
    digits = ao.recurrence(lambda element, state: 10 * state + element, start=torch.zeros(1, 1))
    proof = ao.certify(digits, BITS, max_length=3)
    assert proof.counterexample is not None
    assert not proof.closed


def test_swaps_that_commute_need_no_list_of_multisets() -> None:
    """A sum of 1,500 bits has more than a million multisets up to that length."""
    proof = ao.certify(known.sum(), BITS, max_length=1500)
    assert (proof.invariant, proof.closed, proof.states_visited) == (True, False, 1501)


def test_as_many_states_as_max_states_are_allowed() -> None:
    assert ao.certify(known.sum(), BITS, max_length=4, max_states=5).states_visited == 5
    with pytest.raises(InputError, match="max_states"):
        ao.certify(known.sum(), BITS, max_length=4, max_states=4)
