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

# torch's functions that read a whole layer, and that make one step
_FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "GRU": (torch.gru, torch.gru_cell),
    "LSTM": (torch.lstm, torch.lstm_cell),
    "relu": (torch.rnn_relu, torch.rnn_relu_cell),
    "tanh": (torch.rnn_tanh, torch.rnn_tanh_cell),
}


class NativeRecurrence(Recurrence):
    """nn.RNN, nn.GRU, nn.LSTM with any number of layers, and their cells.

    State of one layer: ``[B, H]``; of L > 1 layers: ``[B, L, H]``; of an LSTM: the pair (h, c) of these.
    """

    def __init__(self, module: nn.RNNBase | nn.RNNCellBase, start: Any) -> None:
        super().__init__(start)
        self.module = module
        self._layers = getattr(module, "num_layers", 1)
        self.is_lstm = isinstance(module, (nn.LSTM, nn.LSTMCell))
        name = "LSTM" if self.is_lstm else getattr(module, "nonlinearity", "GRU")
        self._kernel, self._cell = _FUNCTIONS[name]
        if self._start_names is not None:
            require_state("start", self.start(1), 1, self._zeros(1))

    @property
    def batch_first(self) -> bool:  # type: ignore[override]
        return getattr(self.module, "batch_first", True)

    def output(self, state: State) -> State:
        h = state[0] if self.is_lstm else state
        return h if self._layers == 1 else h[..., -1, :]

    def weights(self, layer: int) -> list[Tensor]:
        """w_ih, w_hh, then b_ih and b_hh if the module has biases."""
        names = ["weight_ih", "weight_hh"]
        if self.module.bias:
            names += ["bias_ih", "bias_hh"]
        suffix = "" if isinstance(self.module, nn.RNNCellBase) else f"_l{layer}"
        return [getattr(self.module, name + suffix) for name in names]

    def _zeros(self, batch_size: int) -> State:
        axes = (batch_size,) if self._layers == 1 else (batch_size, self._layers)
        zeros = self.weights(0)[0].new_zeros(*axes, self.module.hidden_size)
        return (zeros, zeros.clone()) if self.is_lstm else zeros

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
            after = self._cell(element, self.of_layer(state, layer), *self.weights(layer))
            element = after[0] if self.is_lstm else after
            new.append(after)
        return self._stack(new)

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
            first, weights = layout.sort(self.of_layer(start, layer)), self.weights(layer)
            rows, last, states = self._run_layer(rows, layout, first, weights, last_alone)
            lasts.append(layout.unsort(last))
            kept.append(states)
        return self._stack(lasts), lambda row: self._stack([states.select(row) for states in kept]), dropped

    def _run_layer(
        self, rows: Tensor, layout: Layout, first: State, weights: list[Tensor], last_alone: bool
    ) -> tuple[Tensor, State, Rows]:
        """One layer: its outputs as rows, the last state of each set, and the states that it passed."""
        own = applies(rows)
        if own and self._kernel is torch.gru:
            outputs, last = gru.scan(rows, layout.sizes, first, weights)
            return outputs, last, joined([outputs])
        if own and self.is_lstm and (layout.ragged or not last_alone):  # otherwise torch is faster
            outputs, cells, *ends = lstm.scan(rows, layout.sizes, first, weights)
            return outputs, tuple(ends), joined([(outputs, cells)])
        outputs, last = self._run_torch(rows, layout, first, weights)
        if self.is_lstm:  # torch's kernel returns only the last c
            return outputs, last, Rows(lambda: self._step_by_step(rows, layout, first, weights), outputs)
        return outputs, last, joined([outputs])

    def _step_by_step(self, rows: Tensor, layout: Layout, state: State, weights: list[Tensor]) -> State:
        """The states of an LSTM layer after each row, by single steps."""
        steps = []
        for element in rows.split(layout.sizes):
            h, c = state
            state = self._cell(element, (h[: len(element)], c[: len(element)]), *weights)
            steps.append(state)
        return tree_map(lambda *leaves: torch.cat(leaves), *steps)

    def _run_torch(self, rows: Tensor, layout: Layout, first: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        """Run torch's dense kernel over each stretch of steps in which no set ends.

        On a CPU the packed kernel's backward is quadratic in the number of steps; this one is linear.
        """
        segments = [(size, len(list(steps))) for size, steps in groupby(layout.sizes)]
        state, outputs, finished = tree_leaves(first), [], []
        for (size, steps), part in zip(segments, rows.split([n * t for n, t in segments]), strict=True):
            if size < len(state[0]):
                finished.append([leaf[size:] for leaf in state])
                state = [leaf[:size] for leaf in state]
            hidden = [leaf.unsqueeze(0).contiguous() for leaf in state]
            flags = (self.module.bias, 1, 0.0, torch.is_grad_enabled(), False, False)
            output, *ends = self._kernel(
                part.reshape(steps, size, -1), hidden if self.is_lstm else hidden[0], weights, *flags
            )
            state = [end.squeeze(0) for end in ends]
            outputs.append(output.reshape(steps * size, -1))
        if finished:
            state = [torch.cat(leaves) for leaves in zip(state, *reversed(finished), strict=True)]
        rows = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return rows, tuple(state) if self.is_lstm else state[0]
