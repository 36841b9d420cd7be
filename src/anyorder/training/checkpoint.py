"""A run on disk: one file, replaced whole, from which the run continues."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyorder.checks import InputError, extra
from anyorder.data.sets import SetData
from anyorder.files import tensors_from_file, tensors_to_bytes, write_atomically
from anyorder.models.base import SetModel
from anyorder.penalties import AdaptiveWeight
from anyorder.training.batches import summed


class Checkpoint:
    """Writes a run to ``workdir`` and takes it over from there."""

    def __init__(self, run: Any, workdir: Path) -> None:
        self.run, self.path = run, workdir / "checkpoint.safetensors"
        self._settings = json.loads(json.dumps(_settings(run)))
        self._next = time.monotonic() + run.config.checkpoint_seconds
        self.interrupts: list[int] = []

    def __enter__(self) -> Checkpoint:
        """Let Ctrl-C wait for the end of a step; a second one does not wait."""
        self._handler = signal.getsignal(signal.SIGINT)
        if self._handler is signal.default_int_handler and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *error: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._interrupted:
            signal.signal(signal.SIGINT, self._handler)

    def _interrupted(self, number: int, frame: Any) -> None:
        if self.interrupts:
            raise KeyboardInterrupt
        self.interrupts.append(number)

    def write_if_due(self) -> None:
        """Write if it is time, or the run is interrupted or at its end; several processes decide together."""
        wishes = [time.monotonic() >= self._next and self.run.rank == 0, bool(self.interrupts)]  # the first one's clock
        if self.run.world > 1:
            wishes = (summed(torch.tensor(wishes, dtype=torch.float32, device=self.run.device)) > 0).tolist()
        due, interrupted = wishes
        if due or interrupted or self.run.finished:
            self.write()
        if interrupted:
            raise KeyboardInterrupt

    def write(self) -> None:
        run = self.run
        gather = extra("accelerate.utils", "train").gather  # along a new first axis
        state = {name: part.state_dict() for name, part in self._parts().items()}
        state |= {"best": run.best, "processes": gather([value[None].to(run.device) for value in self._own()])}
        leaves = dict(_leaves(state, "state"))
        tensors = {place: leaf for place, leaf in leaves.items() if isinstance(leaf, Tensor)}
        rest = {place: leaf for place, leaf in leaves.items() if place not in tensors}
        metadata = {"run": self._settings, "result": vars(run.result), "state": rest}
        if run.rank == 0:
            write_atomically(self.path, tensors_to_bytes(tensors, metadata))
        self._next = time.monotonic() + run.config.checkpoint_seconds

    def resume(self) -> None:
        """Continue the run of the file, if there is one; refuse another run."""
        run = self.run
        if run.world > 1:  # until the first one has the lock, a process of a killed run may still write
            summed(torch.zeros(1, device=run.device))
        if run.rank == 0:  # the half-written file of a killed run
            for unfinished in self.path.parent.glob(f".{self.path.name}.*.tmp"):
                unfinished.unlink(missing_ok=True)
        if not self.path.is_file():
            return
        with open(self.path, "rb") as file:
            tensors, metadata = tensors_from_file(file, str(self.path), self._check)
        vars(run.result).update(metadata["result"])
        if run.result.stopped == "patience" and run.epochs_without_progress < (run.config.patience or math.inf):
            run.result.stopped = "finished"
        state = self._state_of(tensors, metadata)
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        run.best = state["best"]
        orderings, draws, dropout, sums = (value[run.rank].clone() for value in state["processes"])
        run.orderings.set_state(orderings)
        run.draws.set_state(draws)
        _dropout(run.device).set_rng_state(dropout)
        run.sums.copy_(sums)

    def _check(self, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        """Refuse another run, and any state that this run cannot take over, by its ``tensors`` without numbers."""
        run, kept, here = self.run, metadata.get("run", {}), self._settings
        for name in [*here, *kept]:  # the settings that are easiest to read come first
            if kept.get(name) != here.get(name) and not self._extends(name, kept.get(name)):
                raise InputError(
                    f"workdir {self.path.parent} holds another run: {name} is {kept.get(name)!r} there and "
                    f"{here.get(name)!r} here (choose another workdir, or delete that one)"
                )
        self._state_of(tensors, metadata)
        if metadata["result"].keys() != vars(run.result).keys():
            raise InputError(f"{self.path} does not fit this run: its result is not of the same form")

    def _state_of(self, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> dict[str, Any]:
        """The state in a file, in the form of this run's own; an error if it has another form."""
        leaves = {**metadata["state"], **tensors}
        own: dict[str, Any] = {name: part.state_dict() for name, part in self._parts().items()}
        if any(place.startswith("state/optimizer/state/") for place in leaves):
            own["optimizer"]["state"] = self._state_after_a_step()
        own["best"] = None if "state/best" in leaves else own["model"]
        own["processes"] = [value.expand(self.run.world, *value.shape) for value in self._own()]
        try:
            state = _formed(own, "state", leaves)
        except KeyError as error:
            raise InputError(
                f"{self.path} does not fit this run: the {error.args[0]} is not of the same form"
            ) from None
        if leaves:
            raise InputError(f"{self.path} does not fit this run: the {next(iter(leaves))} is not of this run")
        return state

    def _extends(self, name: str, kept: Any) -> bool:
        """Whether a setting is only raised, so that the run goes on for longer."""
        value = getattr(self.run.config, name) if name in ("epochs", "patience") else None
        longer = kept is not None and name == "patience" and value is None
        longer |= isinstance(value, int) and isinstance(kept, int) and value > kept
        return longer and (name == "patience" or self.run.config.schedule != "one-cycle")

    def _state_after_a_step(self) -> Any:
        """The form of the optimiser's state, from a step of a twin that takes no memory."""
        twins = [torch.nn.Parameter(parameter.to("meta")) for parameter in self.run.parameters]
        optimizer = self.run.config.make_optimizer(twins)
        for twin in twins:
            twin.grad = torch.zeros_like(twin)
        optimizer.step()
        return optimizer.state_dict()["state"]

    def _own(self) -> list[Tensor]:
        """The states of this process alone."""
        run = self.run
        return [run.orderings.get_state(), run.draws.get_state(), _dropout(run.device).get_rng_state(), run.sums]

    def _parts(self) -> dict[str, Any]:
        """All parts of a run that keep a state of their own, the same in every process."""
        names = ("model", "optimizer", "schedule", "scaler", "penalty_weight")
        parts = {name: getattr(self.run, name) for name in names}
        return {name: part for name, part in parts.items() if hasattr(part, "load_state_dict")}


def _leaves(tree: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The tensors, numbers and words of a state, each with its place."""
    if isinstance(tree, (dict, list, tuple)):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(part, f"{place}/{key}")
    else:
        yield place, tree


def _formed(own: Any, place: str, leaves: dict[str, Any]) -> Any:
    """The leaves, which are taken out of the dict, in the form of ``own``; a KeyError names the place that misfits."""
    if isinstance(own, dict):
        return {key: _formed(part, f"{place}/{key}", leaves) for key, part in own.items()}
    if isinstance(own, (list, tuple)):
        return [_formed(part, f"{place}/{number}", leaves) for number, part in enumerate(own)]
    kept = leaves.pop(place)
    if isinstance(kept, (dict, list)) or _kind(kept) != _kind(own):
        raise KeyError(place)
    return kept


def _kind(leaf: Any) -> Any:
    """What may not differ: the shape and the dtype of a tensor, a word or a truth value itself; numbers are alike."""
    number = isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else float if number else leaf


def _settings(run: Any) -> dict[str, Any]:
    """All that decides how a run ends, to compare with the run in the file."""
    config, model = vars(run.config), run.model
    try:
        arguments = model.config() if isinstance(model, SetModel) else {}
    except InputError:  # a module of the user's among the arguments
        arguments = {}
    return {
        **{name: value for name, value in config.items() if name not in ("checkpoint_seconds", "tensorboard")},
        **{name: _describe(getattr(run, name)) for name in ("loss", "metric", "penalty", "penalty_weight", "augment")},
        **{name: _digest(getattr(run, name)) for name in ("data", "validation", "unlabeled")},
        "processes": run.world,
        "model": type(model).__name__,
        **{f"{name} of the model": value for name, value in arguments.items()},
        "weights": [f"{name} {list(value.shape)}" for name, value in model.state_dict().items()],
    }


def _describe(value: Any) -> Any:
    """A number or name, or the settings of a callable; its name, the same in every process, if it has none."""
    if value is None or isinstance(value, (float, str)):
        return value
    if isinstance(value, AdaptiveWeight):
        return {name: number for name, number in value.state_dict().items() if name != "weight"}
    if hasattr(value, "config"):
        return value.config()
    return repr(value) if dataclasses.is_dataclass(value) else getattr(value, "__qualname__", type(value).__name__)


def _digest(data: SetData | None) -> str | None:
    """A fingerprint of everything in the data."""
    if data is None:
        return None
    packed = tensors_to_bytes({name: part for name, part in vars(data).items() if isinstance(part, Tensor)})
    return hashlib.blake2b(packed, digest_size=8).hexdigest()


@contextmanager
def own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the global generator, for dropout, inside a ``with`` block."""
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed devices that are not ours
        if devices:
            _dropout(device).manual_seed(seed)
        yield


def _dropout(device: torch.device) -> Any:
    """The module that keeps the state of dropout's generator on ``device``."""
    return torch if device.type == "cpu" else torch.get_device_module(device)
