import copy
from collections import namedtuple

import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from anyorder.recurrences.torch_modules import NativeRecurrence
from anyorder.recurrences.trajectory import tree_leaves, tree_map
from problems import RECURRENCES, end, make

LENGTHS = torch.tensor([3, 6, 0, 1, 5])
NAMES = list(RECURRENCES)


def ragged_batch(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    elements = torch.randn(5, 6, 2, dtype=dtype)
    with_nan = elements.clone()
    for row, length in zip(with_nan, LENGTHS, strict=True):
        row[length:] = float("nan")
    return elements, with_nan


@pytest.mark.parametrize("name", NAMES)
def test_scan_agrees_with_single_steps_whatever_stands_in_the_padding(name: str) -> None:
    r = make(name)
    elements, with_nan = ragged_batch()
    t = r.scan(with_nan, LENGTHS)
    for b, length in enumerate(LENGTHS.tolist()):
        for count in range(7):
            alone = end(r, elements[b, : min(count, length)])
            passed = tree_map(lambda leaf, b=b, count=count: leaf[b : b + 1, count], t.states)
            torch.testing.assert_close(passed, alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(t.last, tree_map(lambda leaf: leaf[:, -1], t.states), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_padding_of_nan_changes_no_gradient(name: str) -> None:
    def gradients(elements: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(1)
        r = make(name)
        elements = elements.clone().requires_grad_()
        t = r.scan(elements, LENGTHS)
        total = sum(leaf.square().sum() for leaf in [*tree_leaves(t.last), *tree_leaves(t.states)])
        total.backward()
        return [elements.grad, *(p.grad for p in r.parameters())]

    clean, with_nan = ragged_batch()
    torch.testing.assert_close(gradients(with_nan), gradients(clean), rtol=0, atol=0)
    inside = torch.arange(6) < LENGTHS[:, None]
    assert (gradients(with_nan)[0][~inside] == 0).all()


def test_a_zero_length_ends_where_it_starts() -> None:
    r = make("learned-start")
    t = r.scan(torch.full((2, 3, 2), float("nan"), dtype=torch.float64), torch.tensor([0, 0]))
    torch.testing.assert_close(t.last, r.start(2))
    assert r.scan(torch.zeros(2, 0, 2, dtype=torch.float64)).states.shape == (2, 1, 4)
    fewer_elements_than_sets = r.scan(torch.zeros(3, 4, 2, dtype=torch.float64), torch.tensor([0, 1, 0])).states
    torch.testing.assert_close(fewer_elements_than_sets[[0, 2], -1], r.start(2))


def test_at_takes_one_or_several_counts_a_sample() -> None:
    r = make("lstm-2-layers")
    elements, _ = ragged_batch()
    t = r.scan(elements, LENGTHS)
    index = torch.tensor([[0, 3, 1], [6, 2, 0], [0, 0, 0], [1, 0, 1], [5, 4, 6]])
    for got, states in zip(tree_leaves(t.at(index)), tree_leaves(t.states), strict=True):
        assert got.shape == (5, 3, 2, 4)
        torch.testing.assert_close(got, states[torch.arange(5)[:, None], index])
    torch.testing.assert_close(t.at(LENGTHS), t.last)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_at_takes_whole_numbers_of_any_width(dtype: torch.dtype) -> None:
    t = ao.known.sum().scan(torch.ones(200, 3, 1))
    assert (t.at(torch.full((200,), 2, dtype=dtype)) == 2).all()


def test_dropout_acts_between_layers_in_train_mode_and_never_in_step() -> None:
    r = ao.recurrence(nn.GRU(2, 8, num_layers=2, dropout=0.5, batch_first=True))
    elements = torch.randn(4, 6, 2)
    r.train()
    assert not r.scan(elements).repeatable
    assert not torch.equal(r.scan(elements).last, r.scan(elements).last)
    state = r.start(4)
    assert torch.equal(r.step(elements[:, 0], state), r.step(elements[:, 0], state))
    r.eval()
    assert r.scan(elements).repeatable
    assert torch.equal(r.scan(elements).last, r.scan(elements).last)
    plain = r.scan(elements).last
    masked = r.train().scan(elements).last
    assert torch.equal(masked[:, 0], plain[:, 0])  # nothing is dropped before the first layer
    assert not torch.equal(masked[:, 1], plain[:, 1])


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, element: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return state + nn.functional.dropout(self.weight * element, 0.5, self.training)


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: m.forward])
def test_functional_dropout_of_an_own_module_acts_in_scan_and_not_in_step(wrap) -> None:
    module, elements = FunctionalDropout(), torch.randint(1, 9, (8, 6, 1)).float()
    r = ao.recurrence(wrap(module), start=torch.zeros(1, 1))
    assert len(list(r.parameters())) == 1
    assert not r.scan(elements).repeatable
    assert torch.equal(r.step(elements[:, 0], r.start(8)), elements[:, 0])
    assert module.training
    for penalty in (ao.SIRE(), ao.SIRE(prefixes="given"), ao.SIRE(prefixes="given", window=1), ao.SubsetPenalty()):
        assert penalty(r, elements).item() == 0.0
        assert penalty(r.scan(elements)).item() == 0.0
    assert r.eval().scan(elements).repeatable
    assert ao.recurrence(NormedCell(2, 4), torch.zeros(1, 4)).scan(torch.randn(3, 5, 2)).repeatable


def test_dropout_is_off_where_the_wrapped_module_is_in_eval_mode() -> None:
    gru, elements = nn.GRU(2, 8, num_layers=2, dropout=0.5, batch_first=True), torch.randn(4, 6, 2)
    r = ao.recurrence(gru)
    gru.eval()
    assert r.scan(elements).repeatable
    assert torch.equal(r.scan(elements).last, r.scan(elements).last)
    gru.train()
    assert not r.scan(elements).repeatable
    with pytest.warns(UserWarning, match="dropout"):
        one_layer = nn.GRU(2, 8, dropout=0.5, batch_first=True)  # has no layers to drop between
    assert ao.recurrence(one_layer).scan(elements).repeatable


def test_it_owns_what_it_wraps() -> None:
    r = ao.recurrence(nn.GRUCell(2, 4), start=nn.Parameter(torch.zeros(1, 4)))
    assert sum(p.numel() for p in r.parameters()) == 4 + sum(p.numel() for p in nn.GRUCell(2, 4).parameters())
    other = copy.deepcopy(r)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    other.load_state_dict(r.state_dict())
    elements = torch.randn(2, 3, 2)
    assert torch.equal(other.scan(elements).last, r.scan(elements).last)
    assert r.double().start(3).dtype == torch.float64
    method = ao.recurrence(nn.GRUCell(2, 4).forward, start=torch.zeros(1, 4))
    assert len(list(method.parameters())) == 4


class NormedCell(nn.GRUCell):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.norm = nn.LayerNorm(sizes[1])

    def forward(self, element: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        return self.norm(super().forward(element, state))


def counted(cell: nn.Module) -> nn.Module:
    cell.register_forward_hook(lambda module, inputs, output: tree_map(lambda leaf: leaf + 1, output))
    return cell


def replaced(cell: nn.Module) -> nn.Module:
    cell.forward = lambda element, state, forward=cell.forward: forward(element, state) + 1
    return cell


@pytest.mark.parametrize(
    "cell",
    [
        NormedCell(2, 4),
        replaced(nn.GRUCell(2, 4)),
        counted(nn.GRUCell(2, 4)),
        counted(nn.LSTMCell(2, 4)),
        nn.utils.spectral_norm(nn.GRUCell(2, 4), "weight_hh").eval(),
        nn.utils.parametrizations.weight_norm(nn.GRUCell(2, 4), "weight_hh"),
    ],
)
def test_a_cells_own_forward_and_hooks_are_run(cell: nn.RNNCellBase) -> None:
    start = (torch.zeros(1, 4), torch.zeros(1, 4)) if isinstance(cell, nn.LSTMCell) else torch.zeros(1, 4)
    r, elements = ao.recurrence(cell, start), torch.randn(3, 5, 2)
    for _ in range(2):  # the second time, after the weights have moved
        state = r.start(3)
        for element in elements.unbind(1):
            state = cell(element, state)
        torch.testing.assert_close(r.scan(elements).last, state)
        with torch.no_grad():
            for p in r.parameters():
                p.mul_(3)


def test_a_parametrised_module_runs_on_the_native_kernel() -> None:
    gru = nn.utils.parametrizations.weight_norm(nn.GRU(2, 4, batch_first=True), "weight_hh_l0")
    r, elements = ao.recurrence(gru), torch.randn(3, 5, 2)
    assert isinstance(r, NativeRecurrence)
    with torch.no_grad():
        gru.parametrizations.weight_hh_l0.original0.mul_(5)
    torch.testing.assert_close(r.scan(elements).last, gru(elements)[1][0])


class Shifted(nn.GRU):
    def forward(self, *inputs):
        return tree_map(lambda leaf: leaf + 1, super().forward(*inputs))


class Starter(nn.Module):
    """A learned start, called as a module or through its method."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(1, 4))
        self.inner = ao.recurrence(nn.GRUCell(2, 4), start=self.begin)

    def begin(self, batch: int) -> torch.Tensor:
        return self.first.expand(batch, -1)

    forward = begin


def test_a_start_that_is_a_module_is_owned_and_a_modules_method_makes_no_circle() -> None:
    starter = Starter()
    owning = ao.recurrence(lambda element, state: state + element.sum(), start=starter)
    assert any(p is starter.first for p in owning.parameters())
    assert set(starter.eval().double().state_dict()) == {"first", *(f"inner.{k}" for k in starter.inner.state_dict())}
    assert starter.inner.scan(torch.ones(3, 4, 2).double()).last.shape == (3, 4)


@pytest.mark.parametrize("look", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["lstm-2-layers", "gru", "own-dict-turned"])
def test_a_look_without_gradients_costs_no_later_gradient(name: str, look) -> None:
    r, (elements, _) = make(name), ragged_batch()

    def gradients(looked: bool) -> list[torch.Tensor]:
        r.zero_grad()
        t = r.scan(elements, LENGTHS)
        if looked:
            with look():
                assert not any(leaf.requires_grad for leaf in tree_leaves(t.states))
        sum(leaf.square().sum() for leaf in tree_leaves(t.states)).backward()
        return [p.grad.clone() for p in r.parameters()]

    torch.testing.assert_close(gradients(False), gradients(True), rtol=0, atol=0)
    with torch.no_grad():
        t = r.scan(elements, LENGTHS)
    assert not any(leaf.requires_grad for leaf in tree_leaves(t.states))


def test_gradients_of_scan_pass_gradcheck() -> None:
    r = make("lstm-2-layers")
    elements, _ = ragged_batch()

    def ends(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        t = r.scan(x, LENGTHS)
        return tuple(tree_leaves(t.last) + tree_leaves(t.at(torch.tensor([1, 4, 0, 1, 2]))))

    assert torch.autograd.gradcheck(ends, (elements.requires_grad_(),))


def test_tree_map_keeps_named_tuples_lists_and_dicts() -> None:
    Pair = namedtuple("Pair", "left right")
    state = {"a": Pair(torch.ones(1), [torch.zeros(1)])}
    doubled = tree_map(lambda x: 2 * x, state)
    assert isinstance(doubled["a"], Pair)
    assert doubled["a"].left.item() == 2.0
    assert isinstance(doubled["a"].right, list)


GRU = nn.GRU(2, 4, batch_first=True)
TIME_FIRST = ao.recurrence(nn.GRU(2, 4))
OWN = ao.recurrence(lambda element, state: {"h": state["h"] + element}, start={"h": torch.zeros(1, 2)})
X = torch.zeros(3, 5, 2)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda r: r.scan(torch.zeros(3, 5)), InputError, "elements"),
        (lambda r: r.scan([[1.0]]), InputTypeError, "elements"),
        (lambda r: r.scan(torch.zeros(0, 5, 2)), InputError, "elements"),
        (lambda r: r.scan(torch.zeros(3, 5, 0)), InputError, "elements"),
        (lambda r: TIME_FIRST.scan(torch.zeros(5, 0, 2)), InputError, r"elements must be a tensor \[T, B, D\]"),
        (lambda r: r.scan(torch.zeros(3, 5, 7)), InputError, "elements must have 2 features"),
        (lambda r: r.scan(X.double()), InputTypeError, "elements"),
        (lambda r: r.scan(X, torch.tensor([1, -2, 3])), InputError, "lengths"),
        (lambda r: r.scan(X, torch.tensor([1, 2, 6])), InputError, "lengths must be .* T = 5"),
        (lambda r: r.scan(X, torch.tensor([1.0, 2, 3])), InputTypeError, "lengths"),
        (lambda r: r.scan(X, torch.tensor([True] * 3)), InputTypeError, "lengths"),
        (lambda r: r.scan(X, torch.tensor([1, 2])), InputError, "lengths"),
        (lambda r: TIME_FIRST.scan(X, torch.tensor([1, 2, 3])), InputError, "lengths must be 5"),
        (lambda r: TIME_FIRST.scan(X, torch.tensor([1, 2, 3, 4, 4])), InputError, "lengths must be .* T = 3"),
        (lambda r: r.scan(X, state=torch.zeros(2, 4)), InputError, "state must be a state of batch 3"),
        (lambda r: r.scan(X, state=(X[:, 0], X[:, 0])), InputError, "state"),
        (lambda r: OWN.scan(X, state=torch.zeros(3, 2)), InputError, "state"),
        (lambda r: r.scan(X).at(torch.zeros(3)), InputError, "index"),
        (lambda r: r.scan(X).at(torch.tensor([0, 6, 0])), InputError, "index"),
        (lambda r: r.scan(X).at(torch.tensor([0, -1, 0])), InputError, "index"),
        (lambda r: r.scan(X).at(torch.tensor([0, 1])), InputError, "index"),
        (lambda r: r.scan(X).at(torch.tensor([True, False, True])), InputError, "index"),
        (lambda r: r.start(0), InputError, "batch_size"),
        (lambda r: ao.recurrence(lambda e, s: s), InputTypeError, "start="),
        (lambda r: ao.recurrence("gru"), InputTypeError, "recurrence takes"),
        (lambda r: ao.recurrence(nn.GRU), InputTypeError, "recurrence takes"),
        (lambda r: ao.recurrence(r, start=torch.zeros(1, 4)), InputError, "start"),
        (lambda r: ao.recurrence(GRU, start=torch.zeros(2, 4)), InputError, "start"),
        (lambda r: ao.recurrence(GRU, start=(1.0,)), InputError, "start"),
        (lambda r: ao.recurrence(lambda e, s: s, start={}), InputError, "start"),
        (lambda r: ao.recurrence(GRU, start=torch.zeros(1, 5)), InputError, "start"),
        (lambda r: ao.recurrence(GRU, start=torch.zeros(1, 1, 4)), InputError, "start"),
        (lambda r: ao.recurrence(GRU, start=lambda n: torch.zeros(n, 5)).scan(X), InputError, r"start\(batch_size\)"),
        (lambda r: ao.recurrence(lambda e, s: e, start=lambda n: torch.zeros(1, 2)).scan(X), InputError, "start"),
        (lambda r: ao.recurrence(nn.LSTM(2, 4), start=torch.zeros(1, 4)), InputError, "start"),
        (lambda r: ao.recurrence(Shifted(2, 4)), InputError, "Shifted .* forward of its own"),
        (lambda r: ao.recurrence(counted(nn.GRU(2, 4))), InputError, "GRU .* hooks"),
        (lambda r: ao.recurrence(counted(nn.GRUCell(2, 4))), InputTypeError, "start="),
        (lambda r: ao.recurrence(nn.LSTM(2, 4, proj_size=3)), InputError, "proj_size"),
    ],
)
def test_bad_input_gets_one_clear_error(call, error, match) -> None:
    with pytest.raises(error, match=match):
        call(ao.recurrence(GRU))


@pytest.mark.parametrize("step", [lambda e, s: (s, s, s), lambda e, s: s[:1], lambda e, s: {"h": s}, lambda e, s: None])
def test_a_step_that_changes_the_states_form_is_refused(step) -> None:
    with pytest.raises(InputError, match="step"):
        ao.recurrence(step, start=torch.zeros(1, 4)).scan(X)


def test_a_step_may_change_the_dict_it_is_given_but_writes_into_no_tensor() -> None:
    def in_place(element: torch.Tensor, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        state["total"] = state["total"] * 0.5 + element
        return state

    def pure(element: torch.Tensor, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"total": state["total"] * 0.5 + element}

    elements = torch.randn(2, 4, 1)
    one, other = (
        ao.recurrence(step, start={"total": torch.zeros(1, 1)}).scan(elements, torch.tensor([4, 2])).states["total"]
        for step in (in_place, pure)
    )
    assert torch.equal(one, other)
    for step in (lambda e, s: s.add_(e), lambda e, s: s + e.mul_(2), lambda e, s: s.zero_() + e):
        r = ao.recurrence(step, start=lambda batch: torch.zeros(batch, 1))
        with pytest.raises(InputError, match="step"):
            r.scan(elements.clone())
    with torch.inference_mode():
        last = ao.recurrence(pure, start={"total": torch.zeros(1, 1)}).scan(elements).last["total"]
    assert torch.equal(last[0], other[0, -1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused_inside_the_lengths_only(bad: float) -> None:
    r = ao.recurrence(GRU)
    elements = X.clone()
    elements[1, 3, 0] = bad
    with pytest.raises(InputError, match=r"elements must be finite .* set 1 .* position 3"):
        r.scan(elements)
    r.scan(elements, torch.tensor([5, 3, 5]))
    with ao.checks.finite_checks(False):
        r.scan(elements)
    huge = torch.full((2, 3, 2), 3e38)  # finite, though their sum overflows
    r.scan(huge)


def test_a_dict_state_keeps_the_order_of_the_start_state() -> None:
    r = make("own-dict-turned")
    elements, _ = ragged_batch()
    t = r.scan(elements, LENGTHS)
    for state in (t.last, t.states, t.at(LENGTHS), r.step(elements[:, 0], r.start(5))):
        assert list(state) == ["mix", "total"]
    other = {"total": t.last["total"], "mix": t.last["mix"]}  # a caller's own order
    assert list(r.scan(elements, state=other).last) == ["mix", "total"]
    model = ao.RecurrentSetModel(2, 1, cell=r).double()
    beside, alone = model(elements, LENGTHS)[2], model(elements[2:3], LENGTHS[2:3])[0]
    torch.testing.assert_close(beside, alone, rtol=0, atol=1e-12)  # an empty set, which no step has touched


KINDS = [nn.RNN, nn.GRU, nn.LSTM]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_module_is_read_in_its_own_layout(kind: type[nn.RNNBase], layers: int) -> None:
    time_first, batch_first = (kind(2, 4, layers, batch_first=b).double() for b in (False, True))
    batch_first.load_state_dict(time_first.state_dict())
    elements, with_nan = ragged_batch()
    one = ao.recurrence(time_first).scan(with_nan.transpose(0, 1), LENGTHS)
    other = ao.recurrence(batch_first).scan(with_nan, LENGTHS)
    for name in ("last", "states", "lengths", "output"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)
    assert one.elements.shape == (5, 6, 2)
    later = ao.recurrence(time_first).scan(elements.transpose(0, 1), state=one.last)
    assert torch.equal(later.output, ao.recurrence(batch_first).scan(elements, state=other.last).output)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dense_scan_is_the_modules_own(kind, batch_first: bool, layers: int) -> None:
    module, elements = kind(2, 4, layers, batch_first=batch_first), torch.randn(5, 7, 2)
    outputs, last = module(elements)
    outputs = outputs if batch_first else outputs.transpose(0, 1)
    r = ao.recurrence(module)
    t = r.scan(elements)
    torch.testing.assert_close(t.output, outputs[:, -1])
    torch.testing.assert_close(r.output(t.states)[:, 1:], outputs)
    by_layer = tree_map(lambda leaf: leaf.transpose(0, 1) if layers > 1 else leaf[None], t.last)
    torch.testing.assert_close(by_layer, last)


def test_the_output_of_cells_and_own_steps() -> None:
    elements = torch.randn(3, 5, 2)
    t = ao.recurrence(nn.LSTMCell(2, 4)).scan(elements)
    assert t.output is t.last[0]
    t = OWN.scan(elements)
    assert t.output is t.last


@pytest.mark.parametrize("name", ["gru", "lstm-2-layers", "gru-cell", "own-dict"])
def test_a_scan_under_autocast_is_not_repeated_by_steps_outside_it(name: str) -> None:
    r, elements = make(name, torch.float32), torch.randn(3, 5, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert not r.scan(elements).repeatable
    assert r.scan(elements).repeatable
    assert r.scan(elements).recorded
    with torch.no_grad():
        assert not r.scan(elements).recorded
