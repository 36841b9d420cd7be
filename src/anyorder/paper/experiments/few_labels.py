"""Beyond the paper: few labels where pooling is not the answer, and sets far longer than any in training."""

from typing import Any

from anyorder.paper.experiments.common import FOLD, each, scales
from anyorder.paper.runner.arms import run
from anyorder.paper.runner.trial import Chart, Experiment, Plan, Versus, grid

RATES: dict[str, list[float]] = {"learning_rate": [0.003, 0.01, 0.03]}
AFFINE, PRODUCT = ({**FOLD, "channels": {kind: 20}} for kind in ("affine", "product"))
PENALISED: dict[str, list[float]] = {**RATES, "penalty_weight": [0.1, 1.0, 10.0]}
DECIDES: dict[str, Any] = {"task": ["parity", "mod-3"], "labels": 100, "length": [10, 1000]}

plan = Plan(
    over={"task": ["parity", "mod-3"], "labels": [100, 1000, 30, 300], "cell": ["rnn", "gru", "lstm"]},
    fixed={
        **{"n": [2, 10], "lengths": [10, 100, 1000], "validation": 1000, "test": 500, "embedding": 8},
        **{"hidden": 20, "steps": 2000, "batch_size": 100, "relative": True},
    },
    follows=lambda cell: {"alphabet": 3 if cell["task"] == "mod-3" else 2},
    methods={
        "plain": grid(**RATES),
        "sire": grid(**PENALISED),
        "pi-sgd": grid(**RATES),
        "consistency+shuffle": grid(**PENALISED),
        "fold": each([PRODUCT, AFFINE], **RATES),
        "fold-sire": each([AFFINE], **PENALISED),
        "deepsets": grid(cell=[None], phi=[[100, 100]], rho=[[100, 100]], steps=[12000], **RATES),
        "monoid": grid(cell=[None], **RATES),
    },
    seeds=10,
    tune_on={"labels": 100},
    tune_seeds=2,
    seconds=lambda trial: trial.setting["steps"] * (0.02 if "penalty_weight" in trial.setting else 0.01),
)
FEW_LABELS = Experiment(
    name="few-labels",
    claim="From 100 labels SIRE learns parity and sums modulo 3 better than without.",
    tests=[Versus("sire", "plain", {**DECIDES, "cell": ["rnn", "gru", "lstm"]}), Versus("fold-sire", "fold", DECIDES)],
    at={"task": "parity", "labels": 100, "cell": "gru", "length": 1000},
    choices="Lengths 2 to 10 in training, 10, 100 and 1,000 in the test; each symbol is a frozen random vector of 8 "
    "numbers. 20 units or channels, 2,000 steps in batches of 100; DeepSets has two layers of 100 in φ and in ρ and "
    "six times as many steps. Every arm has the same three rates and every penalty, in units of the end states, the "
    "same three weights. Settings are chosen at 100 labels from two seeds by validation accuracy at the training "
    "lengths, and reused. consistency: the outputs of two orderings are drawn together. monoid: the learnable "
    "commutative monoid of Ong and Veličković (2022), a balanced tree of a commutative GRU.",
    run=run,
    select="accuracy",
    plans=scales(plan, {"lengths": [2, 30]}, over={"labels": [40]}, seeds=20, tune_seeds=5),
    charts=[
        Chart("length", split="cell", log=True, where={"task": "parity", "labels": 100}),
        Chart("labels", split="cell", log=True, where={"task": "parity", "length": 10}),
    ],
)
