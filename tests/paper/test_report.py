"""Reports: intervals, comparisons, verdicts and pages from rows whose figures are known."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from scipy import stats

from anyorder.checks import Diverged, InputError
from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.report.figures import figures_of, lines_of
from anyorder.paper.report.page import section_of, write_report
from anyorder.paper.report.tables import choices_table
from anyorder.paper.report.verdicts import Sample, compare, holm, judge, sample_of
from anyorder.paper.runner.rows import write_rows
from anyorder.paper.runner.sweep import run_trial
from anyorder.paper.runner.trial import LABELS, Chart, Experiment, Plan, Versus, grid


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
    row = {"method": "sire", "seed": 0, "setting": {}, "metrics": {"accuracy": 1.0}, "trial": "a", "reads": 1}
    with pytest.raises(InputError, match="accuracy"):
        sample_of([row, {**row, "trial": "b"}], "accuracy")


def test_a_family_of_tests_is_corrected_by_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # the example of R's p.adjust
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_p_value_is_that_of_a_paired_t_test():
    gap = Sample({0: 0.1, 1: 0.2, 2: 0.1, 3: 0.3}).minus(Sample({0: 0.0, 1: 0.1, 3: 0.0, 4: 9.0}))
    assert gap.values == pytest.approx({0: 0.1, 1: 0.1, 3: 0.3})
    assert gap.p_value(0.0) == pytest.approx(stats.ttest_1samp([0.1, 0.1, 0.3], 0.0).pvalue)
    assert [Sample(values).p_value(0.5) for values in ({0: 1.0}, {0: 1.0, 1: 1.0}, {0: 0.5, 1: 0.5})] == [1.0, 0.0, 1.0]


def test_labels_needed_lie_between_the_measured_numbers_on_a_logarithmic_axis():
    rows = [
        row for k, v in {50: 0.5, 100: 0.8, 200: 1.0}.items() for row in figures("accuracy", {"plain": v}, labels=k)
    ]
    needed = sample_of([row for row in rows if row["seed"] == 0], LABELS)
    assert needed.values == pytest.approx({0: math.sqrt(100 * 200)})
    few, many = (
        figures("accuracy", {"plain": v}, labels=50) + figures("accuracy", {"plain": v}, labels=99) for v in (1, 0)
    )
    assert set(sample_of(few, LABELS).values.values()) == {50.0}
    assert set(sample_of(many, LABELS).values.values()) == {99.0}  # as many as were tried


# --- verdicts


def figures(metric, means, *, spread=0.001, losses=None, **setting):
    """Chosen rows of five seeds: ``means[method]`` and, seed by seed, a little around it; validation likewise."""
    losses = {method: -mean if metric == "accuracy" else mean for method, mean in means.items()} | (losses or {})
    return [
        {
            "method": method,
            "seed": seed,
            "scale": "laptop",
            "setting": setting,
            "metrics": {metric: mean + spread * (seed % 3 if method.startswith("sire") else -seed)},
            "validation": {"accuracy": -losses[method], **dict.fromkeys(("loss", "mae", "rmse"), losses[method])},
            "selected": True,
            "trial": f"{method} {seed} {setting}",
            "reads": 1,
        }
        for method, mean in means.items()
        for seed in range(5)
    ]


def judged(name, rows):
    """The verdict of a finished experiment, and what holds by place, metric and methods."""
    verdict, found = judge(EXPERIMENTS[name], rows)
    return verdict, {" ".join(filter(None, (c.where, c.one, c.other))): c.holds for c in found}


@pytest.mark.parametrize(
    ("metric", "other", "theirs", "margin", "holds"),
    [
        ("accuracy", "plain", 0.80, 0.0, "yes"),
        ("accuracy", "plain", 0.90, 0.0, "open"),
        ("accuracy", "plain", 0.99, 0.0, "no"),
        ("accuracy", "plain", 0.95, 0.1, "yes"),
        ("mae", "plain", 0.80, 0.0, "no"),  # of an error less is better
        ("accuracy", 0.9, None, 0.0, "yes"),  # a goal is met by the mean
        ("accuracy", 0.905, None, 0.0, "open"),
        ("accuracy", 0.95, None, 0.0, "no"),
        ("mae", 0.9, None, 0.0, "open"),
    ],
)
def test_a_comparison_rests_on_the_paired_differences(metric, other, theirs, margin, holds):
    rows = figures(metric, {"sire": 0.9} | ({"plain": theirs} if theirs else {}), spread=0.0)
    for row in rows:
        row["metrics"][metric] += 0.01 * (row["method"] == "sire") * (row["seed"] % 2)
    (line,) = compare(EXPERIMENTS["variance"], [Versus("sire", other, {}, metric, margin=margin)], rows)
    assert (line.holds, line.gap.mean) == (holds, pytest.approx(0.904 - (theirs or other)))
    (alone,) = compare(EXPERIMENTS["variance"], [Versus("sire", other, {}, metric)], [r for r in rows if not r["seed"]])
    assert alone.holds == "open"
    assert compare(EXPERIMENTS["variance"], [Versus("sire", "sub")], rows) == []


def test_one_refuted_comparison_refutes_and_one_open_leaves_open():
    good = figures("rmse", {"deepsets": 5.0, "sire": 4.0}, spread=0.1, n=5)
    bad = figures("rmse", {"deepsets": 5.0, "sire": 6.0}, spread=0.1, n=10)
    unclear = figures("rmse", {"deepsets": 5.0, "sire": 4.7}, spread=0.1, n=15)
    assert judged("variance", good)[0] == "reproduced at smaller scale"
    assert judged("variance", [{**row, "scale": "paper"} for row in good])[0] == "reproduced"
    assert judged("variance", good + unclear)[0] == "open"
    assert judged("variance", good + unclear + bad)[0] == "not reproduced"
    assert judged("variance", [])[0] == "not run"
    experiment = EXPERIMENTS["variance"]
    waiting = {trial.method: trial for trial in experiment.trials("laptop", guess=True)}
    assert judge(experiment, good, [waiting["sire+shuffle"]])[0] == "open"  # it may be the best of its kind
    assert judge(experiment, good, [waiting["plain"]])[0] == "reproduced at smaller scale"  # no comparison needs it


def test_on_sum_the_better_sire_is_held_against_each_rival_once_small_sets_are_learnt():
    rows = [
        *figures("accuracy", {"sire": 0.95}, n=5),
        *figures("accuracy", {"pi-sgd": 0.7, "deepsets": 0.9, "sire": 0.5, "sire+shuffle": 0.6}, n=20),
        *figures("accuracy", {"pi-sgd": 0.5, "deepsets": 0.5, "sire+shuffle": 0.6, "fold-sire": 0.9}, n=30),
    ]
    verdict, found = judged("sum", rows)
    assert verdict == "not reproduced"
    assert found == {
        "n 5 sire goal": "yes",
        "n 20 sire+shuffle deepsets": "no",
        "n 20 sire+shuffle pi-sgd": "no",
        "n 30 sire+shuffle deepsets": "yes",
        "n 30 sire+shuffle pi-sgd": "yes",
    }
    rows[0]["metrics"]["accuracy"] = 0.1
    assert judged("sum", rows)[0] == "open"  # a model that is not trained to the end refutes nothing
    losses = {"sire": 0.1, "sire+shuffle": 0.2, "pi-sgd": 0.3}  # the better: of the lower validation loss
    found = judged("sum", figures("accuracy", {"pi-sgd": 0.5, "sire": 0.4, "sire+shuffle": 0.6}, n=20, losses=losses))[
        1
    ]
    assert list(found) == ["n 20 sire pi-sgd"]


def test_on_range_sire_is_to_be_level_with_the_best_other():
    for sire, holds in ((0.9, "yes"), (0.79, "yes"), (0.7, "no")):
        rows = figures("accuracy", {"plain": 0.6, "deepsets": 0.8, "sire": sire}, n=10)
        assert judged("range", rows)[1] == {"n 10 sire deepsets": holds}


def test_the_labels_that_are_needed_are_compared():
    rows = [
        *figures("accuracy", {"plain": 0.1, "sire": 0.2, "deepsets": 0.95}, spread=0.0, alphabet=20, labels=50),
        *figures("accuracy", {"plain": 0.5, "sire": 0.9, "deepsets": 0.95}, spread=0.0, alphabet=20, labels=500),
        *figures("accuracy", {"plain": 0.9, "sire": 0.95, "deepsets": 0.99}, spread=0.0, alphabet=20, labels=5000),
    ]
    verdict, found = judged("labels", rows)
    assert found == {"alphabet 20 sire plain": "yes", "alphabet 20 sire deepsets": "no"}
    assert verdict == "not reproduced"


@pytest.mark.parametrize(("shift", "holds"), [(100, "yes"), (0, "open"), (-100, "no")])
def test_the_faster_convergence_is_judged_by_a_paired_interval(sub_rows, shift, holds):
    def late(row):
        reached = 200 + 10 * row["seed"] + (shift if row["method"] == "sub" else (-1) ** row["seed"])
        return {**row, "curve": {"epoch": [100, reached, 400], "accuracy": [0.4, 0.8, 0.9]}}

    found = judge(EXPERIMENTS["sub-vs-sire"], [late(row) for row in sub_rows])[1]
    assert [c.holds for c in found if c.metric.startswith("epochs")] == [holds]


def parity(plain, deepsets, fitted=1.0):
    rows = figures("accuracy", {"plain": plain}, spread=0.0, cell="relu-rnn", length=100)
    for n, at in ((10, fitted), (100, deepsets)):
        rows += figures("accuracy", {"deepsets": at}, spread=0.0, length=n)
    return judged("parity", rows)[0]


def test_parity_needs_a_recurrence_that_reaches_far_and_deepsets_that_fits_near_alone():
    assert parity(1.0, 0.5) == "reproduced at smaller scale"
    assert parity(0.9, 0.5) == "not reproduced"
    assert parity(0.99, 1.0) == "not reproduced"
    assert parity(1.0, 0.5, fitted=0.8) == "open"


def test_the_weight_is_a_dial_and_longer_sets_are_compared_cell_by_cell_with_models_that_have_none():
    ends = figures("state_gap_squared", {"sire": 0.5}, penalty_weight=0.0)
    ends += figures("state_gap_squared", {"sire": 0.01}, spread=0.0, penalty_weight=1000.0)
    found = {"penalty weight 1000 sire sire, penalty weight 0": "yes"}
    assert judged("dial", ends) == ("reproduced", found)
    rows = figures("mae", {"deepsets": 2.0}, length=100)
    for cell, error in (("gru", 1.0), ("lstm", 3.0)):
        rows += figures("mae", {"sire": error}, cell=cell, length=100)
    found = {"cell gru, length 100 sire deepsets": "yes", "cell lstm, length 100 sire deepsets": "no"}
    assert judged("lengths", rows)[1] == found


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


def test_lines_are_of_the_chosen_rows_with_their_seeds(sub_rows):
    rows = figures("accuracy", {"plain": 0.5, "sire": 0.6}, labels=50)
    rows += figures("accuracy", {"plain": 0.7, "sire": 0.9}, labels=500)
    lines = lines_of(Chart("labels"), rows)
    assert list(lines) == ["plain", "sire"]
    assert lines["sire"][500.0].values == pytest.approx(dict(enumerate([0.9, 0.901, 0.902, 0.9, 0.901])))
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
    assert figure.alt == "labels, alphabet 20: accuracy by labels"
    assert figure.address.startswith("data:image/png;base64,iVBOR")
    assert len(figure.address) < 20_000
    clouds = figures("accuracy", {"deepsets": 0.8, "sire+shuffle": 0.9})
    assert [f.alt for f in figures_of(EXPERIMENTS["pointcloud"], "laptop", clouds)] == [
        "pointcloud, Clouds of 100 points: accuracy by method"
    ]


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


def test_the_table_has_a_line_a_claim(pages):
    text, page = pages
    claim = "| [From 200 samples SIRE beats SUB and converges faster.](#sub-vs-sire)<br>5 seeds, "
    (line,) = [line for line in text.splitlines() if line.startswith(claim)]
    assert "| ahead, and faster<br>sire-paper 0.792<br>sub-paper 0.759 | sire-paper 0.882 ± 0.002<br>sub-paper " in line
    assert "| **not reproduced**<br>" in line
    assert "epochs to accuracy 0.8" in text
    assert re.search(r"\| SIRE needs fewer labels.*\*\*not run\*\*<br>", text)
    assert "## dial-smoke" in text
    assert "Scale: laptop, smoke. Seeds: 2 to 5." in text
    assert page.count("From 200 samples SIRE beats SUB") >= 2
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1


def test_an_unfinished_experiment_is_open_and_says_what_is_left(sub_rows):
    part = [row for row in sub_rows if row["seed"] < 2]
    section = section_of(EXPERIMENTS["sub-vs-sire"], "laptop", part)
    assert (section.verdict, section.lines[-1]) == ("open", "15 of 109 trials left, about 14 min")


def rows_of_lengths(trial, data, workdir):
    accuracy = trial.setting["a"] / 2 + 0.01 * trial.seed
    row = {"validation": {"loss": 1.0}, "metrics": {"accuracy": accuracy}, "parameters": 1}
    return [{**row, "setting": {"length": length}} for length in (1, 9)]


def test_an_experiment_of_ones_own_has_a_verdict_by_default(tmp_path):
    plan = Plan({"one": grid(a=[1.0]), "two": grid(a=[0.5])}, over={"n": [1, 2], "k": [3, 4]})
    own = Experiment("own", "One is better than two.", "Nothing.", rows_of_lengths, {"mine": plan})
    rows = [row for trial in own.trials("mine") for row in run_trial(own.run, trial)]
    write_rows(tmp_path / "own.jsonl", own.with_selection(rows, "mine"))
    with pytest.raises(InputError, match="folder"):
        write_report(tmp_path)
    text, page = (path.read_text() for path in write_report(tmp_path, [own]))
    assert "| [One is better than two.](#own-mine)<br>n 1, k 3, 5 seeds, " in text
    assert "one 0.520 ± 0.016, two 0.270 ± 0.016; +0.250 (+0.250 to +0.250), p 0.001; 4 of 4 comparisons hold" in text
    assert page.count("own, k ") == 3  # two figures, and one on the first screen
    assert "SIRE needs fewer labels" not in text


def test_rows_of_an_earlier_declaration_stand_in_and_decide_nothing(sub_rows):
    old = [{**row, "trial": "x" * 12} for row in sub_rows]
    new, both, alone = (
        section_of(EXPERIMENTS["sub-vs-sire"], "laptop", rows) for rows in (sub_rows, sub_rows + old, old)
    )
    assert (both.cells, both.verdict, both.tables[:-1]) == (new.cells, new.verdict, new.tables)
    assert alone.cells[2] == [f"{figure}†" for figure in new.cells[2]]
    assert (alone.verdict, alone.trials) == ("not run", 0)


def test_a_setting_that_diverged_stops_no_report(tmp_path):
    def accuracy(trial, length):
        if trial.setting.get("penalty_weight") == 1000.0 or trial.method == "plain":
            raise Diverged("training diverged")
        return by_weight(trial, length)

    write_rows(tmp_path / "sub-vs-sire.jsonl", rows_of("sub-vs-sire", accuracy))
    text = write_report(tmp_path)[0].read_text()
    assert "| sire |  | learning rate 0.001, penalty weight 10 | 0.982 ± 0.002 |" in text
    assert "trials left" not in text.split("## sub-vs-sire")[0].split("SIRE beats SUB")[1].split("\n")[0]


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder"):
        write_report(tmp_path / "nowhere")
