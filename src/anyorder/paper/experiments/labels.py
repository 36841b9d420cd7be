"""Beyond the paper: how many labels each method needs."""

from anyorder.paper.experiments.common import ARITHMETIC, SUMS, each, scales, seconds_on_numbers
from anyorder.paper.runner.arms import run
from anyorder.paper.runner.trial import LABELS, Chart, Experiment, Plan, Versus, grid

RATES: dict[str, list[float]] = {"learning_rate": [0.005, 0.01, 0.03, 0.06]}
RECURRENT = grid(**RATES)
PENALISED = grid(**RATES, penalty_weight=[1.0, 10.0, 100.0, 1000.0])
FEW = ["plain", "sire", "sire+shuffle", "pi-sgd", "deepsets"]

plan = Plan(
    over={"alphabet": [20, 100], "labels": [50, 100, 200, 500, 1000, 2000, 5000, 10000]},
    fixed={**ARITHMETIC, "task": "sum", "n": 10, "steps": 800, "learning_rate": 0.01},
    methods={
        "plain": RECURRENT,
        "sire": PENALISED,
        "sire+unlabeled": [{**candidate, "unlabeled": 10000} for candidate in PENALISED],
        "sub": PENALISED,
        "sire+shuffle": PENALISED,
        "pi-sgd": RECURRENT,
        "fold": each([SUMS], **RATES),
        "fold-sire": each([SUMS], **RATES, penalty_weight=[10.0, 100.0, 1000.0]),
        "deepsets": grid(learning_rate=[0.0003, 0.001, 0.003, 0.01, 0.03], pooling=["sum", "mean"]),
        "set-transformer": grid(learning_rate=[0.0003, 0.001, 0.002, 0.003, 0.006, 0.01, 0.02, 0.03]),
    },
    follows=lambda cell: {"steps": 12000} if cell["alphabet"] == 100 else {},
    tune_on={"labels": 500},
    tune_seeds=2,
    seconds=seconds_on_numbers,
)
LABELS_NEEDED = Experiment(
    name="labels",
    claim="SIRE needs fewer labels than the same recurrence without, π-SGD and DeepSets.",
    tests=[Versus("best sire", other, {"alphabet": [20, 100]}, LABELS) for other in ("plain", "pi-sgd", "deepsets")],
    decided={
        "not reproduced": "Fewer than the same recurrence without and than π-SGD. DeepSets, which is built to add, "
        "needs fewer still.",
    },
    at={"alphabet": 20},
    choices="Sum of ten numbers: below 20 in 800 steps, which suffice there, below 100 in 12,000. Every recurrence has "
    "the same rates, those with a penalty each with the same weights. Settings are chosen at 500 labels, for each "
    "alphabet, from two seeds, and reused at the other numbers. In sire+unlabeled the penalty is taken on the labeled "
    "and 10,000 unlabeled sets together. A fold has 80 affine channels and the same random input as the others.",
    select="accuracy",
    run=run,
    plans=scales(plan, {}, over={"labels": [40, 80]}, full={"steps": 20000}, seeds=20, tune_seeds=5),
    charts=[
        Chart("labels", log=True, title="Sums of ten numbers below 20, by labels", where={"alphabet": 20}, methods=FEW),
        Chart("labels", split="alphabet", log=True),
    ],
)
