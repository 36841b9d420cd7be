"""What outputs stand for, classes or values, and the labels to hold them against."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from anyorder.audits.predictor import Predictor
from anyorder.checks import InputError, InputTypeError


class Judge:
    """Outputs ``[R, K]`` as classes and their scores against the truth, by what the ``given`` outputs look like."""

    def __init__(self, task: str, given: np.ndarray, predictor: Predictor) -> None:
        self.task, self.predictor = task, predictor
        self.columns = given.shape[1]
        self.whole = bool((given == np.round(given)).all())
        self.threshold = 0.5 if ((given >= 0) & (given <= 1)).all() else 0.0

    def classes(self, outputs: np.ndarray) -> np.ndarray:
        """The predicted class numbers ``[R]``."""
        if self.columns > 1:
            return outputs.argmax(axis=1)
        if self.whole:
            return np.round(outputs[:, 0]).astype(np.int64)
        return (outputs[:, 0] > self.threshold).astype(np.int64)

    def scores(self, truth: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Of each row, whether the class is right, or the mean squared error."""
        if self.task == "classification":
            return (self.classes(outputs) == truth).astype(np.float64)
        return ((outputs - truth) ** 2).mean(axis=1)

    def truth(self, labels: Any, samples: int) -> np.ndarray:
        """``labels`` as class numbers ``[samples]`` or values ``[samples, K]``."""
        values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
        if values.ndim == 0 or len(values) != samples:
            raise InputError(f"labels must hold one entry a sample, {samples} of them; got shape {list(values.shape)}")
        if self.task == "regression":
            return self._values(values)
        values = values.reshape(-1) if values.size == samples else values
        if values.ndim != 1:
            raise InputError(f"labels of a classification must have shape [N]; got {list(values.shape)}")
        return self._class_numbers(values)

    def _values(self, values: np.ndarray) -> np.ndarray:
        if values.dtype.kind not in "biuf":
            raise InputTypeError(f"labels of a regression must be numbers; got dtype {values.dtype}")
        values = values.reshape(len(values), -1).astype(np.float64)
        if not np.isfinite(values).all():
            at = int((~np.isfinite(values)).any(axis=1).argmax())
            raise InputError(f"labels must be finite; that of sample {at} is NaN or an infinite value")
        if values.shape[1] != self.columns:
            raise InputError(
                f"labels must have as many columns as predict returns, {self.columns}; got {values.shape[1]}"
            )
        return values

    def _class_numbers(self, values: np.ndarray) -> np.ndarray:
        if self.predictor.knows_classes or values.dtype.kind in "USO":
            index = {name: i for i, name in enumerate(self.predictor.classes)}
            unknown = sorted({str(v) for v in values.tolist() if v not in index})
            if unknown:
                raise InputError(f"labels hold classes predict does not know: {', '.join(unknown[:5])}")
            return np.array([index[v] for v in values.tolist()])
        if values.dtype.kind == "f" and (values == np.round(values)).all():
            values = values.astype(np.int64)
        if values.dtype.kind not in "biu":
            raise InputTypeError(f"labels of a classification must be class numbers or names; got {values.dtype}")
        if self.columns == 1 and not self.whole and not np.isin(values, (0, 1)).all():
            raise InputError(
                "labels of one column of scores or probabilities must be 0 and 1, 1 for those above the threshold; "
                f"got {', '.join(map(str, np.unique(values)[:5]))}: map them, as in labels == {values.max()}"
            )
        if self.columns > 1 and (values.min() < 0 or values.max() >= self.columns):
            raise InputError(
                f"labels must be class numbers from 0 to {self.columns - 1}; got {values.min()} to {values.max()}"
            )
        return values.astype(np.int64)
