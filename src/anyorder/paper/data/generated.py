"""Small generated data with the shape of the real sets: what the smoke scale and the tests run on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from anyorder.checks import extra
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

    return Dataset(draw(train), draw(test))


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
    return Dataset(draw(half * each), draw(half * each), groups)


def bags(seed: int = 0, *, count: int = 40, features: int = 5) -> Dataset:
    """Bags of 2 to 6 instances; a positive one holds an instance with a large first feature."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    sets = [generator.normal(size=(generator.integers(2, 7), features)).astype(np.float32) for _ in labels]
    for label, instances in zip(labels, sets, strict=True):
        if label:
            instances[generator.integers(len(instances)), 0] += 4.0
    return Dataset(SetData.of(sets, labels), None)


def write_meshes(folder: str | Path, *, each: int = 4, seed: int = 0) -> Path:
    """OFF meshes ``FOLDER/<class>/train|test/*.off`` of balls, boxes and cones of random proportions."""
    creation = extra("trimesh.creation", "paper", "a mesh")
    generator = np.random.default_rng(seed)
    for name, shape in {"ball": creation.icosphere(1), "box": creation.box(), "cone": creation.cone(1, 2)}.items():
        for part in ("train", "test"):
            target = Path(folder) / name / part
            target.mkdir(parents=True, exist_ok=True)
            for number in range(each):
                mesh = shape.copy()
                mesh.vertices = mesh.vertices * generator.uniform(0.5, 1.5, size=3) + generator.normal(size=3)
                mesh.export(target / f"{name}_{number:04d}.off")
    return Path(folder)


def clouds(points: int, *, each: int = 4, draws: int = 1, seed: int = 0) -> Dataset:
    """Clouds ``[points, 3]`` drawn from generated meshes, which are written, read back and thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        return meshes(write_meshes(folder, each=each, seed=seed), points, draws=draws, seed=seed)
