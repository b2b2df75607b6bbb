"""The one object of each kind that a training process has.

The API is AdaptDL's, of plain functions (`current_epoch()`, `save_all_states()`), so something must
know the process's epochs, checkpoints, profile and so on. It is this dictionary and nothing else:
each kind is a class with explicit state, made at first use, and its module's functions are doors to
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")

_objects: dict[object, object] = {}


def only(kind: Callable[[], T]) -> T:
    """Return the process's one object of this class, made at first use."""
    if kind not in _objects:
        _objects[kind] = kind()
    return cast("T", _objects[kind])


def put(kind: Callable[[], T], value: T) -> T:
    """Make this the process's one object of the class."""
    _objects[kind] = value
    return value


def find(kind: Callable[[], T]) -> T | None:
    """Return the process's one object of this class, if there is one."""
    return cast("T | None", _objects.get(kind))


def forget(kind: Callable[[], T]) -> None:
    """Forget the process's one object of this class."""
    _objects.pop(kind, None)


def reset() -> None:
    """Forget all these objects, as if the process began anew."""
    _objects.clear()
