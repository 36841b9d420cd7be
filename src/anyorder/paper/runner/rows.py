"""Rows on disk: ``<out>/<experiment>.jsonl``, one object a finished trial and test setting."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyorder.checks import InputError
from anyorder.files import write_atomically
from anyorder.paper.runner.trial import Row, is_number

_KINDS = {
    **dict.fromkeys(("experiment", "method", "scale", "trial"), (str, "text")),
    **dict.fromkeys(("setting", "validation", "metrics"), (dict, "an object")),
    **dict.fromkeys(("seed", "reads", "parameters", "trial_rows"), (int, "a whole number")),
    "seconds": (int | float, "a number"),
    "selected": (bool, "true or false"),
}


def rows_path(out: str | Path, experiment: str) -> Path:
    """The rows file of an experiment in the folder ``out``, which is there or can be made."""
    path = Path(out) / f"{experiment}.jsonl"
    there = next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir() or not there.is_dir():
        wrong = f"{path} must be a file, not a folder" if path.is_dir() else f"out must be a folder; {there} is a file"
        raise InputError(f"{wrong}; move it away, or choose another folder")
    return path


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
            wrong = _what_is_wrong(row)
            if not wrong and seen.setdefault(_identity(row), row) != row:
                wrong = "has other figures of the trial and setting of an earlier line"
        except ValueError as error:
            if number == len(lines) and line.startswith(b"{"):  # no newline follows: it was cut off
                continue
            wrong = f"is not JSON ({error})"
        if wrong:
            raise InputError(f"{path}, line {number} {wrong}; mend or remove that line")
    rows_of = Counter(row["trial"] for row in seen.values())
    return [row for row in seen.values() if rows_of[row["trial"]] >= row["trial_rows"]]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Replace ``path`` by ``rows`` in a fixed order; a reader sees the old file or the new one, never a part."""
    ordered = sorted(rows, key=lambda row: (row["scale"], row["method"], _text(row["setting"]), row["seed"]))
    write_atomically(path, "".join(_text(row) + "\n" for row in ordered))


def _what_is_wrong(row: Any) -> str:
    """Why a sweep or a report could not read ``row``; empty if they can."""
    given = row if isinstance(row, dict) else {}
    for key, (kind, words) in _KINDS.items():
        if not isinstance(given.get(key), kind):
            return f"is not a row of a trial: {key!r} must be {words}; found {given.get(key)!r}"
    for part in ("validation", "metrics"):
        for key, value in given[part].items():
            if not is_number(value):
                return f"is not a row of a trial: {key!r} of its {part} must be a number; found {value!r}"
    return ""


def _identity(row: Row) -> tuple[str, str]:
    return row["trial"], _text([row["setting"], row["reads"]])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
