"""torchft: two replica groups of one process each, Gloo, its lighthouse; one of them is killed.

What ends before it is done is started again, as its examples' launcher does, from the position that
its loader had written down last. Only then: importing torch takes it seconds, so that a minibatch
takes longer here (torchft_replica.DELAY_S), or the survivor would be done before.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults import events
from benchmarks.faults.books import Row, balance
from benchmarks.faults.programs import Event, Program, Unavailable, home, records_of

VERSION = "torchft 0.2.0, torch 2.13.0"
DEADLINE_S = 120.0
_STARTS = 3  # of one replica
_KILL_AT = events.RECORDS // 8  # a quarter of the victim's half
_BALLAST = 8_000_000  # parameters: 32 MB to reduce, a good part of a step
_INSIDE_S = 0.02  # from the victim's word that it reduces to its end


def outside(peers: Path) -> Row:
    return _kill(peers, "kill -9 of a replica, while it computes", ballast=1, event="step")


def inside(peers: Path) -> Row:
    return _kill(peers, "kill -9 of a replica, in the all-reduce", ballast=_BALLAST, event="reduce")


def _kill(peers: Path, fault: str, ballast: int, event: str) -> Row:
    found = home(peers, "torchft")
    with (
        tempfile.TemporaryDirectory() as folder,
        _lighthouse(found) as address,
        contextlib.ExitStack() as stack,
    ):

        def replica(number: int) -> Program:
            position = Path(folder) / f"position-{number}"
            command = [found / "bin/python", "-m", "benchmarks.faults.torchft_replica"]
            more = {"TORCHFT_LIGHTHOUSE": address}
            return stack.enter_context(Program([*command, number, 2, position, ballast], more))

        survivor, victim = replica(0), replica(1)
        for each in (survivor, victim):
            each.must_say("ready", DEADLINE_S)
        for each in (survivor, victim):
            each.tell("go")
        if not victim.wait(lambda said: _is_there(said, event), DEADLINE_S):
            raise Unavailable(f"the replicas do not train: {victim.last_words()}")
        if event == "reduce":
            time.sleep(_INSIDE_S)
        killed_at = victim.kill()
        runs = {0: [survivor], 1: [victim]}
        over = _launch(replica, runs)
        return _row(fault, killed_at, runs, over)


def _is_there(said: list[Event], event: str) -> bool:
    """Tell whether the victim has just come to that event, far enough in its half."""
    last = said[-1] if said else {"event": "", "first": 0}
    return last["event"] == event and last["first"] >= events.RECORDS // 2 + _KILL_AT


def _launch(replica: Callable[[int], Program], runs: dict[int, list[Program]]) -> bool:
    """Start again what is gone until both reach their ends; return whether they did in time."""
    give_up = time.monotonic() + DEADLINE_S
    told: set[int] = set()
    while time.monotonic() < give_up and len(told) < len(runs):
        for number, its in runs.items():
            if number in told:
                continue
            if its[-1].said("end"):
                its[-1].tell("end")
                told.add(number)
            elif its[-1].process.poll() is not None and len(its) < _STARTS:
                its.append(replica(number))
                its[-1].tell("go")
        time.sleep(0.05)
    return len(told) == len(runs)


def _row(fault: str, killed_at: float, runs: dict[int, list[Program]], over: bool) -> Row:
    survivor = runs[0][0]
    crashed = len(runs[0]) > 1 or survivor.process.poll() not in (None, 0)
    if crashed:
        outcome = [f"the survivor crashes ({survivor.last_words()})"]
    elif survivor.said("end"):
        outcome = ["the survivor goes on"]
    else:
        outcome = [f"the survivor hangs (> {DEADLINE_S:g} s)"]
    programs = [each for its in runs.values() for each in its]
    if refused := [e for e in survivor.said("refused") if e["at"] > killed_at]:
        outcome.append(f"{len(refused)} of its batches refused and passed by")
    if over:
        outcome.append("all is started again and ends" if crashed else "the replacement ends too")
    else:
        outcome.append("the job does not end")
    ends = sorted((e for each in programs for e in each.said("end")), key=lambda e: e["at"])
    claimed = None if over else records_of(*programs)
    return Row(
        "torchft",
        fault,
        VERSION,
        "; ".join(outcome),
        balance(ends[-1]["counts"], claimed) if ends else None,
        None if crashed else survivor.stall(killed_at, None if over else time.monotonic()),
    )


@contextlib.contextmanager
def _lighthouse(found: Path) -> Iterator[str]:
    """Start its coordinator, with the flags of its README; yield the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--min_replicas", 1, "--quorum_tick_ms", 100, "--join_timeout_ms", 10000]
    with Program([found / "bin/torchft_lighthouse", "--bind", f"[::]:{port}", *flags]):
        yield f"http://127.0.0.1:{port}"
