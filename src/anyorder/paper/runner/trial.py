"""What an experiment declares: its trials, how settings are chosen, and the numbers to expect.

An :class:`Experiment` is one table or figure, a :class:`Plan` one scale of it, a :class:`Trial` one training run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyorder.checks import one_of

LABELS, EPOCHS = "labels for accuracy 0.9", "epochs to accuracy 0.8"  # read off several rows, or a curve
READS = 20  # orderings of a test set that a recurrence is averaged over, as many as in Janossy pooling's code
ONE_ORDERING, MANY_ORDERINGS = "_one_ordering", f"_{READS}_orderings"  # end the names of such figures

Row = dict[str, Any]
Outcome = dict[str, Any]
Setting = Mapping[str, Any]


def shuffles(method: str) -> bool:
    """Whether ``method`` reads every set in a fresh random ordering each epoch."""
    return method == "pi-sgd" or method.endswith("+shuffle")


def short(value: float) -> float:
    """Six significant digits, for rows."""
    return float(f"{value:.6g}")


def duration(seconds: float) -> str:
    """A length of time in words: seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def spelled(setting: Setting) -> str:
    """A setting in words: ``penalty weight 10, cell gru``."""
    return ", ".join(f"{key.replace('_', ' ')} {f'{v:g}' if isinstance(v, float) else v}" for key, v in setting.items())


def varied(candidates: Sequence[Any]) -> list[str]:
    """The settings in which candidates differ."""
    return sorted({key for c in candidates for key in c if len({json.dumps(d.get(key)) for d in candidates}) > 1})


def grid(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination of the choices, the last varying fastest."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


# The names that the published rows were declared with: their trials keep their keys.
_HASHED_AS = {"unlabeled": "unlabelled", "prefixes": "states", "given": "prefix", "random": "subset"}


@dataclass(frozen=True)
class Trial:
    """One training run: everything its rows depend on, and nothing else."""

    experiment: str
    method: str
    setting: Setting
    seed: int
    scale: str

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits of a hash of the declaration: the same in every process, on every machine."""
        setting = {_HASHED_AS.get(key, key): value for key, value in self.setting.items()}
        if "states" in setting:
            setting["states"] = _HASHED_AS[setting["states"]]
        method = self.method.replace("unlabeled", "unlabelled")
        declaration = [self.experiment, method, setting, self.seed, self.scale]
        return hashlib.sha256(json.dumps(declaration, sort_keys=True).encode()).hexdigest()[:12]


Run = Callable[[Trial, Any, Path], list[Outcome]]
Candidate = tuple[Setting, list[Trial]]  # a setting, and the trials that it is judged by


@dataclass(frozen=True)
class Plan:
    """One scale of an experiment.

    ``methods`` gives each method the candidate settings it may choose from, every recurrence the same learning rates.
    ``over`` are the settings reported one by one, not chosen; ``fixed`` is the same for all cells of ``over``, and
    ``follows(cell)`` is not.

    A method's choice is the candidate with the best mean validation figure over ``tune_seeds`` seeds (None: all
    ``seeds``). It is made in each cell of ``over``, or once with the settings ``tune_on`` and reused in the others, and
    then run with all ``seeds`` in every cell. ``seconds`` is the measured cost of a trial on one core.
    """

    methods: Mapping[str, Sequence[Setting]]
    over: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fixed: Setting = field(default_factory=dict)
    follows: Callable[[Setting], Setting] = lambda cell: {}
    seeds: int = 5
    tune_on: Setting = field(default_factory=dict)
    tune_seeds: int | None = None
    seconds: float | Callable[[Trial], float] = 1.0


@dataclass(frozen=True)
class Expected:
    """A figure at the paper's setting: ``metric`` of ``method`` in the rows whose settings agree with ``where``.

    ``paper`` is the published value (None: drawn without a number) and ``sd`` its standard deviation.
    """

    method: str
    metric: str
    paper: float | None = None
    where: Setting = field(default_factory=dict)
    sd: float | None = None


@dataclass(frozen=True)
class Versus:
    """A comparison that a verdict rests on: ``one`` is better than ``other`` where settings agree with ``where``.

    ``one`` and ``other`` are methods, or "best sire" and "best other": the best by validation of the methods with and
    without "sire" in their names, folds left out. A number is a goal for the mean of ``one``. A list in ``where`` gives
    a comparison for each value; ``against`` replaces settings for ``other``. ``metric`` is the headline if empty.
    ``margin``: so much behind still counts as level.
    """

    one: str
    other: str | float
    where: Setting = field(default_factory=dict)
    metric: str = ""
    against: Setting = field(default_factory=dict)
    margin: float = 0.0


@dataclass(frozen=True)
class Chart:
    """A figure of the chosen rows: ``metric`` against the setting ``x``, a line a method; ``x="method"``: dots.

    There is one figure for each value of ``split``. ``where`` and ``methods`` choose rows, None: all. ``curve``: from
    training curves; ``log``: a logarithmic axis of x. The first chart of an experiment may stand on the first screen.
    """

    x: str
    metric: str = "accuracy"
    split: str | None = None
    curve: bool = False
    log: bool = False
    title: str = ""
    where: Setting = field(default_factory=dict)
    methods: Sequence[str] | None = None


@dataclass(frozen=True)
class Experiment:
    """One table or figure, declared.

    ``run(trial, data, workdir)`` trains and tests one model and returns its outcomes: dicts with ``validation``,
    ``metrics`` (the test split) and ``parameters``, and if need be ``steps``, ``reads`` (orderings that a prediction
    averages), ``setting`` (what this row adds, as a test ``length``) and ``curve`` (named lists to draw). All its
    randomness comes from ``trial.seed``. It may keep checkpoints in ``workdir``, and finds there what an interrupted
    run of the same trial left.

    ``data(scale)``, if given, is loaded once a process (local engine) or once for the whole cluster (Ray) and handed
    to every run. ``select`` names the validation figure that chooses settings: the most ``accuracy``, the least
    ``loss``, ``mae`` or ``rmse``, or ``metric`` (accuracy, else RMSE) to two digits, with ties to the candidate that
    is declared first.
    ``claim`` is one line. ``reported`` is what the paper gives for it. ``tests`` are the comparisons that decide the
    verdict, corrected together by Holm; without them the first method is compared with each of the others. ``needs``
    must hold first, or the verdict stays open: a model that has not learnt its training sets refutes nothing.
    ``decided`` says for a verdict, in one line, what decided it. ``at`` is the place of the summary's best figures.
    """

    name: str
    claim: str
    choices: str
    run: Run
    plans: Mapping[str, Plan]
    select: str = "loss"
    headline: str = "accuracy"
    data: Callable[[str], Any] | None = None
    expected: Sequence[Expected] = ()
    charts: Sequence[Chart] = ()
    reported: str = "not tried"
    tests: Sequence[Versus] = ()
    needs: Sequence[Versus] = ()
    decided: Mapping[str, str] = field(default_factory=dict)
    at: Setting = field(default_factory=dict)
    cpus: int = 1
    gpus: float = 0.0

    def plan(self, scale: str) -> Plan:
        """The plan of ``scale``."""
        return self.plans[one_of("scale", scale, self.plans)]

    def trials(
        self,
        scale: str,
        rows: Sequence[Row] = (),
        *,
        only: Sequence[str] | None = None,
        seeds: int | None = None,
        guess: bool = False,
    ) -> list[Trial]:
        """The trials that can be named now: the search, and the runs of each choice that ``rows`` already decide.

        ``guess=True`` takes the first candidate where a choice is open, which gives the full number of trials.
        """
        plan = self.plan(scale)
        number = plan.seeds if seeds is None else seeds
        wanted: dict[str, Trial] = {}
        for cell, method in itertools.product(grid(**plan.over), plan.methods if only is None else only):
            stages, choice = self._chosen(scale, one_of("only", method, plan.methods), cell, rows, number, guess)
            if choice is not None:
                stages.append((choice, self._runs(scale, method, cell, choice, number)))
            for trial in (trial for _, runs in stages for trial in runs):
                wanted.setdefault(trial.key, trial)
        return sorted(wanted.values(), key=lambda trial: trial.seed)  # a sweep cut short has fewer seeds, not cells

    def choice(self, scale: str, method: str, cell: Setting, rows: Sequence[Row]) -> Setting | None:
        """The candidate with the best mean validation figure; None until ``rows`` hold the whole search."""
        return self._chosen(scale, method, cell, rows, self.plan(scale).seeds)[1]

    def with_selection(self, rows: Sequence[Row], scale: str) -> list[Row]:
        """``rows`` with ``selected`` true on those of each method's choice, false on all others of this scale.

        While a search goes on, the choice is the best of the candidates that have been compared so far.
        """
        plan = self.plan(scale)
        most = max([plan.seeds, *(row["seed"] + 1 for row in rows)])
        chosen: set[str] = set()
        for method, cell in itertools.product(plan.methods, grid(**plan.over)):
            choice = self._chosen(scale, method, cell, rows, plan.seeds, guess=True)[1]
            chosen.update(trial.key for trial in self._runs(scale, method, cell, choice or {}, most))
        return [{**row, "selected": row["trial"] in chosen} if row["scale"] == scale else row for row in rows]

    def estimated_seconds(self, trials: Sequence[Trial]) -> float:
        """What ``trials`` cost on one core, from the measured seconds a trial that the plans declare."""
        costs = [(self.plan(trial.scale).seconds, trial) for trial in trials]
        return sum(cost(trial) if callable(cost) else cost for cost, trial in costs)

    def _chosen(
        self, scale: str, method: str, cell: Setting, rows: Sequence[Row], seeds: int, guess: bool = False
    ) -> tuple[list[Candidate], Setting | None]:
        """The trials that compare candidates in ``cell``, and the choice as far as it is decided."""
        plan = self.plan(scale)
        candidates, number = plan.methods[method], min(plan.tune_seeds or seeds, seeds)
        if len(candidates) == 1:
            return [], candidates[0]
        search = [(c, self._runs(scale, method, {**cell, **plan.tune_on}, c, number)) for c in candidates]
        best = self._ranked(search, rows, guess)
        return search, best[0] if best else None

    def figure(self, validation: Mapping[str, float]) -> float:
        """What chooses a setting, the more the better; NaN of a run that diverged."""
        if self.select == "metric":
            return validation.get("accuracy", -validation.get("rmse", math.nan))
        return validation.get(self.select, math.nan) * (-1 if self.select in ("loss", "mae", "rmse") else 1)

    def at_the_edge(self, scale: str, rows: Sequence[Row]) -> list[tuple[str, str, float]]:
        """Where a decided choice ends a grid of three or more numbers: method, setting and value."""
        plan, found = self.plan(scale), set()
        for (method, candidates), cell in itertools.product(plan.methods.items(), grid(**plan.over)):
            choice = self.choice(scale, method, cell, rows) or {}
            for key in varied(candidates):
                values = sorted({c[key] for c in candidates if isinstance(c.get(key), int | float)})
                if len(values) > 2 and choice.get(key) in (values[0], values[-1]):
                    found.add((method, key, choice[key]))
        return sorted(found)

    def _ranked(self, candidates: Sequence[Candidate], rows: Sequence[Row], guess: bool) -> list[Setting]:
        """Candidates by their mean validation figures, the best first; none until ``rows`` hold all their trials.

        ``guess=True`` ranks what there is, and puts the others last.
        """
        figures = {row["trial"]: self.figure(row["validation"]) for row in rows}
        missing = [setting for setting, runs in candidates if any(trial.key not in figures for trial in runs)]
        if missing and not guess:
            return []
        candidates = [(setting, runs) for setting, runs in candidates if setting not in missing]

        def score(candidate: Candidate) -> float:
            mean = sum(figures[trial.key] for trial in candidate[1]) / len(candidate[1])
            mean = round(mean, 2) if self.select == "metric" else mean
            return -mean if math.isfinite(mean) else math.inf  # a run that diverged is never chosen

        return [setting for setting, _ in sorted(candidates, key=score)] + missing

    def _runs(self, scale: str, method: str, cell: Setting, candidate: Setting, seeds: int) -> list[Trial]:
        plan = self.plan(scale)
        setting = {**plan.fixed, **plan.follows(cell), **cell, **candidate}
        return [Trial(self.name, method, setting, seed, scale) for seed in range(seeds)]
