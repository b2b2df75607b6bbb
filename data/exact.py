"""Values brought to the type of a schema: exactly, or not at all.

A way on which values come (a file, a request, a reader of one's own) has types of its own: int32 or
int64, a dictionary of texts, timestamps in milliseconds. What means the same becomes the schema's
type; nothing is rounded, cut, wrapped or printed. `fits` says it of types, before any value is
read, and `bring` of the values.

    schema            takes
    whole numbers     whole numbers and bools that it can hold
    float64, ...      numbers that it can hold exactly
    text              texts, and bytes that are UTF-8
    bytes             bytes, and texts as UTF-8
    timestamp, ...    those of any unit that are whole microseconds; dates are another type

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.ragged import Ragged
from .missing import first_inexact
from .schema import Field, Type

Values = NDArray[Any] | Ragged
TIMES = ("timestamp", "date", "duration")
WIDE_NBYTES = 64 << 20  # of texts as np.str_; wider ones are objects


class Unfit(Exception):
    """A value that its column's type cannot have.

    `row`: its record's place. `why` is `what` is wrong, and what to do with data that are read.
    """

    def __init__(self, row: int, what: str, remedy: str = "") -> None:
        self.row, self.what, self.remedy = row, what, remedy
        self.why = f"{what}: {remedy}" if remedy else what
        super().__init__(self.why)

    def of_row(self, row: int) -> Unfit:
        """Return the same of another record."""
        return Unfit(row, self.what, self.remedy)


def fits(type_: Type, other: Type) -> bool:
    """Tell whether values of another type can mean the same in this one."""
    if type_.kind == "picture" or other.kind == "picture":
        return type_ == other
    if type_.lists or other.lists:  # of any length: those of values, one by one
        if len(type_.shape) > 1 or len(other.shape) > 1 or type_.is_list != other.is_list:
            return False
    elif type_.shape != other.shape:
        return False
    if type_.is_whole:
        return other.is_whole or other.kind == "bool"
    if type_.is_float:
        return other.is_float or other.is_whole or other.kind == "bool"
    if type_.kind in ("text", "bytes"):
        return other.kind in ("text", "bytes")
    return type_.kind == other.kind and type_.zone == other.zone


def common(one: Type, other: Type) -> Type | None:
    """Return the type that can hold what both mean; None where there is none.

    Whole numbers of two widths become the wider one, whole numbers and floats become floats.
    """
    if one.lists != other.lists and one.is_list and other.is_list:
        one, other = (replace(each, lists=True, shape=()) for each in (one, other))
    if one == other:
        return one
    wide = [each for each, rest in ((one, other), (other, one)) if fits(each, rest)]
    if len(wide) < 2:
        return wide[0] if wide else None
    if one.kind in ("text", "bytes"):
        return one if one.kind == "text" else other
    if one.kind == "decimal" or other.kind == "decimal":
        return replace(one, kind="float64")
    if "uint64" in (one.kind, other.kind):  # numpy would say float64
        return replace(one, kind="int64")
    return replace(one, kind=np.promote_types(one.kind, other.kind).name)


def type_of(values: Values | Sequence[Any], name: str = "") -> Type:
    """Return the type that values have of themselves. Raises ValueError where it is none."""
    if isinstance(values, Ragged):
        return replace(_single(values.values, name), lists=True)
    array = np.asarray(values)
    if array.dtype.kind == "O" and array.ndim == 1:
        kinds = set(map(type, array.tolist()))
        if kinds and kinds <= {np.ndarray, list}:
            return replace(_single(Ragged.rows_of(array.tolist()).values, name), lists=True)
    return replace(_single(array, name), shape=array.shape[1:])


def _single(array: NDArray[Any], name: str) -> Type:
    kind = array.dtype.kind
    if kind in "UT":
        return Type("text")
    if kind == "S":
        return Type("bytes")
    if kind == "M":
        return Type("date" if np.datetime_data(array.dtype)[0] in "YMWD" else "timestamp")
    if kind == "m":
        return Type("duration")
    if kind == "O":
        kinds = set(map(type, array.ravel().tolist())) - {type(None)}
        for python, word in ((str, "text"), (bytes, "bytes"), (bool, "bool"), (int, "int64")):
            if kinds and kinds <= {python}:
                return Type(word)
        if kinds and kinds <= {int, float}:
            return Type("float64")
        what = ", ".join(sorted(each.__name__ for each in kinds)) or "nothing"
        raise ValueError(f"column {name!r} holds objects ({what}), which have no one type")
    return Type(array.dtype.newbyteorder("=").name)


def bring(column: Field, values: Values | Sequence[Any]) -> Values:
    """Return values, one for each record, as the column has them.

    Raises Unfit, which names the first record whose value cannot be.
    """
    type_ = column.type
    if type_.lists:
        return _lists(column, values)
    if isinstance(values, Ragged) and len(type_.shape) == 1:
        return _of_one_length(column, values.own())
    array = values if isinstance(values, np.ndarray) else _array(values)
    if type_.kind != "picture" and type_.shape != array.shape[1:]:
        if array.dtype.kind == "O" and array.ndim == 1 and type_.shape:
            return _stacked(column, array)
        given = Type("int64", shape=array.shape[1:])
        what = str(given).removesuffix(" int64") if given.shape else "single values"
        raise Unfit(0, f"column {column.name!r} is {type_}, and here it is {what}")
    return _brought(column.name, type_, array)


def _of_one_length(column: Field, ragged: Ragged) -> NDArray[Any]:
    """Return lists that have all the length of the type as an array [N, n]."""
    (size,) = column.type.shape
    if (others := np.flatnonzero(ragged.lengths != size)).size:
        row = int(others[0])
        told = f"here is a list of {ragged.lengths[row]}"
        raise Unfit(row, f"column {column.name!r} is {column.type}, and {told}")
    flat = ragged.values.reshape(len(ragged), size)
    return _brought(column.name, column.type, flat)


def _array(values: Values | Sequence[Any]) -> NDArray[Any]:
    if isinstance(values, Ragged):
        return np.asarray(values)
    found = np.empty(len(values), object)
    for place, each in enumerate(values):
        found[place] = each
    return found


def _lists(column: Field, values: Values | Sequence[Any]) -> Ragged:
    if not isinstance(values, Ragged):
        array = values if isinstance(values, np.ndarray) else _array(values)
        if array.dtype.kind == "O" and array.ndim == 1:
            if strange := [n for n, each in enumerate(array) if not isinstance(each, _ROWS)]:
                told = _told(array[strange[0]])
                raise Unfit(strange[0], f"column {column.name!r} is {column.type}, not {told}")
            rows = [_row(each) for each in array]
            if len({row.dtype for row in rows if len(row)}) > 1:  # their common one may round
                rows = [row.astype(object) for row in rows]
            values = Ragged.rows_of(rows)
        elif array.ndim == 2:
            values = Ragged.of(array.ravel(), np.full(len(array), array.shape[1]))
        else:
            raise Unfit(0, f"column {column.name!r} is {column.type}, and here single values")
    ragged = values.own()
    try:
        return ragged.replace(_brought(column.name, column.type.single, ragged.values))
    except Unfit as error:
        raise error.of_row(int(ragged.rows[error.row])) from error


_ROWS = (np.ndarray, list, tuple)


def _row(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    if {str, bytes} & set(map(type, values)):  # fixed width would lose a NUL at the end
        return _array(values)
    return np.asarray(values)


def _stacked(column: Field, array: NDArray[Any]) -> NDArray[Any]:
    shape = column.type.shape
    for place, each in enumerate(array):
        if np.shape(each) != shape:
            told = " x ".join(map(str, np.shape(each))) or "a single value"
            raise Unfit(place, f"column {column.name!r} is {column.type}, and here is {told}")
    flat = np.concatenate([np.asarray(each).reshape(-1) for each in array]) if len(array) else array
    try:
        found = _brought(column.name, column.type.single, flat)
    except Unfit as error:
        raise error.of_row(error.row // int(np.prod(shape))) from error
    return found.reshape(len(array), *shape)


def _brought(name: str, type_: Type, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array [N, ...] as the type has single values."""
    if array.size == 0:
        texts = array.dtype.kind == type_.dtype.kind == "U"
        return array if texts else np.empty(array.shape, type_.dtype)
    if array.dtype == type_.dtype and type_.kind not in ("text", "bytes"):
        return array
    if array.dtype.kind in "OT":
        array = _typed(name, type_, array)
    if type_.kind == "text":
        return _texts(name, array)
    if type_.kind == "bytes":
        return _bytes(name, array)
    kind = array.dtype.kind
    if type_.kind in TIMES:
        if kind not in "Mm" or not fits(type_.single, _untimed(array, type_)):
            raise _unfit(name, type_, array, 0)
        return _times(name, type_, array)
    if type_.kind == "bool":
        if kind != "b":
            raise _unfit(name, type_, array, 0)
        return array.astype(bool)
    if type_.is_whole or type_.kind == "picture":
        if kind not in "iub":
            raise _unfit(name, type_, array, 0)
        return _wholes(name, type_, array)
    if kind not in "iubf":
        raise _unfit(name, type_, array, 0)
    return _floats(name, type_, array)


def _typed(name: str, type_: Type, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects as one of numbers, where numbers are wanted."""
    if type_.kind in ("text", "bytes"):
        return array
    objects = array.ravel().tolist()
    wanted: tuple[type, ...] = (bool, int, np.bool_, np.integer)
    if type_.kind == "bool":
        wanted = (bool, np.bool_)
    elif type_.is_float:
        wanted = (*wanted, float, np.floating)
    elif type_.kind in TIMES:
        wanted = (np.datetime64, np.timedelta64)
    strange = next((n for n, v in enumerate(objects) if not isinstance(v, wanted)), None)
    if strange is not None:
        raise _unfit(name, type_, array, strange)
    if type_.is_float:
        for place, value in enumerate(objects):
            if isinstance(value, int | np.integer) and not _is_exact(int(value)):
                raise _unfit(name, type_, array, place, "would change in it")
        return np.array([float(v) for v in objects]).reshape(array.shape)
    if type_.is_whole:
        limits = np.iinfo(type_.dtype)
        for place, value in enumerate(objects):
            if not limits.min <= int(value) <= limits.max:
                raise _unfit(name, type_, array, place)
        return np.array([int(v) for v in objects], type_.dtype).reshape(array.shape)
    return np.array(objects).reshape(array.shape)


def _is_exact(whole: int) -> bool:
    """Tell whether float64 has this whole number."""
    try:
        return int(float(whole)) == whole
    except OverflowError:
        return False


def _untimed(array: NDArray[Any], type_: Type) -> Type:
    if array.dtype.kind == "m":
        return Type("duration")
    date = np.datetime_data(array.dtype)[0] in "YMWD"
    return Type("date") if date else Type("timestamp", zone=type_.zone)  # numpy has no zones


def _wholes(name: str, type_: Type, array: NDArray[Any]) -> NDArray[Any]:
    limits = np.iinfo(type_.dtype)
    if array.dtype.kind != "b":
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            beyond = (array < limits.min) if low < limits.min else (array > limits.max)
            raise _unfit(name, type_, array, int(np.flatnonzero(beyond.ravel())[0]))
    return array.astype(type_.dtype)


def _floats(name: str, type_: Type, array: NDArray[Any]) -> NDArray[Any]:
    target = type_.dtype
    with np.errstate(over="ignore"):
        found = array.astype(target)
    if array.dtype.kind in "iu" and target.itemsize == 8:
        inexact = first_inexact(array.ravel())
    elif array.dtype.kind == "b" or np.can_cast(array.dtype, target, "safe"):
        inexact = None
    else:
        wide = array.astype(np.float64)
        changed = (found.astype(np.float64) != wide) & ~np.isnan(wide)
        if array.dtype.kind in "iu":
            changed |= np.abs(wide) > 2.0 ** (np.finfo(target).nmant + 1)
        inexact = int(np.flatnonzero(changed.ravel())[0]) if changed.any() else None
    if inexact is not None:
        raise _unfit(name, type_, array, inexact, "would change in it")
    return found


def _times(name: str, type_: Type, array: NDArray[Any]) -> NDArray[Any]:
    found = array.astype(type_.dtype)
    back = found.astype(array.dtype)
    # Beyond its 64 bits numpy wraps; a finer unit loses digits.
    changed = (back != array) & ~np.isnat(array)
    if changed.any():
        place = int(np.flatnonzero(changed.ravel())[0])
        raise _unfit(name, type_, array, place, "is no whole number of microseconds within it")
    return found


def _texts(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind not in "SOT":
        raise _unfit(name, Type("text"), array, 0)
    texts = array.ravel().tolist()
    for place, each in enumerate(texts):
        if isinstance(each, bytes):
            try:
                texts[place] = each.decode()
            except UnicodeDecodeError:
                raise Unfit(
                    _row_of(array, place), f"column {name!r}: {each!r:.60} is no UTF-8"
                ) from None
        elif not isinstance(each, str):
            raise _unfit(name, Type("text"), array, place)
        if texts[place].endswith("\0"):
            raise Unfit(
                _row_of(array, place),
                f"column {name!r}: a text that ends in NUL would lose it: leave the NUL out",
            )
    if 4 * len(texts) * max(map(len, texts), default=0) > WIDE_NBYTES:
        found = np.empty(len(texts), object)
        found[:] = texts
        return found.reshape(array.shape)
    return np.array(texts, np.str_).reshape(array.shape)


def _bytes(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "USO":
        raise _unfit(name, Type("bytes"), array, 0)
    found = np.empty(array.size, object)
    for place, each in enumerate(array.ravel().tolist()):
        if not isinstance(each, str | bytes):
            raise _unfit(name, Type("bytes"), array, place)
        found[place] = each.encode() if isinstance(each, str) else each
    return found.reshape(array.shape)


def _row_of(array: NDArray[Any], place: int) -> int:
    return place // max(1, array.size // max(1, len(array)))


def _unfit(name: str, type_: Type, array: NDArray[Any], place: int, why: str = "") -> Unfit:
    value = array.ravel()[place]
    said = why or f"is {_word(value)}"
    row = _row_of(array, place)
    return Unfit(row, f"column {name!r} is {type_}, and {_told(value)} {said}", _REMEDY)


_REMEDY = "mend the value, or declare the column's type with --schema (dtypes=COLUMN:TYPE)"


def _word(value: Any) -> str:
    if isinstance(value, str):
        return "a text"
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, bool | np.bool_):
        return "a bool"
    if isinstance(value, int | np.integer):
        return "a whole number that it cannot hold"
    return f"of {type(value).__name__}"


def _told(value: Any) -> str:
    value = value.item() if isinstance(value, np.number | np.bool_) else value
    return f"{value!r:.60}" if isinstance(value, str | bytes | int | float) else f"{value!s:.60}"
