"""What an audit costs over plain prediction, and how often its intervals cover.

A GRU of 64 units reads sets of 10 elements in 32 orderings; one thread. Memory is the growth of the peak resident size
of a process of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import anyorder as ao
from anyorder.audits.intervals import mean_interval, rate_interval
from benchmarks.loop import in_a_process
from benchmarks.timing import entry, medians, peak_memory

ORDERINGS, SETTING = 32, "GRU 64, n = 10"


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


def coverage(cases: int) -> float:
    """The smallest share of intervals that cover, over laws, figures and numbers of sets."""
    source, size, shares = np.random.default_rng(0), 5, []

    def last(law: str, many: int, draws: int) -> np.ndarray:
        x = {"normal": source.standard_normal, "lognormal": source.standard_normal}[law.split()[0]]((many, size))
        x = np.exp(float(law.split()[1]) * x) if law.startswith("lognormal") else x
        rows = np.arange(many)
        return np.mean([np.abs(x[rows, source.integers(size, size=many)] - x[:, -1]) for _ in range(draws)], axis=0)

    def flips(rate: float, many: int) -> np.ndarray:
        high, rows = source.random((many, size)) < rate, np.arange(many)
        return np.mean([high[rows, source.integers(size, size=many)] != high[:, -1] for _ in range(ORDERINGS)], axis=0)

    for sets in (30, 50, 100, 200):
        for law in ("normal", "lognormal 1", "lognormal 2"):
            for draws in (ORDERINGS, 4):
                truth = last(law, 2_000_000, draws).mean()
                ends = map(mean_interval, last(law, cases * sets, draws).reshape(cases, sets))
                shares.append(np.mean([low <= truth <= high for low, high in ends]))
        for rate in (0.01, 0.02, 0.05, 0.3):
            truth = 2 * rate * (1 - rate) * (size - 1) / size
            ends = map(rate_interval, flips(rate, cases * sets).reshape(cases, sets))
            shares.append(np.mean([low <= truth <= high for low, high in ends]))
    return float(min(shares))


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
            coverage(20 if quick else 4000),
            "smallest coverage of nominal 95 % intervals: normal, lognormal (1, 2), rare flips; 30 to 200 sets",
            goal=0.92,
            better="higher",
        ),
    }
