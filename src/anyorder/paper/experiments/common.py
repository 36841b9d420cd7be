"""What several experiments share: the arithmetic protocol, grids of weights, and the measured cost of a trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from anyorder.models import FOLD_PRESETS
from anyorder.paper.runner.trial import Chart, Plan, Setting, Trial, grid

DECADES = [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
WEIGHTS = [1.0, 10.0, 100.0]
POOLED = [
    {"learning_rate": 0.003, "pooling": "mean"},
    {"learning_rate": 0.01, "pooling": "mean"},
    {"learning_rate": 0.01, "pooling": "max"},
]

# A fold is chosen like any other cell: kinds of channels, the rates of the other recurrences, and weights.
FOLD: Setting = {"cell": "fold", "activation": "relu", "settle": 0.1, "readout": None}
SUMS, MOMENTS, EXTREMES, PRODUCTS, ORDER = (
    {**FOLD, **FOLD_PRESETS[name]} for name in ("sums", "moments", "extremes", "products", "order")
)
MIXED: Setting = {**FOLD, "channels": {"affine": 48, "product": 16, "max": 16}, "readout": [64]}
FOLDS = [SUMS, MOMENTS, EXTREMES, MIXED]

# The frozen random input of Janossy pooling's protocol, at half its width.
ARITHMETIC = {
    **{"alphabet": 100, "embedding": 50, "cell": "gru", "hidden": 80, "validation": 2000, "test": 5000},
    **{"batch_size": 100, "learning_rate": 0.005},
}
CURVES = [Chart("epoch", "validation", curve=True), Chart("epoch", "gap", curve=True)]


def each(settings: Sequence[Setting], **choices: Sequence[Any]) -> list[dict[str, Any]]:
    """Every one of ``settings`` with every combination of the choices."""
    return [{**setting, **choice} for setting in settings for choice in grid(**choices)]


def seconds_on_numbers(trial: Trial) -> float:
    """Milliseconds a step of 100 sets, times the steps, growing with the size of the sets."""
    per_step = {"plain": 7.0, "pi-sgd": 8.0, "deepsets": 2.0, "set-transformer": 9.0}.get(trial.method, 10.0)
    n, setting = trial.setting["n"], trial.setting
    steps = max(setting["steps"], setting.get("epochs", 0) * setting["labels"] / 100)
    return 1.0 + per_step / 1000 * steps * (0.3 + 0.07 * (n if isinstance(n, int) else n[1]))


def seconds_of_steps(milliseconds: float) -> Callable[[Trial], float]:
    """Milliseconds of a plain step, times what the method adds to one."""
    factors = {"plain": 1.0, "deepsets": 0.13, "cnn": 0.3, "pi-sgd": 1.2, "sire": 2.6, "sire+shuffle": 2.7}
    return lambda trial: 1.5 + milliseconds / 1000 * trial.setting["steps"] * factors.get(trial.method, 1.15)


def scales(
    plan: Plan, small: Setting, *, over: Setting | None = None, full: Setting | None = None, **options: Any
) -> dict[str, Plan]:
    """``plan`` in seconds (two candidates, ends of ranges, ``small`` settings), itself, and the full protocol."""
    numbers = "task" in plan.fixed
    base = {"steps": 6, "hidden": 8, "validation": 50, "test": 50} if numbers else {"steps": 4, "hidden": 8, "votes": 2}
    small = {**base, **small}
    methods = {
        name: [{key: small.get(key, value) for key, value in candidate.items()} for candidate in _ends(candidates)]
        for name, candidates in plan.methods.items()
    }
    ranges = {name: _ends(values) for name, values in {**plan.over, **(over or {})}.items()}
    smoke = Plan(
        methods,
        ranges,
        {**plan.fixed, **small},
        lambda cell: {**plan.follows(cell), **small},
        seeds=2 if numbers else 1,
        tune_on={key: ranges[key][0] for key in plan.tune_on if key in ranges},
        tune_seeds=1,
        seconds=0.3,
    )
    return {"smoke": smoke, "laptop": plan, "paper": replace(plan, fixed={**plan.fixed, **(full or {})}, **options)}


def _ends(values: Sequence[Any]) -> list[Any]:
    return [values[0], values[-1]][: len(values)]
