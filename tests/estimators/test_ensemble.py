"""Models of pooled features beside a network: kept as arrays, weighted by sets held out; and calibration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss

import anyorder as ao
from anyorder.checks import InputError
from anyorder.estimators.ensemble import Ensemble, scores_of, tree_arrays
from anyorder.files import tensors_from_bytes, tensors_to_bytes

DRAWS = np.random.default_rng(0)
FEATURES = DRAWS.normal(size=(400, 5)).astype(np.float32)
TARGETS = {
    2: FEATURES[:, 0] > 0.3,
    3: np.digitize(FEATURES[:, 1] * FEATURES[:, 2], [-0.2, 0.2]),
    0: FEATURES[:, 3] ** 2,
}


def fitted(classes=2):
    """An ensemble, and outputs of a network that knows the target."""
    targets = TARGETS[classes] if classes == 0 else TARGETS[classes].astype(int)
    network = targets + 0.01 if classes == 0 else np.eye(classes)[targets] * (1 - 2e-4 * classes) + 2e-4
    held = np.arange(0, 400, 5)
    return Ensemble.fit(classes, FEATURES, targets, None, (held, network[held]), seed=0), network, targets


@pytest.mark.parametrize("classes", TARGETS)
def test_stored_trees_say_what_scikit_learn_says(classes):
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    model = kind(max_iter=30, max_features=0.5, random_state=0).fit(FEATURES, TARGETS[classes])
    scores = scores_of(tree_arrays(model), FEATURES.astype(np.float64))
    expected = model.predict_proba(FEATURES) if classes else model.predict(FEATURES)
    found = {0: lambda: scores[:, 0], 2: lambda: np.hstack([expit(-scores), expit(scores)])}
    np.testing.assert_allclose(found.get(classes, lambda: softmax(scores, 1))(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("classes", TARGETS)
def test_the_better_part_gets_the_weight_and_all_comes_back_from_a_file(classes):
    ensemble, network, targets = fitted(classes)
    assert sum(ensemble.weights.values()) == pytest.approx(1)
    assert ensemble.weights["network"] > 0.36  # of 1/3 at first
    assert min(ensemble.weights.values()) >= 0
    again = Ensemble.of_tensors(*tensors_from_bytes(tensors_to_bytes(*ensemble.tensors())), width=5)
    parts = ensemble.parts(network, FEATURES)
    np.testing.assert_array_equal(again.mixed(again.parts(network, FEATURES)), ensemble.mixed(parts))
    poor = Ensemble.fit(classes, FEATURES, targets, None, (np.arange(80), np.roll(network, 7, 0)[:80]), seed=0)
    assert poor.weights["network"] < 0.2
    alone = Ensemble.fit(classes, FEATURES[:40], targets[:40], None, None, seed=0)
    assert alone.weights["network"] == pytest.approx(1 / 3)


DAMAGES = {
    "a way without an end": lambda t: t["boosting.left"].__setitem__(3, 0),
    "a child beyond the nodes": lambda t: t["boosting.right"].__setitem__(0, 10**6),
    "a feature that is not there": lambda t: t["boosting.feature"].__setitem__(0, 9),
    "a linear model of other features": lambda t: t.update({"linear.coef": torch.zeros(4, 1)}),
    "no trees": lambda t: t.pop("boosting.value"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_arrays_that_are_no_ensemble_are_refused(damage):
    tensors, details = fitted()[0].tensors()
    DAMAGES[damage](tensors)
    with pytest.raises(InputError, match="members"):
        Ensemble.of_tensors(tensors, details, width=5)


def test_calibration_lowers_the_log_loss_of_an_overfitted_network():
    draws = np.random.default_rng(1)
    sets, labels = draws.normal(size=(600, 4, 3)), draws.integers(0, 2, 600)
    labels = np.where(draws.random(600) < 0.75, (sets.sum((1, 2)) > 0).astype(int), labels)
    options = {"epochs": 40, "validation_fraction": 0.3, "learning_rate": 0.02, "penalty": None, "random_state": 0}
    model = ao.SetClassifier(model="deepsets", schedule="constant", **options).fit(sets[:200], labels[:200])
    plain = model.model_.inner(model.model_.standard(torch.from_numpy(sets[200:])).float()).softmax(1)
    calibrated = log_loss(labels[200:], model.predict_proba(sets[200:]))
    assert calibrated < log_loss(labels[200:], plain.detach().numpy()) - 0.001
    whole = model.model_(torch.from_numpy(sets[200:])).softmax(1).detach().numpy()
    np.testing.assert_allclose(whole, model.predict_proba(sets[200:]), atol=1e-5)  # also of streams and exports
