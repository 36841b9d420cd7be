"""Draw the picture of the README: ``python docs/idea.py``.

Two GRUs learn the largest coordinates of 24 sets of six points, one of them with SIRE. Each panel shows the state while
the GRU reads one unseen set in two orderings. The axes are those along which the end states of many sets differ most.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import anyorder as ao

FIRST, SECOND = "#b5543c", "#2c6e91"


def trained(weight: float) -> nn.GRU:
    """A GRU that has learned the largest coordinate of 24 sets, with SIRE at ``weight``."""
    torch.manual_seed(0)
    gru, readout = nn.GRU(2, 32, batch_first=True), nn.Linear(32, 2)
    sets = torch.randn(24, 6, 2)
    optimizer = torch.optim.Adam([*gru.parameters(), *readout.parameters()], lr=1e-2)
    penalty, generator = ao.SIRE(), torch.Generator().manual_seed(0)
    for _ in range(600):
        loss = nn.functional.mse_loss(readout(gru(sets)[1][-1]), sets.amax(1))
        loss = loss + weight * penalty(gru, sets, generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return gru


@torch.no_grad()
def paths(gru: nn.GRU) -> tuple[Tensor, Tensor, float]:
    """Two orderings' states ``[2, 7, 2]``, the end states of other sets ``[N, 2]``, and the order gap."""
    generator = torch.Generator().manual_seed(13)
    others = torch.randn(300, 6, 2, generator=generator)
    one = torch.randn(6, 2, generator=generator)
    both = torch.stack([one, one.flip(0)])
    states = ao.recurrence(gru).scan(both).states
    ends = gru(others)[1][-1]
    centre = ends.mean(0)
    axes = torch.linalg.svd(ends - centre, full_matrices=False).Vh[:2].T
    gap = ao.order_gap(gru, others, generator=generator)
    return (states - centre) @ axes, (ends - centre) @ axes, float(gap)


def main(target: Path) -> None:
    plt.rcParams.update({"font.size": 11})
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.6))
    for panel, weight, title in zip(panels, (0.0, 1.0), ("Without SIRE", "With SIRE"), strict=True):
        two, ends, gap = paths(trained(weight))
        panel.scatter(*ends.T, s=5, color="#d0d0d0", zorder=0)
        for path, colour, name in zip(
            two, (FIRST, SECOND), ("a set, first to last", "the same set, last to first"), strict=True
        ):
            panel.plot(*path.T, "-o", color=colour, markersize=4, linewidth=1.8, label=name)
            panel.plot(*path[-1], "*", color=colour, markersize=16, markeredgecolor="white", zorder=4)
        panel.plot(*two[0, 0], "s", color="black", markersize=7, zorder=3)
        panel.annotate("start", two[0, 0].tolist(), (-14, 9), textcoords="offset points")
        panel.set_title(f"{title}: order gap {gap:.2g}", fontsize=12)
        panel.set_xticks([])
        panel.set_yticks([])
        for side in panel.spines.values():
            side.set_color("#c0c0c0")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    main(Path(__file__).parent / "figures" / "idea.png")
