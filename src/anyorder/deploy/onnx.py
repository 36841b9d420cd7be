"""ONNX graphs of a model's single step and read-out, compared with torch before they are written."""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
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
from anyorder.recurrences.trajectory import State, tree_leaves, tree_map

TOLERANCE = 1e-4  # of values of order 1, after CHECKED_STEPS steps in float32
CHECKED_STEPS = 20


def export_onnx(
    model: Any, path: str | os.PathLike[str], *, details: Mapping[str, Any] | None = None
) -> tuple[Path, Path, float]:
    """The paths of the two graphs (NAME.onnx, NAME.readout.onnx), and how far onnxruntime and torch differ.

    The step is ``(element [B, D], state_0, …) -> (next_state_0, …)``, the read-out ``(state_0, …) -> value``. The
    difference is the largest of twenty steps at two batch sizes, in the model's own units. If it is more than
    rounding, nothing is written. The step's metadata, under the key "anyorder", is JSON with the start state and
    ``details``. A graph does not check the integers of an embedding: a negative one counts from the end.
    """
    step_path = Path(path)
    if step_path.suffix != ".onnx":
        raise InputError(f"the ONNX file must end in .onnx; got {path}")
    readout_path = step_path.with_suffix(".readout.onnx")
    for module in ("onnx", "onnxscript", "onnxruntime"):
        extra(module, "onnx", "ONNX export")
    streaming_recurrence(model)
    if not hasattr(model, "readout"):
        raise InputError("model must have a read-out to export; a Recurrence has none (use RecurrentSetModel)")
    model = copy.deepcopy(model).cpu().eval()
    start: Any = model.recurrence.start

    def state_of(leaves: Iterable[Tensor]) -> State:
        remaining = iter(leaves)
        return tree_map(lambda _: next(remaining), start(1))

    def step_of(element: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        encoded = model.encode(element[:, None])[:, 0]
        return tuple(tree_leaves(model.recurrence.step(encoded, state_of(leaves))))

    with torch.no_grad():
        element = _elements(model, 2, torch.Generator().manual_seed(2))
        state = {f"state_{i}": leaf.clone().contiguous() for i, leaf in enumerate(tree_leaves(start(2)))}
        step = _graph(_Part(model, step_of), {"element": element, **state}, [f"next_{name}" for name in state])
        readout = _graph(_Part(model, lambda *leaves: model.readout(state_of(leaves))), state, ["value"])
        gap = float(np.max([_difference(model, step, readout, batch) for batch in (1, 5)]))  # or NaN
        first = {name: leaf.tolist() for name, leaf in zip(state, tree_leaves(start(1)), strict=True)}
    if not gap <= TOLERANCE:
        raise InputError(f"onnxruntime and torch differ by {gap:.1e}, more than {TOLERANCE:.0e}; nothing was written")
    words = json.dumps({"anyorder_version": anyorder.__version__, "start": first, **(details or {})})
    for graph, file in ((readout, readout_path), (step, step_path)):
        graph.metadata_props.add(key="anyorder", value=words)
        write_atomically(file, graph.SerializeToString())
    return step_path, readout_path, gap


class _Part(nn.Module):
    """A function of tensors that uses a model."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def _elements(model: Any, batch: int, generator: torch.Generator) -> Tensor:
    """Random elements ``[B, D]`` in the model's own units."""
    subject = getattr(model, "inner", model)
    if subject.table is not None:
        return torch.randint(subject.table.num_embeddings, (batch, 1), generator=generator)
    drawn = torch.randn(batch, subject.in_features, generator=generator).to(subject.dtype)
    return (model.mean + model.scale * drawn).to(drawn.dtype) if isinstance(model, Standardised) else drawn


def _graph(part: nn.Module, example: dict[str, Tensor], outputs: list[str]) -> Any:
    shapes = (({0: torch.export.Dim("batch")},) * len(example),)
    logger = logging.getLogger("torch.onnx")
    with ExitStack() as quiet:
        quiet.enter_context(warnings.catch_warnings(action="ignore"))
        quiet.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        options: dict[str, Any] = {"dynamo": True, "dynamic_shapes": shapes, "verbose": False}
        options |= {"input_names": list(example), "output_names": outputs}
        program = torch.onnx.export(part, tuple(example.values()), **options)
    assert program is not None
    return program.model_proto


def _difference(model: Any, step: Any, readout: Any, batch: int) -> float:
    """The largest difference between onnxruntime and torch in states and values, step after step.

    Numbers above 1 are compared relatively. Values of a model with units are compared in standard deviations, or in
    what its mean can resolve where that is coarser.
    """
    import onnxruntime

    run_step, run_readout = (onnxruntime.InferenceSession(g.SerializeToString()).run for g in (step, readout))
    generator = torch.Generator().manual_seed(batch)
    expected: Any = model.recurrence.start(batch)
    states = {f"state_{i}": leaf.clone().numpy() for i, leaf in enumerate(tree_leaves(expected))}
    gaps = []
    for _ in range(CHECKED_STEPS):
        ours = [torch.from_numpy(array) for array in (*states.values(), run_readout(None, states)[0])]
        theirs = [*tree_leaves(expected), model.readout(expected)]
        if isinstance(model, Standardised):
            rounding = 4 * torch.finfo(theirs[-1].dtype).eps * model.out_mean.abs()
            unit = torch.maximum(model.out_scale, rounding / TOLERANCE)
            ours[-1], theirs[-1] = (ours[-1] - model.out_mean) / unit, (theirs[-1] - model.out_mean) / unit
        for one, other in zip(ours, theirs, strict=True):
            gaps.append(float((one - other).abs().max()) / max(1.0, float(other.abs().max())))
        element = _elements(model, batch, generator)
        states = dict(zip(states, run_step(None, {"element": element.numpy(), **states}), strict=True))
        expected = model.recurrence.scan_encoded(model.encode(element[:, None]), state=expected).last
    return float(np.max(gaps))
