"""Sweeps: selection by validation, rows on disk, resuming after any interruption."""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import random
import signal
import socket
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import toy_experiment
from anyorder.checks import Diverged, InputError, InputTypeError
from anyorder.cli.app import app, main
from anyorder.paper.experiments import EXPERIMENTS, GROUPS
from anyorder.paper.runner.reproduce import reproduce
from anyorder.paper.runner.rows import read_rows, write_rows
from anyorder.paper.runner.sweep import _forget, earlier_seconds, run_trial, sweep
from anyorder.paper.runner.trial import Trial, duration

CHANGES = ("seconds", "versions", "command", "curve", "trial_rows")  # what differs from run to run


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "home"))


def bare(rows):
    """Rows without what differs from run to run, in a fixed order."""
    return sorted(json.dumps({k: v for k, v in row.items() if k not in CHANGES}, sort_keys=True) for row in rows)


# --- declarations


def test_a_trial_is_known_by_its_declaration_alone():
    trial = Trial("e", "m", {"a": 1, "b": 2}, seed=0, scale="smoke")
    assert trial.key == Trial("e", "m", {"b": 2, "a": 1}, seed=0, scale="smoke").key
    others = [replace(trial, **{k: v}) for k, v in {"seed": 1, "method": "x", "scale": "paper", "setting": {}}.items()]
    assert len({trial.key, *(other.key for other in others)}) == 5


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_method_has_the_same_tuning_budget_and_every_scale_is_declared(name):
    experiment = EXPERIMENTS[name]
    assert set(experiment.plans) == {"smoke", "laptop", "paper"}
    assert experiment.claim
    assert experiment.choices
    for scale, plan in experiment.plans.items():
        assert len({len(candidates) for candidates in plan.methods.values()}) == 1, (name, scale)
        trials = experiment.trials(scale, guess=True)
        assert len({trial.key for trial in trials}) == len(trials)
        assert experiment.estimated_seconds(trials) > 0
    for expected in experiment.expected:
        assert expected.method in experiment.plan("laptop").methods


def test_two_stages_run_the_choice_of_one_cell_in_all():
    experiment = toy_experiment.toy()
    search = experiment.trials("laptop")
    assert Counter((t.method, t.setting["n"]) for t in search) == {("a", 5): 4, ("b", 5): 3, ("b", 10): 3}
    rows = [row for trial in search for row in run_trial(experiment.run, trial)]
    then = [t for t in experiment.trials("laptop", rows) if t.key not in {row["trial"] for row in rows}]
    assert {(t.method, t.setting["weight"]) for t in then} == {("a", 3.0)}
    assert Counter((t.setting["n"], t.seed) for t in then) == Counter([(5, 1), (5, 2), (10, 0), (10, 1), (10, 2)])
    assert len(experiment.trials("laptop", guess=True)) == len(search) + len(then)


def test_what_follows_from_a_cell_holds_there_and_not_in_a_search_that_sets_it():
    longer = {"follows": lambda cell: {"epochs": 2} if cell["n"] == 10 else {}, "tune_on": {"n": 10, "epochs": 1}}
    plan = replace(toy_experiment.toy(epochs=1).plan("laptop"), **longer)
    experiment = replace(toy_experiment.toy(), plans={"laptop": plan})
    search = experiment.trials("laptop", only=["a"])
    assert {(t.setting["n"], t.setting["epochs"]) for t in search} == {(10, 1)}
    rows = [row for trial in search for row in run_trial(experiment.run, trial)]
    then = [t for t in experiment.trials("laptop", rows, only=["a"]) if t not in search]
    assert Counter((t.setting["n"], t.setting["epochs"]) for t in then) == {(5, 1): 3, (10, 2): 3}
    rows += [row for trial in then for row in run_trial(experiment.run, trial)]
    shown = {
        (r["setting"]["n"], r["setting"]["epochs"]) for r in experiment.with_selection(rows, "laptop") if r["selected"]
    }
    assert shown == {(5, 1), (10, 2)}


def by_length(trial, data, workdir):
    """Short training likes a weight of 3, then 2; long training the smaller the better."""
    best = 3.0 if trial.setting["epochs"] == 1 else 0.0
    loss = abs(trial.setting["weight"] - best)
    return [{"validation": {"loss": loss}, "metrics": {"accuracy": loss}, "parameters": 10}]


def test_finalists_of_a_short_search_are_compared_at_full_length():
    longer = {"follows": lambda cell: {"epochs": 2} if cell["n"] == 10 else {}, "tune_on": {"epochs": 1}}
    plan = replace(toy_experiment.toy(epochs=1).plan("laptop"), **longer, finalists=2)
    experiment = replace(toy_experiment.toy(), run=by_length, plans={"laptop": plan})
    rows, stages = [], []
    while todo := [
        t for t in experiment.trials("laptop", rows, only=["a"]) if t.key not in {row["trial"] for row in rows}
    ]:
        stages.append(Counter((t.setting["n"], t.setting["epochs"], t.setting["weight"]) for t in todo))
        rows += [row for trial in todo for row in run_trial(experiment.run, trial)]
    assert stages == [
        Counter((n, 1, weight) for n in (5, 10) for weight in (1.0, 2.0, 3.0, 5.0)),
        Counter({(5, 1, 3.0): 2, (10, 2, 3.0): 1, (10, 2, 2.0): 1}),  # in one of the cells the search was the final
        Counter({(10, 2, 2.0): 2}),  # weight 1 would be better still and was not among the best two
    ]
    searched = rows[:8]
    assert experiment.choice("laptop", "a", {"n": 5}, searched) == {"weight": 3.0}
    assert experiment.choice("laptop", "a", {"n": 10}, searched) is None
    assert experiment.choice("laptop", "a", {"n": 10}, rows) == {"weight": 2.0}
    marked = experiment.with_selection(rows, "laptop")
    assert {(r["setting"]["epochs"], r["setting"]["weight"]) for r in marked if r["selected"]} == {(1, 3.0), (2, 2.0)}
    assert len(experiment.trials("laptop", only=["a"], guess=True)) == len(rows)


def test_selection_uses_validation_alone_and_waits_for_the_whole_search():
    experiment = toy_experiment.toy()
    trials = experiment.trials("smoke")
    rows = [row for trial in trials for row in run_trial(experiment.run, trial)]
    for row in rows:
        row["metrics"] = {"accuracy": row["setting"]["weight"], "loss": row["setting"]["weight"]}  # neither end is 3
    marked = experiment.with_selection(rows, "smoke")
    assert {r["setting"]["weight"] for r in marked if r["selected"] and r["method"] == "a"} == {3.0}
    assert sum(r["selected"] for r in marked) == 2 * 2 * 3 * 2  # methods, sizes, seeds, lengths
    missing = [r for r in rows if not (r["setting"]["weight"] == 5.0 and r["setting"]["n"] == 5 and r["seed"] == 2)]
    partial = experiment.with_selection(missing, "smoke")
    assert {r["setting"]["n"] for r in partial if r["selected"] and r["method"] == "a"} == {10}


def test_a_setting_that_diverged_once_is_never_chosen():
    experiment = toy_experiment.toy()
    rows = [row for trial in experiment.trials("smoke") for row in run_trial(experiment.run, trial)]
    for row in rows:
        if row["setting"]["weight"] == 3.0 and row["seed"] == 1:
            row["validation"] = {"loss": math.nan}
    assert experiment.choice("smoke", "a", {"n": 5}, rows) == {"weight": 2.0}


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


def test_maximize_turns_the_choice_around():
    experiment = replace(toy_experiment.toy(), maximize=True)
    rows = [row for trial in experiment.trials("smoke") for row in run_trial(experiment.run, trial)]
    assert experiment.choice("smoke", "a", {"n": 5}, rows) == {"weight": 1.0}


# --- rows on disk


@pytest.mark.parametrize("counted", [True, False], ids=["rows that say how many", "older rows"])
@pytest.mark.parametrize("kept", [0.05, 0.5, 0.97])
def test_a_last_line_cut_off_costs_its_trial_which_is_run_again(tmp_path, counted, kept):
    experiment = toy_experiment.toy()
    rows = sweep(experiment, "smoke", out=tmp_path, jobs=1)
    path = tmp_path / "toy.jsonl"
    if not counted:
        write_rows(path, [{k: v for k, v in row.items() if k != "trial_rows"} for row in rows])
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + last[: int(kept * len(last))])
    assert bare(read_rows(path)) == bare([row for row in rows if row["trial"] != json.loads(last)["trial"]])
    again = sweep(experiment, "smoke", out=tmp_path, jobs=1)
    assert bare(again) == bare(read_rows(path)) == bare(rows)


def test_a_trial_whose_row_was_removed_is_run_again(tmp_path):
    experiment = toy_experiment.toy()
    rows = sweep(experiment, "smoke", out=tmp_path, jobs=1, only=["b"], seeds=1)
    path = tmp_path / "toy.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    assert len(read_rows(path)) == len(rows) - 2
    assert bare(sweep(experiment, "smoke", out=tmp_path, jobs=1, only=["b"], seeds=1)) == bare(rows)


def test_the_published_rows_are_all_read():
    for path in (Path(__file__).parents[2] / "results").glob("*.jsonl"):
        assert len(read_rows(path)) == len(path.read_text().splitlines())


GOOD = {
    "experiment": "toy", "method": "b", "setting": {}, "seed": 0, "scale": "smoke", "validation": {}, "metrics": {},
    "selected": False, "parameters": 1, "seconds": 0.5, "trial": "0123456789ab", "reads": 1, "trial_rows": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": ', r"line 2 is not JSON \(.*\); mend or remove that line"),
        ("3", r"line 2 is not a row of a trial: 'experiment' must be text; found none; mend or remove that line"),
        ('{"a": 1}', r"line 2 is not a row of a trial: 'experiment' must be text; found none"),
        (b"\x93\xff\x00\x01", r"line 2 is not JSON"),
        (json.dumps({**GOOD, "seed": "one"}), r"line 2 .*: 'seed' must be a whole number; found 'one'"),
        (json.dumps({**GOOD, "seconds": None}), r"line 2 .*: 'seconds' must be a number; found None"),
        (json.dumps({**GOOD, "metrics": [1]}), r"line 2 .*: 'metrics' must be an object; found \[1\]"),
        (
            json.dumps({**GOOD, "metrics": {"accuracy": "0.9"}}),
            r"line 2 .*: 'accuracy' of its metrics must be a number",
        ),
        (json.dumps({**GOOD, "validation": {"loss": None}}), r"line 2 .*: 'loss' of its validation must be a number"),
        (json.dumps({**GOOD, "seconds": 0.7}), r"line 2 has other figures of the trial and setting of line 1; remove"),
        (json.dumps({**GOOD, "trial_rows": "2"}), r"line 2 .*: 'trial_rows' must be a whole number; found '2'"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_line_that_is_no_row_is_refused_with_its_number(tmp_path, line, message, last):
    path = tmp_path / "toy.jsonl"
    good, line = json.dumps(GOOD).encode(), line if isinstance(line, bytes) else line.encode()
    path.write_bytes(good + b"\n" + line + (b"" if last else b"\n" + good + b"\n"))
    if last and line == b'{"a": ':
        assert read_rows(path) == [GOOD]  # cut off
    else:
        with pytest.raises(InputError, match=r"toy\.jsonl, " + message):
            read_rows(path)


def test_a_line_that_stands_there_twice_counts_once(tmp_path):
    rows = sweep(toy_experiment.toy(), "smoke", out=tmp_path, jobs=1, only=["b"])
    path = tmp_path / "toy.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, *others, first]))
    assert bare(read_rows(path)) == bare(rows)


def test_a_trial_that_another_sweep_is_running_has_a_folder_of_its_own(tmp_path):
    """Two sweeps of one experiment into two folders run the same trials; neither removes the other's files."""
    trial = toy_experiment.toy().trials("smoke")[0]
    folders = []

    def nested(same, data, workdir):
        folders.append(workdir)
        (workdir / "checkpoint").touch()
        if len(folders) == 1:
            run_trial(nested, same)
            _forget(same)  # as the other sweep does once its row is written
            assert (workdir / "checkpoint").exists()
        return toy_experiment.run(same, data, workdir)

    run_trial(nested, trial)
    mine, other = folders
    assert (mine.exists(), other.exists()) == (True, False)
    _forget(trial)
    assert list(mine.parent.iterdir()) == []


def test_rows_hold_what_the_design_asks_for(tmp_path):
    (row, _) = run_trial(toy_experiment.run, Trial("toy", "b", {"weight": 2.5, "n": 5}, 1, "smoke"), command="x")
    assert row["setting"] == {"weight": 2.5, "n": 5, "length": 1}
    assert set(row) >= {"experiment", "method", "seed", "scale", "validation", "metrics", "selected", "parameters"}
    assert set(row["versions"]) == {"anyorder", "torch", "python"}
    assert row["command"] == "x"
    assert row["seconds"] >= 0
    assert row["trial_rows"] == 2


def test_seconds_count_what_interrupted_runs_did_and_kept(tmp_path):
    trial = toy_experiment.toy().trials("smoke")[0]
    with pytest.raises(KeyboardInterrupt):
        run_trial(toy_experiment.in_two_halves, trial)
    with pytest.raises(ZeroDivisionError):
        run_trial(lambda *_: 1 // 0, trial)  # interrupted again, with nothing new to keep
    assert 0.39 < earlier_seconds(trial) < 1.1  # not the 0.8 that were lost
    (row, _) = run_trial(toy_experiment.in_two_halves, trial)
    assert 0.39 < row["seconds"] < 1.1


def test_seconds_of_a_trial_that_kept_nothing_are_those_of_its_last_run(tmp_path):
    trial = toy_experiment.toy(raises=0, sleep=0.3).trials("smoke")[0]
    with pytest.raises(RuntimeError):
        run_trial(toy_experiment.run, trial)
    assert earlier_seconds(trial) == 0.0


def test_rows_of_another_scale_are_left_alone(tmp_path):
    experiment = toy_experiment.toy()
    first = sweep(experiment, "smoke", out=tmp_path, jobs=1)
    both = sweep(experiment, "laptop", out=tmp_path, jobs=1)
    assert bare([row for row in both if row["scale"] == "smoke"]) == bare(first)


# --- the sweep


def test_a_finished_trial_is_never_repeated_and_a_process_trains_on_one_thread(tmp_path):
    experiment = replace(toy_experiment.toy(), run=toy_experiment.report_threads)
    rows = sweep(experiment, "smoke", out=tmp_path, jobs=2)
    assert {row["metrics"]["threads"] for row in rows} == {1}
    ran = []
    again = sweep(experiment, "smoke", out=tmp_path, jobs=2, on_finish=lambda *finished: ran.append(finished))
    assert ran == []
    assert again == rows


def test_a_process_has_as_many_threads_as_its_experiment_asks_for(tmp_path):
    experiment = replace(toy_experiment.toy(), run=toy_experiment.report_threads, cpus=2)
    rows = sweep(experiment, "smoke", out=tmp_path, jobs=1, only=["b"], seeds=1)
    assert {row["metrics"]["threads"] for row in rows} == {2}


def test_only_and_seeds_narrow_the_sweep(tmp_path):
    rows = sweep(toy_experiment.toy(), "smoke", out=tmp_path, jobs=1, only=["b"], seeds=1)
    assert {(row["method"], row["seed"]) for row in rows} == {("b", 0)}
    assert all(row["selected"] for row in rows)


def test_a_trial_that_raises_is_reported_and_the_rest_goes_on(tmp_path):
    problems = []
    rows = sweep(
        toy_experiment.toy(raises=1), "smoke", out=tmp_path, jobs=1,
        on_finish=lambda trial, new, problem, left: problems.append((trial.seed, problem)),
    )  # fmt: skip
    assert {problem for seed, problem in problems if seed == 1} == {"RuntimeError: seed 1 does not like it"}
    assert {row["seed"] for row in rows} == {0, 2}
    assert not any(row["selected"] for row in rows if row["method"] == "a")  # its search has gaps


def test_a_process_that_dies_costs_its_trial_only_which_is_tried_again(tmp_path):
    problems = []
    rows = sweep(
        toy_experiment.toy(dies=1), "smoke", out=tmp_path, jobs=2, only=["b"],
        on_finish=lambda trial, new, problem, left: problems.append(problem),
    )  # fmt: skip
    assert set(problems) == {None}
    assert bare(rows) == bare(sweep(toy_experiment.toy(dies=1), "smoke", out=tmp_path / "x", jobs=1, only=["b"]))


def test_a_trial_that_always_kills_its_process_is_given_up(tmp_path):
    problems = []
    rows = sweep(
        toy_experiment.toy(dies=1, forever=True), "smoke", out=tmp_path, jobs=1, only=["b"],
        on_finish=lambda trial, new, problem, left: problems.append(problem),
    )  # fmt: skip
    assert Counter(problems) == {None: 4, "its process died 4 times, exit code -9": 2}
    assert {row["seed"] for row in rows} == {0, 2}


@pytest.mark.parametrize(
    ("load", "error", "message"),
    [
        (toy_experiment.no_data, InputError, "toy is in none of the folders searched; put it there$"),
        (toy_experiment.broken_loader, RuntimeError, r"(?s)the data could not be loaded.*in broken_loader.*'shape'"),
    ],
)
def test_data_that_cannot_be_loaded_end_the_sweep_with_one_error(tmp_path, capfd, load, error, message):
    finished = []
    experiment = replace(toy_experiment.toy(), data=load)
    with pytest.raises(error, match=message):
        sweep(experiment, "smoke", out=tmp_path, jobs=2, on_finish=lambda *trial: finished.append(trial))
    assert finished == []
    assert capfd.readouterr().err == ""


def test_two_sweeps_on_one_file_are_refused_whatever_their_home(tmp_path, monkeypatch):
    def second(*_):
        monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "another"))
        sweep(toy_experiment.toy(), "smoke", out=tmp_path, jobs=1)

    with pytest.raises(InputError, match=r"toy.jsonl is being written by another sweep"):
        sweep(toy_experiment.toy(), "smoke", out=tmp_path, jobs=1, on_finish=second)


def test_sweeps_of_two_experiments_share_a_folder(tmp_path):
    others = []

    def second(*_):
        others.append(sweep(toy_experiment.toy("other"), "smoke", out=tmp_path, jobs=1, only=["b"]))

    rows = sweep(toy_experiment.toy(), "smoke", out=tmp_path, jobs=1, only=["b"], seeds=1, on_finish=second)
    assert {row["experiment"] for row in rows} == {"toy"}
    assert {row["experiment"] for row in others[0]} == {"other"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"engine": "rey"}, InputError, "engine must be one of 'local', 'ray'; got 'rey'; did you mean 'ray'"),
        ({"only": ["c"]}, InputError, "only must be one of 'a', 'b'; got 'c'"),
        ({"jobs": 0}, InputError, "jobs must be at least 1; got 0"),
        (
            {"address": "head:6379"},
            InputError,
            "address head:6379 is that of a Ray head; choose the engine ray as well",
        ),
        ({"engine": "ray", "jobs": 2}, InputError, "jobs counts local processes; with the engine ray the cluster"),
        ({"seeds": 1.5}, InputTypeError, "seeds must be a whole number; got 1.5"),
        ({"scale": "huge"}, InputError, "scale must be one of 'smoke', 'laptop'; got 'huge'"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        sweep(toy_experiment.toy(), **{"scale": "smoke", "out": tmp_path, **options})


def test_an_address_without_a_head_is_refused_at_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"  # bound, but nobody listens
        with pytest.raises(InputError, match=f"no Ray head answers at {address}"):
            sweep(toy_experiment.toy(), "smoke", out=tmp_path, engine="ray", address=address)


def sweep_lengths(out, home):
    """A real experiment at smoke scale: 36 trials."""
    os.environ["ANYORDER_HOME"] = str(home)
    return sweep(EXPERIMENTS["lengths"], "smoke", out=out, jobs=1)


def test_ten_kills_at_random_moments_leave_the_rows_of_an_uninterrupted_sweep(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "home"))
    context = multiprocessing.get_context("forkserver")
    chance = random.Random(0)
    path = tmp_path / "killed" / "lengths.jsonl"
    sizes = []
    for _ in range(10):
        before, deadline = len(read_rows(path)), time.monotonic() + 120
        process = context.Process(target=sweep_lengths, args=(path.parent, tmp_path / "home"))
        process.start()
        while process.is_alive() and len(read_rows(path)) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL  # it had not finished by itself
        sizes.append(len(read_rows(path)))
    assert sizes == sorted(set(sizes))  # every one got further, none lost a row
    rows = sweep_lengths(path.parent, tmp_path / "home")
    assert len(rows) > sizes[-1]
    assert bare(rows) == bare(sweep_lengths(tmp_path / "whole", tmp_path / "home"))
    assert len({(row["trial"], row["setting"]["length"]) for row in rows}) == len(rows)
    assert list((tmp_path / "home").glob("trials/*/*")) == []  # nothing unfinished is left behind
    assert {file.name for file in path.parent.iterdir()} == {"lengths.jsonl", ".lengths.jsonl.lock"}


# --- the command


@pytest.mark.parametrize(
    ("options", "message"),
    [({"engine": "raay"}, "did you mean 'ray'"), ({"jobs": 0}, "jobs must be at least 1; got 0")],
)
def test_the_plan_alone_refuses_what_the_run_would(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        reproduce("parity", "smoke", out=tmp_path, dry_run=True, **options)


def test_the_command_runs_a_real_experiment_and_shows_plan_and_time_first(tmp_path, capsys):
    dry = reproduce("parity", "smoke", out=tmp_path, jobs=2, dry_run=True)
    text = capsys.readouterr().out
    assert dry == []
    assert "15 of 15 trials to run: about 4 s of one core's time, 2 s on 2 processes" in text
    assert not list(tmp_path.glob("*.jsonl"))
    problems = reproduce("parity", "smoke", out=tmp_path, jobs=1, only=["plain"], seeds=1)
    lines = capsys.readouterr().out.splitlines()
    assert problems == []
    assert "4 of 4 trials to run" in lines[3]
    assert lines[4].startswith("[1/4] plain cell=relu-rnn learning_rate=0.01 seed 0: validation accuracy ")
    assert lines[-1].startswith("4 trials finished; rows in ")
    rows = read_rows(tmp_path / "parity.jsonl")
    assert {row["setting"]["length"] for row in rows} == {2, 30}
    shown = sorted(float(line.split("validation accuracy ")[1].split(";")[0]) for line in lines[4:8])
    assert shown == sorted(round(row["validation"]["accuracy"], 4) for row in rows if row["setting"]["length"] == 30)
    assert shown != sorted(round(row["metrics"]["accuracy"], 4) for row in rows if row["setting"]["length"] == 30)
    assert {row["command"] for row in rows} == {"anyorder reproduce parity --scale smoke --seeds 1"}
    assert all({"accuracy", "state_gap_squared", "train_loss"} <= set(row["metrics"]) for row in rows)


def test_the_same_trial_gives_the_same_row_wherever_it_runs(tmp_path):
    experiment = EXPERIMENTS["sub-vs-sire"]
    trial = experiment.trials("smoke", only=["sire"])[0]
    here = run_trial(experiment.run, trial)
    rows = sweep(experiment, "smoke", out=tmp_path, jobs=1, only=["sire"], seeds=1)
    there = [row for row in rows if row["trial"] == trial.key]
    assert bare([{**row, "selected": None} for row in here]) == bare([{**row, "selected": None} for row in there])


def test_a_failed_trial_ends_the_command_with_status_1(tmp_path, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "toy", toy_experiment.toy(raises=1))
    result = CliRunner().invoke(app, ["reproduce", "toy", "--scale", "smoke", "--out", str(tmp_path), "--jobs", "1"])
    assert result.exit_code == 1
    assert "failed: toy a n=5 weight=1.0 seed 1: RuntimeError: seed 1 does not like it" in result.output


def test_an_unknown_experiment_is_refused_with_a_guess(tmp_path):
    with pytest.raises(InputError, match=r"experiment must be one of 'parity'.*got 'parety'; did you mean 'parity'\?"):
        reproduce("parety", "smoke", out=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "head:6379"}, "address head:6379 is that of a Ray head"),
        ({"engine": "ray", "jobs": 2}, "jobs counts local processes"),
        ({"cpus": 0}, "cpus must be at least 1; got 0"),
        ({"gpus": -1}, "gpus must be at least 0; got -1"),
        ({"gpus": 1}, "gpus is 1, but torch finds no GPU on this machine; leave it out to use processors"),
    ],
)
def test_what_an_engine_would_not_heed_is_refused_before_the_plan(tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    for name in ("parity", "synthetic"):
        with pytest.raises(InputError, match=message):
            reproduce(name, "smoke", out=tmp_path, dry_run=True, **options)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["parity", "ecg", "bags"])
def test_processors_and_gpus_reach_the_engine_and_the_training(tmp_path, monkeypatch, name):
    swept, devices = [], []
    monkeypatch.setattr(
        "anyorder.paper.reproduce.sweep", lambda experiment, *_, **more: swept.append((experiment, more))
    )
    words = ["reproduce", name, "--scale", "smoke", "--out", str(tmp_path), "--engine", "ray"]
    for more in (["--cpus", "3"], ["--gpus", "0.5"]):
        result = CliRunner().invoke(app, words + more)
        assert result.exit_code == 0, result.output
    (threaded, _), (accelerated, more) = swept
    assert (threaded.cpus, threaded.gpus, accelerated.cpus, accelerated.gpus) == (3, 0, 1, 0.5)
    assert more["command"].endswith("--gpus 0.5")

    class Stop(Exception):
        pass

    def noted(*_, config, **__):
        devices.append(config.device)
        raise Stop

    monkeypatch.setattr("anyorder.paper.runner.runs.train", noted)
    monkeypatch.setattr("anyorder.paper.runner.real_runs.train", noted)
    data = None if threaded.data is None else threaded.data("smoke")
    for experiment in (threaded, accelerated):
        with pytest.raises(Stop):
            experiment.run(experiment.trials("smoke")[0], data, tmp_path)
    assert devices == ["cpu", "auto"]


@pytest.mark.parametrize("words", [["parity"], ["synthetic"], ["parity", "--dry-run"]])
@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_file_as_out_is_refused_before_the_plan(tmp_path, monkeypatch, capsys, words, out):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr("sys.argv", ["anyorder", "reproduce", *words, "--scale", "smoke", "--out", out])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [f"anyorder: out must be a folder; {tmp_path / 'file'} is a file; choose another"]


def test_a_folder_in_place_of_the_rows_is_refused(tmp_path):
    (tmp_path / "toy.jsonl").mkdir()
    with pytest.raises(InputError, match=r"toy\.jsonl must be a file of rows, and is a folder; move it away"):
        sweep(toy_experiment.toy(), "smoke", out=tmp_path)


def test_a_group_says_its_total_before_it_starts_and_stays_within_a_day(tmp_path, capsys):
    reproduce("synthetic", "laptop", out=tmp_path, dry_run=True)
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("synthetic, laptop scale: parity, sub-vs-sire, labels, half-range, dial, lengths, sum")
    hours = sum(
        EXPERIMENTS[n].estimated_seconds(EXPERIMENTS[n].trials("laptop", guess=True)) for n in GROUPS["synthetic"]
    )
    assert f"About {duration(hours)} of one core's time in all." in first
    assert hours < 24 * 3600


def test_a_group_goes_on_where_one_of_it_has_no_data(tmp_path, monkeypatch, capsys):
    for name, load in (("toy", toy_experiment.no_data), ("other", None)):
        monkeypatch.setitem(EXPERIMENTS, name, replace(toy_experiment.toy(), name=name, data=load))
    monkeypatch.setitem(GROUPS, "toys", ["toy", "other"])
    problems = reproduce("toys", "smoke", out=tmp_path, jobs=2, only=["a"], seeds=1)
    said = "no data for this sweep: toy is in none of the folders searched; put it there"
    assert problems == [f"toy: {said}"]
    assert f"toy is left out: {said}" in capsys.readouterr().out
    assert not (tmp_path / "toy.jsonl").exists()
    assert {row["method"] for row in read_rows(tmp_path / "other.jsonl")} == {"a"}


def test_a_group_runs_a_method_where_there_is_one_and_a_bad_line_stops_only_its_own(tmp_path, capsys):
    (tmp_path / "dial.jsonl").write_text("not JSON\n{}\n")
    problems = reproduce("synthetic", "smoke", out=tmp_path, only=["sub", "sire"], dry_run=True)
    assert [problem.split(":")[0] for problem in problems] == ["dial"]
    said = capsys.readouterr().out
    assert "\nparity, smoke scale" in said  # has no sub
    assert "\nsub-vs-sire, smoke scale" in said
    reproduce("synthetic", "smoke", out=tmp_path, only=["sub"], dry_run=True)
    assert "parity" not in capsys.readouterr().out
    with pytest.raises(InputError, match="only must be one of"):
        reproduce("synthetic", "smoke", out=tmp_path, only=["subb"], dry_run=True)


@pytest.mark.parametrize(("option", "said"), [({"seeds": 0}, "seeds must be"), ({"scale": "laptp"}, "scale must be")])
def test_what_is_wrong_for_all_of_a_group_is_said_once(tmp_path, capsys, option, said):
    with pytest.raises(InputError, match=said):
        reproduce("synthetic", **{"scale": "smoke", **option}, out=tmp_path / "rows")
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "rows").exists()


def test_too_few_seeds_to_choose_by_are_said_to_be(tmp_path, capsys):
    reproduce("parity", "laptop", out=tmp_path, seeds=1, dry_run=True)
    assert "Settings are chosen from 2 seeds; with 1 the report shows" in capsys.readouterr().out
    reproduce("parity", "laptop", out=tmp_path, seeds=2, dry_run=True)
    assert "Settings are chosen from" not in capsys.readouterr().out.replace("Settings are chosen from two", "")


def test_a_continued_trial_does_not_set_the_pace(tmp_path, monkeypatch, capsys):
    experiment = replace(toy_experiment.toy(), run=toy_experiment.in_two_halves)
    monkeypatch.setitem(EXPERIMENTS, "toy", experiment)
    trials = experiment.trials("smoke", only=["b"])
    for trial in trials[:2]:
        with pytest.raises(KeyboardInterrupt):
            run_trial(experiment.run, trial)
    monkeypatch.setitem(EXPERIMENTS, "toy", replace(experiment, run=toy_experiment.run))
    reproduce("toy", "smoke", out=tmp_path, jobs=1, only=["b"])
    left = [line.rsplit("; ")[1] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert left[:2] == ["10 s left", "8 s left"]  # the declared 2 s for each of the others


def test_on_a_terminal_a_table_shows_each_methods_progress(tmp_path, monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr("anyorder.paper.runner.reproduce.Console", lambda: console)
    monkeypatch.setitem(EXPERIMENTS, "toy", toy_experiment.toy())
    assert reproduce("toy", "smoke", out=tmp_path, jobs=1) == []
    shown = screen.getvalue()
    assert "toy: 30/30, 0 s left" in shown
    assert "24/24" in shown
    assert "6/6" in shown
