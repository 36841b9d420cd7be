# %% [markdown]
# # What SIRE does to a Fold
#
# A Fold is a recurrence whose channels move on their own: s' = (1 − c(x))·s + b(x). A channel ignores order exactly where c ≡ 0, a **sum**, or where b is proportional to c, a
# **product** around a fixed point. There is nothing else. SIRE of a Fold is exact, and it moves every channel towards one of the two. Here we watch them move.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import anyorder as ao


def sets(number, generator):
    """Eight elements, each a number and a sign. The targets are the sum of the numbers and the product of the signs."""
    values = torch.rand(number, 8, generator=generator)
    signs = torch.randint(0, 2, (number, 8), generator=generator) * 2.0 - 1.0
    return torch.stack([values, signs], 2), torch.stack([values.sum(1), signs.prod(1)], 1)


generator = torch.Generator().manual_seed(0)
(x, y), (unseen, truth) = sets(2000, generator), sets(500, generator)

# %% [markdown]
# ## One training, four weights
#
# The weight of the penalty grows in four stages. Half of the channels begin far from sums.

# %% alt="Four panels, one for each weight. Each point is a channel; across its distance from a sum, up its distance from a product. As the weight grows, the points move to the left edge or to the bottom edge."
torch.manual_seed(0)
model, penalty = ao.RecurrentSetModel(2, 2, cell="fold", channels={"affine": 32}), ao.SIRE()
with torch.no_grad():
    model.recurrence.coefficients[0].weight[:16] *= 10

figure, panels = plt.subplots(1, 4, figsize=(9.5, 3), sharey=True, layout="constrained")
for ax, weight in zip(panels, (0.0, 0.1, 1.0, 10.0)):
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=800)
    for _ in range(800):
        batch = torch.randint(len(x), (128,), generator=generator)
        out, trajectory = model(x[batch], return_trajectory=True)
        loss = nn.functional.mse_loss(out, y[batch]) + weight * penalty(trajectory)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        out = model(unseen)
    error, right = (out - truth)[:, 0].abs().mean(), ((out[:, 1] > 0) == (truth[:, 1] > 0)).float().mean()
    ao.plot.channels(model, unseen, ax=ax).set_title(f"weight {weight:g}")
    ax.label_outer()
    print(
        f"weight {weight:4}: error of the sum {error:.3f}, signs {right:.0%}, order gap {ao.order_gap(model, unseen):.4f}"
    )

# %% [markdown]
# ## A proof and not a sample
#
# The penalty of a Fold is a Gram determinant. It is the mean over *all* pairs of a set at *every* state, so it bounds how far apart any two orderings can end.

# %%
fold, z = model.recurrence, model.encode(unseen)
with torch.no_grad():
    bound = fold.order_bound(z)
    ends = fold.scan(z).last
    other = fold.scan(z[:, torch.randperm(8, generator=generator)]).last
moved = (other - ends).norm(dim=1)
print(f"largest move in a random order {moved.max():.4f}, the bound for that set {bound[moved.argmax()]:.4f}")
assert (moved <= bound + 1e-5).all()

# %% [markdown]
# ## Beyond the training length
#
# A channel that is nearly a sum is made one. A true sum holds at any length.

# %%
with torch.no_grad():
    settled = fold.settle(z)
print(f"{settled} channels became sums; order gap now {ao.order_gap(model, unseen):.4f}")

# %% [markdown]
# The mathematics is in [Fold](../fold.md).
