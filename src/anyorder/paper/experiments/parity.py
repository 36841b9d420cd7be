"""Parity: trained on lengths 2 to 10, tested up to 100."""

from typing import Any

from anyorder.paper.experiments.common import FOLD, each, scales
from anyorder.paper.runner.arms import run
from anyorder.paper.runner.trial import Chart, Expected, Experiment, Plan, Versus, grid

SETS = {"task": "parity", "alphabet": 2, "n": [2, 10], "labels": 1000, "validation": 1000, "test": 1000}
LENGTHS = [2, 5, 10, 15, 20, 30, 40, 60, 80, 100]
TRAINING = {"steps": 1200, "batch_size": 125, "learning_rate": 0.02}
ONE: dict[str, Any] = {"cell": [None], "phi": [[100]], "rho": [[100]], "steps": [6000]}
TWO: dict[str, Any] = {"cell": [None], "phi": [[100, 100]], "rho": [[100, 100]], "steps": [24000]}
POOLED: dict[str, Any] = {"activation": ["relu", "tanh"], "learning_rate": [0.01, 0.03, 0.003]}
RATES: dict[str, list[float]] = {"learning_rate": [0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04]}
AFFINE, PRODUCT = ({**FOLD, "channels": {kind: 20}} for kind in ("affine", "product"))
FAR = {"cell": "relu-rnn", "length": 100}

plan = Plan(
    over={"cell": ["relu-rnn", "rnn", "gru"]},
    fixed={**SETS, **TRAINING, "embedding": None, "hidden": 20, "lengths": LENGTHS},
    methods={
        "plain": grid(**RATES),
        "sire": grid(**RATES, penalty_weight=[0.00001, 0.0001, 0.001, 0.01, 0.1]),
        "fold": each([PRODUCT, AFFINE], **RATES),
        "fold-sire": each([AFFINE], **RATES, penalty_weight=[0.1, 1.0, 10.0, 100.0]),
        "deepsets": [*grid(**ONE, **POOLED), *grid(**TWO, **POOLED)],
    },
    tune_seeds=2,
    seconds=lambda trial: 8.0 if trial.method == "plain" else 12.0,
)
PARITY = Experiment(
    name="parity",
    claim="A recurrence of 20 units takes parity from lengths 2–10 to 100, DeepSets does not.",
    reported="at all lengths (a figure)",
    expected=[Expected(method, "accuracy", where=FAR) for method in ("plain", "sire", "deepsets")],
    tests=[Versus("plain", 0.99, FAR), Versus("plain", "deepsets", FAR)],
    needs=[Versus("deepsets", 0.99, {"length": 10})],  # it must fit the lengths that it is trained on
    decided={"open": "The recurrence holds at every length. DeepSets has yet to fit the lengths it is trained on."},
    at=FAR,
    choices="The paper does not name the cell: three are shown. The bit itself is the input; 150 epochs in batches of "
    "125. A fold has 20 channels. Validation sets are as long as training sets. Settings are chosen from two seeds. "
    "DeepSets has one or two hidden layers in φ and in ρ, and five or twenty times as many steps: it is slow to fit "
    "even the training lengths.",
    run=run,
    select="accuracy",
    plans=scales(plan, {"labels": 40, "lengths": [2, 30]}, full={"test": 3000}, seeds=20, tune_seeds=5),
    charts=[Chart("length", title="Parity by length", where={"cell": "relu-rnn"}), Chart("length", split="cell")],
)
