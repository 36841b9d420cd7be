"""Draw the picture of docs/fold.md: ``python docs/fold_figure.py``.

A fold of 32 affine channels learns the sum and the sign of sets: an element is a number and a sign, and the targets are
the sum of the numbers and the product of the signs. The weight of the penalty grows in stages. ``ao.plot.channels``
draws the channels after each stage.
"""

from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import anyorder as ao

WEIGHTS = (0.0, 0.1, 1.0, 10.0)


def sets(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    values = torch.rand(number, 8, generator=generator)
    signs = torch.randint(0, 2, (number, 8), generator=generator) * 2.0 - 1.0
    return torch.stack([values, signs], 2), torch.stack([values.sum(1), signs.prod(1)], 1)


def training() -> Iterator[tuple[float, ao.Fold, float, float]]:
    """One training in four stages: weight, fold, error of the sums and share of right signs on unseen sets."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = ao.RecurrentSetModel(2, 2, cell="fold", channels={"affine": 32})
    with torch.no_grad():
        model.recurrence.coefficients[0].weight[:16] *= 10  # half of the channels begin far from sums
    (x, y), (unseen, truth) = sets(2000, generator), sets(1000, generator)
    penalty, steps = ao.SIRE(), 1500
    for weight in WEIGHTS:
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
        for _ in range(steps):
            batch = torch.randint(len(x), (128,), generator=generator)
            out, trajectory = model(x[batch], return_trajectory=True)
            loss = nn.functional.mse_loss(out, y[batch]) + weight * penalty(trajectory)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            out = model(unseen)
        right = (out[:, 1] > 0) == (truth[:, 1] > 0)
        yield weight, model.recurrence, float((out - truth)[:, 0].abs().mean()), float(right.float().mean())


def main(target: Path) -> None:
    x, _ = sets(500, torch.Generator().manual_seed(1))
    figure, panels = plt.subplots(1, 4, figsize=(11, 3.1), sharey=True)
    for panel, (weight, fold, error, right) in zip(panels, training(), strict=True):
        ao.plot.channels(fold, x, ax=panel)
        panel.set_title(f"weight {weight:g}\nerror of sums {error:.3f}, signs {right:.0%}", fontsize=9)
        panel.label_outer()
    figure.tight_layout()
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    main(Path(__file__).parent / "figures" / "fold.png")
