"""Files and frames of every kind, opened as one Arrow dataset whose columns are read by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset

from anyorder.checks import InputError, one_of
from anyorder.estimators.columns import refuse_rows


def name_of(source: Any) -> str:
    return str(source) if isinstance(source, (str, Path)) else "the table"


def open_table(source: Any) -> pyarrow.dataset.Dataset:
    """A table whose columns can be read. Those of a text file are text."""
    if isinstance(source, (str, Path)):
        ending = Path(source).name.lower().removesuffix(".gz").rpartition(".")[2]
        one_of(f"the ending of {source}", ending, ("csv", "tsv", "txt", "parquet", "pq"))
    with _one_line_errors(source):
        if isinstance(source, (str, Path)):
            if ending in ("parquet", "pq"):
                return pyarrow.dataset.dataset(source)
            text = pyarrow.dataset.CsvFileFormat(
                pyarrow.csv.ParseOptions(delimiter="\t" if ending == "tsv" else ",", newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True),
            )
            names = pyarrow.dataset.dataset(source, format=text).schema.names
            return pyarrow.dataset.dataset(source, pa.schema([(name, pa.string()) for name in names]), format=text)
        if hasattr(source, "to_arrow"):  # polars
            source = source.to_arrow()
        if not isinstance(source, pa.Table):
            source = pa.Table.from_pandas(pd.DataFrame(source), preserve_index=False)
        return pyarrow.dataset.dataset(source)


def read_columns(
    opened: pyarrow.dataset.Dataset, source: Any, roles: Mapping[str, str | None], lists: Mapping[str, list[str]]
) -> pd.DataFrame:
    """The columns in question, once it is known that they are there and that each has one purpose."""
    special = {role: name for role, name in roles.items() if name is not None}
    purposes = [*special.items(), *((purpose, name) for purpose, names in lists.items() for name in names)]
    wanted = [name for _, name in purposes]
    there = opened.schema.names
    for names in (there, wanted):
        [(name, count)] = Counter(names).most_common(1) or [("", 0)]
        if count > 1:
            raise InputError(f"column {name!r} is there twice; name each column once, for one purpose")
    known = {*there}
    for role, name in purposes:
        if name not in known:
            one_of(role, name, there)
    with _one_line_errors(source):
        table = opened.to_table(wanted)
        plain = [getattr(field.type, "value_type", field.type) for field in table.schema]  # of a dictionary
        frame = table.cast(pa.schema([*zip(wanted, plain, strict=True)])).to_pandas(ignore_metadata=True)
    if frame.empty:
        raise InputError(f"{name_of(source)} has no rows")
    frame.index = pd.RangeIndex(1, len(frame) + 1, name=name_of(source))
    for role, name in special.items():
        refuse_rows(frame[name].isna(), f"{role} column {name!r} is missing", "every row needs a value")
    return frame


@contextmanager
def _one_line_errors(source: Any) -> Iterator[None]:
    """What is wrong with a table becomes one line."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        words = str(error).splitlines()[0].rpartition("': ")[2]
        raise InputError(f"{name_of(source)} cannot be read as a table: {words}") from None
