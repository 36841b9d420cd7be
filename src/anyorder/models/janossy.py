"""Janossy pooling: the mean of an order-sensitive function over orderings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyorder.checks import InputError, one_of, whole_number
from anyorder.data.orderings import random_orderings, reorder
from anyorder.data.sets import filled
from anyorder.models.base import (
    ACTIVATIONS,
    COMBINE,
    Embedding,
    SetModel,
    average_over_orderings,
    encoded_width,
    layer_widths,
    mlp,
    pool,
    probability,
)
from anyorder.models.recurrent import RecurrentSetModel
from anyorder.recurrences.base import Recurrence


class JanossyPooling(SetModel):
    """The mean of an order-sensitive function over orderings (Murphy et al., 2019), k-ary or recurrent.

    ``k`` = 1, 2 or 3: y = ρ(mean over the ordered k-tuples of distinct elements of φ(x_1, …, x_k)), or their sum
    with ``pooling="sum"``; φ is an MLP of widths ``encoder`` (default ``(hidden,)``). Exact, n^k tuples; a set of
    fewer than k elements is completed with zeros, an empty one pools to 0.

    ``k=None``: the recurrent π-SGD form. In training each sample is read once, in a fresh random ordering; in eval
    mode ``orderings`` (default 20) of them are read and combined by ``combine`` "mean" (default) or "vote", as in
    :func:`average_over_orderings` with ``seed``. ``cell``, ``layers`` and ``learned_start`` are for this form; they
    and what both forms take mean what they do in :class:`RecurrentSetModel`.

    >>> pairs = JanossyPooling(3, 1, k=2)
    >>> pi_sgd = JanossyPooling(3, 10, cell="lstm", hidden=50, orderings=5, combine="vote").eval()
    >>> pi_sgd(torch.randn(4, 6, 3)).sum(1)
    tensor([1., 1., 1., 1.])
    """

    name = "janossy"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        k: int | None = None,
        *,
        cell: str | Recurrence | None = None,
        hidden: int = 64,
        layers: int | None = None,
        encoder: Sequence[int] | nn.Module | None = None,
        readout: Sequence[int] | nn.Module | None = None,
        learned_start: bool | None = None,
        orderings: int | None = None,
        combine: str | None = None,
        seed: int | None = None,
        pooling: str | None = None,
        activation: str = "relu",
        dropout: float = 0.0,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        recurrent_only = {
            "cell": cell, "layers": layers, "learned_start": learned_start, "orderings": orderings,
            "combine": combine, "seed": seed,
        }  # fmt: skip
        for name, value in {"pooling": pooling}.items() if k is None else recurrent_only.items():
            if value is not None:
                form = "recurrent form (k=None)" if k is None else f"k-ary form (k={k})"
                raise InputError(f"{name} has no meaning in the {form} of JanossyPooling; got {name}={value!r}")
        self.k = None if k is None else one_of("k", k, (1, 2, 3))
        self.invariant = k is not None
        self.orderings = whole_number("orderings", 20 if orderings is None else orderings)
        self.combine = one_of("combine", "mean" if combine is None else combine, COMBINE)
        self.seed = whole_number("seed", 0 if seed is None else seed, 0)
        self.pooling = one_of("pooling", "mean" if pooling is None else pooling, ("mean", "sum"))
        if k is None:
            self.sequence = RecurrentSetModel(
                in_features, out_features, cell or "gru", hidden, 1 if layers is None else layers, encoder, readout,
                learned_start is not False, activation=activation, dropout=dropout, embedding=embedding,
            )  # fmt: skip
        else:
            one_of("activation", activation, ACTIVATIONS)
            width = k * self.door.features
            if isinstance(encoder, nn.Module):
                self.phi, width = encoder, encoded_width(encoder, width)
            else:
                widths = layer_widths("encoder", (hidden,) if encoder is None else encoder, empty=False)
                self.phi, width = mlp(width, widths, None, activation), widths[-1]
            if isinstance(readout, nn.Module):
                rho: nn.Module = readout
            else:
                rho = mlp(width, layer_widths("readout", readout or ()), out_features, activation)
            self.rho = nn.Sequential(nn.Dropout(probability("dropout", dropout)), rho)
        self._built_with(
            k=k, cell=cell, hidden=hidden, layers=layers, encoder=encoder, readout=readout,
            learned_start=learned_start, orderings=orderings, combine=combine, seed=seed, pooling=pooling,
            activation=activation, dropout=dropout, embedding=embedding,
        )  # fmt: skip

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.k is not None:
            return self._over_tuples(*self.door(elements, lengths)[:2])
        elements, lengths = self.sequence.door.check(elements, lengths)
        if not self.training:
            return average_over_orderings(
                self.sequence, elements, lengths, orderings=self.orderings, seed=self.seed, combine=self.combine
            )
        batch, longest = elements.shape[:2]
        sizes = torch.full((batch,), longest, device=elements.device) if lengths is None else lengths
        return self.sequence(reorder(elements, random_orderings(sizes, longest)[:, 0]), lengths)

    def _over_tuples(self, elements: Tensor, lengths: Tensor | None) -> Tensor:
        assert self.k is not None
        missing = max(0, self.k - elements.shape[1])
        if missing and lengths is None:
            lengths = elements.new_full((elements.shape[0],), elements.shape[1], dtype=torch.int64)
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
        return self.rho(pool(self.phi(elements[:, tuples].flatten(2)), mask, self.pooling))

    # The recurrent form can be penalised and measured like the model inside it.
    @property
    def recurrence(self) -> Recurrence:
        return self.sequence.recurrence

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ of every element, as in the recurrent model inside."""
        return self.sequence.encode(elements, lengths)
