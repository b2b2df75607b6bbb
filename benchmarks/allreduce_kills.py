"""All-reduce, one member killed: ours, torchft and torchrun with the same model and the same kills.

    python -m benchmarks.allreduce_kills --peers FOLDER [--only NAME ...] [--kills N]
        [--keep FOLDER]

FOLDER is what `python -m benchmarks.peers.setup --into FOLDER torchft` was given. Every run is one
group, of which in turn the member of rank 0 and the one of the last rank is killed, N times in all,
each time when the one before is replaced and all have stepped on together for a while:

outside   kill -9 of a member that computes
inside    kill -9 of a member in the midst of its all-reduce, which a ballast makes long
stopped   SIGSTOP of a member that computes: only its silence tells. It is killed when the others
          have gone on, or after a time

T is what silence is told by: our lease_s, torchft's heartbeat timeout and gloo's timeout with it,
gloo's timeout under torchrun. torchft's survivors end where its DistributedDataParallel meets a
broken all-reduce ("torchft-ddp"), so "torchft" calls its manager's allreduce by hand. A member's
steps are those of torch's own hook after an optimizer's step.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import measure
from benchmarks.faults import torchft
from benchmarks.faults.books import Books
from benchmarks.faults.groups import Group, Ours, Torchft, Torchrun
from benchmarks.faults.pauses import Kill, Seen, books_table, seen, table
from benchmarks.faults.programs import Unavailable

KILLS = 14
DELAY_S = 0.02  # that each member computes a minibatch
_BALLAST = {"outside": 250_000, "inside": 4_000_000, "stopped": 250_000}  # float32
_SETTLE_STEPS = 45  # of all together between two kills
_READY_S = 120.0
_SILENT_S = 60.0  # that nobody goes on after SIGSTOP, at most
_GONE_ON_STEPS = 10
_AFTER_S = 1.5  # the replacement's first steps
_LOOK_S = 0.02


@dataclass(frozen=True)
class Run:
    """A run of one group, and how it is killed."""

    system: str
    members: int
    how: str
    detect_s: float

    @property
    def name(self) -> str:
        return f"{self.system}.{self.how}.{self.members}.{self.detect_s:g}"

    @property
    def label(self) -> str:
        return f"{self.system}, T = {self.detect_s:g} s"

    def group(self, peers: Path, folder: Path) -> Group:
        about = (folder, self.members, self.detect_s, _BALLAST[self.how], DELAY_S)
        match self.system:
            case "edl":
                return Ours(*about)
            case "torchft" | "torchft-ddp":
                return Torchft(peers, self.system == "torchft-ddp", *about)
        return Torchrun(*about)


def runs() -> Iterator[Run]:
    for members in (2, 3):
        for how in ("outside", "inside"):
            yield Run("edl", members, how, 10.0)  # its default: the processes' ends tell
            yield Run("torchft", members, how, 1.0)
            yield Run("torchft", members, how, 5.0)  # its default
            yield Run("torchft-ddp", members, how, 1.0)
            yield Run("torchrun", members, how, 1800.0)  # its default
        for detect_s in (1.0, 5.0):
            yield Run("edl", members, "stopped", detect_s)
            yield Run("torchft", members, "stopped", detect_s)
            yield Run("torchrun", members, "stopped", detect_s)
        yield Run("torchrun", members, "stopped", 1800.0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allreduce_kills")
    parser.add_argument("--peers", type=Path, required=True, help="the folder of setup --into")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="NAME",
        help="beginnings of SYSTEM.KILL.MEMBERS.T, e.g. edl.inside",
    )
    parser.add_argument("--kills", type=int, default=KILLS, help="of one run")
    parser.add_argument("--keep", type=Path, help="a folder for journals, logs and results")
    given = parser.parse_args()
    started, before = time.monotonic(), measure.load()
    found: list[tuple[Kill, Seen]] = []
    books: list[tuple[str, int, Books]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.keep or Path(temporary)).absolute()
        os.environ["EDL_HOME"] = str(folder / "edl")
        for run in runs():
            if not run.name.startswith(tuple(given.only)):
                continue
            try:
                kills, balance = once(run, given.peers, folder / run.name, given.kills)
            except Unavailable as reason:
                print(f"{run.name}: could not be run: {reason}", file=sys.stderr, flush=True)
                continue
            found += kills
            if balance is not None:
                books.append((run.name, len(kills), balance))
            print(f"{table(kills)}\n{balance}\n", file=sys.stderr, flush=True)
    print(f"{table(found)}\n\n{books_table(books)}\n")
    took = f"{time.monotonic() - started:.0f} s in all."
    print(f"{took} Load average before: {before}; after: {measure.load()}.")
    print(f"{measure.machine()}\n- {torchft.VERSION}; torchrun is that of this torch")


def once(
    run: Run, peers: Path, folder: Path, kills: int
) -> tuple[list[tuple[Kill, Seen]], Books | None]:
    """Run one group, and kill it again and again."""
    group = run.group(peers, folder)
    found: list[tuple[Kill, Seen]] = []
    group.start()
    try:
        for turn in range(kills):
            victim = (run.members - 1) * (turn % 2)
            found.append(strike(group, run, victim))
            line = asdict(found[-1][0]) | asdict(found[-1][1])
            print(json.dumps(line), file=sys.stderr, flush=True)
            with open(folder / "kills.jsonl", "a") as file:
                file.write(f"{json.dumps(line)}\n")
        if any(each.restarted for _, each in found) and isinstance(group, Torchft):
            return found, None  # nobody was left who had it: all began anew, and counts nothing
        try:
            return found, group.end()
        except Unavailable as reason:
            print(f"{run.name}: {reason}", file=sys.stderr, flush=True)
            return found, None
    finally:
        group.kill()


def strike(group: Group, run: Run, victim: int) -> tuple[Kill, Seen]:
    """Kill the member of that rank, once all train together, and watch until it is replaced."""
    since = time.monotonic()
    until(lambda: _together(group, since), group, _READY_S, "does not train")
    pid = group.pids()[victim]
    ready = _moment(group, pid, run.how)
    number = signal.SIGSTOP if run.how == "stopped" else signal.SIGKILL
    while not ready():
        time.sleep(0.001)
    at = time.monotonic()
    os.kill(pid, number)
    stood_until = None
    if number == signal.SIGSTOP:
        until(lambda: _gone_on(group, at, pid), group, _SILENT_S)
        stood_until = None if _gone_on(group, at, pid) else time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # its system has done that
            os.kill(pid, signal.SIGKILL)
    until(lambda: _replaced(group, at), group, _READY_S)
    end = time.monotonic() + _AFTER_S
    until(lambda: time.monotonic() > end, group, 2 * _AFTER_S)
    kill = Kill(run.label, run.members, run.how, victim, at, os.getloadavg()[0])
    return kill, seen(at, pid, group.look(), stood_until or time.monotonic())


def until(
    done: Callable[[], bool], group: Group, patience_s: float, else_: str | None = None
) -> None:
    """Look now and then until it is done.

    Raises Unavailable where it does not come and `else_` says what that means.
    """
    give_up = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > give_up:
            if else_ is None:
                return
            raise Unavailable(f"{group.name} {else_} in {patience_s:g} s")
        group.tend()
        time.sleep(_LOOK_S)


def _together(group: Group, since: float) -> bool:
    """Tell whether every rank has had a part in enough steps lately."""
    pids, journals = group.pids(), group.journals
    return len(pids) == group.members and all(
        sum(e["event"] == "step" and e["counts"] and e["at"] > since for e in journals[pid][-999:])
        >= _SETTLE_STEPS
        for pid in pids.values()
    )


def _gone_on(group: Group, at: float, victim: int) -> bool:
    return any(
        sum(e["event"] == "step" and e["at"] > at for e in lines[-99:]) >= _GONE_ON_STEPS
        for pid, lines in group.look().items()
        if pid != victim
    )


def _replaced(group: Group, at: float) -> bool:
    """Tell whether a new process has had a part in a step that is new."""
    journals = group.look()
    old = [lines for lines in journals.values() if lines[0]["at"] <= at]
    top = max(e["step"] for lines in old for e in lines if e["event"] == "step" and e["at"] <= at)
    return any(
        e["event"] == "step" and e["counts"] and e["step"] > top
        for lines in journals.values()
        if lines and lines[0]["at"] > at
        for e in lines
    )


def _moment(group: Group, pid: int, how: str) -> Callable[[], bool]:
    """Return a function that waits for the moment to kill: while the process computes.

    `how` "inside": half through its all-reduce. The function returns False where the moment has not
    come.
    """
    journals = group.look()
    known, event, wait_s = len(journals[pid]), "forward", 0.0
    if how == "inside":
        lines, event = journals[pid], "reduce"
        took = [
            b["at"] - a["at"]
            for a, b in itertools.pairwise(lines)
            if a["event"] == "reduce" and b["event"] == "step"
        ]
        wait_s = statistics.median(took[-_SETTLE_STEPS:]) / 2

    def ready() -> bool:
        nonlocal known
        lines = group.look(pid)[pid]
        fresh, known = lines[known:], len(lines)
        if not fresh or fresh[-1]["event"] != event:
            return False
        due = fresh[-1]["at"] + wait_s
        if due < time.monotonic() - 0.005:
            return False  # seen too late
        time.sleep(max(0.0, due - time.monotonic()))
        return True

    return ready


if __name__ == "__main__":
    main()
