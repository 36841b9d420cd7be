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
from anyorder.paper.report import pictures
from anyorder.paper.report.real_verdicts import REAL_VERDICTS
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


def test_pictures_show_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYORDER_DATA", str(tmp_path))
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path))
    assert pictures.picture_of("ecg") is None  # not here: no picture, and no download
    with monkeypatch.context() as patch:
        patch.setattr(pictures.sources, "where", lambda form: tmp_path if form == "ecg5000-ucr" else None)
        patch.setattr(pictures.datasets, "ecg5000", generated.beats)
        assert pictures.picture_of("ecg") is not None  # in another form
    assert pictures.picture_of("parity") is None
    figure = pictures.picture_of("perturbed-digits")
    images = [axis.images[0].get_array() for axis in figure.axes]
    assert len(images) == 16
    for before, after in zip(images[:8], images[8:], strict=True):
        assert sorted(before.flatten().tolist()) == sorted(after.flatten().tolist())
    beats = pictures.series_figure(generated.beats(), "beats")
    assert [len(axis.lines) for axis in beats.axes] == [4, 4, 4]
    assert len(pictures.clouds_figure(generated.clouds(30)).axes) == 3
    pictures.bags_figure(generated.bags()).savefig(tmp_path / "bags.png")
    assert (tmp_path / "bags.png").stat().st_size > 2000


def test_the_picture_of_clouds_has_as_many_points_as_the_experiment(monkeypatch):
    asked = []
    monkeypatch.setattr(pictures.sources, "where", lambda source: "here")
    monkeypatch.setattr(
        pictures.datasets, "modelnet40", lambda points=1024: asked.append(points) or generated.clouds(30)
    )
    assert pictures.picture_of("pointcloud") is not None
    assert asked == [100]


def test_a_class_with_one_sample_left_has_no_label_and_the_texts_say_so():
    data = SetData(torch.zeros(41, 1), torch.arange(42), torch.tensor([0] * 40 + [1]))
    labeled, _ = datasets.few_labels(data, 0.1, seed=0)
    assert labeled.targets.tolist() == [0] * len(labeled)
    for name in ("ecg", "activity"):
        choices = REAL_EXPERIMENTS[name].choices
        assert "at least one of each class that has two or more" in choices
        assert "settings are chosen by the whole validation part all the same" in choices


def row(method, seed, accuracy, weight=None, selected=True, **setting):
    metrics = {"accuracy": accuracy, "macro_f1": accuracy / 2, "state_gap_squared": 0.1}
    given = {"labels": 0.1, "learning_rate": 0.01, **setting, **({} if weight is None else {"penalty_weight": weight})}
    return {"method": method, "seed": seed, "setting": given, "metrics": metrics, "selected": selected}


@pytest.mark.parametrize(("gain", "verdict"), [(0.05, "holds"), (0.0, "not clear"), (-0.05, "does not hold")])
def test_the_verdict_on_a_penalty_follows_the_paired_interval(gain, verdict):
    plain = [row("plain", s, 0.8 + 0.02 * s) for s in range(5)]
    sire = [row("sire", s, 0.8 + 0.02 * s + gain + 0.001 * (-1) ** s, weight=10.0) for s in range(5)]
    other = [row("sire", s, 0.5, weight=1.0, selected=False) for s in range(5)]
    beside = [row("deepsets", s, 0.7) for s in range(5)]
    rows = [*plain, *sire, *other, *beside]
    claims = REAL_VERDICTS["activity"]([r for r in rows if r["selected"]], rows)
    by_method = {claim.cells["method"]: claim for claim in claims}
    assert [by_method[m].verdict for m in ("plain", "sire", "deepsets")] == [None, verdict, None]
    judged = by_method["sire"]
    assert "10 % of the labels: sire has accuracy above that of plain" in judged.text
    assert f"paired difference {gain:+.3f}" in judged.text
    assert judged.cells["where"] == "10 % of the labels"
    assert judged.cells["accuracy by weight"].startswith("1: 0.500; 10: ")
    assert judged.cells["accuracy by weight"].endswith(" (chosen)")
    assert by_method["deepsets"].cells["accuracy"] == "0.700 ± 0.000"
    ecg = REAL_VERDICTS["ecg"]([r for r in rows if r["selected"]], rows)
    assert [claim.table.split()[0] for claim in ecg if claim.table] == ["accuracy"] * 3 + ["macro-f1"] * 3
    assert REAL_VERDICTS["activity"](plain, plain) == []


def test_the_dial_is_shown_at_the_chosen_rate():
    rows = [row("plain", s, 0.8) for s in range(2)]
    for rate, weight, accuracy in [(0.01, 1.0, 0.5), (0.01, 10.0, 0.6), (0.03, 1.0, 0.7), (0.03, 10.0, 0.9)]:
        chosen = (rate, weight) == (0.03, 10.0)
        rows += [row("sire", s, accuracy, weight, chosen, learning_rate=rate) for s in range(2)]
    claims = REAL_VERDICTS["activity"]([r for r in rows if r["selected"]], rows)
    found = {claim.cells["method"]: claim.cells for claim in claims if claim.table}
    assert found["sire"]["accuracy by weight"] == "1: 0.700; 10: 0.900 (chosen)"


def test_the_dial_of_a_shorter_search_is_that_of_the_search():
    rows = [row("plain", 0, 0.8, epochs=12)]
    rows += [row("sire", 0, 0.1 + weight / 100, weight, False, epochs=2) for weight in (1.0, 10.0)]
    rows.append(row("sire", 0, 0.9, weight=10.0, epochs=12))
    claims = REAL_VERDICTS["perturbed-mnist"]([r for r in rows if r["selected"]], rows)
    found = {claim.cells["method"]: claim.cells for claim in claims if claim.table}
    assert found["sire"]["accuracy by weight"] == "in the search: 1: 0.110; 10: 0.200 (chosen)"
    assert found["sire"]["accuracy"] == "0.900 (one seed)"


def test_a_penalty_is_judged_by_its_own_rival_where_plain_has_not_been_run():
    accuracies = {"pi-sgd": 0.5, "sire+shuffle": 0.7, "sire": 0.6, "deepsets": 0.9}
    rows = [row(m, s, a + 0.01 * s, weight=1.0, points=100) for m, a in accuracies.items() for s in range(3)]
    found = {claim.cells["method"]: claim for claim in REAL_VERDICTS["pointcloud"](rows, rows) if claim.table}
    assert found["sire+shuffle"].verdict == "holds"
    assert found["sire+shuffle"].cells["difference"] == "+0.200 (+0.200 to +0.200)"
    for method in ("pi-sgd", "sire", "deepsets"):
        assert found[method].verdict is None
        assert found[method].cells["against"] == found[method].cells["difference"] == ""
        assert found[method].text == f"{method} has accuracy {accuracies[method] + 0.01:.3f} ± 0.010"
    alone = [r for r in rows if r["method"] in ("sire", "pi-sgd")]
    assert REAL_VERDICTS["pointcloud"](alone, alone) == []


@pytest.mark.parametrize(("deepsets", "verdict"), [(0.6, "holds"), (0.8, "does not hold")])
def test_on_clouds_sire_is_held_against_deepsets_as_in_the_paper(deepsets, verdict):
    accuracies = {"sire-low-dropout+shuffle": 0.9, "sire+shuffle": 0.7, "deepsets": deepsets}
    rows = [row(m, s, a + 0.01 * s, weight=1.0, points=100) for m, a in accuracies.items() for s in range(3)]
    one, other = REAL_VERDICTS["pointcloud"](rows, rows)
    against = f"± 0.010 against {deepsets + 0.01:.3f} ± 0.010"
    assert one.text.startswith(f"sire+shuffle is ahead of DeepSets: 0.710 {against}")
    assert other.text.startswith(f"sire-low-dropout+shuffle is ahead of DeepSets: 0.910 {against}")
    assert (one.verdict, other.verdict) == (verdict, "holds")
    assert other.short.startswith(f"deepsets {deepsets + 0.01:.3f} ± 0.010; sire+shuffle 0.710 ± 0.010; sire-low")


def test_methods_on_other_data_are_not_held_against_each_other():
    rows = [row("plain", s, 0.8, data="perturbed") for s in range(3)]
    rows += [row("sire", s, 0.9, weight=1.0, data="perturbed") for s in range(3)]
    rows += [row("cnn-clean", s, 0.95, data="clean") for s in range(3)]
    found = {
        claim.cells["method"]: claim.cells for claim in REAL_VERDICTS["perturbed-mnist"](rows, rows) if claim.table
    }
    assert found["cnn-clean"]["against"] == found["cnn-clean"]["difference"] == ""
    assert found["sire"]["against"] == "plain"


def test_a_penalty_is_not_judged_on_one_seed():
    rows = [row("plain", 0, 0.8), row("sire", 0, 0.9, weight=1.0)]
    sire = REAL_VERDICTS["activity"](rows, rows)[1]
    assert sire.verdict is None
    assert sire.cells["difference"] == "+0.100 (one seed)"


def test_a_penalty_on_shuffled_orderings_is_judged_by_shuffling_alone():
    accuracies = {"plain": 0.5, "pi-sgd": 0.8, "sire+shuffle": 0.7, "sire": 0.6}
    rows = [row(method, s, at + 0.001 * s * (method[0] == "s")) for method, at in accuracies.items() for s in range(5)]
    found = {claim.cells["method"]: claim for claim in REAL_VERDICTS["activity"](rows, rows) if claim.table}
    assert found["sire+shuffle"].verdict == "does not hold"
    assert found["sire+shuffle"].cells["against"] == "pi-sgd"
    assert found["sire"].verdict == "holds"
    assert found["sire"].cells["against"] == found["pi-sgd"].cells["against"] == "plain"


def few_and_many(gains):
    rows = []
    for share, gain in gains.items():
        rows += [row("plain", s, 0.5 + 0.02 * s, labels=share) for s in range(5)]
        rows += [row("sire", s, 0.5 + 0.02 * s + gain + 0.001 * (-1) ** s, weight=1.0, labels=share) for s in range(5)]
    return REAL_VERDICTS["activity"](rows, rows)


def test_several_cells_are_summed_up_first_with_the_number_of_comparisons():
    short = few_and_many({0.05: 0.1, 0.1: 0.0, 1.0: -0.1})[0]
    assert short.text == (
        "In short, of 3 comparisons with the same training without penalty: clearly above: sire (5 % of the labels, "
        "accuracy). Clearly below: sire (100 % of the labels, accuracy). Each interval is one of 95 %, over seeds that "
        "share the test sets: by chance alone at least 0.2 of 3 would seem clear"
    )
    assert short.short == "of 3 comparisons with the same training without penalty, 1 clearly above and 1 below"


@pytest.mark.parametrize(
    ("few", "many", "verdict"), [(0.1, 0.0, "holds"), (0.05, 0.05, "not clear"), (0.0, 0.1, "does not hold")]
)
def test_whether_the_gain_is_largest_where_labels_are_few_is_judged(few, many, verdict):
    claim = few_and_many({0.05: few, 1.0: many})[1]
    assert claim.text.startswith(f"sire gains most where labels are few: {few:+.3f} with 5 %; {many:+.3f} with 100 %")
    assert claim.verdict == verdict


def test_the_experiments_are_registered():
    from anyorder.paper.experiments import EXPERIMENTS

    assert {"ecg", "bags", "activity", "pointcloud", "perturbed-mnist"} <= EXPERIMENTS.keys()
    assert isinstance(ECG.data("smoke"), Dataset)
