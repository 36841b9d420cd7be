"""The tables of the benchmark: real data sets, and generated ones whose law is known."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DATA_FOLDER = Path(os.environ.get("ANYORDER_DATA", "."))


@dataclasses.dataclass(frozen=True)
class Problem:
    """A long table: its columns' roles, how many sets are learnt from and tested, and how networks are trained."""

    frame: pd.DataFrame
    roles: dict[str, Any]
    task: str
    missing: str = "error"
    learn: int | None = None  # None: 80 % of the sets
    test: int | None = None  # None: 20 %
    group: str | None = None  # sets of one group go to one side
    epochs: int = 30
    splits: int = 5
    rates: tuple[float, ...] = (3e-3, 1e-3)  # learning rates of the networks

    def split(self, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The rows of the sets to learn from (validation sets included) and of the test sets."""
        sets = self.frame[self.roles["set_id"]]
        draws = np.random.default_rng(seed)
        if self.group is not None:
            groups = draws.permutation(self.frame[self.group].unique())
            at = len(groups) // 5
            held, kept = (self.frame[self.group].isin(part) for part in (groups[:at], groups[at:]))
            frame = self.frame.drop(columns=self.group)
            return frame[kept], frame[held]
        ids = draws.permutation(sets.unique())
        test = len(ids) // 5 if self.test is None else self.test
        learn = len(ids) - test if self.learn is None else self.learn
        return self.frame[sets.isin(ids[test : test + learn])], self.frame[sets.isin(ids[:test])]


@functools.cache
def physionet(stays: int | None = None) -> Problem:
    loaded = np.load(DATA_FOLDER / "icu" / "physionet2012_set_a.npz")
    counts, names = loaded["events_per_patient"], loaded["static_names"]
    columns = {"stay": loaded["record_id"]}
    columns |= {f"static {name}": np.where(v < 0, np.nan, v) for name, v in zip(names, loaded["static"].T, strict=True)}
    columns["static ICUType"] = np.array(["", "coronary", "cardiac surgery", "medical", "surgical"])[
        columns["static ICUType"].astype(int)
    ]
    columns["death"] = np.where(loaded["outcomes"][:, 4] == 1, "yes", "no")
    frame = pd.DataFrame({name: np.repeat(values, counts) for name, values in columns.items()})
    frame["minute"], frame["value"] = loaded["minute"], loaded["value"]
    frame["parameter"] = loaded["parameter_names"][loaded["parameter"]]
    static = [name for name in columns if name.startswith("static")]
    roles = {"set_id": "stay", "target": "death", "time": "minute", "name": "parameter", "value": "value"}
    learn = None if stays is None else stays * 5 // 4
    return Problem(frame, {**roles, "static": static}, "classification", "mean", learn, epochs=10, rates=(3e-3,))


def ecg() -> Problem:
    loaded = np.load(DATA_FOLDER / "ecg" / "ecg5000.npz")
    values = np.concatenate([loaded["x_train"], loaded["x_test"]])
    labels = np.concatenate([loaded["y_train"], loaded["y_test"]])
    frame = _long(values[:, :, None], ["voltage"], {"label": np.char.add("class ", labels.astype(str))})
    roles = {"set_id": "set", "target": "label", "time": "step"}
    return Problem(frame, roles, "classification", learn=500, test=1000, epochs=40)


def hapt() -> Problem:
    loaded = np.load(DATA_FOLDER / "har" / "hapt_windows_f32.npz")
    parts = {part: np.concatenate([loaded[f"{part}_train"], loaded[f"{part}_test"]]) for part in ("x", "y", "subject")}
    chosen = np.sort(np.random.default_rng(0).permutation(len(parts["y"]))[:3000])
    labels = {"label": np.char.add("activity ", parts["y"][chosen].astype(str)), "subject": parts["subject"][chosen]}
    channels = [f"{kind} {axis}" for kind in ("acceleration", "rotation") for axis in "xyz"]
    frame = _long(parts["x"][chosen], channels, labels)
    return Problem(frame, {"set_id": "set", "target": "label", "time": "step"}, "classification", group="subject")


def bags(name: str) -> Problem:
    loaded = np.load(DATA_FOLDER / "mil" / "mil_bags.npz")
    frame = pd.DataFrame(loaded[f"{name}_x"]).rename(columns=lambda number: f"feature {number}")
    _, numbers = np.unique(loaded[f"{name}_bag"], return_inverse=True)
    frame["bag"], frame["label"] = numbers, np.where(loaded[f"{name}_y"][numbers] == 1, "yes", "no")
    return Problem(frame, {"set_id": "bag", "target": "label"}, "classification", epochs=40, splits=10)


def baskets() -> Problem:
    """The label's log-odds are a sum over items of a weight of their kind and of their price."""
    draws = np.random.default_rng(1)
    sets = np.repeat(np.arange(4000), draws.integers(1, 16, 4000))
    kinds, prices = draws.integers(0, 30, len(sets)), draws.gamma(2.0, 5.0, len(sets)).round(2)
    score = draws.normal(0, 1, 30)[kinds] + 0.03 * (prices - 10)
    total = np.bincount(sets, score)
    frame = pd.DataFrame({"basket": sets, "kind": np.char.add("kind ", kinds.astype(str)), "price": prices})
    frame["label"] = _drawn(total / total.std() * 2, draws)[sets]
    return Problem(frame, {"set_id": "basket", "target": "label"}, "classification", learn=1500, test=2000)


def rare() -> Problem:
    """Rare outcomes from age, the trend of one measurement and the worst of another, in a long form with ties."""
    draws = np.random.default_rng(2)
    count = 4000
    visits = draws.integers(2, 9, count)
    patients = np.repeat(np.arange(count), visits)
    age, trend = draws.integers(20, 90, count), draws.normal(0, 1, count)
    day = np.concatenate([np.sort(draws.choice(60, n, replace=False)) for n in visits])
    pulse = 75 + trend[patients] * 0.3 * (day - 30) + draws.normal(0, 5, len(day))
    oxygen = 97 - draws.gamma(1.0, 1.5, len(day))
    worst = pd.Series(97 - oxygen).groupby(patients).max().to_numpy()
    odds = -5.3 + 0.045 * (age - 55) + 1.0 * trend + 0.5 * worst
    one = {"patient": patients, "day": day, "age": age[patients]}
    one["sex"] = draws.choice(["f", "m"], count)[patients]
    one["outcome"] = _drawn(odds, draws)[patients]
    parts = [pd.DataFrame({**one, "name": name, "value": value}) for name, value in
             (("pulse", pulse), ("oxygen", oxygen), ("weight", 70 + draws.normal(0, 12, count)[patients]))]  # fmt: skip
    frame = pd.concat(parts).sample(frac=0.85, random_state=0)
    roles = {"set_id": "patient", "target": "outcome", "time": "day", "name": "name", "value": "value"}
    return Problem(frame, {**roles, "static": ["age", "sex"]}, "classification", learn=2400, test=1600)


def interactions() -> Problem:
    """The label's log-odds count the elements whose two numbers have one sign: nothing that pooled statistics show."""
    draws = np.random.default_rng(3)
    sets = np.repeat(np.arange(4000), draws.integers(3, 13, 4000))
    values = draws.normal(0, 1, (len(sets), 4))
    alike = np.bincount(sets, np.sign(values[:, 0] * values[:, 1]))
    frame = pd.DataFrame(values, columns=["a", "b", "c", "d"]).assign(set=sets)
    frame["label"] = _drawn(1.2 * alike, draws)[sets]
    return Problem(frame, {"set_id": "set", "target": "label"}, "classification", learn=1500, test=2000)


def long_tailed() -> Problem:
    """A cost per set with a lognormal tail, from counts of kinds and the sum of amounts."""
    draws = np.random.default_rng(4)
    count = 4000
    sets = np.repeat(np.arange(count), draws.integers(1, 11, count))
    kinds, amounts = draws.integers(0, 8, len(sets)), draws.lognormal(0, 0.8, len(sets))
    level = np.bincount(sets, draws.normal(0, 0.35, 8)[kinds] + 0.08 * amounts)
    frame = pd.DataFrame({"claim": sets, "kind": np.char.add("kind ", kinds.astype(str)), "amount": amounts})
    frame["cost"] = np.exp(2 + level + draws.normal(0, 0.3, count))[sets]
    return Problem(frame, {"set_id": "claim", "target": "cost"}, "regression", learn=1500, test=2000)


def _drawn(odds: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    return np.where(draws.random(len(odds)) < 1 / (1 + np.exp(-odds)), "yes", "no")


def _long(values: np.ndarray, columns: list[str], of_sets: dict[str, np.ndarray]) -> pd.DataFrame:
    """The frame of series ``[N, T, D]``, a row a step."""
    count, steps, _ = values.shape
    frame = pd.DataFrame(values.reshape(count * steps, -1).astype(np.float64), columns=columns)
    frame["set"], frame["step"] = np.repeat(np.arange(count), steps), np.tile(np.arange(steps), count)
    return frame.assign(**{name: np.repeat(labels, steps) for name, labels in of_sets.items()})


DATA: dict[str, Callable[[], Problem]] = {
    "physionet": physionet,
    "physionet-640": functools.partial(physionet, 640),
    "physionet-320": functools.partial(physionet, 320),
    "ecg5000": ecg,
    "hapt": hapt,
    "musk1": functools.partial(bags, "musk1"),
    "elephant": functools.partial(bags, "elephant"),
    "baskets": baskets,
    "rare": rare,
    "interactions": interactions,
    "long-tailed": long_tailed,
}

_STAYS = "PhysioNet 2012, set a: death in hospital, 13.9 %. A stay has 433 events of 37 parameters, in ties."
WHAT = {
    "physionet": f"{_STAYS} 80 % of the stays to learn from.",
    "physionet-640": f"{_STAYS} 800 stays to learn from: 640 fitted on, 160 for validation.",
    "physionet-320": f"{_STAYS} 400 stays to learn from: 320 fitted on, 80 for validation.",
    "ecg5000": "ECG5000: five kinds of heart beat, 140 steps in order. 500 beats to learn from, 1,000 tested.",
    "hapt": "HAPT windows: six activities, 128 steps of 6 channels in order. 3,000 windows, split by subject.",
    "musk1": "Bags, musk1: 92 molecules, 166 features.",
    "elephant": "Bags, elephant: 200 pictures, 230 features.",
    "baskets": "Generated baskets of 1 to 15 items: the log-odds are a sum over items. 1,500 to learn from.",
    "rare": "Generated rare outcomes: age, a trend, a worst value; 2 to 8 days, in ties. 2,400 patients to learn from.",
    "interactions": "Generated sets of 3 to 12: elements whose two numbers have one sign count. 1,500 to learn from.",
    "long-tailed": "Generated costs with a lognormal tail, from kinds and amounts; 1 to 10. 1,500 to learn from.",
}
