from pathlib import Path

import numpy as np
import pytest

import anyorder.cli.demo as demo


@pytest.mark.slow
def test_a_short_demonstration_writes_its_page_and_says_what_it_did(tmp_path: Path, capsys) -> None:
    page = demo.run(tmp_path / "out", epochs=1)
    text = capsys.readouterr().out
    assert page.read_text().lower().startswith("<!doctype html>")
    named = ["plain GRU", "SIRE, weight 30", "Fold with SIRE", "DeepSets", "SIRE, weight 0.1", "SIRE, nearby swaps"]
    for name in named:
        assert name in text
        assert name in page.read_text()
    assert "invariant at every length: True" in text


def test_parity_is_of_the_ones() -> None:
    X, y = demo.bits(200, 2, 10, seed=0)
    assert {len(x) for x in X} == set(range(2, 11))
    assert [int(x.sum()) % 2 for x in X] == y.tolist()
    assert 0.3 < y.mean() < 0.7


def test_baskets_are_priced_by_what_is_in_them() -> None:
    sets, y = demo.baskets(50, seed=3)
    again, _ = demo.baskets(50, seed=3)
    assert (sets == again).all()
    assert sets.shape == (50, demo.ITEMS, demo.CODE)
    codes, goods = np.unique(sets.reshape(-1, demo.CODE), axis=0, return_inverse=True)
    assert len(codes) == demo.GOODS
    counts = np.stack([np.bincount(basket, minlength=demo.GOODS) for basket in goods.reshape(50, demo.ITEMS)])
    prices = np.linalg.lstsq(counts, y, rcond=None)[0]
    np.testing.assert_allclose(counts @ prices, y, atol=1e-3)
    np.testing.assert_allclose(sorted(prices), range(demo.GOODS), atol=1e-3)
