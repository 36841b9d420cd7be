"""What an audit costs over plain prediction, and how often its intervals cover.

A GRU of 64 units reads sets of 10 elements in 32 orderings; one thread. Memory is the growth of the peak resident size
of a process of its own.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch

import anyorder as ao
from anyorder.audits.intervals import mean_interval, rate_interval
from benchmarks.loop import in_a_process
from benchmarks.timing import entry, medians, peak_memory

ORDERINGS, SETTING, SETS = 32, "GRU 64, n = 10", (30, 50, 100, 200)


@torch.no_grad()
def seconds(sets: int) -> tuple[float, float]:
    """Seconds of an audit without swaps and search, and of reading as many sets."""
    torch.set_num_threads(1)
    model = ao.RecurrentSetModel(3, 2, hidden=64).eval()
    x = torch.randn(sets, 10, 3, generator=torch.Generator().manual_seed(0))
    calls = ao.audit(model, x, orderings=ORDERINGS, search=0).calls
    contenders = {
        "audit": lambda: ao.audit(model, x, orderings=ORDERINGS, search=0),
        "prediction": lambda: [model(batch) for _ in range(calls // sets) for batch in x.split(1024)],
    }
    found = medians(contenders, repetitions=3, warm_up=0)
    return found["audit"], found["prediction"] * calls / (calls // sets * sets)


def peak(sets: int, orderings: int) -> float:
    """Bytes by which an audit raises this process's peak resident size, after a small one has warmed all up."""
    torch.set_num_threads(1)
    model, x = ao.RecurrentSetModel(3, 2, hidden=64), torch.randn(sets, 10, 3)
    ao.audit(model, x[:2000], orderings=2, search=0)
    before = peak_memory()
    ao.audit(model, x, orderings=orderings, search=0)
    return peak_memory() - before


def coverage(sets: int, cases: int) -> dict[str, float]:
    """The share of nominal 95 % intervals that hold the truth, by law and figure, of a predictor that reads the last
    of 5 elements: the output gap, a point of each curve, and the flips of a threshold that few elements exceed."""
    source, size = np.random.default_rng(0), 5
    laws: dict[str, Any] = {"normal": source.standard_normal}
    laws |= {f"lognormal {s}": lambda shape, s=s: source.lognormal(0, s, shape) for s in (1, 2)}
    rates = {f"flips {rate}": rate for rate in (0.01, 0.02, 0.05, 0.3)}

    def output_gap(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.mean(
            [np.abs(x[rows, source.integers(size, size=len(x))] - x[:, -1]) for _ in range(ORDERINGS)], axis=0
        )

    def by_position(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.mean([np.abs(x[rows, source.integers(size - 1, size=len(x))] - x[:, -1]) for _ in range(4)], axis=0)

    def by_distance(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        moved = source.random((4, len(x))) < 1 / (size - 1)  # of four swaps of neighbours, those of the last two
        return moved.mean(axis=0) * np.abs(x[:, -2] - x[:, -1])

    def flips(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.mean([x[rows, source.integers(size, size=len(x))] != x[:, -1] for _ in range(ORDERINGS)], axis=0)

    shares = {}
    for (law, draw), figure in product(laws.items(), (output_gap, by_position, by_distance)):
        many = draw((cases * sets, size))
        truth = sum(figure(draw((500_000, size)), np.arange(500_000)).mean() for _ in range(2)) / 2
        ends = map(mean_interval, figure(many, np.arange(len(many))).reshape(cases, sets))
        shares[f"{law}, {figure.__name__}"] = float(np.mean([low <= truth <= high for low, high in ends]))
    for name, rate in rates.items():
        many = source.random((cases * sets, size)) < rate
        truth = 2 * rate * (1 - rate) * (size - 1) / size
        ends = map(rate_interval, flips(many, np.arange(len(many))).reshape(cases, sets))
        shares[name] = float(np.mean([low <= truth <= high for low, high in ends]))
    return shares


def run(quick: bool = False) -> dict[str, Any]:
    """All figures of this part; ``quick`` only shows that they can be taken."""
    sets = 500 if quick else 10_000
    audit, prediction = seconds(sets)
    grown = float(in_a_process(f"from benchmarks.audit import peak; print(peak({2 * sets}, {ORDERINGS}))"))
    return {
        "audit_over_prediction": entry(
            audit / prediction,
            f"an audit of {sets} sets by {ORDERINGS} orderings over reading as many in batches of 1,024 ({SETTING})",
            goal=1.5,
        ),
        "audit_minutes_100000_by_32": entry(
            audit / 60 * 100_000 / sets,
            f"minutes of an audit of 100,000 sets by {ORDERINGS} orderings on one core, from {sets} sets ({SETTING})",
            goal=3.0,
        ),
        "audit_memory_megabytes": entry(
            grown / 1e6,
            f"growth of the peak memory by an audit of {2 * sets} sets by {ORDERINGS} orderings",
            goal=100.0,
        ),
        "audit_coverage": entry(
            min(min(coverage(sets, 20 if quick else 3000).values()) for sets in SETS),
            "smallest coverage of nominal 95 % intervals: normal, lognormal (1, 2), rare flips; 30 to 200 sets",
            goal=0.92,
            better="higher",
        ),
    }
