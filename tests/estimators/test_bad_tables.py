"""Tables and files that cannot be read: one clear line, which names the column and the row."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_tables import VISIT, frame, saved

from anyorder.checks import InputError
from anyorder.estimators.tables import read_table

__all__ = ["saved"]  # a fixture


def many_texts():
    return pd.DataFrame({"visit": [0, 1] * 600, "who": [f"n{i}" for i in range(1200)], "outcome": ["a", "b"] * 600})


BAD_TABLES = {
    "set id": (frame(), {"set_id": "visitt"}, "set_id .*did you mean 'visit'"),
    "feature": (frame(), {"features": ["dosage"]}, "features .*'dosage'"),
    "two roles": (frame(), {"features": ["outcome"]}, "'outcome' is there twice"),
    "set id as target": (frame(), {"set_id": "outcome"}, "'outcome' is there twice"),
    "feature twice": (frame(), {"features": ["dose", "dose"]}, "'dose' is there twice"),
    "categorical": (frame(), {"categorical": ["drug"], "features": ["when"]}, "categorical .*'drug'"),
    "no features": (frame()[["visit", "outcome"]], {}, "feature columns"),
    "row numbers": (frame(**{"": [0, 1, 2, 3, 4, 5]}), {}, "feature columns, all with names"),
    "no rows": (frame().iloc[:0], {}, "has no rows"),
    "no rows left": (frame(dose=[None] * 6), {"missing": "drop-row"}, "no row .* complete"),
    "target varies": (frame(outcome=["ill", "well", "ill", "ill", "well", "ill"]), {}, "'outcome' varies .*row 2 "),
    "one class": (frame(outcome=["ill"] * 6), {}, "'outcome' must hold two classes"),
    "whole numbers": (frame(outcome=[1, 0, 1, 0, 0, 1]), {}, "'outcome' .*task"),
    "numbers and text": (frame(outcome=["1", "2", "1", "2", "x", "1"]), {}, "'outcome' .*task"),
    "text for regression": (frame(), {"task": "regression"}, "'outcome' is no number .* row 1"),
    "fractions": (frame(outcome=[1.5, 2, 1.5, 2, 2, 1.5]), {"task": "classification"}, "'outcome' .*whole numbers"),
    "huge classes": (frame(outcome=[1e20, 1, 1, 2, 2, 2]), {"task": "classification"}, "'outcome' .*whole numbers"),
    "infinite target": (frame(outcome=[np.inf, 2, np.inf, 2, 2, np.inf]), {}, "'outcome' is no number"),
    "large target": (frame(outcome=[1e39, 2, 1e39, 2, 2, 1e39]), {}, "'outcome' is no number that float32 holds"),
    "no target": (frame(outcome=["ill", None, "ill", "well", "well", "ill"]), {}, "'outcome' is missing in row 2 "),
    "no set id": (frame(visit=["a", None, None, "b", "b", "b"]), {}, "'visit' is missing in row 2, 3 "),
    "gaps": (frame(dose=[None, 1, None, None, None, 3]), {}, "'dose' is missing in row 1, 3, 4, …"),
    "no values": (frame(dose=[None] * 6), {"missing": "mean"}, "'dose' .*0 different values"),
    "infinite": (frame(dose=[1, 2, np.inf, 3, 4, 5]), {}, "'dose' has .*infinite"),
    "too large": (frame(dose=[1e200, 1, 2, 3, 4, 5]), {}, "'dose' has .*beyond"),
    "text": (frame(drug=["1", "2", "three", "4", "5", "6"]), {}, "'drug' holds text among .* 'three' in row 3"),
    "underscore": (frame(drug=["1", "2", "1_0", "4", "5", "6"]), {}, "'drug' holds text .*'1_0'"),
    "other digits": (frame(drug=["1", "2", "\u0661", "4", "5", "6"]), {}, "'drug' holds text .*'\u0661'"),
    "a type": (frame(dose=pd.date_range("2024-01-01", periods=6)), {}, "'dose' holds text among its numbers: '2024"),
    "lists": (frame(dose=[[1]] * 6), {}, "'dose' holds list"),
    "targets of two kinds": (frame(), {"target": ["outcome", "dose"]}, "must be all amounts or all labels"),
    "texts as labels": (frame(), {"target": ["outcome", "grave"]}, "'outcome' is no number"),
    "many texts": (many_texts(), {}, "'who' is text with 1200"),
    "times": (frame(when=["first", *"abcde"]), {"time": "when"}, "'when' cannot be read in row 1"),
    "one time": (frame(when=["1", "2", "3", "4", "soon", "6"]), {"time": "when"}, "'when' cannot be read in row 5 "),
    "endless time": (frame(when=[1, 2, np.inf, 3, 4, 5]), {"time": "when"}, "'when' cannot be read in row 3"),
    "value alone": (frame(), {"value": "dose"}, "name and value go together"),
    "ties without time": (frame(), {"tie_within": 3}, "tie_within needs time"),
    "static varies": (frame(), {"static": ["dose"]}, "static feature 'dose' varies .* row 3"),
    "static twice": (frame(), {"static": ["dose"], "features": ["dose"]}, "'dose' is there twice"),
    "missing": (frame(), {"missing": "ignore"}, "missing must be one of"),
    "task": (frame(), {"task": "ranking"}, "task must be one of"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_give_one_clear_line(saved, case):
    rows, options, match = BAD_TABLES[case]
    path = saved(rows)
    if case in ("a type", "lists") and path.suffix == ".csv":
        return  # a CSV has texts alone
    with pytest.raises(InputError, match=match) as caught:
        read_table(path, **{**VISIT, **options})
    assert "\n" not in str(caught.value)


def test_a_number_far_from_those_of_training_is_refused_by_its_column_and_row():
    schema = read_table(frame(), **VISIT, features=["dose", "when"]).schema
    with pytest.raises(InputError, match=r"'dose' .*row 4"):
        schema.read(frame(dose=[1.0, 2.0, 3.0, -1e60, 5.0, 6.0]))


ROWS = b"a,b,c\n1,x,2\n1,x,3\n2,y,4\n"
DAMAGED = {
    "t.csv": [
        b"", b"\xef\xbb\xbf", ROWS + b"3\n", b"a,a\n1,2\n", b"a;b;c\n1;2,5;3\n", ROWS.replace(b"x", b"\xe9"),
        ROWS.replace(b"4", b"4\0"), ROWS.decode().encode("utf-16"), b'a,b,"c' + ROWS, ROWS + b'3,x,"' + ROWS * 99_999,
        b"PK\3\4", b"ARROW1",
    ],
    "t.csv.gz": [b"no gzip", gzip.compress(ROWS, mtime=0)[:-20], gzip.compress(bytes(1 << 27))],
    "t.parquet": [b"", b"PAR1 no", ROWS, b"PARE" * 9],
    "t.xlsx": [b""],
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), [(name, some) for name, all_ in DAMAGED.items() for some in all_])
def test_damaged_files_give_one_clear_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_table(tmp_path / name, set_id="a", target="b")
    assert "\n" not in str(caught.value)


def test_what_is_no_file_or_has_one_endless_line_is_refused_at_once(tmp_path):
    paths = [tmp_path / name for name in ("none.csv", "folder.csv", "pipe.csv", "loop.csv", "zeros.csv", "line.csv")]
    _, folder, pipe, loop, zeros, line = paths
    folder.mkdir()
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    zeros.symlink_to("/dev/zero")
    for start in (b"", ROWS):
        line.write_bytes(start)
        os.truncate(line, 1 << 30)  # takes no room on the disk
        for path in [*paths, "t\0.csv"]:
            with pytest.raises(InputError):
                read_table(path, set_id="a", target="b")


I64 = pa.array([2**63 - 1, -(2**63) + 1, 0, 1])
NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 4, [None, pa.array(range(5), pa.int32()).buffers()[1], pa.py_buffer(b"\xff" * 4)]
)
HOSTILE = {
    "set": [NOT_UTF8, pa.array([[1]] * 4)],
    "at": [
        NOT_UTF8,
        I64,
        I64.cast(pa.timestamp("ns")),
        I64.cast(pa.duration("ns")),
        pa.array([True, False] * 2),
        pa.array([b"a"] * 4),
        pa.array(["9999-12-31", "10000-01-01", "1", "2"]),
        pa.array([1e308, -1e308, 0, 1]),
    ],
    "x": [NOT_UTF8, I64.cast(pa.timestamp("us", "UTC")), pa.array([(1, 2, 3)] * 4), pa.array([{"a": 1}] * 4)],
    "y": [
        NOT_UTF8,
        pa.array(["1", "1", "01", "01"]),
        pa.array(["inf", "inf", "-1", "-1"]),
        pa.array([str(2**64), str(2**64), "-1", "-1"]),
        pa.array(["inf", "inf", "a", "a"]),
    ],
}


@pytest.mark.parametrize(("name", "values"), [(name, some) for name, all_ in HOSTILE.items() for some in all_])
def test_columns_that_no_table_should_have_give_one_clear_line(tmp_path, name, values):
    columns = {"set": [1, 1, 2, 2], "at": [1, 2, 1, 2], "x": [0.5, 0.7, 0.1, 0.2], "y": [*"aabb"], name: values}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    task = None if values is HOSTILE["y"][-1] else "classification"
    with pytest.raises(InputError) as caught:
        read_table(tmp_path / "t.parquet", set_id="set", target="y", time="at", task=task)
    assert "\n" not in str(caught.value)
