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
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, checked_elements, checked_lengths, require_finite, whole_number
from anyorder.recurrences.trajectory import (
    Layout,
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

    batch_first = True  # whether scan reads [B, T, D]; False: [T, B, D], as a torch module made so does

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
        if not self.batch_first:
            elements = elements.transpose(0, 1)
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
    def output(self, state: State) -> State:
        """What a torch module returns in a ``state``: h of the top layer; of an own step the state itself."""
        return state

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

    >>> r = recurrence(nn.GRU(3, 8, num_layers=2, batch_first=True))
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
        from anyorder.recurrences.torch_modules import NativeRecurrence

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
