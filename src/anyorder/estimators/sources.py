"""Files and frames of every kind, opened as one Arrow dataset whose columns are read by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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


def is_table(source: Any) -> bool:
    """Whether a value is a table in memory: a frame, an Arrow table or dataset, a list of dicts, a dict of columns."""
    listed = isinstance(source, list) and len(source) > 0 and isinstance(source[0], dict)
    frame = type(source) is dict or isinstance(source, pyarrow.dataset.Dataset) or hasattr(type(source), "columns")
    return listed or frame  # a sparse matrix may be a dict too


def open_table(source: Any) -> pyarrow.dataset.Dataset:
    """A table whose columns can be read. Those of a text file are text; a folder holds Parquet files."""
    if isinstance(source, (str, Path)):
        folder = Path(source).is_dir()
        ending = "parquet" if folder else Path(source).name.lower().removesuffix(".gz").rpartition(".")[2]
        one_of(f"the ending of {source}", ending, ("csv", "tsv", "txt", "parquet", "pq"))
    with _one_line_errors(source):
        if isinstance(source, (str, Path)):
            if ending in ("parquet", "pq"):
                files = sorted(map(str, Path(source).glob("**/*.parquet"))) if folder else str(source)
                if not files:
                    raise InputError(f"{source} is a folder without .parquet files; name a table")
                base = str(source) if folder else None
                return pyarrow.dataset.dataset(files, partitioning="hive", partition_base_dir=base)
            text = pyarrow.dataset.CsvFileFormat(
                pyarrow.csv.ParseOptions(delimiter="\t" if ending == "tsv" else ",", newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True),
            )
            names = pyarrow.dataset.dataset(source, format=text).schema.names
            return pyarrow.dataset.dataset(source, pa.schema([(name, pa.string()) for name in names]), format=text)
        if isinstance(source, pyarrow.dataset.Dataset):
            return source
        source = source.collect() if hasattr(source, "collect") else source  # polars, lazy
        source = source.to_arrow() if hasattr(source, "to_arrow") else source
        if not isinstance(source, pa.Table):
            source = pa.Table.from_pandas(pd.DataFrame(source), preserve_index=False)
        return pyarrow.dataset.dataset(source)


def read_columns(
    opened: pyarrow.dataset.Dataset,
    source: Any,
    roles: Mapping[str, str | None],
    lists: Mapping[str, list[str]],
    targets: Sequence[str] = (),
) -> pd.DataFrame:
    """The columns in question, once it is known that they are there and that each has one purpose."""
    special = [(role, name) for role, name in roles.items() if name is not None]
    special += [("target", name) for name in targets]
    purposes = [*special, *((purpose, name) for purpose, names in lists.items() for name in names)]
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
        for field in table.schema:
            if pa.types.is_nested(field.type):
                raise InputError(f"column {field.name!r} holds lists or records; give it numbers or text")
        plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in table.schema]
        frame = table.cast(pa.schema([*zip(wanted, plain, strict=True)])).to_pandas(ignore_metadata=True)
    if frame.empty:
        raise InputError(f"{name_of(source)} has no rows")
    frame.index = pd.RangeIndex(1, len(frame) + 1, name=name_of(source))
    for role, name in special:
        refuse_rows(frame[name].isna(), f"{role} column {name!r} is missing", "every row needs a value")
    return frame


@contextmanager
def _one_line_errors(source: Any) -> Iterator[None]:
    """What is wrong with a table becomes one line."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        missing = isinstance(error, FileNotFoundError)
        words = "there is no such file" if missing else str(error).splitlines()[0].rpartition("': ")[2]
        raise InputError(f"{name_of(source)} cannot be read as a table: {words}") from None
