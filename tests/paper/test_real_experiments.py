"""The experiments on real data, at the smoke scale: every method runs, learns, repeats, and peeks at nothing."""

from __future__ import annotations

import copy
import dataclasses
import time

import pytest
import torch
from anyorder.paper.experiments.real import BAGS, ECG, POINTCLOUD_5000, REAL_EXPERIMENTS
from anyorder.paper.runner.variants import Variants

from anyorder.data.sets import SetData
from anyorder.models import DeepSets, RecurrentSetModel
from anyorder.paper.data import datasets, generated
from anyorder.paper.data.datasets import Dataset
from anyorder.paper.runner import real_runs
from anyorder.paper.runner.trial import Trial
from anyorder.penalties import SIRE
from anyorder.training.loop import TrainConfig, TrainResult, train

SETTING = {
    "labels": 1.0,
    "validation": 0.2,
    "hidden": 12,
    "steps": 6,
    "batch_size": 16,
    "learning_rate": 0.02,
    "penalty_weight": 1.0,
    "window": 1,
    "votes": 2,
}


TIMINGS = {"training_seconds", "samples_per_second", "step_rate_over_plain_torch"}


def run(tmp_path, method, data, **setting):
    trial = Trial("test", method, {**SETTING, **setting}, seed=0, scale="smoke")
    (outcome,) = real_runs.run_split(trial, data, tmp_path)
    assert min(outcome["metrics"][k] for k in TIMINGS & outcome["metrics"].keys()) > 0
    return {**outcome, "metrics": {k: v for k, v in outcome["metrics"].items() if k not in TIMINGS}}


@pytest.mark.parametrize("name", REAL_EXPERIMENTS)
def test_every_method_runs_at_smoke_scale(tmp_path, name):
    experiment = REAL_EXPERIMENTS[name]
    data = experiment.data("smoke")
    plan = experiment.plan("smoke")
    for method, candidates in plan.methods.items():
        setting = {**plan.fixed, **plan.cells()[0], **candidates[-1], "steps": 2}
        trial = Trial(name, method, setting, seed=0, scale="smoke")
        for outcome in experiment.run(trial, data, tmp_path / method):
            assert 0 <= outcome["metrics"]["accuracy"] <= 1
            assert {"state_gap_squared", "flip_rate", "train_loss", "macro_f1"} <= outcome["metrics"].keys()
            assert outcome["validation"].keys() >= {"accuracy", "loss"}
            assert outcome["parameters"] > 0


@pytest.mark.parametrize("name", REAL_EXPERIMENTS)
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_methods_of_a_table_have_the_same_tuning_budget(name, scale):
    plan = REAL_EXPERIMENTS[name].plan(scale)
    sizes = {len(candidates) for candidates in plan.methods.values()}
    assert len(sizes) == 1
    assert REAL_EXPERIMENTS[name].estimated_seconds(REAL_EXPERIMENTS[name].trials(scale, guess=True)) > 0


def test_every_setting_is_read_by_something():
    import inspect

    read = inspect.getsource(real_runs)
    for experiment in REAL_EXPERIMENTS.values():
        for plan in experiment.plans.values():
            for candidates in plan.methods.values():
                for key in {*plan.fixed, *plan.over, *(k for c in candidates for k in c)}:
                    assert f'"{key}"' in read, f"{experiment.name}: nothing reads the setting {key!r}"


@pytest.mark.parametrize(("method", "bar"), [("plain", 0.8), ("sire-prefix-1", 0.8), ("deepsets", 0.0)])
def test_beats_are_learned_by_what_reads_order(tmp_path, method, bar):
    """The class is the bump's place: a recurrence learns it; DeepSets cannot tell the classes apart (1 in 3)."""
    setting = {"hidden": 16, "steps": 150, "penalty_weight": 0.01}
    accuracy = run(tmp_path, method, generated.beats(train=120), **setting)["metrics"]["accuracy"]
    assert accuracy >= bar
    assert method != "deepsets" or accuracy < 0.55


def test_a_trial_repeats_and_resumes(tmp_path, monkeypatch):
    data = generated.beats()
    once = run(tmp_path / "a", "sire", data)
    assert run(tmp_path / "b", "sire", data) == once
    with monkeypatch.context() as patch:
        patch.setattr(real_runs, "order_figures", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "c", "sire", data)
    with monkeypatch.context() as patch:  # the trained model is found in the folder: not one step is taken again
        patch.setattr("anyorder.training._Run.step", lambda self: pytest.fail("trained again"))
        patch.setattr(real_runs, "rate_over_plain_torch", lambda *_, **__: 1.0)
        assert run(tmp_path / "c", "sire", data) == once


def test_training_never_sees_the_test_part(tmp_path):
    data = generated.beats()
    other = dataclasses.replace(data, test=data.test.select(range(10)))
    one, two = (run(tmp_path / str(i), "sire", d) for i, d in enumerate((data, other)))
    assert one["validation"] == two["validation"]
    assert one["metrics"]["train_loss"] == two["metrics"]["train_loss"]
    assert one["metrics"]["loss"] != two["metrics"]["loss"]


def test_standardising_uses_the_training_part_alone(tmp_path):
    data = generated.beats()
    far = SetData(data.test.elements * 100, data.test.offsets, data.test.targets)
    one, two = (
        run(tmp_path / str(i), "plain", dataclasses.replace(data, test=test), standardize=True)
        for i, test in enumerate((data.test, far))
    )
    assert one["validation"] == two["validation"]


def test_standardising_can_give_a_deviation(tmp_path):
    data = generated.beats()
    one, named, five = (run(tmp_path / str(i), "plain", data, standardize=s) for i, s in enumerate((True, 1.0, 5.0)))
    assert one["validation"] == named["validation"] != five["validation"]


@pytest.mark.parametrize(("method", "uses"), [("plain", False), ("deepsets", False), ("sire", True)])
def test_only_a_penalty_reads_the_unlabeled_rest(tmp_path, monkeypatch, method, uses):
    data = generated.beats()
    one = run(tmp_path / "a", method, data, labels=0.2)
    few_labels = real_runs.datasets.few_labels

    def scaled_rest(train, fraction, *, seed):
        labeled, rest = few_labels(train, fraction, seed=seed)
        assert rest.targets is None
        return labeled, SetData(rest.elements * 3, rest.offsets)

    monkeypatch.setattr(real_runs.datasets, "few_labels", scaled_rest)
    two = run(tmp_path / "b", method, data, labels=0.2)
    assert (one["validation"] != two["validation"]) is uses


def test_folds_test_every_bag_once(tmp_path):
    plan = BAGS.plan("smoke")
    data = BAGS.data("smoke")
    setting = {**plan.fixed, "data": "musk1", "labels": 1.0, "folds": 4, **plan.methods["deepsets"][0]}
    (outcome,) = real_runs.run_folds(Trial("bags", "deepsets", setting, 0, "smoke"), data, tmp_path)
    right = outcome["metrics"]["accuracy"] * len(data["musk1"].train)
    assert right == pytest.approx(round(right), abs=1e-3)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"fold-{k}" for k in range(4)]


def test_order_figures_know_what_ignores_order():
    data = generated.beats().test
    torch.manual_seed(0)
    blind = real_runs.order_figures(DeepSets(1, 3), data, seed=0)
    assert blind["flip_rate"] == 0
    assert blind["state_gap_squared"] < 1e-9
    reader = real_runs.order_figures(RecurrentSetModel(1, 3), data, seed=0)
    assert reader["state_gap_squared"] > reader["adjacent_gap"] > 1e-6


def test_the_step_is_timed_against_plain_torch(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(real_runs, "rate_over_plain_torch", lambda *_, **given: calls.append(given) or 0.875)
    trial = Trial("test", "sire", SETTING, seed=0, scale="smoke")
    assert real_runs.run_split(trial, generated.beats(), tmp_path)[0]["metrics"]["step_rate_over_plain_torch"] == 0.875
    assert calls[0]["penalty_weight"] == SETTING["penalty_weight"]
    assert "unlabeled" in calls[0]
    other = dataclasses.replace(trial, method="deepsets")
    (invariant,) = real_runs.run_split(other, generated.beats(), tmp_path / "d")
    assert "step_rate_over_plain_torch" not in invariant["metrics"]


def test_a_dear_penalty_shows_in_the_rate_and_timing_leaves_the_model_alone():
    data, config = generated.beats().train, TrainConfig(batch_size=16, gap_every=0, device="cpu")
    model = RecurrentSetModel(1, 3, hidden=16)
    weights = copy.deepcopy(model.state_dict())
    dear = real_runs.rate_over_plain_torch(model, data, config, penalty=SIRE(pairs=200), penalty_weight=1.0)
    assert 0 < dear < 0.7 * real_runs.rate_over_plain_torch(model, data, config)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_the_rate_is_taken_on_whole_batches_in_train_mode_without_the_set_up(monkeypatch):
    seen = []

    def timed(model, loss, data, **options):
        seen.append((len(data), model.training))
        time.sleep(0.1)  # set-up, say
        return TrainResult(seconds=1e-6)

    monkeypatch.setattr(real_runs, "train", timed)
    few = generated.beats().train.select(range(5))
    model = RecurrentSetModel(1, 3, hidden=4).eval()
    rate = real_runs.rate_over_plain_torch(model, few, TrainConfig(batch_size=16, device="cpu"))
    assert seen == [(48, True)] * 3
    assert rate > 100  # that of a microsecond, not of the set-up
    assert not model.training


def test_the_best_epoch_is_kept_and_drawn(tmp_path):
    outcome = run(tmp_path, "plain", generated.beats(), track=True, epochs=2)
    assert len(outcome["curve"]["validation"]) == 2


def test_a_recurrence_can_be_tested_by_the_mean_over_orderings_too(tmp_path):
    trial = Trial("test", "pi-sgd", {**SETTING, "votes": 20, "data": "beats"}, seed=0, scale="smoke")
    (voted,) = real_runs.run_split(trial, generated.beats(), tmp_path / "votes")
    once = dataclasses.replace(trial, setting={**trial.setting, "votes": 1})
    (both,) = real_runs.run_split(once, generated.beats(), tmp_path / "both", orderings=20)
    assert both["metrics"]["accuracy_20_orderings"] == voted["metrics"]["accuracy"] != both["metrics"]["accuracy"]
    pooled = dataclasses.replace(trial, method="deepsets")
    (invariant,) = real_runs.run_split(pooled, generated.beats(), tmp_path / "pooled", orderings=20)
    assert "accuracy_20_orderings" not in invariant["metrics"]


def test_shuffling_can_stay_inside_windows(tmp_path, monkeypatch):
    seen = []

    def noted(*parts, config, **more):
        seen.append((config.order, config.shuffle_within))
        return train(*parts, config=config, **more)

    monkeypatch.setattr(real_runs, "train", noted)
    run(tmp_path / "with", "sire-prefix-9+shuffle", generated.beats(), shuffle_within=7, window=9)
    run(tmp_path / "all", "pi-sgd", generated.beats())
    run(tmp_path / "without", "sire-prefix-9", generated.beats(), window=9)
    assert [*dict.fromkeys(seen)] == [("shuffle", 7), ("shuffle", None), ("keep", None)]


def test_stretched_sets_keep_their_proportions_along_each_axis():
    elements = torch.rand(400, 7, 3) + 1
    generator = torch.Generator().manual_seed(0)
    stretched, _ = Variants(stretch=1.25)(elements, None, generator, 0.9)
    factors = stretched / elements
    assert torch.allclose(factors, factors[:, :1].expand_as(factors))  # one a set and axis
    factors = factors[:, 0]
    assert 0.8 <= factors.min() < 0.802
    assert 1.247 < factors.max() <= 1.25
    assert abs(factors.log().mean()) < 0.015  # even in logarithm
    assert len(factors.flatten().unique()) > 1100
    assert not torch.equal(stretched, Variants(stretch=1.25)(elements, None, generator, 0.9)[0])


def test_small_sets_come_first_and_then_the_whole_ones():
    elements, lengths = torch.rand(3, 5, 1), torch.tensor([5, 1, 3])
    variants = Variants(stages=((0.5, 2), (0.8, 4)))
    for share, most in ((0.0, 2), (0.49, 2), (0.5, 4), (0.79, 4), (0.8, 5), (1.0, 5)):
        read, sizes = variants(elements, lengths, torch.Generator(), share)
        assert torch.equal(read, elements[:, :most])
        assert sizes.tolist() == [min(most, size) for size in (5, 1, 3)]
    assert torch.equal(variants(elements, None, torch.Generator(), 0.5)[0], elements[:, :4])


def test_small_sets_chosen_anew_are_of_any_elements_in_their_order():
    elements = torch.arange(6.0).repeat(2000, 1)[:, :, None]
    lengths = torch.tensor([6, 4, 1, 0]).repeat(500)
    variants, generator = Variants(stages=((0.5, 2),), anew=True), torch.Generator().manual_seed(0)
    read, sizes = variants(elements, lengths, generator, 0.1)
    assert sizes.reshape(-1, 4).unique(dim=0).tolist() == [[2, 2, 1, 0]]
    for row, size, pairs in ((0, 6, 15), (1, 4, 6)):
        first, second = read[row::4, :, 0].unbind(1)
        assert (first < second).all()
        assert second.max() == size - 1  # what stands behind the set is never chosen
        counts = (first * size + second).unique(return_counts=True)[1]
        assert len(counts) == pairs
        assert (counts - 500 / pairs).abs().max() < 5 * (500 / pairs) ** 0.5
    assert (read[2::4, 0] == 0).all()
    assert not torch.equal(variants(elements, lengths, generator, 0.1)[0], read)
    assert torch.equal(variants(elements, lengths, generator, 0.9)[0], elements)


def test_variants_smoothing_and_precision_reach_the_training(tmp_path, monkeypatch):
    seen = []

    def noted(model, loss, data, *, config, augment=None, **more):
        seen.append((loss, config.mixed_precision, augment))
        return train(model, loss, data, config=config, augment=augment, **more)

    monkeypatch.setattr(real_runs, "train", noted)
    options = {
        "stretch": 1.5,
        "begin_with": [[0.3, 9], [0.6, 12]],
        "begin_anew": True,
        "label_smoothing": 0.2,
        "mixed_precision": "bf16",
    }
    run(tmp_path / "with", "deepsets", generated.beats(), **options)
    run(tmp_path / "without", "deepsets", generated.beats())
    (smoothed, precision, augment), plain = seen
    assert (precision, augment) == ("bf16", Variants(1.5, ((0.3, 9), (0.6, 12)), anew=True))
    output, target = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    surer = 0.9 * torch.log(1 + torch.tensor(-2.0).exp()) + 0.1 * torch.log(1 + torch.tensor(2.0).exp())
    assert float(smoothed(output, target)) == pytest.approx(float(surer))
    assert plain == ("cross-entropy", None, None)


def test_plain_torch_is_timed_in_the_same_precision(monkeypatch):
    seen = []
    forward = torch.nn.GRU.forward
    monkeypatch.setattr(
        torch.nn.GRU, "forward", lambda *given: seen.append(torch.is_autocast_enabled("cpu")) or forward(*given)
    )
    for precision in ("bf16", None):
        config = TrainConfig(batch_size=4, device="cpu", mixed_precision=precision)
        real_runs._plain_torch_seconds(
            RecurrentSetModel(1, 3, hidden=4), generated.beats().train.select([0, 1]), config
        )
    assert seen == [True, False]


def test_shuffling_moves_elements_inside_their_own_set():
    data = SetData.of([[1.0, 2.0, 3.0], [4.0], [5.0, 6.0]], [0, 1, 2])
    moved = real_runs._shuffled(data, torch.Generator().manual_seed(1))
    for index in range(3):
        before, after = (d.batch([index])[0].flatten().sort().values for d in (data, moved))
        assert torch.equal(before, after)
    assert not torch.equal(data.elements, moved.elements)


def test_5000_points_from_meshes_with_truncated_backpropagation(tmp_path):
    """The whole way of the paper's largest table: meshes on disk, 5000 points by area, windows of 1000 steps."""
    data = generated.clouds(5000, each=2)
    assert data.train.common_length == 5000
    assert POINTCLOUD_5000.plan("paper").fixed["truncate"] == 1000
    plan = POINTCLOUD_5000.plan("smoke")
    setting = {**plan.fixed, **plan.methods["sire+shuffle"][0], "truncate": 1000, "validation": 0.5}
    trial = Trial("pointcloud-5000", "sire+shuffle", setting, seed=0, scale="smoke")
    (outcome,) = POINTCLOUD_5000.run(trial, {"5000": data}, tmp_path)
    assert outcome["curve"]["epoch"] == [0]
    assert outcome["metrics"]["steps"] == 1
    assert outcome["metrics"]["state_gap_squared"] >= 0


def test_draws_of_one_shape_stay_in_one_part():
    data = generated.clouds(20, each=4, draws=3)
    assert len(data.train) == 3 * 4 * 3
    assert data.groups.tolist() == [shape for shape in range(12) for _ in range(3)]


def test_generated_data_is_fixed_by_its_seed():
    for make in (generated.beats, generated.windows, generated.bags):
        assert torch.equal(make(1).train.elements, make(1).train.elements)
        assert not torch.equal(make(1).train.elements, make(2).train.elements)


def test_a_class_with_one_sample_left_has_no_label_and_the_texts_say_so():
    data = SetData(torch.zeros(41, 1), torch.arange(42), torch.tensor([0] * 40 + [1]))
    labeled, _ = datasets.few_labels(data, 0.1, seed=0)
    assert labeled.targets.tolist() == [0] * len(labeled)
    for name in ("ecg", "activity"):
        choices = REAL_EXPERIMENTS[name].choices
        assert "at least one of each class that has two or more" in choices
        assert "settings are chosen by the whole validation part all the same" in choices


def test_the_experiments_are_registered():
    from anyorder.paper.experiments import EXPERIMENTS

    assert {"ecg", "bags", "activity", "pointcloud", "perturbed-mnist"} <= EXPERIMENTS.keys()
    assert isinstance(ECG.data("smoke"), Dataset)
