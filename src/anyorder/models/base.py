"""What set models share: registry, batch checks, static features, pooling, averaging."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

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
"""The class of each model by its name: ``MODELS[model.name](**model.config())`` builds a model again."""
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
FARTHEST = 3.0  # standard deviations of a static feature from its mean
_SETTINGS = ("orderings", "seed")  # attributes that may be changed on a model that was built

Embedding = tuple[int, int, str]  # how many integers, how many dimensions, "frozen" or "learned"


class StaticFeatures(nn.Module):
    """``features [B, F]`` and the ``static [B, S]`` of each set, after dropout, side by side: ``[B, F + S]``."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.size = whole_number("static_features", size, 0)
        self.dropout = nn.Dropout(real_number("static_dropout", dropout, at_least=0, below=1))

    def forward(self, features: Tensor, static: Tensor | None) -> Tensor:
        if static is None and self.size == 0:
            return features
        if static is None or static.shape != (features.shape[0], self.size):
            rule = f"static must have shape {[features.shape[0], self.size]}, the static_features of each set"
            raise InputError(f"{rule}; got {None if static is None else list(static.shape)}")
        require_finite(static[:, None], None, "static")
        return torch.cat([features, self.dropout(static.to(features))], 1)


class SetModel(nn.Module):
    """The base of all set models: a registered name and a configuration.

    ``invariant``: the output cannot depend on the order of the elements. ``streams``: the model has ``encode``,
    ``recurrence`` and ``readout``, so elements can arrive one by one at a constant cost.
    A subclass with a ``name`` is registered in :data:`MODELS`. Its ``forward`` calls :meth:`masked` or :meth:`filled`.
    ``joined`` puts ``static_features`` beside what the read-out reads.

    >>> class Mean(SetModel):
    ...     "The mean of a linear function: ``[B, T, D] -> [B, K]``."
    ...     def __init__(self, in_features, out_features):
    ...         super().__init__(in_features, out_features)
    ...         self.linear = nn.Linear(in_features, out_features)
    ...     def forward(self, elements, lengths=None, *, static=None):
    ...         return self.linear(elements).mean(1)
    >>> Mean(3, 2)(torch.randn(5, 7, 3)).shape
    torch.Size([5, 2])
    """

    name: ClassVar[str]
    invariant: bool = False
    streams: bool = False
    recurrence: Any  # of a model that streams
    _arguments: Any

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:
            MODELS[cls.name] = cls

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """A model that keeps its arguments for :meth:`config`; of a module, its type."""
        model = super().__new__(cls)
        bound = inspect.signature(cls.__init__).bind_partial(None, *args, **kwargs)
        bound.apply_defaults()
        arguments = list(bound.arguments.items())[1:]
        model._arguments = {name: type(v) if isinstance(v, nn.Module) else v for name, v in arguments}
        return model

    def __init__(
        self,
        in_features: int,
        out_features: int,
        embedding: Embedding | None = None,
        static_features: int = 0,
        static_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.joined = StaticFeatures(static_features, static_dropout)
        self.in_features = self.element_features = whole_number("in_features", in_features)
        self.out_features = whole_number("out_features", out_features)
        self.table: nn.Embedding | None = None
        if embedding is None:
            return
        if self.in_features != 1:
            raise InputError(f"in_features must be 1 with an embedding of integers [B, T, 1]; got {in_features}")
        integers, dimensions, kind = embedding
        self.element_features = whole_number("embedding[1]", dimensions)
        table = torch.empty(whole_number("embedding[0]", integers), self.element_features).uniform_(-0.5, 0.5)
        frozen = one_of("embedding[2]", kind, ("frozen", "learned")) == "frozen"
        self.table = nn.Embedding.from_pretrained(table, freeze=frozen)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values.

        ``MODELS[model.name](**config)`` builds the model again.
        """
        own = next((name for name, value in self._arguments.items() if isinstance(value, type)), None)
        if own is not None:
            raise InputError(
                f"{own} is a module of your own ({self._arguments[own].__name__}), which a configuration cannot "
                "describe; keep the state_dict() and build the model in code"
            )
        return {n: _plain(getattr(self, n) if n in _SETTINGS else value) for n, value in self._arguments.items()}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, which floating elements must share."""
        tensors = itertools.chain(self.parameters(), self.buffers())
        return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())

    def check(self, elements: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
        """The batch as it is, once known to be sound; T = 0 becomes one place of padding."""
        elements = checked_elements(elements)
        lengths = checked_lengths(lengths, elements)
        batch, longest, features = elements.shape
        if features != self.in_features:
            raise InputError(f"elements must have {self.in_features} features; got shape {list(elements.shape)}")
        if longest == 0:
            elements = elements.new_zeros(batch, 1, features)
            lengths = torch.zeros(batch, dtype=torch.int64, device=elements.device)
        whole = not elements.is_floating_point() and elements.dtype != torch.bool
        cast = torch.is_autocast_enabled(elements.device.type)
        if not (whole if self.table is not None else cast or elements.dtype == self.dtype):
            expected = self.dtype if self.table is None else "integers"
            raise InputTypeError(f"elements must be {expected}, as the model's weights need; got {elements.dtype}")
        require_finite(elements, lengths)
        return elements, lengths

    def filled(self, elements: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
        """The checked, embedded batch with true elements as padding."""
        elements, lengths = self.check(elements, lengths)
        return self._embedded(filled(elements, lengths)), lengths

    def masked(self, elements: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The checked, embedded batch with zeros as padding; lengths; mask ``[B, T]``.

        The mask is True at elements. Lengths and mask are None if every set is full. T is at least 1.
        """
        elements, lengths = self.check(elements, lengths)
        if lengths is None:
            return self._embedded(elements), None, None
        mask = torch.arange(elements.shape[1], device=elements.device) < lengths[:, None]
        embedded = self._embedded(elements.masked_fill(~mask[:, :, None], 0))
        return embedded.masked_fill(~mask[:, :, None], 0), lengths, mask

    def _embedded(self, elements: Tensor) -> Tensor:
        if self.table is None:
            return elements
        index = elements[:, :, 0].long()
        if not torch.compiler.is_compiling():
            low, high = torch.stack([index.min(), index.max()]).tolist()
            if low < 0 or high >= self.table.num_embeddings:
                raise InputError(
                    f"elements must be integers from 0 to {self.table.num_embeddings - 1} for this embedding; "
                    f"got {low if low < 0 else high}"
                )
        return self.table(index)


def _plain(value: Any) -> Any:
    """Lists for tuples, Python's numbers for numpy's."""
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


class Standardised(SetModel):
    """A model of raw values: y = σ_y · model((x − μ_x) / σ_x) + μ_y.

    ``model``: a name of :data:`MODELS`, built with ``options``; it is ``inner``. The units are the buffers ``mean``,
    ``scale`` (of the elements), ``out_mean`` and ``out_scale``: 0 and 1 until :meth:`set_units`, in float64. Integer
    elements are passed on unchanged. Floating elements may have a wider dtype than the weights; they are rounded after
    scaling. Static features have the units ``static_mean`` and ``static_scale``.

    >>> import anyorder.models
    >>> model = Standardised(1, 1, "deepsets").set_units([5.0], [2.0], [100.0], [10.0])
    >>> x = torch.randn(2, 3, 1)
    >>> torch.allclose(model(5 + 2 * x), 100 + 10 * model.inner(x), atol=1e-4)
    True
    """

    name = "standardised"

    def __init__(
        self, in_features: int, out_features: int, model: str = "recurrent", options: dict[str, Any] | None = None
    ) -> None:
        super().__init__(in_features, out_features)
        one_of("model", model, [name for name in MODELS if name != self.name])
        self.inner: Any = MODELS[model](in_features, out_features, **(options or {}))
        kind: Any = {"dtype": torch.float64}
        self.mean, self.scale = nn.Buffer(torch.zeros(in_features, **kind)), nn.Buffer(torch.ones(in_features, **kind))
        self.out_mean = nn.Buffer(torch.zeros(out_features, **kind))
        self.out_scale = nn.Buffer(torch.ones(out_features, **kind))
        self.invariant, self.streams = self.inner.invariant, self.inner.streams
        if size := self.inner.joined.size:
            self.static_mean = nn.Buffer(torch.zeros(size, **kind))
            self.static_scale = nn.Buffer(torch.ones(size, **kind))

    def set_units(
        self, mean: Any, scale: Any, out_mean: Any = 0.0, out_scale: Any = 1.0, **static: Any
    ) -> Standardised:
        """The model itself, with these units; ``static_mean`` and ``static_scale`` are those of static features."""
        units = {"mean": mean, "scale": scale, "out_mean": out_mean, "out_scale": out_scale, **static}
        for name, unit in units.items():
            getattr(self, name).copy_(torch.as_tensor(unit))
        return self

    def config(self) -> dict[str, Any]:
        options = self.inner.config()
        del options["in_features"], options["out_features"]
        return {**super().config(), "options": options}

    def forward(self, elements: Tensor, lengths: Tensor | None = None, *, static: Tensor | None = None) -> Tensor:
        given = {} if static is None else {"static": self.standard_static(static)}  # not every model takes some
        return self._raw(self.inner(self.standard(elements), lengths, **given))

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The elements that the recurrence inside reads, from raw elements."""
        return self.inner.encode(self.standard(elements), lengths)

    def readout(self, state: Any, static: Tensor | None = None) -> Tensor:
        """The output, in raw units, of a state of the recurrence inside."""
        return self._raw(self.inner.readout(state, self.standard_static(static)))

    @property
    def recurrence(self) -> Any:
        """The recurrence of the model inside."""
        return self.inner.recurrence

    @property
    def orderings(self) -> int:
        """The number of orderings that the model inside averages over."""
        return getattr(self.inner, "orderings", 1)

    def standard(self, elements: Tensor) -> Tensor:
        """Raw elements as the model inside reads them."""
        floating = isinstance(elements, Tensor) and elements.is_floating_point()
        if not floating or elements.shape[-1:] != (self.in_features,):
            return elements  # integers of an embedding, or what the model inside refuses
        standard = (elements - self.mean.to(elements)) / self.scale.to(elements)
        return standard.to(self.dtype) if elements.dtype.itemsize > self.dtype.itemsize else standard

    def standard_static(self, static: Tensor | None) -> Tensor | None:
        """Raw static features as the model inside reads them: three standard deviations from the mean at most."""
        if static is None or static.shape[-1:] != (self.inner.joined.size,) or static.shape[-1] == 0:
            return static  # the model inside refuses it
        standard = (static - self.static_mean.to(static)) / self.static_scale.to(static)
        return standard.clamp(-FARTHEST, FARTHEST).to(self.dtype)

    def _raw(self, output: Tensor) -> Tensor:
        return output * self.out_scale.to(output) + self.out_mean.to(output)


def mlp(
    features: int, widths: Sequence[int], out_features: int | None, activation: str, dropout: float = 0.0
) -> nn.Sequential:
    """An MLP of ``widths``, with a last linear layer if ``out_features`` is given."""
    nonlinearity = ACTIVATIONS[one_of("activation", activation, ACTIVATIONS)]
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(features, whole_number("a layer's width", width)), nonlinearity()]
        layers += [nn.Dropout(dropout)] if dropout else []
        features = width
    if out_features is not None:
        layers.append(nn.Linear(features, out_features))
    return nn.Sequential(*layers)


def encoder_of(encoder: Sequence[int] | nn.Module, features: int, activation: str) -> tuple[nn.Module, int]:
    """φ, from the widths of an MLP or a module of the user's, and its output width."""
    if not isinstance(encoder, nn.Module):
        return mlp(features, encoder, None, activation), int([features, *encoder][-1])
    weight = next(encoder.parameters(), torch.empty(0))
    with torch.no_grad():  # a copy, so that nothing in the user's module is touched
        encoded = copy.deepcopy(encoder).eval()(weight.new_zeros(1, 1, features))
    if encoded.dim() != 3 or encoded.shape[:2] != (1, 1):
        got = f"[1, 1, {features}] to {list(encoded.shape)}"
        raise InputError(f"encoder must map [B, T, {features}] to [B, T, E]; it maps {got}")
    return encoder, encoded.shape[2]


def pool(values: Tensor, mask: Tensor | None, how: str) -> Tensor:
    """``values [B, M, F]`` -> ``[B, F]``: sum, mean, max, min or std; 0 of no value.

    Values of half precision are summed in single precision: a sum on the way to a mean may overflow.
    """
    if how == "min":
        return -pool(-values, mask, "max")
    if how == "max":
        top = (values if mask is None else values.masked_fill(~mask[:, :, None], -math.inf)).amax(1)
        return top if mask is None else top.masked_fill(~mask.any(1, keepdim=True), 0)
    if values.dtype in (torch.float16, torch.bfloat16):
        return pool(values.float(), mask, how).to(values.dtype)
    if how == "std":
        spread = values - pool(values, mask, "mean")[:, None]
        return (pool(spread.square(), mask, "mean") + 1e-5).sqrt()
    total = values.sum(1) if mask is None else values.masked_fill(~mask[:, :, None], 0).sum(1)
    if how == "sum":
        return total
    return total / (values.shape[1] if mask is None else mask.sum(1, keepdim=True).clamp(min=1))


def sizes_of(elements: Tensor, lengths: Tensor | None) -> Tensor:
    """The sizes ``[B]`` of the sets of a batch."""
    return torch.full(elements.shape[:1], elements.shape[1], device=elements.device) if lengths is None else lengths


def fixed_orderings(lengths: Tensor, longest: int, draws: int, seed: int) -> Tensor:
    """Orderings ``[B, draws, longest]``, decided by ``seed`` and a set's own length."""
    index = torch.arange(longest, device="cpu").expand(len(lengths), draws, longest).clone()
    for length in lengths.unique().tolist():
        generator = torch.Generator().manual_seed((seed * 1_000_003 + length) % 2**63)
        drawn = torch.rand(draws, length, generator=generator, dtype=torch.float32, device="cpu")
        index[lengths.cpu() == length, :, :length] = drawn.argsort(1)
    return index.to(lengths.device)


COMBINE = ("mean", "vote")


def average_over_orderings(
    predict: Callable[..., Tensor],
    elements: Tensor,
    lengths: Tensor | None = None,
    *,
    static: Tensor | None = None,
    orderings: int = 20,
    seed: int = 0,
    combine: str = "mean",
) -> Tensor:
    """The mean prediction ``[B, out_features]`` over random ``orderings``.

    They depend on ``seed`` and a set's own length alone, so a prediction can be repeated, in any batch. ``static``
    features of the sets go to ``predict`` as ``static=``.
    ``combine="vote"`` rounds each prediction to a whole number and takes the most frequent, the least of several.

    >>> first = lambda elements, lengths: elements[:, 0]
    >>> mean = average_over_orderings(first, torch.tensor([[[0.0], [8.0]]]), orderings=1000)
    >>> bool((mean - 4).abs() < 1)
    True
    """
    elements, draws = checked_elements(elements), whole_number("orderings", orderings)
    lengths = checked_lengths(lengths, elements)
    index = fixed_orderings(sizes_of(elements, lengths), elements.shape[1], draws, seed)
    shuffled = reorder(elements.repeat_interleave(draws, 0), index.flatten(0, 1))
    given = {} if static is None else {"static": static.repeat_interleave(draws, 0)}
    out = predict(shuffled, None if lengths is None else lengths.repeat_interleave(draws, 0), **given)
    out = out.unflatten(0, (len(elements), draws))
    return out.mean(1) if one_of("combine", combine, COMBINE) == "mean" else out.round().mode(1).values
