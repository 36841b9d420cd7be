"""The GRU's own pass on a CPU is torch's GRU: the same states, gradients and second derivatives."""

import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder import gru

SIZES = [5, 5, 4, 4, 2, 1]  # the samples of each step; a sixth sample has no element at all


def problem(bias=True, seed=0):
    """Packed rows, first states and the weights of a GRU, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(sum(SIZES), 3, generator=generator, dtype=torch.float64, requires_grad=True)
    first = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    shapes = [(12, 3), (12, 4), *([(12,), (12,)] if bias else [])]
    weights = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    return rows, first, weights


def by_cell(rows, sizes, first, weights):
    """The same pass, a cell and a step at a time."""
    last, steps = list(first), []
    state = first
    for part in rows.split(sizes):
        state = torch.gru_cell(part, state[: len(part)], *weights)
        steps.append(state)
        last[: len(part)] = list(state)
    return torch.cat(steps), torch.stack(last)


@pytest.mark.parametrize("stretch", [1, 60, 2**18], ids=["a step", "a few steps", "all steps"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("read", ["states", "last", "both"])
def test_states_and_gradients_are_those_of_the_cell(monkeypatch, stretch, bias, read):
    monkeypatch.setattr(gru, "STRETCH", stretch)
    rows, first, weights = problem(bias)
    inputs = [rows, first, *weights]
    found, expected = [], []
    for results, scan in [(found, gru.scan), (expected, by_cell)]:
        states, last = scan(rows, SIZES, first, weights)
        loss = (states**2).sum() * (read != "last") + (last**3).sum() * (read != "states")
        results += [states, last, *torch.autograd.grad(loss, inputs)]
    for ours, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-12)


def test_an_output_nobody_reads_costs_no_gradient_of_its_own():
    rows, first, weights = problem()
    states, _ = gru.scan(rows, SIZES, first, weights)
    of_states = torch.autograd.grad(states.sum(), weights)
    states, last = gru.scan(rows, SIZES, first, weights)
    both = torch.autograd.grad(states.sum() + 0 * last.sum(), weights)
    assert all(torch.equal(a, b) for a, b in zip(of_states, both, strict=True))


@pytest.mark.parametrize("bias", [True, False])
def test_first_and_second_derivatives_are_right(bias):
    rows, first, weights = problem(bias)

    def run(*tensors):
        return gru.scan(tensors[0], SIZES, tensors[1], tensors[2:])

    assert torch.autograd.gradcheck(run, (rows, first, *weights))
    assert torch.autograd.gradgradcheck(run, (rows, first, *weights))


def chained(scan, rows, first, weights):
    """A scan that goes on from the states of another, by the same weights."""
    return scan(rows, SIZES, scan(rows * 2, SIZES, first, weights)[1], weights)[1]


def tied(scan, rows, first, weights):
    """Two layers of the same weights."""
    states = scan(rows, SIZES, first, weights)[0]
    return scan(states[:, :3], SIZES, first, weights)[1]


@pytest.mark.parametrize("network", [chained, tied])
def test_inputs_that_depend_on_the_weights_are_not_counted_twice(network):
    rows, first, weights = problem()
    inputs = [rows, first, *weights]
    found, expected = [], []
    for results, scan in [(found, gru.scan), (expected, by_cell)]:
        once = torch.autograd.grad((network(scan, rows, first, weights) ** 3).sum(), inputs, create_graph=True)
        twice = torch.autograd.grad(sum((gradient**2).sum() for gradient in once), inputs)
        results += [*once, *twice]
    for ours, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradgradcheck(lambda *tensors: network(gru.scan, rows, first, tensors), weights)


@pytest.mark.parametrize("still", ["rows", "first", "weights"])
def test_what_needs_no_gradient_gets_none_and_changes_nothing_else(still):
    rows, first, weights = problem()
    full = torch.autograd.grad(gru.scan(rows, SIZES, first, weights)[0].sum(), [rows, first, *weights])
    fixed = {"rows": [rows], "first": [first], "weights": weights}[still]
    for tensor in fixed:
        tensor.requires_grad_(False)
    states, _ = gru.scan(rows, SIZES, first, weights)
    states.sum().backward()
    for tensor, gradient in zip([rows, first, *weights], full, strict=True):
        assert tensor.grad is None if not tensor.requires_grad else torch.equal(tensor.grad, gradient)


def test_a_recurrence_learns_by_it_and_predicts_by_torch(monkeypatch):
    calls = []
    own = gru.scan
    monkeypatch.setattr(gru, "scan", lambda *arguments: calls.append(1) or own(*arguments))
    recurrence = ao.recurrence(nn.GRU(3, 4, num_layers=2))
    elements, lengths = torch.randn(5, 7, 3), torch.tensor([7, 3, 0, 7, 1])
    learning = recurrence.scan(elements, lengths).last
    assert len(calls) == 2  # a layer each
    with torch.no_grad():
        predicting = recurrence.scan(elements, lengths).last
    assert len(calls) == 2
    torch.testing.assert_close(learning.detach(), predicting, rtol=1e-6, atol=1e-6)


def test_transformed_and_mixed_precision_passes_are_left_to_torch():
    recurrence = ao.recurrence(nn.GRU(3, 4))
    elements = torch.randn(2, 5, 3)
    parameters = dict(recurrence.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(_Last(recurrence), parameters, (elements,)).sum()

    transformed = torch.func.grad(loss)({f"recurrence.{name}": p for name, p in parameters.items()})
    recurrence.scan(elements).last.sum().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(transformed[f"recurrence.{name}"], parameter.grad)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(elements, torch.ones_like(elements))
        assert torch.autograd.forward_ad.unpack_dual(recurrence.scan(dual).last).tangent is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not gru.applies(elements)


class _Last(nn.Module):
    def __init__(self, recurrence):
        super().__init__()
        self.recurrence = recurrence

    def forward(self, elements):
        return self.recurrence.scan(elements).last
