"""The arithmetic figure: sum, range and variance of n = 5, 10, …, 30 numbers below 100."""

from collections.abc import Sequence
from typing import Any

from anyorder.paper.experiments.common import ARITHMETIC, FOLDS, each, scales, seconds_on_numbers
from anyorder.paper.runner.arms import run
from anyorder.paper.runner.trial import Chart, Expected, Experiment, Plan, Versus, grid

SHAPES: dict[str, Any] = {"cell": ["gru", "lstm"], "readout": [None, [100]]}
LARGEST = {"n": 30}
ALL = {"n": [5, 10, 15, 20, 25, 30]}
LEARNT = Versus("best sire", 0.9, {"n": 5})  # the smallest sets, or the steps were too few to judge by
FULL = {"labels": 100000, "validation": 10000, "test": 10000, "steps": 200000, "embedding": 100}
CHOICES = (
    "Numbers below 100, L1 loss on standardised targets. The paper does not give the number of samples; its baselines' "
    "code has 100,000 and up to 2,000 epochs. Here 10,000 samples and 12,000 steps for every method. Every recurrence "
    "chooses its cell, read-out and learning rate from the same lists (a fold its channels), and its weight; DeepSets "
    "its pooling, depth, read-out and rate. Settings are chosen at n = 15 from one seed of 4,000 steps, by the "
    "published metric on validation data, and reused. π-SGD averages 20 orderings at test time."
)
RATES = [0.005, 0.01, 0.02, 0.04]


def arithmetic(
    task: str, claim: str, reported: str, weights: Sequence[float], metric: str, tests: Sequence[Versus], **texts: Any
) -> Experiment:
    recurrent = grid(**SHAPES, learning_rate=RATES)
    penalised = grid(**SHAPES, learning_rate=RATES, penalty_weight=weights)
    attention = grid(variant=["paper"], blocks=[1, 2], learning_rate=[0.0006, 0.001, 0.002, 0.003, 0.006, 0.01, 0.02])
    pooled = grid(phi=[[100], [100, 100]], pooling=["sum", "mean"], learning_rate=[0.0003, 0.001, 0.003, 0.01, 0.03])
    linear = grid(phi=[[100]], pooling=["sum", "mean"], learning_rate=[0.001, 0.003, 0.01, 0.03], rho=[[]])
    plan = Plan(
        over={"n": [30, 5, 10, 15, 20, 25]},  # the claims are about large n
        fixed={**ARITHMETIC, "labels": 10000, "steps": 12000, "task": task},
        methods={
            "plain": recurrent,
            "sire": penalised,
            "sire+shuffle": penalised,
            "pi-sgd": recurrent,
            "fold": each(FOLDS, learning_rate=RATES),
            "fold-sire": each(FOLDS, learning_rate=RATES, penalty_weight=[10.0, 100.0, 1000.0]),
            "deepsets": [*pooled, *linear],
            "set-transformer-paper": attention,
        },
        tune_on={"n": 15, "steps": 4000},
        tune_seeds=1,
        seconds=seconds_on_numbers,
    )
    plans = scales(plan, {"labels": 40}, full=FULL, tune_on={}, tune_seeds=3, seeds=20 if task == "sum" else 5)
    return Experiment(
        name=task,
        claim=claim,
        choices=CHOICES,
        run=run,
        plans=plans,
        select=metric,
        headline=metric,
        reported=f"{reported} (a figure)",
        expected=[Expected(method, metric, where=LARGEST) for method in ("sire", "pi-sgd", "deepsets")],
        tests=tests,
        charts=[Chart("n", metric)],
        at=LARGEST,
        **texts,
    )


SUM = arithmetic(
    "sum",
    "SIRE is ahead of DeepSets and π-SGD on sums as n grows.",
    "ahead",
    weights=[0.1, 1.0, 10.0, 100.0],
    metric="accuracy",
    tests=[Versus("best sire", other, {"n": [20, 25, 30]}) for other in ("deepsets", "pi-sgd")],
    needs=[LEARNT],
    decided={
        "not reproduced": "A state of 80 bounded units must hold some 100 n values. The mean over elements of DeepSets "
        "and the channels of a fold carry them without loss.",
    },
)
RANGE = arithmetic(
    "range",
    "SIRE is level with the best on ranges.",
    "level",
    weights=[0.01, 0.1, 1.0, 10.0],
    metric="accuracy",
    tests=[Versus("best sire", "best other", ALL, margin=0.02)],
    needs=[LEARNT],
    decided={"not reproduced": "Attention, which can pick out the extremes, is ahead where n is small."},
)
VARIANCE = arithmetic(
    "variance",
    "SIRE's error on variances is below DeepSets'.",
    "below",
    weights=[0.01, 0.1, 1.0, 10.0],
    metric="rmse",
    tests=[Versus("best sire", "deepsets", ALL)],
)
