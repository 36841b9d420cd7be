"""Medians of interleaved repetitions, and the one form in which a measurement is kept."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def medians(contenders: Mapping[str, Callable[[], Any]], repetitions: int, warm_up: int = 1) -> dict[str, float]:
    """Median seconds of each contender.

    Every repetition runs all of them in turn, forwards and backwards by turns, so that all share the weather and none
    always runs after the same other.
    """
    for _ in range(warm_up):
        for run in contenders.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repetition in range(repetitions):
        for name, run in list(contenders.items())[:: 1 if repetition % 2 == 0 else -1]:
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


def entry(value: float, what: str, *, goal: float | None = None, better: str = "lower") -> dict[str, Any]:
    """A measurement as ``benchmarks/results.json`` keeps it."""
    met = None if goal is None else bool(value <= goal if better == "lower" else value >= goal)
    return {
        "value": round(float(value), 4),
        "goal": goal,
        "better": better,
        "met": met,
        "what": what,
        "machine": machine(),
    }


def machine() -> str:
    """The processor and its cores; no name of a host."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores"


def peak_memory() -> float:
    """The largest resident size of this process so far, in bytes.

    Linux keeps it a program; getrusage, used elsewhere, may remember the peak of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return 1024.0 * int(next(line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
