"""ONNX graphs of a model's single step and read-out, checked against torch before they are written."""

from __future__ import annotations

import importlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import anyorder
from anyorder.checks import InputError
from anyorder.deploy.stream import streaming_recurrence
from anyorder.files import write_atomically
from anyorder.models import Standardised
from anyorder.recurrences.base import Recurrence, evaluating
from anyorder.recurrences.trajectory import State, tree_leaves, tree_map

TOLERANCE = 1e-4  # of values of order 1, after CHECKED_STEPS steps in float32
CHECKED_STEPS = 20


def onnx_paths(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """The two files of an export: the step under the name given, the read-out beside it.

    >>> [p.name for p in onnx_paths("scores.onnx")]
    ['scores.onnx', 'scores.readout.onnx']
    """
    step = Path(path)
    if step.suffix != ".onnx":
        raise InputError(f"the ONNX file must end in .onnx; got {step}")
    return step, step.with_name(f"{step.stem}.readout.onnx")


def export_onnx(
    model: nn.Module, path: str | os.PathLike[str], *, details: Mapping[str, Any] | None = None
) -> tuple[Path, Path, float]:
    """Write the step ``(element [B, D], state_0, …) -> (next_state_0, …)`` and the read-out ``(state_0, …) -> value``.

    Returns the two paths and the largest difference from torch that onnxruntime showed over twenty steps, at two
    batch sizes, on elements and of values in units of the model's own; a difference beyond rounding is an error and
    nothing is written. The step's metadata, under the key "anyorder", is JSON that holds the start state and
    ``details``. An embedding's integers are not checked by the graph: a negative one counts from the end.
    """
    step_path, readout_path = onnx_paths(path)
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(needed) is None:
            raise InputError(f"ONNX export needs {needed}: pip install -c constraints.txt '.[onnx]' in a checkout")
    recurrence = streaming_recurrence(model)
    if getattr(model, "readout", None) is None:
        raise InputError("a Recurrence has no read-out to export; wrap it in a RecurrentSetModel")
    for tensor in model.state_dict().values():
        if tensor.dtype in (torch.float16, torch.bfloat16):
            raise InputError(f"weights of {tensor.dtype} cannot be exported; export a float32 copy, model.float()")
    with _evaluation(model):
        step, readout = _Step(model, recurrence).eval(), _Readout(model, recurrence).eval()
        element, leaves = _example(model, recurrence, 2)
        states = [f"state_{i}" for i in range(len(leaves))]
        graphs = (
            _graph(step, (element, *leaves), ["element", *states], [f"next_{s}" for s in states]),
            _graph(readout, leaves, states, ["value"]),
        )
        gap = float(np.max([_difference(model, recurrence, graphs, batch) for batch in (1, 5)]))  # NaN if one is
        start = {name: leaf.tolist() for name, leaf in zip(states, tree_leaves(recurrence.start(1)), strict=True)}
    if not gap <= TOLERANCE:
        raise InputError(f"onnxruntime and torch differ by {gap:.1e}, more than {TOLERANCE:.0e}; nothing was written")
    words = {"anyorder_version": anyorder.__version__, "start": start, **(details or {})}
    for graph in graphs:
        note = graph.metadata_props.add()
        note.key, note.value = "anyorder", json.dumps(words)
    write_atomically(readout_path, graphs[1].SerializeToString())
    write_atomically(step_path, graphs[0].SerializeToString())
    return step_path, readout_path, gap


class _Step(nn.Module):
    """One element and the leaves of a state in, the leaves of the next state out; the encoder included."""

    def __init__(self, model: nn.Module, recurrence: Recurrence) -> None:
        super().__init__()
        self.model, self.recurrence = model, recurrence

    def forward(self, element: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        encoded = self.model.encode(element[:, None])[:, 0]  # type: ignore[operator]
        return tuple(tree_leaves(self.recurrence.step(encoded, _as_state(self.recurrence, leaves))))


class _Readout(nn.Module):
    def __init__(self, model: nn.Module, recurrence: Recurrence) -> None:
        super().__init__()
        self.model, self.recurrence = model, recurrence

    def forward(self, *leaves: Tensor) -> Tensor:
        return self.model.readout(_as_state(self.recurrence, leaves))  # type: ignore[operator]


def _as_state(recurrence: Recurrence, leaves: tuple[Tensor, ...]) -> State:
    remaining = iter(leaves)
    return tree_map(lambda _: next(remaining), recurrence.start(1))


def _example(model: nn.Module, recurrence: Recurrence, batch: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(batch)
    leaves = tuple(leaf.clone().contiguous() for leaf in tree_leaves(recurrence.start(batch)))
    return _elements(model, batch, generator), leaves


def _elements(model: nn.Module, batch: int, generator: torch.Generator) -> Tensor:
    subject: Any = getattr(model, "inner", model)
    if subject.table is not None:
        return torch.randint(subject.table.num_embeddings, (batch, 1), generator=generator)
    drawn = torch.randn(batch, subject.in_features, generator=generator).to(subject.dtype)
    return model.mean + model.scale * drawn if isinstance(model, Standardised) else drawn


def _graph(module: nn.Module, example: tuple[Tensor, ...], inputs: list[str], outputs: list[str]) -> Any:
    batch = torch.export.Dim("batch")
    free = tuple({0: batch} for _ in example)
    shapes = (free[0], free[1:]) if isinstance(module, _Step) else (free,)
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=inputs,
            output_names=outputs,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _difference(model: nn.Module, recurrence: Recurrence, graphs: tuple[Any, Any], batch: int) -> float:
    """The largest difference between onnxruntime and torch in states and values, step after step.

    Relative to numbers above 1; of a model in units of its own, values are compared in standard deviations, or in
    what its mean can be told apart by where that is coarser.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    step, readout = (onnxruntime.InferenceSession(g.SerializeToString(), options) for g in graphs)
    generator = torch.Generator().manual_seed(batch)
    _, leaves = _example(model, recurrence, batch)
    expected: Any = recurrence.start(batch)
    ours = [leaf.numpy() for leaf in leaves]
    names = [i.name for i in readout.get_inputs()]
    gaps = []
    for _ in range(CHECKED_STEPS):
        value = readout.run(None, dict(zip(names, ours, strict=True)))[0]
        theirs = [*tree_leaves(expected), model.readout(expected)]  # type: ignore[operator]
        for mine, other in zip([*ours, value], theirs, strict=True):
            gap, size = (torch.from_numpy(mine) - other).abs(), other.abs()
            if other is theirs[-1] and isinstance(model, Standardised):
                rounding = 4 * torch.finfo(other.dtype).eps * model.out_mean.abs()
                unit = torch.maximum(model.out_scale, rounding / TOLERANCE)
                gap, size = gap / unit, (other - model.out_mean).abs() / unit
            gaps.append(float(gap.max()) / max(1.0, float(size.max())))
        element = _elements(model, batch, generator)
        ours = step.run(None, {"element": element.numpy(), **dict(zip(names, ours, strict=True))})
        expected = recurrence.scan_encoded(model.encode(element[:, None]), state=expected).last  # type: ignore[operator]
    return float(np.max(gaps))


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """On the CPU, in eval mode and without gradients; afterwards as before."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with evaluating(model), torch.no_grad():
            model.cpu()
            yield
    finally:
        model.to(device)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
