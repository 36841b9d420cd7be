"""How the columns of a table become numbers, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_string_dtype

from anyorder.checks import InputError, real_number
from anyorder.estimators.columns import LARGEST, as_numbers, as_text, numbers_of, parsed, refuse_rows, without_numbers

MOST_CATEGORIES = 1000
FARTHEST = 10.0  # standard deviations from the mean of a name's values


@dataclass(frozen=True)
class Feature:
    """How one column becomes numbers: ``(value - mean) / scale`` or, with categories, one 0/1 column each.

    With ``value``, the column names what another column measures. Each category has a second column with that value,
    in ``units`` (mean, scale) of its own, or 0: the first linear layer is then an embedding of the name, and of the
    value. With ``gaps``, a second 0/1 column says where a number is missing.
    """

    name: str
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    value: str | None = None
    units: tuple[tuple[float, float], ...] = ()
    gaps: bool = False

    @property
    def width(self) -> int:
        return (len(self.categories) or 1 + self.gaps) * (1 if self.value is None else 2)

    @property
    def columns(self) -> list[str]:
        """The columns of the table that are read."""
        return [self.name] if self.value is None else [self.name, self.value]

    @classmethod
    def named(cls, frame: pd.DataFrame, name: str, value: str) -> Feature:
        """The feature of a long form: a column of names and a column of their values.

        The units of a name are those of its values between the quantiles .005 and .995, so a wild value spoils none.
        """
        feature = cls.of_text(name, frame[name])
        groups = as_numbers(value, frame[value]).groupby(as_text(frame[name]))
        low, high = (groups.transform("quantile", share) for share in (0.005, 0.995))
        typical = as_numbers(value, frame[value]).clip(low, high).groupby(as_text(frame[name])).agg(["mean", "std"])
        typical = typical.reindex(list(feature.categories)).fillna({"mean": 0.0, "std": 0.0})
        if not np.isfinite(typical.to_numpy()).all():
            raise InputError(f"value column {value!r} holds infinite numbers, or some beyond 1e150; correct them")
        least = 1e-12 * typical["mean"].abs().clip(lower=1e-300)
        scale = typical["std"].where(typical["std"] > least, 1.0)
        units = tuple(zip(typical["mean"].tolist(), scale.tolist(), strict=True))
        return replace(feature, value=value, units=units)

    @classmethod
    def of_text(cls, name: str, column: pd.Series) -> Feature:
        """The feature of a training column of categories."""
        known = sorted(as_text(column).dropna().unique())
        if not 0 < len(known) <= MOST_CATEGORIES:
            raise InputError(
                f"feature {name!r} is text with {len(known)} different values; a category has 1 to "
                f"{MOST_CATEGORIES} (leave it out of the features, or turn it into numbers)"
            )
        return cls(name, categories=tuple(known))

    def encode(self, frame: pd.DataFrame, missing: str) -> tuple[np.ndarray, int]:
        """Columns ``[rows, width]`` of categories, and the number of rows of an unknown one (all zeros)."""
        column = frame[self.name]
        codes = pd.Index(self.categories).get_indexer(pd.Index(as_text(column)))
        block = codes[:, None] == np.arange(len(self.categories))
        if self.value is not None:
            mean, scale = np.array([*self.units, (0.0, 1.0)])[codes].T
            gaps = 0.0 if missing == "zero" else mean
            values = as_numbers(self.value, frame[self.value])
            standard = (values.where(values.notna(), gaps) - mean) / scale
            block = np.hstack([block, block * standard.clip(-FARTHEST, FARTHEST).to_numpy()[:, None]])
        return block, int((column.notna() & (codes < 0)).sum())

    def decode(self, block: np.ndarray) -> np.ndarray:
        """What stood in the table, from columns ``[rows, width]``."""
        if not self.categories:
            return self.mean + self.scale * block[:, 0]
        names, values = np.split(block, [len(self.categories)], axis=1)
        codes = np.where(names.any(1), names.argmax(1), -1)
        shown = np.array([*self.categories, "–"], dtype=object)[codes]
        if self.value is None:
            return shown
        mean, scale = np.array([*self.units, (0.0, 1.0)])[codes].T
        pairs = zip(shown, mean + scale * values.sum(1), strict=True)
        return np.array([f"{name} = {value:.4g}" for name, value in pairs], dtype=object)


def learn_features(frame: pd.DataFrame, names: list[str], categorical: Collection[str]) -> tuple[Feature, ...]:
    """The features of training columns. Text is a category, unless most of its first values are numbers."""
    texts = {*categorical}
    for name in without_numbers(frame[names]):
        head = frame[name].dropna()[:1000]
        if is_string_dtype(head) and not parsed(head).notna().mean() > 0.5:
            texts.add(name)
    values = numbers_of(frame, [name for name in names if name not in texts])
    with np.errstate(all="ignore"):
        mean, scale = values.mean(), values.std(ddof=0)
    if not np.isfinite(scale).all():
        name = scale.index[~np.isfinite(scale)][0]
        raise InputError(f"feature {name!r} has no numbers, infinite ones, or some beyond 1e150; leave it out")
    scale = scale.where(scale > 1e-12 * mean.abs().clip(lower=1e-300), 1.0)
    parts = zip(values, mean.tolist(), scale.tolist(), values.isna().any().tolist(), strict=True)
    learnt = {name: Feature(str(name), m, s, gaps=gaps) for name, m, s, gaps in parts}
    return tuple(Feature.of_text(name, frame[name]) if name in texts else learnt[name] for name in names)


def standardised(frame: pd.DataFrame, features: Sequence[Feature], missing: str) -> np.ndarray:
    """The columns ``[rows, n]`` of ``n`` features that are numbers."""
    values = numbers_of(frame, [feature.name for feature in features]).to_numpy()
    mean, scale = (np.array([getattr(feature, part) for feature in features]) for part in ("mean", "scale"))
    block = (np.where(np.isnan(values), 0.0 if missing == "zero" else mean, values) - mean) / scale
    far = np.abs(block) > LARGEST
    if far.any():
        at = far.any(0).argmax()
        what = f"feature {features[at].name!r} is infinite, or too far from the training values (mean {mean[at]:.3g})"
        refuse_rows(pd.Series(far[:, at], frame.index), what, "correct it, or leave the row out")
    return block


def feature_of(values: Mapping[str, Any]) -> Feature:
    """The feature that a schema as JSON describes."""
    feature = Feature(
        **{**values, "categories": tuple(values["categories"]), "units": tuple(map(tuple, values["units"]))}
    )
    for mean, scale in ((feature.mean, feature.scale), *feature.units):
        real_number("mean", mean)
        real_number("scale", scale, above=0)
    named = feature.value is not None
    if len(feature.units) != named * len(feature.categories) or (named and not feature.units):
        raise InputError("units must be those of each category of a feature with values, and of no other")
    return feature
