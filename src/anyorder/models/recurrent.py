"""A recurrence with an encoder and a read-out, the model that the penalties train."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, one_of, real_number, whole_number
from anyorder.models.base import (
    ACTIVATIONS,
    Embedding,
    SetModel,
    average_over_orderings,
    encoded_width,
    layer_widths,
    mlp,
    probability,
)
from anyorder.recurrences.base import Recurrence, recurrence
from anyorder.recurrences.known import TwoLayerReLUCell
from anyorder.recurrences.trajectory import State, Trajectory, by_sample, tree_leaves, tree_map

CELLS = ("rnn", "relu-rnn", "gru", "lstm", "relu")


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
            f"cell must be one of {', '.join(map(repr, CELLS))} or a Recurrence (anyorder.recurrence makes one); "
            f"got {type(cell).__name__}"
        )
    one_of("cell", cell, CELLS)
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
        module = nn.GRU(features, hidden, layers, batch_first=True)
    elif cell == "lstm":
        module = nn.LSTM(features, hidden, layers, batch_first=True)
    else:
        module = nn.RNN(features, hidden, layers, nonlinearity="tanh" if cell == "rnn" else "relu", batch_first=True)
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
