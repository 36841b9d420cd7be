# %% [markdown]
# # From a Mamba-style block to a set model
#
# A selective state-space block reads a sequence. Its state follows the order in two ways: through the short convolution, which must keep the order of the last inputs, and through
# the state-space model, which need not. The argument `of=` says on which part SIRE acts: here on what the read-out makes of the state-space part.

# %%
import torch
from torch import nn
from torch.nn import functional as F

import anyorder as ao


class MambaBlock(nn.Module):
    """One step of a selective state-space block: a short convolution, then a linear recurrence."""

    def __init__(self, width, states=8, taps=4):
        super().__init__()
        self.sizes = [width, states, states]
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.taps = nn.Parameter(torch.randn(width, taps) / taps)
        self.select = nn.Linear(width, sum(self.sizes))
        self.log_decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))

    def start(self, batch):
        zeros = self.log_decay.new_zeros(batch, *self.log_decay.shape)
        return {"inputs": self.taps.new_zeros(batch, *self.taps.shape), "ssm": zeros}

    def forward(self, element, state):
        new, gate = self.enter(element).chunk(2, 1)
        inputs = torch.cat([state["inputs"][:, :, 1:], new[:, :, None]], 2)
        u = F.silu((inputs * self.taps).sum(2))
        delta, b, c = self.select(u).split(self.sizes, 1)
        delta = F.softplus(delta)[:, :, None]
        ssm = torch.exp(-delta * self.log_decay.exp()) * state["ssm"] + delta * b[:, None] * u[:, :, None]
        output = self.leave((ssm * c[:, None]).sum(2) * F.silu(gate))
        return output, {"inputs": inputs, "ssm": ssm}


# %% [markdown]
# ## A set model around it
#
# `ao.recurrence` takes any step and its start. The read-out takes the state-space part of the last state.


# %%
class SetModel(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.encode, block = nn.Linear(2, width), MambaBlock(width)
        self.mamba, self.readout = ao.recurrence(block, start=block.start), nn.Linear(8 * width, 1)

    def read(self, state):
        return self.readout(state["ssm"].flatten(1))

    def forward(self, elements, lengths=None, return_trajectory=False):
        trajectory = self.mamba.scan(self.encode(elements), lengths)
        out = self.read(trajectory.last)
        return (out, trajectory) if return_trajectory else out


def sets(count, seed):
    """Sets of 4 to 10 points, and the sum of their positive coordinates."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 11, (count,), generator=generator)
    x = torch.randn(count, 10, 2, generator=generator)
    positive = x.relu().sum(2) * (torch.arange(10) < lengths[:, None])
    return x, lengths, positive.sum(1, keepdim=True)


x, lengths, y = sets(256, seed=0)
unseen, sizes, truth = sets(500, seed=1)

# %% [markdown]
# ## Training with three weights


# %%
def train(weight, steps=400):
    torch.manual_seed(0)
    model = SetModel()
    sire = ao.SIRE(of=model.read)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        out, trajectory = model(x, lengths, return_trajectory=True)
        loss = F.mse_loss(out, y)
        if weight:
            loss = loss + weight * sire(trajectory)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


reports = {}
for weight in (0.0, 0.1, 1.0):
    model = train(weight)
    with torch.no_grad():
        error = (model(unseen, sizes) - truth).abs().mean()
    generator = torch.Generator().manual_seed(0)
    reports[weight] = ao.audit(model, unseen, sizes, orderings=8, search=0, generator=generator)
    print(f"weight {weight:g}: mean error {error:.2f}, order gap {reports[weight].order_gap:.2f}")

# %% [markdown]
# ## What is left of the order
#
# The convolution reads the last four inputs in their order, so the gap falls and does not vanish. The error on new sets falls with it: a sum has no order, and the
# penalty tells the block so. `of="ssm"` would penalise all of the state-space part, also what the read-out never uses.

# %% alt="Three curves of the mean change of the output against the position of a swapped element, one for each weight. Larger weights lie lower."
ax = ao.plot.curve({f"weight {weight:g}": report for weight, report in reports.items()}, "by_position")
ax = ax.set(title="Swapping one element, by its position")

# %% [markdown]
# ## With a parallel scan of your own
#
# If you have the states already, from a kernel of your own, no step is repeated: `ao.Trajectory.of(states, elements, lengths, step=block)`. If you have a scan,
# `ao.recurrence(block, start=block.start, scan=scan)` uses it ([recipes](../recipes.md)).
