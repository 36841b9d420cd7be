"""Damage to files, and what comes of it: run by ``test_attack.py`` in a process with a limit on memory.

Prints a JSON line before each case, its name, and one after it, its outcome. So the parent knows which case ended the
process. An outcome is "right", "refused" or a description of what must not happen.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import anyorder as ao
from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.deploy.save import open_model
from anyorder.files import NO_DIGEST, tensors_from_bytes, tensors_to_bytes, with_digest
from anyorder.training.config import TrainConfig
from anyorder.training.loop import train

SECONDS, MEGABYTES = 5.0, 500
Use = Callable[[dict[str, bytes]], Any]  # what a victim's files give


class Victim:
    """Files, by name, and what is computed from them; ``exact``: any other result than that of whole files is wrong."""

    def __init__(self, files: dict[str, bytes], use: Use, exact: bool = True) -> None:
        self.files, self.use, self.exact = files, use, exact
        self.right = use(files)


# What is attacked -------------------------------------------------------------------------------------------------


def folders(place: Path) -> Iterator[tuple[str, Victim]]:
    """Model folders: the output for three sets, or the prediction of an estimator, and what is kept beside it."""
    elements = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0))
    X = elements.numpy()
    classifier = ao.SetClassifier(model_options={"hidden": 4}, epochs=1, random_state=0)
    kept = {
        "lstm": ao.RecurrentSetModel(3, 2, cell="lstm", hidden=4, layers=2),
        "twin": ao.RecurrentSetModel(3, 2, cell="lstm", hidden=4, layers=2),
        "sum": ao.DeepSets(3, 2, phi=(4,), rho=(4,)),
        "half": ao.RecurrentSetModel(3, 2, hidden=4).bfloat16(),
        "classifier": classifier.fit(X, ["no", "yes", "no"]),
        "regressor": ao.SetRegressor(model_options={"hidden": 4}, epochs=1, random_state=0).fit(X, X.sum((1, 2))),
    }

    def use(files: dict[str, bytes]) -> Any:
        folder = written(files, place / "model")
        saved = open_model(folder)
        if saved.estimator is None:
            with torch.no_grad():
                return [saved.model(elements.to(saved.model.dtype)).tolist(), saved.preprocessing]
        answers = [saved.estimator.predict(X, orderings).tolist() for orderings in (1, 2)]
        return [answers, saved.preprocessing, str(saved.estimator.get_params()), saved.estimator.history_]

    for name, model in kept.items():
        folder = place / f"whole-{name}"
        ao.save(model, folder, preprocessing={"mean": 0.25, "classes": ["no", "yes"]}, log=[{"epoch": 0}])
        yield f"folder {name}", Victim({file.name: file.read_bytes() for file in folder.iterdir()}, use)


def snapshots() -> Iterator[tuple[str, Victim]]:
    """Snapshots of streams: the output of the restored stream."""
    models = {
        "gru": (ao.RecurrentSetModel(3, 2, hidden=4), None),
        "two lstms": (ao.RecurrentSetModel(3, 2, cell="lstm", hidden=4, layers=2), 2),
        "mean": (ao.DeepSets(3, 2, phi=(4,), pooling="mean"), None),
    }
    for name, (model, streams) in models.items():
        stream = ao.Stream(model, streams)
        stream.update(torch.ones(2, 3))

        def use(files: dict[str, bytes], model: Any = model) -> Any:
            restored = ao.Stream.restore(model, files["snapshot"])
            return [restored.value().tolist(), torch.as_tensor(restored.seen).tolist()]

        yield f"snapshot {name}", Victim({"snapshot": stream.snapshot()}, use)


class Stop(Exception):
    """The end of an interrupted training."""


def checkpoints(place: Path) -> Iterator[tuple[str, Victim]]:
    """Checkpoints of a run that was interrupted: the weights at its end."""
    draws = torch.Generator().manual_seed(0)
    data = SetData.of(torch.rand(12, 4, 1, generator=draws), torch.rand(12, generator=draws))
    forms: dict[str, dict[str, Any]] = {
        "adam": {},
        "adamw": {"optimizer": "adamw", "schedule": "constant", "shuffle": True},
        "sgd": {"optimizer": "sgd", "schedule": "plateau"},
        "rmsprop": {"optimizer": "rmsprop", "truncate": 2},
    }
    for name, form in forms.items():

        def use(files: dict[str, bytes], stop: int = 0, form: dict[str, Any] = form) -> Any:
            torch.manual_seed(0)
            model = ao.RecurrentSetModel(1, 1, hidden=3, readout=(), dropout=0.0)

            def log(record: dict[str, Any]) -> None:
                if record["epoch"] + 1 == stop:
                    raise Stop

            config = TrainConfig(epochs=3, batch_size=6, checkpoint_seconds=0.0, gap_every=0, **form)
            weight = ao.AdaptiveWeight(target=1e-3) if form else 1.0
            train(
                model, "mse", data, config=config, penalty=ao.SIRE(), penalty_weight=weight, validation=data,
                workdir=written(files, place / "run"), progress=False, log=log,
            )  # fmt: skip
            return [value.tolist() for value in model.state_dict().values()]

        try:
            use({}, stop=2)
        except Stop:
            content = (place / "run" / "checkpoint.safetensors").read_bytes()
        victim = Victim({"checkpoint.safetensors": content}, use)
        assert victim.right == use({}), "a resumed run must end as an uninterrupted one"
        yield f"checkpoint {name}", victim


def tables(place: Path) -> Iterator[tuple[str, Victim]]:
    """Tables: any sets will do, since a digit of a table may be any digit."""
    rng = np.random.default_rng(0)
    days = ["2024-05-31", "2024-06-01", "2024-06-02"]
    rows = pd.DataFrame({"visit": np.repeat(np.arange(12), 3), "day": days * 12})
    rows["dose"], rows["drug"] = rng.normal(size=36).round(3), rng.choice(["x", "y"], 36)
    rows["outcome"] = np.where(np.arange(36) // 3 % 2, "up", "down")
    contents = {"t.csv": rows.to_csv(index=False).encode(), "t.parquet": rows.to_parquet(index=False)}
    for name, content in contents.items():

        def use(files: dict[str, bytes], name: str = name) -> Any:
            folder = written(files, place / "tables")
            return len(ao.read_table(folder / name, set_id="visit", target="outcome", time="day").data)

        yield f"table {name}", Victim({name: content}, use, exact=False)


def written(files: dict[str, bytes], folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


# How it is damaged ------------------------------------------------------------------------------------------------


def header_end(content: bytes) -> int:
    """Where the header of a file of tensors ends; of another file, somewhere near its beginning."""
    length = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else 0
    return 8 + length if length < len(content) else min(300, len(content))


def flip(content: bytes, begin: int, end: int, chance: random.Random) -> bytes:
    place, changed = chance.randrange(begin, max(begin + 1, end)), bytearray(content)
    changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def flip_in_header(content: bytes, chance: random.Random) -> bytes:
    return flip(content, 0, header_end(content), chance)


def flip_in_body(content: bytes, chance: random.Random) -> bytes:
    return flip(content, min(header_end(content), len(content) - 1), len(content), chance)


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def grow(content: bytes, chance: random.Random) -> bytes:
    return content + chance.randbytes(chance.choice([1, 8, 4096]))


def overwrite(content: bytes, chance: random.Random) -> bytes:
    size = chance.randrange(1, min(64, len(content)))
    place = chance.randrange(len(content) - size)
    return content[:place] + chance.choice([bytes(size), chance.randbytes(size), b"9" * size]) + content[place + size :]


def lose_a_block(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + content[place + chance.randrange(1, 32) :]


def repeat_a_block(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + content[max(0, place - chance.randrange(1, 64)) :]


def change_a_digit(content: bytes, chance: random.Random) -> bytes:
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    return flip(content, place := chance.choice(places), place + 1, random.Random(chance.randrange(4)))


def huge_length(content: bytes, chance: random.Random) -> bytes:
    return struct.pack("<Q", chance.choice([2**63 - 1, 2**40, 2**26, 0])) + content[8:]


def change_case(content: bytes, chance: random.Random) -> bytes:
    places = [place for place, byte in enumerate(content) if chr(byte).isalpha() and byte < 128]
    changed = bytearray(content)
    changed[chance.choice(places)] ^= 32
    return bytes(changed)


BLIND = (
    flip_in_header, flip_in_header, flip_in_body, flip_in_body, cut, grow, overwrite, lose_a_block, repeat_a_block,
    change_a_digit, huge_length, change_case,
)  # fmt: skip


def resealed(content: bytes, chance: random.Random) -> bytes:
    """A header that was edited on purpose, with the digest repaired: shapes, dtypes, names, ids, the form of a state.

    Any number may come of it; an error of another class, a crash, a hang and spent memory may not.
    """
    end = header_end(content)
    header = json.loads(content[8:end])
    metadata = header.pop("__metadata__")["anyorder"][len(NO_DIGEST) :]
    some = chance.choice(list(header))
    part = header[some]
    match chance.randrange(9 if '"state": {"state/' in metadata else 6):
        case 0:
            part["dtype"] = chance.choice(["F64", "I32", "U8", "BOOL", "F8_E5M2", "BF16", "F16", "I8", "X9", None])
        case 1:
            part["shape"] = chance.choice([[2**40], [2**62, 4], [-1], [], part["shape"][::-1], [0], None, ["3"], [2.5]])
        case 2:
            header[chance.choice(["", "w", "state/optimizer/state/99/step", some + "x"])] = header.pop(some)
        case 3:
            other = chance.choice(list(header))
            header[some], header[other] = header[other], header[some]
        case 4:
            part["data_offsets"] = chance.choice([[0, 2**60], [8, 4], [-4, 0], part["data_offsets"][::-1], [], None])
        case 5:
            tensors, words = tensors_from_bytes(content)
            kind = chance.choice([torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool])
            chosen = chance.sample(sorted(tensors), chance.randrange(1, len(tensors) + 1))
            return tensors_to_bytes({**tensors, **{name: tensors[name].to(kind) for name in chosen}}, words)
        case _:
            metadata = json.dumps(edited_state(json.loads(metadata), chance))
    words = json.dumps({"__metadata__": {"anyorder": NO_DIGEST + metadata}, **header}).encode()
    words += b" " * (-len(words) % 8)
    return with_digest(struct.pack("<Q", len(words)) + words + content[end:])


def edited_state(metadata: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The state of a checkpoint with an id or a name changed, lost or of another form."""
    state = metadata["state"]
    place = chance.choice(sorted(state))
    if chance.random() < 0.5:
        kept = state.pop(place)
        if chance.random() < 0.8:
            state[chance.choice([f"{place}/99", "", "state/optimizer/state/99/step", place.rpartition("/")[0]])] = kept
    else:
        state[place] = chance.choice([[], {}, "x", None, True])
    return metadata


def edited_arguments(content: bytes, chance: random.Random) -> bytes:
    """A configuration whose model or estimator was edited on purpose, with the digest repaired."""
    config = json.loads(content)
    part: Any = config["model"]["config"]
    while isinstance(part.get("options"), dict) and chance.random() < 0.8:
        part = part["options"]
    odd = [0, -1, 4096, 10**9, 2**70, 1e308, float("nan"), "x", None, [], {}, True, [10**9], [0], "U100000000"]
    part[chance.choice([*part, "layers", "hidden", "exec"])] = chance.choice(odd)
    if config["estimator"] and chance.random() < 0.3:
        details = config["estimator"]["details"]["arrays"]
        for array in details.values():
            array[0] = chance.choice(["<U100000000", "|V900000000", "O", "x", "<f8", None])
    config["digest"] = NO_DIGEST
    return with_digest(json.dumps(config).encode())


def cases(victims: dict[str, Victim], count: int, chance: random.Random) -> Iterator[tuple[str, Victim, Any, bool]]:
    """``count`` cases: a name, the victim, its damaged files, and whether the result must be the right one."""
    names = list(victims)
    for number in range(count):
        name = names[number % len(names)]
        victim = victims[name]
        files = dict(victim.files)
        file = chance.choice([file for file in sorted(files) if file != "log.jsonl" or chance.random() < 0.1])
        others = [other for other in names if other != name and file in victims[other].files]
        kind = chance.random()
        if kind < 0.05 and others:
            how, files[file] = "swapped", victims[chance.choice(others)].files[file]
        elif kind < 0.3 and file.endswith(("safetensors", "snapshot")):
            how, files[file] = "resealed", resealed(files[file], chance)
            if "config.json" in files:  # which names the digest of the weights
                files["config.json"] = names_weights(files)
        elif kind < 0.3 and file == "config.json":
            how, files[file] = "edited_arguments", edited_arguments(files[file], chance)
        elif kind < 0.33 and len(files) > 1:
            how = "lost"
            del files[file]
        else:
            damage = chance.choice(BLIND)
            how = damage.__name__
            while files[file] == victim.files[file]:
                files[file] = damage(victim.files[file], chance)
        free = not victim.exact or how in ("resealed", "edited_arguments")
        yield f"{number}: {name}, {file} {how}", victim, files, not free


def names_weights(files: dict[str, bytes]) -> bytes:
    """The configuration with the digest of the weights beside it."""
    config = json.loads(files["config.json"])
    config |= {"digest": NO_DIGEST, "sha256": hashlib.sha256(files["model.safetensors"]).hexdigest()}
    return with_digest(json.dumps(config).encode())


# What comes of it -------------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """A case that does not end."""


def too_long(*_: Any) -> None:
    raise TooLong


def outcome(victim: Victim, files: dict[str, bytes], exact: bool) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of work; on a busy machine a case may wait longer
    signal.setitimer(signal.ITIMER_REAL, 20 * SECONDS)
    try:
        result = victim.use(files)
        found = "right" if result == victim.right or not exact else f"another result: {str(result)[:200]}"
    except InputError as error:
        found = "refused" if "\n" not in str(error) else f"several lines: {error}"
    except TooLong:
        found = f"more than {SECONDS} s"
    except BaseException as error:  # whatever it is, it must not be
        found = f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return found if grown < MEGABYTES else f"{grown:.0f} MB"


def main(kind: str, count: int, seed: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, too_long)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        victims = {
            "folders": lambda: folders(place),
            "snapshots": snapshots,
            "checkpoints": lambda: checkpoints(place),
            "tables": lambda: tables(place),
        }[kind]()
        kept = dict(victims)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 31), resource.RLIM_INFINITY))
        for case, victim, files, exact in cases(kept, count, random.Random(seed)):
            print(json.dumps([case, None]), flush=True)
            print(json.dumps([case, outcome(victim, files, exact)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
