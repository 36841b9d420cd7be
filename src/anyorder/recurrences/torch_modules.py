"""torch's own recurrences, nn.RNN, nn.GRU, nn.LSTM and their cells, on torch's kernels or ours."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError
from anyorder.recurrences.base import Recurrence
from anyorder.recurrences.kernels import gru, lstm
from anyorder.recurrences.kernels.scan import applies
from anyorder.recurrences.trajectory import Layout, LSTMRows, Rows, State, Trajectory, tree_leaves, tree_map


class NativeRecurrence(Recurrence):
    """nn.RNN, nn.GRU, nn.LSTM with any number of layers, and their cells, on torch's kernels or ours.

    State of one layer: ``[B, H]``; of L > 1 layers: ``[B, L, H]``; of an LSTM: the pair (h, c) of these.
    """

    def __init__(self, module: nn.RNNBase | nn.RNNCellBase, start: Any) -> None:
        super().__init__(start)
        if getattr(module, "bidirectional", False):
            raise InputError(
                "a bidirectional module has no state after a prefix: it reads each sequence from both ends, so "
                "f(s, a, b) is not defined; use bidirectional=False"
            )
        self.module = module
        self._layers = getattr(module, "num_layers", 1)
        self._dropout = float(getattr(module, "dropout", 0.0))
        self._is_cell = isinstance(module, nn.RNNCellBase)
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
            self._require_state(self.start(1), 1, "start")

    @property
    def is_lstm(self) -> bool:
        return self._cell is None

    @property
    def batch_first(self) -> bool:  # type: ignore[override]
        return getattr(self.module, "batch_first", True)

    def output(self, state: State) -> State:
        h = state[0] if self.is_lstm else state
        return h if self._layers == 1 else h[..., -1, :]

    def _weights(self, layer: int) -> list[Tensor]:
        """w_ih, w_hh, then b_ih and b_hh if the module has biases, then w_hr of a projected LSTM."""
        names = ["weight_ih", "weight_hh"]
        if self.module.bias:
            names += ["bias_ih", "bias_hh"]
        if getattr(self.module, "proj_size", 0):
            names.append("weight_hr")
        suffix = "" if self._is_cell else f"_l{layer}"
        return [getattr(self.module, name + suffix) for name in names]

    def _zeros(self, batch_size: int) -> State:
        weight = self._weights(0)[0]
        axes = (batch_size,) if self._layers == 1 else (batch_size, self._layers)
        cell = weight.new_zeros(*axes, self.module.hidden_size)
        if not self.is_lstm:
            return cell
        return weight.new_zeros(*axes, getattr(self.module, "proj_size", 0) or self.module.hidden_size), cell

    def _like(self, batch_size: int) -> State:
        return self._zeros(batch_size)

    def _require_state(self, state: State, batch: int, name: str) -> State:
        state = super()._require_state(state, batch, name)
        dtype = self._weights(0)[0].dtype
        for leaf in tree_leaves(state):
            if leaf.dtype != dtype and not torch.is_autocast_enabled(leaf.device.type):
                raise InputTypeError(
                    f"{name} is {leaf.dtype}, the recurrence's weights {dtype}; convert one, e.g. state.to({dtype})"
                )
        return state

    def _check_elements(self, elements: Tensor) -> None:
        expected = self.module.input_size
        if elements.shape[2] != expected:
            raise InputError(
                f"elements must have {expected} features, the module's input_size; got {elements.shape[2]}"
            )
        dtype = self._weights(0)[0].dtype
        autocast = torch.is_autocast_enabled(elements.device.type)
        if elements.dtype != dtype and not (autocast and elements.is_floating_point()):
            raise InputTypeError(
                f"elements are {elements.dtype}, the recurrence's weights {dtype}; convert one, "
                f"e.g. elements.to({dtype})"
            )

    def scan_unchecked(self, elements: Tensor, lengths: Tensor | None, **options: Any) -> Trajectory:
        if applies(elements):  # what autocast made of them; our passes read and keep the precision of the weights
            elements = elements.to(self._weights(0)[0].dtype)
        return super().scan_unchecked(elements, lengths, **options)

    def step(self, element: Tensor, state: State) -> State:
        new = []
        for layer in range(self._layers):
            before = self._of_layer(state, layer)
            after = self._layer_step(element, before, self._weights(layer))
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
        if getattr(self.module, "proj_size", 0):
            h = F.linear(h, weights[-1])
        return h, c

    def _of_layer(self, state: State, layer: int) -> State:
        return state if self._layers == 1 else tree_map(lambda leaf: leaf[:, layer], state)

    def _stack(self, layers: list[State]) -> State:
        return layers[0] if self._layers == 1 else tree_map(lambda *leaves: torch.stack(leaves, 1), *layers)

    def _run(
        self, rows: Tensor, layout: Layout, start: State, dropout: bool, last_alone: bool
    ) -> tuple[State, Callable[[Tensor], State], bool]:
        dropped = dropout and self.module.training and self._dropout > 0 and self._layers > 1
        inputs = rows
        lasts: list[State] = []
        kept: list[Rows | LSTMRows] = []
        for layer in range(self._layers):
            if layer and dropped:
                inputs = F.dropout(inputs, self._dropout, training=True)
            first, weights = self._of_layer(start, layer), self._weights(layer)
            outputs, last, states = self._run_layer(inputs, layout, first, weights, last_alone)
            lasts.append(last)
            kept.append(states)
            inputs = outputs

        def select(row: Tensor) -> State:
            return self._stack([states.select(row) for states in kept])

        return self._stack(lasts), select, dropped

    def _run_layer(
        self, rows: Tensor, layout: Layout, first: State, weights: list[Tensor], last_alone: bool
    ) -> tuple[Tensor, State, Rows | LSTMRows]:
        """One layer: (outputs as rows, last state of each sample, the states passed)."""
        initial = tree_leaves(layout.sort(first))
        states: Rows | LSTMRows
        own, projected = applies(rows), getattr(self.module, "proj_size", 0)
        if own and self._kernel is torch.gru:
            outputs, *ends = gru.scan(rows, layout.sizes, initial[0], weights)
            states = Rows([outputs])
        elif own and self.is_lstm and not projected and (layout.ragged or not last_alone):  # else torch's is faster
            outputs, cells, *ends = lstm.scan(rows, layout.sizes, initial, weights)
            states = Rows([(outputs, cells)])
        else:
            run = self._run_packed if layout.ragged and rows.is_cuda else self._run_segments
            outputs, ends = run(rows, layout, initial, weights)
            states = Rows([outputs])
            if self.is_lstm:
                states = LSTMRows(rows, outputs, first, weights, self.module.bias, layout)
        last = [layout.unsort(end) for end in ends]
        return outputs, tuple(last) if self.is_lstm else last[0], states

    def _run_segments(
        self, rows: Tensor, layout: Layout, state: list[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the dense kernel over each stretch of steps in which no sample ends.

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

    def _run_packed(
        self, rows: Tensor, layout: Layout, state: list[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the packed kernel (cuDNN) over all rows at once; it takes no empty sample, so those stay out."""
        filled = layout.sizes[0]
        hidden = [leaf[:filled].unsqueeze(0).contiguous() for leaf in state]
        outputs, *ends = self._kernel(
            rows, torch.tensor(layout.sizes), hidden if self.is_lstm else hidden[0], weights, *self._flags()
        )
        return outputs, [torch.cat([end.squeeze(0), leaf[filled:]]) for end, leaf in zip(ends, state, strict=True)]

    def _flags(self) -> tuple[bool, int, float, bool, bool]:
        """Biases, layers, dropout, training and directions, as torch's kernels take them."""
        return self.module.bias, 1, 0.0, torch.is_grad_enabled(), False
