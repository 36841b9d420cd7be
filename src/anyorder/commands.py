"""From a table to a model and back: what ``anyorder train``, ``predict``, ``audit`` and ``export`` do."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from anyorder._checks import InputError, InputTypeError, one_of, real_number, whole_number
from anyorder._files import home
from anyorder.audit import audit
from anyorder.audit_report import Report
from anyorder.estimators import SetClassifier, SetRegressor, takes_penalty
from anyorder.export import export_onnx, onnx_paths
from anyorder.models import MODELS
from anyorder.set_model import Standardised
from anyorder.storage import SavedModel, is_model_folder, open_model, save, write_atomically
from anyorder.tables import SetData, Table, TableSchema, learn_table
from anyorder.training import TrainConfig

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

    def outputs(self, data: SetData) -> np.ndarray:
        """Probabilities ``[N, K]`` of the classes, or values ``[N, 1]``."""
        if self.schema.task == "classification":
            return self.saved.estimator.predict_proba(data)
        return np.asarray(self.saved.estimator.predict(data)).reshape(len(data), -1)


def train_table(
    table: str | Path,
    out: str | Path,
    *,
    columns: Mapping[str, Any],
    settings: Mapping[str, Any],
    unlabelled: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool | None = None,
    say: Say = print,
) -> None:
    """Learn from a table and write a model folder; an unfinished run waits in ``ANYORDER_HOME``.

    ``columns`` are the options of :func:`anyorder.tables.read_table`, ``settings`` those of the estimator.
    ``unlabelled``: another table, without the target, whose sets serve the penalty.
    """
    table, out = Path(table), Path(out)
    if resume and force:
        raise InputError("--resume continues an unfinished run and --force starts afresh; choose one")
    run = _Run(table, out, {**columns, **settings, "unlabelled": unlabelled})
    _check_settings(settings)
    _check_place(out)
    if run.first_process:
        run.check(resume, force)
    else:
        say, progress = _silent, False
    learnt = learn_table(table, **columns, progress=progress)
    _output_names(learnt.schema)
    say(_found(learnt))
    further = None
    if unlabelled is not None:
        read = learnt.schema.read(unlabelled, progress=progress)
        _tell_unseen(read, say)
        if _has_penalty(settings):
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
        estimator.set_params(workdir=None, verbose=False)
        classes = None if learnt.schema.classes is None else list(learnt.schema.classes)
        save(estimator, out, preprocessing={"table": learnt.schema.to_dict()}, classes=classes)
        run.end()
        say(f"wrote {out}")


def predict_table(
    model: str | Path,
    table: str | Path,
    out: str | Path,
    *,
    force: bool = False,
    progress: bool | None = None,
    say: Say = print,
) -> None:
    """Write the set-id column, ``prediction``, and ``probability_<class>`` for every set of a table."""
    out = _free(out, force, (".csv", ".parquet"))
    trained = TableModel.open(model)
    names = _output_names(trained.schema)
    read = trained.schema.read(table, progress=progress)
    _tell_unseen(read, say)
    outputs = trained.outputs(read.data)
    columns: list[Any] = [read.set_ids]
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
    permutations: int = 32,
    seed: int = 0,
    seconds: float | None = None,
    force: bool = False,
    progress: bool | None = None,
    say: Say = print,
) -> Report:
    """Measure how much the order of each set's rows matters to a model, and write the page."""
    whole_number("--samples", samples)
    whole_number("--permutations", permutations)
    _check_seed(seed)
    out = _free(out, force, (".html",))
    trained = TableModel.open(model)
    read = trained.schema.read(table, with_target=None, progress=progress)
    _tell_unseen(read, say)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.arange(len(read.data))[read.data.lengths > 0]
    if len(chosen) == 0:
        raise InputError(f"no set of {table} has a row left without missing values; there is nothing to audit")
    if len(chosen) < len(read.data):
        say(f"{len(read.data) - len(chosen)} sets without a row left are not audited")
    if len(chosen) > samples:
        say(f"auditing {samples} of {len(chosen)} sets, drawn at random (--samples)")
        chosen = chosen[torch.randperm(len(chosen), generator=generator)[:samples].sort().values]
    data = read.data.select(chosen)
    elements, lengths = data.batch(torch.arange(len(data)))

    def predict(elements: Tensor, lengths: Tensor | None) -> np.ndarray:
        return trained.outputs(_flat(elements, lengths))

    classes = trained.schema.classes
    report = audit(
        predict,
        elements,
        lengths,
        labels=data.targets,
        task=trained.schema.task or "auto",
        permutations=permutations,
        generator=generator,
        seconds=seconds,
        progress=progress,
        class_names=None if classes is None else [str(c) for c in classes],
        sample_names=[str(i) for i in read.set_ids.take(pa.array(chosen.numpy())).to_pylist()],
    )
    worst = [dataclasses.replace(case, elements=trained.schema.decode(case.elements)) for case in report.worst]
    report = dataclasses.replace(report, worst=worst, feature_names=[f.name for f in trained.schema.features])
    page = out.with_name(f".{out.name}.tmp.html")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        report.html(page, title=f"Does order matter to {Path(model).name}?")
        os.replace(page, out)
    finally:
        page.unlink(missing_ok=True)
    say(f"{report}\nwrote {out}")
    return report


def export_model(model: str | Path, onnx: str | Path, *, force: bool = False, say: Say = print) -> None:
    """Write the ONNX graphs of step and read-out, checked against torch."""
    for path in onnx_paths(onnx):
        _free(path, force, (".onnx",))
    saved = open_model(model)
    details = {"classes": saved.classes, "preprocessing": saved.preprocessing}
    step, readout, gap = export_onnx(saved.model, onnx, details=details)
    say(f"wrote {step} (one step) and {readout} (read-out); onnxruntime agrees with torch to {gap:.0e}")


def _check_settings(settings: Mapping[str, Any]) -> None:
    """What can be told before the table is read."""
    _check_seed(settings.get("random_state", 0))
    model, options = settings.get("model", "recurrent"), settings.get("model_options") or {}
    one_of("--model", model, [name for name in MODELS if name != Standardised.name])
    known = inspect.signature(MODELS[model]).parameters
    for name in options:
        if name not in known:
            raise InputError(f"a {model} model has no option --{name}; leave it out, or choose another --model")
    try:
        with torch.device("meta"):  # no memory is spent
            numbers = sum(p.numel() for p in MODELS[model](1, 1, **options).parameters())
    except RuntimeError:  # more than torch can count
        numbers = 2**62
    if 16 * numbers > _memory():  # weights, gradients and two means of Adam, 4 bytes each
        raise InputError(f"a {model} model with {options} does not fit into this machine's memory; make it smaller")
    real_number("validation_fraction", settings.get("validation_fraction", 0), at_least=0, below=1)
    loop = {field.name for field in dataclasses.fields(TrainConfig)}
    TrainConfig(**{name: value for name, value in settings.items() if name in loop})


def _has_penalty(settings: Mapping[str, Any]) -> bool:
    """Whether the estimator will have a penalty, for which alone sets without a target are of use."""
    with torch.device("meta"):
        model = MODELS[settings.get("model", "recurrent")](1, 1, **(settings.get("model_options") or {}))
    return takes_penalty(model) and settings.get("penalty_weight", 1.0) != 0


def _check_seed(seed: int) -> None:
    if whole_number("--seed", seed, minimum=0) >= 2**32:
        raise InputError(f"--seed must be below {2**32}; got {seed}")


def _memory() -> float:
    """Bytes of this machine, where the system tells."""
    known = getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in known else float("inf")


def _check_place(path: Path) -> None:
    """Refuse a place where nothing can be written before the work, not after it."""
    folder = next(parent for parent in path.resolve().parents if parent.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".anyorder-", dir=folder))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror} in {folder}; choose another place") from None


class _Run:
    """Where an unfinished training run waits, by what it was asked to do."""

    def __init__(self, table: Path, out: Path, asked: Mapping[str, Any]) -> None:
        self.out = out
        self.first_process = os.environ.get("RANK", "0") == "0"
        stamp = [table.stat().st_size, table.stat().st_mtime_ns] if table.is_file() else None
        wanted = [str(table.resolve()), stamp, str(out.resolve()), asked]
        self.asked = json.dumps(wanted, sort_keys=True, default=str)
        self.folder = home() / "runs" / hashlib.sha256(self.asked.encode()).hexdigest()[:20]

    @property
    def unfinished(self) -> bool:
        """Whether a checkpoint waits here."""
        return _has_checkpoint(self.folder)

    @property
    def _replaces(self) -> Path:
        return self.folder / "replaces-the-model"  # there when the run was started with --force

    def check(self, resume: bool, force: bool) -> None:
        unfinished = self.unfinished
        if resume and not unfinished:
            raise InputError(f"there is nothing to resume: {self._alike()}; leave --resume out to start afresh")
        if unfinished and not resume and not force:
            raise InputError(
                f"a run with these very settings was not finished; go on with --resume, or start afresh with --force "
                f"(it waits in {self.folder})"
            )
        if not self.out.exists() or (resume and unfinished and self._replaces.exists()):
            return
        if not force:
            raise InputError(f"{self.out} exists; choose another --out, or replace it with --force")
        if not is_model_folder(self.out) and (not self.out.is_dir() or any(self.out.iterdir())):
            raise InputError(f"{self.out} is not a model folder, so --force does not replace it; choose another --out")

    def begin(self, force: bool) -> None:
        if force:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / "asked.json", self.asked)
        if force:
            self._replaces.touch()

    def end(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _alike(self) -> str:
        """What sets an unfinished run for the same --out apart from this one."""
        here = json.loads(self.asked)
        for file in sorted(self.folder.parent.glob("*/asked.json")):
            try:
                there = json.loads(file.read_text(encoding="utf-8"))
            except (ValueError, OSError):  # cut short, or gone by now: nothing can be said of it
                continue
            if there[2] == here[2] and _has_checkpoint(file.parent):
                if there[0] != here[0]:
                    return f"the unfinished run for {self.out} was of another table, {there[0]}"
                if there[3] == here[3]:
                    return f"{there[0]} has changed since the unfinished run for {self.out} began"
                then, now = _options(there[3]), _options(here[3])
                changed = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
                words = [f"with {name} {then[name]}" if name in then else f"without {name}" for name in changed]
                return f"the unfinished run for {self.out} was started {', '.join(words)}"
        return f"no run for {self.out} is unfinished"


def _has_checkpoint(folder: Path) -> bool:
    return folder.is_dir() and any(p.suffix == ".safetensors" for p in folder.iterdir())


def _options(asked: dict[str, Any]) -> dict[str, str]:
    """What was asked, in the words of the command line."""
    asked = {**asked, **(asked.get("model_options") or {}), "seed": asked.get("random_state")}
    return {
        f"--{name.replace('_', '-')}": ",".join(value) if isinstance(value, list) else str(value)
        for name, value in asked.items()
        if name not in ("model_options", "random_state") and value not in (None, [])
    }


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


def _tell_unseen(table: Table, say: Say) -> None:
    for name, count in table.unseen.items():
        say(f"{name}: {count} rows hold a category the model has not seen; it is read as none of those it knows")
    if table.dropped:
        say(f"{table.dropped} rows with missing values left out")


def _free(path: str | Path, force: bool, endings: Sequence[str]) -> Path:
    """``path`` if it may be written."""
    path = Path(path)
    if path.suffix not in endings:
        raise InputError(f"{path} must end in {' or '.join(endings)}")
    if path.exists() and not force:
        raise InputError(f"{path} exists; choose another file, or replace it with --force")
    if path.is_dir():
        raise InputError(f"{path} is a folder; choose another file")
    _check_place(path)
    return path


def _flat(elements: Tensor, lengths: Tensor | None) -> SetData:
    if lengths is None:
        return SetData.of(elements)
    inside = torch.arange(elements.shape[1]) < lengths[:, None]
    return SetData(elements[inside], torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))


def _table_bytes(table: pa.Table, ending: str) -> bytes:
    buffer = io.BytesIO()
    if ending == ".parquet":
        pyarrow.parquet.write_table(table, buffer)
    else:
        pyarrow.csv.write_csv(table, buffer, pyarrow.csv.WriteOptions(quoting_style="needed"))
    return buffer.getvalue()
