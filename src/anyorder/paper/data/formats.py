"""Readers of the file formats the data sets come in, and the safe unpacking of archives.

Every reader takes a path and returns numpy arrays; a file that is not what it should be is an
:class:`~anyorder._checks.InputError` that names it.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from anyorder.checks import InputError, whole_number

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a damaged file makes a parser raise into one error that names the file."""
    try:
        yield
    except (InputError, FileNotFoundError):
        raise
    except Exception as error:
        raise InputError(f"{path} is not a readable {kind} file: {' '.join(str(error).split())}") from error


def read_idx(path: str | Path) -> np.ndarray:
    """The array in an idx file (MNIST's format), gzipped or not: ``[N, …]`` in the file's own type."""
    path = Path(path)
    with _reading(path, "idx"):
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise InputError(f"{path} is not an idx file: it begins with {raw[:4]!r}")
    axes, kind = raw[3], np.dtype(_IDX_TYPES[raw[2]])
    shape = np.frombuffer(raw, ">i4", count=axes, offset=4) if len(raw) >= 4 + 4 * axes else np.array([-1])
    held = (len(raw) - 4 - 4 * axes) / kind.itemsize
    if axes == 0 or shape.min() < 0 or held != math.prod(shape.tolist()):
        raise InputError(f"{path} promises {shape.tolist()} values and holds {held:g}")
    body = np.frombuffer(raw, kind, offset=4 + 4 * axes)
    return body.reshape(shape).astype(body.dtype.newbyteorder("="))


def read_ucr(path: str | Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Series and labels of a UCR text file: a row is a label and its values, split by tabs, commas or blanks.

    Returns float32 arrays ``[T_i]`` (trailing NaN, the archive's padding, is cut) and labels ``[N]``. The archive pads
    shorter series, so all rows have as many values; a row with fewer was cut off.
    """
    path = Path(path)
    series, labels, width = [], [], None
    with _reading(path, "UCR text"):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            row = np.array(line.replace(",", " ").split(), dtype=np.float64)
            if row.size == 0:
                continue
            width = width or row.size
            if row.size != width:
                raise InputError(
                    f"{path}, line {number} has {row.size - 1} values, the lines before it {width - 1}: the file is "
                    "damaged (get it again), or its shorter series are not padded with NaN as the archive's are"
                )
            values = row[1:]
            values = values[: values.size - np.argmax(~np.isnan(values[::-1]))] if values.size else values
            if row[0] != int(row[0]) or values.size == 0 or not np.isfinite(values).all():
                raise InputError(f"{path}, line {number}: expected a whole label and finite values")
            labels.append(int(row[0]))
            series.append(values.astype(np.float32))
    if not series:
        raise InputError(f"{path} holds no series")
    return series, np.array(labels, dtype=np.int64)


def read_npz(path: str | Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays ``names`` of an npz file; pickled objects are refused."""
    path = Path(path)
    with _reading(path, "npz"), np.load(path, allow_pickle=False) as archive:
        missing = [name for name in names if name not in archive.files]
        if missing:
            raise InputError(f"{path} lacks the array {missing[0]!r}; it holds {', '.join(archive.files)}")
        return {name: archive[name] for name in names}


def read_mesh(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Vertices ``[V, 3]`` and triangles ``[F, 3]`` of an OFF or PLY file; larger faces are cut up."""
    trimesh = _needs("trimesh", "OFF and PLY meshes")
    path = Path(path)
    with _reading(path, "mesh"):
        try:
            mesh = trimesh.load_mesh(path, process=False)
        except ValueError as error:
            if "unexpected length" not in str(error):
                raise
            raise InputError(
                f"{path} is damaged, or a binary PLY file whose faces differ in their number of corners, which is not "
                "read: save it as OFF or as ASCII PLY"
            ) from error
        vertices = np.asarray(mesh.vertices, dtype=np.float64)
        faces = np.asarray(mesh.faces, dtype=np.int64)
        if len(faces) == 0 or faces.min() < 0 or faces.max() >= len(vertices):
            raise InputError(f"{path} has no faces, or faces of vertices that are not there")
        _require_all_faces(path)
        return vertices, faces


_COUNTS_AND_LINES = {  # numbers of vertices and faces, whether a face begins with its corners, and the text
    ".off": re.compile(rb"OFF\s*(\d+)\s+(\d+)([^\n]*\n)(.*)", re.S),
    ".ply": re.compile(
        rb"format ascii.*?element vertex (\d+).*?element face (\d+)\s+(property list)?.*?end_header\s(.*)", re.S
    ),
}


def _require_all_faces(path: Path) -> None:
    """Refuse a text file that ends before the last face its header promises; trimesh takes what is there."""
    pattern = _COUNTS_AND_LINES.get(path.suffix.lower())
    promised = pattern.search(re.sub(rb"#[^\n]*", b"", path.read_bytes())) if pattern else None
    if promised is None:
        return
    vertices, faces = int(promised[1]), int(promised[2])
    lines = [line for line in promised[4].splitlines() if line.strip()][: vertices + faces]
    last = lines[-1].split()  # how many corners, and their numbers
    if len(lines) < vertices + faces or (promised[3] and len(last) <= int(last[0])):
        raise InputError(f"{path} is cut off: it ends before the last of the {faces} faces it promises; get it again")


def sample_surface(vertices: np.ndarray, faces: np.ndarray, points: int, generator: np.random.Generator) -> np.ndarray:
    """``points`` points ``[points, 3]`` drawn uniformly by area from a triangle mesh.

    A triangle is drawn with probability proportional to its area, then a point
    ``(1 − √u) a + √u (1 − v) b + √u v c`` of it with u, v uniform in [0, 1).
    """
    points = whole_number("points", points)
    corners = vertices[faces]  # [F, 3, 3]
    sides = corners[:, 1:] - corners[:, :1]
    area = np.linalg.norm(np.cross(sides[:, 0], sides[:, 1]), axis=1)
    if not area.sum() > 0:
        raise InputError("the mesh has no surface to sample: every triangle has area 0")
    chosen = generator.choice(len(faces), size=points, p=area / area.sum())
    root, v = np.sqrt(generator.random(points)), generator.random(points)
    weights = np.stack([1 - root, root * (1 - v), root * v], axis=1)
    return np.einsum("pc,pcd->pd", weights, corners[chosen])


def unit_sphere(points: np.ndarray) -> np.ndarray:
    """A cloud ``[T, 3]`` moved to mean 0 and scaled so that its farthest point has norm 1 (one point: 0), float32."""
    centred = points - points.mean(axis=0)
    return (centred / (np.linalg.norm(centred, axis=1).max() or 1.0)).astype(np.float32)


def read_hdf5_clouds(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Points ``[N, T, 3]`` float32 and labels ``[N]`` of one file of the 2048-point ModelNet40 release."""
    h5py = _needs("h5py", "HDF5 files")
    path = Path(path)
    with _reading(path, "HDF5"), h5py.File(path, "r") as file:
        points = np.asarray(file["data"], dtype=np.float32)
        labels = np.asarray(file["label"], dtype=np.int64).reshape(-1)
    if points.ndim != 3 or points.shape[2] != 3 or len(points) != len(labels):
        raise InputError(
            f"{path} must hold data [N, T, 3] and one label a cloud; got {points.shape} and {labels.shape}"
        )
    return points, labels


def read_musk(path: str | Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Bags and labels of UCI's ``clean1.data``: molecule, conformation, 166 whole numbers and the class."""
    path = Path(path)
    rows: dict[str, list[np.ndarray]] = {}
    labels: dict[str, int] = {}
    with _reading(path, "Musk"):
        for line in filter(None, path.read_text().splitlines()):
            molecule, _, *values = line.split(",")
            row = np.array([value.rstrip(".") for value in values], dtype=np.float32)
            rows.setdefault(molecule, []).append(row[:-1])
            labels[molecule] = max(labels.get(molecule, 0), int(row[-1]))
        if len({len(row) for bag in rows.values() for row in bag}) > 1:
            raise InputError(f"{path} is damaged: its lines have different numbers of values; get it again")
        bags = [np.stack(bag) for bag in rows.values()]
    return _sound_bags(path, bags), np.array(list(labels.values()), dtype=np.int64)


def _sound_bags(path: Path, bags: list[np.ndarray]) -> list[np.ndarray]:
    if not bags or bags[0].shape[1] == 0:
        raise InputError(f"{path} holds no bags")
    for number, bag in enumerate(bags, start=1):
        if not np.isfinite(bag).all():
            raise InputError(f"{path}: bag {number} holds NaN or an infinite value; get the file again")
    return bags


def read_mil_svm(path: str | Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Bags and labels of a sparse text file whose rows are ``instance:bag:label index:value …``.

    A row may have any number of pairs, so only the newline that ends it shows that the last one is whole.
    """
    path = Path(path)
    rows: dict[str, list[dict[int, float]]] = {}
    labels: dict[str, int] = {}
    with _reading(path, "sparse bag"):
        text = path.read_text()
        for line in text.splitlines():
            line = line.split("#")[0].strip()
            if not line:
                continue
            head, *pairs = line.split()
            _, bag, label = head.split(":")
            rows.setdefault(bag, []).append({int(i): float(v) for i, v in (p.split(":") for p in pairs)})
            labels[bag] = max(labels.get(bag, 0), int(float(label) > 0))
        width = max((max(row, default=0) for bag_rows in rows.values() for row in bag_rows), default=0)
        bags = []
        for bag_rows in rows.values():
            dense = np.zeros((len(bag_rows), width), dtype=np.float32)
            for at, row in enumerate(bag_rows):
                for index, value in row.items():
                    if index < 1:
                        raise InputError(f"{path}: feature numbers begin at 1; got {index}")
                    dense[at, index - 1] = value
            bags.append(dense)
    bags = _sound_bags(path, bags)
    if not text.endswith("\n"):
        raise InputError(f"{path} is cut off: its last line has no end; get it again, or add a newline if it is whole")
    return bags, np.array(list(labels.values()), dtype=np.int64)


def cut_recordings(folder: str | Path, *, steps: int = 128, stride: int = 64) -> dict[str, np.ndarray]:
    """Windows of the HAPT recordings: ``x [N, steps, 6]``, ``y [N]`` (0 to 5), ``subject [N]``, ``recording [N]``.

    ``folder`` is the archive's ``RawData``: ``labels.txt`` (recording, subject, activity, first and last
    sample) beside ``acc_expNN_userNN.txt`` and ``gyro_expNN_userNN.txt``. Windows lie inside one labelled
    stretch of the six basic activities; postural transitions (7 to 12) are left out.
    """
    folder = Path(folder)
    windows, activities, subjects, recordings = [], [], [], []
    signals: dict[tuple[int, int], np.ndarray] = {}
    with _reading(folder, "HAPT RawData"):
        labels = np.loadtxt(folder / "labels.txt", dtype=np.int64, ndmin=2)
        for recording, subject, activity, first, last in labels:
            if activity > 6:
                continue
            key = int(recording), int(subject)
            if key not in signals:
                tail = f"exp{recording:02d}_user{subject:02d}.txt"
                parts = [np.loadtxt(folder / f"{kind}_{tail}", dtype=np.float32) for kind in ("acc", "gyro")]
                signals[key] = np.concatenate(parts, axis=1)
            if last > len(signals[key]):
                raise InputError(
                    f"{folder}: recording {recording} is cut off: it has {len(signals[key])} samples, and labels.txt "
                    f"names sample {last}; get the recordings again"
                )
            stretch = signals[key][first - 1 : last]
            for start in range(0, len(stretch) - steps + 1, stride):
                windows.append(stretch[start : start + steps])
                activities.append(activity - 1)
                subjects.append(subject)
                recordings.append(recording)
    if not windows:
        raise InputError(f"{folder} holds no stretch of {steps} samples of a basic activity")
    cut = {"y": activities, "subject": subjects, "recording": recordings}
    return {"x": np.stack(windows), **{key: np.array(values) for key, values in cut.items()}}


def unpack(archive: str | Path, folder: str | Path) -> list[Path]:
    """Unpack a zip or tar file into ``folder``; nothing in it may leave the folder.

    Absolute names, ``..``, links and devices are refused before anything is written. Returns the files.
    """
    archive, folder = Path(archive), Path(folder)
    root = folder.resolve()

    def inside(name: str) -> Path:
        target = (root / name.replace("\\", "/")).resolve()
        if Path(name).is_absolute() or target == root or not target.is_relative_to(root):
            raise InputError(f"{archive} wants to write outside its folder: {name!r}; nothing was unpacked")
        return target

    def plain(name: str, ordinary: bool) -> None:
        if not ordinary:
            raise InputError(f"{archive} holds a link or device: {name!r}; nothing was unpacked")

    with _reading(archive, "zip or tar"):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                files = [(info, inside(info.filename)) for info in zipped.infolist() if not info.is_dir()]
                for info, _ in files:
                    kind = stat.S_IFMT(info.external_attr >> 16)
                    plain(info.filename, kind in (0, stat.S_IFREG))
                for info, target in files:
                    _write(target, zipped.read(info))
                return [target for _, target in files]
        with tarfile.open(archive) as tar:
            members = [(info, inside(info.name)) for info in tar.getmembers() if not info.isdir()]
            for member, _ in members:
                plain(member.name, member.isreg())
            for member, target in members:
                stream = tar.extractfile(member)
                _write(target, stream.read() if stream else b"")
            return [target for _, target in members]


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_bytes(content)
    os.replace(part, target)


def _needs(module: str, what: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"reading {what} needs {module}: pip install -c constraints.txt '.[mesh]' in a checkout"
        ) from None
