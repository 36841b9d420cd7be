"""Reports: intervals, comparisons, verdicts and pages from rows whose figures are known."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from anyorder.checks import Diverged, InputError
from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.report.figures import figures_of, lines_of
from anyorder.paper.report.page import section_of, write_report
from anyorder.paper.report.tables import choices_table, weights_table
from anyorder.paper.report.verdicts import Sample, compare, judge, labels_for, sample_of, times_fewer
from anyorder.paper.runner.rows import write_rows
from anyorder.paper.runner.sweep import run_trial
from anyorder.paper.runner.trial import Chart


@pytest.fixture(autouse=True, scope="module")
def _own_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYORDER_HOME", str(tmp_path_factory.mktemp("home")))
        yield


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
    best, top = (10.0, 0.98) if trial.method.startswith("sire") else (1.0, 0.96)
    return top - 0.05 * abs(math.log10(trial.setting["penalty_weight"] / best))


@pytest.fixture(scope="module")
def sub_rows():
    return rows_of("sub-vs-sire", by_weight)


# --- statistics


def test_the_interval_is_students():
    sample = Sample({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0})
    assert sample.sd == pytest.approx(math.sqrt(2.5))
    half = 2.7764 * math.sqrt(2.5 / 5)
    assert sample.interval == pytest.approx((3 - half, 3 + half), rel=1e-4)
    assert math.isnan(Sample({0: 1.0}).interval[0])
    assert [str(Sample(values)) for values in ({}, {0: 0.5}, {0: 20.0, 1: 21.0})] == ["", "0.500", "20.5 ± 0.7"]


def test_two_values_of_a_seed_are_refused():
    row = {"method": "sire", "seed": 0, "setting": {}, "metrics": {"accuracy": 1.0}}
    with pytest.raises(InputError, match="accuracy"):
        sample_of([row, row], "accuracy")


def test_labels_needed_lies_between_the_measured_numbers_on_a_logarithmic_axis():
    curve = {k: Sample({0: v}) for k, v in {50: 0.5, 100: 0.8, 200: 1.0, 500: 1.0}.items()}
    assert labels_for(curve, 0.9) == pytest.approx(math.sqrt(100 * 200))
    assert labels_for(curve, 0.4) == 50
    assert labels_for({50: curve[50], 100: curve[100]}, 0.9) == math.inf


def test_times_fewer_labels_is_an_interval_over_seeds():
    def curve(*reached):  # seeds whose accuracy crosses .9 between 100 and 200, the higher the earlier
        ends = {50: Sample(dict.fromkeys(range(5), 0.2)), 200: Sample(dict.fromkeys(range(5), 1.0))}
        return dict(sorted({**ends, 100: Sample(dict(enumerate(reached)))}.items()))

    even = times_fewer(curve(0.88, 0.85, 0.8, 0.86, 0.89), curve(0.85, 0.88, 0.86, 0.8, 0.89), 0.9)
    assert even[0] < 1 < even[1]
    clear = times_fewer(curve(0.88, 0.85, 0.8, 0.86, 0.89), curve(0.3, 0.2, 0.3, 0.2, 0.25), 0.9)
    assert 1 < clear[0] <= clear[1] < 4
    assert times_fewer(curve(0.88), curve(0.85), 0.9) is None
    never = {50: Sample({0: 0.1, 1: 0.1}), 200: Sample({0: 0.2, 1: 0.3})}
    assert times_fewer(curve(0.5, 0.5), never, 0.9) == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("metric", "theirs", "margin", "holds"),
    [
        ("accuracy", (0.80, 0.82, 0.81), 0.0, "yes"),
        ("accuracy", (0.91, 0.92, 0.91), 0.0, "open (seeds)"),
        ("accuracy", (0.99, 0.99, 0.99), 0.0, "no"),
        ("accuracy", (0.95, 0.95, 0.95), 0.1, "yes"),
        ("mae", (0.80, 0.82, 0.81), 0.0, "no"),  # of an error less is better
        ("accuracy", (0.5,), 0.0, "open (seeds)"),
    ],
)
def test_a_comparison_rests_on_the_paired_interval(metric, theirs, margin, holds):
    ours = Sample({2: 0.91, 0: 0.90, 1: 0.93})
    (line,) = compare("n 5", metric, ("sire", ours), ("plain", Sample(dict(enumerate(theirs)))), margin=margin)
    assert line.holds == holds
    assert line.difference.startswith(
        f"{sum(ours.minus(Sample(dict(enumerate(theirs)))).values.values()) / len(theirs):+.3f}"
    )
    assert list(compare("", metric, ("sire", ours), ("plain", Sample({})))) == []


# --- verdicts


def figures(metric, means, *, spread=0.001, losses=None, **setting):
    """Chosen rows of three seeds: ``means[method]`` and, seed by seed, a little around it; validation likewise."""
    return [
        {
            "method": method,
            "seed": seed,
            "scale": "laptop",
            "setting": setting,
            "metrics": {metric: mean + spread * (seed if method.startswith("sire") else -seed)},
            "validation": {"loss": (losses or {}).get(method, -mean if metric == "accuracy" else mean)},
            "selected": True,
        }
        for method, mean in means.items()
        for seed in range(3)
    ]


def judged(name, rows):
    """The verdict of a finished experiment, and what holds by place, metric and methods where it decides."""
    verdict, found = judge(EXPERIMENTS[name], rows, finished=True)
    return verdict, {" ".join(filter(None, (c.where, c.one, c.other))): c.holds for c in found if c.decides}


def test_one_refuted_comparison_refutes_and_one_open_leaves_open():
    good = figures("rmse", {"deepsets": 5.0, "sire": 4.0}, spread=0.1, n=5)
    bad = figures("rmse", {"deepsets": 5.0, "sire": 6.0}, spread=0.1, n=10)
    unclear = figures("rmse", {"deepsets": 5.0, "sire": 5.0}, spread=0.1, n=15)
    assert judged("variance", good)[0] == "reproduced at smaller scale"
    assert judged("variance", [{**row, "scale": "paper"} for row in good])[0] == "reproduced"
    assert judged("variance", good + unclear)[0] == "open (seeds)"
    assert judged("variance", good + unclear + bad)[0] == "not reproduced"
    assert judge(EXPERIMENTS["variance"], good, finished=False)[0] == "open (budget)"
    assert judge(EXPERIMENTS["variance"], [], finished=False)[0] == "not run"


def test_on_sum_the_better_sire_is_held_against_each_rival():
    rows = [
        *figures("accuracy", {"plain": 0.9, "pi-sgd": 0.9, "deepsets": 0.9, "sire": 0.5}, n=5),
        *figures("accuracy", {"plain": 0.4, "pi-sgd": 0.7, "deepsets": 0.9, "sire": 0.5, "sire+shuffle": 0.6}, n=10),
        *figures("accuracy", {"plain": 0.4, "pi-sgd": 0.6, "deepsets": 0.5, "sire+shuffle": 0.6}, spread=0.01, n=30),
    ]
    assert judged("sum", rows)[1] == {
        "n 10 sire+shuffle plain": "yes",
        "n 10 sire+shuffle pi-sgd": "no",
        "n 30 sire+shuffle plain": "yes",
        "n 30 sire+shuffle pi-sgd": "open (seeds)",
        "n 30 sire+shuffle deepsets": "yes",
    }
    losses = {"sire": 0.1, "sire+shuffle": 0.2, "plain": 0.3, "pi-sgd": 0.3}  # the better: of the lower validation loss
    means = {"plain": 0.5, "pi-sgd": 0.5, "sire": 0.4, "sire+shuffle": 0.6}
    found = judged("sum", figures("accuracy", means, n=10, losses=losses))[1]
    assert list(found) == ["n 10 sire plain", "n 10 sire pi-sgd"]


@pytest.mark.parametrize(
    ("sire", "spread", "holds"),
    [(0.9, 0.001, "yes"), (0.8005, 0.001, "yes"), (0.7, 0.001, "no"), (0.8, 0.1, "open (seeds)")],
)
def test_on_range_sire_is_to_be_level_with_the_best_other(sire, spread, holds):
    rows = figures("accuracy", {"plain": 0.6, "deepsets": 0.8, "sire": sire}, spread=spread, n=5)
    assert judged("range", rows)[1] == {"n 5 sire deepsets": holds}


def test_the_labels_that_are_needed_are_compared():
    rows = [
        *figures("accuracy", {"plain": 0.1, "sire": 0.2, "deepsets": 0.2}, spread=0.0, alphabet=20, labels=50),
        *figures("accuracy", {"plain": 0.5, "sire": 0.9, "pi-sgd": 0.99}, spread=0.0, alphabet=20, labels=500),
        *figures("accuracy", {"plain": 0.9, "sire": 0.95, "deepsets": 0.8}, spread=0.0, alphabet=20, labels=5000),
    ]
    _, found = judge(EXPERIMENTS["labels"], rows, finished=True)
    assert [(c.other, c.ours, c.theirs, c.difference, c.holds) for c in found if c.other != "pi-sgd"] == [
        ("plain", "500", "5,000", "÷ 10 (10 to 10)", "yes"),
        ("deepsets", "500", "> 5,000", "", "yes"),
    ]
    late = figures("accuracy", {"sire": 0.1, "deepsets": 0.95}, alphabet=20, labels=50)
    late += figures("accuracy", {"sire": 0.2, "deepsets": 0.95}, alphabet=20, labels=5000)
    assert judged("labels", late)[1] == {"alphabet 20 sire deepsets": "no"}
    never = figures("accuracy", {"sire": 0.2, "plain": 0.1}, alphabet=100, labels=10000)
    assert judged("labels", never)[1] == {"alphabet 100, labels 10000 sire plain": "yes"}


def test_sire_and_sub_are_compared_at_their_best_and_at_the_papers_weights(sub_rows):
    verdict, found = judged("sub-vs-sire", sub_rows)
    assert found["sire sub"] in ("yes", "open (seeds)")  # by accuracy; then by epochs, which are equal
    assert found["the paper's weights sire-paper sub-paper"] == "no"
    assert verdict == "not reproduced"


@pytest.mark.parametrize(("shift", "holds"), [(100, "yes"), (0, "open (seeds)"), (-100, "no")])
def test_the_faster_convergence_is_judged_by_a_paired_interval(sub_rows, shift, holds):
    def late(row):
        reached = 200 + 10 * row["seed"] + (shift if row["method"] == "sub" else (-1) ** row["seed"])
        return {**row, "curve": {"epoch": [100, reached, 400], "accuracy": [0.4, 0.8, 0.9]}}

    rows = [late(row) for row in sub_rows]
    (line,) = [c for c in judge(EXPERIMENTS["sub-vs-sire"], rows, True)[1] if c.metric.startswith("epochs")]
    assert line.holds == holds
    next(row for row in rows if row["selected"] and row["method"] == "sub")["curve"]["accuracy"] = [0.4, 0.5, 0.6]
    found = judge(EXPERIMENTS["sub-vs-sire"], rows, True)[1]  # one run does not get there
    assert not any(c.metric.startswith("epochs") for c in found)


def parity(plain, deepsets, fitted=1.0):
    rows = [figures("accuracy", {"plain": at}, spread=0.0, cell=cell, length=100) for cell, at in plain.items()]
    rows += [figures("accuracy", {"deepsets": at}, spread=0.0, length=n) for n, at in ((10, fitted), (100, deepsets))]
    return judged("parity", [row for some in rows for row in some])[0]


def test_parity_needs_one_cell_that_reaches_far_and_deepsets_that_fits_near_alone():
    assert parity({"gru": 1.0, "rnn": 0.6}, 0.5) == "reproduced at smaller scale"
    assert parity({"gru": 0.9, "rnn": 0.6}, 0.5) == "not reproduced"
    assert parity({"gru": 1.0}, 1.0) == "not reproduced"
    assert parity({"gru": 1.0}, 0.5, fitted=0.8) == "open (budget)"


@pytest.mark.parametrize(("gain", "holds"), [(0.05, "yes"), (0.0, "open (seeds)"), (-0.05, "no")])
def test_a_penalty_is_held_against_the_same_training_without(gain, holds):
    means = {"plain": 0.8, "sire": 0.8 + gain, "pi-sgd": 0.7, "sire+shuffle": 0.7 + gain, "deepsets": 0.9}
    rows = figures("accuracy", means, spread=0.0, labels=0.1)
    for row in rows:
        row["metrics"]["accuracy"] += (0.0 if row["method"].startswith("sire") else 0.04) * (row["seed"] - 1) ** 3 / 4
        row["metrics"]["macro_f1"] = row["metrics"]["accuracy"] / 2
    for name, number in (("activity", 2), ("ecg", 4)):
        found = [c for c in judge(EXPERIMENTS[name], rows, finished=True)[1] if c.decides]
        assert {(c.one, c.other): c.holds for c in found} == {
            ("sire", "plain"): holds,
            ("sire+shuffle", "pi-sgd"): holds,
        }
        assert len(found) == number


@pytest.mark.parametrize(("few", "many", "holds"), [(0.1, 0.0, "yes"), (0.05, 0.05, "open (seeds)"), (0.0, 0.1, "no")])
def test_whether_the_gain_is_largest_where_labels_are_few_is_judged(few, many, holds):
    rows = []
    for share, gain in ((0.05, few), (1.0, many)):
        rows += figures("accuracy", {"plain": 0.5, "sire": 0.5 + gain}, spread=0.01, labels=share)
    for row in rows:
        row["metrics"]["accuracy"] += 0.001 * (-1) ** row["seed"] * (row["setting"]["labels"] == 1.0)
    assert judged("activity", rows)[1]["sire, gain with labels 0.05 sire, gain with labels 1"] == holds


@pytest.mark.parametrize("deepsets", [0.6, 0.95])
def test_on_clouds_sire_is_held_against_deepsets_and_the_papers_figure(deepsets):
    rows = figures("accuracy", {"sire+shuffle": 0.9, "pi-sgd": 0.7, "deepsets": deepsets}, points=100)
    found = judged("pointcloud", rows)[1]
    assert found["points 100 sire+shuffle paper"] == found["sire+shuffle pi-sgd"] == "yes"
    assert found["points 100 deepsets paper"] == ("yes" if deepsets > 0.9 else "no")
    assert found["sire+shuffle deepsets"] == ("yes" if deepsets < 0.9 else "no")


def test_longer_sets_are_compared_cell_by_cell_with_models_that_have_none():
    rows = figures("mae", {"deepsets": 2.0}, length=100)
    for cell, error in (("gru", 1.0), ("lstm", 3.0)):
        rows += figures("mae", {"sire": error}, cell=cell, length=100)
    found = judged("lengths", rows)[1]
    assert found == {"cell gru, length 100 sire deepsets": "yes", "cell lstm, length 100 sire deepsets": "no"}


def test_methods_on_other_data_are_not_held_against_each_other():
    rows = figures("accuracy", {"plain": 0.8, "sire": 0.9, "cnn": 0.7}, data="perturbed")
    rows += figures("accuracy", {"cnn-clean": 0.95}, data="clean")
    found = judge(EXPERIMENTS["perturbed-digits"], rows, finished=True)[1]
    assert [(c.one, c.other, c.holds, c.decides) for c in found] == [
        ("sire", "plain", "yes", True),
        ("cnn", "plain", "no", False),
    ]


# --- tables and figures


def test_the_choices_show_the_longest_sets_and_a_line_a_setting(sub_rows):
    rows = rows_of("parity", lambda trial, n: 1.0 if n < 50 else 0.7)
    table = choices_table(EXPERIMENTS["parity"], "laptop", rows)
    assert {line[table.columns.index("accuracy")] for line in table.rows} == {"0.702 ± 0.002"}
    assert all("length 100" in line[1] for line in table.rows)
    assert len(table.rows) == 9
    lines = choices_table(EXPERIMENTS["sub-vs-sire"], "laptop", sub_rows).rows
    chosen = ["sire", "", "learning rate 0.001, penalty weight 10", "0.982 ± 0.002", "0.1", "0.2", "5", "123"]
    assert chosen in [line[:8] for line in lines]


def test_every_weight_of_a_search_has_its_mean(sub_rows):
    table = weights_table(EXPERIMENTS["sub-vs-sire"], sub_rows)
    assert list(table.columns) == ["method", "where", "0.001", "0.01", "0.1", "1", "10", "100", "1000"]
    sire = next(line for line in table.rows if line[0] == "sire")
    assert sire[2:] == ["0.78", "0.83", "0.88", "0.93", "0.98", "0.93", "0.88"]


def test_lines_are_of_the_chosen_rows_with_their_seeds(sub_rows):
    rows = figures("accuracy", {"plain": 0.5, "sire": 0.6}, labels=50)
    rows += figures("accuracy", {"plain": 0.7, "sire": 0.9}, labels=500)
    lines = lines_of(Chart("labels"), rows)
    assert list(lines) == ["plain", "sire"]
    assert lines["sire"][500.0].values == pytest.approx({0: 0.9, 1: 0.901, 2: 0.902})
    assert lines_of(Chart("labels"), [{**row, "selected": False} for row in rows]) == {}
    one = {**rows[0], "curve": {"epoch": [0, 1], "gap": [0.5, None]}}
    assert list(lines_of(Chart("epoch", "gap", curve=True), [one])["plain"]) == [0.0]  # what a curve lacks is not drawn


def test_a_figure_needs_two_points_and_says_what_it_shows():
    experiment = replace(EXPERIMENTS["labels"], charts=[Chart("labels", split="alphabet", log=True)])
    rows = figures("accuracy", {"plain": 0.5, "sire": 0.6}, labels=50, alphabet=20)
    assert figures_of(experiment, "laptop", rows) == []
    rows += figures("accuracy", {"plain": 0.7, "sire": 0.9}, labels=500, alphabet=20)
    rows += figures("accuracy", {"plain": 0.7, "sire": 0.9}, labels=500, alphabet=100)
    (figure,) = figures_of(experiment, "laptop", rows)
    assert figure.alt == "labels, alphabet 20: accuracy against labels"
    assert figure.address.startswith("data:image/png;base64,iVBOR")
    assert len(figure.address) < 20_000


# --- pages


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sub_rows):
    folder = tmp_path_factory.mktemp("results")
    write_rows(folder / "sub-vs-sire.jsonl", sub_rows)
    write_rows(folder / "dial.jsonl", rows_of("dial", lambda trial, n: 0.9, "smoke"))
    return folder


@pytest.fixture(scope="module")
def pages(folder):
    return [path.read_text() for path in write_report(folder)]


def test_the_page_asks_for_nothing(pages):
    patterns = r'\bid="([^"]+)"', 'href="#([^"]+)"', '(?:src|href)="([^#"]+)"'
    ids, links, loaded = (re.findall(pattern, pages[1]) for pattern in patterns)
    assert len(ids) == len(set(ids))
    assert set(links) <= set(ids)
    assert all(address.startswith("data:") for address in loaded)
    assert "<script" not in pages[1]


def test_the_summary_has_a_line_an_experiment(pages):
    text, page = pages
    line = (
        "| sub-vs-sire | SIRE beats SUB from 200 samples | SIRE .792, SUB .759 | sire 0.982 ± 0.002; sub 0.962 ± 0.002 "
    )
    assert line + "| 5 | not reproduced |" in text
    assert re.search(r"\| labels \| .* \|  \|  \| not run \|", text)
    assert "| dial (smoke) |" in text
    assert "| 109/109 |" in text
    assert page.count("not reproduced") >= 2
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1


def test_an_unfinished_experiment_is_open_and_says_what_is_left(sub_rows):
    part = [row for row in sub_rows if row["seed"] < 2]
    section = section_of(EXPERIMENTS["sub-vs-sire"], "laptop", part)
    assert section.verdict == "open (budget)"
    assert section.trials[2] == "94/109"


def test_rows_of_an_earlier_declaration_are_not_shown(sub_rows):
    old = [{**row, "trial": "x" * 12, "metrics": {"accuracy": 0.1}} for row in sub_rows]
    experiment = EXPERIMENTS["sub-vs-sire"]
    assert section_of(experiment, "laptop", sub_rows + old).tables == section_of(experiment, "laptop", sub_rows).tables


def test_a_setting_that_diverged_stops_no_report(tmp_path):
    def accuracy(trial, length):
        if trial.setting.get("penalty_weight") == 1000.0 or trial.method == "plain":
            raise Diverged("training diverged")
        return by_weight(trial, length)

    write_rows(tmp_path / "sub-vs-sire.jsonl", rows_of("sub-vs-sire", accuracy))
    text = write_report(tmp_path)[0].read_text()
    assert "| sire |  | learning rate 0.001, penalty weight 10 | 0.982 ± 0.002 |" in text
    assert "| 109/109 |" in text


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder"):
        write_report(tmp_path / "nowhere")
