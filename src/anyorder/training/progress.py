"""What a training run says while it runs: a bar on a terminal, lines elsewhere, JSONL and TensorBoard on disk."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from anyorder.checks import InputError
from anyorder.files import write_atomically

Record = dict[str, Any]


class Display(Protocol):
    """Where an epoch's figures are shown."""

    def step(self, steps: int) -> None: ...
    def epoch(self, record: Record) -> None: ...
    def close(self) -> None: ...


def describe(record: Record) -> str:
    """An epoch's figures in one line.

    >>> describe({"epoch": 3, "loss": 0.25, "penalty": 0.01, "gap": None, "validation": 0.5})
    'epoch 3 · loss 0.25 · penalty 0.01 · validation 0.5'
    """
    figures = [
        f"{key} {record[key]:.4g}" for key in ("loss", "penalty", "gap", "validation") if record.get(key) is not None
    ]
    return " · ".join([f"epoch {record['epoch']}", *figures])


class Silent:
    """Shows nothing."""

    def step(self, steps: int) -> None:
        pass

    def epoch(self, record: Record) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """A plain line to stderr, at most one every ``seconds``, and always the last epoch's."""

    def __init__(self, seconds: float = 2.0) -> None:
        self._seconds = seconds
        self._next = 0.0
        self._waiting: Record | None = None

    def step(self, steps: int) -> None:
        pass

    def epoch(self, record: Record) -> None:
        self._waiting = record
        if time.monotonic() >= self._next:
            self.close()
            self._next = time.monotonic() + self._seconds

    def close(self) -> None:
        if self._waiting is not None:
            print(describe(self._waiting), file=sys.stderr, flush=True)
            self._waiting = None


class Bar:
    """A rich bar on stderr: the epoch's figures, the share done, the time left."""

    def __init__(self, total: int, done: int) -> None:
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("training", total=total, completed=done)
        self._next = 0.0
        self._bar.start()

    def step(self, steps: int) -> None:
        if time.monotonic() >= self._next:
            self._bar.update(self._task, completed=steps)
            self._next = time.monotonic() + 0.1

    def epoch(self, record: Record) -> None:
        self._bar.update(self._task, description=describe(record), completed=record["step"])

    def close(self) -> None:
        self._bar.stop()


def display(wanted: bool | None, total: int, done: int) -> Display:
    """A bar if stderr is a terminal, else lines; nothing when ``wanted`` is False."""
    if wanted is False:
        return Silent()
    return Bar(total, done) if sys.stderr.isatty() else Lines()


class Journal:
    """One JSON object an epoch in ``workdir/log.jsonl``, to TensorBoard if asked, and to ``log`` if given.

    A run that continues starts the file again from the epochs its checkpoint knows, so none appears twice.
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
            if not isinstance(tensorboard, bool):
                folder = Path(tensorboard)
            elif workdir is None:
                raise InputError("tensorboard=True needs a workdir to write to; name a folder instead")
            else:
                folder = workdir / "tensorboard"
            self._board = _summary_writer(folder, purge=len(history))

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


def _summary_writer(folder: Path, purge: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "tensorboard needs an extra: pip install -c constraints.txt '.[tensorboard]' in a checkout"
        ) from None
    return SummaryWriter(str(folder), purge_step=purge)
