"""Model folders: weights and what is needed to use them again, in files that cannot run code.

A folder holds ``model.safetensors`` (numbers) and ``config.json`` (the model's name and arguments, the SHA-256 of the
weights, preprocessing). Each names its own digest. Loading builds a model of this library by name. No pickle is ever
opened.
Models that stand beside a network, such as boosted trees, are numbers in the same files.
``log.jsonl``, a line for each epoch of training, is for people to read and is not loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import anyorder
from anyorder.checks import InputError, InputTypeError, one_of
from anyorder.files import (
    CONFIG,
    LOG,
    NO_DIGEST,
    WEIGHTS,
    check_digest,
    is_model_folder,
    sync_folder,
    tensors_from_file,
    tensors_to_bytes,
    with_digest,
    write_atomically,
)
from anyorder.models import MODELS, SetModel

FORMAT_VERSION = 3
_BESIDE = "beside."  # begins the names of tensors that are not the model's
_ESTIMATORS = ("SetClassifier", "SetRegressor")
_LARGEST_CONFIG = 1 << 26  # bytes
_NOT_SIZES = {"seed", "gate_bias_span", "typical_size"}  # arguments that cost no memory
_COUNTS = {"layers", "blocks"}  # of parts that have weights of their own
_FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DAMAGES = (KeyError, TypeError, ValueError, AttributeError, RuntimeError, RecursionError, OverflowError, OSError)


@dataclass(frozen=True)
class SavedModel:
    """What a model folder holds: the model, its estimator if it has one, and what was kept with it."""

    model: SetModel
    estimator: Any
    preprocessing: dict[str, Any] | None
    beside: dict[str, torch.Tensor]


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    preprocessing: Mapping[str, Any] | None = None,
    log: Sequence[Mapping[str, Any]] | None = None,
    beside: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write a set model or a fitted estimator as a folder, all of it or nothing.

    Args:
        model: The model or estimator. Its name, arguments and weights are stored, so it must not have been changed
            after it was built.
        path: The folder. A model that is there is replaced.
        preprocessing: JSON values to keep with the model, such as the schema of a table.
        log: A dict for each epoch of training (``history``), for people to read.
        beside: Named tensors of models that stand beside this one, such as boosted trees.

    >>> import tempfile, anyorder as ao
    >>> folder = Path(tempfile.mkdtemp()) / "model"
    >>> model = ao.RecurrentSetModel(3, 2, hidden=8).eval()
    >>> ao.save(model, folder)
    >>> elements = torch.randn(4, 5, 3)
    >>> torch.equal(ao.load(folder)(elements), model(elements))
    True
    """
    name, estimator = type(model).__name__, None
    if name in _ESTIMATORS and type(model) is getattr(anyorder, name):
        model, details = model.storage_parts()
        estimator = {"name": name, "details": details}
    if not _describes_itself(model):
        raise InputTypeError(
            f"save takes a set model or an estimator of anyorder as its arguments make it; this {name} is another, or "
            "was changed after it was built (give your own model a name of its own, or keep the state_dict)"
        )
    tensors = model.state_dict()
    _check_weights(tensors, model)
    weights = tensors_to_bytes(tensors | {_BESIDE + name: tensor for name, tensor in (beside or {}).items()})
    config = {
        "digest": NO_DIGEST,
        "format": "anyorder",
        "format_version": FORMAT_VERSION,
        "anyorder_version": anyorder.__version__,
        "model": {"name": model.name, "config": model.config()},
        "sha256": hashlib.sha256(weights).hexdigest(),
        "estimator": estimator,
        "preprocessing": preprocessing,
    }
    files = {WEIGHTS: weights, CONFIG: with_digest((json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())}
    if log is not None:
        files[LOG] = "".join(json.dumps(record) + "\n" for record in log).encode()
    _write_folder(Path(path).resolve(), files)


def load(path: str | os.PathLike[str]) -> Any:
    """The model, in eval mode, or the fitted estimator that :func:`save` wrote. Runs no code from the folder.

    >>> import tempfile, anyorder as ao
    >>> ao.save(ao.DeepSets(3, 2), folder := Path(tempfile.mkdtemp()) / "model")
    >>> ao.load(folder)(torch.randn(4, 5, 3)).shape
    torch.Size([4, 2])
    """
    saved = open_model(path)
    return saved.model if saved.estimator is None else saved.estimator


def open_model(path: str | os.PathLike[str]) -> SavedModel:
    """All that a model folder holds."""
    folder = Path(path)
    if not all((folder / name).is_file() for name in (CONFIG, WEIGHTS)):
        raise InputError(f"{folder} is not a model folder; it must hold {CONFIG} and {WEIGHTS}")
    try:
        with open(folder / CONFIG, "rb") as file:
            content = file.read(_LARGEST_CONFIG)
        check_digest(content, CONFIG)
        config = json.loads(content)
        of = f"format_version (of anyorder {config['anyorder_version']}; this is {anyorder.__version__})"
        one_of(of, config["format_version"], [FORMAT_VERSION])
        return _rebuild(config, folder / WEIGHTS)
    except _DAMAGES as error:
        words = " ".join(str(error).split())[:300]
        raise InputError(
            f"the model folder {folder} is damaged or of another version: {words}; use another copy, or train it again"
        ) from None


def _rebuild(config: Mapping[str, Any], weights: Path) -> SavedModel:
    name, arguments = one_of("model", config["model"]["name"], MODELS), config["model"]["config"]

    def check(tensors: dict[str, torch.Tensor], _: Any) -> None:
        """Names, shapes and dtypes must fit before memory is spent."""
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(_BESIDE)}
        numbers = sum(tensor.numel() for tensor in tensors.values())
        for argument, size in _sizes(arguments):  # a width or a count of layers costs time and memory
            most = len(tensors) if argument in _COUNTS else max(numbers, 4096)
            if not size <= most:  # also NaN
                raise InputError(f"{argument} is {size}, more than {WEIGHTS} has weights for")
        with torch.device("meta"):
            model = MODELS[name](**arguments)
        model.load_state_dict(tensors)
        _check_weights(tensors, model)

    with open(weights, "rb") as file:
        tensors, _ = tensors_from_file(file, WEIGHTS, check)
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != config["sha256"]:
            raise InputError(f"{WEIGHTS} is not the file that {CONFIG} names by its SHA-256")
    beside = {n.removeprefix(_BESIDE): tensors.pop(n).clone() for n in list(tensors) if n.startswith(_BESIDE)}
    with torch.random.fork_rng(devices=[]):
        model = MODELS[name](**arguments)
    _check_weights(tensors, model)
    model.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
    estimator = None
    if config["estimator"] is not None:
        kind = getattr(anyorder, one_of("estimator", config["estimator"]["name"], _ESTIMATORS))
        estimator = kind.from_storage_parts(model, config["estimator"]["details"])
    return SavedModel(model.eval(), estimator, config["preprocessing"], beside)


def _check_weights(tensors: Mapping[str, torch.Tensor], model: SetModel) -> None:
    """Refuse weights of several dtypes and, where they have numbers, infinite ones and NaN."""
    kinds = {tensors[name].dtype for name, _ in model.named_parameters()}
    for name, own in model.state_dict().items():
        tensor = tensors[name]
        fits = tensor.dtype in ({own.dtype, *kinds} if own.is_floating_point() else {own.dtype})
        if len(kinds) > 1 or not kinds <= {*_FLOATING} or not fits:
            raise InputError(f"the weights must be of one dtype, of {_FLOATING}; {name} is {tensor.dtype}")
        if not (tensor.is_meta or bool(tensor.isfinite().all())):
            raise InputError(f"the weights must be finite; {name} holds NaN or an infinite value")


def _sizes(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The names and numbers among a model's arguments that say how large it is."""
    if isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else ((name, part) for part in value):
            yield from _sizes(part, key)
    elif isinstance(value, (int, float)) and name not in _NOT_SIZES:
        yield name, value


def _describes_itself(model: Any) -> bool:
    """Whether the model's name and arguments build the same modules, so that :func:`load` gives it back."""
    if not isinstance(model, SetModel) or MODELS.get(model.name) is not type(model):
        return False
    with torch.device("meta"):
        rebuilt = MODELS[model.name](**model.config())
    shapes = [{name: tensor.shape for name, tensor in m.state_dict().items()} for m in (rebuilt, model)]
    return shapes[0] == shapes[1] and str(rebuilt) == str(model)


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put a whole folder in place, or leave what was there."""
    if folder.exists() and not is_model_folder(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} exists and is no model; choose a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    new, old = (folder.with_name(f".{folder.name}.{token}.{kind}") for kind in ("new", "old"))
    try:
        for name, content in files.items():
            write_atomically(new / name, content)
        if folder.exists():
            os.rename(folder, old)
        os.rename(new, folder)
    finally:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
    sync_folder(folder.parent)
