"""Answers on disk, so that an interrupted audit goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

from anyorder.checks import InputError


class Cache:
    """Answers in an SQLite file, by the content of a set in an ordering and how often that was read before.

    A batch of answers is stored whole or not at all. Answers are JSON: nothing that is read can run code.
    """

    def __init__(self, path: str | os.PathLike[str], model: str) -> None:
        self._model, self._read = model.encode(), Counter[str]()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = sqlite3.connect(path, timeout=60)
            with self._file:
                self._file.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")
        except sqlite3.Error as error:
            raise InputError(f"cache must be a file that an audit wrote, or a new one; {path}: {error}") from None

    def keys(self, contents: list[Any]) -> list[str]:
        """The keys of the next readings of these contents."""
        keys = []
        for content in contents:
            digest = hashlib.sha256(self._model + b"\0" + json.dumps(content, default=_plain).encode()).hexdigest()
            keys.append(f"{digest}-{self._read[digest]}")
            self._read[digest] += 1
        return keys

    def get(self, keys: list[str]) -> dict[str, Any]:
        """The answers that are known."""
        found = {}
        for key in keys:
            for (answer,) in self._file.execute("SELECT answer FROM answers WHERE key = ?", (key,)):
                found[key] = json.loads(answer)
        return found

    def put(self, answers: dict[str, Any]) -> dict[str, Any]:
        """Store a batch of answers; returns them as :meth:`get` will."""
        rows = {key: json.dumps(answer, default=_plain) for key, answer in answers.items()}
        with self._file:
            self._file.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows.items())
        return {key: json.loads(answer) for key, answer in rows.items()}

    def close(self) -> None:
        self._file.close()


def _plain(value: Any) -> Any:
    """JSON for what JSON does not know; a file is what it holds."""
    if isinstance(value, Path):
        return hashlib.sha256(value.read_bytes()).hexdigest() if value.is_file() else str(value)
    if hasattr(value, "columns"):
        return [list(map(str, value.columns)), value.to_numpy().tolist()]
    for method in ("tolist", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    kind = type(value).__name__
    raise InputError(f"cache keeps texts, numbers, lists, dicts, arrays, dates and paths; got a {kind}")
