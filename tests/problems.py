"""Recurrences the tests share, by name, and slow, literal computations to hold the fast ones against."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

import anyorder as ao
from anyorder.recurrences.base import Recurrence
from anyorder.recurrences.trajectory import State, tree_leaves, tree_map


class WeightedCount(nn.Module):
    """A dict state that weighs the k-th element by 3^k: the gap of a swap grows as 9^(prefix length)."""

    def forward(self, element: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        weight = 3.0 ** state["count"]
        return {"count": state["count"] + 1, "total": state["total"] + weight * element}


def weighted_count(features: int = 2) -> Recurrence:
    return ao.recurrence(WeightedCount(), start={"count": torch.zeros(1, 1), "total": torch.zeros(1, features)})


class Turned(nn.Module):
    """A dict state that comes back with its keys the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.total = nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, element: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        both = torch.cat([element, state["mix"]], 1)
        return {"total": state["total"] + self.total(both)[:, 0], "mix": self.mix(both).tanh()}


def turned() -> Recurrence:
    """Of its state "total" has no axis but the batch's."""
    return ao.recurrence(Turned(), start={"mix": torch.ones(1, 3), "total": torch.zeros(1)})


RECURRENCES: dict[str, Callable[[], Recurrence]] = {
    "rnn": lambda: ao.recurrence(nn.RNN(2, 4, batch_first=True)),
    "relu-rnn-batch-first": lambda: ao.recurrence(nn.RNN(2, 4, nonlinearity="relu", batch_first=True)),
    "gru": lambda: ao.recurrence(nn.GRU(2, 4, batch_first=True)),
    "gru-no-bias": lambda: ao.recurrence(nn.GRU(2, 4, bias=False, batch_first=True)),
    "gru-3-layers": lambda: ao.recurrence(nn.GRU(2, 4, num_layers=3, batch_first=True)),
    "lstm": lambda: ao.recurrence(nn.LSTM(2, 4, batch_first=True)),
    "lstm-2-layers": lambda: ao.recurrence(nn.LSTM(2, 4, num_layers=2, batch_first=True)),
    "rnn-cell": lambda: ao.recurrence(nn.RNNCell(2, 4)),
    "gru-cell": lambda: ao.recurrence(nn.GRUCell(2, 4)),
    "lstm-cell": lambda: ao.recurrence(nn.LSTMCell(2, 4)),
    "learned-start": lambda: ao.recurrence(nn.GRU(2, 4, batch_first=True), start=nn.Parameter(torch.randn(1, 4))),
    "own-dict": weighted_count,
    "own-dict-turned": turned,
}


def make(name: str, dtype: torch.dtype = torch.float64) -> Recurrence:
    return RECURRENCES[name]().to(dtype)


@torch.no_grad()
def end(r: Recurrence, elements: Tensor, state: State | None = None) -> State:
    """The end state of one sample ``elements [n, D]``, step by step."""
    state = r.start(1) if state is None else state
    for element in elements:
        state = r.step(element[None], state)
    return state


def squared_gap(one: State, other: State) -> float:
    gaps = tree_map(lambda p, q: (p - q).square().sum(), one, other)
    return float(torch.stack(tree_leaves(gaps)).sum())


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def expected_subset_sire(r: Recurrence, x: Tensor) -> float:
    """SIRE(prefixes="random") of one sample: the contract's law, every outcome enumerated."""
    n = len(x)
    by_size = []
    for m in range(n - 1):
        gaps = []
        for order in itertools.permutations(range(n), m + 2):
            prefix, (i, j) = list(order[:m]), order[m:]
            s = end(r, x[prefix])
            gaps.append(squared_gap(end(r, x[[i, j]], s), end(r, x[[j, i]], s)))
        by_size.append(mean(gaps))
    return mean(by_size)


def expected_prefix_sire(r: Recurrence, x: Tensor, window: int | None) -> float:
    n = len(x)
    by_size = []
    for m in range(n - 1):
        s = end(r, x[:m])
        last = n - 1 if window is None else min(n - 1, m + window)
        by_size.append(mean([squared_gap(end(r, x[[m, j]], s), end(r, x[[j, m]], s)) for j in range(m + 1, last + 1)]))
    return mean(by_size)


def expected_sub(r: Recurrence, x: Tensor, sizes: range) -> float:
    n = len(x)
    by_size = []
    for m in sizes:
        gaps = []
        for subset in itertools.combinations(range(n), m):
            ends = [end(r, x[list(order)]) for order in itertools.permutations(subset)]
            gaps.append(mean([squared_gap(a, b) for a in ends for b in ends]))
        by_size.append(mean(gaps))
    return mean(by_size)


def expected_batch_partners(r: Recurrence, samples: list[Tensor]) -> float:
    """SIRE(prefixes="given", partners="batch"): m as ever, both elements from samples other than one's own."""
    values = []
    for i, x in enumerate(samples):
        if len(x) < 2:
            continue
        others = [s for k, s in enumerate(samples) if k != i and len(s)]
        drawn = [(e, 1 / (len(others) * len(s))) for s in others for e in s]
        by_size = []
        for m in range(len(x) - 1):
            s = end(r, x[:m])
            by_size.append(
                sum(
                    p * q * squared_gap(end(r, torch.stack([a, b]), s), end(r, torch.stack([b, a]), s))
                    for a, p in drawn
                    for b, q in drawn
                )
            )
        values.append(mean(by_size))
    return mean(values)


def expected_tied_sire(r: Recurrence, x: Tensor, time: list[int], window: int) -> float | None:
    """SIRE(ties=True) of one sample, every pair enumerated; None if it has no pair.

    An element of a tie of k counts once if a later time is near enough, otherwise (k − 1)/k times. Its partner is
    uniform among the others of its time and of the ``window`` distinct times that follow.
    """
    distinct, total, number = sorted(set(time)), 0.0, 0.0
    for i, mine in enumerate(time):
        place, k = distinct.index(mine), time.count(mine)
        near = distinct[place : place + window + 1]
        partners = [j for j, other in enumerate(time) if j != i and other in near]
        weight = 1.0 if len(near) > 1 else (k - 1) / k
        gaps = []
        for j in partners:
            one, other = sorted((i, j))
            s = end(r, x[:one])
            gaps.append(squared_gap(end(r, x[[one, other]], s), end(r, x[[other, one]], s)))
        total += weight * mean(gaps) if gaps else 0.0
        number += weight
    return total / number if number else None
