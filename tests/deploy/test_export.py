from __future__ import annotations

import errno
import json
import logging
import os

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder.checks import InputError
from anyorder.deploy import onnx as export
from anyorder.deploy.onnx import export_onnx
from anyorder.models import Standardised
from anyorder.recurrences.trajectory import tree_leaves

FORMS = {
    "gru": lambda: ao.RecurrentSetModel(3, 2, hidden=8, dropout=0.5),
    "deep lstm": lambda: ao.RecurrentSetModel(3, 2, cell="lstm", hidden=8, layers=2, encoder=(5,), readout=(4,)),
    "rnn": lambda: ao.RecurrentSetModel(3, 1, cell="rnn", hidden=8, learned_start=False),
    "embedding": lambda: ao.RecurrentSetModel(1, 2, hidden=8, embedding=(9, 4, "learned")),
    "deepsets max": lambda: ao.DeepSets(3, 2, phi=(5,), pooling="max"),
}


def randomised(form):
    model = FORMS[form]()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model


@pytest.mark.parametrize("form", [form for form in FORMS if form != "rnn"])  # the rnn is in the next test
def test_the_graphs_alone_give_what_the_model_gives(tmp_path, form):
    model = randomised(form).train()
    part = next(model.children()).eval()
    step_path, readout_path, gap = export_onnx(model, tmp_path / "m.onnx", details={"classes": ["a", "b"]})
    assert gap < 1e-5
    assert model.training
    assert not part.training
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.readout.onnx"]
    step, readout = (onnxruntime.InferenceSession(str(p)) for p in (step_path, readout_path))
    words = json.loads(step.get_modelmeta().custom_metadata_map["anyorder"])
    assert words["classes"] == ["a", "b"]
    for batch, length in ((1, 6), (4, 11)):  # neither is the batch the graph was traced with
        kinds = {i.name: np.int64 if "int64" in i.type else np.float32 for i in step.get_inputs()}
        state = {n: np.repeat(np.array(v, kinds[n]), batch, axis=0) for n, v in words["start"].items()}
        elements = torch.randint(9, (batch, length, 1)) if form == "embedding" else torch.randn(batch, length, 3)
        for t in range(length):
            new = step.run(None, {"element": elements[:, t].numpy(), **state})
            state = dict(zip(state, new, strict=True))
        with torch.no_grad():
            expected = model.eval()(elements)
        np.testing.assert_allclose(readout.run(None, state)[0], expected, atol=1e-5, rtol=1e-5)


def test_a_graph_that_disagrees_is_not_written(tmp_path, monkeypatch):
    import onnx

    model = randomised("rnn")
    graphs = [onnx.load(p) for p in export_onnx(model, tmp_path / "m.onnx")[:2]]
    monkeypatch.setattr(export, "_graph", lambda module, *_: graphs[isinstance(module, export._Readout)])
    assert export_onnx(model, tmp_path / "again.onnx")[2] < 1e-5
    with torch.no_grad():
        model.recurrence.module.weight_hh_l0.mul_(1.001)
    with pytest.raises(InputError, match=r"onnxruntime and torch differ by .*; nothing was written"):
        export_onnx(model, tmp_path / "wrong.onnx")
    assert not (tmp_path / "wrong.onnx").exists()
    assert not (tmp_path / "wrong.readout.onnx").exists()


@pytest.mark.parametrize("wrong", ["step", "read-out"])
def test_a_graph_that_is_wrong_in_units_of_its_own_is_not_written(tmp_path, monkeypatch, wrong):
    model = Standardised(1, 1, "recurrent", {"hidden": 4, "cell": "rnn"})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    model.set_units([101325.0], [8.0], [100000.0], [10.0])
    assert export_onnx(model, tmp_path / "m.onnx")[2] < 1e-5
    step, readout = export._Step.forward, export._Readout.forward
    if wrong == "step":  # a tenth of a standard deviation off
        monkeypatch.setattr(export._Step, "forward", lambda self, element, *state: step(self, element + 0.8, *state))
    else:
        monkeypatch.setattr(export._Readout, "forward", lambda self, *state: readout(self, *state) + 1.0)
    with pytest.raises(InputError, match=r"onnxruntime and torch differ by .*; nothing was written"):
        export_onnx(model, tmp_path / "wrong.onnx")
    assert not (tmp_path / "wrong.onnx").exists()


def test_a_graph_that_gives_nan_is_not_written(tmp_path, monkeypatch):
    import onnx

    model = randomised("rnn")
    graphs = [onnx.load(p) for p in export_onnx(model, tmp_path / "m.onnx")[:2]]
    weights = graphs[1].graph.initializer[0]
    nan = np.full_like(onnx.numpy_helper.to_array(weights), np.nan)
    weights.CopyFrom(onnx.numpy_helper.from_array(nan, weights.name))
    monkeypatch.setattr(export, "_graph", lambda module, *_: graphs[isinstance(module, export._Readout)])
    with pytest.raises(InputError, match="onnxruntime and torch differ by nan"):
        export_onnx(model, tmp_path / "wrong.onnx")


def test_what_cannot_be_exported_is_refused(tmp_path):
    with pytest.raises(InputError, match="SetTransformer cannot stream"):
        export_onnx(ao.SetTransformer(3, 2), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"must end in \.onnx"):
        export_onnx(FORMS["rnn"](), tmp_path / "m.pt")
    for half in (torch.float16, torch.bfloat16):
        with pytest.raises(InputError, match=r"cannot be exported; export a float32 copy, model\.float\(\)"):
            export_onnx(FORMS["rnn"]().to(half), tmp_path / "m.onnx")
    with pytest.raises(InputError, match="a Recurrence has no read-out"):
        export_onnx(ao.known.sum(), tmp_path / "m.onnx")


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_extra_says_how_to_get_it(tmp_path, monkeypatch, missing):
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: None if name == missing else name)
    with pytest.raises(
        InputError, match=rf"ONNX export needs {missing}: pip install -c constraints.txt '.\[onnx\]' in a checkout"
    ):
        export_onnx(FORMS["rnn"](), tmp_path / "m.onnx")


@pytest.mark.parametrize("wrong", [1, 5])
def test_graphs_must_agree_at_each_size_of_batch(tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(export, "_graph", lambda *_: None)
    monkeypatch.setattr(export, "_difference", lambda model, recurrence, graphs, batch: float(batch == wrong))
    with pytest.raises(InputError, match=r"differ by 1\.0e\+00, more than 1e-04; nothing was written"):
        export_onnx(FORMS["rnn"](), tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("failing", [1, 3])  # the read-out itself; the step, after the read-out and its folder
def test_a_full_disk_keeps_the_graphs_there_were(tmp_path, monkeypatch, failing):
    import onnx

    for name in ("m.onnx", "m.readout.onnx"):
        (tmp_path / name).write_bytes(b"as it was")
    monkeypatch.setattr(export, "_graph", lambda *_: onnx.ModelProto())
    monkeypatch.setattr(export, "_difference", lambda *_: 0.0)
    written = []

    def full(descriptor):
        written.append(descriptor)
        if len(written) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        export_onnx(FORMS["rnn"](), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == b"as it was"
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.readout.onnx"]


def test_a_model_in_double_precision_is_tried_in_it():
    model = FORMS["rnn"]().double()
    element, leaves = export._example(model, model.recurrence, 3)
    assert {element.dtype, *(leaf.dtype for leaf in leaves)} == {torch.float64}


def test_torch_is_quiet_for_the_export_alone():
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    with export._quiet("torch.onnx"):
        assert logger.level == logging.ERROR
    assert logger.level == before


def test_state_leaves_keep_their_order():
    model = randomised("deep lstm")
    _, leaves = export._example(model, model.recurrence, 3)
    state = export._as_state(model.recurrence, leaves)
    assert all(a is b for a, b in zip(tree_leaves(state), leaves, strict=True))
