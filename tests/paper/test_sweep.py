"""Sweeps: selection by validation, rows on disk, resuming after any interruption."""

from __future__ import annotations

import importlib.util
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import toy_experiment
from anyorder.checks import Diverged, InputError, InputTypeError
from anyorder.cli.app import app
from anyorder.paper.experiments import EXPERIMENTS
from anyorder.paper.runner.rows import read_rows, write_rows
from anyorder.paper.runner.sweep import Origin, reproduce, run_trial, sweep
from anyorder.paper.runner.trial import Trial

RESULTS = Path(__file__).parents[2] / "results"
CHANGES = ("seconds", "versions", "command", "curve", "commit")  # what differs from run to run


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "home"))


def bare(rows):
    """Rows without what differs from run to run, in a fixed order."""
    return sorted(json.dumps({k: v for k, v in row.items() if k not in CHANGES}, sort_keys=True) for row in rows)


def rows_of(experiment, trials):
    return [row for trial in trials for row in run_trial(experiment.run, trial)]


# --- declarations


def test_a_trial_is_known_by_its_declaration_alone():
    trial = Trial("e", "m", {"a": 1, "b": 2}, seed=0, scale="smoke")
    assert trial.key == Trial("e", "m", {"b": 2, "a": 1}, seed=0, scale="smoke").key
    others = [replace(trial, **{k: v}) for k, v in {"seed": 1, "method": "x", "scale": "paper", "setting": {}}.items()]
    assert len({trial.key, *(other.key for other in others)}) == 5


POOLED = {"deepsets", "pointnet", "set-transformer", "set-transformer-paper", "cnn", "cnn+shuffle", "cnn-clean"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_recurrence_has_the_same_rates_and_every_scale_is_declared(name):
    experiment = EXPERIMENTS[name]
    assert set(experiment.plans) == {"smoke", "laptop", "paper"}
    assert experiment.claim
    assert experiment.choices
    assert experiment.tests
    assert len(experiment.claim) < 90
    assert "|" not in experiment.claim + experiment.reported
    assert set(experiment.decided) <= {"reproduced", "reproduced at smaller scale", "open", "not reproduced", "not run"}
    for scale, plan in experiment.plans.items():
        arms = {m: {c.get("learning_rate") for c in found} for m, found in plan.methods.items() if m not in POOLED}
        # bags is from before the protocol
        assert len(set(map(frozenset, arms.values()))) == 1 or name == "bags", (name, scale, arms)
        trials = experiment.trials(scale, guess=True)
        assert len({trial.key for trial in trials}) == len(trials)
        assert experiment.estimated_seconds(trials) > 0
    methods = {"best sire", "best other", *experiment.plan("laptop").methods}
    assert {expected.method for expected in experiment.expected} <= methods
    for test in [*experiment.tests, *experiment.needs]:
        assert test.one in methods
        assert test.other in methods or isinstance(test.other, float)


def test_two_stages_run_the_choice_of_one_cell_in_all():
    experiment = toy_experiment.toy()
    search = experiment.trials("laptop")
    assert Counter((t.method, t.setting["n"]) for t in search) == {("a", 5): 4, ("b", 5): 3, ("b", 10): 3}
    rows = rows_of(experiment, search)
    then = [t for t in experiment.trials("laptop", rows) if t.key not in {row["trial"] for row in rows}]
    assert {(t.method, t.setting["weight"]) for t in then} == {("a", 3.0)}
    assert Counter((t.setting["n"], t.seed) for t in then) == Counter([(5, 1), (5, 2), (10, 0), (10, 1), (10, 2)])
    assert len(experiment.trials("laptop", guess=True)) == len(search) + len(then)


def test_selection_uses_validation_alone_and_waits_for_the_whole_search():
    experiment = toy_experiment.toy()
    rows = rows_of(experiment, experiment.trials("smoke"))
    for row in rows:
        row["metrics"] = {"accuracy": row["setting"]["weight"], "loss": row["setting"]["weight"]}  # neither end is 3
    marked = experiment.with_selection(rows, "smoke")
    assert {r["setting"]["weight"] for r in marked if r["selected"] and r["method"] == "a"} == {3.0}
    assert sum(r["selected"] for r in marked) == 2 * 2 * 3 * 2  # methods, sizes, seeds, lengths
    missing = [r for r in rows if not (r["setting"]["weight"] == 5.0 and r["setting"]["n"] == 5 and r["seed"] == 2)]
    partial = experiment.with_selection(missing, "smoke")
    assert experiment.choice("smoke", "a", {"n": 5}, missing) is None
    assert partial == [row for row in marked if row["trial"] in {r["trial"] for r in missing}]  # the best until then
    for row in rows:
        if row["setting"]["weight"] == 3.0 and row["seed"] == 1:
            row["validation"] = {"loss": math.nan}  # a setting that diverged once is never chosen
    assert experiment.choice("smoke", "a", {"n": 5}, rows) == {"weight": 2.0}
    assert experiment.at_the_edge("smoke", rows) == []
    largest = [{**row, "validation": {"loss": -row["setting"]["weight"]}} for row in rows]
    assert ("a", "weight", 5.0) in experiment.at_the_edge("smoke", largest)


def diverging(trial, data, workdir):
    if trial.setting["weight"] == 3.0:
        raise Diverged("training diverged, the loss is nan")
    return toy_experiment.run(trial, data, workdir)


def test_a_training_that_diverges_is_a_row_without_figures_and_is_not_run_again(tmp_path):
    experiment = replace(toy_experiment.toy(), run=diverging)
    rows = sweep(experiment, "smoke", out=tmp_path, jobs=1)
    lost = [row for row in rows if row["setting"]["weight"] == 3.0]
    assert lost
    assert all((row["validation"], row["metrics"]) == ({}, {"diverged": 1.0}) for row in lost)
    assert experiment.choice("smoke", "a", {"n": 5}, rows) == {"weight": 2.0}
    assert {row["trial"] for row in rows} == {trial.key for trial in experiment.trials("smoke", rows)}


# --- rows on disk


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.97])
def test_a_last_line_cut_off_costs_its_trial_which_is_run_again(tmp_path, kept):
    experiment = toy_experiment.toy()
    rows = sweep(experiment, "smoke", out=tmp_path, jobs=1, only=["b"])
    path = tmp_path / "toy.jsonl"
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + last[: int(kept * len(last))])
    assert bare(read_rows(path)) == bare([row for row in rows if row["trial"] != json.loads(last)["trial"]])
    again = sweep(experiment, "smoke", out=tmp_path, jobs=1, only=["b"])
    assert bare(again) == bare(read_rows(path)) == bare(rows)


def test_a_line_removed_costs_its_trial_and_a_line_twice_counts_once(tmp_path):
    experiment = toy_experiment.toy()
    rows = rows_of(experiment, experiment.trials("smoke", only=["b"]))
    path = tmp_path / "toy.jsonl"
    write_rows(path, rows)
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, *others, first]))
    assert bare(read_rows(path)) == bare(rows)
    path.write_text("".join(others))
    assert len(read_rows(path)) == len(rows) - 2


GOOD = {
    "experiment": "toy", "method": "b", "setting": {}, "seed": 0, "scale": "smoke", "validation": {}, "metrics": {},
    "selected": False, "parameters": 1, "seconds": 0.5, "trial": "0123456789ab", "reads": 1, "trial_rows": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": ',
        b"\x93\xff\x00\x01",
        b"3",
        b'{"a": 1}',
        json.dumps({**GOOD, "seconds": 0.7}).encode(),  # other figures of the same trial
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_line_that_is_no_row_is_refused_with_its_number(tmp_path, line, last):
    path = tmp_path / "toy.jsonl"
    good = json.dumps(GOOD).encode()
    path.write_bytes(good + b"\n" + line + (b"" if last else b"\n" + good + b"\n"))
    if last and line == b'{"a": ':
        assert read_rows(path) == [GOOD]  # cut off
    else:
        with pytest.raises(InputError, match=r"toy\.jsonl, line 2 "):
            read_rows(path)


def test_rows_hold_what_the_design_asks_for(tmp_path):
    trial = Trial("toy", "b", {"weight": 2.5, "n": 5}, 1, "smoke")
    (row, _) = run_trial(toy_experiment.run, trial, origin=Origin("x", "abc"))
    assert row["setting"] == {"weight": 2.5, "n": 5, "length": 1}
    assert set(row["versions"]) == {"anyorder", "torch", "python"}
    found = {key: row[key] for key in ("seed", "reads", "steps", "commit", "threads", "command", "trial_rows")}
    assert found == {
        "seed": 1, "reads": 1, "steps": None, "commit": "abc", "threads": 1, "command": "x", "trial_rows": 2,
    }  # fmt: skip
    assert row["seconds"] >= 0


def migration():
    spec = importlib.util.spec_from_file_location("migrate", RESULTS / "migrate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_from_before_are_migrated_once_and_keep_their_trials(tmp_path):
    old = {key: value for key, value in GOOD.items() if key not in ("reads", "trial_rows")}
    setting = {"states": "prefix", "unlabelled": 10, "task": "sum"}
    old |= {"setting": setting, "method": "sire+unlabelled", "metrics": {"order_gap": 0.2, "steps": 40.0}}
    (new,) = migration().migrated([old])
    assert new["setting"] == {"prefixes": "given", "unlabeled": 10, "task": "sum"}
    assert new["metrics"] == {"state_gap_squared": 0.2}
    found = {key: new[key] for key in ("trial", "reads", "steps", "commit", "threads", "trial_rows")}
    assert found == {
        "trial": old["trial"], "reads": 1, "steps": 40, "commit": None, "threads": None, "trial_rows": 1,
    }  # fmt: skip
    assert new["method"] == "sire+unlabeled"
    assert migration().migrated([new]) == [new]
    assert migration().migrated([{**old, "method": "pi-sgd"}])[0]["reads"] == 20


FINISHED = {"bags", "dial", "pointcloud-1000"}  # the page calls the others open


@pytest.mark.parametrize("path", sorted({*RESULTS.glob("*.jsonl")} - {*RESULTS.glob("tables-*")}), ids=lambda p: p.stem)
def test_the_published_rows_are_read_and_their_trials_are_finished(path):
    rows, lines = read_rows(path), path.read_text().splitlines()
    assert len(rows) == len(lines)
    assert migration().migrated(rows) == rows
    trials = EXPERIMENTS[path.stem].trials("laptop", rows)
    left = {trial.key for trial in trials} - {row["trial"] for row in rows}
    assert bool(left) == (path.stem not in FINISHED)
    assert EXPERIMENTS[path.stem].with_selection(rows, "laptop") == rows


# --- the sweep


def test_a_finished_trial_is_never_repeated_and_only_what_is_wanted_is_run(tmp_path):
    experiment = replace(toy_experiment.toy(), run=toy_experiment.report_threads)
    rows = sweep(experiment, "smoke", out=tmp_path, jobs=2)
    assert {row["metrics"]["threads"] for row in rows} == {1}
    ran = []
    again = sweep(experiment, "smoke", out=tmp_path, jobs=2, on_finish=lambda *finished: ran.append(finished))
    assert ran == []
    assert again == rows
    both = sweep(toy_experiment.toy(), "laptop", out=tmp_path, jobs=1)
    assert bare([row for row in both if row["scale"] == "smoke"]) == bare(rows)
    some = sweep(replace(experiment, cpus=2), "smoke", out=tmp_path / "some", jobs=1, only=["b"], seeds=1)
    assert {(row["method"], row["seed"], row["metrics"]["threads"]) for row in some} == {("b", 0, 2)}
    assert all(row["selected"] for row in some)


def swept(tmp_path, experiment, **options):
    """The rows of a sweep, and the problems of its trials."""
    problems = []
    rows = sweep(experiment, "smoke", out=tmp_path, **options, on_finish=lambda *finished: problems.append(finished[2]))
    return rows, problems


@pytest.mark.kill
def test_a_process_that_dies_costs_its_trial_only_which_is_tried_again_and_given_up_at_last(tmp_path):
    rows, problems = swept(tmp_path, toy_experiment.toy(dies=1), jobs=2, only=["b"])
    assert problems == [None] * 6
    assert {row["seed"] for row in rows} == {0, 1, 2}
    rows, problems = swept(tmp_path / "x", toy_experiment.toy(dies=1, forever=True), jobs=1, only=["b"])
    assert Counter(problems) == {None: 4, "its process died 4 times": 2}
    assert {row["seed"] for row in rows} == {0, 2}


def test_data_is_loaded_once_a_process_and_where_it_cannot_be_the_sweep_ends(tmp_path, capfd):
    (tmp_path / "home").mkdir()
    sweep(replace(toy_experiment.toy(), data=toy_experiment.counted_data), "smoke", out=tmp_path, jobs=1, only=["b"])
    assert len(list((tmp_path / "home").glob("loaded-*"))) == 1
    missing = replace(toy_experiment.toy("missing"), data=toy_experiment.no_data)
    with pytest.raises(InputError, match="in none of the folders searched"):
        sweep(missing, "smoke", out=tmp_path, jobs=2)
    assert not (tmp_path / "missing.jsonl").exists()
    assert capfd.readouterr().err == ""


def test_two_sweeps_on_one_file_are_refused_and_on_two_files_share_a_folder(tmp_path, monkeypatch):
    others = []

    def second(*_):
        monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "another"))
        others.append(sweep(toy_experiment.toy("other"), "smoke", out=tmp_path, jobs=1, only=["b"], seeds=1))
        sweep(toy_experiment.toy(), "smoke", out=tmp_path, jobs=1)

    with pytest.raises(InputError, match=r"toy.jsonl is being written by process"):
        sweep(toy_experiment.toy(), "smoke", out=tmp_path, jobs=1, on_finish=second)
    assert {row["experiment"] for row in others[0]} == {"other"}


# --- the command


def test_the_command_shows_the_plan_first_and_validation_figures_alone(tmp_path, capsys):
    assert reproduce("parity", "smoke", out=tmp_path, jobs=2, dry_run=True) == []
    assert "21 of 21 trials to run: about 6 s of one core's time, 3 s on 2 processes" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.jsonl"))
    assert reproduce("parity", "smoke", out=tmp_path, jobs=1, only=["plain"], seeds=1) == []
    lines = capsys.readouterr().out.splitlines()
    assert "4 of 4 trials to run" in lines[2]
    assert lines[3].startswith("[1/4] plain: cell relu-rnn, learning rate 0.00125, seed 0: validation accuracy ")
    assert lines[-1].startswith("4 trials finished; rows in ")
    rows = [row for row in read_rows(tmp_path / "parity.jsonl") if row["setting"]["length"] == 30]
    shown = sorted(float(line.split("validation accuracy ")[1]) for line in lines[3:7])
    assert shown == sorted(round(row["validation"]["accuracy"], 4) for row in rows)
    assert {row["command"] for row in rows} == {"anyorder reproduce parity --scale smoke --seeds 1"}


def test_a_failed_trial_ends_the_command_with_status_1(tmp_path, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "toy", toy_experiment.toy(raises=1))
    result = CliRunner().invoke(app, ["reproduce", "toy", "--scale", "smoke", "--out", str(tmp_path), "--jobs", "1"])
    assert result.exit_code == 1
    assert "failed: toy a: n 5, weight 1, seed 1: RuntimeError: seed 1 does not like it" in result.output
    assert {row["seed"] for row in read_rows(tmp_path / "toy.jsonl")} == {0, 2}


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"scale": "huge"}, InputError, "scale .*'smoke'"),
        ({"engine": "rey"}, InputError, "engine .*'ray'"),
        ({"jobs": 0}, InputError, "jobs"),
        ({"seeds": 0}, InputError, "seeds"),
        ({"seeds": 1.5}, InputTypeError, "seeds"),
        ({"only": ["subb"]}, InputError, "only"),
        ({"address": "head:6379"}, InputError, "address head:6379"),
        ({"engine": "ray", "jobs": 2}, InputError, "jobs"),
    ],
)
@pytest.mark.parametrize("run", [sweep, reproduce])
def test_what_is_mistaken_is_refused_before_the_plan(tmp_path, capsys, run, options, error, said):
    subject = toy_experiment.toy() if run is sweep else "parity"
    with pytest.raises(error, match=said):
        run(subject, **{"scale": "smoke", "out": tmp_path / "rows", **options})
    with pytest.raises(InputError, match=r"experiment .*'parity'"):
        reproduce("parety", "smoke", out=tmp_path / "rows")
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.glob("rows/*.jsonl"))
