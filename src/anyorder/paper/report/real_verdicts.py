"""What the rows of the real-data experiments say: where the penalty helps, where not, and what the dial should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from anyorder.paper.report.statistics import Claim, Sample, ahead, difference, matching, pm, sample_of
from anyorder.paper.runner.trial import Row, without_penalty

Verdict = Callable[[Sequence[Row], Sequence[Row]], list[Claim]]


def penalty_helps(*over: str, metrics: Sequence[str] = ("accuracy",)) -> Verdict:
    """Each form of SIRE against the same training without, in every cell of ``over``: paired differences, the dial."""

    def verdict(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
        tables = [
            claim
            for metric in metrics
            for cell in _cells(chosen, over)
            for claim in _against_none(matching(chosen, cell), matching(rows, cell), metric, _spelled(cell))
        ]
        return _in_short(tables) + _most_where_few(chosen, over, metrics[0]) + tables

    return verdict


def _ahead_on_clouds(chosen: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    """The paper's claim, SIRE ahead of DeepSets, for each form of it that was run; then what the penalty does."""
    methods = dict.fromkeys(row["method"] for row in sorted(chosen, key=lambda row: len(row["method"])))
    samples = {method: sample_of(chosen, "accuracy", method) for method in methods}
    short = "; ".join(f"{method} {pm(sample)}" for method, sample in samples.items())
    found = []
    for method, mine in samples.items():
        if method.startswith("sire") and "deepsets" in samples:
            other = samples["deepsets"]
            text = f"{method} is ahead of DeepSets: {pm(mine)} against {pm(other)}, "
            text += f"paired difference {difference(mine, other)}"
            found.append(Claim(text, ahead(mine, other), short=short))
    return found + [replace(claim, short="") for claim in penalty_helps()(chosen, rows)]


def _cells(rows: Sequence[Row], over: Sequence[str]) -> list[dict[str, Any]]:
    cells = [{key: row["setting"].get(key) for key in over} for row in rows]
    return [cell for number, cell in enumerate(cells) if cell not in cells[:number]]


def _spelled(cell: dict[str, Any]) -> str:
    return ", ".join(f"{v * 100:g} % of the labels" if k == "labels" else str(v) for k, v in cell.items())


def _in_short(tables: Sequence[Claim]) -> list[Claim]:
    """Where a form of SIRE is clearly better or worse than the same training without, of how many comparisons."""
    judged = [claim for claim in tables if claim.verdict is not None]
    if len(judged) < 2:
        return []
    named = {
        verdict: [
            f"{claim.cells['method']} ({', '.join(filter(None, [claim.cells['where'], claim.table.split()[0]]))})"
            for claim in judged
            if claim.verdict == verdict
        ]
        for verdict in ("holds", "does not hold")
    }
    better, worse = named.values()
    count = f"{len(judged)} comparisons with the same training without penalty"
    return [
        Claim(
            f"In short, of {count}: clearly above: {'; '.join(better) or 'none'}. Clearly below: "
            f"{'; '.join(worse) or 'none'}. Each interval is one of 95 %, over seeds that share the test sets: by "
            f"chance alone at least {0.05 * len(judged):.1f} of {len(judged)} would seem clear",
            short=f"of {count}, {len(better)} clearly above and {len(worse)} below",
        )
    ]


def _most_where_few(chosen: Sequence[Row], over: Sequence[str], metric: str) -> list[Claim]:
    """Whether the gain over no penalty is larger with the fewest labels than with the most."""
    found = []
    for cell in _cells(chosen, [key for key in over if key != "labels"]) if "labels" in over else ():
        here = matching(chosen, cell)
        place = f"{_spelled(cell)}: " if cell else ""
        for method in sorted({row["method"] for row in here if row["method"].startswith("sire")}):
            gains: dict[float, Sample] = {}
            for share in sorted({row["setting"]["labels"] for row in here}):
                mine, none = (sample_of(here, metric, m, labels=share) for m in (method, without_penalty(method)))
                gains[share] = mine.minus(none)
            gains = {share: gain for share, gain in gains.items() if len(gain) > 1}
            if len(gains) < 2:
                continue
            few, most = gains[min(gains)], gains[max(gains)]
            text = "; ".join(f"{gain.mean:+.3f} with {share * 100:g} %" for share, gain in gains.items())
            text = f"{place}{method} gains most where labels are few: {text}"
            found.append(Claim(f"{text}; the first minus the last {difference(few, most)}", ahead(few, most)))
    return found


def _against_none(chosen: Sequence[Row], rows: Sequence[Row], metric: str, place: str) -> list[Claim]:
    """A line a method; those of SIRE are judged by the same training without a penalty, others held against plain."""
    methods = sorted({row["method"] for row in chosen}, key=lambda method: (method != "plain", method))
    if not any(method.startswith("sire") and without_penalty(method) in methods for method in methods):
        return []
    what = metric.replace("_", "-")
    found = []
    for method in methods:
        judged = method.startswith("sire")
        rival = without_penalty(method) if judged else "plain"
        read = {row["setting"].get("data") for row in chosen if row["method"] in (method, rival)}
        held = rival != method and rival in methods and len(read) == 1  # on the same sets
        mine, other = (sample_of(chosen, metric, name) for name in (method, rival))
        gap = sample_of(chosen, "state_gap_squared", method)
        cells = {
            "where": place,
            "method": method,
            what: pm(mine),
            "against": rival if held else "",
            "difference": difference(mine, other, words="") if held else "",
            "order gap": f"{gap.mean:.2g}" if len(gap) else "",
            **({"accuracy by weight": _by_weight(rows, method)} if metric == "accuracy" else {}),
        }
        text = f"{f'{place}: ' if place else ''}{method} has {what} "
        text += f"above that of {rival}: {pm(mine)} against {pm(other)}" if judged and held else pm(mine)
        text += f", paired difference {difference(mine, other)}" if held else ""
        table = f"{what} of each method's choice, and its difference from the same training without penalty (of other "
        table += "methods: from plain), paired by seed (95 % interval)"
        found.append(Claim(text, ahead(mine, other) if judged else None, table, cells))
    return found


def _by_weight(rows: Sequence[Row], method: str) -> str:
    """Mean test accuracy at each weight a method was given (at the chosen rate), and the one that validation chose.

    Where the search was made with other settings than the final runs, such as fewer epochs, its accuracies are shown.
    """
    mine = [row for row in rows if row["method"] == method]
    chosen = [row["setting"] for row in mine if row["selected"]]
    rates = {setting["learning_rate"] for setting in chosen}
    mine = [row for row in mine if row["setting"]["learning_rate"] in rates]
    if not mine or any("penalty_weight" not in row["setting"] for row in mine):
        return ""
    alike: dict[str, list[Row]] = {}
    for row in mine:
        others = {key: value for key, value in row["setting"].items() if key != "penalty_weight"}
        alike.setdefault(json.dumps(others, sort_keys=True), []).append(row)
    searched = max(alike.values(), key=lambda found: len({row["setting"]["penalty_weight"] for row in found}))
    weights = sorted({row["setting"]["penalty_weight"] for row in searched})
    if len(weights) < 2:
        return ""
    means = {w: sample_of(searched, "accuracy", penalty_weight=w).mean for w in weights}
    best = {setting["penalty_weight"] for setting in chosen}
    where = "" if any(row["selected"] for row in searched) else "in the search: "
    return where + "; ".join(f"{w:g}: {mean:.3f}{' (chosen)' if w in best else ''}" for w, mean in means.items())


REAL_VERDICTS: dict[str, Verdict] = {
    "ecg": penalty_helps("labels", metrics=("accuracy", "macro_f1")),
    "bags": penalty_helps("data", "labels"),
    "activity": penalty_helps("labels"),
    "pointcloud": _ahead_on_clouds,
    "perturbed-mnist": penalty_helps(),
    "perturbed-digits": penalty_helps(),
}
