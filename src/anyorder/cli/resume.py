"""Where an unfinished training run of the command line waits, found again by what it was asked. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyorder.checks import InputError
from anyorder.files import home, is_model_folder, write_atomically

_IN_WORDS = {"random_state": "seed"}  # an estimator's -> the command line's


def asked_for(
    columns: Mapping[str, Any],
    settings: Mapping[str, Any],
    penalty_options: Mapping[str, Any] | None,
    unlabeled: str | Path | None,
) -> dict[str, Any]:
    """What a training is asked to do, by the names of the command line; what it only writes down does not count.

    >>> asked_for({"time": "day"}, {"shuffle": True, "random_state": 3}, {"window": 2}, None)
    {'time': 'day', 'shuffle': True, 'seed': 3, 'penalty_window': 2, 'unlabeled': None}
    """
    asked = {_IN_WORDS.get(name, name): value for name, value in settings.items() if name != "tensorboard"}
    if "shuffle_within" in asked:
        asked["shuffle"] = None
    if "clip" in asked:
        asked["clip"] = "none" if asked["clip"] is None else asked["clip"]
    options = {f"penalty_{name}": value for name, value in (penalty_options or {}).items()}
    return {**columns, **asked, **options, "unlabeled": unlabeled}


class Run:
    """Where an unfinished training run waits, by what it was asked to do."""

    def __init__(self, table: str | Path, out: str | Path, asked: Mapping[str, Any]) -> None:
        table, out = Path(table), Path(out)
        self.out = out
        self.first_process = os.environ.get("RANK", "0") == "0"
        stamp = [table.stat().st_size, table.stat().st_mtime_ns] if table.is_file() else None
        wanted = [str(table.resolve()), stamp, str(out.resolve()), asked]
        self.asked = json.dumps(wanted, sort_keys=True, default=str)
        self.folder = home() / "runs" / hashlib.sha256(self.asked.encode()).hexdigest()[:20]

    @property
    def unfinished(self) -> bool:
        """Whether a checkpoint waits here."""
        return _has_checkpoint(self.folder)

    @property
    def _replaces(self) -> Path:
        return self.folder / "replaces-the-model"  # there when the run was started with --force

    def check(self, resume: bool, force: bool) -> None:
        unfinished = self.unfinished
        if resume and not unfinished:
            raise InputError(f"there is nothing to resume: {self._alike()}; leave --resume out to start afresh")
        if unfinished and not resume and not force:
            raise InputError(
                f"a run with these very settings was not finished; go on with --resume, or start afresh with --force "
                f"(it waits in {self.folder})"
            )
        if not self.out.exists() or (resume and unfinished and self._replaces.exists()):
            return
        if not force:
            raise InputError(f"{self.out} exists; choose another --out, or replace it with --force")
        if not is_model_folder(self.out) and (not self.out.is_dir() or any(self.out.iterdir())):
            raise InputError(f"{self.out} is not a model folder, so --force does not replace it; choose another --out")

    def begin(self, force: bool) -> None:
        if force:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / "asked.json", self.asked)
        if force:
            self._replaces.touch()

    def end(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _alike(self) -> str:
        """What sets an unfinished run for the same --out apart from this one."""
        here = json.loads(self.asked)
        for file in sorted(self.folder.parent.glob("*/asked.json")):
            try:
                there = json.loads(file.read_text(encoding="utf-8"))
            except (ValueError, OSError):  # cut short, or gone by now: nothing can be said of it
                continue
            if there[2] == here[2] and _has_checkpoint(file.parent):
                if there[0] != here[0]:
                    return f"the unfinished run for {self.out} was of another table, {there[0]}"
                if there[3] == here[3]:
                    return f"{there[0]} has changed since the unfinished run for {self.out} began"
                then, now = _options(there[3]), _options(here[3])
                changed = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
                words = [f"with {name} {then[name]}".strip() if name in then else f"without {name}" for name in changed]
                return f"the unfinished run for {self.out} was started {', '.join(words)}"
        return f"no run for {self.out} is unfinished"


def _has_checkpoint(folder: Path) -> bool:
    return folder.is_dir() and any(p.suffix == ".safetensors" for p in folder.iterdir())


def _options(asked: dict[str, Any]) -> dict[str, str]:
    """What was asked, in the words of the command line."""
    asked = {**asked, **(asked.get("model_options") or {})}
    return {
        f"--{name.replace('_', '-')}": _word(value)
        for name, value in asked.items()
        if name != "model_options" and value not in (None, [])
    }


def _word(value: Any) -> str:
    return "" if value is True else ",".join(value) if isinstance(value, list) else str(value)
