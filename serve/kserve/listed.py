"""The values of an input that are listed, in JSON or in a message of gRPC, as an array. Pure.

A number of JSON with a point or an exponent is a decimal, and becomes the nearest of its type; a
whole number is exact. What is neither is a Refused that names the row.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common import finite
from ...data.exact import TIMES
from ...distill.kserve.tensors import DTYPES
from ..brought import stand_in
from ..servable import Column, Typed
from .refused import Refused, invalid
from .taken import listed_sizes

AT_ONCE = 1 << 14  # values that C may convert while no other thread runs: some milliseconds
BYTES = "BYTES"
_KINDS: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
_WORDS = {str: "a text", bool: "a bool", list: "a list", dict: "an object"}

Where = Callable[[int], str]  # of a flat value's place: its row, in words


def pieces(values: Any) -> Iterator[Any]:
    """Give out a sequence in pieces, between which another thread may run."""
    if len(values) <= AT_ONCE:
        yield values
        return
    for start in range(0, len(values), AT_ONCE):
        yield values[start : start + AT_ONCE]


def where_of(
    sizes: Sequence[int], apart: bool = False, lengths: NDArray[np.int64] | None = None
) -> Where:
    """Return the words for the places of an input's flat values.

    `lengths`: of lists that were nested; `apart`: these come in another input.
    """
    if apart:
        return lambda place: f"value {place}"
    if lengths is None:
        return lambda place: f"row {place // max(1, math.prod(sizes[1:]))}"
    ends = np.cumsum(lengths)
    return lambda place: f"row {int(np.searchsorted(ends, place, 'right'))}"


def array_of(
    column: Column, sizes: tuple[int, ...], values: Any, where: Where, not_finite: Any = None
) -> NDArray[Any]:
    """Return the array of listed values, flat or nested. Raises Refused.

    `not_finite`: which of them that are null were NaN or infinite (common/finite.py).
    """
    flat = _flat(column, sizes, values)
    if not_finite is not None:
        try:
            flat = finite.from_list(flat, not_finite)
        except ValueError as error:
            raise invalid(f"the input {column.name!r}: {error}") from error
    kinds = set[type]()
    for piece in pieces(flat):
        kinds.update(map(type, piece))
    if type(None) in kinds and (instead := _of_null(column)) is not None:
        flat = [instead if each is None else each for each in flat]
        kinds = {*kinds, type(instead)} - {type(None)}
    if column.datatype == BYTES:
        return _texts(column, sizes, flat, where)
    dtype = DTYPES[column.datatype]
    if not kinds <= _KINDS[dtype.kind]:
        place = next(n for n, each in enumerate(flat) if type(each) not in _KINDS[dtype.kind])
        raise _strange(column, flat, place, where)
    try:
        with np.errstate(over="ignore") if dtype.kind == "f" else contextlib.nullcontext():
            found = [np.array(piece, dtype) for piece in pieces(flat)]
    except OverflowError as error:
        raise invalid(
            f"the input {column.name!r} has a value that {column.datatype} cannot hold: {error}"
        ) from error
    made = found[0] if len(found) == 1 else np.concatenate(found)
    if dtype.kind == "f":
        _check_floats(column, flat, made, int in kinds, where)
    return made.reshape(sizes)


def check_tokens(head: bytes, column: Column) -> None:
    """Raise Refused where a number of JSON, and no token Infinity, is beyond all floats."""

    def read(text: str) -> float:
        number = float(text)
        if math.isinf(number):
            raise invalid(
                f"the input {column.name!r} of {column.datatype} has the value {text[:40]}, which "
                f"is beyond {column.datatype}"
            )
        return number

    json.loads(head, parse_float=read)


def _of_null(column: Column) -> Any:
    """Return what stands for a null, which JSON has for a missing value; None: it is refused."""
    if not isinstance(column, Typed):
        return math.nan if column.datatype.startswith("FP") else None
    if column.field.type.kind in TIMES:
        return "NaT" if column.datatype == BYTES else None
    found = stand_in(column.field)
    return found.item() if isinstance(found, np.generic) else found


def _check_floats(
    column: Column, flat: Sequence[Any], made: NDArray[Any], has_whole: bool, where: Where
) -> None:
    """Raise Refused where a number has become infinite, or a whole one another."""
    for place in np.flatnonzero(np.isinf(made)).tolist():
        if math.isfinite(flat[place]):
            raise _strange(column, flat, place, where)
    if not has_whole:
        return
    exact = 1 << (np.finfo(made.dtype).nmant + 1)
    for place, each in enumerate(flat):
        if type(each) is int and not -exact <= each <= exact and int(made[place]) != each:
            raise _strange(column, flat, place, where)


def _strange(column: Column, flat: Sequence[Any], place: int, where: Where) -> Refused:
    """Return the refusal of a value that an input cannot have."""
    value = flat[place]
    said = f"{where(place)} of the input {column.name!r} of {column.datatype}"
    if isinstance(column, Typed) and str(column.field.type) != column.datatype.lower():
        said += f" ({column.field.type})"
    said += f" has the value {json.dumps(value)[:40]}"
    if value is None:
        return invalid(f"{said}: say what stands for a missing value in training")
    what = _WORDS.get(type(value), f"a number that {column.datatype} does not hold")
    return invalid(f"{said}, which is {what}: send {column.datatype}")


def _flat(column: Column, sizes: tuple[int, ...], data: Any) -> list[Any]:
    values: list[Any] = data
    if not isinstance(data, list):
        raise invalid(f"the data of the input {column.name!r} is no list")
    if values and isinstance(values[0], list) and len(values) == sizes[0]:
        for size in sizes[1:]:
            if not all(isinstance(each, list) and len(each) == size for each in values):
                raise invalid(
                    f"the data of the input {column.name!r} is nested otherwise than its shape "
                    f"{listed_sizes(sizes)}"
                )
            values = list(itertools.chain.from_iterable(values))
    if len(values) != math.prod(sizes):
        raise invalid(
            f"the input {column.name!r} of the shape {listed_sizes(sizes)} has {len(values)} "
            f"values instead of {math.prod(sizes)}"
        )
    return values


def _texts(
    column: Column, sizes: tuple[int, ...], flat: Sequence[Any], where: Where
) -> NDArray[Any]:
    found = np.empty(len(flat), object)
    for place, each in enumerate(flat):
        if not isinstance(each, str | bytes):
            raise invalid(
                f"{where(place)} of the input {column.name!r} of {BYTES} has the value "
                f"{json.dumps(each)[:40]}, which is no text: send a text"
            )
        try:
            found[place] = each.encode() if isinstance(each, str) else each
        except UnicodeEncodeError as error:  # half a surrogate
            raise invalid(f"the input {column.name!r} has a text that is none") from error
    return found.reshape(sizes)
