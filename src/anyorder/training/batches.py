"""Which samples a run reads, in what order and in what pieces; and the generators it draws from."""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Iterator

import accelerate
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from anyorder.checks import InputError
from anyorder.data.orderings import reorder
from anyorder.data.sets import SetData


class Deck:
    """Batches of sample numbers, a fresh permutation each pass; the k-th depends on (seed, k) alone."""

    def __init__(self, size: int, batch_size: int, seed: int, device: torch.device) -> None:
        self.size, self.batch_size, self.seed, self.device = size, batch_size, seed, device
        self.batches = -(-size // batch_size)
        self._passes = -1

    def batch(self, step: int) -> Tensor:
        passes, place = divmod(step, self.batches)
        if passes != self._passes:
            generator = generator_of(torch.device("cpu"), self.seed, passes)
            self._order = torch.randperm(self.size, generator=generator).to(self.device)
            self._passes = passes
        return self._order[place * self.batch_size : (place + 1) * self.batch_size]


def pieces(elements: Tensor, lengths: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Cut each sample into runs of at most ``size`` elements, the last of them ending at its own end.

    Yields (elements ``[B, ≤ size, D]``, lengths ``[B]``, is it the last). The first runs hold what stands before
    each sample's last ``size`` elements; a sample with none there has length 0 in them.

    >>> [(part[0, :, 0].tolist(), last) for part, _, last in pieces(torch.arange(5.0).reshape(1, 5, 1), None, 2)]
    [([0.0, 1.0], False), ([2.0], False), ([3.0, 4.0], True)]
    """
    *heads, sizes = piece_sizes(elements, lengths, size)
    for number, part in enumerate(heads):
        yield elements[:, number * size : number * size + int(part.max())], part, False
    head = torch.zeros_like(sizes) + sum(heads)
    index = head[:, None] + torch.arange(int(sizes.max()), device=elements.device)
    yield reorder(elements, index.clamp(max=elements.shape[1] - 1)), sizes, True


def piece_sizes(elements: Tensor, lengths: Tensor | None, size: int | None) -> list[Tensor]:
    """How many elements of each sample are in each of its :func:`pieces` ``[B]``; in the whole if size is None."""
    if lengths is None:
        lengths = torch.full(elements.shape[:1], elements.shape[1], device=elements.device)
    if size is None:
        return [lengths]
    head = (lengths - size).clamp(min=0)
    return [(head - start).clamp(0, size) for start in range(0, int(head.max()), size)] + [lengths - head]


def together(one: SetData, other: SetData) -> SetData:
    """The sets of both, without targets."""
    offsets = torch.cat([one.offsets, one.offsets[-1] + other.offsets[1:]])
    return SetData(torch.cat([one.elements, other.elements]), offsets)


def mean_one(weights: Tensor, name: str) -> Tensor:
    """Sample weights scaled to mean 1."""
    if bool((weights < 0).any()) or not bool(weights.sum() > 0):
        raise InputError(f"{name} must not be negative and not all zero")
    return weights / weights.mean()


def processes(device: str) -> accelerate.PartialState:
    """The processes that ``accelerate launch`` or torchrun started together; one where neither did."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        importlib.import_module("torch._dynamo")  # optimisers import it; after the group began it would keep it alive
        atexit.register(_leave)
    # Accelerate wants to be told that several processes shall talk over gloo.
    return accelerate.PartialState(cpu=device == "cpu" or not torch.accelerator.is_available())


def _leave() -> None:
    """End the group's threads: those that still run when the interpreter ends can abort it, with all work done."""
    if dist.is_initialized():
        dist.destroy_process_group()


def seed_of(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint32)[0])


def generator_of(device: torch.device, *parts: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed_of(*parts))
