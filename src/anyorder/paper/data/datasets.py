"""The real data of the paper and of the signals it names, as sets; their splits.

Every loader looks in ``ANYORDER_DATA``, then in ``ANYORDER_HOME/data``, and then downloads the original if its
publisher's checksum is known. A file with a known checksum is checked each time it is read. Labels are
whole numbers from 0; elements are float32 in the data's own units.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from anyorder.checks import InputError, extra, one_of, real_number, whole_number
from anyorder.data.sets import SetData
from anyorder.paper.data.sources import SOURCES, locate

Bags = tuple[list[np.ndarray], np.ndarray]  # arrays [n_i, D] and labels [N]


@dataclass(frozen=True)
class Dataset:
    """A data set as read: training and test sets, and what a fair validation part needs.

    ``test`` is None where the data has no split of its own (bags: use :func:`folds`); ``groups [N]`` names the
    person or shape each training set comes from, where there is one.
    """

    train: SetData
    test: SetData | None
    groups: Tensor | None = None


def mnist() -> Dataset:
    """MNIST, one pixel an element: sets ``[784, 1]`` in [0, 1], row by row."""
    folder = locate("mnist")[1] / "mnist"
    files = [(f"{part}-images-idx3", f"{part}-labels-idx1") for part in ("train", "t10k")]
    return _digits([[read_idx(folder / f"{f}-ubyte.gz") for f in pair] for pair in files], 255.0)


def digits(seed: int = 0) -> Dataset:
    """The 1,797 digits of 8 × 8 pixels that come with scikit-learn: 1,297 to train on, 500 to test."""
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(pixels))
    return _digits([(pixels[i], targets[i]) for i in (order[500:], order[:500])], 16.0)


def _digits(parts: Sequence[Sequence[np.ndarray]], scale: float) -> Dataset:
    scaled = [(pixels / scale).astype(np.float32).reshape(len(pixels), -1, 1) for pixels, _ in parts]
    train, test = (SetData.of(x, y.astype(np.int64)) for x, (_, y) in zip(scaled, parts, strict=True))
    return Dataset(train, test)


def local_orderings(samples: int, length: int, windows: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """Random orderings ``[samples, length]`` that shuffle inside consecutive windows of each size in turn.

    Place i of the result holds the index of the element that ends there. No element moves further than
    ``sum(w − 1)`` places; a last window may be shorter.
    """
    order = np.tile(np.arange(length, dtype=np.int32), (samples, 1))
    for window in windows:
        keys = (np.arange(length) // window) + generator.random((samples, length), dtype=np.float32) * 0.999
        order = np.take_along_axis(order, np.argsort(keys, axis=1), axis=1)
    return order


def perturbed(dataset: Dataset, windows: Sequence[int] = (4, 7), seed: int = 0) -> Dataset:
    """``dataset`` with every set reordered inside windows of 4 and then of 7 (the paper's perturbation).

    Each set gets orderings of its own, fixed by ``seed``; training and test sets from separate streams.
    """

    def reordered(data: SetData, generator: np.random.Generator) -> SetData:
        steps = len(data.elements) // len(data)  # of every set
        order = torch.from_numpy(local_orderings(len(data), steps, windows, generator)).long()
        order += data.offsets[:-1, None]
        return replace(data, elements=data.elements[order.flatten()])

    assert dataset.test is not None
    first, second = np.random.default_rng(seed).spawn(2)
    return replace(dataset, train=reordered(dataset.train, first), test=reordered(dataset.test, second))


def scanned(dataset: Dataset, order: str) -> Dataset:
    """Clouds of one size with their points sorted by "x", by "radius", or as they come ("random")."""

    def reordered(data: SetData) -> SetData:
        points = data.elements.unflatten(0, (len(data), -1))
        place = {"x": points[:, :, 0], "radius": points.norm(dim=2), "random": torch.zeros(points.shape[:2])}
        index = place[one_of("order", order, place)].argsort(dim=1, stable=True)[:, :, None].expand_as(points)
        return replace(data, elements=points.gather(1, index).flatten(0, 1))

    assert dataset.test is not None
    return replace(dataset, train=reordered(dataset.train), test=reordered(dataset.test))


def ecg5000() -> Dataset:
    """ECG5000: heartbeats ``[140, 1]`` of five classes, the archive's own split."""
    name, folder = locate("ecg5000")
    if name == "ecg5000":
        raw = read_npz(folder / "ecg/ecg5000.npz", ("x_train", "y_train", "x_test", "y_test"))
        parts = [(raw["x_train"], raw["y_train"]), (raw["x_test"], raw["y_test"])]
    else:
        parts = [read_ucr(folder / f"ECG5000/ECG5000_{part}.txt") for part in ("TRAIN", "TEST")]
        found = [(x.shape[1], *np.unique(y, return_counts=True)[1].tolist()) for x, y in parts]
        beats = [(140, 292, 177, 10, 19, 2), (140, 2627, 1590, 86, 175, 22)]
        _expect(folder / "ECG5000", "steps in every beat and beats of each class, training and test", found, beats)
    classes = np.unique(parts[0][1])
    train, test = (SetData.of(x[:, :, None], np.searchsorted(classes, y)) for x, y in parts)
    return Dataset(train, test)


HAPT_TEST_SUBJECTS = (2, 4, 9, 10, 12, 13, 18, 20, 24)


def hapt() -> Dataset:
    """HAPT windows ``[128, 6]`` (acceleration in g, angular velocity in rad/s) of six activities, by subject."""
    name, folder = locate("hapt")
    if name == "hapt-recordings":
        cut = cut_recordings(folder / "HAPT/RawData")
        found = len(np.unique(cut["recording"])), len(np.unique(cut["subject"]))
        _expect(folder / "HAPT/RawData", "recordings and subjects", found, (61, 30))
        is_test = np.isin(cut["subject"], HAPT_TEST_SUBJECTS)
        parts = [{key: values[rows] for key, values in cut.items()} for rows in (~is_test, is_test)]
    else:
        fields = [f"{key}_{part}" for part in ("train", "test") for key in ("x", "y", "subject")]
        raw = read_npz(folder / "har/hapt_windows_f32.npz", tuple(fields))
        parts = [{key: raw[f"{key}_{part}"] for key in ("x", "y", "subject")} for part in ("train", "test")]
    train, test = (SetData.of(part["x"], part["y"].astype(np.int64)) for part in parts)
    groups = torch.from_numpy(parts[0]["subject"].astype(np.int64))
    return Dataset(train, test, groups)


def bags(name: str) -> Dataset:
    """Multiple-instance bags, ``musk1`` or ``elephant``: a bag is positive if one of its instances is.

    There is no test part; see :func:`folds`.
    """
    other = {"musk1": "musk1-uci", "elephant": "elephant-svm"}[one_of("name", name, ("musk1", "elephant"))]
    source, folder = locate("bags", ("bags", other))
    if source == "bags":
        keys = tuple(f"{name}_{key}" for key in ("x", "bag", "y"))
        x, bag, y = read_npz(folder / "mil/mil_bags.npz", keys).values()
        sets = np.split(x, np.flatnonzero(np.diff(bag)) + 1)
    else:
        path = folder / next(iter(SOURCES[other].files))
        sets, y = (read_musk if name == "musk1" else read_mil_svm)(path)
        shape = len(sets), sum(map(len, sets)), sets[0].shape[1]
        published = {"musk1": (92, 476, 166), "elephant": (200, 1391, 230)}[name]
        _expect(path, "bags, instances and features", shape, published)
    data = SetData.of([s.astype(np.float32) for s in sets], y.astype(np.int64))
    return Dataset(data, None)


def modelnet40(points: int = 1024, *, draws: int = 1, seed: int = 0) -> Dataset:
    """ModelNet40 clouds ``[points, 3]`` in the unit sphere, in random order.

    Up to 1024 points come from the prepared file if it is found, any number from the meshes. With ``draws`` above 1,
    each training shape gives that many clouds (disjoint ones where the file has enough points), and ``groups`` names
    the shape of each; the test shapes give one each.
    """
    points, draws = whole_number("points", points), whole_number("draws", draws)
    name, folder = locate("modelnet40", ["modelnet40"] * (points <= 1024) + ["modelnet40-meshes"])
    if name == "modelnet40-meshes":
        root = folder / "ModelNet40"
        found = [len(list(root.glob(pattern))) for pattern in ("*/train", "*/train/*.off", "*/test/*.off")]
        _expect(root, "classes, training shapes and test shapes", found, [40, 9843, 2468])
        return meshes(root, points, draws=draws, seed=seed)
    parts = []
    for part, count in (("train", draws), ("test", 1)):
        raw = read_npz(folder / f"modelnet40/modelnet40_1024_{part}_i16.npz", ("points", "label", "scale"))
        clouds = _choose(raw["points"], points, count, seed).astype(np.float32) * np.float32(raw["scale"])
        parts.append(SetData.of(clouds.reshape(-1, points, 3), np.repeat(raw["label"].astype(np.int64), count)))
    return Dataset(parts[0], parts[1], torch.arange(len(parts[0])) // draws if draws > 1 else None)


def _choose(clouds: np.ndarray, points: int, draws: int, seed: int) -> np.ndarray:
    """``[N, draws, points, 3]`` out of ``[N, T, 3]``: a random ordering of each cloud, read off in pieces."""
    generator = np.random.default_rng(seed)
    shapes, available = clouds.shape[:2]
    pieces: list[np.ndarray] = []
    while len(pieces) < draws:
        order = np.argsort(generator.random((shapes, available), dtype=np.float32), axis=1)
        pieces += [order[:, i : i + points] for i in range(0, available - points + 1, points)]
    return np.stack([np.take_along_axis(clouds, p[:, :, None], axis=1) for p in pieces[:draws]], axis=1)


def meshes(folder: str | Path, points: int, *, draws: int = 1, seed: int = 0) -> Dataset:
    """Clouds drawn by area from ``FOLDER/<class>/train|test/*.off``, moved to mean 0 and scaled to the unit sphere.

    Each cloud has a random stream of its own, so neither other files nor other draws change it.
    """
    trimesh = extra("trimesh", "paper", "a mesh")
    folder = Path(folder)
    names = sorted(path.parent.name for path in folder.glob("*/train"))
    parts = []
    for number, (part, count) in enumerate((("train", draws), ("test", 1))):
        clouds, labels = [], []
        for path in sorted(folder.glob(f"*/{part}/*.off")):
            name_key = int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:8], "big")
            with reading(path):
                mesh = trimesh.load_mesh(path, process=False)
                streams = [np.random.default_rng([seed, number, name_key, draw]) for draw in range(count)]
                surfaces = [trimesh.sample.sample_surface(mesh, points, seed=stream)[0] for stream in streams]
            for drawn in map(np.asarray, surfaces):
                centred = drawn - drawn.mean(axis=0)
                clouds.append((centred / (np.linalg.norm(centred, axis=1).max() or 1.0)).astype(np.float32))
                labels.append(names.index(path.parent.parent.name))
        parts.append(SetData.of(np.stack(clouds), np.array(labels)))
    return Dataset(parts[0], parts[1], torch.arange(len(parts[0])) // draws if draws > 1 else None)


def split(data: SetData, fraction: float, *, seed: int, groups: Tensor | None = None) -> tuple[SetData, SetData]:
    """``data`` in two, in its own order: the rest, and a part of about ``fraction`` of it.

    Stratified by class, with at least one set of each class that has two or more in either part; by whole
    groups where ``groups [N]`` is given (no person is in both parts).
    """
    fraction = real_number("fraction", fraction, above=0.0, below=1.0)
    generator = np.random.default_rng(seed)

    def drawn(members: np.ndarray) -> np.ndarray:
        return generator.permutation(members)[: min(max(1, round(fraction * len(members))), len(members) - 1)]

    if groups is not None:
        chosen = np.isin(groups.numpy(), drawn(np.unique(groups.numpy())))
    else:
        chosen = np.isin(np.arange(len(data)), np.concatenate([drawn(rows) for rows in _rows_by_class(data)]))
    return data.select(~chosen), data.select(chosen)


def few_labels(data: SetData, fraction: float, *, seed: int) -> tuple[SetData, SetData]:
    """The ``fraction`` of ``data`` that keeps its labels (each class of two or more does), and the rest without."""
    rest, labeled = split(data, fraction, seed=seed)
    return labeled, SetData(rest.elements, rest.offsets)


def folds(data: SetData, count: int = 10, *, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """``count`` pairs of training and test indices; the test parts are stratified and cover every set once."""
    classes = _rows_by_class(data)
    count = whole_number("count", count, minimum=2, maximum=min(map(len, classes)))
    generator = np.random.default_rng(seed)
    fold_of, dealt = torch.empty(len(data), dtype=torch.int64), 0
    for rows in classes:
        fold_of[generator.permutation(rows)] = (dealt + torch.arange(len(rows))) % count
        dealt += len(rows)
    return [((fold_of != fold).nonzero()[:, 0], (fold_of == fold).nonzero()[:, 0]) for fold in range(count)]


def standardized(train: SetData, *others: SetData, spread: float = 1.0) -> list[SetData]:
    """All parts with each feature shifted and scaled: in the training part its mean is 0, its deviation ``spread``."""
    mean, deviation = train.elements.mean(dim=0), train.elements.std(dim=0)
    deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    return [replace(part, elements=(part.elements - mean) / deviation * spread) for part in (train, *others)]


def _rows_by_class(data: SetData) -> list[np.ndarray]:
    assert data.targets is not None
    labels = data.targets.numpy()
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _expect(path: Path, what: str, found: Sequence[object], expected: Sequence[object]) -> None:
    """Refuse a file without a published checksum whose counts are not those of the published data."""
    if found != expected:
        raise InputError(f"{path} is not the published data: expected {expected} {what}; found {found}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes a parser raise into one error that names the file."""
    try:
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


def read_ucr(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Series ``[N, T]`` and labels ``[N]`` of a UCR text file: a row is a label and its values."""
    with reading(path):
        table = np.loadtxt(path, ndmin=2)
        return table[:, 1:].astype(np.float32), table[:, 0].astype(np.int64)


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays ``names`` of an npz file; pickled objects are refused."""
    with reading(path), np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in names}


def read_musk(path: Path) -> Bags:
    """Bags and labels of UCI's ``clean1.data``: molecule, conformation, 166 whole numbers and the class."""
    with reading(path):
        table = pd.read_csv(path, header=None)
        return _bags(table[0], table.iloc[:, 2:-1].astype(int).to_numpy(), table.iloc[:, -1].astype(int).to_numpy())


def read_mil_svm(path: Path) -> Bags:
    """Bags and labels of a sparse text file whose rows are ``instance:bag:label index:value …``."""
    with reading(path):
        lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
        rows = [re.split("[: ]+", line.strip()) for line in lines]
        elements = np.zeros((len(rows), max(int(row[-2]) for row in rows)))
        for element, (_, _, _, *pairs) in zip(elements, rows, strict=True):
            element[np.array(pairs[::2], dtype=int) - 1] = np.array(pairs[1::2], dtype=float)
        return _bags(np.array([row[1] for row in rows]), elements, np.array([float(row[2]) > 0 for row in rows]))


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

    @functools.cache
    def signals(tail: str) -> np.ndarray:
        return np.hstack([np.loadtxt(folder / f"{kind}_{tail}", dtype=np.float32) for kind in ("acc", "gyro")])

    with reading(folder):
        labels = np.loadtxt(folder / "labels.txt", dtype=np.int64, ndmin=2)
        for recording, subject, activity, first, last in labels[labels[:, 2] <= 6]:
            signal = signals(f"exp{recording:02d}_user{subject:02d}.txt")
            for start in range(first - 1, last - steps + 1, stride):
                windows.append(signal[start : start + steps])
                rows.append((activity - 1, subject, recording))
        y, subject, recording = np.array(rows).T
        return {"x": np.stack(windows), "y": y, "subject": subject, "recording": recording}
