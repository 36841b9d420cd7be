"""Appendix C: two penalties on the sum of ten numbers, from 200 samples."""

from anyorder.paper.experiments.common import ARITHMETIC, DECADES, scales
from anyorder.paper.runner.arms import run
from anyorder.paper.runner.trial import EPOCHS, Chart, Expected, Experiment, Plan, Versus, grid

SETS = {"task": "sum", "alphabet": 20, "n": 10, "labels": 200, "validation": 1000}
RATES = [0.001, 0.003, 0.01, 0.03]
PAPER = grid(learning_rate=RATES, penalty_weight=[0.001, 0.01, 0.1])
BEST = grid(learning_rate=RATES, penalty_weight=DECADES)

plan = Plan(
    fixed={**ARITHMETIC, **SETS, "steps": 2000, "curve": True},
    methods={"plain": grid(learning_rate=RATES), "sire": BEST, "sub": BEST, "sire-paper": PAPER, "sub-paper": PAPER},
    tune_on={"steps": 600},
    tune_seeds=1,
    seconds=lambda trial: trial.setting["steps"] * (0.015 if trial.method == "plain" else 0.03),
)
SUB_VS_SIRE = Experiment(
    name="sub-vs-sire",
    claim="From 200 samples SIRE beats SUB and converges faster.",
    reported="ahead, and faster",
    tests=[Versus("sire-paper", "sub-paper"), Versus("sire", "sub"), Versus("sire", "sub", metric=EPOCHS)],
    decided={
        "not reproduced": "At the paper's weights SUB is ahead: one of its draws compares two whole orderings, a draw "
        "of SIRE one swap. With larger weights the two are level, in accuracy and in epochs.",
    },
    choices="The paper searches weights .001, .01 and .1, and so do sire-paper and sub-paper; sire and sub search 1e-3 "
    "to 1e3. Four learning rates for every arm. GRU of 80 units, frozen random input, 1,000 epochs as in the paper. "
    "Settings are chosen from one seed of 300 epochs.",
    run=run,
    select="accuracy",
    plans=scales(plan, {"labels": 40}, full={"embedding": 100}, seeds=20),
    expected=[
        Expected("sire-paper", "accuracy", 0.792, sd=0.09),
        Expected("sub-paper", "accuracy", 0.759, sd=0.11),
    ],
    charts=[Chart("epoch", "loss", curve=True), Chart("epoch", "accuracy", curve=True)],
)
