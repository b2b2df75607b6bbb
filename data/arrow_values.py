"""The values of one Arrow array in numpy, and the rows of it that cannot be had.

`arrow.py` decides which of these functions a column is made by.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..common.ragged import Ragged
from .exact import Unfit, Values, bring
from .missing import Fill, ways_out
from .schema import Field

_WIDE_NBYTES = 64 << 20  # of a row group's texts as np.str_; longer ones stay objects until used
_EXACT_DIGITS = 15  # significant decimal digits that each float64 keeps

View = Callable[[int, int], NDArray[Any] | None]  # rows [low, high); None: these are not plain


class Column(NamedTuple):
    """The values of a column, and of the rows that cannot be had: {row: why}."""

    values: Values
    faults: Mapping[int, str]


def is_view(types: Any, what: str, kind: Any) -> bool:
    return bool(getattr(types, f"is_{what}_view", lambda _kind: False)(kind))


def nulls_of(array: Any) -> NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def ways_out_of(dtypes: Mapping[str, np.dtype[Any]]) -> str:
    """Return the end of a sentence for columns that miss values: what to say, to be pasted."""
    said = ways_out(list(dtypes))
    for name, dtype in (*dtypes.items(), ("*", max(dtypes.values(), key=lambda each: each.kind))):
        value = {"u": "0", "b": "false"}.get(dtype.kind, "-1")  # -1 is no uint64 and no bool
        said = re.sub(rf"(?<=[=|]){re.escape(name)}:-1(?=[|'])", f"{name}:{value}", said)
    return said


def why_missing(name: str, dtype: np.dtype[Any]) -> str:
    return f"column {name!r} misses a value: {ways_out_of({name: dtype})}"


def of_rows(faults: Mapping[int, str], owners: NDArray[np.int64]) -> dict[int, str]:
    """Return the faults of elements as those of the rows that own them."""
    return {int(owners[element]): why for element, why in reversed(list(faults.items()))}


def numbers(column: Field, array: Any, fill: Fill | None) -> Column:
    nulls = nulls_of(array) if array.null_count else None
    if nulls is not None:
        array = array.fill_null(False if array.type.bit_width == 1 else 0)
    values, faults = _brought(column, array.to_numpy(zero_copy_only=False))
    if nulls is not None and fill is not None:
        values = np.where(nulls, fill.value, values).astype(values.dtype)
    elif nulls is not None:
        why = why_missing(column.name, values.dtype)
        faults |= dict.fromkeys(np.flatnonzero(nulls).tolist(), why)
    return Column(values, faults)


def times(column: Field, array: Any, unit: str, fill: Fill) -> Column:
    """Return times, stored as whole numbers of a unit of numpy's, in the column's own unit."""
    whole = array.fill_null(0).to_numpy(zero_copy_only=False)
    values = whole.view(unit)
    if not array.null_count:
        return Column(*_brought(column, values))
    nulls = nulls_of(array)
    found, faults = _brought(column, np.where(nulls, np.array("NaT", unit), values))
    return Column(np.where(nulls, fill.value, found).astype(found.dtype), faults)


def other_texts(column: Field, array: Any, fill: Fill) -> Column:
    """Return bytes as texts."""
    return Column(*_brought(column, objects(array, fill)))


def nothing(column: Field, rows: int, fill: Fill | None) -> Column:
    """Return a column all of whose values are missing."""
    type_ = column.type
    if type_.lists:
        empty = np.empty(0, type_.dtype)
        return Column(Ragged(empty, np.zeros(rows + 1, np.int64)), {})
    if fill is None:
        why = why_missing(column.name, type_.dtype)
        return Column(np.zeros((rows, *type_.shape), type_.dtype), dict.fromkeys(range(rows), why))
    return Column(full((rows, *type_.shape), fill.value, type_.dtype), {})


def full(shape: tuple[int, ...], value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of one value; numpy's own `full` cuts a text off."""
    return np.broadcast_to(np.array(value, dtype), shape).copy()


def _brought(column: Field, values: NDArray[Any]) -> tuple[NDArray[Any], dict[int, str]]:
    """Return single values as `bring` does, and {row: why} of those that cannot be: nothing."""
    with contextlib.suppress(Unfit):
        return np.asarray(bring(column, values)), {}
    parts, faults = [], {}
    for row in range(len(values)):
        try:
            parts.append(np.asarray(bring(column, values[row : row + 1])))
        except Unfit as error:
            faults[row] = error.why
            parts.append(np.zeros((1, *column.type.shape), column.type.dtype))
    return np.concatenate(parts), faults


def joined(parts: Sequence[Values]) -> Values:
    """Return the rows of all parts, of which there is at least one, one after the other."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Ragged):
        return Ragged.concatenated(cast("list[Ragged]", parts))
    return np.concatenate(cast("list[NDArray[Any]]", parts))


def owned(values: Values) -> Values:
    """Return values that whoever is given them may write into."""
    if isinstance(values, Ragged):
        return values if values.values.flags.writeable else values.replace(values.values.copy())
    return values if values.flags.writeable else values.copy()


def in_numpys_texts(values: Values) -> Values:
    """Return texts in fixed width, where they are objects."""
    if isinstance(values, Ragged):
        return values.replace(np.asarray(in_numpys_texts(values.values)))
    return values.astype(np.str_) if values.dtype == object else values


def decimals(arrow: Any, of: Field, array: Any, fill: Fill | None) -> Column:
    """Return float64, each the nearest.

    There is a fault where the decimal's own digits would not come back.
    """
    # Arrow's own cast is not always the nearest; its parser is.
    floats = array.cast(arrow.string()).cast(arrow.float64())
    name, column = of.name, numbers(of, floats, fill)
    if array.type.precision <= _EXACT_DIGITS:
        return column
    try:
        array.cast(arrow.decimal128(_EXACT_DIGITS, array.type.scale))
    except arrow.ArrowInvalid:
        pairs = zip(array.to_pylist(), floats.to_pylist(), strict=True)
        faults = {
            row: f"column {name!r}: {value} would change in float64: say dtypes={name}:text"
            for row, (value, number) in enumerate(pairs)
            if value is not None and Decimal(repr(number)) != value
        }
        return Column(column.values, {**column.faults, **faults})
    return column


def cast_each(arrow: Any, name: str, array: Any, kind: Any) -> tuple[Any, dict[int, str]]:
    """Return the array as another type, and a fault (and null) for each row that cannot be cast."""
    with contextlib.suppress(arrow.ArrowInvalid):
        return array.cast(kind), {}
    rows, faults = [], {}
    for row in range(len(array)):
        try:
            rows.append(array.slice(row, 1).cast(kind))
        except arrow.ArrowInvalid:
            rows.append(arrow.nulls(1, kind))
            way_out = "" if kind == arrow.large_string() else f" (or say dtypes={name}:text)"
            faults[row] = f"column {name!r}: {_told(array[row])} is no {kind}{way_out}"
    return arrow.concat_arrays(rows), faults


def _told(value: Any) -> str:
    """Return a value for a sentence: exact, and short."""
    with contextlib.suppress(UnicodeDecodeError):
        value = value.as_py()
        return str(value) if isinstance(value, int | float | Decimal) else f"{value!r:.60}"
    return "a text that is no UTF-8"


def objects(array: Any, fill: Fill) -> NDArray[Any]:
    values = np.array(array.to_numpy(zero_copy_only=False), dtype=object)
    if array.null_count:
        values[nulls_of(array)] = fill.value
    return values


def plain_texts(array: Any, fill: Fill) -> View | None:
    """Return a function of rows of texts that are ASCII without a NUL, by a kernel.

    None where there are other texts.
    """
    from .csv_kernels import widen
    from .kernels import NONE

    letters = {"string": np.int32, "large_string": np.int64}.get(str(array.type))
    if letters is None or (buffers := array.buffers())[2] is None:
        return None
    bounds = np.frombuffer(buffers[1], letters)[array.offset :][: len(array) + 1]
    data = np.frombuffer(buffers[2], np.uint8)
    seen = data[bounds[0] : bounds[-1]]
    if not len(seen) or seen.max() > 127 or not seen.min():
        return None
    nulls = nulls_of(array) if array.null_count else None
    table = np.empty(0, np.uint32)

    def rows(low: int, high: int) -> NDArray[Any] | None:
        mine = bounds[low : high + 1].astype(np.int64)
        starts, ends = mine[:-1], mine[1:]
        missing = None if nulls is None else nulls[low:high]
        if missing is not None:
            ends = np.where(missing, starts, ends)
        longest = max(1, int((ends - starts).max(initial=0)))
        if 4 * len(starts) * longest > _WIDE_NBYTES:
            return None
        wide = np.empty((len(starts), longest), np.uint32)
        widen(data, starts, ends, np.zeros(len(starts), np.uint8), NONE, table, wide)
        values = wide.view(f"=U{longest}")[:, 0]
        return (
            values if missing is None or not fill.value else np.where(missing, fill.value, values)
        )

    return rows


def texts(arrow: Any, name: str, array: Any, fill: Fill) -> Column:
    if is_view(arrow.types, "string", array.type):
        array = array.cast(arrow.large_string())
    rows = plain_texts(array, fill)
    if rows is not None and (plain := rows(0, len(array))) is not None:
        return Column(plain, {})
    faults: dict[int, str] = {}
    try:
        values = objects(array, fill)
    except (UnicodeDecodeError, arrow.ArrowException):  # the latter from Arrow's own strings
        values = objects(array.cast(arrow.large_binary()), Fill(fill.dtype, fill.value.encode()))
        for row, text in enumerate(values):
            try:
                values[row] = text.decode()
            except UnicodeDecodeError as error:
                values[row] = ""
                faults[row] = f"column {name!r}: its text is no UTF-8: {error}"
    if arrow.compute.any(arrow.compute.ends_with(array, "\0")).as_py():
        # numpy's texts end before their trailing zeros
        why = f"column {name!r}: its text ends with a NUL, which numpy's texts cannot hold"
        faults |= {row: why for row, text in enumerate(values) if text.endswith("\0")}
    if 4 * len(values) * max(map(len, values), default=0) <= _WIDE_NBYTES:
        values = values.astype(np.str_)
    return Column(values, faults)
