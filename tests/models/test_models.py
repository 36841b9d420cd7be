"""One contract, run on every registered model; what is special to a model is in test_set_models.py."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from anyorder.models import MODELS, SetModel

IN, OUT = 3, 2
WHOLE = 16  # elements of a full set


EMBEDDED = {"embedding": (7, 4, "learned")}
POINTS = {"phi": (8, 8), "rho": (5,)}
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "recurrent": {
        "gru": {"hidden": 8},
        "rnn": {"cell": "rnn", "hidden": 8},
        "relu-rnn": {"cell": "relu-rnn", "hidden": 8},
        "lstm": {"cell": "lstm", "hidden": 8},
        "relu": {"cell": "relu", "hidden": 5, "state_features": 4},
        "deep": {"cell": "lstm", "layers": 2, "encoder": (6,), "readout": (5,), "activation": "tanh"},
        "fold": {"cell": "fold", "hidden": 8},
        "deep-fold": {
            "cell": "fold",
            "channels": {"affine": 2, "sum": 1, "max": 1, "maxplus": 1},
            "layers": 2,
            "readout": (6,),
            "bilinear": 3,
            "width": 16,
        },
        "long": {"hidden": 8, "gate_bias_span": 50},
        "fixed-start": {"hidden": 8, "learned_start": False},
        "averaged": {"hidden": 8, "orderings": 2},
        "embedded": {"hidden": 8, **EMBEDDED},
    },
    "deepsets": {
        "sum": POINTS,
        "mean": {**POINTS, "pooling": "mean"},
        "max": {**POINTS, "pooling": "max", "activation": "tanh"},
        "equivariant": {**POINTS, "pooling": "max", "equivariant": True},
        "embedded": {"phi": (8,), "rho": (), **EMBEDDED},
    },
    "janossy": {
        "unary": {"k": 1, "hidden": 8},
        "binary": {"k": 2, "encoder": (8,), "readout": (5,)},
        "ternary": {"k": 3, "hidden": 8},
        "recurrent": {"hidden": 8, "orderings": 2},
        "embedded": {"k": 2, "hidden": 8, **EMBEDDED},
    },
    "set-transformer": {
        "isab": {"hidden": 8, "heads": 2, "inducing": 3},
        "sab": {"hidden": 8, "heads": 4, "inducing": None, "blocks": 1},
        "seeds": {"hidden": 8, "heads": 2, "inducing": None, "blocks": 1, "seeds": 3, "layer_norm": True},
        "embedded": {"hidden": 8, "inducing": None, "blocks": 1, **EMBEDDED},
    },
    "multi-aggregation": {"all": {"phi": (8,), "rho": (5,)}, "embedded": {"phi": (8,), "rho": (), **EMBEDDED}},
    "standardised": {
        "recurrent": {"options": {"hidden": 8}},
        "deepsets": {"model": "deepsets", "options": {"phi": [8, 8], "rho": [5]}},
    },
}
INEXACT = {"recurrent", "janossy-recurrent", "standardised-recurrent"}
CASES = [pytest.param(name, row, id=f"{name}-{label}") for name, rows in ROWS.items() for label, row in rows.items()]
ORDERED = [case for case in CASES if {case.id, case.values[0]} & INEXACT]
INVARIANT = [case for case in CASES if case not in ORDERED]
every_row = pytest.mark.parametrize(("name", "row"), CASES)


def build(name: str, row: dict) -> SetModel:
    in_features = 1 if "embedding" in row else IN
    return MODELS[name](in_features, OUT, **row)


def draw(row: dict, *shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Elements ``[*shape, D]`` of the kind the row's model reads."""
    generator = torch.Generator().manual_seed(seed)
    if "embedding" in row:
        return torch.randint(0, 7, (*shape, 1), generator=generator)
    return torch.randn(*shape, IN, generator=generator, dtype=dtype)


def batch(row: dict, lengths: list[int], padding: float = float("nan"), **kwargs: Any) -> tuple[Tensor, Tensor]:
    elements = draw(row, len(lengths), max(lengths), **kwargs)
    for sample, length in zip(elements, lengths, strict=True):
        sample[length:] = padding if elements.is_floating_point() else -9
    return elements, torch.tensor(lengths)


def test_every_registered_model_has_a_row():
    assert set(ROWS) == {name for name, model in MODELS.items() if model.__module__.startswith("anyorder.models")}


@every_row
def test_it_is_registered_and_says_whether_it_ignores_order(name, row):
    model = build(name, row)
    assert MODELS[model.name] is type(model)
    assert model.invariant == ((name, row) in [case.values for case in INVARIANT])


@every_row
def test_padding_and_batch_mates_never_change_an_output(name, row):
    model = build(name, row).eval()
    elements, lengths = batch(row, [5, 2, 1, 0, 5, 4])
    together = model(elements, lengths)
    for sample, length in enumerate(lengths.tolist()):
        alone = model(elements[sample : sample + 1, :length])
        longer = model(elements[sample : sample + 1], lengths[sample : sample + 1])
        torch.testing.assert_close(together[sample : sample + 1], alone, rtol=0, atol=1e-6)
        torch.testing.assert_close(longer, alone, rtol=0, atol=1e-6)


@every_row
def test_padding_never_changes_a_gradient(name, row):
    model = build(name, row)

    def gradients(padding: float) -> list[Tensor]:
        torch.manual_seed(3)  # the orderings drawn in training
        model.zero_grad()
        elements, lengths = batch(row, [5, 2, 1, 0], padding)
        elements.requires_grad_(elements.is_floating_point())
        model(elements, lengths).square().sum().backward()
        of_elements = [] if elements.grad is None else [elements.grad]
        return [p.grad.clone() for p in model.parameters()] + of_elements

    for one, other in zip(gradients(float("nan")), gradients(0.0), strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


@every_row
def test_lengths_0_and_1_and_batches_of_nothing_but_empty_sets(name, row):
    model = build(name, row).eval()
    nothing = draw(row, 2, 0)
    elements, lengths = batch(row, [0, 1, 0, 1])
    out = model(elements, lengths)
    assert out.shape == (4, OUT)
    assert out.isfinite().all()
    torch.testing.assert_close(model(nothing), out[[0, 2]], rtol=0, atol=1e-6)
    torch.testing.assert_close(model(nothing, torch.tensor([0, 0])), out[[0, 2]], rtol=0, atol=1e-6)
    torch.testing.assert_close(model(elements[[1]]), out[[1]], rtol=0, atol=1e-6)
    different = elements[[1]] + 1 if elements.is_floating_point() else (elements[[1]] + 1) % 7
    assert not torch.allclose(model(different), out[[1]])  # it does read the one element


@pytest.mark.parametrize(("name", "row"), INVARIANT)
@given(seed=st.integers(0, 1000), size=st.integers(2, 9))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_invariant_models_ignore_order(name, row, seed, size):
    torch.manual_seed(0)
    model = build(name, row).eval()
    elements = draw(row, 1, size, seed=seed)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    # 1e-5 of the value: a sum of hundreds of tuples is rounded that much in float32
    torch.testing.assert_close(model(elements[:, order]), model(elements), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "row"), ORDERED)
def test_other_models_do_not_ignore_order(name, row):
    model = build(name, row).eval()
    elements = draw(row, 50, WHOLE)
    order = torch.randperm(WHOLE)
    gap = (model(elements[:, order]) - model(elements)).abs().mean()
    assert gap > 1e-4  # ten times what an invariant model may show


@every_row
def test_gradients_reach_every_parameter(name, row):
    model = build(name, row)
    elements = draw(row, 64, WHOLE)
    model(elements, torch.arange(64) % (WHOLE + 1)).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@every_row
def test_float64_gives_the_same_answer_with_more_digits(name, row):
    model = build(name, row).eval()
    elements = draw(row, 4, WHOLE)
    single = model(elements)
    double = model.double()(elements.double() if elements.is_floating_point() else elements)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, rtol=1e-4, atol=1e-4)


@every_row
def test_copies_from_its_configuration_and_from_disk_answer_alike(name, row, tmp_path):
    model = build(name, row).eval()
    config = model.config()
    assert list(config) == list(inspect.signature(MODELS[name].__init__).parameters)[1:]
    assert json.loads(json.dumps(config)) == config
    copy = MODELS[name](**config).eval()
    copy.load_state_dict(model.state_dict())
    ao.save(model, tmp_path / "model")
    elements = draw(row, 4, WHOLE)
    for again in (copy, ao.load(tmp_path / "model")):
        assert type(again) is type(model)
        assert torch.equal(again(elements), model(elements))


@every_row
def test_it_refuses_what_it_cannot_read(name, row):
    model = build(name, row)
    good = draw(row, 2, WHOLE)
    with pytest.raises(InputError, match="elements"):
        model(torch.cat([good, good], 2))
    with pytest.raises(InputError, match="lengths"):
        model(good, torch.tensor([WHOLE, WHOLE + 1]))
    if good.is_floating_point():
        other = torch.float16 if name.startswith("standardised") else torch.float64  # with units, wider ones are read
        wrong, bad = good.to(other), float("nan")
    else:
        wrong, bad = good.float(), 7
    with pytest.raises(InputTypeError, match="elements"):
        model(wrong)
    good[1, 3] = bad
    with pytest.raises(InputError, match="elements"):
        model(good)


@pytest.mark.parametrize("name", list(MODELS))
def test_constructors_begin_alike_and_check_both(name):
    assert list(inspect.signature(MODELS[name].__init__).parameters)[1:3] == ["in_features", "out_features"]
    assert MODELS[name](1, 2).out_features == 2  # the defaults work
    with pytest.raises(InputError, match="in_features"):
        MODELS[name](0, 2)
    with pytest.raises(InputTypeError, match="out_features"):
        MODELS[name](1, 2.5)


@pytest.mark.parametrize(("name", "row"), [case for case in CASES if case.values[0] != "standardised"])
def test_static_features_of_each_set_reach_its_output_alone(name, row, tmp_path):
    model = build(name, {**row, "static_features": 4, "static_dropout": 0.5}).eval()
    elements, lengths = batch(row, [5, 2, 1, 0])
    static = torch.randn(4, 4)
    out = model(elements, lengths, static=static)
    for sample, length in enumerate(lengths.tolist()):
        one = slice(sample, sample + 1)
        alone = model(elements[one, :length], static=static[one])
        torch.testing.assert_close(out[one], alone, rtol=0, atol=1e-6)
    moved = model(elements, lengths, static=static + torch.eye(4)[:, [0]])  # of the first set alone
    assert ((moved - out).abs().amax(1) > 1e-6).tolist() == [True, False, False, False]
    ao.save(model, tmp_path / "model")
    assert torch.equal(ao.load(tmp_path / "model")(elements, lengths, static=static), out)
    model.joined.train()
    dropped = model.joined(torch.zeros(900, 1), torch.ones(900, 4))[:, 1:]
    assert sorted(dropped.unique().tolist()) == [0, 2]
    assert dropped.mean() == pytest.approx(1, abs=0.1)
    for bad in (None, static[:, :3], static[:2], static * float("nan")):
        with pytest.raises(InputError, match="static"):
            model(elements, lengths, static=bad)
    with pytest.raises(InputError, match="static"):
        build(name, row)(elements, lengths, static=static)


def test_static_features_have_units_of_their_own():
    model = MODELS["standardised"](IN, 1, "recurrent", {"hidden": 8, "static_features": 2}).eval()
    elements, static = torch.randn(5, 4, IN), torch.randn(5, 2)
    raw = 100 + 10 * static
    model.set_units(0.0, 1.0, static_mean=[100.0, 100.0], static_scale=[10.0, 10.0])
    torch.testing.assert_close(model(elements, static=raw), model.inner(elements, static=static), rtol=0, atol=1e-5)
    copy = MODELS["standardised"](**model.config()).eval()
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy(elements, static=raw), model(elements, static=raw))
