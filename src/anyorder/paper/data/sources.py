"""Where each data set is found: the forms it comes in, their checksums and licences, and how to fetch them."""

from __future__ import annotations

import hashlib
import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyorder.checks import InputError, extra, one_of
from anyorder.files import home

_REPACKED = "repacked for this project and published nowhere: any other form of the same data is read instead"


@dataclass(frozen=True)
class Source:
    """One form in which a data set may lie in a data folder, and how to get it there: a table of ``sources.toml``."""

    name: str
    dataset: str
    what: str
    licence: str
    files: Mapping[str, str]
    advice: str = _REPACKED
    url: str = ""
    into: str = ""
    size: str = ""

    @property
    def downloads(self) -> bool:
        """Whether every byte of a download can be checked."""
        return bool(self.url and all(self.files.values()))


_TABLES = tomllib.loads(Path(__file__).with_name("sources.toml").read_text())
SOURCES = {name: Source(name, **table) for name, table in _TABLES.items()}


def data_folders() -> list[Path]:
    """The folders that are searched, first to last: ``ANYORDER_DATA`` if it is set, then the cache."""
    named = os.environ.get("ANYORDER_DATA")
    return [*([Path(named).expanduser()] if named else []), cache_folder()]


def cache_folder() -> Path:
    """``ANYORDER_HOME/data``, where downloads go; by default below the user's cache folder."""
    return home() / "data"


def where(name: str) -> Path | None:
    """The data folder that holds every file of the source ``name``, or None."""
    files = SOURCES[one_of("source", name, SOURCES)].files
    return next((folder for folder in data_folders() if all((folder / file).exists() for file in files)), None)


def locate(dataset: str, usable: Sequence[str] | None = None) -> tuple[str, Path]:
    """The first usable source of ``dataset`` that is there (checked), downloading one if need be."""
    names = [n for n, s in SOURCES.items() if s.dataset == dataset and (usable is None or n in usable)]
    found = [n for n in names if where(n)] or [n for n in names if SOURCES[n].downloads]
    if found:
        return found[0], fetch(found[0])
    choices = "; or ".join(f"{', '.join(SOURCES[n].files)} ({SOURCES[n].advice})" for n in names)
    raise InputError(
        f"{dataset} is not in {' or '.join(map(str, data_folders()))}; put there {choices}; "
        "or set ANYORDER_DATA to a folder that has it"
    )


def fetch(name: str, *, trust: bool = False) -> Path:
    """Download the source ``name`` into the cache, check it, and return the folder; no-op if it is there.

    A source without a published checksum is downloaded only with ``trust=True``. The hash of every file is then
    stored beside the data and checked from then on.
    """
    found, source = where(name), SOURCES[name]
    if found is not None:
        _verify(source, found)
        return found
    folder = cache_folder()
    files = ", ".join(str(folder / file) for file in source.files)
    if not source.url or not (source.downloads or trust):
        remedy = source.url and f", or trust it as it is: anyorder data fetch {name} --trust"
        raise InputError(
            f"{name} cannot be downloaded with a published checksum ({source.advice}{remedy}); expected here: {files} "
            "(or below ANYORDER_DATA)"
        )
    try:
        _download(source, folder)
    except Exception as error:
        raise InputError(
            f"{name} could not be downloaded from {source.url} ({type(error).__name__}: {error}); try again, or put "
            f"its files there yourself: {files}"
        ) from error
    return folder


def _download(source: Source, folder: Path) -> None:
    """Download, unpack and check in a folder of its own, then move what is whole to its place.

    The files by which :func:`where` knows the source come last, so an interrupted move is never taken for the whole.
    """
    pooch = extra("pooch", "paper", "a download")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{source.name}-") as draft:
        root = Path(draft).resolve() / "files"
        if source.url.endswith("/"):
            for file, checksum in source.files.items():
                place = root / file
                pooch.retrieve(source.url + place.name, checksum, fname=place.name, path=place.parent)
        else:
            unzip = pooch.Unzip(extract_dir=str(root / source.into))
            pooch.retrieve(source.url, None, fname="archive.zip", path=draft, processor=unzip)
        _verify(source, root)
        files = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]
        if not source.downloads:
            record = root / f"{source.name}.sha256"
            record.write_text("".join(f"{_digest(root / file, 'sha256')}  {file}\n" for file in files))
            files.insert(0, record.name)
        for file in sorted(files, key=lambda file: file.startswith(tuple(source.files))):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(root / file, folder / file)


def _verify(source: Source, folder: Path) -> None:
    """Compare the files of a source with their published checksums, or with those stored at the download."""
    expected = dict(source.files)
    record = folder / f"{source.name}.sha256"
    if record.exists():
        for line in record.read_text().splitlines():
            stored, _, file = line.partition("  ")
            expected[file] = expected.get(file) or f"sha256:{stored}"  # what is published cannot be overridden
    for file, checksum in expected.items():
        if not (folder / file).exists():
            raise InputError(f"{folder / file} is missing; {source.name} needs it ({source.advice})")
        algorithm, _, wanted = checksum.partition(":")
        if checksum and (digest := _digest(folder / file, algorithm)) != wanted:
            raise InputError(
                f"{folder / file} is damaged: its {algorithm} is {digest}, expected {wanted}; "
                f"delete it and get it again ({source.advice})"
            )


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()
