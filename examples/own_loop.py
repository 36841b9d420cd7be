"""SIRE in your own training loop: two lines make a GRU that ignores order. Run: python examples/own_loop.py"""

import torch
from torch import nn

import anyorder as ao

torch.manual_seed(0)
elements = torch.randint(0, 20, (200, 10, 1)).float() / 20  # 200 sets of ten numbers
targets = elements.sum(1)

gru, readout = ao.recurrence(nn.GRU(1, 64, batch_first=True)), nn.Linear(64, 1)
penalty = ao.SIRE()
optimizer = torch.optim.Adam([*gru.parameters(), *readout.parameters()], lr=3e-3)

for step in range(301):
    trajectory = gru.scan(elements)
    loss = nn.functional.l1_loss(readout(trajectory.output), targets)
    value = penalty(trajectory)  # line one
    (loss + 3.0 * value).backward()  # line two: the weight is yours to choose, over decades
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        print(f"step {step}: loss {loss:.3f}, order gap {ao.order_gap(gru, elements):.5f}")
