"""torch-geometric's aggregations behind the call of our models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import extra, one_of, whole_number
from anyorder.models.base import Embedding, SetModel

_AGGREGATIONS = {
    "gru": "GRUAggregation",
    "lstm": "LSTMAggregation",
    "lcm": "LCMAggregation",
    "set-transformer": "SetTransformerAggregation",
    "set2set": "Set2Set",
}


class PygModel(SetModel):
    """An aggregation of torch-geometric and a linear read-out, behind the call of the other models.

    ``aggregation``: "gru", "lstm", "lcm" (a symmetrised GRU cell in a binary tree: commutative, not associative), or
    the invariant "set-transformer" and "set2set", which read elements lifted to ``hidden`` features. Several of these
    read padding as data. So the aggregation is called once for each size in the batch, on the sets of that size; an
    empty set is pooled to zeros. ``options`` go to the aggregation. Needs the extra ``peers``.
    """

    name = "pyg"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        aggregation: str = "gru",
        hidden: int = 64,
        *,
        options: dict[str, Any] | None = None,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        hidden = whole_number("hidden", hidden)
        kinds = extra("torch_geometric.nn", "peers", "PygModel").aggr
        kind = getattr(kinds, _AGGREGATIONS[one_of("aggregation", aggregation, _AGGREGATIONS)])
        self.invariant = aggregation in ("set-transformer", "set2set")
        self.width = 2 * hidden if aggregation == "set2set" else hidden
        self.rho = nn.Linear(self.width, out_features)
        self.lift = nn.Linear(self.element_features, hidden) if self.invariant else nn.Identity()
        if self.invariant:
            defaults = {"processing_steps": 3} if aggregation == "set2set" else {"heads": 4}
            self.aggregation = kind(hidden, **{**defaults, **(options or {})})
        else:
            self.aggregation = kind(self.element_features, hidden, **(options or {}))

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, lengths, _ = self.masked(elements, lengths)
        elements = self.lift(elements)
        if lengths is None:
            return self.rho(self._pool(elements))
        pooled = elements.new_zeros(len(elements), self.width)
        for size in lengths.unique().tolist():
            if size > 0:
                rows = (lengths == size).nonzero()[:, 0]
                pooled = pooled.index_copy(0, rows, self._pool(elements[rows, :size]))
        return self.rho(pooled)

    def _pool(self, elements: Tensor) -> Tensor:
        batch, size = elements.shape[:2]
        index = torch.arange(batch, device=elements.device).repeat_interleave(size)
        return self.aggregation(elements.flatten(0, 1), index, dim_size=batch)
