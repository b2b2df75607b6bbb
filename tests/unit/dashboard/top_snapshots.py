"""Snapshots for the tests of `edl top`: played, real, empty, failed and hostile ones."""

from functools import cache

from ui.story import Story

from edl.dashboard.model import Model

HOSTILE = "[red]\x1b[2J\x1b]0;title\x07\x9b31m\u202e\u200d\udc80[/red]\n\r\t[bold"
NOW = 1760000000.0


@cache
def played(workers=4, seconds=33.0, name="deepfm"):
    story = Story(name, workers=workers, kills=((12, "worker-1"), (30, "server-0")))
    return {**story.advance(seconds).snapshot(), "actions": ["scale", "stop"]}


def heard(status, *, at=NOW, actions=("scale", "stop")):
    model = Model()
    model.hear(status, at)
    return model.snapshot(NOW, actions)


def empty():
    """Return what is known of a job whose master has said nothing but its name."""
    return heard({"job_name": "deepfm", "state": "starting"}, at=None)


def failed():
    lost = {"source": HOSTILE, "records": [3], "error": "ValueError: x", "task": 1}
    return heard(
        {
            "job_name": "deepfm",
            "state": "failed",
            "message": "worker 0 failed 3 times: ZeroDivisionError",
            "exit_code": 1,
            "workers": [],
            "quarantined": [lost],
        },
        at=None,
    )


def hostile():
    """Return a job of which each text is written by somebody who means no good."""
    row = {"index": 0, "state": HOSTILE, "incarnation": HOSTILE, "task": HOSTILE, "pid": HOSTILE}
    row |= {"heartbeat_age_s": 0.1, "records_per_s": float("nan")}
    status = {
        "job_name": HOSTILE,
        "state": HOSTILE,
        "message": HOSTILE,
        "command": HOSTILE,
        "loss": float("nan"),
        "workers": [row, row],
        "servers": [{"index": 0, "state": HOSTILE, "rows": 1, "nbytes": 10**20}],
        "teachers": [row],
        "teaching": {"wait_share": 0.1},
        "evaluations": [{"version": 1, "metrics": {HOSTILE: 1.0}}],
        "quarantined": [{"source": HOSTILE, "records": [1], "error": HOSTILE, "task": 1}],
        "events": [{"id": 1, "t": 0.5, "text": HOSTILE, "kind": HOSTILE}],
    }
    snapshot = heard(status)
    aside = {"why": HOSTILE, HOSTILE: HOSTILE}
    return {**snapshot, "schedule": aside, "cost": aside}


def launched():
    node = {"index": 0, "place": 1, "state": "waiting", "rank": None, "nproc": 2, "host": "a"}
    node |= {"pid": 7, "heartbeat_age_s": 0.2, "held_back": "fewer than 2 nodes"}
    return heard(
        {
            "job_name": "script",
            "state": "running",
            "command": "launch",
            "script": "train.py",
            "min_nodes": 1,
            "max_nodes": 2,
            "nodes": [node],
            "message": "waits for a second node",
        }
    )


def all_kinds():
    return [played(), played(200), played(seconds=400.0), empty(), failed(), hostile(), launched()]
