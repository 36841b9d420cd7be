"""Set models behind one call, ``model(elements [B, T, D], lengths=None) -> [B, out_features]``.

:class:`RecurrentSetModel` is the one the penalties train; the others are what it is compared with. Each has a
``name`` under which :data:`MODELS` keeps it, says whether it is ``invariant`` by construction and whether it
``streams``, and can be rebuilt: ``MODELS[model.name](**model.config())``. Padding never reaches an output or a
gradient, and a sample's output does not depend on its batch mates.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyorder._names import CELLS as _CELLS
from anyorder.checks import (
    InputError,
    InputTypeError,
    one_of,
    real_number,
    whole_number,
)
from anyorder.data.orderings import random_orderings, reorder
from anyorder.data.sets import filled
from anyorder.models.base import (
    ACTIVATIONS,
    COMBINE,
    MODELS,
    Embedding,
    SetModel,
    average_over_orderings,
    choices,
    encoded_width,
    layer_widths,
    mlp,
    pool,
    probability,
)
from anyorder.models.set_transformer import SetTransformer
from anyorder.recurrences.base import Recurrence, recurrence
from anyorder.recurrences.known import TwoLayerReLUCell
from anyorder.recurrences.trajectory import State, Trajectory, by_sample, tree_leaves, tree_map

__all__ = [
    "MODELS",
    "DeepSets",
    "JanossyPooling",
    "MultiAggregation",
    "RecurrentSetModel",
    "SetModel",
    "SetTransformer",
    "SmallCNN",
    "average_over_orderings",
]


class Readout(nn.Module):
    """ρ of a state: choose what to read, drop out, map to the outputs.

    With ``layers`` given (torch's cells) it reads h of the top layer; with None (an own recurrence) every tensor
    of the state, flattened and side by side, or the state as it is if ρ is an own module (its whole numbers and
    bools are then not dropped).
    """

    def __init__(self, head: nn.Module, dropout: float, layers: int | None, own_head: bool) -> None:
        super().__init__()
        self.head, self.dropout = head, nn.Dropout(dropout)
        self.layers, self.own_head = layers, own_head

    def forward(self, state: State) -> Tensor:
        if self.layers is not None:
            hidden = state[0] if isinstance(state, tuple) else state
            return self.head(self.dropout(hidden if self.layers == 1 else hidden[..., -1, :]))
        if self.own_head:
            return self.head(tree_map(self._drop, state))
        return self.head(self.dropout(torch.cat([by_sample(leaf) for leaf in tree_leaves(state)], dim=1)))

    def _drop(self, leaf: Tensor) -> Tensor:
        return self.dropout(leaf) if leaf.is_floating_point() or leaf.is_complex() else leaf


class RecurrentSetModel(SetModel):
    """y = ρ(s_n), s_t = f(s_{t−1}, φ(x_t)), s_0 learned: equation 2 of the paper on ragged batches.

    ``cell``: "rnn" (tanh), "relu-rnn", "gru", "lstm", with ``hidden`` units and any number of ``layers``; "relu",
    the cell of Theorem 4, s' = W1 relu(W2 x + W3 s + B) with ``hidden`` ReLU neurons and ``state_features``
    (default: ``hidden``) state features; or a Recurrence, which keeps its own size and start. ``encoder`` φ: None,
    widths of an MLP (``activation`` after every layer), or a module ``[B, T, D] -> [B, T, E]``. ``readout`` ρ:
    None for a linear layer, hidden widths, or a module. ρ reads h of the top layer (c of an LSTM it does not
    see); of a Recurrence it reads the whole state.

    ``dropout`` acts once, on what ρ reads: the paper's 0.75 "in the GRU layer", which inside a one-layer nn.GRU
    would do nothing. ``readout_dropout`` acts after each hidden layer of ρ (the paper's 0.5). ``embedding=(integers,
    dimensions, "frozen" | "learned")``, from U(−½, ½), is for integer elements ``[B, T, 1]``. ``gate_bias_span=T``
    draws the update-gate biases of a GRU, the forget-gate biases of an LSTM, from log U(1, T), so that memory
    spans 1 to T steps from the outset. ``orderings=P > 1`` averages the output over P orderings in eval mode,
    those of :func:`average_over_orderings` with ``seed``.

    >>> model = RecurrentSetModel(3, 2, cell="lstm", hidden=8, encoder=(16,), readout=(16,))
    >>> out, t = model(torch.randn(5, 7, 3), torch.tensor([7, 4, 1, 0, 2]), return_trajectory=True)
    >>> out.shape, [leaf.shape[1] for leaf in t.last]
    (torch.Size([5, 2]), [8, 8])
    """

    name = "recurrent"
    streams = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        cell: str | Recurrence = "gru",
        hidden: int = 64,
        layers: int = 1,
        encoder: Sequence[int] | nn.Module | None = None,
        readout: Sequence[int] | nn.Module | None = None,
        learned_start: bool = True,
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        readout_dropout: float = 0.0,
        embedding: Embedding | None = None,
        gate_bias_span: float | None = None,
        state_features: int | None = None,
        orderings: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        one_of("activation", activation, ACTIVATIONS)
        self.orderings, self.seed = whole_number("orderings", orderings), whole_number("seed", seed, 0)
        width = self.door.features
        if encoder is None:
            self.encoder: nn.Module = nn.Identity()
        elif isinstance(encoder, nn.Module):
            self.encoder = encoder
            width = encoded_width(encoder, width)
        else:
            encoder = layer_widths("encoder", encoder, empty=False)
            self.encoder = mlp(width, encoder, None, activation)
            width = encoder[-1]
        self.recurrence = _build_recurrence(cell, width, hidden, layers, learned_start, gate_bias_span, state_features)
        own_cell, own_head = isinstance(cell, Recurrence), isinstance(readout, nn.Module)
        read = self._state_size() if own_cell else state_features or hidden
        if isinstance(readout, nn.Module):
            if readout_dropout:
                raise InputError(
                    f"readout_dropout acts inside a readout of widths; got {readout_dropout} with an own module "
                    f"({type(readout).__name__}): put the dropout into that"
                )
            head: nn.Module = readout
        else:
            readout = None if readout is None else layer_widths("readout", readout)
            head_dropout = probability("readout_dropout", readout_dropout)
            head = mlp(read, readout or (), out_features, activation, head_dropout)
        self.readout = Readout(head, probability("dropout", dropout), None if own_cell else layers, own_head)
        if own_head:
            self._require_width()
        self._built_with(
            cell=cell, hidden=hidden, layers=layers, encoder=encoder, readout=readout, learned_start=learned_start,
            activation=activation, dropout=dropout, readout_dropout=readout_dropout, embedding=embedding,
            gate_bias_span=gate_bias_span, state_features=state_features, orderings=orderings, seed=seed,
        )  # fmt: skip

    def _require_width(self) -> None:
        """An own read-out must give ``out_features`` columns: shown the start state of one sample, it does or not."""
        with torch.no_grad():
            out = copy.deepcopy(self.readout).eval()(self.recurrence.start(1))
        if not isinstance(out, Tensor) or out.shape != (1, self.out_features):
            got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise InputError(f"readout must map a state of batch B to [B, {self.out_features}]; of one it made {got}")

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ of every element, ``[B, T, D] -> [B, T, E]``; padding beyond ``lengths`` is not read."""
        return self.encoder(self.door.for_encoder(elements, lengths)[0])

    def forward(self, elements: Tensor, lengths: Tensor | None = None, *, return_trajectory: bool = False) -> Any:
        averaged = self.orderings > 1 and not self.training
        if averaged and not return_trajectory:
            return self._average(elements, lengths)
        elements_in, lengths_in = self.door.for_encoder(elements, lengths)
        encoded = self.encoder(elements_in)
        trajectory: Trajectory = self.recurrence.scan_encoded(encoded, lengths_in, last_alone=not return_trajectory)
        out = self._average(elements, lengths) if averaged else self.readout(trajectory.last)
        return (out, trajectory) if return_trajectory else out

    def _average(self, elements: Tensor, lengths: Tensor | None) -> Tensor:
        def once(elements: Tensor, lengths: Tensor | None) -> Tensor:
            elements, lengths = self.door.for_encoder(elements, lengths)
            return self.readout(self.recurrence.scan_encoded(self.encoder(elements), lengths, last_alone=True).last)

        elements, lengths = self.door.check(elements, lengths)
        return average_over_orderings(once, elements, lengths, orderings=self.orderings, seed=self.seed)

    def _state_size(self) -> int:
        return sum(leaf.numel() for leaf in tree_leaves(self.recurrence.start(1)))


def _build_recurrence(
    cell: str | Recurrence,
    features: int,
    hidden: int,
    layers: int,
    learned_start: bool,
    gate_bias_span: float | None,
    state_features: int | None,
) -> Recurrence:
    if isinstance(cell, Recurrence):
        if gate_bias_span is not None or state_features is not None:
            raise InputError("gate_bias_span and state_features are for named cells; set them in your recurrence")
        return cell
    if not isinstance(cell, str):
        raise InputTypeError(
            f"cell must be one of {', '.join(map(repr, _CELLS))} or a Recurrence (anyorder.recurrence makes one); "
            f"got {type(cell).__name__}"
        )
    one_of("cell", cell, _CELLS)
    hidden, layers = whole_number("hidden", hidden), whole_number("layers", layers)
    if gate_bias_span is not None and cell not in ("gru", "lstm"):
        raise InputError(f"gate_bias_span needs gates: cell 'gru' or 'lstm'; got {cell!r}")
    if state_features is not None and cell != "relu":
        raise InputError(f"state_features is for cell 'relu', whose state is not its hidden layer; got cell {cell!r}")
    if cell == "relu":
        if layers != 1:
            raise InputError(f"cell 'relu' has one layer; got layers={layers}")
        state = hidden if state_features is None else whole_number("state_features", state_features)
        start = torch.zeros(1, state)
        step = TwoLayerReLUCell(features, state, hidden)
        return recurrence(step, start=nn.Parameter(start) if learned_start else start)
    module: nn.RNNBase
    if cell == "gru":
        module = nn.GRU(features, hidden, layers)
    elif cell == "lstm":
        module = nn.LSTM(features, hidden, layers)
    else:
        module = nn.RNN(features, hidden, layers, nonlinearity="tanh" if cell == "rnn" else "relu")
    if gate_bias_span is not None:
        _spread_memory(module, real_number("gate_bias_span", gate_bias_span, above=1.0))
    if not learned_start:
        return recurrence(module)
    return recurrence(module, start=tree_map(nn.Parameter, recurrence(module).start(1)))


def _spread_memory(module: nn.RNNBase, span: float) -> None:
    """Biases of the gates that keep the state from log U(1, span), half of the torch's pair of biases at 0.

    GRU: z keeps (rows H to 2H). LSTM: f keeps (rows H to 2H), and i takes in as much less (rows 0 to H).
    """
    h = module.hidden_size
    with torch.no_grad():
        for layer in range(module.num_layers):
            bias, other = getattr(module, f"bias_ih_l{layer}"), getattr(module, f"bias_hh_l{layer}")
            bias[h : 2 * h].uniform_(1.0, span).log_()
            other[h : 2 * h] = 0.0
            if isinstance(module, nn.LSTM):
                bias[:h] = -bias[h : 2 * h]
                other[:h] = 0.0


class JanossyPooling(SetModel):
    """The mean of an order-sensitive function over orderings (Murphy et al., 2019), k-ary or recurrent.

    ``k`` = 1, 2 or 3: y = ρ(mean over the ordered k-tuples of distinct elements of φ(x_1, …, x_k)), or their sum
    with ``pooling="sum"``; φ is an MLP of widths ``encoder`` (default ``(hidden,)``). Exact, n^k tuples; a set of
    fewer than k elements is completed with zeros, an empty one pools to 0.

    ``k=None``: the recurrent π-SGD form. In training each sample is read once, in a fresh random ordering; in eval
    mode ``orderings`` (default 20) of them are read and combined by ``combine`` "mean" (default) or "vote", as in
    :func:`average_over_orderings` with ``seed``. ``cell``, ``layers`` and ``learned_start`` are for this form; they
    and what both forms take mean what they do in :class:`RecurrentSetModel`.

    >>> pairs = JanossyPooling(3, 1, k=2)
    >>> pi_sgd = JanossyPooling(3, 10, cell="lstm", hidden=50, orderings=5, combine="vote").eval()
    >>> pi_sgd(torch.randn(4, 6, 3)).sum(1)
    tensor([1., 1., 1., 1.])
    """

    name = "janossy"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        k: int | None = None,
        *,
        cell: str | Recurrence | None = None,
        hidden: int = 64,
        layers: int | None = None,
        encoder: Sequence[int] | nn.Module | None = None,
        readout: Sequence[int] | nn.Module | None = None,
        learned_start: bool | None = None,
        orderings: int | None = None,
        combine: str | None = None,
        seed: int | None = None,
        pooling: str | None = None,
        activation: str = "relu",
        dropout: float = 0.0,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        recurrent_only = {
            "cell": cell, "layers": layers, "learned_start": learned_start, "orderings": orderings,
            "combine": combine, "seed": seed,
        }  # fmt: skip
        for name, value in {"pooling": pooling}.items() if k is None else recurrent_only.items():
            if value is not None:
                form = "recurrent form (k=None)" if k is None else f"k-ary form (k={k})"
                raise InputError(f"{name} has no meaning in the {form} of JanossyPooling; got {name}={value!r}")
        self.k = None if k is None else one_of("k", k, (1, 2, 3))
        self.invariant = k is not None
        self.orderings = whole_number("orderings", 20 if orderings is None else orderings)
        self.combine = one_of("combine", "mean" if combine is None else combine, COMBINE)
        self.seed = whole_number("seed", 0 if seed is None else seed, 0)
        self.pooling = one_of("pooling", "mean" if pooling is None else pooling, ("mean", "sum"))
        if k is None:
            self.sequence = RecurrentSetModel(
                in_features, out_features, cell or "gru", hidden, 1 if layers is None else layers, encoder, readout,
                learned_start is not False, activation=activation, dropout=dropout, embedding=embedding,
            )  # fmt: skip
        else:
            one_of("activation", activation, ACTIVATIONS)
            width = k * self.door.features
            if isinstance(encoder, nn.Module):
                self.phi, width = encoder, encoded_width(encoder, width)
            else:
                widths = layer_widths("encoder", (hidden,) if encoder is None else encoder, empty=False)
                self.phi, width = mlp(width, widths, None, activation), widths[-1]
            if isinstance(readout, nn.Module):
                rho: nn.Module = readout
            else:
                rho = mlp(width, layer_widths("readout", readout or ()), out_features, activation)
            self.rho = nn.Sequential(nn.Dropout(probability("dropout", dropout)), rho)
        self._built_with(
            k=k, cell=cell, hidden=hidden, layers=layers, encoder=encoder, readout=readout,
            learned_start=learned_start, orderings=orderings, combine=combine, seed=seed, pooling=pooling,
            activation=activation, dropout=dropout, embedding=embedding,
        )  # fmt: skip

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.k is not None:
            return self._over_tuples(*self.door(elements, lengths)[:2])
        elements, lengths = self.sequence.door.check(elements, lengths)
        if not self.training:
            return average_over_orderings(
                self.sequence, elements, lengths, orderings=self.orderings, seed=self.seed, combine=self.combine
            )
        batch, longest = elements.shape[:2]
        sizes = torch.full((batch,), longest, device=elements.device) if lengths is None else lengths
        return self.sequence(reorder(elements, random_orderings(sizes, longest)[:, 0]), lengths)

    def _over_tuples(self, elements: Tensor, lengths: Tensor | None) -> Tensor:
        assert self.k is not None
        missing = max(0, self.k - elements.shape[1])
        if missing and lengths is None:
            lengths = elements.new_full((elements.shape[0],), elements.shape[1], dtype=torch.int64)
        elements = F.pad(elements, (0, 0, 0, missing))
        position = torch.arange(elements.shape[1], device=elements.device)
        tuples = torch.cartesian_prod(*[position] * self.k).view(-1, self.k)  # [n^k, k]
        ordered = tuples.sort(1).values
        tuples = tuples[(ordered[:, 1:] != ordered[:, :-1]).all(1)]
        mask = None
        if lengths is not None:
            completed = torch.where(lengths > 0, lengths.clamp(min=self.k), 0)
            mask = tuples.amax(1) < completed[:, None]
            elements = filled(elements, completed)
        return self.rho(pool(self.phi(elements[:, tuples].flatten(2)), mask, self.pooling))

    # The recurrent form can be penalised and measured like the model inside it.
    @property
    def recurrence(self) -> Recurrence:
        return self.sequence.recurrence

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ of every element, as in the recurrent model inside."""
        return self.sequence.encode(elements, lengths)


class EquivariantMax(nn.Module):
    """x_i -> Γ x_i − Λ max_j x_j + b: DeepSets' equivariant layer for point clouds, the maximum taken over the set."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_features, out_features)
        self.shared = nn.Linear(in_features, out_features, bias=False)

    def forward(self, elements: Tensor, mask: Tensor | None) -> Tensor:
        return self.own(elements) - self.shared(pool(elements, mask, "max"))[:, None]


class DeepSets(SetModel):
    """y = ρ(pool φ(x_i)) (Zaheer et al., 2017), ``pooling`` by "sum", "mean" or "max".

    ``phi``: widths of φ, ``activation`` after every layer; ``rho``: hidden widths of ρ. ``equivariant=True`` makes
    every layer of φ see the set's maximum (:class:`EquivariantMax`), as the point-cloud version does; the model then
    holds the whole set. ``dropout`` acts before every linear layer of ρ. Without equivariant layers the pooling
    is a recurrence that commutes: ``encode``, ``recurrence`` and ``readout`` stream it.

    >>> DeepSets(3, 2, phi=(32, 16), pooling="max")(torch.randn(5, 7, 3)).shape
    torch.Size([5, 2])
    """

    name = "deepsets"
    invariant = True
    streams = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        phi: Sequence[int] = (64, 64),
        rho: Sequence[int] = (64,),
        pooling: str = "sum",
        *,
        equivariant: bool = False,
        activation: str = "relu",
        dropout: float = 0.0,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        phi, rho = layer_widths("phi", phi, empty=False), layer_widths("rho", rho)
        self.pooling = one_of("pooling", pooling, _POOL_STEPS)
        one_of("activation", activation, ACTIVATIONS)
        probability("dropout", dropout)
        self.equivariant = bool(equivariant)
        width = self.door.features
        if equivariant:
            shapes = zip((width, *phi), phi, strict=False)
            self.phi: nn.Module = nn.ModuleList(EquivariantMax(before, after) for before, after in shapes)
            self.streams = False
        else:
            self.phi = mlp(width, phi, None, activation)
            start = torch.zeros(1, phi[-1])
            count = torch.zeros(1, 1, dtype=torch.int64)  # exact however many elements there are, in any precision
            self.recurrence = recurrence(_POOL_STEPS[pooling], start=start if pooling == "sum" else (start, count))
        self.rho = nn.Sequential(nn.Dropout(dropout), *mlp(phi[-1], rho, out_features, activation, dropout))
        self.activation = ACTIVATIONS[activation]()
        self._built_with(
            phi=phi, rho=rho, pooling=pooling, equivariant=equivariant, activation=activation, dropout=dropout,
            embedding=embedding,
        )  # fmt: skip

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, _, mask = self.door(elements, lengths)
        if isinstance(self.phi, nn.ModuleList):
            for layer in self.phi:
                elements = self.activation(layer(elements, mask))
        else:
            elements = self.phi(elements)
        return self.rho(pool(elements, mask, self.pooling))

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ of every element, ``[B, T, D] -> [B, T, W]``; padding beyond ``lengths`` is read as zeros."""
        if self.equivariant:
            raise InputError("equivariant layers need the whole set: this DeepSets cannot encode element by element")
        return self.phi(self.door(elements, lengths)[0])

    def readout(self, state: State) -> Tensor:
        """ρ of a pooled state: the sum; or (mean, count); or (max, count)."""
        return self.rho(state if self.pooling == "sum" else state[0])

    def _state_size(self) -> int | None:
        return None if self.equivariant else sum(leaf.numel() for leaf in tree_leaves(self.recurrence.start(1)))


def _add(element: Tensor, state: Tensor) -> Tensor:
    return state + element


def _running_mean(element: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    mean, count = state
    return mean + (element - mean) / (count + 1), count + 1


def _running_max(element: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    top, count = state
    return torch.where(count > 0, torch.maximum(top, element), element), count + 1


_POOL_STEPS: dict[str, Callable[[Tensor, Any], Any]] = {"sum": _add, "mean": _running_mean, "max": _running_max}


class MultiAggregation(SetModel):
    """Several aggregators times several size scalers, side by side (PNA; Corso et al., 2020), then ρ.

    Each of ``aggregators`` (of "mean", "max", "min", "std", "sum") of φ(x_i) is taken times each of ``scalers``:
    "identity" 1, "amplification" log(n + 1)/δ, "attenuation" δ/log(n + 1), with δ = log(``typical_size`` + 1).
    n counts from 1 in the scalers, so that an empty set has a finite answer.

    >>> MultiAggregation(3, 2)(torch.randn(5, 7, 3)).shape
    torch.Size([5, 2])
    """

    name = "multi-aggregation"
    invariant = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        phi: Sequence[int] = (64, 64),
        rho: Sequence[int] = (64,),
        aggregators: Sequence[str] = ("mean", "max", "min", "std"),
        scalers: Sequence[str] = ("identity", "amplification", "attenuation"),
        typical_size: float = 10.0,
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__(in_features, out_features, embedding)
        phi, rho = layer_widths("phi", phi, empty=False), layer_widths("rho", rho)
        self.aggregators = choices("aggregators", aggregators, ("mean", "max", "min", "std", "sum"))
        self.scalers = choices("scalers", scalers, ("identity", "amplification", "attenuation"))
        self.scale = math.log(real_number("typical_size", typical_size, above=0.0) + 1.0)
        one_of("activation", activation, ACTIVATIONS)
        probability("dropout", dropout)
        self.phi = mlp(self.door.features, phi, None, activation)
        width = phi[-1] * len(self.aggregators) * len(self.scalers)
        self.rho = nn.Sequential(nn.Dropout(dropout), *mlp(width, rho, out_features, activation, dropout))
        self._built_with(
            phi=phi, rho=rho, aggregators=self.aggregators, scalers=self.scalers, typical_size=typical_size,
            activation=activation, dropout=dropout, embedding=embedding,
        )  # fmt: skip

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, lengths, mask = self.door(elements, lengths)
        encoded = self.phi(elements)
        pooled = torch.cat([pool(encoded, mask, how) for how in self.aggregators], dim=1)
        size = pooled.new_full((len(pooled),), elements.shape[1]) if lengths is None else lengths.clamp(min=1)
        ratio = (size.to(pooled.dtype) + 1).log()[:, None] / self.scale
        factor = {"identity": torch.ones_like(ratio), "amplification": ratio, "attenuation": 1 / ratio}
        return self.rho(torch.cat([pooled * factor[scaler] for scaler in self.scalers], dim=1))


class SmallCNN(SetModel):
    """The small image network of the Locally Perturbed MNIST comparison: 2 convolutions, 2 fully connected layers.

    It reads a full set of ``side²`` pixels in raster order, ``elements [B, side², in_features]``, so it is a model of
    images, not of sets: sets with fewer elements are refused. Each convolution (3 × 3, ``channels`` wide) is
    followed by ReLU and 2 × 2 max pooling; ``dropout`` acts before both fully connected layers.

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
        self.side = whole_number("side", side, minimum=4)
        channels = layer_widths("channels", channels)
        if len(channels) != 2:
            raise InputError(f"channels must be two widths, such as (32, 64); got {channels!r}")
        hidden = whole_number("hidden", hidden)
        drop, small = probability("dropout", dropout), self.side // 2 // 2
        self.layers = nn.Sequential(
            nn.Conv2d(self.in_features, channels[0], 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels[0], channels[1], 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Dropout(drop), nn.Linear(channels[1] * small * small, hidden), nn.ReLU(),
            nn.Dropout(drop), nn.Linear(hidden, out_features),
        )  # fmt: skip
        self._built_with(side=side, channels=channels, hidden=hidden, dropout=dropout)

    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        elements, lengths, _ = self.door(elements, lengths)
        pixels = self.side * self.side
        shortest = elements.shape[1] if lengths is None else int(lengths.min())
        if elements.shape[1] != pixels or shortest != pixels:
            raise InputError(
                f"SmallCNN reads whole images of {self.side} × {self.side} = {pixels} elements; got sets of {shortest} "
                f"to {elements.shape[1]} (another size: side=; ragged sets: another model)"
            )
        return self.layers(elements.transpose(1, 2).unflatten(2, (self.side, self.side)))
