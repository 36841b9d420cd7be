"""SIRE on a cell of your own, with a state of your own: any step(element, state) -> state will do."""

import torch
from torch import nn

import anyorder as ao

torch.manual_seed(0)


class RunningMean(nn.Module):
    """A learned summary beside a count: the state is a dict, and the step is yours."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(features + width, width)

    def forward(self, element: torch.Tensor, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        new = torch.tanh(self.mix(torch.cat([element, state["mean"]], 1)))
        count = state["count"] + 1
        return {"mean": state["mean"] + (new - state["mean"]) / count, "count": count}


elements, lengths = ao.pad([torch.randn(n, 3) for n in torch.randint(2, 9, (64,))])  # sets of two to eight
targets = torch.stack([e[:n].sum(0).max() for e, n in zip(elements, lengths, strict=True)])


def train(penalty_weight: float) -> None:
    torch.manual_seed(0)
    start = {"mean": nn.Parameter(torch.zeros(1, 16)), "count": torch.zeros(1, 1)}  # parameters are learned
    cell, readout = ao.recurrence(RunningMean(3, 16), start=start), nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=1e-2)
    for _ in range(200):
        trajectory = cell.scan(elements, lengths)
        loss = nn.functional.mse_loss(readout(trajectory.last["mean"])[:, 0], targets)
        (loss + penalty_weight * ao.SIRE(pairs=2)(trajectory)).backward()
        optimizer.step()
        optimizer.zero_grad()
    gap = ao.order_gap(cell, elements, lengths)
    print(f"penalty weight {penalty_weight:g}: loss {loss:.3f}, order gap {gap:.4f}")


train(0.0)
train(10.0)
