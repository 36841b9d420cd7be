"""From a trial to its outcomes: draw or split the sets, build the arm's model and penalty, train, measure.

Every arm of a seed sees the same sets, loss, optimiser, schedule and number of steps. Test sets are read by the
finished model alone. On real data a validation part is cut from the training part (by person where people are known);
where labels are few, the rest of the training part is left without them, and only a penalty uses it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn

from anyorder.data.orderings import random_orderings, reorder
from anyorder.data.sets import SetData
from anyorder.models import DeepSets, RecurrentSetModel, SetModel, SetTransformer
from anyorder.paper.data import datasets
from anyorder.paper.data.datasets import Dataset
from anyorder.paper.data.tasks import TASKS, splits
from anyorder.paper.models import CommutativeMonoid, SmallCNN, mamba
from anyorder.paper.runner.trial import MANY_ORDERINGS, ONE_ORDERING, READS, Outcome, Setting, Trial, short, shuffles
from anyorder.penalties import SIRE, AdaptiveWeight, PermutationPenalty, SubsetPenalty
from anyorder.penalties.base import trajectory_of
from anyorder.training.config import TrainConfig, TrainResult
from anyorder.training.loop import train
from anyorder.training.predict import predict

CURVE_POINTS = 30
GAP_SETS = 512  # test sets on which the dependence on order is measured


def run(trial: Trial, data: Any, workdir: Path, *, device: str = "cpu", orderings: int | None = None) -> list[Outcome]:
    """Train ``trial.method`` and test it: an outcome for each test length (or test part, or number of orderings).

    Numbers: ``task``, ``alphabet``, ``n`` (or ``[least, most]``), ``labels``, ``validation``, ``test`` (numbers of
    sets), ``embedding`` (dimensions of the frozen random input; None feeds the number itself), ``lengths`` (of test
    sets, default ``n``), ``unlabeled`` (sets for the penalty alone), ``curve`` (keep one), ``checkpoint`` (resumable),
    ``standardize`` (the numbers), ``settle`` (of a fold: channels that are nearly sums become sums).

    Real data: ``data`` or ``points`` (which set), ``labels`` (the share of the training part that keeps them),
    ``validation`` (its share), ``standardize`` (True, or the deviation that every feature gets), ``votes`` (orderings
    that π-SGD averages over), ``track`` (measure the validation part after every epoch and keep the best). With
    ``orderings`` a recurrence is also tested by the mean over that many orderings. An outcome each for ``test_on``,
    the names of sets whose test parts are read, or for ``reads``, numbers of orderings.

    Both: ``steps`` and ``epochs`` (whichever is longer), what :class:`TrainConfig` takes, ``label_smoothing``,
    ``target_gap`` (an ``AdaptiveWeight`` instead of a weight), ``stretch``, ``begin_with`` and ``begin_anew``
    (:class:`Variants`), and what the arm's model and penalty take.
    """
    if "task" in trial.setting:
        return _train_and_test(trial, Numbers(trial), workdir, device)
    wanted = trial.setting.get("data", str(trial.setting.get("points")))
    chosen = data if isinstance(data, Dataset) else data[wanted]
    assert chosen.test is not None
    rest, held = datasets.split(chosen.train, trial.setting["validation"], seed=trial.seed, groups=chosen.groups)
    parts = rest, held, chosen.test
    classes = int(_targets(chosen.train).max()) + 1
    problem = Recorded(trial, parts, classes, orderings)
    if "test_on" in trial.setting:
        problem.tests = [({"read": name}, data[name].test) for name in trial.setting["test_on"]]
    if "reads" in trial.setting:
        problem.tests = [({"orderings": number}, chosen.test) for number in trial.setting["reads"]]
    return _train_and_test(trial, problem, workdir, device)


def run_folds(trial: Trial, data: Any, workdir: Path, *, device: str = "cpu") -> list[Outcome]:
    """Cross-validate: ``folds`` trainings, every bag tested once; a seed is one repetition with folds of its own.

    The metrics are the means over folds (weighted by their sizes), so an accuracy is that over all bags.
    """
    bags = data[trial.setting["data"]].train
    outcomes, sizes = [], []
    for number, (train_index, test_index) in enumerate(datasets.folds(bags, trial.setting["folds"], seed=trial.seed)):
        rest, held = datasets.split(bags.select(train_index), trial.setting["validation"], seed=trial.seed)
        problem = Recorded(trial, (rest, held, bags.select(test_index)), 2, READS)
        outcomes += _train_and_test(trial, problem, workdir / f"fold-{number}", device)
        sizes.append(len(test_index))

    def mean(kind: str) -> dict[str, float]:
        keys = outcomes[0][kind]
        return {k: short(sum(o[kind][k] * n for o, n in zip(outcomes, sizes, strict=True)) / sum(sizes)) for k in keys}

    return [{**outcomes[0], "validation": mean("validation"), "metrics": mean("metrics")}]


def _train_and_test(trial: Trial, problem: Numbers | Recorded, workdir: Path, device: str) -> list[Outcome]:
    setting, track = trial.setting, bool(trial.setting.get("track"))
    model = build_model(trial.method, setting, problem.labeled.elements.shape[1], problem.outputs, seed=trial.seed)
    batches = math.ceil(len(problem.labeled) / setting["batch_size"])
    passed = ("batch_size", "learning_rate", "weight_decay", "shuffle_within", "mixed_precision")
    config = TrainConfig(
        epochs=max(1, round(setting.get("steps", 0) / batches), setting.get("epochs", 0)),
        shuffle=shuffles(trial.method),
        truncate=setting.get("truncate") if isinstance(model, RecurrentSetModel) else None,
        maximize=track,
        gap_every=1 if track else 0,
        seed=trial.seed,
        device=device,
        **{name: setting[name] for name in passed if name in setting},
    )
    penalised: dict[str, Any] = {}
    if (penalty := build_penalty(trial.method, setting, model)) is not None:
        budget = AdaptiveWeight(target=setting["target_gap"]) if "target_gap" in setting else None
        penalised = {"penalty": penalty, "penalty_weight": budget or setting["penalty_weight"]}
        penalised["unlabeled"] = problem.unlabeled
    variants = Variants(
        *(setting.get("stretch", 1.0), setting.get("begin_with", ()), setting.get("begin_anew", False)),
        shuffled=setting.get("shuffled", 0.0),
    )
    points: list[tuple[float, ...]] = []  # of the curve
    every, spent = max(1, config.epochs // CURVE_POINTS), 0.0

    def log(record: dict[str, Any]) -> None:
        nonlocal spent
        spent += record["seconds"]
        if (record["epoch"] + 1) % every == 0:
            accuracy = problem.figures(model, problem.validation)["accuracy"]
            points.append((record["epoch"] + 1, short(spent), short(record["loss"]), short(accuracy)))

    workdir.mkdir(parents=True, exist_ok=True)
    result = train(
        model,
        problem.loss,
        problem.labeled,
        config=config,
        validation=problem.validation if track else None,
        metric=_accuracy if track else None,
        augment=None if variants == Variants() else variants,
        workdir=workdir if setting.get("checkpoint", "task" not in setting) else None,
        progress=False,
        log=log if setting.get("curve") else None,
        **penalised,
    )
    model.cpu()  # what follows is measured there
    if "settle" in setting:
        _settle(model, problem, setting["settle"])
    common: dict[str, Any] = {
        "validation": {key: short(value) for key, value in problem.figures(model, problem.validation).items()},
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "steps": result.steps,
    }
    if setting.get("curve"):
        columns = map(list, zip(*points, strict=True))
        common["curve"] = dict(zip(("epoch", "seconds", "loss", "accuracy"), columns, strict=True))
    elif track:
        keys = ("epoch", "seconds", "loss", "validation", "gap")
        common["curve"] = {k: [None if r[k] is None else short(r[k]) for r in result.history] for k in keys}
    extra = problem.training_figures(model, result)
    if isinstance(penalised.get("penalty_weight"), AdaptiveWeight):
        extra["final_weight"] = penalised["penalty_weight"].weight
    outcomes = []
    for more, test in problem.tests:
        reads = more.get("orderings", problem.reads)
        metrics = {key: short(value) for key, value in {**problem.test_figures(model, test, reads), **extra}.items()}
        outcomes.append({**common, "reads": reads, "setting": more, "metrics": metrics})
    return outcomes


def _settle(model: Any, problem: Numbers | Recorded, within: float) -> None:
    """Turn channels of a fold that are nearly sums into sums, if the validation part does not suffer."""
    before, kept = problem.figures(model, problem.validation), copy.deepcopy(model.state_dict())
    elements, lengths = problem.labeled.batch(torch.arange(min(1000, len(problem.labeled))))
    model.recurrence.settle(model.encode(elements, lengths), lengths, within=within)
    after = problem.figures(model, problem.validation)
    worse = after.get("rmse", 0.0) > 1.05 * before.get("rmse", 0.0)
    if "accuracy" in after:
        worse = after["accuracy"] < before["accuracy"] - 0.01
    if worse:
        model.load_state_dict(kept)


# --- what is learnt and measured


class Numbers:
    """A task on generated numbers, its targets standardised by the training sets."""

    def __init__(self, trial: Trial) -> None:
        setting, self.trial = trial.setting, trial
        self.task = TASKS[setting["task"]]
        self.loss, self.outputs = self.task.loss, self.task.classes
        self.reads = READS if trial.method == "pi-sgd" else 1
        names = {"train": "labels", "validation": "validation", "unlabeled": "unlabeled"}
        sizes = {part: setting[name] for part, name in names.items() if name in setting}
        drawn = self._drawn(sizes, setting["n"])
        self.train, self.validation = drawn["train"], drawn["validation"]
        self.shift, self.scale = 0.0, 1.0
        targets = _targets(self.train)
        if self.task.kind in ("integer", "real"):
            self.shift, self.scale = targets.mean().item(), max(targets.std().item(), 1e-8)
        self.units = (0.0, 1.0)
        if setting.get("standardize"):
            values = self.train.elements.float()
            self.units = values.mean().item(), max(values.std().item(), 1e-8)
        self.labeled = self._prepared(self.train)
        self.unlabeled = self._prepared(drawn["unlabeled"]) if "unlabeled" in drawn else None
        tested = {"test": setting["test"]}
        lengths = setting.get("lengths") or [setting["n"]]
        self.tests = [({"length": length}, self._drawn(tested, length)["test"]) for length in lengths]

    def _drawn(self, sizes: dict[str, int], n: Any) -> dict[str, SetData]:
        return splits(self.task, sizes, n, alphabet=self.trial.setting["alphabet"], seed=self.trial.seed)

    def _prepared(self, data: SetData) -> SetData:
        elements = data.elements
        if self.trial.setting["embedding"] is None:
            elements = (elements.float() - self.units[0]) / self.units[1]
        return SetData(elements, data.offsets, (_targets(data) - self.shift) / self.scale)

    def figures(self, model: nn.Module, data: SetData, reads: int | None = None) -> dict[str, float]:
        """Loss and metrics in the units of the labels, of the mean over ``reads`` orderings of each set."""
        if isinstance(model, RecurrentSetModel):
            model.orderings = reads or self.reads
        output = predict(model, self._prepared(data)).cpu() * self.scale + self.shift
        return {"loss": self.task.loss(output, _targets(data)).item(), **self.task.metrics(output, _targets(data))}

    def training_figures(self, model: nn.Module, result: TrainResult) -> dict[str, float]:
        some = self.train.select(torch.arange(min(2000, len(self.train))))
        return {"train_loss": self.figures(model, some)["loss"]}

    def test_figures(self, model: nn.Module, test: SetData, reads: int) -> dict[str, float]:
        some = self._prepared(test.select(torch.arange(min(GAP_SETS, len(test)))))
        gap = state_gap(model, some, torch.Generator().manual_seed(self.trial.seed))
        found = {**self.figures(model, test, reads), "state_gap_squared": gap}
        if isinstance(model, RecurrentSetModel) and not self.task.ordered:
            suffix, other = (ONE_ORDERING, 1) if reads > 1 else (MANY_ORDERINGS, READS)
            found |= {name + suffix: value for name, value in self.figures(model, test, other).items()}
        return found


class Recorded:
    """Classes of recorded sets: the training, validation and test part, and how many labels are kept."""

    def __init__(self, trial: Trial, parts: Sequence[SetData], classes: int, orderings: int | None = None) -> None:
        setting, self.seed, self.outputs, self.orderings = trial.setting, trial.seed, classes, orderings
        if spread := setting.get("standardize"):
            parts = datasets.standardized(*parts, spread=float(spread))
        self.labeled, self.validation, test = parts
        self.tests: list[tuple[Setting, SetData]] = [({}, test)]
        self.unlabeled: SetData | None = None
        if setting["labels"] < 1:
            self.labeled, self.unlabeled = datasets.few_labels(self.labeled, setting["labels"], seed=trial.seed)
        self.loss = partial(nn.functional.cross_entropy, label_smoothing=setting.get("label_smoothing", 0.0))
        self.reads = setting.get("votes", 5) if trial.method == "pi-sgd" else 1

    def figures(self, model: nn.Module, data: SetData, reads: int | None = None) -> dict[str, float]:
        """Accuracy, macro-F1 and loss of the mean of the class probabilities over ``reads`` orderings."""
        generator = torch.Generator().manual_seed(self.seed)
        probabilities = predict(
            model, data, orderings=reads or self.reads, generator=generator, finish=partial(torch.softmax, dim=1)
        )
        targets, guessed = _targets(data), probabilities.argmax(1)
        return {
            "accuracy": _accuracy(probabilities, targets),
            "macro_f1": float(f1_score(targets.numpy(), guessed.numpy(), average="macro", zero_division=0)),
            "loss": float(nn.functional.nll_loss(probabilities.clamp_min(1e-12).log(), targets)),
        }

    def training_figures(self, model: nn.Module, result: TrainResult) -> dict[str, float]:
        return {"train_loss": result.history[-1]["loss"]}

    def test_figures(self, model: nn.Module, test: SetData, reads: int) -> dict[str, float]:
        generator = torch.Generator().manual_seed(self.seed)
        some = test.select(torch.randperm(len(test), generator=generator)[:GAP_SETS])
        found = {**self.figures(model, test, reads), "state_gap_squared": state_gap(model, some, generator)}
        if self.orderings is not None and isinstance(model, RecurrentSetModel):
            found[f"accuracy_{self.orderings}_orderings"] = self.figures(model, test, self.orderings)["accuracy"]
        return found


@torch.no_grad()
def state_gap(model: nn.Module, data: SetData, generator: torch.Generator) -> float:
    """Squared distance of the end states (or outputs) of two orderings of a set, over that of two sets."""
    model.eval()
    owner = torch.repeat_interleave(torch.arange(len(data)), data.lengths)
    order = torch.argsort(torch.rand(len(data.elements), generator=generator))
    order = order[torch.argsort(owner[order], stable=True)]  # every set in a random order of its own
    if isinstance(model, RecurrentSetModel):
        few = torch.arange(max(2, min(len(data), 2**16 // int(data.lengths.max()))))
        law, trajectory = PermutationPenalty(relative=False), trajectory_of(model, *data.batch(few))
        spread = law.spread(trajectory.last, trajectory.recurrence).sum()
        return float(law(trajectory, generator=generator) / spread)
    given, moved = predict(model, data), predict(model, SetData(data.elements[order], data.offsets))
    return float((given - moved).square().mean() / (2 * given.var(0).mean()).clamp_min(1e-30))


# --- the arm's model, penalty and augmentation


def build_model(method: str, setting: Setting, features: int, outputs: int, *, seed: int) -> nn.Module:
    """The model of ``method``, its weights drawn from ``seed``; the global generator is left as it was."""
    numbers = "task" in setting
    width = 100 if numbers else setting.get("hidden", 64)
    kind: type[SetModel] = RecurrentSetModel
    options: dict[str, Any] = {"activation": "tanh" if numbers else "relu"}
    names = "activation cell hidden layers encoder readout dropout readout_dropout gate_bias_span"
    names += " channels width bilinear"
    if method == "deepsets":
        kind, names = DeepSets, "phi rho pooling equivariant activation dropout"
        options = {"phi": (width, width), "rho": (width,), "pooling": "sum" if numbers else "mean"}
    elif method.startswith("set-transformer"):
        kind, names = SetTransformer, "variant decoder blocks dropout" + " hidden inducing" * (not numbers)
        options = {"layer_norm": True, "hidden": 64, "inducing": None if numbers else 16}
    elif method == "monoid":
        kind, names, options = CommutativeMonoid, "hidden", {}
    elif method.startswith("cnn"):
        kind, names, options = SmallCNN, "side dropout", {}
    options |= {name: setting[name] for name in names.split() if name in setting}
    if setting.get("embedding") is not None:
        options["embedding"] = (setting["alphabet"], setting["embedding"], "frozen")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if setting.get("cell") == "mamba":
            options |= mamba(options.pop("hidden"), outputs)
        return kind(features, outputs, **options)


def build_penalty(method: str, setting: Setting, model: Any) -> SIRE | SubsetPenalty | None:
    """The penalty of ``method``: SIRE (``prefixes``, ``window``), SUB, or the outputs of two orderings; None without.

    In the units of the state as in the paper, or ``relative`` to the end states; always so of a fold.
    """
    pairs, relative = setting.get("pairs", 1), method.startswith("fold") or setting.get("relative", False)
    if "sire" in method:
        drawn: dict[str, Any] = {name: setting.get(name) for name in ("prefixes", "window", "of")}
        return SIRE(**drawn, pairs=pairs, relative=relative)
    if method.startswith("consistency"):
        return PermutationPenalty(pairs=pairs, relative=relative, of=setting.get("of") or model.readout)
    return SubsetPenalty(pairs=pairs, relative=relative) if method.startswith("sub") else None


@dataclass(frozen=True)
class Variants:
    """Training sets a little different each time they are read, and small ones first: ``augment`` of ``train``.

    ``stretch``: every set is stretched along each feature by a factor of its own, from 1/``stretch`` to ``stretch``,
    even in logarithm. ``stages``, pairs of a share of the training and a number: up to that share only that many
    elements of each set are read, so that early steps cost less and a recurrence learns from short sequences first
    (a number alone: in the first half). They are the first ones in the order the set has then; with ``anew`` a random
    choice made each time, in that order. ``shuffled``: the share of batches whose sets are read in random orderings.
    """

    stretch: float = 1.0
    stages: int | Sequence[tuple[float, int]] = ()
    anew: bool = False
    shuffled: float = 0.0

    def __call__(
        self, elements: Tensor, lengths: Tensor | None, generator: torch.Generator, share: float
    ) -> tuple[Tensor, Tensor | None]:
        stages = [(0.5, self.stages)] if isinstance(self.stages, int) else self.stages
        most = next((number for end, number in stages if share < end), elements.shape[1])
        if most < elements.shape[1]:
            if self.anew:
                sizes = elements.new_full(elements.shape[:1], elements.shape[1], dtype=torch.int64)
                sizes = sizes if lengths is None else lengths
                fresh = random_orderings(sizes, elements.shape[1], 1, generator)[:, 0, :most]
                elements = reorder(elements, fresh.sort().values)
            elements = elements[:, :most]
            lengths = None if lengths is None else lengths.clamp(max=most)
        if self.shuffled and torch.rand((), generator=generator) < self.shuffled:
            sizes = elements.new_full(elements.shape[:1], elements.shape[1], dtype=torch.int64)
            orders = random_orderings(sizes if lengths is None else lengths, elements.shape[1], 1, generator)
            elements = reorder(elements, orders[:, 0])
        if self.stretch != 1.0:
            drawn = torch.rand(len(elements), 1, elements.shape[2], generator=generator, device=elements.device)
            elements = elements * self.stretch ** (2 * drawn - 1)
        return elements, lengths


def _targets(data: SetData) -> Tensor:
    assert data.targets is not None
    return data.targets


def _accuracy(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(1) == targets).float().mean())
