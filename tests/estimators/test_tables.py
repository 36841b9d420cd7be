from __future__ import annotations

import gzip
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from anyorder import pad
from anyorder.checks import InputError, InputTypeError
from anyorder.data.sets import SetData
from anyorder.estimators import columns as _columns
from anyorder.estimators.tables import TableSchema, learn_table, read_table

RAGGED = [[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]], np.empty((0, 2)), [[4.0, 40.0]], [[5.0, 50.0]]]


@pytest.fixture
def ragged():
    return SetData.of(RAGGED, y=[0, 1, 2, 3], weights=[1.0, 2.0, 3.0, 4.0])


def test_batch_agrees_with_pad_of_the_same_sets(ragged):
    for index in ([0, 1, 2], [2, 0], [3, 1]):
        elements, lengths = ragged.batch(index)
        expected, expected_lengths = pad([np.asarray(RAGGED[i]) for i in index])
        assert torch.equal(elements, expected)
        assert torch.equal(lengths, expected_lengths)


def test_batch_of_equal_sizes_has_no_lengths_and_is_only_as_long_as_they_are(ragged):
    elements, lengths = ragged.batch([3, 2])
    assert lengths is None
    assert elements.tolist() == [[[5.0, 50.0]], [[4.0, 40.0]]]


def test_select_keeps_each_set_with_its_target_and_weight(ragged):
    chosen = ragged.select([2, 0, 0])
    assert chosen.lengths.tolist() == [1, 3, 3]
    assert chosen.elements[:, 0].tolist() == [4, 1, 2, 3, 1, 2, 3]
    assert chosen.targets.tolist() == [2, 0, 0]
    assert chosen.weights.tolist() == [3, 1, 1]
    assert ragged.select(np.array([False, True, False, True])).targets.tolist() == [1, 3]


@pytest.mark.parametrize("sets", [RAGGED, np.arange(8.0).reshape(4, 2, 1)])
def test_negative_numbers_count_from_the_end(sets):
    data = SetData.of(sets, y=[0, 1, 2, 3])
    assert data.select([-1, 0, -4]).targets.tolist() == [3, 0, 0]
    assert torch.equal(data.select([-1, 0, -4]).elements, data.select([3, 0, 0]).elements)
    assert torch.equal(data.batch([-2, -4])[0], data.batch([2, 0])[0])


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_a_block_and_a_list_of_its_rows_are_the_same_sets(kind):
    block = np.arange(24.0).reshape(4, 3, 2)
    whole, listed = SetData.of(kind(block)), SetData.of(list(kind(block)))
    assert whole.common_length == 3
    assert torch.equal(whole.elements, listed.elements)
    assert torch.equal(whole.offsets, listed.offsets)
    elements, lengths = whole.batch(torch.tensor([3, 1]))
    assert lengths is None
    assert elements.numpy().tolist() == block[[3, 1]].tolist()


def test_two_axes_mean_sets_of_numbers():
    data = SetData.of(np.ones((5, 7), dtype=np.float32), dtype=torch.float64)
    assert data.batch([0])[0].shape == (1, 7, 1)
    assert data.elements.dtype == torch.float64


def test_an_object_array_of_arrays_is_a_list_of_them():
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.ones((2, 3)), np.ones((1, 3))]
    assert SetData.of(ragged).lengths.tolist() == [2, 1]


def test_set_data_of_set_data_replaces_only_what_is_given(ragged):
    again = SetData.of(ragged, y=[5, 6, 7, 8], dtype=torch.float32)
    assert again.targets.tolist() == [5, 6, 7, 8]
    assert again.weights.tolist() == [1, 2, 3, 4]
    assert again.elements.dtype == torch.float32
    assert torch.equal(again.offsets, ragged.offsets)


def test_targets_and_weights_may_be_series_of_any_index():
    y, weights = pd.Series([5, 6], index=[7, 3]), pd.Series([0.5, 1.5], index=["a", "b"])
    data = SetData.of([[1.0], [2.0]], y=y, weights=weights)
    assert (data.targets.tolist(), data.weights.tolist()) == ([5, 6], [0.5, 1.5])
    assert SetData.of([[1.0]], y=[0.5]).targets.dtype == torch.float32


def test_nan_of_a_neighbour_never_reaches_padding():
    data = SetData.of([[float("nan")], [1.0, 2.0], [3.0]])
    assert data.batch([1, 2])[0].isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SetData.of([]), "at least one set"),
        (lambda: SetData.of(np.ones((0, 3, 2))), r"shape \[N, T, D\]"),
        (lambda: SetData.of(np.ones(3)), r"shape \[N, T, D\]"),
        (lambda: SetData.of([np.ones((2, 3)), np.ones((2, 4))]), "set 0 has 3, set 1 has 4"),
        (lambda: SetData.of([[1.0]], y=[1, 2]), "targets must hold one row a set, 1; got 2"),
        (lambda: SetData.of([[1.0]], weights=[1, 2]), "weights must hold one row a set"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0, 2])), "offsets must rise from 0 to 3"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0, 4, 3])), "smallest step -1"),
        (lambda: SetData(torch.ones(3, 1), torch.tensor([0.0, 3.0])), "offsets must be int64"),
        (lambda: SetData(torch.ones(3), torch.tensor([0, 3])), r"elements must have shape \[total, D\]"),
        (lambda: SetData.of([[1.0]]).batch([]), "at least one set; got none"),
        (lambda: SetData.of(RAGGED).select([0, 4]), "index must be from -4 to 3, of 4 sets; got 4"),
        (lambda: SetData.of(RAGGED).batch([-5]), "index must be from -4 to 3, of 4 sets; got -5"),
        (lambda: SetData.of(RAGGED).select([True, False]), r"a mask must have shape \[4\], .*; got \[2\]"),
    ],
)
def test_bad_sets_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_text_is_refused():
    with pytest.raises(InputTypeError, match="X must be a list of arrays"):
        SetData.of(np.array([["a", "b"]]))
    with pytest.raises(InputTypeError, match="array 0 is not an array of numbers"):
        SetData.of([["a", "b"]])
    for y in (["a"], pd.Series(["a"]), np.array(["a"])):
        with pytest.raises(InputTypeError, match="y must hold numbers, one row a set"):
            SetData.of([[1.0]], y=y)


def test_an_index_of_fractions_is_refused(ragged):
    with pytest.raises(InputTypeError, match=r"whole numbers or a mask; got dtype torch\.float32"):
        ragged.select([0.5])


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
    elif path.suffix == ".npz":
        np.savez(path, **{n: rows[n].to_numpy(dtype="U" if rows[n].dtype == "str" else None) for n in rows})
    else:
        rows.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    return path


KINDS = ["t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz", "T.CSV", "t.parquet", "t.npz"]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_file_gives_the_same_sets(tmp_path, name):
    path = write(frame(), tmp_path / name)
    table = learn_table(path, set_id="visit", target="outcome", time="when")
    assert table.set_ids.to_pylist() == ["b", "a", "c"]
    assert table.schema.classes == ("ill", "well")
    assert table.data.targets.tolist() == [0, 1, 1]
    assert table.data.lengths.tolist() == [3, 2, 1]
    dose, *drug, grave = table.data.elements.T
    np.testing.assert_allclose(dose * np.std([1, 2, 3, 4, 5, 6]) + 3.5, [3, 6, 1, 2, 4, 5], rtol=1e-6)
    assert torch.stack(drug).argmax(0).tolist() == [0, 1, 0, 1, 0, 2]
    np.testing.assert_allclose(grave * 0.5 + 0.5, [0, 0, 1, 0, 1, 1], atol=1e-7)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_blocks_do_not_change_what_is_read(tmp_path, monkeypatch, name):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "set": rng.integers(0, 40, 3000),
            "at": rng.permutation(3000),
            "value": rng.normal(size=3000),
            "kind": rng.choice(["p", "q", "r"], 3000),
        }
    )
    rows["sum"] = rows.groupby("set")["value"].transform("sum")
    path = write(rows, tmp_path / name)
    options = {"set_id": "set", "target": "sum", "time": "at"}
    whole, schema = read_table(path, **options)
    monkeypatch.setattr(_columns, "_BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(_columns, "_BLOCK_ROWS", 64)
    parts, again = read_table(path, **options)
    assert torch.equal(whole.elements, parts.elements)
    assert torch.equal(whole.targets, parts.targets)
    for ours, theirs in zip(schema.features, again.features, strict=True):
        assert ours.categories == theirs.categories
        assert ours.mean == pytest.approx(theirs.mean)
    first = rows[rows["set"] == rows["set"][0]].sort_values("at")["value"].to_numpy()
    value = schema.features[0]
    np.testing.assert_allclose(whole.batch([0])[0][0, :, 0] * value.scale + value.mean, first, atol=1e-5)


def test_row_order_is_kept_without_an_order_column_and_ties_keep_it_too():
    rows = frame(when=[1, 1, 1, 1, 1, 1], dose=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    plain, _ = read_table(rows.drop(columns="when"), set_id="visit", target="outcome")
    tied, _ = read_table(rows, set_id="visit", target="outcome", time="when")
    assert torch.equal(plain.elements, tied.elements)
    assert (plain.elements[:3, 0].diff() > 0).all()


def test_row_order_is_kept_in_large_sets_whose_rows_are_mixed():
    rows = {"s": np.arange(3000) % 3, "x": np.arange(3000.0)}
    data, _ = read_table(rows, set_id="s")
    assert data.lengths.tolist() == [1000] * 3
    assert (data.batch([0, 1, 2])[0][:, :, 0].diff(dim=1) > 0).all()


def test_rows_left_out_take_their_place_in_the_order_with_them():
    rows = frame(dose=[3.0, None, 1.0, 2.0, 5.0, 2.0])
    data, _ = read_table(rows, set_id="visit", target="outcome", time="when", features=["dose"], missing="drop-row")
    assert data.lengths.tolist() == [3, 1, 1]
    assert (data.elements[:3, 0].diff() > 0).all()


@pytest.mark.parametrize(
    "when",
    [
        ["2024-01-03", "2024-01-01", "2024-01-01", "2024-01-02", "2024-01-01", "2024-01-02"],
        ["2024-01-01 10:00:03", *["2024-01-01 10:00:01"] * 2, "2024-01-01 10:00:02"] + ["2024-01-01 10:00:01.5"] * 2,
        [2**60 + 3, 2**60 + 1, 2**60 + 1, 2**60 + 2, 2**60, 2**60 + 2],
        [0.3, 0.1, 0.1, 0.2, 0.1, 0.2],
        [
            "2024-05-31T12:00:03Z",
            *["2024-05-31T12:00:01Z"] * 2,
            "2024-05-31T14:00:02+02:00",
            *["2024-05-31T12:00:02Z"] * 2,
        ],
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_order_may_be_numbers_or_times(tmp_path, when, name):
    dose = [3.0, 1.0, 1.0, 2.0, 1.0, 2.0]
    path = write(frame(when=when, dose=dose), tmp_path / name)
    data, _ = read_table(path, set_id="visit", target="outcome", time="when", features=["dose"])
    assert (data.elements[:3, 0].diff() > 0).all()
    assert (data.elements[3:5, 0].diff() > 0).all()


@pytest.mark.parametrize(
    "kind",
    [pa.time32("s"), pa.time64("us"), pa.duration("s"), pa.date32(), pa.timestamp("ms"), pa.timestamp("ns", "UTC")],
)
def test_order_may_be_any_time_that_parquet_has(tmp_path, kind):
    table = pa.Table.from_pandas(frame(dose=[3.0, 1.0, 1.0, 2.0, 1.0, 2.0])).drop_columns("when")
    steps = pa.array([3, 1, 1, 2, 1, 2], pa.int32() if kind in (pa.time32("s"), pa.date32()) else pa.int64())
    pq.write_table(table.append_column("when", steps.cast(kind)), tmp_path / "t.parquet")
    data, _ = read_table(tmp_path / "t.parquet", set_id="visit", target="outcome", time="when", features=["dose"])
    assert (data.elements[:3, 0].diff() > 0).all()
    assert (data.elements[3:5, 0].diff() > 0).all()


def test_the_same_schema_reads_another_table_and_counts_unseen_categories(tmp_path):
    path = write(frame(), tmp_path / "train.csv")
    data, schema = read_table(path, set_id="visit", target="outcome", time="when")
    schema = TableSchema.from_dict(json.loads(json.dumps(schema.to_dict())))
    again = schema.read(path, with_target=True)
    assert torch.equal(again.data.elements, data.elements)
    assert torch.equal(again.data.targets, data.targets)
    assert again.unseen == {}
    other = write(frame(drug=["x", "new", "other", "new", "x", "x"], outcome=None), tmp_path / "other.csv")
    read = schema.read(other)
    assert read.unseen == {"drug": 3}
    assert read.data.targets is None
    assert schema.read(other, with_target=None).data.targets is None
    assert schema.read(path, with_target=None).data.targets is not None
    assert schema.column_names == ["dose", "drug=x", "drug=y", "drug=z", "grave"]
    assert read.data.elements[3:5, 1:4].sum() == 0
    rows = schema.encode(frame())
    assert torch.equal(rows[[2, 5, 0, 1, 3, 4]], data.elements)
    one = schema.encode({"dose": 1.0, "drug": "x", "grave": True})
    assert torch.equal(one[0], rows[0])


def test_elements_are_shown_as_they_stood_whatever_the_order_of_the_columns():
    rows = frame()
    data, schema = read_table(rows, set_id="visit", features=["drug", "dose", "grave"])
    shown = schema.decode(data.elements)
    together = rows.sort_values("visit", key=lambda ids: ids.map({"b": 0, "a": 1, "c": 2}), kind="stable")
    assert shown[:, 0].tolist() == together["drug"].tolist()
    np.testing.assert_allclose(shown[:, 1].astype(float), together["dose"], rtol=1e-6)
    np.testing.assert_allclose(shown[:, 2].astype(float), together["grave"], atol=1e-6)


def test_a_target_the_model_does_not_know_is_refused_only_where_it_is_read(tmp_path):
    _, schema = read_table(frame(), set_id="visit", target="outcome", time="when")
    rows = frame(outcome=["dead"] * 6)
    assert len(schema.read(rows).data) == 3
    with pytest.raises(InputError, match="holds 'dead', which is none of the model's classes: ill, well"):
        schema.read(rows, with_target=True)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(
    ("labels", "known", "unknown"),
    [
        (["01", "02", "A1", "A2"], ["02", "01"], "1"),
        (["True", "False", "Maybe"], ["False", "True"], "true"),
        (["1", "2", "3", "5+"], ["3", "1"], "4"),
    ],
)
def test_a_class_is_read_alike_whatever_others_the_table_holds(tmp_path, name, labels, known, unknown):
    def table(targets):
        return write(pd.DataFrame({"s": range(len(targets)), "x": 1.0, "y": targets}), tmp_path / name)

    _, schema = read_table(table(labels), set_id="s", target="y", task="classification")
    assert schema.classes == tuple(sorted(labels))
    read = schema.read(table(known), with_target=True).data.targets
    assert [schema.classes[t] for t in read] == known
    with pytest.raises(InputError, match=f"holds '{unknown}', which is none of the model's classes"):
        schema.read(table([known[0], unknown]), with_target=True)


@pytest.mark.parametrize(
    ("target", "task", "found", "classes"),
    [
        (["p", "q", "p", "q", "q", "p"], None, "classification", ("p", "q")),
        ([True, False, True, False, False, True], None, "classification", (False, True)),
        ([1.5, 2.0, 1.5, 2.0, 3.0, 1.5], None, "regression", None),
        ([1.0, 2.0, 1.0, 2.0, 3.0, 1.0], None, "regression", None),
        ([1.0, 2.0, 1.0, 2.0, 3.0, 1.0], "classification", "classification", (1, 2, 3)),
        ([10, 9, 10, 9, 9, 10], "classification", "classification", (9, 10)),
        ([10, 9, 10, 9, 9, 10], "regression", "regression", None),
        ([True, False, True, False, False, True], "regression", "regression", None),
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npz"])
def test_the_target_decides_the_task(tmp_path, target, task, found, classes, name):
    path = write(frame(outcome=target), tmp_path / name)
    data, schema = read_table(path, set_id="visit", target="outcome", task=task)
    assert (schema.task, schema.classes) == (found, classes)
    expected = [target[0], target[1], target[4]]
    if classes:
        assert [classes[t] for t in data.targets] == expected
    else:
        assert data.targets.tolist() == expected
        assert data.targets.dtype == torch.float64
    assert torch.equal(schema.read(path, with_target=True).data.targets, data.targets)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_missing_values_are_dropped_or_filled_as_asked(tmp_path, name):
    path = write(frame(dose=[1.0, None, 3.0, 5.0, None, 7.0]), tmp_path / name)
    options = {"set_id": "visit", "target": "outcome", "features": ["dose"]}
    table = learn_table(path, missing="drop-row", **options)
    assert table.dropped == 2
    assert table.set_ids.to_pylist() == ["b", "a"]  # c has no row left, so there is nothing to learn from it
    read = table.schema.read(path)
    assert read.set_ids.to_pylist() == ["b", "a", "c"]  # but a prediction is owed for it
    assert read.data.lengths.tolist() == [3, 1, 0]
    filled, schema = read_table(path, missing="mean", **options)
    assert filled.elements[[3, 5], 0].tolist() == [0, 0]
    zero, schema = read_table(path, missing="zero", **options)
    np.testing.assert_allclose(zero.elements[[3, 5], 0], -schema.features[0].mean / schema.features[0].scale)


def test_dropped_rows_leave_no_class_and_no_category_behind(tmp_path):
    """Only the visit c has the class dead and the drug z, and its row is dropped."""
    rows = frame(dose=[1.0, 2.0, 3.0, 4.0, None, 6.0], outcome=["ill", "well", "ill", "well", "dead", "ill"])
    table = learn_table(rows, set_id="visit", target="outcome", missing="drop-row")
    assert table.schema.classes == ("ill", "well")
    assert table.schema.features[2].categories == ("x", "y")
    assert table.schema.read(rows, with_target=True).set_ids.to_pylist() == ["b", "a", "c"]


def test_a_missing_category_is_no_category_and_not_unseen():
    rows = frame(drug=["x", None, "x", "y", "y", "x"])
    table = learn_table(rows, set_id="visit", target="outcome", features=["drug"], missing="mean")
    assert table.schema.features[0].categories == ("x", "y")
    assert table.unseen == {}
    assert table.data.elements.sum() == 5


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", None])
@pytest.mark.parametrize("missing", ["mean", "zero", "drop-row"])
def test_a_column_without_a_value_is_all_gaps_to_a_schema_that_knows_its_kind(tmp_path, name, missing):
    options = {"set_id": "visit", "target": "outcome", "features": ["dose", "drug"]}
    _, schema = read_table(frame(), missing=missing, **options)
    rows = frame(dose=[None] * 6, drug=[None] * 6)
    read = schema.read(rows if name is None else write(rows, tmp_path / name))
    if missing == "drop-row":
        assert (read.dropped, read.data.lengths.tolist()) == (6, [0, 0, 0])
        return
    gap = 0.0 if missing == "mean" else -schema.features[0].mean / schema.features[0].scale
    np.testing.assert_allclose(read.data.elements[:, 0], gap, rtol=1e-6)
    assert (read.data.elements[:, 1:] == 0).all()
    assert read.unseen == {}
    np.testing.assert_allclose(schema.encode({"dose": None, "drug": None}), [[gap, 0, 0, 0]], rtol=1e-6)


def test_nan_among_numbers_read_as_categories_is_a_gap():
    rows = {"visit": ["a", "a", "b"], "ward": np.array([1.0, np.nan, 2.0]), "outcome": ["ill", "ill", "well"]}
    options = {"set_id": "visit", "target": "outcome", "categorical": ["ward"]}
    table = learn_table(rows, missing="mean", **options)
    assert table.schema.features[0].categories == ("1", "2")
    assert table.unseen == {}
    with pytest.raises(InputError, match="feature 'ward' is missing in row 2"):
        read_table(rows, **options)


def test_a_column_empty_in_its_first_block_is_read_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(_columns, "_BLOCK_BYTES", 60)
    path = write(frame(dose=[None] * 5 + [7.0], drug=[None] * 5 + ["x"]), tmp_path / "t.csv")
    data, schema = read_table(path, set_id="visit", target="outcome", missing="mean", features=["dose", "drug"])
    assert [f.kind for f in schema.features] == ["number", "category"]
    assert data.elements.sum() == 1


def test_numbers_may_be_declared_categories():
    _, schema = read_table(frame(), set_id="visit", target="outcome", categorical=["when"], features=["when"])
    assert schema.features[0].categories == ("1", "2", "3")


def test_a_categorical_column_must_be_a_feature():
    with pytest.raises(InputError, match="categorical column 'drug' is not among the features; name it there too"):
        read_table(frame(), set_id="visit", target="outcome", categorical=["drug"], features=["when"])
    with pytest.raises(InputError, match="'outcome' is the set id, target or time column"):
        read_table(frame(), set_id="visit", target="outcome", categorical=["outcome"])


def test_a_number_beyond_float32_in_the_units_of_training_is_refused_by_its_column():
    _, schema = read_table(frame(), set_id="visit", target="outcome", features=["dose", "when"])
    far = frame(dose=[1.0, 2.0, 3.0, -1e60, 5.0, 6.0])
    with pytest.raises(InputError, match=r"feature 'dose' of rows holds -1e\+60, too far from what the model was"):
        schema.read(far)


def test_a_text_half_of_which_are_numbers_is_categories():
    _, schema = read_table(frame(drug=["1", "2", "3", "a", "b", "c"]), set_id="visit", features=["drug"])
    assert schema.column_names == ["drug=1", "drug=2", "drug=3", "drug=a", "drug=b", "drug=c"]


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 / 3, -7.0])
def test_a_constant_feature_is_only_shifted(value):
    data, schema = read_table({"s": np.arange(10), "x": np.full(10, value)}, set_id="s")
    assert schema.features[0].scale == 1.0
    np.testing.assert_allclose(data.elements, 0, atol=1e-6)


def test_large_offsets_do_not_eat_small_differences():
    stamps = [1.7e9 + s for s in (0, 1, 2, 3, 4, 5)]
    data, _ = read_table(frame(dose=stamps), set_id="visit", target="outcome", features=["dose"])
    assert data.elements.unique().numel() == 6


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npz"])
@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_whole_numbers_beyond_what_float64_tells_apart_are_numbers_all_the_same(tmp_path, name, kind):
    """Nanoseconds since 1970, a second apart, odd ones among them."""
    stamps = np.array([1_700_000_000_000_000_001 + 10**9 * s for s in range(6)], dtype=kind)
    path = write(frame(dose=stamps), tmp_path / name)
    data, schema = read_table(path, set_id="visit", target="outcome", features=["dose"])
    assert data.elements.unique().numel() == 6
    assert schema.features[0].mean == pytest.approx(1.7e18)


BAD_TABLES = [
    (frame(), {"set_id": "visitt"}, r"no column 'visitt'; its columns are visit, .*did you mean 'visit'"),
    (frame(), {"features": ["dosage"]}, "no column 'dosage'"),
    (frame(), {"features": ["outcome"]}, "'outcome' is the set id, target or time column"),
    (frame()[["visit", "outcome"]], {}, "no feature column besides visit, outcome"),
    (frame().iloc[:0], {}, "has no rows"),
    (frame(outcome=list("ababab")), {}, "target 'outcome' must be the same in every row .* inside set 'b'"),
    (frame(outcome=["ill", "well", "ill", "ill", "well", "ill"]), {}, "inside set 'a' \\(visit column\\)"),
    (frame(outcome=["ill"] * 6), {}, "one class only \\('ill'\\)"),
    (frame(outcome=[1, 0, 1, 0, 0, 1]), {}, "holds whole numbers, .* --task classification or --task regression"),
    (frame(), {"task": "regression"}, "target 'outcome' is text"),
    (frame(outcome=[1.5, 2, 1.5, 2, 2, 1.5]), {"task": "classification"}, "fractions such as 1.5"),
    (frame(outcome=[np.inf, 2, np.inf, 2, 2, np.inf]), {}, "target 'outcome' holds NaN or an infinite value"),
    (frame(outcome=["ill", None, "ill", "well", "well", "ill"]), {}, "column 'outcome' is missing in row 2"),
    (frame(visit=["a", None, None, "b", "b", "b"]), {}, "column 'visit' is missing in rows 2, 3"),
    (frame(dose=[None, 1, None, None, None, 3]), {}, "feature 'dose' is missing in rows 1, 3, 4 and 1 more"),
    (frame(dose=[1, 2, np.inf, 3, 4, 5]), {}, "feature 'dose' is infinite in row 3"),
    (frame(dose=[None] * 6), {"missing": "mean"}, "feature 'dose' has no values at all"),
    (frame(dose=[None] * 6), {"missing": "drop-row"}, "drop-row leaves nothing to learn from"),
    (frame(drug=["1", "2", "three", "4", "5", "6"]), {}, "'drug' holds text among its numbers: 'three' in row 3"),
    (frame(outcome=["1", "2", "1", "2", "x", "1"]), {}, "target 'outcome' holds text among its numbers: 'x'"),
    (frame(drug=["1", "2", "1_0", "4", "5", "6"]), {}, "'drug' holds text among its numbers: '1_0' in row 3"),
    (frame(drug=["1", "2", "\u0661", "4", "5", "6"]), {}, "'drug' holds text among its numbers: '\u0661' in row 3"),
    (frame(drug=["true", "0.5", "true", "1", "0", "0"]), {}, "'drug' holds text among its numbers: 'true' in row 1"),
    (frame(drug=["true", "false", "true", "1", "no", "0"]), {}, "'drug' holds text among its numbers: 'no' in row 5"),
    (frame(outcome=["1", "0.5", "1", "0.5", "true", "1"]), {}, "target 'outcome' holds text among its numbers: 'true'"),
    (frame(outcome=[1e39, 2, 1e39, 2, 2, 1e39]), {}, "target 'outcome' holds numbers as large as 1e\\+39"),
    (frame(dose=[1e200, 1, 2, 3, 4, 5]), {}, "feature 'dose' holds numbers as large as 1e\\+200"),
    (frame(dose=[1e308, 1e308, 1e308, 3, 4, 5]), {}, "feature 'dose' holds numbers as large as 1e\\+308"),
    (frame(), {"set_id": "outcome"}, "'outcome' is named twice among set id, target and time"),
    (frame(), {"time": "outcome"}, "'outcome' is named twice among set id, target and time"),
    (frame(), {"features": ["dose", "drug", "dose"]}, "'dose' is named twice among the features"),
    (frame(**{"": [0, 1, 2, 3, 4, 5]}), {}, "has a column without a name, as pandas writes row numbers"),
    (frame(when=["first", *"abcde"]), {"time": "when"}, "'when' must hold numbers or times .*; got 'first' in row 1"),
    (frame(when=["1", "2", "3", "4", "soon", "6"]), {"time": "when"}, "got 'soon' in row 5"),
    (frame(when=[*["2024-05-31"] * 3, "9999-12-31", *"ab"]), {"time": "when"}, "got '9999-12-31' in row 4"),
    (pd.DataFrame({"visit;outcome": ["1;2"]}), {}, "no column 'visit'.*separated by ';': save it with commas"),
    (frame(), {"missing": "ignore"}, "missing must be one of 'error', 'drop-row', 'mean', 'zero'"),
    (
        frame(outcome=["12345678901234567890", *"12121"]),
        {"task": "classification"},
        "class number 12345678901234567890",
    ),
    (frame(outcome=[1e20, 1, 1, 2, 2, 2]), {"task": "classification"}, "100000000000000000000, which does not fit 64"),
    (frame(), {"task": "ranking"}, "task must be one of 'classification', 'regression'"),
]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(("rows", "options", "message"), BAD_TABLES)
def test_bad_tables_give_one_clear_line(tmp_path, name, rows, options, message):
    path = write(rows, tmp_path / name)
    with pytest.raises(InputError, match=message) as caught:
        read_table(path, **{"set_id": "visit", "target": "outcome", **options})
    assert "\n" not in str(caught.value)


def test_a_table_of_another_encoding_is_said_to_be_one(tmp_path):
    (tmp_path / "t.csv").write_bytes("visit,drug,outcome\n1,é,up\n2,b,down\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"invalid UTF8 data; save it as UTF-8"):
        read_table(tmp_path / "t.csv", set_id="visit", target="outcome")


def test_targets_keep_what_float32_would_round_away():
    rows = pd.DataFrame({"visit": [1, 2, 3], "dose": [0.1, 0.2, 0.3], "outcome": [1.7e9 + 0.25, 1.7e9 + 1, 1.7e9 + 2]})
    data, _ = read_table(rows, set_id="visit", target="outcome")
    assert data.targets.tolist() == [1.7e9 + 0.25, 1.7e9 + 1, 1.7e9 + 2]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dose": [1, 2, 3, 4, None, 6]}, "feature 'dose' is missing in row 5"),
        ({"dose": [1, 2, 3, 4, np.inf, 6]}, "feature 'dose' is infinite in row 5"),
        ({"visit": ["b", "a", "b", "a", None, "b"]}, "column 'visit' is missing in row 5"),
    ],
)
def test_rows_are_counted_from_the_top_of_the_table(tmp_path, monkeypatch, name, changes, message):
    path = write(frame(**changes), tmp_path / name)
    monkeypatch.setattr(_columns, "_BLOCK_BYTES", 60)
    monkeypatch.setattr(_columns, "_BLOCK_ROWS", 2)
    with pytest.raises(InputError, match=message):
        read_table(path, set_id="visit", target="outcome")


def test_nan_is_no_set_id():
    with pytest.raises(InputError, match="column 's' is missing in row 2 of rows"):
        read_table({"s": np.array([1.0, np.nan, 2.0]), "x": np.arange(3.0)}, set_id="s")


def test_columns_may_be_named_by_numbers():
    rows = pd.DataFrame([[1, 0.5, "x", 2], [1, 1.5, "y", 1], [2, 2.5, "x", 1]])
    data, schema = read_table(rows, set_id=0, time=3, features=[1, 2], categorical=[1])
    assert (schema.set_id, schema.column_names) == ("0", ["1=0.5", "1=1.5", "1=2.5", "2=x", "2=y"])
    assert torch.equal(schema.read(rows).data.elements, data.elements)
    with pytest.raises(InputError, match="has no column '9'; its columns are 0, 1, 2"):
        read_table(rows, set_id=9)


def test_what_spreadsheets_write_is_read(tmp_path):
    text = '\ufeffvisit,note,dose\r\na,"two\nlines, a comma",1\r\nb,x, 2.5 \r\n\r\n'
    (tmp_path / "t.csv").write_bytes(text.encode())
    table = learn_table(tmp_path / "t.csv", set_id="visit")
    assert table.set_ids.to_pylist() == ["a", "b"]
    assert [f.categories for f in table.schema.features] == [("two\nlines, a comma", "x"), ()]
    assert table.schema.features[1].mean == 1.75


def test_the_kinds_of_columns_pandas_has_are_read(tmp_path):
    rows = frame(
        visit=pd.Categorical(["b", "a", "b", "a", "c", "b"]),
        dose=pd.array([1, None, 3, 4, 5, 6], dtype="Int64"),
        grave=pd.array([True, False, False, True, True, False], dtype="boolean"),
    )
    rows.to_parquet(tmp_path / "t.parquet")
    table = learn_table(tmp_path / "t.parquet", set_id="visit", target="outcome", missing="mean")
    assert table.set_ids.to_pylist() == ["b", "a", "c"]
    assert [f.kind for f in table.schema.features] == ["number", "number", "category", "number"]
    assert table.data.elements[3, 1] == 0
    assert torch.equal(
        table.data.elements, learn_table(rows, set_id="visit", target="outcome", missing="mean").data.elements
    )


def test_a_text_with_too_many_values_is_refused():
    rows = pd.DataFrame({"s": [0, 1] * 600, "who": [f"n{i}" for i in range(1200)], "y": [0.5] * 1200})
    with pytest.raises(InputError, match="text with 1200 different values, more than 1000"):
        read_table(rows, set_id="s", target="y")
    assert len(read_table(rows[:1000], set_id="s", target="y")[1].features[0].categories) == 1000


def test_times_are_no_features():
    rows = frame(dose=pd.date_range("2024-01-01", periods=6))
    with pytest.raises(InputError, match=r"feature 'dose' is of type timestamp.* use it as --time"):
        read_table(rows, set_id="visit", target="outcome")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "the file is empty"),
        ("t.csv", b"a,b\n1,2\n3\n", "cannot be read as a table: CSV parse error"),
        ("t.csv", b"a,a\n1,2\n", "two columns named 'a'"),
        ("t.csv", b"a;b;c\n1;2,5;3\n", "Expected 1 columns.*it seems to be separated by ';': save it with commas"),
        ("t.csv.gz", gzip.compress(b"a;b\n1;2,5\n", mtime=0), "it seems to be separated by ';': save it with commas"),
        ("t.csv", b"\xff\xfe\x00a", "cannot be read as a table"),
        ("t.csv.gz", b"no gzip", r"t\.csv\.gz cannot be read as a table: zlib"),
        (
            "t.csv.gz",
            gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-20],
            r"t\.csv\.gz cannot be read as a table: Truncated",
        ),
        ("t.parquet", b"PAR1 no", "cannot be read as a table"),
        ("t.npz", b"PK no", "cannot be read as"),
        ("t.xlsx", b"", r"must end in \.csv"),
    ],
)
def test_damaged_files_give_one_clear_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_table(tmp_path / name, set_id="a", target="b")
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.csv does not exist"):
        read_table(tmp_path / "nowhere.csv", set_id="a")
    with pytest.raises(InputError, match="is not a file"):
        read_table(tmp_path, set_id="a")


def test_an_npz_with_objects_or_uneven_columns_is_refused(tmp_path):
    np.savez(tmp_path / "o.npz", a=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="cannot be read as npz: Object arrays"):
        read_table(tmp_path / "o.npz", set_id="a")
    np.savez(tmp_path / "u.npz", a=np.ones(2), b=np.ones(3))
    with pytest.raises(InputError, match="arrays of one length"):
        read_table(tmp_path / "u.npz", set_id="a")


def test_a_wide_npz_array_is_several_columns(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 3))
    np.savez(tmp_path / "w.npz", s=np.arange(4) // 2, x=x)
    data, schema = read_table(tmp_path / "w.npz", set_id="s")
    assert [f.name for f in schema.features] == ["x_0", "x_1", "x_2"]
    np.testing.assert_allclose(data.elements, (x - x.mean(0)) / x.std(0), atol=1e-6)
    assert data.targets is None


def test_a_wide_npz_array_never_takes_the_place_of_another_column(tmp_path):
    np.savez(tmp_path / "w.npz", s=np.arange(3), x_0=np.ones(3), x=np.zeros((3, 2)))
    with pytest.raises(InputError, match="has two columns named 'x_0', one of them of 'x'; rename one"):
        read_table(tmp_path / "w.npz", set_id="s")
    np.savez(tmp_path / "w.npz", s=np.arange(3), x=np.zeros((3, 2)), x_0=np.ones((3, 1)))
    assert read_table(tmp_path / "w.npz", set_id="s")[1].column_names == ["x_0", "x_1", "x_0_0"]


@pytest.mark.parametrize("name", ["d.tsv.csv", "my.tsv.notes.csv.gz", "d.csv.tsv", "d.csv.tsv.gz"])
def test_the_ending_alone_says_what_separates_columns(tmp_path, name):
    mark = "\t" if ".csv.tsv" in name else ","
    frame().to_csv(tmp_path / name, index=False, sep=mark)
    data, _ = read_table(tmp_path / name, set_id="visit", target="outcome")
    assert torch.equal(data.elements, read_table(frame(), set_id="visit", target="outcome")[0].elements)


def test_rows_of_another_kind_are_refused():
    with pytest.raises(InputTypeError, match="rows must be a path, a DataFrame, or a mapping"):
        read_table(7, set_id="a")


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("missing"),
        lambda d: d.update(task="exec"),
        lambda d: d.update(missing="ignore"),
        lambda d: d.update(classes=None),
        lambda d: d.update(features=3),
        lambda d: d["features"][0].update(scale=0),
        lambda d: d["features"][0].update(mean="much"),
        lambda d: d["features"][0].update(kind="image"),
        lambda d: d["features"][0].pop("categories"),
    ],
)
def test_a_schema_that_was_tampered_with_is_refused(damage):
    _, schema = read_table(frame(), set_id="visit", target="outcome")
    values = json.loads(json.dumps(schema.to_dict()))
    assert TableSchema.from_dict(values) == schema
    damage(values)
    with pytest.raises(InputError, match="not a table schema of anyorder"):
        TableSchema.from_dict(values)


def test_progress_is_shown_when_asked(tmp_path, capsys):
    path = write(frame(), tmp_path / "t.csv")
    read_table(path, set_id="visit", target="outcome", progress=True)
    assert "reading t.csv" in capsys.readouterr().err
    read_table(path, set_id="visit", target="outcome", progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is a POSIX call")
def test_memory_grows_with_the_numbers_not_with_the_text(tmp_path):
    """A row costs 16 bytes of ids and order, 24 of numbers, 20 of elements and what sorting takes; never its text."""
    measure = """
import resource, sys
from anyorder.estimators import columns as _columns
from anyorder.estimators.tables import read_table
_columns._BLOCK_BYTES = 1 << 20
for path in sys.argv[1:]:
    read_table(path, set_id="set", target="y", time="at", features=["u", "v", "w", "kind"])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    note, paths = "x" * 300, []
    for rows in (50_000, 250_000):
        paths.append(tmp_path / f"{rows}.csv")
        with open(paths[-1], "w") as file:
            file.write("set,at,note,kind,u,v,w,y\n")
            for i in range(rows):
                file.write(
                    f"set {i // 8},{-i},{note},{'ab'[i % 2]},{i % 7}.5,{i % 11}.25,{i % 13},{'pq'[i // 8 % 2]}\n"
                )
    words = [sys.executable, "-c", measure, *map(str, paths)]
    small, large = map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    assert (large - small) / 200_000 < 250
