"""A run on disk: one file, replaced whole, from which the run continues at the step it was written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather, reduce
from torch import Tensor, nn

from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.files import load_tensors, save_tensors
from anyorder.models.base import SetModel
from anyorder.penalties import AdaptiveWeight

_FILE = "checkpoint.safetensors"
_CLOCK_EVERY = 50  # steps between two agreements of several processes on whether a checkpoint is due


class Checkpoint:
    """A run on disk: one file, replaced whole, from which the run continues at the step it was written."""

    def __init__(self, run: Any, workdir: Path) -> None:
        self.run, self.path = run, workdir / _FILE
        self._data = {
            "data": _digest(run.data),
            "validation": _digest(run.validation),
            "unlabeled": _digest(run.penalty_data),
        }
        self._next = time.monotonic() + run.config.checkpoint_seconds

    def due(self) -> bool:
        """Whether it is time to write. Several processes ask the first one's clock, now and then."""
        run = self.run
        now = time.monotonic() >= self._next
        if run.world == 1:
            return now
        if run.result.steps % _CLOCK_EVERY and run.result.steps % run.deck.batches:
            return False
        return bool(reduce(torch.tensor(float(now and run.rank == 0), device=run.device), "sum") > 0)

    def write(self) -> None:
        run = self.run
        own = {
            "orderings": run.orderings.get_state(),
            "draws": run.draws.get_state(),
            "dropout": _dropout_state(run.device),
            "sums": torch.cat([run.sums, run.sums.new_tensor([run.penalised])]),
        }
        tensors = {f"process/{name}": self._of_all_processes(value) for name, value in own.items()}
        tensors |= {f"model/{name}": value for name, value in run.model.state_dict().items()}
        tensors |= {f"best/{name}": value for name, value in (run.best or {}).items()}
        optimizer = run.optimizer.state_dict()
        numbers = {}
        for index, state in optimizer["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{index}/{name}"] = value
                elif value is not None:
                    numbers[f"{index}/{name}"] = value
        metadata = {
            "run": self._describe(),
            "result": dataclasses.asdict(run.result),
            "finished": run.finished,
            "epoch_started": run.epoch_started,
            "optimizer": {"groups": optimizer["param_groups"], "numbers": numbers},
            "schedule": run.schedule.state_dict(),
            "scaler": run.scaler.state_dict(),
            "budget": run.weight.state_dict() if isinstance(run.weight, AdaptiveWeight) else None,
        }
        if run.rank == 0:
            save_tensors(self.path, tensors, metadata)
        self._next = time.monotonic() + run.config.checkpoint_seconds

    def resume(self) -> None:
        """Take over what the file says, if there is one."""
        run = self.run
        found = self.path.exists()
        if run.world > 1 and reduce(torch.tensor(float(found), device=run.device), "sum") not in (0.0, run.world):
            raise InputError(f"{self.path} is seen by some processes only; the workdir must be on a disk they share")
        if run.rank == 0:  # what a killed run was writing
            for unfinished in self.path.parent.glob(f".{self.path.name}.*.tmp"):
                unfinished.unlink(missing_ok=True)
        if not found:
            return
        tensors, metadata = _read(self.path)
        self._require_same_run(metadata)
        run.result.__dict__.update(metadata["result"])
        run.finished, run.epoch_started = metadata["finished"], metadata["epoch_started"]
        run.model.load_state_dict(_under("model/", tensors))
        run.best = {name: value.to(run.device) for name, value in _under("best/", tensors).items()} or None
        state: dict[int, dict[str, Any]] = {}
        saved = _under("optimizer/", tensors) | metadata["optimizer"]["numbers"]
        for key, value in saved.items():
            index, _, name = key.partition("/")
            state.setdefault(int(index), {})[name] = value
        run.optimizer.load_state_dict({"state": state, "param_groups": metadata["optimizer"]["groups"]})
        run.schedule.load_state_dict(metadata["schedule"])
        run.scaler.load_state_dict(metadata["scaler"])
        if isinstance(run.weight, AdaptiveWeight):
            run.weight.load_state_dict(metadata["budget"])
        own = {name: value[run.rank].clone() for name, value in _under("process/", tensors).items()}
        run.orderings.set_state(own["orderings"])
        run.draws.set_state(own["draws"])
        _set_dropout_state(run.device, own["dropout"])
        run.sums.copy_(own["sums"][:2])
        run.penalised = int(own["sums"][2])

    def _of_all_processes(self, value: Tensor) -> Tensor:
        return value[None] if self.run.world == 1 else gather(value[None].to(self.run.device))

    def _describe(self) -> dict[str, Any]:
        run = self.run
        logging = ("checkpoint_seconds", "tensorboard")
        return {
            **{name: value for name, value in run.config.to_dict().items() if name not in logging},
            "metric": None if run.metric is None else _name(run.metric),
            "penalty": _describe_function(run.penalty),
            "augment": _describe_function(run.augment),
            "penalty_weight": run.weight if isinstance(run.weight, float) else type(run.weight).__name__,
            "budget": _budget_settings(run.weight),
            "loss": run.loss_name,
            "processes": run.world,
            "elements": len(run.data.elements),
            "samples": len(run.data),
            "parameters": [list(p.shape) for p in run.parameters],
            **_describe_model(run.model),
            **self._data,
        }

    def _require_same_run(self, metadata: dict[str, Any]) -> None:
        there, here = metadata.get("run", {}), json.loads(json.dumps(self._describe()))
        for name in [name for name in here if name in there]:  # a file of an earlier version says less
            if not _agree(there[name], here[name]):
                raise InputError(
                    f"{self.path.parent} holds a run with another {name}: {there[name]!r} there, "
                    f"{here[name]!r} here (give this run its own workdir, or delete that one)"
                )


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, metadata = load_tensors(path)
    if "result" not in metadata or "optimizer" not in metadata:
        raise InputError(f"{path} is not a checkpoint of anyorder; give this run its own workdir, or move that file")
    return tensors, metadata


def _agree(there: Any, here: Any) -> bool:
    """Whether two descriptions are of one thing, the one of an earlier version perhaps saying less."""
    if isinstance(there, dict) and isinstance(here, dict):
        return there.keys() <= here.keys() and all(_agree(there[name], here[name]) for name in there)
    return bool(there == here)


def seed_in(workdir: Any) -> int | None:
    """The seed of the run that a folder holds, None where it holds none."""
    path = Path(workdir) / _FILE
    return _read(path)[1].get("run", {}).get("seed") if path.exists() else None


def _describe_model(model: nn.Module) -> dict[str, Any]:
    """Its class and each argument it was built with; of an own module, its weights."""
    if isinstance(model, SetModel):
        with suppress(InputError):  # an own module among the arguments cannot be described
            arguments = {f"{name} of the model": value for name, value in model.config().items()}
            return {"model": type(model).__name__, **arguments}
    weights = [f"{name} {list(value.shape)}" for name, value in model.state_dict().items()]
    return {"model": type(model).__name__, "weights": weights}


def _describe_function(function: Any) -> Any:
    """A penalty or another callable by its settings, or by its name if it has none."""
    if hasattr(function, "config"):
        return function.config()
    return repr(function) if function is None or dataclasses.is_dataclass(function) else _name(function)


def _name(function: Any) -> str:
    """Without the place in memory that ``repr`` shows, which the next process does not share."""
    return getattr(function, "__qualname__", type(function).__name__)


def _digest(data: SetData | None) -> str | None:
    """A fingerprint of everything in the data, made once a run."""
    if data is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for part in (data.elements, data.offsets, data.targets, data.weights):
        digest.update(repr(None if part is None else (part.dtype, part.shape)).encode())
        if part is not None and part.numel():
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _budget_settings(weight: Any) -> dict[str, Any] | None:
    """What of a budget does not change while a run goes."""
    if not isinstance(weight, AdaptiveWeight):
        return None
    return {name: value for name, value in weight.state_dict().items() if name != "weight"}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@contextmanager
def own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Dropout draws from the global generator: seed it for a while, then put it back as it was."""
    before, outside = torch.get_rng_state(), _dropout_state(device)
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    try:
        yield
    finally:
        _set_dropout_state(device, outside)
        torch.set_rng_state(before)


def _dropout_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state()


def _set_dropout_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state)
