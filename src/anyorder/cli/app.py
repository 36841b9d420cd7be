"""The command line: typer checks the options, the library does the work, a command says what it wrote.

Nothing heavy is imported before a command runs. A mistake of the user ends with one line on stderr and exit status 2.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

import anyorder as ao
from anyorder.checks import InputError, InputTypeError, one_of
from anyorder.cli.resume import Run, is_first_process

if TYPE_CHECKING:
    from anyorder.audits.report import Report
    from anyorder.estimators.schema import Table
    from anyorder.estimators.table_model import TableModel

app = typer.Typer(
    name="anyorder",
    help="Train recurrent models that ignore the order of their input, and measure whether order matters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; what the user got wrong becomes one line on stderr and exit status 2."""
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(130)  # interrupted from the keyboard
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own: an unknown command or option, a value out of range
            message = error.format_message()  # empty if the help was shown instead
            message += " (see anyorder --help, or anyorder COMMAND --help)" if message else ""
        elif isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("anyorder"):
            message = f"this command needs {error.name}: pip install 'anyorder[all]'"
        elif isinstance(error, (InputError, InputTypeError, OSError)):
            message = str(error)
        else:
            raise
        if message:
            print(f"anyorder: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anyorder {ao.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # docs/cost.md: the threads of a small model wait for each other


# --- options that several commands share, and their values

_TABLE = Argument(exists=True, help="A long table, one row per element: .csv, .tsv, .parquet, or a folder of .parquet.")
_MODEL = Argument(help="A model folder that `anyorder train` wrote.")
_MODELS = Argument(metavar="MODEL...", help="Model folders that `anyorder train` wrote. Several are compared.")
_FORCE = Option(False, "--force", help="Replace what is there.")
_SEED = Option(0, min=0, max=2**32 - 1, help="Seed of all random draws. The same seed gives the same result.")
_ENGINE = Option("local", help="Where sets are predicted: local, or ray for a Ray cluster.")
_ADDRESS = Option(None, help="Address of the Ray head.", show_default="a new Ray on this machine")
_EXAMPLE = "Example:  anyorder "


def _say(line: str) -> None:
    """Print a line; of the processes of one training, only the first does."""
    if is_first_process():
        typer.echo(line)


def _number_or_word(text: str) -> float | str | None:
    return None if text == "none" else text if text == "auto" else float(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _configured(context: typer.Context, path: Path | None) -> None:
    """Take the values of a TOML file in place of the command's defaults."""
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    options = {(option.name or "").replace("_", "-"): option for option in context.command.params}
    context.default_map = {}
    for key, value in values.items():
        option = options[one_of(f"a key of {path}", key, [name for name in options if name not in ("config", "help")])]
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        try:
            option.process_value(context, text)
        except Exception as error:
            why = error.format_message() if hasattr(error, "format_message") else error
            raise InputError(f"{path}, key {key}: {why}") from None
        context.default_map[str(option.name)] = text


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _writable(path: Path, force: bool, *endings: str) -> Path:
    """``path``, if the result of a long computation can be written there."""
    if path.suffix not in endings:
        raise InputError(f"{path} must end in {' or '.join(endings)}")
    if path.exists() and not force:
        raise InputError(f"{path} exists; choose another file, or replace it with --force")
    if path.is_dir():
        raise InputError(f"{path} is a folder; choose another file")
    _make_folder(path.parent)
    return path


def _make_folder(folder: Path) -> None:
    """Make a folder and try to write there, before the work and not after it."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


# --- from a table to a model


@app.command(epilog=_EXAMPLE + "train visits.csv --set-id patient --target readmitted --time day --out model")
def train(
    context: typer.Context,
    table: Path = _TABLE,
    config: Path | None = Option(
        None,
        exists=True,
        dir_okay=False,
        is_eager=True,
        callback=_configured,
        help="TOML file of options, by their names. The command line wins.",
        show_default="none",
    ),
    set_id: str = Option(..., help="Column that says which set a row belongs to."),
    target: Any = Option(..., parser=_names, metavar="COL,…", help="Column to predict, one value per set; or several."),
    out: Path = Option(..., help="Model folder to write."),
    time: str | None = Option(None, help="Column of times: they sort, and tie, the rows.", show_default="none"),
    tie_within: str | None = Option(
        None, help="Times at most so far apart tie too: 60s, 5.", show_default="equal times"
    ),
    static: Any = Option(
        "", parser=_names, metavar="COL,…", help="Features of the set as a whole.", show_default="none"
    ),
    name: str | None = Option(None, help="Column that names what a row measures, in long form.", show_default="none"),
    value: str | None = Option(None, help="Column of the measured values, in long form.", show_default="none"),
    features: Any = Option(None, parser=_names, metavar="COL,…", help="Feature columns.", show_default="all others"),
    categorical: Any = Option(
        "", parser=_names, metavar="COL,…", help="Numeric columns to read as categories.", show_default="none"
    ),
    missing: str = Option("error", help="Treatment of missing values: error, drop-row, mean or zero."),
    task: str | None = Option(None, help="classification or regression.", show_default="by the target's type"),
    weight: str | None = Option(None, help="Column of weights, one number per set.", show_default="all alike"),
    class_weight: str | None = Option(None, help="Weight of the classes: balanced.", show_default="all alike"),
    loss: str = Option("squared", help="Loss of a regression: squared, absolute, huber or poisson."),
    unlabeled: Path | None = Option(None, exists=True, help="Table without the target.", show_default="none"),
    model: str = Option("recurrent", help="Model: recurrent, deepsets, janossy, set-transformer, …."),
    cell: str | None = Option(None, help="Cell of a recurrent model: gru, lstm, fold, ….", show_default="fold, or gru"),
    hidden: int | None = Option(None, min=1, max=2**16, help="Width of the hidden state.", show_default="32 or 64"),
    layers: int | None = Option(None, min=1, help="Layers of a recurrent model.", show_default="1"),
    embedding: int | None = Option(None, min=1, help="Width of a layer that embeds each row.", show_default="none"),
    dropout: float | None = Option(None, min=0, max=0.99, help="Dropout before the read-out.", show_default="0.2"),
    penalty: str = Option("sire", help="Penalty on order: sire, sub or permutation."),
    penalty_weight: Any = Option(
        "auto", parser=_number_or_word, metavar="NUMBER", help="Strength of the penalty; auto seeks a chosen order gap."
    ),
    window: int | None = Option(None, min=1, help="Penalise swaps at most N positions apart.", show_default="off"),
    prefixes: str | None = Option(None, help="Elements before a swap: random or given.", show_default="by --window"),
    shuffle: bool = Option(False, "--shuffle", help="Read each set in a new random order every epoch."),
    shuffle_within: int | None = Option(None, min=2, help="Shuffle inside windows of N elements.", show_default="off"),
    truncate: int | None = Option(None, min=2, help="Backpropagate through at most N elements.", show_default="off"),
    epochs: int = Option(100, min=1, help="Number of epochs."),
    batch_size: int | None = Option(
        None, min=1, help="Number of sets per batch.", show_default="32 to 256, by the number of sets"
    ),
    optimizer: str = Option("adamw", help="Optimiser: adam, adamw, rmsprop or sgd."),
    learning_rate: float = Option(3e-3, help="Learning rate."),
    weight_decay: float = Option(0.01, help="Weight decay."),
    schedule: str = Option("plateau", help="Schedule of the learning rate: one-cycle, plateau or constant."),
    clip: Any = Option(1.0, parser=_number_or_word, metavar="NUMBER", help="Largest norm of a gradient, or none."),
    device: str = Option("auto", help="Device: auto, cpu, cuda, mps, …."),
    mixed_precision: str | None = Option(None, help="Precision: fp16, bf16 or no.", show_default="accelerate's"),
    validation_fraction: float = Option(0.15, min=0, max=0.99, help="Share of sets held out to choose the best epoch."),
    test_fraction: float = Option(0.15, min=0, max=0.99, help="Share of sets held out to say how good the model is."),
    validation_by: str | None = Option(
        None, help="Column that says which sets are held out: whole groups, or the latest.", show_default="by chance"
    ),
    patience: int = Option(8, min=1, help="Stop after N epochs without improvement."),
    pooled: bool = Option(True, help="Join pooled statistics of each set. A model that streams does without."),
    ensemble: bool = Option(True, help="Average the network with boosted trees and a linear model of the statistics."),
    yardstick: bool = Option(True, help="Compare with gradient boosting on the pooled statistics."),
    seed: int = _SEED,
    tensorboard: Path | None = Option(None, help="Folder for TensorBoard's training curves.", show_default="none"),
    resume: bool = Option(False, "--resume", help="Continue the training, or extend a finished one."),
    force: bool = _FORCE,
) -> None:
    """Train on a table of events, readings or items grouped into sets, and write a model folder."""
    if tensorboard is not None and out.resolve() in (tensorboard.resolve(), *tensorboard.resolve().parents):
        raise InputError(f"--tensorboard {tensorboard} is inside the model folder {out}; choose another folder")
    run = Run(out, resume)
    if is_first_process():
        context.with_resource(run.lock())
        run.check(resume, force)
        _make_folder(out.parent)
    swaps = _given(window=window, prefixes=prefixes)
    if swaps and penalty != "sire":
        raise InputError(f"--window and --prefixes are options of --penalty sire; got {penalty}")
    from anyorder.estimators.table_model import TableModel

    known = {*inspect.signature(ao.SetClassifier).parameters, *inspect.signature(TableModel).parameters, "loss"}
    columns = {*inspect.signature(TableModel.fit).parameters}
    settings = {name: value for name, value in context.params.items() if name in known - columns}
    encoder = None if embedding is None else [embedding]
    settings["model_options"] = _given(cell=cell, hidden=hidden, layers=layers, encoder=encoder, dropout=dropout)
    settings["penalty"] = ao.SIRE(ties=True if time else None, **swaps) if swaps else penalty
    settings |= {"random_state": seed, "shuffle": shuffle or bool(shuffle_within)}
    no_penalty = _check_settings(settings)
    if no_penalty is not None:
        _say(no_penalty)
        settings["penalty"] = None
    trained = TableModel(**settings, workdir=run.folder, verbose=True)
    if is_first_process():
        run.begin(force)
    try:
        trained.fit(table, **{n: v for n, v in context.params.items() if n in columns}, say=_say)
    except (InputError, InputTypeError):
        if is_first_process() and not resume:  # a training that can be resumed elsewhere is kept
            run.drop()
        raise
    except KeyboardInterrupt:
        how = "--resume continues from the last checkpoint" if run.unfinished else "there is no checkpoint yet"
        _say(f"interrupted; {how}")
        raise
    if is_first_process():
        trained.estimator.set_params(workdir=None, verbose=False, tensorboard=None)
        trained.save(out)
        run.end()
        _say_result(trained.estimator)
        _say(f"wrote {out}")


def _check_settings(settings: dict[str, Any]) -> str | None:
    """Refuse what can be refused before the table is read; returns why the model takes no penalty, or None."""
    import torch

    from anyorder.estimators.base import why_no_penalty
    from anyorder.models import MODELS, Standardised

    kind = MODELS[one_of("--model", settings["model"], [name for name in MODELS if name != Standardised.name])]
    for name in settings["model_options"]:
        if name not in inspect.signature(kind).parameters:
            option = "embedding" if name == "encoder" else name
            raise InputError(f"a {settings['model']} model has no option --{option}")
    known = {field.name for field in dataclasses.fields(ao.TrainConfig)} & settings.keys()
    ao.TrainConfig(**{name: settings[name] for name in known if settings[name] is not None})
    with torch.device("meta"):  # takes no memory
        return why_no_penalty(kind(1, 1, **settings["model_options"]))


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Print the warnings about a table as lines."""
    from anyorder.estimators.tables import TableWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TableWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, TableWarning):
            _say(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _say_result(estimator: Any) -> None:
    """Which epoch's weights are written, and its figures."""
    record = estimator.history_[-1 if estimator.best_epoch_ is None else estimator.best_epoch_]
    figures = {"validation": record["validation"], "order gap": record["gap"]}
    words = ", ".join(f"{name} {figure:.4g}" for name, figure in figures.items() if figure is not None)
    _say(f"kept epoch {record['epoch'] + 1} of {len(estimator.history_)}: {words or 'the last'}")


# --- from a model to predictions, an audit, a graph


def _open(model: Path) -> TableModel:
    from anyorder.estimators.table_model import TableModel

    return TableModel.load(model)


@app.command(epilog=_EXAMPLE + "predict model new_visits.csv --out predictions.csv")
def predict(
    model: Path = _MODEL,
    table: Path = _TABLE,
    out: Path = Option(..., help="File to write: .csv or .parquet."),
    orderings: int = Option(1, min=1, help="Number of random orderings to average over. 1 reads the rows as given."),
    escape_formulas: bool = Option(
        False, "--escape-formulas", help="Write ' before texts in a .csv that a spreadsheet would run as formulas."
    ),
    engine: str = _ENGINE,
    address: str | None = _ADDRESS,
    force: bool = _FORCE,
) -> None:
    """Write a prediction for every set of a table. A target column is ignored."""
    _writable(out, force, ".csv", ".parquet")
    one_of("--engine", engine, ("local", "ray"))

    from anyorder.files import write_atomically

    opened = _open(model)
    with _warnings_said():
        if engine == "ray":
            from anyorder.estimators.ray import predict_on_ray

            frame = predict_on_ray(opened, str(table.resolve()), orderings, address=address)
        else:
            frame = opened.predict(table, orderings)
    if escape_formulas and out.suffix == ".csv":
        texts = frame.select_dtypes(exclude="number")
        frame = frame.assign(**texts.map(_no_formula)).rename(columns=_no_formula)
    write_atomically(out, frame.to_csv(index=False) if out.suffix == ".csv" else frame.to_parquet(index=False))
    typer.echo(f"wrote {out}: {len(frame)} predictions")


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


@app.command(epilog=_EXAMPLE + "evaluate model visits.csv")
def evaluate(model: Path = _MODEL, table: Path = _TABLE) -> None:
    """Print how good a model's predictions are for a table with the target, with 95 % intervals over sets."""
    from anyorder.estimators.metrics import as_lines

    opened = _open(model)
    with _warnings_said():
        parts = opened.evaluate_parts(table)
    typer.echo("\n".join(as_lines(parts)))


@app.command(epilog=_EXAMPLE + "audit model visits.csv --out audit.html")
def audit(
    models: list[Path] = _MODELS,
    table: Path = _TABLE,
    out: Path = Option(..., help="Page to write: .html."),
    sets: int = Option(1000, min=1, help="Largest number of sets to audit, drawn at random."),
    orderings: int = Option(32, min=1, help="Number of random orderings per set."),
    design: str = Option("random", help="Orderings: random, balanced, all or rotations."),
    max_calls: int | None = Option(None, min=1, help="Largest number of calls per model.", show_default="no limit"),
    seed: int = _SEED,
    engine: str = _ENGINE,
    address: str | None = _ADDRESS,
    force: bool = _FORCE,
) -> None:
    """Measure how much the order of each set's rows matters to a model, and write a page with pictures.

    With several models the page compares them: accuracy, or error, against the order gap.
    """
    _writable(out, force, ".html")
    if one_of("--engine", engine, ("local", "ray")) == "ray" and len(models) > 1:
        raise InputError("--engine ray audits one model; name one, or leave --engine out")
    names = [path.name if [p.name for p in models].count(path.name) == 1 else str(path) for path in models]
    if len(set(names)) < len(names):
        raise InputError("a model is given twice; name each model once")

    import torch

    from anyorder.audits.report import Comparison, plain

    opened = [_open(path) for path in models]
    options = {"orderings": orderings, "design": design, "max_calls": max_calls}
    if engine == "ray":
        from anyorder.estimators.ray import audit_on_ray

        options["generator"] = torch.Generator().manual_seed(seed)
        with _warnings_said():
            found = audit_on_ray(opened[0], str(table.resolve()), sets, seed=seed, address=address, **options)
        found.html(out, title=f"Does order matter to {names[0]}?")
        typer.echo(f"{found}\nwrote {out}")
        return
    with _warnings_said():
        tables = [model.read(table) for model in opened]
    if any(_layout(other) != _layout(tables[0]) for other in tables[1:]):
        raise InputError(f"{', '.join(names)} cannot be compared: they read {table} differently")
    audited = min(sets, int((tables[0].data.lengths > 0).sum()))
    if audited < len(tables[0].data):
        typer.echo(f"auditing {audited} of {len(tables[0].data)} sets: at most --sets, and no empty set")
    reports: dict[str, Report] = {}
    for name, model, read in zip(names, opened, tables, strict=True):
        generator = torch.Generator().manual_seed(seed)
        reports[name] = model.audit(read, sets, seed=seed, generator=generator, **options)
    result: Any = reports[names[0]]
    title = f"Does order matter to {names[0]}?"
    if len(models) > 1:
        typer.echo("\n".join(f"{plain(name)}: {report.verdict().headline}" for name, report in reports.items()))
        result, title = Comparison(reports), "Which model ignores order?"
    result.html(out, title=title)
    typer.echo(f"{result}\nwrote {out}")


def _layout(read: Table) -> tuple[Any, ...]:
    """What two models must have in common to be compared on a table."""
    schema = read.schema
    columns = schema.set_id, schema.time, schema.targets, schema.task, schema.classes
    return *columns, read.set_ids.tolist(), read.data.lengths.tolist()


@app.command(epilog=_EXAMPLE + "export model --onnx model.onnx")
def export(
    model: Path = _MODEL,
    onnx: Path = Option(..., help="File of the step. The read-out goes to NAME.readout.onnx beside it."),
    force: bool = _FORCE,
) -> None:
    """Write a model's single step and its read-out as ONNX, compared numerically with torch."""
    for path in (onnx, onnx.with_suffix(".readout.onnx")):
        _writable(path, force, ".onnx")

    from anyorder.deploy.onnx import export_onnx
    from anyorder.deploy.save import open_model

    saved = open_model(model)
    step, readout, gap = export_onnx(saved.model, onnx, details={"preprocessing": saved.preprocessing})
    typer.echo(f"wrote {step} (one step) and {readout} (read-out); onnxruntime agrees with torch to {gap:.0e}")
    if saved.beside:
        typer.echo("they hold the network alone; the model averages it with boosted trees and a linear model")


# --- real data sets, experiments, pages

data = typer.Typer(name="data", help="List, download and find the real data sets.", no_args_is_help=True)
app.add_typer(data)


@data.command("list", epilog=_EXAMPLE + "data list")
def data_list() -> None:
    """Show every data set: whether it is there, its size and its licence."""
    from anyorder.paper.data import sources

    for name, source in sources.SOURCES.items():
        folder = sources.where(name)
        fetched = "can be fetched" if source.downloads else "can be fetched with --trust" if source.url else ""
        state = f"in {folder}" if folder else ", ".join(["not here", *([fetched] if fetched else [])])
        size = source.size and f", {source.size}"
        typer.echo(f"{name}: {source.what}\n    {state}{size}; licence: {source.licence}")


@data.command("fetch", epilog=_EXAMPLE + "data fetch mnist")
def data_fetch(
    name: str = Argument(help="Name that `anyorder data list` shows."),
    trust: bool = Option(False, "--trust", help="Download even if no checksum is published, and note the checksum."),
) -> None:
    """Download a data set into the cache and check it, or say where to get it."""
    from anyorder.paper.data import sources

    typer.echo(f"{name}: complete and checked in {sources.fetch(name, trust=trust)}")


@data.command("where", epilog=_EXAMPLE + "data where ecg5000")
def data_where(name: str | None = Argument(None, help="Data set whose files are printed.")) -> None:
    """Print the folders that are searched, first to last, or the files of one data set."""
    from anyorder.paper.data import sources

    if name is None:
        typer.echo("\n".join(str(folder) for folder in sources.data_folders()))
        return
    folder, source = sources.where(name), sources.SOURCES[name]
    if folder is None:
        others = [n for n, s in sources.SOURCES.items() if s.dataset == source.dataset and sources.where(n)]
        advice = f"the same data is here as {others[0]} (anyorder data where {others[0]})" if others else source.advice
        raise InputError(f"{name} is in none of the folders searched (see anyorder data where); {advice}")
    typer.echo("\n".join(str(folder / file) for file in source.files))


@app.command(epilog=_EXAMPLE + "reproduce parity --scale smoke --out mine")
def reproduce(
    context: typer.Context,
    experiment: str = Argument(help="Experiment: parity, sub-vs-sire, sum, …; or your own: my_module:EXPERIMENT."),
    scale: str = Option("laptop", help="Budget: smoke (seconds), laptop (hours) or paper (the full protocol)."),
    jobs: int | None = Option(None, min=1, help="Number of local processes.", show_default="one per core"),
    engine: str = Option("local", help="Where trials run: local, or ray for a Ray cluster."),
    address: str | None = _ADDRESS,
    cpus: int | None = Option(None, min=1, help="Number of threads per trial.", show_default="1"),
    gpus: float | None = Option(None, min=0, help="Number of GPUs per trial, or a share of one.", show_default="0"),
    out: str = Option("results", help="Folder of the rows. Finished trials are not repeated."),
    only: Any = Option(None, parser=_names, metavar="NAME,…", help="Methods to run.", show_default="all"),
    seeds: int | None = Option(None, min=1, help="Number of seeds per setting.", show_default="as declared"),
    dry_run: bool = Option(False, "--dry-run", help="Show the plan and the estimated time, and stop."),
) -> None:
    """Run a table or figure of the paper, or an experiment of your own."""
    from anyorder.paper.runner.sweep import reproduce as run

    if run(context.params.pop("experiment"), **context.params):  # the problems of trials that failed
        raise typer.Exit(1)


@app.command(epilog=_EXAMPLE + "demo --out demo")
def demo(out: Path = Option(Path("demo"), file_okay=False, help="Folder for the page.")) -> None:
    """Train a recurrence with and without SIRE on three tasks, audit both, and write a page (a few minutes)."""
    _make_folder(out)

    from anyorder.cli import demo

    demo.run(out)


@app.command(epilog=_EXAMPLE + "report results")
def report(
    folder: str = Argument("results", help="Folder of the rows."),
    own: list[str] | None = Argument(
        None, metavar="MODULE:EXPERIMENT", help="Experiments of your own to show as well."
    ),
) -> None:
    """Write RESULTS.md and report.html from the rows in a folder."""
    from anyorder.paper.experiments import experiment_named
    from anyorder.paper.report.page import write_report

    for path in write_report(folder, [experiment_named(name) for name in own or ()]):
        typer.echo(f"wrote {path}")
