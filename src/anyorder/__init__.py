"""anyorder: models that ignore the order of their input, as much or as little as you ask.

>>> import torch, anyorder as ao
>>> gru = torch.nn.GRU(3, 16, batch_first=True)
>>> penalty = ao.SIRE()(gru, torch.randn(8, 10, 3))  # add weight * penalty to your loss
"""

from __future__ import annotations

from typing import Any

from anyorder import checks

__version__ = "0.2.0"

# Every public name once, under the module that defines it. A module is imported when one of its names is first used,
# so `import anyorder` is quick, and a part whose extra is not installed costs nothing.
_PUBLIC = {
    "data.sets": ["SetData", "pad"],
    "recurrences.base": ["Recurrence", "recurrence"],
    "recurrences.fold": ["Fold"],
    "recurrences.trajectory": ["Trajectory"],
    "penalties": ["SIRE", "AdaptiveWeight", "Penalty", "PermutationPenalty", "SubsetPenalty"],
    "penalties.order_gap": ["order_gap"],
    "models": ["DeepSets", "JanossyPooling", "MultiAggregation", "RecurrentSetModel", "SetTransformer"],
    "training.loop": ["train"],
    "training.config": ["TrainConfig"],
    "audits.run": ["audit"],
    "verify.certify": ["certify"],
    "deploy.stream": ["Stream"],
    "deploy.save": ["load", "save"],
    "deploy.hub": ["from_pretrained", "push_to_hub", "save_pretrained"],
    "estimators.classifier": ["SetClassifier"],
    "estimators.regressor": ["SetRegressor"],
    "estimators.table_model": ["TableModel"],
    "estimators.tables": ["read_table"],
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
_MODULES = {
    "known": "recurrences.known",
    "orderings": "data.orderings",
    "plot": "plot",
    "pyg": "pyg",
    "testing": "testing",
}
_EXTRAS = {
    "training": "train",
    "audits": "audit",
    "estimators": "tables",
    "deploy.hub": "hub",
    "plot": "audit",
    "pyg": "peers",
}

__all__ = sorted([*_MODULE_OF, *_MODULES, "checks", "__version__"])


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name) or _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'anyorder' has no attribute {name!r}")
    extra = next((extra for part, extra in _EXTRAS.items() if module.startswith(part)), "all")  # others need none
    value = checks.extra(f"anyorder.{module}", extra, f"anyorder.{name}")
    if name in _MODULE_OF:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
