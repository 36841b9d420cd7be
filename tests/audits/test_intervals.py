"""Nominal 95 % intervals cover at least 92 %, by simulation; a longer one is the benchmark `audit`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.audit import coverage

import anyorder as ao
from anyorder.audits.intervals import heavy_tailed, mean_interval, rate_interval
from predictors import last, rng


@pytest.mark.parametrize("sets", [30, 100, 200])
def test_intervals_cover(sets):
    shares = coverage(sets, cases=400)
    assert len(shares) == 13
    assert {name: share for name, share in shares.items() if share < 0.92} == {}


def test_the_intervals_of_a_report_cover():
    """100 audits of 60 sets: the gap and a curve of lognormal numbers, the flips of a rare one."""
    mean = 2 * np.exp(0.5) * 0.5205  # E|a − b| of two lognormal numbers, 2·e^½·(2Φ(1/√2) − 1)
    truths = {"gap": mean * 4 / 5, "distance": mean / 4, "flips": 2 * 0.03 * 0.97 * 4 / 5}
    covered = dict.fromkeys(truths, 0)
    for case in range(100):
        x = np.random.default_rng(case).lognormal(0, 1, (60, 5, 1))
        report = ao.audit(last, x, orderings=6, search=0, generator=rng(case))
        high = np.random.default_rng(case).random((60, 5, 1))
        flips = ao.audit(lambda e: e[:, -1] < 0.03, high, task="classification", search=0, generator=rng(case))
        found = (report.output_gap_ci, report.by_distance[1].ci, flips.flip_rate_ci)
        for (name, truth), (low, high) in zip(truths.items(), found, strict=True):
            covered[name] += low <= truth <= high
    assert min(covered.values()) >= 0.89 * 100  # 0.92 less a standard error


def test_a_tail_beyond_those_is_said():
    x = np.ones((30, 4, 1))
    x[3, 0] = 1e6
    report = ao.audit(last, x, generator=rng())
    assert any("may cover less than 92 %" in note for note in report.notes)
    assert not ao.audit(last, torch.randn(30, 4, 1, generator=rng()), generator=rng()).notes
    assert heavy_tailed(np.array([0.0] * 29 + [1.0]))


def test_a_mean_of_many_agrees_with_theory():
    values = np.random.default_rng(0).standard_normal(400)
    error = values.std() / 20
    expected = values.mean() - 1.96 * error, values.mean() + 1.96 * error
    assert mean_interval(values) == pytest.approx(expected, abs=error / 5)
    low, high = mean_interval(-np.exp(values))
    assert (-high, -low) == pytest.approx(mean_interval(np.exp(values)))
    assert mean_interval(np.array([1e200, -1e200, 0])) is mean_interval(np.ones(1)) is None
    assert rate_interval(np.ones(20)) == pytest.approx((0.8316, 1.0), abs=1e-4)
