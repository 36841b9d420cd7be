"""The command ``anyorder``, also as ``python -m anyorder``."""

import sys

from anyorder import checks


def main() -> None:
    """Run a command; a user's mistake becomes one line on stderr and exit status 2."""
    try:
        checks.extra("anyorder.cli.app", "tables", "the command line").main()
    except checks.InputError as error:  # typer is missing
        print(f"anyorder: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
