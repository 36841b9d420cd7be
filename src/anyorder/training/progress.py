"""The figures of a training run: on stderr, in ``log.jsonl`` and in TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyorder.checks import extra
from anyorder.files import write_atomically

Record = dict[str, Any]


class Journal:
    """Reports each epoch: stderr, ``workdir/log.jsonl``, TensorBoard and ``log``.

    A line is printed at most every two seconds, and for the last epoch. A run that continues rewrites ``log.jsonl``
    from the epochs of its checkpoint. Of several processes only the first reports.
    """

    def __init__(self, run: Any, workdir: Path | None, shown: bool, log: Callable[[Record], None] | None) -> None:
        self._main, self._shown, self._log = run.rank == 0, shown, log
        self._unshown, self._next = "", 0.0
        self._epochs, self._about = run.config.epochs, "about" if run.config.patience is None else "at most"
        self._seconds: deque[float] = deque(maxlen=5)  # of the last epochs
        self._path = None if workdir is None else workdir / "log.jsonl"
        self._board: Any = None
        if self._main and self._path is not None:
            write_atomically(self._path, "".join(json.dumps(record) + "\n" for record in run.result.history))
        if self._main and run.config.tensorboard:
            writer = extra("torch.utils.tensorboard", "tensorboard", "tensorboard=").SummaryWriter
            self._board = writer(str(run.config.tensorboard), purge_step=len(run.result.history))

    def epoch(self, record: Record) -> None:
        if not self._main:
            return
        figures = {name: record[name] for name in ("loss", "penalty", "gap", "validation") if record[name] is not None}
        done = record["epoch"] + 1
        self._seconds.append(record["seconds"])
        left = (self._epochs - done) * sum(self._seconds) / len(self._seconds)
        where = f"epoch {done} of {self._epochs}" + (f", {self._about} {_duration(left)} left" if left else "")
        self._unshown = " · ".join([where, *(f"{name} {v:.4g}" for name, v in figures.items())])
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for key, value in record.items():
                if isinstance(value, float):
                    self._board.add_scalar(key, value, record["epoch"])
        if self._log is not None:
            self._log(record)
        if time.monotonic() >= self._next:
            self._print()

    def close(self) -> None:
        self._print()
        if self._board is not None:
            self._board.close()

    def _print(self) -> None:
        if self._shown and self._unshown:
            print(self._unshown, file=sys.stderr, flush=True)
            self._unshown, self._next = "", time.monotonic() + 2


def _duration(seconds: float) -> str:
    """A time in the unit that people would use.

    >>> _duration(40), _duration(250), _duration(10_000)
    ('40 s', '4 min', '2.8 h')
    """
    minutes = seconds / 60
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"
