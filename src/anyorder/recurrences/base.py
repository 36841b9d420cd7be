"""Recurrences: one step, a start state, and a scan that keeps every state it passes.

A recurrence is s_{t+1} = f(s_t, x_{t+1}) from a start state s_0 (equation 2 of the paper). The state is a tensor
or a nested tuple, list or dict of tensors, batch axis first. :func:`recurrence` makes one from torch's own
modules and cells, whose native kernels it runs, or from any ``step(element, state)``.

Padding is never read: samples are sorted by length and leave the batch when they end, so what stands behind a
sample's last element (NaN, say) reaches neither values nor gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, checked_elements, checked_lengths, require_finite, whole_number
from anyorder.recurrences.kernels import gru, lstm
from anyorder.recurrences.kernels.scan import applies
from anyorder.recurrences.trajectory import (
    Layout,
    LSTMRows,
    Rows,
    State,
    Trajectory,
    form,
    shapes,
    spell,
    tree_leaves,
    tree_map,
)

_SEQUENCES = (nn.RNN, nn.GRU, nn.LSTM)
_CELLS = (nn.RNNCell, nn.GRUCell, nn.LSTMCell)

Step = Callable[[Tensor, State], State]


class Recurrence(nn.Module):
    """A step and a start state as one module; made by :func:`recurrence`.

    It owns what it wraps: ``parameters()``, ``to()`` and ``state_dict()`` cover the wrapped module and a
    start state given as parameters.
    """

    def __init__(self, start: Any) -> None:
        super().__init__()
        self._start_names: Any = None
        self._start_call: Any = None
        if start is None:
            return
        if callable(start):
            self._start_call = start
            return
        names: list[str] = []

        def register(leaf: Any) -> str:
            if not isinstance(leaf, Tensor):
                raise InputTypeError(f"start must hold tensors only; got {type(leaf).__name__}")
            if leaf.dim() == 0 or leaf.shape[0] != 1:
                raise InputError(f"start must be a state of batch 1, shapes [1, …]; got {list(leaf.shape)}")
            name = f"start_{len(names)}"
            names.append(name)
            if isinstance(leaf, nn.Parameter):
                self.register_parameter(name, leaf)
            else:
                self.register_buffer(name, leaf)
            return name

        self._start_names = tree_map(register, start)
        if not names:
            raise InputError(f"start must hold at least one tensor; got {start!r}")

    def start(self, batch_size: int) -> State:
        """The start state s_0 of ``batch_size`` samples."""
        batch_size = whole_number("batch_size", batch_size)
        if self._start_call is not None:
            state = self._start_call(batch_size)
            self._require_state(state, batch_size, "start(batch)")
            return state
        if self._start_names is None:
            return self._zeros(batch_size)

        def expand(name: str) -> Tensor:
            leaf = getattr(self, name)
            return leaf.expand(batch_size, *leaf.shape[1:])

        return tree_map(expand, self._start_names)

    def step(self, element: Tensor, state: State) -> State:
        """f(state, element): ``element [B, D]``, a state of batch B. Never applies dropout."""
        raise TypeError(f"{type(self).__name__} must define step")

    def scan(self, elements: Tensor, lengths: Tensor | None = None, *, state: State | None = None) -> Trajectory:
        """Read ``elements [B, T, D]`` up to ``lengths [B]``, from ``state`` (default: the start state).

        >>> sums = recurrence(lambda element, state: state + element, start=torch.zeros(1, 1))
        >>> t = sums.scan(torch.tensor([[[1.0], [2.0], [4.0]]]), torch.tensor([2]))
        >>> t.last.tolist(), t.states[0, :, 0].tolist()
        ([[3.0]], [0.0, 1.0, 3.0, 3.0])
        """
        elements = checked_elements(elements)
        lengths = checked_lengths(lengths, elements)
        self._check_elements(elements)
        require_finite(elements, lengths)
        if state is not None:
            state = self._require_state(state, elements.shape[0], "state")
        return self.scan_unchecked(elements, lengths, state=state, dropout=self.training)

    def scan_encoded(
        self, elements: Tensor, lengths: Tensor | None = None, *, state: State | None = None, last_alone: bool = False
    ) -> Trajectory:
        """:meth:`scan` of what a model made of a checked batch; NaN there is of weights that diverged, not of data."""
        self._check_elements(elements)
        return self.scan_unchecked(elements, lengths, state=state, dropout=self.training, last_alone=last_alone)

    def scan_unchecked(
        self,
        elements: Tensor,
        lengths: Tensor | None,
        *,
        state: State | None = None,
        dropout: bool = False,
        last_alone: bool = False,
    ) -> Trajectory:
        """:meth:`scan` for input that has been checked; ``dropout=False`` turns the module's own off.

        ``last_alone`` tells that only the last state will be read, which is cheaper for some; the others can be had.
        """
        start = self.start(elements.shape[0]) if state is None else state
        layout = Layout(elements, lengths)
        if not layout.sizes:
            return Trajectory(self, elements, lengths, start, start, None, layout, True, state)
        last, select, dropped = self._run(layout.pack(elements), layout, start, dropout, last_alone)
        repeatable = not (dropped or torch.is_autocast_enabled(elements.device.type))
        return Trajectory(self, elements, lengths, start, last, select, layout, repeatable, state)

    def _require_state(self, state: State, batch: int, name: str) -> State:
        """``state``, its parts in the order of a state of this recurrence, once it is known to be one."""
        for leaf in tree_leaves(state):
            if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != batch:
                got = list(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
                raise InputError(f"{name} must be a state of batch {batch}, tensors [{batch}, …]; got {got}")
        like = self._like(batch)
        if like is not None and shapes(like) != shapes(state):
            raise InputError(
                f"{name} must be a state of this recurrence, {spell(form(like))}; got {spell(form(state))}"
            )
        return state if like is None else tree_map(lambda _, leaf: leaf, like, state)

    # What each kind of recurrence fills in.
    def _like(self, batch_size: int) -> State | None:
        """A state of the form they all have; None where the step alone knows it."""
        return None if self._start_call is not None else self.start(batch_size)

    def _zeros(self, batch_size: int) -> State:
        raise InputError("an own step needs start=: a state of batch 1, or a callable(batch_size)")

    def _check_elements(self, elements: Tensor) -> None:
        pass

    def _run(
        self, rows: Tensor, layout: Layout, start: State, dropout: bool, last_alone: bool
    ) -> tuple[State, Callable[[Tensor], State], bool]:
        """Scan packed ``rows``: (last state, a function from row numbers to states, was dropout applied)."""
        raise TypeError(f"{type(self).__name__} must define _run")


class StepRecurrence(Recurrence):
    """A recurrence over any ``step(element, state) -> state``, run step by step."""

    def __init__(self, step: Step, start: Any) -> None:
        super().__init__(start)
        inner = step
        while isinstance(inner, partial):
            inner = inner.func
        owner = getattr(inner, "__self__", inner)
        if isinstance(owner, nn.Module) and owner is not step:  # a bound method or a partial: own the module behind it
            self._owner = owner
        self._step = step
        modules = owner.modules() if isinstance(owner, nn.Module) else ()
        self._may_drop = [m for m in modules if may_drop(m)]

    def step(self, element: Tensor, state: State) -> State:
        with modules_off(self._may_drop):
            return self._checked(element, state)

    def _zeros(self, batch_size: int) -> State:
        cell = self._step
        if not isinstance(cell, _CELLS):
            return super()._zeros(batch_size)
        zeros = next(cell.parameters()).new_zeros(batch_size, cell.hidden_size)
        return (zeros, zeros.clone()) if isinstance(cell, nn.LSTMCell) else zeros

    def _checked(self, element: Tensor, state: State) -> State:
        versions = _versions(element, state)
        new = self._step(element, tree_map(lambda leaf: leaf, state))  # a dict or list of its own to change
        if versions != _versions(element, state):
            raise InputError(
                "step must not write into its element or state, which the trajectory keeps; make new tensors, "
                "e.g. state + element in place of state += element"
            )
        _require_same_form(state, new)
        return tree_map(lambda _, leaf: leaf, state, new)  # a dict in the order it has in every state

    def _run(
        self, rows: Tensor, layout: Layout, start: State, dropout: bool, last_alone: bool
    ) -> tuple[State, Callable[[Tensor], State], bool]:
        dropout = dropout and any(m.training for m in self._may_drop)
        step = self._checked if dropout else self.step
        randomness = _randomness(rows.device) if dropout else None
        state = layout.sort(start)
        steps: list[State] = []
        finished: list[State] = []  # states of samples that have ended, longest last
        running = layout.batch
        for size, element in zip(layout.sizes, rows.split(layout.sizes), strict=True):
            if size < running:
                finished.append(tree_map(lambda leaf, size=size: leaf[size:], state))
                state = tree_map(lambda leaf, size=size: leaf[:size], state)
                running = size
            state = step(element, state)
            steps.append(state)
        parts = [state, *reversed(finished)]
        last = state if len(parts) == 1 else tree_map(lambda *leaves: torch.cat(leaves), *parts)
        if randomness is None:  # not asked for, or not to be seen while compiling
            dropped = dropout and any(isinstance(m, nn.modules.dropout._DropoutNd) for m in self._may_drop)
        else:
            dropped = not torch.equal(randomness, _randomness(rows.device))  # type: ignore[arg-type]
        return layout.unsort(last), Rows(steps).select, dropped


def may_drop(module: nn.Module) -> bool:
    """Whether train mode may mean dropout; for some of torch's modules it means other things, which are kept."""
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0
    return not isinstance(module, nn.modules.batchnorm._NormBase)


@contextmanager
def modules_off(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Those of ``modules`` that are in train mode are in eval mode inside a ``with`` block; their children stay."""
    active = [m for m in modules if m.training]
    for module in active:
        module.training = False
    try:
        yield
    finally:
        for module in active:
            module.training = True


def _randomness(device: torch.device) -> Tensor | None:
    """The state of the generator dropout draws from, None while compiling."""
    if torch.compiler.is_compiling():
        return None
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


@contextmanager
def evaluating(*predictors: Any) -> Iterator[None]:
    """Evaluation mode for those that are modules, have one or are a method of one; their modes come back afterwards."""
    owners = [owner for predict in predictors for owner in owners_of(predict)]
    modules = [m for owner in owners if isinstance(owner, nn.Module) for m in owner.modules()]
    training = [m.training for m in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, training, strict=True):
            module.training = mode


def owners_of(predict: Any) -> list[Any]:
    """The predictor, or what it is a method of, and the model it was fitted to (scikit-learn's ``model_``)."""
    owner = getattr(predict, "__self__", predict)
    fitted = getattr(owner, "model_", None)
    return [owner] if fitted is None else [owner, fitted]


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


def recurrence(wrapped: nn.Module | Step, start: Any = None) -> Recurrence:
    """A recurrence from torch's nn.RNN/GRU/LSTM, their cells, or any ``step(element, state) -> state``.

    ``start``: a state of batch 1 (parameters are learned with the rest) or a callable(batch_size), which is owned if
    it is a module; the parameters any other calls upon are the caller's to train, those behind a bound method too,
    which is often of the very module that holds the recurrence. torch's own modules start at zeros by default; an own
    step needs it. A wrapped module, or one behind a step that is a bound method, is owned, and its dropout is off in
    ``step``; the modules a function calls are the caller's own affair, and a module that keeps a recurrence of its own
    method must give it as one, ``lambda element, state: self.step(element, state)``: it cannot own itself.
    A cell with hooks or a ``forward`` of its own is run step by step, as an own step is; a sequence module with such is
    refused.

    >>> r = recurrence(nn.GRU(3, 8, num_layers=2))
    >>> r.scan(torch.zeros(5, 7, 3)).last.shape
    torch.Size([5, 2, 8])
    >>> product = recurrence(lambda element, state: state * element, start=torch.ones(1, 1))
    >>> product.scan(torch.tensor([[[2.0], [3.0]]])).last
    tensor([[6.]])
    """
    if isinstance(wrapped, Recurrence):
        if start is not None:
            raise InputError("this recurrence has its start state already; wrap the module or step itself")
        return wrapped
    if isinstance(wrapped, (*_SEQUENCES, *_CELLS)):
        if (own := _own_forward(wrapped)) is None:
            return NativeRecurrence(wrapped, start)
        if isinstance(wrapped, _SEQUENCES):
            raise InputError(
                f"{type(wrapped).__name__} {own}, which a scan by torch's kernel would pass by; wrap its step instead: "
                "recurrence(step, start=…), step(element, state) -> state, or a cell (weights that are recomputed, "
                "as by torch.nn.utils.parametrizations, are fine)"
            )
        return StepRecurrence(wrapped, start)
    if isinstance(wrapped, type) or not callable(wrapped):
        raise InputTypeError(
            "recurrence takes an nn.RNN, nn.GRU, nn.LSTM, one of their cells, or a callable "
            f"step(element, state); got {wrapped!r}"
        )
    if start is None:
        raise InputError("an own step needs start=: a state of batch 1, or a callable(batch_size)")
    return StepRecurrence(wrapped, start)


def _own_forward(module: nn.Module) -> str | None:
    """What of a module's forward is not torch's own, None if nothing."""
    stock = next(kind for kind in (*_SEQUENCES, *_CELLS) if isinstance(module, kind))
    if "forward" in vars(module) or type(module).forward is not stock.forward:
        return "has a forward of its own"
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return "has hooks (weight_norm and spectral_norm set some)" if any(hooks) else None


def _versions(element: Tensor, state: State) -> list[int]:
    """A count for each tensor of the writes into it; none where torch does not count."""
    if torch.compiler.is_compiling():
        return []
    leaves = [element, *tree_leaves(state)]
    return [leaf._version for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_inference()]


def _require_same_form(before: State, after: State) -> None:
    if isinstance(before, Tensor) and isinstance(after, Tensor) and before.shape == after.shape:
        return
    if (old := form(before)) != (new := form(after)):
        raise InputError(
            f"step must give back a state of the same structure and shapes; it was given {spell(old)} "
            f"and returned {spell(new)}"
        )
