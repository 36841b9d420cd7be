"""A table, and the commands that train on it, for the tests of the command line."""

from __future__ import annotations

import numpy as np
import pandas as pd


def visits(sets=24, seed=0, **changes):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"visit": np.repeat(np.arange(sets), rng.integers(1, 5, size=sets))})
    rows["dose"] = rng.normal(size=len(rows)).round(3)
    rows["drug"] = rng.choice(["x", "y"], len(rows))
    rows["outcome"] = np.where(rows.groupby("visit")["dose"].transform("sum") > 0, "up", "down")
    for name, change in changes.items():
        rows[name] = change(rows) if callable(change) else change
    return rows


ALONE = "--no-ensemble --no-yardstick"  # the network
ANY_MODEL = f"train t.csv --set-id visit --target outcome --epochs 2 {ALONE} --out model"
TRAIN = f"{ANY_MODEL} --hidden 4"
