"""A model's configuration, as Triton's extension `model_configuration` tells it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..batcher import Rules
from ..servable import Column
from . import lists
from .taken import MOST_ROWS

EXTENSION = "model_configuration"
_STRING = "TYPE_STRING"
_ORDER = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING"),
)
DATA_TYPES = {f"TYPE_{name}": number for number, name in enumerate(_ORDER, 1)}  # of the proto file


def as_json(
    name: str, platform: str, inputs: Sequence[Column], outputs: Sequence[Column], rules: Rules
) -> dict[str, Any]:
    """Return the configuration of a model; its dims are without the batch axis, which all have."""
    return {
        "name": name,
        "platform": platform,
        "backend": platform,
        "max_batch_size": MOST_ROWS,
        "input": [
            *(_tensor(column) | _more(column) for column in inputs),
            *(
                {**_tensor(lists.lengths_column(name)), "optional": True}
                for name in lists.beside(inputs)
            ),
        ],
        "output": [_tensor(column) for column in outputs],
        "dynamic_batching": {
            "preferred_batch_size": [rules.max_batch_size],
            "max_queue_delay_microseconds": round(rules.max_queue_delay_s * 1e6),
        },
    }


def _more(column: Column) -> dict[str, Any]:
    """Return what Triton says of an input whose rows are of differing length."""
    return {"allow_ragged_batch": True} if lists.is_lists(column) else {}


def _tensor(column: Column) -> dict[str, Any]:
    kind = _STRING if column.datatype == "BYTES" else f"TYPE_{column.datatype}"
    return {"name": column.name, "data_type": kind, "dims": list(column.shape)}
