"""anyorder: recurrent models that ignore the order of their input, as much or as little as you ask.

>>> import torch, anyorder as ao
>>> gru = ao.recurrence(torch.nn.GRU(3, 16, batch_first=True))
>>> trajectory = gru.scan(torch.randn(8, 10, 3))
>>> penalty = ao.SIRE()(trajectory)          # add penalty_weight * penalty to your loss
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# Public name -> the room it lives in. Rooms are imported when a name of theirs is first used, so that
# `import anyorder` stays quick and a part whose extra is not installed costs nothing.
_ROOMS = {
    "_rules": ["InputError", "InputTypeError"],
    "_checks": ["finite_checks"],
    "ragged": ["pad", "pad_from_batch"],
    "trajectory": ["Trajectory"],
    "recurrence": ["Recurrence", "recurrence"],
    "penalties": ["SIRE", "SUB", "InvarianceBudget", "Permutation", "order_gap"],
    "models": ["DeepSets", "JanossyPooling", "MultiAggregation", "RecurrentSetModel", "SetTransformer"],
    "pyg": ["SireAggregation"],
    "certify": ["certify"],
    "audit": ["audit", "compare"],
    "streaming": ["Stream"],
    "storage": ["load", "save"],
    "estimators": ["SetClassifier", "SetRegressor"],
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
_SUBMODULES = ["known", "orderings", "testing", "training", "tables", "paper"]

__all__ = sorted([*_ROOM_OF, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        value = getattr(importlib.import_module(f"anyorder.{_ROOM_OF[name]}"), name)
        setattr(sys.modules[__name__], name, value)
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"anyorder.{name}")
    raise AttributeError(f"module 'anyorder' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])


class _Package(ModuleType):
    """Keeps ``anyorder.audit`` the verb, not the file of that name, whichever is imported first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _ROOM_OF.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
