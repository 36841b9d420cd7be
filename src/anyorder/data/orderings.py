"""Random draws from ragged batches: whole numbers, orderings and elements of other sets.

Every draw comes from ``generator`` alone (None: torch's default generator), on the generator's device. The same
generator state therefore gives the same draw wherever the data lives.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from anyorder.checks import InputError


def random_below(bound: Tensor, generator: Generator | None = None) -> Tensor:
    """One uniform whole number from {0, …, bound − 1} for each entry of ``bound`` (int64, at least 1).

    >>> random_below(torch.tensor([1, 1])).tolist()
    [0, 0]
    """
    uniform = _uniform(bound.shape, bound.device, generator)
    return torch.minimum((uniform * bound).to(torch.int64), bound - 1)


def random_orderings(
    lengths: Tensor,
    longest: int,
    draws: int = 1,
    generator: Generator | None = None,
    *,
    within: int | None = None,
    ties: Tensor | None = None,
) -> Tensor:
    """Uniform orderings of each set's own elements: index ``[B, draws, longest]``.

    The first ``lengths[b]`` entries of a row are a uniform permutation of 0 … lengths[b] − 1. The padding positions
    follow, in place. With ``within`` every element stays inside its window of ``within`` consecutive positions; with
    ``ties [B, longest]``, inside its run of equal values.

    >>> index = random_orderings(torch.tensor([3, 1]), longest=3, draws=2)
    >>> index.shape, index[1, 0].tolist()
    (torch.Size([2, 2, 3]), [0, 1, 2])
    >>> index = random_orderings(torch.tensor([5]), longest=5, within=2)[0, 0]
    >>> sorted(index[:2].tolist()), sorted(index[2:4].tolist()), index[4].item()
    ([0, 1], [2, 3], 4)
    """
    position = torch.arange(longest, device=lengths.device)
    key = _uniform((lengths.shape[0], draws, longest), lengths.device, generator)
    padding = position >= lengths[:, None, None]
    index = torch.where(padding, 1.0 + position.to(key.dtype), key).argsort(dim=2)
    if ties is not None:
        runs = torch.nn.functional.pad((ties[:, 1:] != ties[:, :-1]).cumsum(1), (1, 0))[:, None].expand_as(index)
        runs = torch.where(padding, longest, runs).gather(2, index)
    elif within is not None:
        runs = index // within
    else:
        return index
    return index.gather(2, runs.argsort(dim=2, stable=True))


def reorder(elements: Tensor, index: Tensor) -> Tensor:
    """``elements [B, T, D]`` with each set's elements in the order of its row of ``index [B, K]``.

    >>> reorder(torch.tensor([[[5.0], [6.0], [7.0]]]), torch.tensor([[2, 0, 1]])).flatten().tolist()
    [7.0, 5.0, 6.0]
    """
    return elements.gather(1, index[:, :, None].expand(-1, -1, elements.shape[2]))


def random_partners(lengths: Tensor, sample: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
    """For each entry of ``sample [R]``, an element of another set: (other set ``[R]``, position ``[R]``).

    The other set is uniform among those that are not empty, its element uniform within it.

    >>> other, position = random_partners(torch.tensor([3, 1]), torch.tensor([0]), None)
    >>> other.tolist(), position.tolist()
    ([1], [0])
    """
    filled = (lengths > 0).nonzero()[:, 0]
    if filled.shape[0] < 2:
        raise InputError(f"partners='batch' needs two sets with elements in the batch; got {filled.shape[0]}")
    own = torch.searchsorted(filled, sample)
    other = random_below(torch.full_like(sample, filled.shape[0] - 1), generator)
    other = filled[other + (other >= own)]
    return other, random_below(lengths[other], generator)


def _uniform(shape: tuple[int, ...], device: torch.device, generator: Generator | None) -> Tensor:
    source = device if generator is None else generator.device
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)  # half precision misses most numbers
    return torch.rand(shape, generator=generator, device=source, dtype=dtype).to(device)
