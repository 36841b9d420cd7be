"""Beyond the paper: trained on at most 10 elements, tested on up to 100."""

from anyorder.paper.experiments.common import ARITHMETIC, SUMS, each, scales, seconds_on_numbers
from anyorder.paper.runner.arms import run
from anyorder.paper.runner.trial import Chart, Experiment, Plan, Versus, grid

SETS = {"task": "sum", "alphabet": 10, "n": [2, 10], "labels": 5000, "test": 2000}
RATES: dict[str, list[float]] = {"learning_rate": [0.002, 0.005, 0.01]}
RECURRENT, PENALISED = grid(**RATES), grid(**RATES, penalty_weight=[1.0, 10.0, 100.0, 1000.0])

plan = Plan(
    over={"cell": ["gru", "lstm"]},
    fixed={**ARITHMETIC, **SETS, "steps": 3000, "lengths": [2, 5, 10, 15, 20, 30, 50, 70, 100]},
    methods={
        "plain": RECURRENT,
        "sire": PENALISED,
        "sub": PENALISED,
        "sire+shuffle": PENALISED,
        "pi-sgd": RECURRENT,
        "fold": each([SUMS], **RATES),
        "fold-sire": each([SUMS], **RATES, penalty_weight=[10.0, 100.0, 1000.0]),
        "deepsets": grid(cell=[None], learning_rate=[0.0003, 0.001, 0.003]),
        "set-transformer": grid(cell=[None], learning_rate=[0.001, 0.003, 0.01]),
    },
    tune_seeds=2,
    seconds=seconds_on_numbers,
)
LENGTHS = Experiment(
    name="lengths",
    claim="On sets longer than in training SIRE errs less than no penalty, and than DeepSets.",
    tests=[
        Versus(one, other, {"cell": ["gru", "lstm"], "length": [20, 100]})
        for one, other in (("sire", "plain"), ("sire+shuffle", "pi-sgd"), ("best sire", "deepsets"))
    ],
    decided={
        "not reproduced": "SIRE errs less than the same training without it. DeepSets adds up without a bound and errs "
        "least; the state of a GRU or LSTM is bounded.",
    },
    at={"cell": "gru", "length": 100},
    choices="Sum of 2 to 10 numbers below 10; 5,000 samples, 3,000 steps, after which every recurrence is "
    "exact at the training lengths. Settings are chosen from two seeds.",
    select="mae",
    run=run,
    plans=scales(plan, {"labels": 40, "lengths": [2, 30]}, seeds=20),
    headline="mae",
    charts=[Chart("length", "mae", split="cell"), Chart("length", "accuracy", split="cell")],
)
