"""Sets that arrive element by element: one state a stream, of a fixed size."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.checks import InputError, checked_batch, whole_number
from anyorder.files import tensors_from_bytes, tensors_to_bytes
from anyorder.models import Standardised
from anyorder.recurrences.base import Recurrence, evaluating
from anyorder.recurrences.trajectory import State, tree_leaves, tree_map

_PIECE = 4096  # elements of a chunk that are read at once, so that memory does not grow with the chunk


class Stream:
    """A model fed with elements as they come, at constant memory and cost per element.

    After any chunks, :meth:`value` is the model's output for all elements so far in one batch, in eval mode.

    Args:
        model: A :class:`RecurrentSetModel`, a :class:`DeepSets`, or a Recurrence, whose value is its state.
        streams: Number of streams side by side.

    >>> import anyorder as ao
    >>> model = ao.RecurrentSetModel(3, 2, hidden=8)
    >>> elements = torch.randn(7, 3)
    >>> stream = ao.Stream(model)
    >>> stream.update(elements[0])
    >>> stream.update(elements[1:])
    >>> torch.allclose(stream.value(), model(elements[None])[0], atol=1e-6), stream.seen
    (True, 7)
    >>> later = ao.Stream.restore(model, stream.snapshot())
    >>> torch.equal(later.value(), stream.value())
    True
    """

    def __init__(self, model: nn.Module, streams: int | None = None) -> None:
        self.model: Any = model
        self.recurrence = streaming_recurrence(model)
        self.streams = None if streams is None else whole_number("streams", streams)
        self._state = self._start()
        self._seen = torch.zeros(self.streams or 1, dtype=torch.int64)

    @torch.no_grad()
    def _start(self) -> State:
        return tree_map(torch.clone, self.recurrence.start(self.streams or 1))

    @property
    def seen(self) -> int | Tensor:
        """The number of elements so far; with ``streams=B``, that of each stream ``[B]``."""
        return int(self._seen[0]) if self.streams is None else self._seen.clone()

    def update(self, elements: Any, lengths: Any = None) -> None:
        """Read one element ``[D]`` or a chunk ``[n, D]``; with B streams, ``[B, D]`` or ``[B, n, D]``.

        ``lengths [B]`` are the numbers of elements that a chunk holds for each stream (0: none). If a chunk is refused,
        the stream does not change.
        """
        chunk = self._placed(elements)
        state = self._state
        chunk, lengths = checked_batch(_as_chunk(chunk, self.streams), lengths)
        with evaluating(self.model), torch.no_grad():
            for begin in range(0, chunk.shape[1], _PIECE):
                piece = chunk[:, begin : begin + _PIECE]
                sizes = None if lengths is None else (lengths - begin).clamp(0, piece.shape[1])
                encoded = self.model.encode(piece, sizes) if hasattr(self.model, "encode") else piece
                state = self.recurrence.scan_encoded(encoded, sizes, state=state).last
            self._state = tree_map(torch.clone, state)
        self._seen = self._seen + (chunk.shape[1] if lengths is None else lengths.cpu())

    def value(self, static: Any = None) -> Any:
        """The model's output ``[out_features]``, or a Recurrence's state; with B streams, ``[B, …]``.

        ``static [S]``, or ``[B, S]``, are the features of the whole set, for a model that has some.
        """
        given = () if static is None else (self._placed(static).reshape(self.streams or 1, -1),)
        with evaluating(self.model), torch.no_grad():
            value = self.model.readout(self._state, *given) if hasattr(self.model, "readout") else self._state
        return tree_map(lambda leaf: leaf[0].clone() if self.streams is None else leaf.clone(), value)

    def reset(self, index: Any = None) -> None:
        """Start over: every stream, or those at ``index`` (whole numbers, or a mask of all)."""
        index = index.cpu().numpy() if isinstance(index, Tensor) else index
        rows = torch.from_numpy(np.arange(len(self._seen))[slice(None) if index is None else index].reshape(-1))
        state, seen = tree_map(torch.clone, self._state), self._seen.clone()
        for leaf, first in zip(tree_leaves(state), tree_leaves(self._start()), strict=True):
            leaf[rows.to(leaf.device)] = first[rows.to(leaf.device)].to(leaf.dtype)
        seen[rows] = 0
        self._state, self._seen = state, seen

    def snapshot(self) -> bytes:
        """The stream as bytes that hold numbers only (safetensors); :meth:`restore` continues from them."""
        tensors = {f"state_{i}": leaf for i, leaf in enumerate(tree_leaves(self._state))} | {"seen": self._seen}
        digest = _digest(self.model, tensors, self.streams)
        return tensors_to_bytes(tensors, {"stream": {"streams": self.streams, "sha256": digest}})

    @classmethod
    def restore(cls, model: nn.Module, snapshot: bytes) -> Stream:
        """The stream of a snapshot; ``model`` must have the same arguments and weights as then."""
        tensors, metadata = tensors_from_bytes(bytes(snapshot))
        details = metadata.get("stream", {})
        if details.get("sha256") != _digest(model, tensors, details.get("streams")):
            raise InputError("the snapshot is damaged, or not of a stream of this model with these weights")
        stream = cls(model, details["streams"])
        leaves = iter(range(len(tensors) - 1))
        stream._state = tree_map(lambda leaf: tensors[f"state_{next(leaves)}"].to(leaf.device), stream._state)
        stream._seen = tensors["seen"]
        return stream

    def _placed(self, elements: Any) -> Tensor:
        """Elements on the model's device and, where it computes in floating point, in its dtype.

        A model with units rounds them itself, after it standardised them.
        """
        chunk = elements if isinstance(elements, Tensor) else torch.as_tensor(np.asarray(elements))
        tensors = [*self.model.parameters(), *tree_leaves(self._state)]
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        if floating and getattr(getattr(self.model, "inner", self.model), "table", None) is None:
            kind = floating[0].dtype
            if isinstance(self.model, Standardised):
                kind = torch.promote_types(kind, chunk.dtype if chunk.is_floating_point() else torch.float64)
            chunk = chunk.to(kind)
        return chunk.to(tensors[0].device)


def _as_chunk(chunk: Tensor, streams: int | None) -> Tensor:
    """``[B, n, D]``, from one element or several."""
    batch = chunk[None] if streams is None else chunk
    batch = batch[:, None] if batch.dim() == 2 else batch
    if batch.dim() != 3 or batch.shape[0] != (streams or 1):
        shapes = "[D] or [n, D]" if streams is None else f"[{streams}, D] or [{streams}, n, D]"
        raise InputError(f"elements must have shape {shapes}; got {list(chunk.shape)}")
    return batch


def streaming_recurrence(model: nn.Module) -> Recurrence:
    """The recurrence inside a model that can stream."""
    if isinstance(model, Recurrence):
        return model
    orderings = getattr(model, "orderings", 1)
    if not getattr(model, "streams", False) or orderings > 1:
        reason = "it averages over orderings; set orderings = 1 (of .inner)" if orderings > 1 else "it reads whole sets"
        raise InputError(f"{type(model).__name__} cannot stream: {reason} (RecurrentSetModel and DeepSets stream)")
    return model.recurrence  # type: ignore[return-value]


def _digest(model: Any, tensors: dict[str, Tensor], streams: int | None) -> str:
    """The SHA-256 of a model's name, arguments (if JSON can describe them) and weights, and of a stream's state."""
    described: dict[str, Any] = {"streams": streams}
    with suppress(AttributeError, InputError):  # a recurrence, an own module among the arguments
        described |= {"model": model.name, **model.config()}
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return hashlib.sha256(tensors_to_bytes({**weights, **tensors}, described)).hexdigest()
