"""Tables on Ray: the rows and the report are those of one machine, also where a set spans several files."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from test_table_model import COLUMNS, stays

import anyorder as ao
from anyorder.estimators.ray import audit_on_ray, predict_on_ray

pytestmark = pytest.mark.ray


def test_predictions_and_audits_are_those_of_one_machine(tmp_path):
    rows = stays(40)
    for number in range(4):  # every set has rows in several files
        rows.iloc[number::4].to_parquet(tmp_path / f"part-{number}.parquet", index=False)
    options = {"epochs": 1, "yardstick": False, "test_fraction": 0}
    model = ao.TableModel(**options).fit(tmp_path, **COLUMNS)
    parts = predict_on_ray(model, str(tmp_path), sets=7)
    pd.testing.assert_frame_equal(parts, model.predict(tmp_path), rtol=1e-5, atol=1e-6)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    report = audit_on_ray(model, str(tmp_path), 10, orderings=3, search=20, generator=generators[0])
    expected = model.audit(tmp_path, 10, orderings=3, search=20, generator=generators[1])
    assert report.output_gap == pytest.approx(expected.output_gap, rel=1e-3)
    assert [case.name for case in report.worst] == [case.name for case in expected.worst]
