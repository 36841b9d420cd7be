"""Files: atomic writes, tensors stored without pickles, digests that prove a file whole, locks.

A file of ours holds the SHA-256 of all its bytes, computed with zeros in the digest's place. So a changed byte
anywhere is seen before anything is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from anyorder.checks import InputError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS, LOG, CARD = "config.json", "model.safetensors", "log.jsonl", "README.md"  # of a model folder
NO_DIGEST = "sha256:" + 64 * "0"  # where the digest of a file goes
_LARGEST_HEADER = 1 << 25  # bytes of names, shapes and metadata
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8"},
}
_DAMAGES = (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, RecursionError, OverflowError)


def home() -> Path:
    """The folder for downloads and unfinished runs: ``ANYORDER_HOME``, or the user's cache folder."""
    caches = {"darwin": "~/Library/Caches", "win32": os.environ.get("LOCALAPPDATA", "~/AppData/Local")}
    cache = caches.get(sys.platform) or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("ANYORDER_HOME") or os.path.join(cache, "anyorder")).expanduser()


def is_model_folder(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a folder that holds a saved model and nothing else, so that it may be replaced."""
    folder = Path(path)
    return folder.is_dir() and {p.name for p in folder.iterdir()} - {LOG, CARD} == {CONFIG, WEIGHTS}


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


@contextmanager
def locked(place: Path, lock: Path) -> Iterator[None]:
    """Be the only process that writes ``place``, for a ``with`` block; an :class:`InputError` says who else is.

    The system frees the file ``lock`` when its process ends, however it ends. Windows has no such lock.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 1  # the processes of a killed run may need a moment to leave
    while True:
        with open(lock, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                file.seek(0)
                holder = file.read(100) or "another process"
                raise InputError(f"{place} is being written by {holder}; wait for it, or choose another") from None
            if os.fstat(file.fileno()).st_nlink == 0:  # removed by its last holder
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()}, which started at {time.strftime('%Y-%m-%d %H:%M:%S')}")
            file.flush()
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def with_digest(content: bytes) -> bytes:
    """``content`` with the SHA-256 of it all for its first :data:`NO_DIGEST`."""
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    return content.replace(NO_DIGEST.encode(), digest.encode(), 1)


def check_digest(content: bytes, source: str) -> None:
    """Refuse content that is not, byte for byte, what :func:`with_digest` returned."""
    found = re.search(rb"sha256:[0-9a-f]{64}", content)
    if found is not None:
        whole = hashlib.sha256(content[: found.start()] + NO_DIGEST.encode())
        whole.update(memoryview(content)[found.end() :])
        if found[0].decode() == "sha256:" + whole.hexdigest():
            return
    raise InputError(f"the SHA-256 of {source} is not the one it names, so it was changed")


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """Named tensors and JSON-able ``metadata`` in the safetensors format, with a digest of it all.

    >>> import torch
    >>> packed = tensors_to_bytes({"state": torch.ones(2)}, {"count": 3})
    >>> tensors_from_bytes(packed)
    ({'state': tensor([1., 1.])}, {'count': 3})
    """
    import safetensors.torch  # imports torch, which a writer of text does not need

    # Tied weights share memory, which the format refuses: each name gets its own copy.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return with_digest(safetensors.torch.save(own, {"anyorder": NO_DIGEST + json.dumps(dict(metadata or {}))}))


def tensors_from_bytes(data: bytes, source: str = "the snapshot") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata of :func:`tensors_to_bytes`; an error names ``source`` if they are damaged.

    Never runs code found in the data.
    """
    return tensors_from_file(io.BytesIO(data), source)


def tensors_from_file(
    file: BinaryIO, source: str, check: Callable[[dict[str, Tensor], dict[str, Any]], None] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The same from an open file.

    ``check(tensors, metadata)`` gets tensors of the meta device, which have a shape and a dtype and no numbers. It may
    refuse them before memory is spent on the numbers.
    """
    import safetensors.torch

    start = file.read(2)
    try:
        outline, metadata = _outline(file)
        if check is not None:
            check(outline, metadata)
        file.seek(0)
        data = file.read()
        check_digest(data, source)
        return safetensors.torch.load(data), metadata
    except InputError:
        raise
    except (safetensors.SafetensorError, *_DAMAGES) as error:
        cause = f"is no whole safetensors file of anyorder ({' '.join(str(error).split())[:200]})"
        if start[:1] == b"\x80" or start == b"PK":
            cause = "is a pickle or a zip archive, not safetensors; it could run code, so it is not opened"
        raise InputError(f"{source} {cause}") from None


def _outline(file: BinaryIO) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, without numbers, and its metadata, once the file is known to be as large as they are."""
    import torch

    size = file.seek(0, os.SEEK_END) - 8
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(size, _LARGEST_HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = json.loads(file.read(length))
    metadata = dict(json.loads(header.pop("__metadata__")["anyorder"][len(NO_DIGEST) :]))
    outline = {
        name: torch.empty(part["shape"], dtype=getattr(torch, _DTYPES[part["dtype"]]), device="meta")
        for name, part in header.items()
    }
    if size != length + sum(tensor.nbytes for tensor in outline.values()):
        raise ValueError("its size is not that of its tensors")
    return outline, metadata
