"""The training loop: what it minimises, what it leaves alone, and that a killed run ends as if it had not been."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyorder as ao
from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.files import tensors_from_bytes, tensors_to_bytes
from anyorder.training import checkpoint as checkpoints
from anyorder.training.batches import Deck, pieces
from anyorder.training.config import OPTIMIZERS, SCHEDULES, TrainConfig
from anyorder.training.loop import train
from anyorder.training.objective import Objective
from anyorder.training.predict import predict

SIRE = ao.SIRE(relative=False)


def sums(samples: int = 48, length: int = 5, seed: int = 0) -> SetData:
    x = torch.rand(samples, length, 1, generator=torch.Generator().manual_seed(seed))
    return SetData.of(x, x.sum((1, 2)))


def ragged(samples: int = 40, seed: int = 0) -> SetData:
    g = torch.Generator().manual_seed(seed)
    sets = [torch.rand(int(n), 1, generator=g) for n in torch.randint(0, 9, (samples,), generator=g)]
    return SetData.of(sets, torch.stack([s.sum() for s in sets]))


def model(seed: int = 0, out: int = 1, **options) -> ao.RecurrentSetModel:
    torch.manual_seed(seed)
    return ao.RecurrentSetModel(1, out, **{"hidden": 6, **options})


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def trained(data: SetData, *, start: nn.Module | None = None, loss="mse", **options):
    subject = start or model()
    settings = {name: options.pop(name) for name in TrainConfig.__dataclass_fields__ if name in options}
    config = TrainConfig(**{"epochs": 3, "batch_size": 16, **settings})
    return subject, train(subject, loss, data, config=config, progress=False, **options)


def tied(samples: int = 24, seed: int = 0, **options) -> SetData:
    """Sets of six elements at four times: two ties of two elements."""
    x = torch.rand(samples, 6, 1, generator=torch.Generator().manual_seed(seed))
    return SetData.of(x, x[:, 0].sum(1) + x.sum((1, 2)), ties=torch.tensor([[0, 0, 1, 2, 2, 5]] * samples), **options)


# What it minimises ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_named_optimiser_takes_the_steps_of_torchs_own(name, dtype):
    """Whichever of torch's implementations of a step is used, the weights it leads to are the same."""
    start = torch.linspace(-1, 1, 20, dtype=dtype).reshape(4, 5)
    ours, torchs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    config = TrainConfig(optimizer=name, learning_rate=0.05, weight_decay=0.1)
    reference = OPTIMIZERS[name]([torchs], lr=0.05, weight_decay=0.1, foreach=False)
    for parameter, optimizer in ((ours, config.make_optimizer([ours])), (torchs, reference)):
        for _ in range(5):
            optimizer.zero_grad()
            (parameter - 0.3).pow(4).sum().backward()
            optimizer.step()
    assert not torch.allclose(ours, start)
    torch.testing.assert_close(ours, torchs)


SGD = {"epochs": 1, "schedule": "constant", "clip": None, "optimizer": "sgd", "learning_rate": 0.1}


def step_taken(data: SetData, **options) -> Tensor:
    """The gradient behind one step of plain gradient descent."""
    return (flat(model()) - flat(trained(data, **SGD, **options)[0])) / 0.1


def test_one_step_is_the_step_one_would_write_by_hand():
    data, by_hand = sums(16), model()
    F.mse_loss(by_hand(data.elements.view(16, 5, 1))[:, 0], data.targets).backward()
    task = torch.cat([p.grad.flatten() for p in by_hand.parameters()])
    torch.testing.assert_close(step_taken(data), task, atol=1e-5, rtol=1e-4)
    once = step_taken(data, penalty=SIRE, penalty_weight=3.0) - task
    twice = step_taken(data, penalty=SIRE, penalty_weight=6.0) - task
    assert once.norm() > 1e-3
    torch.testing.assert_close(twice, 2 * once, atol=2e-5, rtol=1e-3)


def test_weight_zero_is_the_run_without_penalty_even_with_dropout_and_shuffling():
    data = ragged()
    options = {"shuffle": True, "start": model(dropout=0.5)}
    zero, _ = trained(data, penalty=SIRE, penalty_weight=0.0, **options)
    none, _ = trained(data, shuffle=True, start=model(dropout=0.5))
    assert torch.equal(flat(zero), flat(none))
    some, _ = trained(data, shuffle=True, start=model(dropout=0.5), penalty=SIRE, penalty_weight=1.0)
    assert not torch.equal(flat(some), flat(none))


def test_objective_is_output_and_penalty_of_the_same_batch():
    subject, elements = model(), torch.rand(8, 5, 1)
    draw = torch.Generator
    output, penalty = Objective(subject, SIRE)(elements, None, draw().manual_seed(1))
    assert torch.equal(output, subject(elements))
    assert torch.equal(penalty, SIRE(subject, elements, generator=draw().manual_seed(1)))
    other = torch.rand(4, 7, 1)
    _, elsewhere = Objective(subject, SIRE)(elements, None, draw().manual_seed(1), (other, None))
    assert torch.equal(elsewhere, SIRE(subject, other, generator=draw().manual_seed(1)))
    assert Objective(subject)(elements)[1] == 0


@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn"])
@pytest.mark.parametrize(
    "penalty", [SIRE, ao.SIRE(prefixes="given", window=1, relative=False), ao.SIRE(prefixes="given", relative=False)]
)
def test_under_autocast_the_penalty_is_in_full_precision(cell, penalty):
    """Of a recurrence that nearly commutes: in bfloat16 its two branches would differ by rounding alone."""
    subject, elements = ao.RecurrentSetModel(1, 1, hidden=8, cell=cell), torch.rand(8, 5, 1)
    with torch.no_grad():
        for name, parameter in subject.recurrence.module.named_parameters():
            parameter.mul_(1.0 if "bias" in name else 0.005)
    draw = torch.Generator
    with torch.autocast("cpu", torch.bfloat16):
        output, value = Objective(subject, penalty)(elements, None, draw().manual_seed(1))
    assert output.dtype == torch.bfloat16
    exact = penalty(subject, elements, generator=draw().manual_seed(1))
    assert 0 < exact < 1e-6
    torch.testing.assert_close(value, exact, rtol=0.05, atol=0)


def test_mixed_precision_trains_and_validates_in_full_precision():
    def metric(outputs: Tensor, _: Tensor) -> float:
        return outputs.sum().item()

    data = sums()
    options = {"penalty": SIRE, "penalty_weight": 1.0, "epochs": 10, "validation": data, "metric": metric}
    subject, result = trained(data, mixed_precision="bf16", **options)
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert all(p.dtype == torch.float32 for p in subject.parameters())
    assert result.best_validation == pytest.approx(metric(predict(subject, data), data.targets), rel=1e-5)
    assert not torch.equal(flat(trained(data, **options)[0]), flat(subject))


def test_what_a_loss_sees(monkeypatch):
    """Outputs in the launcher's precision unless it is given; those of one column are not broadcast to targets."""
    seen: list[tuple] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append((output.dtype, output.shape, target.shape))
        return (output.float() - target).square().mean()

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    trained(sums(16), loss=loss, epochs=1)
    trained(sums(16), loss=loss, epochs=1, mixed_precision="no")
    assert seen == [(torch.bfloat16, (16,), (16,)), (torch.float32, (16,), (16,))]


def test_weights_of_samples_count_as_repetitions_do():
    data = sums(8)
    weights = torch.tensor([3.0, 1, 1, 1, 1, 1, 1, 1])
    weighted, _ = trained(SetData(data.elements, data.offsets, data.targets, weights), **SGD)
    repeated, _ = trained(data.select([0, 0, 0, 1, 2, 3, 4, 5, 6, 7]), **SGD)
    torch.testing.assert_close(flat(weighted), flat(repeated), atol=1e-6, rtol=1e-5)


class Watch(nn.Module):
    """Notes the elements that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.seen = nn.Parameter(torch.ones(1)), []

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.seen.append(elements[:, :, 0])
        return self.scale * elements.sum((1, 2))[:, None]


def test_shuffling_reads_every_sample_in_fresh_orders():
    data = SetData.of(torch.arange(24.0).reshape(4, 6), torch.ones(4))

    def read(**options) -> Tensor:
        """``[epochs, samples, elements]``, less the least element of each sample."""
        seen = trained(data, start=Watch(), epochs=5, batch_size=4, **options)[0].seen
        return torch.stack([epoch[epoch.min(1).values.argsort()] - torch.arange(0, 24, 6)[:, None] for epoch in seen])

    def kinds(orders: Tensor) -> int:
        return len(orders.unique(dim=0))

    orders = read(shuffle=True)
    assert torch.equal(orders.sort(2).values, torch.arange(6.0).expand(5, 4, 6))
    assert kinds(orders.flatten(0, 1)) > 15
    halves = read(shuffle=True, shuffle_within=3).reshape(5, 4, 2, 3)  # elements 0 to 2 stay in the first half
    assert torch.equal(halves.sort(3).values, torch.arange(6.0).reshape(2, 3).expand(5, 4, 2, 3))
    assert kinds((halves % 3).reshape(40, 3)) == 6
    assert torch.equal(read(), torch.arange(6.0).expand(5, 4, 6))


@dataclass(frozen=True)
class Scaled:
    """Every set times a random factor."""

    most: float = 2.0

    def __call__(self, elements, lengths, generator, share):
        return elements * (1 + (self.most - 1) * torch.rand(len(elements), 1, 1, generator=generator)), lengths


class Seen(nn.Module):
    """A model that notes the batches it reads in training."""

    def __init__(self):
        super().__init__()
        self.inside, self.batches = model(static_features=1), []

    def forward(self, elements, lengths=None, *, static=None):
        self.batches.append((elements[:, :, 0].clone(), static.clone()))
        return self.inside(elements, lengths, static=static)


def test_ties_are_shuffled_within_and_each_set_keeps_its_static_features():
    data = tied(static=torch.arange(24.0)[:, None])
    subject, _ = trained(data, start=Seen(), shuffle=True, batch_size=8, epochs=12, gap_every=0)
    firsts = set()
    for elements, static in subject.batches:
        for row, number in zip(elements, static[:, 0].long().tolist(), strict=True):
            given = data.batch([number])[0][0, :, 0]
            for tie in (slice(0, 2), slice(2, 3), slice(3, 5), slice(5, 6)):
                assert row[tie].sort().values.tolist() == given[tie].sort().values.tolist()
            firsts.add((number, bool(row[0] == given[0])))
    assert len(firsts) == 48  # of every set, both orders of its first tie


def test_the_penalty_within_ties_is_the_step_one_would_write_by_hand():
    data, penalty = tied(16), ao.SIRE(ties=True, relative=False, pairs=200)
    plain = step_taken(data)
    by_hand = model()
    penalty(by_hand, *data.batch(range(16)), ties=data.ties_of(range(16)), generator=torch.Generator()).backward()
    expected = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                          for p in by_hand.parameters()])  # fmt: skip
    ours = step_taken(data, penalty=penalty, penalty_weight=3.0) - plain
    assert (ours / 3 - expected).norm() < 0.1 * expected.norm()  # other draws of the pairs


def test_the_gap_of_data_with_ties_is_that_within_ties():
    data = tied(64)
    one, result = trained(data, epochs=1, schedule="constant", penalty=ao.SIRE(ties=True), penalty_weight=1.0)
    elements, ties = data.batch(range(64))[0], data.ties_of(range(64))
    gaps = [float(ao.order_gap(one, elements, ties=ties, generator=torch.Generator().manual_seed(s))) for s in range(9)]
    assert min(gaps) * 0.9 < result.history[-1]["gap"] < max(gaps) * 1.1
    assert max(gaps) < 0.8 * float(ao.order_gap(one, elements))
    apart = SetData.of(data, ties=torch.arange(6).repeat(64, 1))
    assert trained(apart, epochs=1)[1].history[-1]["gap"] is None  # no two elements may be exchanged


def test_unlabeled_sets_bring_their_own_ties():
    options = {"penalty": ao.SIRE(ties=True), "penalty_weight": ao.AdaptiveWeight(), "epochs": 1}
    one, _ = trained(tied(), unlabeled=tied(seed=1), **options)
    other, _ = trained(tied(), unlabeled=tied(seed=2), **options)
    assert not torch.equal(flat(one), flat(other))


def test_predictions_over_orderings_stay_within_ties():
    data = tied(8)
    subject = model()
    apart = SetData.of(data, ties=torch.arange(6).repeat(8, 1))
    draws = torch.Generator().manual_seed
    assert torch.allclose(predict(subject, apart, orderings=5, generator=draws(0)), predict(subject, apart), atol=1e-6)
    moved = predict(subject, data, orderings=5, generator=draws(0)) - predict(subject, data)
    assert moved.abs().max() > 0


def test_augment_makes_the_batch_that_is_learnt_from():
    data = sums(16)

    def tripled(elements, lengths, generator, share):
        return 3 * elements[:, :4], lengths

    by_hand = SetData.of(3 * data.elements.view(16, 5, 1)[:, :4], data.targets)
    torch.testing.assert_close(step_taken(data, augment=tripled), step_taken(by_hand))
    penalised = {"penalty": SIRE, "penalty_weight": 5.0}
    torch.testing.assert_close(step_taken(data, augment=tripled, **penalised), step_taken(by_hand, **penalised))


def test_augment_sees_the_penaltys_own_batches_and_neither_validation_nor_the_gap():
    shapes, shares = [], []

    def noted(elements, lengths, generator, share):
        assert generator is not torch.default_generator  # that is for dropout
        shapes.append(elements.shape[1])
        shares.append(share)
        return elements, lengths

    labeled, rest, held = sums(16, length=3), sums(16, length=4), sums(16, length=5)
    options = {"penalty": SIRE, "penalty_weight": 1.0, "unlabeled": rest, "validation": held, "gap_every": 1}
    trained(labeled, augment=noted, epochs=4, batch_size=16, **options)
    assert shapes[::2] == [3] * 4
    assert {*shapes[1::2]} <= {3, 4}
    assert 4 in shapes
    assert shares == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_optimiser_goes_with_every_schedule(name, schedule):
    _, result = trained(sums(), optimizer=name, schedule=schedule, epochs=8)
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_the_gradient_is_no_longer_than_clip():
    data = sums(16)
    free = step_taken(data)
    short = (flat(model()) - flat(trained(data, **{**SGD, "clip": 0.01})[0])) / 0.1
    assert free.norm() > 0.1
    torch.testing.assert_close(short, free * (0.01 / free.norm()), atol=1e-5, rtol=1e-3)


def test_the_loss_said_is_the_mean_over_samples_also_where_the_last_batch_is_short():
    data = sums(20)
    _, result = trained(data, epochs=1, learning_rate=1e-12)
    expected = F.mse_loss(predict(model(), data)[:, 0], data.targets).item()
    assert result.history[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_data_of_another_precision_is_read_in_the_models_own():
    data = sums()
    double = SetData(data.elements.double(), data.offsets, data.targets.double())
    subject, _ = trained(double, validation=double)
    assert flat(subject).dtype == torch.float32
    assert torch.equal(flat(subject), flat(trained(data, validation=data)[0]))


def test_the_penalty_is_taken_on_labeled_and_unlabeled_samples_together():
    seen: set[float] = set()

    def penalty(subject: nn.Module, elements: Tensor, lengths: Tensor | None, *, generator: torch.Generator) -> Tensor:
        seen.update(elements[:, 0, 0].tolist())
        return subject(elements, lengths).square().mean()

    labeled = SetData.of(torch.arange(8.0).reshape(8, 1, 1), torch.zeros(8))
    unlabeled = SetData.of(100 + torch.arange(8.0).reshape(8, 1, 1))
    trained(labeled, unlabeled=unlabeled, penalty=penalty, penalty_weight=1.0, batch_size=4, epochs=2, gap_every=0)
    assert seen == {*range(8), *range(100, 108)}


# The dial --------------------------------------------------------------------------------------------------------


def test_a_schedule_of_the_weight_is_asked_for_the_share_done():
    asked: list[float] = []

    def schedule(done: float) -> float:
        asked.append(done)
        return 0.0 if done < 0.5 else 2.0

    _, result = trained(sums(32), penalty=SIRE, penalty_weight=schedule, epochs=4, batch_size=16)
    assert sorted(set(asked)) == [k / 8 for k in range(9)]
    assert [r["penalty_weight"] for r in result.history] == [0.0, 2.0, 2.0, 2.0]
    assert result.history[0]["penalty"] is None
    assert result.history[-1]["penalty"] > 0


def test_a_budget_raises_the_weight_until_the_gap_is_met():
    budget = ao.AdaptiveWeight(target=0.01, weight=0.01, rate=0.5)
    _, result = trained(sums(64), penalty=SIRE, penalty_weight=budget, epochs=50, learning_rate=0.03)
    weights = [r["penalty_weight"] for r in result.history]
    assert max(weights) > 1.0 > weights[0]
    assert result.history[-1]["gap"] < 0.03
    assert trained(sums(64), epochs=50, learning_rate=0.03)[1].history[-1]["gap"] > 0.03


@pytest.mark.parametrize("target", [0.01, 1e-9])
def test_a_budget_keeps_the_best_epoch_of_those_near_its_target_else_the_nearest(target):
    validated = iter(range(1000))  # smaller is better: by itself the first epoch would be kept
    budget = ao.AdaptiveWeight(target=target, weight=0.01, rate=0.5)
    options = {"penalty": SIRE, "penalty_weight": budget, "epochs": 50, "learning_rate": 0.03}
    _, result = trained(sums(64), **options, validation=sums(16), metric=lambda *_: next(validated))
    gaps = [record["gap"] for record in result.history]
    near = [epoch for epoch, gap in enumerate(gaps) if gap <= 2 * target]
    assert result.best_epoch == (near[0] if near else gaps.index(min(gaps)))
    assert result.best_epoch > 0
    assert bool(near) == (target == 0.01)


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_a_budget_goes_on_where_a_batch_has_no_two_sets_with_a_pair(batch_size):
    budget = ao.AdaptiveWeight(target=1e-9, rate=0.5)
    _, result = trained(sums(33), penalty=SIRE, penalty_weight=budget, batch_size=batch_size, epochs=5, gap_every=0)
    updates = -(-result.steps // 10)
    assert budget.weight == pytest.approx(math.exp(0.5 * updates))


COMPARING = {"relative": ao.SIRE(relative=True), "partners": ao.SIRE(partners="batch")}


@pytest.mark.parametrize("name", COMPARING)
def test_a_batch_or_window_without_mates_has_no_penalty(name):
    penalty = COMPARING[name]
    _, result = trained(sums(33), penalty=penalty, penalty_weight=1.0)
    assert result.history[-1]["penalty"] > 0
    long_one = SetData.of([torch.rand(n, 1) for n in (20, 3, 3, 3)], torch.rand(4))
    _, result = trained(long_one, penalty=penalty, penalty_weight=1.0, truncate=4)
    assert result.history[-1]["penalty"] > 0
    with pytest.raises(InputError, match="batch_size"):
        trained(sums(), penalty=penalty, penalty_weight=1.0, batch_size=1)


# Validation, stopping, the best weights ---------------------------------------------------------------------------


def test_the_best_weights_by_validation_are_kept():
    subject, result = trained(
        sums(), validation=sums(seed=1), learning_rate=0.2, clip=None, schedule="constant", epochs=11
    )
    figures = [r["validation"] for r in result.history]
    assert result.best_epoch == min(range(11), key=figures.__getitem__) != 10
    again = F.mse_loss(predict(subject, sums(seed=1))[:, 0], sums(seed=1).targets)
    assert again.item() == pytest.approx(min(figures), rel=1e-5)
    assert not subject.training


def test_early_stopping_waits_for_patience_epochs():
    values = iter([5.0, 4.0, 6.0, 6.0, 6.0, 1.0])
    _, result = trained(sums(), validation=sums(seed=1), metric=lambda o, t: next(values), patience=3, epochs=6)
    assert (result.stopped, result.best_epoch, len(result.history)) == ("patience", 1, 5)


def test_a_figure_that_is_not_finite_is_never_the_best():
    nan = float("nan")
    for values, maximize in [([nan, 3.0, 2.0, nan, 4.0], False), ([float("inf"), 2.0, 3.0, nan, 1.0], True)]:
        figures = iter(values)
        _, result = trained(
            sums(), validation=sums(seed=1), metric=lambda o, t, f=figures: next(f), maximize=maximize, epochs=5
        )
        assert (result.best_epoch, result.best_validation) == (2, values[2])
    with pytest.raises(InputError, match="diverged"):
        trained(sums(), validation=sums(seed=1), metric=lambda o, t: nan)


@pytest.mark.parametrize("maximize", [False, True])
def test_a_plateau_is_of_the_figure_that_is_to_be_better(maximize):
    """The rate is halved, and only where the figure does not get better."""
    for better in (False, True):
        figures = iter(range(6) if better == maximize else range(6, 0, -1))
        _, result = trained(
            sums(), validation=sums(seed=1), metric=lambda o, t, f=figures: next(f), schedule="plateau", epochs=4,
            plateau_patience=1, learning_rate=0.01, maximize=maximize,
        )  # fmt: skip
        assert result.history[-1]["learning_rate"] == pytest.approx(0.01 if better else 0.005)


def test_divergence_keeps_the_best_weights_or_says_so():
    with pytest.raises(InputError, match="diverged"):
        trained(sums(), loss=lambda o, t: (o - t).square().mean() * float("nan"))
    calls = iter(range(100))
    loss = lambda o, t: (o - t).square().mean() * (float("nan") if next(calls) >= 8 else 1.0)  # noqa: E731
    with pytest.warns(UserWarning, match="epoch 1"):
        subject, result = trained(sums(), loss=loss, validation=sums(seed=1), epochs=9)
    assert result.stopped == "diverged"
    assert torch.isfinite(flat(subject)).all()


@pytest.mark.parametrize("options", [{}, {"truncate": 3}])
def test_weights_that_diverge_under_an_encoder_are_not_blamed_on_the_data(options):
    def loss(output: Tensor, target: Tensor) -> Tensor:
        value = (output - target).square().mean()
        return value + torch.sqrt(0 * value)  # a gradient of NaN

    with pytest.raises(InputError, match="diverged"):
        trained(sums(), start=model(encoder=(4,)), loss=loss, penalty=SIRE, penalty_weight=1.0, **options)


# Randomness -------------------------------------------------------------------------------------------------------


CHANCE = {
    "dropout": {"dropout": 0.5},
    "orderings": {"shuffle": True},
    "subsets": {"penalty": SIRE, "penalty_weight": 1.0},
    "unlabeled": {
        "penalty": ao.SIRE(prefixes="given", window=1, relative=False),
        "penalty_weight": 1.0,
        "unlabeled": SetData.of(torch.linspace(-3, 3, 64).reshape(32, 2, 1)),
    },
}


@pytest.mark.parametrize("kind", ["batches", *CHANCE])
def test_every_kind_of_chance_is_decided_by_the_seed_and_leaves_the_global_generator_alone(kind):
    """One kind at a time: samples that are all the same make the order of the batches nothing."""
    options = dict(CHANCE.get(kind, {}))
    dropout = options.pop("dropout", 0.0)
    alike = torch.linspace(0, 1, 2 if kind == "unlabeled" else 5).reshape(1, -1, 1).repeat(32, 1, 1)
    data = sums(32) if kind == "batches" else SetData.of(alike, torch.ones(32))
    ends = []
    for outside, seed in [(0, 1), (1, 1), (0, 2)]:
        start = model(dropout=dropout)
        torch.manual_seed(outside)
        before = torch.get_rng_state()
        ends.append(flat(trained(data, start=start, gap_every=0, epochs=1, seed=seed, **options)[0]))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(ends[0], ends[1])
    assert (ends[0] - ends[2]).abs().max() > 1e-5


def test_every_pass_reads_the_samples_in_an_order_of_its_own():
    deck = Deck(20, 8, 3, torch.device("cpu"))
    passes = [torch.cat([deck.batch(3 * number + place) for place in range(3)]).tolist() for number in range(3)]
    assert [len(deck.batch(place)) for place in range(3)] == [8, 8, 4]
    assert all(sorted(order) == list(range(20)) for order in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert Deck(20, 8, 3, torch.device("cpu")).batch(7).tolist() == passes[2][8:16]
    assert Deck(20, 8, 4, torch.device("cpu")).batch(7).tolist() != passes[2][8:16]


def test_measuring_the_gap_changes_nothing():
    on, a = trained(sums(), penalty=SIRE, penalty_weight=1.0)
    off, b = trained(sums(), penalty=SIRE, penalty_weight=1.0, gap_every=0)
    assert torch.equal(flat(on), flat(off))
    assert a.history[0]["gap"] > 0
    assert b.history[0]["gap"] is None
    assert [r["gap"] is None for r in trained(sums(), gap_every=2)[1].history] == [True, False, True]


# Truncated backpropagation ----------------------------------------------------------------------------------------


def test_pieces_cover_each_sample_once_in_order_and_end_at_its_end():
    data = ragged()
    elements, lengths = data.batch(torch.arange(len(data)))
    for size in (2, 3, 5, 20):
        rebuilt: list[list[float]] = [[] for _ in range(len(data))]
        ends = []
        for part, sizes, is_last in pieces(elements, lengths, size):
            ends.append(is_last)
            assert part.shape[1] <= size
            for sample, n in enumerate(sizes.tolist()):
                rebuilt[sample] += part[sample, :n, 0].tolist()
        assert ends == [False] * (len(ends) - 1) + [True]
        assert torch.equal(sizes, lengths.clamp(max=size))
        assert rebuilt == [elements[i, :n, 0].tolist() for i, n in enumerate(lengths.tolist())]


def test_a_window_longer_than_the_samples_changes_nothing():
    data = ragged()
    for penalty, weight in [(None, 0.0), (ao.SIRE(prefixes="given", window=1, relative=False), 2.0)]:
        whole, a = trained(data, penalty=penalty, penalty_weight=weight)
        windowed, b = trained(data, penalty=penalty, penalty_weight=weight, truncate=10)
        torch.testing.assert_close(flat(whole), flat(windowed), atol=1e-6, rtol=1e-5)
        assert a.history[-1]["loss"] == pytest.approx(b.history[-1]["loss"], rel=1e-5)


def test_the_truncated_gradient_is_that_of_the_last_window_with_the_state_before_it_held_constant():
    data = ragged(16)
    subject, _ = trained(data, truncate=3, **SGD)
    by_hand = model()
    loss = torch.zeros(())
    for i in range(len(data)):  # one by one, nothing padded
        x = data.elements[data.offsets[i] : data.offsets[i + 1]][None]
        cut = max(0, x.shape[1] - 3)
        state = by_hand.recurrence.start(1)
        if cut:
            state = by_hand.recurrence.scan(x[:, :cut]).last.detach()
        end = by_hand.recurrence.scan(x[:, cut:], state=state).last if x.shape[1] else state
        loss = loss + (by_hand.readout(end)[0, 0] - data.targets[i]).square() / len(data)
    loss.backward()
    for p, q in zip(by_hand.parameters(), subject.parameters(), strict=True):
        torch.testing.assert_close(p.detach() - 0.1 * p.grad, q.detach(), atol=1e-6, rtol=1e-4)


def test_windows_of_two_penalise_each_adjacent_pair_of_the_window():
    """With n = 4 and windows of 2 the adjacent swap is certain: the penalty is the mean of both windows' swaps."""
    data = sums(6, length=4)
    swap = ao.SIRE(prefixes="given", window=1, relative=False)
    _, result = trained(data, penalty=swap, penalty_weight=1e-12, truncate=2, epochs=1, clip=None, learning_rate=1e-12)
    subject, x = model(), data.elements.view(6, 4, 1)
    middle = subject.recurrence.scan(x[:, :2]).last
    gaps = []
    for state, pair in [(subject.recurrence.start(6), x[:, :2]), (middle, x[:, 2:])]:
        ends = [subject.recurrence.scan(p, state=state).last for p in (pair, pair.flip(1))]
        gaps.append((ends[0] - ends[1]).square().sum(1).mean().item())
    assert result.history[0]["penalty"] == pytest.approx(sum(gaps) / 2, rel=1e-4)


# What it says -----------------------------------------------------------------------------------------------------


def test_the_log_has_a_line_an_epoch_and_tensorboard_gets_the_same(tmp_path, capsys):
    heard: list[dict] = []
    _, result = trained(sums(), workdir=tmp_path, tensorboard=tmp_path / "b", log=heard.append, validation=sums(seed=1))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == result.history == heard
    assert [r["epoch"] for r in lines] == [0, 1, 2]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "b"))
    events.Reload()
    assert [e.value for e in events.Scalars("loss")] == pytest.approx([r["loss"] for r in lines])
    assert capsys.readouterr() == ("", "")


def test_progress_is_a_line_of_figures(capsys):
    train(model(), "mse", sums(), config=TrainConfig(epochs=2), validation=sums(seed=1))
    lines = capsys.readouterr().err.splitlines()
    assert re.match(r"epoch 1 of 2, about \d+ s left · loss ", lines[0])
    assert lines[-1].startswith("epoch 2 of 2 · loss ")
    assert "validation" in lines[0]
    assert "gap" in lines[0]


# Checkpoints ------------------------------------------------------------------------------------------------------


def steps_in(workdir: Path) -> int:
    """How many steps the checkpoint holds."""
    path = workdir / "checkpoint.safetensors"
    return tensors_from_bytes(path.read_bytes())[1]["result"]["steps"] if path.exists() else 0


def stop_after(epochs: int):
    def log(record: dict) -> None:
        if record["epoch"] + 1 == epochs:
            raise KeyboardInterrupt

    return log


@pytest.mark.parametrize("schedule", ["one-cycle", "plateau"])
@pytest.mark.parametrize(("optimizer", "best"), [("adam", None), ("sgd", 0)])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, schedule, optimizer, best):
    def go(workdir: Path | None, log=None, epoch=0):
        worse_and_worse = iter(range(epoch, 6))
        return trained(
            ragged(), start=model(dropout=0.3), penalty=SIRE, workdir=workdir, log=log, epochs=6, shuffle=True,
            penalty_weight=ao.AdaptiveWeight(target=1e-3) if best is None else 1.0, unlabeled=sums(24),
            validation=sums(seed=3), metric=None if best is None else lambda *_: next(worse_and_worse),
            augment=Scaled(), schedule=schedule, optimizer=optimizer, checkpoint_seconds=0.0, plateau_patience=1,
        )  # fmt: skip

    whole, expected = go(None)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, stop_after(3))
    (tmp_path / ".checkpoint.safetensors.0123abcd.tmp").write_bytes(b"half a chec")  # what a killed run was writing
    resumed, result = go(tmp_path, epoch=2)  # its end was not written
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.safetensors", "log.jsonl"]
    assert result.best_epoch == (expected.best_epoch if best is None else best)
    finished, again = go(tmp_path)
    assert again == result  # at once, since it took no more seconds
    assert all(torch.equal(flat(whole), flat(other)) for other in (resumed, finished))
    for ours, theirs in zip(result.history, expected.history, strict=True):
        assert {**ours, "seconds": 0, "samples_per_second": 0} == {**theirs, "seconds": 0, "samples_per_second": 0}
    logged = [json.loads(line)["epoch"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert logged == list(range(6))


def test_a_full_disk_is_said_and_the_last_checkpoint_is_intact(tmp_path):
    """A limit on file size stands for the disk: the write fails half-way, as on a full one."""
    trained_epochs = 2

    def fill_the_disk(record: dict) -> None:
        if record["epoch"] + 1 == trained_epochs:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match="checkpoint"):
            trained(sums(), workdir=tmp_path, epochs=5, checkpoint_seconds=0.0, log=fill_the_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert steps_in(tmp_path) == 6  # the last step before the disk was full
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.safetensors", "log.jsonl"]
    resumed, _ = trained(sums(), workdir=tmp_path, epochs=5, checkpoint_seconds=0.0)
    assert torch.equal(flat(resumed), flat(trained(sums(), epochs=5)[0]))


# Prediction -------------------------------------------------------------------------------------------------------


def test_predict_is_one_by_one_whatever_the_batches_and_leaves_each_module_in_its_own_mode():
    subject, data = model(dropout=0.5), ragged(30)
    subject.train().encoder.eval()
    modes = [module.training for module in subject.modules()]
    together = predict(subject, data, batch_size=7)
    assert [module.training for module in subject.modules()] == modes
    with pytest.raises(InputError, match="must have 1 features"):
        predict(subject, SetData.of([np.ones((2, 3))]))
    assert [module.training for module in subject.modules()] == modes
    subject.eval()
    for i in range(len(data)):
        alone = subject(*data.batch([i]))
        torch.testing.assert_close(together[i], alone[0], atol=1e-6, rtol=1e-5)


def test_predict_averages_over_orderings():
    subject, data = model().eval(), sums(5)
    g = torch.Generator().manual_seed(0)
    many = predict(subject, data, orderings=400, generator=g)
    x = data.elements.view(5, 5, 1)
    exact = torch.stack([subject(x[:, list(order)]).detach() for order in permutations(range(5))]).mean(0)
    torch.testing.assert_close(many, exact, atol=0.01, rtol=0)
    assert (predict(subject, data) - exact).abs().max() > 0.02
    doubled = predict(subject, data, orderings=400, generator=torch.Generator().manual_seed(0), finish=lambda o: 2 * o)
    torch.testing.assert_close(doubled, 2 * many)


def test_long_sets_are_read_in_small_batches():
    even, ragged = Watch(), Watch()
    predict(even, SetData.of(torch.ones(10, 40_000, 1)))
    predict(ragged, SetData.of([torch.ones(n, 1) for n in (1, 100_000, 2, 90_000)]))
    assert max(batch.numel() for batch in even.seen + ragged.seen) <= 2**17
    assert sum(batch.numel() for batch in even.seen) == 400_000


def test_validation_is_weighted_as_its_sets_are():
    held = sums(seed=1)
    weights = torch.linspace(0, 3, 48)
    subject, result = trained(sums(), validation=SetData.of(held, weights=weights), epochs=1)
    losses = (predict(subject, held)[:, 0] - held.targets).square()
    assert result.best_validation == pytest.approx(float((losses * weights).sum() / weights.sum()), rel=1e-5)
    scalar = trained(sums(), validation=SetData.of(held, weights=weights), epochs=1, loss=F.mse_loss)[1]
    assert scalar.best_validation == pytest.approx(float(losses.mean()), rel=1e-4)


# Refusals ---------------------------------------------------------------------------------------------------------

SETTINGS = {
    "epochs": 0, "batch_size": 0, "optimizer": "adamm", "learning_rate": 0, "weight_decay": -1, "schedule": "cosine",
    "plateau_patience": -1, "clip": 0.0, "shuffle_within": 7, "truncate": 1, "patience": 0,
    "seed": -1, "gap_every": -1, "checkpoint_seconds": -1, "mixed_precision": "fp8",
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_checked_at_construction(name):
    with pytest.raises(InputError, match=name):
        TrainConfig(**{name: SETTINGS[name]})


def weighted(weights: Tensor) -> SetData:
    return SetData.of(sums(), weights=weights)


NO_TARGETS = SetData.of(torch.rand(4, 3))
REFUSED = {
    "data": {"data": [[1.0]]},
    "data must have targets": {"data": NO_TARGETS},
    "data.weights": {"data": weighted(torch.zeros(48))},
    "data.weights are": {"data": weighted(torch.rand(48, 2))},
    "validation": {"validation": [[1.0]]},
    "validation must have": {"validation": NO_TARGETS},
    "validation.weights": {"validation": weighted(torch.where(torch.arange(48) == 7, -0.5, 1.0))},
    "unlabeled": {"unlabeled": SetData.of(torch.rand(4, 5, 3)), "penalty": SIRE, "penalty_weight": 1.0},
    "unlabeled need": {"unlabeled": NO_TARGETS},
    "patience": {"patience": 3},
    "metric": {"metric": lambda o, t: 0.0},
    "penalty": {"penalty": "sire", "penalty_weight": 1.0},
    "penalty without brackets": {"penalty": ao.SIRE, "penalty_weight": 1.0},
    "penalty_weight": {"penalty_weight": 1.0},
    "penalty_weight must": {"penalty": SIRE, "penalty_weight": -1.0},
    "penalty_weight of a schedule": {"penalty": SIRE, "penalty_weight": lambda share: -1.0},
    "batch_size": {"penalty": ao.SIRE(), "penalty_weight": 1.0, "batch_size": 1},
    "loss": {"loss": "msee"},
    "loss must": {"data": weighted(torch.ones(48)), "loss": F.mse_loss},
    "targets": {"data": SetData.of(torch.rand(8, 3, 1), torch.rand(8, 2))},
    **{
        f"data.targets with class {number}": {
            "data": SetData.of(torch.rand(8, 3, 1), torch.tensor([0] * 7 + [number])),
            "loss": "cross-entropy",
        }
        for number in (-100, 1)
    },
    "truncate": {"start": lambda: ao.SetTransformer(1, 1), "truncate": 4},
    "augment": {"augment": lambda elements, *_: (elements[1:], None)},
    "data must have ties": {"penalty": ao.SIRE(ties=True), "penalty_weight": 1.0},
    "unlabeled must have ties": {
        "data": tied(),
        "unlabeled": sums(),
        "penalty": ao.SIRE(ties=True),
        "penalty_weight": 1.0,
    },
    "truncate would cut ties": {"data": tied(), "truncate": 3, "penalty": ao.SIRE(ties=True), "penalty_weight": 1.0},
    "augment and shuffle_within": {"data": tied(), "shuffle": True, "shuffle_within": 3},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_train_refuses(case):
    options = {"data": sums(), **REFUSED[case]}
    start = options.pop("start", model)()
    with pytest.raises(InputError, match=case.split()[0]):
        trained(options.pop("data"), start=start, **options)


def test_named_losses_take_targets_of_any_kind_of_number():
    x, classes = torch.rand(9, 3, 1), torch.arange(9) % 2
    for loss in ("mse", "l1", "huber"):
        runs = [trained(SetData.of(x, targets), loss=loss)[1] for targets in (classes, classes == 1, classes.float())]
        assert len({run.history[-1]["loss"] for run in runs}) == 1
    kinds = classes.int(), classes.to(torch.uint8), classes, F.one_hot(classes), F.one_hot(classes).double()
    runs = [trained(SetData.of(x, y), start=model(out=2), loss="cross-entropy")[1] for y in kinds]
    assert [run.history[-1]["loss"] for run in runs] == pytest.approx([runs[0].history[-1]["loss"]] * 5)


OTHER_RUNS = {
    "learning_rate": {"learning_rate": 0.1},
    "hidden": {"start": lambda: model(hidden=7)},
    "readout_dropout": {"start": lambda: model(readout_dropout=0.5)},
    "model": {"start": lambda: ao.DeepSets(1, 1)},
    "data": {"data": sums(seed=3)},
    "data in other sets": {"data": SetData(sums().elements, torch.tensor([0, 4, *range(10, 241, 5)]), sums().targets)},
    "data with other targets": {"data": SetData.of(sums(), -sums().targets)},
    "data with weights": {"data": weighted(torch.linspace(0.5, 1.5, 48))},
    "validation": {"validation": sums(seed=4)},
    "unlabeled": {"unlabeled": sums(seed=4)},
    "penalty": {"penalty": ao.SubsetPenalty()},
    "penalty_weight": {"penalty_weight": 2.0},
    "penalty_weight by itself": {"penalty_weight": ao.AdaptiveWeight(target=0.1)},
    "loss": {"loss": "l1"},
    "augment": {"augment": Scaled(3.0)},
    "metric": {"metric": lambda outputs, targets: float((outputs - targets).abs().max())},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The options of a finished run, which may be repeated as it is."""
    run = {"data": sums(), "validation": sums(seed=1), "unlabeled": sums(seed=2), "penalty": SIRE, "epochs": 1}
    run |= {"penalty_weight": 1.0, "augment": Scaled(), "workdir": tmp_path_factory.mktemp("run")}
    assert trained(**run)[1] == trained(**run)[1]
    return run


def test_ctrl_c_inside_a_step_keeps_that_step(tmp_path):
    stops, seen = [], []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(len(seen))
        if len(seen) in stops:
            signal.raise_signal(signal.SIGINT)
        return F.mse_loss(output, target)

    expected, _ = trained(sums(), loss=loss, epochs=4)
    stops.append(len(seen) + 5)
    with pytest.raises(KeyboardInterrupt):
        trained(sums(), workdir=tmp_path, loss=loss, epochs=4)
    assert steps_in(tmp_path) == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert torch.equal(flat(trained(sums(), workdir=tmp_path, loss=loss, epochs=4)[0]), flat(expected))


@pytest.mark.parametrize("schedule", ["constant", "plateau", "one-cycle"])
def test_a_finished_run_goes_on_for_more_epochs(tmp_path, schedule):
    options = {"data": sums(), "validation": sums(seed=1), "schedule": schedule}
    trained(**options, workdir=tmp_path, epochs=2)
    if schedule == "one-cycle":  # its learning rates depend on the number of epochs
        with pytest.raises(InputError, match="epochs is 2 there and 5 here"):
            trained(**options, workdir=tmp_path, epochs=5)
        return
    longer, result = trained(**options, workdir=tmp_path, epochs=5)
    assert torch.equal(flat(longer), flat(trained(**options, epochs=5)[0]))
    assert len(result.history) == 5


def test_a_run_that_lost_patience_goes_on_with_more_of_it(tmp_path):
    options = {"data": sums(), "validation": sums(seed=1), "metric": lambda *_: 1.0, "epochs": 9, "workdir": tmp_path}
    epochs = [len(trained(**options, patience=patience)[1].history) for patience in (2, 2, 4, None)]
    assert epochs == [3, 3, 5, 9]


@pytest.mark.parametrize("case", OTHER_RUNS)
def test_another_run_in_the_same_workdir_is_refused(finished, case):
    options = {**finished, **OTHER_RUNS[case]}
    start = options.pop("start", model)()
    with pytest.raises(InputError, match=f"another run: {case.split()[0]}"):
        trained(**options, start=start)


CHANGED = {
    "shape": lambda tensors, state: tensors.update({MOMENT: torch.zeros(7)}),
    "dtype": lambda tensors, state: tensors.update({MOMENT: tensors[MOMENT].double()}),
    "id": lambda tensors, state: state["optimizer"]["state"].update({99: state["optimizer"]["state"].pop(0)}),
    "name": lambda tensors, state: state["optimizer"]["state"][0].update(x=state["optimizer"]["state"][0].pop("step")),
    "best": lambda tensors, state: state.update(best=[1]),
}
MOMENT = "state/optimizer/state/0/exp_avg"


def as_dicts(tree):
    """The dicts that a checkpoint keeps as pairs, and :func:`as_pairs` back."""
    if isinstance(tree, list):
        return [as_dicts(part) for part in tree]
    return {key: as_dicts(part) for key, part in tree["dict"]} if isinstance(tree, dict) and "dict" in tree else tree


def as_pairs(tree):
    if isinstance(tree, list):
        return [as_pairs(part) for part in tree]
    if not isinstance(tree, dict) or tree.keys() == {"tensor"}:
        return tree
    return {"dict": [(key, as_pairs(part)) for key, part in tree.items()]}


@pytest.mark.parametrize("case", CHANGED)
def test_a_checkpoint_whose_state_does_not_fit_is_refused(tmp_path, case):
    """Its digest is right, so it was changed on purpose or by another program."""
    trained(sums(), workdir=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    tensors, metadata = tensors_from_bytes(path.read_bytes())
    state = as_dicts(metadata["state"])
    CHANGED[case](tensors, state)
    path.write_bytes(tensors_to_bytes(tensors, {**metadata, "state": as_pairs(state)}))
    with pytest.raises(InputError, match=r"does not fit this run: the state/(optimizer|best)"):
        trained(sums(), workdir=tmp_path)


def test_two_runs_in_one_workdir_are_refused(tmp_path):
    def second(record):
        with pytest.raises(InputError, match=f"{tmp_path.name} is being written by process {os.getpid()}"):
            trained(sums(), workdir=tmp_path)
        others.append(trained(sums(), workdir=tmp_path / "other"))

    others = []
    trained(sums(), workdir=tmp_path, epochs=1, log=second)
    assert len(others) == 1


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(tensors_to_bytes({"w": torch.ones(2)}))
    with pytest.raises(InputError, match="another run"):
        trained(sums(), workdir=tmp_path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"checkpoint\.safetensors"):
        trained(sums(), workdir=tmp_path)


def test_checkpoints_are_written_as_often_as_asked_and_no_more(tmp_path, monkeypatch):
    clock, seen = [100.0], []
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: clock[0])

    def loss(output: Tensor, target: Tensor) -> Tensor:
        clock[0] += 10.0  # a step takes ten seconds
        seen.append(steps_in(tmp_path))
        return F.mse_loss(output, target)

    trained(sums(), workdir=tmp_path, loss=loss, epochs=4, checkpoint_seconds=50.0)
    assert [*dict.fromkeys(seen), steps_in(tmp_path)] == [0, 5, 10, 12]  # after each fifty seconds, and at the end
