"""Run the benchmarks, print their ratios and keep them in benchmarks/results.json: ``make bench``.

``python -m benchmarks core loop`` runs those parts alone; the others keep the figures of their last run.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PARTS = ["core", "fold", "cost", "precision", "models", "compactness", "loop", "scale", "growth", "real", "audit"]
RESULTS = Path(__file__).with_name("results.json")


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        print(f"benchmarks: no part is called {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or PARTS:
        measured = importlib.import_module(f"benchmarks.{name}").run()
        show(name, measured)
        kept.update(measured)
        RESULTS.write_text(json.dumps(dict(sorted(kept.items())), indent=2) + "\n")
    return 0


def show(part: str, measured: dict[str, Any]) -> None:
    table = Table(title=part)
    for column in ("name", "value", "goal", "met", "what"):
        table.add_column(column)
    for name, m in measured.items():
        sign = "≤" if m["better"] == "lower" else "≥"
        goal = "" if m["goal"] is None else f"{sign} {m['goal']:g}"
        met = {True: "yes", False: "NO", None: ""}[m["met"]]
        table.add_row(name, f"{m['value']:.3f}", goal, met, m["what"])
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
