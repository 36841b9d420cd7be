"""Tables to sets: what a table says comes out, from every kind of file, and a bad table is one line."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import torch

import anyorder as ao
from anyorder.checks import InputError
from anyorder.estimators.schema import TableSchema
from anyorder.estimators.tables import read_table

VISIT = {"set_id": "visit", "target": "outcome"}
FILES = ["t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz", "T.CSV", "t.parquet", "d.tsv.csv", "d.csv.tsv"]


def frame(**changes):
    columns = {
        "visit": ["b", "a", "b", "a", "c", "b"],
        "when": [3, 1, 1, 2, 1, 2],
        "dose": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "drug": ["x", "y", "x", "x", "z", "y"],
        "grave": [True, False, False, True, True, False],
        "outcome": ["ill", "well", "ill", "well", "well", "ill"],
    }
    columns.update(changes)
    return pd.DataFrame({name: values for name, values in columns.items() if values is not None})


def write(rows, path):
    if path.suffix == ".parquet":
        rows.to_parquet(path)
    else:
        rows.to_csv(path, index=False, sep="\t" if path.name.removesuffix(".gz").endswith(".tsv") else ",")
    return path


@pytest.fixture(params=["t.csv", "t.parquet"])
def saved(request, tmp_path):
    """Write a frame as a file of one of two kinds."""
    return lambda rows: write(rows, tmp_path / request.param)


# Rows to sets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_same_sets(tmp_path, name):
    path = write(frame(), tmp_path / name)
    table = read_table(path, **VISIT, time="when")
    assert table.set_ids.tolist() == ["b", "a", "c"]
    assert table.schema.classes == ("ill", "well")
    assert table.data.targets.tolist() == [0, 1, 1]
    assert table.data.lengths.tolist() == [3, 2, 1]
    dose, *drug, grave, _, _ = table.data.elements.T
    np.testing.assert_allclose(dose * np.std([1, 2, 3, 4, 5, 6]) + 3.5, [3, 6, 1, 2, 4, 5], rtol=1e-6)
    assert torch.stack(drug).argmax(0).tolist() == [0, 1, 0, 1, 0, 2]
    np.testing.assert_allclose(grave * 0.5 + 0.5, [0, 0, 1, 0, 1, 1], atol=1e-7)


def folder_of(rows, folder):
    """A folder of twelve Parquet files, of one row each, or of none."""
    for number in range(12):
        rows.iloc[number : number + 1].to_parquet(folder / f"part-{number:02}.parquet", index=False)
    return folder


FORMS = {
    "records": lambda rows, _: rows.to_dict("records"),
    "columns": lambda rows, _: rows.to_dict("list"),
    "arrow": lambda rows, _: pa.Table.from_pandas(rows),
    "dataset": lambda rows, folder: pyarrow.dataset.dataset(folder_of(rows, folder)),
    "folder": folder_of,
    "polars": lambda rows, _: pl.DataFrame(rows.to_dict("list")),
    "categories": lambda rows, _: pl.DataFrame(rows.to_dict("list")).with_columns(pl.col("drug").cast(pl.Categorical)),
    "lazy": lambda rows, _: pl.LazyFrame(rows.to_dict("list")),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_frame_is_read_alike_by_tables_and_estimators(tmp_path, form):
    rows = frame()
    given = FORMS[form](rows, tmp_path)
    assert torch.equal(read_table(given, **VISIT).data.elements, read_table(rows, **VISIT).data.elements)
    if form != "folder":  # a path is no X of scikit-learn's kind
        fitted = ao.SetClassifier(epochs=1, set_id="visit", time="when", random_state=0).fit(rows, "outcome")
        assert np.array_equal(fitted.predict_proba(given), fitted.predict_proba(rows))
        with pytest.raises(InputError, match="set_id"):
            ao.SetClassifier().fit(given, rows["outcome"])


def test_a_folder_may_be_split_by_a_column_and_must_hold_parquet_files(tmp_path):
    with pytest.raises(InputError, match="is a folder without"):
        read_table(tmp_path, **VISIT)
    pyarrow.dataset.write_dataset(
        pa.Table.from_pandas(frame()), tmp_path, format="parquet", partitioning=["outcome"], partitioning_flavor="hive"
    )
    assert sorted(read_table(tmp_path, **VISIT).labels.tolist()) == ["ill", "well", "well"]


def test_a_large_table_is_read_as_pandas_groups_it(saved):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"set": rng.integers(0, 40, 3000), "at": rng.permutation(3000), "value": rng.normal(size=3000)})
    rows["sum"] = rows.groupby("set")["value"].transform("sum")
    table = read_table(saved(rows), set_id="set", target="sum", time="at")
    data, schema = table.data, table.schema
    value = schema.features[0]
    for number, name in enumerate(rows["set"].unique()[:5]):
        of_set = rows[rows["set"] == name].sort_values("at")
        read = data.batch([number])[0][0, :, 0] * value.scale + value.mean
        np.testing.assert_allclose(read, of_set["value"], atol=1e-5)
        assert data.targets[number] == pytest.approx(of_set["sum"].iloc[0])


def test_rows_of_one_time_keep_their_order():
    rows = frame(when=[1] * 6, dose=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    plain = read_table(rows.drop(columns="when"), **VISIT).data
    tied = read_table(rows, **VISIT, time="when").data
    assert torch.equal(plain.elements, tied.elements[:, :-2])
    assert (plain.elements[:3, 0].diff() > 0).all()
    assert plain.ties is None
    assert tied.ties.tolist() == [0, 0, 0, 1, 1, 2]
    assert (tied.elements[:, -2:] == 0).all()


@pytest.mark.parametrize(
    "when",
    [
        ["2024-01-03", "2024-01-01", "2024-01-01", "2024-01-02", "2024-01-01", "2024-01-02"],
        ["2024-01-01 10:00:03", *["2024-01-01 10:00:01"] * 2, "2024-01-01 10:00:02"] + ["2024-01-01 10:00:01.5"] * 2,
        [2**60 + 3, 2**60 + 1, 2**60 + 1, 2**60 + 2, 2**60, 2**60 + 2],
        [0.3, 0.1, 0.1, 0.2, 0.1, 0.2],
        ["2024-05-31T12:00:03Z", *["2024-05-31T12:00:01Z"] * 2, "2024-05-31T14:00:02+02:00"]
        + ["2024-05-31T12:00:02Z"] * 2,
    ],
)
def test_times_may_be_numbers_or_texts(saved, when):
    path = saved(frame(when=when, dose=[3.0, 1.0, 1.0, 2.0, 1.0, 2.0]))
    data = read_table(path, **VISIT, time="when", features=["dose"]).data
    assert (data.elements[:3, 0].diff() > 0).all()
    assert (data.elements[3:5, 0].diff() > 0).all()


@pytest.mark.parametrize(
    "kind",
    [pa.time32("s"), pa.time64("us"), pa.duration("s"), pa.date32(), pa.timestamp("ms"), pa.timestamp("ns", "UTC")],
)
def test_times_may_be_of_any_type_that_parquet_has(tmp_path, kind):
    table = pa.Table.from_pandas(frame(dose=[3.0, 1.0, 1.0, 2.0, 1.0, 2.0])).drop_columns("when")
    steps = pa.array([3, 1, 1, 2, 1, 2], pa.int32() if kind in (pa.time32("s"), pa.date32()) else pa.int64())
    pq.write_table(table.append_column("when", steps.cast(kind)), tmp_path / "t.parquet")
    data = read_table(tmp_path / "t.parquet", **VISIT, time="when", features=["dose"]).data
    assert (data.elements[:3, 0].diff() > 0).all()
    assert (data.elements[3:5, 0].diff() > 0).all()


DATES = ["2024-01-01T10:00:00Z", "2024-01-01T10:00:30Z", "2024-01-01T12:00:00+01:00", "2024-01-01T15:00:00Z"]


@pytest.mark.parametrize(
    ("times", "within"), [(DATES, "60s"), ([0, 0.5 / 60, 1, 5], 0.1), (["0", "0", "1", "5"], None)]
)
def test_all_members_of_a_tie_have_the_same_features_of_time(saved, times, within):
    rows = pd.DataFrame({"visit": ["a"] * 4 + ["b"], "when": [*times, times[3]], "dose": [1.0, 2.0, 3.0, 4.0, 5.0]})
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        path = saved(rows.iloc[order].reset_index(drop=True))
        table = read_table(path, set_id="visit", time="when", tie_within=within)
        data, schema = table.data.select([table.set_ids.tolist().index(name) for name in "ab"]), table.schema
        assert (data.ties[:4].diff() == 0).tolist() == [True, False, False]
        dose = schema.decode(data.elements)[:, 0].astype(float).round(3).tolist()
        assert dose[:2] == ([1, 2] if order[1:4:2] != [1, 0] else [2, 1])  # as in the table
        assert schema.gap == pytest.approx(2.5)  # hours: the median of 1 and 4
        np.testing.assert_allclose(data.elements[:, -2], [0, 0, 1 / 2.5, 5 / 2.5, 0], rtol=1e-5)
        np.testing.assert_allclose(data.elements[:, -1], np.log1p([0, 0, 1 / 2.5, 4 / 2.5, 0]), rtol=1e-5)
        assert torch.equal(schema.read(path).data.elements, table.data.elements)


@pytest.mark.parametrize(("when", "within"), [([1, 2], "60s"), (DATES[:2], 60), (DATES[:2], "60"), (DATES[:2], "soon")])
def test_tie_within_has_the_unit_of_the_times(when, within):
    with pytest.raises(InputError, match="tie_within"):
        read_table({"visit": ["a", "a"], "when": when, "dose": [1, 2]}, set_id="visit", time="when", tie_within=within)


def test_static_columns_are_features_of_the_set(saved):
    rows = frame(ward=["n", "s", "n", "s", "n", "n"], age=[70, 50, 70, 50, 60, 70])
    path = saved(rows)
    table = read_table(path, **VISIT, static=["age", "ward"])
    assert "age" not in [feature.name for feature in table.schema.features]
    age, north, south = table.data.static.T
    np.testing.assert_allclose(age * np.std([70, 50, 60]) + 60, [70, 50, 60], rtol=1e-6)
    assert (north.tolist(), south.tolist()) == ([1, 0, 1], [0, 1, 0])
    schema = TableSchema.from_dict(json.loads(json.dumps(table.schema.to_dict())))
    assert torch.equal(schema.read(path).data.static, table.data.static)
    read = schema.read(rows.assign(ward=["x", "s", "x", "s", "n", "x"]))
    assert (read.unseen, read.data.static[0, 1:].tolist()) == ({"ward": 1}, [0, 0])
    for wrong in (rows.assign(age=range(6)), rows.assign(age=[70, 50, None, 50, 60, 70])):
        with pytest.raises(InputError, match=r"'age' (varies|is missing)"):
            schema.read(wrong)


def long_form():
    return pd.DataFrame(
        {
            "visit": ["a", "a", "a", "b", "b", "b"],
            "parameter": ["HR", "Temp", "HR", "HR", "Temp", "Dead"],
            "value": [60.0, 36.0, 80.0, 100.0, 38.0, 1.0],
            "outcome": ["ill", "ill", "ill", "well", "well", "well"],
        }
    )


def test_the_long_form_is_a_name_and_its_value_in_units_of_its_own(saved):
    path = saved(long_form())
    table = read_table(path, **VISIT, name="parameter", value="value")
    data, schema = table.data, table.schema
    names, values = data.elements[:, :3], data.elements[:, 3:]  # Dead, HR, Temp
    assert names.argmax(1).tolist() == [1, 2, 1, 1, 2, 0]
    assert (values[names == 0] == 0).all()
    assert values[[0, 2, 3], 1].sum() == pytest.approx(0, abs=1e-6)
    assert values[1, 2] == -values[4, 2]
    assert values[5, 0] == 0  # a name with one value
    shown = schema.decode(data.elements)[:, 0].tolist()
    assert shown == ["HR = 60", "Temp = 36", "HR = 80", "HR = 100", "Temp = 38", "Dead = 1"]
    schema = TableSchema.from_dict(json.loads(json.dumps(schema.to_dict())))
    wild = schema.read(long_form().assign(value=[1e30, 36, 80, 100, 38, 1], parameter=["HR", "new", *["HR"] * 4]))
    assert wild.unseen == {"parameter": 1}
    assert wild.data.elements[0, 4] == 10  # far, but no further
    assert (wild.data.elements[1] == 0).all()


def test_one_wild_value_does_not_spoil_the_units_of_its_name():
    rows = {"visit": np.arange(1000) // 2, "parameter": "HR", "value": np.r_[1e30, np.linspace(50, 100, 999)]}
    schema = read_table(rows, set_id="visit", name="parameter", value="value").schema
    assert schema.features[0].units[0] == pytest.approx((75, 14.4), rel=0.05)


# The schema -------------------------------------------------------------------------------------------------------


def test_the_schema_reads_another_table_and_counts_unseen_categories(tmp_path):
    path = write(frame(), tmp_path / "train.csv")
    table = read_table(path, **VISIT, time="when")
    data, schema = table.data, table.schema
    schema = TableSchema.from_dict(json.loads(json.dumps(schema.to_dict())))
    again = schema.read(path, with_target=True)
    assert torch.equal(again.data.elements, data.elements)
    assert torch.equal(again.data.targets, data.targets)
    assert again.unseen == {}
    other = write(frame(drug=["x", "new", "other", "new", "x", "x"], outcome=None), tmp_path / "other.csv")
    read = schema.read(other, with_target=True)
    assert read.unseen == {"drug": 3}
    assert read.data.targets is None
    assert schema.read(path, with_target=True).data.targets is not None
    assert [(f.name, f.categories) for f in schema.features] == [("dose", ()), ("drug", ("x", "y", "z")), ("grave", ())]
    assert read.data.elements[3:5, 1:4].sum() == 0
    of_set = frame()[frame()["visit"] == "b"]
    assert torch.equal(schema.encode(of_set), data.elements[:3])
    plain = read_table(path, **VISIT, features=["dose", "drug", "grave"]).schema
    assert torch.equal(plain.encode({"dose": [3.0], "drug": ["x"], "grave": [False]}), data.elements[:1, :-2])


def test_decoded_elements_are_those_of_the_table():
    rows = frame()
    table = read_table(rows, set_id="visit", features=["drug", "dose", "grave"])
    data, schema = table.data, table.schema
    shown = schema.decode(data.elements)
    together = rows.sort_values("visit", key=lambda ids: ids.map({"b": 0, "a": 1, "c": 2}), kind="stable")
    assert shown[:, 0].tolist() == together["drug"].tolist()
    np.testing.assert_allclose(shown[:, 1].astype(float), together["dose"], rtol=1e-6)
    np.testing.assert_allclose(shown[:, 2].astype(float), together["grave"], atol=1e-6)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("missing"),
        lambda d: d.update(task="exec"),
        lambda d: d.update(missing="ignore"),
        lambda d: d.update(classes=None),
        lambda d: d.update(features=3),
        lambda d: d["features"][0].update(scale=0),
        lambda d: d["features"][0].update(value="dose"),
        lambda d: d.update(static=3),
        lambda d: d.update(gap=0),
        lambda d: d["features"][0].update(kind="image"),
    ],
)
def test_a_schema_that_was_tampered_with_is_refused(damage):
    schema = read_table(frame(), **VISIT).schema
    values = json.loads(json.dumps(schema.to_dict()))
    assert TableSchema.from_dict(values) == schema
    damage(values)
    with pytest.raises(InputError, match="schema"):
        TableSchema.from_dict(values)


# Targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "task", "classes"),
    [
        (["p", "q", "p", "q", "q", "p"], None, ("p", "q")),
        ([True, False, True, False, False, True], None, (False, True)),
        ([1.5, 2.0, 1.5, 2.0, 3.0, 1.5], None, None),
        ([1.0, 2.0, 1.0, 2.0, 3.0, 1.0], "classification", (1, 2, 3)),
        ([10, 9, 10, 9, 9, 10], "classification", (9, 10)),
        ([10, 9, 10, 9, 9, 10], "regression", None),
        ([True, False, True, False, False, True], "regression", None),
        ([1.7e9 + 0.25, 1.7e9, 1.7e9 + 0.25, 1.7e9, 1.7e9 + 1, 1.7e9 + 0.25], None, None),  # beyond float32
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_the_target_decides_the_task(tmp_path, target, task, classes, name):
    path = write(frame(outcome=target), tmp_path / name)
    table = read_table(path, **VISIT, task=task)
    data, schema = table.data, table.schema
    assert (schema.task, schema.classes) == ("classification" if classes else "regression", classes)
    found = [classes[t] for t in data.targets] if classes else data.targets.tolist()
    assert found == [target[0], target[1], target[4]]
    assert data.targets.dtype == (torch.int64 if classes else torch.float64)
    assert torch.equal(schema.read(path, with_target=True).data.targets, data.targets)


@pytest.mark.parametrize(
    ("labels", "known", "unknown"),
    [
        (["01", "02", "A1", "A2"], ["02", "01"], "1"),
        (["True", "False", "Maybe"], ["False", "True"], "true"),
        (["1", "2", "3", "5+"], ["3", "1"], "4"),
    ],
)
def test_a_class_is_read_alike_whatever_others_the_table_holds(saved, labels, known, unknown):
    def table(targets):
        return saved(pd.DataFrame({"s": range(len(targets)), "x": 1.0, "y": targets}))

    schema = read_table(table(labels), set_id="s", target="y", task="classification").schema
    assert schema.classes == tuple(sorted(labels))
    read = schema.read(table(known), with_target=True).data.targets
    assert [schema.classes[t] for t in read] == known
    with pytest.raises(InputError, match=f"unknown class \\('{unknown}'\\)"):
        schema.read(table([known[0], unknown]), with_target=True)
    assert len(schema.read(table([unknown])).data) == 1  # the target is not read


# Missing values ---------------------------------------------------------------------------------------------------


def test_missing_values_are_dropped_or_filled(saved):
    path = saved(frame(dose=[1.0, None, 3.0, 5.0, None, 7.0]))
    options = {**VISIT, "features": ["dose"]}
    table = read_table(path, missing="drop-row", **options)
    assert table.dropped == 2
    assert table.set_ids.tolist() == ["b", "a"]  # c has no row left to learn from
    read = table.schema.read(path)
    assert read.set_ids.tolist() == ["b", "a", "c"]  # but c gets a prediction
    assert read.data.lengths.tolist() == [3, 1, 0]
    filled = read_table(path, missing="mean", **options)
    assert filled.data.elements[[3, 5], 0].tolist() == [0, 0]
    zero = read_table(path, missing="zero", **options)
    (dose,) = zero.schema.features
    np.testing.assert_allclose(zero.data.elements[[3, 5], 0], -dose.mean / dose.scale)


def test_dropped_rows_leave_no_class_and_no_category_behind():
    """Only the visit c has the class dead and the drug z, and its row is dropped."""
    rows = frame(dose=[1.0, 2.0, 3.0, 4.0, None, 6.0], outcome=["ill", "well", "ill", "well", "dead", "ill"])
    table = read_table(rows, **VISIT, missing="drop-row")
    assert table.schema.classes == ("ill", "well")
    assert table.schema.features[2].categories == ("x", "y")
    assert table.schema.read(rows, with_target=True).set_ids.tolist() == ["b", "a", "c"]


def test_dropped_rows_take_their_time_with_them():
    rows = frame(dose=[3.0, None, 1.0, 2.0, 5.0, 2.0])
    data = read_table(rows, **VISIT, time="when", features=["dose"], missing="drop-row").data
    assert data.lengths.tolist() == [3, 1, 1]
    assert (data.elements[:3, 0].diff() > 0).all()


@pytest.mark.parametrize("missing", ["mean", "zero", "drop-row"])
def test_a_column_without_values_is_all_gaps_to_a_schema(saved, missing):
    schema = read_table(frame(), missing=missing, **VISIT, features=["dose", "drug"]).schema
    read = schema.read(saved(frame(dose=[None] * 6, drug=[None] * 6)))
    if missing == "drop-row":
        assert (read.dropped, read.data.lengths.tolist()) == (6, [0, 0, 0])
        return
    gap = 0.0 if missing == "mean" else -schema.features[0].mean / schema.features[0].scale
    np.testing.assert_allclose(read.data.elements[:, 0], gap, rtol=1e-6)
    assert (read.data.elements[:, 1:] == 0).all()
    assert read.unseen == {}
    np.testing.assert_allclose(schema.encode({"dose": [None], "drug": [None]}), [[gap, 0, 0, 0]], rtol=1e-6)


def test_nan_is_a_gap_and_no_category():
    rows = {"visit": ["a", "a", "b"], "ward": np.array([1.0, np.nan, 2.0]), "outcome": ["ill", "ill", "well"]}
    table = read_table(rows, missing="mean", **VISIT, categorical=["ward"])
    assert table.schema.features[0].categories == ("1", "2")
    assert table.unseen == {}
    assert table.data.elements.sum() == 2


# Numbers and categories -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "categories"),
    [
        (["1", "2", "3", "a", "b", "c"], ("1", "2", "3", "a", "b", "c")),
        ([" 1", "2 ", "3", "true", "False", "0.5"], ()),
        (pd.Categorical(list("xyxyxy")), ("x", "y")),
        (pd.array([True, None, False, True, True, False], dtype="boolean"), ()),
        (pd.array([1, None, 3, 4, 5, 6], dtype="Int64"), ()),
    ],
)
def test_the_values_of_a_column_decide_what_it_is(values, categories):
    schema = read_table(frame(drug=values), **VISIT, features=["drug"], missing="mean").schema
    assert schema.features[0].categories == categories


def test_columns_may_be_named_by_numbers_and_numbers_may_be_categories():
    rows = pd.DataFrame([[1, 0.5, "x", 2], [1, 1.5, "y", 1], [2, 2.5, "x", 1]])
    table = read_table(rows, set_id=0, time=3, features=[1, 2], categorical=[1])
    data, schema = table.data, table.schema
    assert [schema.set_id, *(f.categories for f in schema.features)] == ["0", ("0.5", "1.5", "2.5"), ("x", "y")]
    assert torch.equal(schema.read(rows).data.elements, data.elements)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 / 3, -7.0])
def test_a_constant_feature_is_only_shifted(value):
    table = read_table({"s": np.arange(10), "x": np.full(10, value)}, set_id="s")
    data, schema = table.data, table.schema
    assert schema.features[0].scale == 1.0
    np.testing.assert_allclose(data.elements, 0, atol=1e-6)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("kind", ["float64", "int64", "uint64"])
def test_large_offsets_do_not_eat_small_differences(tmp_path, name, kind):
    """Nanoseconds since 1970, a second apart: float64 does not hold all of these whole numbers."""
    stamps = np.array([1_700_000_000_000_000_001 + 10**9 * s for s in range(6)], dtype=kind)
    table = read_table(write(frame(dose=stamps), tmp_path / name), **VISIT, features=["dose"])
    data, schema = table.data, table.schema
    assert data.elements.unique().numel() == 6
    assert schema.features[0].mean == pytest.approx(1.7e18)


def test_what_spreadsheets_write_is_read(tmp_path):
    text = '\ufeffvisit,note,dose\r\na,"two\nlines, a comma",1\r\nb,x, 2.5 \r\n\r\n'
    (tmp_path / "t.csv").write_bytes(text.encode())
    table = read_table(tmp_path / "t.csv", set_id="visit")
    assert table.set_ids.tolist() == ["a", "b"]
    assert [f.categories for f in table.schema.features] == [("two\nlines, a comma", "x"), ()]
    assert table.schema.features[1].mean == 1.75


# Time and memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_time_to_read_a_table_grows_with_its_columns_and_no_faster(tmp_path, ending):
    """A comparison of all names with all, or work of its own for each column, took minutes for 100,000 columns."""
    names, seconds = [f"c{number}" for number in range(20_000)], {5_000: [], 20_000: []}
    values = np.random.default_rng(0).normal(size=(4, len(names)))
    for count in (5_000, 5_000, 20_000, 20_000):  # the faster of two counts
        path = tmp_path / f"{count}.{ending}"
        table = pa.table({"set": [0, 0, 1, 1], "y": [*"aabb"], **dict(zip(names[:count], values.T, strict=False))})
        (pq.write_table if ending == "parquet" else pa.csv.write_csv)(table, path)
        began = time.process_time()
        assert read_table(path, set_id="set", target="y").data.elements.shape == (4, count)
        seconds[count].append(time.process_time() - began)
    assert min(seconds[20_000]) < 10 * min(seconds[5_000])
    with pytest.raises(InputError, match="features"):
        read_table(path, set_id="set", target="y", features=[*names, "odd"])


def test_features_of_a_table_with_very_many_columns_must_be_named(tmp_path):
    names = [f"c{number}" for number in range(50_001)]
    lines = [",".join(line) for line in (["set", "y", *names], *([*ends, *"1" * len(names)] for ends in ("0a", "1b")))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"features must be named, .* 50,001 columns"):
        read_table(tmp_path / "t.csv", set_id="set", target="y")
    assert read_table(tmp_path / "t.csv", set_id="set", target="y", features=names[-2:]).data.elements.shape == (2, 2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is a POSIX call")
def test_memory_grows_with_the_numbers_not_with_the_text(tmp_path):
    """The columns that are read cost a row less than one text that is not read (400 bytes)."""
    measure = """
import resource, sys
from anyorder.estimators.tables import read_table
for path in sys.argv[1:]:
    read_table(path, set_id="set", target="y", time="at", features=["u", "v", "w", "kind"])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    note, paths = "x" * 400, []
    for count in (20_000, 120_000):
        row = np.arange(count)
        rows = {"set": row // 8, "at": -row, "note": note, "u": row % 7 + 0.5, "v": row % 11, "w": row % 13}
        paths.append(tmp_path / f"{count}.csv")
        pd.DataFrame({**rows, "kind": row % 2, "y": row // 8 % 2 + 0.5}).to_csv(paths[-1], index=False)
    words = [sys.executable, "-c", measure, *map(str, paths)]
    small, large = map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    assert (large - small) / 100_000 < 350
