"""Model folders: weights and what they need to be used again, in files that cannot run code."""

from __future__ import annotations

from anyorder._files import (
    load_tensors,
    save_tensors,
    sync_folder,
    tensors_from_bytes,
    tensors_to_bytes,
    write_atomically,
)

__all__ = [
    "load_tensors",
    "save_tensors",
    "sync_folder",
    "tensors_from_bytes",
    "tensors_to_bytes",
    "write_atomically",
]
