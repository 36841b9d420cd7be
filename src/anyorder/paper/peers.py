"""A model that only the experiments and benchmarks compare with: a small CNN."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from anyorder.checks import InputError
from anyorder.models.base import SetModel


class SmallCNN(SetModel):
    """The image network of the Locally Perturbed MNIST comparison: 2 convolutions, 2 fully connected layers.

    It reads full sets of ``side²`` pixels in raster order, ``elements [B, side², in_features]``. Each convolution
    (3 × 3, ``channels`` wide) is followed by ReLU and 2 × 2 max pooling; ``dropout`` acts before both fully
    connected layers.

    >>> SmallCNN(1, 10)(torch.rand(2, 784, 1)).shape
    torch.Size([2, 10])
    """

    name = "cnn"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        side: int = 28,
        channels: Sequence[int] = (32, 64),
        hidden: int = 128,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, out_features)
        self.side = side
        first, second = channels
        small = side // 2 // 2
        self.layers = nn.Sequential(
            nn.Conv2d(self.in_features, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Dropout(dropout), nn.Linear(second * small * small, hidden), nn.ReLU(),
            nn.Dropout(dropout), nn.Linear(hidden, out_features),
        )  # fmt: skip

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, lengths, _ = self.masked(elements, lengths)
        pixels = self.side * self.side
        shortest = elements.shape[1] if lengths is None else int(lengths.min())
        if elements.shape[1] != pixels or shortest != pixels:
            raise InputError(
                f"elements must be images of {pixels} pixels; got sets of {shortest} to {elements.shape[1]}"
            )
        return self.layers(elements.transpose(1, 2).unflatten(2, (self.side, self.side)))
