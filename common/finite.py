"""JSON that every language reads: NaN and infinities are null, and a map says which they were.

JSON has no such numbers (RFC 8259, section 6), and most readers refuse Python's tokens for them. So
whatever others may read is written by `dumps`: of a document with such numbers each is null, and
the outermost object has one member more, which says by JSON Pointer (RFC 6901) what stood where:

    {"metrics": {"auc": null, "loss": 0.5}, "not_finite": {"/metrics/auc": "nan"}}

"nan", "inf" or "-inf". Of a list of objects each has its own. `loads` puts the numbers back, and
reads Python's tokens too, which older versions have written. A document without such numbers is
as ever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

NOT_FINITE = "not_finite"
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def word(number: float) -> str:
    """Return "nan", "inf" or "-inf" of a number that is one of these."""
    return str(float(number))


def number(said: object) -> float:
    """Return the number of which `word` is this. Raises ValueError for any other."""
    if not isinstance(said, str) or said not in _NUMBERS:
        raise ValueError(f"{str(said)[:20]!r} is none of {', '.join(_NUMBERS)}")
    return _NUMBERS[said]


def dumps(values: Any, **how: Any) -> str:
    """Return values as JSON without NaN and infinities. `how`: as `json.dumps` has it."""
    try:
        return json.dumps(values, allow_nan=False, **how)
    except ValueError:
        return json.dumps(strict(values), allow_nan=False, **how)


def loads(text: str | bytes) -> Any:
    """Return the values that `dumps` was given. Raises ValueError where it is no JSON."""
    return restored(json.loads(text))


def strict(values: Any) -> Any:
    """Return values that any JSON can hold: those of the document that `dumps` writes."""
    if isinstance(values, Mapping):
        found: dict[str, str] = {}
        made: dict[str, Any] = _without(values, "", found)
        known = made.get(NOT_FINITE)  # of somebody who has read it without `restored`
        found = {**(known if isinstance(known, dict) else {}), **found}
        return {**made, NOT_FINITE: found} if found else made
    if isinstance(values, list | tuple):
        return [strict(each) for each in values]
    return _without(values, "", {})


def restored(values: Any) -> Any:
    """Return a document's values with its numbers put back, in place.

    Raises ValueError where it says of something that is not null that it was such a number.
    """
    if isinstance(values, list):
        return [restored(each) for each in values]
    if not isinstance(values, dict) or not isinstance(values.get(NOT_FINITE), dict):
        return values
    for pointer, said in values.pop(NOT_FINITE).items():
        _put(values, pointer, number(said))
    return values


def in_list(numbers: Sequence[float], at: int = 0) -> tuple[list[float | None], str]:
    """Return floats with null for such numbers, and which they were: "3:nan,7:-inf".

    So a protocol that lets a tensor have plain texts beside its data can tell them; "": none is.
    `at`: the place of the first one in the whole list.
    """
    places = [place for place, each in enumerate(numbers) if not math.isfinite(each)]
    made: list[float | None] = list(numbers)
    for place in places:
        made[place] = None
    return made, ",".join(f"{at + place}:{word(numbers[place])}" for place in places)


def from_list(values: Sequence[Any], said: object) -> list[Any]:
    """Return the values that `in_list` was given.

    Raises ValueError where `said` is no word of its, or is about a value that is not null.
    """
    made = list(values)
    for part in said.split(",") if isinstance(said, str) else [str(said)]:
        place, _, what = part.partition(":")
        if not place.isdecimal() or int(place) >= len(made) or made[int(place)] is not None:
            raise ValueError(f"{NOT_FINITE} says {part[:40]!r}, and there is no null")
        made[int(place)] = number(what)
    return made


def _without(value: Any, pointer: str, found: dict[str, str]) -> Any:
    """Return a value without such numbers, each of which is noted by its pointer."""
    if isinstance(value, Mapping):
        return {
            key: _without(each, f"{pointer}/{_part(key)}", found) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without(each, f"{pointer}/{place}", found) for place, each in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        found[pointer] = word(value)
        return None
    return value


def _part(key: Any) -> str:
    """Return a key as a pointer has it: "~" and "/" are written otherwise."""
    text = key if isinstance(key, str) else json.dumps(key)
    return text.replace("~", "~0").replace("/", "~1")


def _put(values: Any, pointer: str, value: float) -> None:
    try:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")]
        *path, last = parts[1:]
        for part in path:
            values = values[int(part) if isinstance(values, list) else part]
        place = int(last) if isinstance(values, list) else last
        if values[place] is not None:
            raise ValueError("there is something else")
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{NOT_FINITE} names {pointer[:200]!r}, where there is no null") from error
    values[place] = value
