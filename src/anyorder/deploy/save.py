"""Model folders: weights and what they need to be used again, in files that cannot run code.

A folder holds ``model.safetensors`` (numbers) and ``config.json`` (the model's name and constructor arguments,
the SHA-256 of the weights, preprocessing, class names). Loading reads JSON and numbers, builds a model of this
library by name, and nothing else: no pickle is ever opened. ``log.jsonl``, an epoch of the training a line, is there to
be read by people and is not loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anyorder
from anyorder.checks import InputError, InputTypeError
from anyorder.files import (
    CONFIG,
    LOG,
    WEIGHTS,
    is_model_folder,
    load_tensors,
    require_model_folder,
    save_tensors,
    sync_folder,
    tensors_from_bytes,
    tensors_to_bytes,
    write_atomically,
)
from anyorder.models import MODELS, SetModel

__all__ = [
    "SavedModel",
    "load",
    "load_tensors",
    "open_model",
    "save",
    "save_tensors",
    "tensors_from_bytes",
    "tensors_to_bytes",
    "write_atomically",
]

FORMAT_VERSION = 1
_ESTIMATORS = ("SetClassifier", "SetRegressor")
_LARGEST_CONFIG = 1 << 26  # bytes
_NOT_SIZES = {"seed", "gate_bias_span", "typical_size"}  # arguments that cost no memory


@dataclass(frozen=True)
class SavedModel:
    """What a model folder holds: the model, the estimator around it if there was one, and what was kept with it."""

    model: nn.Module
    estimator: Any
    preprocessing: dict[str, Any] | None
    classes: list[Any] | None
    extra: dict[str, Any] | None


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    preprocessing: Mapping[str, Any] | None = None,
    classes: list[Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    log: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write a set model or a fitted estimator as a folder, all of it or nothing; a model there is replaced.

    A model is stored as its name, its arguments and its weights; one whose modules were changed after it was built, or
    of a class without a name of its own, is refused.

    ``preprocessing`` (a table's schema, say), ``classes`` and ``extra`` are JSON values kept beside the weights.
    ``log``: what was noted of each epoch (``history``), written as ``log.jsonl``, which loading does not read.

    >>> import tempfile, anyorder as ao
    >>> folder = Path(tempfile.mkdtemp()) / "model"
    >>> model = ao.RecurrentSetModel(3, 2, hidden=8).eval()
    >>> ao.save(model, folder)
    >>> elements = torch.randn(4, 5, 3)
    >>> torch.equal(ao.load(folder)(elements), model(elements))
    True
    """
    estimator = None
    if hasattr(model, "storage_parts"):
        name = type(model).__name__
        if name not in _ESTIMATORS or type(model) is not getattr(anyorder, name):
            raise InputTypeError(
                f"save takes an estimator of anyorder, {' or '.join(_ESTIMATORS)}; got {name}, a class of your own, "
                "which load could not rebuild (save its model_)"
            )
        model, details = model.storage_parts()
        estimator = {"name": name, "details": details}
    if not isinstance(model, SetModel):
        raise InputTypeError(
            f"save takes a set model of anyorder or a fitted estimator; got {type(model).__name__} "
            "(of your own modules, keep the state_dict with anyorder.storage.save_tensors)"
        )
    arguments = model.config()
    _require_rebuildable(model, arguments)
    weights = tensors_to_bytes(model.state_dict())
    config = {
        "format": "anyorder",
        "format_version": FORMAT_VERSION,
        "anyorder_version": anyorder.__version__,
        "model": {"name": model.name, "config": arguments},
        "weights": {"sha256": hashlib.sha256(weights).hexdigest(), "bytes": len(weights)},
        "estimator": estimator,
        "preprocessing": preprocessing,
        "classes": classes,
        "extra": extra,
    }
    try:
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    except TypeError as error:
        raise InputTypeError(f"what is kept with a model must be made of JSON values: {error}") from None
    files: dict[str, bytes | str] = {WEIGHTS: weights, CONFIG: text}
    if log is not None:
        files[LOG] = "".join(json.dumps(record) + "\n" for record in log)
    _write_folder(Path(path), files)


def _require_rebuildable(model: SetModel, arguments: dict[str, Any]) -> None:
    """Refuse a model that its name and arguments do not describe: :func:`load` would give back another."""
    kind, instead = type(model).__name__, "keep its state_dict with anyorder.storage.save_tensors"
    if MODELS.get(model.name) is not type(model):
        raise InputTypeError(
            f"{kind} is a class of your own under the name {model.name!r} of another, which load would rebuild; "
            f"give it a name of its own (name = … in the class) and define it wherever it is loaded, or {instead}"
        )
    rebuilt = _without_memory(model.name, arguments)
    odd = _other_shape(_shapes(rebuilt.state_dict()), _shapes(model.state_dict()))
    if odd is not None or str(rebuilt) != str(model):
        what = "a module" if odd is None else odd
        raise InputError(
            f"this {kind} was changed after it was built ({what} is not what its arguments make), and load "
            "would rebuild it as it was before; undo the change (parametrised weights: "
            f"torch.nn.utils.parametrize.remove_parametrizations), or {instead}"
        )


def _without_memory(name: str, arguments: Mapping[str, Any]) -> SetModel:
    """The model on the meta device: its names and shapes, before any room is made for its numbers."""
    with torch.device("meta"):
        return MODELS[name](**arguments)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _other_shape(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> str | None:
    """The first tensor that only one side has, or that has two shapes."""
    return min((n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)), default=None)


def load(path: str | os.PathLike[str]) -> Any:
    """The model, in eval mode, or the fitted estimator that :func:`save` wrote. Never runs code from the folder."""
    saved = open_model(path)
    return saved.model if saved.estimator is None else saved.estimator


def open_model(path: str | os.PathLike[str]) -> SavedModel:
    """All that a model folder holds, checked: format, hash, names and shapes."""
    folder = Path(path)
    config = _read_config(folder)
    data = _read_weights(folder, config)
    weights, _ = tensors_from_bytes(data, str(folder / WEIGHTS))
    model = _rebuild(folder, config, weights)
    estimator = None
    if config.get("estimator") is not None:
        try:
            name, details = config["estimator"]["name"], config["estimator"]["details"]
        except (KeyError, TypeError):
            raise _damaged(folder, "its estimator is not described") from None
        if name not in _ESTIMATORS:
            raise _damaged(folder, f"it names an estimator {name!r} that does not exist")
        try:
            estimator = getattr(anyorder, name).from_storage_parts(model, details)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError, OverflowError) as error:
            raise _damaged(folder, f"its estimator cannot be rebuilt ({error})") from None
    kept = [config.get(name) for name in ("preprocessing", "classes", "extra")]
    for name, value, kind in zip(("preprocessing", "classes", "extra"), kept, (dict, list, dict), strict=True):
        if not isinstance(value, kind | None):
            raise _damaged(folder, f"its {name} is not a JSON {'array' if kind is list else 'object'}")
    return SavedModel(model, estimator, *kept)


def _damaged(folder: Path, why: str) -> InputError:
    why = why if len(why) < 300 else why[:300] + "…"
    return InputError(f"the model folder {folder} is damaged: {why}; use another copy, or train and save it again")


def _read_config(folder: Path) -> dict[str, Any]:
    require_model_folder(folder)
    if (folder / CONFIG).stat().st_size > _LARGEST_CONFIG:
        raise _damaged(folder, f"{CONFIG} is larger than {_LARGEST_CONFIG:,} bytes")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(folder, f"{CONFIG} is not JSON ({error})") from None
    if not isinstance(config, dict) or config.get("format") != "anyorder":
        raise InputError(f"{folder / CONFIG} was not written by anyorder.save; this is another kind of model")
    version = config.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise _damaged(folder, f"its format version is {version!r}")
    if version > FORMAT_VERSION:
        raise InputError(
            f"the model folder {folder} has format {version}, written by anyorder {config.get('anyorder_version')}; "
            f"this one, {anyorder.__version__}, reads formats up to {FORMAT_VERSION}: upgrade anyorder"
        )
    return config


def _read_weights(folder: Path, config: dict[str, Any]) -> bytes:
    file = folder / WEIGHTS
    if not file.is_file():
        raise _damaged(folder, f"{WEIGHTS} is missing")
    try:
        size, digest = int(config["weights"]["bytes"]), str(config["weights"]["sha256"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise _damaged(folder, f"{CONFIG} does not say what weights belong to it") from None
    if file.stat().st_size != size:
        raise _damaged(folder, f"{WEIGHTS} has {file.stat().st_size:,} bytes, {CONFIG} says {size:,}")
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise _damaged(folder, f"the SHA-256 of {WEIGHTS} is not the one {CONFIG} names")
    return data


def _rebuild(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    try:
        name, arguments = config["model"]["name"], dict(config["model"]["config"])
    except (KeyError, TypeError, ValueError):
        raise _damaged(folder, f"{CONFIG} describes no model") from None
    if not isinstance(name, str):
        raise _damaged(folder, f"{CONFIG} names no model")
    if name not in MODELS:
        raise InputError(
            f"the model folder {folder} holds a model {name!r}, which anyorder {anyorder.__version__} does not know; "
            f"it was written by anyorder {config.get('anyorder_version')}: use that version"
        )
    _refuse_absurd_sizes(folder, arguments, sum(tensor.numel() for tensor in weights.values()))
    try:
        expected = _shapes(_without_memory(name, arguments).state_dict())
    except (TypeError, ValueError, RuntimeError) as error:
        raise _damaged(folder, f"no {name!r} model can be built from its arguments ({error})") from None
    found = _shapes(weights)
    if (odd := _other_shape(expected, found)) is not None:
        raise _damaged(folder, f"{odd} should have shape {expected.get(odd)}, the weights have {found.get(odd)}")
    with torch.random.fork_rng(devices=[]):  # the caller's generator does not notice the initial draws
        model = MODELS[name](**arguments)
    built = model.state_dict()  # a weight is of the precision it was saved in, a count is always whole
    kinds = {n: t.dtype if built[n].is_floating_point() else built[n].dtype for n, t in weights.items()}
    model.load_state_dict({n: t.to(kinds[n], copy=True) for n, t in weights.items()}, assign=True)
    return model.eval()


def _refuse_absurd_sizes(folder: Path, value: Any, numbers: int, name: str = "") -> None:
    """A width or a count of layers beyond the number of weights is a trap, not a model."""
    if isinstance(value, dict):
        for key, part in value.items():
            _refuse_absurd_sizes(folder, part, numbers, key)
    elif isinstance(value, list):
        for part in value:
            _refuse_absurd_sizes(folder, part, numbers, name)
    elif isinstance(value, (int, float)) and name not in _NOT_SIZES and value > max(numbers, 4096):
        raise _damaged(folder, f"{name}={value} does not fit weights of {numbers:,} numbers")


def _write_folder(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Put a whole folder in place, or leave what was there."""
    folder = folder.resolve()
    if folder.is_file():
        raise InputError(f"{folder} is a file; a model needs a folder of its own")
    if folder.exists() and any(folder.iterdir()) and not is_model_folder(folder):
        raise InputError(f"{folder} holds other files than a model's; choose a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    new, old = (folder.with_name(f".{folder.name}.{token}.{kind}") for kind in ("new", "old"))
    try:
        for name, content in files.items():
            write_atomically(new / name, content)
        if folder.exists():
            os.rename(folder, old)
        os.rename(new, folder)
    except BaseException:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(folder.parent)
