"""Commands killed at random moments: what the last one ends with is what one that nothing has killed ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest

pytestmark = [pytest.mark.attack, pytest.mark.kill]

KILLS = 20 if os.environ.get("ANYORDER_ATTACK") == "long" else 3
RUN = """
    import json, os, random, signal, sys, time
    from pathlib import Path
    import anyorder.estimators.table_model, anyorder.paper.runner.sweep  # what is loaded once is loaded
    from anyorder.__main__ import main
    from anyorder.training.checkpoint import Checkpoint

    ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
    Checkpoint.write_if_due = Checkpoint.write  # after each step

    def start(*words):
        child = os.fork()
        if child == 0:
            os.environ["ANYORDER_HOME"], sys.argv = "home", ["anyorder", *words]
            try:
                main()
            except SystemExit as stop:
                os._exit(stop.code or 0)
        return child

    def kept():
        files = [*Path("home/runs").rglob("*.safetensors"), *Path("killed").glob("*.jsonl")]
        return {str(file): file.stat().st_mtime_ns for file in files}

    def again():
        return ["--resume"] if words[0] == "train" and kept() else []

    (*words, kills), moments, ends = sys.argv[1:], random.Random(0), []
    ends.append(os.waitpid(start(*words, "--out", "whole"), 0)[1])
    for number in range(int(kills)):
        before, child = kept(), start(*words, "--out", "killed", *again())
        waits = number % (int(kills) // 3) == 0  # however busy the machine, three or four runs get somewhere
        while waits and kept() == before and not os.waitid(os.P_PID, child, ENDED):
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        ends.append(os.waitpid(child, 0)[1])
    ends.append(os.waitpid(start(*words, "--out", "killed", *again()), 0)[1])
    assert ends == [0, *[signal.SIGKILL] * int(kills), 0], ends
"""


def run_killed(folder, command):
    """Run a command to its end in ``whole``; and in ``killed``, until the last of some kills."""
    words = [sys.executable, "-c", textwrap.dedent(RUN), *command.split(), str(KILLS)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_killed_training_ends_with_the_same_weights(tmp_path):
    draws = np.random.default_rng(0)
    rows = pd.DataFrame({"visit": np.repeat(np.arange(120), 3), "dose": draws.normal(size=360).round(3)})
    rows["outcome"] = np.where(rows.groupby("visit")["dose"].transform("sum") > 0, "up", "down")
    rows.to_csv(tmp_path / "t.csv", index=False)
    options = "--hidden 4 --batch-size 8 --epochs 30 --patience 99 --no-yardstick --shuffle"
    run_killed(tmp_path, f"train t.csv --set-id visit --target outcome {options}")
    whole, killed = (tmp_path / name for name in ("whole", "killed"))
    assert (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()
    epochs = [json.loads(line)["epoch"] for line in (killed / "log.jsonl").read_text().splitlines()]
    assert epochs == list(range(30))


def test_a_killed_sweep_ends_with_each_row_once(tmp_path):
    run_killed(tmp_path, "reproduce lengths --scale smoke --jobs 1 --only plain,sire")
    changes = ("seconds", "versions", "command", "curve", "commit")  # from run to run
    whole, killed = (
        sorted(
            json.dumps({key: value for key, value in json.loads(line).items() if key not in changes}, sort_keys=True)
            for line in (tmp_path / name / "lengths.jsonl").read_text().splitlines()
        )
        for name in ("whole", "killed")
    )
    assert whole == killed
    assert [file.name for file in (tmp_path / "killed").iterdir()] == ["lengths.jsonl"]
    assert not [*(tmp_path / "home").glob("trials/*/*")]  # nothing unfinished is left behind
