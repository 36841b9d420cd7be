"""The benchmarks run, say what they measure, and know every figure the documentation names."""

import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from benchmarks import tables
from benchmarks.__main__ import PARTS, RESULTS, main
from benchmarks.timing import entry, medians

import anyorder as ao

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_quick_run_gives_well_formed_entries_and_touches_no_page(part: str) -> None:
    before = {p: p.stat().st_mtime_ns for p in (ROOT / "docs").rglob("*") if p.is_file()}
    for name, measured in importlib.import_module(f"benchmarks.{part}").run(quick=True).items():
        assert set(measured) == {"value", "goal", "better", "met", "what", "machine"}, name
        assert measured["better"] in {"lower", "higher"}
        assert (measured["met"] is None) == (measured["goal"] is None)
        json.dumps(measured)
    assert {p: p.stat().st_mtime_ns for p in (ROOT / "docs").rglob("*") if p.is_file()} == before


def test_an_unknown_part_is_refused(capsys) -> None:
    assert main(["cores"]) == 2
    assert "no part is called 'cores'; there are core" in capsys.readouterr().err


def test_medians_are_of_interleaved_repetitions() -> None:
    order = []
    medians({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repetitions=2, warm_up=0)
    assert order == ["a", "b", "b", "a"]


def test_goals_are_judged_by_what_is_better() -> None:
    assert entry(1.0, "", goal=1.05)["met"]
    assert not entry(1.1, "", goal=1.05)["met"]
    assert entry(3.1, "", goal=3.0, better="higher")["met"]


def test_the_kept_results_hold_every_figure_the_documentation_names() -> None:
    kept = json.loads(RESULTS.read_text())
    named = re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){2,})`", (ROOT / "docs" / "cost.md").read_text())
    assert len(named) >= 10
    assert set(named) <= set(kept)


def test_the_page_of_tables_is_made_from_the_rows() -> None:
    assert tables.page(tables.RESULTS) == tables.PAGE.read_text(), "python -m benchmarks.tables page"


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (ao.SIRE(prefixes="given", window=1, pairs=500), lambda n: 2),
        (ao.SIRE(prefixes="given", window=4, pairs=500), lambda n: 3),
        (ao.SIRE(prefixes="random", pairs=500), lambda n: n / 2 + 3),
        (ao.SubsetPenalty(pairs=500), lambda n: n + 2),
        (ao.PermutationPenalty(pairs=500), lambda n: 2 * n),
    ],
)
def test_a_penalty_takes_the_extra_steps_the_documentation_says(penalty, expected, generator) -> None:
    steps = 0

    def step(element: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += len(element)
        return state + element

    n = 20
    trajectory = ao.recurrence(step, start=torch.zeros(1, 1)).scan(torch.rand(4, n, 1, generator=generator))
    steps = 0
    penalty(trajectory, generator=generator)
    assert steps / 4 / penalty.pairs == pytest.approx(expected(n), rel=0.03)
    formula = {2: "| 2P |", 3: "| 3P |", n / 2 + 3: "| P(n/2 + 3) ", n + 2: "| P(n + 2) ", 2 * n: "| 2Pn |"}
    assert formula[expected(n)] in (ROOT / "docs" / "cost.md").read_text()
