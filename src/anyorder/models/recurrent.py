"""A recurrence with an encoder and a read-out: the model that the penalties train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, one_of, real_number, whole_number
from anyorder.models.base import Embedding, SetModel, StaticFeatures, average_over_orderings, encoder_of, mlp
from anyorder.recurrences.base import Recurrence, recurrence
from anyorder.recurrences.fold import Channels, Fold, Standardise
from anyorder.recurrences.known import TwoLayerReLUCell
from anyorder.recurrences.trajectory import State, Trajectory, by_sample, tree_leaves, tree_map

CELLS: dict[str, Callable[..., nn.Module]] = {
    "rnn": partial(nn.RNN, batch_first=True),
    "relu-rnn": partial(nn.RNN, nonlinearity="relu", batch_first=True),
    "gru": partial(nn.GRU, batch_first=True),
    "lstm": partial(nn.LSTM, batch_first=True),
    "relu": TwoLayerReLUCell,
    "fold": Fold,
}
FOLD_PRESETS: dict[str, dict[str, Any]] = {
    "sums": {"channels": {"affine": 80}},
    "moments": {"channels": {"affine": 32}, "bilinear": 16, "width": 128},
    "extremes": {"channels": {"max": 64}},
    "products": {"channels": {"product": 32}},
    "order": {"channels": {"affine": 16, "max": 32}, "layers": 2, "readout": [64]},
}
"""What a fold should be able to compute, as arguments of RecurrentSetModel. Choose among them on validation data."""


class Readout(nn.Module):
    """ρ of a state: ``read`` what is needed, apply dropout to it, join static features, map all by ``head``."""

    def __init__(
        self, head: nn.Module, dropout: float, read: Callable[[State], State] | None, joined: StaticFeatures
    ) -> None:
        super().__init__()
        self.head, self.dropout, self.read, self.joined = head, nn.Dropout(dropout), read, joined

    def forward(self, state: State, static: Tensor | None = None) -> Tensor:
        features = tree_map(self.dropout, state if self.read is None else self.read(state))
        return self.head(self.joined(features, static) if isinstance(features, Tensor) else features)


class UnboundedHead(nn.Module):
    """ρ of states without bound: linear in the standardised state z, plus (Uz ∘ Vz)W and an MLP that begin near 0.

    The linear path carries sums without loss. The other two learn what it cannot.
    """

    def __init__(
        self,
        channels: Channels,
        out_features: int,
        bilinear: int,
        widths: Sequence[int],
        activation: str,
        dropout: float,
        static_features: int,
    ) -> None:
        super().__init__()
        self.size, read = channels.size, channels.size + static_features
        self.standardise, self.linear = Standardise(channels), nn.Linear(read, out_features)
        self.factors = nn.Linear(read, 2 * bilinear) if bilinear else None
        self.product = nn.Linear(bilinear, out_features, bias=False) if bilinear else None
        self.mlp = mlp(read, widths, out_features, activation, dropout) if widths else None
        for part in (self.product, self.mlp):
            if part is not None:
                nn.init.normal_(list(part.modules())[-1].weight, std=0.01)  # type: ignore[arg-type]

    def forward(self, state: Tensor) -> Tensor:
        z = torch.cat([self.standardise(state[..., : self.size]), state[..., self.size :]], -1)
        out = self.linear(z)
        if self.factors is not None and self.product is not None:
            left, right = self.factors(z).chunk(2, -1)
            out = out + self.product(left * right)
        return out if self.mlp is None else out + self.mlp(z)


def _side_by_side(state: State) -> Tensor:
    return torch.cat([by_sample(leaf) for leaf in tree_leaves(state)], dim=1)


class RecurrentSetModel(SetModel):
    """y = ρ(s_n), s_t = f(s_{t−1}, φ(x_t)), s_0 learned: equation 2 of the paper.

    Args:
        cell: f with ``hidden`` units and ``layers`` layers: "rnn" (tanh), "relu-rnn", "gru" or "lstm". "relu" is the
            cell of Theorem 4, s' = W1 relu(W2 x + W3 s + B), with ``hidden`` ReLU neurons and ``state_features``
            (default: ``hidden``) state features. "fold" is :class:`anyorder.Fold`, with ``channels`` (default:
            ``hidden``); see FOLD_PRESETS. A Recurrence keeps its own size and start.
        encoder: φ: None, the widths of an MLP (``activation`` after every layer), or a module
            ``[B, T, D] -> [B, T, E]``.
        readout: ρ: None for a linear layer, hidden widths, or a module. ρ reads h of the top layer; of a Recurrence,
            the whole state.
        dropout: Acts once, on what ρ reads (the paper's 0.75; inside a one-layer nn.GRU it would do nothing).
        readout_dropout: Acts after each hidden layer of ρ (the paper's 0.5).
        embedding: ``(integers, dimensions, "frozen" | "learned")`` for integer elements ``[B, T, 1]``, drawn from
            U(−½, ½).
        gate_bias_span: T draws the update-gate biases of a GRU, the forget-gate biases of an LSTM, from log U(1, T):
            memory then spans 1 to T steps at the start.
        channels: of a fold, a number or numbers by kind.
        width: of a fold, the number of ReLU features from which its coefficients are made.
        bilinear: of a fold, the rank of the products of states that ρ reads beside its linear path. ``readout`` adds
            an MLP of these widths to both.
        static_features: S, the number of features of a set as a whole, ``static [B, S]``. ρ reads them beside the
            state, after ``static_dropout``.
        orderings: P > 1 averages the output over P orderings in eval mode, those of :func:`average_over_orderings`
            with ``seed``.

    >>> model = RecurrentSetModel(3, 2, cell="lstm", hidden=8, encoder=(16,), readout=(16,))
    >>> out, t = model(torch.randn(5, 7, 3), torch.tensor([7, 4, 1, 0, 2]), return_trajectory=True)
    >>> out.shape, t.output.shape
    (torch.Size([5, 2]), torch.Size([5, 8]))
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
        channels: int | Mapping[str, int] | None = None,
        width: int = 64,
        bilinear: int = 0,
        orderings: int = 1,
        seed: int = 0,
        static_features: int = 0,
        static_dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, out_features, embedding, static_features, static_dropout)
        self.orderings, self.seed = whole_number("orderings", orderings), whole_number("seed", seed, 0)
        own_cell, own_head = isinstance(cell, Recurrence), isinstance(readout, nn.Module)
        without_effect = {
            "gate_bias_span": gate_bias_span is not None and cell not in ("gru", "lstm"),
            "state_features": state_features is not None and cell != "relu",
            "layers": layers != 1 and cell == "relu",
            "channels": channels is not None and cell != "fold",
            "width": width != 64 and cell != "fold",
            "bilinear": bilinear != 0 and (cell != "fold" or own_head),
            "readout_dropout": bool(readout_dropout) and own_head,
            "static_features": static_features != 0 and own_cell and own_head,
        }
        if named := next((name for name, wrong in without_effect.items() if wrong), None):
            raise InputError(f"{named} has no effect with this cell or readout; leave it out")
        self.encoder, encoded = encoder_of(() if encoder is None else encoder, self.element_features, activation)
        if isinstance(cell, Recurrence):
            self.recurrence = cell
            read = sum(leaf.numel() for leaf in tree_leaves(cell.start(1)))
        elif cell == "fold":
            self.recurrence = Fold(encoded, hidden if channels is None else channels, layers=layers, width=width)
            read = self.recurrence.channels.size
        else:
            one_of("cell", cell, CELLS)
            hidden, layers = whole_number("hidden", hidden), whole_number("layers", layers, maximum=1000)
            read = hidden if state_features is None else whole_number("state_features", state_features)
            module: Any = CELLS[cell](encoded, *((read, hidden) if cell == "relu" else (hidden, layers)))
            if gate_bias_span is not None:
                _spread_memory(module, real_number("gate_bias_span", gate_bias_span, above=1.0))
            start = torch.zeros(1, read) if cell == "relu" else recurrence(module).start(1)
            self.recurrence = recurrence(module, start=tree_map(nn.Parameter, start) if learned_start else start)
        widths: Any = readout or ()
        if own_head:
            head: Any = readout
        elif cell == "fold":
            rank, kinds = whole_number("bilinear", bilinear, 0), self.recurrence.channels
            head = UnboundedHead(kinds, out_features, rank, widths, activation, readout_dropout, static_features)
        else:
            head = mlp(read + static_features, widths, out_features, activation, readout_dropout)
        own = None if own_head else _side_by_side
        self.readout = Readout(head, dropout, own if own_cell else self.recurrence.output, self.joined)

    def encode(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ of every element, ``[B, T, D] -> [B, T, E]``; padding is not read."""
        return self.encoder(self.filled(elements, lengths)[0])

    def forward(
        self,
        elements: Tensor,
        lengths: Tensor | None = None,
        *,
        static: Tensor | None = None,
        return_trajectory: bool = False,
    ) -> Any:
        if self.orderings > 1 and not self.training:
            out = average_over_orderings(
                lambda e, n, static=None: self.readout(self._scan(e, n, last_alone=True).last, static),
                *self.check(elements, lengths), static=static, orderings=self.orderings, seed=self.seed,
            )  # fmt: skip
            return (out, self._scan(elements, lengths, last_alone=False)) if return_trajectory else out
        trajectory = self._scan(elements, lengths, last_alone=not return_trajectory)
        out = self.readout(trajectory.last, static)
        return (out, trajectory) if return_trajectory else out

    def _scan(self, elements: Tensor, lengths: Tensor | None, last_alone: bool) -> Trajectory:
        elements, lengths = self.filled(elements, lengths)
        return self.recurrence.scan_encoded(self.encoder(elements), lengths, last_alone=last_alone)


def _spread_memory(module: nn.RNNBase, span: float) -> None:
    """Draw the biases of the gates that keep the state from log U(1, span).

    The second bias of these gates is 0. GRU: z keeps the state (rows H to 2H). LSTM: f keeps it (rows H to 2H), and i
    (rows 0 to H) gets −f.
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
