"""Penalties on the dependence of a recurrence on order: one module each."""

from __future__ import annotations

from typing import Any

from anyorder.checks import one_of
from anyorder.penalties.adaptive_weight import AdaptiveWeight as AdaptiveWeight
from anyorder.penalties.base import Penalty
from anyorder.penalties.permutation import PermutationPenalty
from anyorder.penalties.sire import SIRE
from anyorder.penalties.subset import SubsetPenalty


def penalty_from_config(config: dict[str, Any]) -> Penalty:
    """The penalty that a :meth:`Penalty.config` dict describes.

    >>> penalty_from_config(SIRE(window=2).config()) == SIRE(window=2)
    True
    """
    kinds = {kind.__name__: kind for kind in (SIRE, SubsetPenalty, PermutationPenalty)}
    options = dict(config)
    return kinds[one_of("penalty name", options.pop("name", None), kinds)](**options)
