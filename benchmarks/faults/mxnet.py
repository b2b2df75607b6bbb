"""MXNet's dist_async (ps-lite): a scheduler, 2 servers, 2 workers, of which one is killed.

ps-lite's heartbeats are off by default; here they are on (every second, dead after 5 s), without
which it never knows of a death. What it offers against one is a node started again in its place
(`is_recovery`), which is tried as well: MXNet's own advice is a checkpoint by the user.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults import events
from benchmarks.faults.books import Row, balance, worst
from benchmarks.faults.programs import Event, Program, Unavailable, home, records_of

VERSION = "mxnet 1.9.1"
START_S = 60.0
HANG_S = 30.0  # without a step of anybody, three times what one takes to be declared dead
_BEAT_S, _DEAD_S = 1, 5
_KILL_AT = events.RECORDS * 4 // 10 // events.BATCH // 2  # steps of a worker


def worker(peers: Path) -> Row:
    return _kill(peers, "kill -9 of a worker", "worker", again=False)


def worker_again(peers: Path) -> Row:
    fault = "kill -9 of a worker, started again at its last position"
    return _kill(peers, fault, "worker", again=True)


def server(peers: Path) -> Row:
    return _kill(peers, "kill -9 of a server", "server", again=False)


def server_again(peers: Path) -> Row:
    return _kill(peers, "kill -9 of a server, started again", "server", again=True)


@dataclass
class _Cluster:
    stack: contextlib.ExitStack
    python: Path
    more: dict[str, str]
    folder: Path

    def start(self, role: str, number: int = 0) -> Program:
        """Start a process: scheduler and server import mxnet, a worker is a program of ours."""
        what: list[object] = ["-c", "import mxnet"]
        if role == "worker":
            what = ["-m", "benchmarks.faults.mxnet_worker", 2, self.folder / f"position-{number}"]
        program = Program([self.python, *what], {**self.more, "DMLC_ROLE": role})
        return self.stack.enter_context(program)


@contextlib.contextmanager
def _cluster(peers: Path) -> Iterator[_Cluster]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    more = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "2",
        "DMLC_NUM_WORKER": "2",
        "PS_HEARTBEAT_INTERVAL": str(_BEAT_S),
        "PS_HEARTBEAT_TIMEOUT": str(_DEAD_S),
    }
    python = home(peers, "mxnet") / "bin/python"
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        cluster = _Cluster(stack, python, more, Path(folder))
        cluster.start("scheduler")
        try:
            yield cluster
        finally:
            stack.close()  # before its folder


def _kill(peers: Path, fault: str, role: str, *, again: bool) -> Row:
    with _cluster(peers) as cluster:
        servers = [cluster.start("server") for _ in range(2)]
        workers = [cluster.start("worker", number) for number in range(2)]
        for each in workers:
            each.must_say("ready", START_S)
        # Its numbers are its ranks only by chance: who computes what is in what it says.
        if not workers[0].wait(lambda said: _steps(said) >= _KILL_AT, START_S):
            raise Unavailable(f"no training: {workers[0].last_words()}")
        victim = workers[1] if role == "worker" else servers[1]
        killed_at = victim.kill()
        survivors = [each for each in workers if each is not victim]
        everybody = list(workers)
        if again:
            time.sleep(_DEAD_S + 2 * _BEAT_S)  # or its place is not free yet
            started = cluster.start(role, 1)
            everybody += [started] if role == "worker" else []
        over = _wait([each for each in everybody if each is not victim])
        now = time.monotonic()
        crashed = [each for each in survivors if each.process.poll() is not None]
        stalls = [each.stall(killed_at, None if each.said("done") else now) for each in survivors]
        found = _read(survivors)
        if crashed:
            outcome = [f"a worker crashes ({crashed[0].last_words()})"]
        elif all(each.said("done") for each in survivors):
            outcome = ["the other goes on" if role == "worker" else "the workers go on"]
        else:
            outcome = [f"the workers hang, without an error (no step in {HANG_S:g} s)"]
        if again and role == "worker":
            its = everybody[-1]
            outcome.append("the new one ends too" if its.said("done") else _new(its))
        keys = range(events.RECORDS // events.TASK)
        if gone := len(keys) - len(found):
            outcome.append(f"{gone} of {len(keys)} keys cannot be read any more")
        counts = [count for key in keys for count in found.get(key, [0.0] * events.TASK)]
        claimed = None if over else records_of(*everybody)
        books = balance(counts, claimed)
        return Row("MXNet dist_async", fault, VERSION, "; ".join(outcome), books, worst(stalls))


def _read(survivors: list[Program]) -> dict[int, list[float]]:
    """Return the counts by key, of the keys that anybody can still read."""
    for each in survivors:
        each.tell("read")
    found: dict[int, list[float]] = {}
    for each in survivors:
        if each.wait(lambda said: any(e["event"] == "counts" for e in said), START_S):
            found |= dict(each.said("counts")[0]["keys"])
    return found


def _new(program: Program) -> str:
    if program.process.poll() is not None:
        return f"the new one ends: {program.last_words()}"
    return "the new one hangs" if program.said("ready") else "the new one is never let in"


def _steps(said: list[Event]) -> int:
    return sum(each["event"] == "step" for each in said)


def _wait(programs: list[Program]) -> bool:
    """Wait until all say that they are done; return False once nobody has moved for HANG_S."""
    moved = time.monotonic()
    steps = -1
    while time.monotonic() - moved < HANG_S:
        if all(each.said("done") for each in programs):
            return True
        if (now := sum(len(each.said("step")) for each in programs)) != steps:
            steps, moved = now, time.monotonic()
        time.sleep(0.05)
    return False
