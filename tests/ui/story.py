"""A job that is played: what a dashboard's server would tell of it, moment by moment.

Deterministic: workers lease tasks in order, compute, and are killed at the moments that are given.
`Story.advance` goes on, `Story.snapshot` is the contract's snapshot, `change` the difference.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

STEP_S = 0.25
BACK_S = {"worker": 4.0, "server": 2.5}  # until another incarnation is there
LISTED = ("incarnations", "shards")
BY_FIELD = ("status", "meter", "goodput")


@dataclass
class Process:
    """A replica: its incarnations, and what it does now."""

    role: str
    index: int
    began: float | None = None  # of the incarnation that is alive
    back_at: float | None = 0.0
    lives: list[dict[str, Any]] = field(default_factory=list)
    task: int | None = None

    @property
    def name(self) -> str:
        return "master" if self.role == "master" else f"{self.role}-{self.index}"


class Story:
    """A job with `kills` [(seconds, "worker-1"), ...], told as the dashboard's contract has it."""

    def __init__(
        self,
        name: str = "deepfm-clicks",
        *,
        workers: int = 4,
        servers: int = 2,
        tasks: int = 480,
        kills: tuple[tuple[float, str], ...] = (),
        seed: int = 7,
        rate: float = 2400.0,
    ) -> None:
        self.name = name
        self.t = 0.0
        self._task_records = 2048
        self._kills = sorted(kills)
        self._draw = random.Random(seed)
        self._rate = rate
        self.processes = [
            Process("master", 0),
            *(Process("server", index) for index in range(servers)),
            *(Process("worker", index, back_at=0.8) for index in range(workers)),
        ]
        self.states = ["todo"] * tasks
        self._todo = list(range(tasks))  # heap
        self._open = tasks  # tasks that are not done
        self._left = [float(self._task_records)] * tasks
        self._spent = 0.0  # of the records, by what is left
        self._again: set[int] = set()
        self.recomputed = 0.0
        self.events: list[dict[str, Any]] = []
        self.scalars: dict[str, list[list[float]]] = {"loss": []}
        self.goodput = dict.fromkeys(("useful", "recomputed", "waiting_data"), 0.0)
        self.goodput |= dict.fromkeys(("waiting_servers", "starting", "idle"), 0.0)
        self.extra: dict[str, Any] = {}  # laid over the snapshot
        self.tell("starting", "start")

    def tell(self, text: str, kind: str = "other") -> None:
        number = self.events[-1]["id"] + 1 if self.events else 1
        self.events.append({"id": number, "t": round(self.t, 2), "text": text, "kind": kind})

    def advance(self, seconds: float) -> Story:
        for _ in range(round(seconds / STEP_S)):
            if self.has_ended:
                break
            self.t += STEP_S
            while self._kills and self._kills[0][0] <= self.t:
                self.kill(self._kills.pop(0)[1])
            for process in self.processes:
                if process.back_at is not None and process.back_at <= self.t and not self.done:
                    self._begin(process)
            self._work()
            if self.done and any(each.began is not None for each in self.processes):
                self._end()
        return self

    @property
    def has_ended(self) -> bool:
        return self.t > 1 and all(each.began is None for each in self.processes)

    @property
    def done(self) -> bool:
        return not self._open

    def kill(self, name: str, end: str = "killed", why: str = "signal 9 (SIGKILL)") -> None:
        process = next(each for each in self.processes if each.name == name)
        if process.began is None:
            return
        process.lives[-1] |= {"ended": round(self.t, 2), "end": end, "why": why}
        process.began, process.back_at = None, self.t + BACK_S.get(process.role, 1.5)
        self.tell(f"{process.role} {process.index} was {end} by {why}; another is started", "death")
        if process.task is not None:
            lost = 512.0
            self.recomputed += lost
            self._again.add(process.task)
            self.states[process.task] = "todo"
            heapq.heappush(self._todo, process.task)
            left = min(self._task_records, self._left[process.task] + lost)
            self._lay(process.task, left)
            process.task = None

    def _lay(self, task: int, left: float) -> None:
        self._spent += self._left[task] - left
        self._left[task] = left

    def _begin(self, process: Process) -> None:
        process.began, process.back_at = self.t, None
        number = len(process.lives)
        life = {"id": f"{process.name}-{number}", "role": process.role, "index": process.index}
        life |= {"name": process.name, "began": round(self.t, 2), "ended": None, "end": None}
        process.lives.append(life | {"machine": f"node-{process.index % 3}", "why": ""})
        if process.role != "master":
            self.tell(f"{process.role} {process.index} registered (pid {4000 + number})", "start")

    def _work(self) -> None:
        away = any(each.began is None for each in self.processes if each.role == "server")
        for process in self.processes:
            if process.role != "worker":
                continue
            if process.began is None or self.t - process.began < 1.0:
                self.goodput["starting"] += STEP_S
            elif away:
                self.goodput["waiting_servers"] += STEP_S
            else:
                self._compute(process)
        version = self.version
        if version and not away:
            noise = self._draw.gauss(0, 0.012)
            loss = 0.44 + 0.25 * math.exp(-version / 900) + noise
            self.scalars["loss"].append([version, round(self.t, 2), round(loss, 5)])
            if int(self.t / 15) > len(self.scalars.get("auc", ())):
                auc = 0.79 - 0.2 * math.exp(-version / 700)
                self.scalars.setdefault("auc", []).append([version, self.t, round(auc, 5)])
                self.tell(f"evaluation of version {version}: auc={auc:.5f}")
                self.tell(f"checkpoint version-{version:012} is written", "checkpoint")

    def _compute(self, process: Process) -> None:
        if process.task is None and self._todo:
            process.task = heapq.heappop(self._todo)
            self.states[process.task] = "leased"
        if process.task is None:
            self.goodput["idle"] += STEP_S
            return
        again = process.task in self._again
        self.goodput["recomputed" if again else "useful"] += STEP_S * 0.94
        self.goodput["waiting_data"] += STEP_S * 0.06
        rate = self._rate * self._draw.uniform(0.8, 1.2)
        self._lay(process.task, max(0.0, self._left[process.task] - rate * STEP_S))
        if not self._left[process.task]:
            self._open -= 1
            self.states[process.task] = "recomputed" if again else "done"
            process.task = None

    def _end(self) -> None:
        self.tell("epoch 1 is done")
        self.tell("done")
        for process in self.processes:
            if process.began is not None:
                process.lives[-1] |= {"ended": round(self.t, 2), "end": "finished"}
            process.began = process.back_at = process.task = None

    @property
    def version(self) -> int:
        return int(self._applied / 256)

    @property
    def _applied(self) -> float:
        return round(self._spent, 6)

    def snapshot(self) -> dict[str, Any]:
        """Return what the page is told first, as values of its own."""
        ended = self.has_ended
        runs = [(state, len(list(group))) for state, group in groupby(self._cells())]
        told = {
            "schema": "edl-dashboard-1",
            "at": 1760000000.0 + self.t,
            "heard_s": 0.2,
            "live": not ended,
            "health": self._health(ended),
            "status": self._status(ended),
            "meter": self._meter(),
            "tasks": {
                "epoch": 0,
                "runs": [[state, count] for (state, _), count in runs],
                "by": [holder for (_, holder), _ in runs],
            },
            "incarnations": [life for process in self.processes for life in process.lives],
            "scalars": {name: points[-600:] for name, points in self.scalars.items() if points},
            "goodput": {name: round(value, 2) for name, value in self.goodput.items()},
            "shards": [self._shard(each) for each in self.processes if each.role == "server"],
            "events": self.events,
            "teaching": None,
            "schedule": None,
            "cost": None,
            "actions": [],
        }
        copied: dict[str, Any] = json.loads(json.dumps({**told, **self.extra}))
        return copied

    def _cells(self) -> list[tuple[str, str | None]]:
        holders = {each.task: each.name for each in self.processes if each.task is not None}
        return [(state, holders.get(index)) for index, state in enumerate(self.states)]

    def _health(self, ended: bool) -> dict[str, str]:
        if ended:
            return {"level": "ended", "text": "Done: every record was applied exactly once."}
        away = [each.name for each in self.processes if each.lives and each.began is None]
        if away:
            return {"level": "warn", "text": f"Trains on while {away[0]} is started again."}
        if not self.version:
            return {"level": "warn", "text": "Starting: the workers have not registered yet."}
        return {"level": "good", "text": "Trains: all replicas are there."}

    def _meter(self) -> dict[str, Any]:
        total = len(self.states) * self._task_records
        leased = sum(self._left[each.task] for each in self.processes if each.task is not None)
        applied = int(self._applied)
        return {
            "applied": applied,
            "leased": int(leased),
            "recomputed": int(self.recomputed),
            "quarantined": 0,
            "todo": total - applied - int(leased),
            "total": total,
            "lost": 0,
            "twice": 0,
        }

    def _status(self, ended: bool) -> dict[str, Any]:
        loss = self.scalars["loss"]
        counts = {name: self.states.count(name) for name in ("todo", "leased")}
        waiting = [each for each in self.processes if each.lives and each.began is None]
        rates = {each.name: self._rate_of(each) for each in self.processes}
        return {
            "job_name": self.name,
            "state": "done" if ended else "running" if self.version else "starting",
            "message": "done" if ended else self._waits(waiting),
            "command": "train",
            "started_s_ago": round(self.t, 2),
            "run_s": round(self.t, 2),
            "records_before": 0,
            "records_done": int(self._applied),
            "records_total": len(self.states) * self._task_records,
            "epoch": 0,
            "num_epochs": 1,
            "records_per_s": 0 if ended else round(sum(rates.values()), 1),
            "loss": None if ended or not loss else loss[-1][2],
            "version": self.version,
            "tasks": {
                **counts,
                "fencing": 0,
                "done": len(self.states) - sum(counts.values()),
                "total": len(self.states),
            },
            "workers": [self._row(each) for each in self.processes if each.role == "worker"],
            "servers": [self._row(each) for each in self.processes if each.role == "server"],
            "teachers": [],
        }

    @staticmethod
    def _waits(waiting: list[Process]) -> str:
        if not waiting:
            return ""
        return f"{waiting[0].role} {waiting[0].index} waits for a free slot on node-1"

    def _rate_of(self, process: Process) -> float:
        return round(self._rate + 100 * process.index, 1) if process.task is not None else 0.0

    def _row(self, process: Process) -> dict[str, Any]:
        here = process.began is not None
        return {
            "index": process.index,
            "incarnation": process.lives[-1]["id"] if process.lives else "",
            "pid": 4000 if here else None,
            "state": "ready" if here else "starting",
            "heartbeat_age_s": 0.3 if here else None,
            "task": process.task,
            "records_per_s": self._rate_of(process),
            "address": "",
        }

    def _shard(self, process: Process) -> dict[str, Any]:
        rows = 180000 + 9000 * process.index + int(self.version * 31)
        busy = self.version and process.began is not None
        return {
            "name": process.name,
            "rows": rows,
            "nbytes": rows * 136,
            "pulls_per_s": 81.5 - 9 * process.index if busy else 0,
            "pushes_per_s": 79.0 - 9 * process.index if busy else 0,
            "state": "ready" if process.began is not None else "starting",
        }


def change(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the contract's change that makes the one snapshot the other."""
    told: dict[str, Any] = {}
    for name, value in after.items():
        if value == before[name]:
            continue
        if name in BY_FIELD:
            told[name] = {key: v for key, v in value.items() if before[name].get(key) != v}
        elif name in LISTED:
            told[name] = [entry for entry in value if entry not in before[name]]
        elif name == "events":
            known = {event["id"] for event in before[name]}
            told[name] = [event for event in value if event["id"] not in known]
        elif name == "scalars":
            told[name] = {
                series: [point for point in points if point not in before[name].get(series, [])]
                for series, points in value.items()
                if points != before[name].get(series)
            }
        else:
            told[name] = value
    return told


KILLS = (
    (22.0, "worker-1"),
    (41.0, "server-1"),
    (58.0, "worker-3"),
    (60.5, "worker-0"),
    (83.0, "worker-2"),
)
