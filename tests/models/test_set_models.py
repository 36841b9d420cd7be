"""Each set model against slow, literal computations of what it claims to be, and its refusals."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from anyorder.models import (
    DeepSets,
    JanossyPooling,
    MultiAggregation,
    RecurrentSetModel,
    SetTransformer,
    Standardised,
    average_over_orderings,
)
from anyorder.models.base import fixed_orderings, pool
from anyorder.models.set_transformer import ISAB, MAB, PMA, SAB
from anyorder.recurrences import known

NAN = float("nan")


# The recurrent model


@pytest.mark.parametrize("cell", ["rnn", "relu-rnn", "gru", "lstm", "relu"])
def test_the_recurrent_model_is_its_parts(cell):
    model = RecurrentSetModel(3, 2, cell, hidden=6, encoder=(5,), readout=(4,)).double()
    elements = torch.randn(2, 4, 3, dtype=torch.float64)
    state = model.recurrence.start(2)
    for position in range(4):
        state = model.recurrence.step(model.encode(elements)[:, position], state)
    out, trajectory = model(elements, return_trajectory=True)
    torch.testing.assert_close(model.readout(state), out)
    torch.testing.assert_close(model.readout(trajectory.last), out)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: ao.RecurrentSetModel(
            n(2), n(1), hidden=n(8), layers=n(2), encoder=(n(4),), orderings=n(2), seed=n(3)
        ),
        lambda n: ao.RecurrentSetModel(n(1), n(1), "relu", n(8), state_features=n(4), embedding=(n(9), n(2), "frozen")),
    ],
)
def test_whole_numbers_of_numpy_are_as_good_as_pythons(make):
    assert json.dumps(make(np.int64).config()) == json.dumps(make(int).config())


def test_named_cells_are_torch_modules_with_a_learned_start():
    model = RecurrentSetModel(3, 2, "lstm", hidden=4, layers=2)
    start = [nn.Parameter(torch.randn_like(leaf)) for leaf in model.recurrence.start(1)]
    model.recurrence.start_0, model.recurrence.start_1 = start
    elements = torch.randn(5, 6, 3)
    layers_first = tuple(s.expand(5, 2, 4).transpose(0, 1).contiguous() for s in start)
    outputs, _ = model.recurrence.module(elements, layers_first)
    torch.testing.assert_close(model(elements), model.readout.head(outputs[:, -1]))
    assert all((leaf == 0).all() for leaf in RecurrentSetModel(3, 2, "lstm").recurrence.start(3))


def test_the_relu_cell_holds_theorem_4():
    model = RecurrentSetModel(1, 1, "relu", hidden=3, state_features=1, learned_start=False, readout=nn.Identity())
    assert sum(p.numel() for p in model.parameters()) == 12
    model.recurrence.load_state_dict(known.parity().state_dict())
    bits = torch.randint(0, 2, (20, 33, 1)).float()
    assert torch.equal(model(bits), bits.sum(1) % 2)


def test_an_own_head_on_an_own_recurrence_gets_the_state_as_it_is():
    class Difference(nn.Module):
        def forward(self, state: dict[str, Tensor]) -> Tensor:
            return state["high"] - state["low"]

    def step(element: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"high": torch.maximum(state["high"], element), "low": torch.minimum(state["low"], element)}

    ends = {"high": torch.full((1, 1), -math.inf), "low": torch.full((1, 1), math.inf)}
    model = RecurrentSetModel(1, 1, ao.recurrence(step, start=ends), readout=Difference())
    assert model(torch.tensor([[[3.0], [9.0], [5.0]]])).item() == 6.0


def test_dropout_acts_on_what_the_read_out_reads_and_nowhere_else():
    model = RecurrentSetModel(3, 200, hidden=200, dropout=0.75, readout=nn.Identity())
    out, trajectory = model(torch.randn(50, 4, 3), return_trajectory=True)
    kept = out != 0
    assert abs(kept.float().mean().item() - 0.25) < 0.02
    torch.testing.assert_close(out[kept], 4 * trajectory.last[kept])
    quiet, trajectory = model.eval()(torch.randn(50, 4, 3), return_trajectory=True)
    assert torch.equal(quiet, trajectory.last)


def test_read_out_dropout_follows_its_hidden_layers():
    kinds = [type(m) for m in RecurrentSetModel(3, 2, readout=(5,), readout_dropout=0.5).readout.head]
    assert kinds == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gate_biases_spread_memory_from_1_to_t_steps(cell):
    size, span = 500, 100.0
    model = RecurrentSetModel(1, 1, cell, hidden=size, gate_bias_span=span)
    module = model.recurrence.module
    gates = (module.bias_ih_l0 + module.bias_hh_l0).view(-1, size)
    keep = gates[1]  # z of a GRU, f of an LSTM
    steps = keep.exp()  # sigmoid(log u) forgets after about u steps
    assert steps.min() >= 1
    assert steps.max() <= span
    assert abs(steps.mean().item() - (1 + span) / 2) < 5  # four standard errors
    if cell == "lstm":
        assert torch.equal(gates[0], -keep)


def test_a_frozen_embedding_is_no_parameter_but_is_saved():
    model = RecurrentSetModel(1, 1, embedding=(100, 50, "frozen"))
    table = model.table.weight
    assert not any(p is table for p in model.parameters() if p.requires_grad)
    assert "table.weight" in model.state_dict()
    assert table.abs().max() <= 0.5
    assert abs(table.std().item() - 1 / math.sqrt(12)) < 0.01
    integers = torch.tensor([[[3], [99]]])
    assert torch.equal(model.encode(integers)[0], table[[3, 99]])


# Averaging over orderings


def test_fixed_orderings_depend_on_seed_and_length_alone():
    some = fixed_orderings(torch.tensor([4, 2, 4, 0]), 6, 3, seed=7)
    others = fixed_orderings(torch.tensor([1, 4]), 4, 3, seed=7)
    assert torch.equal(some[0], some[2])
    assert torch.equal(some[0, :, :4], others[1])
    assert torch.equal(some[0, :, 4:], torch.tensor([[4, 5]]).expand(3, 2))
    assert all(sorted(row) == list(range(6)) for row in some.flatten(0, 1).tolist())
    assert not torch.equal(some[0, :, :4], fixed_orderings(torch.tensor([4]), 4, 3, seed=8)[0])


def test_the_average_is_the_literal_mean_over_orderings():
    model = RecurrentSetModel(2, 3, hidden=4, orderings=5, seed=2).eval()
    elements, lengths = torch.randn(3, 6, 2), torch.tensor([6, 3, 0])
    averaged = model(elements, lengths)
    with_trajectory, trajectory = model(elements, lengths, return_trajectory=True)
    model.orderings = 1
    for sample, length in enumerate(lengths.tolist()):
        orders = fixed_orderings(torch.tensor([length]), length, 5, seed=2)[0]
        slow = torch.stack([model(elements[sample, order][None])[0] for order in orders]).mean(0)
        torch.testing.assert_close(averaged[sample], slow)
    assert torch.equal(with_trajectory, averaged)
    assert torch.equal(trajectory.elements[0], elements[0])  # the trajectory is that of the given order
    model.orderings = 5
    torch.testing.assert_close(model.train()(elements, lengths), model.readout(trajectory.last))


# Janossy pooling


def test_pi_sgd_trains_on_fresh_orderings_and_repeats_its_predictions():
    model = JanossyPooling(2, 1, hidden=8, orderings=3, seed=4)
    elements = torch.randn(3, 9, 2)
    assert not torch.allclose(model(elements), model(elements))
    model.eval()
    assert torch.equal(model(elements), model(elements))
    expected = average_over_orderings(model.sequence, elements, orderings=3, seed=4)
    assert torch.equal(model(elements), expected)
    assert ao.order_gap(model, elements) > 0
    first = JanossyPooling(
        1,
        1,
        cell=ao.recurrence(lambda x, s: torch.where(s == 0, x, s), start=torch.zeros(1, 1)),
        readout=nn.Identity(),
        orderings=99,
        combine="vote",
    ).eval()
    assert first(torch.tensor([[[3.2], [2.9], [9.0]]])).item() == 3.0  # two of three orderings begin near 3


def test_pi_sgd_trains_on_every_ordering_alike():
    model = JanossyPooling(
        1, 1, cell=ao.recurrence(lambda x, s: 10 * s + x, start=torch.zeros(1, 1)), readout=nn.Identity()
    )
    digits = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1).expand(6000, 3, 1)
    counts = Counter(model(digits)[:, 0].tolist())
    assert set(counts) == {123.0, 132.0, 213.0, 231.0, 312.0, 321.0}
    assert all(abs(count - 1000) < 120 for count in counts.values())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_janossy_runs_over_every_ordered_tuple(k):
    model = JanossyPooling(2, 3, k=k, encoder=(6, 5)).double()
    lengths = [4, 3, 2, 1, 0]
    elements = torch.randn(5, 4, 2, dtype=torch.float64)
    out = model(elements, torch.tensor(lengths))
    for sample, length in enumerate(lengths):
        members = [*elements[sample, :length], *[torch.zeros(2, dtype=torch.float64)] * (k - length)]
        values = [model.phi(torch.cat(chosen)) for chosen in itertools.permutations(members, k)] if length else []
        pooled = torch.stack(values).mean(0) if values else torch.zeros(5, dtype=torch.float64)
        torch.testing.assert_close(out[sample], model.rho(pooled))
        torch.testing.assert_close(model(elements[sample : sample + 1, :length])[0], out[sample])


# DeepSets and multi-aggregation


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_deep_sets_count_beyond_their_precision(pooling):
    model = DeepSets(1, 1, phi=(2,), pooling=pooling).bfloat16()
    state = model.recurrence.start(1)
    state = model.recurrence.step(torch.ones(1, 2).bfloat16(), (state[0], state[1] + 2**24))
    assert state[1].item() == 2**24 + 1
    assert state[0].dtype == torch.bfloat16
    model.load_state_dict({name: value.float() for name, value in model.state_dict().items()})  # as it was once kept
    assert model.recurrence.start(1)[1].dtype == torch.int64


@pytest.mark.parametrize("how", ["mean", "std"])
def test_pooling_in_half_precision_does_not_overflow_on_the_way(how):
    values = 500 + 300 * torch.rand(2, 3000, 2)
    mask = torch.arange(3000) < torch.tensor([[3000], [1000]])
    for half_mask in (None, mask):
        half = pool(values.half(), half_mask, how)
        assert half.dtype == torch.float16
        torch.testing.assert_close(half.float(), pool(values, half_mask, how), rtol=1e-2, atol=0)


def test_settings_of_a_built_model_are_part_of_its_configuration():
    averaging = ao.RecurrentSetModel(3, 2, orderings=20)
    averaging.orderings, averaging.seed = 1, 5
    assert (averaging.config()["orderings"], averaging.config()["seed"]) == (1, 5)
    in_units = Standardised(3, 2, "recurrent", {"orderings": 20})
    assert in_units.orderings == 20
    in_units.inner.orderings = 1
    assert in_units.orderings == in_units.config()["options"]["orderings"] == 1


def test_a_model_reads_the_dtype_of_weights_put_in_its_place():
    model, wrapped = ao.RecurrentSetModel(3, 2), nn.Sequential(ao.DeepSets(3, 2))
    elements = torch.randn(2, 4, 3, dtype=torch.float64)
    for module in (model, wrapped):
        module.load_state_dict({name: value.double() for name, value in module.state_dict().items()}, assign=True)
        assert module(elements).dtype == torch.float64
        with pytest.raises(InputTypeError, match="elements"):
            module(elements.float())


def test_equivariant_layers_see_the_maximum_of_the_set():
    model = DeepSets(2, 1, phi=(4, 3), rho=(), pooling="mean", equivariant=True)
    sample = torch.randn(5, 2)
    hidden = sample
    for layer in model.phi:
        top = torch.stack([column.max() for column in hidden.T])
        hidden = torch.stack([torch.relu(layer.own(x) - layer.shared(top)) for x in hidden])
    torch.testing.assert_close(model(sample[None])[0], model.rho(hidden.mean(0)))


@pytest.mark.parametrize("how", ["sum", "mean", "max", "min", "std"])
def test_pooling_is_that_of_the_elements_alone(how):
    values, lengths = torch.randn(4, 5, 3, dtype=torch.float64) - 3, [5, 2, 1, 0]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    pooled = pool(values.masked_fill(~mask[:, :, None], NAN).nan_to_num(99.0), mask, how)
    for sample, length in enumerate(lengths[:3]):
        own = values[sample, :length]
        literal = {
            "sum": own.sum(0),
            "mean": own.sum(0) / length,
            "max": own.max(0).values,
            "min": own.min(0).values,
            "std": (own.var(0, correction=0) + 1e-5).sqrt(),
        }[how]
        torch.testing.assert_close(pooled[sample], literal)
    assert pooled[3].abs().max() <= math.sqrt(1e-5)


def test_scalers_grow_and_shrink_with_the_logarithm_of_the_size():
    model = MultiAggregation(1, 24, phi=(2,), rho=(), activation="tanh", typical_size=7)
    model.rho[1] = nn.Identity()
    out = model(torch.ones(2, 63, 1), torch.tensor([63, 1]))
    one = model.phi(torch.ones(1))
    assert one.abs().min() > 0.1
    pooled = torch.cat([one, one, one, torch.full((2,), 1e-5).sqrt()])  # mean, maximum, minimum, deviation
    torch.testing.assert_close(out[0], torch.cat([pooled, 2 * pooled, pooled / 2]))  # log 64 / log 8 = 2
    torch.testing.assert_close(out[1], torch.cat([pooled, pooled / 3, 3 * pooled]))


# The Set Transformer


def literal_attention(block: MAB, queries: Tensor, keys: Tensor) -> Tensor:
    """Multihead(X, Y, Y) of one sample, query by query and head by head."""
    size = block.query.out_features // block.heads
    rows = []
    scale = math.sqrt(size * block.heads if block.paper else size)
    for query in queries:
        heads = []
        for head in range(block.heads):
            part = slice(head * size, (head + 1) * size)
            q = block.query(query)[part]
            scores = [float(q @ block.key(key)[part]) / scale for key in keys]
            highest = max(scores)
            weights = [math.exp(score - highest) for score in scores]
            heads.append(sum(w / sum(weights) * block.value(key)[part] for w, key in zip(weights, keys, strict=True)))
        rows.append(block.out(torch.cat(heads)))
    return torch.stack(rows)


def literal_mab(block: MAB, queries: Tensor, keys: Tensor) -> Tensor:
    attended = literal_attention(block, queries, keys) if len(keys) else torch.zeros_like(queries)
    hidden = block.norm_attention((block.query(queries) if block.paper else queries) + attended)
    return block.norm_feed(hidden + torch.relu(block.feed(hidden)))


@pytest.mark.parametrize("paper", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
@torch.no_grad()
def test_attention_blocks_agree_with_literal_ones(layer_norm, paper):
    lengths = [5, 2, 1, 0]
    elements = torch.randn(4, 5, 6, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    sab = SAB(6, 2, layer_norm, paper=paper).double()
    isab = ISAB(6, 3, 4, layer_norm, paper=paper).double()
    pma = PMA(6, 2, 3, layer_norm, paper=paper).double()
    for sample, length in enumerate(lengths):
        own = elements[sample, :length]
        if length:
            torch.testing.assert_close(sab(elements, mask)[sample, :length], literal_mab(sab.block, own, own))
            summary = literal_mab(isab.gather, isab.points[0], own)
            torch.testing.assert_close(isab(elements, mask)[sample, :length], literal_mab(isab.spread, own, summary))
        fed = own if paper else torch.relu(pma.feed(own))
        torch.testing.assert_close(pma(elements, mask)[sample], literal_mab(pma.block, pma.seeds[0], fed))


@torch.no_grad()
def test_the_set_transformer_is_its_blocks():
    model = SetTransformer(3, 2, hidden=6, heads=2, blocks=2, inducing=3, seeds=2).double()
    sample = torch.randn(1, 5, 3, dtype=torch.float64)
    hidden = model.lift(sample[0])
    for block in model.encoder:
        hidden = literal_mab(block.spread, hidden, literal_mab(block.gather, block.points[0], hidden))
    pooled = literal_mab(model.pool.block, model.pool.seeds[0], torch.relu(model.pool.feed(hidden)))
    pooled = literal_mab(model.decoder[0].block, pooled, pooled)
    torch.testing.assert_close(model(sample)[0], model.rho(pooled.flatten()))
    theirs = SetTransformer(3, 2, hidden=6, heads=2, inducing=None, variant="paper").double()
    (one, two), hidden = theirs.encoder, sample[0]  # the first block reads the elements, two SABs follow the pooling
    for block in (one.block, two.block):
        hidden = literal_mab(block, hidden, hidden)
    hidden = literal_mab(theirs.pool.block, theirs.pool.seeds[0], hidden)
    for further in theirs.decoder:
        hidden = literal_mab(further.block, hidden, hidden)
    torch.testing.assert_close(theirs(sample)[0], theirs.rho(hidden.flatten()))


# Refusals

REFUSED = {
    "cell": lambda: RecurrentSetModel(3, 2, "gur"),
    "cell module": lambda: RecurrentSetModel(3, 2, nn.GRU(3, 4)),
    "hidden": lambda: RecurrentSetModel(3, 2, hidden=0),
    "layers": lambda: RecurrentSetModel(3, 2, "relu", layers=2),
    "gate_bias_span": lambda: RecurrentSetModel(3, 2, gate_bias_span=1),
    "gate_bias_span of an rnn": lambda: RecurrentSetModel(3, 2, "rnn", gate_bias_span=9),
    "gate_bias_span of a recurrence": lambda: RecurrentSetModel(1, 1, known.sum(), gate_bias_span=9),
    "state_features": lambda: RecurrentSetModel(3, 2, state_features=4),
    "channels": lambda: RecurrentSetModel(3, 2, channels={"affine": 4}),
    "bilinear": lambda: RecurrentSetModel(3, 2, bilinear=3),
    "width of a fold": lambda: RecurrentSetModel(3, 2, width=8),
    "encoder": lambda: RecurrentSetModel(3, 2, encoder=nn.Flatten()),
    "width": lambda: RecurrentSetModel(3, 2, encoder=(8, 0)),
    "readout_dropout": lambda: RecurrentSetModel(3, 2, readout=nn.Linear(64, 2), readout_dropout=0.5),
    "activation": lambda: RecurrentSetModel(3, 2, activation="tan"),
    "orderings": lambda: RecurrentSetModel(3, 2, orderings=0),
    "seed": lambda: RecurrentSetModel(3, 2, seed=-1),
    "in_features of an embedding": lambda: RecurrentSetModel(3, 2, embedding=(9, 2, "frozen")),
    "embedding": lambda: RecurrentSetModel(1, 2, embedding=(9, 2, "frosen")),
    "k": lambda: JanossyPooling(3, 2, k=4),
    "pooling": lambda: DeepSets(3, 2, pooling="median"),
    "hidden and heads": lambda: SetTransformer(3, 2, hidden=10, heads=4),
    "inducing": lambda: SetTransformer(3, 2, inducing=0),
    "typical_size": lambda: MultiAggregation(3, 2, typical_size=0),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_are_checked_at_construction(case):
    with pytest.raises(InputError, match=case.split()[0]):
        REFUSED[case]()


class Log(nn.Module):
    """Has no gradient at 0, nor at anything else that is no element."""

    def forward(self, elements: Tensor) -> Tensor:
        return elements.log()


@pytest.mark.parametrize("kind", ["recurrent", "averaged", "pi-sgd", "tuples", "pairs", "penalty", "gap"])
def test_an_encoder_never_reads_padding(kind):
    encoder = nn.Sequential(Log(), nn.Linear(4 if kind == "pairs" else 2, 3))
    options = {"averaged": {"orderings": 3}}.get(kind, {})
    if kind in ("pi-sgd", "tuples", "pairs"):
        model = JanossyPooling(2, 1, k={"tuples": 1, "pairs": 2}.get(kind), encoder=encoder, **options)
    else:
        model = RecurrentSetModel(2, 1, encoder=encoder, **options)
    model.train(kind != "averaged")
    sizes = [4, 3, 2] if kind == "pairs" else [4, 2, 1, 0]
    elements, lengths = ao.pad([torch.rand(size, 2) + 0.5 for size in sizes], value=NAN)
    if kind == "penalty":
        ao.SIRE()(model, elements, lengths).backward()
    elif kind == "gap":
        assert math.isfinite(ao.order_gap(model, elements, lengths))
        return
    else:
        model(elements, lengths).sum().backward()
    assert encoder[1].weight.grad.isfinite().all()
    assert encoder[1].weight.grad.any()
