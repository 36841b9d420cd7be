"""Files and frames of every kind: the names of their columns, and the columns as a frame."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet

from anyorder.checks import InputError, one_of
from anyorder.estimators.columns import parsed, refuse_rows

_LONGEST_HEADER = 1 << 26  # characters
_CELLS = 1 << 15  # texts that are read as numbers at a time


@dataclass(frozen=True)
class Source:
    """A table to read: what to call it, the names of its columns, and a function that reads some of them."""

    name: str
    columns: list[str]
    read: Callable[[list[str]], pa.Table]


def is_table(source: Any) -> bool:
    """Whether a value is a table in memory: a frame, an Arrow table or dataset, a list of dicts, a dict of columns."""
    listed = isinstance(source, list) and len(source) > 0 and isinstance(source[0], dict)
    frame = type(source) is dict or isinstance(source, pyarrow.dataset.Dataset) or hasattr(type(source), "columns")
    return listed or frame  # a sparse matrix may be a dict too


def open_table(source: Any) -> Source:
    """A table whose columns can be read. Those of a text file are text; a folder holds Parquet files."""
    named = isinstance(source, (str, Path))
    name = str(source) if named else "the table"
    with _one_line_errors(name):
        if named:
            return _open_file(Path(source), name)
        if isinstance(source, pyarrow.dataset.Dataset):
            return Source(name, source.schema.names, source.to_table)
        source = source.collect() if hasattr(source, "collect") else source  # polars, lazy
        source = source.to_arrow() if hasattr(source, "to_arrow") else source
        if not isinstance(source, pa.Table):
            source = pa.Table.from_pandas(pd.DataFrame(source), preserve_index=False)
        return Source(name, source.column_names, source.select)


def open_folder(path: Path) -> pyarrow.dataset.Dataset:
    """The Parquet files of a folder, in the order of their names; names of folders may hold columns, as Hive's do."""
    files = sorted(str(file) for file in path.glob("**/*.parquet") if file.is_file())
    if not files:
        raise InputError(f"{path} is a folder without .parquet files; name a table")
    return pyarrow.dataset.dataset(files, partitioning="hive", partition_base_dir=str(path))


def _open_file(path: Path, name: str) -> Source:
    if path.is_dir():
        whole = open_folder(path)
        return Source(name, whole.schema.names, whole.to_table)
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    one_of(f"the ending of {name}", ending, ("csv", "tsv", "txt", "parquet", "pq"))
    if not path.is_file():  # a pipe might never end
        raise InputError(f"{name} cannot be read as a table: there is no such file")
    if ending in ("parquet", "pq"):
        file = pyarrow.parquet.ParquetFile(path, pre_buffer=False)
        return Source(name, file.schema_arrow.names, lambda wanted: file.read(wanted, use_threads=False).select(wanted))
    delimiter = "\t" if ending == "tsv" else ","
    with io.TextIOWrapper(pa.input_stream(path), encoding="utf-8-sig", newline="") as text:
        lines = iter(partial(text.readline, _LONGEST_HEADER), "")
        header = next(filter(None, csv.reader(lines, delimiter=delimiter)), [])

    def read(wanted: list[str]) -> pa.Table:
        kinds = dict.fromkeys(wanted, pa.string())
        return pyarrow.csv.read_csv(
            path,
            pyarrow.csv.ReadOptions(block_size=max(1 << 20, 64 * len(header))),  # a row must be shorter
            pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=wanted, strings_can_be_null=True),
        )

    return Source(name, header, read)


def read_columns(
    source: Source,
    roles: Mapping[str, str | None],
    lists: Mapping[str, list[str]],
    targets: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> pd.DataFrame:
    """The columns in question, once it is known that they are there and that each has one purpose.

    Text that is a number becomes one, save in the columns of ``roles``, ``targets`` and ``texts``.
    """
    special = [(role, name) for role, name in roles.items() if name is not None]
    special += [("target", name) for name in targets]
    purposes = [*special, *((purpose, name) for purpose, names in lists.items() for name in names)]
    wanted = [name for _, name in purposes]
    known = {*source.columns}
    for names, distinct in ((source.columns, known), (wanted, {*wanted})):
        if len(distinct) < len(names):
            [(name, _)] = Counter(names).most_common(1)
            raise InputError(f"column {name!r} is there twice; name each column once, for one purpose")
    for role, name in purposes:
        if name not in known:
            one_of(role, name, source.columns)
    with _one_line_errors(source.name):
        frame = _as_frame(source.read(wanted), {*texts, *(name for _, name in special)})
    if frame.empty:
        raise InputError(f"{source.name} has no rows")
    frame.index = pd.RangeIndex(1, len(frame) + 1, name=source.name)
    for role, name in special:
        refuse_rows(frame[name].isna(), f"{role} column {name!r} is missing", "every row needs a value")
    return frame


def _as_frame(table: pa.Table, texts: set[str]) -> pd.DataFrame:
    """The columns as pandas has them, save that numbers, and text that holds numbers alone, become float64.

    Many columns are turned at a time, since a table may have 100,000.
    """
    table.validate(full=True)
    names, kinds = table.column_names, [getattr(kind, "storage_type", kind) for kind in table.schema.types]
    plain = {kind: kind.value_type if pa.types.is_dictionary(kind) else kind for kind in {*kinds}}
    for kind in plain:
        if pa.types.is_nested(kind) or pa.types.is_interval(kind):
            raise InputError(f"column {names[kinds.index(kind)]!r} holds {kind}; give it numbers or text")
    kinds = [plain[kind] for kind in kinds]
    if kinds != table.schema.types:
        table = table.cast(pa.schema([*zip(names, kinds, strict=True)]))
    numbers: list[pd.DataFrame] = []
    for kind in dict.fromkeys(kinds):
        own = [name for name, its in zip(names, kinds, strict=True) if its == kind and name not in texts]
        part = table.select(own)
        if own and (pa.types.is_integer(kind) or kind in (pa.float32(), pa.float64())):
            block, row = np.empty((len(part), len(own))), 0
            for batch in part.to_batches():
                block[row : row + len(batch)] = batch.to_tensor(null_to_nan=True).to_numpy()
                row += len(batch)
            numbers.append(pd.DataFrame(block, columns=pd.Index(own, dtype=object)))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            numbers += _numbers_in(part)
    found = {name for block in numbers for name in block}
    rest = table.select([name for name in names if name not in found]).to_pandas(ignore_metadata=True)
    rest.columns = rest.columns.astype(object)  # of text, pandas looks names up more slowly
    return pd.concat([rest, *numbers], axis=1)


def _numbers_in(table: pa.Table) -> Iterator[pd.DataFrame]:
    """The columns of text that hold numbers alone."""
    names, columns = pd.Index(table.column_names, dtype=object), table.columns
    step = max(1, _CELLS // max(1, len(table)))
    for start in range(0, len(names), step):
        some = names[start : start + step]
        chunks = [chunk for column in columns[start : start + step] for chunk in column.chunks]
        texts = pa.chunked_array(chunks, table.schema.types[0])
        cells = (texts if step == 1 else texts.combine_chunks()).to_pandas()
        values = parsed(cells)
        right = (values.isna() == cells.isna()).to_numpy().reshape(len(some), -1).all(1)
        block = pd.DataFrame(values.to_numpy().reshape(len(some), -1).T, columns=some)
        yield block.loc[:, right].dropna(axis=1, how="all")


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """What is wrong with a table becomes one line."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, TypeError, OverflowError, csv.Error, pa.ArrowException) as error:
        words = (str(error).splitlines() or [type(error).__name__])[0].rpartition("': ")[2]
        raise InputError(f"{name} cannot be read as a table: {words}") from None
