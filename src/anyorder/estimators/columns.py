"""The columns of a long table, read in blocks: numbers as float64, text as codes into its distinct values."""

from __future__ import annotations

import difflib
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from anyorder.checks import InputError, InputTypeError
from anyorder.files import table_ending

MOST_CATEGORIES = 1000
_BLOCK_BYTES = 1 << 24
_BLOCK_ROWS = 1 << 18
_ROW_NUMBERS = {"", "__index_level_0__"}  # what pandas calls them in CSV and Parquet
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Feature:
    """How one column becomes numbers: ``(value - mean) / scale``, or one 0/1 column a category."""

    name: str
    kind: str  # "number" or "category"
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return 1 if self.kind == "number" else len(self.categories)


class Columns:
    """The columns that matter of one table, as read: rows with a gap refused, dropped or marked NaN."""

    def __init__(
        self,
        source: Any,
        set_id: str | None,
        target: str | None,
        order: str | None,
        names: Sequence[str] | None,
        kinds: Mapping[str, str],
        missing: str,
        progress: bool | None,
    ) -> None:
        self.source = source if isinstance(source, str) else str(source) if isinstance(source, Path) else "rows"
        self.set_id, self.target, self.order, self.missing = set_id, target, order, missing
        self.kinds = dict(kinds)
        self.rows = self.dropped = 0
        self.labels: np.ndarray | None = None
        self._ids: list[pa.DictionaryArray] = []
        self._targets: list[pa.DictionaryArray] = []
        self._orders: list[np.ndarray] = []
        special = [name for name in (set_id, target, order) if name is not None]
        with _blocks(source, progress) as (available, read):
            self.names = [n for n in available if n not in special] if names is None else list(names)
            self._check_names(available, special)
            if names is None and _ROW_NUMBERS & {*self.names}:
                raise InputError(
                    f"{self.source} has a column without a name, as pandas writes row numbers; leave it out of the "
                    "file (to_csv(index=False)), or choose the columns with --features"
                )
            self._values: dict[str, list[Any]] = {name: [] for name in self.names}
            first = 1
            for block in read([*special, *self.names]):
                self._take(block, first)
                first += len(block)
        if first == 1:
            raise InputError(f"{self.source} has no rows; there is nothing to read")

    def _check_names(self, available: list[str], special: list[str]) -> None:
        if len(set(available)) < len(available):
            twice = next(n for n in available if available.count(n) > 1)
            raise InputError(f"{self.source} has two columns named {twice!r}; rename one")
        for name in [*special, *self.names, *self.kinds]:
            if name not in available:
                close = difflib.get_close_matches(name, available, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                if len(available) == 1:
                    hint = _separated(available[0]) or hint
                shown = ", ".join(available[:12]) + (", …" if len(available) > 12 else "")
                raise InputError(f"{self.source} has no column {name!r}; its columns are {shown}{hint}")
        for given, what in ((special, "set id, target and time"), (self.names, "the features")):
            for name in given:
                if given.count(name) > 1:
                    raise InputError(f"column {name!r} is named twice among {what}; name each column once")
        for name in [*self.names, *self.kinds]:
            if name in special:
                raise InputError(f"{name!r} is the set id, target or time column; it cannot be a feature too")
        for name in self.kinds:
            if name not in self.names:
                raise InputError(f"categorical column {name!r} is not among the features; name it there too")
        if not self.names:
            raise InputError(f"{self.source} has no feature column besides {', '.join(special)}")

    def _take(self, block: pa.RecordBatch, first: int) -> None:
        keep = np.ones(len(block), dtype=bool)
        values = {}
        for name in self.names:
            values[name], gaps = self._feature(name, _plain(block.column(name)), first)
            if not gaps.any():
                continue
            if self.missing == "error":
                raise InputError(
                    f"feature {name!r} is missing in {_rows(gaps, first)} of {self.source}; fill the gaps, or "
                    "train with --missing drop-row, mean or zero"
                )
            if self.missing == "drop-row":
                keep &= ~gaps
        mask = None if keep.all() else pa.array(keep)
        self.dropped += int(len(keep) - keep.sum())
        self.rows += int(keep.sum())
        for name, chunk in values.items():
            if mask is not None:
                chunk = chunk[keep] if isinstance(chunk, np.ndarray) else _without(chunk, mask)
            self._values[name].append(chunk)
        if self.set_id is not None:  # a set that loses all its rows keeps its name
            ids = self._whole(self.set_id, _plain(block.column(self.set_id)), first).dictionary_encode()
            self._ids.append(ids if mask is None else ids.filter(mask))
        if self.target is not None:
            targets = self._whole(self.target, _plain(block.column(self.target)), first).dictionary_encode()
            self._targets.append(targets if mask is None else _without(targets, mask))
        if self.order is not None:
            keys = _order_keys(self.order, self._whole(self.order, _plain(block.column(self.order)), first), first)
            self._orders.append(keys[keep])

    def _whole(self, name: str, array: pa.Array, first: int) -> pa.Array:
        gaps = array.is_null(nan_is_null=True)
        if pc.any(gaps).as_py():
            where = _rows(gaps.to_numpy(zero_copy_only=False), first)
            raise InputError(f"column {name!r} is missing in {where} of {self.source}; every row needs a value")
        return array

    def _feature(self, name: str, array: pa.Array, first: int) -> tuple[Any, np.ndarray]:
        if array.null_count == len(array):  # whatever its type: _filled makes gaps of the right kind
            return pa.nulls(len(array)), np.ones(len(array), dtype=bool)
        kind = self.kinds.setdefault(name, _guess_kind(name, array))
        if kind == "category":
            gaps = array.is_null(nan_is_null=True)
            text = pc.if_else(gaps, None, array.cast(pa.string()))
            return text.dictionary_encode(), gaps.to_numpy(zero_copy_only=False)
        numbers = _numbers(name, array, first, self.source)
        infinite = np.isinf(numbers)
        if infinite.any():
            raise InputError(
                f"feature {name!r} is infinite in {_rows(infinite, first)} of {self.source}; "
                "clip it or leave those rows out"
            )
        return numbers, np.isnan(numbers)

    def learn(self, name: str) -> Feature:
        """What the training table says of one feature: its mean and spread, or its categories."""
        if name not in self.kinds:
            raise InputError(f"feature {name!r} has no values at all; leave it out with --features")
        if self.kinds[name] == "category":
            known = sorted(_joined(_filled(self._values[name], "category"))[1].to_pylist())
            if len(known) > MOST_CATEGORIES:
                raise InputError(
                    f"feature {name!r} is text with {len(known)} different values, more than {MOST_CATEGORIES}; "
                    "leave it out with --features, or turn it into numbers"
                )
            if not known:
                raise InputError(f"feature {name!r} has no values at all; leave it out with --features")
            return Feature(name, "category", categories=tuple(known))
        chunks = [chunk[~np.isnan(chunk)] for chunk in _filled(self._values[name], "number")]
        count = sum(len(chunk) for chunk in chunks)
        if count == 0:
            raise InputError(f"feature {name!r} has no values at all; leave it out with --features")
        with np.errstate(over="ignore"):
            mean = sum(float(chunk.sum()) for chunk in chunks) / count
            scale = (sum(float(((chunk - mean) ** 2).sum()) for chunk in chunks) / count) ** 0.5
        if not np.isfinite(scale):
            largest = max(float(np.abs(chunk).max(initial=0.0)) for chunk in chunks)
            raise InputError(
                f"feature {name!r} holds numbers as large as {largest:.3g}, whose mean and spread are beyond float64; "
                "give it in another unit, or leave it out with --features"
            )
        return Feature(name, "number", mean, scale if scale > 1e-12 * max(abs(mean), 1e-300) else 1.0)

    def encoded(self, features: Sequence[Feature], rank: np.ndarray | None) -> tuple[np.ndarray, dict[str, int]]:
        """``elements [rows, D]`` with row ``i`` at ``rank[i]``, and how many rows of each category were unknown.

        Gives up each column's memory as it goes.
        """
        elements = np.zeros((self.rows, sum(f.width for f in features)), dtype=np.float32)
        place = slice(None) if rank is None else rank
        unseen: dict[str, int] = {}
        at = 0
        for feature in features:
            chunks = _filled(self._values.pop(feature.name), feature.kind)
            if feature.kind == "number":
                column = (np.concatenate(chunks) - feature.mean) / feature.scale
                gap = 0.0 if self.missing == "mean" else -feature.mean / feature.scale
                self._require_representable(feature, column)
                elements[place, at] = np.nan_to_num(column, copy=False, nan=gap)
            else:
                codes, values = _joined(chunks)
                index = {category: i for i, category in enumerate(feature.categories)}
                known = np.array([index.get(v, -1) for v in values.to_pylist()] + [-1])
                category = known[codes]  # a missing value has code -1, the last entry: unknown, but not unseen
                unseen[feature.name] = int(((category < 0) & (codes >= 0)).sum())
                rows = np.flatnonzero(category >= 0)
                elements[rows if rank is None else rank[rows], at + category[rows]] = 1.0
            at += feature.width
        return elements, {name: count for name, count in unseen.items() if count}

    def _require_representable(self, feature: Feature, standard: np.ndarray) -> None:
        """Refuse a number that float32 does not hold once it is brought to the units of the training table."""
        far = np.abs(standard) > np.finfo(np.float32).max
        if far.any():
            value = float(standard[far][0]) * feature.scale + feature.mean
            raise InputError(
                f"feature {feature.name!r} of {self.source} holds {value:.3g}, too far from what the model was "
                f"trained on (mean {feature.mean:.3g}, spread {feature.scale:.3g}); correct it, or leave that row out"
            )

    def set_numbers(self) -> tuple[np.ndarray, pa.Array]:
        """The number of each row's set, by first appearance, and the sets' own ids."""
        return _joined(self._ids)

    def order_keys(self) -> np.ndarray | None:
        """What to sort each set's rows by, or None."""
        return np.concatenate(self._orders) if self.order is not None else None

    def label(self, task: str | None, classes: tuple[Any, ...] | None) -> tuple[str, tuple[Any, ...] | None]:
        """Turn the target into numbers a row (``labels``); say the task, and the classes if there are any."""
        codes, distinct = _joined(self._targets)
        if pa.types.is_string(distinct.type) and classes and isinstance(classes[0], str):
            kind, values = "text", distinct.to_pylist()  # names as they stand, also where all read as numbers: 01
        else:
            kind, values = _target_values(self.target or "", distinct, task)
        if task is None:
            if kind == "integer":
                raise InputError(
                    f"target {self.target!r} holds whole numbers, which may be classes or amounts; "
                    "say which with --task classification or --task regression"
                )
            task = "regression" if kind == "float" else "classification"
        if task == "regression":
            if kind == "text":
                raise InputError(f"target {self.target!r} is text ({values[0]!r}); regression needs numbers")
            numbers = np.array(values, dtype=np.float64)
            if not np.isfinite(numbers).all():
                raise InputError(f"target {self.target!r} holds NaN or an infinite value; every set needs a number")
            largest = float(np.abs(numbers).max())
            if largest > float(np.finfo(np.float32).max):
                raise InputError(
                    f"target {self.target!r} holds numbers as large as {largest:.3g}, beyond what float32 holds; "
                    "give it in another unit"
                )
            self.labels = numbers[codes]
            return task, None
        if kind == "float":
            if not all(float(v).is_integer() for v in values):
                raise InputError(
                    f"target {self.target!r} holds fractions such as {values[0]!r}, which cannot be classes; "
                    "use --task regression, or turn them into names"
                )
            values = [int(v) for v in values]
        for value in values:
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise InputError(
                    f"target {self.target!r} holds the class number {value}, which does not fit 64 bits; write the "
                    "classes as names"
                )
        if classes is None:
            classes = tuple(sorted(set(values)))
            if len(classes) < 2:
                raise InputError(
                    f"target {self.target!r} has one class only ({classes[0]!r}); there is nothing to tell apart"
                )
        index = {str(c).lower() if isinstance(c, bool) else str(c): i for i, c in enumerate(classes)}
        names = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
        for name in names:
            if name not in index:
                raise InputError(
                    f"target {self.target!r} holds {name!r}, which is none of the model's classes: "
                    f"{', '.join(map(str, classes[:10]))}"
                )
        self.labels = np.array([index[name] for name in names], dtype=np.int64)[codes]
        return task, classes


def column_names(source: Any) -> list[str]:
    """The names of a table's columns; of a file, its header alone is read."""
    with _blocks(source, progress=False) as (available, _):
        return available


def _rows(mask: np.ndarray, first: int) -> str:
    rows = (np.flatnonzero(mask)[:3] + first).tolist()
    more = int(mask.sum()) - len(rows)
    words = ", ".join(map(str, rows))
    return f"row{'s' if len(rows) > 1 else ''} {words}" + (f" and {more} more" if more else "")


def _separated(header: str) -> str:
    """What to do about a table whose only column seems to be several."""
    mark = next((m for m in ";\t|" if m in header), None)
    return f"; it seems to be separated by {mark!r}: save it with commas, or with tabs as .tsv" if mark else ""


def _plain(array: pa.Array) -> pa.Array:
    """Text as ``string``, dictionaries as what they stand for; other types as they are."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    return array


def _guess_kind(name: str, array: pa.Array) -> str:
    """Numbers or categories; a text column counts as numbers when most of its first values are."""
    if pa.types.is_string(array.type):
        head = array.drop_null()[:1000].to_pylist()
        numbers = sum(_reads_as_number(v) or _reads_as_boolean(v) for v in head)
        return "number" if 2 * numbers > len(head) else "category"
    if _is_number(array.type):
        return "number"
    raise InputError(
        f"feature {name!r} is of type {array.type}, neither number nor text; turn it into numbers, use it as "
        "--time, or leave it out with --features"
    )


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _reads_as_number(text: str) -> bool:
    """Whether Arrow reads it so; Python alone would take 1_0 and digits of other scripts too."""
    text = text.strip()
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and "_" not in text


def _reads_as_boolean(text: str) -> bool:
    return text.strip().lower() in _BOOLEANS


def _numbers(name: str, array: pa.Array, first: int, source: str) -> np.ndarray:
    """float64 with NaN for a gap."""
    if _is_number(array.type):
        numbers = array.cast(pa.float64(), safe=False)  # safe would refuse whole numbers beyond 2**53
        return numbers.to_numpy(zero_copy_only=False)
    if not pa.types.is_string(array.type):
        raise InputError(f"feature {name!r} must hold numbers; {source} has type {array.type} there")
    for kind in (pa.float64(), pa.bool_()):
        try:
            numbers = pc.utf8_trim_whitespace(array).cast(kind).cast(pa.float64())
        except pa.ArrowInvalid:
            continue
        return numbers.to_numpy(zero_copy_only=False)
    odd = [i for i, v in enumerate(array.to_pylist()) if v is not None and not _reads_as_number(v)]
    bad = next((i for i in odd if not _reads_as_boolean(array[i].as_py())), odd[0])
    raise InputError(
        f"feature {name!r} holds text among its numbers: {array[bad].as_py()!r} in row {first + bad} of {source}; "
        f"correct it, or train with --categorical {name} to read the column as categories"
    )


def _order_keys(name: str, array: pa.Array, first: int) -> np.ndarray:
    if pa.types.is_date32(array.type) or pa.types.is_time32(array.type):
        array = array.cast(pa.int32())
    trimmed = pc.utf8_trim_whitespace(array) if pa.types.is_string(array.type) else array
    kinds = (pa.int64(), pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
    for kind in kinds:
        keys = _cast(trimmed, kind)
        if keys is not None:
            found = keys.to_numpy(zero_copy_only=False)
            return found.astype("int64") if pa.types.is_timestamp(kind) else found
    bad = max(_readable(trimmed, kind) for kind in kinds)
    raise InputError(
        f"time column {name!r} must hold numbers or times such as 2024-05-31 12:00:00, of the years 1678 to 2262, in "
        f"all rows alike; got {array[bad].as_py()!r} in row {first + bad}"
    )


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _readable(array: pa.Array, kind: pa.DataType) -> int:
    """How many values from the first on can be read as ``kind``: the place of the first that cannot."""
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if _cast(array.slice(0, middle), kind) is not None else (good, middle)
    return good


def _target_values(name: str, distinct: pa.Array, task: str | None) -> tuple[str, list[Any]]:
    """The kind of a target (text, boolean, integer, float) and its distinct values as Python has them."""
    values = distinct.to_pylist()
    if pa.types.is_boolean(distinct.type):
        return "boolean", values
    if pa.types.is_integer(distinct.type):
        return "integer", values
    if _is_number(distinct.type):
        return "float", [float(v) for v in values]
    if not pa.types.is_string(distinct.type):
        raise InputError(f"target {name!r} is of type {distinct.type}; it must hold numbers, text or booleans")
    if all(map(_reads_as_boolean, values)):
        return "boolean", [_BOOLEANS[v.strip().lower()] for v in values]
    odd = [v for v in values if not _reads_as_number(v)]
    if len(odd) == len(values):
        return "text", values
    if odd and 2 * len(odd) < len(values) and task != "classification":
        raise InputError(f"target {name!r} holds text among its numbers: {odd[0]!r}; correct it")
    if odd:
        return "text", values
    try:
        return "integer", [int(v) for v in values]
    except ValueError:
        return "float", [float(v) for v in values]


def _without(chunk: Any, keep: pa.Array) -> Any:
    """A chunk without the rows dropped, nor the values that only they held."""
    chunk = chunk.filter(keep)
    return chunk.dictionary_decode().dictionary_encode() if pa.types.is_dictionary(chunk.type) else chunk


def _filled(chunks: list[Any], kind: str) -> list[Any]:
    """Blocks in which a column held nothing, before its kind was known, as gaps of that kind."""
    text = pa.dictionary(pa.int32(), pa.string())
    return [
        chunk
        if not isinstance(chunk, pa.NullArray)
        else np.full(len(chunk), np.nan)
        if kind == "number"
        else pa.nulls(len(chunk), text)
        for chunk in chunks
    ]


def _joined(chunks: list[pa.DictionaryArray]) -> tuple[np.ndarray, pa.Array]:
    """Codes of every row into one list of distinct values, by first appearance; a gap has code -1."""
    joined = pa.chunked_array(chunks).unify_dictionaries()
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in joined.chunks]
    return np.concatenate(codes).astype(np.int64), joined.chunk(0).dictionary


_Read = Callable[[list[str]], Iterator[pa.RecordBatch]]


@contextmanager
def _blocks(source: Any, progress: bool | None) -> Iterator[tuple[list[str], _Read]]:
    """The names of a table's columns, and a function that reads some of them block by block."""
    if not isinstance(source, (str, Path)):
        yield _frame_blocks(source)
        return
    path = Path(source)
    ending = table_ending(path)
    openers = {"csv": _csv_blocks, "tsv": _csv_blocks, "txt": _csv_blocks}
    openers |= {"parquet": _parquet_blocks, "pq": _parquet_blocks, "npz": _npz_blocks}
    try:
        with _bar(progress, path) as advance:
            yield openers[ending](path, advance)
    except (pa.ArrowException, zipfile.BadZipFile, UnicodeDecodeError, OSError) as error:
        words = str(error).splitlines()[0]
        hint = "; save it as UTF-8" if "utf8" in words.lower().replace("-", "") else ""
        if "Expected 1 columns" in words:  # decimal commas, say, beside semicolons
            with pa.OSFile(str(path)) as file:
                hint = _separated(_text_of(file, path).read(4096).decode("utf-8", "replace").split("\n")[0])
        raise InputError(f"{path} cannot be read as a table: {words}{hint}") from None


@contextmanager
def _bar(progress: bool | None, path: Path) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr; what it yields takes the fraction done."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda fraction: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(f"reading {path.name}", total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


def _text_of(file: pa.NativeFile, path: Path) -> pa.NativeFile:
    return pa.CompressedInputStream(file, "gzip") if path.name.lower().endswith(".gz") else file


def _csv_blocks(path: Path, advance: Callable[[float], None]) -> tuple[list[str], _Read]:
    parse = pyarrow.csv.ParseOptions(delimiter="\t" if table_ending(path) == "tsv" else ",", newlines_in_values=True)
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{path} has no rows; the file is empty")

    def opened(convert: pyarrow.csv.ConvertOptions, block: int) -> tuple[pa.NativeFile, Any]:
        file = pa.OSFile(str(path))
        return file, pyarrow.csv.open_csv(
            _text_of(file, path),
            read_options=pyarrow.csv.ReadOptions(block_size=block),
            parse_options=parse,
            convert_options=convert,
        )

    def read(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        convert = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.string()), include_columns=wanted, strings_can_be_null=True
        )
        file, blocks = opened(convert, _BLOCK_BYTES)
        for block in blocks:
            advance(file.tell() / size)
            yield block

    names = opened(pyarrow.csv.ConvertOptions(), 1 << 20)[1].schema.names
    return names, read


def _parquet_blocks(path: Path, advance: Callable[[float], None]) -> tuple[list[str], _Read]:
    file = pyarrow.parquet.ParquetFile(path)

    def read(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        done = 0
        for block in file.iter_batches(_BLOCK_ROWS, columns=wanted):
            done += len(block)
            advance(done / max(file.metadata.num_rows, 1))
            yield block

    return file.schema_arrow.names, read


def _npz_blocks(path: Path, advance: Callable[[float], None]) -> tuple[list[str], _Read]:
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read as npz: {str(error).splitlines()[0]}") from None
    wide = {n: columns.pop(n) for n, a in list(columns.items()) if a.ndim == 2}
    for name, array in wide.items():
        for i in range(array.shape[1]):
            if f"{name}_{i}" in columns:
                raise InputError(f"{path} has two columns named '{name}_{i}', one of them of {name!r}; rename one")
            columns[f"{name}_{i}"] = array[:, i]
    sizes = {name: a.shape for name, a in columns.items()}
    if len(set(sizes.values())) != 1 or any(len(s) != 1 for s in sizes.values()):
        raise InputError(f"{path} must hold arrays of one length, one a column; got shapes {sizes}")
    advance(1.0)
    return _frame_blocks(columns)


def _frame_blocks(rows: Any) -> tuple[list[str], _Read]:
    try:
        if isinstance(rows, pa.Table):
            table = rows
        elif hasattr(rows, "columns") and hasattr(rows, "iloc"):
            table = pa.Table.from_pandas(rows, preserve_index=False)
        else:
            table = pa.table({str(n): v if np.ndim(v) else [v] for n, v in dict(rows).items()})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputTypeError(
            f"rows must be a path, a DataFrame, or a mapping of column names to values: {str(error).splitlines()[0]}"
        ) from None

    def read(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(wanted).to_batches(_BLOCK_ROWS)

    return table.column_names, read
