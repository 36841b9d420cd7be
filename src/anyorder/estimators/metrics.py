"""How good predictions are: the metrics of a task, in the target's own units, with intervals over sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
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


def _of_labels(truth: np.ndarray, shares: np.ndarray) -> Metrics:
    return _of_classes(truth, np.stack([1 - shares, shares], 1))


_MEASURES = {"classification": _of_classes, "multilabel": _of_labels, "regression": _of_numbers}


def metrics_of(
    task: str, truth: np.ndarray, predicted: np.ndarray, seed: int = 0, targets: Sequence[str] = ()
) -> Metrics:
    """The metrics of predictions (probabilities, or numbers), each with ``…_ci``, a 95 % interval (bootstrap).

    Those of several ``targets`` are named "… of TARGET".
    """

    def measure(truth: np.ndarray, predicted: np.ndarray) -> Metrics:
        if truth.ndim == 1:
            return _MEASURES[task](truth, predicted)
        parts = {name: _MEASURES[task](*part) for name, *part in zip(targets, truth.T, predicted.T, strict=True)}
        return {f"{name} of {target}": value for target, part in parts.items() for name, value in part.items()}

    values, draws = measure(truth, predicted), _bootstrap(measure, len(truth), seed, truth, predicted)
    known = {name: [draw[name] for draw in draws if name in draw] for name in values}
    intervals = {f"{name}_ci": np.quantile(v, [0.025, 0.975]).tolist() for name, v in known.items() if v}
    return {name: float(value) for name, value in values.items()} | intervals


def main_metric(task: str) -> str:
    """The metric by which models are compared; less is better."""
    return "rmse" if task == "regression" else "log_loss"


def loss_of(task: str, truth: np.ndarray, predicted: np.ndarray) -> float:
    """The main metric; of several targets its mean, that of numbers in units of their own spread."""
    if truth.ndim == 1:
        return _MEASURES[task](truth, predicted)[main_metric(task)]
    units = np.maximum(truth.std(axis=0), 1e-300) if task == "regression" else np.ones(truth.shape[1])
    parts = zip(truth.T, predicted.T, units, strict=True)
    return float(np.mean([loss_of(task, one, other) / unit for one, other, unit in parts]))


def difference(task: str, truth: np.ndarray, one: np.ndarray, other: np.ndarray, seed: int = 0) -> tuple[str, Any]:
    """The name of the main metric, and the interval of how far ``one`` is ahead in it, over the same sets."""

    def ahead(truth: np.ndarray, one: np.ndarray, other: np.ndarray) -> Metrics:
        return {"gap": loss_of(task, truth, other) - loss_of(task, truth, one)}

    draws = [draw["gap"] for draw in _bootstrap(ahead, len(truth), seed, truth, one, other)]
    return main_metric(task), np.quantile(draws, [0.025, 0.975]).tolist()


def _bootstrap(measure: Callable[..., Metrics], size: int, seed: int, *parts: np.ndarray) -> list[Metrics]:
    """The metrics of as many sets, drawn with replacement."""
    draws = np.random.default_rng(seed).integers(0, size, (_DRAWS, size))
    return [measure(*(part[draw] for part in parts)) for draw in draws]


def as_lines(columns: Mapping[str, Metrics]) -> list[str]:
    """A table in text: a line a metric, a column a model; 95 % intervals for the first, so that a terminal holds it."""
    first = next(iter(columns.values()))
    names = list(dict.fromkeys(name for metrics in columns.values() for name in metrics if not name.endswith("_ci")))

    def cell(metrics: Metrics, name: str) -> str:
        interval = metrics.get(f"{name}_ci") if metrics is first else None
        shown = f"{metrics[name]:.4g}" if name in metrics else "–"
        return shown if interval is None else f"{shown} [{interval[0]:.4g}, {interval[1]:.4g}]"

    cells = {of: [cell(metrics, name) for name in names] for of, metrics in columns.items()}
    return [line.rstrip() for line in pd.DataFrame(cells, names).to_string(justify="left").splitlines()]
