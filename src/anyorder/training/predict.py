"""The outputs of a model on many sets."""

from __future__ import annotations

from collections.abc import Callable

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
    data = placed(data, model)
    device, lengths = data.elements.device, data.lengths.cpu()
    by_size = torch.argsort(lengths, stable=True)
    outputs: list[Tensor] = []
    start = 0
    finish = finish or (lambda output: output)
    with evaluating(model):
        while start < len(data):
            stop = start + batch_size
            while stop - start > 1 and (stop - start) * int(lengths[by_size[start:stop]].max()) > 2**17:
                stop = start + (stop - start) // 2
            elements, sizes = data.batch(by_size[start:stop].to(device))
            if orderings == 1:
                outputs.append(finish(model(elements, sizes)))
            else:
                draws = random_orderings(sizes_of(elements, sizes), elements.shape[1], orderings, generator).unbind(1)
                outputs.append(torch.stack([finish(model(reorder(elements, o), sizes)) for o in draws]).mean(0))
            start = stop
    return torch.cat(outputs)[by_size.argsort().to(device)]


def matched(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, 1]`` as ``[B]`` where targets are: no loss broadcasts them."""
    if targets.dim() == 1 and output.dim() == 2 and output.shape[1] == 1:
        output = output[:, 0]
    return output, targets


def placed(data: SetData, model: nn.Module) -> SetData:
    """``data`` on the device and in the floating dtype of ``model``, with weights of mean 1."""
    like = next(model.parameters(), torch.zeros(()))

    parts = [data.elements, data.offsets, data.targets, None if data.weights is None else data.weights.to(like)]
    parts = [p if p is None else p.to(like if p.is_floating_point() else like.device) for p in parts]
    elements, offsets, targets, weights = parts
    return SetData(elements, offsets, targets, None if weights is None else weights / weights.mean())  # type: ignore[arg-type]
