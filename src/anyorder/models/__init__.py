"""Set models behind one call: ``model(elements, lengths=None)``.

Elements ``[B, T, D]`` give outputs ``[B, out_features]``. :data:`MODELS` maps the name of each model to its class.
``MODELS[model.name](**model.config())`` builds it again.
"""

from anyorder.models.aggregation import MultiAggregation
from anyorder.models.base import MODELS, SetModel, Standardised, average_over_orderings
from anyorder.models.deep_sets import DeepSets
from anyorder.models.janossy import JanossyPooling
from anyorder.models.recurrent import FOLD_PRESETS, RecurrentSetModel
from anyorder.models.set_transformer import SetTransformer

__all__ = [
    "FOLD_PRESETS",
    "MODELS",
    "DeepSets",
    "JanossyPooling",
    "MultiAggregation",
    "RecurrentSetModel",
    "SetModel",
    "SetTransformer",
    "Standardised",
    "average_over_orderings",
]
