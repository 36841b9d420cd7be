from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array

from anyorder.checks import InputError
from anyorder.estimators.base import PARAMETERS, SetEstimator
from anyorder.models import Standardised


class SetRegressor(RegressorMixin, SetEstimator):
    __doc__ = f"""A number for each set, from a recurrent model trained to ignore the order of its elements.
    {PARAMETERS.rstrip()}.

    >>> X = np.random.default_rng(0).random((100, 5))  # 100 sets of 5 numbers
    >>> regressor = SetRegressor(epochs=60, random_state=0).fit(X, X.sum(1))
    >>> regressor.score(X, X.sum(1)) > 0.9
    True
    """

    _loss = "mse"

    def partial_fit(self, X: Any, y: Any, X_unlabeled: Any = None, sample_weight: Any = None) -> Self:
        """One more pass, over these sets; the first call takes its units from them."""
        return self._fit_once_more(X, y, X_unlabeled, sample_weight)

    def _encoded_targets(self, y: Any, first: bool) -> np.ndarray:
        y = check_array(y, ensure_2d=False, dtype="numeric", input_name="y")
        y = y if y.dtype == np.float32 else y.astype(np.float64)
        if y.ndim > 2:
            raise InputError(f"y must have shape [N] or [N, K]; got {list(y.shape)}")
        if first:
            self._columns = None if y.ndim == 1 else y.shape[1]
        elif self._columns != (None if y.ndim == 1 else y.shape[1]):
            raise InputError(f"y must have the shape of the first fit; got {list(y.shape)}")
        return y

    @property
    def _out_features(self) -> int:  # type: ignore[override]
        return self._columns or 1

    def _answers(self, outputs: np.ndarray) -> np.ndarray:
        outputs = outputs * self._units["out_scale"].numpy() + self._units["out_mean"].numpy()
        return outputs[:, 0] if self._columns is None else outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def storage_parts(self) -> tuple[Standardised, dict[str, Any]]:
        model, details = super().storage_parts()
        return model, {**details, "columns": self._columns}

    storage_parts.__doc__ = SetEstimator.storage_parts.__doc__

    @classmethod
    def from_storage_parts(cls, model: Standardised, details: dict[str, Any]) -> Self:
        """The fitted regressor that :meth:`storage_parts` took apart."""
        estimator = super().from_storage_parts(model, details)
        estimator._columns = details["columns"]
        if (estimator._columns or 1) != model.out_features:
            raise InputError(f"{estimator._columns} columns for {model.out_features} outputs")
        return estimator
