"""Torch-geometric's flat batches and aggregations (extra ``peers``): ``ao.pyg``."""

from anyorder.models.pyg import *  # noqa: F403
