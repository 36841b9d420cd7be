"""The values of a column: text, numbers, times, targets; an error names the first rows that cannot be read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_numeric_dtype, is_string_dtype

from anyorder.checks import InputError, real_number

LARGEST = np.finfo(np.float32).max
_HOUR = pd.Timedelta("1h")


def refuse_rows(bad: pd.Series, what: str, advice: str) -> None:
    """Raise an error that names the first rows where ``bad``. Its index counts from 1 and has the table's name."""
    if bad.any():
        rows = ", ".join(map(str, bad.index[bad][:3])) + (", …" if bad.sum() > 3 else "")
        raise InputError(f"{what} in row {rows} of {bad.index.name}; {advice}")


def as_text(column: pd.Series) -> pd.Series:
    """A column as text. Whole numbers are written alike, whether the column holds gaps or not."""
    return pa.array(column, from_pandas=True).cast(pa.string()).to_pandas().set_axis(column.index)


def parsed(column: pd.Series) -> pd.Series:
    """A column as float64: true is 1, false is 0, NaN where there is no number."""
    if is_numeric_dtype(column):
        return column.astype("float64")
    texts = as_text(column)
    try:
        return pa.array(texts).cast(pa.float64()).to_pandas().set_axis(column.index)
    except pa.ArrowInvalid:  # some cell is no plain number
        plain = texts.astype("str").str.strip().str.lower().replace({"true": "1", "false": "0"})
    return pd.to_numeric(plain.where(plain.str.isascii()), errors="coerce").astype("float64")


def as_numbers(name: str, column: pd.Series) -> pd.Series:
    """A feature as float64, NaN where it is missing."""
    numbers = parsed(column)
    others = numbers.isna() & column.notna()
    shown = str(next(iter(as_text(column[others])), ""))
    advice = "correct it, name the column in categorical, or use it as time"
    refuse_rows(others, f"feature {name!r} holds text among its numbers: {shown!r}", advice)
    return numbers


def without_numbers(frame: pd.DataFrame) -> list[str]:
    """The columns that pandas does not hold as numbers."""
    return [*frame.select_dtypes(exclude=["number", "bool"])]


def numbers_of(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Features as float64, NaN where they are missing."""
    numbers = frame[names]
    for name in without_numbers(numbers):
        numbers[name] = as_numbers(name, numbers[name])
    return numbers.astype("float64")


def as_times(column: pd.Series) -> tuple[np.ndarray, np.ndarray, bool]:
    """Ranks of the times (equal times, equal ranks), the times since the earliest, and whether they are in hours."""
    name = column.name
    try:
        if is_string_dtype(column):
            texts = column.str.strip()
            dates = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
            column = max(pd.to_numeric(texts, errors="coerce"), dates, key=lambda values: values.notna().sum())
        elif column.dtype.kind == "O":  # dates, times of the day
            daily = hasattr(column.iloc[0], "hour")
            column = pd.to_timedelta(column.astype("str")) if daily else pd.to_datetime(column)
        dated = column.dtype.kind in "mM"
        since = column - column.min()  # exact also for whole numbers that float64 does not hold
        times = (since / _HOUR if dated else since).to_numpy(dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        times, dated = np.full(len(column), np.nan), False
    unread = pd.Series(~(np.isfinite(times) & (times >= 0)), column.index)  # below 0: too far for whole numbers
    advice = "write all times as finite numbers, or all like 2024-05-31 12:00:00"
    refuse_rows(unread, f"time column {name!r} cannot be read", advice)
    return pd.factorize(column, sort=True)[0], times, dated


def span_of(within: str | float, dated: bool) -> float:
    """The length of ``tie_within`` on the scale of :func:`as_times`."""
    numeric = pd.notna(pd.to_numeric(within, errors="coerce"))
    try:
        if numeric == dated:
            raise ValueError
        return real_number("tie_within", pd.Timedelta(within) / _HOUR if dated else float(within), at_least=0)
    except ValueError:
        form = 'text with a unit, such as "60s", for dates' if dated else "a number in the unit of the time column"
        raise InputError(f"tie_within must be {form}; got {within!r}") from None


def target_values(targets: pd.Series) -> pd.Series:
    """The values of a target as booleans, whole numbers, floats or, if not all are numbers, as texts."""
    if is_numeric_dtype(targets):
        return targets
    texts = as_text(targets)
    plain = texts.str.strip()
    if plain.str.lower().isin(["true", "false"]).all():
        return plain.str.lower() == "true"
    numbers = pd.to_numeric(plain, errors="coerce")
    return texts if numbers.isna().any() else numbers
