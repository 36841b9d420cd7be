"""Draw the picture of the README: ``python docs/idea.py``.

Two GRUs learn the highest price in a basket of five items, from 24 baskets, one of them with SIRE. Both then read one
new basket in four orders, and in all 120.
"""

from itertools import permutations
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import FancyBboxPatch
from torch import Tensor, nn

import anyorder as ao

BASKET = [8, 3, 9, 1, 5]
COLOURS = dict(zip(BASKET, ("#2c6e91", "#d9a441", "#b5543c", "#7d8b99", "#4f8a5b"), strict=True))
FOUR = [(8, 3, 9, 1, 5), (5, 1, 9, 3, 8), (9, 8, 5, 3, 1), (1, 3, 5, 8, 9)]


def trained(weight: float) -> nn.Module:
    """A GRU that has learnt the highest price of 24 baskets, with SIRE at ``weight``."""
    torch.manual_seed(0)
    gru, readout = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)
    baskets = torch.randint(1, 10, (24, 5, 1)).float()
    optimizer = torch.optim.Adam([*gru.parameters(), *readout.parameters()], lr=1e-2)
    sire, generator = ao.SIRE(), torch.Generator().manual_seed(0)
    for _ in range(600):
        said = 5 + 3 * readout(gru(baskets / 5 - 1)[1][-1])
        loss = (said - baskets.amax(1)).square().mean() / 9
        loss = loss + weight * sire(gru, baskets / 5 - 1, generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return nn.ModuleList([gru, readout])


@torch.no_grad()
def highest(model: nn.Module, orders: list[tuple[int, ...]]) -> Tensor:
    """What the GRU says about each order."""
    gru, readout = model
    return 5 + 3 * readout(gru(torch.tensor(orders).float()[:, :, None] / 5 - 1)[1][-1])[:, 0]


def tiles(panel: plt.Axes) -> None:
    """Four orders of the basket."""
    for row, order in enumerate(FOUR):
        for place, price in enumerate(order):
            box = FancyBboxPatch((place + 0.1, 3.66 - row), 0.8, 0.68, boxstyle="round,pad=0,rounding_size=0.12")
            box.set(facecolor=COLOURS[price], edgecolor="none")
            panel.add_patch(box)
            panel.text(place + 0.5, 4 - row, str(price), color="white", weight="bold", ha="center", va="center")
    panel.text(4.9, 0, "all 120 orders", ha="right", va="center")
    panel.set(xlim=(0, 5.1), title="What is the highest price?")
    panel.axis("off")


def answers(panel: plt.Axes, model: nn.Module, title: str) -> None:
    """The highest price that a model says, a line an order."""
    truth, low, high = max(BASKET), 7.2, 10.8
    panel.axvline(truth, color="#9a9a9a", linestyle="--", linewidth=1.2, zorder=0)
    for row, said in enumerate(highest(model, FOUR).tolist()):
        panel.plot(said, 4 - row, "o", color="#222222", markersize=8)
        side = 1 if said > truth else -1
        panel.annotate(f"{said:.1f}", (said, 4 - row), (9 * side, 0), textcoords="offset points", va="center",
                       ha="left" if side > 0 else "right", weight="bold")  # fmt: skip
    every = highest(model, list(permutations(BASKET)))
    panel.plot(every, torch.zeros(120), "|", color="#222222", markersize=13, alpha=0.5)
    panel.text(truth + 0.1, 4.62, "the truth", va="center", color="#5a5a5a", fontsize=9.5)
    panel.set(xlim=(low, high), title=title, yticks=[])
    for side in ("left", "right", "top"):
        panel.spines[side].set_visible(False)


def main(target: Path) -> None:
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold"})
    figure, panels = plt.subplots(1, 3, figsize=(8.6, 3.5), sharey=True, layout="constrained", width_ratios=[1, 1, 1])
    tiles(panels[0])
    answers(panels[1], trained(0.0), "a GRU says")
    answers(panels[2], trained(1.0), "with SIRE it says")
    panels[0].set_ylim(-0.5, 4.9)
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    main(Path(__file__).parent / "figures" / "idea.png")
