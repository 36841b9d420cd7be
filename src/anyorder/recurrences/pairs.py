"""The law of the pairs that a swap exchanges: which two elements of a set, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anyorder.data.orderings import random_below


@dataclass
class Pairs:
    """Pairs within ties ``[B, T]`` and at most ``window`` distinct times apart, in sets of ``lengths [B]`` elements.

    Without ties each element has a time of its own, and no window reaches to the end. With ``every`` all pairs of a
    set are equally likely. A time of k elements counts k times, or k − 1 times if no later time is near enough. A swap
    starts from the state before its earlier element.
    """

    lengths: Tensor
    longest: int
    ties: Tensor | None = None
    window: int | None = None
    every: bool = False

    @property
    def counts(self) -> Tensor:
        """1 for each set ``[B]`` that has a pair, otherwise 0."""
        return (self.lengths >= 2 if self.ties is None else self._runs[2].sum(1) > 0).long()

    def draw(self, sample: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The earlier and the later position of a pair of each set in ``sample [R]``."""
        if self.ties is None:
            length = self.lengths[sample]
            one = random_below(length - 1, generator)
            reach = length - 1 - one
            return one, one + 1 + random_below(
                reach if self.window is None else reach.clamp(max=self.window), generator
            )
        begin, reach, weight = (x[sample] for x in self._runs)
        mass = weight.cumsum(1)
        uniform = torch.rand(len(sample), generator=generator, device=getattr(generator, "device", mass.device))
        place = torch.searchsorted(mass, uniform.to(mass)[:, None] * mass[:, -1:], right=True)
        one = place[:, 0].clamp(max=self.longest - 1)
        begin, reach = (x.gather(1, one[:, None])[:, 0] for x in (begin, reach))
        other = begin + random_below(reach - begin - 1, generator)
        other = other + (other >= one)
        return torch.minimum(one, other), torch.maximum(one, other)

    @cached_property
    def _runs(self) -> tuple[Tensor, Tensor, Tensor]:
        """``[B, T]`` each: the partners of an element lie in begin … reach; it is drawn in proportion to weight."""
        lengths, longest, ties = self.lengths[:, None], self.longest, self.ties
        place = torch.arange(longest, device=lengths.device).expand(len(lengths), longest)
        if self.every:
            begin, end = torch.zeros_like(place), lengths.expand_as(place)
            reach = end
        elif ties is None:
            begin, end = place, place + 1
            reach = lengths if self.window is None else torch.minimum(end + self.window, lengths)
            reach = torch.maximum(reach, end)
        else:
            new = torch.ones_like(ties, dtype=torch.bool)
            new[:, 1:] = ties[:, 1:] != ties[:, :-1]
            group = new.cumsum(1) - 1
            first = torch.full((len(lengths), longest + 1), longest, device=lengths.device)
            first.scatter_reduce_(1, group, place, "amin")  # where each group begins
            begin, end = first.gather(1, group), first.gather(1, group + 1)
            reach = first.gather(1, (group + 1 + (self.window or 0)).clamp(max=longest))
            end, reach = torch.minimum(end, lengths), torch.minimum(reach, lengths)
        tied = (end - begin).clamp(min=1)
        weight = torch.where(reach > end, 1.0, (tied - 1).double() / tied)
        return begin, reach, weight * (place < lengths)

    def mean_squared_gap(self, c: Tensor, b: Tensor) -> Tensor:
        """The mean of (c_i b_j − b_i c_j)² over the law, ``[B, C]``, from ``c`` and ``b [B, T, C]``, 0 in the padding.

        Running sums of c², b² and cb give the sum over a run of partners, so this is linear in T. They are in double
        precision, in which products of single precision are exact.
        """
        begin, reach, weight = self._runs
        total = weight.sum(1, keepdim=True)
        if self.ties is not None and self.window is None:
            gaps = self._sum_of_ties(c, b)
        else:
            share = weight / (reach - begin - 1).clamp(min=1)
            gaps = (self._squared_gaps(c, b) * share[:, :, None]).sum(1)
        return gaps / torch.where(total > 0, total, 1.0)

    def _sum_of_ties(self, c: Tensor, b: Tensor) -> Tensor:
        """The sum over ties of k elements of 2/k · ((Σc²)(Σb²) − (Σcb)²), ``[B, C]``."""
        begin, reach, _ = self._runs
        c, b = c.double().flatten(0, 1), b.double().flatten(0, 1)
        opens = (torch.arange(self.longest, device=begin.device) == begin).flatten()
        tie, sets = opens.cumsum(0) - 1, opens.nonzero()[:, 0] // self.longest
        empty = c.new_zeros(len(sets), c.shape[1])
        cc, bb, cb = (empty.index_add(0, tie, product) for product in (c * c, b * b, c * b))
        size = (reach - begin).flatten()[opens].clamp(min=1).double()
        gaps = (cc * bb - cb * cb).clamp(min=0) * (2 / size)[:, None]
        return c.new_zeros(len(begin), c.shape[1]).index_add(0, sets, gaps)

    def squared_sum(self, c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of (c_i b_j − b_i c_j)² over pairs i < j within ties ``[B, C]``, and their number ``[B]``."""
        begin, reach, weight = self._runs
        return self._squared_gaps(c, b).sum(1) / 2, ((reach - begin - 1) * (weight > 0)).sum(1) / 2

    def _squared_gaps(self, c: Tensor, b: Tensor) -> Tensor:
        """The sum over the partners of each element, ``[B, T, C]``."""
        c, b = c.double(), b.double()
        products = torch.stack([c * c, b * b, c * b])
        sums = torch.nn.functional.pad(products.cumsum(2), (0, 0, 1, 0))

        before, until = (sums.gather(2, x[None, :, :, None].expand(3, -1, -1, c.shape[2])) for x in self._runs[:2])
        cc, bb, cb = until - before
        return (products[0] * bb + products[1] * cc - 2 * products[2] * cb).clamp(min=0)
