"""The status of an EdlJob, out of what there is of it and what its master says. Pure."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common import finite, launched, report
from ..common.errors import ReportError
from ..common.plain import inert_texts
from ..jobs.job import ENDED, INTERRUPTED
from . import names, objects, observe, queued
from .api import Object
from .conditions import Problem, conditions
from .job import bounded, held_by, teachers, workers

PHASES = ("Pending", "Running", "Suspended", "Stopping", "Succeeded", "Failed")
NO_WORKER = "NoWorker"  # a reason
DEADLINE = "DeadlineExceeded"  # another one
PREPARED_S = 20.0  # a node that has not prepared a pod for so long is told of
_REPORT_S = 10.0  # of a scheduler's round; a report is not written anew sooner
_REPLICAS = ("worker", "server", "teacher")  # by the master's word
_IDLE = (
    "",
    "starting",
    "draining",
    "waiting",
    "stopping",
)  # states of a process that does not work yet, or no more


@dataclass(frozen=True)
class Situation:
    """The facts that a status is made of."""

    job: Object
    pods: Sequence[Object]
    told: Mapping[str, Any] | None  # the master's status
    masters: int  # made so far
    begun: bool = False  # its ConfigMap is there
    problem: Problem | None = None
    note: str = ""  # of the controller
    late: str = ""  # why it was told to stop at its deadline
    lapsed: bool = False  # it was ended there, whatever its master says


def exit_code(
    told: Mapping[str, Any] | None, masters: Iterable[Object], before: Object
) -> int | None:
    """Return the job's exit code; None while it is not decided. `before`: the EdlJob's status.

    The master's word is the status that it has left. Where that is lost (the API server was away),
    a pod that ended by itself with 0 or 3 says as much: nothing else in a master ends so. What
    stands in the EdlJob's status is decided, whether the pod that said it is still there or not.
    """
    if told and told.get("state") in ENDED and told.get("exit_code") is not None:
        return int(told["exit_code"])
    if before.get("phase") in names.OVER and "exitCode" in before:
        return int(before["exitCode"])
    for pod in masters:
        state = observe.observe(pod)
        sure = observe.deletion(pod) is None
        if sure and isinstance(state, observe.Ended) and state.code in (0, 3):
            return state.code
    return None


def told_by(found: Object | None) -> dict[str, Any] | None:
    """Return what the ConfigMap of the status says."""
    if found is None:
        return None
    try:
        return dict(finite.loads(found["data"][objects.STATUS]))
    except (KeyError, TypeError, ValueError):  # somebody else wrote it: the master will again
        return None


def of_role(found: Iterable[Object], *roles: str) -> list[Object]:
    """Return the pods of these roles, those made later after those made earlier."""
    mine = [
        pod for pod in found if pod["metadata"].get("labels", {}).get(names.ROLE_LABEL) in roles
    ]
    return sorted(mine, key=lambda pod: (number(pod), pod["metadata"]["name"]))


def number(pod: Object) -> int:
    """Return the index of a replica, or the number of a master."""
    said = str(pod["metadata"].get("labels", {}).get(names.INDEX_LABEL, ""))
    return int(said) if said.isdecimal() else 0


def lives(pod: Object) -> bool:
    """Tell whether the process of a pod has not ended; others of its containers may run on."""
    return not isinstance(observe.observe(pod), observe.Ended)


def status(here: Situation, now: str) -> Object:
    """Make the EdlJob's status. `now`: RFC 3339. What did not change keeps its times."""
    job, told = here.job, here.told or {}
    before: Object = job.get("status") or {}
    spec = job["spec"]
    masters, servers, workers_there = (
        of_role(here.pods, role) for role in ("master", "ps", "worker")
    )
    code = exit_code(here.told, masters, before)
    phase = _phase(here, code)
    ended = phase in names.OVER
    alive = [pod for pod in workers_there if lives(pod)]
    alive_servers = [pod for pod in servers if lives(pod)]
    of_script = spec.get("command") == launched.COMMAND
    wanted_servers = 0 if of_script else (spec.get("ps") or {}).get("replicas", 1)
    why = _why(here, phase, now)
    found: Object = {
        "phase": phase,
        "observedGeneration": job["metadata"].get("generation", 1),
        "conditions": conditions(job, phase, why, _failure(here, code), here.problem, now),
        "selector": names.selector(job["metadata"]["name"], "worker"),
        "masters": here.masters,
        "workers": len(alive),
        "workersReady": f"{_ready(told, 'workers', alive)}/{workers(spec)}",
        "ps": len(alive_servers),
        "psReady": f"{_ready(told, 'servers', alive_servers)}/{wanted_servers}",
        "restarts": sum((told.get("restarts") or {}).get(role, 0) for role in _REPLICAS),
    }
    found |= _teachers(here)
    if why[1]:
        found["message"] = why[1]
    if total := told.get("records_total"):
        # not 100 before it is over
        percent = 100 if code == 0 else min(99, int(100 * told.get("records_done", 0) / total))
        found["progress"], found["progressPercentage"] = f"{percent} %", percent
    if here.told:
        found["epoch"] = int(told.get("epoch") or 0)
    found |= _report(here, ended, now)
    if told.get("checkpoint"):
        found["checkpoint"] = str(told["checkpoint"])
    if phase == "Running" or before.get("startTime"):
        found["startTime"] = before.get("startTime") or now
    if ended and here.begun:
        found["completionTime"] = before.get("completionTime") or now
    if code is not None:
        found["exitCode"] = code
    shown: Object = inert_texts(found)  # kubectl prints a message as it is
    return shown


def _teachers(here: Situation) -> Object:
    """Return what is told of teachers, if the job has some: the need may say how many."""
    told, there = here.told or {}, of_role(here.pods, "teacher")
    fewest, most = teachers(here.job["spec"])
    if not (fewest or most or there):
        return {}
    alive = [pod for pod in there if lives(pod)]
    wanted = max(fewest, len(told.get("teachers") or ())) if most else fewest
    ready = _ready(told, "teachers", alive)
    return {"teachers": len(alive), "teachersReady": f"{ready}/{wanted}"}


def difference(before: Object, after: Object) -> Object:
    """Return the merge patch that makes a status of another one; {} where they are the same."""
    changed = {
        name: difference(before[name], value)
        if isinstance(value, dict) and isinstance(before.get(name), dict)
        else value
        for name, value in after.items()
        if before.get(name) != value
    }
    return changed | dict.fromkeys(before.keys() - after.keys())


def _report(here: Situation, ended: bool, now: str) -> Object:
    """Return the report to schedulers, and when it was made.

    It goes on changing as long as a job trains, and each change is a write to the API server: so
    one that says nothing new but figures is kept for a while. One that cannot be read leaves the
    one before, and says why.
    """
    before: Object = here.job.get("status") or {}
    kept: Object = {name: before[name] for name in ("report", "reportTime") if name in before}
    told = (here.told or {}).get("report")
    if told is None:
        return kept
    spec = here.job["spec"]
    worker: Object = spec.get("worker") or {}
    bounds = report.Bounds(worker.get("minReplicas"), worker.get("maxReplicas"))
    try:
        told = report.read(told)
        if spec.get("command") == launched.COMMAND:  # whose replicas are nodes
            nproc = int((here.told or {}).get("nproc_per_node") or 1)
            told = dataclasses.replace(told, nodes=bounds)
            bounds = report.Bounds(*(n and n * nproc for n in (bounds.minimum, bounds.maximum)))
        told = dataclasses.replace(
            told,
            workers=bounds,
            priority=worker.get("priorityClassName") or told.priority,
            suspended=bool(spec.get("suspend")),
        )
    except ReportError as error:
        return {**kept, "reportProblem": str(error)}
    made = report.compact(report.write(told))
    known = kept.get("report")
    if known is not None and not ended and age_s(kept.get("reportTime", ""), now) < _REPORT_S:
        flags = ("nearly_done", "suspended", "workers", "nodes", "priority")
        if all(known.get(name) == made.get(name) for name in flags):
            return kept
    return kept if known == made else {"report": made, "reportTime": now}


def age_s(then: str, now: str) -> float:
    """Return the seconds between two times in RFC 3339; infinite where one is none."""
    try:
        passed = datetime.datetime.fromisoformat(now) - datetime.datetime.fromisoformat(then)
    except (ValueError, TypeError):  # somebody else has written it
        return math.inf
    return passed.total_seconds()


def _phase(here: Situation, code: int | None) -> str:
    if code is not None:
        return "Succeeded" if code == 0 else "Failed"
    if here.lapsed:
        return "Stopping" if any(map(observe.takes_room, here.pods)) else "Failed"
    if here.problem and here.problem.fatal and not here.begun:
        return "Failed"
    if here.job["spec"].get("suspend"):
        return "Stopping" if any(map(observe.takes_room, here.pods)) else "Suspended"
    state = (here.told or {}).get("state", "")
    runs = [pod for pod in here.pods if isinstance(observe.observe(pod), observe.Running)]
    if state == "stopping" and of_role(runs, "master", "worker"):
        return "Stopping"
    if state == "running" and _ready(here.told or {}, "workers", of_role(runs, "worker")):
        return "Running"
    return "Pending"


def _ready(told: Mapping[str, Any], role: str, alive: Sequence[Object]) -> int:
    """Count the processes that work, by the master's word, in pods that run, by the cluster's."""
    running = {
        pod["metadata"]["labels"].get(names.INDEX_LABEL)
        for pod in alive
        if isinstance(observe.observe(pod), observe.Running)
    }
    of_script = role == "workers" and told.get("command") == launched.COMMAND
    role, index = ("nodes", "place") if of_script else (role, "index")
    rows = [
        row
        for row in told.get(role) or []
        if row.get("heartbeat_age_s") is not None
        and row.get("state", "") not in _IDLE
        and str(row.get(index)) in running
    ]
    return len(rows)


def _why(here: Situation, phase: str, now: str) -> tuple[str, str]:
    """Return what a person should know now: in a word for programs, and in a sentence."""
    told = here.told or {}
    said = str(told.get("message") or "")
    if here.lapsed:
        return DEADLINE, here.late
    if here.problem:
        return here.problem.reason, here.problem.message
    if phase in (*names.OVER, "Stopping") and said:
        return phase, said
    held = queued.said(here.job)
    if held[1] and here.job["spec"].get("suspend"):
        return held
    if phase == "Suspended":
        return phase, _suspended(here.job)
    if here.note:
        return "MasterEnded", here.note
    for role, word in zip(names.ROLES, _WORDS, strict=True):
        for pod in of_role(here.pods, role):
            state = observe.observe(pod)
            goes = observe.deletion(pod) is not None  # another one is made: what it lacks is old
            if isinstance(state, observe.Waiting) and state.why and not goes:
                return state.word, f"{word} {state.why}"
            if (
                (found := observe.unprepared(pod))
                and _unprepared_s(found[1], now) <= 0
                and not goes
            ):
                return "Waiting", (
                    f"{word}'s pod waits on node {found[0]} for its volumes, ConfigMaps, Secrets "
                    f"or network: see kubectl describe pod {pod['metadata']['name']}"
                )
            if role == "master" and observe.is_checking(pod):
                return "Checking", "the definition is checked and the records are counted"
    most = bounded(here.job["spec"])
    if phase in ("Pending", "Running") and not said and held[1]:
        return phase, held[1]
    if phase in ("Pending", "Running") and not said and most:
        return phase, most
    if said:
        return "QuotaExceeded" if "quota" in said else "Waiting", said
    if phase == "Pending" and told.get("state") == "running":
        return NO_WORKER, "no worker is ready"
    return phase, ""


def unprepared_s(pods: Iterable[Object], now: str) -> float | None:
    """Return in how many seconds the next of these pods is told of for what its node lacks."""
    found = [_unprepared_s(said[1], now) for said in map(observe.unprepared, pods) if said]
    return min((left_s for left_s in found if left_s > 0), default=None)


def _unprepared_s(since: str, now: str) -> float:
    return PREPARED_S - age_s(since, now)


def _suspended(job: Object) -> str:
    about = job["metadata"]
    if not (who := held_by(job)):
        return "no pod runs; it goes on when spec.suspend is false"
    return (
        f"no pod runs: suspended by {who} and not by the scheduler, which leaves it "
        f"alone until `edl resume {about['name']}{names.option(about)}`; a manifest that is "
        "applied again must not say spec.suspend"
    )


_WORDS = ("the master", "a server", "a worker", "a teacher")  # for names.ROLES


def _failure(here: Situation, code: int | None) -> tuple[str, str]:
    """Return why a job has failed, in a word and in a sentence; else what its master says."""
    problem = here.problem
    reason = (problem.reason if problem else "") if code is None else f"ExitCode{code}"
    if code == INTERRUPTED:
        reason = "Stopped"
    said = str((here.told or {}).get("message") or "")
    words = problem.message if problem and code is None else said
    words = here.late if here.lapsed and code != 0 else words
    return DEADLINE if here.late else reason, words
