"""Models of pooled features beside the network: fitted by scikit-learn, kept and predicted as plain arrays."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.preprocessing import StandardScaler
from torch import Tensor, from_numpy

from anyorder.checks import InputError

Arrays = dict[str, np.ndarray]
_ROWS = 4096  # sets whose ways through all trees are followed at once
_LEAST = 1e-12  # probability
FEWEST = 20  # sets, for folds
_MANY = 10_000  # sets, of which folds are made
_FARTHEST = 10.0  # standard deviations from the mean of a feature


@dataclass
class Ensemble:
    """Boosted trees and a linear model of pooled features, averaged with a network.

    Outputs are probabilities ``[N, classes]``, whose logarithms are averaged, or numbers ``[N]`` with ``classes=0``.
    ``weights`` are those of the members and of the network; they sum to 1, and all such weights are alike before sets
    tell them apart. A probability of the network is smoothed as if one set in ``seen``, the sets held out from it, had
    any class: few sets cannot tell that an event is impossible.
    """

    classes: int
    members: dict[str, Arrays]
    weights: dict[str, float]
    seen: int

    @classmethod
    def fit(
        cls,
        classes: int,
        features: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray | None,
        validation: tuple[np.ndarray, np.ndarray] | None,
        seed: int,
    ) -> Self:
        """Members fitted on all sets, two of each class or more. Their settings are the best out of fold.

        ``validation``: sets that the network was not fitted on, and its outputs there. They choose its weight, which
        is 1/3 without them. Of many sets, folds are made of these and some others.
        """
        chosen, network = (np.arange(0), None) if validation is None else validation
        others = np.random.default_rng(seed).permutation(len(targets))[: max(0, _MANY - len(chosen))]
        of_classes = [np.flatnonzero(targets == number)[:5] for number in range(classes)]
        tried = np.unique(np.concatenate([chosen, others, *of_classes]))
        given = None if weights is None else weights[tried]
        folds: Any = (StratifiedKFold if classes else KFold)(5, shuffle=True, random_state=seed)
        scaler = StandardScaler().fit(features)
        members, unseen = {}, []
        for name, candidates in _candidates(classes, seed).items():
            read = features if name == "boosting" else _standard(features, scaler.mean_, scaler.scale_)
            options: Any = {"cv": folds, "method": "predict_proba" if classes else "predict"}
            options["params"] = {"sample_weight": given}
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # a class of fewer sets than folds
                found = [cross_val_predict(model, read[tried], targets[tried], **options) for model in candidates]
            best = int(np.argmin([np.average(_losses(outputs, targets[tried]), weights=given) for outputs in found]))
            model = clone(candidates[best]).fit(read, targets, sample_weight=weights)
            members[name] = tree_arrays(model) if name == "boosting" else line_arrays(model, scaler)
            unseen.append(found[best])
        share = _share(unseen[0], unseen[1], targets[tried], given)
        own, seen = 1 / 3, 1
        if network is not None:
            seen, at = len(chosen), np.searchsorted(tried, chosen)
            network = _smoothed(network, seen)
            mixed = _mixed([(share, unseen[0][at]), (1 - share, unseen[1][at])])
            own = _share(network, mixed, targets[chosen], None if weights is None else weights[chosen], others=2)
        parts = ("network", own), ("boosting", (1 - own) * share), ("linear", (1 - own) * (1 - share))
        return cls(classes, members, dict(parts), seen)

    def parts(self, network: np.ndarray, features: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of the network, as they are given, and of each member."""
        outputs = {"network": network}
        for name, arrays in self.members.items():
            scores = scores_of(arrays, features.astype(np.float64))
            if self.classes == 2:
                scores = np.hstack([np.zeros_like(scores), scores])
            outputs[name] = softmax(scores, 1) if self.classes else scores[:, 0]
        return outputs

    def mixed(self, parts: dict[str, np.ndarray]) -> np.ndarray:
        """The weighted mean of all :meth:`parts`."""
        parts = {**parts, "network": _smoothed(parts["network"], self.seen)}
        return _mixed([(weight, parts[name]) for name, weight in self.weights.items()])

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that :meth:`of_tensors` needs, as named tensors and JSON values."""
        named = {f"{name}.{key}": from_numpy(a) for name, arrays in self.members.items() for key, a in arrays.items()}
        return named, {"classes": self.classes, "weights": self.weights, "seen": self.seen}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], details: Mapping[str, Any], width: int) -> Self:
        """The ensemble of what :meth:`tensors` returned, for features ``[N, width]``."""
        members: dict[str, Arrays] = {"boosting": {}, "linear": {}}
        try:
            for path, tensor in tensors.items():
                name, key = path.split(".")
                members[name][key] = tensor.numpy()
            trees, last = members["boosting"], len(members["boosting"]["value"]) - 1
            sound = len(members["linear"]["coef"]) == width and {*details["weights"]} == {"network", *members}
            least = {"feature": 0, "left": np.arange(last + 1), "right": np.arange(last + 1), "roots": 0}
            for key, low in least.items():  # a child stands after its parent, so every way ends
                high = width - 1 if key == "feature" else last
                sound = sound and bool(((trees[key] >= low) & (trees[key] <= high)).all())
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise InputError("members must be boosted trees and a linear model of the network's static features")
        return cls(members=members, **details)


def _candidates(classes: int, seed: int) -> dict[str, list[Any]]:
    """Models to choose from, by kind. Cross-validation takes the best of each kind."""
    kind: Any = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    quick = {"max_iter": 80, "max_leaf_nodes": 7, "learning_rate": 0.05, "max_features": 0.3}
    slow = {"max_iter": 300, "max_leaf_nodes": 15, "learning_rate": 0.02, "max_features": 0.15}
    trees = [kind(**settings, random_state=seed) for settings in (quick, slow)]
    strengths = np.logspace(-4, 0, 6)
    lines = [LogisticRegression(C=c, max_iter=300) if classes else Ridge(1 / c) for c in strengths]
    return {"boosting": trees, "linear": lines}


def _losses(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The loss of each set: squared error, or minus the logarithm of the probability."""
    if outputs.ndim == 1:
        return (outputs - targets) ** 2
    return -np.log(np.maximum(outputs[np.arange(len(targets)), targets], _LEAST))


def _smoothed(outputs: np.ndarray, seen: int) -> np.ndarray:
    return outputs if outputs.ndim == 1 else (seen * outputs + 1 / outputs.shape[1]) / (seen + 1)


def _mixed(parts: list[tuple[float, np.ndarray]]) -> np.ndarray:
    """The weighted mean of outputs; of probabilities, that of their logarithms."""
    if parts[0][1].ndim == 1:
        return sum(weight * outputs for weight, outputs in parts)  # type: ignore[return-value]
    return softmax(sum(weight * np.log(np.maximum(outputs, _LEAST)) for weight, outputs in parts), 1)


def _share(
    one: np.ndarray, other: np.ndarray, targets: np.ndarray, weights: np.ndarray | None, others: int = 1
) -> float:
    """The weight of ``one`` beside ``other``, which stands for ``others`` models: its posterior mean on a grid.

    Before, all weights that sum to 1 are alike. Numbers are taken as normal, with the variance of their errors.
    """
    grid, count = np.linspace(0, 1, 21), len(targets)
    pairs = [_mixed([(share, one), (1 - share, other)]) for share in grid]
    losses = np.array([np.average(_losses(pair, targets), weights=weights) for pair in pairs])
    likelihood = softmax(-count * (losses if one.ndim == 2 else np.log(losses + 1e-300) / 2))
    return float(np.average(grid, weights=likelihood * (1 - grid) ** (others - 1)))


def _standard(features: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return ((features - mean) / scale).clip(-_FARTHEST, _FARTHEST)


def line_arrays(model: Any, scaler: StandardScaler) -> Arrays:
    """A linear model as arrays: ``coef [P, K]``."""
    coef = np.ascontiguousarray(np.atleast_2d(model.coef_).T)
    return {"mean": scaler.mean_, "scale": scaler.scale_, "coef": coef, "intercept": np.atleast_1d(model.intercept_)}


def tree_arrays(model: Any) -> Arrays:
    """Boosted trees as arrays over all nodes; a leaf is its own child. ``roots [iterations, K]``."""
    trees = [tree.nodes for stage in model._predictors for tree in stage]
    sizes, nodes = [len(tree) for tree in trees], np.concatenate(trees)
    roots, own = np.cumsum([0, *sizes[:-1]]), np.arange(len(nodes))
    leaf, first = nodes["is_leaf"].astype(bool), np.repeat(roots, sizes)
    children = {side: np.where(leaf, own, first + nodes[side].astype(np.int64)) for side in ("left", "right")}
    split = {"feature": nodes["feature_idx"].copy(), "threshold": nodes["num_threshold"].copy()}
    ends = {"value": nodes["value"].copy(), "roots": roots.reshape(len(model._predictors), -1)}
    return {**split, **children, **ends, "baseline": model._baseline_prediction[0].copy()}


def scores_of(arrays: Arrays, features: np.ndarray) -> np.ndarray:
    """``[N, K]``: what the linear model or the trees say of ``features [N, P]`` before the softmax."""
    if "coef" in arrays:
        return _standard(features, arrays["mean"], arrays["scale"]) @ arrays["coef"] + arrays["intercept"]
    scores = []
    for begin in range(0, len(features), _ROWS):
        part = features[begin : begin + _ROWS]
        rows, before = np.arange(len(part))[:, None], None
        at = np.broadcast_to(arrays["roots"].ravel(), (len(part), arrays["roots"].size))
        while before is None or (at != before).any():
            left = part[rows, arrays["feature"][at]] <= arrays["threshold"][at]
            before, at = at, np.where(left, arrays["left"][at], arrays["right"][at])
        scores.append(arrays["value"][at].reshape(len(part), *arrays["roots"].shape).sum(1))
    return np.concatenate(scores) + arrays["baseline"]
