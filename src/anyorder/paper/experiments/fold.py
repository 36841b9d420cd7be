"""One recipe for a fold on all tasks: a short list of presets and weights, chosen on validation data."""

from dataclasses import replace
from typing import Any

from anyorder.models import FOLD_PRESETS
from anyorder.paper.experiments.common import scales
from anyorder.paper.runner.arms import run
from anyorder.paper.runner.trial import Experiment, Plan, Setting, Trial, Versus

CASES: dict[str, dict[str, Any]] = {
    "sum below 20, 30 labels": {"task": "sum", "alphabet": 20, "n": 10, "labels": 30},
    "sum below 100, 30 labels": {"task": "sum", "alphabet": 100, "n": 10, "labels": 30},
    "longer sums": {"task": "sum", "alphabet": 10, "n": [2, 10], "labels": 5000, "lengths": [10, 30, 100]},
    "parity": {"task": "parity", "alphabet": 2, "n": [2, 10], "labels": 1000, "lengths": [10, 100, 1000]},
    "sum, n = 30": {"task": "sum", "alphabet": 100, "n": 30, "labels": 10000},
    "range, n = 30": {"task": "range", "alphabet": 100, "n": 30, "labels": 10000},
    "variance, n = 30": {"task": "variance", "alphabet": 100, "n": 30, "labels": 10000},
    "half-range, 5,000 samples": {"task": "half-range", "alphabet": 100, "n": 20, "labels": 5000},
    "half-range, 100,000 samples": {"task": "half-range", "alphabet": 100, "n": 20, "labels": 100000},
}
SUMS, MOMENTS, EXTREMES, PRODUCTS, ORDER = (
    FOLD_PRESETS[name] for name in ("sums", "moments", "extremes", "products", "order")
)
# The simplest first: of candidates that are level, the first is chosen.
PENALISED = [
    {**PRODUCTS, "penalty_weight": 0.0},
    {**EXTREMES, "penalty_weight": 0.0},
    *({**SUMS, "penalty_weight": weight} for weight in (1000.0, 100.0, 10.0)),
    *({**MOMENTS, "penalty_weight": weight} for weight in (1000.0, 100.0)),
    *({**ORDER, "penalty_weight": weight, "window": 1} for weight in (10.0, 0.1)),
]
MIXTURE = {"channels": {"affine": 48, "product": 16, "max": 16}}
UNPENALISED: list[Setting] = [PRODUCTS, EXTREMES, SUMS, MOMENTS, {**SUMS, "readout": [64]}]
UNPENALISED += [{**MOMENTS, "readout": [64]}, MIXTURE, {**MIXTURE, "readout": [64]}, ORDER]
# The same read-outs on what the penalty leads to: sums, maxima and products.
EXACT = {"channels": {"sum": 48, "product": 16, "max": 16}}
INVARIANT: list[Setting] = [PRODUCTS, EXTREMES, {**EXTREMES, "readout": [64]}]
SUM, MOMENT = {"channels": {"sum": 80}}, {**MOMENTS, "channels": {"sum": 32}}
INVARIANT += [SUM, MOMENT, {**SUM, "readout": [64]}, {**MOMENT, "readout": [64]}, EXACT, {**EXACT, "readout": [64]}]
SECONDS = {"longer sums": 25, "parity": 25, "sum below 20, 30 labels": 20, "sum below 100, 30 labels": 20}

FIGURES: list[tuple[str, float, dict[str, Any], str]] = [
    ("sum below 20, 30 labels", 0.9, {}, "accuracy"),
    ("sum below 100, 30 labels", 0.9, {}, "accuracy"),
    ("sum, n = 30", 0.99, {}, "accuracy"),
    ("longer sums", 1.0, {"length": 100}, "mae"),
    ("variance, n = 30", 0.5, {}, "rmse"),
    ("range, n = 30", 0.984, {}, "accuracy"),
    ("parity", 0.99, {"length": [100, 1000]}, "accuracy"),
    ("half-range, 5,000 samples", 0.65, {}, "accuracy"),
    ("half-range, 100,000 samples", 0.985, {}, "accuracy"),
]
GOALS = [Versus("fold-sire", goal, {"case": case, **where}, metric) for case, goal, where, metric in FIGURES]


def seconds(trial: Trial) -> float:
    ordered = 2.0 if trial.setting.get("layers", 1) > 1 else 1.0
    return SECONDS.get(trial.setting["case"], 60) * ordered * (1.5 if "sire" in trial.method else 1.0)


plan = Plan(
    over={"case": list(CASES)},
    follows=lambda cell: CASES[cell["case"]],
    fixed={
        **{"cell": "fold", "activation": "relu", "embedding": None, "standardize": True, "settle": 0.1},
        **{"steps": 12000, "batch_size": 100, "learning_rate": 0.005, "validation": 2000, "test": 5000},
    },
    methods={
        "fold-sire": PENALISED,
        "fold": UNPENALISED,
        "invariant": INVARIANT,
        "fold-sire+shuffle": PENALISED,
        "fold+shuffle": UNPENALISED,
    },
    seeds=5,
    tune_seeds=1,
    seconds=seconds,
)
smoke = replace(
    plan,
    over={"case": ["parity", "half-range, 5,000 samples"]},
    follows=lambda cell: {**CASES[cell["case"]], "labels": 40, "lengths": [2, 4], "n": [2, 4]},
    fixed={**plan.fixed, "steps": 4, "validation": 50, "test": 50},
    seeds=1,
)
FOLD = Experiment(
    name="fold",
    claim="A fold with exact SIRE, one recipe unchanged, reaches the figures set for each task.",
    tests=GOALS,
    at={"case": "sum below 100, 30 labels"},
    choices="12,000 steps in batches of 100, peak rate .005, the number itself as input, standardised. Nine "
    "candidates a method, the simplest first: the presets of FOLD_PRESETS, for the unpenalised arms also mixtures. "
    "Exact SIRE at weight 10, 100 and 1000 for sums, 100 and 1000 for moments; adjacent swaps at .1 and 10 for two "
    "layers. One seed chooses for each task by the validation metric to two digits; ties go to the simplest. Channels "
    "that are nearly sums become sums if the validation part does not suffer. invariant: the same read-outs on sums, "
    "maxima and products alone.",
    run=run,
    select="metric",
    plans={**scales(plan, {}), "smoke": smoke},
)
