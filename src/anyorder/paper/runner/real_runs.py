"""From a trial on real data to its rows: split, standardise, train the method's model, measure on the test part.

Every method of a seed sees the same split, the same labeled share, the same loss, optimiser, schedule and number of
steps. A validation part is cut from the training part (by person where people are known); the test part is read once,
after training. Where labels are few, the rest of the training part is left without them, and only a penalty uses it.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn

from anyorder.data.sets import SetData
from anyorder.models import DeepSets, RecurrentSetModel, SetTransformer
from anyorder.paper.data import datasets
from anyorder.paper.data.datasets import Dataset
from anyorder.paper.peers import SmallCNN
from anyorder.paper.runner.trial import Outcome, Setting, Trial, short, shuffles
from anyorder.paper.runner.variants import Variants
from anyorder.penalties import SIRE
from anyorder.penalties.order_gap import order_gap
from anyorder.training.loop import TrainConfig, train
from anyorder.training.predict import predict

GAP_SETS = 512  # test sets on which the dependence on order is measured


def run_split(
    trial: Trial, data: Any, workdir: Path, *, device: str = "cpu", orderings: int | None = None
) -> list[Outcome]:
    """Train ``trial.method`` on the training part of a :class:`Dataset` and test it on the test part.

    ``data`` (or ``points``) of the setting names the data set where there are several. Further: ``labels`` (the share
    of the training part that keeps them), ``steps`` or ``epochs``, ``batch_size``, ``learning_rate``, ``validation``
    (its share of the training part), ``standardize`` (True, or the deviation that every feature gets), ``votes``
    (orderings that π-SGD averages over), ``shuffle_within`` (windows that fresh orderings stay in), ``truncate``
    (window of truncated backpropagation), ``stretch``, ``begin_with`` (so many elements of each set in the first half
    of the training, or the ``stages`` of :class:`Variants`), ``begin_anew`` (its ``anew``), ``label_smoothing``,
    ``mixed_precision``, ``track`` (measure the validation part after every epoch, draw it, and keep the best epoch),
    and what the method's model and penalty take. With ``orderings`` a recurrence is also tested by the
    mean of its answers to so many random orderings of each set.
    """
    wanted = trial.setting.get("data", str(trial.setting.get("points")))
    chosen = data if isinstance(data, Dataset) else data[wanted]
    assert chosen.test is not None
    rest, held = datasets.split_index(chosen.train, trial.setting["validation"], seed=trial.seed, groups=chosen.groups)
    parts = chosen.train.select(rest), chosen.train.select(held), chosen.test
    outcome = _train_and_test(trial, parts, len(chosen.class_names), workdir, device, orderings)
    return [outcome]


def run_folds(trial: Trial, data: Any, workdir: Path, *, device: str = "cpu") -> list[Outcome]:
    """Cross-validate: ``folds`` trainings, every bag tested once; a seed is one repetition with folds of its own.

    The metrics are the means over folds (weighted by their sizes), so an accuracy is that over all bags.
    """
    bags = data[trial.setting["data"]].train
    outcomes, sizes = [], []
    for number, (train_index, test_index) in enumerate(datasets.folds(bags, trial.setting["folds"], seed=trial.seed)):
        rest, held = datasets.split(bags.select(train_index), trial.setting["validation"], seed=trial.seed)
        parts = rest, held, bags.select(test_index)
        outcomes.append(_train_and_test(trial, parts, 2, workdir / f"fold-{number}", device))
        sizes.append(len(test_index))

    def mean(kind: str) -> dict[str, float]:
        keys = outcomes[0][kind]
        return {k: short(sum(o[kind][k] * n for o, n in zip(outcomes, sizes, strict=True)) / sum(sizes)) for k in keys}

    alike = {key: outcomes[0][key] for key in ("parameters", "steps", "reads")}
    return [{"validation": mean("validation"), "metrics": mean("metrics"), **alike}]


def _train_and_test(
    trial: Trial,
    parts: tuple[SetData, SetData, SetData],
    classes: int,
    workdir: Path,
    device: str,
    orderings: int | None = None,
) -> dict[str, Any]:
    setting, method = dict(trial.setting), trial.method
    if spread := setting.get("standardize"):
        parts = tuple(datasets.standardized(*parts, spread=float(spread)))  # type: ignore[assignment]
    labeled, validation, test = parts
    unlabeled = None
    if setting["labels"] < 1:
        labeled, unlabeled = datasets.few_labels(labeled, setting["labels"], seed=trial.seed)
    workdir.mkdir(parents=True, exist_ok=True)
    model = build_model(method, setting, labeled.elements.shape[1], classes, seed=trial.seed)
    penalty = build_penalty(method, setting)
    track = bool(setting.get("track"))
    batches = math.ceil(len(labeled) / setting["batch_size"])
    config = TrainConfig(
        epochs=setting["epochs"] if "epochs" in setting else max(1, round(setting["steps"] / batches)),
        batch_size=setting["batch_size"],
        learning_rate=setting["learning_rate"],
        weight_decay=setting.get("weight_decay", 0.0),
        shuffle=shuffles(method),
        shuffle_within=setting.get("shuffle_within"),
        mixed_precision=setting.get("mixed_precision"),
        truncate=setting.get("truncate") if isinstance(model, RecurrentSetModel) else None,
        gap_every=0,
        seed=trial.seed,
        device=device,
    )
    penalised: dict[str, Any] = {}
    if penalty is not None:
        penalised = {"penalty": penalty, "penalty_weight": setting["penalty_weight"], "unlabeled": unlabeled}
    variants = Variants(setting.get("stretch", 1.0), stages(setting), setting.get("begin_anew", False))
    smoothing = setting.get("label_smoothing", 0.0)
    result = train(
        model,
        partial(nn.functional.cross_entropy, label_smoothing=smoothing) if smoothing else "cross-entropy",
        labeled,
        config=replace(config, maximize=track, gap_every=1 if track else 0),
        validation=validation if track else None,
        metric=_accuracy if track else None,
        augment=None if variants == Variants() else variants,
        workdir=workdir,
        progress=False,
        **penalised,
    )
    model.cpu()  # what follows is measured there
    votes = setting.get("votes", 5) if method == "pi-sgd" else 1
    last = result.history[-1]
    measured = {
        **_figures(model, test, votes, trial.seed),
        **order_figures(model, test, trial.seed),
        "train_loss": last["loss"],
        "training_seconds": result.seconds,
        "samples_per_second": len(labeled) * len(result.history) / max(result.seconds, 1e-9),
    }
    if orderings is not None and isinstance(model, RecurrentSetModel):
        measured[f"accuracy_{orderings}_orderings"] = _figures(model, test, orderings, trial.seed)["accuracy"]
    outcome: dict[str, Any] = {
        "validation": _shortened(_figures(model, validation, votes, trial.seed)),
        "metrics": _shortened(measured),
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "steps": result.steps,
        "reads": votes,
    }
    if isinstance(model, RecurrentSetModel) and device == "cpu":
        rate = rate_over_plain_torch(model, labeled, config, **penalised)
        outcome["metrics"]["step_rate_over_plain_torch"] = short(rate)
    if track:
        keys = ("epoch", "seconds", "loss", "validation", "gap")
        outcome["curve"] = {
            key: [short(r[key]) if r[key] is not None else None for r in result.history] for key in keys
        }
    return outcome


def rate_over_plain_torch(
    model: RecurrentSetModel, data: SetData, config: TrainConfig, *, batches: int = 3, rounds: int = 3, **penalised: Any
) -> float:
    """How fast a few training steps are against the same network in plain PyTorch: nn.GRU, no penalty, Adam.

    Both take the same batches in turn, in the same precision, their steps alone being timed; the best of ``rounds``
    counts.
    """
    some = data.select(torch.arange(batches * config.batch_size) % len(data))
    ours, plain = [], []
    for _ in range(rounds):
        few, own = replace(config, epochs=1), copy.deepcopy(model).train()
        ours.append(train(own, "cross-entropy", some, config=few, progress=False, **penalised).seconds)
        plain.append(_plain_torch_seconds(model, some, config))
    return min(plain) / min(ours)


def _plain_torch_seconds(model: RecurrentSetModel, data: SetData, config: TrainConfig) -> float:
    """An epoch over ``data`` with the encoder and the read-out of ``model`` around a torch.nn.GRU of its size."""
    width, hidden = model.encode(data.batch(torch.arange(1))[0]).shape[2], model.recurrence.start(1).shape[-1]
    encoder, head = (copy.deepcopy(part).train() for part in (model.encoder, model.readout))
    gru = nn.GRU(width, hidden, batch_first=True)
    optimizer = torch.optim.Adam([*encoder.parameters(), *gru.parameters(), *head.parameters()])
    assert data.targets is not None
    began = time.perf_counter()
    for index in torch.arange(len(data)).split(config.batch_size):
        elements, _ = data.batch(index)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=config.mixed_precision == "bf16"):
            states, _ = gru(encoder(elements))
            loss = nn.functional.cross_entropy(head(states[:, -1]), data.targets[index])
        loss.backward()
        optimizer.step()
    return time.perf_counter() - began


def stages(setting: Setting) -> tuple[tuple[float, int], ...]:
    """How many elements of each set are read up to which share of the training: the setting ``begin_with``.

    >>> stages({"begin_with": 40}), stages({})
    (((0.5, 40),), ())
    """
    begin = setting.get("begin_with", ())
    return ((0.5, begin),) if isinstance(begin, int) else tuple((share, number) for share, number in begin)


def build_model(method: str, setting: dict[str, Any], features: int, classes: int, *, seed: int) -> nn.Module:
    """The model of ``method``, its weights drawn from ``seed``; the global generator is left as it was.

    >>> build_model("cnn", {"side": 8}, 1, 10, seed=0)(torch.rand(2, 64, 1)).shape
    torch.Size([2, 10])
    """
    width, dropout = setting.get("hidden", 64), setting.get("dropout", 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if method == "deepsets":
            return DeepSets(
                features,
                classes,
                phi=setting.get("phi", (width, width)),
                rho=setting.get("rho", (width,)),
                pooling=setting.get("pooling", "mean"),
                equivariant=setting.get("equivariant", False),
                activation=setting.get("activation", "relu"),
                dropout=dropout,
            )
        if method == "set-transformer":
            inducing = setting.get("inducing", 16)
            return SetTransformer(features, classes, hidden=width, inducing=inducing, layer_norm=True, dropout=dropout)
        if method.startswith("cnn"):
            return SmallCNN(features, classes, side=setting["side"], dropout=dropout)
        return RecurrentSetModel(
            features,
            classes,
            cell=setting.get("cell", "gru"),
            hidden=width,
            encoder=setting.get("encoder"),
            readout=setting.get("readout"),
            activation=setting.get("activation", "relu"),
            dropout=dropout,
            readout_dropout=setting.get("readout_dropout", 0.0),
            gate_bias_span=setting.get("gate_bias_span"),
        )


def build_penalty(method: str, setting: dict[str, Any]) -> SIRE | None:
    """Full SIRE (``states`` of the setting); for ``sire-prefix-…``, swaps within its ``window`` of the given order."""
    if not method.startswith("sire"):
        return None
    if method.startswith("sire-prefix"):
        return SIRE(window=setting["window"], pairs=setting.get("pairs", 1), relative=False)
    return SIRE(setting.get("prefixes"), pairs=setting.get("pairs", 1), relative=False)


def _figures(model: nn.Module, data: SetData, votes: int, seed: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    probabilities = predict(model, data, orderings=votes, generator=generator, finish=_softmax)
    assert data.targets is not None
    targets, guessed = data.targets, probabilities.argmax(1)
    return {
        "accuracy": _accuracy(probabilities, targets),
        "macro_f1": float(f1_score(targets.numpy(), guessed.numpy(), average="macro", zero_division=0)),
        "loss": float(nn.functional.nll_loss(probabilities.clamp_min(1e-12).log(), targets)),
    }


@torch.no_grad()
def order_figures(model: nn.Module, data: SetData, seed: int) -> dict[str, float]:
    """How much order matters on sets never seen.

    ``flip_rate``: how often a random ordering changes the predicted class; ``accuracy_shuffled``: the accuracy under
    it; ``state_gap_squared``: squared distance of end states (of a recurrence; else of outputs) of two orderings of a
    set over that of two sets; ``adjacent_gap``: the same for one swap of neighbours.
    """
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(data), generator=generator)[:GAP_SETS]
    some = data.select(index)
    elements, lengths = some.batch(torch.arange(len(some)))
    given = predict(model, some)
    shuffled = predict(model, _shuffled(some, generator))
    assert some.targets is not None
    figures = {
        "flip_rate": float((given.argmax(1) != shuffled.argmax(1)).float().mean()),
        "accuracy_shuffled": _accuracy(shuffled, some.targets),
    }
    if isinstance(model, RecurrentSetModel):
        few = slice(0, max(2, min(len(some), 2**16 // elements.shape[1])))
        sizes = None if lengths is None else lengths[few]
        figures["state_gap_squared"] = float(order_gap(model, elements[few], sizes, generator=generator))
        adjacent = SIRE(prefixes="given", window=1, pairs=4, relative=True)
        figures["adjacent_gap"] = float(adjacent(model, elements[few], sizes, generator=generator))
    else:
        moved = (given - shuffled).square().mean()
        figures["state_gap_squared"] = float(moved / (2 * given.var(0).mean()).clamp_min(1e-30))
    return figures


def _shuffled(data: SetData, generator: torch.Generator) -> SetData:
    """Every set in a random order of its own."""
    key = torch.rand(len(data.elements), generator=generator)
    owner = torch.repeat_interleave(torch.arange(len(data)), data.lengths)
    order = torch.argsort(key)
    order = order[torch.argsort(owner[order], stable=True)]
    return SetData(data.elements[order], data.offsets, data.targets)


def _accuracy(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(1) == targets).float().mean())


def _softmax(outputs: Tensor) -> Tensor:
    return outputs.softmax(1)


def _shortened(figures: dict[str, float]) -> dict[str, float]:
    return {key: short(value) for key, value in figures.items()}
