"""Whether each claim holds on our rows: one function an experiment, numbers filled in from the rows alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from anyorder.paper.report.real_verdicts import REAL_VERDICTS
from anyorder.paper.report.statistics import (
    Claim,
    Sample,
    Verdict,
    accuracy_by_labels,
    ahead,
    difference,
    fewer,
    labels_for,
    level,
    pm,
    sample_of,
    times_fewer,
)
from anyorder.paper.runner.trial import ONE_ORDERING, Expected, Experiment, Row, without_penalty


def claims_of(experiment: Experiment, rows: Sequence[Row]) -> list[Claim]:
    """What the chosen settings' rows say: first the declared numbers, then the experiment's own questions."""
    chosen = [row for row in rows if row["selected"]]
    found = [claim for expected in experiment.expected for claim in _of_band(expected, chosen)]
    own = VERDICTS.get(experiment.name)
    return found + (own(chosen, rows) if own is not None and chosen else [])


def _of_band(expected: Expected, chosen: Sequence[Row]) -> list[Claim]:
    ours = sample_of(chosen, expected.metric, expected.method, **expected.where)
    low, high = expected.band
    if not len(ours) or (math.isinf(low) and math.isinf(high)):
        return []
    place = ", ".join(f"{key} {value}" for key, value in expected.where.items())
    asked = f"at least {low:g}" if high >= 1 else f"between {low:g} and {high:g}"
    verdict = _held(low <= ours.mean <= high) if len(ours) > 1 else None
    has = "is to have" if verdict is None else "has"  # one seed decides nothing
    text = f"{expected.method}{f' ({place})' if place else ''} {has} {expected.metric} {asked}: it is {pm(ours)}"
    asked_by_paper = expected.paper is not None and low <= expected.paper <= high
    return [Claim(text, verdict, beside=not asked_by_paper)]


def _held(outcome: bool) -> Verdict:
    """The verdict on what means alone decide."""
    return "holds" if outcome else "does not hold"


def _parity(chosen: Sequence[Row], rows: Sequence[Row], goal: float = 0.99) -> list[Claim]:
    """The paper does not name its cell, so one that reaches ``goal`` without penalty is enough."""
    found, short = [], []
    for method, word in (("plain", "Without penalty"), ("sire", "With SIRE")):
        ours = {c: sample_of(chosen, "accuracy", method, cell=c, length=100) for c in ("relu-rnn", "rnn", "gru")}
        ours = {cell: sample for cell, sample in ours.items() if len(sample)}
        by, not_by = ([c for c, sample in ours.items() if (sample.mean >= goal) == yes] for yes in (True, False))
        if ours:
            figures = ", ".join(f"{cell} {pm(sample)}" for cell, sample in ours.items())
            text = f"{word} {goal:g} at length 100 is reached by {' and '.join(by) or 'no cell'}"
            text += f", not by {' and '.join(not_by)}" if by and not_by else ""
            judged = method == "plain" and all(len(sample) > 1 for sample in ours.values())
            found.append(Claim(f"{text}: {figures}", _held(bool(by)) if judged else None))
            short.append(f"{method} {', '.join(f'{cell} {sample.mean:.3f}' for cell, sample in ours.items())}")
    fitted, pooled = (sample_of(chosen, "accuracy", "deepsets", length=length) for length in (10, 100))
    if len(fitted) and len(pooled):
        text = f"DeepSets does not carry over to length 100: {pm(pooled)}, {pm(fitted)} at length 10"
        verdict: Verdict = _held(pooled.mean < goal)
        if verdict == "holds" and fitted.mean < goal:
            text += ". It did not fit the training lengths, so this failure is not one of extrapolation alone"
            verdict = "not clear"
        found.append(Claim(text, verdict if len(pooled) > 1 else None))
        short.append(f"deepsets {pooled.mean:.3f}")
    return _in_short(found, f"at length 100: {'; '.join(short)}") if short else found


def _in_short(found: Sequence[Claim], text: str) -> list[Claim]:
    """``found``, the last of which says ``text`` in the summary."""
    return [*found[:-1], replace(found[-1], short=text)]


def _sub_vs_sire(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    sire, sub, plain = (sample_of(chosen, "accuracy", method) for method in ("sire", "sub", "plain"))
    found = []
    if len(sire) and len(sub):
        found.append(
            Claim(
                f"SIRE beats SUB, each at the weight that validation chose: {pm(sire)} against {pm(sub)}, paired "
                f"difference {difference(sire, sub)}",
                ahead(sire, sub),
                short=f"SIRE {pm(sire)}, SUB {pm(sub)}",
            )
        )
    if len(sire) and len(plain):
        text = f"SIRE beats no penalty: {pm(plain)} without, paired difference {difference(sire, plain)}"
        found.append(Claim(text, ahead(sire, plain), beside=True))
    weights = sorted({row["setting"]["penalty_weight"] for row in rows if "penalty_weight" in row["setting"]})
    better = []
    for weight in weights:
        one, other = (sample_of(rows, "accuracy", method, penalty_weight=weight) for method in ("sire", "sub"))
        if len(one) and len(other):
            better.append(f"{weight:g}: {one.mean:.3f} and {other.mean:.3f}")
    if better:
        found.append(Claim(f"Accuracy at equal weight, SIRE and SUB: {'; '.join(better)}"))
    own = {m: _preferred(rows, m, [w for w in weights if w <= 0.1]) for m in ("sire", "sub")}
    if None not in own.values():
        one, other = (sample_of(rows, "accuracy", m, penalty_weight=w) for m, w in own.items())
        text = (
            f"On the paper's own weights, .001 to .1, of which validation chooses {own['sire']:g} for SIRE and "
            f"{own['sub']:g} for SUB, SIRE is ahead: {pm(one)} against {pm(other)}, paired difference "
        )
        found.append(Claim(text + difference(one, other), ahead(one, other)))
    found += _convergence(chosen) + _equal_cost(chosen, rows)
    return found


def _preferred(rows: Sequence[Row], method: str | None, weights: Sequence[float]) -> float | None:
    """The weight with the least mean validation loss; None where there are no rows."""
    losses = {w: sample_of(rows, "loss", method, part="validation", penalty_weight=w) for w in weights}
    return min((w for w in losses if len(losses[w])), key=lambda w: losses[w].mean, default=None)


def _convergence(chosen: Sequence[Row], goal: float = 0.8) -> list[Claim]:
    """The epoch at which validation accuracy first reaches ``goal``, if every curve reaches it."""
    epochs = {}
    for method in ("sire", "sub"):
        reached = {
            row["seed"]: next(
                (e for e, a in zip(row["curve"]["epoch"], row["curve"]["accuracy"], strict=True) if a >= goal), None
            )
            for row in chosen
            if row["method"] == method and row.get("curve")
        }
        if not reached or None in reached.values():
            return []
        epochs[method] = Sample({seed: float(epoch) for seed, epoch in reached.items() if epoch is not None})
    text = (
        f"SIRE converges faster, each at the weight that validation chose: validation accuracy {goal:g} after "
        f"{epochs['sire'].mean:.0f} epochs, SUB after {epochs['sub'].mean:.0f}, paired difference "
        f"{difference(epochs['sire'], epochs['sub'], 0)}"
    )
    return [Claim(text, ahead(epochs["sire"], epochs["sub"], lower=True))]


def _equal_cost(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    """Validation accuracy of both when the cheaper has finished.

    Seconds depend on what else a machine did; one ratio of seconds an epoch, medians over all rows, does so least.
    """
    drawn = [row for row in rows if row.get("curve")]
    curves = {m: [row["curve"] for row in chosen if row["method"] == m and row.get("curve")] for m in ("sire", "sub")}
    if not all(curves.values()):
        return []
    cost = {
        m: median(row["curve"]["seconds"][-1] / row["curve"]["epoch"][-1] for row in drawn if row["method"] == m)
        for m in curves
    }
    budget = min(cost[m] * curves[m][0]["epoch"][-1] for m in curves)
    epochs = {m: round(budget / cost[m]) for m in curves}
    at = {m: _mean([_value_at(curve, epochs[m]) for curve in found]) for m, found in curves.items()}
    return [
        Claim(
            f"At equal cost: an epoch of SIRE takes {cost['sire'] / cost['sub']:.2f} times the time of one of SUB "
            f"(medians over all runs); when the cheaper ends, SIRE is at {at['sire']:.3f} on the validation sets after "
            f"{epochs['sire']} epochs and SUB at {at['sub']:.3f} after {epochs['sub']}"
        )
    ]


def _value_at(curve: dict[str, list[float]], epoch: float) -> float:
    reached = [value for place, value in zip(curve["epoch"], curve["accuracy"], strict=True) if place <= epoch]
    return reached[-1] if reached else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _labels(chosen: Sequence[Row], rows: Sequence[Row], goal: float = 0.9) -> list[Claim]:
    found: list[Claim] = []
    shorts: list[str] = []
    for alphabet in sorted({row["setting"]["alphabet"] for row in chosen}):
        here = [row for row in chosen if row["setting"]["alphabet"] == alphabet]
        curves = {method: accuracy_by_labels(here, method) for method in sorted({r["method"] for r in here})}
        measured = {number for curve in curves.values() for number in curve}
        ends = min(measured), max(measured)
        curves = {method: curve for method, curve in curves.items() if set(ends) <= curve.keys()}
        if ends[0] == ends[1] or not curves:
            continue  # one number of labels says nothing about how many are needed
        said = {method: f"{method} {_number(labels_for(curve, goal), *ends)}" for method, curve in curves.items()}
        found.append(Claim(f"Labels needed for {goal:g}, numbers below {alphabet}: {'; '.join(said.values())}"))
        few = ", ".join(
            said[method] for method in ("sire", "sire+shuffle", "plain", "pi-sgd", "deepsets") if method in said
        )
        shorts.append(f"numbers below {alphabet}: {few}")
        for mine, rival in itertools.product(curves, ("plain", "pi-sgd", "deepsets")):
            if mine.startswith("sire") and rival in curves:
                found += _fewer_labels(alphabet, mine, rival, curves, goal, *ends)
    return _in_short(found, f"labels needed for {goal:g}, {'; '.join(shorts)}") if shorts else found


def _number(number: float, fewest: int, most: int) -> str:
    if math.isinf(number):
        return f"more than {most:,}"
    return f"at most {fewest}" if number <= fewest else f"{number:.0f}"


def _fewer_labels(
    alphabet: int,
    mine: str,
    rival: str,
    curves: Mapping[str, Mapping[int, Sample]],
    goal: float,
    fewest: int,
    most: int,
) -> list[Claim]:
    """How many times fewer labels ``mine`` needs; where neither reaches the goal, how far each comes with the most."""
    ours, theirs = (labels_for(curves[method], goal) for method in (mine, rival))
    if math.isinf(ours) and math.isinf(theirs):
        return [_with_most_labels(alphabet, mine, rival, curves, goal, most)]
    interval = times_fewer(curves[mine], curves[rival], goal)
    ratio = f"{min(theirs, most) / min(ours, most):.2g}"
    if ours <= fewest and theirs <= fewest:
        ratio = "not known"
    elif math.isinf(ours) or theirs <= fewest:
        ratio = f"at most {ratio}"
    elif math.isinf(theirs) or ours <= fewest:
        ratio = f"at least {ratio}"
    elif interval is not None:
        ratio += f" ({interval[0]:.2g} to {interval[1]:.2g})"
    cells = {
        "numbers below": f"{alphabet}",
        "with": mine,
        "labels": _number(ours, fewest, most),
        "against": rival,
        "its labels": _number(theirs, fewest, most),
        "times fewer": ratio,
    }
    text = f"Numbers below {alphabet}: {mine} needs fewer labels than {rival}: {cells['labels']} against "
    table = f"Labels needed for {goal:g}, and how many times fewer with SIRE (95 % interval: bootstrap over seeds)"
    return [Claim(f"{text}{cells['its labels']}, times fewer: {ratio}", fewer(interval), table, cells)]


def _with_most_labels(
    alphabet: int, mine: str, rival: str, curves: Mapping[str, Mapping[int, Sample]], goal: float, most: int
) -> Claim:
    one, other = curves[mine][most], curves[rival][most]
    cells = {
        "numbers below": f"{alphabet}",
        "with": mine,
        "accuracy": pm(one),
        "against": rival,
        "its accuracy": pm(other),
        "difference": difference(one, other, words=""),
    }
    text = f"Numbers below {alphabet}, {most:,} labels: {mine} is above {rival}: {pm(one)} against {pm(other)}"
    text += f", paired difference {difference(one, other)}"
    table = f"Accuracy with {most:,} labels, where neither reaches {goal:g}; difference paired by seed (95 % interval)"
    return Claim(text, ahead(one, other), table, cells)


def _half_range(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    """Where runs of an arm did not fit, the difference says what a rate does, not the penalty: nothing is clear."""
    found = []
    for labels in sorted({row["setting"]["labels"] for row in chosen}):
        for n in sorted({row["setting"]["n"] for row in chosen}):
            plain, sire = (sample_of(chosen, "accuracy", m, n=n, labels=labels) for m in ("plain", "sire"))
            if len(plain) and len(sire):
                words = {m: _lost(chosen, m, n, labels) for m in ("plain", "sire")}
                figures = f"{pm(sire)}{words['sire']} with, {pm(plain)}{words['plain']} without"
                found.append(
                    Claim(
                        f"n = {n}, {labels:,} samples: better with the penalty: {figures}, "
                        f"paired difference {difference(sire, plain)}",
                        "not clear" if any(words.values()) else ahead(sire, plain),
                        table="Accuracy with the penalty and without; difference paired by seed (95 % interval)",
                        cells={
                            "n": f"{n}",
                            "samples": f"{labels:,}",
                            "with": f"{pm(sire)}{words['sire']}",
                            "without": f"{pm(plain)}{words['plain']}",
                            "difference": difference(sire, plain, words=""),
                        },
                        short=f"n = {n}, {labels:,} samples: {figures}",
                    )
                )
    return found


def _lost(chosen: Sequence[Row], method: str, n: int, labels: int) -> str:
    """How many runs did not fit: a training loss over ten times the median with as many samples, whatever n."""
    mine = [row for row in chosen if row["method"] == method and row["setting"]["labels"] == labels]
    losses = [(row["setting"]["n"], row["metrics"]["train_loss"]) for row in mine if "train_loss" in row["metrics"]]
    here = [loss for size, loss in losses if size == n]
    lost = sum(loss > 10 * median(loss for _, loss in losses) for loss in here)
    return f" ({lost} of {len(here)} runs did not fit)" if lost else ""


def _dial(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    mine = [row for row in chosen if row["method"] == "sire"]
    weights = sorted({row["setting"]["penalty_weight"] for row in mine})
    best = _preferred(mine, None, weights)
    if best is None:
        return []
    accuracy = sample_of(mine, "accuracy", penalty_weight=best)
    gaps = {w: sample_of(mine, "state_gap_squared", penalty_weight=w) for w in weights}
    low, high = weights[0], weights[-1]
    moved = f"from {gaps[low].mean:.2g} at weight {low:g} to {gaps[high].mean:.2g} at {high:g}"
    found = [
        Claim(f"Validation prefers weight {best:g}: accuracy {pm(accuracy)} at an order gap of {gaps[best].mean:.2g}"),
        Claim(f"The order gap falls {moved}", ahead(gaps[high], gaps[low], lower=True), short=f"order gap {moved}"),
    ]
    accuracy, gap, weight = (
        sample_of(chosen, m, "sire+budget") for m in ("accuracy", "state_gap_squared", "final_weight")
    )
    if len(accuracy):
        found.append(
            Claim(f"AdaptiveWeight ends at weight {weight.mean:.3g}, order gap {gap.mean:.2g}, accuracy {pm(accuracy)}")
        )
    return found


def _lengths(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found: list[Claim] = []
    short = []
    pooled = [row for row in chosen if row["method"] == "deepsets"]
    for cell in sorted({row["setting"].get("cell") for row in chosen}, key=lambda cell: (cell is None, cell)):
        mine = [row for row in chosen if row["setting"].get("cell") == cell]
        errors = {m: sample_of(mine, "mae", m, length=100) for m in sorted({row["method"] for row in mine})}
        place = f" ({cell})" if cell else ""
        said = {method: f"{method} {error.mean:.3g}" for method, error in errors.items()}
        text = f"Mean error on 100 numbers after training on at most 10{place}: {'; '.join(said.values())}"
        found.append(Claim(text))
        few = ", ".join(said[method] for method in ("plain", "sire", "deepsets") if method in said)
        short += [f"{cell} {few}" if cell else few] if few else []
        for length, method in itertools.product((20, 100), [m for m in errors if m.startswith("sire")]):
            found += _errs_less(length, cell, method, mine, pooled)
    return _in_short(found, f"mean error at 100: {'; '.join(short)}") if short else found


def _errs_less(length: int, cell: str, method: str, mine: Sequence[Row], pooled: Sequence[Row]) -> list[Claim]:
    """Whether a form of SIRE has a lower error at ``length`` than the same training without, and than DeepSets."""
    found = []
    one = sample_of(mine, "mae", method, length=length)
    for rival, others in ((without_penalty(method), mine), ("deepsets", pooled)):
        other = sample_of(others, "mae", rival, length=length)
        if len(one) and len(other):
            gap = difference(one, other, 1, words="")
            cells = {"length": f"{length}", "cell": cell, "with": method, "its error": pm(one, 1)}
            cells |= {"against": rival, "error": pm(other, 1), "difference": gap}
            text = f"At length {length} ({cell}) {method} errs less than {rival}: "
            text += f"{pm(one, 1)} against {pm(other, 1)}, {gap}"
            table = "Mean error on longer sets; difference paired by seed (95 % interval)"
            found.append(Claim(text, ahead(one, other, lower=True), table, cells))
    return found


def _by_n(chosen: Sequence[Row], metric: str) -> dict[int, tuple[str, str, dict[str, Sample]]]:
    """For each n: the form of SIRE and the other method with the least validation loss, and every method's figure."""
    found = {}
    for n in sorted({row["setting"]["n"] for row in chosen}):
        here = {m: sample_of(chosen, metric, m, n=n) for m in sorted({row["method"] for row in chosen})}
        here = {method: sample for method, sample in here.items() if len(sample)}
        loss = {method: sample_of(chosen, "loss", method, part="validation", n=n).mean for method in here}
        ranked = sorted(here, key=lambda method: loss[method])
        mine, theirs = ([method for method in ranked if method.startswith("sire") == ours] for ours in (True, False))
        if mine and theirs:
            found[n] = (mine[0], theirs[0], here)
    return found


def _beside(here: dict[str, Sample], digits: int = 3) -> str:
    others = {method: sample for method, sample in here.items() if not method.startswith("sire")}
    return "; ".join(f"{method} {pm(sample, digits)}" for method, sample in others.items())


def _read_once(chosen: Sequence[Row], metric: str, digits: int = 3) -> list[Claim]:
    """What π-SGD gives where a set is read once, as SIRE's sets are, and not in twenty orderings."""
    samples = {n: sample_of(chosen, metric + ONE_ORDERING, "pi-sgd", n=n) for n in _by_n(chosen, metric)}
    figures = [f"n = {n}: {pm(sample, digits)}" for n, sample in samples.items() if len(sample)]
    what = metric.upper() if metric == "rmse" else metric
    return [Claim(f"π-SGD's {what} by one ordering alone, not the mean of 20: {'; '.join(figures)}")] if figures else []


BETTER = "the better SIRE by validation"
LEVEL = 0.02  # of accuracy: what is less behind counts as level


def _sum(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found, above = [], {}
    for n, (best, _, here) in _by_n(chosen, "accuracy").items():
        figures = f"{pm(here[best])}; {_beside(here)}"
        found.append(Claim(f"n = {n}: {BETTER} ({best}) {figures}", short=f"n = {n}: {best} {figures}"))
        for rival in ("plain", "pi-sgd"):
            if n >= 10 and rival in here:
                gap = difference(here[best], here[rival])
                found.append(Claim(f"n = {n}: {best} is above {rival}, by {gap}", ahead(here[best], here[rival])))
        if "deepsets" in here:
            above[n] = ahead(here[best], here["deepsets"])
    since = [n for n in above if all(verdict == "holds" for m, verdict in above.items() if m >= n)]
    if above:
        text = f"From {f'n = {since[0]}' if since else 'some n'} on {BETTER} is above DeepSets"
        found.append(Claim(text, above[max(above)]))
    return found + _read_once(chosen, "accuracy")


def _range(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found = []
    for n, (best, rival, here) in _by_n(chosen, "accuracy").items():
        text = f"n = {n}: {BETTER} ({best}) {pm(here[best])} is level with the best other by validation, {rival}, or "
        text += f"less than {LEVEL:g} behind: {difference(here[best], here[rival])}; {_beside(here)}"
        short = f"n = {n}: {best} {pm(here[best])}; {_beside(here)}"
        found.append(Claim(text, level(here[best], here[rival], LEVEL), short=short))
    return found + _read_once(chosen, "accuracy")


def _variance(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    found = []
    for n, (best, _, here) in _by_n(chosen, "rmse").items():
        if "deepsets" in here:
            text = f"n = {n}: {BETTER} ({best}) has error {pm(here[best], 1)}, below DeepSets'"
            text += f", by {difference(here[best], here['deepsets'], 1)}; {_beside(here, 1)}"
            short = f"n = {n}: {best} {pm(here[best], 1)}; {_beside(here, 1)}"
            found.append(Claim(text, ahead(here[best], here["deepsets"], lower=True), short=short))
    return found + _read_once(chosen, "rmse", 1)


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
