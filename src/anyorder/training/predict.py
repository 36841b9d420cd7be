"""The outputs of a model on many sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.data.orderings import random_orderings, reorder
from anyorder.data.sets import SetData
from anyorder.models.base import sizes_of
from anyorder.recurrences.base import evaluating


@torch.no_grad()
def predict(
    model: nn.Module,
    data: SetData,
    *,
    orderings: int = 1,
    generator: torch.Generator | None = None,
    finish: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 1024,
) -> Tensor:
    """The model's outputs ``[N, K]`` in eval mode.

    With ``orderings`` above 1 they are means over random orderings. ``finish`` (softmax, say) is applied to each output
    before the mean. Sets of similar size share a batch of at most 2¹⁷ elements, so long sets cost time, not memory.

    >>> import anyorder as ao
    >>> predict(ao.RecurrentSetModel(1, 2), SetData.of([[1.0], [2.0, 3.0]])).shape
    torch.Size([2, 2])
    """
    like = parameter_of(model)
    data = placed(data, like)
    lengths = data.lengths.cpu()
    by_size = torch.argsort(lengths, stable=True)
    outputs: Tensor | None = None
    start = 0
    finish = finish or (lambda output: output)
    with evaluating(model):
        while start < len(data):
            stop = start + batch_size
            while stop - start > 1 and (stop - start) * int(lengths[by_size[start:stop]].max()) > 2**17:
                stop = start + (stop - start) // 2
            index = by_size[start:stop].to(like.device)
            elements, sizes = data.batch(index)
            if orderings == 1:
                value = finish(model(elements, sizes))
            else:
                draws = orderings_of(elements, sizes, orderings, generator).unbind(1)
                value = torch.stack([finish(model(reorder(elements, o), sizes)) for o in draws]).mean(0)
            if outputs is None:
                outputs = value.new_empty(len(data), *value.shape[1:])
            outputs[index] = value
            start = stop
    assert outputs is not None  # SetData is never empty
    return outputs


def orderings_of(
    elements: Tensor,
    lengths: Tensor | None,
    draws: int,
    generator: torch.Generator | None,
    within: int | None = None,
) -> Tensor:
    """Random orderings ``[B, draws, T]`` of a batch, see :func:`random_orderings`."""
    return random_orderings(sizes_of(elements, lengths), elements.shape[1], draws, generator, within=within)


def matched(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, 1]`` as ``[B]`` where targets are: no loss broadcasts them."""
    if targets.dim() == 1 and output.dim() == 2 and output.shape[1] == 1:
        output = output[:, 0]
    return output, targets


def parameter_of(model: nn.Module) -> Tensor:
    return next(model.parameters(), torch.zeros(()))


def placed(data: SetData, like: Tensor) -> SetData:
    """``data`` on the device and in the floating dtype of ``like``."""

    def convert(values: Tensor | None) -> Any:
        return values if values is None or not values.is_floating_point() else values.to(like.dtype)

    data = data.to(like.device)
    return dataclasses.replace(data, elements=convert(data.elements), targets=convert(data.targets))
