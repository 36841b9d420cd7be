"""Small generated data with the shape of the real sets: what the smoke scale and the tests run on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from anyorder.data.sets import SetData
from anyorder.paper.data.datasets import Dataset, meshes


def beats(seed: int = 0, *, train: int = 60, test: int = 60, steps: int = 20, classes: int = 3) -> Dataset:
    """Series ``[steps, 1]`` with a bump whose place is the class."""
    generator = np.random.default_rng(seed)

    def draw(count: int) -> SetData:
        labels = np.arange(count) % classes
        centre = (labels + 0.5) / classes * steps
        bump = np.exp(-0.5 * (np.arange(steps) - centre[:, None]) ** 2 / (steps / 12) ** 2)
        series = 2 * bump + 0.3 * generator.normal(size=bump.shape)
        return SetData.of(series.astype(np.float32)[:, :, None], labels)

    return Dataset("generated-beats", draw(train), draw(test), tuple(map(str, range(classes))), "generated")


def windows(seed: int = 0, *, people: int = 6, each: int = 12, steps: int = 16, classes: int = 3) -> Dataset:
    """Oscillations ``[steps, 6]`` whose frequency is the class; half of the people are for the test."""
    generator = np.random.default_rng(seed)

    def draw(count: int) -> SetData:
        labels = np.arange(count) % classes
        phase = generator.uniform(0, 2 * np.pi, (count, 1, 6))
        time = np.arange(steps)[:, None]
        signal = np.sin(2 * np.pi * (labels[:, None, None] + 1) * time / steps + phase)
        return SetData.of((signal + 0.2 * generator.normal(size=signal.shape)).astype(np.float32), labels)

    half = people // 2
    groups = torch.arange(half).repeat_interleave(each)
    names = tuple(map(str, range(classes)))
    return Dataset("generated-windows", draw(half * each), draw(half * each), names, "generated", groups)


def bags(seed: int = 0, *, count: int = 40, features: int = 5) -> Dataset:
    """Bags of 2 to 6 instances; a positive one holds an instance with a large first feature."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    sets = [generator.normal(size=(generator.integers(2, 7), features)).astype(np.float32) for _ in labels]
    for label, instances in zip(labels, sets, strict=True):
        if label:
            instances[generator.integers(len(instances)), 0] += 4.0
    return Dataset("generated-bags", SetData.of(sets, labels), None, ("negative", "positive"), "generated")


def write_meshes(folder: str | Path, *, each: int = 4, seed: int = 0) -> Path:
    """OFF meshes ``FOLDER/<class>/train|test/*.off`` of boxes, pyramids and discs of random proportions."""
    generator = np.random.default_rng(seed)
    for name, (vertices, faces) in _SHAPES.items():
        for part in ("train", "test"):
            target = Path(folder) / name / part
            target.mkdir(parents=True, exist_ok=True)
            for number in range(each):
                moved = vertices * generator.uniform(0.5, 1.5, size=3) + generator.normal(size=3)
                lines = ["OFF", f"{len(moved)} {len(faces)} 0"]
                lines += [" ".join(f"{v:.6f}" for v in vertex) for vertex in moved]
                lines += [f"{len(face)} " + " ".join(map(str, face)) for face in faces]
                (target / f"{name}_{number:04d}.off").write_text("\n".join(lines) + "\n")
    return Path(folder)


def clouds(points: int, *, each: int = 4, draws: int = 1, seed: int = 0) -> Dataset:
    """Clouds ``[points, 3]`` drawn from generated meshes, which are written, read back and thrown away."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        data = meshes(write_meshes(folder, each=each, seed=seed), points, draws=draws, seed=seed)
    return Dataset("generated-clouds", data.train, data.test, data.class_names, "generated", data.groups)


def _box() -> tuple[np.ndarray, list[list[int]]]:
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=float)
    return corners, [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]


def _pyramid() -> tuple[np.ndarray, list[list[int]]]:
    corners = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0], [0, 0, 2]], dtype=float)
    return corners, [[0, 1, 2, 3], [0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]]


def _disc(sides: int = 12) -> tuple[np.ndarray, list[list[int]]]:
    angle = 2 * np.pi * np.arange(sides) / sides
    rim = np.stack([np.cos(angle), np.sin(angle), np.zeros(sides)], axis=1)
    return np.vstack([rim, [[0, 0, 0.05]]]), [[i, (i + 1) % sides, sides] for i in range(sides)]


_SHAPES = {"box": _box(), "disc": _disc(), "pyramid": _pyramid()}
