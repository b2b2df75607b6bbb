"""DLRover: its task manager; what a worker's death does to the books of the records."""

from __future__ import annotations

from pathlib import Path

from benchmarks.faults import events
from benchmarks.faults.books import Row, balance
from benchmarks.faults.programs import Program, home

VERSION = "dlrover 0.6.1"
HANG_S = 65.0  # its watcher of timeouts looks every 30 s
DEADLINE_S = 120.0


def worker(peers: Path) -> Row:
    return _played(peers, "a worker dies, in a task", "worker")


def same_task(peers: Path) -> Row:
    return _played(peers, "whoever does one and the same task dies, 4 times", "same_task")


def zombie(peers: Path) -> Row:
    return _played(peers, "a worker is taken for dead, then goes on", "zombie")


def lost_reply(peers: Path) -> Row:
    return _played(peers, "the answer with a task is lost", "lost_reply")


def _played(peers: Path, fault: str, name: str) -> Row:
    python = home(peers, "dlrover") / "bin/python"
    with Program([python, "-m", "benchmarks.faults.dlrover_tasks", name, HANG_S]) as program:
        end = program.must_say("end", DEADLINE_S)
    outcome = "; the job counts as completed" if end["finished"] else f"; hangs (> {HANG_S:g} s)"
    trained = (record for record in range(events.RECORDS) if end["counts"][record])
    books = balance(end["counts"], None if end["finished"] else trained)
    return Row("DLRover's task manager", fault, VERSION, end["outcome"] + outcome, books)
