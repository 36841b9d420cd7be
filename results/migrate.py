"""Bring rows made before the settings were renamed to the present format: ``python results/migrate.py [folder]``.

A setting, a metric or a key gets its new name, what the row says indirectly (reads, steps, rows of a trial) is written
out, and what nobody knows any more is null. ``trial`` stays. Rows in the present format are left as they are.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]

SETTINGS = {"unlabelled": "unlabeled", "states": "prefixes", "bptt": "truncate"}
PREFIXES = {"prefix": "given", "subset": "random"}
METRICS = {"order_gap": "state_gap_squared"}


def migrated(rows: list[Row]) -> list[Row]:
    """``rows`` in the present format, in the order in which a sweep writes them."""
    rows_of = Counter(row["trial"] for row in rows)
    found = [_migrated(row, rows_of[row["trial"]]) for row in rows]
    return sorted(found, key=lambda row: (row["scale"], row["method"], _text(row["setting"]), row["seed"]))


def _migrated(row: Row, trial_rows: int) -> Row:
    method = row["method"].replace("unlabelled", "unlabeled")
    setting = {SETTINGS.get(key, key): value for key, value in row["setting"].items()}
    if "prefixes" in setting:
        setting["prefixes"] = PREFIXES.get(setting["prefixes"], setting["prefixes"])
    metrics = {METRICS.get(key, key): value for key, value in row["metrics"].items()}
    steps = metrics.pop("steps", None)
    written_out = {"reads": _reads(method, setting), "steps": None if steps is None else round(steps)}
    written_out |= {"commit": None, "threads": None, "trial_rows": trial_rows}
    return {**written_out, **row, "method": method, "setting": setting, "metrics": metrics}


def _reads(method: str, setting: dict[str, Any]) -> int:
    """How many orderings of a test set were averaged: 20 of numbers, and of real data what the setting says or 5."""
    if method != "pi-sgd":
        return 1
    return 20 if "task" in setting else setting.get("votes", 5)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def main(folder: Path) -> None:
    for path in sorted(folder.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(_text(row) + "\n" for row in migrated(rows)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
