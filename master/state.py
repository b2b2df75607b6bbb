"""The pure state machines as JSON values, and back: what a compacted journal starts from.

`dump` and `load` carry all fields of an object, whatever they are, so that a field that is added
tomorrow is carried too; they know the few classes named in `_KNOWN` and refuse others.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import operator
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from .endings import Ending
from .evaluation import Round
from .membership import Member, Membership
from .plan import Kind
from .replicas import Phase, Replicas, Slot
from .task_queue import Failure, Quarantine, State, Task, TaskQueue

_KNOWN: dict[str, Any] = {
    c.__name__: c
    for c in (Ending, Failure, Kind, Member, Phase, Quarantine, Round, Slot, State, Task)
}
_PLAIN = (int, str, float, bool, type(None))
_LISTS: dict[str, Any] = {c.__name__: c for c in (tuple, set, frozenset, deque)}
_MAPPINGS: dict[str, Any] = {c.__name__: c for c in (dict, Counter, OrderedDict)}
# What does not change in the course of a job: its maker gives it again.
_GIVEN = {
    TaskQueue: ("plan", "tolerance"),
    Membership: ("_lease_s",),
    Replicas: ("_relaunches", "_name"),
}


def dump(value: Any) -> Any:
    """A value as JSON values: containers and enums by name, dataclasses by what is not default."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    name = kind.__name__
    if isinstance(value, Enum):
        return {name: value.value}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [dump(each) for each in value]
    if name in _LISTS:
        return {name: [each if type(each) in _PLAIN else dump(each) for each in value]}
    if name in _MAPPINGS:
        return {name: [[dump(key), dump(each)] for key, each in value.items()]}
    if name in _KNOWN and dataclasses.is_dataclass(value):
        fields, defaults, values = _fields(kind)
        told = {
            field: now if type(now) in _PLAIN else dump(now)
            for field, now, default in zip(fields, values(value), defaults, strict=True)
            if now is not default and now != default
        }
        return {name: told}
    raise TypeError(f"{name} cannot stand in the state of the books")


def load(value: Any) -> Any:
    """What `dump` was given."""
    if isinstance(value, list):
        return [load(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    if name == "bytes":
        return base64.b64decode(content)
    if name in _LISTS:
        return _LISTS[name]([load(each) for each in content])
    if name in _MAPPINGS:
        return _MAPPINGS[name]({load(key): load(each) for key, each in content})
    if isinstance(content, dict):  # a dataclass
        return _KNOWN[name](**{key: load(each) for key, each in content.items()})
    return _KNOWN[name](content)


@functools.cache
def _fields(known: Any) -> tuple[list[str], list[Any], Callable[[Any], Iterable[Any]]]:
    """Fields, their defaults, and what gives the values of all; but those that do not count for
    equality: they are for the eye. There are thousands of tasks to dump."""
    names, defaults = [], []
    for each in dataclasses.fields(known):
        made = each.default_factory
        if each.compare:
            names.append(each.name)
            defaults.append(each.default if made is dataclasses.MISSING else made())
    values = operator.attrgetter(*names) if len(names) > 1 else lambda one: [getattr(one, names[0])]
    return names, defaults, values


def dump_fields(machine: Any) -> dict[str, Any]:
    """All fields of a state machine, but those that its maker gives."""
    given = _GIVEN.get(type(machine), ())
    return {name: dump(value) for name, value in vars(machine).items() if name not in given}


def load_fields(machine: Any, values: dict[str, Any]) -> None:
    """Set them in a machine that was just made."""
    for name, value in values.items():
        setattr(machine, name, load(value))


def load_queue(queue: TaskQueue, values: dict[str, Any]) -> None:
    """Set the fields of a queue that was just made, of the same plan, to what `dump_fields` gave.

    Raises ValueError where another version of this class gave them.
    """
    if values.keys() != dump_fields(queue).keys():
        raise ValueError("the queue has other fields")
    load_fields(queue, values)
