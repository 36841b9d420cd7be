"""From a table to a model and back: what ``anyorder train``, ``predict``, ``audit`` and ``export`` do."""

from __future__ import annotations

import dataclasses
import inspect
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from anyorder.audits.report import Comparison, Report
from anyorder.audits.run import audit
from anyorder.checks import InputError, InputTypeError, real_number, whole_number
from anyorder.cli.resume import Run, asked_for
from anyorder.cli.usage import check_apart, check_place
from anyorder.cli.usage import free as _free
from anyorder.data.sets import SetData
from anyorder.deploy.onnx import export_onnx, onnx_paths
from anyorder.deploy.save import SavedModel, open_model, save, write_atomically
from anyorder.estimators.base import PENALTIES, model_named, why_no_penalty
from anyorder.estimators.classifier import SetClassifier
from anyorder.estimators.regressor import SetRegressor
from anyorder.estimators.tables import Table, TableSchema, learn_table
from anyorder.files import table_ending
from anyorder.penalties import AdaptiveWeight
from anyorder.training.loop import TrainConfig, reads_in_windows

Say = Callable[[str], None]


@dataclass(frozen=True)
class TableModel:
    """A model folder that ``anyorder train`` wrote: a fitted estimator and the schema of its table."""

    saved: SavedModel
    schema: TableSchema

    @classmethod
    def open(cls, path: str | Path) -> TableModel:
        saved = open_model(path)
        if saved.estimator is None or not (saved.preprocessing or {}).get("table"):
            raise InputError(
                f"{path} holds a model that was not trained on a table, so it cannot read one; "
                "use anyorder.load in Python"
            )
        assert saved.preprocessing is not None
        try:
            schema = TableSchema.from_dict(saved.preprocessing["table"])
        except InputError as error:
            raise InputError(f"the model folder {path} is damaged: {error}; train it again") from None
        outputs = 1 if schema.classes is None else len(schema.classes)
        kind = SetRegressor if schema.classes is None else SetClassifier
        fits = (schema.width, outputs) == (saved.model.in_features, saved.model.out_features)
        if not fits or schema.task is None or not isinstance(saved.estimator, kind):
            raise InputError(f"the model folder {path} is damaged: its table does not fit its model; train it again")
        return cls(saved, schema)

    @property
    def model_(self) -> Any:
        """The model inside, as a fitted estimator has it."""
        return self.saved.model

    def outputs(self, data: SetData, orderings: int = 1) -> np.ndarray:
        """Probabilities ``[N, K]`` of the classes, or values ``[N, 1]``: the mean over ``orderings``, if several."""
        if self.schema.task == "classification":
            return self.saved.estimator.predict_proba(data, orderings)
        return np.asarray(self.saved.estimator.predict(data, orderings)).reshape(len(data), -1)

    def __call__(self, elements: Tensor, lengths: Tensor | None) -> np.ndarray:
        """:meth:`outputs` of a padded batch, for the audit."""
        return self.outputs(_flat(elements, lengths))


def train_table(
    table: str | Path,
    out: str | Path,
    *,
    columns: Mapping[str, Any],
    settings: Mapping[str, Any],
    penalty_options: Mapping[str, Any] | None = None,
    unlabeled: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool | None = None,
    say: Say = print,
) -> None:
    """Learn from a table and write a model folder; an unfinished run waits in ``ANYORDER_HOME``.

    ``columns`` are the options of :func:`anyorder.tables.read_table`, ``settings`` those of the estimator,
    ``penalty_options`` those of the penalty that the settings name (``window`` and ``states`` of SIRE, say).
    ``unlabeled``: another table, without the target, whose sets serve the penalty.
    """
    table, out = Path(table), Path(out)
    if resume and force:
        raise InputError("--resume continues an unfinished run and --force starts afresh; choose one")
    run = Run(table, out, asked_for(columns, settings, penalty_options, unlabeled))
    if penalty_options:
        settings = {**settings, "penalty": PENALTIES[settings.get("penalty", "sire")](**penalty_options)}
    reason = _check_settings(settings)
    check_place(out)
    if isinstance(settings.get("tensorboard"), (str, Path)):
        check_apart(out, settings["tensorboard"])
    if run.first_process:
        run.check(resume, force)
    else:
        say, progress = _silent, False
    learnt = learn_table(table, **columns, progress=progress)
    _output_names(learnt.schema)
    say(_found(learnt))
    _tell_reading(learnt, columns.get("time"), settings, say)
    if reason is not None:
        say(reason)
        settings = {**settings, "penalty": None}
    further = None
    if unlabeled is not None:
        read = learnt.schema.read(unlabeled, progress=progress)
        _tell_unseen(read, say)
        if settings.get("penalty", "sire") is not None and settings.get("penalty_weight") != 0:
            further = read.data
            say(f"{len(further)} sets without a target serve the penalty")
        else:
            say(f"{len(read.data)} sets without a target are not used: this training has no penalty")
    if run.first_process:
        run.begin(force)
    kind = SetClassifier if learnt.schema.task == "classification" else SetRegressor
    estimator = kind(**settings, workdir=run.folder, verbose=True)
    try:
        estimator.fit(learnt.data, _labels(learnt), X_unlabeled=further)
    except (InputError, InputTypeError):
        if run.first_process and not resume:  # a run that waits is not lost because it was refused
            run.end()
        raise
    except KeyboardInterrupt:
        if run.unfinished:
            say("interrupted; the same command with --resume goes on from the last checkpoint")
        else:
            if run.first_process:
                run.end()
            say("interrupted before the first checkpoint; the same command starts afresh")
        raise
    if run.first_process:
        estimator.set_params(workdir=None, verbose=False, tensorboard=False)
        classes = None if learnt.schema.classes is None else list(learnt.schema.classes)
        kept = {"table": learnt.schema.to_dict()}
        save(estimator, out, preprocessing=kept, classes=classes, log=estimator.history_)
        run.end()
        for line in _kept(estimator):
            say(line)
        say(f"wrote {out}")


def predict_table(
    model: str | Path,
    table: str | Path,
    out: str | Path,
    *,
    orderings: int = 1,
    force: bool = False,
    progress: bool | None = None,
    say: Say = print,
) -> None:
    """Write the set-id column, ``prediction``, and ``probability_<class>`` for every set of a table.

    They are those of the rows in the given order, or the mean over so many random ``orderings`` of each set's.
    """
    whole_number("--orderings", orderings)
    out = _free(out, force, (".csv", ".parquet"))
    trained = TableModel.open(model)
    names = _output_names(trained.schema)
    read = trained.schema.read(table, progress=progress)
    _tell_unseen(read, say)
    ids = _typed(read.set_ids) if table_ending(table) in ("csv", "tsv", "txt") else read.set_ids
    try:
        _table_bytes(pa.table([ids], names[:1]), out.suffix)
    except pa.ArrowException:
        raise InputError(
            f"the set ids of {table} are of type {ids.type}, which cannot be written as text to {out}; give --out a "
            "file that ends in .parquet"
        ) from None
    outputs = trained.outputs(read.data, orderings)
    columns: list[Any] = [ids]
    if trained.schema.classes is not None:
        columns += [[trained.schema.classes[i] for i in outputs.argmax(axis=1)], *outputs.T]
    else:
        columns += [outputs[:, 0]]
    columns = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns]
    write_atomically(out, _table_bytes(pa.table(columns, names), out.suffix))
    say(f"wrote {out}: {len(read.data)} predictions")


def audit_table(
    model: str | Path,
    table: str | Path,
    out: str | Path,
    *,
    samples: int = 1000,
    orderings: int = 32,
    seed: int = 0,
    seconds: float | None = None,
    force: bool = False,
    progress: bool | None = None,
    say: Say = print,
) -> Report:
    """Measure how much the order of each set's rows matters to a model, and write the page."""
    out = _audit_page(out, samples, orderings, seed, force)
    audited = _AuditedTable(table, samples, orderings, seed, seconds, progress)
    report = audited.report(model, say)
    _write_page(report, out, f"Does order matter to {Path(model).name}?")
    say(f"{report}\nwrote {out}")
    return report


def compare_table(
    models: Sequence[str | Path],
    table: str | Path,
    out: str | Path,
    *,
    samples: int = 1000,
    orderings: int = 32,
    seed: int = 0,
    seconds: float | None = None,
    force: bool = False,
    progress: bool | None = None,
    say: Say = print,
) -> Comparison:
    """Audit several models on the same sets of a table, and write the page that compares them.

    ``seconds`` is the time for all of them together.
    """
    out = _audit_page(out, samples, orderings, seed, force)
    share = None if seconds is None else real_number("--seconds", seconds, above=0.0) / len(models)
    audited = _AuditedTable(table, samples, orderings, seed, share, progress)
    reports: dict[str, Report] = {}
    names = _model_names(models)
    for model in models:  # a bad one is told before the first is audited
        TableModel.open(model)
    for name, model in zip(names, models, strict=True):
        reports[name] = audited.report(model, say if not reports else _silent)
        say(f"{name}: {reports[name].verdict().headline}")
    comparison = Comparison(reports)
    _write_page(comparison, out, "Which model ignores order?")
    say(f"{comparison}\nwrote {out}")
    return comparison


@dataclass
class _AuditedTable:
    """One table as each of several models reads it: the same sets in the same orders, or an error that says why not."""

    table: str | Path
    samples: int
    orderings: int
    seed: int
    seconds: float | None
    progress: bool | None
    first: tuple[str | Path, TableSchema, pa.Array, Tensor] | None = None

    def report(self, model: str | Path, say: Say) -> Report:
        """The audit of one model."""
        trained = TableModel.open(model)
        read = trained.schema.read(self.table, with_target=None, progress=self.progress)
        _tell_unseen(read, say)
        self._check_same(model, trained.schema, read)
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.arange(len(read.data))[read.data.lengths > 0]
        if len(chosen) == 0:
            raise InputError(f"no set of {self.table} has a row left without missing values; there is nothing to audit")
        if len(chosen) < len(read.data):
            say(f"{len(read.data) - len(chosen)} sets without a row left are not audited")
        if len(chosen) > self.samples:
            say(f"auditing {self.samples} of {len(chosen)} sets, drawn at random (--samples)")
            chosen = chosen[torch.randperm(len(chosen), generator=generator)[: self.samples].sort().values]
        data = read.data.select(chosen)
        classes = trained.schema.classes
        report = audit(
            trained,
            list(data.elements.split(data.lengths.tolist())),
            labels=data.targets,
            task=trained.schema.task or "auto",
            orderings=self.orderings,
            generator=generator,
            seconds=self.seconds,
            progress=self.progress,
            class_names=None if classes is None else [str(c) for c in classes],
            set_names=[str(i) for i in read.set_ids.take(pa.array(chosen.numpy())).to_pylist()],
        )
        worst = [dataclasses.replace(case, elements=trained.schema.decode(case.elements)) for case in report.worst]
        return dataclasses.replace(report, worst=worst, feature_names=[f.name for f in trained.schema.features])

    def _check_same(self, model: str | Path, schema: TableSchema, read: Table) -> None:
        if self.first is None:
            self.first = model, schema, read.set_ids, read.data.lengths
            return
        other, known, set_ids, lengths = self.first
        for name in ("set_id", "target", "task", "classes", "time"):
            one, this = getattr(known, name), getattr(schema, name)
            if one != this:
                raise InputError(
                    f"{other} and {model} cannot be compared: their {name.replace('_', '-')} is {one} and {this}; "
                    "audit them apart"
                )
        if not set_ids.equals(read.set_ids) or not torch.equal(lengths, read.data.lengths):
            raise InputError(
                f"{other} and {model} cannot be compared: they leave out different rows of {self.table} for missing "
                "values; audit them apart, or fill what is missing"
            )


def _audit_page(out: str | Path, samples: int, orderings: int, seed: int, force: bool) -> Path:
    whole_number("--samples", samples)
    whole_number("--orderings", orderings)
    _check_seed(seed)
    return _free(out, force, (".html",))


def _model_names(models: Sequence[str | Path]) -> list[str]:
    """What the models are called on a page: the names of their folders, or the paths where two are alike."""
    names = [Path(model).name for model in models]
    names = [str(model) if names.count(name) > 1 else name for model, name in zip(models, names, strict=True)]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is given twice; name each model once")
    return names


def _write_page(result: Report | Comparison, out: Path, title: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    result.html(out, title=title)


def export_model(model: str | Path, onnx: str | Path, *, force: bool = False, say: Say = print) -> None:
    """Write the ONNX graphs of step and read-out, checked against torch."""
    for path in onnx_paths(onnx):
        _free(path, force, (".onnx",))
    saved = open_model(model)
    details = {"classes": saved.classes, "preprocessing": saved.preprocessing}
    step, readout, gap = export_onnx(saved.model, onnx, details=details)
    say(f"wrote {step} (one step) and {readout} (read-out); onnxruntime agrees with torch to {gap:.0e}")


def _kept(estimator: SetClassifier | SetRegressor) -> Iterator[str]:
    """Which epoch's weights are written, and whether they ignore order as asked."""
    best = estimator.best_epoch_
    record = estimator.history_[-1 if best is None else best]
    figures = {"validation": record["validation"], "order gap": record["gap"]}
    told = ", ".join(f"{what} {figure:.4g}" for what, figure in figures.items() if figure is not None)
    yield f"kept epoch {record['epoch']} of {len(estimator.history_)}" + (f": {told}" if told else "")
    target = AdaptiveWeight().target
    if estimator.penalty_weight == "auto" and record["penalty"] is not None and (record["gap"] or 0) > 2 * target:
        yield f"order still counts for more than --penalty-weight auto seeks (a gap of {target:g}): give more --epochs"


def _check_settings(settings: Mapping[str, Any]) -> str | None:
    """What can be told before the table is read; returns why the model takes no penalty, None where it does."""
    _check_seed(settings.get("random_state", 0))
    model, options = settings.get("model", "recurrent"), settings.get("model_options") or {}
    kind = model_named(model, "--model")
    known = inspect.signature(kind).parameters
    for name in options:
        if name not in known:
            raise InputError(f"a {model} model has no option --{name}; leave it out, or choose another --model")
    try:
        with torch.device("meta"):  # no memory is spent
            tried = kind(1, 1, **options)
        fits = 16 * sum(p.numel() for p in tried.parameters()) <= _memory()  # weights, gradients, two means of Adam
    except InputTypeError:
        raise
    except (RuntimeError, TypeError, OverflowError):  # more than torch can count
        fits = False
    if not fits:
        raise InputError(f"a {model} model with {options} does not fit into this machine's memory; make it smaller")
    if settings.get("truncate") is not None and not reads_in_windows(tried):
        raise InputError(f"a {model} model cannot be read in pieces; leave --truncate out, or take --model recurrent")
    real_number("validation_fraction", settings.get("validation_fraction", 0), at_least=0, below=1)
    loop = {field.name for field in dataclasses.fields(TrainConfig)}
    TrainConfig(**{name: value for name, value in settings.items() if name in loop})
    return why_no_penalty(tried)


def _check_seed(seed: int) -> None:
    whole_number("--seed", seed, minimum=0, maximum=2**32 - 1)


def _memory() -> float:
    """Bytes of this machine, where the system tells."""
    known = getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in known else float("inf")


def _silent(words: str) -> None:
    """What the other processes of one training say."""


def _output_names(schema: TableSchema) -> list[str]:
    """The columns that ``predict`` writes."""
    names = [schema.set_id, "prediction", *(f"probability_{c}" for c in schema.classes or ())]
    if schema.set_id in names[1:]:
        raise InputError(
            f"the set-id column is called {schema.set_id!r}, as is a column that anyorder predict writes; rename it"
        )
    return names


def _labels(table: Table) -> Any:
    """The targets as the user wrote them."""
    assert table.data.targets is not None
    targets = table.data.targets.numpy()
    return targets if table.schema.classes is None else np.array(table.schema.classes)[targets]


def _found(table: Table) -> str:
    data, schema = table.data, table.schema
    sizes = f"{int(data.lengths.min())} to {int(data.lengths.max())}"
    aim = f"{len(schema.classes)} classes" if schema.classes else "a number"
    dropped = f", {table.dropped} rows with missing values dropped" if table.dropped else ""
    rows, features = len(data.elements), len(schema.features)
    return f"{len(data)} sets of {sizes} elements, {rows} rows, {features} features, {aim} to predict{dropped}"


def _tell_reading(table: Table, order: str | None, settings: Mapping[str, Any], say: Say) -> None:
    """What a user may not have meant: numbers or times taken for categories, an order that is trained away."""
    rows = len(table.data.elements)
    for feature in table.schema.features:
        if feature.kind == "category":
            odd = len(feature.categories) > max(20, rows // 4)
            hint = "; if they are numbers or times, write them as numbers" if odd else ""
            say(f"{feature.name}: read as {len(feature.categories)} categories{hint}")
    if order is not None and settings.get("penalty_weight") == "auto":
        say(
            f"sets are sorted by {order}, and --penalty-weight auto trains the order away; a small number lets it count"
        )


def _tell_unseen(table: Table, say: Say) -> None:
    for name, count in table.unseen.items():
        say(f"{name}: {count} rows hold a category the model has not seen; it is read as none of those it knows")
    if table.dropped:
        say(f"{table.dropped} rows with missing values left out")


def _flat(elements: Tensor, lengths: Tensor | None) -> SetData:
    if lengths is None:
        return SetData.of(elements)
    inside = torch.arange(elements.shape[1]) < lengths[:, None]
    return SetData(elements[inside], torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))


def _typed(ids: pa.Array) -> pa.Array:
    """Ids of a text file as whole numbers, if each is written as one is: others may then join by them."""
    if pc.all(pc.match_substring_regex(ids, r"^(0|-?[1-9]\d{0,17})$")).as_py():
        return ids.cast(pa.int64())
    return ids


def _table_bytes(table: pa.Table, ending: str) -> bytes:
    buffer = io.BytesIO()
    if ending == ".parquet":
        pyarrow.parquet.write_table(table, buffer)
    else:
        pyarrow.csv.write_csv(table, buffer, pyarrow.csv.WriteOptions(quoting_style="needed"))
    return buffer.getvalue()
