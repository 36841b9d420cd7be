"""ONNX graphs: they give what the model gives, or they are not written."""

from __future__ import annotations

import json
import logging
import os
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import anyorder as ao
from anyorder.checks import InputError
from anyorder.deploy.onnx import export_onnx
from anyorder.models import Standardised

FORMS = {
    "deep lstm": lambda: ao.RecurrentSetModel(
        3, 2, cell="lstm", hidden=8, layers=2, encoder=(5,), readout=(4,), dropout=0.5
    ),
    "fold in double": lambda: ao.RecurrentSetModel(3, 2, cell="fold", hidden=8, layers=2, readout=(5,)).double(),
    "embedding": lambda: ao.RecurrentSetModel(1, 2, hidden=8, embedding=(9, 4, "learned")),
    "in own units": lambda: in_own_units(),
    "static features": lambda: ao.RecurrentSetModel(3, 2, hidden=8, readout=(4,), static_features=3),
    "deepsets max": lambda: ao.DeepSets(3, 2, phi=(5,), pooling="max"),
}


def in_own_units():
    model = Standardised(3, 1, "recurrent", {"hidden": 4, "cell": "rnn", "encoder": [3], "readout": [3]})
    return model.set_units([101325.0, 0.0, 0.0], [8.0, 1.0, 1.0], [100000.0], [10.0])


def randomised(model):
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_graphs_alone_give_what_the_model_gives(tmp_path, form):
    model = randomised(FORMS[form]()).train()
    part = next(model.children()).eval()
    level = logging.getLogger("torch.onnx").level
    step_path, readout_path, gap = export_onnx(model, tmp_path / "m.onnx", details={"classes": ["a", "b"]})
    assert gap < 1e-5
    assert (model.training, part.training, logging.getLogger("torch.onnx").level) == (True, False, level)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.readout.onnx"]
    step, readout = (onnxruntime.InferenceSession(str(p)) for p in (step_path, readout_path))
    words = json.loads(step.get_modelmeta().custom_metadata_map["anyorder"])
    assert words["classes"] == ["a", "b"]
    dtype = next(model.parameters()).dtype
    for batch, length in ((1, 6), (4, 11)):  # neither is the batch the graph was traced with
        types = {"tensor(int64)": np.int64, "tensor(double)": np.float64, "tensor(float)": np.float32}
        kinds = {i.name: types[i.type] for i in step.get_inputs()}
        state = {n: np.repeat(np.array(v, kinds[n]), batch, axis=0) for n, v in words["start"].items()}
        elements = torch.randn(batch, length, 3, dtype=dtype)
        elements = torch.randint(9, (batch, length, 1)) if form == "embedding" else elements
        for t in range(length):
            new = step.run(None, {"element": elements[:, t].numpy(), **state})
            state = dict(zip(state, new, strict=True))
        static = torch.randn(batch, 3) if form == "static features" else None
        given = {} if static is None else {"static": static}
        with torch.no_grad():
            expected = model.eval()(elements, **given)
        state |= {name: value.numpy() for name, value in given.items()}
        atol = 0.1 if form == "in own units" else 1e-5  # 1e-6 of its mean
        np.testing.assert_allclose(readout.run(None, state)[0], expected, atol=atol, rtol=1e-5)


class WrongWhenExported(nn.Module):
    """Adds to its input in a graph alone."""

    def __init__(self, inside, by):
        super().__init__()
        self.inside, self.by = inside, by

    def forward(self, x):
        return self.inside(x + self.by if torch.compiler.is_exporting() else x)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "by"), [("step", 0.8), ("read-out", 0.8), ("read-out", float("nan"))])
def test_a_graph_that_disagrees_is_not_written(tmp_path, wrong, by):
    """Both in units of their own: 0.8 is a tenth of a standard deviation."""
    model = randomised(FORMS["in own units"]())
    part, name = (model.inner, "encoder") if wrong == "step" else (model.inner.readout, "head")
    setattr(part, name, WrongWhenExported(getattr(part, name), by))
    with pytest.raises(InputError, match="differ"):
        export_onnx(model, tmp_path / "wrong.onnx")
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_exported_is_refused(tmp_path):
    for model, path, match in (
        (ao.SetTransformer(3, 2), "m.onnx", "SetTransformer cannot stream"),
        (FORMS["embedding"](), "m.pt", r"\.onnx"),
        (ao.known.sum(), "m.onnx", "read-out"),
    ):
        with pytest.raises(InputError, match=match):
            export_onnx(model, tmp_path / path)
    assert os.listdir(tmp_path) == []


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"onnxscript: pip install 'anyorder\[onnx\]'"):
        export_onnx(ao.DeepSets(3, 2), tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == []
