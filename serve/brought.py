"""Values that somebody asks about, brought to the columns of a schema: exactly, or refused.

They come from a request (bytes for texts, texts or whole numbers for times) or from Python, as a
reader has them. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common import iso
from ..common.errors import UsageError
from ..common.ragged import Ragged
from ..data.exact import TIMES, Unfit, Values, bring
from ..data.missing import Missing
from ..data.schema import Field

SAMPLED = "seen in a few records"  # of a schema's fields that nobody has written down


def brought(column: Field, values: Values | Sequence[Any]) -> Values:
    """Return values, one a row, as the column has them.

    Raises UsageError, which names the row, the value and the column's type.
    """
    try:
        if column.type.kind in TIMES:
            values = _timed(column, values)
        return bring(column, values)
    except Unfit as error:
        raise UsageError(
            f"row {error.row} of the input {column.name!r}: {error.what}: send {takes(column)}"
        ) from error


def takes(column: Field) -> str:
    """Return what a request brings for the values of a column, for a sentence."""
    type_ = column.type
    texts = {
        "timestamp": "times as 2026-11-29T17:54:52.25" + ("Z" if type_.zone else ""),
        "date": "dates as 2026-11-29",
        "duration": "durations as PT1H2M3.5S",
        "text": "texts that are UTF-8",
        "bytes": "bytes",
    }
    single = texts.get(type_.kind, f"values of {type_.single}")
    if type_.lists:
        return f"lists of {single}"
    return f"{type_.shape} of {single}" if type_.shape else single


def stand_in(column: Field) -> Any:
    """Return what a missing value becomes by the schema; None: it is refused."""
    if column.type.shape or column.type.lists or column.type.kind == "picture":
        return np.nan if column.type.is_float else None
    chosen = {} if column.missing is None else {column.name: column.missing}
    dtype = np.dtype("S") if column.type.kind == "bytes" else column.type.dtype
    fill = Missing(chosen).fill(column.name, dtype)
    return None if fill is None else fill.value


def _timed(column: Field, values: Values | Sequence[Any]) -> Values | Sequence[Any]:
    """Return times where these are texts; whatever else they are passes."""
    if isinstance(values, Ragged):
        ragged = values.own()
        try:
            return ragged.replace(_read(column, ragged.values))
        except Unfit as error:
            raise error.of_row(int(ragged.rows[error.row])) from error
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    if column.type.lists and array.dtype.kind == "O" and array.ndim == 1:
        rows = [np.asarray(each) for each in array]
        return _timed(column, Ragged.rows_of(rows)) if _has_texts(rows) else values
    return _read(column, array)


def _has_texts(rows: Sequence[NDArray[Any]]) -> bool:
    return any(row.dtype.kind in "SUT" for row in rows)


def _read(column: Field, array: NDArray[Any]) -> NDArray[Any]:
    flat = array.ravel().tolist() if array.dtype.kind in "OSUT" else []
    if not flat or not all(isinstance(each, str | bytes) for each in flat):
        return array
    zone = None if column.found == SAMPLED else column.type.zone
    per_row = max(1, len(flat) // max(1, len(array)))
    texts = [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in flat]
    try:
        return iso.parse(texts, column.type.kind, zone).reshape(array.shape)
    except iso.NoTime as error:
        raise Unfit(
            error.place // per_row,
            f"column {column.name!r} is {column.type}, and {texts[error.place]!r:.60} is "
            f"{error.why}",
        ) from error
