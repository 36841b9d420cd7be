# %% [markdown]
# # Event logs with ties: intensive-care mortality
#
# Nearly all readings of an intensive-care stay share their minute with another one. The order in which they stand in the table is an accident of the database. Does a
# network that reads the table depend on it?
#
# With the folder `ANYORDER_DATA` this notebook reads set a of the PhysioNet Challenge 2012. Without it, it makes stays of the same form.

# %%
import os
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import anyorder as ao


def real(path, stays=400):
    """The first readings of some stays, one row an event."""
    with np.load(path) as file:
        counts, outcome = file["events_per_patient"][:stays], file["outcomes"][:stays, -1]
        kept = counts.sum()
        names = file["parameter_names"][file["parameter"][:kept]]
        events = {"minute": file["minute"][:kept], "parameter": names, "value": file["value"][:kept]}
        age = file["static"][:stays, 0]
    stay = np.repeat(np.arange(stays), counts)
    table = pd.DataFrame({"stay": stay, **events, "age": age[stay], "died": outcome[stay] > 0})
    return table[table["minute"] < 360].groupby("stay").head(60)


def generated(stays=400, seed=0):
    """Stays whose readings come in rounds: heart rate, pressure and temperature of one minute, in any order."""
    rng = np.random.default_rng(seed)
    rows = []
    for stay in range(stays):
        ill = rng.normal()
        for minute in np.sort(rng.choice(360, 6, replace=False)):
            levels = {"HR": 80 + 10 * ill, "MAP": 85 - 8 * ill * minute / 360, "Temp": 37 + 0.4 * ill}
            for name in rng.permutation(list(levels)):
                value = levels[name] + rng.normal() * (0.5 if name == "Temp" else 8)
                rows.append((stay, minute, name, value, 60 + 10 * rng.normal(), ill))
    table = pd.DataFrame(rows, columns=["stay", "minute", "parameter", "value", "age", "ill"])
    table["age"] = table.groupby("stay")["age"].transform("first")
    risk = table.groupby("stay")["ill"].first() + 0.5 * rng.normal(size=stays)
    table["died"] = table.pop("ill").index.map(lambda row: risk[rows[row][0]] > 0.8)
    return table


file = Path(os.environ.get("ANYORDER_DATA", "nowhere")) / "icu" / "physionet2012_set_a.npz"
table = real(file) if file.is_file() else generated()
print("real data" if file.is_file() else "generated data")
table.head(6)

# %% [markdown]
# ## How many readings share their minute?

# %%
together = table.groupby(["stay", "minute"])["parameter"].transform("size") > 1
print(f"{together.mean():.0%} of {len(table):,} readings share their minute with another reading of the stay")

# %% [markdown]
# ## Three networks
#
# The first reads the rows as they stand, without a penalty. The second is told the time, so its training shuffles within ties and SIRE penalises swaps within ties. The
# third also has the pooled statistics of each parameter, which is the default of `ao.TableModel`.

# %%
stays = np.sort(table["stay"].unique())
held_out = table["stay"].isin(np.random.default_rng(0).choice(stays, len(stays) // 4, replace=False))
train, test = table[~held_out], table[held_out]
columns = {
    "set_id": "stay",
    "target": "died",
    "time": "minute",
    "name": "parameter",
    "value": "value",
    "static": ["age"],
}
common = {"epochs": 12, "test_fraction": 0.0, "yardstick": False, "random_state": 0}
models = {
    "no penalty": ao.TableModel(pooled=False, penalty=None, penalty_weight=0.0, **common),
    "SIRE within ties": ao.TableModel(pooled=False, penalty_weight=1.0, **common),
    "SIRE within ties, pooled statistics": ao.TableModel(penalty_weight=1.0, **common),
}
rows = {}
for name, model in models.items():
    model.fit(train, **columns)
    metrics = model.evaluate(test)
    report = model.audit(test, orderings=8, generator=torch.Generator().manual_seed(0))
    rows[name] = {
        "AUC": metrics["auc"],
        "log loss": metrics["log_loss"],
        "order gap within ties": report.order_gap,
        "decisions that change": report.flip_rate,
    }
pd.DataFrame(rows).T.round(4)

# %% [markdown]
# The audit reorders the rows of one minute and nothing else. `decisions that change` is the share of predicted classes that another order of the same readings would change. On
# few stays the metrics have wide intervals (`metrics["auc_ci"]`), so compare models on the same split and many seeds.
#
# ## A stay as it arrives
#
# A model without pooled statistics streams. Readings are handed over as they come.

# %%
stream = models["SIRE within ties"].stream()
stay = test[test["stay"] == test["stay"].iloc[0]].sort_values("minute", kind="stable")
for minute, readings in list(stay.groupby("minute"))[:5]:
    stream.update(readings)
    risk = float(stream.value(static={"age": [readings["age"].iloc[0]]})[1])
    print(f"minute {minute:3}: {len(readings)} readings, probability of death {risk:.2f}")

# %% [markdown]
# More: [Ties](../ties.md), [From a table to a model](../tables.md).
