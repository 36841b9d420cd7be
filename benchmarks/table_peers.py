"""Peers of event tables, of two published kinds: GRU-D's inputs, and a set function with attention as SeFT's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import anyorder as ao
from anyorder.estimators.tables import Table
from anyorder.models import SetModel


class SetFunction(SetModel):
    """SeFT-like (Horn et al., 2020): events, weighted by attention, are summed up by each head.

    An event's score is that of its own features beside the mean of all events' ψ. Times and values come as features.

    >>> SetFunction(3, 2)(torch.randn(5, 7, 3), torch.tensor([7, 4, 1, 0, 2])).shape
    torch.Size([5, 2])
    """

    name = "seft"
    invariant = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden: int = 64,
        heads: int = 4,
        *,
        dropout: float = 0.2,
        static_features: int = 0,
        static_dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, out_features, None, static_features, static_dropout)

        def two_layers(features: int, width: int) -> nn.Module:
            return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, width))

        self.phi, self.psi = two_layers(in_features, hidden), two_layers(in_features, hidden)
        self.score = two_layers(in_features + hidden, heads)
        self.rho, self.dropout = two_layers(heads * hidden + static_features, out_features), nn.Dropout(dropout)

    def forward(self, elements: Tensor, lengths: Tensor | None = None, *, static: Tensor | None = None) -> Tensor:
        elements, _, mask = self.masked(elements, lengths)
        there = elements.new_ones(elements.shape[:2]) if mask is None else mask.to(elements)
        mean = (self.psi(elements) * there[:, :, None]).sum(1) / there.sum(1).clamp(min=1)[:, None]
        beside = mean[:, None].expand(-1, elements.shape[1], -1)
        scores = self.score(torch.cat([elements, beside], -1)).masked_fill(there[:, :, None] == 0, -1e9)
        pooled = torch.einsum("bth,btd->bhd", scores.softmax(1) * there[:, :, None], self.phi(elements))
        return self.rho(self.joined(self.dropout(pooled.flatten(1)), static))


class Decay(nn.Module):
    """GRU-D's inputs: a value that was not measured decays from the last one to the mean, at a learnt rate."""

    def __init__(self, names: int) -> None:
        super().__init__()
        self.rate, self.bias = nn.Parameter(torch.zeros(names)), nn.Parameter(torch.zeros(names))

    def forward(self, elements: Tensor) -> Tensor:
        last, mask, gap = elements.chunk(3, -1)
        decay = torch.exp(-torch.relu(self.rate * gap + self.bias))
        return torch.cat([last * (mask + (1 - mask) * decay), mask], -1)


def last_values(table: Table) -> ao.SetData:
    """One element a distinct time: the last value of each name, whether it is new, and the time since it was."""
    data, names = table.data, len(table.schema.features[0].categories)
    starts = np.flatnonzero(np.diff(data.ties.numpy(), prepend=-1))  # type: ignore[union-attr]
    ties = np.diff(data.ties.numpy(), prepend=-1).astype(bool).cumsum() - 1  # type: ignore[union-attr]
    block = data.elements.double().numpy()
    counts, sums = (np.zeros((len(starts), names)) for _ in range(2))
    np.add.at(counts, ties, block[:, :names])
    np.add.at(sums, ties, block[:, names : 2 * names])
    mask, clock = counts > 0, block[starts, 2 * names]
    values = np.where(mask, sums / np.maximum(counts, 1), np.nan)
    of_set = np.repeat(np.arange(len(data)), data.lengths.numpy())[starts]
    last = pd.DataFrame(values).groupby(of_set).ffill().fillna(0.0).to_numpy()
    seen = pd.DataFrame(np.where(mask, clock[:, None], np.nan)).groupby(of_set).ffill().groupby(of_set).shift()
    gaps = np.log1p(clock[:, None] - seen.fillna(0.0).to_numpy())
    offsets = np.concatenate([[0], np.bincount(of_set, minlength=len(data)).cumsum()])
    elements = torch.from_numpy(np.hstack([last, mask, gaps]).astype(np.float32))
    return ao.SetData(elements, torch.from_numpy(offsets), data.targets, static=data.static)
