"""Rows on disk: ``<out>/<experiment>.jsonl``, one object a finished trial and test setting."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyorder.checks import InputError
from anyorder.files import write_atomically
from anyorder.paper.runner.trial import Row

_KEYS = {
    "experiment", "method", "setting", "seed", "scale", "validation", "metrics", "selected", "parameters", "seconds",
    "trial", "reads", "trial_rows",
}  # fmt: skip


def rows_path(out: str | Path, experiment: str) -> Path:
    """The rows file of an experiment in the folder ``out``."""
    return Path(out) / f"{experiment}.jsonl"


def read_rows(path: Path) -> list[Row]:
    """The rows of the finished trials in a jsonl file.

    A last line that was cut off is left out, and so are the other rows of a trial that lost one: the next sweep runs
    it again and repairs the file. A line that stands there twice, as a merge may leave it, counts once.
    """
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    seen: dict[tuple[str, str], Row] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines) and line.startswith(b"{"):  # no newline follows: it was cut off
                continue
            row = None
        if not (isinstance(row, dict) and row.keys() >= _KEYS and seen.setdefault(_identity(row), row) == row):
            raise InputError(
                f"{path}, line {number} must be a JSON object with the keys {', '.join(sorted(_KEYS))}, and no second "
                "version of an earlier line; mend or remove that line"
            )
    rows_of = Counter(row["trial"] for row in seen.values())
    return [row for row in seen.values() if rows_of[row["trial"]] >= row["trial_rows"]]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Replace ``path`` by ``rows`` in a fixed order; a reader sees the old file or the new one, never a part."""
    ordered = sorted(rows, key=lambda row: (row["scale"], row["method"], _text(row["setting"]), row["seed"]))
    write_atomically(path, "".join(_text(row) + "\n" for row in ordered))


def _identity(row: Row) -> tuple[str, str]:
    return row["trial"], _text([row["setting"], row["reads"]])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
