"""Functions of sets of whole numbers to learn: samplers, labels, losses, metrics.

All draw independent uniform whole numbers below ``alphabet``. The arithmetic tasks follow the paper and the Janossy
pooling paper: L1 loss, and accuracy after rounding to the nearest whole number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from anyorder.data.sets import SetData


@dataclass(frozen=True)
class Task:
    """A label of sets of whole numbers.

    ``label`` maps values ``[N, n]`` to ``[N]``. ``kind`` decides loss and metrics: ``"integer"`` (L1 loss, accuracy
    after rounding), ``"real"`` (L1 loss, RMSE), ``"binary"`` or ``"class"`` (cross-entropy, accuracy). ``classes``
    is the number of outputs. ``ordered``: the label depends on the order of the values.
    """

    label: Callable[[Tensor], Tensor]
    kind: str = "integer"
    classes: int = 1
    ordered: bool = False

    def sample(
        self, samples: int, n: int | Sequence[int], *, alphabet: int, generator: torch.Generator | None = None
    ) -> SetData:
        """``samples`` sets of ``n`` numbers (or of sizes uniform in ``n = (least, most)``) with their labels.

        Elements are int64 ``[total, 1]``; targets float32 ``[samples, 1]``.
        """
        least, most = (n, n) if isinstance(n, int) else n
        lengths = torch.full((samples,), most)
        if least < most:
            lengths = torch.randint(least, most + 1, (samples,), generator=generator)
        values = torch.randint(alphabet, (samples, most), generator=generator)
        targets = torch.empty(samples)
        for length in lengths.unique().tolist():
            rows = lengths == length
            targets[rows] = self.label(values[rows, :length]).float()
        inside = torch.arange(most) < lengths[:, None]
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        return SetData(values[inside][:, None], offsets, targets[:, None])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The training loss, a mean over the batch: L1, or cross-entropy (of one logit for a binary task)."""
        if self.kind == "class":
            return F.cross_entropy(outputs, targets[:, 0].long())
        if self.kind == "binary":
            return F.binary_cross_entropy_with_logits(outputs, targets)
        return F.l1_loss(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Figures of predictions ``[N, 1]`` in the units of the labels (logits ``[N, classes]`` of classes)."""
        if self.kind in ("binary", "class"):
            right = (outputs > 0) == (targets > 0.5) if self.classes == 1 else outputs.argmax(1) == targets[:, 0]
            return {"accuracy": _mean(right), "loss": self.loss(outputs, targets).item()}
        error = outputs - targets
        figures = {"mae": _mean(error.abs()), "rmse": _mean(error.square()) ** 0.5}
        if self.kind == "integer":
            figures["accuracy"] = _mean(outputs.round() == targets)
        return figures


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


def _half_range(values: Tensor) -> Tensor:
    half = values.shape[1] // 2
    return values[:, :half].amax(1) - values[:, half:].amin(1)


TASKS = {
    "parity": Task(lambda values: values.sum(1) % 2, kind="binary"),
    "mod-3": Task(lambda values: values.sum(1) % 3, kind="class", classes=3),
    "sum": Task(lambda values: values.sum(1)),
    "range": Task(lambda values: values.amax(1) - values.amin(1)),
    "variance": Task(lambda values: values.double().var(1, correction=0), kind="real"),
    "half-range": Task(_half_range, ordered=True),
}


def splits(
    task: Task, sizes: dict[str, int], n: int | Sequence[int], *, alphabet: int, seed: int
) -> dict[str, SetData]:
    """Independent sets of each name in ``sizes``; a split depends on its name, size and ``seed``, not on the others.

    A smaller split of the same name and seed is a part of a larger one of fixed set size.
    """
    found = {}
    for name, size in sizes.items():
        offset = sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 1_000_003
        generator = torch.Generator().manual_seed(seed * 1_000_003 + offset)
        found[name] = task.sample(size, n, alphabet=alphabet, generator=generator)
    return found
