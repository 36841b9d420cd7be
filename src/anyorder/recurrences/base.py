"""Recurrences: one step, a start state, and a scan that keeps every state that it passes.

A recurrence is s_{t+1} = f(s_t, x_{t+1}) from a start state s_0 (equation 2 of the paper). A state is a tensor or a
nested tuple, list or dict of tensors, batch axis first. A scan never reads padding: sets are sorted by length and
leave the batch when they end, so padding (NaN, say) reaches neither values nor gradients.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyorder.checks import InputError, InputTypeError, checked_batch, whole_number
from anyorder.data.sets import filled
from anyorder.recurrences.pairs import Pairs
from anyorder.recurrences.trajectory import Layout, Rows, State, Trajectory, concatenated, tree_leaves, tree_map

_SEQUENCES = (nn.RNN, nn.GRU, nn.LSTM)
_CELLS = (nn.RNNCell, nn.GRUCell, nn.LSTMCell)

Step = Callable[[Tensor, State], State]
Scan = Callable[[Tensor, Tensor | None, State], State]
Select = Callable[[Tensor], State]  # from row numbers to states


class Passed(NamedTuple):
    """What a pass over packed rows gives: the last state, the states by row, and what the trajectory keeps."""

    last: State
    select: Select
    dropped: bool = False  # whether dropout was applied
    kept: Any = None


class Recurrence(nn.Module, ABC):
    """A step and a start state as one module, which owns what it wraps; :func:`recurrence` makes it.

    A subclass defines ``step``, and ``closed_form_gap`` if it has one.
    """

    batch_first = True  # the layout that scan reads: [B, T, D], or [T, B, D] if False

    def __init__(self, start: Any) -> None:
        super().__init__()
        self._start_call = start if callable(start) else None
        self._start_names: Any = None
        if start is None or callable(start):
            return
        names = (f"start_{i}" for i in itertools.count())
        self._start_names = tree_map(lambda _: next(names), require_state("start", start, 1))
        for name, leaf in zip(tree_leaves(self._start_names), tree_leaves(start), strict=True):
            register = self.register_parameter if isinstance(leaf, nn.Parameter) else self.register_buffer
            register(name, leaf)  # type: ignore[arg-type]

    def start(self, batch_size: int) -> State:
        """The start state s_0 of ``batch_size`` sets."""
        batch_size = whole_number("batch_size", batch_size)
        if self._start_call is not None:
            return require_state("start(batch_size)", self._start_call(batch_size), batch_size, self._form(batch_size))
        if self._start_names is None:
            return self._form(batch_size)
        leaves = tree_map(lambda name: getattr(self, name), self._start_names)
        return tree_map(lambda leaf: leaf.expand(batch_size, *leaf.shape[1:]), leaves)

    @abstractmethod
    def step(self, element: Tensor, state: State) -> State:
        """f(state, element) for ``element [B, D]`` and a state of batch B. Never applies dropout."""

    def scan(self, elements: Tensor, lengths: Tensor | None = None, *, state: State | None = None) -> Trajectory:
        """The trajectory of each set's first ``lengths`` elements, from ``state`` or the start state.

        Args:
            elements: ``[B, T, D]``; ``[T, B, D]`` for a torch module with ``batch_first=False``. Or a PackedSequence
                or a nested tensor, which carry their lengths.
            lengths: ``[B]``, from 0 to T; None reads all T elements.
            state: where to go on from, batch first: ``trajectory.last`` of an earlier scan.

        >>> sums = recurrence(lambda element, state: state + element, start=torch.zeros(1, 1))
        >>> t = sums.scan(torch.tensor([[[1.0], [2.0], [4.0]]]), torch.tensor([2]))
        >>> t.last.tolist(), t.states[0, :, 0].tolist()
        ([[3.0]], [0.0, 1.0, 3.0, 3.0])
        """
        elements, lengths = checked_batch(elements, lengths, batch_first=self.batch_first)
        if state is not None:
            state = require_state("state", state, elements.shape[0], self._form(elements.shape[0]))
        return self.scan_encoded(elements, lengths, state=state)

    def scan_encoded(
        self,
        elements: Tensor,
        lengths: Tensor | None = None,
        *,
        state: State | None = None,
        dropout: bool | None = None,
        last_alone: bool = False,
    ) -> Trajectory:
        """:meth:`scan` of what a model made of a checked batch, always ``[B, T, D]``.

        ``dropout=False`` switches the module's own off; None follows train mode. ``last_alone`` says that only the
        last state will be read, which some recurrences compute faster.
        """
        elements = self._readable(elements)
        dropout = self.training if dropout is None else dropout
        start = self.start(elements.shape[0]) if state is None else state
        layout = Layout(elements, lengths)
        if not layout.sizes:
            return Trajectory(self, elements, lengths, start, start, None, resumed_from=state)
        last, select, dropped, kept = self._run(layout.pack(elements), layout, start, dropout, last_alone)
        return Trajectory(
            self,
            elements,
            lengths,
            start,
            last,
            lambda sample, count: select(layout.row(sample, count)),
            repeatable=not (dropped or torch.is_autocast_enabled(elements.device.type)),
            resumed_from=state,
            kept=kept,
        )

    def output(self, state: State) -> State:
        """What a torch module returns in a ``state``: h of the top layer; of an own step the state itself."""
        return state

    def output_of(self, trajectory: Trajectory) -> State:
        """What the module or the step returns at each set's last element; without an output, the last state."""
        return self.output(trajectory.last)

    def closed_form_gap(self, trajectory: Trajectory, pairs: Pairs) -> tuple[Tensor, Tensor | None] | None:
        """The mean squared swap gap ``[B, K]`` under the law ``pairs``, and which components it covers ``[K]``.

        None in place of the second says that it covers all; a penalty draws pairs for the others. None alone (the
        default) says that there is no closed form.
        """
        return None

    def _readable(self, elements: Tensor) -> Tensor:
        """``elements [B, T, D]`` in the dtype of the scan; those that the step cannot read are refused."""
        return elements

    def _form(self, batch_size: int) -> State | None:
        """A state of the form that all have, the start if none was given; None if only the step knows the form."""
        return None if self._start_call is not None else self.start(batch_size)

    def _run(self, rows: Tensor, layout: Layout, start: State, dropout: bool, last_alone: bool) -> Passed:
        """Scan packed ``rows``, step by step unless a recurrence knows better."""
        steps, last = layout.steps(self.step, rows, start)
        return Passed(last, Rows(lambda: concatenated(steps)).select)


class StepRecurrence(Recurrence):
    """A recurrence over any ``step(element, state)`` that returns a state or (output, state), run step by step."""

    def __init__(self, step: Step, start: Any, scan: Scan | None = None) -> None:
        super().__init__(start)
        self._step, self._scan = step, scan
        owners = [owner for f in (step, scan) if isinstance(owner := getattr(f, "__self__", f), nn.Module)]
        for i, owner in enumerate(dict.fromkeys(owners)):
            if owner is not step and owner is not scan:  # own the module behind a bound method
                self.add_module(f"_owner_{i}", owner)
        self._may_drop = [m for m in dict.fromkeys(m for owner in owners for m in owner.modules()) if may_drop(m)]

    def step(self, element: Tensor, state: State) -> State:
        with modules_off(self._may_drop):
            return self._checked(element, state)

    def _checked(self, element: Tensor, state: State) -> State:
        before = _versions(element, state)
        new = self._step(element, tree_map(lambda leaf: leaf, state))  # a dict or list that the step may change
        if before != _versions(element, state):
            raise InputError(
                "step must not write into its element or state, which the trajectory keeps; make new tensors, "
                "e.g. state + element in place of state += element"
            )
        if isinstance(state, Tensor) and isinstance(new, Tensor) and state.shape == new.shape:
            return new
        if _is_output_and_state(new, state):
            new = new[1]
        return require_state("the state that step returns", new, element.shape[0], state)

    def output_of(self, trajectory: Trajectory) -> State:
        """What the step returns beside the state at each set's last element, 0 for an empty set.

        Without an output, it is the last state.
        """
        counts = trajectory.counts
        before, rows = (counts - 1).clamp(min=0), torch.arange(len(counts), device=counts.device)
        elements, state = filled(trajectory.elements, trajectory.lengths), trajectory.rows(rows, before)
        if elements.shape[1] == 0:
            elements = elements.new_zeros(len(elements), 1, elements.shape[2])
        with modules_off(self._may_drop):
            new = self._step(elements[rows, before], state)
        if not _is_output_and_state(new, state):
            return trajectory.last
        return tree_map(lambda leaf: torch.where(counts.reshape(-1, *[1] * (leaf.dim() - 1)) > 0, leaf, 0), new[0])

    def scan_encoded(self, elements: Tensor, lengths: Tensor | None = None, **options: Any) -> Trajectory:
        if self._scan is None or elements.shape[1] == 0:
            return super().scan_encoded(elements, lengths, **options)
        given, scan = options.get("state"), self._scan
        start = self.start(len(elements)) if given is None else given
        states, dropped = self._passed(
            lambda: scan(filled(elements, lengths), lengths, start), options.get("dropout"), elements.device
        )
        t = of_states(states, elements, lengths, self)
        if shapes(t.start) != shapes(start):
            raise InputError(f"scan must return states of the form {shapes(start)} a set; got {shapes(t.start)}")
        repeatable = not (dropped or torch.is_autocast_enabled(elements.device.type))
        return dataclasses.replace(t, resumed_from=given, repeatable=repeatable)

    def _run(self, rows: Tensor, layout: Layout, start: State, dropout: bool, last_alone: bool) -> Passed:
        (steps, last), dropped = self._passed(lambda: layout.steps(self._checked, rows, start), dropout, rows.device)
        return Passed(last, Rows(lambda: concatenated(steps)).select, dropped)

    def _passed(self, run: Callable[[], Any], dropout: bool | None, device: torch.device) -> tuple[Any, bool]:
        """What ``run`` returns with dropout on or off (None follows train mode), and whether it dropped anything."""
        dropout = dropout is not False and any(m.training for m in self._may_drop)
        watched = dropout and not torch.compiler.is_compiling()
        randomness = _randomness(device) if watched else None
        with modules_off(() if dropout else self._may_drop):
            result = run()
        dropped = dropout if randomness is None else not torch.equal(randomness, _randomness(device))
        return result, dropped


def of_states(states: State, elements: Tensor, lengths: Tensor | None, step: Step) -> Trajectory:
    """The trajectory of states ``[B, T + 1, …]``, the start first; ``step`` may be a recurrence."""
    batch, longest = elements.shape[:2]
    leaves = tree_leaves(states)
    if not leaves or any(leaf.shape[:2] != (batch, longest + 1) for leaf in leaves):
        raise InputError(f"states must be tensors [B, T + 1, …] = [{batch}, {longest + 1}, …]; got {shapes(states)}")
    start = tree_map(lambda leaf: leaf[:, 0], states)
    r = step if isinstance(step, Recurrence) else recurrence(step, _no_start)
    counts = torch.full((batch,), longest, device=elements.device) if lengths is None else lengths
    rows = torch.arange(batch, device=elements.device)
    last = tree_map(lambda leaf: leaf[rows, counts], states)

    def passed(sample: Tensor, count: Tensor) -> State:
        return tree_map(lambda leaf: leaf[sample, count], states)

    may_have_dropped = any(m.training for m in r.modules() if m is not r and may_drop(m))
    return Trajectory(r, elements, lengths, start, last, passed, not may_have_dropped, resumed_from=start)


def _no_start(batch_size: int) -> State:
    raise InputError("step has no start state of its own; give anyorder.recurrence(step, start=…) as step")


def _is_output_and_state(new: Any, state: State) -> bool:
    """Whether a step returned (output, state) rather than a state."""
    return isinstance(new, tuple) and len(new) == 2 and shapes(new[1]) == shapes(state)


def recurrence(wrapped: nn.Module | Step, start: Any = None, scan: Scan | None = None) -> Recurrence:
    """The recurrence of a torch module or cell, or of any ``step(element, state)``.

    Args:
        wrapped: nn.RNN, nn.GRU, nn.LSTM of any number of layers, one of their cells, or a callable. Its module is
            owned, also behind a bound method, and its dropout is off in ``step``. A cell with hooks or a ``forward``
            of its own is such a callable. A module may not hold the recurrence of its own bound method: pass
            ``lambda element, state: self.step(element, state)``.
        start: a state of batch 1 (parameters are learned) or a callable(batch_size), which is owned if it is a
            module. torch's modules start at zeros by default; an own step needs ``start``.
        scan: ``scan(elements [B, T, D], lengths, state)`` -> all states ``[B, T + 1, …]``, the start first, if yours
            is parallel. States beyond a set's length are not read.

    A step may return ``(output, state)``; ``trajectory.output`` is then the output at the last element.

    >>> r = recurrence(nn.GRU(3, 8, num_layers=2, batch_first=True))
    >>> r.scan(torch.zeros(5, 7, 3)).last.shape
    torch.Size([5, 2, 8])
    >>> product = recurrence(lambda element, state: state * element, start=torch.ones(1, 1))
    >>> product.scan(torch.tensor([[[2.0], [3.0]]])).last
    tensor([[6.]])
    """
    wrapped = unwrapped(wrapped)
    if reason := _refusal(wrapped, start, scan):
        raise InputError(f"{type(wrapped).__name__} cannot be used as a recurrence: {reason}")
    if isinstance(wrapped, Recurrence):
        return wrapped
    if isinstance(wrapped, (*_SEQUENCES, *_CELLS)) and not _own_forward(wrapped):
        from anyorder.recurrences.torch_modules import NativeRecurrence

        return NativeRecurrence(wrapped, start)
    if isinstance(wrapped, type) or not callable(wrapped) or start is None:
        raise InputTypeError(
            "recurrence takes an nn.RNN, nn.GRU, nn.LSTM, one of their cells, or step(element, state) with start=, a "
            f"state of batch 1 or a callable(batch_size); got a {type(wrapped).__name__} with start={start!r}"
        )
    return StepRecurrence(wrapped, start, scan)


def unwrapped(module: Any) -> Any:
    """The module behind torch.compile or a data-parallel wrapper; anything else as it is."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while isinstance(module, parallel) or hasattr(module, "_orig_mod"):
        module = module.module if isinstance(module, parallel) else module._orig_mod
    return module


def _refusal(wrapped: Any, start: Any, scan: Any) -> str | None:
    """The reason why a module has no step, or cannot start or scan as it is told to; None if there is none."""
    own_cell = isinstance(wrapped, _CELLS) and _own_forward(wrapped)
    if scan is not None and not own_cell and isinstance(wrapped, (Recurrence, *_SEQUENCES, *_CELLS)):
        return "it has its own way to scan; scan= goes with a step of your own"
    if isinstance(wrapped, Recurrence) and start is not None:
        return "it has its start state already; wrap the module or the step itself"
    if getattr(wrapped, "bidirectional", False):
        return "a bidirectional module reads each set from both ends, so it has no state after a prefix"
    if getattr(wrapped, "proj_size", 0):
        return "a projected LSTM (proj_size) is not supported; project its output yourself"
    if isinstance(wrapped, _SEQUENCES) and _own_forward(wrapped):
        return "it has hooks or a forward of its own, which a scan would skip; wrap its step, or a cell"
    return None


def _own_forward(module: nn.Module) -> bool:
    """Whether a torch module has a forward that is not torch's, or hooks such as weight_norm sets."""
    stock = next(kind for kind in (*_SEQUENCES, *_CELLS) if isinstance(module, kind))
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return "forward" in vars(module) or type(module).forward is not stock.forward or any(hooks)


def require_state(name: str, state: State, batch: int, like: State | None = None) -> State:
    """``state`` if it is one of ``batch`` sets, with the structure and shapes of ``like``, if given."""
    leaves = tree_leaves(state)
    fits = bool(leaves) and all(isinstance(leaf, Tensor) and leaf.shape[:1] == (batch,) for leaf in leaves)
    if not fits or (like is not None and shapes(state) != shapes(like)):
        form = f"tensors [{batch}, …]" if like is None else f"of the form {shapes(like)}"
        raise InputError(f"{name} must be a state of batch {batch}, {form}; got {shapes(state)}")
    return state if like is None else tree_map(lambda _, leaf: leaf, like, state)


def shapes(state: State) -> Any:
    """The structure and shapes of a state; a list counts as a tuple."""
    if isinstance(state, dict):
        return {key: shapes(value) for key, value in state.items()}
    if isinstance(state, (tuple, list)):
        return tuple(map(shapes, state))
    return list(state.shape) if isinstance(state, Tensor) else type(state).__name__


def _versions(element: Tensor, state: State) -> list[int]:
    """How often each tensor was written to; of tensors of inference mode torch keeps no count."""
    if torch.compiler.is_compiling():
        return []
    return [leaf._version for leaf in (element, *tree_leaves(state)) if not leaf.is_inference()]


def _randomness(device: torch.device) -> Tensor:
    """The state of the generator that dropout draws from."""
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def may_drop(module: nn.Module) -> bool:
    """Whether train mode may mean dropout; for batch norm it means something else, which is kept."""
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0
    return not isinstance(module, nn.modules.batchnorm._NormBase)


@contextmanager
def modules_off(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Evaluation mode inside a ``with`` block for exactly these modules, not for their children."""
    active = [m for m in modules if m.training]
    for module in active:
        module.training = False
    try:
        yield
    finally:
        for module in active:
            module.training = True


def evaluating(*predictors: Any) -> AbstractContextManager[None]:
    """Evaluation mode for predictors that are modules, have one or are a method of one."""
    owners = [owner for predict in predictors for owner in owners_of(predict)]
    return modules_off([m for owner in owners if isinstance(owner, nn.Module) for m in owner.modules()])


def owners_of(predict: Any) -> list[Any]:
    """The predictor, or the object whose method it is, and its fitted model (scikit-learn's ``model_``)."""
    owner = getattr(predict, "__self__", predict)
    fitted = getattr(owner, "model_", None)
    return [owner] if fitted is None else [owner, fitted]
