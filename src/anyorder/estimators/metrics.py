"""How good predictions are: the metrics of a task, in the target's own units, with intervals over sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    log_loss,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

_DRAWS = 200  # bootstrap samples of the sets
Metrics = dict[str, Any]


def _of_classes(truth: np.ndarray, shares: np.ndarray) -> Metrics:
    """The metrics of probabilities ``shares [N, K]`` for class numbers ``truth [N]``; the last of two is positive."""
    numbers = np.arange(shares.shape[1])
    shares = np.clip(shares, 1e-15, 1)
    shares = shares / shares.sum(1, keepdims=True)
    values = {"accuracy": accuracy_score(truth, shares.argmax(1)), "log_loss": log_loss(truth, shares, labels=numbers)}
    if len(numbers) == 2 and len(np.unique(truth)) == 2:
        values["auc"] = roc_auc_score(truth, shares[:, 1])
        values["average_precision"] = average_precision_score(truth, shares[:, 1])
    elif len(np.unique(truth)) == len(numbers):
        values["auc"] = roc_auc_score(truth, shares, multi_class="ovr", labels=numbers)
    return values


def _of_numbers(truth: np.ndarray, values: np.ndarray) -> Metrics:
    metrics = {"rmse": root_mean_squared_error(truth, values), "mae": mean_absolute_error(truth, values)}
    return metrics | ({"r2": r2_score(truth, values)} if np.ptp(truth) > 0 else {})


def metrics_of(task: str, truth: np.ndarray, predicted: np.ndarray, seed: int = 0) -> Metrics:
    """The metrics of predictions (probabilities, or numbers), each with ``…_ci``, a 95 % interval (bootstrap)."""
    measure = _measure(task)
    values, draws = measure(truth, predicted), _bootstrap(measure, len(truth), seed, truth, predicted)
    known = {name: [draw[name] for draw in draws if name in draw] for name in values}
    intervals = {f"{name}_ci": np.quantile(v, [0.025, 0.975]).tolist() for name, v in known.items() if v}
    return {name: float(value) for name, value in values.items()} | intervals


def difference(task: str, truth: np.ndarray, one: np.ndarray, other: np.ndarray, seed: int = 0) -> tuple[str, Any]:
    """The name of the main metric, and the interval of how far ``one`` is ahead in it, over the same sets."""
    measure = _measure(task)

    def ahead(*parts: np.ndarray) -> Metrics:
        return {"gap": measure(parts[0], parts[2])[main] - measure(parts[0], parts[1])[main]}

    main = "log_loss" if task == "classification" else "rmse"  # less is better
    draws = [draw["gap"] for draw in _bootstrap(ahead, len(truth), seed, truth, one, other)]
    return main, np.quantile(draws, [0.025, 0.975]).tolist()


def _measure(task: str) -> Callable[..., Metrics]:
    return _of_classes if task == "classification" else _of_numbers


def _bootstrap(measure: Callable[..., Metrics], size: int, seed: int, *parts: np.ndarray) -> list[Metrics]:
    """The metrics of as many sets, drawn with replacement."""
    draws = np.random.default_rng(seed).integers(0, size, (_DRAWS, size))
    return [measure(*(part[draw] for part in parts)) for draw in draws]


def as_lines(columns: Mapping[str, Metrics]) -> list[str]:
    """A table in text: a line a metric, a column a model."""
    names = list(dict.fromkeys(name for metrics in columns.values() for name in metrics if not name.endswith("_ci")))

    def cell(metrics: Metrics, name: str) -> str:
        interval = metrics.get(f"{name}_ci")
        shown = f"{metrics[name]:.4g}" if name in metrics else "–"
        return shown if interval is None else f"{shown} [{interval[0]:.4g}, {interval[1]:.4g}]"

    rows = [["", *columns], *([name, *(cell(metrics, name) for metrics in columns.values())] for name in names)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
