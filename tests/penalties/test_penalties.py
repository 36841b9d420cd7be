import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from anyorder.penalties import penalty_from_config
from anyorder.recurrences import known
from anyorder.recurrences.trajectory import tree_leaves
from problems import (
    RECURRENCES,
    end,
    expected_batch_partners,
    expected_prefix_sire,
    expected_sub,
    expected_subset_sire,
    make,
    mean,
)

SIZES = [4, 0, 2, 3, 1]
PAPER: dict[str, Any] = {"relative": False}
LAWS = {  # the penalty, and what it expects of one set
    "random": (ao.SIRE(pairs=200, **PAPER), expected_subset_sire),
    "given": (ao.SIRE(prefixes="given", pairs=200, **PAPER), lambda r, x: expected_prefix_sire(r, x, None)),
    "window-1": (ao.SIRE(window=1, pairs=200, **PAPER), lambda r, x: expected_prefix_sire(r, x, 1)),
    "window-2": (ao.SIRE(window=2, pairs=200, **PAPER), lambda r, x: expected_prefix_sire(r, x, 2)),
    "subset": (ao.SubsetPenalty(pairs=200, **PAPER), lambda r, x: expected_sub(r, x, range(2, len(x) + 1))),
    "permutation": (ao.PermutationPenalty(pairs=200, **PAPER), lambda r, x: expected_sub(r, x, [len(x)])),
}
EVERY = {name: law[0] for name, law in LAWS.items()}
EVERY |= {"batch": ao.SIRE(partners="batch", pairs=3, **PAPER), "default": ao.SIRE()}


def samples(sizes: list[int] = SIZES, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.randn(size, 2, dtype=dtype) for size in sizes]


def padded(sets: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return ao.pad(sets, value=float("nan"))


@torch.no_grad()
def assert_mean_of_draws(penalty, r, sets: list[torch.Tensor], expected: float, generator) -> None:
    """Within four standard errors; the generator is fixed, so this either holds or does not."""
    drawn = torch.stack([penalty(r, *padded(sets), generator=generator) for _ in range(60)])
    error = drawn.std() / math.sqrt(len(drawn))
    assert abs(drawn.mean() - expected) <= 4 * error + 1e-12, (drawn.mean(), expected, error)
    assert error < 0.05 * expected


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm-2-layers", "own-dict"])
def test_the_mean_of_many_draws_is_the_expectation_of_the_law(name: str, law: str, generator) -> None:
    penalty, expectation = LAWS[law]
    r, sets = make(name), samples()
    expected = mean([expectation(r, x) for x in sets if len(x) >= 2])
    assert_mean_of_draws(penalty, r, sets, expected, generator)


def test_partners_from_the_batch_follow_their_law(generator) -> None:
    r, sets = make("gru"), samples()
    penalty = ao.SIRE(prefixes="given", partners="batch", pairs=200, relative=False)
    assert_mean_of_draws(penalty, r, sets, expected_batch_partners(r, sets), generator)


@pytest.mark.parametrize("law", [*EVERY, "relative-subset"])
@pytest.mark.parametrize("name", ["gru", "lstm-2-layers", "own-dict"])
def test_gradients_pass_gradcheck(name: str, law: str) -> None:
    r = make(name)
    elements, lengths = ao.pad(samples([3, 2, 4]))
    penalty = replace({**EVERY, "relative-subset": ao.SubsetPenalty()}[law], pairs=2)
    inputs = [elements.requires_grad_(), *r.parameters()]

    def value(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return penalty(r, x, lengths, generator=torch.Generator().manual_seed(3))

    assert torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("law", EVERY)
@pytest.mark.parametrize("build", [known.parity, known.sum, known.max])
def test_commuting_recurrences_score_exactly_zero_on_whole_numbers(build, law: str, generator) -> None:
    r = build().train()
    high = 2 if build is known.parity else 1000
    elements = torch.randint(0, high, (16, 9, 1)).float()
    lengths = torch.randint(0, 10, (16,))
    lengths[:2] = 9
    assert EVERY[law](r, elements, lengths, generator=generator).item() == 0.0
    assert EVERY[law](r.scan(elements, lengths), generator=generator).item() == 0.0


@pytest.mark.parametrize("law", EVERY)
def test_dropout_of_the_module_never_enters_a_commuting_recurrence(law: str, generator) -> None:
    """Two ReLU layers of identities add up whole numbers: commuting, though dropout stands between them."""
    rnn = nn.RNN(1, 1, num_layers=2, nonlinearity="relu", dropout=0.5, bias=False, batch_first=True)
    with torch.no_grad():
        for p in rnn.parameters():
            p.fill_(1.0)
        rnn.weight_hh_l1.fill_(0.0)
    r = ao.recurrence(rnn).train()
    elements = torch.randint(1, 9, (8, 6, 1)).float()
    assert not r.scan(elements).repeatable
    assert EVERY[law](r, elements, generator=generator).item() == 0.0
    assert EVERY[law](r.scan(elements), generator=generator).item() == 0.0


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("name", list(RECURRENCES))
def test_reused_states_and_recomputed_ones_agree(name: str, window: int | None) -> None:
    r = make(name)
    elements, lengths = padded(samples([5, 1, 4, 0, 6]))
    penalty = ao.SIRE(prefixes="given", window=window, pairs=4)
    reused = penalty(r.scan(elements, lengths), generator=torch.Generator().manual_seed(1))
    t = r.scan(elements, lengths)
    t.repeatable = False  # both branches by stepping
    stepped = penalty(t, generator=torch.Generator().manual_seed(1))
    alone = penalty(r, elements, lengths, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(reused, stepped)
    torch.testing.assert_close(reused, alone)


@pytest.mark.parametrize("law", EVERY)
def test_padding_of_nan_changes_neither_value_nor_gradient(law: str) -> None:
    sets = samples([4, 2, 0, 5, 1])

    def run(fill: float) -> list[torch.Tensor]:
        torch.manual_seed(2)
        r = make("lstm-2-layers")
        elements, lengths = ao.pad(sets, value=fill)
        elements.requires_grad_()
        value = EVERY[law](r, elements, lengths, generator=torch.Generator().manual_seed(1))
        value.backward()
        return [value.detach(), elements.grad, *(p.grad for p in r.parameters())]

    clean, with_nan = run(0.0), run(float("nan"))
    assert all(torch.isfinite(each).all() for each in with_nan)
    torch.testing.assert_close(clean, with_nan, rtol=0, atol=0)


def test_zero_penalty_on_all_reachable_states_means_every_ordering_ends_alike(generator) -> None:
    """Theorem 5, on a recurrence that is invariant without looking it: state (sum mod 3) in floats."""
    r = ao.recurrence(lambda e, s: torch.remainder(s + e, 3), start=torch.zeros(1, 1))
    x = torch.tensor([[1.0], [2.0], [2.0], [0.0], [1.0], [2.0]])
    assert expected_subset_sire(r, x[:5]) == 0.0
    for penalty in (EVERY["random"], EVERY["given"], EVERY["permutation"]):
        assert penalty(r, x[None], generator=generator) == 0.0
        assert penalty(ao.recurrence(lambda e, s: 2 * s + e, start=torch.zeros(1, 1)), x[None]) > 0.0
    ends = {end(r, x[list(order)]).item() for order in itertools.permutations(range(6))}
    assert len(ends) == 1


@pytest.mark.parametrize("law", [*LAWS, "default"])
def test_a_trajectory_that_went_on_from_a_state_is_penalised_from_there(law: str) -> None:
    """The state says whether to step in a way that commutes or in one that does not."""

    def step(element: torch.Tensor, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        keep = torch.where(state["forgets"] > 0, 0.5, 1.0)
        return {"forgets": state["forgets"], "total": keep * state["total"] + element}

    r = ao.recurrence(step, start={"forgets": torch.zeros(1, 1), "total": torch.zeros(1, 1)})
    elements = torch.randint(1, 9, (4, 6, 1)).float()
    penalty = replace(EVERY[law], pairs=200)
    for forgets in (0.0, 1.0):
        state = {"forgets": torch.full((4, 1), forgets), "total": torch.ones(4, 1)}
        value = penalty(r.scan(elements, state=state), generator=torch.Generator().manual_seed(0))
        assert (value > 0) == (forgets > 0)


def test_a_single_pair_that_does_not_commute_at_a_reachable_state_is_caught(generator) -> None:
    def step(element: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        odd_one_out = (state == 3) & (element == 4)  # only after 3, only for 4
        return state + element + odd_one_out.float()

    r = ao.recurrence(step, start=torch.zeros(1, 1))
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    assert expected_subset_sire(r, x) > 0.0
    assert ao.SIRE(pairs=500, relative=False)(r, x[None], generator=generator) > 0.0
    ends = {end(r, x[list(order)]).item() for order in itertools.permutations(range(4))}
    assert len(ends) == 2
    harmless = torch.tensor([[1.0], [5.0], [4.0], [8.0]])  # never at 3 with a 4 to come
    assert expected_subset_sire(r, harmless) == 0.0


@pytest.mark.parametrize("law", EVERY)
def test_the_generator_is_the_only_source_of_randomness(law: str) -> None:
    r, (elements, lengths) = make("gru"), ao.pad(samples([5, 3, 4]))
    seeded = [EVERY[law](r, elements, lengths, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert seeded[0] == seeded[1]
    assert seeded[0] != seeded[2]
    before = torch.get_rng_state()
    EVERY[law](r, elements, lengths, generator=torch.Generator().manual_seed(1))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    first = EVERY[law](r, elements, lengths)
    torch.manual_seed(5)
    assert first == EVERY[law](r, elements, lengths)


@pytest.mark.parametrize("law", EVERY)
def test_without_a_pair_the_value_is_zero_with_a_gradient(law: str) -> None:
    r = ao.recurrence(nn.GRU(2, 4, batch_first=True))
    elements = torch.full((3, 2, 2), float("nan"), requires_grad=True)
    value = EVERY[law](r, elements, torch.tensor([0, 0, 0]))
    value.backward()
    assert value.item() == 0.0
    assert all((p.grad == 0).all() for p in r.parameters())
    assert (elements.grad == 0).all()
    assert EVERY[law](r, torch.randn(3, 1, 2)).item() == 0.0


def test_relative_is_the_mean_over_components_in_units_of_their_variance() -> None:
    r, (elements, lengths) = make("lstm-2-layers"), ao.pad(samples([5, 3, 4, 2]))
    last = r.scan(elements, lengths).last
    ends = torch.cat([leaf.flatten(1) for leaf in tree_leaves(last)], 1)
    for law in ("random", "given", "subset", "permutation"):
        parts, options = [], {"generator": torch.Generator().manual_seed(4)}
        relative = replace(EVERY[law], relative=True)(r, elements, lengths, **options)
        for k in range(ends.shape[1]):
            part = replace(EVERY[law], of=lambda s, k=k: torch.cat([x.flatten(1) for x in tree_leaves(s)], 1)[:, k])
            parts.append(
                part(r, elements, lengths, generator=torch.Generator().manual_seed(4)) / (2 * ends[:, k].var())
            )
        torch.testing.assert_close(relative, torch.stack(parts).mean())
        relative.backward()


@pytest.mark.parametrize(("measure", "low"), [(ao.SIRE(), -1), (ao.order_gap, 1)])
def test_the_scale_of_the_states_changes_no_relative_value(measure: Any, low: int) -> None:
    """The penalty has a scale for each component; the gap has one for all."""
    elements, gru = torch.randn(6, 5, 2, dtype=torch.float64), make("gru")
    scale = torch.logspace(low, 1, 4, dtype=torch.float64)
    scaled = ao.recurrence(lambda e, s: scale * gru.step(e, s / scale), start=torch.zeros(1, 4, dtype=torch.float64))
    with torch.no_grad():
        one, other = (measure(r, elements, generator=torch.Generator().manual_seed(0)) for r in (gru, scaled))
    assert float(one) == pytest.approx(float(other))


def test_samples_that_all_end_alike_have_a_gap_of_zero_or_a_large_finite_one() -> None:
    alike = torch.rand(1, 5, 2).expand(4, 5, 2)
    ignores = ao.recurrence(lambda e, s: s + e.round(), start=torch.zeros(1, 2))
    assert ao.order_gap(ignores, alike) == 0
    assert ao.order_gap(ao.recurrence(lambda e, s: 0 * e, start=torch.zeros(1, 2)), alike) == 0  # not 0 / 0
    keeps_the_last = ao.recurrence(lambda e, s: 0 * s + e, start=nn.Parameter(torch.zeros(1, 2)))
    gap = ao.SubsetPenalty(pairs=9, relative=True)(keeps_the_last, alike, generator=torch.Generator().manual_seed(0))
    assert 1e6 < gap < 1e15
    gap.backward()
    assert torch.isfinite(keeps_the_last.start_0.grad).all()


class Encoded(nn.Module):
    """The shape of a model: an encoder, a recurrence, a read-out."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.encoder = ao.recurrence(nn.GRU(3, 4, batch_first=True)), nn.Linear(2, 3)

    def encode(self, elements: torch.Tensor) -> torch.Tensor:
        return self.encoder(elements)


def test_a_model_is_penalised_on_its_encoded_elements() -> None:
    model, elements = Encoded(), torch.randn(4, 5, 2)
    g = torch.Generator()
    of_model = ao.SIRE()(model, elements, generator=g.manual_seed(0))
    by_hand = ao.SIRE()(model.recurrence, model.encode(elements), generator=g.manual_seed(0))
    assert of_model == by_hand
    of_model.backward()
    assert model.encoder.weight.grad.abs().max() > 0


@pytest.mark.parametrize("law", EVERY)
def test_an_encoder_reads_no_padding(law: str) -> None:
    model, gradients = Encoded(), []
    for fill in (0.0, math.nan):
        elements, lengths = ao.pad(samples([5, 0, 3], torch.float32), value=fill)
        elements[0], elements[2, :3] = 1.0, torch.arange(6.0).reshape(3, 2)
        model.zero_grad()
        EVERY[law](model, elements, lengths, generator=torch.Generator().manual_seed(0)).backward()
        gradients.append(model.encoder.weight.grad.clone())
    assert gradients[0].isfinite().all()
    assert torch.equal(*gradients)


def test_a_model_reads_the_batch_first_whatever_its_recurrence_reads() -> None:
    elements = torch.randn(4, 5, 2)
    inner = [nn.GRU(2, 3, batch_first=b) for b in (True, False)]
    inner[1].load_state_dict(inner[0].state_dict())
    models = [ao.RecurrentSetModel(2, 1, cell=ao.recurrence(module), readout=nn.Linear(3, 1)) for module in inner]
    models[1].load_state_dict(models[0].state_dict())
    values = [ao.SIRE()(m, elements, generator=torch.Generator().manual_seed(0)) for m in models]
    assert values[0] == values[1]
    assert torch.equal(models[0](elements), models[1](elements))


@pytest.mark.parametrize("law", EVERY)
def test_half_precision_and_cells_of_a_module(law: str, generator) -> None:
    r = ao.recurrence(nn.GRU(2, 4, batch_first=True)).to(torch.bfloat16)
    value = EVERY[law](r, torch.randn(3, 5, 2, dtype=torch.bfloat16), generator=generator)
    value.backward()
    assert torch.isfinite(value)
    assert value > 0
    assert EVERY[law](nn.LSTMCell(2, 4), torch.randn(3, 5, 2), generator=generator) > 0


@pytest.mark.parametrize("law", EVERY)
def test_whole_numbers_and_bools_in_a_state_count_as_numbers(law: str) -> None:
    """Digits and whether the first of two was larger: the same as of a state of float64."""

    def step(element, state):
        return {"digits": 3 * state["digits"] + element, "fell": state["digits"] > element}

    def value(elements, start):
        def typed(element, state):
            return {key: leaf.to(start[key].dtype) for key, leaf in step(element, state).items()}

        r = ao.recurrence(typed, start=start)
        generators = [torch.Generator().manual_seed(0) for _ in range(2)]
        return [f(r, elements, generator=g) for f, g in zip((EVERY[law], ao.order_gap), generators, strict=True)]

    elements = torch.randint(3, (4, 5, 1))
    whole = value(elements, {"digits": torch.zeros(1, 1, dtype=torch.int64), "fell": torch.zeros(1, 1).bool()})
    assert whole == value(elements.double(), dict.fromkeys(("digits", "fell"), torch.zeros(1, 1).double()))
    assert min(whole) > 0


def test_functional_call_and_grad_work() -> None:
    r, elements = ao.recurrence(nn.GRU(2, 4, batch_first=True)), torch.randn(3, 5, 2)

    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.r = r

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            g = torch.Generator().manual_seed(0)
            return ao.SIRE(prefixes="given")(self.r.scan(x), generator=g) + ao.SIRE()(self.r, x, generator=g)

    module = Penalised()
    parameters = dict(module.named_parameters())
    functional = torch.func.grad(lambda p: torch.func.functional_call(module, p, (elements,)))(parameters)
    module(elements).backward()
    for name, p in module.named_parameters():
        torch.testing.assert_close(functional[name], p.grad)


@pytest.mark.slow
def test_a_compiled_training_step_gives_the_same_numbers() -> None:
    r, elements = ao.recurrence(nn.GRU(2, 4, batch_first=True)), torch.randn(3, 5, 2)

    def loss(x: torch.Tensor) -> torch.Tensor:
        t = r.scan(x)
        return t.last.square().mean() + ao.SIRE(prefixes="given", window=1)(t)

    torch.manual_seed(0)
    eager = loss(elements)
    torch.manual_seed(0)
    compiled = torch.compile(loss, backend="aot_eager")(elements)
    torch.testing.assert_close(compiled, eager)
    compiled.backward()
    assert all(p.grad is not None for p in r.parameters())


STOPPED = {name: EVERY[name] for name in ("random", "given", "window-1", "window-2", "batch")}


@pytest.mark.parametrize("law", STOPPED)
def test_stopped_states_give_the_same_value_and_learn_from_the_two_last_steps_alone(law: str) -> None:
    torch.manual_seed(0)
    start = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    mix = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    r = ao.recurrence(lambda element, state: torch.tanh(state @ mix + element), start=start)
    elements, lengths = padded([torch.randn(size, 3, dtype=torch.float64) for size in (2, 2, 4)])
    through, stopped = STOPPED[law], replace(STOPPED[law], through_states=False)
    values = [p(r, elements, lengths, generator=torch.Generator().manual_seed(1)) for p in (through, stopped)]
    torch.testing.assert_close(values[0], values[1])
    gradients = [torch.autograd.grad(value, [start, mix], allow_unused=True) for value in values]
    assert gradients[0][0].abs().max() > 0
    assert gradients[1][0] is None  # nothing before the two steps learns
    assert not torch.allclose(gradients[0][1], gradients[1][1])


def test_the_gradient_of_stopped_states_is_that_of_the_two_steps() -> None:
    r, elements = ao.recurrence(nn.GRU(2, 4, batch_first=True).double()), torch.randn(3, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        state = r.start(3)
    one, other = (r.step(elements[:, b], r.step(elements[:, a], state)) for a, b in ((0, 1), (1, 0)))
    literal = (one - other).square().sum(1).mean()  # two elements leave one pair, at the start
    for penalty in (ao.SIRE(through_states=False), ao.SIRE(window=1, through_states=False)):
        penalty = replace(penalty, relative=False)
        found = torch.autograd.grad(penalty(r, elements), list(r.parameters()))
        torch.testing.assert_close(found, torch.autograd.grad(literal, list(r.parameters()), retain_graph=True))


def test_config_round_trip() -> None:
    own = [ao.SIRE(of=of, pairs=3, reduction="none", ties=True) for of in ("h", ["h", "c"], 1)]
    for penalty in [*EVERY.values(), *own, ao.SIRE(window=3, through_states=False)]:
        assert penalty_from_config(penalty.config()) == penalty
    with pytest.raises(InputError, match="of"):
        ao.SIRE(of=torch.tanh).config()
    with pytest.raises(InputError, match="penalty name"):
        penalty_from_config({"name": "sire"})
    with pytest.raises(TypeError, match="window"):
        penalty_from_config({"name": "SubsetPenalty", "window": 1})


GRU, X = nn.GRU(2, 4, batch_first=True), torch.zeros(3, 5, 2)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: ao.SIRE(prefixes="all"), InputError, "prefixes"),
        (lambda: ao.SIRE(partners="all"), InputError, "partners"),
        (lambda: ao.SIRE(pairs=0), InputError, "pairs"),
        (lambda: ao.SubsetPenalty(pairs=1.5), InputTypeError, "pairs"),
        (lambda: ao.SIRE(window=0), InputError, "window"),
        (lambda: ao.SIRE(prefixes="random", window=2), InputError, "prefixes='random'"),
        (lambda: ao.SIRE(window=2, partners="batch"), InputError, "partners='batch'"),
        (lambda: ao.SIRE()(GRU), InputError, "elements"),
        (lambda: ao.SIRE()(GRU, torch.zeros(3, 2)), InputError, "elements"),
        (lambda: ao.SIRE()(GRU, torch.zeros(3, 5, 3)), InputError, "2 features"),
        (lambda: ao.SIRE()(nn.GRU(2, 4), X, torch.tensor([1, 2, 3])), InputError, "lengths must be 5"),
        (lambda: ao.SIRE()(GRU, X.clone().fill_(math.nan)), InputError, "elements must be finite"),
        (lambda: ao.SubsetPenalty()(GRU, torch.zeros(1, 5, 2)), InputError, "relative=True"),
        (lambda: ao.SIRE(partners="batch", relative=False)(GRU, X[:1]), InputError, "partners='batch'"),
        (lambda: ao.SIRE()(ao.recurrence(GRU).scan(X), X), InputError, "trajectory"),
        (lambda: ao.SIRE()(nn.Linear(2, 2), X), InputTypeError, "recurrence takes .* a Linear"),
        (lambda: ao.SubsetPenalty()(lambda e, s: s, X), InputTypeError, "start="),
        (lambda: ao.AdaptiveWeight(target=0), InputError, "target"),
        (lambda: ao.AdaptiveWeight(rate=-1), InputError, "rate"),
        (lambda: ao.AdaptiveWeight(bounds=(2.0, 1.0)), InputError, "bounds"),
        (lambda: ao.AdaptiveWeight(bounds=(0, 1.0)), InputError, "bounds"),
        (lambda: ao.AdaptiveWeight(weight=1e9), InputError, "weight"),
        (lambda: ao.AdaptiveWeight().update(math.nan), InputError, "gap"),
        (lambda: ao.AdaptiveWeight().update(-1.0), InputError, "gap"),
        (lambda: ao.AdaptiveWeight().load_state_dict({"speed": 1, "bounds": (1, 2)}), TypeError, "speed"),
    ],
)
def test_bad_input_gets_one_clear_error(call, error, match) -> None:
    with pytest.raises(error, match=match):
        call()


def test_the_default_penalty_is_the_one_of_its_page() -> None:
    """The definition in docs/penalty.md, in plain torch, has the same mean over draws."""
    page = (Path(__file__).parents[2] / "docs" / "penalty.md").read_text()
    code: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], code)
    for name, kind, layers in (("rnn", nn.RNN, 1), ("gru", nn.GRU, 2), ("lstm", nn.LSTM, 2)):
        torch.manual_seed(len(name))
        module, elements = kind(3, 4, layers, batch_first=True), torch.randn(6, 5, 3)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            theirs = torch.stack([code["sire"](module, elements, generator) for _ in range(100)])
            ours = torch.stack([ao.SIRE()(module, elements, generator=generator) for _ in range(400)])
        error = math.sqrt(theirs.var() / len(theirs) + ours.var() / len(ours))
        assert abs(theirs.mean() - ours.mean()) < 4 * error
        assert error < 0.1 * ours.mean()


@pytest.mark.parametrize("law", EVERY)
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_module_is_read_in_its_own_layout(kind: type[nn.RNNBase], law: str) -> None:
    time_first, batch_first = (kind(2, 4, 2, batch_first=b).double() for b in (False, True))
    batch_first.load_state_dict(time_first.state_dict())
    elements, lengths = padded(samples([4, 1, 5, 3]))
    for measure in (EVERY[law], ao.order_gap):
        values = [
            measure(subject, x, lengths, generator=torch.Generator().manual_seed(0))
            for subject, x in [
                (batch_first, elements),
                (time_first, elements.transpose(0, 1)),
                (ao.recurrence(time_first), elements.transpose(0, 1)),
            ]
        ]
        assert values[0] > 0
        assert values[0] == values[1] == values[2]


@pytest.mark.slow
@pytest.mark.parametrize("target", [0.1, 0.001])
def test_the_adaptive_weight_reaches_its_target(target: float) -> None:
    """A GRU that classifies by its last element: order matters, and the weight decides how much it may."""
    torch.manual_seed(0)
    elements = torch.randn(64, 5, 2)
    labels = (elements[:, -1, 0] + elements.sum(1)[:, 1] > 0).long()
    gru, readout = ao.recurrence(nn.GRU(2, 12, batch_first=True)), nn.Linear(12, 2)
    optimizer = torch.optim.Adam([*gru.parameters(), *readout.parameters()], lr=1e-2)
    budget = ao.AdaptiveWeight(target=target, rate=0.05)
    penalty, g = ao.PermutationPenalty(pairs=2, relative=True), torch.Generator().manual_seed(0)
    gaps = []
    for _ in range(600):
        t = gru.scan(elements)
        value = penalty(t, generator=g)
        loss = nn.functional.cross_entropy(readout(t.output), labels) + budget.weight * value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.update(value.detach())
        gaps.append(float(value))
    reached = mean(gaps[-100:])
    assert target / 2 < reached < target * 2


def test_the_adaptive_weight_moves_by_the_gap_within_its_rate_and_bounds() -> None:
    weight = ao.AdaptiveWeight(target=0.1, weight=1.0, rate=0.5, bounds=(0.25, 4.0))
    assert weight.update(0.2) == pytest.approx(math.exp(0.5 * math.log(2)))
    assert weight.update(0.1) == pytest.approx(math.exp(0.5 * math.log(2)))
    for gap, step in ((1e6, 0.5), (math.inf, 0.5), (1e-6, -0.5), (torch.tensor(0.0), -0.5)):
        weight.weight = 1.0
        assert weight.update(gap) == pytest.approx(math.exp(step))
    for gap, bound in ((1.0, 4.0), (0.0, 0.25)):
        for _ in range(9):
            weight.update(gap)
        assert weight.weight == bound
    restored = ao.AdaptiveWeight()
    restored.load_state_dict(weight.state_dict())
    assert restored == weight


def test_a_complex_state_is_two_real_ones() -> None:
    r = ao.recurrence(lambda element, state: 1j * state + element, start=torch.zeros(1, 1, dtype=torch.complex64))
    elements = torch.tensor([[[1.0], [3.0]]], requires_grad=True)
    value = ao.SIRE(relative=False)(r, elements)
    assert value.item() == pytest.approx(8.0)  # |(1j + 3) - (3j + 1)|^2
    value.backward()
    assert elements.grad.flatten().tolist() == pytest.approx([-8.0, 8.0])
    assert 0 < ao.order_gap(r, torch.randn(4, 3, 1)) < 10


def test_without_a_pair_what_a_function_calls_upon_has_a_gradient_of_zero() -> None:
    cell, start = nn.GRUCell(2, 3), nn.Parameter(torch.zeros(1, 3))
    r = ao.recurrence(lambda element, state: cell(element, state), start=lambda batch: start.expand(batch, -1))
    ao.SIRE()(r.scan(torch.randn(3, 4, 2), torch.tensor([1, 1, 0]))).backward()
    assert all(p.grad is not None and not p.grad.any() for p in (*cell.parameters(), start))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("continued", [False, True])
def test_a_trajectory_scanned_without_gradients_has_them_all_the_same(name: str, continued: bool) -> None:
    r, elements = make("gru-3-layers"), torch.randn(4, 5, 2, dtype=torch.float64)
    state = r.scan(elements.flip(1)).last.detach() if continued else None
    grads = []
    for recorded in (False, True):
        with torch.set_grad_enabled(recorded):
            trajectory = r.scan(elements, state=state)
        for penalty in (EVERY[name], replace(EVERY[name], relative=True)):
            r.zero_grad()
            penalty(trajectory, generator=torch.Generator().manual_seed(1)).backward(retain_graph=True)
            grads.append(torch.cat([p.grad.flatten() for p in r.parameters()]))
    torch.testing.assert_close(torch.stack(grads[:2]), torch.stack(grads[2:]), rtol=0, atol=1e-12)


def test_an_encoder_drops_nothing_for_a_penalty() -> None:
    encoder = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5))
    model, elements = ao.RecurrentSetModel(2, 1, encoder=encoder).train(), torch.randn(4, 5, 2)
    values = [float(ao.order_gap(model, elements, generator=torch.Generator().manual_seed(1))) for _ in range(3)]
    assert values == [float(ao.order_gap(model.eval(), elements, generator=torch.Generator().manual_seed(1)))] * 3
    assert not encoder[1].training
    before = torch.get_rng_state()
    ao.SIRE()(model.train(), elements, generator=torch.Generator())
    assert torch.equal(before, torch.get_rng_state())
    assert encoder[1].training


@pytest.mark.parametrize("cell", ["rnn", "relu-rnn", "relu", "gru", "lstm"])
@pytest.mark.parametrize("penalty", [ao.SIRE(), ao.SIRE(prefixes="given", pairs=20), ao.SubsetPenalty(relative=True)])
def test_what_autocast_scanned_is_penalised_in_single_precision_after_it(cell: str, penalty) -> None:
    model, elements = ao.RecurrentSetModel(2, 1, cell=cell, encoder=(4,)), torch.randn(4, 5, 2)
    with torch.autocast("cpu", torch.bfloat16):
        _, trajectory = model(elements, return_trajectory=True)
    value = penalty(trajectory, generator=torch.Generator().manual_seed(0))
    assert value.dtype == torch.float32
    plain = penalty(model, elements, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(value, plain, rtol=0.15, atol=1e-4)  # but for the encoder's rounding
    value.backward()
    assert all(p.grad.isfinite().all() for p in model.recurrence.parameters())
