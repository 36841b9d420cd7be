"""Sets that arrive element by element: one state kept a stream, whatever has gone by."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, checked_batch, whole_number
from anyorder.files import tensors_from_bytes, tensors_to_bytes
from anyorder.models import Standardised
from anyorder.recurrences.base import Recurrence, evaluating
from anyorder.recurrences.trajectory import State, tree_leaves, tree_map

_PIECE = 4096  # elements of a chunk read at once, so that memory does not grow with the chunk


class Stream:
    """Feed a model its elements as they come; memory and the cost of an element never grow.

    ``model``: one that ``streams`` (:class:`RecurrentSetModel`, :class:`DeepSets`), or a Recurrence, whose value
    is its state. ``streams=B`` keeps B streams side by side, and so does a first chunk ``[B, n, D]``. After any
    chunks, :meth:`value` is what the model says of all elements so far in one batch, in eval mode.

    >>> import anyorder as ao
    >>> model = ao.RecurrentSetModel(3, 2, hidden=8)
    >>> elements = torch.randn(7, 3)
    >>> stream = ao.Stream(model)
    >>> stream.update(elements[0])
    >>> stream.update(elements[1:])
    >>> torch.allclose(stream.value(), model(elements[None])[0], atol=1e-6), stream.seen
    (True, 7)
    """

    def __init__(self, model: nn.Module, streams: int | None = None) -> None:
        self.model = model
        self.recurrence = streaming_recurrence(model)
        self.streams = None if streams is None else whole_number("streams", streams)
        self._state = self._start(self.streams)
        self._seen = torch.zeros(self.streams or 1, dtype=torch.int64)

    @torch.no_grad()
    def _start(self, streams: int | None) -> State:
        return tree_map(torch.clone, self.recurrence.start(streams or 1))

    @property
    def seen(self) -> int | Tensor:
        """How many elements have gone by; with ``streams=B``, of each stream, ``[B]``."""
        return int(self._seen[0]) if self.streams is None else self._seen.clone()

    def update(self, elements: Any, lengths: Any = None) -> None:
        """Take in one element ``[D]`` or a chunk ``[n, D]``; of B streams, ``[B, D]`` or ``[B, n, D]``.

        ``lengths [B]`` says how many elements of a chunk each stream really has (0: none). What is refused changes
        nothing.
        """
        chunk = self._placed(elements)
        streams, state, seen = self.streams, self._state, self._seen
        if streams is None and chunk.dim() == 3 and not seen.any():
            streams = whole_number("the streams of a first chunk [B, n, D]", chunk.shape[0])
            state, seen = self._start(streams), torch.zeros(streams, dtype=torch.int64)
        chunk = _as_chunk(chunk, streams)
        if lengths is not None:
            lengths = _checked_lengths(lengths, streams, chunk.shape[1])
        with evaluating(self.model), torch.no_grad():
            for begin in range(0, chunk.shape[1], _PIECE):
                piece = chunk[:, begin : begin + _PIECE]
                if lengths is None:
                    state = self._scan(piece, None, state)
                else:
                    state = self._scan(piece, (lengths - begin).clamp(0, piece.shape[1]).to(piece.device), state)
            state = tree_map(torch.clone, state)
            seen = seen + (chunk.shape[1] if lengths is None else lengths)
        self.streams, self._state, self._seen = streams, state, seen

    def value(self) -> Any:
        """What the model says now: ``[out_features]``, of B streams ``[B, out_features]``; a Recurrence's state."""
        with evaluating(self.model), torch.no_grad():
            readout = getattr(self.model, "readout", None)
            value = self._state if readout is None else readout(self._state)
        return tree_map(lambda leaf: leaf[0].clone() if self.streams is None else leaf.clone(), value)

    def reset(self, index: Any = None) -> None:
        """Start over: every stream, or those at ``index`` (whole numbers, or a mask of all)."""
        rows = torch.arange(len(self._seen)) if index is None else _checked_index(index, len(self._seen))
        state, seen, start = tree_map(torch.clone, self._state), self._seen.clone(), self._start(self.streams)
        for leaf, first in zip(tree_leaves(state), tree_leaves(start), strict=True):
            leaf[rows.to(leaf.device)] = first[rows.to(leaf.device)].to(leaf.dtype)
        seen[rows] = 0
        self._state, self._seen = state, seen

    def snapshot(self) -> bytes:
        """The stream as a few bytes that hold numbers only (safetensors); :meth:`restore` goes on from them."""
        leaves = {f"state_{i}": leaf for i, leaf in enumerate(tree_leaves(self._state))}
        details = {"streams": self.streams, "model": _fingerprint(self.model), "built": _description(self.model)}
        details["dtypes"] = {name: str(leaf.dtype) for name, leaf in leaves.items()}
        return tensors_to_bytes({**leaves, "seen": self._seen}, {"stream": details})

    @classmethod
    def restore(cls, model: nn.Module, snapshot: bytes) -> Stream:
        """The stream a snapshot was taken of; ``model`` must be the same as then, in its arguments and weights.

        >>> import anyorder as ao
        >>> model = ao.known.sum()
        >>> stream = ao.Stream(model)
        >>> stream.update([[1.0], [2.0]])
        >>> later = ao.Stream.restore(model, stream.snapshot())
        >>> later.update([4.0])
        >>> later.value()
        tensor([7.])
        """
        if not isinstance(snapshot, (bytes, bytearray, memoryview)):
            raise InputTypeError(f"a snapshot is bytes; got {type(snapshot).__name__}")
        tensors, metadata = tensors_from_bytes(bytes(snapshot))
        details = metadata.get("stream")
        if not isinstance(details, dict):
            raise InputError("these bytes are not a snapshot of a stream; Stream.snapshot() makes one")
        if details.get("model") != _fingerprint(model):
            raise InputError(
                "this snapshot was taken with other weights than this model's; restore it with the model it belongs to"
            )
        there = details.get("built")
        there = there if isinstance(there, dict) else {}  # a snapshot of an earlier version says less
        for name, here in _description(model).items():
            if there.get(name, here) != here:
                raise InputError(
                    f"this snapshot was taken with another {name}: {there[name]!r} there, {here!r} here; restore it "
                    "with the model it belongs to"
                )
        streams = details.get("streams")
        rows = 1 if streams is None else whole_number("the streams of a snapshot", streams)
        if "seen" not in tensors or tensors["seen"].shape != (rows,):  # before room is made for them
            raise InputError(f"the snapshot is damaged: it does not hold the {rows} streams it speaks of")
        if tensors["seen"].dtype != torch.int64 or bool((tensors["seen"] < 0).any()):
            raise InputError("the snapshot is damaged: it does not count the elements seen; take it again")
        stream = cls(model, streams)
        dtypes = details.get("dtypes")
        dtypes = dtypes if isinstance(dtypes, dict) else {}
        saved = []
        for i, leaf in enumerate(tree_leaves(stream._state)):
            found = tensors.get(f"state_{i}")
            if found is None or found.shape != leaf.shape:
                raise InputError(f"the snapshot does not fit this model: state_{i} must have shape {list(leaf.shape)}")
            _check_state(f"state_{i}", found, leaf.cpu(), dtypes.get(f"state_{i}", str(found.dtype)))
            saved.append(found.to(leaf.device))  # in the dtype it had: a step may leave that of the start
        leaves = iter(saved)
        stream._state, stream._seen = tree_map(lambda _: next(leaves), stream._state), tensors["seen"].long()
        return stream

    def _scan(self, chunk: Tensor, lengths: Tensor | None, state: State) -> State:
        encode = getattr(self.model, "encode", None)
        encoded = chunk if encode is None else encode(chunk, lengths)
        return self.recurrence.scan_encoded(*checked_batch(encoded, lengths), state=state).last

    def _placed(self, elements: Any) -> Tensor:
        """Elements on the model's device and, where it computes in floating numbers, in its dtype.

        A model with units rounds them itself, after the units are taken out.
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
    """``[B, n, D]``, checked."""
    if streams is None:
        if chunk.dim() not in (1, 2):
            raise InputError(f"an element has shape [D], a chunk [n, D]; got {list(chunk.shape)}")
        if chunk.shape == (0,):  # an empty list: a chunk of no elements
            return chunk[None, :, None]
        return chunk.reshape(1, -1, chunk.shape[-1])
    if chunk.dim() not in (2, 3) or chunk.shape[0] != streams:
        raise InputError(
            f"of {streams} streams, elements have shape [{streams}, D], chunks [{streams}, n, D]; "
            f"got {list(chunk.shape)}"
        )
    return chunk if chunk.dim() == 3 else chunk[:, None]


def _checked_lengths(lengths: Any, streams: int | None, longest: int) -> Tensor:
    if streams is None:
        raise InputError("lengths are for several streams: Stream(model, streams=B)")
    lengths = torch.as_tensor(lengths).cpu()
    whole = not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)
    if not whole or lengths.shape != (streams,) or bool(((lengths < 0) | (lengths > longest)).any()):
        raise InputError(f"lengths must be {streams} whole numbers from 0 to {longest}; got {lengths.tolist()}")
    return lengths.long()


def _checked_index(index: Any, streams: int) -> Tensor:
    """The numbers of some streams ``[n]``, of which there may be none."""
    try:
        rows = torch.as_tensor(index).cpu().reshape(-1)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputTypeError(f"index must be numbers of streams or a mask of them; got {index!r}") from None
    if len(rows) == 0:
        return rows.long()
    if rows.dtype == torch.bool and len(rows) == streams:
        return rows.nonzero()[:, 0]
    if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
        raise InputTypeError(
            f"index must be whole numbers, or a mask of all {streams} streams; got {rows.tolist()} ({rows.dtype})"
        )
    if bool(((rows < -streams) | (rows >= streams)).any()):
        raise InputError(f"index must be from 0 to {streams - 1}, of {streams} streams; got {rows.tolist()}")
    return rows.long()


def _check_state(name: str, found: Tensor, start: Tensor, dtype: str) -> None:
    """Refuse a state of another ``dtype`` than was saved, and numbers that the steps of a sound stream do not make."""
    if str(found.dtype) != dtype or not torch.can_cast(start.dtype, found.dtype):
        told = dtype if str(found.dtype) != dtype else start.dtype
        raise InputError(f"the snapshot is damaged: {name} must be {told}, it is {found.dtype}; take it again")
    if not bool((torch.isfinite(found) | (found == start)).all()):
        raise InputError(f"the snapshot is damaged: {name} holds NaN or an infinite value; start the stream afresh")


def streaming_recurrence(model: nn.Module) -> Recurrence:
    """The recurrence inside a model, or an error that says why the model cannot stream."""
    if isinstance(model, Recurrence):
        return model
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"Stream takes a set model or a Recurrence; got {type(model).__name__} (an estimator's model is its model_)"
        )
    name = type(model).__name__
    if not getattr(model, "streams", False):
        raise InputError(
            f"{name} cannot stream: it looks at the whole set at once, so no state of fixed size stands for the "
            "elements so far; use RecurrentSetModel or DeepSets"
        )
    if getattr(model, "orderings", 1) > 1:
        raise InputError(
            f"this {name} averages over {model.orderings} orderings of the whole set, which a stream does not keep; "
            "set model.orderings = 1"
        )
    assert isinstance(model.recurrence, Recurrence)
    return model.recurrence


def _description(model: nn.Module) -> dict[str, Any]:
    """The name and arguments of a set model, as far as they can be described, as JSON gives them back."""
    described: dict[str, Any] = {}
    if hasattr(model, "name") and hasattr(model, "config"):
        described["model"] = model.name
        with suppress(InputError):  # an own module among the arguments
            described |= model.config()  # type: ignore[operator]
    return json.loads(json.dumps(described))


def _fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
