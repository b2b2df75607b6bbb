"""The status of a launched job, as `edl status` and the controller of EdlJobs read it. Pure."""

from __future__ import annotations

from typing import Any

from ..common import report as reports
from ..common.process import ended_with
from ..durable.schema import Json
from .history import History
from .nodes import Node, Place
from .rounds import DONE, FAILED, STOPPED, Rendezvous
from .settings import LaunchSettings

INTERRUPTED = 130
TOLD_TO_GO = (INTERRUPTED, 128 - INTERRUPTED)  # how an agent ends that was; so in a pod
CODES = {DONE: 0, FAILED: 1, STOPPED: INTERRUPTED}


def render(
    settings: LaunchSettings,
    machine: Rendezvous,
    history: History,
    events: list[Json],
    gone: bool,
    now: float,
) -> dict[str, Any]:
    """Return the status. `gone`: the job is over, and so are its nodes."""
    ended, message = machine.outcome
    state = "running" if machine.running else "waiting" if machine.round else "starting"
    if ended:
        state = {DONE: "done", STOPPED: "stopped"}.get(ended, "failed") if gone else "stopping"
    found, report = machine.round, machine.state.report
    return {
        "job_name": settings.job_name,
        "command": "launch",
        "script": settings.script,
        "state": state,
        "exit_code": CODES[ended] if ended and gone else None,
        "message": message or _waits(machine.state.places),
        "resume": None,
        "started_s_ago": now - machine.state.began_at,
        "min_nodes": machine.policy.min_nodes,
        "max_nodes": machine.policy.max_nodes,
        "nproc_per_node": settings.nproc_per_node,
        "round": found.number if found else 0,
        "round_s": now - found.formed_at if found and machine.running else None,
        "world_size": found.world_size if found and machine.running else 0,
        "num_restarts": found.restarts if found else 0,
        "failures": machine.state.restarts_used,
        "restarts": {"worker": machine.state.restarts_used},
        "throughput": report.throughput if report and not ended else None,
        "remaining_s": None if ended else machine.left_s(now),
        "checkpoint_dir": settings.checkpoint_dir,
        "nodes": [_node(machine, node, now) for node in machine.nodes],
        "report": _report(machine, history, now),
        "events": events,
    }


def end_of(code: int) -> str:
    """Return an agent's exit code in words."""
    if code in TOLD_TO_GO:
        return "was told to go"
    return f"was killed by signal {-code}" if code < 0 else ended_with(code)


def _waits(places: list[Place]) -> str:
    """Return why the agents that are to run do not; "" where they do."""
    return next((f"node {place.index} {place.waits}" for place in places if place.waits), "")


def _report(machine: Rendezvous, history: History, now: float) -> Json:
    """Return the report to schedulers."""
    left_s = machine.left_s(now)
    ends = bool(machine.state.succeeded or machine.outcome[0])
    nearly_done = ends or (left_s is not None and left_s < machine.policy.nearly_done_s)
    return reports.write(history.report(machine.policy, nearly_done, left_s))


def _node(machine: Rendezvous, node: Node, now: float) -> dict[str, Any]:
    runs = machine.runs_in(node.name) is not None
    state = "running" if runs else "waiting" if node.joined else "starting"
    if runs and machine.state.has_succeeded(node.name):
        state = "finished"
    elif not runs and not node.joined and machine.round is not None:
        state = "stopping" if machine.round.rank(node.name) is not None else state
    rank = machine.round.rank(node.name) if runs and machine.round else None
    places = machine.state.places
    return {
        "index": node.arrival,
        "place": next((each.index for each in places if each.incarnation == node.name), None),
        "state": state,
        "rank": rank,
        "nproc": node.nproc,
        "host": node.host,
        "pid": node.pid,
        "heartbeat_age_s": now - node.last_heard,
        "held_back": machine.held_back(now) if state == "waiting" else "",
    }
