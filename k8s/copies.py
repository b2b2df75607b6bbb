"""Copies of the objects of all EdlJobs, as list and watch told them last.

They may be old: they say that there is something to be done, not what.
"""

from __future__ import annotations

import threading

from . import names
from .api import Object
from .plans import Seen
from .reflector import Change

Key = tuple[str, str]  # namespace, name


class Copies:
    """The objects of each job, as the watches told them last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[Key, Object] = {}
        self._rest: dict[Key, dict[str, tuple[str, Object]]] = {}  # by uid: kind, object

    def take(self, kind: str, change: Change) -> Key | None:
        """Take in what a watch has told of one object; return the job that it is of, if any."""
        found = change.after
        about = found["metadata"]
        space, uid = about.get("namespace", ""), about["uid"]
        if kind == names.KIND:
            key = (space, about["name"])
            with self._lock:
                if not change.gone:
                    self._jobs[key] = found
                elif key in self._jobs and self._jobs[key]["metadata"]["uid"] == uid:
                    del self._jobs[key]
            return key
        job = about.get("labels", {}).get(names.JOB_LABEL)
        if not job:
            return None
        key = (space, job)
        with self._lock:
            mine = self._rest.setdefault(key, {})
            if change.gone:
                mine.pop(uid, None)
                if not mine:
                    del self._rest[key]
            else:
                mine[uid] = (kind, found)
        return key

    def seen(self, key: Key) -> Seen | None:
        """Return what there is of a job, None where there is no such EdlJob."""
        with self._lock:
            job = self._jobs.get(key)
            rest = list(self._rest.get(key, {}).values())
        if job is None:
            return None
        maps = {each["metadata"]["name"]: each for kind, each in rest if kind == "ConfigMap"}
        return Seen(
            job=job,
            pods=[each for kind, each in rest if kind == "Pod"],
            config=maps.get(names.object_name(key[1])),
            status=maps.get(names.object_name(key[1], "status")),
        )

    def count(self, phase: str) -> int:
        """Count the EdlJobs in this phase."""
        with self._lock:
            jobs = list(self._jobs.values())
        return sum((job.get("status") or {}).get("phase", "Pending") == phase for job in jobs)
