"""``python -m anyorder``, the same as the command ``anyorder``."""

from anyorder.cli.app import main

if __name__ == "__main__":
    main()
