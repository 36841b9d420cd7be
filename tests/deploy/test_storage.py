from __future__ import annotations

import errno
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from anyorder.deploy import save as storage
from anyorder.deploy.save import (
    load_tensors,
    save_tensors,
    tensors_from_bytes,
    tensors_to_bytes,
    write_atomically,
)
from anyorder.models import MODELS


def test_tensors_and_metadata_come_back_bit_equal(tmp_path):
    tensors = {
        "float": torch.randn(3, 4, dtype=torch.float64),
        "half": torch.randn(2).to(torch.bfloat16),
        "int": torch.arange(5),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "strided": torch.arange(6.0).view(2, 3).T,
    }
    metadata = {"epoch": 3, "history": [{"loss": 0.5, "gap": None}], "nested": {"text": "é\n"}}
    save_tensors(tmp_path / "state.safetensors", tensors, metadata)
    loaded, words = load_tensors(tmp_path / "state.safetensors")
    assert words == metadata
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_no_size_of_header_is_taken_for_another_kind_of_file():
    for size in range(300):  # a header of 128 bytes begins with the byte that begins a pickle
        assert tensors_from_bytes(tensors_to_bytes({"w": torch.ones(1)}, {"pad": "x" * size}))[1]["pad"] == "x" * size


def test_tied_weights_are_stored_once_a_name():
    weight = torch.randn(4)
    loaded, _ = tensors_from_bytes(tensors_to_bytes({"a": weight, "b": weight, "c": weight[:2]}))
    assert torch.equal(loaded["b"], weight)
    assert torch.equal(loaded["c"], weight[:2])


def test_metadata_must_be_json():
    with pytest.raises(TypeError, match="JSON"):
        tensors_to_bytes({}, {"bad": object()})


def test_no_truncated_file_loads(tmp_path):
    whole = tensors_to_bytes({"w": torch.randn(50)}, {"epoch": 1})
    path = tmp_path / "part.safetensors"
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"part\.safetensors is damaged"):
            load_tensors(path)


class Exploit:
    def __reduce__(self):
        return os.system, ("touch /tmp/anyorder-was-fooled",)


def renamed_zip():
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(1)}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(Exploit()), "pickle or a zip archive"),
        (renamed_zip(), "pickle or a zip archive"),
        (struct.pack("<Q", 2**62) + b"{}", "damaged"),
        (struct.pack("<Q", 2) + b"[]", "damaged"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "damaged"),
        (
            struct.pack("<Q", 71) + b'{"w":{"dtype":"F32","shape":[9999999999999],"data_offsets":[0,9999999]}}',
            "damaged",
        ),
        (bytes(range(64)), "damaged"),
        (b"", "damaged"),
    ],
)
def test_hostile_files_give_one_clear_error(tmp_path, data, message):
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        load_tensors(path)
    assert len(str(caught.value)) < 500
    assert not os.path.exists("/tmp/anyorder-was-fooled")


def test_metadata_from_a_stranger_must_be_an_object():
    import safetensors.torch

    stranger = safetensors.torch.save({"w": torch.ones(1)}, {"anyorder": "[1, 2]"})
    with pytest.raises(InputError, match="damaged"):
        tensors_from_bytes(stranger)
    plain = safetensors.torch.save({"w": torch.ones(1)})
    assert tensors_from_bytes(plain)[1] == {}


def test_writing_makes_folders_and_leaves_no_litter(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    write_atomically(path, "first")
    write_atomically(path, "sécond")
    assert path.read_text(encoding="utf-8") == "sécond"
    assert os.listdir(path.parent) == ["file.txt"]


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "No space left"), (errno.EDQUOT, "quota exceeded")])
def test_a_full_disk_says_so_and_keeps_the_last_file(tmp_path, monkeypatch, number, words):
    path = tmp_path / "checkpoint.safetensors"
    save_tensors(path, {"w": torch.ones(2)}, {"epoch": 1})

    def full(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"{words}.*checkpoint"):
        save_tensors(path, {"w": torch.zeros(2)}, {"epoch": 2})
    assert load_tensors(path)[1] == {"epoch": 1}
    assert os.listdir(tmp_path) == ["checkpoint.safetensors"]


@pytest.mark.skipif(sys.platform == "win32", reason="the size limit is a POSIX call")
def test_a_write_the_system_cuts_short_keeps_the_last_file(tmp_path):
    path = tmp_path / "checkpoint.bin"
    write_atomically(path, b"old")
    script = textwrap.dedent(
        f"""
        import resource, signal
        from anyorder.deploy.save import write_atomically
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            write_atomically({str(path)!r}, bytes(100_000))
        except OSError as error:
            print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "checkpoint.bin" in done.stdout
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["checkpoint.bin"]


def test_readers_never_see_half_a_file_while_a_writer_is_killed(tmp_path):
    path = tmp_path / "state.safetensors"
    script = textwrap.dedent(
        f"""
        import torch
        from anyorder.deploy.save import save_tensors
        step = 0
        while True:
            save_tensors({str(path)!r}, {{"w": torch.full((200_000,), float(step))}}, {{"step": step}})
            print(step, flush=True)
            step += 1
        """
    )
    rng = np.random.default_rng(0)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        for _ in range(int(rng.integers(3, 20))):
            writer.stdout.readline()
            tensors, metadata = load_tensors(path)
            assert (tensors["w"] == metadata["step"]).all()
        writer.kill()
    tensors, metadata = load_tensors(path)
    assert (tensors["w"] == metadata["step"]).all()


OTHER_FORMS = {
    "lstm": lambda: ao.RecurrentSetModel(3, 2, cell="lstm", layers=2, encoder=(5,), readout=(4,), gate_bias_span=20),
    "relu": lambda: ao.RecurrentSetModel(3, 2, cell="relu", hidden=5, state_features=4, learned_start=False),
    "embedding": lambda: ao.RecurrentSetModel(1, 2, embedding=(9, 4, "frozen")),
    "max": lambda: ao.DeepSets(3, 2, phi=(4,), pooling="max"),
    "pairs": lambda: ao.JanossyPooling(3, 2, k=2),
    "large seed": lambda: ao.JanossyPooling(3, 2, hidden=2, orderings=3, seed=2**40),
    "many orderings of few weights": lambda: ao.RecurrentSetModel(3, 2, hidden=1, orderings=400),
    "large sets": lambda: MODELS["multi-aggregation"](3, 2, typical_size=1e9),
    **{name: lambda name=name: MODELS[name](3, 2) for name in MODELS},
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_every_model_comes_back_with_the_same_outputs(tmp_path, form):
    model = OTHER_FORMS[form]().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    before = torch.random.get_rng_state()
    ao.save(model, tmp_path / "model")
    again = ao.load(tmp_path / "model")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not again.training
    assert sorted(os.listdir(tmp_path / "model")) == ["config.json", "model.safetensors"]
    assert os.listdir(tmp_path) == ["model"]
    size = 784 if model.name == "cnn" else 6
    elements = torch.randint(9, (4, size, 1)) if form == "embedding" else torch.randn(4, size, model.in_features)
    with torch.no_grad():
        assert torch.equal(again(elements), model(elements))


def test_double_precision_and_what_is_kept_beside_the_weights_come_back(tmp_path):
    model = ao.RecurrentSetModel(3, 2).double()
    kept = {"preprocessing": {"mean": [1.5]}, "classes": ["é", "b"], "extra": {"history": [{"loss": 1.0}]}}
    ao.save(model, tmp_path / "m", **kept)
    saved = storage.open_model(tmp_path / "m")
    assert next(saved.model.parameters()).dtype == torch.float64
    assert saved.estimator is None
    assert {name: getattr(saved, name) for name in kept} == kept
    config = json.loads((tmp_path / "m" / "config.json").read_text(encoding="utf-8"))
    assert config["anyorder_version"] == ao.__version__
    assert config["model"]["name"] == "recurrent"


def test_each_weight_keeps_the_precision_it_was_saved_in(tmp_path):
    model = MODELS["standardised"](3, 2).eval()
    model.inner.readout.double()
    ao.save(model, tmp_path / "m")
    again = ao.load(tmp_path / "m")
    kinds = {name: value.dtype for name, value in model.state_dict().items()}
    assert {name: value.dtype for name, value in again.state_dict().items()} == kinds
    assert set(kinds.values()) == {torch.float32, torch.float64}
    assert all(parameter.requires_grad for parameter in again.parameters())


def test_a_count_saved_as_floating_numbers_loads_as_whole_ones(tmp_path):
    model = ao.DeepSets(3, 2, pooling="mean")
    model.recurrence.start_1 = model.recurrence.start_1.float()  # as it was once kept
    ao.save(model, tmp_path / "m")
    assert ao.load(tmp_path / "m").recurrence.start_1.dtype == torch.int64


def test_an_estimator_comes_back_fitted(tmp_path):
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(int(n), 2)) for n in rng.integers(1, 5, size=30)]
    y = 100 + 10 * np.array([x.sum() for x in X])
    regressor = ao.SetRegressor(model_options={"hidden": 4}, epochs=3, penalty=ao.SubsetPenalty(), random_state=0).fit(
        X, y
    )
    ao.save(regressor, tmp_path / "m")
    again = ao.load(tmp_path / "m")
    assert np.array_equal(again.predict(X), regressor.predict(X))
    assert again.get_params()["penalty"] == ao.SubsetPenalty()
    stream = ao.Stream(again.model_)
    stream.update(X[0])
    assert stream.value().item() == pytest.approx(regressor.predict(X[:1])[0], abs=1e-4)
    _, details = regressor.storage_parts()
    options = {**details, "parameters": {**details["parameters"], "model_options": 3}}
    for damaged in ({"parameters": {"exec": 1}, "fitted": {}}, {}, options):
        edit(estimator__details=damaged)(tmp_path / "m")
        with pytest.raises(InputError, match="its estimator cannot be rebuilt"):
            ao.load(tmp_path / "m")


def test_saving_again_replaces_a_model_but_never_other_files(tmp_path):
    first, second = ao.RecurrentSetModel(3, 2), ao.DeepSets(3, 2)
    ao.save(first, tmp_path / "m")
    ao.save(second, tmp_path / "m")
    assert ao.load(tmp_path / "m").name == "deepsets"
    (tmp_path / "m" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="holds other files than a model's; choose a new folder"):
        ao.save(first, tmp_path / "m")
    assert (tmp_path / "m" / "thesis.txt").read_text() == "precious"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; a model needs a folder of its own"):
        ao.save(first, tmp_path / "file")
    assert sorted(os.listdir(tmp_path)) == ["file", "m"]


def test_a_link_to_a_folder_and_an_empty_folder_are_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    ao.save(ao.DeepSets(3, 2), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert ao.load(tmp_path / "empty").name == "deepsets"


def test_a_full_disk_keeps_the_last_model(tmp_path, monkeypatch):
    ao.save(ao.RecurrentSetModel(3, 2), tmp_path / "m")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        ao.save(ao.DeepSets(3, 2), tmp_path / "m")
    assert ao.load(tmp_path / "m").name == "recurrent"
    assert os.listdir(tmp_path) == ["m"]


def test_a_save_killed_before_it_took_its_name_is_found_again(tmp_path):
    ao.save(ao.RecurrentSetModel(3, 2), tmp_path / "m")
    script = f"""
import os
import anyorder as ao
rename = os.rename
os.rename = lambda *names: (rename(*names), os._exit(9))
ao.save(ao.DeepSets(3, 2), {str(tmp_path / "m")!r})
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    with pytest.raises(InputError, match="a save was cut short; the model is") as caught:
        ao.load(tmp_path / "m")
    named = re.search(r"the model is (\S+), rename", str(caught.value)).group(1)
    assert ao.load(named).name == "deepsets"


def test_a_model_that_cannot_take_its_place_leaves_the_last_one(tmp_path, monkeypatch):
    ao.save(ao.RecurrentSetModel(3, 2), tmp_path / "m")
    rename = os.rename

    def refused(source, target):
        if str(source).endswith(".new"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(PermissionError):
        ao.save(ao.DeepSets(3, 2), tmp_path / "m")
    assert ao.load(tmp_path / "m").name == "recurrent"
    assert os.listdir(tmp_path) == ["m"]


def test_only_models_that_can_be_rebuilt_are_saved(tmp_path):
    with pytest.raises(InputTypeError, match="save takes a set model of anyorder or a fitted estimator; got Linear"):
        ao.save(torch.nn.Linear(1, 1), tmp_path / "m")
    own = ao.RecurrentSetModel(3, 2, encoder=torch.nn.Linear(3, 3))
    with pytest.raises(InputError, match="encoder"):
        ao.save(own, tmp_path / "m")
    with pytest.raises(InputTypeError, match="must be made of JSON values"):
        ao.save(ao.DeepSets(3, 2), tmp_path / "m", extra={"bad": object()})
    assert os.listdir(tmp_path) == []


class Doubled(ao.RecurrentSetModel):
    def forward(self, elements, lengths=None, **options):
        return 2 * super().forward(elements, lengths, **options)


def with_sigmoid(model):
    model.readout.head = torch.nn.Sequential(model.readout.head[0], torch.nn.Sigmoid())
    return model


def with_weight_norm(model):
    torch.nn.utils.parametrizations.weight_norm(model.readout.head[0])
    return model


def with_other_inside(model):
    model.inner = Doubled(3, 2)
    return model


CHANGED = {
    "subclass": (lambda: Doubled(3, 2), "Doubled is a class of your own under the name 'recurrent' of another"),
    "head": (
        lambda: with_sigmoid(ao.RecurrentSetModel(3, 2)),
        r"was changed after it was built \(a module is not what its arg",
    ),
    "parametrised": (
        lambda: with_weight_norm(ao.RecurrentSetModel(3, 2)),
        r"\(readout.head.0.parametrizations.* is not",
    ),
    "inside": (lambda: with_other_inside(MODELS["standardised"](3, 2)), "this Standardised was changed after it was"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_model_that_would_come_back_as_another_is_not_saved(tmp_path, case):
    make, message = CHANGED[case]
    with pytest.raises((InputError, InputTypeError), match=message) as caught:
        ao.save(make(), tmp_path / "m")
    assert "save_tensors" in str(caught.value)
    assert os.listdir(tmp_path) == []


def edit(**changes):
    def apply(folder):
        config = json.loads((folder / "config.json").read_text())
        for dotted, value in changes.items():
            *path, last = dotted.split("__")
            part = config
            for name in path:
                part = part[name]
            part[last] = value
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def weights(data, honest=True):
    """Other weights; an honest-looking folder names their true size and hash."""

    def apply(folder):
        import hashlib

        (folder / "model.safetensors").write_bytes(data)
        if honest:
            edit(weights={"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)})(folder)

    return apply


def flip_a_bit(folder):
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)


def cut_short(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-10])


HOSTILE = {
    "pickle renamed": (weights(pickle.dumps(Exploit())), "pickle or a zip archive"),
    "torch zip renamed": (weights(renamed_zip()), "pickle or a zip archive"),
    "absurd header": (weights(struct.pack("<Q", 2**60) + b"{}"), "damaged or not a safetensors"),
    "wrong hash": (flip_a_bit, "the SHA-256 of model.safetensors is not the one config.json names"),
    "cut short": (cut_short, r"has [\d,]+ bytes, config.json says"),
    "missing weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    "missing config": (lambda f: (f / "config.json").unlink(), "is not a model folder"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
    "config of binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "config.json is not JSON"),
    "config too deep": (lambda f: (f / "config.json").write_text("[" * 100_000), "config.json is not JSON"),
    "config of others": (lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), "another kind of model"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "another kind of model"),
    "no version": (edit(format_version=None), "its format version is None"),
    "newer version": (
        edit(format_version=99, anyorder_version="7.0"),
        r"has format 99, written by anyorder 7\.0; this one, .*, reads formats up to 1: upgrade anyorder",
    ),
    "unknown model": (edit(model__name="os.system"), "holds a model 'os.system', which anyorder .* does not know"),
    "no model": (edit(model=None), "describes no model"),
    "no weights named": (edit(weights={}), "does not say what weights belong to it"),
    "unknown argument": (edit(model__config={"in_features": 3, "out_features": 2, "exec": 1}), "no 'recurrent' model"),
    "own cell": (edit(model__config__cell="__import__"), "no 'recurrent' model can be built"),
    "memory bomb": (edit(model__config__hidden=10**9), "hidden=1000000000 does not fit weights of"),
    "layer bomb": (edit(model__config__layers=10**9), "layers=1000000000 does not fit weights of"),
    "width bomb": (edit(model__config__encoder=[10**9]), "encoder=1000000000 does not fit weights of"),
    "shapes": (edit(model__config__hidden=65), r"should have shape .*, the weights have"),
    "unknown estimator": (edit(estimator={"name": "system", "details": {}}), "names an estimator 'system'"),
    "no estimator": (edit(estimator=[1]), "its estimator is not described"),
    "extra a list": (edit(extra=[1]), "its extra is not a JSON object"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_or_hostile_folder_gives_one_clear_line(tmp_path, case):
    damage, message = HOSTILE[case]
    folder = tmp_path / "model"
    ao.save(ao.RecurrentSetModel(3, 2), folder)
    damage(folder)
    with pytest.raises(InputError, match=message) as caught:
        ao.load(folder)
    assert str(folder) in str(caught.value)
    assert len(str(caught.value)) < 600
    assert not os.path.exists("/tmp/anyorder-was-fooled")


def test_a_bomb_inside_a_model_inside_a_model_is_found(tmp_path):
    ao.save(MODELS["standardised"](3, 2), tmp_path / "m")
    edit(model__config__options__hidden=10**9)(tmp_path / "m")
    with pytest.raises(InputError, match="hidden=1000000000 does not fit weights of"):
        ao.load(tmp_path / "m")


def test_a_huge_config_is_not_read(tmp_path):
    ao.save(ao.RecurrentSetModel(3, 2), tmp_path / "m")
    with open(tmp_path / "m" / "config.json", "ab") as file:
        file.truncate(1 << 33)  # a sparse file: eight gigabytes that take no room
    with pytest.raises(InputError, match=r"config\.json is larger than"):
        ao.load(tmp_path / "m")


def test_no_folder_and_no_model_are_told_apart(tmp_path):
    with pytest.raises(InputError, match="there is no model folder"):
        ao.load(tmp_path / "nowhere")
    (tmp_path / "model.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match="is not a model folder"):
        ao.load(tmp_path / "model.zip")
