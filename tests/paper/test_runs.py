"""From a trial to its outcomes: every method of every experiment runs, learns what it should, and repeats itself."""

from __future__ import annotations

import pytest
import torch
from anyorder.paper.runner.runs import build_model, run_task

from anyorder.paper.experiments import EXPERIMENTS, GROUPS
from anyorder.paper.runner.trial import Trial

CASES = [
    pytest.param(name, method, id=f"{name}-{method}")
    for name in GROUPS["synthetic"]
    if name not in ("range", "variance")  # the same methods as sum
    for method in EXPERIMENTS[name].plan("smoke").methods
]
SUM = {
    "task": "sum", "alphabet": 10, "n": 5, "labels": 200, "steps": 150, "batch_size": 50, "learning_rate": 0.01,
    "embedding": 8, "cell": "gru", "hidden": 16, "validation": 100, "test": 300,
}  # fmt: skip


def run(method: str, tmp_path, seed: int = 0, **setting):
    return run_task(Trial("test", method, {**SUM, **setting}, seed, "smoke"), None, tmp_path)


@pytest.mark.parametrize(("name", "method"), CASES)
def test_every_method_of_every_experiment_runs(name, method, tmp_path):
    trial = EXPERIMENTS[name].trials("smoke", only=[method])[0]
    outcomes = run_task(trial, None, tmp_path)
    assert len(outcomes) == len(trial.setting.get("lengths") or [0])
    for outcome in outcomes:
        assert {"state_gap_squared", "train_loss", EXPERIMENTS[name].headline} <= set(outcome["metrics"])
        assert EXPERIMENTS[name].select in outcome["validation"]
        assert outcome["parameters"] > 0


def test_a_trial_repeats_itself_and_leaves_the_global_generator_alone(tmp_path):
    before = torch.random.get_rng_state()
    first = run("sire", tmp_path, penalty_weight=1.0)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(99)
    assert run("sire", tmp_path, penalty_weight=1.0) == first
    assert run("sire", tmp_path, penalty_weight=1.0, seed=1) != first


def test_training_helps_and_penalties_take_order_out(tmp_path):
    figures = {
        method: run(method, tmp_path, **more)[0]["metrics"]
        for method, more in [("plain", {}), ("sire", {"penalty_weight": 100.0}), ("sub", {"penalty_weight": 10.0})]
    }
    untrained = run("plain", tmp_path, steps=1)[0]["metrics"]
    assert figures["plain"]["mae"] < untrained["mae"] / 3
    assert figures["sire"]["state_gap_squared"] < figures["plain"]["state_gap_squared"] / 10
    assert figures["sub"]["state_gap_squared"] < figures["plain"]["state_gap_squared"] / 10


def test_pooling_ignores_order_and_unlabeled_samples_reach_the_penalty(tmp_path):
    assert run("deepsets", tmp_path)[0]["metrics"]["state_gap_squared"] < 1e-9
    alone = run("sire", tmp_path, penalty_weight=10.0)
    helped = run("sire+unlabeled", tmp_path, penalty_weight=10.0, unlabeled=400)
    assert alone[0]["metrics"] != helped[0]["metrics"]


def test_pi_sgd_is_measured_by_the_mean_of_many_orderings_and_by_one(tmp_path):
    figures = run("pi-sgd", tmp_path)[0]["metrics"]
    assert figures["mae"] < figures["mae_one_ordering"]  # errors of a model that heeds order average out
    assert not any(name.endswith("_one_ordering") for name in run("plain", tmp_path)[0]["metrics"])


def test_a_budget_reports_the_weight_it_found(tmp_path):
    found = run("sire+budget", tmp_path, target_gap=0.001, penalty_weight=None)[0]["metrics"]
    assert found["final_weight"] > 1.0


def test_a_curve_has_thirty_points_at_most_and_seconds_that_rise(tmp_path):
    curve = run("plain", tmp_path, curve=True)[0]["curve"]
    assert len({len(values) for values in curve.values()}) == 1
    assert 10 <= len(curve["epoch"]) <= 40
    assert curve["seconds"] == sorted(curve["seconds"])
    assert curve["loss"][-1] < curve["loss"][0] / 3


def test_models_start_from_the_seed():
    setting = {**SUM, "readout": None}
    one, same, other = (build_model("plain", setting, seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), same.parameters(), strict=True))
    assert any(not torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
