"""Files: the folder for downloads and unfinished runs, atomic writes, tensors stored without pickles."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyorder.checks import InputError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS, LOG = "config.json", "model.safetensors", "log.jsonl"  # of a model folder


def home() -> Path:
    """The folder for downloads and unfinished runs: ``ANYORDER_HOME``, or the user's cache folder."""
    caches = {"darwin": "~/Library/Caches", "win32": os.environ.get("LOCALAPPDATA", "~/AppData/Local")}
    cache = caches.get(sys.platform) or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("ANYORDER_HOME") or os.path.join(cache, "anyorder")).expanduser()


def is_model_folder(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a folder that holds a saved model and nothing else, so that it may be replaced."""
    folder = Path(path)
    return folder.is_dir() and {p.name for p in folder.iterdir()} - {LOG} == {CONFIG, WEIGHTS}


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a whole file or nothing: a reader sees the old content or the new, even after a crash.

    The content goes to a temporary file beside ``path``, reaches the disk, and is renamed in one step.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # not the temporary file
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """Named tensors and JSON-able ``metadata`` in the safetensors format.

    >>> import torch
    >>> packed = tensors_to_bytes({"state": torch.ones(2)}, {"count": 3})
    >>> tensors_from_bytes(packed)
    ({'state': tensor([1., 1.])}, {'count': 3})
    """
    import safetensors.torch  # imports torch, which a writer of text does not need

    # Tied weights share memory, which the format refuses: each name gets its own copy.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(own, {"anyorder": json.dumps(dict(metadata or {}))})


def tensors_from_bytes(data: bytes, source: str = "the snapshot") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata of :func:`tensors_to_bytes`; an error names ``source`` if they are damaged.

    Never runs code found in the data.
    """
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = dict(json.loads(header.get("__metadata__", {}).get("anyorder", "{}")))
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        cause = f"is damaged or not a safetensors file ({error})"
        if data[:1] == b"\x80" or data[:2] == b"PK":
            cause = "is a pickle or a zip archive, not safetensors; it could run code, so it is not opened"
        raise InputError(f"{source} {cause}") from None
    return tensors, metadata
