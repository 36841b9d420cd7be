"""Files: where what is unfinished lives, atomic writes, and tensors with JSON beside them that cannot run code."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyorder.checks import InputError, InputTypeError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS, LOG = "config.json", "model.safetensors", "log.jsonl"  # of a model folder
_TABLES = ("csv", "tsv", "txt", "parquet", "pq", "npz")
_NO_ROOM = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_NO_ROOM[errno.EFBIG] = "the file would be larger than the system allows"


def home() -> Path:
    """Where downloads and unfinished runs live: ``ANYORDER_HOME``, or the user's cache folder."""
    if chosen := os.environ.get("ANYORDER_HOME"):
        return Path(chosen).expanduser()
    import pooch  # half a second that only those who ask should wait

    return Path(pooch.os_cache("anyorder")).expanduser()


def table_ending(path: str | os.PathLike[str]) -> str:
    """What the name of a table's file says it is, without the dot; a file that is not there is refused."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist; give the path of a CSV, Parquet or npz file")
    if not path.is_file():
        raise InputError(f"{path} is not a file; give the path of a CSV, Parquet or npz file")
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending not in _TABLES:
        raise InputError(f"{path} must end in .csv, .tsv, .parquet or .npz to say what it is")
    return ending


def is_model_folder(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a folder that holds a saved model and nothing else, so that it may be replaced."""
    folder = Path(path)
    return folder.is_dir() and {p.name for p in folder.iterdir()} - {LOG} == {CONFIG, WEIGHTS}


def require_model_folder(path: str | os.PathLike[str]) -> None:
    """Refuse what cannot be a model folder at first sight."""
    folder = Path(path)
    if not folder.exists():
        path = folder.resolve()
        kept = [p for kind in ("new", "old") for p in path.parent.glob(f".{path.name}.*.{kind}") if is_model_folder(p)]
        if kept:  # what was being saved, and what was there before
            raise InputError(
                f"there is no model folder {folder}: a save was cut short just before it took its name; the model is "
                f"{kept[0]}, rename that to {path}"
            )
        raise InputError(f"there is no model folder {folder}; anyorder train and anyorder.save make one")
    if not folder.is_dir() or not (folder / CONFIG).is_file():
        raise InputError(f"{folder} is not a model folder: it must hold {CONFIG} and {WEIGHTS}")


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a whole file or nothing: a reader sees the old content or the new, even after a crash.

    The content goes to a temporary file beside ``path``, reaches the disk, and takes the name in one step.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "figures.txt"
    >>> write_atomically(target, "42")
    >>> target.read_text()
    '42'
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise OSError(
                error.errno,
                f"{_NO_ROOM[error.errno]}: could not write {len(data):,} bytes to {path}; "
                "what was there before is intact (free some space and run the command again)",
            ) from None
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write named tensors and JSON-able ``metadata`` as one safetensors file, atomically."""
    write_atomically(path, tensors_to_bytes(tensors, metadata))


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata that :func:`save_tensors` wrote. Never runs code found in the file."""
    return tensors_from_bytes(Path(path).read_bytes(), str(path))


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """Named tensors and JSON-able ``metadata`` in the safetensors format.

    >>> import torch
    >>> packed = tensors_to_bytes({"state": torch.ones(2)}, {"count": 3})
    >>> tensors_from_bytes(packed)
    ({'state': tensor([1., 1.])}, {'count': 3})
    """
    import safetensors.torch  # brings torch, which those who write a text do not need

    try:
        words = json.dumps(dict(metadata or {}), allow_nan=True)
    except TypeError as error:
        raise InputTypeError(f"metadata must be made of JSON values: {error}") from None
    # Tied weights share memory, which the format refuses: each name gets its own copy.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(own, {"anyorder": words})


def tensors_from_bytes(data: bytes, source: str = "the snapshot") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Undo :func:`tensors_to_bytes`; damaged or foreign bytes give one clear error naming ``source``."""
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = json.loads(header.get("__metadata__", {}).get("anyorder", "{}"))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        if data[:1] == b"\x80" or data[:2] == b"PK":
            raise InputError(
                f"{source} is a pickle or a zip archive, not safetensors; it could run code, so it is not opened "
                "(save the model again with anyorder.save)"
            ) from None
        raise InputError(
            f"{source} is damaged or not a safetensors file ({error}); use another copy or make it again"
        ) from None
    if not isinstance(metadata, dict):
        raise InputError(f"{source} holds metadata that is not a JSON object; make the file again")
    return tensors, metadata
