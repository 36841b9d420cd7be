"""The figures of a training run: on stderr, in ``log.jsonl`` and in TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
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


class Journal:
    """Reports each epoch: stderr, ``workdir/log.jsonl``, TensorBoard and ``log``.

    On a terminal one line is rewritten, with the time left; elsewhere a line is printed every two seconds. A run that
    continues rewrites ``log.jsonl`` from the epochs of its checkpoint. Of several processes only the first reports.
    """

    def __init__(self, run: Any, workdir: Path | None, shown: bool, log: Callable[[Record], None] | None) -> None:
        self._first, self._total, self._began, self._next = run.result.steps, run.total_steps, time.monotonic(), 0.0
        self._main, self._shown, self._log = run.rank == 0, shown and run.rank == 0, log
        self._terminal = self._shown and sys.stderr.isatty()
        self._waiting: Record | None = None
        self._figures = "training"
        self._path = None if workdir is None else workdir / "log.jsonl"
        self._board: Any = None
        history, tensorboard = run.result.history, run.config.tensorboard
        if self._path is not None and self._main:
            write_atomically(self._path, "".join(json.dumps(record) + "\n" for record in history))
        if tensorboard and self._main:
            folder = f"{workdir or '.'}/tensorboard" if tensorboard is True else str(tensorboard)
            writer = extra("torch.utils.tensorboard", "tensorboard", "tensorboard=").SummaryWriter
            self._board = writer(folder, purge_step=len(history))

    def step(self, steps: int) -> None:
        """Rewrite the line on a terminal, at most ten times a second."""
        now = time.monotonic()
        if self._terminal and (now >= self._next or steps == self._total):
            left = (now - self._began) * (self._total - steps) / max(1, steps - self._first)
            line = f"{self._figures} · {steps / self._total:.0%} · {timedelta(seconds=round(left))} left"
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._next = now + 0.1

    def epoch(self, record: Record) -> None:
        self._figures, self._waiting = describe(record), record
        if self._path is not None and self._main:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for key, value in record.items():
                if isinstance(value, float):
                    self._board.add_scalar(key, value, record["epoch"])
        if self._log is not None and self._main:
            self._log(record)
        if not self._terminal and time.monotonic() >= self._next:
            self._print()
            self._next = time.monotonic() + 2

    def close(self) -> None:
        """Show the last figures, if they were not shown yet."""
        self._print()
        if self._board is not None:
            self._board.close()

    def _print(self) -> None:
        if self._waiting is not None and self._shown:
            if self._terminal:
                self.step(self._waiting["step"])
            print("" if self._terminal else self._figures, file=sys.stderr, flush=True)
        self._waiting = None
