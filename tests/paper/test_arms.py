"""From a trial to its outcomes: every arm of every experiment runs, learns what it should, and repeats itself."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from anyorder.data.sets import SetData
from anyorder.models.deep_sets import DeepSets
from anyorder.models.recurrent import RecurrentSetModel
from anyorder.paper.data import generated
from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.models import CommutativeMonoid
from anyorder.paper.runner import arms
from anyorder.paper.runner.arms import Variants, run, state_gap
from anyorder.paper.runner.trial import Trial

CASES = [
    pytest.param(name, method, id=f"{name}-{method}")
    for name in EXPERIMENTS
    if name not in ("range", "variance")  # the same methods as sum
    for method in EXPERIMENTS[name].plan("smoke").methods
]
NUMBERS = {
    "task": "sum", "alphabet": 10, "n": 5, "labels": 200, "steps": 150, "batch_size": 50, "learning_rate": 0.01,
    "embedding": 8, "cell": "gru", "hidden": 16, "validation": 100, "test": 300,
}  # fmt: skip
RECORDED = {
    "labels": 1.0, "validation": 0.2, "hidden": 12, "steps": 6, "batch_size": 16, "learning_rate": 0.02,
    "penalty_weight": 1.0, "votes": 2,
}  # fmt: skip


def _rows_of(setting) -> list:
    return next((setting[key] for key in ("lengths", "test_on", "reads") if key in setting), [0])


def on_numbers(method: str, tmp_path, seed: int = 0, **setting):
    return run(Trial("test", method, {**NUMBERS, **setting}, seed, "smoke"), None, tmp_path)


def on_beats(method, workdir, data=None, orderings=None, **setting):
    trial = Trial("test", method, {**RECORDED, **setting}, seed=0, scale="smoke")
    (outcome,) = run(trial, data or generated.beats(), workdir, orderings=orderings)
    return outcome


@pytest.fixture(scope="module")
def small_data():
    found = {}

    def load(experiment):
        if experiment.data is not None and experiment.name not in found:
            found[experiment.name] = experiment.data("smoke")
        return found.get(experiment.name)

    return load


@pytest.mark.parametrize(("name", "method"), CASES)
def test_every_arm_of_every_experiment_runs(name, method, tmp_path, small_data):
    experiment = EXPERIMENTS[name]
    trial = experiment.trials("smoke", only=[method])[0]
    outcomes = experiment.run(trial, small_data(experiment), tmp_path)
    assert len(outcomes) == len(_rows_of(trial.setting))
    for outcome in outcomes:
        assert {"state_gap_squared", "train_loss", experiment.headline} <= set(outcome["metrics"])
        assert math.isfinite(experiment.figure(outcome["validation"]))
        assert min(outcome["parameters"], outcome["steps"], outcome["reads"]) > 0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_small_row_of_each_experiment_can_be_had_again(name, tmp_path, small_data):
    experiment = EXPERIMENTS[name]
    trial = experiment.trials("smoke")[-1]
    data, before = small_data(experiment), torch.random.get_rng_state()
    one = experiment.run(trial, data, tmp_path / "one")[0]
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(99)
    two = experiment.run(trial, data, tmp_path / "two")[0]
    assert one["validation"] == two["validation"]
    assert one["metrics"] == two["metrics"]


def test_training_helps_and_penalties_take_order_out(tmp_path):
    arms = [("plain", {}), ("sire", {"penalty_weight": 100.0}), ("sub", {"penalty_weight": 10.0})]
    figures = {method: on_numbers(method, tmp_path, **more)[0]["metrics"] for method, more in arms}
    untrained = on_numbers("plain", tmp_path, steps=1)[0]["metrics"]
    assert figures["plain"]["mae"] < untrained["mae"] / 3
    for method in ("sire", "sub"):
        assert figures[method]["state_gap_squared"] < figures["plain"]["state_gap_squared"] / 10


def test_unlabeled_sets_reach_the_penalty(tmp_path):
    alone = on_numbers("sire", tmp_path, penalty_weight=10.0)
    helped = on_numbers("sire+unlabeled", tmp_path, penalty_weight=10.0, unlabeled=400)
    assert alone[0]["metrics"] != helped[0]["metrics"]


def test_pi_sgd_is_measured_by_the_mean_of_many_orderings_and_by_one(tmp_path):
    (shuffled,), (plain,) = (on_numbers(method, tmp_path) for method in ("pi-sgd", "plain"))
    assert shuffled["metrics"]["mae"] < shuffled["metrics"]["mae_one_ordering"]  # errors average out
    assert not any(name.endswith("_one_ordering") for name in plain["metrics"])
    assert (shuffled["reads"], plain["reads"]) == (20, 1)


def test_an_adaptive_weight_is_reported_and_a_curve_is_kept(tmp_path):
    (found,) = on_numbers("sire+budget", tmp_path, target_gap=0.001, penalty_weight=None, curve=True)
    assert found["metrics"]["final_weight"] > 1.0
    curve = found["curve"]
    assert len({len(values) for values in curve.values()}) == 1
    assert 10 <= len(curve["epoch"]) <= 40
    assert curve["seconds"] == sorted(curve["seconds"])
    assert curve["loss"][-1] < curve["loss"][0] / 3


@pytest.mark.parametrize(("method", "bar"), [("plain", 0.8), ("sire-prefix-1", 0.8), ("deepsets", 0.0)])
def test_beats_are_learned_by_what_reads_order(tmp_path, method, bar):
    """The class is the bump's place: a recurrence learns it; DeepSets cannot tell the classes apart (1 in 3)."""
    setting = {"hidden": 16, "steps": 150, "penalty_weight": 0.01, "window": 1}
    accuracy = on_beats(method, tmp_path, generated.beats(train=120), **setting)["metrics"]["accuracy"]
    assert accuracy >= bar
    assert method != "deepsets" or accuracy < 0.55


def test_a_finished_training_is_found_in_the_folder(tmp_path):
    once = on_beats("sire", tmp_path / "a")
    assert on_beats("sire", tmp_path / "b") == once
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*.safetensors")}
    assert on_beats("sire", tmp_path / "a") == once
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*.safetensors")}


def test_training_never_sees_the_test_part_nor_its_units(tmp_path):
    data = generated.beats()
    far = SetData(data.test.elements[:400] * 100, data.test.offsets[:21], data.test.targets[:20])
    other = dataclasses.replace(data, test=far)
    one, two = (on_beats("sire", tmp_path / str(i), d, standardize=True) for i, d in enumerate((data, other)))
    assert one["validation"] == two["validation"]
    assert one["metrics"]["train_loss"] == two["metrics"]["train_loss"]
    assert one["metrics"]["loss"] != two["metrics"]["loss"]
    five = on_beats("sire", tmp_path / "five", data, standardize=5.0)
    assert five["validation"] != one["validation"]  # the deviation that every feature gets


def test_without_weight_the_unlabeled_rest_teaches_nothing(tmp_path):
    few = [on_beats(m, tmp_path / m, labels=0.2, penalty_weight=w) for m, w in (("plain", 0.0), ("sire", 0.0))]
    assert few[0]["validation"] == few[1]["validation"]


@torch.no_grad()
def test_the_monoid_is_commutative_and_reads_no_padding():
    model, elements = CommutativeMonoid(2, 3, hidden=8), torch.randn(2, 5, 2)
    pair = elements[:, :2]
    torch.testing.assert_close(model(pair), model(pair.flip(1)))
    lengths = torch.tensor([5, 3])
    torch.testing.assert_close(model(elements, lengths)[1], model(elements[1:, :3])[0])
    assert (model(elements) - model(elements[:, [0, 2, 1, 3, 4]])).abs().max() > 1e-6  # another tree


def test_the_state_gap_knows_what_ignores_order(generator):
    data = generated.beats().test
    assert (
        state_gap(DeepSets(1, 3), data, generator) < 1e-9 < 1e-6 < state_gap(RecurrentSetModel(1, 3), data, generator)
    )


def test_the_best_epoch_is_kept_and_drawn(tmp_path):
    outcome = on_beats("plain", tmp_path, track=True, epochs=4, steps=0)
    curve = outcome["curve"]["validation"]
    assert len(curve) == 4
    assert outcome["validation"]["accuracy"] == pytest.approx(max(curve), abs=1e-5)


def test_a_recurrence_can_be_tested_by_the_mean_over_orderings_too(tmp_path):
    voted = on_beats("pi-sgd", tmp_path / "votes", votes=20)
    both = on_beats("pi-sgd", tmp_path / "both", votes=1, orderings=20)
    assert both["metrics"]["accuracy_20_orderings"] == voted["metrics"]["accuracy"]
    assert (voted["reads"], both["reads"]) == (20, 1)
    assert "accuracy_20_orderings" not in on_beats("deepsets", tmp_path / "pooled", orderings=20)["metrics"]


def test_every_setting_of_an_arm_changes_its_training(tmp_path):
    shuffled = {"method": "pi-sgd", "votes": 1, "encoder": [8], "readout": [8], "steps": 20}
    plain = on_beats(workdir=tmp_path / "plain", **shuffled)
    for key, value in {
        "shuffle_within": 7, "stretch": 1.5, "begin_with": [[0.5, 9]], "label_smoothing": 0.2,
        "mixed_precision": "bf16", "truncate": 8, "gate_bias_span": 10, "readout_dropout": 0.3, "weight_decay": 0.1,
    }.items():  # fmt: skip
        changed = on_beats(workdir=tmp_path / key, **shuffled, **{key: value})
        assert changed["metrics"]["train_loss"] != plain["metrics"]["train_loss"], key


def test_stretched_sets_keep_their_proportions_along_each_axis():
    elements = torch.rand(400, 7, 3) + 1
    generator = torch.Generator().manual_seed(0)
    factors = Variants(stretch=1.25)(elements, None, generator, 0.9)[0] / elements
    assert torch.allclose(factors, factors[:, :1].expand_as(factors))  # one a set and axis
    factors = factors[:, 0]
    assert 0.8 <= factors.min() < 0.802
    assert 1.247 < factors.max() <= 1.25
    assert abs(factors.log().mean()) < 0.015  # even in logarithm


def test_small_sets_come_first_and_then_the_whole_ones():
    elements, lengths = torch.rand(3, 5, 1), torch.tensor([5, 1, 3])
    variants = Variants(stages=((0.5, 2), (0.8, 4)))
    for share, most in ((0.0, 2), (0.49, 2), (0.5, 4), (0.79, 4), (0.8, 5), (1.0, 5)):
        read, sizes = variants(elements, lengths, torch.Generator(), share)
        assert torch.equal(read, elements[:, :most])
        assert sizes.tolist() == [min(most, size) for size in (5, 1, 3)]


def test_small_sets_chosen_anew_are_of_any_elements_in_their_order():
    elements = torch.arange(6.0).repeat(2000, 1)[:, :, None]
    lengths = torch.tensor([6, 4, 1, 0]).repeat(500)
    variants, generator = Variants(stages=2, anew=True), torch.Generator().manual_seed(0)
    read, sizes = variants(elements, lengths, generator, 0.1)
    assert sizes.reshape(-1, 4).unique(dim=0).tolist() == [[2, 2, 1, 0]]
    for row, size, pairs in ((0, 6, 15), (1, 4, 6)):
        first, second = read[row::4, :, 0].unbind(1)
        assert (first < second).all()
        assert second.max() == size - 1  # what stands behind the set is never chosen
        counts = (first * size + second).unique(return_counts=True)[1]
        assert len(counts) == pairs
        assert (counts - 500 / pairs).abs().max() < 5 * (500 / pairs) ** 0.5
    assert torch.equal(variants(elements, lengths, generator, 0.9)[0], elements)


def test_the_papers_penalties_are_in_the_units_of_the_state():
    for method in ("sire", "sire+shuffle", "sub"):
        assert arms.build_penalty(method, {}, None).relative is False
    assert arms.build_penalty("pi-sgd", {}, None) is None


def test_folds_test_every_bag_once(tmp_path):
    experiment = EXPERIMENTS["bags"]
    plan, data = experiment.plan("smoke"), experiment.data("smoke")
    setting = {**plan.fixed, "data": "musk1", "labels": 1.0, "folds": 4, **plan.methods["deepsets"][0]}
    (outcome,) = experiment.run(Trial("bags", "deepsets", setting, 0, "smoke"), data, tmp_path)
    right = outcome["metrics"]["accuracy"] * len(data["musk1"].train)
    assert right == pytest.approx(round(right), abs=1e-3)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"fold-{k}" for k in range(4)]
