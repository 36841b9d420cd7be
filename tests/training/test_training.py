"""The training loop: what it minimises, what it leaves alone, what it says and refuses."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyorder as ao
from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.training.batches import Deck
from anyorder.training.config import OPTIMIZERS, SCHEDULES, TrainConfig
from anyorder.training.loop import train
from anyorder.training.objective import Batch, task_and_penalty
from anyorder.training.predict import predict
from trainings import SGD, SIRE, Watch, flat, model, ragged, sums, tied, trained, weighted

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


def test_a_pass_gives_output_and_penalty_of_the_same_batch():
    subject, elements = model(), torch.rand(8, 5, 1)
    draw = torch.Generator
    output, penalty = task_and_penalty(subject, SIRE, Batch(elements), draw().manual_seed(1))
    assert torch.equal(output, subject(elements))
    assert torch.equal(penalty, SIRE(subject, elements, generator=draw().manual_seed(1)))
    other = torch.rand(4, 7, 1)
    _, elsewhere = task_and_penalty(subject, SIRE, Batch(elements), draw().manual_seed(1), Batch(other))
    assert torch.equal(elsewhere, SIRE(subject, other, generator=draw().manual_seed(1)))
    assert task_and_penalty(subject, None, Batch(elements))[1] == 0


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
        output, value = task_and_penalty(subject, penalty, Batch(elements), draw().manual_seed(1))
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


NO_TARGETS = SetData.of(torch.rand(4, 3))
REFUSED = {
    "data": {"data": [[1.0]]},
    "data must have targets": {"data": NO_TARGETS},
    "data.weights": {"data": weighted(torch.zeros(48))},
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
