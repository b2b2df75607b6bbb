"""The difference between two snapshots of a job, and a snapshot with it applied. Pure.

So the page's JavaScript applies a change, too: what it holds afterwards is the next snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .model import MOST_EVENTS, Snapshot

Change = dict[str, Any]

_BY_FIELD = ("status", "meter", "goodput")
_BY_NAME = {"incarnations": "id", "shards": "name"}
_ROWS = ("workers", "servers", "teachers")
_PASSING = (
    "task",
    "heartbeat_age_s",
    "records_per_s",
    "pulls",
    "pushes",
    "rows",
    "nbytes",
    "version",
)


def calm(after: Snapshot, before: Snapshot) -> Snapshot:
    """Return `after` with the rows of replicas as before where only passing figures differ.

    A thousand rows of which each heartbeat's age changes are not sent four times a second.
    """
    old, new = before["status"], after["status"]
    kept = {}
    for name in _ROWS:
        rows, were = new.get(name), old.get(name)
        if rows and were and rows is not were and _lasting(rows) == _lasting(were):
            kept[name] = were
    return {**after, "status": {**new, **kept}} if kept else after


def _lasting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in _PASSING} for row in rows]


def change(before: Snapshot, after: Snapshot) -> Change | None:
    """Return what makes the one snapshot the other; None: it must be sent whole."""
    made: Change = {}
    for name, value in after.items():
        old = before.get(name)
        if old is value or old == value:
            continue
        if name == "scalars":
            made[name] = _points(before, after)
        elif name == "events":
            last = old[-1]["id"] if old else 0
            made[name] = [event for event in value if event["id"] > last]
        elif name in _BY_NAME:
            made[name] = _rows(_BY_NAME[name], old or [], value)
        elif name in _BY_FIELD and isinstance(old, Mapping) and isinstance(value, Mapping):
            if old.keys() - value.keys():
                return None
            missing = object()
            made[name] = {
                k: v
                for k, v in value.items()
                if (was := old.get(k, missing)) is not v and was != v  # NaN is no other NaN
            }
        else:
            made[name] = value
    return None if apply(before, made) != after else made


def apply(snapshot: Snapshot, made: Change) -> Snapshot:
    """Return the snapshot that follows by this change."""
    after = {**snapshot}
    for name, value in made.items():
        old = snapshot.get(name)
        if name == "scalars":
            after[name] = _with_points(snapshot["scalars"], value)
        elif name == "events":
            last = old[-1]["id"] if old else 0
            fresh = [event for event in value if event["id"] > last]
            after[name] = [*(old or []), *fresh][-MOST_EVENTS:]
        elif name in _BY_NAME:
            after[name] = _with_rows(_BY_NAME[name], old or [], value)
        elif name in _BY_FIELD and isinstance(old, Mapping) and isinstance(value, Mapping):
            after[name] = {**old, **value}
        else:
            after[name] = value
    return after


def _points(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return the new points by series; of one that was thinned meanwhile all."""
    made: dict[str, Any] = {}
    for name, points in after["scalars"].items():
        old = before["scalars"].get(name, [])
        if old is points or old == points:
            continue
        if before["thinned"].get(name, 0) == after["thinned"][name]:
            made[name] = points[len(old) :]
        else:
            made[name] = {"reset": True, "points": points}
    return made


def _with_points(scalars: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    after = {**scalars}
    for name, points in made.items():
        if isinstance(points, Mapping):
            after[name] = points["points"]
        else:
            after[name] = [*after.get(name, []), *points]
    return after


def _rows(key: str, before: list[Any], after: list[Any]) -> list[Any]:
    """Return the rows that changed, and as the last {"gone": keys} where some are gone."""
    old = {row[key]: row for row in before}
    made = [row for row in after if old.get(row[key]) != row]
    gone = sorted(old.keys() - {row[key] for row in after})
    return [*made, {"gone": gone}] if gone else made


def _with_rows(key: str, before: list[Any], made: list[Any]) -> list[Any]:
    rows = {row[key]: row for row in before}
    for row in made:
        if "gone" in row:
            for each in row["gone"]:
                rows.pop(each, None)
        else:
            rows[row[key]] = row
    return list(rows.values())
