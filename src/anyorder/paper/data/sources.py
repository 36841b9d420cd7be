"""Where each data set is found: the forms it comes in, their checksums and licences, and how to fetch them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anyorder.checks import InputError, one_of
from anyorder.files import home, write_atomically
from anyorder.paper.data import formats


@dataclass(frozen=True)
class File:
    """One file of a source: its place below a data folder, its size, and its checksum (None: not published)."""

    path: str
    size: int | None = None
    checksum: str | None = None


@dataclass(frozen=True)
class Source:
    """One form in which a data set may lie in a data folder, and how to get it there.

    ``url`` is an archive that :func:`fetch` downloads, checks by ``checksum`` and unpacks ``into`` a folder; or, where
    it ends in "/", the folder the files are downloaded from one by one. ``advice`` says what to do by hand.
    """

    name: str
    dataset: str
    what: str
    licence: str
    files: tuple[File, ...]
    advice: str
    url: str | None = None
    checksum: str | None = None
    into: str = ""

    @property
    def downloads(self) -> bool:
        """Whether every byte of a download can be checked."""
        return self.url is not None and (self.checksum is not None or all(f.checksum for f in self.files))


_REPACKED = "repacked for this project and published nowhere: any other form of the same data is read instead"
HDF5_FOLDER = "modelnet40_ply_hdf5_2048"

SOURCES = {
    source.name: source
    for source in [
        Source(
            "mnist",
            "mnist",
            "60,000 / 10,000 handwritten digits, the original idx files",
            "CC BY-SA 3.0",
            (
                File(
                    "mnist/train-images-idx3-ubyte.gz",
                    9912422,
                    "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                File(
                    "mnist/train-labels-idx1-ubyte.gz",
                    28881,
                    "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                File(
                    "mnist/t10k-images-idx3-ubyte.gz",
                    1648877,
                    "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                File(
                    "mnist/t10k-labels-idx1-ubyte.gz",
                    4542,
                    "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            ),
            "anyorder data fetch mnist",
            url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        Source(
            "ecg5000",
            "ecg5000",
            f"500 / 4,500 heartbeats of 140 steps, 5 classes (UCR archive); {_REPACKED}",
            "public, cite the UCR archive and PhysioNet",
            (
                File(
                    "ecg/ecg5000.npz",
                    2597145,
                    "sha256:b54304278c53a05e2b3d14fc02e3df82abf9574e6bf7d4e30e6dade2f33d7574",
                ),
            ),
            _REPACKED,
        ),
        Source(
            "ecg5000-ucr",
            "ecg5000",
            "the same as the archive's two text files",
            "public, cite the UCR archive and PhysioNet",
            (File("ECG5000/ECG5000_TRAIN.tsv"), File("ECG5000/ECG5000_TEST.tsv")),
            "download UCRArchive_2018.zip from https://www.cs.ucr.edu/~eamonn/time_series_data_2018/ "
            "(its page gives the password) and copy its folder ECG5000",
        ),
        Source(
            "ecg5000-txt",
            "ecg5000",
            "the same as its text files on timeseriesclassification.com",
            "public, cite the UCR archive and PhysioNet",
            (File("ECG5000/ECG5000_TRAIN.txt"), File("ECG5000/ECG5000_TEST.txt")),
            "download it from https://www.timeseriesclassification.com and unpack it into ECG5000",
            url="https://www.timeseriesclassification.com/aeon-toolkit/ECG5000.zip",
            into="ECG5000",
        ),
        Source(
            "hapt",
            "hapt",
            f"7,415 / 2,996 windows of 128 steps, 6 channels, 6 activities, split by subject; {_REPACKED}",
            "non-commercial, cite Reyes-Ortiz et al.",
            (
                File(
                    "har/hapt_windows_f32.npz",
                    9519992,
                    "sha256:8d76a56e2b78f5334030c66cad5743badf2e786988bbae86995355ad76f06365",
                ),
            ),
            _REPACKED,
        ),
        Source(
            "hapt-recordings",
            "hapt",
            "the recordings the windows are cut from",
            "non-commercial, cite Reyes-Ortiz et al.",
            (File("HAPT/RawData/labels.txt"),),
            "download the data set 341 of https://archive.ics.uci.edu (HAPT Data Set.zip) and unpack it into HAPT",
            url="https://archive.ics.uci.edu/ml/machine-learning-databases/00341/HAPT%20Data%20Set.zip",
            into="HAPT",
        ),
        Source(
            "bags",
            "bags",
            f"musk1 (92 bags, 166 features) and elephant (200 bags, 230 features); {_REPACKED}",
            "CC BY 4.0 (musk1); research use (elephant)",
            (
                File(
                    "mil/mil_bags.npz",
                    299032,
                    "sha256:6ca4b2ef35d41dafd84d293751bd7b707a921b011d20ab935c412c98d14e33c2",
                ),
            ),
            _REPACKED,
        ),
        Source(
            "musk1-uci",
            "bags",
            "musk1 as UCI has it",
            "CC BY 4.0",
            (File("musk/clean1.data"),),
            "download the data set 74 of https://archive.ics.uci.edu and run `uncompress clean1.data.Z`",
        ),
        Source(
            "elephant-svm",
            "bags",
            "elephant as sparse text (instance:bag:label index:value …)",
            "research use",
            (File("mil/elephant.svm"),),
            "get elephant from http://www.cs.columbia.edu/~andrews/mil/datasets.html",
        ),
        Source(
            "modelnet40",
            "modelnet40",
            f"9,843 / 2,468 shapes of 40 classes, 1024 surface points each; {_REPACKED}",
            "academic use",
            (
                File(
                    "modelnet40/modelnet40_1024_train_i16.npz",
                    57647619,
                    "sha256:bd041bd66f9fb37eb9355f9c268ae05b73482fb15a237ceb5e1f65470b5341f8",
                ),
                File(
                    "modelnet40/modelnet40_1024_test_i16.npz",
                    14415975,
                    "sha256:b04c5cf9a37b50c99e4768cb95b1f37f8e3f83415a73153226fddb3ec6993ee1",
                ),
            ),
            _REPACKED,
        ),
        Source(
            "modelnet40-hdf5",
            "modelnet40",
            "the public release of 9,840 / 2,468 shapes, 2048 points each",
            "academic use",
            (
                File(f"{HDF5_FOLDER}/ply_data_train0.h5", None, "md5:3176385ffc31a7b6b5af22191fd920d1"),
                File(f"{HDF5_FOLDER}/ply_data_train1.h5", None, "md5:e3f613fb500559403b34925112754dc4"),
                File(f"{HDF5_FOLDER}/ply_data_train2.h5", None, "md5:0c56e233a090ff87c3049d4ce08e7d8b"),
                File(f"{HDF5_FOLDER}/ply_data_train3.h5", None, "md5:9d2af465adfa33a3285c369f3ca66c45"),
                File(f"{HDF5_FOLDER}/ply_data_train4.h5", None, "md5:dff38de489b2c41bfaeded86c2208984"),
                File(f"{HDF5_FOLDER}/ply_data_test0.h5", None, "md5:e9732e6d83b09e79e9a7617df058adee"),
                File(f"{HDF5_FOLDER}/ply_data_test1.h5", None, "md5:aba4b12a67c34391cc3c015a6f08ed4b"),
                File(f"{HDF5_FOLDER}/shape_names.txt"),
            ),
            "anyorder data fetch modelnet40-hdf5",
            url=f"https://shapenet.cs.stanford.edu/media/{HDF5_FOLDER}.zip",
            checksum="md5:c9ab8e6dfb16f67afdab25e155c79e59",
        ),
        Source(
            "modelnet40-meshes",
            "modelnet40",
            "the OFF meshes, from which any number of points is drawn by area",
            "academic use",
            (File("ModelNet40/airplane/train"), File("ModelNet40/airplane/test")),
            "download ModelNet40.zip from https://modelnet.cs.princeton.edu and unpack it",
            url="http://modelnet.cs.princeton.edu/ModelNet40.zip",
        ),
    ]
}


def data_folders() -> list[Path]:
    """The folders that are searched, first to last: ``ANYORDER_DATA`` if it is set, then the cache."""
    named = os.environ.get("ANYORDER_DATA")
    return [*([Path(named).expanduser()] if named else []), cache_folder()]


def cache_folder() -> Path:
    """``ANYORDER_HOME/data``, where downloads go; by default below the user's cache folder."""
    return home() / "data"


def where(name: str) -> Path | None:
    """The data folder in which every file of the source ``name`` lies, or None."""
    source = SOURCES[one_of("source", name, SOURCES)]
    for folder in data_folders():
        if all((folder / file.path).exists() for file in source.files):
            return folder
    return None


def size_text(name: str) -> str:
    """How large the files of a source are, on disk or else as published, for people: ``"2.6 MB"``; "" if not known."""
    source, folder = SOURCES[name], where(name)
    if folder is None:
        size = float(sum(file.size or 0 for file in source.files))
    else:
        paths = [path for file in source.files for path in _files_below(folder / file.path)]
        size = float(sum(path.stat().st_size for path in paths))
    if not size:
        return ""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _files_below(path: Path) -> list[Path]:
    return [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]


def fetch(name: str, *, trust: bool = False) -> Path:
    """Download the source ``name`` into the cache, check it, and return the folder; no-op if it is there.

    A source without a published checksum is downloaded only with ``trust=True``: the hash of every file is then
    written down beside the data and checked from there on. Otherwise the error says where to get it.
    """
    source = SOURCES[one_of("source", name, SOURCES)]
    found = where(name)
    if found is not None:
        _verify(source, found)
        return found
    folder = cache_folder()
    if source.url is None or not (source.downloads or trust):
        files = ", ".join(str(folder / file.path) for file in source.files)
        remedy = "" if source.url is None else f", or trust it as it is: anyorder data fetch {name} --trust"
        raise InputError(
            f"{name} cannot be downloaded with a published checksum ({source.advice}{remedy}); expected here: {files} "
            "(or below ANYORDER_DATA)"
        )
    import pooch

    try:
        if source.url.endswith("/"):
            for file in source.files:
                target = folder / file.path
                pooch.retrieve(source.url + target.name, file.checksum, fname=target.name, path=target.parent)
            _verify(source, folder)
        else:
            _fetch_archive(source, folder)
    except ValueError as error:
        raise InputError(f"the download of {name} is damaged and was refused: {error}") from error
    except OSError as error:
        files = ", ".join(str(folder / file.path) for file in source.files)
        raise InputError(
            f"{name} could not be downloaded from {source.url} ({type(error).__name__}); try again, put its files "
            f"there yourself ({files}), or set ANYORDER_DATA to a folder that has them"
        ) from error
    return folder


def _fetch_archive(source: Source, folder: Path) -> None:
    """Download, unpack and check in a folder of its own; only what is whole is moved to its place.

    Where no checksum is published, the hashes of all files are written down first, and the files by which
    :func:`where` knows the source come last: a move that was interrupted is never taken for the whole.
    """
    import pooch

    assert source.url is not None
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{source.name}-") as draft:
        archive = pooch.retrieve(source.url, source.checksum, fname=f"{source.name}.zip", path=Path(draft))
        root = Path(draft).resolve() / "files"
        files = {path.relative_to(root).as_posix(): path for path in formats.unpack(archive, root / source.into)}
        _verify(source, root)
        if source.checksum is None:
            lines = [f"{_digest(path, 'sha256')}  {name}\n" for name, path in files.items()]
            write_atomically(folder / f"{source.name}.sha256", "".join(lines))
        known_by = tuple(file.path for file in source.files)
        for name in sorted(files, key=lambda name: name.startswith(known_by)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(files[name], folder / name)


def _verify(source: Source, folder: Path) -> None:
    """Compare the files of a source with their published checksums, or with those written down at the download."""
    expected = {file.path: file.checksum for file in source.files}
    record = folder / f"{source.name}.sha256"
    if record.exists():
        for line in record.read_text().splitlines():
            written, _, name = line.partition("  ")
            expected[name] = expected.get(name) or f"sha256:{written}"  # what is published cannot be overridden
    for relative, checksum in expected.items():
        path = folder / relative
        if not path.exists():
            raise InputError(f"{path} is missing; {source.name} needs it ({source.advice})")
        if checksum is None:
            continue
        algorithm, wanted = checksum.split(":")
        digest = _digest(path, algorithm)
        if digest != wanted:
            raise InputError(
                f"{path} is damaged: its {algorithm} is {digest}, expected {wanted}; "
                f"delete it and get it again ({source.advice})"
            )


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def locate(dataset: str, usable: Sequence[str] | None = None) -> tuple[str, Path]:
    """The first usable source of ``dataset`` that is there (checked), downloading one if need be."""
    names = [n for n, s in SOURCES.items() if s.dataset == dataset and (usable is None or n in usable)]
    for folder in data_folders():
        for name in names:
            if all((folder / file.path).exists() for file in SOURCES[name].files):
                _verify(SOURCES[name], folder)
                return name, folder
    for name in names:
        if SOURCES[name].downloads:
            return name, fetch(name)
    choices = "; or ".join(f"{', '.join(f.path for f in SOURCES[n].files)} ({SOURCES[n].advice})" for n in names)
    raise InputError(
        f"{dataset} is not in {' or '.join(map(str, data_folders()))}; put there {choices}; "
        "or set ANYORDER_DATA to a folder that has it"
    )
