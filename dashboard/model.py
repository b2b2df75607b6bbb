"""The model of one job for the page: statuses and history go in, snapshots come out. Pure.

A snapshot is JSON values (docs/dashboard.md has its fields). Two snapshots share what has not
changed between them, and nothing of one is written to afterwards; changes.py tells the difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..jobs import figures
from ..jobs.history import Line, curves, evaluated
from ..jobs.job import ENDED, Status
from .health import health
from .lives import Lives
from .series import Curves

SCHEMA = "edl-dashboard-1"
MOST_EVENTS = 500
_RATE_S = 1.0  # the least time over which a rate of calls is measured
_OVER = (*ENDED, "dead")
_USES = {
    "useful_s": "useful",
    "recompute_s": "recomputed",
    "start_s": "starting",
    "idle_s": "idle",
}

Snapshot = dict[str, Any]


class Model:
    """The knowledge of one job. Ids of events rise; one that is not higher is known already."""

    def __init__(self) -> None:
        self._status: Status = {}
        self._schedule: dict[str, Any] | None = None
        self._cost: dict[str, Any] | None = None
        self._heard: float | None = None  # when, by the wall clock
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._event_id = 0
        self._lives = Lives()
        self._curves = Curves()
        self._shards: dict[int, _Shard] = {}
        self._t = 0.0  # of the last that the history tells, since the job's start

    def history(self, lines: Iterable[Line]) -> None:
        """Hear what the job's folder tells, in its order."""
        for line in lines:
            self._t = max(self._t, float(line["t"]))
            if "text" in line:
                self._event(line)
            elif isinstance(line["scalars"], dict):
                t, version = float(line["t"]), int(line.get("version") or 0)
                own = curves(line["scalars"])
                metrics = [(k, v) for k, v in line["scalars"].items() if k not in own]
                self._curves.add(version, t, own.items())
                self._curves.add_once(version, t, metrics)

    def hear(
        self,
        status: Status,
        at: float | None,
        schedule: dict[str, Any] | None = None,
        cost: dict[str, Any] | None = None,
    ) -> None:
        """Hear a status; `at`: when the master said it, None: it did not, it is gone.

        `schedule` and `cost`: what others say of the job (asides.py).
        """
        self._status, self._schedule, self._cost = status, schedule, cost
        self._heard = at if at is not None else self._heard
        t = float(status.get("started_s_ago") or 0.0)
        for event in status.get("events") or []:
            self._event(event)
        ended = max(t, self._t) if status.get("state") == "dead" else t
        self._lives.status(status, ended, gone=at is None)
        version = int(status.get("version") or 0)
        if status.get("state") not in _OVER:
            self._curves.add(version, t, curves(status).items())
        for measured, metrics in evaluated(status):
            self._curves.add_once(measured, t, metrics.items())
        for row in status.get("servers") or []:
            self._shards.setdefault(row["index"], _Shard()).hear(row, t)

    def _event(self, event: Mapping[str, Any]) -> None:
        number = event.get("id")
        if not isinstance(number, int):  # of a launched job, whose coordinator numbers none
            if any(event["t"] < e["t"] or _same(event, e) for e in self._events):
                return
            number = self._event_id + 1
        if number <= self._event_id:
            return
        self._event_id = number
        kind = str(event.get("kind") or "other")
        if event.get("end") == "finished":  # it was to leave: nobody mourns it
            kind = "other"
        told = {"id": number, "t": event["t"], "text": str(event["text"]), "kind": kind}
        whose = {name: event[name] for name in ("role", "index") if name in event}
        self._events.append({**told, **whose})
        self._lives.event(event)

    @property
    def status(self) -> Status:
        """Return the status as it was heard last."""
        return self._status

    @property
    def is_over(self) -> bool:
        """Tell whether the job has ended, or its master has."""
        return self._status.get("state") in _OVER

    def snapshot(self, at: float, actions: Sequence[str] = ()) -> Snapshot:
        """Return what the page is shown at this time."""
        status = self._status
        heard_s = None if self._heard is None else round(max(0.0, at - self._heard), 1)
        meter = meter_of(status)
        return {
            "schema": SCHEMA,
            "at": round(at, 3),
            "heard_s": heard_s,
            "live": bool(status) and not self.is_over and status.get("state") != "silent",
            "health": health(status, None if self.is_over else heard_s, meter),
            "status": status,
            "meter": meter,
            "tasks": {**(status.get("task_runs") or {"epoch": 0, "runs": []}), "by": []},
            "incarnations": self._lives.rows,
            "scalars": {name: list(each.points) for name, each in self._curves.all.items()},
            "thinned": {name: each.thinned for name, each in self._curves.all.items()},
            "goodput": goodput(status),
            "shards": [self._shards[row["index"]].told(row) for row in status.get("servers") or []],
            "events": list(self._events),
            "teaching": _teaching(status),
            "schedule": self._schedule or _queued(status),
            "cost": self._cost,
            "actions": [] if self.is_over else list(actions),
        }


def meter_of(status: Status) -> dict[str, Any] | None:
    """Return the records of the plan by what became of them; None: the job has no such books.

    A record is in exactly one of four states. What is missing of the total is lost, and what is
    more than it counts twice: both are 0 as long as the books are exact.
    """
    told = status.get("records")
    if not told:
        return None
    known = sum(told[name] for name in ("applied", "leased", "todo", "quarantined"))
    total = told["total"]
    if total is None:  # an endless plan: there is nothing to compare with
        return {**told, "lost": None, "twice": None}
    return {**told, "lost": max(0, total - known), "twice": max(0, known - total)}


def goodput(status: Status) -> dict[str, float]:
    """Return the seconds that the job's machines were used for, in sum; unknown ones are absent."""
    spent = figures.machine_seconds(status)
    sums = {name: spent.get(told, 0.0) for told, name in _USES.items()}
    for cause in ("data", "servers", "teachers"):
        if (waited := spent.get(f"waited_{cause}_s")) is not None:
            sums[f"waiting_{cause}"] = min(waited, sums["useful"])
            sums["useful"] -= sums[f"waiting_{cause}"]
    return {name: round(value, 1) for name, value in sums.items()} if spent else {}


class _Shard:
    """The calls of one server, by what its heartbeats count."""

    def __init__(self) -> None:
        self._incarnation = ""
        self._before: tuple[float, float, float] | None = None  # time, pulls, pushes
        self._rates: dict[str, float] = {}
        self._sizes: dict[str, int] = {}

    def hear(self, row: Mapping[str, Any], t: float) -> None:
        if row.get("incarnation") != self._incarnation:
            self._incarnation, self._before = str(row.get("incarnation")), None
            self._rates = {}
        self._sizes |= {name: int(row[name]) for name in ("rows", "nbytes") if name in row}
        if "pulls" not in row:
            self._rates = {}
            return
        now = t, float(row["pulls"]), float(row["pushes"])
        if self._before is None:
            self._before = now
        elif (seconds := t - self._before[0]) >= _RATE_S:
            pulls, pushes = (new - old for new, old in zip(now[1:], self._before[1:], strict=True))
            self._rates = {
                "pulls_per_s": round(max(0.0, pulls / seconds), 1),
                "pushes_per_s": round(max(0.0, pushes / seconds), 1),
            }
            self._before = now

    def told(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the page is told of the server; of one that is gone its last sizes."""
        state = {"state": row.get("state"), "version": row.get("version")}
        return {"name": f"server-{row['index']}", **self._sizes, **self._rates, **state}


def _teaching(status: Status) -> dict[str, Any] | None:
    told, teachers = status.get("teaching") or {}, status.get("teachers") or []
    if not teachers and not any(value for name, value in told.items()):
        return None
    return {**told, "teachers": teachers}


def _queued(status: Status) -> dict[str, Any] | None:
    """Return why a job that was queued does not run; None: nobody schedules it now."""
    if status.get("state") != "queued":
        return None
    return {"state": "queued", "why": str(status.get("message") or "")}


def _same(event: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    return bool(event["t"] == known["t"] and event["text"] == known["text"])
