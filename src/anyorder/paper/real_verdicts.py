"""What the rows of the real-data experiments say: where the penalty helps, where not, and what the dial should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anyorder.paper.statistics import Claim, ahead, difference, matching, pm, sample_of
from anyorder.paper.trials import Row

Verdict = Callable[[Sequence[Row], Sequence[Row]], list[Claim]]


def penalty_helps(*over: str, metrics: Sequence[str] = ("accuracy",)) -> Verdict:
    """Each form of SIRE against the plain recurrence in every cell of ``over``: paired differences and the dial."""

    def verdict(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
        found = _in_short(chosen, over, metrics[0])
        for cell in _cells(chosen, over):
            place = _spelled(cell)
            for metric in metrics:
                found += _against_plain(matching(chosen, cell), metric, place)
            found += _dial(matching(rows, cell), place)
        return found

    return verdict


def _cells(rows: Sequence[Row], over: Sequence[str]) -> list[dict[str, Any]]:
    cells = [{key: row["setting"].get(key) for key in over} for row in rows]
    return [cell for number, cell in enumerate(cells) if cell not in cells[:number]]


def _spelled(cell: dict[str, Any]) -> str:
    words = [f"{v * 100:g} % of the labels" if k == "labels" else str(v) for k, v in cell.items()]
    return f"{', '.join(words)}: " if words else ""


def _in_short(chosen: Sequence[Row], over: Sequence[str], metric: str) -> list[Claim]:
    """Where a form of SIRE is clearly better or worse than the plain recurrence, and its gain in every cell."""
    sides: dict[str, list[str]] = {"holds": [], "does not hold": [], "not clear": []}
    gains: dict[str, list[str]] = {}
    cells = _cells(chosen, over)
    for cell in cells if len(cells) > 1 else ():
        here, place = matching(chosen, cell), _spelled(cell).removesuffix(": ")
        plain = sample_of(here, metric, "plain")
        for method in sorted({row["method"] for row in here if row["method"].startswith("sire")}):
            mine = sample_of(here, metric, method)
            if len(mine.minus(plain)) > 1:
                gains.setdefault(method, []).append(f"{mine.minus(plain).mean:+.3f} ({place})")
                sides[ahead(mine, plain)].append(f"{method} ({place})")
    if not gains:
        return []
    better, worse = ("; ".join(sides[verdict]) or "nowhere" for verdict in ("holds", "does not hold"))
    found = [Claim(f"In short: {metric} clearly above plain's: {better}. Clearly below: {worse}")]
    return found + [Claim(f"Gain of {method}: {'; '.join(values)}") for method, values in gains.items()]


def _against_plain(chosen: Sequence[Row], metric: str, place: str) -> list[Claim]:
    plain = sample_of(chosen, metric, "plain")
    methods = sorted({row["method"] for row in chosen})
    others = {m: sample_of(chosen, metric, m) for m in methods if m != "plain" and not m.startswith("sire")}
    what = metric.replace("_", "-")
    found = []
    for method in (m for m in methods if m.startswith("sire")):
        mine = sample_of(chosen, metric, method)
        if len(mine.minus(plain)) < 2:
            continue
        gaps = " and ".join(f"{sample_of(chosen, 'order_gap', m).mean:.2g}" for m in (method, "plain"))
        found.append(
            Claim(
                f"{place}{method} has {what} {pm(mine)}, plain {pm(plain)}, paired difference "
                f"{difference(mine, plain)}; order gaps {gaps}",
                ahead(mine, plain),
            )
        )
    if others and len(plain):
        beside = "; ".join(f"{m} {pm(sample)}" for m, sample in others.items())
        found.append(Claim(f"{place}{what} beside them: {beside}"))
    return found


def _dial(rows: Sequence[Row], place: str) -> list[Claim]:
    """Mean test accuracy of each form of SIRE at each weight it was given, and at which weight it was best."""
    found = []
    for method in sorted({row["method"] for row in rows if row["method"].startswith("sire")}):
        weights = sorted({row["setting"]["penalty_weight"] for row in rows if row["method"] == method})
        if len(weights) < 2:
            continue
        samples = {w: sample_of(rows, "accuracy", method, penalty_weight=w) for w in weights}
        best = max(samples, key=lambda w: samples[w].mean)
        text = "; ".join(f"{w:g}: {sample.mean:.3f}" for w, sample in samples.items())
        found.append(Claim(f"{place}{method} by weight {text}; best at {best:g}"))
    return found


REAL_VERDICTS: dict[str, Verdict] = {
    "ecg": penalty_helps("labels", metrics=("accuracy", "macro_f1")),
    "bags": penalty_helps("data", "labels"),
    "activity": penalty_helps("labels"),
    "pointcloud": penalty_helps("points"),
    "perturbed-mnist": penalty_helps(),
    "perturbed-digits": penalty_helps(),
}
