"""The regressor of sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array

from anyorder.estimators.base import PARAMETERS, SetEstimator


class SetRegressor(RegressorMixin, SetEstimator):
    __doc__ = f"""A number for each set, from a recurrent model trained to ignore order.
    {PARAMETERS}.

    >>> X = np.random.default_rng(0).random((100, 5))  # 100 sets of 5 numbers
    >>> regressor = SetRegressor(epochs=60, random_state=0).fit(X, X.sum(1))
    >>> regressor.score(X, X.sum(1)) > 0.9
    True
    """

    _loss = "mse"
    _finish = None

    def _encoded_targets(self, y: Any) -> tuple[np.ndarray, int]:
        y = check_array(y, ensure_2d=False, dtype="numeric", input_name="y")
        self._shape = y.shape[1:]
        return y if y.dtype == np.float32 else y.astype(np.float64), int(np.prod(self._shape))

    def _answers(self, outputs: np.ndarray) -> np.ndarray:
        scale, mean = (unit.cpu().double().numpy() for unit in (self.model_.out_scale, self.model_.out_mean))
        return (outputs * scale + mean).reshape(-1, *self._shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
