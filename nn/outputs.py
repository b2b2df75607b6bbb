"""The outputs of a model as arrays by name: one for each tensor, with one row a record.

A tensor is "output"; those of a tuple are "output_0", "output_1", ..., of a dict or a dataclass
their names, of what lies within these "a.b", "a.0". None is nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ..common.errors import DefinitionError
from .arrays import Array, to_numpy


def arrays_of(outputs: Any, count: int) -> dict[str, Array]:
    """Return the arrays of a minibatch of `count` records by name.

    Raises DefinitionError.
    """
    found: dict[str, Array] = {}
    for name, value in leaves(outputs, ""):
        array = to_numpy(value)
        if array.dtype == object or array.dtype.kind in "SU":
            raise DefinitionError(
                f"model: the output {name!r} is a {type(value).__name__}, which is no array of "
                "numbers"
            )
        if not array.ndim or len(array) != count:
            raise DefinitionError(
                f"model: the output {name!r} has the shape {list(array.shape)} for {count} "
                "records: predictions have one row a record, so return only what has (where "
                "`self.training` is false)"
            )
        if name in found:
            raise DefinitionError(f"model: two outputs are named {name!r}")
        found[name] = array
    if not found:
        raise DefinitionError("model: it returns no tensor to predict with")
    return found


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of all that is no container; None counts as nothing."""
    if value is None:
        return
    parts: Mapping[Any, Any] | None = None
    if isinstance(value, Mapping):
        parts = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = dict(zip(value._fields, value, strict=True))
    elif isinstance(value, tuple | list) and any(_is_nested(part) for part in value):
        prefix = "" if name else "output_"
        parts = {f"{prefix}{place}": part for place, part in enumerate(value)}
    if parts is None:
        yield name or "output", value
        return
    for key, part in parts.items():
        yield from leaves(part, f"{name}.{key}" if name else str(key))


def _is_nested(value: Any) -> bool:
    """Tell whether this is something of its own in a tuple or list, and no number of a row."""
    return hasattr(value, "shape") or isinstance(value, Mapping | tuple | list)
