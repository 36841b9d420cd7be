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
