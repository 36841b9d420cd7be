"""A penalised recurrent aggregation for torch-geometric (extra ``peers``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, extra
from anyorder.models.recurrent import RecurrentSetModel
from anyorder.penalties import SIRE, SubsetPenalty
from anyorder.recurrences.base import Recurrence
from anyorder.recurrences.trajectory import Trajectory

__all__ = ["SireAggregation", "penalty_of"]

aggr = extra("torch_geometric.nn", "peers", "anyorder.pyg").aggr
to_dense_batch = extra("torch_geometric.utils", "peers", "anyorder.pyg").to_dense_batch


class SireAggregation(aggr.Aggregation):  # type: ignore[name-defined]
    """A penalised recurrent aggregation for ``MessagePassing`` layers.

    ``x [N, in_channels]`` and the set of each row, ``index [N]`` in any order or ``ptr [B + 1]`` ->
    ``[B, out_channels]``: h of the top layer after each set's own last element. Padding is not read, so other sets
    never change an output. In training mode the last forward is kept, and ``aggregation.penalty()`` is its penalty,
    to be added to the loss; :func:`penalty_of` sums over a whole network.

    The rows are padded to the largest set: memory grows with sets × largest set. Where a few hubs have very many
    neighbours, sample the neighbours first (torch-geometric's ``NeighborLoader``).

    >>> aggregation = SireAggregation(3, 8)
    >>> aggregation(torch.randn(5, 3), torch.tensor([1, 0, 1, 1, 0])).shape
    torch.Size([2, 8])
    >>> aggregation.penalty().shape
    torch.Size([])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        cell: str | Recurrence = "gru",
        layers: int = 1,
        *,
        learned_start: bool = True,
        penalty: SIRE | SubsetPenalty | None = None,
    ) -> None:
        super().__init__()
        self.model = RecurrentSetModel(
            in_channels, out_channels, cell, out_channels, layers, readout=nn.Identity(), learned_start=learned_start
        )
        self._penalty = SIRE() if penalty is None else penalty
        self._last: Trajectory | None = None

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:
        self.assert_two_dimensional_input(x, dim)
        if index is None:
            index = torch.arange(len(ptr) - 1, device=x.device).repeat_interleave(ptr.diff())  # type: ignore
        self._last = None
        order = index.argsort(stable=True)
        elements, inside = to_dense_batch(x[order], index[order], batch_size=dim_size)
        out, trajectory = self.model(elements, inside.sum(1), return_trajectory=True)
        if self.training:
            self._last = trajectory
        return out

    def penalty(self, generator: torch.Generator | None = None) -> Tensor:
        """The penalty of the last forward in training mode: a scalar with a gradient."""
        if self._last is None:
            raise InputError("penalty() needs a forward in training mode; call the layer first")
        return self._penalty(self._last, generator=generator)

    def __getstate__(self) -> dict[str, Any]:
        """The layer without its last forward, whose graph can be neither copied nor saved."""
        return {**self.__dict__, "_last": None}


def penalty_of(network: nn.Module, generator: torch.Generator | None = None) -> Tensor:
    """The sum of the penalties of every :class:`SireAggregation` in ``network``.

    The network must have run a forward in training mode.

    >>> layer = SireAggregation(3, 8)
    >>> out = layer(torch.randn(4, 3), torch.tensor([0, 0, 1, 1]))
    >>> loss = out.square().mean() + 0.1 * penalty_of(layer)
    """
    values = [m.penalty(generator) for m in network.modules() if isinstance(m, SireAggregation)]
    if not values:
        raise InputError(f"network must hold a SireAggregation; {type(network).__name__} has none")
    return torch.stack(values).sum()
