"""The regressor of sets."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array

from anyorder.estimators.base import PARAMETERS, SetEstimator
from anyorder.models import Standardised


class SetRegressor(RegressorMixin, SetEstimator):
    __doc__ = f"""A number for each set, from a recurrent model trained to ignore order.
    {PARAMETERS}.

    >>> X = np.random.default_rng(0).random((100, 5))  # 100 sets of 5 numbers
    >>> regressor = SetRegressor(epochs=60, random_state=0).fit(X, X.sum(1))
    >>> regressor.score(X, X.sum(1)) > 0.9
    True
    """

    _loss = "mse"
    _shape: tuple[int, ...] = ()  # of one target

    @property
    def _out_features(self) -> int:  # type: ignore[override]
        return int(np.prod(self._shape))

    def _encoded_targets(self, y: Any) -> np.ndarray:
        y = check_array(y, ensure_2d=False, dtype="numeric", input_name="y")
        self._shape = y.shape[1:]
        return y if y.dtype == np.float32 else y.astype(np.float64)

    def _answers(self, outputs: np.ndarray) -> np.ndarray:
        outputs = outputs * self._units["out_scale"].numpy() + self._units["out_mean"].numpy()
        return outputs.reshape(-1, *self._shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def storage_parts(self) -> tuple[Standardised, dict[str, Any]]:
        model, details = super().storage_parts()
        return model, {**details, "shape": list(self._shape)}

    @classmethod
    def from_storage_parts(cls, model: Standardised, details: dict[str, Any]) -> Self:
        estimator = super().from_storage_parts(model, details)
        estimator._shape = tuple(details["shape"])
        return estimator
