"""From a trial on a task to its rows: draw the sets, build the method's model, train, measure.

Every method sees the same sets (they depend on the seed alone), the same input, loss, optimiser, schedule and number
of steps. Training ends at the end of the one-cycle schedule with the weights it has then: nothing is picked by epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyorder.data.orderings import random_orderings, reorder
from anyorder.data.sets import SetData
from anyorder.models import DeepSets, RecurrentSetModel, SetTransformer, average_over_orderings
from anyorder.paper.data.tasks import TASKS, Task, splits
from anyorder.paper.runner.trial import ONE_ORDERING, Outcome, Trial, short, shuffles
from anyorder.penalties import SIRE, AdaptiveWeight, SubsetPenalty
from anyorder.penalties.order_gap import order_gap
from anyorder.training.loop import TrainConfig, train
from anyorder.training.predict import predict

PENALTIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "sire": lambda s: SIRE(s.get("prefixes"), s.get("window"), s.get("pairs", 1), relative=False),
    "sub": lambda s: SubsetPenalty(pairs=s.get("pairs", 1), relative=False),
}
VOTES = 20  # orderings that π-SGD averages over at test time, as many as in Janossy pooling's code
CURVE_POINTS = 30


def run_task(trial: Trial, data: Any, workdir: Path, *, device: str = "cpu") -> list[Outcome]:
    """Train ``trial.method`` on ``trial.setting`` and test it, once for each test length.

    The setting: ``task``, ``alphabet``, ``n`` (or ``[least, most]``), ``labels``, ``steps`` and ``epochs`` (whichever
    is longer), ``batch_size``, ``learning_rate``, ``embedding`` (dimensions of the frozen random input; None feeds the
    number itself) and what the method's model and penalty take; ``validation``, ``test`` (sizes); ``lengths`` (test
    lengths, default ``n``); ``unlabeled`` (samples for the penalty alone); ``target_gap`` (an ``AdaptiveWeight``
    instead of a weight); ``curve`` (keep the training curve); ``checkpoint`` (keep the run resumable inside a trial).
    """
    setting = dict(trial.setting)
    task = TASKS[setting["task"]]
    n, alphabet = _sizes(setting["n"]), setting["alphabet"]
    sizes = {"train": setting["labels"], "validation": setting["validation"]}
    if setting.get("unlabeled"):
        sizes["unlabeled"] = setting["unlabeled"]
    drawn = splits(task, sizes, n, alphabet=alphabet, seed=trial.seed)
    prepare = _Preparation(task, drawn["train"], setting["embedding"] is not None)
    model = build_model(trial.method, setting, seed=trial.seed)
    curve: dict[str, list[float]] = {"epoch": [], "seconds": [], "loss": [], "accuracy": []}
    validation = drawn["validation"]

    def figures(data: SetData) -> dict[str, float]:
        assert data.targets is not None
        found: dict[str, float] = {}
        for suffix, outputs in _predictions(trial.method, model, prepare(data)).items():
            outputs = prepare.in_label_units(outputs.cpu())
            measured = {"loss": task.loss(outputs, data.targets).item(), **task.metrics(outputs, data.targets)}
            found |= {name + suffix: short(value) for name, value in measured.items()}
        return found

    batches = math.ceil(setting["labels"] / setting["batch_size"])
    epochs = max(1, round(setting["steps"] / batches), setting.get("epochs", 0))
    every = max(1, epochs // CURVE_POINTS)

    spent = 0.0

    def log(record: dict[str, Any]) -> None:
        nonlocal spent
        spent += record["seconds"]
        if (record["epoch"] + 1) % every == 0:
            curve["epoch"].append(record["epoch"] + 1)
            curve["seconds"].append(short(spent))
            curve["loss"].append(short(record["loss"]))
            curve["accuracy"].append(short(figures(validation).get("accuracy", math.nan)))

    penalty, weight = _penalty(trial.method, setting)
    result = train(
        model,
        task.loss,
        prepare(drawn["train"]),
        config=TrainConfig(
            epochs=epochs,
            batch_size=setting["batch_size"],
            learning_rate=setting["learning_rate"],
            weight_decay=setting.get("weight_decay", 0.0),
            shuffle=shuffles(trial.method),
            gap_every=0,
            seed=trial.seed,
            device=device,
        ),
        penalty=penalty,
        penalty_weight=weight,
        unlabeled=prepare(drawn["unlabeled"]) if "unlabeled" in drawn else None,
        workdir=workdir if setting.get("checkpoint") else None,
        progress=False,
        log=log if setting.get("curve") else None,
    )
    model.cpu()  # what follows is measured there
    common = {
        "validation": figures(validation),
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "steps": result.steps,
        "reads": VOTES if trial.method == "pi-sgd" else 1,
    }
    if setting.get("curve"):
        common["curve"] = curve
    trained = figures(drawn["train"].select(torch.arange(min(2000, len(drawn["train"])))))
    extra = {"train_loss": trained["loss"]}
    if isinstance(weight, AdaptiveWeight):
        extra["final_weight"] = weight.weight
    outcomes = []
    for length in setting.get("lengths") or [n]:
        test = splits(task, {"test": setting["test"]}, length, alphabet=alphabet, seed=trial.seed)["test"]
        gaps = _gaps(model, prepare(test.select(torch.arange(min(512, len(test))))), trial.seed)
        metrics = {**figures(test), **extra, **gaps}
        outcomes.append({**common, "setting": {"length": length}, "metrics": {k: short(v) for k, v in metrics.items()}})
    return outcomes


def build_model(method: str, setting: dict[str, Any], *, seed: int) -> nn.Module:
    """The model of ``method``, its weights drawn from ``seed``; the global generator is left as it was.

    >>> build_model("deepsets", {"embedding": 16, "alphabet": 20}, seed=0)(torch.randint(20, (4, 5, 1))).shape
    torch.Size([4, 1])
    """
    dimensions = setting["embedding"]
    embedding = None if dimensions is None else (setting["alphabet"], dimensions, "frozen")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if method == "deepsets":
            return DeepSets(
                1,
                1,
                phi=setting.get("phi", (100, 100)),
                rho=setting.get("rho", (100,)),
                pooling=setting.get("pooling", "sum"),
                activation=setting.get("activation", "relu"),
                embedding=embedding,
            )
        if method == "set-transformer":
            return SetTransformer(
                1, 1, hidden=64, blocks=setting.get("blocks", 2), inducing=None, layer_norm=True, embedding=embedding
            )
        return RecurrentSetModel(
            1,
            1,
            cell=setting["cell"],
            hidden=setting["hidden"],
            readout=setting.get("readout"),
            activation="tanh",
            embedding=embedding,
        )


def _penalty(method: str, setting: dict[str, Any]) -> tuple[Any, Any]:
    make = PENALTIES.get(method.split("+")[0])
    if make is None:
        return None, 0.0
    if "target_gap" in setting:
        return make(setting), AdaptiveWeight(target=setting["target_gap"])
    return make(setting), setting["penalty_weight"]


def _sizes(n: Any) -> int | tuple[int, int]:
    return n if isinstance(n, int) else (n[0], n[1])


class _Preparation:
    """Sets as the models read them: targets standardised by the training sets', numbers as floats if not embedded."""

    def __init__(self, task: Task, train: SetData, embedded: bool) -> None:
        assert train.targets is not None
        self.embedded = embedded
        self.shift, self.scale = 0.0, 1.0
        if task.kind != "binary":
            self.shift, self.scale = train.targets.mean().item(), max(train.targets.std().item(), 1e-8)

    def __call__(self, data: SetData) -> SetData:
        elements = data.elements if self.embedded else data.elements.float()
        targets = None if data.targets is None else (data.targets - self.shift) / self.scale
        return SetData(elements, data.offsets, targets)

    def in_label_units(self, outputs: Tensor) -> Tensor:
        return outputs * self.scale + self.shift


def _predictions(method: str, model: nn.Module, data: SetData) -> dict[str, Tensor]:
    """Outputs by the suffix of their figures: π-SGD's are means over orderings, and once of the given one alone."""
    once = predict(model, data)
    if method != "pi-sgd":
        return {"": once}

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
            return average_over_orderings(self.model, elements, lengths, orderings=VOTES)

    return {"": predict(Mean(), data), ONE_ORDERING: once}


@torch.no_grad()
def _gaps(model: nn.Module, data: SetData, seed: int) -> dict[str, float]:
    """How much order matters on sets never seen: to the end state (recurrent models), and to the output.

    Both are mean squared distances between two orderings of a sample over that between two samples.
    """
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    elements, lengths = data.batch(torch.arange(len(data)))
    sizes = torch.full(elements.shape[:1], elements.shape[1]) if lengths is None else lengths
    order = random_orderings(sizes, elements.shape[1], 1, generator)[:, 0]
    outputs = model(elements, lengths)
    moved = (model(reorder(elements, order), lengths) - outputs).square().mean().item()
    gaps = {"output_gap": moved / max(2 * outputs.var().item(), 1e-30)}
    if hasattr(model, "recurrence"):
        gaps["state_gap_squared"] = order_gap(model, elements, lengths, generator=generator).item()
    else:
        gaps["state_gap_squared"] = gaps["output_gap"]
    return gaps
