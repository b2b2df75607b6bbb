"""The lives of a job's processes: who came, where, and how each went, by what the events say. Pure.

An event of the kind start or death names a process (master/told.py). A process that no event has
named any more (the status keeps the last fifty) is known by its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..jobs.job import ENDED, Status

Life = dict[str, Any]
Place = tuple[str, int]

_ROLES = {"workers": "worker", "servers": "server", "teachers": "teacher"}
_MOST = 1000  # that have ended; older ones are forgotten


class Lives:
    """The lives so far, by id, in the order of their beginnings."""

    def __init__(self) -> None:
        self._all: dict[str, Life] = {}
        self._at: dict[Place, str] = {}  # who lives there now

    @property
    def rows(self) -> list[Life]:
        """Return the lives, none of which changes afterwards."""
        return list(self._all.values())

    def event(self, event: Mapping[str, Any]) -> None:
        """Hear an event that may tell of a start or an end."""
        kind = event.get("kind")
        if kind not in ("start", "death") or not {"role", "index", "incarnation"} <= event.keys():
            return
        place = str(event["role"]), int(event["index"])
        t = float(event["t"])
        if kind == "start":
            before = str(event.get("before", ""))  # of a master: how the one before ended
            if before:
                self._end(place, t, "killed", before)
            self._begin(place, str(event["incarnation"]), t, str(event.get("machine", "")))
        else:
            self._end(place, t, str(event.get("end", "failed")), str(event.get("why", "")))

    def status(self, status: Status, t: float, gone: bool) -> None:
        """Hear who is there now, so long after the start.

        `gone`: the master is, and so all are where the job has ended or is dead.
        """
        for name, role in _ROLES.items():
            for row in status.get(name) or []:
                if row.get("heartbeat_age_s") is not None and row.get("incarnation"):
                    self._begin((role, int(row["index"])), str(row["incarnation"]), t, "")
        if gone and status.get("state") in (*ENDED, "dead"):
            end = "failed" if status["state"] == "dead" else "finished"
            for place in list(self._at):
                self._end(place, t, end, "")

    def _begin(self, place: Place, incarnation: str, t: float, machine: str) -> None:
        role, index = place
        number = f"{role}-{index}-{incarnation}"
        if (known := self._all.get(number)) is not None:
            if machine and not known["machine"]:
                self._all[number] = {**known, "machine": machine}
            return
        self._end(place, t, "failed", "another has taken its place")
        self._at[place] = number
        self._all[number] = {
            "id": number,
            "role": role,
            "index": index,
            "name": f"{role}-{index}" if role != "master" else "master",
            "began": t,
            "ended": None,
            "end": None,
            "machine": machine,
            "why": "",
        }
        self._forget()

    def _end(self, place: Place, t: float, end: str, why: str) -> None:
        number = self._at.pop(place, None)
        if number is not None:
            self._all[number] = {**self._all[number], "ended": t, "end": end, "why": why}

    def _forget(self) -> None:
        over = len(self._all) - len(self._at) - _MOST
        if over > 0:
            ended = [n for n, life in self._all.items() if life["ended"] is not None]
            for number in ended[:over]:
                del self._all[number]
