"""The recurrences of nn.RNN, nn.GRU, nn.LSTM and their cells, on torch's kernels or ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError
from anyorder.recurrences.base import Passed, Recurrence, require_state
from anyorder.recurrences.kernels import gru, lstm
from anyorder.recurrences.kernels.scan import applies, scan
from anyorder.recurrences.trajectory import Layout, Rows, State, concatenated, tree_leaves, tree_map

_OWN = {torch.gru: gru, torch.lstm: lstm}  # torch's kernels that ours stand in for


class NativeRecurrence(Recurrence):
    """nn.RNN, nn.GRU, nn.LSTM with any number of layers, and their cells.

    State of one layer: ``[B, H]``; of L > 1 layers: ``[B, L, H]``; of an LSTM: the pair (h, c) of these.
    """

    def __init__(self, module: nn.RNNBase | nn.RNNCellBase, start: Any) -> None:
        super().__init__(start)
        self.module = module
        self.batch_first = getattr(module, "batch_first", True)
        self.layers = getattr(module, "num_layers", 1)
        self.is_lstm = isinstance(module, (nn.LSTM, nn.LSTMCell))
        self.leaves = ("h", "c") if self.is_lstm else ()
        name = f"rnn_{module.nonlinearity}" if hasattr(module, "nonlinearity") else "lstm" if self.is_lstm else "gru"
        self._kernel, self._cell = getattr(torch, name), getattr(torch, f"{name}_cell")  # of a layer, of a step
        if self._start_names is not None:
            require_state("start", self.start(1), 1, self._form(1))

    def output(self, state: State) -> State:
        h = state[0] if self.is_lstm else state
        return h if self.layers == 1 else h[..., -1, :]

    def weights(self, layer: int) -> list[Tensor]:
        """w_ih, w_hh, then b_ih and b_hh if the module has biases."""
        cell = self.module
        if isinstance(cell, nn.RNNBase):
            return list(cell.all_weights[layer])
        return [w for w in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh) if w is not None]

    def _form(self, batch_size: int) -> State:
        axes = (batch_size,) if self.layers == 1 else (batch_size, self.layers)
        zeros = self.weights(0)[0].new_zeros(*axes, self.module.hidden_size)
        return (zeros, zeros.clone()) if self.is_lstm else zeros

    def _readable(self, elements: Tensor) -> Tensor:
        width, dtype = self.module.input_size, self.weights(0)[0].dtype
        autocast = torch.is_autocast_enabled(elements.device.type) and elements.is_floating_point()
        readable = autocast or elements.dtype == dtype
        if elements.shape[2] != width or not readable:
            kind = InputError if readable else InputTypeError
            raise kind(
                f"elements must have {width} features (input_size) of {dtype}, the dtype of the weights; "
                f"got {elements.shape[2]} of {elements.dtype}"
            )
        return elements.to(dtype) if applies(elements) else elements  # our kernels keep it, also under autocast

    def step(self, element: Tensor, state: State) -> State:
        new = []
        for layer in range(self.layers):
            after = self._cell(element, self.of_layer(state, layer), *self.weights(layer))
            element = after[0] if self.is_lstm else after
            new.append(after)
        return self._stack(new)

    def of_layer(self, state: State, layer: int) -> State:
        return state if self.layers == 1 else tree_map(lambda leaf: leaf[:, layer], state)

    def _stack(self, layers: list[State]) -> State:
        return layers[0] if self.layers == 1 else tree_map(lambda *leaves: torch.stack(leaves, 1), *layers)

    def _run(self, rows: Tensor, layout: Layout, start: State, dropout: bool, last_alone: bool) -> Passed:
        rate = float(getattr(self.module, "dropout", 0.0))
        dropped = dropout and self.module.training and rate > 0 and self.layers > 1
        lasts: list[State] = []
        kept: list[Rows] = []
        for layer in range(self.layers):
            if layer and dropped:
                rows = F.dropout(rows, rate, training=True)
            rows, last, states = self._run_layer(rows, layout, self.of_layer(start, layer), layer, last_alone)
            lasts.append(last)
            kept.append(states)
        return Passed(self._stack(lasts), lambda row: self._stack([states.select(row) for states in kept]), dropped)

    def _run_layer(
        self, rows: Tensor, layout: Layout, start: State, layer: int, last_alone: bool
    ) -> tuple[Tensor, State, Rows]:
        """One layer: its outputs as rows, the last state of each set, and the states that it passed."""
        weights, parts = self.weights(layer), []
        torch_is_faster = self.is_lstm and last_alone and not layout.ragged
        if self._kernel in _OWN and applies(rows) and not torch_is_faster:
            first = tree_leaves(layout.sort(start))
            passed, ends = scan(_OWN[self._kernel], rows, layout.sizes, first, weights)
            return passed[0], layout.unsort(self._state(ends)), Rows(lambda: self._state(passed))

        def read(elements: Tensor, state: State) -> State:
            state = tree_map(lambda leaf: leaf.unsqueeze(0).contiguous(), state)
            flags = (self.module.bias, 1, 0.0, torch.is_grad_enabled(), False, False)
            output, *ends = self._kernel(elements, state, weights, *flags)
            parts.append(output.flatten(0, 1))
            return self._state([end.squeeze(0) for end in ends])

        def step(element: Tensor, state: State) -> State:
            return self._cell(element, state, *weights)

        last = layout.run(read, rows, start)
        outputs = concatenated(parts)
        if self.is_lstm:  # torch's kernel returns only the last c
            return outputs, last, Rows(lambda: concatenated(layout.steps(step, rows, start)[0]))
        return outputs, last, Rows(lambda: outputs)

    def _state(self, leaves: Sequence[Tensor]) -> State:
        return tuple(leaves) if self.is_lstm else leaves[0]
