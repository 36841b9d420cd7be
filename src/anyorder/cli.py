"""The command line: each command checks its words, calls the library, and says what it wrote.

Nothing heavy is imported until a command runs. Bad input ends with one line on stderr and exit status 2.
"""

from __future__ import annotations

import sys

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


# --- anyorder data

data = typer.Typer(
    name="data", help="The real data sets: what is there, where, under what licence.", no_args_is_help=True
)
app.add_typer(data)


@data.command("list")
def data_list() -> None:
    """Show every data set in each form it comes in, whether it is there, how large it is, and its licence."""
    from anyorder.paper import sources

    for name, source in sources.SOURCES.items():
        folder = sources.where(name)
        if folder is None:
            state = "not here" + (", can be fetched" if source.downloads else "")
        else:
            state = f"in {folder}, {sources.size_text(name)}"
        typer.echo(f"{name}: {source.what}\n    {state}; licence: {source.licence}")


@data.command("fetch")
def data_fetch(name: str = typer.Argument(help="A name that `anyorder data list` shows.")) -> None:
    """Download a data set into the cache and check it, or say where to get it."""
    from anyorder.paper import sources

    typer.echo(f"{name}: complete and checked in {sources.fetch(name)}")


@data.command("where")
def data_where(name: str | None = typer.Argument(None, help="Print the files of this data set instead.")) -> None:
    """Print the folders that are searched, first to last, or the files of one data set."""
    from anyorder._checks import InputError
    from anyorder.paper import sources

    if name is None:
        typer.echo("\n".join(str(folder) for folder in sources.data_folders()))
        return
    folder = sources.where(name)
    if folder is None:
        source = sources.SOURCES[name]
        places = " or ".join(map(str, sources.data_folders()))
        raise InputError(f"{name} is in none of the folders searched ({places}); {source.advice}")
    typer.echo("\n".join(str(folder / file.path) for file in sources.SOURCES[name].files))


@app.command()
def reproduce(
    experiment: str = typer.Argument(help="parity, sub-vs-sire, labels, half-range, dial, lengths, sum, range, …"),
    scale: str = typer.Option("laptop", help="smoke (seconds), laptop (hours), paper (the full protocol)."),
    jobs: int | None = typer.Option(None, help="Local processes; one a core if not given."),
    engine: str = typer.Option("local", help="local, or ray for a Ray cluster."),
    address: str | None = typer.Option(None, help="Of the Ray head; starts Ray on this machine if not given."),
    out: str = typer.Option("results", help="Folder of the rows; a sweep found there is continued."),
    only: str | None = typer.Option(None, help="Methods to run, separated by commas."),
    seeds: int | None = typer.Option(None, help="Seeds a setting, instead of the declared number."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the plan and the estimated time, and stop."),
) -> None:
    """Run one table or figure of the paper; what is already in the rows is not run again."""
    from anyorder.paper.reproduce import reproduce as run

    methods = None if only is None else [name.strip() for name in only.split(",")]
    problems = run(
        experiment,
        scale,
        out=out,
        jobs=jobs,
        engine=engine,
        address=address,
        only=methods,
        seeds=seeds,
        dry_run=dry_run,
    )
    if problems:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; input errors become one line on stderr and exit status 2."""
    try:
        app(standalone_mode=True)
    except (ValueError, TypeError, OSError) as error:
        from anyorder._checks import InputError, InputTypeError

        if not isinstance(error, (InputError, InputTypeError, OSError)):
            raise
        print(f"anyorder: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
