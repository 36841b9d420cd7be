"""Janossy pooling: the mean of an order-sensitive function over orderings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyorder.checks import one_of, whole_number
from anyorder.data.orderings import random_orderings, reorder
from anyorder.data.sets import filled
from anyorder.models.base import COMBINE, Embedding, SetModel, average_over_orderings, encoder_of, mlp, pool, sizes_of
from anyorder.models.recurrent import RecurrentSetModel
from anyorder.recurrences.base import Recurrence


class JanossyPooling(SetModel):
    """The mean of an order-sensitive function over orderings (Murphy et al., 2019).

    ``k`` = 1, 2 or 3: y = ρ(mean over the ordered k-tuples of distinct elements of φ(x_1, …, x_k)). φ is an MLP of
    widths ``encoder`` (default ``(hidden,)``). All n^k tuples are read. Zeros complete a set of fewer than k elements;
    an empty set is pooled to 0.

    ``k=None``: the recurrent π-SGD form, with ``cell``, ``layers`` and ``learned_start`` of
    :class:`RecurrentSetModel`. In training each set is read once, in a fresh random ordering. In eval mode
    the outputs of ``orderings`` of them, drawn from ``seed``, are averaged (:func:`average_over_orderings`).
    ``combine="vote"`` rounds them to whole numbers and takes the most frequent, as PurdueMINDS/JanossyPooling does.
    Options of the other form are ignored.

    >>> pairs = JanossyPooling(3, 1, k=2)
    >>> pi_sgd = JanossyPooling(3, 10, cell="lstm", hidden=50, orderings=5)
    >>> pi_sgd(torch.randn(5, 7, 3)).shape
    torch.Size([5, 10])
    """

    name = "janossy"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        k: int | None = None,
        *,
        cell: str | Recurrence = "gru",
        hidden: int = 64,
        layers: int = 1,
        encoder: Sequence[int] | nn.Module | None = None,
        readout: Sequence[int] | nn.Module | None = None,
        learned_start: bool = True,
        orderings: int = 20,
        seed: int = 0,
        combine: str = "mean",
        activation: str = "relu",
        dropout: float = 0.0,
        embedding: Embedding | None = None,
        static_features: int = 0,
        static_dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, out_features, embedding if k else None, static_features, static_dropout)
        self.k, self.combine = one_of("k", k, (None, 1, 2, 3)), one_of("combine", combine, COMBINE)
        self.invariant = k is not None
        self.orderings, self.seed = whole_number("orderings", orderings), whole_number("seed", seed, 0)
        if k is None:
            self.sequence = RecurrentSetModel(
                in_features, out_features, cell, hidden, layers, encoder, readout, learned_start,
                activation=activation, dropout=dropout, embedding=embedding,
                static_features=static_features, static_dropout=static_dropout,
            )  # fmt: skip
            return
        self.phi, width = encoder_of((hidden,) if encoder is None else encoder, k * self.element_features, activation)
        if not isinstance(readout, nn.Module):
            readout = mlp(width + static_features, readout or (), out_features, activation)
        self.rho = nn.Sequential(nn.Dropout(dropout), readout)

    def forward(self, elements: Tensor, lengths: Tensor | None = None, *, static: Tensor | None = None) -> Tensor:
        if self.k is not None:
            return self._over_tuples(*self.masked(elements, lengths)[:2], static)
        elements, lengths = self.sequence.check(elements, lengths)
        if not self.training:
            drawn = {"orderings": self.orderings, "seed": self.seed, "combine": self.combine}
            return average_over_orderings(self.sequence, elements, lengths, static=static, **drawn)
        fresh = random_orderings(sizes_of(elements, lengths), elements.shape[1])[:, 0]
        return self.sequence(reorder(elements, fresh), lengths, static=static)

    def _over_tuples(self, elements: Tensor, lengths: Tensor | None, static: Tensor | None) -> Tensor:
        missing = max(0, self.k - elements.shape[1])
        if missing:
            lengths = sizes_of(elements, lengths)
        elements = F.pad(elements, (0, 0, 0, missing))
        position = torch.arange(elements.shape[1], device=elements.device)
        tuples = torch.cartesian_prod(*[position] * self.k).view(-1, self.k)  # [n^k, k]
        ordered = tuples.sort(1).values
        tuples = tuples[(ordered[:, 1:] != ordered[:, :-1]).all(1)]
        mask = None
        if lengths is not None:
            completed = torch.where(lengths > 0, lengths.clamp(min=self.k), 0)
            mask = tuples.amax(1) < completed[:, None]
            elements = filled(elements, completed)
        return self.rho(self.joined(pool(self.phi(elements[:, tuples].flatten(2)), mask, "mean"), static))

    @property
    def recurrence(self) -> Recurrence:
        """The recurrence of the recurrent form, which can be penalised and measured."""
        return self.sequence.recurrence

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ of every element, as in the recurrent model inside."""
        return self.sequence.encode(elements, lengths)
