"""One contract, run on every registered model; what is special to a model is in test_set_models.py."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field
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
WHOLE = 16  # the set size of models that read whole images only


@dataclass(frozen=True)
class Row:
    """A way to build a registered model, and what is known about it."""

    parameters: int
    options: dict[str, Any] = field(default_factory=dict)
    invariant: bool = False
    state_size: int | None = None  # of a model that streams
    ragged: bool = True


EMBEDDED = {"embedding": (7, 4, "learned")}
ROWS: dict[str, dict[str, Row]] = {
    "recurrent": {
        # 3 gates x 8 units x (3 inputs + 8 units + 2 biases), start 8, read-out 2 x (8 + 1)
        "gru": Row(338, {"hidden": 8}, state_size=8),
        "rnn": Row(8 * 13 + 8 + 18, {"cell": "rnn", "hidden": 8}, state_size=8),
        "relu-rnn": Row(8 * 13 + 8 + 18, {"cell": "relu-rnn", "hidden": 8}, state_size=8),
        "lstm": Row(4 * 8 * 13 + 16 + 18, {"cell": "lstm", "hidden": 8}, state_size=16),
        "relu": Row(15 + 5 + 20 + 20 + 4 + 10, {"cell": "relu", "hidden": 5, "state_features": 4}, state_size=4),
        "deep": Row(
            6 * 4 + 4 * 8 * 16 + 4 * 8 * 18 + 32 + 9 * 5 + 6 * 2,
            {"cell": "lstm", "hidden": 8, "layers": 2, "encoder": (6,), "readout": (5,), "activation": "tanh"},
            state_size=32,
        ),
        # features 64 x (3 + 1); 6 affine channels of two columns, 1 product and 1 max of one; read-out 2 x (8 + 1)
        "fold": Row(64 * 4 + 14 * 65 + 18, {"cell": "fold", "hidden": 8}, state_size=8),
        "deep-fold": Row(
            64 * 4 + 64 * 9 + 2 * 8 * 65 + (5 * 2 + 2) + (6 * 5 + 6 * 1) + 3 * 2 + (5 * 6 + 6) + (6 * 2 + 2),
            {
                "cell": "fold",
                "channels": {"affine": 2, "sum": 1, "max": 1, "maxplus": 1},
                "layers": 2,
                "readout": (6,),
                "bilinear": 3,
            },
            state_size=10,
        ),
        "long": Row(338, {"hidden": 8, "gate_bias_span": 50}, state_size=8),
        "fixed-start": Row(330, {"hidden": 8, "learned_start": False}, state_size=8),
        "averaged": Row(338, {"hidden": 8, "orderings": 2}, state_size=8),
        "embedded": Row(7 * 4 + 3 * 8 * 14 + 8 + 18, {"hidden": 8, **EMBEDDED}, state_size=8),
    },
    "deepsets": {
        "sum": Row(8 * 4 + 8 * 9 + 5 * 9 + 12, {"phi": (8, 8), "rho": (5,)}, True, 8),
        "mean": Row(8 * 4 + 8 * 9 + 5 * 9 + 12, {"phi": (8, 8), "rho": (5,), "pooling": "mean"}, True, 9),
        "max": Row(32 + 72 + 57, {"phi": (8, 8), "rho": (5,), "pooling": "max", "activation": "tanh"}, True, 9),
        "equivariant": Row(56 + 136 + 57, {"phi": (8, 8), "rho": (5,), "pooling": "max", "equivariant": True}, True),
        "embedded": Row(28 + 40 + 9 * 2, {"phi": (8,), "rho": (), **EMBEDDED}, True, 8),
    },
    "janossy": {
        "unary": Row(8 * 4 + 18, {"k": 1, "hidden": 8}, True),
        "binary": Row(8 * 7 + 5 * 9 + 12, {"k": 2, "encoder": (8,), "readout": (5,)}, True),
        "ternary": Row(8 * 10 + 18, {"k": 3, "hidden": 8, "pooling": "sum"}, True),
        "recurrent": Row(338, {"hidden": 8, "orderings": 2}),
        "vote": Row(338, {"hidden": 8, "orderings": 3, "combine": "vote", "seed": 5}),
        "embedded": Row(28 + 8 * 9 + 18, {"k": 2, "hidden": 8, **EMBEDDED}, True),
    },
    "set-transformer": {
        # a block: four 8 x 8 maps with bias, the keys without
        "isab": Row(32 + 2 * (3 * 8 + 2 * 352) + (8 + 72 + 352) + 18, {"hidden": 8, "heads": 2, "inducing": 3}, True),
        "sab": Row(32 + 352 + 432 + 18, {"hidden": 8, "heads": 4, "inducing": None, "blocks": 1}, True),
        "seeds": Row(
            32 + 384 + (3 * 8 + 72 + 384) + 384 + 50,
            {"hidden": 8, "heads": 2, "inducing": None, "blocks": 1, "seeds": 3, "layer_norm": True},
            True,
        ),
        "embedded": Row(28 + 40 + 352 + 432 + 18, {"hidden": 8, "inducing": None, "blocks": 1, **EMBEDDED}, True),
    },
    "multi-aggregation": {
        "all": Row(32 + 97 * 5 + 12, {"phi": (8,), "rho": (5,)}, True),
        "some": Row(32 + 34, {"phi": (8,), "rho": (), "aggregators": ("sum", "std"), "scalers": ("identity",)}, True),
        "embedded": Row(28 + 40 + 97 * 2, {"phi": (8,), "rho": (), **EMBEDDED}, True),
    },
    "standardised": {
        "recurrent": Row(338, {"options": {"hidden": 8}}, state_size=8),
        "deepsets": Row(
            8 * 4 + 8 * 9 + 5 * 9 + 12, {"model": "deepsets", "options": {"phi": [8, 8], "rho": [5]}}, True, 8
        ),
    },
}
CASES = [pytest.param(name, row, id=f"{name}-{label}") for name, rows in ROWS.items() for label, row in rows.items()]
RAGGED = [case for case in CASES if case.values[1].ragged]
every_row = pytest.mark.parametrize(("name", "row"), CASES)
every_ragged_row = pytest.mark.parametrize(("name", "row"), RAGGED)


def build(name: str, row: Row) -> SetModel:
    in_features = 1 if "embedding" in row.options else IN
    return MODELS[name](in_features, OUT, **row.options)


def draw(row: Row, *shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Elements ``[*shape, D]`` of the kind the row's model reads."""
    generator = torch.Generator().manual_seed(seed)
    if "embedding" in row.options:
        return torch.randint(0, 7, (*shape, 1), generator=generator)
    return torch.randn(*shape, IN, generator=generator, dtype=dtype)


def batch(row: Row, lengths: list[int], padding: float = float("nan"), **kwargs: Any) -> tuple[Tensor, Tensor]:
    elements = draw(row, len(lengths), max(lengths), **kwargs)
    for sample, length in zip(elements, lengths, strict=True):
        sample[length:] = padding if elements.is_floating_point() else -9
    return elements, torch.tensor(lengths)


def test_every_registered_model_has_a_row():
    assert set(ROWS) == {name for name, model in MODELS.items() if model.__module__.startswith("anyorder.models")}


@every_row
def test_it_says_what_it_is(name, row):
    model = build(name, row)
    assert model.describe() == {
        "name": name,
        "parameters": row.parameters,
        "state_size": row.state_size,
        "invariant": row.invariant,
        "streams": row.state_size is not None,
    }
    assert MODELS[model.name] is type(model)


@every_ragged_row
def test_padding_and_batch_mates_never_change_an_output(name, row):
    model = build(name, row).eval()
    elements, lengths = batch(row, [5, 2, 1, 0, 5, 4])
    together = model(elements, lengths)
    for sample, length in enumerate(lengths.tolist()):
        alone = model(elements[sample : sample + 1, :length])
        longer = model(elements[sample : sample + 1], lengths[sample : sample + 1])
        torch.testing.assert_close(together[sample : sample + 1], alone, rtol=0, atol=1e-6)
        torch.testing.assert_close(longer, alone, rtol=0, atol=1e-6)


@every_ragged_row
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


@every_ragged_row
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
    if row.options.get("combine") != "vote":  # two sets may well get the same votes
        assert not torch.allclose(model(different), out[[1]])  # it does read the one element


@pytest.mark.parametrize(("name", "row"), [case for case in CASES if case.values[1].invariant])
@given(seed=st.integers(0, 1000), size=st.integers(2, 9))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_invariant_models_ignore_order(name, row, seed, size):
    torch.manual_seed(0)
    model = build(name, row).eval()
    elements = draw(row, 1, size, seed=seed)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    # 1e-5 of the value: a sum of hundreds of tuples is rounded that much in float32
    torch.testing.assert_close(model(elements[:, order]), model(elements), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "row"), [case for case in CASES if not case.values[1].invariant])
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
    lengths = torch.arange(64) % (WHOLE + 1) if row.ragged else None
    model(elements, lengths).square().sum().backward()
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
