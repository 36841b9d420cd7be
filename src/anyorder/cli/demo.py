"""The demonstration: the same recurrence with and without SIRE on three tasks, an audit of each, and one page."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyorder as ao
from anyorder.audits.page import comparison_figure, render
from anyorder.files import write_atomically
from anyorder.paper.data import datasets

Sets = tuple[Any, np.ndarray]  # X and y
Columns = dict[str, Callable[[Any], str]]  # heading -> the figure of a model, as text
WITHOUT: dict[str, Any] = {"penalty": None, "penalty_weight": 0.0}


def run(out: Path, *, epochs: int | None = None) -> Path:
    """Train, compare and audit the models of each task; returns the page that was written into ``out``.

    ``epochs`` replaces the number of epochs of every task.
    """
    began = time.perf_counter()
    parts = [_baskets(epochs or 400), _parity(epochs or 100), _digits(epochs or 40)]
    proof = ao.certify(ao.known.parity(), torch.tensor([[0.0], [1.0]]), max_length=16)
    lengths = "every length" if proof.closed else "up to 16 elements"
    certified = f"The 12-parameter parity network of Theorem 4, certified: invariant at {lengths}: {proof.invariant}."
    print(f"\n{certified}")
    page = out / "demo.html"
    title = "What a penalty on order does to a recurrence"
    write_atomically(page, render("demo.html.j2", title=title, parts=parts, certified=certified))
    print(f"\nThe page with the pictures: {page} (made in {time.perf_counter() - began:.0f} s)")
    return page


def _part(title: str, task: str, models: dict[str, Any], train: Sets, columns: Columns, test: Sets) -> dict[str, Any]:
    """One part of the page: fit each model, print its figures in a line, and audit all on a test set."""
    print(f"\n{task}\n\n{'model':24}" + "".join(f"{heading:>12}" for heading in [*columns, "seconds"]))
    for name, model in models.items():
        start = time.perf_counter()
        model.fit(*train)
        figures = [measure(model) for measure in columns.values()]
        print(f"{name:24}" + "".join(f"{f:>12}" for f in [*figures, f"{time.perf_counter() - start:.0f}"]))
        task += f" {name}: " + ", ".join(f"{heading}: {f}" for heading, f in zip(columns, figures, strict=True)) + "."
    print("\nDoes order matter to them? The audit reads each test set in random orders:")
    comparison = ao.audit(models, test[0], labels=test[1], orderings=8, generator=torch.Generator().manual_seed(0))
    for name in models:
        print(f"  {name}: {comparison[name]}")
    figure = replace(comparison_figure(comparison), name=title.replace(" ", "-").lower())
    return {"title": title, "task": task, "comparison": comparison, "figures": [figure]}


# --- the price of a basket

BASKETS, TEST, ITEMS, GOODS, CODE = 200, 500, 10, 20, 32


def baskets(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Baskets of ten goods, each known by a code of random numbers ``[count, 10, 32]``, and their total prices."""
    codes = np.random.default_rng(0).uniform(-0.5, 0.5, (GOODS, CODE)).astype(np.float32)
    goods = np.random.default_rng(seed).integers(0, GOODS, (count, ITEMS))
    return codes[goods], goods.sum(axis=1).astype(np.float32)  # good number k costs k


def _baskets(epochs: int) -> dict[str, Any]:
    task = (
        f"The total price of a basket of {ITEMS} goods, each known only by a code of {CODE} random numbers. There are "
        f"{BASKETS} baskets for training and {TEST} for the test. A total has no order, but a GRU does not know that. "
        "SIRE tells the GRU."
    )

    def model(**options: Any) -> Any:
        return ao.SetRegressor(epochs=epochs, batch_size=100, learning_rate=3e-3, random_state=0, **options)

    gru = {"model_options": {"hidden": 80}}
    models = {
        "plain GRU": model(**gru, **WITHOUT),
        "SIRE, weight 30": model(**gru, penalty_weight=30.0),
        "Fold with SIRE": model(model_options={"cell": "fold", "channels": {"affine": 80}}, penalty_weight=100.0),
        "DeepSets": model(model="deepsets", **WITHOUT),
    }
    X, y = baskets(TEST, seed=2)
    columns: Columns = {
        "exact": lambda model: f"{(np.abs(model.predict(X) - y) < 0.5).mean():.1%}",
        "mean error": lambda model: f"{np.abs(model.predict(X) - y).mean():.2f}",
    }
    return _part("The price of a basket", task, models, baskets(BASKETS, seed=1), columns, (X, y))


# --- parity far beyond the training lengths

LENGTHS = [2, 5, 10, 20, 50, 100]


def bits(count: int, shortest: int, longest: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Sequences of bits, lengths uniform between the two, and whether the number of ones is odd."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, count)
    X = [rng.integers(0, 2, (length, 1)).astype(np.float32) for length in lengths]
    return X, np.array([int(x.sum()) % 2 for x in X])


def _parity(epochs: int) -> dict[str, Any]:
    task = (
        "Is the number of ones odd? A GRU of 20 units learns from 1,000 sequences of 2 to 10 bits. The test goes up to "
        "100 bits."
    )
    options: dict[str, Any] = {"epochs": epochs, "batch_size": 125, "learning_rate": 0.01, "random_state": 0}
    options["model_options"] = {"hidden": 20}
    models = {
        "plain GRU": ao.SetClassifier(**options, **WITHOUT),
        "SIRE, weight 0.1": ao.SetClassifier(**options, penalty_weight=0.1),
    }
    tests = {length: bits(500, length, length, seed=100 + length) for length in LENGTHS}
    columns: Columns = {f"n = {n}": lambda model, n=n: f"{model.score(*tests[n]):.1%}" for n in LENGTHS}  # type: ignore[misc]
    return _part("Parity up to length 100", task, models, bits(1000, 2, 10, seed=1), columns, tests[20])


# --- digits whose pixels are out of order


def _digits(epochs: int) -> dict[str, Any]:
    task = (
        "Which digit is it? The 64 pixels come one at a time. Each image is reordered at random inside windows of 4 "
        "and then of 7 pixels: order matters, but not nearby. The penalty is on swaps of pixels at most 4 apart."
    )
    digits = datasets.perturbed(datasets.digits())
    train, test = _pixels(digits.train), _pixels(digits.test)
    options: dict[str, Any] = {"epochs": epochs, "batch_size": 64, "learning_rate": 0.02, "random_state": 0}
    options["model_options"] = {"hidden": 64, "gate_bias_span": 64}
    swaps = ao.SIRE(prefixes="given", window=4, pairs=4)
    models = {
        "plain GRU": ao.SetClassifier(**options, **WITHOUT),
        "SIRE, nearby swaps": ao.SetClassifier(**options, penalty=swaps, penalty_weight=10.0),
    }
    columns: Columns = {"right": lambda model: f"{model.score(*test):.1%}"}
    return _part("Digits whose pixels are out of order", task, models, train, columns, test)


def _pixels(data: Any) -> tuple[np.ndarray, np.ndarray]:
    return data.elements.reshape(len(data), -1, 1).numpy(), data.targets.numpy()
