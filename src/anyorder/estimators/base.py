"""Set models as scikit-learn estimators: fit on sets, predict for sets, search over the penalty's weight."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from accelerate.utils import broadcast
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
)
from torch import Tensor

from anyorder.checks import InputError, InputTypeError, one_of, real_number, whole_number
from anyorder.data.sets import SetData
from anyorder.estimators.input import as_sets, column_names, require_same_columns
from anyorder.models import MODELS, SetModel, Standardised
from anyorder.penalties import SIRE, AdaptiveWeight, PermutationPenalty, SubsetPenalty, penalty_from_config
from anyorder.recurrences.base import Recurrence
from anyorder.training.batches import processes
from anyorder.training.checkpoint import seed_in
from anyorder.training.loop import OPTIMIZERS, TrainConfig, train
from anyorder.training.predict import predict as outputs_of

PENALTIES: dict[str, Callable[..., Any]] = {"sire": SIRE, "sub": SubsetPenalty, "permutation": PermutationPenalty}


class SetEstimator(BaseEstimator):
    """What the classifier and the regressor share: parameters, fitting, storage."""

    model_: Standardised
    n_features_in_: int
    feature_names_in_: np.ndarray
    seed_: int
    n_iter_: int
    history_: list[dict[str, Any]]
    best_epoch_: int | None
    _optimizer: torch.optim.Optimizer | None
    _units: dict[str, Tensor]  # those of model_ in float64
    _budget: AdaptiveWeight | None = None  # like the optimiser, kept from one partial_fit to the next

    def __init__(
        self,
        *,
        model: str = "recurrent",
        model_options: dict[str, Any] | None = None,
        penalty: Any = "sire",
        penalty_weight: Any = "auto",
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 3e-3,
        optimizer: Any = "adam",
        schedule: str = "one-cycle",
        plateau_patience: int = 5,
        plateau_factor: float = 0.5,
        weight_decay: float = 0.0,
        clip: float | None = 1.0,
        shuffle: bool = False,
        shuffle_within: int | None = None,
        truncate: int | None = None,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        standardize: bool = True,
        random_state: Any = None,
        device: str = "auto",
        mixed_precision: str | None = None,
        workdir: str | Path | None = None,
        checkpoint_seconds: float = 30.0,
        tensorboard: bool | str | Path = False,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.model_options = model_options
        self.penalty = penalty
        self.penalty_weight = penalty_weight
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.schedule = schedule
        self.plateau_patience = plateau_patience
        self.plateau_factor = plateau_factor
        self.weight_decay = weight_decay
        self.clip = clip
        self.shuffle = shuffle
        self.shuffle_within = shuffle_within
        self.truncate = truncate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.standardize = standardize
        self.random_state = random_state
        self.device = device
        self.mixed_precision = mixed_precision
        self.workdir = workdir
        self.checkpoint_seconds = checkpoint_seconds
        self.tensorboard = tensorboard
        self.verbose = verbose

    def fit(self, X: Any, y: Any, X_unlabeled: Any = None, sample_weight: Any = None) -> Self:
        """Fit on the sets ``X`` and one target each; ``X_unlabeled`` are further sets, for the penalty alone."""
        data = self._labeled(X, y, sample_weight, first=True)
        self._know_columns(column_names(X))
        own = self.random_state is not None or self.workdir is None
        self._begin(data, None if own else seed_in(self.workdir))
        fraction = real_number("validation_fraction", self.validation_fraction, at_least=0, below=1)
        validation = None
        if fraction:
            if len(data) < 2:
                raise InputError(f"validation_fraction needs two sets or more; got {len(data)}")
            order = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed_))
            held_out = min(max(1, round(fraction * len(data))), len(data) - 1)
            data, validation = data.select(order[held_out:]), data.select(order[:held_out])
            for part, sets in (("held-out", validation), ("remaining", data)):
                if sets.weights is not None and not bool(sets.weights.any()):
                    raise InputError(
                        f"sample_weight is 0 for all {len(sets)} {part} sets of validation_fraction={fraction}, drawn "
                        "at random; leave sets of weight 0 out, or take another fraction"
                    )
        config = self._config(
            self.seed_,
            epochs=self.epochs,
            schedule=self.schedule,
            patience=self.patience,
            optimizer=self.optimizer,
            tensorboard=self.tensorboard,
        )
        self._train(data, config, validation, X_unlabeled, self.workdir)
        return self

    def _fit_once_more(self, X: Any, y: Any, X_unlabeled: Any, sample_weight: Any) -> Self:
        """One pass at a constant rate, with the optimiser of the pass before."""
        first = not hasattr(self, "model_")
        data = self._labeled(X, y, sample_weight, first)
        if first:
            self._know_columns(column_names(X))
            self._begin(data)
        config = self._config(self.seed_ + self.n_iter_, epochs=1, schedule="constant", optimizer=self._same_optimizer)
        self._train(data, config, None, X_unlabeled, None)
        return self

    def predict(self, X: Any, orderings: int = 1) -> np.ndarray:
        """One answer a set: for the elements in the given order, or the mean over random ``orderings`` of them."""
        return self._answers(self._outputs(X, orderings))

    # What a subclass fills in.
    _loss: str
    _out_features: int
    _finish: Callable[[Tensor], Tensor] | None = None

    def _encoded_targets(self, y: Any, first: bool) -> np.ndarray:
        raise TypeError(f"{type(self).__name__} must define _encoded_targets")

    def _answers(self, outputs: np.ndarray) -> np.ndarray:
        raise TypeError(f"{type(self).__name__} must define _answers")

    # From arrays to a trained model and back ---------------------------------------------------------------------

    def _labeled(self, X: Any, y: Any, sample_weight: Any, first: bool) -> SetData:
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        data = self._sets(X, None if first else self.n_features_in_)
        targets = self._encoded_targets(y, first)
        check_consistent_length(data, targets)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, np.empty((len(data), 1)), ensure_non_negative=True)
        return SetData(
            data.elements, data.offsets, torch.as_tensor(targets), None if weights is None else torch.as_tensor(weights)
        )

    def _sets(self, X: Any, features: int | None) -> SetData:
        known = getattr(self, "feature_names_in_", None)
        if features is not None and known is not None and (names := column_names(X)) is not None:
            require_same_columns("the sets it was fitted on", known.tolist(), "X", names)
        embeds = bool(_as_options(self.model_options).get("embedding"))
        data = as_sets(X, embeds)
        if features is not None and len(data.elements) == 0:  # empty sets have no features to tell
            data = SetData(data.elements.new_empty(0, features), data.offsets)
        if features is not None and data.elements.shape[1] != features:
            raise InputError(
                f"X has {data.elements.shape[1]} features, but {type(self).__name__} is expecting {features} features "
                "as input"
            )
        return data

    def _know_columns(self, names: list[str] | None) -> None:
        """Keep the names of the columns; as in scikit-learn, the attribute is there only where they had names."""
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _begin(self, data: SetData, seed: int | None = None) -> None:
        """Build the model, its weights drawn from ``seed``, else from ``random_state``, in the units of this data."""
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1)) if seed is None else seed
        here = processes(str(self.device))
        if here.num_processes > 1:  # all go by the first one's
            self.seed_ = int(broadcast(torch.tensor(self.seed_, device=here.device)))
        self.n_features_in_ = data.elements.shape[1]
        name = model_named(self.model).name
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            self.model_ = Standardised(self.n_features_in_, self._out_features, name, self.model_options)
        self._units = _units_of(self.model_)
        if self.standardize:
            assert data.targets is not None
            weights = torch.ones(len(data)) if data.weights is None else data.weights
            own = _units(data.elements, weights.repeat_interleave(data.lengths))
            values = *own, *_units(data.targets.reshape(len(data), -1), weights)
            self._units = {n: torch.zeros_like(u) + v for (n, u), v in zip(self._units.items(), values, strict=True)}
            self.model_.set_units(**self._units)
        self.history_, self.n_iter_, self._optimizer, self._budget = [], 0, None, None

    def _train(
        self, data: SetData, config: TrainConfig, validation: SetData | None, X_unlabeled: Any, workdir: Any
    ) -> None:
        unlabeled = None if X_unlabeled is None else self._in_units(self._sets(X_unlabeled, self.n_features_in_))
        penalty, weight = self._penalty()
        self.model_.to(torch.get_default_dtype())
        result = train(
            self.model_.inner,
            self._loss,
            self._in_units(data),
            config=config,
            penalty=penalty,
            penalty_weight=weight,
            validation=None if validation is None else self._in_units(validation),
            unlabeled=unlabeled if penalty is not None else None,
            workdir=workdir,
            progress=None if self.verbose else False,
        )
        self.model_.to(next(self.model_.inner.parameters()).device).eval()
        self.history_ += [{**record, "epoch": self.n_iter_ + record["epoch"]} for record in result.history]
        self.n_iter_ += len(result.history)
        self.best_epoch_ = result.best_epoch

    def _config(self, seed: int, **changed: Any) -> TrainConfig:
        return TrainConfig(
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            plateau_patience=self.plateau_patience,
            plateau_factor=self.plateau_factor,
            weight_decay=self.weight_decay,
            clip=self.clip,
            shuffle=self.shuffle,
            shuffle_within=self.shuffle_within,
            truncate=self.truncate,
            device=self.device,
            mixed_precision=self.mixed_precision,
            checkpoint_seconds=self.checkpoint_seconds,
            seed=seed,
            gap_every=1 if self.verbose else 0,
            **changed,
        )

    def _penalty(self) -> tuple[Any, Any]:
        """The penalty and its weight; none for a model that is invariant by construction or has no recurrence."""
        penalty = self.penalty
        if isinstance(penalty, str):
            penalty = PENALTIES[one_of("penalty", penalty, PENALTIES)]()
        elif penalty is not None and not callable(penalty):
            raise InputTypeError(f"penalty must be None, a name or a penalty object; got {penalty!r}")
        weight = copy.deepcopy(self.penalty_weight)
        if isinstance(weight, str):
            weight = AdaptiveWeight() if one_of("penalty_weight", weight, ["auto"]) else None
        elif not callable(weight) and not isinstance(weight, AdaptiveWeight):
            weight = real_number("penalty_weight", weight, at_least=0)
        reason = why_no_penalty(self.model_.inner)
        if penalty is not None and reason is not None:
            if weight != 0 and (self.penalty, self.penalty_weight) != ("sire", "auto"):  # something was asked for
                given = f"penalty={self.penalty!r} and penalty_weight={self.penalty_weight!r}"
                warnings.warn(f"{reason}; {given} are not used", stacklevel=4)
            return None, 0.0
        if penalty is None:
            return None, 0.0
        if isinstance(weight, AdaptiveWeight):
            weight = self._budget = self._budget or weight
        return penalty, weight

    def _same_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        if self._optimizer is None:
            make = self.optimizer
            if not callable(make):
                make = OPTIMIZERS[one_of("optimizer", make, OPTIMIZERS)]
                make = functools.partial(make, lr=self.learning_rate, weight_decay=self.weight_decay)
            self._optimizer = make(parameters)
        return self._optimizer

    def _in_units(self, data: SetData) -> SetData:
        """The sets as the model inside reads them; rounded to its dtype after the units are taken out, not before."""
        elements, targets, kind = data.elements, data.targets, self.model_.mean.dtype
        if elements.is_floating_point():
            mean, scale = (self._units[name].to(elements.dtype) for name in ("mean", "scale"))
            elements = ((elements - mean) / scale).to(kind)
        if targets is not None and targets.is_floating_point():
            mean, scale = (self._units[name].to(targets.dtype) for name in ("out_mean", "out_scale"))
            targets = ((targets.reshape(len(data), -1) - mean) / scale).reshape(targets.shape).to(kind)
        return dataclasses.replace(data, elements=elements, targets=targets)

    def _outputs(self, X: Any, orderings: int) -> np.ndarray:
        check_is_fitted(self, "model_")
        data = self._in_units(self._sets(X, self.n_features_in_))
        draws = torch.Generator().manual_seed(self.seed_)
        orderings = whole_number("orderings", orderings)
        inner = self.model_.inner
        return outputs_of(inner, data, orderings=orderings, generator=draws, finish=self._finish).cpu().numpy()

    # scikit-learn and storage ------------------------------------------------------------------------------------

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def storage_parts(self) -> tuple[Standardised, dict[str, Any]]:
        """The fitted model and, as JSON values, all else that :meth:`from_storage_parts` needs."""
        check_is_fitted(self, "model_")
        parameters = {name: _as_json(name, value) for name, value in self.get_params(deep=False).items()}
        fitted: dict[str, Any] = {"seed": self.seed_, "epochs_run": self.n_iter_, "history": self.history_}
        fitted["best_epoch"] = self.best_epoch_
        fitted["feature_names"] = self.feature_names_in_.tolist() if hasattr(self, "feature_names_in_") else None
        fitted["units"] = {name: unit.tolist() for name, unit in self._units.items()}
        return self.model_, {"parameters": parameters, "fitted": fitted}

    @classmethod
    def from_storage_parts(cls, model: Standardised, details: dict[str, Any]) -> Self:
        """The fitted estimator that :meth:`storage_parts` took apart."""
        parameters = dict(details["parameters"])
        if isinstance(parameters.get("penalty"), dict):
            parameters["penalty"] = penalty_from_config(parameters["penalty"])
        if isinstance(parameters.get("penalty_weight"), dict):
            parameters["penalty_weight"] = AdaptiveWeight(
                **{**parameters["penalty_weight"], "bounds": tuple(parameters["penalty_weight"]["bounds"])}
            )
        estimator = cls(**parameters)
        _as_options(estimator.model_options)
        fitted = details["fitted"]
        estimator.model_, estimator.n_features_in_ = model, model.in_features
        estimator._know_columns(fitted.get("feature_names"))
        estimator._units = _units_of(model)
        for name, unit in fitted.get("units", {}).items():  # an earlier version wrote those of the model alone
            estimator._units[name].copy_(torch.tensor(unit, dtype=torch.float64))
        estimator.seed_, estimator.n_iter_ = int(fitted["seed"]), int(fitted["epochs_run"])
        if not 0 <= estimator.seed_ < 2**63:
            raise InputError(f"seed {estimator.seed_} is out of range")
        estimator.best_epoch_ = None if fitted.get("best_epoch") is None else int(fitted["best_epoch"])
        estimator.history_, estimator._optimizer = list(fitted["history"]), None
        return estimator


PARAMETERS = """
    ``X``: a list of arrays ``[n_i, D]`` or DataFrames, an array ``[N, T, D]``, or ``[N, T]`` (sets of numbers, D = 1).

    ``model``: a name of ``anyorder.models.MODELS``, built with the dict ``model_options``.
    ``penalty``: "sire", "sub", "permutation", a penalty object or None; it is not applied to a model that ignores order
    by construction (a warning says so if it was asked for).
    ``penalty_weight``: a number (search over decades, 1e-3 to 1e3), "auto" (an ``AdaptiveWeight``), such a
    budget, or a callable of the share of training done. ``validation_fraction`` of the sets are held out to pick
    the best epoch, ``patience`` epochs without progress end the training. ``standardize``: elements and float
    targets are brought to mean 0 and variance 1 inside, in the precision they come in; ``model_`` takes and gives
    raw units. ``workdir``: checkpoints, from which an interrupted ``fit`` goes on (with ``random_state=None``, by
    the seed found there); ``partial_fit`` writes neither these nor ``tensorboard``. The rest is as in
    ``anyorder.training.TrainConfig``.

    Fitted: ``model_`` (a torch module: stream, audit, export it), ``n_features_in_`` (D), ``feature_names_in_`` (of
    DataFrames, whose columns must come in this order ever after), ``history_`` (a dict an epoch), ``n_iter_``
    (epochs), ``best_epoch_``, ``seed_``
"""


def model_named(name: str, option: str = "model") -> type[SetModel]:
    """The registered model of a name."""
    return MODELS[one_of(option, name, [name for name in MODELS if name != Standardised.name])]


def _as_options(options: Any) -> dict[str, Any]:
    if options is not None and not isinstance(options, dict):
        raise InputTypeError(f"model_options must be a dict of what the model takes, or None; got {options!r}")
    return options or {}


def why_no_penalty(model: SetModel) -> str | None:
    """Why there is nothing for a penalty on order to do; None where there is a recurrence that order may matter to."""
    if model.invariant:
        return f"a {model.name} model ignores order by construction and is trained without a penalty"
    if not isinstance(getattr(model, "recurrence", None), Recurrence):
        return f"a {model.name} model has no recurrence to penalise and is trained without a penalty"
    return None


def _units(values: Tensor, weights: Tensor) -> tuple[Any, Any]:
    """Weighted mean and standard deviation of each column; a constant column is only shifted, integers are kept."""
    if not values.is_floating_point() or len(values) == 0:
        return 0.0, 1.0
    least = 1e-6 if values.dtype == torch.float32 else 1e-12  # of what is not the rounding of a constant
    values, share = values.double(), (weights / weights.sum()).double()[:, None]
    mean = (share * values).sum(0)
    spread = (share * (values - mean).square()).sum(0).sqrt()
    return mean, torch.where(spread > least * values.abs().amax(0).clamp(min=1e-30), spread, 1.0)


def _units_of(model: Standardised) -> dict[str, Tensor]:
    return {name: getattr(model, name).double().cpu() for name in ("mean", "scale", "out_mean", "out_scale")}


def _as_json(name: str, value: Any) -> Any:
    if isinstance(value, AdaptiveWeight):
        return {**value.state_dict(), "bounds": list(value.bounds)}
    if hasattr(value, "config") and name == "penalty":
        return value.config()
    if isinstance(value, np.random.RandomState):
        return None
    if isinstance(value, (Path, torch.device)):
        return str(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _as_json(f"{name}[{key!r}]", part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(name, part) for part in value]
    if callable(value):
        raise InputError(f"{name} is a function or class of your own ({value!r}), which a saved estimator cannot hold")
    return value
