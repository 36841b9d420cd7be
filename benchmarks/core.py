"""What the penalties cost: a training step with each over the plain step, and scans over torch's own modules.

GRU of 256 units, batch 64, n = 100 unless said; one thread. All ratios are medians of interleaved repetitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import anyorder as ao
from benchmarks.timing import entry, medians

FEATURES, CLASSES = 8, 10


class Trainer:
    """One model and batch; each method is one whole training step (forward, backward, Adam)."""

    def __init__(self, n: int, hidden: int = 256, batch: int = 64, kind: type[nn.RNNBase] = nn.GRU) -> None:
        torch.manual_seed(0)
        self.module = kind(FEATURES, hidden, batch_first=True)
        self.cell = nn.GRUCell(FEATURES, hidden)
        self.recurrence = ao.recurrence(self.module)
        self.readout = nn.Linear(hidden, CLASSES)
        self.elements = torch.randn(batch, n, FEATURES)
        self.labels = torch.randint(0, CLASSES, (batch,))
        parameters = [*self.module.parameters(), *self.cell.parameters(), *self.readout.parameters()]
        self.optimizer = torch.optim.Adam(parameters)
        self.generator = torch.Generator().manual_seed(0)

    def step(self, state: Tensor, penalty: Tensor | float = 0.0) -> None:
        loss = nn.functional.cross_entropy(self.readout(state), self.labels) + 0.1 * penalty
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def torch_module(self) -> None:
        self.step(self.module(self.elements)[0][:, -1])

    def plain(self) -> None:
        self.step(self.recurrence.scan(self.elements).output)

    def penalised(self, penalty: Callable[..., Tensor]) -> Callable[[], None]:
        def run() -> None:
            t = self.recurrence.scan(self.elements)
            self.step(t.output, penalty(t, generator=self.generator))

        return run

    def states_kept(self) -> None:
        t = self.recurrence.scan(self.elements)
        states = t.states
        self.step(states[0][:, -1] if isinstance(states, tuple) else states[:, -1])

    def authors_way(self, native_pass: bool, repetitions: int) -> Callable[[], None]:
        """As in edocoh87/TCRNN: one prefix length a batch, and each branch runs its whole prefix again.

        The pass and both branches go cell by cell (``native_pass``: the pass alone on torch's kernel). The prefix
        lengths of the repetitions are spread evenly over 0 … n − 2, so that their median is that of the law.
        """
        n = self.elements.shape[1]
        lengths = itertools.cycle(int((k + 0.5) / repetitions * (n - 1)) for k in range(repetitions))

        def read(elements: Tensor) -> Tensor:
            state = elements.new_zeros(len(elements), self.cell.hidden_size)
            for element in elements.unbind(1):
                state = self.cell(element, state)
            return state

        def run() -> None:
            last = self.module(self.elements)[0][:, -1] if native_pass else read(self.elements)
            m = next(lengths)
            prefix, a, b = self.elements[:, :m], self.elements[:, m : m + 1], self.elements[:, m + 1 : m + 2]
            gap = read(torch.cat([prefix, a, b], 1)) - read(torch.cat([prefix, b, a], 1))
            self.step(last, gap.square().sum(1).mean())

        return run


def run(quick: bool = False) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    size: dict[str, int] = {"hidden": 16, "batch": 8} if quick else {}
    repetitions = 2 if quick else 15
    penalties = _penalties(size, repetitions)
    short = penalties["sire_prefix_over_plain_1"]["value"]
    return {
        **penalties,
        **_two_threads(size, repetitions),
        **_long_sequences(size, repetitions if quick else 9, 50 if quick else 1000, short),
        **_scans(size, repetitions),
        **_denormals(repetitions if quick else 7, 20 if quick else 784),
    }


def _penalties(size: dict[str, int], repetitions: int) -> dict[str, dict[str, Any]]:
    trainer = Trainer(n=20 if size else 100, **size)
    prefix = {
        "plain": trainer.plain,
        "prefix_1": trainer.penalised(ao.SIRE(prefixes="given", window=1)),
        "prefix_8": trainer.penalised(ao.SIRE(prefixes="given", window=1, pairs=8)),
    }
    close = medians(prefix, 4 * repetitions)  # small differences want more repetitions, side by side
    seconds = medians(
        {
            **prefix,
            "subset": trainer.penalised(ao.SIRE()),
            "subset_stopped": trainer.penalised(ao.SIRE(through_states=False)),
            "sub": trainer.penalised(ao.SubsetPenalty()),
            "authors": trainer.authors_way(False, repetitions),
            "authors_native": trainer.authors_way(True, repetitions),
        },
        repetitions,
    )
    plain, one = seconds["plain"], seconds["prefix_1"]
    step = 'training step with SIRE(prefixes="given", window=1)'
    return {
        "sire_prefix_over_plain_1": entry(
            close["prefix_1"] / close["plain"], f"{step}, one pair a sample, over the plain step", goal=1.05
        ),
        "sire_prefix_over_plain_8": entry(
            close["prefix_8"] / close["plain"], f"{step}, eight pairs a sample, over the plain step", goal=1.25
        ),
        "sire_subset_over_plain": entry(
            seconds["subset"] / plain, 'training step with SIRE(prefixes="random") over the plain step', goal=1.6
        ),
        "sire_subset_stopped_over_plain": entry(
            seconds["subset_stopped"] / plain,
            'training step with SIRE(prefixes="random", through_states=False) over the plain step',
        ),
        "sub_over_plain": entry(seconds["sub"] / plain, "training step with SubsetPenalty() over the plain step"),
        "authors_way_over_sire": entry(
            seconds["authors"] / one,
            f"the published way (cell by cell, each branch runs its prefix again) over the {step}",
            goal=3.0,
            better="higher",
        ),
        "authors_way_native_over_sire": entry(
            seconds["authors_native"] / one,
            f"the published way with the native kernel for its pass over the {step}",
            goal=1.8,
            better="higher",
        ),
    }


def _two_threads(size: dict[str, int], repetitions: int) -> dict[str, dict[str, Any]]:
    """The published way again on two threads, where its many small operations cost it more."""
    torch.set_num_threads(2)
    trainer = Trainer(n=20 if size else 100, **size)
    ours = trainer.penalised(ao.SIRE(prefixes="given", window=1))
    seconds = medians({"authors": trainer.authors_way(False, repetitions), "ours": ours}, repetitions)
    torch.set_num_threads(1)
    what = 'the published way over the training step with SIRE(prefixes="given", window=1), both on two threads'
    return {"authors_way_over_sire_2_threads": entry(seconds["authors"] / seconds["ours"], what, better="higher")}


def _long_sequences(size: dict[str, int], repetitions: int, n: int, short: float) -> dict[str, dict[str, Any]]:
    """The same penalty on long sequences: it should cost no larger share there than the ``short`` ones' by .02."""
    trainer = Trainer(n=n, **size)
    seconds = medians(
        {"plain": trainer.plain, "prefix_1": trainer.penalised(ao.SIRE(prefixes="given", window=1))}, repetitions
    )
    value = seconds["prefix_1"] / seconds["plain"]
    what = f'training step with SIRE(prefixes="given", window=1) over the plain step at n = {n}'
    return {"sire_prefix_over_plain_n1000": entry(value, what, goal=round(short + 0.02, 4))}


def _scans(size: dict[str, int], repetitions: int) -> dict[str, dict[str, Any]]:
    gru, lstm = Trainer(n=100, **size), Trainer(n=100, kind=nn.LSTM, **size)
    small = Trainer(n=10 if size else 140, **(size or {"hidden": 32, "batch": 32}))
    long = Trainer(n=20 if size else 784, **(size or {"hidden": 128, "batch": 32}))
    seconds = medians(
        {
            "nn.GRU": gru.torch_module,
            "scan": gru.plain,
            "nn.GRU, small": small.torch_module,
            "scan, small": small.plain,
            "nn.GRU, long": long.torch_module,
            "scan, long": long.plain,
            "nn.LSTM": lstm.torch_module,
            "lstm kept": lstm.states_kept,
            "lstm prefix": lstm.penalised(ao.SIRE(prefixes="given", window=1)),
            "lstm subset": lstm.penalised(ao.SIRE()),
        },
        repetitions,
    )
    what = "training step on recurrence.scan over the same on nn.GRU"
    return {
        "scan_over_nn_gru": entry(seconds["scan"] / seconds["nn.GRU"], what, goal=1.05),
        "scan_over_nn_gru_small": entry(
            seconds["scan, small"] / seconds["nn.GRU, small"], f"{what}: 32 units, batch 32, n = 140"
        ),
        "scan_over_nn_gru_long": entry(
            seconds["scan, long"] / seconds["nn.GRU, long"], f"{what}: 128 units, batch 32, n = 784"
        ),
        "lstm_scan_over_nn_lstm": entry(
            seconds["lstm kept"] / seconds["nn.LSTM"],
            "training step on an LSTM scan with every (h, c) kept over the same on nn.LSTM",
        ),
        "lstm_sire_prefix_over_nn_lstm": entry(
            seconds["lstm prefix"] / seconds["nn.LSTM"],
            'training step of an LSTM with SIRE(prefixes="given", window=1) over the plain step on nn.LSTM',
        ),
        "lstm_sire_subset_over_nn_lstm": entry(
            seconds["lstm subset"] / seconds["nn.LSTM"],
            'training step of an LSTM with SIRE(prefixes="random") over the plain step on nn.LSTM',
        ),
    }


def _denormals(repetitions: int, n: int) -> dict[str, dict[str, Any]]:
    """Gradients that vanish over a long sequence become denormal: how much faster is the step without them?"""
    torch.manual_seed(0)
    gru, readout = nn.GRU(1, 100, batch_first=True), nn.Linear(100, CLASSES)
    elements, labels = torch.rand(32, n, 1), torch.randint(0, CLASSES, (32,))

    def step(flush: bool) -> Callable[[], None]:
        def run() -> None:
            torch.set_flush_denormal(flush)
            nn.functional.cross_entropy(readout(gru(elements)[0][:, -1]), labels).backward()

        return run

    seconds = medians({"kept": step(False), "flushed": step(True)}, repetitions)
    torch.set_flush_denormal(True)
    what = f"training step of a GRU over {n} steps, loss at the last state: denormals kept over flushed"
    return {"flush_denormals_speedup": entry(seconds["kept"] / seconds["flushed"], what, better="higher")}
