"""Asking a predictor about many orderings, in blocks that keep to little memory and to a time budget."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from anyorder.audits.predictor import Predictor

_NUMBERS = 2_000_000  # of the elements in a block
_ORDER_NUMBERS = 4  # numbers of an element that cost as much memory as its place in an ordering
_ROWS = 1024
_FIRST_ROWS = 64  # of the first block under a time budget, before it is known how long one takes


class Clock:
    """The time budget and the progress bar (shown on a terminal, or when asked for)."""

    def __init__(self, seconds: float | None, progress: bool | None) -> None:
        self._begin = time.monotonic()
        self.seconds = seconds
        self._bar: Any = None
        self._show = sys.stderr.isatty() if progress is None else bool(progress)

    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def past(self, share: float) -> bool:
        """Whether this share of the budget is spent."""
        return self.seconds is not None and self.elapsed() > share * self.seconds

    def bar(self) -> Any:
        if not self._show:
            return nullcontext()
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True, force_terminal=True), transient=True)
        self._task = self._bar.add_task("auditing", total=None)
        return self._bar

    def phase(self, words: str, total: int) -> None:
        if self._bar is not None:
            self._bar.reset(self._task, description=words, total=total)

    def advance(self, rows: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, rows)


class Asker:
    """``asker(samples [R], orders [R, width]) -> outputs [R, K]``, one block at a time.

    A block holds at most two million numbers of elements, and places of orderings to go with them; one set is
    always taken whole. Under a time budget blocks shrink while one takes more than a tenth of it. ``batch_size``
    fixes their rows instead.
    """

    def __init__(self, predictor: Predictor, clock: Clock, batch_size: int | None) -> None:
        self.predictor, self.clock, self._batch_size = predictor, clock, batch_size
        self._rows = _ROWS if clock.seconds is None else _FIRST_ROWS

    def __call__(self, samples: np.ndarray, orders: np.ndarray | None = None, *, watch: bool = False) -> np.ndarray:
        begin = self.clock.elapsed()
        outputs = self.predictor(samples, orders, watch=watch)
        self.clock.advance(len(samples))
        if self.clock.seconds is not None:
            share = (self.clock.elapsed() - begin) / self.clock.seconds
            if share > 0.1:
                self._rows = max(1, len(samples) // 2)
            elif share < 0.025 and len(samples) >= self._rows:
                self._rows = min(_ROWS, 2 * self._rows)
        return outputs

    def room(self, size: int) -> int:
        """How many rows a block may have whose largest set is of this size."""
        if self._batch_size is not None:
            return self._batch_size
        sets = self.predictor.sets
        row = sets.width(size) * max(sets.features, _ORDER_NUMBERS)
        return int(np.clip(_NUMBERS // row, 1, self._rows))

    def blocks(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """``samples`` cut into blocks, in their order."""
        sizes = self.predictor.sets.sizes[samples]
        begin = 0
        while begin < len(samples):
            rows = self.room(1)
            while rows > (fit := self.room(int(sizes[begin : begin + rows].max()))):
                rows = max(fit, rows // 2)
            yield samples[begin : begin + rows]
            begin += rows
