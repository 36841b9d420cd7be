"""What the default penalty adds to a training step, by cell, size of the sets and width of the state.

Batch 64, 8 features, one thread; ratios of medians of interleaved repetitions. In fresh orderings (``shuffle=True``)
the states of the pass serve as random prefixes; a fold needs no draws at all.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anyorder as ao
from benchmarks.timing import entry, medians

FEATURES = 8
CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}
PAGE = Path(__file__).parents[1] / "docs" / "cost.md"
BEGIN, END = "<!-- penalty: made by python -m benchmarks cost -->", "<!-- end of penalty -->"
GOALS = {("gru", 256, 100): 1.10, ("gru", 64, 100): 1.10, ("gru", 64, 1000): 1.10}


def seconds(cell: str, hidden: int, n: int, batch: int, repetitions: int) -> dict[str, float]:
    """Median seconds of a step without a penalty, with SIRE in fresh orderings, and with SIRE of random prefixes."""
    torch.manual_seed(0)
    fold = cell == "fold"
    recurrence = ao.Fold(FEATURES, hidden) if fold else ao.recurrence(CELLS[cell](FEATURES, hidden, batch_first=True))
    readout, x = nn.Linear(hidden, 1), torch.randn(batch, n, FEATURES)
    optimizer = torch.optim.Adam([*recurrence.parameters(), *readout.parameters()])
    generator, sire = torch.Generator().manual_seed(0), ao.SIRE()

    def step(penalty: ao.SIRE | None) -> None:
        trajectory = recurrence.scan(x)
        loss: Tensor = readout(trajectory.output).square().mean()
        if penalty is not None:
            loss = loss + 0.1 * penalty(trajectory, generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    arms = {"plain": None, "shuffled": sire.of_shuffled(recurrence), "random": sire}
    if fold:
        del arms["random"]
    return medians({name: lambda arm=arm: step(arm) for name, arm in arms.items()}, repetitions)


def run(quick: bool = False) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    measured: dict[str, dict[str, Any]] = {}
    lines = ["| cell | width | elements | in fresh orderings | random prefixes |", "|---|---|---|---|---|"]
    for cell, hidden, n in itertools.product([*CELLS, "fold"], (64, 256), (20, 100, 1000)):
        found = seconds(cell, *((8, 5, 4, 1) if quick else (hidden, n, 64, max(5, 2000 // n))))
        words = []
        for arm in ("shuffled", "random"):
            if arm in found:
                goal = GOALS.get((cell, hidden, n)) if arm == "shuffled" else None
                what = f"step with default SIRE ({arm}) over the plain step: {cell} of {hidden}, n = {n}"
                name = f"default_sire_{arm}_over_plain_{cell}_{hidden}_{n}"
                measured[name] = entry(found[arm] / found["plain"], what, goal=goal)
                words.append(f"{measured[name]['value']:.2f}")
        lines.append(f"| {cell} | {hidden} | {n} | {' | '.join([*words, 'exact'][:2])} |")
    if not quick:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text("\n".join([f"{before}{BEGIN}", *lines, END + rest.split(END)[1]]), encoding="utf-8")
    return measured
