"""The classifier of sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from anyorder.checks import InputError
from anyorder.estimators.base import PARAMETERS, SetEstimator


class SetClassifier(ClassifierMixin, SetEstimator):
    __doc__ = f"""A class for each set, from a recurrent model trained to ignore order.
    {PARAMETERS}, ``classes_``.

    >>> X = [np.random.default_rng(n).random((n % 4 + 1, 2)) for n in range(40)]
    >>> y = ["many" if len(x) > 2 else "few" for x in X]
    >>> classifier = SetClassifier(epochs=30, random_state=0).fit(X, y)
    >>> classifier.score(X, y) > 0.9
    True
    """

    _loss = "cross-entropy"
    _shape = ()

    def predict_proba(self, X: Any, orderings: int = 1) -> np.ndarray:
        """The probability of each class ``[N, classes]``, or its mean over random ``orderings``."""
        return self._outputs(X, orderings)

    def _finish(self, output: Tensor) -> Tensor:
        """What is averaged over orderings."""
        return output.softmax(1)

    def _encoded_targets(self, y: Any) -> tuple[np.ndarray, int]:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y must hold two classes or more; SetClassifier got one class, {self.classes_.tolist()}")
        return index.astype(np.int64), len(self.classes_)

    def _answers(self, outputs: np.ndarray) -> np.ndarray:
        return self.classes_[outputs.argmax(1)]
