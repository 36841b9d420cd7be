from pathlib import Path

import anyorder.demo as demo


def test_a_short_demonstration_writes_its_page_and_says_what_it_did(tmp_path: Path) -> None:
    said: list[str] = []
    page = demo.run(tmp_path / "out", epochs=2, say=said.append)
    text = "\n".join(said)
    assert page.read_text().lower().startswith("<!doctype html>")
    for name in demo.CONTENDERS:
        assert name in text
        assert name in page.read_text()
    assert "invariant at every length: True" in text


def test_baskets_are_priced_by_what_is_in_them() -> None:
    sets, y = demo.baskets(50, seed=3)
    again, _ = demo.baskets(50, seed=3)
    assert (sets == again).all()
    assert sets.shape == (50, demo.ITEMS, demo.CODE)
    prices = {tuple(code): None for basket in sets for code in basket}
    assert len(prices) <= demo.GOODS
    assert y.min() >= 0
    assert y.max() <= demo.ITEMS * (demo.GOODS - 1)
