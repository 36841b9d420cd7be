"""What set models share: a registry, the door batches come through, pooling, averaging over orderings."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyorder.checks import (
    InputError,
    InputTypeError,
    checked_elements,
    checked_lengths,
    one_of,
    real_number,
    require_finite,
    whole_number,
)
from anyorder.data.orderings import reorder
from anyorder.data.sets import filled

MODELS: dict[str, type[SetModel]] = {}
SETTINGS = ("orderings", "seed", "combine")  # attributes that may be set on a model that was built already
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
COMBINE = ("mean", "vote")

Embedding = tuple[int, int, str]  # how many integers, how many dimensions, "frozen" or "learned"


class SetModel(nn.Module):
    """What set models share: a name in the registry, the arguments they were built with, a description.

    ``invariant``: the order of the elements cannot change the output, by construction. ``streams``: it has
    ``encode``, ``recurrence`` and ``readout``, so elements can arrive one by one at a constant cost.
    """

    name: ClassVar[str]
    invariant: bool = False
    streams: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:
            MODELS[cls.name] = cls

    def __init__(self, in_features: int, out_features: int, embedding: Embedding | None = None) -> None:
        super().__init__()
        self.in_features = whole_number("in_features", in_features)
        self.out_features = whole_number("out_features", out_features)
        self.door = Door(self.in_features, embedding)
        self.register_load_state_dict_post_hook(_door_follows_weights)

    def _built_with(self, **arguments: Any) -> None:
        self._arguments = {"in_features": self.in_features, "out_features": self.out_features, **arguments}
        for name, value in arguments.items():
            if isinstance(value, nn.Module):
                self._arguments[name] = type(value)
        self._settings = {name: getattr(self, name) for name in SETTINGS if name in arguments}

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, ready for JSON: ``MODELS[model.name](**model.config())`` rebuilds it."""
        config = {}
        changed = {
            name: getattr(self, name) for name, before in self._settings.items() if getattr(self, name) != before
        }
        for name, value in {**self._arguments, **changed}.items():
            if isinstance(value, type):
                raise InputError(
                    f"{name} was given as an own module ({value.__name__}), which a configuration cannot describe; "
                    "build the model in code and keep its state_dict(), or use the built-in options"
                )
            config[name] = _plain(value)
        return config

    def describe(self) -> dict[str, Any]:
        """What the model is and costs; ``state_size``: numbers kept to go on with a set, None if all elements."""
        return {
            "name": self.name,
            "parameters": sum(p.numel() for p in self.parameters() if p.requires_grad),
            "state_size": self._state_size(),
            "invariant": self.invariant,
            "streams": self.streams,
        }

    def _state_size(self) -> int | None:
        return None


def _plain(value: Any) -> Any:
    """Lists for tuples, Python's numbers for numpy's."""
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def _door_follows_weights(model: SetModel, _: Any) -> None:
    """Weights that were put in place of others, ``load_state_dict(assign=True)``, may be of another dtype."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), model.door.like)
    model.door.like = weight.detach().new_empty(0)


class Standardised(SetModel):
    """A model that knows its units: y = σ_y · model((x − μ_x) / σ_x) + μ_y, raw elements to raw outputs.

    ``model``: a name of :data:`MODELS`, built with ``options``; it is ``inner``. The units are the buffers ``mean``,
    ``scale`` (of the elements), ``out_mean`` and ``out_scale``, set by :meth:`set_units`, at first 0 and 1. Integer
    elements are passed on as they are; floating ones may be wider than the weights, and are rounded once the units are
    out. It streams, exports and is audited like the model inside.

    >>> import anyorder.models
    >>> model = Standardised(1, 1, "deepsets").set_units([5.0], [2.0], [100.0], [10.0])
    >>> x = torch.randn(2, 3, 1)
    >>> torch.allclose(model(5 + 2 * x), 100 + 10 * model.inner(x), atol=1e-4)
    True
    """

    name = "standardised"
    mean: Tensor
    scale: Tensor
    out_mean: Tensor
    out_scale: Tensor

    def __init__(
        self, in_features: int, out_features: int, model: str = "recurrent", options: dict[str, Any] | None = None
    ) -> None:
        super().__init__(in_features, out_features)
        one_of("model", model, [name for name in MODELS if name != self.name])
        self.inner = MODELS[model](in_features, out_features, **(options or {}))
        self.door = self.inner.door
        for name, size in {"mean": in_features, "out_mean": out_features}.items():
            self.register_buffer(name, torch.zeros(size))
            self.register_buffer(name.replace("mean", "scale"), torch.ones(size))
        self.invariant, self.streams = self.inner.invariant, self.inner.streams
        self._built_with(model=model, options=options)

    def set_units(self, mean: Any, scale: Any, out_mean: Any = 0.0, out_scale: Any = 1.0) -> Standardised:
        """Set all four; returns the model. One that votes rounds its outputs, so these keep their own units."""
        values = {"mean": mean, "scale": scale, "out_mean": out_mean, "out_scale": out_scale}
        units = {name: torch.as_tensor(value) for name, value in values.items()}
        other = bool(units["out_mean"].any() or (units["out_scale"] != 1).any())
        if other and getattr(self.inner, "combine", "mean") == "vote":
            raise InputError(
                "a model with combine='vote' rounds its outputs, so they must stay in units of their own; got "
                f"out_mean={units['out_mean'].tolist()}, out_scale={units['out_scale'].tolist()} (use combine='mean', "
                "or standardize=False in an estimator)"
            )
        for name, unit in units.items():
            getattr(self, name).copy_(unit)
        return self

    def config(self) -> dict[str, Any]:
        own = ("in_features", "out_features")
        options = {name: value for name, value in self.inner.config().items() if name not in own}
        return {**super().config(), "options": options}

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self._raw(self.inner(self._standard(elements), lengths))

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What the recurrence inside reads, from raw elements."""
        return self.inner.encode(self._standard(elements), lengths)  # type: ignore[operator]

    @property
    def recurrence(self) -> Any:
        return self.inner.recurrence

    def readout(self, state: Any) -> Tensor:
        """The output, in raw units, of a state of the recurrence inside."""
        return self._raw(self.inner.readout(state))  # type: ignore[operator]

    @property
    def orderings(self) -> int:
        """Over how many orderings the model inside averages."""
        return int(getattr(self.inner, "orderings", 1))

    @orderings.setter
    def orderings(self, value: int) -> None:
        if not hasattr(self.inner, "orderings"):
            raise InputError(f"the model inside, {self.inner.name!r}, does not average over orderings; got {value!r}")
        self.inner.orderings = whole_number("orderings", value)  # type: ignore[assignment]

    def _standard(self, elements: Tensor) -> Tensor:
        readable = isinstance(elements, Tensor) and elements.is_floating_point() and elements.dim() == 3
        if not readable or elements.shape[2] != self.in_features:
            return elements  # for the door inside to take or refuse
        standard = (elements - self.mean.to(elements.dtype)) / self.scale.to(elements.dtype)
        wider = elements.dtype.itemsize > self.mean.dtype.itemsize
        return standard.to(self.mean.dtype) if wider else standard

    def _raw(self, output: Tensor) -> Tensor:
        return output * self.out_scale + self.out_mean

    def _state_size(self) -> int | None:
        return self.inner._state_size()


class Door(nn.Module):
    """Checks a batch once, embeds integer elements, and puts zeros where there is padding.

    ``(elements, lengths) -> (elements [B, T, features], lengths, mask [B, T])``, the last two None if every
    sample is full; T is at least 1.
    """

    like: Tensor
    table: Tensor | None

    def __init__(self, in_features: int, embedding: Embedding | None) -> None:
        super().__init__()
        self.in_features = self.features = in_features
        self.register_buffer("like", torch.empty(0), persistent=False)  # follows the model's dtype
        self.table = None
        if embedding is None:
            return
        if not isinstance(embedding, (tuple, list)) or len(embedding) != 3:
            raise InputError(f"embedding must be (integers, dimensions, 'frozen' or 'learned'); got {embedding!r}")
        if in_features != 1:
            raise InputError(f"an embedding reads integers [B, T, 1], so in_features must be 1; got {in_features}")
        integers = whole_number("embedding[0], the number of integers,", embedding[0])
        self.features = whole_number("embedding[1], the dimensions,", embedding[1])
        table = torch.empty(integers, self.features).uniform_(-0.5, 0.5)
        if one_of("embedding[2]", embedding[2], ("frozen", "learned")) == "learned":
            self.table = nn.Parameter(table)
        else:
            del self.table
            self.register_buffer("table", table)

    def for_encoder(self, elements: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
        """The batch for an encoder that reads padding too: there stands a true element (:func:`filled`)."""
        elements, lengths = self.check(elements, lengths)
        elements = filled(elements, lengths)
        return (elements if self.table is None else self._embed(elements)), lengths

    def forward(self, elements: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        elements, lengths = self.check(elements, lengths)
        if lengths is None:
            return (elements if self.table is None else self._embed(elements)), None, None
        mask = torch.arange(elements.shape[1], device=elements.device) < lengths[:, None]
        padding = ~mask[:, :, None]
        elements = elements.masked_fill(padding, 0)
        if self.table is not None:
            elements = self._embed(elements).masked_fill(padding, 0)
        return elements, lengths, mask

    def check(self, elements: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
        """The batch as it is, once it is known to be sound; T = 0 becomes one place of padding."""
        elements = checked_elements(elements)
        lengths = checked_lengths(lengths, elements)
        batch, longest, features = elements.shape
        if features != self.in_features:
            raise InputError(f"elements must have {self.in_features} features; got shape {list(elements.shape)}")
        if longest == 0:
            elements = elements.new_zeros(batch, 1, features)
            lengths = torch.zeros(batch, dtype=torch.int64, device=elements.device)
        self._check_dtype(elements)
        require_finite(elements, lengths)
        return elements, lengths

    def _check_dtype(self, elements: Tensor) -> None:
        if self.table is not None:
            if elements.is_floating_point() or elements.dtype == torch.bool:
                raise InputTypeError(f"an embedding reads integer elements (int64); got dtype {elements.dtype}")
        elif elements.dtype != self.like.dtype and not torch.is_autocast_enabled(elements.device.type):
            raise InputTypeError(
                f"elements are {elements.dtype}, the model's weights {self.like.dtype}; convert one, e.g. "
                f"elements.to({self.like.dtype})"
            )

    def _embed(self, elements: Tensor) -> Tensor:
        assert self.table is not None
        index = elements[:, :, 0].long()
        if not torch.compiler.is_compiling():
            low, high = torch.stack([index.min(), index.max()]).tolist()
            if low < 0 or high >= len(self.table):
                raise InputError(
                    f"integer elements must be from 0 to {len(self.table) - 1}, the embedding's; "
                    f"got {low if low < 0 else high}"
                )
        return F.embedding(index, self.table)


def layer_widths(name: str, value: Any, *, empty: bool = True) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise InputTypeError(f"{name} must be a tuple of layer widths, such as (64, 64); got {value!r}")
    if not value and not empty:
        raise InputError(f"{name} must hold at least one layer width, such as (64,); got {value!r}")
    return tuple(whole_number(f"{name}[{i}]", width) for i, width in enumerate(value))


def probability(name: str, value: Any) -> float:
    return real_number(name, value, at_least=0.0, below=1.0)


def mlp(
    features: int, widths: Sequence[int], out_features: int | None, activation: str, dropout: float = 0.0
) -> nn.Sequential:
    """Linear and activation (and dropout) for each width, then a linear layer if ``out_features`` is given."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(features, width), ACTIVATIONS[activation]()]
        layers += [nn.Dropout(dropout)] if dropout else []
        features = width
    if out_features is not None:
        layers.append(nn.Linear(features, out_features))
    return nn.Sequential(*layers)


def pool(values: Tensor, mask: Tensor | None, how: str) -> Tensor:
    """``values [B, M, F]`` -> ``[B, F]``: their sum, mean, max, min or std where ``mask``; of nothing, 0.

    Values of half precision are summed in single precision: a sum on the way to a mean may be beyond theirs.
    """
    if how in ("max", "min"):
        worst, best = (-math.inf, torch.amax) if how == "max" else (math.inf, torch.amin)
        if mask is None:
            return best(values, 1)
        top = best(values.masked_fill(~mask[:, :, None], worst), 1)
        return torch.where(mask.any(1, keepdim=True), top, torch.zeros_like(top))
    if values.dtype in (torch.float16, torch.bfloat16):
        return pool(values.float(), mask, how).to(values.dtype)
    if how == "std":
        spread = values - pool(values, mask, "mean")[:, None]
        return (pool(spread.square(), mask, "mean") + 1e-5).sqrt()
    total = values.sum(1) if mask is None else values.masked_fill(~mask[:, :, None], 0).sum(1)
    if how == "sum":
        return total
    return total / (values.shape[1] if mask is None else mask.sum(1, keepdim=True).clamp(min=1))


def fixed_orderings(lengths: Tensor, longest: int, draws: int, seed: int) -> Tensor:
    """Orderings ``[B, draws, longest]`` that depend on ``seed`` and each sample's own length, nothing else."""
    index = torch.arange(longest, device="cpu").expand(len(lengths), draws, longest).clone()
    for length in lengths.unique().tolist():
        generator = torch.Generator().manual_seed((seed * 1_000_003 + length) % 2**63)
        drawn = torch.rand(draws, length, generator=generator, dtype=torch.float32, device="cpu")
        index[lengths.cpu() == length, :, :length] = drawn.argsort(1)
    return index.to(lengths.device)


def average_over_orderings(
    predict: Callable[[Tensor, Tensor | None], Tensor],
    elements: Tensor,
    lengths: Tensor | None = None,
    *,
    orderings: int = 20,
    seed: int = 0,
    combine: str = "mean",
) -> Tensor:
    """Predict under ``orderings`` random orderings of each sample and combine: ``[B, out_features]``.

    ``combine="mean"``: the mean output. ``"vote"``: of one output column, the most frequent rounded value (the
    smallest of equals); of several, the share of orderings that chose each class. The orderings depend on
    ``seed`` and a sample's own length alone, so a prediction can be repeated, in any batch.

    >>> first = lambda elements, lengths: elements[:, 0]
    >>> mean = average_over_orderings(first, torch.tensor([[[0.0], [8.0]]]), orderings=1000)
    >>> bool((mean - 4).abs() < 1)
    True
    """
    one_of("combine", combine, COMBINE)
    elements, draws = checked_elements(elements), whole_number("orderings", orderings)
    batch, longest = elements.shape[:2]
    lengths = checked_lengths(lengths, elements)
    sizes = torch.full((batch,), longest, device=elements.device) if lengths is None else lengths
    index = fixed_orderings(sizes, longest, draws, seed)
    shuffled = reorder(elements.repeat_interleave(draws, 0), index.flatten(0, 1))
    out = predict(shuffled, None if lengths is None else lengths.repeat_interleave(draws, 0))
    out = out.unflatten(0, (batch, draws))
    if combine == "mean":
        return out.mean(1)
    if out.shape[2] == 1:
        return out.round().mode(1).values
    return F.one_hot(out.argmax(2), out.shape[2]).to(out.dtype).mean(1)


def encoded_width(encoder: nn.Module, features: int) -> int:
    """The width of what an own encoder gives back, found by showing a copy of it one zero element."""
    weight = next(encoder.parameters(), torch.empty(0))
    probe = torch.zeros(1, 1, features, dtype=weight.dtype, device=weight.device)
    try:
        with torch.no_grad():
            encoded = copy.deepcopy(encoder).eval()(probe)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(f"encoder must map [B, T, {features}] to [B, T, E]; on zeros it failed: {error}") from error
    if not isinstance(encoded, Tensor) or encoded.dim() != 3 or encoded.shape[:2] != (1, 1):
        got = list(encoded.shape) if isinstance(encoded, Tensor) else type(encoded).__name__
        raise InputError(f"encoder must map [B, T, {features}] to [B, T, E]; from [1, 1, {features}] it made {got}")
    return encoded.shape[2]


def choices(name: str, value: Any, allowed: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
        raise InputTypeError(
            f"{name} must be a tuple of at least one of {', '.join(map(repr, allowed))}; got {value!r}"
        )
    return tuple(one_of(f"{name}[{i}]", choice, allowed) for i, choice in enumerate(value))
