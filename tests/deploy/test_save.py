"""Model folders: what is saved comes back, all or nothing, and no folder runs code."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from anyorder.deploy.save import open_model
from anyorder.files import NO_DIGEST, tensors_from_bytes, tensors_to_bytes, with_digest
from anyorder.models import MODELS

FORMS = {
    "lstm": lambda: ao.RecurrentSetModel(3, 2, cell="lstm", layers=2, encoder=(5,), readout=(4,), gate_bias_span=20),
    "relu": lambda: ao.RecurrentSetModel(3, 2, cell="relu", hidden=5, state_features=4, learned_start=False),
    "embedding": lambda: ao.RecurrentSetModel(1, 2, embedding=(9, 4, "frozen")),
    "double": lambda: ao.RecurrentSetModel(3, 2).double(),
    "max": lambda: ao.DeepSets(3, 2, phi=(4,), pooling="max"),
    "pairs": lambda: ao.JanossyPooling(3, 2, k=2),
    "large seed": lambda: ao.JanossyPooling(3, 2, hidden=2, orderings=3, seed=2**40),
    "many orderings of few weights": lambda: ao.RecurrentSetModel(3, 2, hidden=1, orderings=400),
    "large sets": lambda: MODELS["multi-aggregation"](3, 2, typical_size=1e9),
    **{name: lambda name=name: MODELS[name](3, 2) for name in sorted(MODELS)},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_model_comes_back_with_the_same_outputs(tmp_path, form):
    model = FORMS[form]().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    before = torch.random.get_rng_state()
    ao.save(model, tmp_path / "model")
    again = ao.load(tmp_path / "model")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not again.training
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in model.parameters()]
    assert sorted(os.listdir(tmp_path / "model")) == ["config.json", "model.safetensors"]
    assert os.listdir(tmp_path) == ["model"]
    size = 784 if model.name == "cnn" else 6
    elements = torch.randn(4, size, model.in_features, dtype=next(model.parameters()).dtype)
    elements = torch.randint(9, (4, size, 1)) if form == "embedding" else elements
    with torch.no_grad():
        assert torch.equal(again(elements), model(elements))


def test_each_weight_keeps_its_precision(tmp_path):
    for change in (torch.nn.Module.float, torch.nn.Module.bfloat16, lambda model: model.inner.half()):
        model = MODELS["standardised"](3, 2).eval()
        change(model)
        ao.save(model, tmp_path / "m")
        kinds = {name: value.dtype for name, value in model.state_dict().items()}
        assert {name: value.dtype for name, value in ao.load(tmp_path / "m").state_dict().items()} == kinds
    assert set(kinds.values()) == {torch.float16, torch.float64}


def test_what_is_kept_beside_the_weights_comes_back(tmp_path):
    kept = {"mean": [1.5], "names": ["é", "b"]}
    ao.save(ao.RecurrentSetModel(3, 2), tmp_path / "m", preprocessing=kept, log=[{"epoch": 0}, {"epoch": 1}])
    saved = open_model(tmp_path / "m")
    assert saved.estimator is None
    assert saved.preprocessing == kept
    assert (tmp_path / "m" / "log.jsonl").read_text() == '{"epoch": 0}\n{"epoch": 1}\n'
    config = json.loads((tmp_path / "m" / "config.json").read_text(encoding="utf-8"))
    assert (config["anyorder_version"], config["model"]["name"]) == (ao.__version__, "recurrent")


def test_an_estimator_comes_back_fitted(tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 4, 2))
    regressor = ao.SetRegressor(model_options={"hidden": 4}, epochs=3, random_state=0).fit(X, X.sum((1, 2)))
    ao.save(regressor, tmp_path / "m")
    assert np.array_equal(ao.load(tmp_path / "m").predict(X), regressor.predict(X))
    for damaged in ({"parameters": {"exec": 1}, "fitted": {}}, {}):
        edit(estimator__details=damaged)(tmp_path / "m")
        with pytest.raises(InputError, match="damaged"):
            ao.load(tmp_path / "m")


# Places -----------------------------------------------------------------------------------------------------------


def test_saving_again_replaces_a_model_but_never_other_files(tmp_path):
    first, second = ao.RecurrentSetModel(3, 2), ao.DeepSets(3, 2)
    ao.save(first, tmp_path / "m")
    ao.save(second, tmp_path / "m")
    assert ao.load(tmp_path / "m").name == "deepsets"
    (tmp_path / "m" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("")
    for place in ("m", "file"):
        with pytest.raises(InputError, match=rf"{place} exists"):
            ao.save(first, tmp_path / place)
    assert (tmp_path / "m" / "thesis.txt").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["file", "m"]


@pytest.mark.skipif(sys.platform == "win32", reason="the size limit is a POSIX call")
def test_a_model_that_does_not_fit_on_the_disk_leaves_the_last_one(tmp_path):
    ao.save(ao.DeepSets(3, 2), tmp_path / "m")
    script = f"""
import resource, signal
import anyorder as ao
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    ao.save(ao.RecurrentSetModel(3, 2, hidden=100), {str(tmp_path / "m")!r})
except OSError as error:
    raise SystemExit(error.errno)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == errno.EFBIG
    assert ao.load(tmp_path / "m").name == "deepsets"
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("kind", ["nowhere", "a file"])
def test_what_is_no_model_folder_is_named(tmp_path, kind):
    (tmp_path / "a file").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match=kind):
        ao.load(tmp_path / kind)


# What cannot be rebuilt -------------------------------------------------------------------------------------------


class Doubled(ao.RecurrentSetModel):
    def forward(self, elements, lengths=None, **options):
        return 2 * super().forward(elements, lengths, **options)


def changed(change):
    model = MODELS["standardised"](3, 2)
    change(model)
    return model


def with_sigmoid(model):
    model.inner.readout.head = torch.nn.Sequential(model.inner.readout.head[0], torch.nn.Sigmoid())


NOT_SAVED = {
    "module": (lambda: torch.nn.Linear(1, 1), "Linear"),
    "own class": (lambda: Doubled(3, 2), "Doubled"),
    "own encoder": (lambda: ao.RecurrentSetModel(3, 2, encoder=torch.nn.Linear(3, 3)), "encoder"),
    "changed head": (lambda: changed(with_sigmoid), "changed"),
    "mixed": (lambda: changed(lambda model: model.inner.readout.double()), "dtype"),
    "not a number": (lambda: changed(lambda model: model.inner.readout.head[0].bias.data.fill_(math.nan)), "finite"),
    "changed inside": (lambda: changed(lambda model: setattr(model, "inner", Doubled(3, 2))), "changed"),
}


@pytest.mark.parametrize("case", NOT_SAVED)
def test_a_model_that_would_come_back_as_another_is_not_saved(tmp_path, case):
    make, match = NOT_SAVED[case]
    with pytest.raises((InputError, InputTypeError), match=match):
        ao.save(make(), tmp_path / "m")
    with pytest.raises(TypeError, match="JSON"):
        ao.save(ao.DeepSets(3, 2), tmp_path / "m", preprocessing={"bad": object()})
    assert os.listdir(tmp_path) == []


# Damaged and hostile folders --------------------------------------------------------------------------------------


def edit(**changes):
    def apply(folder):
        config = json.loads((folder / "config.json").read_text())
        for dotted, value in changes.items():
            *path, last = dotted.split("__")
            part = config
            for name in path:
                part = part[name]
            part[last] = value
        (folder / "config.json").write_bytes(with_digest(json.dumps({**config, "digest": NO_DIGEST}).encode()))

    return apply


def weights(data):
    """Other weights, in a folder that names their true hash."""

    def apply(folder):
        (folder / "model.safetensors").write_bytes(data)
        edit(sha256=hashlib.sha256(data).hexdigest())(folder)

    return apply


def config(data):
    return lambda folder: (folder / "config.json").write_bytes(data)


def other_weights(change):
    """Changed weights, in files that name their true hashes."""

    def apply(folder):
        tensors, _ = tensors_from_bytes((folder / "model.safetensors").read_bytes())
        weights(tensors_to_bytes({name: change(name, tensor) for name, tensor in tensors.items()}))(folder)

    return apply


def grow(folder):
    with open(folder / "config.json", "ab") as file:
        file.truncate(1 << 33)  # a sparse file of eight gigabytes


HOSTILE = {
    "pickle renamed": (weights(pickle.dumps(os.system)), "pickle"),
    "absurd header": (weights(struct.pack("<Q", 2**60) + b"{}"), "model.safetensors"),
    "missing weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    "missing config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "config not JSON": (config(b"{"), "damaged"),
    "config too deep": (config(b"[" * 100_000), "damaged"),
    "config of others": (config(b'{"model_type": "bert"}'), "damaged"),
    "config a list": (config(b"[]"), "damaged"),
    "config huge": (grow, "damaged"),
    "newer version": (edit(format_version=99, anyorder_version="7.0"), r"format_version .*anyorder 7\.0"),
    "unknown model": (edit(model__name="os.system"), "os.system"),
    "model a list": (edit(model__name=["a"]), "model"),
    "no model": (edit(model=None), "damaged"),
    "no weights named": (edit(sha256=None), "SHA-256"),
    "unknown argument": (edit(model__config={"in_features": 3, "out_features": 2, "exec": 1}), "exec"),
    "own cell": (edit(model__config__options__cell="__import__"), "__import__"),
    "memory bomb": (edit(model__config__options__hidden=10**9), "1000000000"),
    "layer bomb": (edit(model__config__options__layers=4096), "4096"),
    "half of it": (other_weights(lambda name, w: w.half() if "weight" in name else w), "dtype"),
    "whole numbers": (other_weights(lambda name, w: w.char()), "dtype"),
    "small floats": (other_weights(lambda name, w: w.to(torch.float8_e5m2)), "model.safetensors"),
    "nan": (other_weights(lambda name, w: w * math.nan), "finite"),
    "width bomb": (edit(model__config__options__encoder=[10**9]), "1000000000"),
    "endless": (edit(model__config__options__orderings=float("inf")), "inf"),
    "shapes": (edit(model__config__options__hidden=65), "size mismatch"),
    "unknown estimator": (edit(estimator={"name": "system", "details": {}}), "system"),
    "no estimator": (edit(estimator=[1]), "damaged"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_or_hostile_folder_gives_one_clear_line(tmp_path, case):
    damage, match = HOSTILE[case]
    folder = tmp_path / "model"
    ao.save(MODELS["standardised"](3, 2), folder)
    damage(folder)
    with pytest.raises(InputError, match=match) as caught:
        ao.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
