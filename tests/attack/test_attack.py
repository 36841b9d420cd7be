"""The attack: thousands of damaged files, each with one of two ends, the right result or one line that refuses it.

``make attack`` runs the long form (``ANYORDER_ATTACK=long``), with fresh damage for another ``ANYORDER_SEED``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.attack
LONG = os.environ.get("ANYORDER_ATTACK") == "long"
COUNTS = {"folders": 900, "snapshots": 700, "checkpoints": 500, "tables": 600}


@pytest.mark.parametrize("kind", COUNTS)
def test_a_damaged_file_is_refused_in_one_line_or_harmless(kind):
    count = COUNTS[kind] * (20 if LONG else 1)
    command = [sys.executable, Path(__file__).with_name("damage.py"), kind, str(count)]
    seed = os.environ.get("ANYORDER_SEED", "0")
    done = subprocess.run([*command, seed], capture_output=True, text=True, timeout=3600 if LONG else 300)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{lines[-1:]} ended the process: {done.stderr[-2000:]}"
    outcomes = {case: found for case, found in lines if found is not None}
    assert len(outcomes) == count
    assert {case: found for case, found in outcomes.items() if found not in ("right", "refused")} == {}
    assert Counter(outcomes.values())["refused"] > count / 2
