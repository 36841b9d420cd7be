"""Torch-geometric's flat batches and aggregations (extra ``peers``): ``ao.pyg``."""

from anyorder.data.sets import pad_from_batch as pad_from_batch
from anyorder.models.pyg import *  # noqa: F403
