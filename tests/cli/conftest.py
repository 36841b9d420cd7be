"""Commands that are run in an empty folder, and a model that is trained once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from commands import TRAIN, visits

from anyorder.__main__ import main


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYORDER_HOME", str(tmp_path / "home"))

    def call(words):
        monkeypatch.setattr(sys, "argv", ["anyorder", *(words.split() if isinstance(words, str) else words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def succeed(run):
    """Run a command that must succeed; returns what it printed."""

    def call(words):
        status, out, err = run(words)
        assert status == 0, err
        return out

    return call


@pytest.fixture
def refused(run):
    """Run a command that must fail with one line on stderr; returns that line."""

    def call(words):
        status, _, err = run(words)
        assert status == 2, err
        *progress, line = err.splitlines()
        assert line.startswith("anyorder: ")
        assert all(said.startswith("epoch ") for said in progress)
        return line

    return call


@pytest.fixture
def table(run, tmp_path):
    """A folder with a table, ``t.csv``."""
    visits().to_csv(tmp_path / "t.csv", index=False)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    visits().to_csv(folder / "t.csv", index=False)
    environment = {**os.environ, "ANYORDER_HOME": str(folder / "home")}
    subprocess.run([sys.executable, "-m", "anyorder", *TRAIN.split()], cwd=folder, env=environment, check=True)
    return folder / "model"


@pytest.fixture
def here(table, trained):
    """A folder with a table, ``t.csv``, and a model trained on it."""
    shutil.copytree(trained, table / "model")
    return table
