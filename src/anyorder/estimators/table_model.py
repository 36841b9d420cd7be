"""A table's whole way in one object: read, learn, predict, measure, audit, stream, store."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from sklearn.utils import compute_sample_weight
from torch import Tensor

from anyorder.checks import Diverged, InputError, one_of, real_number, whole_number
from anyorder.data.sets import SetData
from anyorder.deploy.save import open_model, save
from anyorder.estimators.classifier import SetClassifier
from anyorder.estimators.columns import as_numbers
from anyorder.estimators.ensemble import FEWEST, Ensemble
from anyorder.estimators.inspection import audited, importance, left_out
from anyorder.estimators.metrics import Metrics, as_lines, difference, metrics_of
from anyorder.estimators.regressor import LOSSES, SetRegressor
from anyorder.estimators.schema import MULTILABEL, Table, TableSchema
from anyorder.estimators.table_stream import TableStream
from anyorder.estimators.tables import TableWarning, column_of_sets, read_table
from anyorder.estimators.yardstick import boosted, pooled

_FAILED = 5.0, 100.0  # times the loss of a constant prediction, at the end of a training whose loss rose, or fell
_SMALL = 2000, 500  # sets, below which a network is narrow, and a fold
_PARTS = {"model": "this model", "network": "its network", "boosting": "pooled boosting", "linear": "pooled linear"}
_KINDS = {"classification": SetClassifier, MULTILABEL: SetClassifier, "regression": SetRegressor}


class TableModel:
    """A model of a long table, one row an element.

    Args:
        task: "classification" or "regression". A target of whole numbers needs it.
        features, categorical, missing, tie_within: As in :func:`anyorder.read_table`.
        pooled: Whether pooled statistics of each set (by name and feature) are joined as static features, with
            dropout. They need all rows of a set, so a model that shall stream does without.
        ensemble: Whether predictions are means over the network, boosted trees and a linear model of the pooled
            statistics. Sets held out choose the weights. It needs ``pooled`` and the squared or the class loss.
        yardstick: Whether the network is compared with the boosted trees.
        test_fraction: Share of the sets that are used for nothing but the metrics after training.
        batch_size: Number of sets per batch. Default: 32 to 256, by the number of sets.
        validation_fraction, patience, schedule, plateau_patience, optimizer, weight_decay, random_state: As in
            :class:`anyorder.SetClassifier`, with defaults for tables.
        options: The other arguments of :class:`anyorder.SetClassifier` or :class:`anyorder.SetRegressor`.

    Fitted attributes: ``estimator`` (of scikit-learn's kind; ``estimator.model_`` is the network), ``schema``,
    ``members`` (the ensemble, or None), ``held_out`` (the metrics of each part on the sets held out).

    >>> rows = pd.DataFrame({"day": np.repeat(np.arange(40), 3), "load": np.tile([1.0, 2.0, 6.0], 40)})
    >>> rows["load"] += rows["day"] % 2
    >>> rows["kind"] = np.where(rows["day"] % 2, "odd", "even")
    >>> model = TableModel(epochs=20).fit(rows, set_id="day", target="kind")
    >>> model.predict(rows)["prediction"].head(2).tolist()
    ['even', 'odd']
    """

    def __init__(
        self,
        *,
        task: str | None = None,
        features: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        missing: str = "error",
        tie_within: str | float | None = None,
        pooled: bool = True,
        ensemble: bool = True,
        yardstick: bool = True,
        test_fraction: float = 0.15,
        validation_fraction: float = 0.15,
        patience: int | None = 8,
        batch_size: int | None = None,
        schedule: str = "plateau",
        plateau_patience: int = 2,
        optimizer: str = "adamw",
        weight_decay: float = 0.01,
        random_state: int = 0,
        **options: Any,
    ) -> None:
        self.pooled, self.ensemble, self.yardstick = pooled, ensemble, yardstick
        self.test_fraction = real_number("test_fraction", test_fraction, at_least=0, below=1)
        self.random_state = whole_number("random_state", random_state, 0)
        self.reading: dict[str, Any] = {
            "task": task,
            "features": features,
            "categorical": categorical,
            "missing": missing,
        }
        self.reading["tie_within"] = tie_within
        known = {*SetClassifier().get_params(), *SetRegressor().get_params()} - {"set_id", "time", "static"}
        for name in options:
            one_of("option", name, sorted(known))
        one_of("loss", options.get("loss", "squared"), LOSSES)
        patience = patience if validation_fraction else None
        self.options: dict[str, Any] = {"validation_fraction": validation_fraction, "patience": patience}
        self.options |= {
            "batch_size": batch_size,
            "schedule": schedule,
            "plateau_patience": plateau_patience,
            "optimizer": optimizer,
            "weight_decay": weight_decay,
            "random_state": random_state,
            **options,
        }
        self.estimator: Any = None
        self.schema: Any = None
        self.members: Ensemble | None = None
        self.fill: list[float] | None = None
        self.held_out: dict[str, Any] = {}

    def fit(
        self,
        df: Any,
        *,
        set_id: str,
        target: str | Sequence[str],
        time: str | None = None,
        name: str | None = None,
        value: str | None = None,
        static: Sequence[str] = (),
        weight: str | None = None,
        validation_by: str | None = None,
        unlabeled: Any = None,
        say: Callable[[str], None] | None = None,
    ) -> Self:
        """Learn from a long table: a frame (pandas, polars, Arrow), a mapping of columns, or the path of a file.

        Args:
            set_id, target, time, name, value, static: Columns, as in :func:`anyorder.read_table`.
            weight: Column of numbers, one per set: how much a set counts in training.
            validation_by: Column that decides which sets are held out. Of times, the latest sets are; of other values,
                whole groups of sets, so that no group is in two parts.
            unlabeled: A table without the target, whose sets serve the penalty.
            say: Called with each line of what was read and reached; without it, only warnings are given.
        """
        tell = say or (lambda line: None)
        columns: dict[str, Any] = {"time": time, "name": name, "value": value, "static": static}
        columns["ignore"] = [column for column in (weight, validation_by) if column is not None]
        table = read_table(df, set_id=set_id, target=target, **columns, **self.reading)
        self.schema = table.schema
        self._columns()
        for line in _about(table):
            tell(line)
        _warn(table, say)
        task = table.schema.task
        if task is None:
            raise InputError("target must name a column, or several; got none")
        self.options.pop("class_weight" if task == "regression" else "loss", None)
        self.fill = None
        data = self._joined(table.data)
        by = None
        if validation_by is not None:
            values, timed = column_of_sets(df, table.schema, "validation_by", validation_by)
            by = pd.factorize(values.loc[table.set_ids], sort=True)[0], timed
        train, test, validation = self._split(table, by)
        weights: Any = None
        if weight is not None:
            weights = as_numbers(weight, column_of_sets(df, table.schema, "weight", weight)[0]).loc[table.set_ids]
            weights = weights.to_numpy()[train]
        self.estimator = self._network_of(table)
        further = None
        if unlabeled is not None:
            read = table.schema.read(unlabeled)
            _warn(read, say)
            further = self._joined(read.data)
            used = self.options.get("penalty", "sire") is not None and self.options.get("penalty_weight") != 0
            use = "serve the penalty" if used else "are not used: there is no penalty"
            tell(f"{len(further)} sets without a target {use}")
        labels: Any = table.labels
        self.estimator.fit(data.select(train), labels[train], further, weights, validation)
        self._check_progress(table.data.targets[train].numpy())  # type: ignore[index]
        if (balance := self.options.get("class_weight")) is not None:
            by_class = compute_sample_weight(balance, labels[train])
            weights = by_class if weights is None else by_class * weights
        self.members, self.held_out = self._fit_members(data.select(train), weights), {}
        if len(test):
            self._compare(table, train, test, weights)
            for line in self.summary():
                tell(line)
        return self

    def read(self, df: Any, *, with_target: bool = True) -> Table:
        """A table as the training table was read, with the target if it is there and wanted.

        A :class:`Table` is taken as it is.
        """
        if isinstance(df, Table):
            return df
        table = self._fitted().schema.read(df, with_target=with_target)
        _warn(table, None)
        return table

    def predict(self, df: Any, orderings: int = 1) -> pd.DataFrame:
        """A row for each set: its id, ``prediction`` and, of classes, ``probability_…`` of each.

        Several targets have columns ``prediction_…`` and, of labels, ``probability_…``.
        """
        table = self.read(df, with_target=False)
        outputs = self._outputs(self._joined(table.data), orderings)
        columns = [outputs] if outputs.ndim == 1 else [*outputs.T]
        if self.schema.classes is not None:
            columns = [self.estimator.classes_[outputs.argmax(axis=1)], *columns]
        elif self.schema.task == MULTILABEL:
            columns = [*(outputs.T > 0.5).astype(int), *columns]
        return pd.DataFrame(dict(zip(self._columns(), [table.set_ids, *columns], strict=True)))

    def evaluate(self, df: Any) -> Metrics:
        """The metrics on a table with the target: accuracy, log loss, AUC, average precision; or RMSE, MAE, R².

        ``…_ci`` are 95 % intervals over sets.
        """
        return self.evaluate_parts(df)[_PARTS["model"]]

    def evaluate_parts(self, df: Any) -> dict[str, Metrics]:
        """The same for the model and, of an ensemble, for each part alone."""
        data = self._with_target(df).data
        return self._metrics(data, self._parts(self._joined(data)))

    def importance(self, df: Any, repeats: int = 3) -> pd.DataFrame:
        """How much worse the log loss (or RMSE) gets when a feature's values are dealt to other rows at random.

        Static features are dealt to other sets. The most important feature comes first.
        """
        return importance(self, self._with_target(df), repeats)

    def left_out(self, df: Any, sets: int = 100, rows: int = 32, seed: int = 0) -> pd.DataFrame:
        """How far the output moves (``change``) when one row is left out of its set, the largest first.

        At most ``rows`` rows of each of at most ``sets`` sets are tried, drawn by ``seed``.
        """
        return left_out(self, self.read(df, with_target=False), sets, rows, seed)

    def audit(self, df: Any, sets: int = 1000, *, seed: int = 0, **options: Any) -> Any:
        """The audit of :func:`anyorder.audit`: does the order of the rows in the table matter?

        Rows are reordered as in the table. With times that is a new order within ties alone, for the model reads rows
        sorted by time. At most ``sets`` sets are audited, drawn by ``seed``; no empty one.
        """
        return audited(self, self.read(df), sets, seed, options)

    def stream(self) -> TableStream:
        """A set whose rows arrive in the order of their times, at constant memory and cost per row."""
        if self.pooled:
            raise InputError("a model with pooled statistics reads whole sets; to stream, fit with pooled=False")
        return TableStream(self._fitted())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model folder (:func:`anyorder.save`)."""
        kept = {"table": self._fitted().schema.to_dict(), "pooled": self.pooled, "held_out": self.held_out}
        kept["fill"] = self.fill
        beside, kept["members"] = (None, None) if self.members is None else self.members.tensors()
        save(self.estimator, path, preprocessing=kept, log=self.estimator.history_, beside=beside)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TableModel:
        """The model of a folder that :meth:`save` or ``anyorder train`` wrote."""
        saved = open_model(path)
        kept = saved.preprocessing
        if saved.estimator is None or not kept:
            raise InputError(f"{path} holds a model that was not trained on a table; use anyorder.load")
        schema = TableSchema.from_dict(kept["table"])
        estimator, network = saved.estimator, saved.model
        classes = schema.classes or range(len(schema.targets))
        known = [*classes] if schema.task == "regression" else getattr(estimator, "classes_", np.array([])).tolist()
        fits = (schema.width, len(classes), [*classes]) == (network.in_features, network.out_features, known)
        if not fits or isinstance(estimator, SetRegressor) != (schema.task == "regression"):
            raise InputError(f"{path}: the table's schema in config.json does not fit the model; use another copy")
        model = cls(task=schema.task, missing=schema.missing, tie_within=schema.tie_within, pooled=kept["pooled"])
        model.estimator, model.schema, model.held_out, model.fill = estimator, schema, kept["held_out"], kept["fill"]
        if kept["members"] is not None:
            inner: Any = network.inner
            model.members = Ensemble.of_tensors(saved.beside, kept["members"], inner.joined.size)
        return model

    def summary(self) -> list[str]:
        """The metrics on the sets held out, in lines of text, and whether the yardstick is ahead."""
        if not self.held_out:
            return []
        lines = [f"on {self.held_out['sets']} sets held out from training, with 95 % intervals:"]
        lines += as_lines(self.held_out["metrics"])
        if self.members is not None:
            shares = ", ".join(f"{name} {weight:.2g}" for name, weight in self.members.weights.items())
            lines.append(f"this model is a weighted mean: {shares}; a stream or an export is the network alone")
        if "ahead" in self.held_out:
            name, (low, high) = self.held_out["ahead"]
            if high < 0:
                lines.append(f"pooled features with boosting are ahead in {name}: prefer them, or give more sets")
            elif low <= 0:
                lines.append(f"neither is clearly ahead in {name} on so few sets")
        return lines

    # The parts ------------------------------------------------------------------------------------------------------

    def _fitted(self) -> TableModel:
        if self.estimator is None:
            raise InputError("this TableModel is not fitted; call fit first")
        return self

    def _network_of(self, table: Table) -> Any:
        """The estimator to fit. Its width and its batches follow the number of sets, its cell the ties.

        With times, order matters: to a GRU where most times differ, to half a fold's channels where most are ties.
        """
        options, sets = dict(self.options.get("model_options") or {}), len(table.data)
        if self.pooled:
            options = {"static_dropout": 0.5, **options}
        if self.options.get("model", "recurrent") == "recurrent":
            timed = table.schema.time is not None
            cell = options.setdefault("cell", "gru" if timed and tied_share(table.data) < 0.5 else "fold")
            width = options.pop("hidden", 32 if sets < _SMALL[cell == "fold"] else 64)
            of_cell: dict[str, Any] = {"hidden": width}
            if cell == "fold":
                halves = {"affine": width - width // 2, "sum": width // 2}
                read = {"readout": (width,), "readout_dropout": 0.2} if timed else {"bilinear": 16}
                channels = halves if timed and width > 1 else {"affine": width}
                of_cell |= {"encoder": (width, width), "channels": channels, **read}
            options = {"dropout": 0.2, **of_cell, **options}
        batch = self.options["batch_size"] or int(np.clip(2 ** round(np.log2(sets / 40)), 32, 256))
        return _KINDS[str(table.schema.task)](**{**self.options, "batch_size": batch, "model_options": options})

    def _with_target(self, df: Any) -> Table:
        table = self.read(df)
        if table.data.targets is None:
            names = ", ".join(map(repr, self.schema.targets))
            raise InputError(f"the table has no target column {names}, which the metrics need")
        return table

    def _features(self, data: SetData) -> Tensor:
        """Static features and pooled statistics ``[N, P]``; where there is none, its mean over the training table."""
        statistics = pd.DataFrame(pooled(data, self.schema))
        if self.fill is None:
            self.fill = statistics.mean().fillna(0.0).tolist()
        found = torch.from_numpy(statistics.fillna(dict(enumerate(self.fill))).to_numpy(np.float32))
        return found if data.static is None else torch.cat([data.static, found], 1)

    def _joined(self, data: SetData) -> SetData:
        """The sets with pooled statistics among their static features."""
        return dataclasses.replace(data, static=self._features(data)) if self.pooled else data

    def _network(self, data: SetData, orderings: int = 1) -> np.ndarray:
        """Probabilities ``[N, K]``, or numbers ``[N]``, of the network; of several targets ``[N, K]``."""
        read = self.estimator.predict if self.schema.task == "regression" else self.estimator.predict_proba
        return read(data, orderings)

    def _parts(self, joined: SetData, orderings: int = 1) -> dict[str, np.ndarray]:
        """The outputs of the model and, of an ensemble, of each part, which reads the statistics of :meth:`_joined`."""
        network = self._network(joined, orderings)
        if self.members is None:
            return {_PARTS["model"]: network}
        parts = self.members.parts(network, joined.static.numpy())  # type: ignore[union-attr]
        return {_PARTS["model"]: self.members.mixed(parts), **{_PARTS[name]: part for name, part in parts.items()}}

    def _outputs(self, joined: SetData, orderings: int = 1) -> np.ndarray:
        return self._parts(joined, orderings)[_PARTS["model"]]

    def _metrics(self, data: SetData, outputs: dict[str, np.ndarray]) -> dict[str, Metrics]:
        truth, task, targets = data.targets.numpy(), self.schema.task, self.schema.targets  # type: ignore[union-attr]
        return {name: metrics_of(task, truth, found, self.random_state, targets) for name, found in outputs.items()}

    def _split(
        self, table: Table, by: tuple[np.ndarray, bool] | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The sets to learn from, those held out, and which of the first choose the best epoch (None: chance).

        Of each class its share, where it has two sets; or the latest sets or whole groups, by the ranks of ``by``.
        """
        sets = np.arange(len(table.data))
        if by is not None:
            share = self.options["validation_fraction"] / (1 - self.test_fraction)
            train, test = _held_out(sets, *by, self.test_fraction, self.random_state)
            return train, test, np.searchsorted(train, _held_out(train, *by, share, self.random_state)[1])
        held = round(self.test_fraction * len(sets))
        if held == 0:
            return sets, sets[:0], None
        strata = None
        if table.schema.classes is not None:
            targets = table.data.targets.numpy()  # type: ignore[union-attr]
            counts = np.bincount(targets)
            strata = targets if counts[counts > 0].min() >= 2 and held >= len(counts) else None
        train, test = train_test_split(sets, test_size=held, random_state=self.random_state, stratify=strata)
        return np.sort(train), np.sort(test), None

    def _fit_members(self, joined: SetData, weights: np.ndarray | None) -> Ensemble | None:
        """Models of pooled features beside the network. None if they are not wanted, or of too few sets."""
        targets, validation = joined.targets.numpy(), None  # type: ignore[union-attr]
        plain = targets.ndim == 1 and self.options.get("loss", "squared") == "squared"
        classes = len(self.schema.classes or ())
        least = np.bincount(targets, minlength=classes).min() if classes and plain else 2
        if not (self.ensemble and self.pooled and plain) or len(joined) < FEWEST or least < 2:
            return None
        if len(held := self.estimator.validation_sets_.numpy()):
            validation = held, self._network(joined.select(held))
        features = joined.static.numpy()  # type: ignore[union-attr]
        return Ensemble.fit(classes, features, targets, weights, validation, self.random_state)

    def _compare(self, table: Table, train: np.ndarray, test: np.ndarray, weights: np.ndarray | None) -> None:
        """Measure the model on sets held out, beside the yardstick: pooled features with boosting."""
        task, data, seed = self.schema.task, table.data.select(test), self.random_state
        outputs, truth = self._parts(self._joined(data)), table.data.targets.numpy()  # type: ignore[union-attr]
        ours, yardstick = outputs[_PARTS["model"]], _PARTS["boosting"]
        if self.yardstick and self.members is None:
            features = self._features(table.data).numpy()
            fitted = features[train], truth[train], features[test], ours.shape, weights, seed
            outputs[yardstick] = boosted(task, *fitted)
        self.held_out = {"sets": len(test), "metrics": self._metrics(data, outputs)}
        if self.yardstick:
            self.held_out["ahead"] = difference(task, truth[test], ours, outputs[yardstick], seed)

    def _check_progress(self, targets: np.ndarray) -> None:
        """Refuse a network whose loss ends far above that of a constant prediction: the best epoch was luck."""
        first, loss = (self.estimator.history_[epoch]["loss"] for epoch in (0, -1))
        constant = 1.0
        if self.schema.task != "regression":
            of_one, mean = np.bincount(targets.flat) / targets.size, targets.mean(0)
            shares = of_one if targets.ndim == 1 else np.stack([1 - mean, mean])
            constant = -float((shares * np.log(np.maximum(shares, 1e-12))).sum(0).mean())
        elif self.options.get("loss") == "poisson":
            return
        if loss > _FAILED[loss <= first] * max(constant, 0.1):
            self.estimator = None
            raise Diverged(
                f"training failed: the loss is {loss:.3g}, that of a constant prediction {constant:.3g}; "
                "lower the learning rate"
            )

    def _columns(self) -> list[str]:
        """The names of the columns of predictions."""
        schema = self.schema
        several = [f"_{target}" for target in schema.targets] if len(schema.targets) > 1 else [""]
        shares = [f"_{c}" for c in schema.classes or ()] or (several if schema.task == MULTILABEL else [])
        names = [schema.set_id, *(f"prediction{end}" for end in several), *(f"probability{end}" for end in shares)]
        if self.schema.set_id in names[1:]:
            raise InputError(f"the column {self.schema.set_id!r} has the name of a column of predictions; rename it")
        return names


def _held_out(
    sets: np.ndarray, ranks: np.ndarray, timed: bool, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The other sets, and a share of them that is held out: the latest, or whole groups of one rank."""
    if timed:
        at = len(sets) - round(share * len(sets))
        order = sets[np.argsort(ranks[sets], kind="stable")]
        return np.sort(order[:at]), np.sort(order[at:])
    groups = np.random.default_rng(seed).permutation(np.unique(ranks[sets]))
    held = np.isin(ranks[sets], groups[: max(1, round(share * len(groups))) if share else 0])
    if held.all():
        raise InputError("validation_by must have at least three groups of sets")
    return sets[~held], sets[held]


def tied_share(data: SetData) -> float:
    """The share of the rows that share their time with another one of their set."""
    _, sizes = data.ties.unique_consecutive(return_counts=True)  # type: ignore[union-attr]
    return float(sizes[sizes > 1].sum()) / max(1, len(data.elements))


def _about(table: Table) -> list[str]:
    """What was read, in lines."""
    data, schema = table.data, table.schema
    aim = f"{len(schema.classes)} classes" if schema.classes else "a number"
    if len(schema.targets) > 1:
        aim = f"{len(schema.targets)} {'labels' if schema.task == MULTILABEL else 'numbers'}"
    lines = [
        f"{len(data)} sets of {int(data.lengths.min())} to {int(data.lengths.max())} elements, {len(data.elements)} "
        f"rows, {len(schema.features)} features, {aim} to predict"
    ]
    if data.ties is not None:
        share = tied_share(data)
        words = "training ignores their order" if share else "there is no accidental order to ignore"
        lines.append(
            f"rows are sorted by {schema.time}; {share:.1%} share their time with another of their set: {words}"
        )
    for feature in schema.features:
        if feature.categories:
            lines.append(f"{feature.name}: read as {len(feature.categories)} categories")
    return lines


def _warn(table: Table, say: Callable[[str], None] | None) -> None:
    """Give the warnings about a table."""
    for note in table.notes:
        if say is None:
            warnings.warn(note, TableWarning, stacklevel=4)
        else:
            say(note)
