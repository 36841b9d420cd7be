"""What a network on sets must beat: pooled statistics of each set, with gradient boosting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from anyorder.data.sets import SetData
from anyorder.estimators.schema import TableSchema


def pooled(data: SetData, schema: TableSchema) -> np.ndarray:
    """Statistics of each set ``[N, P]``, NaN where a set has no such value; the order within ties changes nothing.

    Of each number, or of the values of each name: mean, maximum, minimum, standard deviation and sum; with times also
    first, last and their difference, each the mean over a tie. Of each category: how many rows hold it.
    """
    elements, count = data.elements.cpu().double().numpy(), len(data)
    sets = np.repeat(np.arange(count), data.lengths.cpu().numpy())
    ties = None if data.ties is None else data.ties.cpu().numpy()
    parts, at = [np.log1p(np.bincount(sets, minlength=count))[:, None]], 0
    for feature in schema.features:
        block, known = elements[:, at : at + feature.width], len(feature.categories)
        at += feature.width
        if known:
            rows, codes = block[:, :known].nonzero()
            held = np.bincount(sets[rows] * known + codes, minlength=count * known)
            parts.append(np.log1p(held).reshape(count, known))
        if feature.value is not None:
            of_ties = None if ties is None else ties[rows]
            values = block[rows, known + codes]
            parts.append(_statistics(values, sets[rows] * known + codes, count * known, of_ties).reshape(count, -1))
        elif not known:
            parts += [_statistics(column, sets, count, ties) for column in block.T]
    if ties is not None:
        parts.append(_statistics(elements[:, at], sets, count, None)[:, :2])
    return np.concatenate(parts, axis=1)


def _statistics(values: np.ndarray, groups: np.ndarray, count: int, ties: np.ndarray | None) -> np.ndarray:
    """``[count, 5 or 8]``: statistics of the values of each group."""
    frame = pd.DataFrame({"group": groups, "value": values})
    found = frame.groupby("group")["value"].agg(["mean", "max", "min", "std", "sum"])
    if ties is not None:
        of_ties = frame.groupby(["group", ties])["value"].mean()  # in the order of time
        found = found.join(of_ties.groupby(level=0).agg(["first", "last"]))
        found["change"] = found["last"] - found["first"]
    return found.reindex(np.arange(count)).to_numpy()


def boosted(
    task: str,
    features: np.ndarray,
    labels: np.ndarray,
    others: np.ndarray,
    shape: tuple[int, ...],
    weights: np.ndarray | None,
    seed: int,
) -> np.ndarray:
    """What gradient boosting, fitted on pooled features in seconds, predicts for ``others``: an array of ``shape``."""
    if labels.ndim == 2:
        parts = [boosted(task, features, column, others, shape[:1], weights, seed) for column in labels.T]
        return np.stack(parts, 1)
    kind: Any = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    model = kind(learning_rate=0.05, max_iter=150, max_leaf_nodes=15, max_features=0.3, random_state=seed)
    if task != "regression" and len(np.unique(labels)) == 1:
        return np.full(shape, labels[0], dtype=np.float64)
    model.fit(features, labels, sample_weight=weights)
    if task == "regression":
        return model.predict(others)
    shares = np.zeros(shape if len(shape) == 2 else (*shape, 2))
    shares[:, model.classes_] = model.predict_proba(others)
    return shares if len(shape) == 2 else shares[:, 1]
