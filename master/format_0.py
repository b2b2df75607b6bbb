"""A reader of the journals of before formats had a number, the last of which commit e5532ee wrote.

There a decision was the name of a method with its arguments, and a state whatever fields the
machines had, each value with the name of its type: {"tuple": [...]}, {"Task": {...}}. Here they
become the decisions and states of now. What it reads never changes, so neither does its own table
of names.
"""

from __future__ import annotations

import base64
import dataclasses
from collections import Counter, OrderedDict, deque
from typing import Any

from ..durable.schema import Json, dump, dump_all
from ..runtime.base import Replica
from .books import decisions
from .books.endings import Ending
from .books.plan import Kind
from .books.task import Failure, Quarantine, QueueState, State, Task
from .books.task_queue import Decision
from .course import CourseMemory
from .evaluation import Evaluation, EvaluationsState
from .groups.collective import CollectiveMemory
from .groups.rounds import Peer
from .groups.server_map import ServersMemory
from .groups.standing import Base
from .membership import Member
from .memory import Memory
from .replicas import Phase, ReplicasState, Slot
from .status import StatusMemory

_DECISIONS: dict[str, type[Decision[Any]]] = {
    "open_epoch": decisions.OpenEpoch,
    "add": decisions.Add,
    "close": decisions.Close,
    "lease": decisions.Lease,
    "lease_some": decisions.LeaseSome,
    "prove": decisions.Prove,
    "done": decisions.Done,
    "hand_back": decisions.HandBack,
    "failed": decisions.Failed,
    "tries": decisions.Tries,
    "ended": decisions.Ended,
    "lost": decisions.Lost,
    "fenced": decisions.Fenced,
    "forgive": decisions.Forgive,
    "recovered": decisions.Recovered,
    "doubt": decisions.Doubt,
    "cancel": decisions.Cancel,
    "durable": decisions.Durable,
}
_TYPES: dict[str, Any] = {
    **{kind.__name__: kind for kind in (tuple, set, frozenset, deque)},
    **{kind.__name__: kind for kind in (dict, Counter, OrderedDict)},
    **{kind.__name__: kind for kind in (Ending, Failure, Kind, Member, Phase, Quarantine)},
    "Round": Evaluation,
    "Slot": Slot,
    "State": State,
    "Task": Task,
}
_MAPPINGS = ("dict", "Counter", "OrderedDict")


def decision(name: str, arguments: dict[str, Json]) -> Decision[Any]:
    """Return what a decision of this name and these arguments is now. Raises ValueError."""
    kind = _DECISIONS.get(name)
    if kind is None:
        raise ValueError(f"there is no decision {name!r}")
    known: Any = kind
    given = {field.name: field.default for field in dataclasses.fields(known)}
    values = {n: v for n, v in given.items() if v is not dataclasses.MISSING} | arguments
    for field, value in values.items():
        if isinstance(value, bytes):
            values[field] = base64.b64encode(value).decode()
    if kind is decisions.Recovered:  # there the names of an object were the tasks
        values["applied"] = [[int(task), at] for task, at in values["applied"].items()]
    return decisions.read(kind.__name__, values)


def queue_state(values: dict[str, Json]) -> QueueState:
    """Return the state of a queue that has these fields.

    Raises ValueError where they are others.
    """
    fields = {name.lstrip("_"): _load(value) for name, value in values.items()}
    _must_have(fields, QueueState, "held")
    del fields["held"]  # tells nothing that the tasks do not
    fields["tasks"] = list(fields["tasks"].values())
    fields["untouched"] = [(first, end, group) for first, end, group in fields["untouched"]]
    for name in ("leased", "fencing", "done", "results", "begun"):
        fields[name] = list(fields[name])
    return QueueState(**fields)


def memory(values: dict[str, Json]) -> Json:
    """Return what a successor must know, in the format of now.

    Raises KeyError where it is missing.
    """
    status = {name.lstrip("_"): value for name, value in values["status"].items()}
    replicas = {name.lstrip("_"): _load(value) for name, value in values["replicas"].items()}
    replicas["slots"] = list(replicas["slots"].values())
    replicas["waiting"] = list(replicas["waiting"])
    evaluations = {n.lstrip("_"): _load(value) for n, value in values["evaluations"].items()}
    known = Memory(
        status=StatusMemory(**status),
        members=_load(values["members"]),
        gone=values["gone"],
        replicas=ReplicasState(**replicas),
        processes=[Replica(*each) for each in values["processes"]],
        evaluations=EvaluationsState(**evaluations),
        version=values["version"],
        connected=values["connected"],
        stop_reason=values["stop_reason"],
        group=_group(values),
        course=CourseMemory(
            values["epochs_ended"], values["due"], values["judged"], values["unkept"]
        ),
    )
    return dump_all(known)


def _group(values: dict[str, Json]) -> Json:
    servers = collective = None
    if "serving" in values:
        known = ServersMemory(
            restore=values["restore"],
            version=values["servers_version"],
            serving=_load(values["serving"]),
            snapshots=dict(values["snapshots"]),
        )
        servers = dump(ServersMemory, known)
    if "members_of_round" in values:
        path, version, applied = values["base"]
        collective = dump(
            CollectiveMemory,
            CollectiveMemory(
                base=Base(path, version, dict(applied)),
                afresh=values["afresh"],
                round=values["round"],
                members=[_peer(*each) for each in values["members_of_round"]],
                world=values["parts_of_state"],
                givers=[_peer(*each) for each in values["givers"]],
            ),
        )
    if servers is not None and collective is not None:
        return {"servers": servers, "collective": collective}
    return servers if servers is not None else collective


def _peer(incarnation: str, index: int, address: str, version: int, parts: Json = ()) -> Peer:
    held = frozenset((world, rank) for world, rank in parts)
    return Peer(incarnation, index, address, version, parts=held)


def _must_have(fields: dict[str, Any], kind: Any, *more: str) -> None:
    names = {*(field.name for field in dataclasses.fields(kind)), *more}
    if wrong := sorted(names ^ fields.keys()):
        what = "no field" if wrong[0] in names else "a field, which is not known:"
        raise ValueError(f"the queue has {what} {wrong[0]!r}")


def _load(value: Json) -> Any:
    """Return a value that stands there with the name of its type."""
    if isinstance(value, list):
        return [_load(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    if name == "bytes":
        return base64.b64decode(content)
    if name not in _TYPES:
        raise ValueError(f"there is no {name!r}")
    if name in _MAPPINGS:
        return _TYPES[name]({_load(key): _load(each) for key, each in content})
    if isinstance(content, list):
        return _TYPES[name]([_load(each) for each in content])
    if isinstance(content, dict):  # a dataclass
        return _TYPES[name](**{key: _load(each) for key, each in content.items()})
    return _TYPES[name](content)
