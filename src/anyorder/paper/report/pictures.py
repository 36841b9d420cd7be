"""Pictures of the data: perturbed digits as in the paper's figure, a few clouds, beats, windows and bags.

Every function takes a :class:`Dataset` and returns a matplotlib figure that says in its title what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from anyorder.data.sets import SetData
from anyorder.paper.data import datasets, sources
from anyorder.paper.data.datasets import Dataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3  # of small pictures beside each other: more are too small to read on a telephone
TEXT = 12


def digits_figure(clean: Dataset, changed: Dataset, count: int = 8) -> Figure:
    """The first digits as they are, and below each the same digit after its perturbation."""
    side = round(clean.train.lengths[0].item() ** 0.5)
    figure = _figure(6.6, 2.2)
    axes = figure.subplots(2, count)
    for row, data in zip(axes, (clean, changed), strict=True):
        for index, axis in enumerate(row):
            image = _set(data.train, index).reshape(side, side)
            axis.imshow(image, cmap="gray_r", interpolation="nearest")
            axis.set_axis_off()
    figure.suptitle("Digits, and the same digits reordered inside windows of 4 and then of 7 pixels", fontsize=TEXT)
    return figure


def clouds_figure(data: Dataset, count: int = 6) -> Figure:
    """One cloud of each of the first classes, seen from the side."""
    count = min(count, len(data.class_names))
    figure = _figure(6.6, 0.4 + 2.1 * math.ceil(count / COLUMNS))
    assert data.train.targets is not None
    for place in range(count):
        index = int((data.train.targets == place).nonzero()[0])
        x, y, z = _set(data.train, index).T
        axis = figure.add_subplot(math.ceil(count / COLUMNS), COLUMNS, place + 1, projection="3d")
        axis.scatter(x, y, z, s=6, c=z, cmap="viridis")
        axis.set(xlim=(-0.6, 0.6), ylim=(-0.6, 0.6), zlim=(-0.6, 0.6), box_aspect=(1, 1, 1))
        axis.set_title(data.class_names[place], fontsize=TEXT)
        axis.set_axis_off()
    figure.suptitle(f"Clouds of {int(data.train.lengths[0])} points", fontsize=TEXT)
    return figure


def series_figure(data: Dataset, what: str, each: int = 4) -> Figure:
    """A few series of every class, the first channel of each."""
    classes = len(data.class_names)
    rows = math.ceil(classes / COLUMNS)
    figure = _figure(6.6, 0.4 + 1.8 * rows)
    axes = np.atleast_1d(figure.subplots(rows, min(COLUMNS, classes), sharex=True, sharey=True)).flatten()
    assert data.train.targets is not None
    for label, axis in enumerate(axes[:classes]):
        for index in (data.train.targets == label).nonzero()[:each, 0].tolist():
            axis.plot(_set(data.train, index)[:, 0], linewidth=0.8)
        axis.set_title(data.class_names[label], fontsize=TEXT)
        axis.tick_params(labelsize=TEXT - 2)
    for axis in axes[classes:]:
        axis.remove()
    figure.suptitle(what, fontsize=TEXT)
    return figure


def bags_figure(data: Dataset) -> Figure:
    """How many instances the bags hold, positive and negative ones apart."""
    figure = _figure(6.6, 3.0)
    axis = figure.subplots()
    assert data.train.targets is not None
    sizes = [data.train.lengths[data.train.targets == label].numpy() for label in (0, 1)]
    axis.hist(sizes, bins=range(1, int(data.train.lengths.max()) + 2), label=data.class_names)
    axis.set_xlabel("instances in a bag", fontsize=TEXT)
    axis.set_ylabel("bags", fontsize=TEXT)
    axis.tick_params(labelsize=TEXT - 2)
    axis.legend(fontsize=TEXT)
    axis.set_title(f"{data.name}: {len(data.train)} bags", fontsize=TEXT)
    return figure


def _perturbed_mnist() -> Figure:
    clean = datasets.mnist()
    first = Dataset(clean.name, clean.train.select(range(8)), clean.train.select(range(8)), clean.class_names, "")
    return digits_figure(first, datasets.perturbed(first))


def _perturbed_digits() -> Figure:
    clean = datasets.digits()
    return digits_figure(clean, datasets.perturbed(clean))


# Experiment -> the sources of which one must be here (none: nothing is needed), and how its picture is drawn.
_PICTURES: dict[str, tuple[tuple[str, ...], Callable[[], Figure]]] = {
    "perturbed-mnist": (("mnist",), _perturbed_mnist),
    "perturbed-digits": ((), _perturbed_digits),
    "pointcloud": (
        ("modelnet40", "modelnet40-hdf5"),  # drawing points from all meshes takes too long for a picture
        lambda: clouds_figure(datasets.modelnet40(100)),
    ),
    "ecg": (
        ("ecg5000", "ecg5000-ucr", "ecg5000-txt"),
        lambda: series_figure(datasets.ecg5000(), "ECG5000: four beats of each class"),
    ),
    "activity": (
        ("hapt", "hapt-recordings"),
        lambda: series_figure(datasets.hapt(), "HAPT windows: four of each activity, acceleration in x"),
    ),
    "bags": (("bags", "musk1-uci"), lambda: bags_figure(datasets.bags("musk1"))),
}


def picture_of(experiment: str) -> Figure | None:
    """A picture of an experiment's data; None if there is none, or if the data is not here (nothing is downloaded).

    >>> picture_of("perturbed-digits").get_suptitle()
    'Digits, and the same digits reordered inside windows of 4 and then of 7 pixels'
    """
    forms, draw = _PICTURES.get(experiment, ((), None))
    if draw is None or (forms and not any(sources.where(form) for form in forms)):
        return None
    return draw()


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # without pyplot: no global state, nothing to close

    return Figure(figsize=(width, height), layout="constrained")


def _set(data: SetData, index: int) -> np.ndarray:
    return data.batch(torch.tensor([index]))[0][0].numpy()
