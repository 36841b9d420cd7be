"""The command line from end to end, and every bad input: one clear line on stderr, exit status 2."""

from __future__ import annotations

import inspect
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
from commands import ALONE, ANY_MODEL, TRAIN, visits
from typer.main import get_command

import anyorder as ao
from anyorder.cli.app import app

DOCS = Path(__file__).parents[2] / "docs"


# --- the documentation


@pytest.mark.slow
def test_the_page_for_new_users_runs_from_the_csv_to_the_stream(succeed, tmp_path):
    """Write a CSV, train, predict, audit, export, stream the same rows: docs/tables.md, block by block."""
    names: dict = {}
    for kind, block in re.findall(r"```(python|sh)\n(.*?)```", (DOCS / "tables.md").read_text(), re.S):
        if kind == "python":
            exec(compile(block, "docs/tables.md", "exec"), names)
            continue
        for line in block.strip().splitlines():
            out = succeed(line.removeprefix("anyorder "))
            assert ("accuracy" if "evaluate" in line else "wrote") in out
    new = names["rows"][names["rows"]["basket"] >= 250]
    predictions = pd.read_csv("predictions.csv")
    assert list(predictions) == ["basket", "prediction", "probability_large", "probability_small"]
    assert predictions["basket"].tolist() == list(range(250, 300))
    truth = new.groupby("basket")["size"].first()
    assert (predictions["prediction"].to_numpy() == truth.to_numpy()).mean() > 0.8
    last = predictions.iloc[-1][["probability_large", "probability_small"]].to_numpy(dtype=float)
    np.testing.assert_allclose(names["probabilities"].numpy(), last, atol=1e-6)
    likely = predictions[["probability_large", "probability_small"]].to_numpy().argmax(1)
    assert predictions["prediction"].tolist() == [["large", "small"][i] for i in likely]
    assert "<html" in (tmp_path / "audit.html").read_text(encoding="utf-8")

    import onnxruntime

    step, readout = (onnxruntime.InferenceSession(f) for f in ("model.onnx", "model.readout.onnx"))
    words = json.loads(step.get_modelmeta().custom_metadata_map["anyorder"])
    assert words["preprocessing"]["table"] == json.loads(json.dumps(names["schema"].to_dict()))
    state = {name: np.array(value, np.float32) for name, value in words["start"].items()}
    for element in names["schema"].encode(new[new["basket"] == 299]).numpy():
        state = dict(zip(state, step.run(None, {"element": element[None], **state}), strict=True))
    scores = torch.from_numpy(readout.run(None, state)[0][0])
    np.testing.assert_allclose(scores.softmax(0).numpy(), last, atol=1e-6)
    assert os.listdir(tmp_path / "home" / "runs") == []


def test_the_commands_on_the_front_page_run(succeed, tmp_path):
    visits().rename(columns={"visit": "patient"}).to_csv("visits.csv", index=False)
    shutil.copy("visits.csv", "new_visits.csv")
    (block,) = re.findall(r"```sh\n(anyorder train .*?)```", (DOCS.parent / "README.md").read_text(), re.S)
    for line in block.strip().splitlines():
        assert "wrote" in succeed(line.removeprefix("anyorder "))


def test_help_and_slips_do_not_wait_for_torch(tmp_path):
    script = """
import sys
from anyorder.__main__ import main
for words in ("--help", "train --help", "predict --help", "audit --help", "data --help", "--version", "train",
              "train t.csv --nonsense", "train no.csv --set-id a --target b --out m", "trian",
              "train t.csv --set-id a --target b --out there", "train t.csv --set-id a --target b --out m --resume",
              "train t.csv --set-id a --target b --out m --epochs 0", "predict no t.csv --out t.csv"):
    sys.argv = ["anyorder", *words.split()]
    try:
        main()
    except SystemExit as stop:
        assert stop.code == (0 if words.startswith("--") or words.endswith("--help") else 2), words
assert not {"torch", "pandas", "sklearn", "pyarrow"} & sys.modules.keys()
"""
    (tmp_path / "there").mkdir()
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Example:") == 3
    assert done.stderr.count("\n") == 8  # a line for each slip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "there"]


def test_a_missing_extra_is_one_line_that_names_it():
    code = "import sys; sys.modules['typer'] = None; from anyorder.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'anyorder[tables]'" in done.stderr


def test_every_option_says_what_it_does_and_its_default_is_that_of_the_estimator():
    command = get_command(app).commands["train"]
    known = {**inspect.signature(ao.SetRegressor).parameters, **inspect.signature(ao.SetClassifier).parameters}
    known |= inspect.signature(ao.TableModel).parameters
    own = {*inspect.signature(ao.TableModel.fit).parameters, "features", "categorical", "tensorboard"}
    for option in command.params:
        assert option.help or option.name == "help", option.name
        if option.name in known.keys() - own:
            assert option.default == known[option.name].default, option.name
        if option.default is None and not option.required and option.name != "help":
            assert option.show_default, option.name


# --- train


def test_every_option_of_the_training_reaches_it(succeed, table):
    words = "--cell lstm --layers 2 --penalty sire --window 2 --penalty-weight 0.5 --shuffle"
    words += " --optimizer sgd --weight-decay 0.1 --schedule plateau --clip none --mixed-precision no --time dose"
    words += " --batch-size 7 --learning-rate 0.01 --patience 5 --validation-fraction 0.2 --seed 3"
    succeed(f"{TRAIN} {words} --tensorboard board")
    model = ao.load("model")
    expected = {
        "model": "recurrent",
        "model_options": {"cell": "lstm", "hidden": 4, "layers": 2, "dropout": 0.2, "static_dropout": 0.5},
        "penalty": ao.SIRE(window=2, ties=True),
        "penalty_weight": 0.5,
        "shuffle": True,
        "optimizer": "sgd",
        "weight_decay": 0.1,
        "schedule": "plateau",
        "clip": None,
        "mixed_precision": "no",
        "epochs": 2,
        "batch_size": 7,
        "learning_rate": 0.01,
        "patience": 5,
        "validation_fraction": 0.2,
        "random_state": 3,
        "tensorboard": None,  # what was only written down is not part of the model
        "workdir": None,
        "verbose": False,
    }
    assert {name: model.get_params()[name] for name in expected} == expected
    assert [p.name.split(".")[0] for p in (table / "board").iterdir()] == ["events"]
    for words, name, value in (
        ("--penalty sub --penalty-weight 1", "penalty", "sub"),
        ("--shuffle-within 7", "shuffle_within", 7),
        ("--prefixes given", "penalty", ao.SIRE(prefixes="given")),
        ("--truncate 3", "truncate", 3),
        ("--class-weight balanced", "class_weight", "balanced"),
    ):
        succeed(f"{TRAIN} {words} --force")
        assert ao.load("model").get_params()[name] == value


CONFIG = 'table = "t.csv"\nset-id = "visit"\ntarget = "outcome"\nepochs = 1\nhidden = 4\nclip = "none"\n'


def test_a_file_of_options_replaces_defaults_and_the_command_line_wins(succeed, table):
    more = 'features = ["dose"]\npooled = false\nembedding = 3\ndropout = 0.1\n'
    (table / "run.toml").write_text(CONFIG + 'cell = "gru"\n' + more)
    succeed(f"train --config run.toml --out model --hidden 5 {ALONE} --device cpu")
    model = ao.load("model")
    assert model.get_params()["model_options"] == {"cell": "gru", "hidden": 5, "encoder": [3], "dropout": 0.1}
    assert [model.clip, model.epochs, model.device, model.n_features_in_] == [None, 1, "cpu", 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epohs = 3", "a key of run.toml must be one of .*did you mean 'epochs'"),
        ("batch-size = 0", "run.toml, key batch-size: .*--batch-size"),
        ('learning-rate = "fast"', "run.toml, key learning-rate: "),
        ("[train]", "a key of run.toml .*'train'"),
        ("seed =", "run.toml is not a TOML file"),
    ],
)
def test_a_mistake_in_a_file_of_options_names_the_file_and_the_key(refused, table, line, message):
    (table / "run.toml").write_text(CONFIG + line)
    assert re.search(message, refused("train --config run.toml --out model"))


def test_names_may_stand_apart_from_their_commas(succeed, table):
    succeed([*TRAIN.split(), "--features", " dose , drug "])
    features = json.loads((table / "model" / "config.json").read_text())["preprocessing"]["table"]["features"]
    assert [feature["name"] for feature in features] == ["dose", "drug"]


def test_train_says_how_it_read_the_table_and_what_it_kept(succeed, tmp_path):
    rows = visits(when=lambda rows: range(len(rows)), price=lambda rows: [f"{k},5" for k in range(len(rows))])
    rows.to_csv(tmp_path / "t.csv", index=False)
    out = succeed(f"{TRAIN} --time when")
    assert "24 sets of 1 to 4 elements" in out
    assert "drug: read as 2 categories\n" in out
    assert "price: the values look like numbers with a decimal comma" in out
    assert "rows are sorted by when; 0.0% share their time" in out
    rows["when"] //= 2
    rows.to_csv(tmp_path / "t.csv", index=False)
    out = succeed(f"{TRAIN} --time when --force")
    assert re.search(r"when; \d\d\.\d% share their time with another of their set: training ignores their order", out)
    (kept,) = re.findall(r"kept epoch (\d) of 2: validation [\d.]+, order gap [\d.]+", out)
    assert int(kept) == ao.load(tmp_path / "model").best_epoch_ + 1


def test_the_log_of_a_training_is_kept_with_the_model_and_never_read(succeed, table):
    succeed(TRAIN)
    log = table / "model" / "log.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert records == ao.load("model").history_
    assert [r["epoch"] for r in records] == [0, 1]
    assert all(r["validation"] is not None for r in records)
    log.write_bytes(b"\x80\x04K\x01.")
    succeed("predict model t.csv --out p.csv")
    succeed(f"{TRAIN} --force")  # still nothing but a model's files
    assert log.read_text().count("\n") == 2


def test_a_model_that_takes_no_penalty_says_so(succeed, table):
    out = succeed(f"{ANY_MODEL} --model deepsets --penalty-weight 5")
    assert out.count("a deepsets model ignores order by construction and is trained without a penalty") == 1
    assert ao.load("model").penalty is None
    assert "without a penalty" not in succeed(f"{TRAIN} --force")


def test_regression_predicts_numbers_in_their_own_units(succeed, tmp_path):
    rows = visits(60, outcome=lambda r: 1000 + 100 * r.groupby("visit")["dose"].transform("sum"))
    rows.to_csv("t.csv", index=False)
    words = f"--set-id visit --target outcome --epochs 60 --penalty-weight 0.1 {ALONE}"
    succeed(f"train t.csv {words} --features dose --out model")
    succeed("predict model t.csv --out p.csv")
    predictions = pd.read_csv("p.csv")
    assert list(predictions) == ["visit", "prediction"]
    truth = rows.groupby("visit")["outcome"].first().to_numpy()
    assert np.corrcoef(predictions["prediction"], truth)[0, 1] > 0.9
    assert abs(predictions["prediction"].mean() - 1000) < 60
    assert "auditing 20 of 60 sets" in succeed("audit model t.csv --sets 20 --orderings 4 --out a.html")


def test_sets_whose_rows_are_all_dropped_are_predicted_and_not_audited(succeed, tmp_path):
    rows = visits(30)
    rows.loc[rows["visit"] == 3, ["dose", "outcome"]] = [None, "lost"]
    rows.to_csv("t.csv", index=False)
    out = succeed(f"{TRAIN} --missing drop-row")
    assert "29 sets" in out
    assert "rows with missing values are left out" in out
    assert "left out" in succeed("predict model t.csv --out p.csv")
    predictions = pd.read_csv("p.csv")
    assert list(predictions) == ["visit", "prediction", "probability_down", "probability_up"]  # no class "lost"
    assert predictions["visit"].tolist() == list(range(30))
    rows.assign(outcome=rows["outcome"].replace("lost", "up")).to_csv("t.csv", index=False)
    assert "auditing 29 of 30 sets" in succeed("audit model t.csv --orderings 2 --out a.html")


def test_sets_without_a_target_change_what_is_learnt_through_the_penalty(succeed, table):
    visits(40, seed=5).drop(columns="outcome").to_csv("more.csv", index=False)
    succeed(f"{TRAIN} --penalty-weight 1")
    plain = ao.load("model").model_.state_dict()
    assert "40 sets without a target serve the penalty" in succeed(
        f"{TRAIN} --penalty-weight 1 --unlabeled more.csv --force"
    )
    with_more = ao.load("model").model_.state_dict()
    assert torch.equal(plain["mean"], with_more["mean"])
    assert any(not torch.equal(plain[name], with_more[name]) for name in plain)
    for options in ("--penalty-weight 0", "--model deepsets"):
        out = succeed(f"{ANY_MODEL} {options} --unlabeled more.csv --force")
        assert "40 sets without a target are not used" in out


EVENTS = "--set-id stay --target died --time minute --tie-within 1.5 --static age --name parameter --value value"


def stays(sets=60, seed=0):
    """Readings in long form; who is old and has a fast heart dies."""
    rng = np.random.default_rng(seed)
    stay = np.repeat(np.arange(sets), rng.integers(3, 8, sets))
    rows = pd.DataFrame({"stay": stay, "minute": rng.integers(0, 9, len(stay))})
    rows["parameter"] = rng.choice(["HR", "Temp"], len(stay))
    base = rng.normal(80, 10, sets)
    rows["value"] = np.where(rows["parameter"] == "HR", base[stay], 37) + rng.normal(0, 1, len(stay)).round(1)
    rows["age"] = rng.integers(30, 90, sets)[stay]
    rows["died"] = np.where(base[stay] + rows["age"] > 140, "yes", "no")
    return rows


def test_events_go_from_the_long_form_to_figures_an_audit_and_a_graph(succeed, refused, tmp_path):
    stays().to_csv("t.csv", index=False)
    stays(30, seed=1).to_csv("new.csv", index=False)
    out = succeed(f"train t.csv {EVENTS} --epochs 15 --class-weight balanced --out model")
    assert "parameter: read as 2 categories" in out
    assert re.search(r"on 9 sets held out.*\n +this model +its network +pooled boosting +pooled linear\naccuracy ", out)
    model = ao.TableModel.load("model")
    assert model.schema.tie_within == "1.5"
    assert model.estimator.class_weight == "balanced"
    shown = succeed("evaluate model new.csv")
    figures = dict(line.split()[:2] for line in shown.splitlines()[1:])
    expected = model.evaluate("new.csv")
    assert figures == {name: f"{expected[name]:.4g}" for name in figures}
    assert set(figures) == {"accuracy", "log_loss", "auc", "average_precision"}
    said = succeed("audit model new.csv --orderings 4 --out a.html")
    assert re.match("Order (does not matter|makes no practical difference|hardly matters)", said)  # auto sees to that
    assert "= " in (tmp_path / "a.html").read_text(encoding="utf-8")  # HR = 80
    stays().drop(columns="died").to_csv("blind.csv", index=False)
    assert "no target column 'died'" in refused("evaluate model blind.csv")
    counts = stays().assign(died=lambda rows: rows.groupby("stay")["value"].transform("size"))
    counts.to_csv("t.csv", index=False)
    out = succeed(
        f"train t.csv {EVENTS} --task regression --loss poisson --epochs 2 --no-pooled --no-yardstick --out n"
    )
    assert "rmse" in out
    assert "boosting" not in out


# --- predict


def test_predictions_may_be_means_over_orderings(succeed, here):
    for name, words in {"once": "", "again": "--orderings 1", "many": "--orderings 20"}.items():
        succeed(f"predict model t.csv {words} --out {name}.csv")
    once, again, many = (pd.read_csv(f"{name}.csv") for name in ("once", "again", "many"))
    assert once.equals(again)
    probabilities = ["probability_down", "probability_up"]
    expected = ao.TableModel.load("model").predict("t.csv", orderings=20)
    np.testing.assert_allclose(many[probabilities], expected[probabilities], atol=1e-6)
    assert not np.allclose(once["probability_up"], many["probability_up"])


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predict_keeps_ids_ignores_the_target_and_says_what_was_unseen(succeed, here, ending):
    rows = visits(5, seed=1, drug="z", outcome="nonsense")
    rows["visit"] = rows["visit"].map("set,{}".format)
    rows = rows.sample(frac=1, random_state=0)
    rows.to_csv("new.csv", index=False)
    out = succeed(f"predict model new.csv --out p.{ending}")
    assert f"drug: {len(rows)} rows hold a category that the training table did not have" in out
    read = pd.read_csv("p.csv") if ending == "csv" else pd.read_parquet("p.parquet")
    assert read["visit"].tolist() == list(dict.fromkeys(rows["visit"]))
    assert set(read["prediction"]) <= {"up", "down"}
    np.testing.assert_allclose(read["probability_up"] + read["probability_down"], 1, atol=1e-6)


def test_formulas_are_escaped_on_request(succeed, here):
    rows = visits(20)
    rows["visit"] = rows["visit"].map({i: f"={i}+1" if i % 2 else f"@{i}" for i in range(20)})
    rows.to_csv("hostile.csv", index=False)
    succeed("predict model hostile.csv --out plain.csv")
    succeed("predict model hostile.csv --escape-formulas --out safe.csv")
    plain, safe = (pd.read_csv(f"{name}.csv") for name in ("plain", "safe"))
    assert set(plain["visit"].str[0]) == {"=", "@"}
    assert (safe["visit"] == "'" + plain["visit"]).all()
    assert safe.iloc[:, 1:].equals(plain.iloc[:, 1:])


# --- audit


def test_an_audit_needs_no_target(succeed, here):
    visits(6, seed=2).drop(columns="outcome").to_csv("new.csv", index=False)
    assert "Accuracy" not in succeed("audit model new.csv --orderings 4 --out a.html")
    assert "Accuracy" in succeed("audit model t.csv --orderings 4 --out a.html --force")
    assert sorted(p.name for p in here.iterdir()) == ["a.html", "model", "new.csv", "t.csv"]


def test_an_audit_of_several_models_compares_them(succeed, here):
    succeed(f"{ANY_MODEL.replace('--out model', '--out sets')} --model deepsets")
    out = succeed("audit model sets t.csv --design rotations --max-calls 5000 --out both.html")
    assert "sets: Order" in out
    assert "order gap" in out
    page = (here / "both.html").read_text(encoding="utf-8")
    assert "Accuracy against order gap" in page
    assert "2 models compared" in page


def test_models_that_cannot_be_compared_are_refused(succeed, refused, here):
    shutil.copytree("model", "other/model")
    succeed("audit model other/model t.csv --orderings 2 --out a.html")  # called by their paths
    rows = visits().rename(columns={"outcome": "result"})
    rows.assign(outcome=rows["result"]).to_csv("t.csv", index=False)
    succeed(f"train t.csv --set-id visit --target result --features dose --epochs 1 {ALONE} --out result")
    assert "cannot be compared" in refused("audit model result t.csv --out b.html")
    assert "given twice" in refused("audit model model t.csv --out b.html")
    assert "Missing argument" in refused("audit model --out b.html")
    assert not (here / "b.html").exists()


def test_the_page_shows_the_worst_sets_as_they_stand_in_the_table(succeed, here):
    rows = visits(dose=lambda r: (500 + 100 * r["dose"]).round())  # three digits
    rows.to_csv("raw.csv", index=False)
    succeed(f"{TRAIN.replace('t.csv', 'raw.csv')} --force")
    succeed("audit model raw.csv --orderings 4 --out a.html")
    page = (here / "a.html").read_text(encoding="utf-8")
    assert "Element: dose, drug</caption>" in page
    shown = re.findall(r"</strong> ([\d.e+]+), ([xy])</td>", page)
    assert shown
    assert {(f"{dose:.3g}", drug) for dose, drug in zip(rows["dose"], rows["drug"], strict=True)} >= set(shown)


def test_the_sets_of_an_audit_are_drawn_by_its_seed(succeed, here):
    said = [succeed(f"audit model t.csv --sets 6 --orderings 3 --seed {s} --out a.html --force") for s in (1, 1, 2)]
    assert said[0] == said[1] != said[2]


# --- export, data, reproduce


def test_models_without_a_step_are_trained_but_not_exported(succeed, refused, table):
    succeed(f"{ANY_MODEL} --model set-transformer")
    assert "cannot stream" in refused("export model --onnx m.onnx")
    assert not list(table.glob("*.onnx"))


CALLS = {
    "data fetch mnist --trust": ("anyorder.paper.data.sources.fetch", ("mnist",), {"trust": True}),
    "reproduce parity --scale smoke --jobs 2 --engine ray --address head:6379 --cpus 3 --gpus 0.5 --out rows "
    "--only gru,sire --seeds 4 --dry-run": (
        "anyorder.paper.runner.sweep.reproduce",
        ("parity",),
        {
            "scale": "smoke",
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


@pytest.mark.parametrize("words", CALLS, ids=lambda words: words.split()[0])
def test_every_word_of_a_command_arrives_where_the_work_is_done(succeed, monkeypatch, words):
    function, arguments, options = CALLS[words]
    calls = []
    monkeypatch.setattr(function, lambda *given, **named: calls.append((given, named)))
    succeed(words)
    assert calls == [(arguments, options)]


# --- bad input


BAD_WORDS = {
    "an unknown command": ("trian t.csv", "Did you mean 'train'?"),
    "an unknown option": (f"{TRAIN} --set-di visit", "--set-id"),
    "no table": (TRAIN.replace("t.csv", "no.csv"), "no.csv"),
    "existing model": (TRAIN, "model exists"),
    "one class": (TRAIN.replace("t.csv", "strange.csv").replace("model", "new"), "two classes"),
    "the name of a column of predictions": (
        TRAIN.replace("t.csv", "named.csv").replace("visit", "prediction").replace("model", "new"),
        "'prediction'",
    ),
    "both": (f"{TRAIN} --resume --force", "choose one"),
    "nothing to resume": (f"{TRAIN} --resume", "nothing to resume"),
    "missing": (f"{TRAIN} --force --missing ignore", "missing"),
    "task": (f"{TRAIN} --force --task ranking", "task"),
    "model": (f"{TRAIN} --force --model bert", "'deepsets'"),
    "option": (f"{TRAIN} --force --model deepsets", "a deepsets model has no option --hidden"),
    "device": (f"{TRAIN} --force --device cpuu", "device must be one of"),
    "held out by": (f"{TRAIN} --force --validation-by dosee", "did you mean 'dose'"),
    "weights": (f"{TRAIN} --force --weight drug", "'drug'"),
    "loss": (f"{TRAIN} --force --loss quadratic", "loss must be"),
    "value alone": (f"{TRAIN} --force --value dose", "name and value go together"),
    "static": (f"{TRAIN} --force --static dose", "'dose' varies inside a set"),
    "penalty": (f"{TRAIN} --force --penalty subb", "did you mean 'sub'"),
    "window of sub": (f"{TRAIN} --force --penalty sub --window 2", "options of --penalty sire"),
    "random with a window": (f"{TRAIN} --force --prefixes random --window 2", "prefixes"),
    "weight": (f"{TRAIN} --force --penalty-weight much", "--penalty-weight"),
    "negative weight": (f"{TRAIN} --force --penalty-weight=-1", "penalty_weight"),
    "clip": (f"{TRAIN} --force --clip 0", "clip"),
    "truncate without a step": (f"{ANY_MODEL} --force --model set-transformer --truncate 3", "truncate"),
    "feature": (f"{TRAIN} --force --features dosee", "did you mean 'dose'"),
    "unlabeled": (f"{TRAIN} --force --unlabeled other.csv", "drug"),
    "figures in the model": (f"{TRAIN} --force --tensorboard ./model/tb", "is inside the model folder"),
    "below a file": (TRAIN.replace("--out model", "--out t.csv/model"), "t.csv"),
    "no model": ("predict nowhere t.csv --out p.csv", "nowhere is not a model folder"),
    "not a model": ("predict folder.csv t.csv --out p.csv", "folder.csv is not a model folder"),
    "a model without a table": ("predict plain t.csv --out p.csv", "was not trained on a table"),
    "other features": ("predict model other.csv --out p.csv", "drug"),
    "text at predict": ("predict model text.csv --out p.csv", "dose"),
    "existing output": ("predict model t.csv --out t.csv", "t.csv exists; choose another file"),
    "strange output": ("predict model t.csv --out p.xlsx", "p.xlsx must end in .csv or .parquet"),
    "output below a file": ("predict model t.csv --out t.csv/p.csv", "t.csv"),
    "folder as output": ("predict model t.csv --out folder.csv --force", "folder.csv is a folder; choose another file"),
    "existing page": ("audit model t.csv --out page.html", "page.html exists"),
    "strange page": ("audit model t.csv --out page", "page must end in .html"),
    "strange label": ("audit model strange.csv --out a.html", "sideways"),
    "existing graph": ("export model --onnx m.onnx", "m.readout.onnx exists"),
    "strange graph": ("export model --onnx m.pt", "must end in .onnx"),
    "demo below a file": ("demo --out t.csv/page", "t.csv"),
    "experiment": ("reproduce parety", "did you mean 'parity'"),
    "scale": ("reproduce parity --scale laptp", "did you mean 'laptop'"),
    "engine": ("reproduce parity --engine rai", "engine"),
    "data set": ("data where nosuch", "nosuch"),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    ao.save(ao.RecurrentSetModel(3, 2), folder := tmp_path_factory.mktemp("plain") / "plain")
    return folder


@pytest.mark.parametrize("case", BAD_WORDS)
def test_bad_words_end_in_one_line_and_status_2(refused, here, plain, case):
    visits().drop(columns="drug").to_csv("other.csv", index=False)
    visits(dose=lambda r: ["lots", *r["dose"][1:]]).to_csv("text.csv", index=False)
    visits(outcome="sideways").to_csv("strange.csv", index=False)
    visits().rename(columns={"visit": "prediction"}).to_csv("named.csv", index=False)
    shutil.copytree(plain, "plain")
    (here / "m.readout.onnx").write_text("")
    (here / "page.html").write_text("")
    (here / "folder.csv").mkdir()
    before = {p: p.read_bytes() for p in here.rglob("*") if p.is_file()}
    words, message = BAD_WORDS[case]
    assert message in refused(words)
    assert {p: p.read_bytes() for p in here.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("option", ["--learning-rate 0", "--cell gruu", "--schedule steps", "--optimizer sdg"])
def test_bad_settings_are_told_before_the_table_is_read(refused, tmp_path, option):
    (tmp_path / "t.csv").write_text("this is no table")
    assert "must be" in refused(f"{TRAIN} {option}")


@pytest.mark.parametrize(
    "change",
    [
        [1],
        {"classes": None},
        {"classes": ["down", "sideways", "up"]},
        {"features": []},
        {"features": [{"name": "dose", "categories": []}]},
    ],
)
def test_an_edited_schema_ends_in_one_line_and_status_2(refused, here, change):
    config = json.loads((here / "model" / "config.json").read_text())
    kept = config["preprocessing"]
    kept["table"] = {**kept["table"], **change} if isinstance(change, dict) else change
    (here / "model" / "config.json").write_text(json.dumps(config))
    refused("predict model t.csv --out p.csv")
    assert not (here / "p.csv").exists()
