"""Beyond the paper: does a state-space model that scans a point cloud in one order depend on that order?"""

from typing import Any

from anyorder.paper.data import datasets, generated
from anyorder.paper.data.datasets import Dataset
from anyorder.paper.experiments.common import each, scales
from anyorder.paper.runner.arms import run
from anyorder.paper.runner.trial import Experiment, Plan, Versus, grid

ORDERS = ["x", "radius", "random"]
RATES: dict[str, list[float]] = {"learning_rate": [0.001, 0.002, 0.004]}
# The buffer of the convolution must follow the order: the penalty is on the state-space part alone.
SIRE: dict[str, Any] = {"prefixes": "given", "pairs": 2, "of": "ssm", "relative": True}
WEIGHTS = [0.1, 1.0, 10.0]


def load_scans(scale: str) -> dict[str, Dataset]:
    """ModelNet40 clouds of 100 points in each scan order."""
    clouds = generated.clouds(30) if scale == "smoke" else datasets.modelnet40(100)
    return {order: datasets.scanned(clouds, order) for order in ORDERS}


plan = Plan(
    over={"data": ORDERS},
    fixed={
        **{"cell": "mamba", "hidden": 64, "labels": 1.0, "validation": 0.1, "track": True, "stretch": 1.25},
        **{"label_smoothing": 0.1, "batch_size": 32, "epochs": 12, "test_on": ORDERS},
    },
    methods={
        "plain": grid(**RATES),
        "sire": each([SIRE], **RATES, penalty_weight=WEIGHTS),
        "pi-sgd": grid(**RATES, votes=[1]),
        "sire+shuffle": each([SIRE], **RATES, penalty_weight=WEIGHTS),
        "half-shuffled": grid(**RATES, shuffled=[0.5]),
        "consistency+shuffle": each([{"relative": True, "of": "ssm"}], **RATES, penalty_weight=WEIGHTS),
    },
    tune_on={"epochs": 2},
    tune_seeds=1,
    seconds=lambda trial: trial.setting["epochs"] * 32.0,
)
SCAN_ORDERS = Experiment(
    name="scan-orders",
    claim="With SIRE a Mamba-style block reads point clouds in other orders as well as in its own.",
    tests=[Versus("sire", "plain", {"data": order, "read": "random"}) for order in ("x", "radius")],
    at={"data": "radius", "read": "random"},
    choices="ModelNet40, 100 points, one cloud a shape; one block of 64 channels and 8 states, which is read out from "
    "its state-space part. Clouds are scanned along x, from the middle outwards, or in random order; each model is "
    "tested in all three. pi-sgd reads a fresh random ordering each epoch, half-shuffled does so for half the batches "
    "(the stochastic shuffling of layers, for one layer), consistency draws the end states of two orderings together. "
    "The same rates for every arm, chosen for each order from one seed of two epochs; 12 epochs.",
    run=run,
    select="accuracy",
    plans=scales(plan, {"epochs": 1, "batch_size": 8, "validation": 0.3}, full={"epochs": 100}, tune_on={"epochs": 12}),
    data=load_scans,
)
