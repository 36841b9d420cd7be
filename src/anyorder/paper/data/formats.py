"""Readers of the file formats the data sets come in: each takes a path and returns numpy arrays."""

from __future__ import annotations

import gzip
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anyorder.checks import InputError, extra

Bags = tuple[list[np.ndarray], np.ndarray]  # arrays [n_i, D] and labels [N]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes a parser raise or warn of into one error that names the file."""
    try:
        with warnings.catch_warnings(action="error", category=UserWarning):  # numpy's, of a file without a line
            yield
    except (InputError, FileNotFoundError):
        raise
    except Exception as error:
        raise InputError(f"{path} cannot be read, get it again: {' '.join(str(error).split())}") from error


def read_idx(path: Path) -> np.ndarray:
    """The bytes of a gzipped idx file, MNIST's format: uint8 ``[N, …]``."""
    with reading(path):
        raw = gzip.decompress(path.read_bytes())
        axes = raw[3]
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(np.frombuffer(raw, ">i4", axes, offset=4))


def read_ucr(path: Path) -> Bags:
    """Series and labels of a UCR text file: a row is a label and its values, split by tabs, commas or blanks.

    Returns float32 arrays ``[T_i]`` (trailing NaN, the archive's padding, is cut) and labels ``[N]``. All rows must
    have as many values, as in the archive: a row with fewer was cut off.
    """
    with reading(path):
        table = np.loadtxt(path.read_text().replace(",", " ").splitlines(), ndmin=2)
        last = table.shape[1] - np.argmax(~np.isnan(table[:, ::-1]), axis=1)
        series = [row[1:end].astype(np.float32) for row, end in zip(table, last, strict=True)]
        if (table[:, 0] % 1).any() or not all(s.size and np.isfinite(s).all() for s in series):
            raise InputError(f"{path}: expected a whole label and finite values in each line")
        return series, table[:, 0].astype(np.int64)


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays ``names`` of an npz file; pickled objects are refused."""
    with reading(path), np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in names}


def read_hdf5_clouds(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Points ``[N, T, 3]`` float32 and labels ``[N]`` of one file of the 2048-point ModelNet40 release."""
    h5py = extra("h5py", "paper", "an HDF5 file")
    with reading(path), h5py.File(path, "r") as file:
        return file["data"][:].astype(np.float32), file["label"][:].astype(np.int64).reshape(-1)


def read_mesh(path: Path) -> Any:
    """The trimesh of an OFF file; larger faces are cut up."""
    trimesh = extra("trimesh", "paper", "a mesh")
    with reading(path):
        lines = [line.split() for line in re.sub("OFF|#.*", "", path.read_text()).splitlines() if line.strip()]
        last = lines[int(lines[0][0]) + int(lines[0][1])]
        if len(last) <= int(last[0]):  # trimesh takes what is there
            raise InputError(f"{path} is cut off before the last of its {lines[0][1]} faces; get it again")
        return trimesh.load_mesh(path, process=False)


def read_musk(path: Path) -> Bags:
    """Bags and labels of UCI's ``clean1.data``: molecule, conformation, 166 whole numbers and the class."""
    with reading(path):
        table = pd.read_csv(path, header=None)
        return _bags(table[0], table.iloc[:, 2:-1].astype(int).to_numpy(), table.iloc[:, -1].astype(int).to_numpy())


def read_mil_svm(path: Path) -> Bags:
    """Bags and labels of a sparse text file whose rows are ``instance:bag:label index:value …``."""
    from sklearn.datasets import load_svmlight_file

    with reading(path):
        text = path.read_text()
        if not text.endswith("\n"):  # the only sign that the last value is whole
            raise InputError(f"{path} is cut off in its last line; get it again, or add a newline if it is whole")
        rows = [line.partition(" ") for line in text.splitlines() if line.strip() and not line.startswith("#")]
        heads = [head.split(":") for head, _, _ in rows]
        sparse = "".join(f"0 {pairs}\n" for _, _, pairs in rows).encode()
        elements, _ = load_svmlight_file(io.BytesIO(sparse), zero_based=False)
        owners = np.array([bag for _, bag, _ in heads])
        return _bags(owners, elements.toarray(), np.array([float(y) > 0 for *_, y in heads]))


def _bags(owners: Any, elements: np.ndarray, positive: np.ndarray) -> Bags:
    """The rows of each owner, in the order of their first row; a bag is positive if one of its rows is."""
    bag, names = pd.factorize(owners)
    rows = [np.flatnonzero(bag == number) for number in range(len(names))]
    return [elements[r].astype(np.float32) for r in rows], np.array([int(positive[r].max()) for r in rows])


def cut_recordings(folder: Path, *, steps: int = 128, stride: int = 64) -> dict[str, np.ndarray]:
    """Windows of the HAPT recordings: ``x [N, steps, 6]``, ``y [N]`` (0 to 5), ``subject [N]``, ``recording [N]``.

    ``folder`` is the archive's ``RawData``: ``labels.txt`` (recording, subject, activity, first and last
    sample) beside ``acc_expNN_userNN.txt`` and ``gyro_expNN_userNN.txt``. Windows lie inside one labelled
    stretch of the six basic activities; postural transitions (7 to 12) are left out.
    """
    windows, rows = [], []
    signals: dict[str, np.ndarray] = {}
    with reading(folder):
        for recording, subject, activity, first, last in np.loadtxt(folder / "labels.txt", dtype=np.int64, ndmin=2):
            if activity > 6:
                continue
            tail = f"exp{recording:02d}_user{subject:02d}.txt"
            if tail not in signals:
                parts = [np.loadtxt(folder / f"{kind}_{tail}", dtype=np.float32) for kind in ("acc", "gyro")]
                signals[tail] = np.concatenate(parts, axis=1)
            if last > len(signals[tail]):
                raise InputError(f"{folder}: recording {recording} ends before the sample {last} of labels.txt")
            for start in range(first - 1, last - steps + 1, stride):
                windows.append(signals[tail][start : start + steps])
                rows.append((activity - 1, subject, recording))
        y, subject, recording = np.array(rows).T
        return {"x": np.stack(windows), "y": y, "subject": subject, "recording": recording}
