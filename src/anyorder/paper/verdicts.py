"""Whether each claim holds on our rows: one function an experiment, numbers filled in from the rows alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anyorder.paper.real_verdicts import REAL_VERDICTS
from anyorder.paper.statistics import Claim, Sample, ahead, difference, held, labels_for, pm, sample_of
from anyorder.paper.trials import Expected, Experiment, Row


def claims_of(experiment: Experiment, rows: Sequence[Row]) -> list[Claim]:
    """What the chosen settings' rows say: first the declared numbers, then the experiment's own questions."""
    chosen = [row for row in rows if row["selected"]]
    found = [claim for expected in experiment.expected for claim in _of_band(expected, chosen)]
    own = VERDICTS.get(experiment.name)
    return found + (own(chosen, rows) if own is not None and chosen else [])


def _of_band(expected: Expected, chosen: Sequence[Row]) -> list[Claim]:
    ours = sample_of(chosen, expected.metric, expected.method, **expected.where)
    low, high = expected.band
    if not len(ours) or (math.isinf(low) and math.isinf(high)) or (low, high) == (0.0, 1.0):
        return []
    place = ", ".join(f"{key} {value}" for key, value in expected.where.items())
    asked = f"at least {low:g}" if high >= 1 else f"between {low:g} and {high:g}"
    text = f"{expected.method}{f' ({place})' if place else ''}: {expected.metric} {pm(ours)}, asked for {asked}"
    return [Claim(text, held(low <= ours.mean <= high))]


def _parity(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found = []
    for cell in ("relu-rnn", "rnn", "gru"):
        plain, sire = (sample_of(chosen, "accuracy", m, cell=cell, length=100) for m in ("plain", "sire"))
        if len(plain) and len(sire):
            found.append(Claim(f"{cell} at length 100: without penalty {pm(plain)}, with SIRE {pm(sire)}"))
    return found


def _sub_vs_sire(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    sire, sub, plain = (sample_of(chosen, "accuracy", method) for method in ("sire", "sub", "plain"))
    found = []
    if len(sire) and len(sub):
        found.append(
            Claim(
                f"SIRE beats SUB, each at its best weight: {pm(sire)} against {pm(sub)}, paired difference "
                f"{difference(sire, sub)}",
                ahead(sire, sub),
            )
        )
    if len(sire) and len(plain):
        found.append(Claim(f"SIRE beats no penalty: {pm(plain)} without", ahead(sire, plain)))
    weights = sorted({row["setting"]["penalty_weight"] for row in rows if "penalty_weight" in row["setting"]})
    better = []
    for weight in weights:
        one, other = (sample_of(rows, "accuracy", method, penalty_weight=weight) for method in ("sire", "sub"))
        if len(one) and len(other):
            better.append(f"{weight:g}: {one.mean:.3f} and {other.mean:.3f}")
    if better:
        found.append(Claim(f"Accuracy at equal weight, SIRE and SUB: {'; '.join(better)}"))
    narrow = [w for w in weights if w <= 0.1]
    if narrow and better:
        one, other = (
            max((sample_of(rows, "accuracy", m, penalty_weight=w) for w in narrow), key=lambda sample: sample.mean)
            for m in ("sire", "sub")
        )
        if len(one) and len(other):
            text = f"On the paper's own weights, .001 to .1, SIRE is ahead: {pm(one)} against {pm(other)}"
            found.append(Claim(text, ahead(one, other)))
    found += _convergence(chosen) + _equal_time(chosen)
    return found


def _convergence(chosen: Sequence[Row], level: float = 0.8) -> list[Claim]:
    """The epoch at which validation accuracy first reaches ``level``, on the curves that reach it."""
    epochs = {}
    for method in ("sire", "sub"):
        curves = [row["curve"] for row in chosen if row["method"] == method and row.get("curve")]
        reached = [
            next((e for e, a in zip(curve["epoch"], curve["accuracy"], strict=True) if a >= level), None)
            for curve in curves
        ]
        if not reached or any(epoch is None for epoch in reached):
            return []
        epochs[method] = _mean([epoch for epoch in reached if epoch is not None])
    text = f"SIRE converges faster, each at its best weight: validation accuracy {level:g} after {epochs['sire']:.0f} "
    return [Claim(f"{text}epochs, SUB after {epochs['sub']:.0f}", held(epochs["sire"] < epochs["sub"]))]


def _equal_time(chosen: Sequence[Row]) -> list[Claim]:
    """Validation accuracy of both when the one that finishes first has finished."""
    curves = {
        method: [row["curve"] for row in chosen if row["method"] == method and row.get("curve")]
        for method in ("sire", "sub")
    }
    if not all(curves.values()):
        return []
    ends = {method: _mean([curve["seconds"][-1] for curve in found]) for method, found in curves.items()}
    time = min(ends.values())
    at = {method: _mean([_value_at(curve, time) for curve in found]) for method, found in curves.items()}
    half = {method: _mean([_value_at(curve, time / 2) for curve in found]) for method, found in curves.items()}
    return [
        Claim(
            f"At equal time: after {time:.0f} s of training, when the faster one ends, SIRE is at {at['sire']:.3f} and "
            f"SUB at {at['sub']:.3f} on the validation sets; half-way there at {half['sire']:.3f} and "
            f"{half['sub']:.3f}. A whole run takes {ends['sire']:.0f} s and {ends['sub']:.0f} s"
        )
    ]


def _value_at(curve: dict[str, list[float]], time: float) -> float:
    reached = [value for seconds, value in zip(curve["seconds"], curve["accuracy"], strict=True) if seconds <= time]
    return reached[-1] if reached else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _labels(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found = []
    for alphabet in sorted({row["setting"]["alphabet"] for row in chosen}):
        here = [row for row in chosen if row["setting"]["alphabet"] == alphabet]
        measured = {m: {r["setting"]["labels"] for r in here if r["method"] == m} for m in {r["method"] for r in here}}
        fewest, most = min(set().union(*measured.values())), max(set().union(*measured.values()))
        whole = [method for method, numbers in sorted(measured.items()) if {fewest, most} <= numbers]
        if fewest == most or not whole:
            continue  # one number of labels says nothing about how many are needed
        needed = {method: labels_for(here, method, 0.9) for method in whole}
        said = {
            method: "not reached" if number is None else ("at most " if number <= fewest else "") + f"{number:.0f}"
            for method, number in needed.items()
        }
        text = "; ".join(f"{method} {number}" for method, number in said.items())
        found.append(Claim(f"Labels needed for .9, numbers below {alphabet}: {text}"))
        for mine, ours in needed.items():
            if ours is None or not mine.startswith("sire"):
                continue
            for other in ("plain", "pi-sgd", "deepsets"):
                start = f"Numbers below {alphabet}: {mine} needs fewer labels than {other}:"
                theirs = needed.get(other)
                if theirs is not None:
                    text = f"{start} {ours:.0f} against {theirs:.0f}, {theirs / ours:.2g} to one"
                    found.append(Claim(text, held(theirs > ours)))
                elif other in needed:
                    found.append(Claim(f"{start} {ours:.0f} against more than {most:,}", "holds"))
    return found


def _half_range(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found = []
    for labels in sorted({row["setting"]["labels"] for row in chosen}):
        for n in sorted({row["setting"]["n"] for row in chosen}):
            plain, sire = (sample_of(chosen, "accuracy", m, n=n, labels=labels) for m in ("plain", "sire"))
            if len(plain) and len(sire):
                text = f"n = {n}, {labels:,} samples: {pm(sire)} with the penalty, {pm(plain)} without"
                found.append(Claim(f"{text}, paired difference {difference(sire, plain)}", ahead(sire, plain)))
    return found


def _dial(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    mine = [row for row in chosen if row["method"] == "sire"]
    weights = sorted({row["setting"]["penalty_weight"] for row in mine})
    if not weights:
        return []
    points = {
        w: (sample_of(mine, "accuracy", penalty_weight=w), sample_of(mine, "order_gap", penalty_weight=w))
        for w in weights
    }
    best = max(points, key=lambda w: points[w][0].mean)
    found = [
        Claim(f"Best accuracy at weight {best:g}: {pm(points[best][0])} at an order gap of {points[best][1].mean:.2g}"),
        Claim(
            f"The order gap falls from {points[weights[0]][1].mean:.2g} at weight {weights[0]:g} to "
            f"{points[weights[-1]][1].mean:.2g} at {weights[-1]:g}",
            held(points[weights[-1]][1].mean < points[weights[0]][1].mean),
        ),
    ]
    accuracy, gap, weight = (sample_of(chosen, m, "sire+budget") for m in ("accuracy", "order_gap", "final_weight"))
    if len(accuracy):
        found.append(
            Claim(
                f"InvarianceBudget ends at weight {weight.mean:.3g}, order gap {gap.mean:.2g}, accuracy {pm(accuracy)}"
            )
        )
    return found


def _lengths(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found = []
    for cell in sorted({str(row["setting"].get("cell")) for row in chosen}):
        errors = {
            row["method"]: sample_of(chosen, "mae", row["method"], length=100, cell=row["setting"].get("cell"))
            for row in chosen
            if str(row["setting"].get("cell")) == cell
        }
        text = "; ".join(f"{method} {error.mean:.3g}" for method, error in sorted(errors.items()))
        found.append(Claim(f"Mean error on 100 numbers after training on at most 10 ({cell}): {text}"))
    return found


def _by_n(chosen: Sequence[Row], metric: str, lower: bool = False) -> dict[int, tuple[str, Sample, dict[str, Sample]]]:
    """For each n with rows: the better form of SIRE (by test mean), its figure, and the other methods' figures."""
    found = {}
    for n in sorted({row["setting"]["n"] for row in chosen}):
        here = {m: sample_of(chosen, metric, m, n=n) for m in sorted({row["method"] for row in chosen})}
        here = {method: sample for method, sample in here.items() if len(sample)}
        mine = [method for method in here if method.startswith("sire")]
        theirs = {method: sample for method, sample in here.items() if method not in mine}
        if mine and theirs:
            best = (min if lower else max)(mine, key=lambda method: here[method].mean)
            found[n] = (best, here[best], theirs)
    return found


def _beside(theirs: dict[str, Sample]) -> str:
    return "; ".join(f"{method} {pm(sample)}" for method, sample in theirs.items())


def _sum(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found, above = [], {}
    for n, (best, mine, theirs) in _by_n(chosen, "accuracy").items():
        found.append(Claim(f"n = {n}: the better SIRE ({best}) {pm(mine)}; {_beside(theirs)}"))
        for rival in ("plain", "pi-sgd"):
            if n >= 10 and rival in theirs:
                gap = difference(mine, theirs[rival])
                found.append(Claim(f"n = {n}: {best} is above {rival}, by {gap}", ahead(mine, theirs[rival])))
        if "deepsets" in theirs:
            above[n] = mine.mean > theirs["deepsets"].mean
    since = [n for n in above if all(higher for m, higher in above.items() if m >= n)]
    if since:
        found.append(Claim(f"The better SIRE is above DeepSets from n = {since[0]} on", "holds"))
    elif above:
        found.append(Claim("The better SIRE is above DeepSets from some n on", "does not hold"))
    return found


def _range(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found = []
    for n, (best, mine, theirs) in _by_n(chosen, "accuracy").items():
        rival = max(theirs, key=lambda method: theirs[method].mean)
        text = f"n = {n}: the better SIRE ({best}) {pm(mine)} is level with the best other, {rival}"
        gap = difference(mine, theirs[rival])
        level = ahead(theirs[rival], mine) != "holds"
        found.append(Claim(f"{text}: {gap}; {_beside(theirs)}", held(level)))
    return found


def _variance(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found = []
    for n, (best, mine, theirs) in _by_n(chosen, "rmse", lower=True).items():
        if "deepsets" in theirs:
            text = f"n = {n}: the better SIRE ({best}) has error {pm(mine, 1)}, below DeepSets'"
            gap = difference(mine, theirs["deepsets"], 1)
            rest = "; ".join(f"{method} {pm(sample, 1)}" for method, sample in theirs.items())
            verdict = ahead(mine, theirs["deepsets"], lower=True)
            found.append(Claim(f"{text}, by {gap}; {rest}", verdict))
    return found


VERDICTS: dict[str, Callable[[Sequence[Row], Sequence[Row]], list[Claim]]] = {
    "parity": _parity,
    "sub-vs-sire": _sub_vs_sire,
    "labels": _labels,
    "half-range": _half_range,
    "dial": _dial,
    "lengths": _lengths,
    "sum": _sum,
    "range": _range,
    "variance": _variance,
    **REAL_VERDICTS,
}
