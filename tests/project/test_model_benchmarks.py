from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import compactness
from benchmarks import models as costs

ROOT = Path(__file__).parents[2]


def bits_of(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = counts.sum(1).long()
    return (torch.arange(int(lengths.max())) < counts[:, 1:]).to(counts.dtype)[:, :, None], lengths


@pytest.mark.parametrize("longest", [1, 2, 5, 16])
def test_parity_by_hand_is_exact(longest):
    counts, parity = compactness.multisets(longest)
    assert torch.equal(compactness.by_hand(longest)(*bits_of(counts))[:, 0], parity)
    assert compactness.recurrence_errors(longest) == 0


def test_a_fit_that_was_found_is_a_fit_of_the_whole_model():
    model = next(m for seed in range(5) if (m := compactness.fit(4, 8, seed, 100)))
    counts, parity = compactness.multisets(4)
    assert len(counts) == 2 + 3 + 4 + 5
    assert torch.equal(model(*bits_of(counts.double()))[:, 0] > 0, parity > 0)


def test_no_fit_is_found_where_none_exists():
    assert compactness.smallest_width(4, 2, 20, [1, 2]) is None  # n − 1 = 3 units are needed


def test_every_registered_model_is_timed():
    from anyorder.models import MODELS

    elsewhere = {"standardised", "monoid", "seft"}  # a wrapper costs what is inside; two peers of other experiments
    assert {build(16).name for build in costs.MODELS.values()} == set(MODELS) - elsewhere


def test_the_table_in_the_docs_is_that_of_the_results():
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    page = (ROOT / "docs" / "choosing.md").read_text()
    assert f"{costs.BEGIN}\n{costs.table_of(results)}\n{costs.END}" in page


def test_the_table_goes_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{costs.BEGIN}\nold\n{costs.END}\nafter\n")
    results = {"inference_deepsets_over_recurrent_n100": {"value": 0.25}, "another": {"value": 3}}
    for _ in range(2):
        costs.write_table(results, page)
    assert page.read_text() == (
        f"before\n{costs.BEGIN}\n| time over RecurrentSetModel's | inference, n = 100 |\n|---|---|\n"
        f"| deepsets | 0.25 |\n{costs.END}\nafter\n"
    )


def test_every_figure_is_shown_on_a_page(tmp_path):
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    for figure in (ROOT / "docs" / "figures").iterdir():
        assert f"figures/{figure.name}" in pages
    compactness.draw({4: 5, 8: 12}, tmp_path)
    assert [figure.name for figure in tmp_path.iterdir()] == ["compactness.svg"]
