"""Recurrences with a scan of their own, states that one has already, and steps that return an output too."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyorder as ao
from anyorder.checks import InputError

NAN = float("nan")
LAWS: dict[str, Any] = {
    "random": ao.SIRE(),
    "given": ao.SIRE(prefixes="given"),
    "window": ao.SIRE(window=1),
    "ties": ao.SIRE(ties=True),
    "batch": ao.SIRE(prefixes="random", partners="batch"),
    "stopped": ao.SIRE(through_states=False),
    "subset": ao.SubsetPenalty(),
    "permutation": ao.PermutationPenalty(),
}


class Decay(nn.Module):
    """s' = a(x) s + b(x), with all states at once by the matrix of products of a; it counts its scans."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.maps, self.drop, self.scans = nn.Linear(2, 6), nn.Dropout(dropout), 0

    def coefficients(self, elements: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.drop(self.maps(elements)).chunk(2, -1)
        return a.sigmoid(), b

    def forward(self, element: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.coefficients(element)
        new = a * state + b
        return new.sum(1, keepdim=True) + element[:, :1], new

    def scan(self, elements: Tensor, lengths: Tensor | None, state: Tensor) -> Tensor:
        assert elements.isfinite().all(), "padding is filled"
        self.scans += 1
        a, b = self.coefficients(elements)
        total = a.log().cumsum(1)
        within = torch.ones(elements.shape[1], elements.shape[1]).tril().bool()[:, :, None]
        products = (total[:, :, None] - total[:, None]).masked_fill(~within, -math.inf).exp()
        states = total.exp() * state[:, None] + (products * b[:, None]).sum(2)
        return torch.cat([state[:, None], states], 1)


def pair(dropout: float = 0.0) -> tuple[Decay, ao.Recurrence, ao.Recurrence]:
    block, start = Decay(dropout).double(), nn.Parameter(torch.randn(1, 3, dtype=torch.float64))
    return block, ao.recurrence(block, start, scan=block.scan), ao.recurrence(block, start)


def ragged() -> tuple[Tensor, Tensor]:
    return ao.pad([torch.randn(n, 2, dtype=torch.float64) for n in (5, 0, 3, 1, 4)], value=NAN)


def test_a_scan_of_ones_own_gives_the_states_of_the_loop() -> None:
    block, own, loop = pair()
    elements, lengths = ragged()
    for state in (None, torch.randn(5, 3, dtype=torch.float64)):
        one, other = (r.scan(elements, lengths, state=state) for r in (own, loop))
        for name in ("last", "states", "output", "start"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name))
    gradients = torch.autograd.grad(one.output.sum(), list(block.parameters()))
    assert all(g.isfinite().all() for g in gradients)
    assert block.scans == 2
    assert own.scan(elements[:, :0]).last.shape == (5, 3)
    assert set(own.state_dict()) == set(loop.state_dict())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("continued", [False, True])
def test_every_law_uses_the_scan_and_has_the_loops_value_and_gradient(law: str, continued: bool) -> None:
    block, own, loop = pair()
    elements, lengths = ragged()
    state = torch.full((5, 3), 9.0, dtype=torch.float64) if continued else None
    options = {"ties": torch.zeros(5, 5)} if law == "ties" else {}
    found = []
    for r in (own, loop):
        block.scans = 0
        trajectory = r.scan(elements, lengths, state=state)
        value = LAWS[law](trajectory, generator=torch.Generator().manual_seed(0), **options)
        gradients = torch.autograd.grad(value, list(r.parameters()), allow_unused=True)
        found.append((value, [torch.zeros(()) if g is None else g for g in gradients]))
        expected = 1 if law in ("given", "window", "ties") else 2  # the pass, and one over prefixes or orderings
        assert block.scans == (expected if r is own else 0)
    assert found[0][0] > 0
    torch.testing.assert_close(*found)


def test_dropout_of_a_scan_enters_the_pass_and_no_penalty() -> None:
    block, own, _ = pair(dropout=0.5)
    elements = torch.randn(4, 6, 2, dtype=torch.float64)
    assert not torch.equal(own.scan(elements).last, own.scan(elements).last)
    assert not own.scan(elements).repeatable
    values = [ao.SIRE()(own, elements, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    assert values[0] == values[1]
    assert block.drop.training
    states = own.scan(elements).states
    assert not ao.Trajectory.of(states, elements, step=block).repeatable
    own.eval()
    assert own.scan(elements).repeatable
    assert ao.Trajectory.of(states, elements, step=block).repeatable
    with torch.autocast("cpu", torch.bfloat16):
        assert not own.scan(elements).repeatable
    one_shot = ao.recurrence(lambda e, s: block(e, s), torch.zeros(1, 3), scan=block.train().scan)
    assert not one_shot.scan(elements).repeatable, "the scan's module is known, though the step's is not"
    assert any(p is block.maps.weight for p in one_shot.parameters())


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ao.recurrence(nn.GRU(2, 3), scan=lambda x, n, s: x), "scan"),
        (lambda: ao.recurrence(nn.GRUCell(2, 3), scan=lambda x, n, s: x), "scan"),
        (lambda: ao.recurrence(ao.known.sum(), scan=lambda x, n, s: x), "scan"),
        (lambda: of_scan(lambda x, n, s: s), "states"),
        (lambda: of_scan(lambda x, n, s: x.cumsum(1)), "states"),
        (lambda: of_scan(lambda x, n, s: x.new_zeros(3, 6, 4)), "scan"),
        (lambda: of_scan(lambda x, n, s: {"h": x.new_zeros(3, 6, 2)}), "scan"),
        (lambda: ao.Trajectory.of(torch.zeros(3, 5, 2), torch.zeros(3, 5, 2), step=lambda e, s: s), "states"),
        (lambda: ao.Trajectory.of((), torch.zeros(3, 5, 2), step=lambda e, s: s), "states"),
        (lambda: ao.Trajectory.of(torch.zeros(3, 6, 2), torch.zeros(3, 5, 2), [9, 0, 0], step=lambda e, s: s), "leng"),
    ],
)
def test_states_of_another_form_get_one_clear_error(make, named: str) -> None:
    with pytest.raises(InputError, match=named):
        make()


def of_scan(scan: Any) -> ao.Trajectory:
    return ao.recurrence(lambda e, s: s + e, torch.zeros(1, 2), scan=scan).scan(torch.zeros(3, 5, 2))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("given", ["function", "recurrence", "module"])
def test_states_that_one_has_already_are_penalised_as_those_of_a_scan(law: str, given: str) -> None:
    block, own, loop = pair()
    elements, lengths = ragged()
    whole = own.scan(elements, lengths)
    states = torch.cat([whole.states, torch.zeros(5, 0, 3, dtype=torch.float64)], 1)
    states[1, 1:] = NAN  # beyond the end of an empty set, which is not read
    step: Any = {"function": lambda e, s: block(e, s), "recurrence": loop, "module": block}[given]
    t = ao.Trajectory.of(states, elements, lengths, step=step)
    torch.testing.assert_close(t.last, whole.last)
    torch.testing.assert_close(t.output, whole.output)
    options = {"ties": torch.zeros(5, 5)} if law == "ties" else {}
    values = [LAWS[law](s, generator=torch.Generator().manual_seed(0), **options) for s in (t, whole)]
    torch.testing.assert_close(*values)
    one, other = (torch.autograd.grad(value, block.maps.weight, retain_graph=True)[0] for value in values)
    torch.testing.assert_close(one, other)


def test_states_of_a_torch_module_and_states_without_gradients_can_be_given() -> None:
    gru, elements = nn.GRU(2, 3, batch_first=True), torch.randn(4, 5, 2)
    with torch.no_grad():
        states = torch.cat([torch.zeros(4, 1, 3), gru(elements)[0]], 1)
        t = ao.Trajectory.of(states, elements, step=gru)
    value = ao.SIRE(prefixes="given")(t, generator=torch.Generator().manual_seed(0))
    expected = ao.SIRE(prefixes="given")(gru, elements, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(value, expected)
    value.backward()
    assert gru.weight_hh_l0.grad.abs().sum() > 0


def test_a_step_may_return_an_output_beside_its_state() -> None:
    def step(element: Tensor, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        total = state["total"] + element
        return {"mean": total / (state["count"] + 1), "last": element[:, 0]}, {
            "total": total,
            "count": state["count"] + 1,
        }

    r = ao.recurrence(step, start={"total": torch.zeros(1, 2), "count": torch.zeros(1, 1)})
    x = torch.randn(3, 4, 2)
    lengths = torch.tensor([4, 0, 2])
    x[1], x[2, 2:] = NAN, NAN
    x.requires_grad_()
    t = r.scan(x, lengths)
    torch.testing.assert_close(t.output["mean"], torch.stack([x[0].mean(0), torch.zeros(2), x[2, :2].mean(0)]))
    torch.testing.assert_close(t.output["last"], torch.stack([x[0, 3, 0], torch.zeros(()), x[2, 1, 0]]))
    (t.output["mean"].sum() + t.output["last"].sum()).backward()
    assert x.grad.isfinite().all()
    assert (x.grad[1] == 0).all()
    assert r.scan(x[:, :0].detach()).output["mean"].tolist() == [[0.0, 0.0]] * 3
    assert set(t.last) == {"total", "count"}
    assert ao.SIRE(of="total")(r, x, lengths).item() < 1e-9
    assert ao.order_gap(r, x.detach()[[0, 2], :2]) > 0.1  # of the output, in which the last element is


def test_a_result_of_the_starts_structure_is_a_state_and_not_an_output() -> None:
    r = ao.recurrence(lambda e, s: (s[0] + e, s[1] * e), start=(torch.zeros(1, 1), torch.ones(1, 1)))
    t = r.scan(torch.tensor([[[2.0], [3.0]]]))
    assert [leaf.item() for leaf in t.last] == [5.0, 6.0]
    assert t.output is t.last
    nested = ao.recurrence(lambda e, s: (s, (s[0] + e, s[1])), start=(torch.zeros(1, 1), torch.ones(1, 2)))
    with pytest.raises(InputError, match="state that step returns"):
        ao.recurrence(lambda e, s: (e, s, s), start=torch.zeros(1, 1)).scan(torch.zeros(2, 3, 1))
    assert [leaf.shape for leaf in nested.scan(torch.zeros(2, 3, 1)).output] == [(2, 1), (2, 2)]
