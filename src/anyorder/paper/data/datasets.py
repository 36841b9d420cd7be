"""The real data of the paper and of the signals it names, as sets; their splits.

Every loader looks in ``ANYORDER_DATA``, then in ``ANYORDER_HOME/data``, and then downloads the original if its
publisher's checksum is known. A file with a known checksum is checked each time it is read. Labels are
whole numbers from 0; elements are float32 in the data's own units.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anyorder.checks import InputError, extra, one_of, real_number, whole_number
from anyorder.data.sets import SetData
from anyorder.paper.data import formats
from anyorder.paper.data.sources import SOURCES, locate


@dataclass(frozen=True)
class Dataset:
    """A data set as read: training and test sets, and what a fair validation part needs.

    ``test`` is None where the data has no split of its own (bags: use :func:`folds`); ``groups [N]`` names the
    person or shape each training set comes from, where there is one.
    """

    name: str
    train: SetData
    test: SetData | None
    class_names: tuple[str, ...]
    source: str
    groups: Tensor | None = None


# ---------------------------------------------------------------------------------------------- digits


def mnist() -> Dataset:
    """MNIST, one pixel an element: sets ``[784, 1]`` in [0, 1], row by row."""
    folder = locate("mnist")[1] / "mnist"
    files = [(f"{part}-images-idx3", f"{part}-labels-idx1") for part in ("train", "t10k")]
    return _digits("mnist", [[formats.read_idx(folder / f"{f}-ubyte.gz") for f in pair] for pair in files], 255.0)


def digits(seed: int = 0) -> Dataset:
    """The 1,797 digits of 8 × 8 pixels that come with scikit-learn: 1,297 to train on, 500 to test."""
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(pixels))
    return _digits("digits", [(pixels[i], targets[i]) for i in (order[500:], order[:500])], 16.0)


def _digits(name: str, parts: Sequence[Sequence[np.ndarray]], scale: float) -> Dataset:
    scaled = [(pixels / scale).astype(np.float32).reshape(len(pixels), -1, 1) for pixels, _ in parts]
    train, test = (SetData.of(x, y.astype(np.int64)) for x, (_, y) in zip(scaled, parts, strict=True))
    return Dataset(name, train, test, tuple(map(str, range(10))), source=name)


def local_orderings(samples: int, length: int, windows: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """Random orderings ``[samples, length]`` that shuffle inside consecutive windows of each size in turn.

    Place i of the result holds the index of the element that ends there. No element moves further than
    ``sum(w − 1)`` places; a last window may be shorter.

    >>> order = local_orderings(1, 6, [2], np.random.default_rng(0))
    >>> sorted(order[0, :2].tolist()), sorted(order[0, 4:].tolist())
    ([0, 1], [4, 5])
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
    windows = [whole_number("windows", window) for window in windows]

    def reordered(data: SetData, generator: np.random.Generator) -> SetData:
        if data.common_length is None:
            raise InputError("dataset must hold sets of one common size to be perturbed in windows")
        order = torch.from_numpy(local_orderings(len(data), data.common_length, windows, generator)).long()
        order += data.offsets[:-1, None]
        return replace(data, elements=data.elements[order.flatten()])

    assert dataset.test is not None
    first, second = np.random.default_rng(seed).spawn(2)
    name = f"{dataset.name}-perturbed-{'-'.join(map(str, windows))}"
    return replace(dataset, name=name, train=reordered(dataset.train, first), test=reordered(dataset.test, second))


# ------------------------------------------------------------------------------------ signals and bags


def ecg5000() -> Dataset:
    """ECG5000: heartbeats ``[140, 1]`` of five classes, the archive's own split."""
    name, folder = locate("ecg5000")
    if name == "ecg5000":
        raw = formats.read_npz(folder / "ecg/ecg5000.npz", ("x_train", "y_train", "x_test", "y_test"))
        return _series(name, (list(raw["x_train"]), raw["y_train"]), (list(raw["x_test"]), raw["y_test"]), name)
    data = ucr(folder / "ECG5000")
    found = [(p.common_length, *np.bincount(_labels(p)).tolist()) for p in (data.train, data.test) if p is not None]
    beats = [(140, 292, 177, 10, 19, 2), (140, 2627, 1590, 86, 175, 22)]
    _expect(folder / "ECG5000", "steps in every beat and beats of each class, training and test", found, beats)
    return data


def ucr(folder: str | Path) -> Dataset:
    """Any data set of the UCR archive: a folder ``NAME`` with ``NAME_TRAIN.tsv`` and ``NAME_TEST.tsv`` (or .txt)."""
    folder = Path(folder)
    ending = "tsv" if (folder / f"{folder.name}_TRAIN.tsv").exists() else "txt"
    train, test = (formats.read_ucr(folder / f"{folder.name}_{part}.{ending}") for part in ("TRAIN", "TEST"))
    return _series(folder.name.lower(), train, test, source=str(folder))


def _series(name: str, train: formats.Bags, test: formats.Bags, source: str) -> Dataset:
    classes = np.unique(train[1])
    if not np.isin(test[1], classes).all():
        raise InputError(f"{source}: the test part has a class that the training part lacks")
    first, second = (SetData.of([x[:, None] for x in xs], np.searchsorted(classes, ys)) for xs, ys in (train, test))
    return Dataset(name, first, second, tuple(map(str, classes)), source)


HAPT_ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")
HAPT_TEST_SUBJECTS = (2, 4, 9, 10, 12, 13, 18, 20, 24)


def hapt() -> Dataset:
    """HAPT windows ``[128, 6]`` (acceleration in g, angular velocity in rad/s) of six activities, by subject."""
    name, folder = locate("hapt")
    if name == "hapt-recordings":
        cut = formats.cut_recordings(folder / "HAPT/RawData")
        found = len(np.unique(cut["recording"])), len(np.unique(cut["subject"]))
        _expect(folder / "HAPT/RawData", "recordings and subjects", found, (61, 30))
        is_test = np.isin(cut["subject"], HAPT_TEST_SUBJECTS)
        parts = [{key: values[rows] for key, values in cut.items()} for rows in (~is_test, is_test)]
    else:
        fields = [f"{key}_{part}" for part in ("train", "test") for key in ("x", "y", "subject")]
        raw = formats.read_npz(folder / "har/hapt_windows_f32.npz", tuple(fields))
        parts = [{key: raw[f"{key}_{part}"] for key in ("x", "y", "subject")} for part in ("train", "test")]
    train, test = (SetData.of(part["x"], part["y"].astype(np.int64)) for part in parts)
    groups = torch.from_numpy(parts[0]["subject"].astype(np.int64))
    return Dataset("hapt", train, test, HAPT_ACTIVITIES, name, groups)


def bags(name: str) -> Dataset:
    """Multiple-instance bags, ``musk1`` or ``elephant``: a bag is positive if one of its instances is.

    There is no test part; see :func:`folds`.
    """
    other = {"musk1": "musk1-uci", "elephant": "elephant-svm"}[one_of("name", name, ("musk1", "elephant"))]
    source, folder = locate("bags", ("bags", other))
    if source == "bags":
        keys = tuple(f"{name}_{key}" for key in ("x", "bag", "y"))
        x, bag, y = formats.read_npz(folder / "mil/mil_bags.npz", keys).values()
        sets = np.split(x, np.flatnonzero(np.diff(bag)) + 1)
    else:
        path = folder / next(iter(SOURCES[other].files))
        sets, y = (formats.read_musk if name == "musk1" else formats.read_mil_svm)(path)
        shape = len(sets), sum(map(len, sets)), sets[0].shape[1]
        published = {"musk1": (92, 476, 166), "elephant": (200, 1391, 230)}[name]
        _expect(path, "bags, instances and features", shape, published)
    data = SetData.of([s.astype(np.float32) for s in sets], y.astype(np.int64))
    return Dataset(name, data, None, ("negative", "positive"), source)


# ------------------------------------------------------------------------------------------ point clouds


def modelnet40(points: int = 1024, *, draws: int = 1, seed: int = 0) -> Dataset:
    """ModelNet40 clouds ``[points, 3]`` in the unit sphere, in random order.

    Up to 1024 points come from the prepared file, up to 2048 from the HDF5 release, any number from the meshes,
    whichever is found first. With ``draws`` above 1, each training shape gives that many clouds (disjoint ones
    where the file has enough points), and ``groups`` names the shape of each; the test shapes give one each.
    """
    points, draws = whole_number("points", points), whole_number("draws", draws)
    sizes = {"modelnet40": 1024, "modelnet40-hdf5": 2048, "modelnet40-meshes": points}
    name, folder = locate("modelnet40", [n for n, most in sizes.items() if points <= most])
    if name == "modelnet40-meshes":
        root = folder / "ModelNet40"
        found = [len(list(root.glob(pattern))) for pattern in ("*/train", "*/train/*.off", "*/test/*.off")]
        _expect(root, "classes, training shapes and test shapes", found, [40, 9843, 2468])
        return meshes(root, points, draws=draws, seed=seed)
    parts: list[SetData] = []
    names: tuple[str, ...] = ()
    for part, count in (("train", draws), ("test", 1)):
        if name == "modelnet40":
            path = folder / f"modelnet40/modelnet40_1024_{part}_i16.npz"
            raw = formats.read_npz(path, ("points", "label", "scale", "class_names"))
            clouds = _choose(raw["points"], points, count, seed).astype(np.float32) * np.float32(raw["scale"])
            labels, names = raw["label"].astype(np.int64), tuple(map(str, raw["class_names"]))
        else:
            files = [formats.read_hdf5_clouds(folder / file) for file in SOURCES[name].files if f"_{part}" in file]
            clouds = np.concatenate([_choose(all_points, points, count, seed) for all_points, _ in files])
            labels = np.concatenate([labels for _, labels in files])
            names = tuple((folder / "modelnet40_ply_hdf5_2048/shape_names.txt").read_text().split())
        parts.append(SetData.of(clouds.reshape(-1, points, 3), np.repeat(labels, count)))
    return _shapes("modelnet40", parts, draws, names, name)


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
    sample = extra("trimesh.sample", "paper", "a mesh")
    folder = Path(folder)
    names = sorted(path.parent.name for path in folder.glob("*/train"))
    parts = []
    for number, (part, count) in enumerate((("train", draws), ("test", 1))):
        clouds, labels = [], []
        for path in sorted(folder.glob(f"*/{part}/*.off")):
            name_key = int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:8], "big")
            mesh = formats.read_mesh(path)
            for draw in range(count):
                generator = np.random.default_rng([seed, number, name_key, draw])
                with formats.reading(path):
                    drawn = np.asarray(sample.sample_surface(mesh, points, seed=generator)[0])
                centred = drawn - drawn.mean(axis=0)
                clouds.append((centred / (np.linalg.norm(centred, axis=1).max() or 1.0)).astype(np.float32))
                labels.append(names.index(path.parent.parent.name))
        if not clouds:
            raise InputError(f"folder must hold <class>/{part}/*.off; found none in {folder}")
        parts.append(SetData.of(np.stack(clouds), np.array(labels)))
    return _shapes(folder.name.lower(), parts, draws, tuple(names), str(folder))


def _shapes(name: str, parts: Sequence[SetData], draws: int, names: tuple[str, ...], source: str) -> Dataset:
    groups = torch.arange(len(parts[0])) // draws if draws > 1 else None
    return Dataset(name, parts[0], parts[1], names, source, groups)


# ---------------------------------------------------------------------------------------------- splits


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


def _labels(data: SetData) -> np.ndarray:
    assert data.targets is not None
    return data.targets.numpy()


def _rows_by_class(data: SetData) -> list[np.ndarray]:
    labels = _labels(data)
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _expect(path: Path, what: str, found: Sequence[object], expected: Sequence[object]) -> None:
    """Refuse a file without a published checksum whose counts are not those of the published data."""
    if found != expected:
        raise InputError(f"{path} is not the published data: expected {expected} {what}; found {found}")
