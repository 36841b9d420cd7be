"""Reports: intervals, verdicts and pages from rows whose figures are known."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure as Canvas

from anyorder.checks import Diverged, InputError
from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.report.charts import default_charts, draw, lines_of
from anyorder.paper.report.page import markdown, section_of, summary_table, write_report
from anyorder.paper.report.statistics import (
    Claim,
    Sample,
    ahead,
    difference,
    fewer,
    labels_for,
    level,
    pm,
    sample_of,
    times_fewer,
)
from anyorder.paper.report.verdicts import claims_of
from anyorder.paper.runner.rows import write_rows
from anyorder.paper.runner.sweep import run_trial
from anyorder.paper.runner.trial import Chart


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "home"))


def rows_of(name, accuracy, scale="laptop", keep=lambda trial: True):
    """Rows of every trial of an experiment; ``accuracy(trial, length)`` stands in for training."""
    experiment = EXPERIMENTS[name]

    def run(trial, data, workdir):
        lengths = trial.setting.get("lengths") or [trial.setting.get("n")]
        curve = {"epoch": [1, 2], "seconds": [5.0, 10.0], "loss": [2.0, 1.0], "accuracy": [0.4, 0.8]}
        return [
            {
                "setting": {} if length is None else {"length": length},
                "validation": {"loss": 1 - accuracy(trial, length), "accuracy": accuracy(trial, length)},
                "metrics": {
                    "accuracy": accuracy(trial, length) + 0.001 * trial.seed,
                    "train_loss": 0.1,
                    "state_gap_squared": 0.2,
                    "mae": 1.0,
                },
                "parameters": 123,
                **({"curve": curve} if trial.setting.get("curve") else {}),
            }
            for length in lengths
        ]

    rows = []
    while new := [t for t in experiment.trials(scale, rows) if keep(t) and t.key not in {r["trial"] for r in rows}]:
        rows += [row for trial in new for row in run_trial(run, trial)]
    return experiment.with_selection(rows, scale)


def by_weight(trial, length):
    """SIRE is best at weight 10 with .98, SUB at 1 with .96, no penalty .5."""
    if trial.method == "plain":
        return 0.5
    best, top = (10.0, 0.98) if trial.method == "sire" else (1.0, 0.96)
    return top - 0.05 * abs(math.log10(trial.setting["penalty_weight"] / best))


# --- statistics


def test_the_interval_is_students():
    sample = Sample({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0})
    assert sample.sd == pytest.approx(math.sqrt(2.5))
    assert sample.half_width == pytest.approx(2.7764 * math.sqrt(2.5 / 5), rel=1e-4)
    assert math.isnan(Sample({0: 1.0}).half_width)


def test_differences_are_paired_by_seed():
    one, other = Sample({0: 1.0, 1: 5.0, 2: 9.0}), Sample({1: 4.0, 2: 8.0, 0: 0.5, 7: 3.0})
    assert one.minus(other).values == {0: 0.5, 1: 1.0, 2: 1.0}


def test_labels_needed_lies_between_the_measured_numbers_on_a_logarithmic_axis():
    curve = {k: Sample({0: v}) for k, v in {50: 0.5, 100: 0.8, 200: 1.0, 500: 1.0}.items()}
    assert labels_for(curve, 0.9) == pytest.approx(math.sqrt(100 * 200))
    assert labels_for(curve, 0.4) == 50
    assert labels_for({50: curve[50], 100: curve[100]}, 0.9) == math.inf


def test_times_fewer_labels_is_an_interval_over_seeds():
    def curve(*reached):  # seeds whose accuracy crosses .9 between 100 and 200, the higher the earlier
        return {50: Sample(dict.fromkeys(range(5), 0.2)), 100: Sample(dict(enumerate(reached)))} | {
            200: Sample(dict.fromkeys(range(5), 1.0))
        }

    even = times_fewer(curve(0.88, 0.85, 0.8, 0.86, 0.89), curve(0.85, 0.88, 0.86, 0.8, 0.89), 0.9)
    assert even[0] < 1 < even[1]
    assert fewer(even) == "not clear"
    clear = times_fewer(curve(0.88, 0.85, 0.8, 0.86, 0.89), curve(0.3, 0.2, 0.3, 0.2, 0.25), 0.9)
    assert 1 < clear[0] <= clear[1] < 4
    assert times_fewer(curve(0.88), curve(0.85), 0.9) is None
    never = {50: Sample({0: 0.1, 1: 0.1}), 200: Sample({0: 0.2, 1: 0.3})}
    assert times_fewer(curve(0.5, 0.5), never, 0.9) == (math.inf, math.inf)


def test_one_seed_has_no_interval_and_no_verdict():
    one, other = Sample({0: 0.5}), Sample({0: 0.4, 1: 0.3})
    assert pm(one) == "0.500 (one seed)"
    assert difference(one, other) == "+0.100 (one seed)"
    assert ahead(one, other) is None
    assert level(one, other, 0.02) is None


# --- verdicts


def test_claims_hold_or_do_not_by_the_numbers():
    experiment = EXPERIMENTS["sub-vs-sire"]
    claims = claims_of(experiment, rows_of("sub-vs-sire", by_weight))
    texts = {claim.text: claim.verdict for claim in claims}
    assert texts["sire has accuracy at least 0.95: it is 0.982 ± 0.002"] == "holds"
    (verdict,) = [claim for claim in claims if claim.text.startswith("SIRE beats SUB")]
    assert verdict.verdict == "holds"
    assert "0.982 ± 0.002 against 0.962 ± 0.002, paired difference +0.020" in verdict.text
    once = claims_of(experiment, [row for row in rows_of("sub-vs-sire", by_weight) if row["seed"] == 0])
    assert once[0].text.startswith("sire is to have accuracy at least 0.95: it is 0.98")
    assert once[0].verdict is None
    worse = claims_of(experiment, rows_of("sub-vs-sire", lambda trial, n: 0.9 * by_weight(trial, n)))
    assert next(claim for claim in worse if claim.text.startswith("sire has accuracy")).verdict == "does not hold"
    level = claims_of(experiment, rows_of("sub-vs-sire", lambda trial, n: 0.9))
    assert next(claim for claim in level if claim.text.startswith("SIRE beats SUB")).verdict == "not clear"


def figures(metric, means, *, spread=0.001, losses=None, **setting):
    """Chosen rows of three seeds: ``means[method]`` and, seed by seed, a little around it; validation likewise."""
    return [
        {
            "method": method,
            "seed": seed,
            "setting": setting,
            "metrics": {metric: mean + spread * (seed if method.startswith("sire") else -seed)},
            "validation": {"loss": (losses or {}).get(method, -mean if metric == "accuracy" else mean)},
            "selected": True,
        }
        for method, mean in means.items()
        for seed in range(3)
    ]


def verdicts_of(name, rows):
    return {claim.text: claim.verdict for claim in claims_of(EXPERIMENTS[name], rows) if claim.verdict is not None}


def test_on_sum_the_better_sire_is_held_against_each_rival():
    rows = [
        *figures("accuracy", {"plain": 0.9, "pi-sgd": 0.9, "deepsets": 0.9, "sire": 0.5}, n=5),
        *figures("accuracy", {"plain": 0.4, "pi-sgd": 0.7, "deepsets": 0.9, "sire": 0.5, "sire+shuffle": 0.6}, n=10),
        *figures("accuracy", {"plain": 0.4, "pi-sgd": 0.6, "deepsets": 0.5, "sire+shuffle": 0.6}, spread=0.01, n=15),
    ]
    found = verdicts_of("sum", rows)
    assert [(text.split(",")[0], verdict) for text, verdict in found.items()] == [
        ("n = 10: sire+shuffle is above plain", "holds"),
        ("n = 10: sire+shuffle is above pi-sgd", "does not hold"),
        ("n = 15: sire+shuffle is above plain", "holds"),
        ("n = 15: sire+shuffle is above pi-sgd", "not clear"),
        ("From n = 15 on the better SIRE by validation is above DeepSets", "holds"),
    ]
    assert verdicts_of("sum", rows[:12]) == {
        "From some n on the better SIRE by validation is above DeepSets": "does not hold"
    }
    noisy = figures("accuracy", {"deepsets": 0.5, "sire": 0.501}, spread=0.02, n=30)
    noisy[0]["metrics"]["accuracy"] = 0.6
    assert verdicts_of("sum", noisy) == {"From some n on the better SIRE by validation is above DeepSets": "not clear"}


def test_the_better_sire_is_the_one_with_the_lower_validation_loss():
    means = {"plain": 0.5, "pi-sgd": 0.5, "sire": 0.4, "sire+shuffle": 0.6}
    rows = figures("accuracy", means, n=10, losses={"sire": 0.1, "sire+shuffle": 0.2, "plain": 0.3, "pi-sgd": 0.3})
    assert [text.split(",")[0] for text in verdicts_of("sum", rows)] == [
        "n = 10: sire is above plain",
        "n = 10: sire is above pi-sgd",
    ]


@pytest.mark.parametrize(
    ("name", "metric", "ours"), [("sum", "accuracy", 0.4), ("range", "accuracy", 0.4), ("variance", "rmse", 40)]
)
def test_what_pi_sgd_gives_in_one_ordering_stands_beside_its_mean_of_twenty(name, metric, ours):
    rows = figures(metric, {"pi-sgd": 0.5, "deepsets": 0.9, "sire": 0.4}, n=10)
    assert not any("one ordering" in claim.text for claim in claims_of(EXPERIMENTS[name], rows))
    for row in rows:
        if row["method"] == "pi-sgd":
            row["metrics"][f"{metric}_one_ordering"] = ours
    [found] = [claim for claim in claims_of(EXPERIMENTS[name], rows) if "one ordering" in claim.text]
    assert f"n = 10: {ours}" in found.text
    assert found.verdict is None


@pytest.mark.parametrize(
    ("sire", "spread", "verdict"),
    [(0.9, 0.001, "holds"), (0.8005, 0.001, "holds"), (0.7, 0.001, "does not hold"), (0.8, 0.1, "not clear")],
)
def test_on_range_sire_is_to_be_level_with_the_best_other(sire, spread, verdict):
    rows = figures("accuracy", {"plain": 0.6, "deepsets": 0.8, "sire": sire}, spread=spread, n=5)
    ((text, found),) = verdicts_of("range", rows).items()
    assert found == verdict
    assert "level with the best other by validation, deepsets, or less than 0.02 behind" in text


@pytest.mark.parametrize(("sire", "verdict"), [(4.0, "holds"), (5.0, "not clear"), (6.0, "does not hold")])
def test_on_variance_sires_error_is_to_be_below_that_of_deepsets(sire, verdict):
    rows = figures("rmse", {"plain": 1.0, "deepsets": 5.0, "sire": sire}, spread=0.1, n=5)
    assert list(verdicts_of("variance", rows).values()) == [verdict]


def test_labels_needed_are_compared_only_where_the_whole_range_was_measured():
    few = figures("accuracy", {"plain": 0.5, "sire": 0.95}, alphabet=20, labels=500)
    assert claims_of(EXPERIMENTS["labels"], few) == []
    rows = [
        *figures("accuracy", {"plain": 0.1, "sire": 0.2, "deepsets": 0.2}, spread=0.0, alphabet=20, labels=50),
        *figures("accuracy", {"plain": 0.5, "sire": 0.9, "pi-sgd": 0.99}, spread=0.0, alphabet=20, labels=500),
        *figures("accuracy", {"plain": 0.9, "sire": 0.95, "deepsets": 0.8}, spread=0.0, alphabet=20, labels=5000),
    ]
    kind = figures("accuracy", {"set-transformer": 0.95}, spread=0.0, alphabet=20, labels=50)
    kind += figures("accuracy", {"set-transformer": 0.99}, spread=0.0, alphabet=20, labels=5000)
    (needed, *_) = claims_of(EXPERIMENTS["labels"], rows + kind)
    assert needed.text.endswith("deepsets more than 5,000; plain 5000; set-transformer at most 50; sire 500")
    assert verdicts_of("labels", rows) == {
        "Numbers below 20: sire needs fewer labels than plain: 500 against 5000, times fewer: 10 (10 to 10)": "holds",
        "Numbers below 20: sire needs fewer labels than deepsets: 500 against more than 5,000, times fewer: "
        "at least 10": "holds",
    }
    censored = [
        *figures("accuracy", {"plain": 0.1, "sire": 0.95, "deepsets": 0.95}, spread=0.0, alphabet=20, labels=50),
        *figures("accuracy", {"plain": 0.9, "sire": 0.95, "deepsets": 0.95}, spread=0.0, alphabet=20, labels=5000),
    ]
    assert verdicts_of("labels", censored) == {
        "Numbers below 20: sire needs fewer labels than plain: at most 50 against 5000, times fewer: "
        "at least 1e+02": "holds",
        "Numbers below 20: sire needs fewer labels than deepsets: at most 50 against at most 50, times fewer: "
        "not known": "not clear",
    }


def test_a_method_that_never_gets_there_needs_more_labels_than_one_that_does():
    rows = [
        *figures("accuracy", {"sire": 0.1, "deepsets": 0.2}, alphabet=20, labels=50),
        *figures("accuracy", {"sire": 0.2, "deepsets": 0.95}, alphabet=20, labels=5000),
    ]
    assert list(verdicts_of("labels", rows).values()) == ["does not hold"]


def test_equal_weight_and_equal_cost_are_compared():
    rows = rows_of("sub-vs-sire", by_weight)
    for row in rows:  # an epoch of SUB takes twice as long, but one seed of SIRE had a busy machine
        slow = {"sire": 1.0, "sub": 2.0}.get(row["method"], 1.0) * (
            50 if row["method"] == "sire" and row["seed"] == 0 else 1
        )
        row["curve"] = {**row["curve"], "seconds": [5 * slow, 10 * slow]}
    texts = " ".join(claim.text for claim in claims_of(EXPERIMENTS["sub-vs-sire"], rows))
    assert "10: 0.982 and 0.912" in texts
    assert "an epoch of SIRE takes 0.50 times the time of one of SUB" in texts
    assert "SIRE is at 0.800 on the validation sets after 2 epochs and SUB at 0.400 after 1" in texts


def test_the_papers_own_weights_are_chosen_by_validation():
    rows = rows_of("sub-vs-sire", by_weight)
    for row in rows:
        if row["method"] == "sire" and row["setting"]["penalty_weight"] == 0.001:
            row["validation"]["loss"] = 0.0
    (claim,) = [c for c in claims_of(EXPERIMENTS["sub-vs-sire"], rows) if "paper's own weights" in c.text]
    assert "validation chooses 0.001 for SIRE and 0.1 for SUB" in claim.text


@pytest.mark.parametrize(("shift", "verdict"), [(100, "holds"), (0, "not clear"), (-100, "does not hold")])
def test_the_faster_convergence_is_judged_by_a_paired_interval(shift, verdict):
    rows = rows_of("sub-vs-sire", by_weight)
    for row in rows:
        late = 200 + 10 * row["seed"] + (shift if row["method"] == "sub" else (-1) ** row["seed"])
        row["curve"] = {"epoch": [1, late], "seconds": [1.0, 2.0], "loss": [1.0, 1.0], "accuracy": [0.1, 0.9]}
    (claim,) = [c for c in claims_of(EXPERIMENTS["sub-vs-sire"], rows) if "converges faster" in c.text]
    assert claim.verdict == verdict


def test_parity_says_for_which_cells_it_holds_and_whether_deepsets_fits_the_training_lengths():
    def accuracy(trial, length):
        return 0.8 if trial.method == "deepsets" or trial.setting["cell"] == "rnn" else 1.0

    texts = {c.text: c.verdict for c in claims_of(EXPERIMENTS["parity"], rows_of("parity", accuracy))}
    plain, sire, pooled = (next(t for t in texts if t.startswith(w)) for w in ("Without", "With SIRE", "DeepSets"))
    assert "reached by relu-rnn and gru, not by rnn" in plain
    assert [texts[plain], texts[sire], texts[pooled]] == ["holds", None, "not clear"]
    assert "0.802 ± 0.002 at length 10. It did not fit the training lengths" in pooled


@pytest.mark.parametrize(("at_100", "verdict"), [(0.5, "holds"), (1.0, "does not hold")])
def test_deepsets_that_fits_the_training_lengths_of_parity_is_judged_by_length_100(at_100, verdict):
    rows = rows_of("parity", lambda trial, length: at_100 if trial.method == "deepsets" and length == 100 else 1.0)
    (found,) = [c for c in claims_of(EXPERIMENTS["parity"], rows) if c.text.startswith("DeepSets")]
    assert found.verdict == verdict
    assert found.short.startswith("at length 100: plain relu-rnn 1.002, rnn 1.002, gru 1.002; sire relu-rnn 1.002")


def test_what_the_paper_does_not_claim_does_not_decide_its_verdict():
    section = section_of(EXPERIMENTS["sub-vs-sire"], "laptop", rows_of("sub-vs-sire", by_weight))
    beside = [claim.text.split(":")[0] for claim in section.claims if claim.beside]
    assert beside == ["sire has accuracy at least 0.95", "SIRE beats no penalty"]  # the paper has .792
    others = [replace(c, verdict="holds") for c in section.claims if not c.beside]
    failed = [replace(c, verdict="does not hold") for c in section.claims if c.beside]
    assert replace(section, claims=[*others, *failed]).verdict == "holds"


def test_where_no_method_reaches_the_goal_accuracies_with_the_most_labels_are_compared():
    rows = [
        *figures("accuracy", {"plain": 0.01, "sire": 0.02}, alphabet=100, labels=50),
        *figures("accuracy", {"plain": 0.20, "sire": 0.13}, alphabet=100, labels=5000),
    ]
    (found,) = verdicts_of("labels", rows).items()
    assert found[0].startswith("Numbers below 100, 5,000 labels: sire is above plain: 0.13")
    assert found[1] == "does not hold"


def test_lengths_are_summed_up_for_every_cell_and_sire_is_held_against_plain_and_deepsets():
    rows = [
        *figures("mae", {"plain": 30.0, "sire": 20.0}, cell="gru", length=100),
        *figures("mae", {"deepsets": 10.0}, cell=None, length=100),
    ]
    found = claims_of(EXPERIMENTS["lengths"], rows)
    judged = {(claim.cells["cell"], claim.cells["against"]): claim.verdict for claim in found if claim.verdict}
    assert judged == {("gru", "plain"): "holds", ("gru", "deepsets"): "does not hold"}
    assert found[-1].text == "Mean error on 100 numbers after training on at most 10: deepsets 10"
    assert found[-1].short == "mean error at 100: gru plain 30, sire 20; deepsets 10"


@pytest.mark.parametrize("name", ["labels", "half-range", "dial", "lengths", "sum"])
def test_every_experiment_has_a_verdict_and_figures(name):
    section = section_of(EXPERIMENTS[name], "smoke", rows_of(name, lambda trial, n: 0.9, "smoke"))
    assert section.finished == section.planned
    assert section.claims
    assert section.entries
    assert section.figures


def test_no_verdict_while_trials_are_missing():
    experiment = EXPERIMENTS["sub-vs-sire"]
    rows = rows_of("sub-vs-sire", by_weight, keep=lambda trial: trial.method != "sub")
    section = section_of(experiment, "laptop", experiment.with_selection(rows, "laptop"))
    assert section.finished < section.planned
    assert section.verdict == "open"
    assert {entry.method for entry in section.entries} == {"plain", "sire"}


def test_a_choice_on_disk_made_before_candidates_were_added_is_not_shown():
    finished = rows_of("sub-vs-sire", by_weight)
    rows = [row for row in finished if row["method"] != "sire" or row["setting"]["penalty_weight"] != 1000.0]
    assert any(row["selected"] for row in rows if row["method"] == "sire")
    section = section_of(EXPERIMENTS["sub-vs-sire"], "laptop", rows)
    assert {entry.method for entry in section.entries} == {"plain", "sub"}
    assert section.searching == ["sire"]
    assert "Search unfinished, so nothing is chosen yet: sire." in markdown([section])


def test_a_search_in_one_cell_is_unfinished_there():
    rows = rows_of("half-range", lambda trial, n: 0.5, keep=lambda trial: trial.setting["labels"] == 5000)
    rows = [row for row in rows if row["setting"].get("penalty_weight") != 0.1 or row["setting"]["n"] != 15]
    assert section_of(EXPERIMENTS["half-range"], "laptop", rows).searching == ["sire (n 15, labels 5000)"]


def test_a_search_that_serves_several_cells_is_unfinished_once():
    rows = rows_of("labels", lambda trial, n: 0.5, keep=lambda trial: trial.setting["alphabet"] == 20)
    rows = [row for row in rows if row["method"] != "sire" or row["setting"]["penalty_weight"] != 10]
    assert section_of(EXPERIMENTS["labels"], "laptop", rows).searching == ["sire (alphabet 20)"]


@pytest.mark.parametrize("seeds", [1, 10])
def test_a_sweep_of_fewer_or_more_seeds_leaves_finished_choices_alone(seeds):
    rows = rows_of("sub-vs-sire", by_weight)
    assert EXPERIMENTS["sub-vs-sire"].with_selection(rows, "laptop", seeds=seeds) == rows


def test_rows_of_an_earlier_declaration_are_not_shown():
    rows = rows_of("sub-vs-sire", by_weight)
    old = [{**row, "trial": "0" * 12, "seconds": 1e6} for row in rows if row["method"] == "sire"]
    section = section_of(EXPERIMENTS["sub-vs-sire"], "laptop", rows + old)
    assert section.rows == rows
    assert section.hours < 1


# --- figures and pages


def test_lines_go_through_the_means_and_methods_without_the_setting_are_level():
    rows = rows_of("sub-vs-sire", by_weight)
    lines = {line.label: line for line in lines_of(Chart("penalty_weight", every=True), rows)}
    assert lines["sire"].points[10.0].mean == pytest.approx(0.982)
    assert len(lines["sire"].points) == 7
    assert [math.isnan(x) for x in lines["plain"].points] == [True]


def test_a_point_that_two_rows_of_a_seed_lay_claim_to_is_refused():
    rows = [row for row in rows_of("half-range", lambda trial, n: 0.5) if row["method"] == "sire"]
    with pytest.raises(InputError, match=r"accuracy of sire at penalty_weight 0.01 has two values of seed 0"):
        lines_of(Chart("penalty_weight", every=True), [row for row in rows if row["setting"]["labels"] == 5000])
    with pytest.raises(InputError, match="accuracy has two values of seed 0"):
        sample_of(rows, "accuracy", "sire", labels=5000)


def test_where_runs_of_half_range_did_not_fit_nothing_is_clear():
    rows = rows_of("half-range", lambda trial, n: 0.5 - 0.1 * (trial.method == "plain"))
    lost = [row for row in rows if row["method"] == "plain" and row["setting"]["n"] == 20 and row["seed"] in (1, 3)]
    for row in lost:
        row["metrics"] = {**row["metrics"], "train_loss": 1.01}  # the others' is .1; accuracies would be clear
    claims = [c for c in claims_of(EXPERIMENTS["half-range"], rows) if c.cells]
    assert {(c.cells["n"], c.verdict) for c in claims} == {("10", "holds"), ("15", "holds"), ("20", "not clear")}
    assert claims[-1].short.endswith("(2 of 5 runs did not fit) without")
    assert "did not fit" not in claims[0].text
    for row in lost:
        row["metrics"]["train_loss"] = 0.99
    assert {c.verdict for c in claims_of(EXPERIMENTS["half-range"], rows) if c.cells} == {"holds"}


def test_half_ranges_weights_are_drawn_where_they_were_searched_a_line_a_rate():
    def known(trial, length):
        return {10: 0.1, 15: 0.5, 20: 0.9}[trial.setting["n"]] + trial.setting["learning_rate"]

    experiment = EXPERIMENTS["half-range"]
    rows = [row for row in rows_of("half-range", known) if row["setting"]["labels"] == 5000]
    lines = {line.label: line.points for line in lines_of(experiment.charts[-1], rows)}
    assert {label: [s.values[0] for s in points.values()] for label, points in lines.items()} == {
        "plain, learning rate 0.02": pytest.approx([0.52]),
        "sire, learning rate 0.01": pytest.approx([0.51] * 2),
        "sire, learning rate 0.015": pytest.approx([0.515] * 2),
        "sire, learning rate 0.02": pytest.approx([0.52] * 2),
    }


def test_an_experiment_without_charts_gets_those_its_plan_suggests():
    charts = default_charts(EXPERIMENTS["half-range"], "laptop")
    assert [(chart.x, chart.minus, chart.every) for chart in charts] == [
        ("n", None, False),
        ("n", "plain", False),
        ("labels", None, False),
        ("labels", "plain", False),
        ("penalty_weight", None, True),
    ]
    rows = rows_of("half-range", lambda trial, n: 0.2 if trial.method == "plain" else 0.5)
    labels = {line.label for line in lines_of(charts[1], rows)}
    assert labels == {"sire, labels 5000", "sire, labels 20000", "sire, labels 100000"}
    searched = [row for row in rows if row["setting"]["n"] == 15]
    assert "sire, labels 5000, learning rate 0.02" in {line.label for line in lines_of(charts[-1], searched)}


def test_a_difference_is_paired_by_seed():
    def noisy(trial, length):  # seeds differ widely, methods by .1 exactly
        return 0.2 * trial.seed + (0.1 if trial.method == "sire" else 0.0)

    rows = rows_of("half-range", noisy)
    (line,) = lines_of(Chart("labels", minus="plain"), [row for row in rows if row["setting"]["n"] == 10])
    assert line.label == "sire"
    assert [round(sample.mean, 6) for sample in line.points.values()] == [0.1, 0.1, 0.1]
    assert all(sample.half_width < 1e-9 for sample in line.points.values())


def drawn(chart, rows, name="ecg"):
    """The axes and the captions of a chart's figures."""
    figures = draw(EXPERIMENTS[name], chart, rows, "figure")
    found = []
    for figure in figures:
        canvas = Canvas(layout="constrained")
        figure.draw(canvas.add_subplot())
        found.append((canvas, figure.caption))
    return found


def gap_rows(gaps, weights=(1.0, 10.0)):
    """Chosen rows with these order gaps, a list over seeds for each method."""
    return [
        {
            "method": m,
            "seed": s,
            "setting": {"penalty_weight": w},
            "metrics": {"state_gap_squared": g},
            "selected": True,
        }
        for m, values in gaps.items()
        for s, g in enumerate(values)
        for w in weights
    ]


def test_on_a_logarithmic_axis_the_interval_is_that_of_the_logarithms():
    rows = gap_rows({"sire": [0.001, 0.1, 0.01], "deepsets": [0.0, 1e-15, 0.0]})
    ((canvas, caption),) = drawn(Chart("penalty_weight", "state_gap_squared", log=True), rows)
    (axes,) = canvas.axes
    assert [line.get_label() for line in axes.lines] == ["sire"]
    assert axes.lines[0].get_ydata() == pytest.approx([0.01, 0.01])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    half = Sample({0: math.log(0.001), 1: math.log(0.1), 2: math.log(0.01)}).half_width
    assert (min(band), max(band)) == pytest.approx((0.01 * math.exp(-half), 0.01 * math.exp(half)))
    assert caption == (
        "State gap squared against penalty weight; geometric mean and 95 % interval of 3 seeds. "
        "Left out, 0 but for rounding: deepsets."
    )


def test_a_figure_of_one_seed_says_so_and_its_legend_covers_no_line():
    ((canvas, caption),) = drawn(Chart("penalty_weight", "state_gap_squared", log=True), gap_rows({"sire": [0.1]}))
    assert caption == "State gap squared against penalty weight; one seed."
    mixed = gap_rows({"sire": [0.1, 0.2]}) + gap_rows({"plain": [0.1]})
    ((_, caption),) = drawn(Chart("penalty_weight", "state_gap_squared", log=True), mixed)
    assert caption.endswith("95 % interval of 2 seeds, 1 in places.")
    assert canvas.axes[0].get_legend() is None
    assert [text.get_text() for text in canvas.legends[0].texts] == ["sire"]


def test_curves_say_which_sets_they_are_of():
    rows = rows_of("sub-vs-sire", by_weight)
    loss, accuracy = (drawn(chart, rows, "sub-vs-sire")[0] for chart in EXPERIMENTS["sub-vs-sire"].charts[1:])
    assert loss[0].axes[0].get_ylabel() == "training loss (of standardised targets)"
    assert accuracy[0].axes[0].get_ylabel() == "validation accuracy"
    assert accuracy[0].axes[0].get_xlabel() == "epoch"


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.addresses = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"][1:]] if tag == "a" and found["href"].startswith("#") else []
        self.addresses += [found[key] for key in ("src", "href") if found.get(key, "#")[0] != "#"]


def test_the_pages_say_what_the_rows_say_and_nothing_is_fetched(tmp_path):
    rows = rows_of("sub-vs-sire", by_weight)
    write_rows(tmp_path / "sub-vs-sire.jsonl", rows)
    write_rows(tmp_path / "parity.jsonl", rows_of("parity", lambda trial, n: 1.0))
    text, page = (path.read_text() for path in write_report(tmp_path))
    assert "| sire: accuracy | 0.792 (0.09) | 0.9820 ± 0.0016 | 5 | 0.95 to 1 | yes |" in text
    assert "| sire |  | penalty weight 10 | 0.9820 ± 0.0016 | 5 | 0.1 | 0.2 | 123 |" in text
    hours = sum({row["trial"]: row["seconds"] for row in rows}.values()) / 3600
    assert f"`anyorder reproduce sub-vs-sire --scale laptop`: 105 of 105 trials, {hours:.2f} hours" in text
    found = Page(page)
    assert found.tags.count("svg") >= 6  # three cells of parity, three figures of sub-vs-sire
    assert len(found.ids) == len(set(found.ids))
    assert set(found.links) <= set(found.ids)
    assert all(address.startswith("data:") for address in found.addresses)
    for made in (text, page):  # DeepSets was asked to fail at parity, and here it does not
        assert "Where it does not hold." in made
        assert "Not so: deepsets (length 100) has accuracy between 0.4 and 0.6: it is 1.002 ± 0.002." in made
    assert re.search(r"0\.9820 ± 0\.0016", page)


def test_what_fails_is_said_with_our_understanding_of_it_and_tables_are_not_repeated(tmp_path):
    rows = rows_of("half-range", lambda trial, n: 0.5 - 0.1 * (trial.method == "sire"))
    section = section_of(EXPERIMENTS["half-range"], "laptop", rows)
    told = replace(section, experiment=replace(section.experiment, remark="Because of this."))
    text = markdown([told])
    assert "**Where it does not hold.** Because of this.\n" in text
    assert "- 9 of the 9 comparisons in the table “Accuracy with the penalty and without; " in text
    assert "Not so: n = 10" not in text
    assert "Because of this." not in markdown([replace(told, claims=[])])
    alone = replace(told, claims=[Claim("One claim by itself", "does not hold"), Claim("another", "holds")])
    assert markdown([alone]).count("One claim by itself") == 1  # among what fails, not once more among the claims
    assert [claim.text for claim in alone.sentences] == ["another"]


def test_what_was_not_run_is_named_with_its_command_and_hours(tmp_path):
    experiment = EXPERIMENTS["parity"]
    rows = rows_of("parity", lambda trial, n: 0.9)
    for row in rows:  # at the estimated pace
        row["seconds"] = {"plain": 8.0}.get(row["method"], 12.0)
    whole = section_of(experiment, "laptop", rows)
    assert whole.seconds_left == 0
    # Five seeds of six candidates and fifteen further ones of the choice: plain and sire with three cells, DeepSets.
    assert (6 * 5 + 15) * (3 * 8 + 3 * 12 + 12) == 54 * 60
    assert whole.outlook == "The full protocol, --scale paper, takes about 54 min."
    slow = section_of(experiment, "laptop", [{**row, "seconds": 2.5 * row["seconds"]} for row in rows])
    assert slow.outlook == "The full protocol, --scale paper, takes about 2.2 h."
    part = section_of(experiment, "laptop", [row for row in rows if row["method"] != "deepsets"])
    assert part.seconds_left == pytest.approx(
        (6 * 2 + 3) * 12
    )  # the search's trials, and three further seeds of the choice
    assert part.outlook.startswith("About 3 min are left. The full protocol")
    assert part.outlook in markdown([part])
    line = "| pointcloud-5000 | SIRE on clouds of 5000 points | sire+shuffle 0.899, deepsets 0.9 | "
    line += "`anyorder reproduce pointcloud-5000 --scale laptop` | "
    assert line in markdown([whole])
    write_rows(tmp_path / "parity.jsonl", rows)
    page = write_report(tmp_path)[1].read_text()
    assert "<code>anyorder reproduce pointcloud-5000 --scale laptop</code>" in page
    assert whole.outlook in page


def test_a_row_edited_by_hand_is_refused():
    rows = rows_of("parity", lambda trial, n: 0.9)
    for key, value, found in (("method", "sirr", "has method 'sirr'"), ("setting", {"length": 10}, "has .* None, and")):
        edited = [{**rows[0], key: value}, *rows[1:]]
        with pytest.raises(InputError, match=f"a row of the trial .* of parity {found}.* mend or remove that row"):
            section_of(EXPERIMENTS["parity"], "laptop", edited)


def test_bags_are_drawn_one_data_set_a_figure():
    rows = rows_of("bags", lambda trial, n: 0.9)
    titles = [figure.alt for figure in section_of(EXPERIMENTS["bags"], "laptop", rows).figures]
    assert len(titles) == 6
    for name, share in itertools.product(("musk1", "elephant"), (0.05, 0.1, 1)):
        assert any(f"{name}, labels {share:g}." in title for title in titles)


def test_one_seed_meets_no_number():
    rows = rows_of("perturbed-mnist", lambda trial, n: 0.9)
    section = section_of(EXPERIMENTS["perturbed-mnist"], "laptop", rows)
    assert section.comparisons
    assert all(comparison.met is None for comparison in section.comparisons)


def test_experiments_without_rows_are_named_and_a_slow_trial_does_not_set_the_seconds():
    rows = rows_of("parity", lambda trial, n: 0.9)
    for row in rows:
        row["seconds"] = 1000.0 if row["seed"] == 0 else 10.0
    section = section_of(EXPERIMENTS["parity"], "laptop", rows)
    assert {entry.seconds for entry in section.entries} == {10.0}
    assert "\n| sub-vs-sire | SIRE beats SUB from 200 samples | SIRE .792, SUB .759 | `anyorder" in markdown([section])


def test_what_a_curve_does_not_have_is_not_drawn():
    chart = Chart("epoch", "gap", curve=True)
    one = {"method": "deepsets", "seed": 0, "setting": {}, "selected": True}
    none, some = {"epoch": [0, 1], "gap": [None, None]}, {"epoch": [0, 1], "gap": [0.5, None]}
    assert lines_of(chart, [{**one, "curve": none}]) == []
    (line,) = lines_of(chart, [{**one, "method": "sire", "curve": some}])
    assert list(line.points) == [0.0]


def test_a_damaged_data_file_costs_the_report_its_picture_and_no_more(tmp_path, monkeypatch):
    def damaged(name):
        raise InputError("ecg5000.npz is damaged")

    monkeypatch.setattr("anyorder.paper.report.page.picture_of", damaged)
    write_rows(tmp_path / "dial.jsonl", rows_of("dial", lambda trial, n: 0.9, "smoke"))
    assert "data:image/png" not in write_report(tmp_path)[1].read_text()


def test_a_setting_that_diverged_is_in_no_table_and_stops_no_report(tmp_path):
    def accuracy(trial, length):
        if trial.setting.get("penalty_weight") == 1000.0 or trial.method == "plain":
            raise Diverged("training diverged")
        return by_weight(trial, length)

    write_rows(tmp_path / "sub-vs-sire.jsonl", rows_of("sub-vs-sire", accuracy))
    text = write_report(tmp_path)[0].read_text()
    assert "| sire |  | penalty weight 10 | 0.9820 ± 0.0016 |" in text
    assert "105 of 105 trials" in text
    assert "SIRE beats no penalty" not in text  # no plain run has figures


def test_claims_of_every_cell_stand_in_a_table(tmp_path):
    write_rows(tmp_path / "half-range.jsonl", rows_of("half-range", lambda trial, n: 0.5))
    text, page = (path.read_text() for path in write_report(tmp_path))
    assert "| n | samples | with | without | difference | verdict |" in text
    assert "| 0.9584 (0.008) | 0.5020 ± 0.0016 | 5 | at least 0.9584 | no |" in text
    line = "| 10 | 5,000 | 0.502 ± 0.002 | 0.502 ± 0.002 | +0.000 (+0.000 to +0.000) | not clear |"
    assert line in text
    assert "<td>10</td><td>5,000</td><td>0.502 ± 0.002</td>" in page


def test_trainings_timed_against_plain_torch_show_their_speed(tmp_path):
    rows = rows_of("sub-vs-sire", by_weight)
    for row in rows:
        if row["method"] == "sire":
            row["metrics"]["step_rate_over_plain_torch"] = 0.87
    write_rows(tmp_path / "sub-vs-sire.jsonl", rows)
    write_rows(tmp_path / "dial.jsonl", rows_of("dial", lambda trial, n: 0.9, "smoke"))
    text, page = (path.read_text() for path in write_report(tmp_path))
    ours, dial = text.split("## dial")
    assert re.search(r"^\| sire .* \| 0\.87 \|$", ours, re.MULTILINE)
    assert re.search(r"^\| sub .* \|  \|$", ours, re.MULTILINE)  # not timed: an empty cell
    assert ours.count("Speed: samples a second") == 1
    assert "speed" not in dial.lower()
    assert page.count("Speed: samples a second") == 1


def test_the_same_rows_make_the_same_pages(tmp_path):
    write_rows(tmp_path / "sub-vs-sire.jsonl", rows_of("sub-vs-sire", by_weight))
    first = [path.read_text() for path in write_report(tmp_path)]
    assert first == [path.read_text() for path in write_report(tmp_path)]


def test_the_summary_has_a_line_an_experiment_and_opens_the_results(tmp_path):
    section = section_of(EXPERIMENTS["sub-vs-sire"], "laptop", rows_of("sub-vs-sire", by_weight))
    searching = section_of(EXPERIMENTS["labels"], "laptop", [])
    table = summary_table([section, searching])
    assert table.splitlines() == [
        "| experiment | claim | paper | ours | verdict |",
        "|---|---|---|---|---|",
        "| sub-vs-sire | SIRE beats SUB from 200 samples | SIRE .792, SUB .759 | SIRE 0.982 ± 0.002, SUB 0.962 ± 0.002 "
        "| fails in part |",
        "| labels | SIRE needs fewer labels | not tried | nothing chosen yet | open |",
    ]
    assert markdown([section, searching]).split("\n\n")[2] + "\n" == table


def test_a_finished_run_of_smoke_size_is_not_called_open_and_says_whose_words_it_has():
    section = section_of(EXPERIMENTS["parity"], "smoke", rows_of("parity", lambda trial, n: 0.9, "smoke"))
    assert summary_table([section]).splitlines()[-1].endswith("| too small to judge | not judged |")
    assert "**How.** As at the laptop scale, in smoke size; there: The paper does not name" in markdown([section])
    unfinished = section_of(EXPERIMENTS["parity"], "smoke", section.rows[:1])
    assert summary_table([unfinished]).splitlines()[-1].endswith("| nothing chosen yet | open |")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_its_claim_in_few_words(name):
    assert 0 < len(EXPERIMENTS[name].short) < 55
    assert "|" not in EXPERIMENTS[name].short + EXPERIMENTS[name].reported


def test_rows_of_labels_make_a_picture_of_its_own(tmp_path):
    def accuracy(trial, length):
        return 0.9 if trial.setting["alphabet"] == 20 else 0.1

    write_rows(tmp_path / "labels.jsonl", rows_of("labels", accuracy, "smoke"))
    *_, picture = write_report(tmp_path)
    assert picture.name == "labels.svg"
    text = picture.read_text()
    assert text.startswith("<?xml")
    for word in ("plain GRU", "GRU with SIRE", "π-SGD", "DeepSets", "labelled samples"):
        assert f">{word}</text>" in text
    assert "set-transformer" not in text
    write_report(tmp_path)
    assert picture.read_text() == text


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no rows of a known experiment"):
        write_report(tmp_path)
    with pytest.raises(InputError, match="nowhere is not a folder"):
        write_report(tmp_path / "nowhere")
