"""The Set Transformer (Lee et al., 2019) and its blocks, with masks.

A mask ``[B, T]`` is True where there is an element. The attention of an empty set is zero, so an empty set has an
output and a gradient. Keys carry no bias: a bias shifts every score of a query alike, which a softmax ignores.
Two forms are in use: that of torch-geometric, and ``paper``, that of juho-lee/set_transformer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyorder.checks import InputError, one_of, whole_number
from anyorder.models.base import Embedding, SetModel


class MAB(nn.Module):
    """MAB(X, Y) = LN(H + relu(W H + b)), H = LN(X + Multihead(X, Y, Y)).

    ``queries [B, N, features]``, ``keys [B, M, features]``, ``mask [B, M]`` or None -> ``[B, N, features]``. With
    ``paper``, H = LN(Q + A V): the projected queries are added to what the heads attend to, without a further
    projection, and scores are divided by √features, not by √(features / heads). Widths of X and Y may differ there.
    """

    def __init__(
        self, features: int, heads: int, layer_norm: bool = False, *, paper: bool = False, widths: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.heads, self.paper, self.scale = heads, paper, features**-0.5 if paper else None
        of_queries, of_keys = widths or (features, features)
        self.query = nn.Linear(of_queries, features)
        self.key = nn.Linear(of_keys, features, bias=False)
        self.value = nn.Linear(of_keys, features)
        self.out = nn.Identity() if paper else nn.Linear(features, features)
        self.feed = nn.Linear(features, features)
        self.norm_attention = nn.LayerNorm(features) if layer_norm else nn.Identity()
        self.norm_feed = nn.LayerNorm(features) if layer_norm else nn.Identity()

    def forward(self, queries: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        projected = self.query(queries), self.key(keys), self.value(keys)
        # [B, heads, N or M, features / heads]
        query, key, value = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in projected)
        some = attended = None
        if mask is not None:  # a softmax over no key is NaN: attend to padding, then drop the result
            some = mask.any(dim=1)[:, None]
            attended = (mask | ~some)[:, None, None, :]
        mixed = F.scaled_dot_product_attention(query, key, value, attended, scale=self.scale)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        added = projected[0] if self.paper else queries
        hidden = self.norm_attention(added + (mixed if some is None else mixed * some[:, :, None]))
        return self.norm_feed(hidden + F.relu(self.feed(hidden)))


class SAB(nn.Module):
    """SAB(X) = MAB(X, X): every element attends to every other, n² scores."""

    def __init__(self, features: int, heads: int, layer_norm: bool = False, **paper: Any) -> None:
        super().__init__()
        self.block = MAB(features, heads, layer_norm, **paper)

    def forward(self, elements: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.block(elements, elements, mask)


class ISAB(nn.Module):
    """ISAB(X) = MAB(X, MAB(I, X)) with m learned points I: n·m scores."""

    def __init__(self, features: int, heads: int, points: int, layer_norm: bool = False, **paper: Any) -> None:
        super().__init__()
        width = paper.pop("widths", [features])[0]
        self.points = nn.init.xavier_uniform_(nn.Parameter(torch.empty(1, points, features)))
        self.gather = MAB(features, heads, layer_norm, **paper, widths=(features, width))
        self.spread = MAB(features, heads, layer_norm, **paper, widths=(width, features))

    def forward(self, elements: Tensor, mask: Tensor | None = None) -> Tensor:
        summary = self.gather(self.points.expand(elements.shape[0], -1, -1), elements, mask)
        return self.spread(elements, summary)


class PMA(nn.Module):
    """PMA(Z) = MAB(S, relu(W Z + b)) with k learned seeds S: pooling to k vectors; MAB(S, Z) with ``paper``."""

    def __init__(self, features: int, heads: int, seeds: int, layer_norm: bool = False, *, paper: bool = False) -> None:
        super().__init__()
        self.seeds = nn.init.xavier_uniform_(nn.Parameter(torch.empty(1, seeds, features)))
        self.feed = None if paper else nn.Linear(features, features)
        self.block = MAB(features, heads, layer_norm, paper=paper)

    def forward(self, elements: Tensor, mask: Tensor | None = None) -> Tensor:
        fed = elements if self.feed is None else F.relu(self.feed(elements))
        return self.block(self.seeds.expand(elements.shape[0], -1, -1), fed, mask)


class SetTransformer(SetModel):
    """ρ(PMA(encoder(x))): attention, then attention pooling (Lee et al., 2019).

    The encoder is ``blocks`` ISABs with ``inducing`` learned points (n·m scores), or SABs (n² scores) with
    ``inducing=None``. PMA pools into ``seeds`` vectors. ``decoder`` SABs follow: by default one after several seeds,
    and two with ``variant="paper"``. ρ is linear. ``dropout`` acts before and after the pooling.

    ``variant="pyg"`` has the blocks of torch-geometric behind a linear layer. ``"paper"`` is the model of
    juho-lee/set_transformer: its first block reads the elements themselves.

    >>> SetTransformer(3, 2, hidden=16, inducing=None)(torch.randn(5, 7, 3), torch.tensor([7, 4, 1, 0, 2])).shape
    torch.Size([5, 2])
    """

    name = "set-transformer"
    invariant = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden: int = 64,
        heads: int = 4,
        blocks: int = 2,
        inducing: int | None = 16,
        seeds: int = 1,
        *,
        variant: str = "pyg",
        decoder: int | None = None,
        layer_norm: bool = False,
        dropout: float = 0.0,
        embedding: Embedding | None = None,
        static_features: int = 0,
        static_dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, out_features, embedding, static_features, static_dropout)
        hidden, heads = whole_number("hidden", hidden), whole_number("heads", heads)
        blocks, seeds = whole_number("blocks", blocks, maximum=1000), whole_number("seeds", seeds)
        if hidden % heads:
            raise InputError(f"hidden must be a multiple of heads; got hidden={hidden}, heads={heads}")
        paper = one_of("variant", variant, ("pyg", "paper")) == "paper"
        self.lift = nn.Identity() if paper else nn.Linear(self.element_features, hidden)
        points = None if inducing is None else whole_number("inducing", inducing)
        block = SAB if points is None else partial(ISAB, points=points)
        widths = [self.element_features if paper else hidden, *[hidden] * (blocks - 1)]
        self.encoder = nn.ModuleList(
            block(hidden, heads, layer_norm=layer_norm, paper=paper, widths=(width, width)) for width in widths
        )
        self.pool = PMA(hidden, heads, seeds, layer_norm, paper=paper)
        further = (2 if paper else int(seeds > 1)) if decoder is None else whole_number("decoder", decoder, 0)
        self.decoder = nn.Sequential(*(SAB(hidden, heads, layer_norm, paper=paper) for _ in range(further)))
        self.dropout = nn.Dropout(dropout)
        self.rho = nn.Linear(seeds * hidden + static_features, out_features)

    def forward(self, elements: Tensor, lengths: Tensor | None = None, *, static: Tensor | None = None) -> Tensor:
        elements, _, mask = self.masked(elements, lengths)
        hidden = self.lift(elements)
        for block in self.encoder:
            hidden = block(hidden, mask)
        pooled = self.dropout(self.pool(self.dropout(hidden), mask))
        return self.rho(self.joined(self.decoder(pooled).flatten(1), static))
