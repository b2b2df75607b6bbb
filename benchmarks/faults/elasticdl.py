"""ElasticDL: its Go servers and its task dispatcher, both out of its wheel; see elasticdl_job.py.

A server writes its checkpoint every 100 of its versions, a fifth of the work, and one that is
killed midway between two is started again from the newest complete one: kinder than its master is,
which starts it empty unless the user named a checkpoint, and starts no worker again that ended with
an error.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.faults.books import Row, balance, stall, worst
from benchmarks.faults.programs import Program, home

VERSION = "elasticdl 0.2.0rc3"
DEADLINE_S = 240.0
NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--map-root-user", "--kill-child")


def worker(peers: Path) -> Row:
    return _job(peers, "kill -9 of a worker, in a task", "worker")


def same_task(peers: Path) -> Row:
    return _job(peers, "kill -9 of whoever does one and the same task, 4 times", "same_task")


def server(peers: Path) -> Row:
    return _job(peers, "kill -9 of a server, started again from its checkpoint", "server")


def _job(peers: Path, fault: str, name: str) -> Row:
    folder = home(peers, "elasticdl")
    (wheel,) = (folder / "download").glob("*.whl")
    python = home(peers, "tensorflow") / "bin/python"
    command = [sys.executable, "-m", "benchmarks.faults.elasticdl_job", "run"]
    files = [folder / "elasticdl_ps", wheel, python]
    with Program([*NAMESPACES, "--", *command, *files, name]) as program:
        end = program.must_say("end", DEADLINE_S)
    until = None if end["over"] else time.monotonic()
    claimed = None if end["finished"] else end["trained"]
    outcome = "the job counts as finished" if end["finished"] else "the job does not end"
    return Row(
        "ElasticDL",
        fault,
        VERSION,
        f"{end['outcome']}; {outcome}",
        balance(end["counts"], claimed),
        worst(stall(steps, end["killed_at"], until) for steps in end["steps"]),
    )
