"""The figures of a training run: on stderr, in ``log.jsonl`` and in TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from anyorder.checks import extra
from anyorder.files import write_atomically

Record = dict[str, Any]


def describe(record: Record) -> str:
    """An epoch's figures in one line.

    >>> describe({"epoch": 3, "loss": 0.25, "penalty": 0.01, "gap": None, "validation": 0.5})
    'epoch 3 · loss 0.25 · penalty 0.01 · validation 0.5'
    """
    shown = [key for key in ("loss", "penalty", "gap", "validation") if record.get(key) is not None]
    return " · ".join([f"epoch {record['epoch']}", *(f"{key} {record[key]:.4g}" for key in shown)])


class Display:
    """Each epoch's figures on stderr: one line that is rewritten on a terminal, a line every two seconds elsewhere."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._first, self._began = total, done, time.monotonic()
        self._next = 0.0
        self._record: Record | None = None
        self._terminal = sys.stderr.isatty()

    def step(self, steps: int) -> None:
        now = time.monotonic()
        if self._terminal and now >= self._next:
            left = (now - self._began) * (self._total - steps) / max(1, steps - self._first)
            figures = "training" if self._record is None else describe(self._record)
            line = f"{figures} · {steps / self._total:.0%} · {timedelta(seconds=round(left))} left"
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._next = now + 0.1

    def epoch(self, record: Record) -> None:
        self._record = record
        if not self._terminal and time.monotonic() >= self._next:
            self.close()
            self._next = time.monotonic() + 2

    def close(self) -> None:
        """Show the last figures, if they were not shown yet."""
        if self._record is not None and self._terminal:
            self._next = 0.0
            self.step(self._record["step"])
            print(file=sys.stderr)
        elif self._record is not None:
            print(describe(self._record), file=sys.stderr, flush=True)
        self._record = None


class Journal:
    """One JSON object an epoch in ``workdir/log.jsonl``; the same to TensorBoard and to ``log``, if given.

    A run that continues rewrites the file from the epochs of its checkpoint, so that none appears twice.
    """

    def __init__(
        self,
        workdir: Path | None,
        tensorboard: bool | str | Path,
        log: Callable[[Record], None] | None,
        history: Sequence[Record],
    ) -> None:
        self._log = log
        self._path = None if workdir is None else workdir / "log.jsonl"
        self._board: Any = None
        if self._path is not None:
            write_atomically(self._path, "".join(json.dumps(record) + "\n" for record in history))
        if tensorboard:
            folder = f"{workdir}/tensorboard" if tensorboard is True else str(tensorboard)
            writer = extra("torch.utils.tensorboard", "tensorboard", "tensorboard=").SummaryWriter
            self._board = writer(folder, purge_step=len(history))

    def epoch(self, record: Record) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for key, value in record.items():
                if isinstance(value, float):
                    self._board.add_scalar(key, value, record["epoch"])
        if self._log is not None:
            self._log(record)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
