"""The command line: each command checks its words, calls the library, and says what it wrote.

Nothing heavy is imported until a command's words are known to be right. Bad input ends with one line on stderr and
exit status 2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="anyorder",
    help="Train recurrent models that ignore the order of their input, and find out whether order matters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from anyorder import __version__

        typer.echo(f"anyorder {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    pass


# --- from a table to a model

_TABLE = typer.Argument(help="A long table, one row an element: .csv, .tsv, .parquet or .npz.")
_MODEL = typer.Argument(help="A model folder that `anyorder train` wrote.")
_MODELS = typer.Argument(metavar="MODEL...", help="Model folders that `anyorder train` wrote; several are compared.")
_FORCE = typer.Option(False, "--force", help="Replace what is there.")
_EXAMPLE = "Example:  anyorder "


@app.command(
    epilog=_EXAMPLE
    + "train visits.csv --set-id patient --target readmitted --time time --penalty-window 3 --penalty-weight 1 "
    "--out model"
)
def train(
    table: str = _TABLE,
    set_id: str = typer.Option(..., "--set-id", help="The column that says which set a row belongs to."),
    target: str = typer.Option(..., help="The column to predict, the same in every row of a set."),
    out: str = typer.Option(..., help="The model folder to write."),
    time: str | None = typer.Option(
        None, help="Column of numbers or times that sorts the rows of each set. [default: rows stay as they are]"
    ),
    features: str | None = typer.Option(None, help="Feature columns, separated by commas; all others if not given."),
    categorical: str | None = typer.Option(None, help="Numeric columns to read as categories."),
    missing: str = typer.Option("error", help="Missing values: error, drop-row, mean or zero."),
    task: str | None = typer.Option(None, help="classification or regression, where the target leaves it open."),
    unlabeled: str | None = typer.Option(None, help="A table without the target, whose sets serve the penalty."),
    model: str = typer.Option("recurrent", help="recurrent, deepsets, janossy, set-transformer, …"),
    cell: str | None = typer.Option(None, help="gru, lstm, rnn, … of a recurrent model."),
    hidden: int | None = typer.Option(None, help="Width of the hidden state."),
    layers: int | None = typer.Option(None, help="Layers of a recurrent model."),
    penalty: str | None = typer.Option(None, help="On order: sire (if not given), sub or permutation."),
    penalty_weight: str = typer.Option("auto", help="Of the penalty on order: a number; auto: order hardly counts."),
    penalty_window: int | None = typer.Option(None, help="Only elements at most so far apart need commute (sire)."),
    penalty_states: str | None = typer.Option(
        None, help="Where sire swaps: after a subset drawn at random, or a prefix of the given order (with a window)."
    ),
    shuffle: bool = typer.Option(False, "--shuffle", help="Read each set in a fresh random order every epoch."),
    shuffle_within: int | None = typer.Option(None, help="As --shuffle, inside windows of so many alone."),
    truncate: int | None = typer.Option(None, help="Send gradients back through so many elements at most."),
    epochs: int | None = typer.Option(None, help="Passes over the sets."),
    batch_size: int | None = typer.Option(None, help="Sets a step."),
    optimizer: str | None = typer.Option(None, help="adam (if not given), adamw, rmsprop or sgd."),
    learning_rate: float | None = typer.Option(None, help="Of the optimiser."),
    weight_decay: float | None = typer.Option(None, help="Of the optimiser."),
    schedule: str | None = typer.Option(
        None, help="Of the learning rate: one-cycle (if not given), plateau or constant."
    ),
    clip: str | None = typer.Option(None, help="The largest norm of a gradient, 1 if not given; or none."),
    mixed_precision: str | None = typer.Option(None, help="fp16, bf16 or no; what accelerate says if not given."),
    validation_fraction: float = typer.Option(0.1, help="Share of the sets held out to pick the best epoch."),
    patience: int | None = typer.Option(None, help="Stop after so many epochs without a better one."),
    seed: int = typer.Option(0, help="The same seed gives the same model."),
    tensorboard: str | None = typer.Option(None, help="A folder to write the figures of each epoch to."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run that was interrupted."),
    force: bool = _FORCE,
) -> None:
    """Learn from a table of events, readings or items grouped into sets, and write a model folder."""
    from anyorder.cli.usage import check_train, number_or

    columns: dict[str, Any] = {"set_id": set_id, "target": target, "time": time, "missing": missing, "task": task}
    columns |= {"features": _names(features), "categorical": _names(categorical) or []}
    settings = {
        "model": model,
        "model_options": _given(cell=cell, hidden=hidden, layers=layers),
        "penalty_weight": number_or("auto", "--penalty-weight", penalty_weight, at_least=0.0),
        "validation_fraction": validation_fraction,
        "random_state": seed,
        **_given(shuffle=shuffle or shuffle_within is not None or None, shuffle_within=shuffle_within),
        **_given(penalty=penalty, truncate=truncate, optimizer=optimizer),
        **_given(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, patience=patience),
        **_given(weight_decay=weight_decay, schedule=schedule, mixed_precision=mixed_precision),
        **_given(tensorboard=tensorboard),
    }
    if clip is not None:
        largest = number_or("none", "--clip", clip, above=0.0)
        settings["clip"] = None if largest == "none" else largest
    if penalty_states is None and penalty_window is not None:
        penalty_states = "prefix"  # a window is one of the given order
    words: dict[str, Any] = {"columns": columns, "settings": settings, "unlabeled": unlabeled}
    words |= {"penalty_options": _given(states=penalty_states, window=penalty_window)}
    words |= {"resume": resume, "force": force}
    check_train(table, out, **words)
    from anyorder.cli.commands import train_table

    train_table(table, out, **words)


@app.command(epilog=_EXAMPLE + "predict model new_visits.csv --out predictions.csv")
def predict(
    model: str = _MODEL,
    table: str = _TABLE,
    out: str = typer.Option(..., help="The file to write, .csv or .parquet."),
    orderings: int = typer.Option(1, help="Take the mean over so many random orderings of each set, if above 1."),
    force: bool = _FORCE,
) -> None:
    """Write a prediction for every set of a table; a target column is ignored."""
    from anyorder.cli.usage import check_predict

    check_predict(model, table, out, orderings=orderings, force=force)
    from anyorder.cli.commands import predict_table

    predict_table(model, table, out, orderings=orderings, force=force)


@app.command(epilog=_EXAMPLE + "audit model visits.csv --out audit.html")
def audit(
    models: list[str] = _MODELS,
    table: str = _TABLE,
    out: str = typer.Option(..., help="The page to write, .html."),
    samples: int = typer.Option(1000, help="Sets to audit at most, drawn at random."),
    orderings: int = typer.Option(32, help="Random orderings of each set."),
    seconds: float | None = typer.Option(None, help="For all models together; the page shows what is known by then."),
    seed: int = typer.Option(0, help="The same seed gives the same page."),
    force: bool = _FORCE,
) -> None:
    """Measure how much the order of each set's rows matters to a model, and write a page with pictures.

    With several models the page compares them: accuracy, or error, against the order gap.
    """
    from anyorder.cli.commands import audit_table, compare_table

    options = {"samples": samples, "orderings": orderings, "seconds": seconds, "seed": seed, "force": force}
    if len(models) == 1:
        audit_table(models[0], table, out, **options)  # type: ignore[arg-type]
    else:
        compare_table(models, table, out, **options)  # type: ignore[arg-type]


@app.command(epilog=_EXAMPLE + "export model --onnx model.onnx")
def export(
    model: str = _MODEL,
    onnx: str = typer.Option(
        ..., "--onnx", help="File of the step; the read-out goes beside it, as model.readout.onnx."
    ),
    force: bool = _FORCE,
) -> None:
    """Write a model's single step and its read-out as ONNX, checked numerically against torch."""
    from anyorder.cli.usage import check_export

    check_export(model, onnx, force=force)
    from anyorder.cli.commands import export_model

    export_model(model, onnx, force=force)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


# --- anyorder data

data = typer.Typer(
    name="data", help="The real data sets: what is there, where, under what licence.", no_args_is_help=True
)
app.add_typer(data)


@data.command("list", epilog=_EXAMPLE + "data list")
def data_list() -> None:
    """Show every data set in each form it comes in, whether it is there, how large it is, and its licence."""
    from anyorder.paper.data import sources

    for name, source in sources.SOURCES.items():
        folder = sources.where(name)
        if folder is None:
            trusting = ", can be fetched with --trust" if source.url else ""
            state = "not here" + (", can be fetched" if source.downloads else trusting)
        else:
            state = f"in {folder}"
        size = f", {text}" if (text := sources.size_text(name)) else ""
        typer.echo(f"{name}: {source.what}\n    {state}{size}; licence: {source.licence}")


@data.command("fetch", epilog=_EXAMPLE + "data fetch mnist")
def data_fetch(
    name: str = typer.Argument(help="A name that `anyorder data list` shows."),
    trust: bool = typer.Option(False, "--trust", help="Download even if no checksum is published; write it down."),
) -> None:
    """Download a data set into the cache and check it, or say where to get it."""
    from anyorder.paper.data import sources

    typer.echo(f"{name}: complete and checked in {sources.fetch(name, trust=trust)}")


@data.command("where", epilog=_EXAMPLE + "data where ecg5000")
def data_where(name: str | None = typer.Argument(None, help="Print the files of this data set instead.")) -> None:
    """Print the folders that are searched, first to last, or the files of one data set."""
    from anyorder.checks import InputError
    from anyorder.paper.data import sources

    if name is None:
        typer.echo("\n".join(str(folder) for folder in sources.data_folders()))
        return
    folder = sources.where(name)
    if folder is None:
        source = sources.SOURCES[name]
        places = " or ".join(map(str, sources.data_folders()))
        others = [n for n, s in sources.SOURCES.items() if s.dataset == source.dataset and sources.where(n)]
        advice = f"the same data is here as {others[0]} (anyorder data where {others[0]})" if others else source.advice
        raise InputError(f"{name} is in none of the folders searched ({places}); {advice}")
    typer.echo("\n".join(str(folder / file) for file in sources.SOURCES[name].files))


@app.command(epilog=_EXAMPLE + "reproduce parity --scale smoke --out mine")
def reproduce(
    experiment: str = typer.Argument(help="parity, sub-vs-sire, sum, …, or all of a kind: synthetic, real."),
    scale: str = typer.Option("laptop", help="smoke (seconds), laptop (hours), paper (the full protocol)."),
    jobs: int | None = typer.Option(None, help="Local processes; one a core if not given."),
    engine: str = typer.Option("local", help="local, or ray for a Ray cluster."),
    address: str | None = typer.Option(None, help="Of the Ray head; starts Ray on this machine if not given."),
    cpus: int | None = typer.Option(None, help="Processors a trial, as many threads; one if not given."),
    gpus: float | None = typer.Option(None, help="GPUs a trial, or a share of one; none if not given."),
    out: str = typer.Option("results", help="Folder of the rows; a sweep found there is continued."),
    only: str | None = typer.Option(None, help="Methods to run, separated by commas."),
    seeds: int | None = typer.Option(None, help="Seeds a setting, instead of the declared number."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the plan and the estimated time, and stop."),
) -> None:
    """Run one table or figure of the paper; what is already in the rows is not run again."""
    from anyorder.cli.usage import check_reproduce

    check_reproduce(experiment, scale, engine, **_given(jobs=jobs, cpus=cpus, seeds=seeds))
    from anyorder.paper.runner.reproduce import reproduce as run

    methods = None if only is None else [name.strip() for name in only.split(",")]
    problems = run(
        experiment,
        scale,
        out=out,
        jobs=jobs,
        engine=engine,
        address=address,
        cpus=cpus,
        gpus=gpus,
        only=methods,
        seeds=seeds,
        dry_run=dry_run,
    )
    if problems:
        raise typer.Exit(1)


@app.command(epilog=_EXAMPLE + "demo --out demo")
def demo(out: Annotated[Path, typer.Option(help="Folder for the page.")] = Path("demo")) -> None:
    """Train the same recurrence with and without SIRE on three tasks, audit it, and write a page (a few minutes)."""
    from anyorder.cli.demo import run

    run(out, say=typer.echo)


@app.command(epilog=_EXAMPLE + "report results")
def report(folder: str = typer.Argument("results", help="The folder that holds the rows.")) -> None:
    """Make RESULTS.md, report.html and labels.svg from the rows in a folder."""
    from anyorder.paper.report.page import write_report

    for path in write_report(folder):
        typer.echo(f"wrote {path}")


def main() -> None:
    """Run the command line; what the user got wrong becomes one line on stderr and exit status 2."""
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(130)  # interrupted from the keyboard
    except Exception as error:
        message = _fault_of_the_user(error)
        if message is None:
            raise
        if message:
            print(f"anyorder: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


def _fault_of_the_user(error: Exception) -> str | None:
    """What to tell the user; "" if help has been printed already, None if the fault is ours."""
    if hasattr(error, "format_message"):  # a word on the command line that typer does not know, or misses
        said = error.format_message()
        return f"{said} (anyorder --help lists the commands, anyorder COMMAND --help its options)" if said else ""
    from anyorder.checks import InputError, InputTypeError

    return str(error) if isinstance(error, (InputError, InputTypeError, OSError)) else None
