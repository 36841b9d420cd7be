"""Audits of texts and objects, and of predictors that sample, wait or answer with text."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading

import numpy as np
import pandas as pd
import pytest
import torch

import anyorder as ao
from predictors import last, rng

WORDS = [["plum", "fig", "date"], ["kiwi", "lime"], ["pear", "nut", "sloe", "yam"], ["bean"]]


def first(words):
    return words[0]


# Any kind of element


@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("waits", [False, True])
def test_texts_by_a_call_of_any_kind(batch_size, concurrency, waits):
    """One set or a list of them, at once or side by side, async or not: the same figures."""

    def answer(sets):
        return first(sets) if batch_size is None else [first(words) for words in sets]

    async def later(sets):
        await asyncio.sleep(0)
        return answer(sets)

    options = {"batch_size": batch_size, "concurrency": concurrency, "generator": rng()}
    report = ao.audit(later if waits else answer, WORDS * 10, orderings=16, **options)
    expected = np.mean([2 / 3, 1 / 2, 3 / 4, 0])
    assert report.task == "classification"
    assert report.flip_rate_ci[0] <= expected <= report.flip_rate_ci[1]
    assert report.flip_rate == report.output_gap
    assert report.noise_flip_rate == report.unparsed == 0
    assert 560 <= report.calls <= 560 + (120 if batch_size == 3 else 0)  # for the last, other batches
    assert first([WORDS[report.worst_set % 4][i] for i in report.worst_ordering]) != first(WORDS[report.worst_set % 4])
    assert (
        report.flip_rate == ao.audit(answer, WORDS * 10, orderings=16, batch_size=batch_size, generator=rng()).flip_rate
    )


def test_dicts_paths_and_rows_of_dataframes(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(bytes([i]))
    dicts = [[{"x": i, "y": "a"} for i in range(3)]] * 4
    assert ao.audit(lambda s: [e["x"] for e in s][-1], dicts, generator=rng()).output_gap > 0
    paths = [[tmp_path / f"{i}.png" for i in range(3)]] * 4
    assert ao.audit(lambda s: sum(p.read_bytes()[0] for p in s), paths, generator=rng()).worst_gap == 0
    frames = [pd.DataFrame({"t": [1, 2, 3], "name": list("abc")})] * 4
    seen = []

    def newest(frame):
        seen.append(type(frame))
        return frame["name"].iloc[-1]

    report = ao.audit(newest, frames, generator=rng())
    assert set(seen) == {pd.DataFrame}
    assert report.flip_rate == pytest.approx(2 / 3, abs=0.15)
    assert report.worst[0].elements.tolist() == [[1, "a"], [2, "b"], [3, "c"]]


def test_worst_orderings_of_texts_are_searched_on_request():
    words = [[f"{i}" for i in range(8)]]
    report = ao.audit(lambda s: float(s == words[0][::-1]), words, orderings=2, search=50, generator=rng())
    assert report.worst_gap == 1
    assert report.worst_ordering.tolist() == list(range(8))[::-1]


@pytest.mark.parametrize(
    ("sets", "error"), [([], ValueError), (["ab", "cd"], TypeError), ([{"a": 1}], TypeError), ([[["a"]], 3], TypeError)]
)
def test_what_is_no_list_of_sets_is_refused(sets, error):
    with pytest.raises(error, match="set"):
        ao.audit(first, sets)


def test_answers_of_different_kinds_are_refused():
    with pytest.raises(ao.checks.InputError, match="predict"):
        ao.audit(lambda s: 3.0 if s[0] == "plum" else [1.0, 2.0], WORDS, generator=rng())
    with pytest.raises(ao.checks.InputError, match="predict failed"):
        ao.audit(lambda s: s[7], WORDS, generator=rng())


# The noise floor


def sampler(order_weight, seed=0):
    """A coin, or with probability ``order_weight`` the last element, of sets of numbers 0 and 1."""
    source = np.random.default_rng(seed)

    def predict(elements):
        coin = source.integers(2, size=len(elements))
        reads = source.random(len(elements)) < order_weight
        return np.where(reads, elements[:, -1, 0], coin)

    return predict


def test_the_floor_of_a_predictor_that_samples_is_taken_off():
    """The same order flips a class with (1 − w²)/2, another order with that and w² times half of its due."""
    x = np.random.default_rng(1).integers(2, size=(400, 6, 1)).astype(float)
    for weight in (0.0, 0.6):
        report = ao.audit(sampler(weight), x, task="classification", orderings=8, search=0, generator=rng())
        added = weight**2 * (5 / 6) / 2
        assert report.noise_flip_rate_ci[0] <= (1 - weight**2) / 2 <= report.noise_flip_rate_ci[1]
        assert report.excess_flip_rate == pytest.approx(report.flip_rate - report.noise_flip_rate)
        assert report.excess_flip_rate_ci[0] <= added <= report.excess_flip_rate_ci[1]
        assert str(report).startswith("Order matters" if weight else "Order adds nothing that stands out")


def test_paired_excess_covers_its_truth():
    """80 audits of a sampler at nominal 95 %, and none of a floor alone is told to depend on order more often."""
    covered = 0
    for case in range(80):
        x = np.random.default_rng(case).integers(2, size=(60, 4, 1)).astype(float)
        options = {"task": "classification", "orderings": 6, "search": 0, "generator": rng(case)}
        low, high = ao.audit(sampler(0.5, case), x, **options).excess_flip_rate_ci
        covered += low <= 0.25 * (3 / 4) / 2 <= high
    assert covered >= 0.92 * 80 - 3


def test_a_deterministic_predictor_has_no_floor():
    report = ao.audit(last, torch.randn(30, 5, 1, generator=rng()), generator=rng())
    assert report.noise_output_gap == 0
    assert report.noise_output_gap_ci == (0.0, 0.0)
    assert report.excess_output_gap == report.output_gap
    assert report.excess_output_gap_ci == report.output_gap_ci
    assert report.order_gap_ci[0] < report.order_gap < report.order_gap_ci[1]


# Designs


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_a_balanced_design_is_balanced(size):
    """Every element at every place, and every ordered pair of neighbours, equally often."""
    seen = []
    ao.audit(lambda s: seen.append([int(e) for e in s]) or 0.0, [[str(i) for i in range(size)]], design="balanced")
    orders = np.array(seen[2:])
    assert len(orders) == size * (1 + size % 2)
    places = np.array([[(orders[:, p] == e).sum() for p in range(size)] for e in range(size)])
    assert (places == 1 + size % 2).all()
    pairs = np.zeros((size, size), dtype=int)
    np.add.at(pairs, (orders[:, :-1].ravel(), orders[:, 1:].ravel()), 1)
    assert (pairs[~np.eye(size, dtype=bool)] == 1 + size % 2).all()


@pytest.mark.parametrize(("design", "count"), [("all", 24), ("rotations", 4)])
def test_complete_designs(design, count):
    seen = []
    report = ao.audit(lambda s: seen.append("".join(s)) or s[-1], [list("abcd")] * 3, design=design)
    assert len(set(seen)) == count
    assert report.orderings == count
    assert report.calls == 3 * (2 + count)
    assert report.flip_rate == 3 / 4


def test_within_ties_only():
    """Elements of one time change places and no others; the sum of the last tie is what it was."""
    x = np.arange(12.0).reshape(2, 6, 1)
    times = np.array([[0, 0, 0, 1, 1, 2], [0, 1, 2, 3, 4, 5]])
    report = ao.audit(last, x, ties=times, generator=rng())
    assert (report.design, report.worst_gap) == ("ties", 0)
    seen = []
    words = [list("aabbc")]
    ao.audit(lambda s: seen.append("".join(s)) or 0.0, words, design="ties", ties=[[1, 1, 2, 2, 3]], generator=rng())
    assert {s[:2] + s[2:4] + s[4] for s in seen} == {"aabbc"}
    report = ao.audit(last, x, ties=[[0, 0, 0, 1, 2, 2], [0, 1, 2, 3, 4, 5]], generator=rng())
    assert report.worst_gap == 1
    assert report.notes == ["1 of 2 sets have no ties to reorder. Their change is 0."]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"design": "latin"}, "design"),
        ({"design": "ties"}, "ties"),
        ({"design": "all", "ties": [[0] * 8] * 2}, "ties"),
        ({"ties": [[0] * 3] * 2}, "ties"),
        ({"design": "all"}, "at most 7"),
        ({"max_calls": 5}, "max_calls must be at least 6"),
        ({"design": "balanced", "max_calls": 19}, "max_calls must be at least 20"),
        ({"concurrency": 0}, "concurrency"),
        ({"static": np.zeros((5, 1))}, "static"),
    ],
)
def test_designs_and_budgets_that_cannot_be_kept_are_refused(options, name):
    with pytest.raises(ValueError, match=name):
        ao.audit(last, np.zeros((2, 8, 1)), **options)


@pytest.mark.parametrize("max_calls", [60, 300, 1000, 5000])
def test_the_number_of_calls_is_announced_and_kept(max_calls, capsys):
    rows = []

    def predict(elements):
        rows.append(len(elements))
        return elements[:, -1]

    x = torch.randn(20, 6, 1, generator=rng())
    report = ao.audit(predict, x, max_calls=max_calls, progress=True, generator=rng())
    said = int(capsys.readouterr().err.split("at most ")[1].split(" calls")[0].replace(",", ""))
    assert report.calls == sum(rows) <= said <= max_calls
    assert any("max_calls" in note for note in report.notes) == (max_calls < 20 * 34)
    assert report.orderings == min(32, (max_calls - 40) // 20)


# Parsing


def test_answers_that_cannot_be_read_are_counted_and_left_out():
    def predict(words):
        return "no idea" if words[0] == "fig" else f"Answer: {words[0]}."

    def read(text):
        return text.split("Answer: ")[1].rstrip(".")  # an IndexError is no answer

    report = ao.audit(predict, WORDS[:1] * 30 + [["fig"]], parse=read, orderings=12, generator=rng())
    assert report.unparsed == pytest.approx(30 * 12 / 3 + 2, rel=0.2)
    assert report.flip_rate == pytest.approx(1 / 2, abs=0.1)  # plum or date
    assert report.sets == 30
    assert [note.split()[0] for note in report.notes] == [str(report.unparsed), "1"]
    with pytest.raises(ao.checks.InputError, match="parse"):
        ao.audit(predict, WORDS, parse=lambda text: None)


def test_a_parser_may_return_numbers_or_scores():
    report = ao.audit(lambda s: f"{len(s[0])}/10", WORDS, parse=lambda t: int(t.split("/")[0]), generator=rng())
    assert report.task == "regression"
    assert report.worst_gap == 1
    scores = ao.audit(lambda s: s[0], WORDS, parse=lambda t: [len(t), -len(t)], generator=rng())
    assert scores.task == "classification"
    assert scores.flip_rate == 0


# Answers that name a place

QUESTIONS = [["red", "blue", "green", "pink"], ["cat", "dog", "owl", "bee"], ["one", "two", "six", "ten"]] * 20


def pick(options):
    """The alphabetically first option, by its letter."""
    return "ABCD"[options.index(min(options))]


@pytest.mark.parametrize("answer", [pick, lambda o: o.index(min(o)), lambda o: [float(e == min(o)) for e in o]])
def test_an_equivariant_answer_is_no_flip(answer):
    report = ao.audit(answer, QUESTIONS, design="balanced", equivariant=True)
    assert (report.flip_rate, report.worst_gap) == (0, 0)
    assert set(report.position_bias.values()) == {0.0}
    if answer is pick:
        assert ao.audit(pick, QUESTIONS, design="balanced").flip_rate == 3 / 4
    labels = [q.index(min(q)) for q in QUESTIONS]
    assert ao.audit(answer, QUESTIONS, labels=labels, equivariant=True, generator=rng()).accuracy_shuffled == 1


def test_position_bias_is_found_with_its_interval():
    """With probability 0.3 the first place is named whatever stands there."""
    source = np.random.default_rng(0)
    report = ao.audit(
        lambda o: "A" if source.random() < 0.3 else pick(o), QUESTIONS, design="balanced", equivariant=True
    )
    bias = report.position_bias
    assert list(bias) == [0, 1, 2, 3]
    assert bias[0].ci[0] <= 0.3 * 3 / 4 <= bias[0].ci[1]
    assert all(bias[p].ci[0] <= -0.3 / 4 <= bias[p].ci[1] for p in (1, 2, 3))
    assert bias[0].ci[0] > 0
    json.dumps(report.to_dict(), allow_nan=False)


def test_other_answers_and_functions():
    """A tie of two answers names no place; a function undoes what it knows."""
    report = ao.audit(lambda o: "tie", QUESTIONS, equivariant=True, orderings=4, generator=rng())
    assert report.flip_rate == 0
    assert report.position_bias == {}
    named = ao.audit(
        lambda o: f"option {o.index(min(o))}",
        QUESTIONS,
        equivariant=lambda answer, order: f"option {order[int(answer[-1])]}",
        generator=rng(),
    )
    assert named.flip_rate == 0
    assert named.position_bias is None
    with pytest.raises(ao.checks.InputError, match="4 places"):
        ao.audit(lambda o: "E", QUESTIONS, equivariant=True)


def test_label_bias_is_how_often_a_class_is_predicted_beyond_its_truth(tmp_path):
    source = np.random.default_rng(0)
    labels = ["yes", "no"] * 60

    def predict(words):
        return "yes" if source.random() < 0.4 else words[-1]

    sets = [["a", "b", label] for label in labels]
    report = ao.audit(predict, [s[2:] * 2 for s in sets], labels=labels, orderings=6, generator=rng())
    low, high = report.label_bias["yes"].ci
    assert 0 < low <= 0.2 <= high
    assert report.label_bias["no"] == pytest.approx(-report.label_bias["yes"])
    report.html(tmp_path / "bias.html")
    report.plot(tmp_path / "bias.svg")
    assert "Classes predicted, beyond the true ones" in (tmp_path / "bias.html").read_text()


# The cache


def test_an_interrupted_audit_goes_on_where_it_was(tmp_path):
    path, calls = tmp_path / "answers" / "cache.sqlite", 0
    source = np.random.default_rng(0)

    def predict(words):
        nonlocal calls
        calls += 1
        if calls == 100:
            raise KeyboardInterrupt
        return source.random()  # a sampler: what is kept is the sample

    options = {"orderings": 8, "cache": path}
    with pytest.raises(KeyboardInterrupt):
        ao.audit(predict, WORDS * 5, generator=rng(), **options)
    report = ao.audit(predict, WORDS * 5, generator=rng(), **options)
    assert report.calls == calls - 100
    again = ao.audit(lambda words: 1 / 0, WORDS * 5, generator=rng(), **options)
    assert again.calls == 0
    assert again.noise_output_gap == report.noise_output_gap > 0
    assert again.output_gap == report.output_gap


def test_a_cache_knows_models_and_contents_apart(tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"1")
    sets, options = [[picture, tmp_path / "b.png"]], {"cache": tmp_path / "c", "design": "rotations"}
    assert ao.audit({"one": lambda s: "x"}, sets, **options)["one"].calls == 4
    assert ao.audit({"two": lambda s: "y"}, sets, **options)["two"].calls == 4
    assert ao.audit({"one": lambda s: "x"}, sets, **options)["one"].calls == 0
    picture.write_bytes(b"2")
    assert ao.audit({"one": lambda s: "x"}, sets, **options)["one"].calls == 4


def test_a_cache_of_numbers(tmp_path):
    x = torch.randn(10, 4, 2, generator=rng())
    model = ao.RecurrentSetModel(2, 3)
    fresh, kept, plain = (
        ao.audit(model, x, orderings=4, search=0, generator=rng(), cache=c)
        for c in [tmp_path / "c", tmp_path / "c", None]
    )
    assert (fresh.calls > 0, kept.calls) == (True, 0)
    assert fresh.output_gap == kept.output_gap == pytest.approx(plain.output_gap)


def test_what_a_cache_cannot_hold_is_refused(tmp_path):
    (tmp_path / "text").write_text("this is no database, and it is long enough to say so " * 30)
    with pytest.raises(ao.checks.InputError, match="cache"):
        ao.audit(first, WORDS, cache=tmp_path / "text")
    with pytest.raises(ao.checks.InputError, match="cache"):
        ao.audit(lambda s: "x", [[object(), object()]], cache=tmp_path / "objects")
    ao.audit(first, WORDS, cache=tmp_path / "kept", orderings=1)
    rows = sqlite3.connect(tmp_path / "kept").execute("SELECT answer FROM answers").fetchall()
    assert {json.loads(answer) for (answer,) in rows} <= {word for words in WORDS for word in words}


def test_calls_run_side_by_side():
    """Four calls wait for each other: with fewer at once none would go on."""
    barrier = threading.Barrier(4, timeout=20)

    def predict(words):
        barrier.wait()
        return words[0]

    report = ao.audit(predict, WORDS[:1] * 4, orderings=2, concurrency=4, generator=rng())
    assert report.calls == 16


def test_an_async_audit_inside_a_running_loop():
    """As in a notebook."""

    async def predict(words):
        await asyncio.sleep(0)
        return words[0]

    async def notebook():
        return ao.audit(predict, WORDS, orderings=2, concurrency=2, generator=rng())

    assert asyncio.run(notebook()).flip_rate > 0
