"""The unfinished training of a command: where its checkpoint waits, and whether it may be resumed."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from anyorder.checks import InputError
from anyorder.files import home, is_model_folder, locked


def is_first_process() -> bool:
    """Whether this is the only process of the training, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


class Run:
    """One training, known by the model folder ``out`` that it writes.

    Whether a checkpoint fits the table and the options is checked where the checkpoint is read.
    """

    def __init__(self, out: Path, resume: bool = False) -> None:
        self.out, name = out, hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:20]
        self.folder, self._finished = home() / "runs" / name, home() / "finished" / name
        self._lock = self.folder.with_suffix(".lock")
        if resume and not self.unfinished:
            self.folder = self._finished

    @property
    def unfinished(self) -> bool:
        """Whether a checkpoint waits in the folder."""
        return any(self.folder.glob("*.safetensors"))

    def lock(self) -> AbstractContextManager[None]:
        """Be the only training that writes the model folder."""
        return locked(self.out, self._lock)

    def check(self, resume: bool, force: bool) -> None:
        """Refuse to lose an unfinished training, and to replace what is not a model folder."""
        if resume and force:
            raise InputError("--resume continues a training and --force starts afresh; choose one")
        if resume and not self.unfinished:
            raise InputError(f"there is nothing to resume: no checkpoint of a training for {self.out} is kept")
        if self.unfinished and not resume and not force:
            raise InputError(
                f"the training for {self.out} was not finished; continue it with --resume and the same options, or "
                f"start afresh with --force (its checkpoint is in {self.folder})"
            )
        if not self.out.exists():
            return
        if not (resume or force):
            raise InputError(f"{self.out} exists; choose another --out, or replace it with --force")
        if not is_model_folder(self.out) and (not self.out.is_dir() or any(self.out.iterdir())):
            raise InputError(f"{self.out} is not a model folder and is not replaced; choose another --out")

    def begin(self, force: bool) -> None:
        """Make the folder; with ``force``, drop the checkpoint of an earlier training."""
        if force:
            self.drop()
        self.folder.mkdir(parents=True, exist_ok=True)

    def drop(self) -> None:
        """Drop the checkpoint."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        """Keep the checkpoint of a finished training, which more epochs may extend."""
        if self.folder != self._finished:
            shutil.rmtree(self._finished, ignore_errors=True)
            self._finished.parent.mkdir(exist_ok=True)
            self.folder.rename(self._finished)
