"""The regressor of sets."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array

from anyorder.checks import InputError, one_of
from anyorder.estimators.base import PARAMETERS, SetEstimator

LOSSES = {"squared": "mse", "absolute": "l1", "huber": "huber", "poisson": "poisson"}


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SetRegressor(RegressorMixin, SetEstimator):
    __doc__ = f"""A number for each set, from a recurrent model trained to ignore order.
    {PARAMETERS}.

    ``loss``: "squared", "absolute", "huber" (of standardised targets) or "poisson" (of counts; ``model_`` gives the
    logarithm of the rate).

    >>> X = np.random.default_rng(0).random((100, 5))  # 100 sets of 5 numbers
    >>> regressor = SetRegressor(epochs=60, random_state=0).fit(X, X.sum(1))
    >>> regressor.score(X, X.sum(1)) > 0.9
    True
    """

    loss: str = "squared"

    _task = "regression"

    @property
    def _loss(self) -> str:
        return LOSSES[one_of("loss", self.loss, LOSSES)]

    @property
    def _finish(self) -> Any:
        """What is averaged over orderings."""
        return torch.exp if self.loss == "poisson" else None

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The R² of the predictions for the sets ``X``."""
        return super().score(*self._sets_and_labels(X, y), sample_weight)

    def _encoded_targets(self, y: Any) -> tuple[np.ndarray, int]:
        y = check_array(y, ensure_2d=False, dtype="numeric", input_name="y")
        self._shape = y.shape[1:]
        if self.loss == "poisson" and (y < 0).any():
            raise InputError(f"y must be at least 0 with loss='poisson'; got {y.min()}")
        return y if y.dtype == np.float32 else y.astype(np.float64), int(np.prod(self._shape))

    def _answers(self, outputs: np.ndarray) -> np.ndarray:
        scale, mean = (unit.cpu().double().numpy() for unit in (self.model_.out_scale, self.model_.out_mean))
        return (outputs * scale + mean).reshape(-1, *self._shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
