"""What can be told of a command's words before torch is imported: names, numbers, files and places.

Each check is made again where the work is done; here a slip is answered at once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyorder import _names
from anyorder.checks import InputError, one_of, real_number, whole_number
from anyorder.cli.resume import Run, asked_for
from anyorder.files import require_model_folder, table_ending


def check_train(
    table: str,
    out: str,
    *,
    columns: Mapping[str, Any],
    settings: Mapping[str, Any],
    penalty_options: Mapping[str, Any],
    unlabeled: str | None,
    resume: bool,
    force: bool,
) -> None:
    """Refuse what :func:`anyorder.commands.train_table` would refuse without having read the table."""
    if resume and force:
        raise InputError("--resume continues an unfinished run and --force starts afresh; choose one")
    one_of("missing", columns["missing"], _names.MISSING)
    one_of("task", columns["task"], (None, *_names.TASKS))
    one_of("--model", settings["model"], _names.MODELS)
    if "cell" in settings["model_options"]:
        one_of("cell", settings["model_options"]["cell"], _names.CELLS)
    for name, allowed in {
        "penalty": _names.PENALTIES,
        "optimizer": _names.OPTIMIZERS,
        "schedule": _names.SCHEDULES,
        "mixed_precision": _names.PRECISIONS,
    }.items():
        if name in settings:
            one_of(_option(name), settings[name], allowed)
    if penalty_options and settings.get("penalty", "sire") != "sire":
        raise InputError(
            f"--penalty-window and --penalty-states are options of --penalty sire; got --penalty "
            f"{settings['penalty']}: leave them out, or choose sire"
        )
    if "prefixes" in penalty_options:
        one_of("--prefixes", penalty_options["prefixes"], _names.PREFIXES)
    if "window" in penalty_options:
        whole_number("--penalty-window", penalty_options["window"])
    for name, option in {"shuffle_within": "--shuffle-within", "truncate": "--truncate"}.items():
        if name in settings:
            whole_number(option, settings[name], 2)
    given = {**settings["model_options"], **settings}
    for name in ("epochs", "batch_size", "patience", "hidden", "layers"):
        if name in given:
            whole_number(_option(name), given[name])
    rules: dict[str, dict[str, float]] = {"learning_rate": {"above": 0}, "weight_decay": {"at_least": 0}}
    rules["validation_fraction"] = {"at_least": 0, "below": 1}
    for name, rule in rules.items():
        if name in settings:
            real_number(_option(name), settings[name], **rule)
    whole_number("--seed", settings["random_state"], 0, 2**32 - 1)
    for file in (table, unlabeled):
        if file is not None:
            table_ending(file)
    check_place(Path(out))
    if "tensorboard" in settings:
        check_apart(out, settings["tensorboard"])
        check_place(Path(settings["tensorboard"]) / "events")
    run = Run(table, out, asked_for(columns, settings, penalty_options, unlabeled))
    if run.first_process:
        run.check(resume, force)


def _option(name: str) -> str:
    """As a setting is called on the command line."""
    return f"--{name.replace('_', '-')}"


def check_predict(model: str, table: str, out: str, *, orderings: int, force: bool) -> None:
    """Refuse what :func:`anyorder.commands.predict_table` would refuse at first sight."""
    whole_number("--orderings", orderings)
    free(out, force, (".csv", ".parquet"))
    require_model_folder(model)
    table_ending(table)


def check_export(model: str, onnx: str, *, force: bool) -> None:
    """Refuse what :func:`anyorder.commands.export_model` would refuse at first sight."""
    free(onnx, force, (".onnx",))
    require_model_folder(model)


def check_reproduce(experiment: str, scale: str, engine: str, **counts: int) -> None:
    """Refuse an experiment, a scale or an engine that does not exist, and counts below 1."""
    one_of("experiment", experiment, (*_names.SYNTHETIC, *_names.REAL, *_names.GROUPS))
    one_of("scale", scale, _names.SCALES)
    one_of("engine", engine, _names.ENGINES)
    for name, count in counts.items():
        whole_number(_option(name), count)


def number_or(word: str, name: str, text: str, **rule: float) -> float | str:
    """``text`` as a number that keeps the ``rule``, or the one ``word`` that may stand instead.

    >>> number_or("auto", "--penalty-weight", "0.5"), number_or("auto", "--penalty-weight", "auto")
    (0.5, 'auto')
    """
    if text == word:
        return text
    try:
        number: float | str = float(text)
    except ValueError:
        number = text
    return real_number(f"{name} (a number or {word})", number, **rule)


def check_place(path: Path) -> None:
    """Refuse a place where nothing can be written before the work, not after it."""
    folder = next(parent for parent in path.resolve().parents if parent.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".anyorder-", dir=folder))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror} in {folder}; choose another place") from None


def check_apart(out: str | Path, tensorboard: str | Path) -> None:
    """Refuse to write figures where a model folder shall be, which holds a model and nothing else."""
    folder = Path(tensorboard).resolve()
    if Path(out).resolve() in (folder, *folder.parents):
        raise InputError(
            f"--tensorboard {tensorboard} is in the model folder {out}, which holds nothing but the model; choose a "
            "folder outside it"
        )


def free(path: str | Path, force: bool, endings: Sequence[str]) -> Path:
    """``path`` if it may be written."""
    path = Path(path)
    if path.suffix not in endings:
        raise InputError(f"{path} must end in {' or '.join(endings)}")
    if path.exists() and not force:
        raise InputError(f"{path} exists; choose another file, or replace it with --force")
    if path.is_dir():
        raise InputError(f"{path} is a folder; choose another file")
    check_place(path)
    return path
