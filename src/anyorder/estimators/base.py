"""What the estimators share: their parameters, the way from sets to a fitted model, and storage."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from accelerate.utils import broadcast
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, check_random_state, compute_sample_weight
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from anyorder.checks import InputError, one_of, real_number, whole_number
from anyorder.data.sets import SetData
from anyorder.estimators.schema import Table, TableSchema
from anyorder.estimators.sources import is_table
from anyorder.estimators.tables import read_table
from anyorder.models import MODELS, SetModel, Standardised
from anyorder.penalties import SIRE, AdaptiveWeight, PermutationPenalty, SubsetPenalty, penalty_from_config
from anyorder.recurrences.base import Recurrence
from anyorder.training.batches import processes
from anyorder.training.config import TrainConfig
from anyorder.training.loop import train
from anyorder.training.predict import predict as outputs_of

PENALTIES: dict[str, Callable[..., Any]] = {"sire": SIRE, "sub": SubsetPenalty, "permutation": PermutationPenalty}
_AUTO: dict[str, Any] = {"target": 0.01, "weight": 10.0, "rate": 0.3}  # sets held out then have a gap below 0.05
_UNREAD = 1e30  # the scale of a static feature that was constant in training, whose weights learnt nothing
_FITTED = ("seed_", "n_iter_", "history_", "best_epoch_", "_shape")  # besides model_ and arrays

PARAMETERS = """
    Args:
        model: Name of the model, from ``anyorder.models.MODELS``.
        model_options: The model's own arguments, a dict.
        penalty: "sire", "sub", "permutation", a penalty object or None. A model that ignores order has no penalty.
        penalty_weight: Strength of the penalty: a number (search over decades, 1e-3 to 1e3), "auto" to tune it, an
            ``AdaptiveWeight``, or a function of the share of training done.
        standardize: Whether elements and float targets have mean 0 and variance 1 inside. ``model_`` keeps raw units.
        validation_fraction: Share of the sets held out to choose the best epoch.
        patience: Number of epochs without progress after which training stops.
        random_state: Seed of all random draws. With a ``workdir``, None means 0.
        workdir: Folder for checkpoints. An interrupted ``fit`` continues from them.
        verbose: Whether to show the progress.
        set_id: For a long table, the column that names each row's set.
        time: Its column of times. Rows of one time are a tie: training shuffles within ties, and "sire" is
            ``SIRE(ties=True)``.
        static: Its columns that are features of the set as a whole.

    The other arguments are those of ``anyorder.TrainConfig``. ``X`` is a list of arrays ``[n_i, D]`` or DataFrames, an
    array ``[N, T, D]``, or ``[N, T]`` (sets of numbers, D = 1). With ``set_id``, ``X`` is a long table (pandas, polars,
    Arrow; :func:`anyorder.read_table`), and ``y`` the name of its target column or a Series indexed by set. Predictions
    then come in the order in which the sets appear.

    Fitted attributes: ``model_`` (a torch module to stream, audit or export), ``n_features_in_`` (D),
    ``feature_names_in_`` (of DataFrames), ``history_`` (a dict an epoch), ``n_iter_`` (epochs), ``best_epoch_``,
    ``seed_``"""


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SetEstimator(BaseEstimator):
    """The base of the classifier and the regressor."""

    model: str = "recurrent"
    model_options: dict[str, Any] | None = None
    penalty: Any = "sire"
    penalty_weight: Any = "auto"
    epochs: int = 100
    batch_size: int = 32
    learning_rate: float = 3e-3
    optimizer: str = "adam"
    schedule: str = "one-cycle"
    plateau_patience: int = 5
    weight_decay: float = 0.0
    clip: float | None = 1.0
    shuffle: bool = False
    shuffle_within: int | None = None
    truncate: int | None = None
    validation_fraction: float = 0.0
    patience: int | None = None
    standardize: bool = True
    random_state: Any = None
    device: str = "auto"
    mixed_precision: str | None = None
    workdir: str | Path | None = None
    checkpoint_seconds: float = 30.0
    tensorboard: str | Path | None = None
    verbose: bool = False
    set_id: str | None = None
    time: str | None = None
    static: Sequence[str] | None = None

    def fit(self, X: Any, y: Any, X_unlabeled: Any = None, sample_weight: Any = None, validation: Any = None) -> Self:
        """Fit on the sets ``X`` with one target each.

        ``X_unlabeled`` are further sets without a target. They serve the penalty alone. ``validation`` are the numbers
        of the sets held out to choose the best epoch, in place of a random ``validation_fraction``.
        """
        self.schema_: TableSchema | None = None
        if self._is_table(X):
            X, y = self._learnt_table(X, y)
        elif self.set_id is not None:
            raise InputError(f"X must be a table with the column set_id={self.set_id!r}; got {type(X).__name__}")
        data = self._sets(X, y, first=True)
        targets, out_features = self._encoded_targets(y)
        check_consistent_length(data, targets)
        if getattr(self, "class_weight", None) is not None:
            by_class = compute_sample_weight(self.class_weight, self.classes_[targets])
            sample_weight = by_class if sample_weight is None else by_class * np.asarray(sample_weight)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, np.empty((len(data), 1)), ensure_non_negative=True)
        data = SetData.of(data, targets, sample_weight)
        self._begin(data, out_features)
        fraction = real_number("validation_fraction", self.validation_fraction, at_least=0, below=1)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed_))
        held = order[: min(max(1, round(fraction * len(data))), len(data) - 1) if fraction else 0]
        if validation is not None:
            held = torch.as_tensor(validation)
        self.validation_sets_ = held
        others, validation = order[~torch.isin(order, held)], None
        if len(held):
            data, validation = data.select(others), data.select(held)
        unlabeled = None if X_unlabeled is None else self._in_units(self._sets(X_unlabeled))
        penalty, weight = self._penalty(data.ties is not None)
        self.model_.inner.to(torch.get_default_dtype())
        result = train(
            self.model_.inner,
            self._loss,
            self._in_units(data),
            config=self._config(data.ties is not None, gap=self.verbose or isinstance(weight, AdaptiveWeight)),
            penalty=penalty,
            penalty_weight=weight,
            validation=None if validation is None else self._in_units(validation),
            unlabeled=None if penalty is None else unlabeled,
            workdir=self.workdir,
            progress=None if self.verbose else False,
        )
        self.model_.to(next(self.model_.inner.parameters()).device).eval()
        if validation is not None:
            self._calibrate(self._in_units(data), self._in_units(validation))
        self.history_, self.n_iter_, self.best_epoch_ = result.history, len(result.history), result.best_epoch
        return self

    def predict(self, X: Any, orderings: int = 1) -> np.ndarray:
        """The prediction for each set in its given order, or the mean over random ``orderings``."""
        return self._answers(self._outputs(X, orderings))

    def _sets_and_labels(self, X: Any, y: Any) -> tuple[Any, Any]:
        """What a score compares: ``X`` and ``y``, or the sets and labels of a table."""
        if not self._is_table(X):
            return X, y
        table = self._schema().read(X, with_target=_names_columns(y))
        return table.data, self._labels_of(table, y)

    def _is_table(self, X: Any) -> bool:
        """Whether ``X`` is a long table. A frame without ``set_id`` is refused: its rows are no sets."""
        frame = is_table(X)
        if frame and self.set_id is None:
            raise InputError(
                "X is a table; name the column of its sets with set_id (a list of frames is a list of sets)"
            )
        if self.set_id is None and (self.time is not None or self.static is not None):
            raise InputError("time and static are columns of a table; they need set_id")
        return frame

    def _learnt_table(self, X: Any, y: Any) -> tuple[SetData, np.ndarray]:
        """The sets and targets of a training table, whose schema is kept."""
        assert self.set_id is not None
        options: dict[str, Any] = {"time": self.time, "static": self.static or ()}
        if _names_columns(y):
            options |= {"target": y, "task": self._task}
        table = read_table(X, set_id=self.set_id, **options)
        self.schema_ = table.schema
        return table.data, self._labels_of(table, y)

    def _schema(self) -> TableSchema:
        check_is_fitted(self, "seed_")
        if self.schema_ is None:
            raise InputError("X is a table, but the model was fitted on sets; fit it on a table, with set_id")
        return self.schema_

    def _labels_of(self, table: Table, y: Any) -> np.ndarray:
        """The target of each set of a table, from its column ``y`` or a Series indexed by set."""
        if _names_columns(y):
            if table.labels is None:
                raise InputError(f"y must name the target column, {', '.join(table.schema.targets)}; got {y!r}")
            return table.labels
        if not hasattr(y, "reindex"):
            raise InputError(f"y must be a column of the table or a Series indexed by set; got {type(y).__name__}")
        if not y.index.is_unique or len(absent := table.set_ids.difference(y.index)):
            wrong = "sets twice" if not y.index.is_unique else f"no target for set {absent[0]}"
            raise InputError(f"y must have one target for each {table.schema.set_id}; it has {wrong}")
        return y.reindex(table.set_ids).to_numpy()

    def _sets(self, X: Any, y: Any = "no_validation", first: bool = False) -> SetData:
        """The sets of ``X``: finite, and of the features and column names of the first ones."""
        frames: list[Any] = []
        if self._is_table(X):
            X = self._schema().read(X).data
        if isinstance(X, (SetData, Tensor)):
            data = SetData.of(X)
        elif _is_list(X):
            data = SetData.of([np.asarray(part) if isinstance(part, (list, tuple)) else part for part in X])
            frames = [part for part in X if len(getattr(part, "columns", ()))]
        else:
            data = SetData.of(check_array(X, allow_nd=True, dtype="numeric", input_name="X"))
        elements = data.elements
        assert_all_finite(elements.cpu().numpy(), input_name="X")
        if data.static is not None:
            assert_all_finite(data.static.cpu().numpy(), input_name="static")
        if not first and len(elements) == 0:  # empty sets do not show their features
            elements = elements.new_empty(0, self.n_features_in_)
        named = {tuple(frame.columns): frame for frame in frames}.values() or [elements]
        for number, part in enumerate(named):
            validate_data(self, part, y, reset=first and number == 0, skip_check_array=True)
        dtype = torch.float32 if elements.dtype == torch.float32 else torch.float64
        if (self.model_options or {}).get("embedding") and torch.equal(elements, elements.round()):
            dtype = torch.int64  # a model with an embedding refuses fractions
        return dataclasses.replace(data, elements=elements.to(dtype), targets=None, weights=None)

    def _begin(self, data: SetData, out_features: int) -> None:
        """Build the model in the units of ``data``."""
        state = 0 if self.random_state is None and self.workdir is not None else self.random_state
        self.seed_ = int(check_random_state(state).randint(2**31 - 1))
        here = processes(str(self.device))
        if here.num_processes > 1:  # all take the seed of the first
            self.seed_ = int(broadcast(torch.tensor(self.seed_, device=here.device)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            options = dict(self.model_options or {})
            if data.static is not None:
                options["static_features"] = data.static.shape[1]
            kind = MODELS[one_of("model", self.model, [name for name in MODELS if name != Standardised.name])]
            for name in options:
                one_of("model_options", name, [*inspect.signature(kind).parameters][2:])
            self.model_ = Standardised(self.n_features_in_, out_features, self.model, options)
        if self.standardize:
            assert data.targets is not None
            weights = torch.ones(len(data)) if data.weights is None else data.weights
            units = _units(data.elements, weights.repeat_interleave(data.lengths))
            static = {}
            if data.static is not None:
                names = ("static_mean", "static_scale")
                static = dict(zip(names, _units(data.static, weights, constant=_UNREAD), strict=True))
            of_targets = [0.0, 1.0] if self._loss == "poisson" else _units(data.targets.reshape(len(data), -1), weights)
            self.model_.set_units(*units, *of_targets, **static)

    def _config(self, tied: bool, gap: bool) -> TrainConfig:
        shared = {field.name for field in dataclasses.fields(TrainConfig)} & self.get_params().keys()
        values = {name: getattr(self, name) for name in shared}
        values["shuffle"] = self.shuffle or tied
        return TrainConfig(**values, seed=self.seed_, gap_every=int(gap))

    def _penalty(self, tied: bool) -> tuple[Any, Any]:
        """The penalty and its weight. A model that ignores order or has no recurrence gets none."""
        penalty, weight = self.penalty, copy.deepcopy(self.penalty_weight)
        if isinstance(penalty, str):
            ties = {"ties": True} if tied and penalty == "sire" else {}
            penalty = PENALTIES[one_of("penalty", penalty, PENALTIES)](**ties)
        if isinstance(weight, str):
            one_of("penalty_weight", weight, ["auto"])
            weight = AdaptiveWeight(**_AUTO)
        reason = why_no_penalty(self.model_.inner)
        if reason is not None and penalty is not None:
            if weight != 0 and (self.penalty, self.penalty_weight) != ("sire", "auto"):  # not the defaults
                given = f"penalty={self.penalty!r} and penalty_weight={self.penalty_weight!r}"
                warnings.warn(f"{reason}; {given} are not used", stacklevel=3)
            penalty = None
        if penalty is None or weight == 0:
            return None, 0.0
        return penalty, weight

    def _calibrate(self, data: SetData, validation: SetData) -> None:
        """Fit what turns outputs into predictions to the validation sets."""

    def _in_units(self, data: SetData) -> SetData:
        """The sets as the model inside reads them. They are standardised before they are rounded to its dtype."""
        targets = data.targets
        if targets is not None and targets.is_floating_point():
            mean, scale = self.model_.out_mean.to(targets), self.model_.out_scale.to(targets)
            targets = ((targets.reshape(len(data), -1) - mean) / scale).reshape(targets.shape).to(self.model_.dtype)
        static = None if data.static is None else self.model_.standard_static(data.static)
        return dataclasses.replace(data, elements=self.model_.standard(data.elements), targets=targets, static=static)

    def _outputs(self, X: Any, orderings: int) -> np.ndarray:
        check_is_fitted(self, "model_")
        data = self._in_units(self._sets(X))
        draws = torch.Generator().manual_seed(self.seed_)
        orderings = whole_number("orderings", orderings)
        inner = self.model_.inner
        outputs = outputs_of(inner, data, orderings=orderings, generator=draws, finish=self._finish).cpu()
        return (outputs.float() if outputs.dtype == torch.bfloat16 else outputs).numpy()  # numpy has no bfloat16

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def storage_parts(self) -> tuple[Standardised, dict[str, Any]]:
        """The fitted model and, as JSON values, all else that :meth:`from_storage_parts` needs."""
        check_is_fitted(self, "model_")
        arrays = {
            name: value for name, value in vars(self).items() if isinstance(value, np.ndarray) and name[-1] == "_"
        }
        details = {
            "parameters": self.get_params(deep=False),
            "fitted": {name: getattr(self, name) for name in _FITTED},
            "arrays": {name: [value.dtype.str, value] for name, value in arrays.items()},
            "schema": None if self.schema_ is None else self.schema_.to_dict(),
        }
        return self.model_, json.loads(json.dumps(details, default=_as_json))

    @classmethod
    def from_storage_parts(cls, model: Standardised, details: dict[str, Any]) -> Self:
        """The fitted estimator of what :meth:`storage_parts` returned."""
        parameters, fitted = dict(details["parameters"]), dict(details["fitted"])
        if isinstance(parameters["penalty"], dict):
            parameters["penalty"] = penalty_from_config(parameters["penalty"])
        if isinstance(weight := parameters["penalty_weight"], dict):
            parameters["penalty_weight"] = AdaptiveWeight(**{**weight, "bounds": tuple(weight["bounds"])})
        estimator = cls(**parameters)
        estimator.model_, estimator.n_features_in_ = model, model.in_features
        schema = details["schema"]
        estimator.schema_ = None if schema is None else TableSchema.from_dict(schema)
        for name in _FITTED:
            setattr(estimator, name, fitted[name])
        for name, (kind, values) in details["arrays"].items():
            kind = kind if np.dtype(kind).itemsize <= 16 else kind[:2]  # texts take the room that they need
            setattr(estimator, name, np.array(values, dtype=kind))
        return estimator


def why_no_penalty(model: SetModel) -> str | None:
    """Why a model takes no penalty; None if it takes one."""
    if model.invariant:
        return f"a {model.name} model ignores order by construction and is trained without a penalty"
    if not isinstance(getattr(model, "recurrence", None), Recurrence):
        return f"a {model.name} model has no recurrence to penalise and is trained without a penalty"
    return None


def _names_columns(y: Any) -> bool:
    return isinstance(y, str) or (isinstance(y, (list, tuple)) and all(isinstance(name, str) for name in y))


def _is_list(X: Any) -> bool:
    """Whether ``X`` is a list of sets, not one array."""
    listed = isinstance(X, Sequence) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
    return listed and not isinstance(X, (str, bytes)) and len(X) > 0 and np.ndim(X[0]) > 0


def _units(values: Tensor, weights: Tensor, constant: float = 1.0) -> list[Any]:
    """Weighted mean and standard deviation of each column, ``constant`` of a constant one. Integers are kept."""
    if not values.is_floating_point() or len(values) == 0:
        return [0.0, 1.0]
    least = 1e-6 if values.dtype == torch.float32 else 1e-12  # below this share, the rounding of a constant
    values, share = values.double(), weights.double()[:, None] / weights.double().sum()
    mean = (share * values).sum(0)
    spread = (share * (values - mean).square()).sum(0).sqrt()
    return [mean, torch.where(spread > least * values.abs().amax(0).clamp(min=1e-30), spread, constant)]


def _as_json(value: Any) -> Any:
    """A parameter that JSON does not have, as values that it has."""
    if isinstance(value, AdaptiveWeight):
        return {**value.state_dict(), "bounds": list(value.bounds)}
    if hasattr(value, "config"):
        return value.config()
    if isinstance(value, (Path, torch.device)):
        return str(value)
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        return value.tolist()
    return None if isinstance(value, np.random.RandomState) else json.JSONEncoder().default(value)
