"""Every table and figure of the paper on synthetic tasks, and four beyond it, as declarations.

Each says what the paper claims, what it leaves open and what is done here, the candidates each method chooses from by
validation alone (as many for each method), and the numbers to expect. ``seconds`` were measured on one core.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from anyorder.paper.experiments.real import REAL_EXPERIMENTS
from anyorder.paper.runner.runs import run_task
from anyorder.paper.runner.trial import Chart, Expected, Experiment, Plan, Setting, Trial, grid

DECADES = [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
RATES = [0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02]

# What the arithmetic tasks have in common: the frozen random input of Janossy pooling's protocol, at half its width.
ARITHMETIC: dict[str, Any] = {
    "alphabet": 100,
    "embedding": 50,
    "cell": "gru",
    "hidden": 80,
    "batch_size": 100,
    "learning_rate": 0.005,
    "validation": 2000,
    "test": 5000,
}


def shrunk(plan: Plan, *, over: Mapping[str, Sequence[Any]] | None = None, **fixed: Any) -> Plan:
    """A plan of seconds: two seeds, two candidates a method, the ends of each range, and what is given."""
    small = {"steps": 6, "validation": 50, "test": 50, "hidden": 8, **fixed}
    methods = {
        name: [{key: small.get(key, value) for key, value in c.items()} for c in [candidates[0], candidates[-1]]]
        for name, candidates in plan.methods.items()
    }
    methods = {name: pair[: len(plan.methods[name])] for name, pair in methods.items()}
    over = {name: [values[0], values[-1]][: len(values)] for name, values in {**plan.over, **(over or {})}.items()}
    return replace(
        plan,
        methods=methods,
        over=over,
        fixed={**plan.fixed, **small},
        seeds=2,
        follows=lambda cell: {},
        tune_on={key: over[key][0] for key in plan.tune_on if key in over},
        tune_seeds=1,
        seconds=0.3,
    )


PARITY_LENGTHS = [2, 5, 10, 15, 20, 30, 40, 60, 80, 100]
_parity = Plan(
    over={"cell": ["relu-rnn", "rnn", "gru"]},
    fixed={
        "task": "parity",
        "alphabet": 2,
        "n": [2, 10],
        "labels": 1000,
        "steps": 1200,
        "batch_size": 125,
        "learning_rate": 0.02,
        "embedding": None,
        "hidden": 20,
        "validation": 1000,
        "test": 1000,
        "lengths": PARITY_LENGTHS,
    },
    methods={
        "plain": grid(learning_rate=[0.01, 0.02, 0.04, 0.005, 0.03, 0.06]),
        "sire": grid(learning_rate=[0.02, 0.01], penalty_weight=[0.001, 0.01, 0.1]),
        "deepsets": grid(
            cell=[None],
            phi=[[100]],
            rho=[[100]],
            steps=[6000],
            activation=["relu", "tanh"],
            learning_rate=[0.01, 0.03, 0.003],
        ),
    },
    seeds=5,
    tune_seeds=2,
    seconds=lambda trial: {"plain": 8.0, "sire": 12.0, "deepsets": 12.0}[trial.method],
)
PARITY = Experiment(
    name="parity",
    short="parity learnt at lengths 2–10 holds at 100",
    reported="all lengths, DeepSets not",
    claim="A recurrent network of 20 units trained on lengths 2 to 10 computes parity at every length up to 100; "
    "DeepSets of width 100 does not.",
    choices="The paper does not name the cell: three are shown, each choosing its own learning rate (plain: six) or "
    "learning rate and penalty weight (sire: two by three). The bit itself is the input. 1,200 steps in batches of 125 "
    "(150 epochs). Validation uses lengths 2 to 10 as training does, so nothing longer than 10 is seen before the "
    "test; 1,000 test sets at each length. Settings are chosen from two seeds. DeepSets chooses activation and "
    "learning rate and takes five times as many of its cheaper steps, since it is slow to fit even the training "
    "lengths; only where it does fit them is a failure beyond them one of extrapolation alone.",
    run=run_task,
    plans={
        "smoke": shrunk(_parity, labels=40, lengths=[2, 30]),
        "laptop": _parity,
        "paper": replace(_parity, fixed={**_parity.fixed, "test": 3000}, seeds=20, tune_seeds=5),
    },
    expected=[
        Expected("plain", "accuracy", {"cell": "relu-rnn", "length": 100}, band=(0.99, 1.0)),
        Expected("sire", "accuracy", {"cell": "relu-rnn", "length": 100}),
        Expected("deepsets", "accuracy", {"length": 100}, band=(0.4, 0.6)),
    ],
    charts=[Chart("length", split="cell")],
)


_sub_vs_sire = Plan(
    fixed={
        **ARITHMETIC,
        "task": "sum",
        "alphabet": 20,
        "n": 10,
        "labels": 200,
        "steps": 600,
        "learning_rate": 0.01,
        "validation": 1000,
        "curve": True,
    },
    methods={
        "plain": grid(learning_rate=RATES),
        "sire": grid(penalty_weight=DECADES),
        "sub": grid(penalty_weight=DECADES),
    },
    seeds=5,
    seconds=lambda trial: 5.0 if trial.method == "plain" else 10.0,
)
SUB_VS_SIRE = Experiment(
    name="sub-vs-sire",
    short="SIRE beats SUB from 200 samples",
    reported="SIRE .792, SUB .759",
    claim="On the sum of ten numbers below 20 from 200 samples, SIRE reaches .792 and SUB .759, and SIRE converges "
    "faster.",
    remark="A draw of SUB compares two whole orderings, a draw of SIRE one swap, of which an ordering is many: at "
    "equal weight SUB weighs more. Weights that end at .1, as the paper's do, leave SIRE too weak here; given larger "
    "ones it catches up, and SUB then suffers from too much.",
    choices="The paper searches weights .001, .01 and .1 only; here both penalties search 1e-3 to 1e3, and the plain "
    "recurrence as many learning rates. GRU of 80 units, linear read-out, frozen random input of 50 dimensions, "
    "targets standardised, one cycle of 600 steps (300 epochs) in batches of 100. The paper runs 1,000 epochs.",
    run=run_task,
    plans={
        "smoke": shrunk(_sub_vs_sire, labels=40),
        "laptop": _sub_vs_sire,
        "paper": replace(_sub_vs_sire, fixed={**_sub_vs_sire.fixed, "steps": 2000, "embedding": 100}, seeds=20),
    },
    expected=[
        Expected("sire", "accuracy", paper=0.792, sd=0.09, band=(0.95, 1.0)),
        Expected("sub", "accuracy", paper=0.759, sd=0.11),
    ],
    charts=[
        Chart("penalty_weight", every=True, log=True),
        Chart("epoch", "loss", curve=True),
        Chart("epoch", "accuracy", curve=True),
    ],
)


RECURRENT = grid(learning_rate=[0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06])
PENALISED = grid(learning_rate=[0.01, 0.03], penalty_weight=[1.0, 10.0, 100.0, 1000.0])
POOLED = grid(learning_rate=[0.0003, 0.001, 0.003, 0.01], pooling=["sum", "mean"])
ATTENTION = grid(learning_rate=[0.0003, 0.001, 0.002, 0.003, 0.006, 0.01, 0.02, 0.03])
LABELS = [50, 100, 200, 500, 1000, 2000, 5000, 10000]


def _seconds(trial: Trial) -> float:
    """Measured: milliseconds a step of 100 samples, times the steps, growing with the size of the sets."""
    per_step = {"plain": 7.0, "pi-sgd": 8.0, "deepsets": 2.0, "set-transformer": 9.0}.get(trial.method, 10.0)
    n = trial.setting["n"]
    size = n if isinstance(n, int) else n[1]
    steps = max(trial.setting["steps"], trial.setting.get("epochs", 0) * trial.setting["labels"] / 100)
    return 1.0 + per_step / 1000 * steps * (0.3 + 0.07 * size)


_labels = Plan(
    over={"alphabet": [20, 100], "labels": LABELS},
    fixed={**ARITHMETIC, "task": "sum", "n": 10, "steps": 800, "learning_rate": 0.01},
    methods={
        "plain": RECURRENT,
        "sire": PENALISED,
        "sire+unlabeled": [{**c, "unlabeled": 10000} for c in PENALISED],
        "sub": PENALISED,
        "sire+shuffle": PENALISED,
        "pi-sgd": RECURRENT,
        "deepsets": POOLED,
        "set-transformer": ATTENTION,
    },
    seeds=5,
    tune_on={"labels": 500},
    tune_seeds=2,
    seconds=_seconds,
)
LABELS_NEEDED = Experiment(
    name="labels",
    short="SIRE needs fewer labels",
    claim="Beyond the paper: SIRE needs fewer labeled samples than the plain recurrence, π-SGD and DeepSets.",
    remark="DeepSets is built to add, and π-SGD sees every sample in a new order each epoch, which the penalty in the "
    "given order does not give; SIRE on such orderings is ahead of it for numbers below 20. For numbers below 100 no "
    "recurrence has learnt the task by the end of its 800 steps, whatever the labels (see the training losses), so "
    "that a weight chosen for 500 labels costs fit where 10,000 would do without.",
    choices="Sum of ten numbers. Every method takes 800 steps of one cycle, whatever the number of labels. Each "
    "method has eight candidates: two learning rates by four weights with a penalty, eight rates without, four rates "
    "by two poolings for DeepSets. Settings are chosen at 500 labels, for each alphabet, from two seeds, and reused at "
    "the other numbers. In sire+unlabeled "
    "the penalty is taken on the labeled and 10,000 unlabeled samples together.",
    run=run_task,
    plans={
        "smoke": shrunk(_labels, over={"labels": [40, 80]}),
        "laptop": _labels,
        "paper": replace(_labels, fixed={**_labels.fixed, "steps": 20000}, seeds=20, tune_seeds=5),
    },
    charts=[Chart("labels", split="alphabet", log=True)],
)


# A linear read-out of the end state is far behind one hidden layer here: the label is a difference of two extremes.
ORDERED: dict[str, Any] = {**ARITHMETIC, "task": "half-range", "readout": [100], "learning_rate": 0.02}
SWAPS = {"prefixes": "given", "window": 1, "pairs": 2}
_half_range = Plan(
    over={"n": [10, 15, 20], "labels": [5000, 20000, 100000]},
    fixed={**ORDERED, "steps": 4000, "epochs": 20, "checkpoint": True},
    methods={
        "plain": grid(learning_rate=[0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02]),
        "sire": [{**c, **SWAPS} for c in grid(learning_rate=[0.01, 0.015, 0.02], penalty_weight=[0.01, 0.1])],
    },
    follows=lambda cell: {"epochs": 30} if cell["labels"] == 100000 else {},
    seeds=5,
    tune_on={"epochs": 20},
    tune_seeds=1,
    finalists=2,
    seconds=_seconds,
)
HALF_RANGE = Experiment(
    name="half-range",
    short="a small penalty helps where order matters in part",
    reported="n = 20: .978 with, .968 without",
    claim="With the penalty at .01 the recurrence is better than without, at n = 10, 15 and 20.",
    remark="One of the n − 1 neighbouring pairs stands across the middle, and its swap does change the label: the "
    "smaller n, the larger the share of swaps that the penalty asks to ignore and should not. Few samples are worth "
    "that price; with many there is little left for the penalty to teach.",
    choices="The paper does not say how many samples it trains on; the gain is drawn against their number. Adjacent "
    "swaps of the given order (two a sample), since the label depends on order between the halves. GRU of 80 units, "
    "read-out with one hidden layer, one cycle of 20 epochs, of 4,000 steps at least. Plain chooses among six "
    "learning rates, sire among three rates by two weights, for each n and number of samples, from one seed. With "
    "100,000 samples training takes 30 epochs, and the two best candidates of each arm are run for so many, with the "
    "same seed, before one is chosen.",
    run=run_task,
    plans={
        "smoke": shrunk(_half_range, over={"labels": [40, 80]}, epochs=0, checkpoint=False),
        "laptop": _half_range,
        "paper": replace(
            _half_range,
            fixed={**_half_range.fixed, "epochs": 200},
            follows=lambda cell: {},
            tune_on={},
            finalists=1,
            seeds=20,
        ),
    },
    expected=[
        Expected(method, "accuracy", {"n": n, "labels": 100000}, paper=paper, sd=sd, band=(low, math.inf))
        for method, n, paper, sd, low in [
            ("plain", 10, 0.9346, 0.006, -math.inf),
            ("plain", 15, 0.9461, 0.001, -math.inf),
            ("plain", 20, 0.9678, 0.005, -math.inf),
            ("sire", 10, 0.9584, 0.008, 0.9584),
            ("sire", 15, 0.9658, 0.008, 0.9658),
            ("sire", 20, 0.9780, 0.004, 0.9780),
        ]
    ],
    charts=[
        Chart("labels", split="n", log=True),
        Chart("labels", split="n", log=True, minus="plain"),
        Chart(
            "penalty_weight", split="labels", by=["learning_rate"], every=True, log=True, where={"n": 15, "epochs": 20}
        ),
    ],
)


_dial = Plan(
    over={"penalty_weight": [0.0, *DECADES]},
    fixed={**ORDERED, **SWAPS, "n": 10, "labels": 20000, "steps": 3000},
    methods={
        "sire": [{}],
        "sire+budget": [{"penalty_weight": None, "target_gap": gap} for gap in (0.1,)],
    },
    seeds=5,
    seconds=_seconds,
)
DIAL = Experiment(
    name="dial",
    short="the weight sets the order gap",
    claim="Beyond the paper: the penalty weight is a dial between order and its absence, and AdaptiveWeight finds a "
    "place on it.",
    choices="Half-range of ten numbers, 20,000 samples, 3,000 steps; adjacent swaps. The budget seeks an order gap of "
    "0.1.",
    run=run_task,
    plans={
        "smoke": shrunk(_dial, labels=40),
        "laptop": _dial,
        "paper": replace(_dial, seeds=20),
    },
    charts=[Chart("penalty_weight", log=True), Chart("penalty_weight", "state_gap_squared", log=True)],
)


_lengths = Plan(
    fixed={
        **ARITHMETIC,
        "task": "sum",
        "alphabet": 10,
        "n": [2, 10],
        "labels": 5000,
        "steps": 3000,
        "test": 2000,
        "lengths": [2, 5, 10, 15, 20, 30, 50, 70, 100],
    },
    over={"cell": ["gru", "lstm"]},
    methods={
        "plain": grid(learning_rate=[0.002, 0.005]),
        "sire": grid(penalty_weight=[1.0, 100.0]),
        "sub": grid(penalty_weight=[1.0, 100.0]),
        "sire+shuffle": grid(penalty_weight=[1.0, 100.0]),
        "pi-sgd": grid(learning_rate=[0.002, 0.005]),
        "deepsets": grid(cell=[None], learning_rate=[0.001, 0.003]),
        "set-transformer": grid(cell=[None], learning_rate=[0.001, 0.003]),
    },
    seeds=5,
    tune_seeds=2,
    seconds=_seconds,
)
LENGTHS = Experiment(
    name="lengths",
    short="SIRE errs less on sets longer than in training",
    claim="Beyond the paper: on sets longer than any in training a recurrence with SIRE errs less than one without, "
    "and than DeepSets.",
    remark="The state of a GRU or LSTM is bounded, and so is what a read-out can make of it: the longer the set, the "
    "more every recurrence stays at the largest sums it was trained on, and the error grows by an element's mean with "
    "each further element. SIRE helps a little way beyond the training lengths and cannot help there. DeepSets adds up "
    "without a bound.",
    choices="Sum of 2 to 10 numbers below 10, tested up to 100 of them; 5,000 samples, 3,000 steps. Settings "
    "are chosen from two seeds.",
    run=run_task,
    plans={
        "smoke": shrunk(_lengths, labels=40, lengths=[2, 30]),
        "laptop": _lengths,
        "paper": replace(_lengths, seeds=20),
    },
    headline="mae",
    charts=[Chart("length", "mae", split="cell"), Chart("length", "accuracy", split="cell")],
)


def _arithmetic(
    name: str, claim: str, *, weights: list[float], headline: str, short: str, reported: str, remark: str = ""
) -> Experiment:
    shapes: dict[str, list[Any]] = {"cell": ["gru", "lstm"], "readout": [None, [100]]}
    recurrent = grid(**shapes, learning_rate=[0.002, 0.005, 0.01, 0.02])
    penalised = grid(**shapes, learning_rate=[0.02], penalty_weight=weights)
    methods: Mapping[str, Sequence[Setting]] = {
        "plain": recurrent,
        "sire": penalised,
        "sire+shuffle": penalised,
        "pi-sgd": recurrent,
        "deepsets": grid(phi=[[100], [100, 100]], pooling=["sum", "mean"], learning_rate=[0.0003, 0.001, 0.003, 0.01]),
        "set-transformer": grid(
            blocks=[1, 2], learning_rate=[0.0001, 0.0003, 0.0006, 0.001, 0.002, 0.003, 0.006, 0.01]
        ),
    }
    plan = Plan(
        over={"n": [5, 10, 15, 20, 25, 30]},
        fixed={**ARITHMETIC, "labels": 10000, "steps": 4000, "task": name},
        methods=methods,
        seeds=3,
        tune_on={"n": 15},
        tune_seeds=1,
        seconds=_seconds,
    )
    full = {**plan.fixed, "labels": 100000, "validation": 10000, "test": 10000, "steps": 200000, "embedding": 100}
    return Experiment(
        name=name,
        claim=claim,
        choices="Numbers below 100, n = 5, 10, … 30, L1 loss on standardised targets. The paper does not give the "
        "number of samples; its baselines' code has 100,000 and up to 2,000 epochs. Here 10,000 samples and 4,000 "
        "steps for every method. Cell (GRU or LSTM of 80), read-out (linear or one hidden layer) and one of "
        "four learning rates (with a penalty: of four weights, at the largest rate), for DeepSets depth, pooling and "
        "learning rate, for the Set Transformer blocks and learning rate (sixteen candidates each) are chosen at "
        "n = 15 from one seed and reused. π-SGD averages 20 orderings at test time.",
        run=run_task,
        plans={
            "smoke": shrunk(plan, labels=40),
            "laptop": plan,
            "paper": replace(plan, fixed=full, tune_on={}, tune_seeds=3, seeds=20 if name == "sum" else 3),
        },
        headline=headline,
        short=short,
        reported=reported,
        remark=remark,
        charts=[Chart("n", headline)],
    )


SUM = _arithmetic(
    "sum",
    "SIRE generalises better than DeepSets and π-SGD as n grows.",
    weights=[0.1, 1.0, 10.0, 100.0],
    headline="accuracy",
    short="SIRE is ahead on sums as n grows",
    reported="ahead (a figure without numbers)",
    remark="A rounded sum of n numbers below 100 asks a state of 80 bounded units for one of some 100 n values, "
    "and 4,000 steps do not teach that to any recurrence here: training losses grow with n as errors do. The mean over "
    "elements of DeepSets carries it without loss. Read in one ordering, π-SGD does about as well as SIRE (the last "
    "line below); the mean of 20 orderings, at 20 times the cost, puts it ahead.",
)
RANGE = _arithmetic(
    "range",
    "Range is easier than sum: SIRE is level with the best.",
    weights=[0.01, 0.1, 1.0, 10.0],
    headline="accuracy",
    short="SIRE is level with the best on ranges",
    reported="level (a figure without numbers)",
    remark="The fewer numbers, the more their range varies and the more there is to learn: training losses grow as n "
    "falls, and no recurrence has learnt n = 5 by the end of its 4,000 steps. The penalty does not help to fit: on "
    "shuffled orderings validation chose its least weight. Attention, which can pick out the extremes, is ahead where "
    "n is small. SIRE on shuffled orderings is above DeepSets from n = 10 on; read in one ordering, π-SGD does about "
    "as well (the last line below).",
)
VARIANCE = _arithmetic(
    "variance",
    "SIRE's error on variance is below DeepSets'. (The paper's caption says MSE, its text RMSE: RMSE here.)",
    weights=[0.01, 0.1, 1.0, 10.0],
    headline="rmse",
    short="SIRE's error on variances is below DeepSets'",
    reported="below (a figure without numbers)",
)

SYNTHETIC = [PARITY, SUB_VS_SIRE, LABELS_NEEDED, HALF_RANGE, DIAL, LENGTHS, SUM, RANGE, VARIANCE]
EXPERIMENTS: dict[str, Experiment] = {
    **{experiment.name: experiment for experiment in SYNTHETIC},
    **REAL_EXPERIMENTS,
}
# Names for several at once, run in this order.
GROUPS = {"synthetic": [experiment.name for experiment in SYNTHETIC], "real": list(REAL_EXPERIMENTS)}
