"""A run on disk: one file, replaced whole, from which the run continues."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.files import load_tensors, save_tensors
from anyorder.models.base import SetModel
from anyorder.penalties import AdaptiveWeight
from anyorder.training.batches import summed

_FILE = "checkpoint.safetensors"
_CLOCK_EVERY = 50  # steps between two agreements of several processes on whether a checkpoint is due


class Checkpoint:
    """Writes a run to ``workdir`` and takes it over from there."""

    def __init__(self, run: Any, workdir: Path) -> None:
        self.run, self.path = run, workdir / _FILE
        self._settings = json.loads(json.dumps(_settings(run)))
        self._next = time.monotonic() + run.config.checkpoint_seconds

    def due(self) -> bool:
        """Whether it is time to write; several processes follow the first one's clock."""
        run = self.run
        now = time.monotonic() >= self._next
        if run.world == 1:
            return now
        if run.result.steps % _CLOCK_EVERY and run.result.steps % run.deck.batches:
            return False
        return bool(summed(torch.tensor(float(now and run.rank == 0), device=run.device)) > 0)

    def write(self) -> None:
        run = self.run
        own = {
            "orderings": run.orderings.get_state(),
            "draws": run.draws.get_state(),
            "dropout": _dropout(run.device).get_rng_state(),
            "sums": run.sums,
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
            "run": self._settings,
            "result": dataclasses.asdict(run.result),
            "finished": run.finished,
            "epoch_started": run.epoch_started,
            "optimizer": {"groups": optimizer["param_groups"], "numbers": numbers},
            "schedule": run.schedule.state_dict(),
            "scaler": run.scaler.state_dict(),
            "weight": run.penalty_weight.state_dict() if isinstance(run.penalty_weight, AdaptiveWeight) else None,
        }
        if run.rank == 0:
            save_tensors(self.path, tensors, metadata)
        self._next = time.monotonic() + run.config.checkpoint_seconds

    def resume(self) -> None:
        """Continue the run of the file, if there is one."""
        run = self.run
        if run.rank == 0:  # the half-written file of a killed run
            for unfinished in self.path.parent.glob(f".{self.path.name}.*.tmp"):
                unfinished.unlink(missing_ok=True)
        if not self.path.exists():
            return
        tensors, metadata = load_tensors(self.path)
        self._require_same_run(metadata.get("run", {}))
        run.result.__dict__.update(metadata["result"])
        run.finished, run.epoch_started = metadata["finished"], metadata["epoch_started"]
        run.model.load_state_dict(_under("model/", tensors))
        run.best = {name: value.to(run.device) for name, value in _under("best/", tensors).items()} or None
        state: dict[int, dict[str, Any]] = {}
        for key, value in (_under("optimizer/", tensors) | metadata["optimizer"]["numbers"]).items():
            index, _, name = key.partition("/")
            state.setdefault(int(index), {})[name] = value
        run.optimizer.load_state_dict({"state": state, "param_groups": metadata["optimizer"]["groups"]})
        run.schedule.load_state_dict(metadata["schedule"])
        run.scaler.load_state_dict(metadata["scaler"])
        if isinstance(run.penalty_weight, AdaptiveWeight):
            run.penalty_weight.load_state_dict(metadata["weight"])
        own = {name: value[run.rank].clone() for name, value in _under("process/", tensors).items()}
        run.orderings.set_state(own["orderings"])
        run.draws.set_state(own["draws"])
        _dropout(run.device).set_rng_state(own["dropout"])
        run.sums.copy_(own["sums"])

    def _of_all_processes(self, value: Tensor) -> Tensor:
        if self.run.world == 1:
            return value[None]
        value = value.to(self.run.device)
        parts = [torch.empty_like(value) for _ in range(self.run.world)]
        dist.all_gather(parts, value)
        return torch.stack(parts)

    def _require_same_run(self, there: dict[str, Any]) -> None:
        for name in [*self._settings, *there]:  # the settings that are easiest to read come first
            kept, here = there.get(name), self._settings.get(name)
            if kept != here:
                raise InputError(
                    f"workdir {self.path.parent} holds another run: {name} is {kept!r} there and {here!r} here "
                    "(choose another workdir, or delete that one)"
                )


def seed_in(workdir: Any) -> int | None:
    """The seed of the run in ``workdir``, None without a run."""
    path = Path(workdir) / _FILE
    return load_tensors(path)[1].get("run", {}).get("seed") if path.exists() else None


def _settings(run: Any) -> dict[str, Any]:
    """All that decides how a run ends, to compare with the run in the file."""
    config = run.config.to_dict()
    return {
        **{name: value for name, value in config.items() if name not in ("checkpoint_seconds", "tensorboard")},
        **{name: _describe(getattr(run, name)) for name in ("metric", "penalty", "penalty_weight", "augment")},
        "loss": run.loss_name,
        "processes": run.world,
        "data": _digest(run.data),
        "validation": _digest(run.validation),
        "unlabeled": _digest(run.unlabeled),
        **_describe_model(run.model),
    }


def _describe(value: Any) -> Any:
    """A number, or the settings of a callable; its name if it has none."""
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, AdaptiveWeight):
        return {name: number for name, number in value.state_dict().items() if name != "weight"}
    if hasattr(value, "config"):
        return value.config()
    return repr(value) if dataclasses.is_dataclass(value) else name_of(value)


def name_of(function: Any) -> str:
    """The name of a callable, the same in every process."""
    return getattr(function, "__qualname__", type(function).__name__)


def _describe_model(model: nn.Module) -> dict[str, Any]:
    """The model's class, arguments (of a set model) and shapes of weights."""
    try:
        arguments = model.config() if isinstance(model, SetModel) else {}
    except InputError:  # a module of the user's among the arguments
        arguments = {}
    return {
        "model": type(model).__name__,
        **{f"{name} of the model": value for name, value in arguments.items()},
        "weights": [f"{name} {list(value.shape)}" for name, value in model.state_dict().items()],
    }


def _digest(data: SetData | None) -> str | None:
    """A fingerprint of everything in the data."""
    if data is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for part in (data.elements, data.offsets, data.targets, data.weights):
        digest.update(repr(None if part is None else (part.dtype, part.shape)).encode())
        if part is not None and part.numel():
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@contextmanager
def own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the global generator, for dropout, inside a ``with`` block."""
    before, outside = torch.get_rng_state(), _dropout(device).get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed devices that are not ours
    if device.type != "cpu":
        _dropout(device).manual_seed(seed)
    try:
        yield
    finally:
        _dropout(device).set_rng_state(outside)
        torch.set_rng_state(before)


def _dropout(device: torch.device) -> Any:
    """The module that keeps the state of dropout's generator on ``device``."""
    return torch if device.type == "cpu" else torch.get_device_module(device)
