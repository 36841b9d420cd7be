"""What each set model costs beside RecurrentSetModel: inference, a training step, and one more element.

64 hidden units, 8 features, 8 sets of n elements, one thread; ratios of medians of interleaved repetitions. A model
that streams takes in one more element; the others must look at the whole set again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anyorder as ao
from anyorder.models import (
    DeepSets,
    JanossyPooling,
    MultiAggregation,
    RecurrentSetModel,
    SetModel,
    SetTransformer,
)
from anyorder.paper.runner.arms import SmallCNN
from benchmarks.pyg import PygModel
from benchmarks.timing import entry, medians

FEATURES, CLASSES, BATCH = 8, 10, 8
DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- costs: made by python -m benchmarks models -->", "<!-- end of costs -->"

MODELS: dict[str, Callable[[int], SetModel]] = {
    "recurrent": lambda n: RecurrentSetModel(FEATURES, CLASSES),
    "deepsets": lambda n: DeepSets(FEATURES, CLASSES),
    "deepsets_equivariant": lambda n: DeepSets(FEATURES, CLASSES, equivariant=True),
    "multi_aggregation": lambda n: MultiAggregation(FEATURES, CLASSES),
    "set_transformer": lambda n: SetTransformer(FEATURES, CLASSES),
    "set_transformer_sab": lambda n: SetTransformer(FEATURES, CLASSES, inducing=None),
    "janossy": lambda n: JanossyPooling(FEATURES, CLASSES),
    "janossy_pairs": lambda n: JanossyPooling(FEATURES, CLASSES, k=2),
    "cnn": lambda n: SmallCNN(FEATURES, CLASSES, side=_side(n)),
    "pyg_gru": lambda n: PygModel(FEATURES, CLASSES, "gru"),
    "pyg_lstm": lambda n: PygModel(FEATURES, CLASSES, "lstm"),
    "pyg_lcm": lambda n: PygModel(FEATURES, CLASSES, "lcm"),
    "pyg_set_transformer": lambda n: PygModel(FEATURES, CLASSES, "set-transformer"),
    "pyg_set2set": lambda n: PygModel(FEATURES, CLASSES, "set2set"),
}
NOTES = {
    "janossy": ", π-SGD: 20 orderings at inference, 1 in training",
    "janossy_pairs": ", all ordered pairs",
    "set_transformer": " with ISAB, 16 points",
    "set_transformer_sab": " with SAB",
    "cnn": " on the square image nearest to n pixels",
}
PAIRS_AT_MOST = 200  # n² pairs of larger sets do not fit in memory beside the others


def _side(n: int) -> int:
    return round(n**0.5)


def _batch(name: str, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(BATCH, _side(n) ** 2 if name == "cnn" else n, FEATURES, generator=generator)


def inference(model: SetModel, elements: Tensor) -> Callable[[], None]:
    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(elements)

    return run


def training_step(model: SetModel, elements: Tensor) -> Callable[[], None]:
    labels = torch.arange(BATCH) % CLASSES
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> None:
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(elements), labels).backward()
        optimizer.step()

    return run


def costs(sizes: list[int], repetitions: int) -> dict[str, dict[str, Any]]:
    """Inference and training step of every model over RecurrentSetModel's, at each n."""
    results = {}
    for n in sizes:
        names = [name for name in MODELS if name != "janossy_pairs" or n <= PAIRS_AT_MOST]
        models = {name: MODELS[name](n) for name in names}
        for kind, make in (("inference", inference), ("training", training_step)):
            seconds = medians({name: make(models[name], _batch(name, n)) for name in names}, repetitions)
            for name in names[1:]:
                what = f"{kind} of {name}{NOTES.get(name, '')} over RecurrentSetModel's, {BATCH} sets of n = {n}"
                results[f"{kind}_{name}_over_recurrent_n{n}"] = entry(seconds[name] / seconds["recurrent"], what)
    return results


def adding(sizes: list[int], repetitions: int) -> dict[str, dict[int, float]]:
    """Seconds to have the answer for one element more, for sets of each size already read."""
    element = torch.randn(FEATURES)
    contenders: dict[str, Callable[[], Any]] = {}
    for name in ("recurrent", "deepsets", "set_transformer", "set_transformer_sab"):
        for n in sizes:
            model = MODELS[name](n).eval()
            elements = torch.randn(1, n + 1, FEATURES)
            contenders[f"{name} {n}"] = (
                _stream(model, elements[0, :n], element) if model.streams else _again(model, elements)
            )
    seconds = medians(contenders, repetitions, warm_up=2)
    table: dict[str, dict[int, float]] = {}
    for key, value in seconds.items():
        name, n = key.split()
        table.setdefault(name, {})[int(n)] = value
    return table


def _stream(model: SetModel, seen: Tensor, element: Tensor) -> Callable[[], Any]:
    stream = ao.Stream(model)
    stream.update(seen)

    def run() -> Any:
        stream.update(element)
        return stream.value()

    return run


def _again(model: SetModel, elements: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return model(elements)

    return run


def growth(table: dict[str, dict[int, float]]) -> dict[str, dict[str, Any]]:
    """How the cost of one more element grows from the smallest set to the largest."""
    few, many = min(table["recurrent"]), max(table["recurrent"])
    results = {}
    for name, seconds in table.items():
        what = f"{name}: one more element to a set of {many} over one more to a set of {few}"
        goal = 1.5 if name == "recurrent" else None
        results[f"add_element_{name}_large_over_small"] = entry(seconds[many] / seconds[few], what, goal=goal)
    return results


def draw(results: dict[str, dict[str, Any]], table: dict[str, dict[int, float]], sizes: list[int]) -> None:
    """The ratios (``model_costs``) and the cost of one more element (``one_more_element``)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in MODELS if name != "recurrent"]
    figure, axes = plt.subplots(1, 2, figsize=(10, 5), sharey=True, layout="constrained")
    for axis, kind in zip(axes, ("inference", "training"), strict=True):
        for n, colour, marker in zip(sizes, ("#e08a3c", "#1b6ca8"), "os", strict=True):
            found = [(results.get(f"{kind}_{name}_over_recurrent_n{n}"), i) for i, name in enumerate(names)]
            ratios, places = zip(*[(cell["value"], i) for cell, i in found if cell], strict=True)
            axis.plot(ratios, places, marker, color=colour, label=f"n = {n}")
        axis.axvline(1, color="black", lw=1)
        axis.set(xscale="log", xlabel=f"{kind}: time over RecurrentSetModel's", yticks=range(len(names)))
        axis.set_yticklabels([name.replace("_", " ") for name in names])
        axis.grid(alpha=0.3)
    axes[0].invert_yaxis()
    axes[1].legend(frameon=False)
    _save(figure, "model_costs")
    figure, axis = plt.subplots(figsize=(5.5, 3.8), layout="constrained")
    for name, seconds in table.items():
        axis.plot(list(seconds), [1e3 * s for s in seconds.values()], "o-", label=name.replace("_", " "))
    axis.set(xscale="log", yscale="log", xlabel="elements already seen", ylabel="milliseconds for one more")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    _save(figure, "one_more_element")
    plt.close("all")


def _save(figure: Any, name: str) -> None:
    (DOCS / "figures").mkdir(parents=True, exist_ok=True)
    figure.savefig(DOCS / "figures" / f"{name}.svg", metadata={"Date": None})


def table_of(results: dict[str, dict[str, Any]]) -> str:
    """The ratios as one Markdown table."""
    found = [re.fullmatch(r"(inference|training)_(\w+)_over_recurrent_n(\d+)", name) for name in results]
    keys = [match.groups() for match in found if match]
    columns = sorted({(kind, int(n)) for kind, _, n in keys})
    names = [name for name in MODELS if any(name == key[1] for key in keys)]
    lines = ["| time over RecurrentSetModel's | " + " | ".join(f"{kind}, n = {n}" for kind, n in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for name in names:
        cells = [results.get(f"{kind}_{name}_over_recurrent_n{n}") for kind, n in columns]
        words = [f"{cell['value']:.2g}" if cell else "not run" for cell in cells]
        lines.append(f"| {name.replace('_', ' ')}{NOTES.get(name, '')} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def write_table(results: dict[str, dict[str, Any]], page: Path = DOCS / "choosing.md") -> None:
    """Put the table into the page, between its two marks."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table_of(results)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def run(quick: bool = False) -> dict[str, dict[str, Any]]:
    """All of it; the figures and the table in docs/choosing.md are made unless ``quick``."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sizes, repetitions = ([16, 36], 1) if quick else ([100, 1000], 7)
        results = costs(sizes, repetitions)
        table = adding([10, 40] if quick else [100, 300, 1000, 3000], 3 if quick else 25)
    finally:
        torch.set_num_threads(threads)
    results |= growth(table)
    if not quick:
        draw(results, table, sizes)
        write_table(results)
    return results
