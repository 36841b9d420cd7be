"""How a training uses the processor: one thread where more do not pay, no time for denormal numbers; then as before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

SMALL = 2**24  # parameters × samples of a batch, the products of one step of a recurrence: see docs/cost.md


@contextmanager
def threads_for(work: int, device: torch.device) -> Iterator[None]:
    """One thread for a while if ``work`` is below :data:`SMALL` and nobody has said how many to use; then as it was."""
    threads = torch.get_num_threads()
    if work >= SMALL or device.type != "cpu" or _chosen(threads):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _chosen(threads: int) -> bool:
    """Whether a user has set the number of threads: torch's own is one a core."""
    told = any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    return told or threads not in (psutil.cpu_count(logical=False), psutil.cpu_count())


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Vanishing gradients cost this thread no more than others for a while; then as it was."""
    if (threads := torch.get_num_threads()) > 1:
        torch.ones(threads << 16).add_(1)  # starts them all: one that starts while flushing is on keeps it for good
    before = float(torch.tensor(1e-40) * 1) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
