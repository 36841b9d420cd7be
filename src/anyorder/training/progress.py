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


class Journal:
    """Reports each epoch: stderr, ``workdir/log.jsonl``, TensorBoard and ``log``.

    On a terminal one line is rewritten, with the time left; elsewhere a line is printed every two seconds. A run that
    continues rewrites ``log.jsonl`` from the epochs of its checkpoint. Of several processes only the first reports.
    """

    def __init__(self, run: Any, workdir: Path | None, shown: bool, log: Callable[[Record], None] | None) -> None:
        self._began, self._next, self._run, self._first = time.monotonic(), 0.0, run, run.result.steps
        self._main, self._log = run.rank == 0, log
        self._shown = shown and self._main
        self._terminal = self._shown and sys.stderr.isatty()
        self._figures = self._printed = ""
        self._path = None if workdir is None else workdir / "log.jsonl"
        self._board: Any = None
        history, tensorboard = run.result.history, run.config.tensorboard
        if self._path is not None and self._main:
            write_atomically(self._path, "".join(json.dumps(record) + "\n" for record in history))
        if tensorboard and self._main:
            folder = f"{workdir or '.'}/tensorboard" if tensorboard is True else str(tensorboard)
            writer = extra("torch.utils.tensorboard", "tensorboard", "tensorboard=").SummaryWriter
            self._board = writer(folder, purge_step=len(history))

    def step(self) -> None:
        """Rewrite the line on a terminal, at most ten times a second."""
        if self._terminal and time.monotonic() >= self._next:
            steps, total = self._run.result.steps, self._run.total_steps
            left = (time.monotonic() - self._began) * (total - steps) / max(1, steps - self._first)
            line = f"{self._figures or 'training'} · {steps / total:.0%} · {timedelta(seconds=round(left))} left"
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._next = time.monotonic() + 0.1

    def epoch(self, record: Record) -> None:
        figures = {name: record[name] for name in ("loss", "penalty", "gap", "validation") if record[name] is not None}
        self._figures = " · ".join([f"epoch {record['epoch']}", *(f"{name} {v:.4g}" for name, v in figures.items())])
        if self._path is not None and self._main:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for key, value in record.items():
                if isinstance(value, float):
                    self._board.add_scalar(key, value, record["epoch"])
        if self._log is not None and self._main:
            self._log(record)
        if self._shown and not self._terminal and time.monotonic() >= self._next:
            self._print()

    def close(self) -> None:
        """Show the last figures, if they were not shown yet."""
        if self._terminal:
            self._next = 0.0
            self.step()
            print(file=sys.stderr)
        elif self._shown and self._figures != self._printed:
            self._print()
        if self._board is not None:
            self._board.close()

    def _print(self) -> None:
        print(self._figures, file=sys.stderr, flush=True)
        self._printed, self._next = self._figures, time.monotonic() + 2
