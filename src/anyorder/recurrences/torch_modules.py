"""The recurrences of nn.RNN, nn.GRU, nn.LSTM and their cells, on torch's kernels or ours."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError
from anyorder.recurrences.base import Recurrence, Select, require_state
from anyorder.recurrences.kernels import gru, lstm
from anyorder.recurrences.kernels.scan import applies
from anyorder.recurrences.trajectory import Layout, Rows, State, Trajectory, joined, tree_leaves, tree_map


class NativeRecurrence(Recurrence):
    """nn.RNN, nn.GRU, nn.LSTM with any number of layers, and their cells.

    State of one layer: ``[B, H]``; of L > 1 layers: ``[B, L, H]``; of an LSTM: the pair (h, c) of these.
    """

    def __init__(self, module: nn.RNNBase | nn.RNNCellBase, start: Any) -> None:
        super().__init__(start)
        self.module = module
        self._layers = getattr(module, "num_layers", 1)
        self._projected = bool(getattr(module, "proj_size", 0))
        self._kernel: Any  # reads a whole layer
        self._cell: Any  # makes one step; None for an LSTM, whose step is written out below
        if isinstance(module, (nn.GRU, nn.GRUCell)):
            self._kernel, self._cell = torch.gru, torch.gru_cell
        elif isinstance(module, (nn.LSTM, nn.LSTMCell)):
            self._kernel, self._cell = torch.lstm, None
        elif module.nonlinearity == "relu":
            self._kernel, self._cell = torch.rnn_relu, torch.rnn_relu_cell
        else:
            self._kernel, self._cell = torch.rnn_tanh, torch.rnn_tanh_cell
        if self._start_names is not None:
            require_state("start", self.start(1), 1, self._zeros(1))

    @property
    def batch_first(self) -> bool:  # type: ignore[override]
        return getattr(self.module, "batch_first", True)

    @property
    def is_lstm(self) -> bool:
        return self._cell is None

    def output(self, state: State) -> State:
        h = state[0] if self.is_lstm else state
        return h if self._layers == 1 else h[..., -1, :]

    def weights(self, layer: int) -> list[Tensor]:
        """w_ih, w_hh, then b_ih and b_hh if the module has biases, then w_hr of a projected LSTM."""
        names = ["weight_ih", "weight_hh"]
        if self.module.bias:
            names += ["bias_ih", "bias_hh"]
        if self._projected:
            names.append("weight_hr")
        suffix = "" if isinstance(self.module, nn.RNNCellBase) else f"_l{layer}"
        return [getattr(self.module, name + suffix) for name in names]

    def _zeros(self, batch_size: int) -> State:
        weight = self.weights(0)[0]
        axes = (batch_size,) if self._layers == 1 else (batch_size, self._layers)
        cell = weight.new_zeros(*axes, self.module.hidden_size)
        if not self.is_lstm:
            return cell
        return weight.new_zeros(*axes, getattr(self.module, "proj_size", 0) or self.module.hidden_size), cell

    def _form(self, batch_size: int) -> State:
        return self._zeros(batch_size)

    def check_elements(self, elements: Tensor) -> None:
        width, dtype = self.module.input_size, self.weights(0)[0].dtype
        autocast = torch.is_autocast_enabled(elements.device.type) and elements.is_floating_point()
        readable = autocast or elements.dtype == dtype
        if elements.shape[2] != width or not readable:
            kind = InputError if readable else InputTypeError
            raise kind(
                f"elements must have {width} features (input_size) of {dtype}, the dtype of the weights; "
                f"got {elements.shape[2]} of {elements.dtype}"
            )

    def scan_encoded(self, elements: Tensor, lengths: Tensor | None = None, **options: Any) -> Trajectory:
        self.check_elements(elements)
        if applies(elements):  # our kernels keep the precision of the weights, also under autocast
            elements = elements.to(self.weights(0)[0].dtype)
        return super().scan_encoded(elements, lengths, **options)

    def step(self, element: Tensor, state: State) -> State:
        new = []
        for layer in range(self._layers):
            after = self._layer_step(element, self.of_layer(state, layer), self.weights(layer))
            element = after[0] if self.is_lstm else after
            new.append(after)
        return self._stack(new)

    def _layer_step(self, element: Tensor, state: State, weights: list[Tensor]) -> State:
        if self._cell is not None:
            return self._cell(element, state, *weights)
        h, c = state
        biases = weights[2:4] if self.module.bias else (None, None)
        gates = F.linear(element, weights[0], biases[0]) + F.linear(h, weights[1], biases[1])
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (F.linear(h, weights[-1]) if self._projected else h), c

    def of_layer(self, state: State, layer: int) -> State:
        return state if self._layers == 1 else tree_map(lambda leaf: leaf[:, layer], state)

    def _stack(self, layers: list[State]) -> State:
        return layers[0] if self._layers == 1 else tree_map(lambda *leaves: torch.stack(leaves, 1), *layers)

    def _run(
        self, rows: Tensor, layout: Layout, start: State, dropout: bool, last_alone: bool
    ) -> tuple[State, Select, bool]:
        rate = float(getattr(self.module, "dropout", 0.0))
        dropped = dropout and self.module.training and rate > 0 and self._layers > 1
        lasts: list[State] = []
        kept: list[Rows] = []
        for layer in range(self._layers):
            if layer and dropped:
                rows = F.dropout(rows, rate, training=True)
            first, weights = self.of_layer(start, layer), self.weights(layer)
            rows, last, states = self._run_layer(rows, layout, first, weights, last_alone)
            lasts.append(last)
            kept.append(states)
        return self._stack(lasts), lambda row: self._stack([states.select(row) for states in kept]), dropped

    def _run_layer(
        self, rows: Tensor, layout: Layout, first: State, weights: list[Tensor], last_alone: bool
    ) -> tuple[Tensor, State, Rows]:
        """One layer: its outputs as rows, the last state of each set, and the states that it passed."""
        initial = tree_leaves(layout.sort(first))
        own = applies(rows)
        if own and self._kernel is torch.gru:
            outputs, *ends = gru.scan(rows, layout.sizes, initial[0], weights)
            states = joined([outputs])
        elif own and self.is_lstm and not self._projected and (layout.ragged or not last_alone):  # else torch is faster
            outputs, cells, *ends = lstm.scan(rows, layout.sizes, initial, weights)
            states = joined([(outputs, cells)])
        else:
            run = self.run_packed if layout.ragged and rows.is_cuda else self.run_segments
            outputs, ends = run(rows, layout, initial, weights)
            states = joined([outputs])
            if self.is_lstm:
                inputs = rows
                states = Rows(lambda: (outputs, self._cells(inputs, outputs, first, weights, layout)), outputs)
        last = [layout.unsort(end) for end in ends]
        return outputs, tuple(last) if self.is_lstm else last[0], states

    def _cells(self, rows: Tensor, outputs: Tensor, first: State, weights: list[Tensor], layout: Layout) -> Tensor:
        """The c of an LSTM layer after every step, from its outputs h: torch's kernel returns only the last c.

        Given all h, the gates of every step are one matrix product, and c_t = f_t c_{t−1} + i_t g_t is elementwise.
        """
        h, c = first
        gates = weights[0].shape[0] // 4 * 3  # i, f and g; h has the output gate in it already
        w_ih, w_hh = (w[:gates] for w in weights[:2])
        b_ih, b_hh = (b[:gates] for b in weights[2:4]) if self.module.bias else (None, None)
        before = layout.previous(h, outputs)
        i, f, g = (F.linear(rows, w_ih, b_ih) + F.linear(before, w_hh, b_hh)).chunk(3, dim=1)
        forget, add = f.sigmoid(), i.sigmoid() * g.tanh()
        c = layout.sort(c)
        cells = []
        for keep, new in zip(forget.split(layout.sizes), add.split(layout.sizes), strict=True):
            c = torch.addcmul(new, keep, c[: len(new)])
            cells.append(c)
        return torch.cat(cells)

    def run_segments(
        self, rows: Tensor, layout: Layout, state: list[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the dense kernel over each stretch of steps in which no set ends.

        On a CPU the packed kernel's backward is quadratic in the number of steps; this one is linear.
        """
        segments = [(size, len(list(steps))) for size, steps in groupby(layout.sizes)]
        outputs, finished = [], []
        for (size, steps), part in zip(segments, rows.split([n * t for n, t in segments]), strict=True):
            if size < len(state[0]):
                finished.append([leaf[size:] for leaf in state])
                state = [leaf[:size] for leaf in state]
            hidden = [leaf.unsqueeze(0).contiguous() for leaf in state]
            first = hidden if self.is_lstm else hidden[0]
            output, *ends = self._kernel(part.reshape(steps, size, -1), first, weights, *self._flags(), False)
            state = [end.squeeze(0) for end in ends]
            outputs.append(output.reshape(steps * size, -1))
        if finished:
            state = [torch.cat(leaves) for leaves in zip(state, *reversed(finished), strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), state

    def run_packed(
        self, rows: Tensor, layout: Layout, state: list[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the packed kernel (cuDNN) over all rows at once; it takes no empty set, so those stay out."""
        filled = layout.sizes[0]
        hidden = [leaf[:filled].unsqueeze(0).contiguous() for leaf in state]
        outputs, *ends = self._kernel(
            rows, torch.tensor(layout.sizes), hidden if self.is_lstm else hidden[0], weights, *self._flags()
        )
        return outputs, [torch.cat([end.squeeze(0), leaf[filled:]]) for end, leaf in zip(ends, state, strict=True)]

    def _flags(self) -> tuple[bool, int, float, bool, bool]:
        """Biases, layers, dropout, training and directions, as torch's kernels take them."""
        return self.module.bias, 1, 0.0, torch.is_grad_enabled(), False
