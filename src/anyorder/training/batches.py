"""The batches of a run, their pieces, random generators and processes."""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from anyorder.checks import extra
from anyorder.data.orderings import reorder
from anyorder.models.base import sizes_of


class Deck:
    """Batches of set numbers; the k-th batch depends on (seed, k) alone."""

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
    """Runs of at most ``size`` elements of each set, the last ending at its end.

    Yields (elements ``[B, ≤ size, D]``, lengths ``[B]``, is it the last). The first runs hold what stands before
    each set's last ``size`` elements; a shorter set has length 0 in them.

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
    """The lengths ``[B]`` of each of the :func:`pieces`; size None: of whole sets."""
    lengths = sizes_of(elements, lengths)
    head = (lengths - (size or elements.shape[1])).clamp(min=0)
    return [(head - start).clamp(0, size) for start in range(0, int(head.max()), size or 1)] + [lengths - head]


def processes(device: str) -> Any:
    """Accelerate's state of the processes that a launcher started, or of one."""
    accelerate = extra("accelerate", "train", "training")
    begins = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if begins:
        importlib.import_module("torch._dynamo")  # optimisers import it, and imported later it keeps the group alive
    # Accelerate needs to be told that several processes on CPUs shall talk over gloo.
    state = accelerate.PartialState(cpu=device == "cpu" or not torch.accelerator.is_available())
    if begins:  # the group's threads could abort the interpreter when it ends
        atexit.register(state.destroy_process_group)
    return state


def summed(value: Tensor) -> Tensor:
    """The sum of ``value`` over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def seed_of(*parts: int) -> int:
    """A seed that differs for different ``parts``."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint32)[0])


def generator_of(device: torch.device, *parts: int) -> torch.Generator:
    """A generator on ``device``, seeded by ``parts``."""
    return torch.Generator(device).manual_seed(seed_of(*parts))
