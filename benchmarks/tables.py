"""Tables: the command's defaults beside pooled features and other networks, on the same splits.

``python -m benchmarks.tables run --out FOLDER [--data NAME,…] [--method NAME,…]`` adds the rows that FOLDER lacks, one
file a data set. ``python -m benchmarks.tables page`` writes docs/tables_benchmark.md from the rows in results/.
One thread. A row's seconds are CPU seconds: reading the table, tuning, training and prediction.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, root_mean_squared_error
from sklearn.model_selection import ParameterGrid, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import anyorder as ao
from anyorder.estimators.metrics import metrics_of
from anyorder.estimators.table_model import TableModel
from anyorder.estimators.tables import Table, read_table
from anyorder.estimators.yardstick import pooled

DATA_FOLDER = Path(os.environ.get("ANYORDER_DATA", "."))
ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "tables_benchmark.md"


# Data ---------------------------------------------------------------------------------------------------------------


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


# Methods ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Split:
    """One split of a problem, read: what a method may learn from, and the test sets."""

    problem: Problem
    seed: int
    learn: pd.DataFrame
    test: pd.DataFrame

    @functools.cached_property
    def tables(self) -> tuple[Table, Table]:
        began = time.process_time()
        table = read_table(self.learn, **self.problem.roles, task=self.problem.task, missing=self.problem.missing)
        read = table, table.schema.read(self.test, with_target=True)
        self.__dict__["reading"] = time.process_time() - began
        return read

    @functools.cached_property
    def features(self) -> tuple[np.ndarray, np.ndarray]:
        """Pooled statistics of each set, beside its static features."""
        began = time.process_time()
        parts = []
        for table in self.tables:
            statistics = pooled(table.data, table.schema)
            static = table.data.static
            parts.append(statistics if static is None else np.hstack([static.numpy(), statistics]))
        self.__dict__["pooling"] = time.process_time() - began
        return parts[0], parts[1]

    @functools.cached_property
    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the sets to learn from, those to fit on and those to tune on, 80 % and 20 %."""
        targets = self.tables[0].data.targets.numpy()
        few = self.problem.task == "regression" or np.bincount(targets).min() < 2
        fitted, tuned = train_test_split(
            np.arange(len(targets)), test_size=0.2, random_state=self.seed, stratify=None if few else targets
        )
        return fitted, tuned


def prior(split: Split) -> Any:
    """The shares of the classes, or the mean."""
    train, test = split.tables
    targets = train.data.targets.numpy()
    if split.problem.task == "regression":
        return np.full(len(test.data), targets.mean()), {}
    return np.tile(np.bincount(targets, minlength=len(train.schema.classes)) / len(targets), (len(test.data), 1)), {}


def boosting(split: Split) -> Any:
    """Gradient boosting on pooled statistics; eight settings, tuned on 20 % of the sets, then fitted on all."""
    kinds = {"classification": HistGradientBoostingClassifier, "regression": HistGradientBoostingRegressor}
    grid = {"learning_rate": [0.03, 0.1], "max_iter": [100, 200], "max_leaf_nodes": [7, 15]}
    kind: Any = functools.partial(kinds[split.problem.task], max_features=0.3, random_state=split.seed)
    return _tuned(split, kind, ParameterGrid(grid))


def linear(split: Split) -> Any:
    """Logistic or ridge regression on standardised pooled statistics; seven strengths, tuned in the same way."""

    def make(strength: float) -> Any:
        last = Ridge(1 / strength) if split.problem.task == "regression" else LogisticRegression(C=strength)
        last.set_params(**({} if split.problem.task == "regression" else {"max_iter": 300}))
        return make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler(), last)

    return _tuned(split, make, ParameterGrid({"strength": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1, 1.0]}))


def _tuned(split: Split, make: Callable[..., Any], grid: ParameterGrid) -> Any:
    (features, test), targets = split.features, split.tables[0].data.targets.numpy()
    classes = split.tables[0].schema.classes
    fitted, tuned = split.parts

    def outputs(model: Any, of: np.ndarray) -> np.ndarray:
        if classes is None:
            return model.predict(of)
        shares = np.full((len(of), len(classes)), 1e-12)
        shares[:, model.classes_] = model.predict_proba(of)
        return shares

    def loss(setting: dict[str, Any]) -> float:
        found = outputs(make(**setting).fit(features[fitted], targets[fitted]), features[tuned])
        if classes is None:
            return root_mean_squared_error(targets[tuned], found)
        return log_loss(targets[tuned], found, labels=range(len(classes)))

    best = min(grid, key=loss)
    return outputs(make(**best).fit(features, targets), test), {"setting": best, "pooled": True}


class Decay(nn.Module):
    """GRU-D's inputs: a value that was not measured decays from the last one to the mean, at a learnt rate."""

    def __init__(self, names: int) -> None:
        super().__init__()
        self.rate, self.bias = nn.Parameter(torch.zeros(names)), nn.Parameter(torch.zeros(names))

    def forward(self, elements: Tensor) -> Tensor:
        last, mask, gap = elements.chunk(3, -1)
        decay = torch.exp(-torch.relu(self.rate * gap + self.bias))
        return torch.cat([last * (mask + (1 - mask) * decay), mask], -1)


def _grid(table: Table) -> ao.SetData:
    """One element a distinct time: the last value of each name, whether it is new, and the time since it was."""
    data, names = table.data, len(table.schema.features[0].categories)
    starts = np.flatnonzero(np.diff(data.ties.numpy(), prepend=-1))  # type: ignore[union-attr]
    ties = np.diff(data.ties.numpy(), prepend=-1).astype(bool).cumsum() - 1  # type: ignore[union-attr]
    block = data.elements.double().numpy()
    counts, sums = (np.zeros((len(starts), names)) for _ in range(2))
    np.add.at(counts, ties, block[:, :names])
    np.add.at(sums, ties, block[:, names : 2 * names])
    mask, clock = counts > 0, block[starts, 2 * names]
    values = np.where(mask, sums / np.maximum(counts, 1), np.nan)
    of_set = np.repeat(np.arange(len(data)), data.lengths.numpy())[starts]
    last = pd.DataFrame(values).groupby(of_set).ffill().fillna(0.0).to_numpy()
    seen = pd.DataFrame(np.where(mask, clock[:, None], np.nan)).groupby(of_set).ffill().groupby(of_set).shift()
    gaps = np.log1p(clock[:, None] - seen.fillna(0.0).to_numpy())
    offsets = np.concatenate([[0], np.bincount(of_set, minlength=len(data)).cumsum()])
    elements = torch.from_numpy(np.hstack([last, mask, gaps]).astype(np.float32))
    return ao.SetData(elements, torch.from_numpy(offsets), data.targets, static=data.static)


def network(split: Split, model: str, *, ties: bool = True, decay: bool = False, **options: Any) -> Any:
    """A network, of two learning rates the better on validation sets (PhysioNet: .003 alone), at its best epoch."""
    train, test = (_grid(t) if decay else t.data for t in split.tables)
    if not ties:
        train = dataclasses.replace(train, ties=None)
    classes = split.tables[0].schema.classes
    kind: Any = ao.SetRegressor if classes is None else ao.SetClassifier
    settings = {"epochs": split.problem.epochs, "batch_size": 64, "optimizer": "adamw", "weight_decay": 0.01}
    settings |= {"validation_fraction": 0.2, "random_state": split.seed, "penalty": None, "model": model, **options}
    best: Any = None
    for rate in split.problem.rates:
        estimator = kind(learning_rate=rate, **settings).fit(train, train.targets.numpy())
        loss = estimator.history_[estimator.best_epoch_]["validation"]
        if best is None or loss < best[0]:
            best = loss, rate, estimator
    _, rate, estimator = best
    read = estimator.predict if classes is None else estimator.predict_proba

    def reordered(draws: np.random.Generator) -> np.ndarray:
        return read(_shuffled(test, draws))

    details = {"learning_rate": rate, "best_epoch": estimator.best_epoch_}
    if test.ties is not None and not estimator.model_.invariant:
        details["reordered"] = reordered
    return read(test), details


def _shuffled(data: ao.SetData, draws: np.random.Generator) -> ao.SetData:
    """The sets with a new order within ties."""
    order = np.lexsort([draws.random(len(data.elements)), data.ties.numpy()])  # type: ignore[union-attr]
    return dataclasses.replace(data, elements=data.elements[torch.from_numpy(order)])


def ours(split: Split, **options: Any) -> Any:
    """The defaults of TableModel, as the command has them; all sets are learnt from, as of the others."""
    problem = split.problem
    settings = {"task": problem.task, "missing": problem.missing, "test_fraction": 0.0, "validation_fraction": 0.2}
    model = TableModel(**settings, random_state=split.seed, **options).fit(split.learn, **problem.roles)
    test = model.read(split.test)
    details: dict[str, Any] = {"own_reading": True}
    if test.data.ties is not None:

        def reordered(draws: np.random.Generator) -> np.ndarray:
            return _numbers(model, dataclasses.replace(test, data=_shuffled(test.data, draws)))

        details["reordered"] = reordered
    return _numbers(model, test), details


def _numbers(model: TableModel, table: Any) -> np.ndarray:
    frame = model.predict(table).iloc[:, 1:]
    return frame.iloc[:, 0 if model.schema.classes is None else slice(1, None)].to_numpy(dtype=np.float64)


_GRU = {"cell": "gru", "hidden": 64, "dropout": 0.2}
METHODS: dict[str, Callable[[Split], Any]] = {
    "prior": prior,
    "boosting": boosting,
    "linear": linear,
    "anyorder": ours,
    "deepsets": functools.partial(network, model="deepsets", model_options={"dropout": 0.2}),
    "set-transformer": functools.partial(network, model="set-transformer", model_options={"dropout": 0.2}),
    "gru": functools.partial(network, model="recurrent", model_options=_GRU, ties=False),
    "gru-shuffled": functools.partial(network, model="recurrent", model_options=_GRU),
    "gru-sire": functools.partial(network, model="recurrent", model_options=_GRU, penalty="sire"),
    "fold-sire": functools.partial(
        network, model="recurrent", model_options={"cell": "fold", "hidden": 64, "dropout": 0.2}, penalty="sire"
    ),
    "gru-d": functools.partial(network, model="recurrent", model_options=_GRU, decay=True),
}
_TIED = ("physionet", "physionet-640", "physionet-320", "rare")
_FEW = ("prior", "boosting", "linear", "anyorder", "gru", "gru-shuffled", "gru-sire")


def wanted(data: str, method: str) -> bool:
    """Whether a method is run on a data set: shuffling within ties needs ties, GRU-D names."""
    if data in ("physionet-640", "physionet-320"):
        return method in _FEW
    return data in _TIED or method not in ("gru-shuffled", "gru-d")


# Rows ---------------------------------------------------------------------------------------------------------------


def measured(split: Split, method: str, name: str) -> dict[str, Any]:
    """One row: a method on a split."""
    _ = split.tables, split.features  # read once for all
    began = time.process_time()
    found, details = METHODS[method](split)
    seconds = time.process_time() - began
    pooling = split.__dict__["pooling"] * bool(details.pop("pooled", False))
    seconds += 0.0 if details.pop("own_reading", False) else split.__dict__["reading"] + pooling
    truth = split.tables[1].data.targets.numpy()
    metrics = metrics_of(split.problem.task, truth, found)
    metrics = {key: value for key, value in metrics.items() if not key.endswith("_ci")}
    reordered = details.pop("reordered", None)
    if reordered is not None and found.ndim == 2:
        metrics["flips"] = _flips(found, reordered, truth)
    return {
        "experiment": f"tables-{name}",
        "method": method,
        "seed": split.seed,
        "sets": [len(split.tables[0].data), len(truth)],
        "metrics": metrics,
        "details": details,
        "seconds": round(seconds, 2),
        "commit": _commit(),
        "versions": {"torch": torch.__version__, "anyorder": ao.__version__},
        "command": f"python -m benchmarks.tables run --data {name} --method {method}",
    }


def _flips(found: np.ndarray, reordered: Callable[..., np.ndarray], truth: np.ndarray, draws: int = 4) -> float:
    """The share of decisions that another order within ties changes; as many sets are called positive as are."""
    generator, share = np.random.default_rng(0), 1 - float((truth == 1).mean())
    if found.shape[1] > 2:
        return float(np.mean([(reordered(generator).argmax(1) != found.argmax(1)).mean() for _ in range(draws)]))
    level = np.quantile(found[:, 1], share)
    return float(
        np.mean([((reordered(generator)[:, 1] > level) != (found[:, 1] > level)).mean() for _ in range(draws)])
    )


@functools.cache
def _commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return run.stdout.strip()


def run(out: Path, data: list[str], methods: list[str]) -> None:
    """Add the rows that ``out`` lacks, split by split."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    out.mkdir(parents=True, exist_ok=True)
    for seed in range(10):
        for name in data:
            path = out / f"tables-{name}.jsonl"
            done = {(row["method"], row["seed"]) for row in read(path)}
            todo = [method for method in methods if wanted(name, method) and (method, seed) not in done]
            if not todo:
                continue
            problem = DATA[name]()
            if seed >= problem.splits:
                continue
            split = Split(problem, seed, *problem.split(seed))
            for method in todo:
                row = measured(split, method, name)
                with open(path, "a") as file:
                    file.write(json.dumps(row) + "\n")
                shown = {key: round(value, 4) for key, value in row["metrics"].items()}
                print(name, method, seed, shown, row["seconds"], flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(arguments: list[str]) -> int:
    options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    names = options.get("--data", ",".join(DATA)).split(",")
    methods = options.get("--method", ",".join(METHODS)).split(",")
    if arguments[0] == "run":
        run(Path(options.get("--out", RESULTS)), names, methods)
    else:
        PAGE.write_text(page(RESULTS))
    return 0


# The page -----------------------------------------------------------------------------------------------------------

HEAD = """# Tables: the defaults, measured

`anyorder train` with its defaults beside pooled features and other networks.
This page is made from `results/tables-*.jsonl` by `python -m benchmarks.tables page`. Each row holds its command.

- All methods of a split have the same test sets. Of the others, 80 % are fitted on and 20 % choose settings and epochs.
- *boosting* and *linear* read pooled statistics and static features. The statistics are mean, maximum, minimum,
  deviation, sum and count; with times also first, last and change; with names all of them per name.
  Validation sets choose among 8 and 7 settings. Both are then fitted on all sets to learn from.
- The networks have 64 units, AdamW and a one-cycle schedule, and are taken at their best epoch.
  The learning rate is .003 or .001, by validation; on PhysioNet it is .003.
- *gru-d* is GRU-D-like: values that decay, masks, time gaps.
- *gru-shuffled* reads ties in a new order every epoch. *gru-sire* has SIRE within ties besides.
- Intervals are 95 % t-intervals over splits. CPU seconds are those of one thread and one split.
- *flips* is the share of decisions that another order within ties changes. As many sets are called positive as are.
- PhysioNet has 3,997 stays here: three have no events.
- A row whose `commit` is null was made by code that the history does not hold, before gaps in numbers had columns of
  their own. `run` with another folder makes it again.
- Some defaults were chosen by test scores of the first splits: of baskets, interactions, long-tailed, elephant and
  musk1, mostly split 0. These splits are in the tables, so our rows there lean to the good side.
- A method without a row in a table has not been run there. `python -m benchmarks.tables run --out FOLDER` adds what a
  folder lacks.
"""


def _mean(values: list[float]) -> str:
    """Mean and half the interval, over splits."""
    if len(values) < 2:
        return f"{np.mean(values):.3f}" if values else "–"
    half = float(stats.t.ppf(0.975, len(values) - 1)) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def _paired(rows: dict[tuple[str, int], Any], one: str, other: str, metric: str) -> list[float]:
    """The differences of a metric over the splits that both methods have."""
    seeds = sorted(
        {seed for method, seed in rows if method == one} & {seed for method, seed in rows if method == other}
    )
    return [rows[one, seed]["metrics"][metric] - rows[other, seed]["metrics"][metric] for seed in seeds]


def page(folder: Path) -> str:
    """The page of the rows in ``folder``."""
    parts, goals, sire = [], [], []
    for name in DATA:
        read_rows = read(folder / f"tables-{name}.jsonl")
        rows = {(row["method"], row["seed"]): row for row in read_rows}
        if not rows:
            parts.append(f"## {name}\n\n{WHAT[name]} Not run yet.\n")
            continue
        score = "r2" if "r2" in read_rows[0]["metrics"] else "auc"
        loss = "rmse" if score == "r2" else "log_loss"
        columns = [
            score,
            *(["average_precision"] if "average_precision" in read_rows[0]["metrics"] else []),
            loss,
            "flips",
        ]
        lines = [f"| method | {' | '.join(columns)} | CPU s | splits |", "|---" * (len(columns) + 3) + "|"]
        for method in METHODS:
            found = [row for (which, _), row in rows.items() if which == method]
            cells = [_mean([row["metrics"][key] for row in found if key in row["metrics"]]) for key in columns]
            if found:
                seconds = np.mean([row["seconds"] for row in found])
                lines.append(f"| {method} | {' | '.join(cells)} | {seconds:.3g} | {len(found)} |")
        parts.append(f"## {name}\n\n{WHAT[name]}\n\n" + "\n".join(lines) + "\n")
        goals += _goal(name, rows, score, loss)
        for metric in ("auc", "log_loss", "flips"):
            if values := _paired(rows, "gru-sire", "gru-shuffled", metric) if name != "rare" else []:
                sire.append(f"| {name} | {metric} | {_mean(values)} | {len(values)} |")
    text = [
        HEAD,
        "## The goals\n",
        "| data | score | ours | better pooled | ours − pooled | loss: ours, prior | verdict |",
    ]
    text += ["|---" * 7 + "|", *goals, "", *parts]
    if sire:
        text += ["## SIRE within ties, against the same training without\n", "| data | metric | difference | splits |"]
        text += ["|---" * 4 + "|", *sire, ""]
    return "\n".join(text)


def _goal(name: str, rows: dict[tuple[str, int], Any], score: str, loss: str) -> list[str]:
    """The line of a data set: whether the defaults reach the goals there."""
    ours = [row["metrics"] for (method, _), row in rows.items() if method == "anyorder"]
    if not ours:
        return [f"| {name} | {score} | not run | | | | open |"]
    seeds = [seed for method, seed in rows if method == "anyorder"]
    means = {
        method: np.mean([rows[method, seed]["metrics"][score] for seed in seeds if (method, seed) in rows] or [-np.inf])
        for method in ("boosting", "linear")
    }
    best = max(means, key=lambda method: means[method])
    gaps = _paired(rows, "anyorder", best, score)
    prior = np.mean([rows["prior", seed]["metrics"][loss] for seed in seeds])
    own, lost = np.mean([metrics[score] for metrics in ours]), np.mean([metrics[loss] for metrics in ours])
    gap = float(np.mean(gaps))
    verdict = "above" if gap > 0 else "within .005" if gap >= -0.005 else "below"
    verdict += "" if lost < prior else "; loss not below the prior"
    cells = [name, score, f"{own:.3f}", f"{best} {means[best]:.3f}", _mean(gaps), f"{lost:.3f}, {prior:.3f}", verdict]
    return ["| " + " | ".join(cells) + " |"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
