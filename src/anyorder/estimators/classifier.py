"""The classifier of sets."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor
from torch.nn import functional as F

from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.estimators.base import PARAMETERS, SetEstimator
from anyorder.training.predict import predict


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SetClassifier(ClassifierMixin, SetEstimator):
    __doc__ = f"""A class for each set, from a recurrent model trained to ignore order.
    {PARAMETERS}, ``classes_``.

    ``class_weight``: "balanced", or a dict of weights by class. ``y [N, K]`` of 0 and 1 are K labels (multilabel).

    >>> X = [np.random.default_rng(n).random((n % 4 + 1, 2)) for n in range(40)]
    >>> y = ["many" if len(x) > 2 else "few" for x in X]
    >>> classifier = SetClassifier(epochs=60, random_state=0).fit(X, y)
    >>> classifier.score(X, y) > 0.9
    True
    """

    class_weight: Any = None

    _task = "classification"
    _shape = ()

    @property
    def _loss(self) -> str:
        return "binary-cross-entropy" if self._shape else "cross-entropy"

    def predict_proba(self, X: Any, orderings: int = 1) -> np.ndarray:
        """The probability of each class (or label) ``[N, classes]``, or its mean over random ``orderings``."""
        return self._outputs(X, orderings)

    def _finish(self, output: Tensor) -> Tensor:
        """What is averaged over orderings."""
        return self.shares(output * self.model_.out_scale.to(output) + self.model_.out_mean.to(output))

    def shares(self, output: Tensor) -> Tensor:
        """The probabilities of outputs of ``model_``."""
        return output.sigmoid() if self._shape else output.softmax(-1)

    def _calibrate(self, data: SetData, validation: SetData) -> None:
        """Scale the evidence by one number: log π + a (z − log π), for the shares π of the classes.

        It minimises the loss of the validation sets, and log² a as much as ten sets count.
        """
        if self._shape:
            return
        known, unseen = (part.targets.cpu() for part in (data, validation))  # type: ignore[union-attr]
        one, other = (None if part.weights is None else part.weights.cpu().double() for part in (data, validation))
        outputs = predict(self.model_.inner, validation).double().cpu()
        prior = (torch.bincount(known, one, outputs.shape[1]).double() + 1).log().log_softmax(0)
        scales = torch.logspace(-1.5, 0.5, 41, dtype=torch.float64)
        scores = (prior + scale * (outputs - prior) for scale in scales)
        losses = torch.stack([F.cross_entropy(each, unseen, reduction="none") for each in scores])
        losses = losses.mean(1) if other is None else losses @ (other / other.sum())
        scale = scales[(losses + 10 * scales.log() ** 2 / len(unseen)).argmin()]
        self.model_.out_scale.fill_(scale)
        self.model_.out_mean.copy_((1 - scale) * prior)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy of the predictions for the sets ``X``."""
        return super().score(*self._sets_and_labels(X, y), sample_weight)

    def _encoded_targets(self, y: Any) -> tuple[np.ndarray, int]:
        y = np.asarray(y)
        self._shape = y.shape[1:] if y.ndim == 2 and y.shape[1] > 1 else ()
        if self._shape:
            if self.class_weight is not None or not np.isin(y, [0, 1]).all():
                raise InputError("y of several labels must hold 0 and 1, and takes no class_weight")
            self.classes_ = np.arange(y.shape[1])
            return y.astype(np.int64), y.shape[1]
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y must hold two classes or more; SetClassifier got one class, {self.classes_.tolist()}")
        return index.astype(np.int64), len(self.classes_)

    def _answers(self, outputs: np.ndarray) -> np.ndarray:
        return (outputs > 0.5).astype(np.int64) if self._shape else self.classes_[outputs.argmax(1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
