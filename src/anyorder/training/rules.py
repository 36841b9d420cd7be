"""What the arguments of a training must be to each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from anyorder.data.sets import SetData
from anyorder.training.objective import has_recurrence, within_ties


def rules_of(run: Any) -> Iterator[tuple[str, bool]]:
    """What the arguments of a training must be to each other, and whether they are."""
    config, penalty = run.config, run.penalty
    parts: dict[str, Any] = {"data": run.data, "validation": run.validation, "unlabeled": run.unlabeled}
    for name, part in parts.items():
        if part is None and name != "data":
            continue
        yield f"{name} must be a SetData; SetData.of makes one of a list of arrays", isinstance(part, SetData)
        yield f"{name} must have the features of data", part.elements.shape[1] == run.data.elements.shape[1]
        needs_ties = run.data.ties is not None or (within_ties(penalty) and name != "validation")
        yield f"{name} must have ties, as data or the penalty has", part.ties is not None or not needs_ties
        if name == "unlabeled":
            continue
        yield f"{name} must have targets (sets without targets are unlabeled)", part.targets is not None
        if (weights := part.weights) is not None:
            sound = bool((weights >= 0).all() and weights.sum() > 0)
            yield f"{name}.weights must be a number for each set, at least 0 and not all 0", sound
        if run.loss == "cross-entropy" and part.targets.dim() == 1:
            classes = getattr(run.model, "out_features", math.inf)
            sound = not part.targets.is_floating_point() and 0 <= part.targets.min() <= part.targets.max() < classes
            yield f"{name}.targets must be class numbers from 0 below {classes}, the model's outputs", bool(sound)
    needless = config.patience is None and run.metric is None
    yield "patience and metric need validation data", run.validation is not None or needless
    usable = penalty is None or (callable(penalty) and not isinstance(penalty, type))
    yield "penalty must be a penalty, such as anyorder.SIRE(), or a callable", usable
    unpenalised = run.unlabeled is None and run.penalty_weight == 0.0
    yield "penalty_weight and unlabeled need a penalty, such as anyorder.SIRE()", penalty is not None or unpenalised
    in_windows = has_recurrence(run.model) and hasattr(getattr(run.model, "inner", run.model), "readout")
    yield "truncate needs a recurrent model", config.truncate is None or in_windows
    whole = config.truncate is None or not within_ties(penalty)
    yield "truncate would cut ties in two; choose a penalty without ties", whole
    plain = run.augment is None and config.shuffle_within is None
    yield (
        "augment and shuffle_within do not go with ties; shuffle=True shuffles within ties",
        (plain or run.data.ties is None),
    )
    sets = len(run.data) + (0 if run.unlabeled is None else len(run.unlabeled))
    got = f"batch_size={config.batch_size} and n_samples={sets} on {run.world} process(es)"
    rule = f"a penalty with relative=True or partners='batch' needs two sets in a batch of a process; got {got}"
    yield rule, not run.compares_sets or min(sets, config.batch_size) > run.world
