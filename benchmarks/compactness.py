"""How wide DeepSets must be to fit parity of up to n bits, beside the recurrence that needs 3 gates for any n.

DeepSets here is the paper's: φ and ρ with one hidden layer of the same width, sum pooling. For each n, widths are
tried upwards (by half an octave) until one of several seeds fits every multiset of 1 to n bits without an error.
The search helps DeepSets: the hidden units of ρ start with their kinks among the data, and ρ's last layer is solved
exactly at every step. Below n − 1 none is needed: among n bits, ρ is piecewise linear in the number of ones with at
most ``width`` kinks, so its sign changes at most ``width`` + 1 times, and parity asks for n. Built by hand, n will do.
The recurrence is that of Theorem 4, checked on the same multisets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyorder.models import DeepSets
from anyorder.recurrences import known
from benchmarks.timing import entry

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
WIDTHS = [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256]


def multisets(longest: int) -> tuple[Tensor, Tensor]:
    """Every multiset of 1 to ``longest`` bits: (zeros, ones) ``[M, 2]`` and its parity ``[M]``."""
    counts = [(length - ones, ones) for length in range(1, longest + 1) for ones in range(length + 1)]
    table = torch.tensor(counts, dtype=torch.float32)
    return table, table[:, 1] % 2


def fit(longest: int, width: int, seed: int, steps: int) -> DeepSets | None:
    """DeepSets of this width that gets every multiset of up to ``longest`` bits right, if the search finds one."""
    counts, parity = multisets(longest)
    counts, wanted = counts.double(), (2 * parity - 1).double()[:, None]
    bits = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DeepSets(1, 1, phi=(width,), rho=(width,)).double()
        hidden, last = model.rho[1], model.rho[3]
        with torch.no_grad():  # each kink between two multisets drawn at random
            pooled = counts @ model.phi(bits)
            one, other = pooled[torch.randint(0, len(counts), (2, width))]
            hidden.bias.copy_(-(hidden.weight * torch.lerp(one, other, torch.rand(width, 1).double())).sum(1))
    optimizer = torch.optim.Adam([*model.phi.parameters(), *hidden.parameters()], lr=0.01, fused=True)
    for _ in range(steps):
        pooled = counts @ model.phi(bits)  # sum pooling of a multiset, from its counts
        units = torch.cat([torch.relu(hidden(pooled)), torch.ones_like(wanted)], 1)
        gram = units.T @ units
        ridge = 1e-8 * gram.diagonal().mean().detach() * torch.eye(width + 1, dtype=torch.float64)
        solution = torch.linalg.solve(gram + ridge, units.T @ wanted)
        out = units @ solution
        if bool(((out > 0) == (wanted > 0)).all()):
            with torch.no_grad():
                last.weight.copy_(solution[:-1].T)
                last.bias.copy_(solution[-1])
            return model
        optimizer.zero_grad()
        (out - wanted).square().mean().backward()
        optimizer.step()
    return None


def by_hand(longest: int) -> DeepSets:
    """DeepSets of width ``longest`` that is the parity of up to that many bits: ρ zigzags over the number of ones k.

    ρ(k) = ReLU(k) − 2 ReLU(k − 1) + 2 ReLU(k − 2) − …
    """
    model = DeepSets(1, 1, phi=(longest,), rho=(longest,))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.phi[0].weight[0] = 1.0
        model.rho[1].weight[:, 0] = 1.0
        model.rho[1].bias.copy_(-torch.arange(longest))
        model.rho[3].weight.copy_(2.0 * (-1.0) ** torch.arange(longest))
        model.rho[3].weight[0, 0] = 1.0
    return model


def smallest_width(longest: int, seeds: int, steps: int, widths: list[int]) -> int | None:
    """The first of ``widths`` at which one of ``seeds`` searches fits; None if none does."""
    return next((w for w in widths if any(fit(longest, w, seed, steps) for seed in range(seeds))), None)


def recurrence_errors(longest: int) -> int:
    """How many multisets of up to ``longest`` bits the 12-parameter recurrence gets wrong."""
    counts, parity = multisets(longest)
    bits = (torch.arange(longest) < counts[:, 1:]).float()[:, :, None]  # the ones first: order is ignored
    last = known.parity().scan(bits, counts.sum(1).long()).last
    return int((last[:, 0] != parity).sum())


def parameters(width: int) -> int:
    return sum(p.numel() for p in DeepSets(1, 1, phi=(width,), rho=(width,)).parameters())


def draw(found: dict[int, int], folder: Path = FIGURES) -> None:
    """Width and parameters against n, as ``compactness.svg``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    lengths = list(found)
    panels = [
        ("hidden neurons in a layer", list(found.values()), 3),
        ("parameters", [parameters(width) for width in found.values()], 12),
    ]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, (label, deepsets, recurrent) in zip(axes, panels, strict=True):
        axis.plot(lengths, deepsets, "o-", color="#c1440e", label="DeepSets, the smallest found")
        built = [n if recurrent == 3 else parameters(n) for n in lengths]
        axis.plot(lengths, built, ":", color="#c1440e", label="DeepSets, built by hand")
        axis.plot(lengths, [recurrent] * len(lengths), "s-", color="#1b6ca8", label=f"recurrence: {recurrent}")
        axis.set(xscale="log", yscale="log", xlabel="parity of up to n bits", ylabel=label)
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "compactness.svg", metadata={"Date": None})
    plt.close(figure)


def run(quick: bool = False) -> dict[str, dict[str, Any]]:
    """The smallest fitting width for each n, and the figure (not drawn when ``quick``)."""
    lengths, seeds, steps = ([2, 4], 3, 50) if quick else ([2, 4, 8, 10, 16], 5, 100)
    found: dict[int, int] = {}
    results = {}
    for longest in lengths:
        begin = max([longest - 1, *found.values()])  # less is impossible; more lengths never need less
        width = smallest_width(longest, seeds, steps, [w for w in WIDTHS if w >= begin])
        if width is None:
            break
        found[longest] = width
        what = f"smallest width of φ and ρ found at which DeepSets fits parity of up to {longest} bits ({seeds} seeds)"
        results[f"deepsets_parity_width_n{longest}"] = entry(width, what)
        results[f"deepsets_over_recurrence_parameters_n{longest}"] = entry(
            parameters(width) / 12, f"parameters of that DeepSets over the recurrence's 12, up to {longest} bits"
        )
    errors = recurrence_errors(lengths[-1])
    what = f"multisets of up to {lengths[-1]} bits the 12-parameter recurrence gets wrong"
    results["recurrence_parity_errors"] = entry(errors, what, goal=0)
    if not quick:
        draw(found)
    return results
