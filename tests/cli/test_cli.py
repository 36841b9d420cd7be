"""The command line from end to end, and every bad input: one clear line on stderr, exit status 2."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from anyorder.cli.commands import TableModel

import anyorder as ao
from anyorder.cli import app as cli
from anyorder.cli import commands, demo
from anyorder.estimators.tables import TableSchema
from anyorder.files import load_tensors, save_tensors
from anyorder.training.checkpoint import Checkpoint

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "home"))

    def call(words):
        monkeypatch.setattr(sys, "argv", ["anyorder", *words.split()])
        capsys.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        return status, *capsys.readouterr()

    return call


def visits(sets=24, seed=0, **changes):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"visit": np.repeat(np.arange(sets), rng.integers(1, 5, size=sets))})
    rows["dose"] = rng.normal(size=len(rows)).round(3)
    rows["drug"] = rng.choice(["x", "y"], len(rows))
    rows["outcome"] = np.where(rows.groupby("visit")["dose"].transform("sum") > 0, "up", "down")
    for name, change in changes.items():
        rows[name] = change(rows) if callable(change) else change
    return rows


TRAIN = "train t.csv --set-id visit --target outcome --epochs 2 --hidden 4 --out model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    visits().to_csv(folder / "t.csv", index=False)
    columns = {"set_id": "visit", "target": "outcome"}
    settings = {"epochs": 2, "model_options": {"hidden": 4}, "random_state": 0}
    before = os.environ.get("ANYORDER_HOME")
    os.environ["ANYORDER_HOME"] = str(folder / "home")
    try:
        commands.train_table(folder / "t.csv", folder / "model", columns=columns, settings=settings)
    finally:
        os.environ.pop("ANYORDER_HOME")
        if before is not None:
            os.environ["ANYORDER_HOME"] = before
    return folder


@pytest.fixture
def here(run, trained, tmp_path):
    """A folder with a table, ``t.csv``, and a model trained on it."""
    shutil.copytree(trained / "model", tmp_path / "model")
    shutil.copy(trained / "t.csv", tmp_path / "t.csv")
    return tmp_path


def test_the_page_for_new_users_runs_from_the_csv_to_the_stream(run, tmp_path):
    """Write a CSV, train, predict, audit, export, stream the same rows: docs/tables.md, block by block."""
    names: dict = {}
    for kind, block in re.findall(r"```(python|sh)\n(.*?)```", (DOCS / "tables.md").read_text(), re.S):
        if kind == "python":
            exec(compile(block, "docs/tables.md", "exec"), names)
            continue
        for line in block.strip().splitlines():
            status, out, err = run(line.removeprefix("anyorder "))
            assert status == 0, err
            assert "wrote" in out
    rows, model = names["rows"], ao.load("model")
    new = rows[rows["basket"] >= 250]
    predictions = pd.read_csv("predictions.csv")
    assert list(predictions) == ["basket", "prediction", "probability_large", "probability_small"]
    assert predictions["basket"].tolist() == list(range(250, 300))
    truth = new.groupby("basket")["size"].first()
    assert (predictions["prediction"].to_numpy() == truth.to_numpy()).mean() > 0.8
    last = predictions.iloc[-1][["probability_large", "probability_small"]].to_numpy(dtype=float)
    np.testing.assert_allclose(names["probabilities"].numpy(), last, atol=1e-6)
    likely = predictions[["probability_large", "probability_small"]].to_numpy().argmax(1)
    assert predictions["prediction"].tolist() == [["large", "small"][i] for i in likely]

    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "<html" in page
    assert re.search("random order|Order does not matter", page)

    import onnxruntime

    step, readout = (onnxruntime.InferenceSession(f) for f in ("model.onnx", "model.readout.onnx"))
    words = json.loads(step.get_modelmeta().custom_metadata_map["anyorder"])
    assert words["classes"] == ["large", "small"]
    schema = TableSchema.from_dict(words["preprocessing"]["table"])
    state = {name: np.array(value, np.float32) for name, value in words["start"].items()}
    for element in schema.encode(rows[rows["basket"] == 299]).numpy():
        state = dict(zip(state, step.run(None, {"element": element[None], **state}), strict=True))
    scores = torch.from_numpy(readout.run(None, state)[0][0])
    np.testing.assert_allclose(scores.softmax(0).numpy(), last, atol=1e-6)
    assert isinstance(model, ao.SetClassifier)
    assert model.classes_.tolist() == ["large", "small"]
    assert os.listdir(tmp_path / "home" / "runs") == []


def test_the_commands_on_the_front_page_run(run, tmp_path):
    visits().rename(columns={"visit": "patient"}).to_csv("visits.csv", index=False)
    shutil.copy("visits.csv", "new_visits.csv")
    (block,) = re.findall(r"```sh\n(anyorder train .*?)```", (DOCS.parent / "README.md").read_text(), re.S)
    for line in block.strip().splitlines():
        status, out, err = run(line.removeprefix("anyorder "))
        assert status == 0, err
        assert "wrote" in out


def test_help_and_usage_errors_do_not_wait_for_torch():
    script = """
import sys
from anyorder.cli.app import main
for words in (["--help"], ["train", "--help"], ["predict", "--help"], ["audit", "--help"], ["export", "--help"],
              ["data", "--help"], ["train"], ["train", "t.csv", "--nonsense"], ["--version"]):
    sys.argv = ["anyorder", *words]
    try:
        main()
    except SystemExit as stop:
        assert stop.code == (2 if words[-1] in ("train", "--nonsense") else 0), words
assert not {"torch", "pandas", "sklearn", "pyarrow"} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Example:") >= 4
    assert done.stderr.count("\n") == 2  # a line for each of the two slips


SLIPS = {
    "train t.csv --set-id a --target b --out m --penalty-weight abc": "--penalty-weight (a number or auto) must be",
    "train t.csv --set-id a --target b --out m --model nosuch": "--model must be one of 'recurrent'",
    "train t.csv --set-id a --target b --out m --cell gruu": "did you mean 'gru'?",
    "train t.csv --set-id a --target b --out m --penalty subb": "--penalty must be one of",
    "train t.csv --set-id a --target b --out m --penalty sub --penalty-window 2": "are options of --penalty sire",
    "train t.csv --set-id a --target b --out m --penalty-window 0": "--penalty-window must be at least 1",
    "train t.csv --set-id a --target b --out m --truncate 1": "--truncate must be at least 2",
    "train t.csv --set-id a --target b --out m --shuffle-within 1": "--shuffle-within must be at least 2",
    "train t.csv --set-id a --target b --out m --epochs 0": "--epochs must be at least 1; got 0",
    "train t.csv --set-id a --target b --out m --hidden 0": "--hidden must be at least 1; got 0",
    "train t.csv --set-id a --target b --out m --learning-rate 0": "--learning-rate must be above 0; got 0",
    "train t.csv --set-id a --target b --out m --validation-fraction 1": "--validation-fraction must be below 1; got 1",
    "train t.csv --set-id a --target b --out m --seed -1": "--seed must be at least 0; got -1",
    "train t.csv --set-id a --target b --out m --clip 0": "--clip (a number or none) must be above 0",
    "train t.csv --set-id a --target b --out m --resume": "there is nothing to resume",
    "train t.csv --set-id a --target b --out there": "there exists; choose another --out",
    "train no.csv --set-id a --target b --out m": "no.csv does not exist",
    "predict there t.csv --out p.csv": "there is not a model folder",
    "predict no t.csv --out p.csv": "there is no model folder no",
    "predict no t.csv --out t.csv": "t.csv exists",
    "predict no t.csv --out p.csv --orderings 0": "--orderings must be at least 1",
    "export no --onnx m.onnx": "there is no model folder no",
    "reproduce nosuch": "experiment must be one of",
    "reproduce parity --scale laptp": "did you mean 'laptop'?",
    "reproduce parity --engine rai": "engine must be one of",
    "reproduce parity --jobs 0": "--jobs must be at least 1; got 0",
    "reproduce parity --seeds 0": "--seeds must be at least 1; got 0",
    "data where nosuch": "source must be one of",
}


def test_slips_are_answered_where_torch_cannot_be_imported(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    script = """
import sys
sys.modules.update(dict.fromkeys(("torch", "pandas", "sklearn", "pyarrow")))
from anyorder.cli.app import main
for words in sys.argv[1:]:
    sys.argv = ["anyorder", *words.split()]
    try:
        main()
    except SystemExit as stop:
        assert stop.code == 2, words
"""
    done = subprocess.run([sys.executable, "-c", script, *SLIPS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, (words, message) in zip(done.stderr.splitlines(), SLIPS.items(), strict=True):
        assert message in line, words
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "there"]


def test_every_option_of_the_training_reaches_it(run, tmp_path):
    visits().to_csv("t.csv", index=False)
    words = "--cell lstm --layers 2 --penalty sire --penalty-window 2 --penalty-weight 0.5 --shuffle --truncate 3"
    words += " --optimizer sgd --weight-decay 0.1 --schedule plateau --clip none --mixed-precision no --time dose"
    status, _, err = run(f"{TRAIN} {words} --tensorboard board")
    assert status == 0, err
    model = ao.load("model")
    expected = {
        "model_options": {"cell": "lstm", "hidden": 4, "layers": 2},
        "penalty": ao.SIRE(prefixes="given", window=2),
        "penalty_weight": 0.5,
        "order": "shuffle",
        "window": 3,
        "optimizer": "sgd",
        "weight_decay": 0.1,
        "schedule": "plateau",
        "clip": None,
        "mixed_precision": "no",
        "tensorboard": False,  # what was only written down is not part of the model
        "workdir": None,
    }
    assert {name: model.get_params()[name] for name in expected} == expected
    assert TableModel.open("model").schema.time == "dose"
    assert [p.name.split(".")[0] for p in (tmp_path / "board").iterdir()] == ["events"]
    assert run(f"{TRAIN} --penalty sub --penalty-weight 1 --force")[0] == 0
    assert ao.load("model").penalty == "sub"
    assert run(f"{TRAIN} --shuffle-within 7 --force")[0] == 0
    assert {name: ao.load("model").get_params()[name] for name in ("order", "shuffle_within")} == {
        "order": "shuffle",
        "shuffle_within": 7,
    }
    assert run(f"{TRAIN} --penalty-states prefix --force")[0] == 0
    assert ao.load("model").penalty == ao.SIRE(prefixes="given")
    status, _, err = run(f"{TRAIN} --penalty-states subset --penalty-window 2 --force")
    assert status == 2
    assert "use prefixes='given' with window" in err
    status, _, err = run(f"{TRAIN.replace('--hidden 4', '')} --model set-transformer --truncate 3 --force")
    assert status == 2
    assert "a set-transformer model cannot be read in pieces; leave --truncate out" in err


def test_train_says_how_it_read_the_table_and_what_it_kept(run, tmp_path):
    rows = visits(when=lambda rows: range(len(rows)), price=lambda rows: [f"{k},5" for k in range(len(rows))])
    rows.to_csv(tmp_path / "t.csv", index=False)
    status, out, _ = run(TRAIN + " --time when")
    assert status == 0
    assert "drug: read as 2 categories\n" in out
    assert f"price: read as {len(rows)} categories; if they are numbers or times, write them as numbers" in out
    assert "sets are sorted by when, and --penalty-weight auto trains the order away" in out
    (kept,) = re.findall(r"kept epoch (\d) of 2: validation [\d.]+, order gap ([\d.]+)", out)
    assert int(kept[0]) == ao.load(tmp_path / "model").best_epoch_
    assert "order still counts for more than --penalty-weight auto seeks (a gap of 0.01)" in out
    status, out, _ = run(TRAIN + " --time when --penalty-weight 0.1 --force")
    assert "auto" not in out


def test_the_log_of_a_training_is_kept_with_the_model_and_never_read(run, tmp_path):
    visits().to_csv("t.csv", index=False)
    assert run(TRAIN)[0] == 0
    records = [json.loads(line) for line in (tmp_path / "model" / "log.jsonl").read_text().splitlines()]
    assert records == ao.load("model").history_
    assert [r["epoch"] for r in records] == [0, 1]
    assert all(r["validation"] is not None for r in records)
    (tmp_path / "model" / "log.jsonl").write_bytes(b"\x80\x04K\x01.")
    assert run("predict model t.csv --out p.csv")[0] == 0
    assert run(f"{TRAIN} --force")[0] == 0  # still nothing but a model's files
    assert (tmp_path / "model" / "log.jsonl").read_text().count("\n") == 2


def test_predictions_may_be_means_over_orderings(run, here):
    for name, words in {"once": "", "again": "--orderings 1", "many": "--orderings 20"}.items():
        assert run(f"predict model t.csv {words} --out {name}.csv")[0] == 0
    once, again, many = (pd.read_csv(f"{name}.csv") for name in ("once", "again", "many"))
    assert once.equals(again)
    trained = TableModel.open("model")
    mean = trained.saved.estimator.predict_proba(trained.schema.read("t.csv").data, orderings=20)
    np.testing.assert_allclose(many[["probability_down", "probability_up"]], mean, atol=1e-6)
    assert not np.allclose(once["probability_up"], many["probability_up"])


def test_a_model_that_takes_no_penalty_says_so(run, tmp_path):
    visits().to_csv("t.csv", index=False)
    status, out, err = run(f"{TRAIN.replace('--hidden 4', '')} --model deepsets --penalty-weight 5")
    assert (status, err.count("UserWarning")) == (0, 0), err
    assert out.count("a deepsets model ignores order by construction and is trained without a penalty") == 1
    assert ao.load("model").penalty is None
    assert "without a penalty" not in run(f"{TRAIN} --force")[1]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predict_keeps_ids_ignores_the_target_and_says_what_was_unseen(run, here, ending):
    rows = visits(5, seed=1, drug="z", outcome="nonsense")
    rows["visit"] = rows["visit"].map("set,{}".format)
    rows = rows.sample(frac=1, random_state=0)
    rows.to_csv("new.csv", index=False)
    status, out, err = run(f"predict model new.csv --out p.{ending}")
    assert status == 0, err
    assert f"drug: {len(rows)} rows hold a category the model has not seen" in out
    read = pd.read_csv("p.csv") if ending == "csv" else pd.read_parquet("p.parquet")
    assert read["visit"].tolist() == list(dict.fromkeys(rows["visit"]))
    assert set(read["prediction"]) <= {"up", "down"}
    np.testing.assert_allclose(read["probability_up"] + read["probability_down"], 1, atol=1e-6)
    again = TableModel.open("model")
    expected = again.saved.estimator.predict_proba(again.schema.read("new.csv").data)
    np.testing.assert_allclose(read[["probability_down", "probability_up"]], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("written", "ids"), [("{}", [-2, 0, 12]), ("0{}", ["0-2", "00", "012"]), ("{}.0", ["-2.0", "0.0", "12.0"])]
)
def test_ids_of_a_csv_file_are_whole_numbers_in_parquet_only_where_all_are_written_so(run, here, written, ids):
    rows = visits(3, seed=1)
    rows["visit"] = rows["visit"].map(dict(zip(dict.fromkeys(rows["visit"]), [-2, 0, 12], strict=True)))
    rows.assign(visit=rows["visit"].map(written.format)).to_csv("new.csv", index=False)
    assert run("predict model new.csv --out p.parquet")[0] == 0
    assert pd.read_parquet("p.parquet")["visit"].tolist() == ids


def test_regression_predicts_numbers_in_their_own_units(run, tmp_path):
    rows = visits(60, outcome=lambda r: 1000 + 100 * r.groupby("visit")["dose"].transform("sum"))
    rows.to_csv("t.csv", index=False)
    words = "--set-id visit --target outcome --epochs 60 --penalty-weight 0.1"
    assert run(f"train t.csv {words} --features dose --out model")[0] == 0
    status, _, err = run("predict model t.csv --out p.csv")
    assert status == 0, err
    predictions = pd.read_csv("p.csv")
    assert list(predictions) == ["visit", "prediction"]
    truth = rows.groupby("visit")["outcome"].first().to_numpy()
    assert np.corrcoef(predictions["prediction"], truth)[0, 1] > 0.9
    assert abs(predictions["prediction"].mean() - 1000) < 60
    status, out, err = run("audit model t.csv --samples 20 --orderings 4 --out a.html")
    assert status == 0, err
    assert "auditing 20 of 60 sets" in out


def test_an_audit_needs_no_target(run, here):
    visits(6, seed=2).drop(columns="outcome").to_csv("new.csv", index=False)
    status, out, err = run("audit model new.csv --orderings 4 --out a.html")
    assert status == 0, err
    assert "Accuracy" not in out
    status, out, err = run("audit model t.csv --orderings 4 --out a.html --force")
    assert status == 0, err
    assert "Accuracy" in out
    assert sorted(p.name for p in here.iterdir()) == ["a.html", "model", "new.csv", "t.csv"]


def test_an_audit_of_a_recurrent_model_shows_its_states(run, here):
    report = commands.audit_table("model", "t.csv", "a.html", orderings=4)
    assert min(report.state_gap) == 2
    assert "States by prefix length" in (here / "a.html").read_text(encoding="utf-8")


def test_an_audit_of_several_models_compares_them(run, here):
    assert run("train t.csv --set-id visit --target outcome --model deepsets --epochs 1 --out sets")[0] == 0
    status, out, err = run("audit model sets t.csv --orderings 4 --seconds 60 --out both.html")
    assert status == 0, err
    assert "sets: Order" in out
    assert "sets ignores order" in out
    page = (here / "both.html").read_text(encoding="utf-8")
    assert "Accuracy against order gap" in page
    assert "2 models compared" in page
    comparison = commands.compare_table(["model", "sets"], "t.csv", "c.html", samples=20, orderings=4)
    alone = commands.audit_table("model", "t.csv", "a.html", samples=20, orderings=4)
    assert comparison["model"].output_gap == alone.output_gap
    assert comparison["sets"].sets == 20
    assert comparison["model"].seconds > 0


def test_models_that_cannot_be_compared_are_refused(run, here):
    shutil.copytree("model", "other/model")
    assert run("audit model other/model t.csv --orderings 2 --out a.html")[0] == 0  # called by their paths
    rows = visits().rename(columns={"outcome": "result"})
    rows.assign(outcome=rows["result"]).to_csv("t.csv", index=False)
    assert run("train t.csv --set-id visit --target result --features dose --epochs 1 --out result")[0] == 0
    for words, said in (
        (
            "audit model result t.csv --out b.html",
            "cannot be compared: their target is outcome and result",
        ),
        ("audit model model t.csv --out b.html", "model is given twice"),
        ("audit model --out b.html", "Missing argument"),
    ):
        status, _, err = run(words)
        assert status == 2, words
        assert said in err
        assert err.count("\n") == 1
    assert not (here / "b.html").exists()


def test_an_audit_pads_no_set_to_the_longest(run, here, monkeypatch):
    rows = visits()
    long = pd.concat([rows[rows["visit"] == 0]] * 60)
    pd.concat([rows[rows["visit"] > 0], long]).to_csv("t.csv", index=False)
    widest = []
    whole = commands.TableModel.__call__

    def spy(self, elements, lengths):
        widest.append(elements.shape[0] * elements.shape[1] / int(lengths.sum()))
        return whole(self, elements, lengths)

    monkeypatch.setattr(commands.TableModel, "__call__", spy)
    commands.audit_table("model", "t.csv", "a.html", orderings=2)
    assert np.mean(widest) < 10


def test_the_page_shows_the_worst_sets_as_they_stand_in_the_table(run, here):
    rows = visits(dose=lambda r: (1000 + 300 * r["dose"]).round(1))
    rows.to_csv("raw.csv", index=False)
    assert run(f"{TRAIN.replace('t.csv', 'raw.csv')} --force")[0] == 0
    report = commands.audit_table("model", "raw.csv", "a.html", orderings=4)
    case = report.worst[0]
    expected = rows.loc[rows["visit"] == int(case.name), ["dose", "drug"]]
    np.testing.assert_allclose(case.elements[:, 0].astype(float), expected["dose"], rtol=1e-5)
    assert case.elements[:, 1].tolist() == expected["drug"].tolist()
    page = (here / "a.html").read_text(encoding="utf-8")
    assert "Element: dose, drug</caption>" in page
    assert f"</strong> {expected['dose'].iloc[0]:.3g}, {expected['drug'].iloc[0]}</td>" in page


def test_the_sets_of_an_audit_are_drawn_by_its_seed_and_keep_their_names(run, here):
    rows = pd.read_csv("t.csv")

    def audited(seed):
        report = commands.audit_table("model", "t.csv", "a.html", samples=6, orderings=3, seed=seed, force=True)
        assert report.orderings == 3
        for case in report.worst:
            of_the_set = rows.loc[rows["visit"] == int(case.name), "dose"]
            np.testing.assert_allclose(case.elements[:, 0].astype(float), of_the_set, atol=1e-5)
        return report.sizes.tolist(), report.set_gaps.tolist()

    assert audited(1) == audited(1)
    assert audited(1) != audited(2)


@pytest.mark.parametrize("words", ["audit model t.csv --samples 3 --out a.html", "predict model t.csv --out p.csv"])
def test_an_output_that_cannot_be_finished_leaves_the_one_before(run, here, monkeypatch, words):
    out = here / words.rpartition(" ")[2]
    out.write_text("as it was")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert run(f"{words} --force")[0] == 2
    assert out.read_text() == "as it was"
    assert sorted(p.name for p in here.iterdir()) == sorted([out.name, "model", "t.csv"])


def test_a_set_whose_rows_are_all_dropped_still_gets_a_prediction(run, tmp_path):
    rows = visits(30)
    rows.loc[rows["visit"] == 3, "dose"] = None
    rows.to_csv("t.csv", index=False)
    status, out, err = run(f"{TRAIN} --missing drop-row")
    assert status == 0, err
    assert "29 sets" in out
    assert "rows with missing values dropped" in out
    status, out, err = run("predict model t.csv --out p.csv")
    assert status == 0, err
    assert "rows with missing values left out" in out
    assert pd.read_csv("p.csv")["visit"].tolist() == list(range(30))
    report = commands.audit_table("model", "t.csv", "a.html", orderings=2)
    assert report.sets == 29  # what is left of a set without rows has no target to be judged by


def test_models_without_a_step_are_trained_but_not_exported(run, tmp_path):
    visits().to_csv("t.csv", index=False)
    assert run("train t.csv --set-id visit --target outcome --model set-transformer --epochs 1 --out model")[0] == 0
    status, _, err = run("export model --onnx m.onnx")
    assert status == 2
    assert "cannot stream: it looks at the whole set at once" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("*.onnx"))


def test_sets_without_a_target_change_what_is_learnt_through_the_penalty(run, tmp_path):
    visits().to_csv("t.csv", index=False)
    visits(40, seed=5).drop(columns="outcome").to_csv("more.csv", index=False)
    assert run(f"{TRAIN} --penalty-weight 1")[0] == 0
    plain = ao.load("model").model_.state_dict()
    status, out, err = run(f"{TRAIN} --penalty-weight 1 --unlabeled more.csv --force")
    assert status == 0, err
    assert "40 sets without a target serve the penalty" in out
    with_more = ao.load("model").model_.state_dict()
    assert torch.equal(plain["mean"], with_more["mean"])
    assert any(not torch.equal(plain[name], with_more[name]) for name in plain)


@pytest.mark.parametrize("options", ["--penalty-weight 0", "--model deepsets"])
def test_sets_without_a_target_are_not_said_to_serve_where_there_is_no_penalty(run, tmp_path, options):
    visits().to_csv("t.csv", index=False)
    visits(40, seed=5).drop(columns="outcome").to_csv("more.csv", index=False)
    train = TRAIN.replace("--hidden 4", "")
    status, out, err = run(f"{train} {options} --unlabeled more.csv")
    assert status == 0, err
    assert "40 sets without a target are not used: this training has no penalty" in out


def test_an_interrupted_run_waits_and_ends_as_if_it_had_not_been(run, tmp_path, monkeypatch):
    visits().to_csv("t.csv", index=False)
    train = commands.save

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(commands, "save", full)
    status, _, err = run(TRAIN)
    assert status == 2
    assert "the disk is full" in err
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr(commands, "save", train)
    status, _, err = run(TRAIN)
    assert status == 2
    assert "was not finished; go on with --resume, or start afresh with --force" in err
    assert run(f"{TRAIN} --resume")[0] == 0
    resumed = ao.load("model").model_.state_dict()
    assert os.listdir(tmp_path / "home" / "runs") == []
    assert run(f"{TRAIN} --force")[0] == 0
    for name, tensor in ao.load("model").model_.state_dict().items():
        assert torch.equal(tensor, resumed[name]), name


def test_a_forced_run_that_is_interrupted_may_be_resumed_over_the_old_model(run, here, monkeypatch):
    save, words = commands.save, f"{TRAIN} --seed 7"

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "save", stop)
    assert run(f"{words} --force")[0] != 0
    monkeypatch.setattr(commands, "save", save)
    assert run(f"{words} --resume")[0] == 0
    assert ao.load("model").random_state == 7


def test_force_never_replaces_what_is_no_model(run, here):
    (here / "thesis").mkdir()
    (here / "thesis" / "chapter.txt").write_text("precious")
    words = TRAIN.replace("--out model", "--out thesis")
    status, _, err = run(f"{words} --force")
    assert status == 2
    assert "is not a model folder, so --force does not replace it" in err
    assert (here / "thesis" / "chapter.txt").read_text() == "precious"


CALLS = {
    "predict": (
        "model t.csv --out p.csv --orderings 3 --force",
        "anyorder.commands.predict_table",
        ("model", "t.csv", "p.csv"),
        {"orderings": 3, "force": True},
    ),
    "audit": (
        "model t.csv --out a.html --samples 7 --orderings 5 --seconds 2.5 --seed 3 --force",
        "anyorder.commands.audit_table",
        ("model", "t.csv", "a.html"),
        {"samples": 7, "orderings": 5, "seconds": 2.5, "seed": 3, "force": True},
    ),
    "export": (
        "model --onnx m.onnx --force",
        "anyorder.commands.export_model",
        ("model", "m.onnx"),
        {"force": True},
    ),
    "data fetch": ("mnist --trust", "anyorder.paper.sources.fetch", ("mnist",), {"trust": True}),
    "reproduce": (
        "parity --scale smoke --jobs 2 --engine ray --address head:6379 --cpus 3 --gpus 0.5 --out rows --only gru,sire "
        "--seeds 4 --dry-run",
        "anyorder.paper.reproduce.reproduce",
        ("parity", "smoke"),
        {
            "out": "rows",
            "jobs": 2,
            "engine": "ray",
            "address": "head:6379",
            "cpus": 3,
            "gpus": 0.5,
            "only": ["gru", "sire"],
            "seeds": 4,
            "dry_run": True,
        },
    ),
}


@pytest.mark.parametrize("command", CALLS)
def test_every_word_of_a_command_arrives_where_the_work_is_done(run, here, monkeypatch, command):
    words, function, arguments, options = CALLS[command]
    calls = []
    monkeypatch.setattr(function, lambda *given, **named: calls.append((given, named)))
    status, _, err = run(f"{command} {words}")
    assert status == 0, err
    assert calls == [(arguments, options)]


def test_names_may_stand_apart_from_their_commas(run, here, monkeypatch):
    words = [*TRAIN.split(), "--force", "--features", " dose , drug "]
    monkeypatch.setattr(sys, "argv", ["anyorder", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert [feature.name for feature in TableModel.open("model").schema.features] == ["dose", "drug"]


BAD_TABLES = {
    "missing file": (None, "t.csv does not exist"),
    "wrong columns": (visits().rename(columns={"visit": "id"}), "has no column 'visit'; its columns are id, dose"),
    "empty table": (visits().iloc[:0], "t.csv has no rows"),
    "varying target": (visits(outcome=lambda r: ["up", "down"] * (len(r) // 2) + ["up"] * (len(r) % 2)), "inside set"),
    "one class": (visits(outcome="up"), "one class only"),
    "NaN": (visits(dose=lambda r: [None, *r["dose"][1:]]), "feature 'dose' is missing in row 1"),
    "infinity": (visits(dose=lambda r: [np.inf, *r["dose"][1:]]), "feature 'dose' is infinite in row 1"),
    "text": (visits(dose=lambda r: ["much", *r["dose"][1:]]), "feature 'dose' holds text among its numbers: 'much'"),
    "whole numbers": (visits(outcome=lambda r: (r["outcome"] == "up") * 1), "--task classification or --task regr"),
}


EARLY = ["--epochs 0", "--learning-rate 0", "--cell gruu", "--validation-fraction 1", "--hidden 10000000"]


@pytest.mark.parametrize("option", EARLY)
def test_bad_settings_are_told_before_the_table_is_read(run, tmp_path, monkeypatch, option):
    visits().to_csv("t.csv", index=False)
    monkeypatch.setattr(commands, "learn_table", lambda *a, **k: pytest.fail("the table was read"))
    assert run(f"{TRAIN} {option}")[0] == 2


def test_the_models_offered_are_those_that_can_be_trained(run, tmp_path):
    visits().to_csv("t.csv", index=False)
    _, _, err = run(f"{TRAIN} --model bert")
    assert "'deepsets'" in err
    assert "standardised" not in err


@pytest.mark.parametrize(
    "words",
    [
        TRAIN.replace("--out model", "--out t.csv/below/model"),
        "predict model t.csv --out t.csv/p.csv",
        "audit model t.csv --out t.csv/a.html",
        "export model --onnx t.csv/m.onnx",
        "demo --out t.csv/page",
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_the_work(run, here, monkeypatch, words):
    for work in ("learn_table", "open_model", "export_onnx"):
        monkeypatch.setattr(commands, work, lambda *a, **k: pytest.fail("the work was begun"))
    monkeypatch.setattr(demo, "SetRegressor", lambda **k: pytest.fail("the work was begun"))
    status, _, err = run(words)
    assert status == 2
    assert "t.csv" in err
    assert "Not a directory" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["prediction", "probability_up"])
def test_a_set_id_that_predict_would_write_over_is_refused(run, tmp_path, name):
    visits().rename(columns={"visit": name}).to_csv("t.csv", index=False)
    status, _, err = run(TRAIN.replace("--set-id visit", f"--set-id {name}"))
    assert status == 2
    assert f"the set-id column is called '{name}', as is a column that anyorder predict writes" in err
    assert not (tmp_path / "model").exists()


def test_a_class_whose_rows_are_all_dropped_leaves_a_model_that_opens(run, tmp_path):
    rows = visits(30)
    rows.loc[rows["visit"] == 3, ["dose", "outcome"]] = [None, "lost"]
    rows.to_csv("t.csv", index=False)
    assert run(f"{TRAIN} --missing drop-row")[0] == 0
    assert run("predict model t.csv --out p.csv")[0] == 0
    assert list(pd.read_csv("p.csv")) == ["visit", "prediction", "probability_down", "probability_up"]


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_end_in_one_line_and_status_2(run, tmp_path, case):
    rows, message = BAD_TABLES[case]
    if rows is not None:
        rows.to_csv("t.csv", index=False)
    status, _, err = run(TRAIN)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("anyorder: ")
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "home").exists()


BAD_WORDS = {
    "existing model": (TRAIN, "model exists; choose another --out, or replace it with --force"),
    "both": (f"{TRAIN} --resume --force", "choose one"),
    "missing": (f"{TRAIN} --force --missing ignore", "missing must be one of"),
    "task": (f"{TRAIN} --force --task ranking", "task must be one of"),
    "model": (f"{TRAIN} --force --model bert", "--model must be one of"),
    "option": (f"{TRAIN} --force --model deepsets", "a deepsets model has no option --hidden"),
    "cell": (f"{TRAIN} --force --cell grru", "did you mean 'gru'"),
    "weight": (f"{TRAIN} --force --penalty-weight much", "--penalty-weight (a number or auto) must be a number"),
    "negative weight": (f"{TRAIN} --force --penalty-weight=-1", "must be at least 0"),
    "epochs": (f"{TRAIN} --force --epochs 0", "epochs must be at least 1"),
    "rate": (f"{TRAIN} --force --learning-rate 0", "--learning-rate must be above 0"),
    "hidden": (f"{TRAIN} --force --hidden 10000000", "does not fit into this machine's memory"),
    "endless hidden": (f"{TRAIN} --force --hidden 10000000000000", "does not fit into this machine's memory"),
    "fraction": (f"{TRAIN} --force --validation-fraction 1", "--validation-fraction must be below 1"),
    "seed": (f"{TRAIN} --force --seed=-1", "--seed must be at least 0"),
    "feature": (f"{TRAIN} --force --features dosee", "did you mean 'dose'"),
    "unlabeled": (f"{TRAIN} --force --unlabeled other.csv", "other.csv has no column 'drug'"),
    "no model": ("predict nowhere t.csv --out p.csv", "there is no model folder nowhere"),
    "other features": ("predict model other.csv --out p.csv", "has no column 'drug'"),
    "text at predict": ("predict model text.csv --out p.csv", "feature 'dose' holds text among its numbers: 'lots'"),
    "gap at predict": ("predict model gap.csv --out p.csv", "feature 'dose' is missing in rows 1, 2, 3"),
    "existing output": ("predict model t.csv --out t.csv", "t.csv exists; choose another file"),
    "strange output": ("predict model t.csv --out p.xlsx", "p.xlsx must end in .csv or .parquet"),
    "existing page": ("audit model t.csv --out page.html", "page.html exists"),
    "strange page": ("audit model t.csv --out page", "page must end in .html"),
    "samples": ("audit model t.csv --samples 0 --out a.html", "--samples must be at least 1"),
    "orderings": ("audit model t.csv --orderings 0 --out a.html", "--orderings must be at least 1"),
    "folder as output": ("predict model t.csv --out folder.csv --force", "folder.csv is a folder; choose another file"),
    "first seed beyond": (f"audit model t.csv --seed {2**32} --out a.html", "--seed must be at most 4294967295"),
    "audit seed": (f"audit model t.csv --seed {2**70} --out a.html", "--seed must be at most 4294967295"),
    "strange label": ("audit model strange.csv --out a.html", "holds 'sideways', which is none of the model's classes"),
    "figures in the model": (
        f"{TRAIN} --force --tensorboard model/tb",
        "--tensorboard model/tb is in the model folder",
    ),
    "figures as the model": (f"{TRAIN} --force --tensorboard ./model", "which holds nothing but the model"),
    "train seed": (f"{TRAIN} --force --seed {2**32}", "--seed must be at most 4294967295"),
    "endless window": (
        f"{TRAIN} --force --penalty-window {10**30}",
        "--penalty-window must be at most 9223372036854775807",
    ),
    "endless pieces": (f"{TRAIN} --force --truncate {10**30}", "--truncate must be at most 9223372036854775807"),
    "endless shuffle": (f"{TRAIN} --force --shuffle-within {10**30}", "--shuffle-within must be at most"),
    "beyond hidden": (f"{TRAIN} --force --hidden {10**20}", "--hidden must be at most 9223372036854775807"),
    "largest hidden": (f"{TRAIN} --force --hidden {2**63 - 1}", "does not fit into this machine's memory"),
    "existing graph": ("export model --onnx m.onnx", "m.readout.onnx exists"),
    "strange graph": ("export model --onnx m.pt", "must end in .onnx"),
}


def test_figures_in_the_model_folder_are_refused_in_python_too(here):
    columns = {"set_id": "visit", "target": "outcome"}
    for folder in (here / "new", here / "new" / "tb"):
        with pytest.raises(ao.checks.InputError, match=r"is in the model folder .*choose a folder outside it"):
            commands.train_table(here / "t.csv", here / "new", columns=columns, settings={"tensorboard": folder})
    assert not (here / "new").exists()


def test_ids_that_are_no_text_go_to_parquet_alone(run, here, monkeypatch):
    names = visits()["visit"].map(lambda i: bytes([255, 254, i]) * 5)
    visits().assign(visit=names).to_parquet("t.parquet")
    assert run("predict model t.parquet --out p.parquet")[0] == 0
    assert pd.read_parquet("p.parquet")["visit"].tolist() == names.unique().tolist()
    monkeypatch.setattr(TableModel, "outputs", lambda *a: pytest.fail("the work was begun"))
    status, _, err = run("predict model t.parquet --out p.csv")
    assert status == 2
    assert "the set ids of t.parquet are of type binary, which cannot be written as text to p.csv" in err
    assert "ends in .parquet" in err
    assert err.count("\n") == 1


def test_models_to_compare_are_all_looked_at_before_the_first_is_audited(run, here, monkeypatch):
    monkeypatch.setattr(commands, "audit", lambda *a, **k: pytest.fail("the work was begun"))
    shutil.copytree("model", "bad")
    (here / "bad" / "config.json").write_text("{")
    status, _, err = run("audit model bad t.csv --out a.html")
    assert status == 2
    assert "the model folder bad is damaged" in err


@pytest.mark.parametrize("case", BAD_WORDS)
def test_bad_words_end_in_one_line_and_status_2(run, here, case):
    visits().drop(columns="drug").to_csv("other.csv", index=False)
    visits(dose=lambda r: ["lots", *r["dose"][1:]]).to_csv("text.csv", index=False)
    visits(dose=None).to_csv("gap.csv", index=False)
    visits(outcome="sideways").to_csv("strange.csv", index=False)
    (here / "m.readout.onnx").write_text("")
    (here / "page.html").write_text("")
    (here / "folder.csv").mkdir()
    before = {p: p.read_bytes() for p in here.rglob("*") if p.is_file()}
    words, message = BAD_WORDS[case]
    status, _, err = run(words)
    assert status == 2, err
    assert message in err
    assert err.splitlines()[-1].startswith("anyorder: ")
    assert {p: p.read_bytes() for p in here.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", b"\x80\x04K\x01.", "says"),
        ("model.safetensors", b"", "says"),
        ("config.json", b"{", "config.json is not JSON"),
        ("config.json", b"{}", "another kind of model"),
    ],
)
@pytest.mark.parametrize("words", ["predict model t.csv --out p.csv", "audit model t.csv --out a.html"])
def test_a_damaged_model_ends_in_one_line_and_status_2(run, here, words, file, content, message):
    (here / "model" / file).write_bytes(content)
    status, _, err = run(words)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


def _table(config):
    return config["preprocessing"]["table"]


DAMAGES = {
    "preprocessing text": lambda c: c.update(preprocessing="x"),
    "preprocessing list": lambda c: c.update(preprocessing=[1]),
    "table list": lambda c: c["preprocessing"].update(table=[1]),
    "classes lists": lambda c: _table(c).update(classes=[["a"], {}]),
    "no classes": lambda c: _table(c).update(classes=None),
    "no task": lambda c: _table(c).update(task=None),
    "no task nor classes": lambda c: _table(c).update(task=None, classes=None),
    "other task": lambda c: _table(c).update(task="regression"),
    "huge mean": lambda c: _table(c)["features"][0].update(mean=10**400),
    "model list": lambda c: c["model"].update(name=["a"]),
    "model object": lambda c: c["model"].update(name={"a": 1}),
    "estimator list": lambda c: c["estimator"].update(name=["x"]),
    "other estimator": lambda c: c["estimator"].update(name="SetRegressor"),
    "endless seed": lambda c: c["estimator"]["details"]["fitted"].update(seed=float("inf")),
    "huge seed": lambda c: c["estimator"]["details"]["fitted"].update(seed=2**70),
    "endless weights": lambda c: c["weights"].update(bytes=float("inf")),
    "orderings": lambda c: c["model"]["config"]["options"].update(orderings=10**12),
    "saved classes": lambda c: c.update(classes={"a": 1}),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_an_edited_configuration_ends_in_one_line_and_status_2(run, here, case):
    config = json.loads((here / "model" / "config.json").read_text())
    DAMAGES[case](config)
    (here / "model" / "config.json").write_text(json.dumps(config))
    status, _, err = run("predict model t.csv --out p.csv")
    assert status == 2
    assert "the model folder model is damaged" in err
    assert err.count("\n") == 1


def test_a_schema_that_does_not_fit_its_model_is_refused(run, here):
    config = json.loads((here / "model" / "config.json").read_text())
    config["preprocessing"]["table"]["features"].pop()
    (here / "model" / "config.json").write_text(json.dumps(config))
    status, _, err = run("predict model t.csv --out p.csv")
    assert status == 2
    assert "its table does not fit its model" in err


def interrupted_after(monkeypatch, checkpoints):
    """Training that writes so many checkpoints, one a step, and is then stopped from the keyboard."""
    written = []

    def due(self):
        if len(written) == checkpoints:
            raise KeyboardInterrupt
        written.append(self.path)
        return True

    monkeypatch.setattr(Checkpoint, "due", due)


@pytest.mark.parametrize(
    ("checkpoints", "message"),
    [(0, "before the first checkpoint; the same command starts afresh"), (1, "with --resume goes on")],
)
def test_stopping_a_run_says_how_to_go_on(run, tmp_path, monkeypatch, checkpoints, message):
    visits().to_csv("t.csv", index=False)
    with monkeypatch.context() as patch:
        interrupted_after(patch, checkpoints)
        status, out, err = run(TRAIN)
    assert status == 130
    assert message in out
    assert "Traceback" not in err
    assert run(f"{TRAIN} --resume" if checkpoints else TRAIN)[0] == 0


def test_a_run_that_cannot_be_resumed_here_is_kept(run, tmp_path, monkeypatch):
    visits().to_csv("t.csv", index=False)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 1)
        run(TRAIN)
    (checkpoint,) = (tmp_path / "home").rglob("*.safetensors")
    tensors, metadata = load_tensors(checkpoint)
    metadata["run"]["processes"] = 2
    save_tensors(checkpoint, tensors, metadata)
    status, _, err = run(f"{TRAIN} --resume")
    assert status == 2
    assert "another processes: 2 there, 1 here" in err
    assert checkpoint.exists()


def test_nothing_to_resume_is_said_with_what_differs(run, tmp_path, monkeypatch):
    visits().to_csv("t.csv", index=False)
    status, _, err = run(f"{TRAIN} --resume")
    assert status == 2
    assert "there is nothing to resume: no run for model is unfinished; leave --resume out to start afresh" in err
    for name, content in {"a": "", "b": '["t.csv", nu'}.items():  # what a full disk leaves of a run's notes
        (tmp_path / "home" / "runs" / name).mkdir(parents=True)
        (tmp_path / "home" / "runs" / name / "asked.json").write_text(content)
    assert "no run for model is unfinished" in run(f"{TRAIN} --resume")[2]
    with monkeypatch.context() as patch:
        interrupted_after(patch, 1)
        run(TRAIN)
    status, _, err = run(f"{TRAIN} --resume --hidden 5 --cell lstm --seed 1")
    assert status == 2
    assert "the unfinished run for model was started without --cell, with --hidden 4, with --seed 0" in err
    _, _, err = run(f"{TRAIN} --resume --shuffle --clip none --penalty-window 2 --truncate 3")
    words = "--clip, without --penalty-states, without --penalty-window, without --shuffle, without --truncate"
    assert f"the unfinished run for model was started without {words};" in err
    assert "was started without --shuffle-within;" in run(f"{TRAIN} --resume --shuffle-within 2")[2]
    shutil.copy("t.csv", "other.csv")
    assert "was of another table" in run(f"{TRAIN.replace('t.csv', 'other.csv')} --resume")[2]
    visits(25).to_csv("t.csv", index=False)
    assert "t.csv has changed since the unfinished run" in run(f"{TRAIN} --resume")[2]


def test_a_table_changed_since_is_noticed_whatever_its_size(run, tmp_path, monkeypatch):
    visits().to_csv("t.csv", index=False)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 1)
        run(TRAIN)
    table = tmp_path / "t.csv"
    before = table.stat()
    table.write_text(table.read_text().replace("0,", "1,", 1))
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert table.stat().st_size == before.st_size
    assert "t.csv has changed since the unfinished run" in run(f"{TRAIN} --resume")[2]


def test_force_starts_afresh_whatever_the_unfinished_run_left(run, tmp_path, monkeypatch):
    visits().to_csv("t.csv", index=False)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 1)
        run(TRAIN)
    (checkpoint,) = (tmp_path / "home").rglob("*.safetensors")
    checkpoint.write_bytes(b"damaged")
    assert "checkpoint.safetensors is damaged" in run(f"{TRAIN} --resume")[2]
    status, _, err = run(f"{TRAIN} --force")
    assert status == 0, err


def test_an_unfinished_run_is_known_by_its_place_and_all_it_reads(run, tmp_path, monkeypatch):
    visits().to_csv("t.csv", index=False)
    visits(6, seed=5).drop(columns="outcome").to_csv("more.csv", index=False)
    words = TRAIN.replace("--out model", "--out a/model")
    with monkeypatch.context() as patch:
        interrupted_after(patch, 1)
        run(f"{words} --unlabeled more.csv")
    for others in (words, TRAIN.replace("--out model", "--out b/model --unlabeled more.csv")):
        status, _, err = run(others)
        assert status == 0, err
    shutil.rmtree("a/model")
    assert run(f"{words} --unlabeled more.csv --resume")[0] == 0


def test_a_resumed_run_replaces_a_model_only_if_it_was_started_to(run, here, monkeypatch):
    shutil.move("model", "elsewhere")
    words = f"{TRAIN} --seed 7"
    with monkeypatch.context() as patch:
        interrupted_after(patch, 1)
        run(words)
    shutil.move("elsewhere", "model")
    status, _, err = run(f"{words} --resume")
    assert status == 2
    assert "model exists; choose another --out, or replace it with --force" in err
    assert ao.load("model").random_state == 0


def test_a_run_without_a_checkpoint_is_not_said_to_be_unfinished(run, tmp_path, monkeypatch):
    visits().to_csv("t.csv", index=False)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 1)
        run(TRAIN)
    (checkpoint,) = (tmp_path / "home").rglob("*.safetensors")
    checkpoint.unlink()
    assert "no run for model is unfinished" in run(f"{TRAIN} --seed 1 --resume")[2]


def test_a_training_that_is_refused_leaves_no_run_behind(run, tmp_path):
    visits(outcome=lambda r: r.groupby("visit")["dose"].transform("sum")).to_csv("t.csv", index=False)
    status, _, err = run(f"{TRAIN} --learning-rate 1e30 --validation-fraction 0")
    assert status == 2
    assert "training diverged" in err
    assert os.listdir(tmp_path / "home" / "runs") == []


def test_a_trained_model_knows_nothing_of_where_it_was_trained(trained):
    model = ao.load(trained / "model")
    assert (model.workdir, model.verbose) == (None, False)


def test_a_model_that_knows_no_table_cannot_read_one(run, here):
    ao.save(ao.RecurrentSetModel(3, 2), "plain")
    status, _, err = run("predict plain t.csv --out p.csv")
    assert status == 2
    assert "was not trained on a table" in err
