"""What a penalty compares and how it sums up: of=, weights, counts, spread, reduction, penalties of one's own."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from problems import make

LAWS: dict[str, Any] = {
    "random": ao.SIRE(),
    "given": ao.SIRE(prefixes="given", pairs=2),
    "window": ao.SIRE(window=1),
    "batch": ao.SIRE(partners="batch"),
    "ties": ao.SIRE(ties=True),
    "subset": ao.SubsetPenalty(),
    "permutation": ao.PermutationPenalty(),
}
SIZES = [4, 0, 2, 3, 1]


def value(penalty: ao.Penalty, r: Any, elements: Tensor, lengths: Tensor | None = None, **options: Any) -> Tensor:
    if getattr(penalty, "ties", None):
        options["ties"] = torch.zeros(elements.shape[:2])
    return penalty(r, elements, lengths, generator=torch.Generator().manual_seed(0), **options)


def ragged(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return ao.pad([torch.randn(size, 2, dtype=dtype) for size in SIZES], value=float("nan"))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("relative", [True, False])
def test_a_value_a_set_and_counts_make_the_mean_whatever_the_weights(law: str, relative: bool) -> None:
    r, (elements, lengths), penalty = make("gru"), ragged(), replace(LAWS[law], relative=relative, pairs=8)
    single = replace(penalty, reduction="none")
    values = value(single, r, elements, lengths)
    assert values.shape == (5,)
    assert single.counts.tolist() == [1, 0, 1, 1, 0]
    assert (values[single.counts == 0] == 0).all()
    assert (values[single.counts == 1] > 0).all()
    torch.testing.assert_close(value(penalty, r, elements, lengths), values.sum() / 3)
    assert penalty.counts.tolist() == [1, 0, 1, 1, 0]
    weights = torch.tensor([1.0, 7.0, 0.0, 3.0, 2.0])
    expected = (values * weights).sum() / 4  # those of sets without a pair do not count
    torch.testing.assert_close(value(penalty, r, elements, lengths, weights=weights), expected)
    torch.testing.assert_close(value(penalty, r, elements, lengths, weights=100 * weights), expected)
    assert value(penalty, r, elements, lengths, weights=torch.zeros(5)) == 0


@pytest.mark.parametrize("law", LAWS)
def test_values_of_sets_have_finite_gradients_though_their_padding_is_nan(law: str) -> None:
    r, (elements, lengths) = make("gru"), ragged()
    value(replace(LAWS[law], reduction="none"), r, elements.requires_grad_(), lengths).sum().backward()
    assert elements.grad.isfinite().all()
    assert (elements.grad[1] == 0).all()
    assert all(p.grad.isfinite().all() for p in r.parameters())
    value(replace(LAWS[law], reduction="none"), r, elements, torch.zeros(5, dtype=torch.int64)).sum().backward()


@pytest.mark.parametrize("law", ["random", "given", "subset"])
def test_the_spread_of_a_larger_batch_makes_parts_add_up_to_the_whole(law: str) -> None:
    """Sets of two elements have one pair, and swapping it either way is the same: nothing is left to chance."""
    r, penalty = make("gru"), replace(LAWS[law], pairs=1)
    if law == "subset":
        penalty = ao.SIRE(window=1)
    sizes = [2, 0, 2, 1, 2, 2, 1]
    elements, lengths = ao.pad([torch.randn(size, 2, dtype=torch.float64) for size in sizes])
    whole = penalty(r, elements, lengths)
    spread = penalty.spread(r.scan(elements, lengths).last)
    parts, counts = [], 0
    for rows in (slice(0, 1), slice(1, 4), slice(4, 7)):
        part = replace(penalty, reduction="none")
        parts.append(part(r, elements[rows], lengths[rows], spread=spread).sum())
        counts += int(part.counts.sum())
    torch.testing.assert_close(sum(parts) / counts, whole)
    names = list(r.parameters())
    torch.testing.assert_close(torch.autograd.grad(sum(parts) / counts, names), torch.autograd.grad(whole, names))
    part = replace(penalty, reduction="none")
    alone = [part(r, elements[i : i + 1], lengths[i : i + 1], spread=spread)[0] for i in range(len(sizes))]
    torch.testing.assert_close(part(r, elements, lengths), torch.stack(alone))


def test_the_gradient_of_a_relative_penalty_does_not_reward_smaller_states() -> None:
    r, elements = make("gru"), torch.randn(4, 5, 2, dtype=torch.float64)
    scale = torch.ones(4, dtype=torch.float64, requires_grad=True)
    for law in ("random", "given", "subset"):
        for relative in (True, False):
            penalty = replace(LAWS[law], of=lambda state: scale * state, relative=relative)
            (slope,) = torch.autograd.grad(value(penalty, r, elements), scale)
            assert (slope.abs().max() < 1e-9) == relative


def test_spread_is_twice_the_variance_of_the_end_states_and_has_a_floor() -> None:
    ends = torch.tensor([[1.0, 5.0, 0.0], [3.0, 5.0, 2e4]], dtype=torch.float64)
    spread = ao.SIRE().spread(ends)
    assert spread.tolist() == pytest.approx([400 / 3, 400 / 3, 4e8], rel=1e-6)
    assert ao.SIRE(of=lambda s: s[:, :1]).spread(ends).tolist() == [4.0]


def rows_of(state: Any) -> Tensor:
    return state if isinstance(state, Tensor) else torch.cat([leaf.flatten(1) for leaf in state], 1)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("name", "of", "by_hand"),
    [
        ("lstm", "c", lambda s: s[1]),
        ("lstm", ["c", "h"], lambda s: torch.cat([s[1], s[0]], 1)),
        ("lstm-2-layers", 1, lambda s: torch.cat([s[0][:, 1], s[1][:, 1]], 1)),
        ("lstm-2-layers", "h", lambda s: s[0].flatten(1)),
        ("gru-3-layers", 2, lambda s: s[:, 2]),
        ("gru", 0, lambda s: s),
        ("own-dict", "total", lambda s: s["total"]),
    ],
)
def test_of_names_a_leaf_a_layer_or_a_function_of_the_state(law: str, name: str, of: Any, by_hand: Any) -> None:
    r, elements = make(name), torch.randn(4, 5, 2, dtype=torch.float64)
    named, own = (value(replace(LAWS[law], of=choice), r, elements) for choice in (of, by_hand))
    torch.testing.assert_close(named, own)
    if name != "gru" and of != ["c", "h"]:  # which are all of the state
        assert named != value(LAWS[law], r, elements)


def test_of_a_readout_penalises_the_output_without_its_dropout() -> None:
    sums = ao.recurrence(lambda element, state: state + element, start=torch.zeros(1, 2))
    model = ao.RecurrentSetModel(2, 3, cell=sums, dropout=0.5, readout=(8,), readout_dropout=0.5).train()
    elements = torch.randint(9, (4, 5, 2)).float()
    assert value(ao.SIRE(of=model.readout), model, elements) == 0
    assert value(ao.SIRE(of=model.readout.forward), model, elements) == 0
    assert model.readout.dropout.training
    gru = ao.RecurrentSetModel(2, 3).eval()
    t = gru.recurrence.scan(elements)
    assert value(ao.SIRE(of=gru.readout, relative=False, reduction="none"), gru, elements).shape == (4,)
    assert ao.SIRE(of=gru.readout).spread(t.last).shape == (3,)
    value(ao.SIRE(of=gru.readout), gru, elements).backward()
    assert gru.readout.head[0].weight.grad.abs().sum() > 0


class LastStep(ao.Penalty):
    """The squared change of the state by the last element."""

    def per_set(self, trajectory: ao.Trajectory, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        before = trajectory.at((trajectory.counts - 1).clamp(min=0))
        return (trajectory.last - before).square().sum(1), trajectory.counts.clamp(max=1)


def test_a_penalty_of_ones_own_needs_one_method() -> None:
    r, (elements, lengths) = make("gru"), ragged()
    penalty = LastStep()
    t = r.scan(elements, lengths)
    values = (t.last - t.at((lengths - 1).clamp(min=0))).square().sum(1)
    torch.testing.assert_close(penalty(r, elements, lengths), values.sum() / 4)
    assert penalty.counts.tolist() == [1, 0, 1, 1, 1]
    torch.testing.assert_close(penalty(t, weights=torch.tensor([2, 0, 1, 0, 0])), (2 * values[0] + values[2]) / 3)
    penalty.reduction = "none"
    torch.testing.assert_close(penalty(t), values)
    with pytest.raises(TypeError, match="per_set"):
        ao.Penalty()


GRU, LSTM, X = nn.GRU(2, 4, batch_first=True), nn.LSTM(2, 4, 2, batch_first=True), torch.randn(3, 5, 2)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: ao.SIRE(reduction="sum"), InputError, "reduction"),
        (lambda: ao.SIRE(of="g")(LSTM, X), InputError, "of"),
        (lambda: ao.SIRE(of="h")(GRU, X), InputTypeError, "of"),
        (lambda: ao.SIRE(of=2)(LSTM, X), InputError, "of"),
        (lambda: ao.SIRE(of=-1)(LSTM, X), InputError, "of"),
        (lambda: ao.SIRE()(GRU, X, weights=torch.ones(3, 1)), InputError, "weights"),
        (lambda: ao.SIRE()(GRU, X, weights=torch.tensor([1.0, -1.0, 1.0])), InputError, "weights"),
        (lambda: ao.SIRE()(GRU, X, weights=torch.tensor([1.0, float("nan"), 1.0])), InputError, "weights"),
        (lambda: ao.SIRE(reduction="none")(GRU, X, weights=torch.ones(3)), InputError, "weights"),
        (lambda: ao.SIRE()(GRU, X, spread=torch.ones(3)), InputError, "spread"),
        (lambda: ao.SIRE()(GRU, X, spread=torch.tensor(1.0)), InputError, "spread"),
        (lambda: ao.SIRE()(GRU, X[:1]), InputError, "spread"),
    ],
)
def test_bad_input_gets_one_clear_error(call, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()
