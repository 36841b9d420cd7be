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

import pytest
from rich.console import Console
from typer.testing import CliRunner

import toy_experiment
from anyorder import InputError, InputTypeError
from anyorder.cli import app
from anyorder.paper.experiments import EXPERIMENTS, GROUPS
from anyorder.paper.reproduce import duration, reproduce
from anyorder.paper.sweep import read_rows, run_trial, sweep
from anyorder.paper.trials import Trial

CHANGES = ("seconds", "versions", "command", "curve")  # what differs from run to run


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


def test_maximize_turns_the_choice_around():
    experiment = replace(toy_experiment.toy(), maximize=True)
    rows = [row for trial in experiment.trials("smoke") for row in run_trial(experiment.run, trial)]
    assert experiment.choice("smoke", "a", {"n": 5}, rows) == {"weight": 1.0}


# --- rows on disk


def test_a_last_line_cut_off_is_left_out_and_repaired(tmp_path):
    experiment = toy_experiment.toy()
    rows = sweep(experiment, "smoke", out=tmp_path, jobs=1)
    path = tmp_path / "toy.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-40])
    assert len(read_rows(path)) == len(rows) - 1
    again = sweep(experiment, "smoke", out=tmp_path, jobs=1)
    assert bare(read_rows(path)) == bare(again)
    assert path.read_text().endswith("\n")


def test_a_broken_line_inside_the_file_is_refused_with_its_number(tmp_path):
    path = tmp_path / "toy.jsonl"
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(InputError, match=r"toy.jsonl, line 2 is not JSON"):
        read_rows(path)


def test_rows_hold_what_the_design_asks_for(tmp_path):
    (row, _) = run_trial(toy_experiment.run, Trial("toy", "b", {"weight": 2.5, "n": 5}, 1, "smoke"), command="x")
    assert row["setting"] == {"weight": 2.5, "n": 5, "length": 1}
    assert set(row) >= {"experiment", "method", "seed", "scale", "validation", "metrics", "selected", "parameters"}
    assert set(row["versions"]) == {"anyorder", "torch", "python"}
    assert row["command"] == "x"
    assert row["seconds"] >= 0


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


def test_two_sweeps_on_one_file_are_refused(tmp_path):
    def second(*_):
        sweep(toy_experiment.toy(), "smoke", out=tmp_path, jobs=1)

    with pytest.raises(InputError, match=r"toy.jsonl is being written by another sweep"):
        sweep(toy_experiment.toy(), "smoke", out=tmp_path, jobs=1, on_finish=second)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"engine": "rey"}, InputError, "engine must be one of 'local', 'ray'; got 'rey'; did you mean 'ray'"),
        ({"only": ["c"]}, InputError, "only must be one of 'a', 'b'; got 'c'"),
        ({"jobs": 0}, InputError, "jobs must be at least 1; got 0"),
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
    assert [file.name for file in path.parent.iterdir()] == ["lengths.jsonl"]


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
    assert all({"accuracy", "order_gap", "train_loss"} <= set(row["metrics"]) for row in rows)


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


def test_a_group_says_its_total_before_it_starts_and_stays_within_a_day(tmp_path, capsys):
    reproduce("synthetic", "laptop", out=tmp_path, dry_run=True)
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("synthetic, laptop scale: parity, sub-vs-sire, labels, half-range, dial, lengths, sum")
    hours = sum(
        EXPERIMENTS[n].estimated_seconds(EXPERIMENTS[n].trials("laptop", guess=True)) for n in GROUPS["synthetic"]
    )
    assert f"About {duration(hours)} of one core's time in all." in first
    assert hours < 24 * 3600


def test_on_a_terminal_a_table_shows_each_methods_progress(tmp_path, monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr("anyorder.paper.reproduce.Console", lambda: console)
    monkeypatch.setitem(EXPERIMENTS, "toy", toy_experiment.toy())
    assert reproduce("toy", "smoke", out=tmp_path, jobs=1) == []
    shown = screen.getvalue()
    assert "toy: 30/30, 0 s left" in shown
    assert "24/24" in shown
    assert "6/6" in shown
