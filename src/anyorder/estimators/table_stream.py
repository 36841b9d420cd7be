"""A set whose rows arrive in the order of their times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from anyorder.checks import InputError, InputTypeError
from anyorder.deploy.stream import Stream

if TYPE_CHECKING:
    from anyorder.estimators.table_model import TableModel


class TableStream:
    """Rows of one set as they arrive, in the order of their times. :meth:`value` is the prediction so far."""

    def __init__(self, model: TableModel) -> None:
        self._model, self._stream = model, Stream(model.estimator.model_)
        self._context: pd.DataFrame | None = None  # of the set's start, the last distinct time, the last tie

    def update(self, rows: Any) -> None:
        """Read more rows: a frame, or a mapping of columns. A row earlier than the last one is refused."""
        schema = self._model.schema
        frame = pd.DataFrame(rows)
        if schema.time is None:
            self._stream.update(schema.encode(frame))
            return
        known = 0 if self._context is None else len(self._context)
        frame = pd.concat([self._context, frame], ignore_index=True) if known else frame
        order, ties = schema.ties_of_rows(frame)
        if (order[:known] != np.arange(known)).any():
            raise InputError(f"rows must arrive in the order of {schema.time!r}; a row is earlier than the last one")
        self._stream.update(schema.encode(frame)[known:])
        starts = np.flatnonzero(np.diff(ties, prepend=-1))[-2:]
        kept = np.unique([0, starts[0], *range(starts[-1], len(frame))])
        self._context = frame.iloc[order[kept]]

    def value(self, static: Any = None) -> Tensor:
        """The probability of each class, or the number, for the rows so far.

        ``static``: the static features of the set, a mapping of columns.
        """
        schema, given = self._model.schema, None
        if schema.static:
            if static is None:
                names = [feature.name for feature in schema.static]
                raise InputTypeError(f"static must hold the static features {names}; got None")
            given = schema.encode_static(static)[0]
        output = self._stream.value(given)
        return output if schema.task == "regression" else self._model.estimator.shares(output)
