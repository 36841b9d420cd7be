"""Our own passes of a GRU and an LSTM on a CPU are torch's: the same states and gradients."""

import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder.recurrences.kernels import gru, lstm
from anyorder.recurrences.kernels import scan as packed
from anyorder.recurrences.trajectory import tree_leaves

SIZES = [5, 5, 4, 4, 2, 1]  # the samples of each step; a sixth sample has no element at all


class Kind:
    """One of the two: its scan as (rows of states, last states), each a list, from a list of first states."""

    def __init__(self, module, layer, gates, leaves):
        self.module, self.layer, self.gates, self.leaves = module, layer, gates, leaves

    def scan(self, rows, first, weights):
        return packed.scan(self.module, rows, SIZES, first, weights)

    def by_cell(self, rows, first, weights):
        """The same pass, a cell and a step at a time."""
        last, steps = [list(leaf) for leaf in first], []
        state = first
        for part in rows.split(SIZES):
            before = [leaf[: len(part)] for leaf in state]
            after = (
                torch.lstm_cell(part, before, *weights) if self.leaves > 1 else torch.gru_cell(part, *before, *weights)
            )
            state = list(after) if self.leaves > 1 else [after]
            steps.append(state)
            for kept, leaf in zip(last, state, strict=True):
                kept[: len(part)] = list(leaf)
        return [torch.cat(leaves) for leaves in zip(*steps, strict=True)], [torch.stack(leaves) for leaves in last]

    def problem(self, bias=True, seed=0):
        """Packed rows, first states and weights, in double precision."""
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

        wide = self.gates * 4
        weights = [draw(wide, 3), draw(wide, 4), *([draw(wide), draw(wide)] if bias else [])]
        return draw(sum(SIZES), 3), [draw(6, 4) for _ in range(self.leaves)], weights


GRU, LSTM = Kind(gru, nn.GRU, 3, 1), Kind(lstm, nn.LSTM, 4, 2)


@pytest.fixture(params=[GRU, LSTM], ids=["gru", "lstm"])
def kind(request):
    return request.param


@pytest.mark.parametrize("stretch", [1, 60, 2**18], ids=["a step", "a few steps", "all steps"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("read", ["states", "last", "both"])
def test_states_and_gradients_are_those_of_the_cell(monkeypatch, kind, stretch, bias, read):
    monkeypatch.setattr(packed, "STRETCH", stretch)
    rows, first, weights = kind.problem(bias)
    found, expected = [], []
    for results, scan in [(found, kind.scan), (expected, kind.by_cell)]:
        states, last = scan(rows, first, weights)
        loss = sum((leaf**2).sum() for leaf in states) * (read != "last")
        loss = loss + sum((leaf**3).sum() for leaf in last) * (read != "states")
        results += [*states, *last, *torch.autograd.grad(loss, [rows, *first, *weights])]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_right_and_second_derivatives_refused(kind, bias):
    rows, first, weights = kind.problem(bias)

    def run(*tensors):
        states, last = kind.scan(tensors[0], tensors[1 : 1 + kind.leaves], tensors[1 + kind.leaves :])
        return *states, *last

    assert torch.autograd.gradcheck(run, (rows, *first, *weights))
    (gradient,) = torch.autograd.grad(run(rows, *first, *weights)[0].square().sum(), rows, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("still", ["rows", "first", "weights"])
def test_what_needs_no_gradient_gets_none_and_changes_nothing_else(kind, still):
    rows, first, weights = kind.problem()
    inputs = [rows, *first, *weights]
    full = torch.autograd.grad(kind.scan(rows, first, weights)[0][0].sum(), inputs)
    for tensor in {"rows": [rows], "first": first, "weights": weights}[still]:
        tensor.requires_grad_(False)
    kind.scan(rows, first, weights)[0][0].sum().backward()
    for tensor, gradient in zip(inputs, full, strict=True):
        assert tensor.grad is None if not tensor.requires_grad else torch.equal(tensor.grad, gradient)


def test_the_two_biases_have_gradients_that_can_be_changed_apart():
    recurrence = ao.recurrence(nn.LSTM(3, 4, batch_first=True))
    end, _ = recurrence.scan(torch.randn(2, 5, 3)).last
    one, other = torch.autograd.grad(end.sum(), [recurrence.module.bias_ih_l0, recurrence.module.bias_hh_l0])
    before = other.clone()
    one.zero_()
    assert torch.equal(other, before)
    assert before.abs().max() > 0


@pytest.mark.parametrize("layers", [1, 2])
def test_states_of_a_pass_made_for_the_last_alone_can_still_be_had(layers):
    recurrence = ao.recurrence(nn.LSTM(3, 4, layers, batch_first=True).double())
    elements, weights = torch.randn(5, 7, 3, dtype=torch.float64), list(recurrence.parameters())
    found = []
    for last_alone in (False, True):
        states = recurrence.scan_encoded(elements, last_alone=last_alone).states
        found.append([*states, *torch.autograd.grad(sum((leaf**2).sum() for leaf in states), weights)])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_transformed_and_half_precision_passes_are_left_to_torch(kind):
    model = ao.RecurrentSetModel(3, 1, cell=ao.recurrence(kind.layer(3, 4, batch_first=True)))
    elements, parameters = torch.randn(2, 5, 3), dict(model.named_parameters())
    transformed = torch.func.grad(lambda p: torch.func.functional_call(model, p, (elements,)).sum())(parameters)
    model(elements).sum().backward()
    torch.testing.assert_close(transformed, {name: parameter.grad for name, parameter in parameters.items()})
    with torch.autograd.forward_ad.dual_level():
        assert not packed.applies(elements)
    with torch.autocast("cpu", dtype=torch.float16):
        assert not packed.applies(elements)


@pytest.mark.parametrize("lengths", [None, torch.tensor([9, 0, 4, 1, 9])])
def test_under_autocast_products_are_rounded_and_states_are_not(kind, lengths):
    recurrence, elements = ao.recurrence(kind.layer(3, 16, batch_first=True)), torch.randn(5, 9, 3)
    weights = list(recurrence.parameters())

    def states_and_gradients(dtype):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            scanned = recurrence.scan(elements.to(dtype), lengths)
        states = torch.cat([leaf.flatten(1) for leaf in tree_leaves(scanned.states)], 1)
        assert states.dtype == scanned.elements.dtype == torch.float32
        return [states, *torch.autograd.grad(states.square().sum(), weights)]

    for exact, close in zip(*map(states_and_gradients, (torch.float32, torch.bfloat16)), strict=True):
        assert 0 < (close - exact).norm() < 0.02 * exact.norm()


def test_under_autocast_small_changes_of_a_state_add_up():
    """One step moves the state by less than bfloat16 can tell from nothing, so that torch's kernel stands still."""
    recurrence = ao.recurrence(nn.GRU(1, 2, batch_first=True))
    with torch.no_grad():
        for parameter in recurrence.parameters():
            parameter.zero_()
        recurrence.module.bias_ih_l0.copy_(torch.tensor([0.0, 0.0, 7.0, 7.0, 3.0, 3.0]))  # keep .999 of the state
    elements = torch.ones(1, 1000, 1)
    with torch.autocast("cpu", torch.bfloat16):
        ours = recurrence.scan(elements).last
        with torch.no_grad():
            torchs = recurrence.scan(elements).last
    exact = recurrence.scan(elements).last
    torch.testing.assert_close(ours, exact, rtol=0.01, atol=0)
    assert torchs.max() < 0.8 * exact.max()
