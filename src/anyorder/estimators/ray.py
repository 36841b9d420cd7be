"""Tables beyond one machine: the workers of a Ray cluster read the sets that are theirs and predict them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import torch

from anyorder.checks import extra
from anyorder.data.sets import SetData
from anyorder.estimators.sources import open_folder, open_table, read_columns
from anyorder.estimators.table_model import TableModel
from anyorder.estimators.tables import TableWarning


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected to the cluster whose head is at ``address``; None starts Ray on this machine."""
    ray = extra("ray", "ray", "engine ray")
    ours = not ray.is_initialized()
    if ours:
        code = {"py_modules": [str(Path(__file__).resolve().parents[1])], "excludes": ["__pycache__"]}
        ray.init(address=address or "local", runtime_env=code, log_to_driver=False, logging_level=40)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def predict_on_ray(
    model: TableModel, source: str, orderings: int = 1, *, address: str | None = None, sets: int = 5000
) -> pd.DataFrame:
    """The predictions of :meth:`TableModel.predict`, in parts of so many sets.

    All workers must see ``source``, a folder of Parquet files, under the same path. A worker holds one part at a time.
    """
    ids = _ids(model, source)
    with cluster(address) as ray:
        shared, task = ray.put(model), ray.remote(_predicted)
        parts = [ids[start : start + sets] for start in range(0, len(ids), sets)]
        frames = ray.get([task.remote(shared, source, part, orderings) for part in parts])
    return pd.concat(frames, ignore_index=True)


def _predicted(model: TableModel, source: str, ids: np.ndarray, orderings: int) -> pd.DataFrame:
    with warnings.catch_warnings(action="ignore", category=TableWarning):
        return model.predict(_of_sets(model, source, ids), orderings)


def audit_on_ray(
    model: TableModel, source: str, sets: int = 1000, *, seed: int = 0, address: str | None = None, **options: Any
) -> Any:
    """The report of :meth:`TableModel.audit`: this process reads the audited sets alone, the workers predict."""
    ids = _ids(model, source)
    if len(ids) > sets:
        ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))[:sets].sort().values.numpy()]
    with cluster(address) as ray:
        shared, task = ray.put(model), ray.remote(lambda here, data, orderings: here._outputs(data, orderings))
        count = max(1, int(ray.cluster_resources().get("CPU", 1)))

        def outputs(data: SetData, orderings: int = 1) -> np.ndarray:
            parts = [part for part in np.array_split(np.arange(len(data)), count) if len(part)]
            return np.concatenate(ray.get([task.remote(shared, data.select(part), orderings) for part in parts]))

        spread = copy.copy(model)
        spread._outputs = outputs  # type: ignore
        return spread.audit(_of_sets(model, source, ids), sets, seed=seed, **options)


def _ids(model: TableModel, source: str) -> np.ndarray:
    """The ids of all sets, in the order of their first rows."""
    set_id = model.schema.set_id
    return read_columns(open_table(open_folder(Path(source))), {"set_id": set_id}, {})[set_id].unique()


def _of_sets(model: TableModel, source: str, ids: np.ndarray) -> pyarrow.dataset.Dataset:
    """The rows of some sets alone."""
    opened, set_id = open_folder(Path(source)), model.schema.set_id
    kind = opened.schema.field(set_id).type
    return opened.filter(pyarrow.dataset.field(set_id).isin(pa.array(ids, kind)))
