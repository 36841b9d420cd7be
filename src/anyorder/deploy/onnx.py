"""ONNX graphs of a model's single step and read-out, compared with torch before they are written."""

from __future__ import annotations

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
from anyorder.checks import InputError, extra
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
    """The paths of the two graphs, and how far onnxruntime and torch differ.

    The step is ``(element [B, D], state_0, …) -> (next_state_0, …)``, the read-out ``(state_0, …) -> value``. The
    difference is the largest of twenty steps at two batch sizes, in the model's own units. If it is more than
    rounding, nothing is written. The step's metadata, under the key "anyorder", is JSON with the start state and
    ``details``. A graph does not check the integers of an embedding: a negative one counts from the end.
    """
    step_path, readout_path = onnx_paths(path)
    for module in ("onnx", "onnxscript", "onnxruntime"):
        extra(module, "onnx", "ONNX export")
    recurrence = streaming_recurrence(model)
    if not hasattr(model, "readout"):
        raise InputError("model must have a read-out to export; a Recurrence has none (use RecurrentSetModel)")
    with _on_cpu(model), evaluating(model), torch.no_grad():
        leaves = tuple(leaf.clone().contiguous() for leaf in tree_leaves(recurrence.start(2)))
        states = [f"state_{i}" for i in range(len(leaves))]
        element = _elements(model, 2, torch.Generator().manual_seed(2))
        step = _graph(_Step(model, recurrence), (element, *leaves), ["element", *states], [f"next_{s}" for s in states])
        readout = _graph(_Readout(model, recurrence), leaves, states, ["value"])
        gap = float(np.max([_difference(model, recurrence, step, readout, batch) for batch in (1, 5)]))  # or NaN
        start = {name: leaf.tolist() for name, leaf in zip(states, tree_leaves(recurrence.start(1)), strict=True)}
    if not gap <= TOLERANCE:
        raise InputError(f"onnxruntime and torch differ by {gap:.1e}, more than {TOLERANCE:.0e}; nothing was written")
    words = json.dumps({"anyorder_version": anyorder.__version__, "start": start, **(details or {})})
    for graph, file in ((readout, readout_path), (step, step_path)):
        graph.metadata_props.add(key="anyorder", value=words)
        write_atomically(file, graph.SerializeToString())
    return step_path, readout_path, gap


class _Step(nn.Module):
    """One element and the leaves of a state in, the leaves of the next state out."""

    def __init__(self, model: Any, recurrence: Recurrence) -> None:
        super().__init__()
        self.model, self.recurrence = model, recurrence

    def forward(self, element: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        encoded = self.model.encode(element[:, None])[:, 0]
        return tuple(tree_leaves(self.recurrence.step(encoded, _as_state(self.recurrence, leaves))))


class _Readout(nn.Module):
    """The leaves of a state in, the model's output out."""

    def __init__(self, model: Any, recurrence: Recurrence) -> None:
        super().__init__()
        self.model, self.recurrence = model, recurrence

    def forward(self, *leaves: Tensor) -> Tensor:
        return self.model.readout(_as_state(self.recurrence, leaves))


def _as_state(recurrence: Recurrence, leaves: tuple[Tensor, ...]) -> State:
    remaining = iter(leaves)
    return tree_map(lambda _: next(remaining), recurrence.start(1))


def _elements(model: Any, batch: int, generator: torch.Generator) -> Tensor:
    """Random elements ``[B, D]`` in the model's own units."""
    subject = getattr(model, "inner", model)
    if subject.table is not None:
        return torch.randint(subject.table.num_embeddings, (batch, 1), generator=generator)
    drawn = torch.randn(batch, subject.in_features, generator=generator).to(subject.dtype)
    return model.mean + model.scale * drawn if isinstance(model, Standardised) else drawn


def _graph(module: nn.Module, example: tuple[Tensor, ...], inputs: list[str], outputs: list[str]) -> Any:
    batch = torch.export.Dim("batch")
    free = tuple({0: batch} for _ in example)
    shapes = (free[0], free[1:]) if isinstance(module, _Step) else (free,)
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                example,
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=inputs,
                output_names=outputs,
                verbose=False,
            )
    finally:
        logger.setLevel(before)
    assert program is not None
    return program.model_proto


def _difference(model: Any, recurrence: Recurrence, step: Any, readout: Any, batch: int) -> float:
    """The largest difference between onnxruntime and torch in states and values, step after step.

    Numbers above 1 are compared relatively. Values of a model with units are compared in standard deviations, or in
    what its mean can resolve where that is coarser.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    run_step, run_readout = (onnxruntime.InferenceSession(g.SerializeToString(), options).run for g in (step, readout))
    generator = torch.Generator().manual_seed(batch)
    expected: Any = recurrence.start(batch)
    states = {f"state_{i}": leaf.clone().numpy() for i, leaf in enumerate(tree_leaves(expected))}
    gaps = []
    for _ in range(CHECKED_STEPS):
        pairs = [*zip(states.values(), tree_leaves(expected), strict=True)]
        value, ours = model.readout(expected), torch.from_numpy(run_readout(None, states)[0])
        if isinstance(model, Standardised):
            rounding = 4 * torch.finfo(value.dtype).eps * model.out_mean.abs()
            unit = torch.maximum(model.out_scale, rounding / TOLERANCE)
            value, ours = (value - model.out_mean) / unit, (ours - model.out_mean) / unit
        for mine, other in [*((torch.from_numpy(a), b) for a, b in pairs), (ours, value)]:
            gaps.append(float((mine - other).abs().max()) / max(1.0, float(other.abs().max())))
        element = _elements(model, batch, generator)
        states = dict(zip(states, run_step(None, {"element": element.numpy(), **states}), strict=True))
        expected = recurrence.scan_encoded(model.encode(element[:, None]), state=expected).last
    return float(np.max(gaps))


@contextmanager
def _on_cpu(model: nn.Module) -> Iterator[None]:
    """The model on the CPU; afterwards where it was."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        model.cpu()
        yield
    finally:
        model.to(device)
