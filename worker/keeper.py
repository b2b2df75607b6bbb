"""A small process beside each worker: it says that the worker lives while user code keeps the GIL.

The worker's own heartbeat is a Python thread, which does not run while a regular expression or a
careless extension holds the interpreter. The keeper is forked before any user code and shares a
page with the worker (pulse.py). It speaks to the master only when the worker has not been heard for
half a lease and is not stopped, so in most jobs it never opens a connection. It also notices who
hangs: it has the worker's stack written to its log, by a signal whose handler needs no GIL, and
tells the master, which decides. It ends with the worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..common.errors import EdlError
from ..common.process import STACK_SIGNAL
from ..master.client import MasterClient
from ..proto import master_pb2 as pb
from . import pulse

# In one piece of user code: worth a line and a stack; half of --hang_s if less.
_REMARKABLE_S = 60.0
_LOOK_S = 1.0
_WRITTEN_S = 0.5  # a stack is, after the signal


def start(index: int, connect: Callable[[str], MasterClient]) -> None:
    """Fork the keeper.

    `connect` makes a line to the master for an incarnation; it is called there only.
    """
    pulse.share()
    worker = os.getpid()
    handle = os.pidfd_open(worker)
    middle = os.fork()
    if middle:  # not our child: user code may wait for its own ones
        os.close(handle)
        os.waitpid(middle, 0)
        return
    try:
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, STACK_SIGNAL):
                signal.signal(number, signal.SIG_IGN)
            gc.disable()  # it would touch, and so copy, all that is shared with the worker
            _run(_Keeper(worker, index, connect), handle)
    finally:
        os._exit(0)


def _run(keeper: _Keeper, handle: int) -> None:
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    while not ended.poll(1000 * keeper.look_s):
        keeper.look(time.monotonic())


class _Keeper:
    def __init__(self, worker: int, index: int, connect: Callable[[str], MasterClient]) -> None:
        self.look_s = _LOOK_S
        self._worker = worker
        self._index = index
        self._connect = connect
        self._client: MasterClient | None = None
        self._incarnation = ""
        self._fenced = False
        self._remarked: dict[int, tuple[float, float]] = {}  # by kind: since when, seconds
        self._stopped = 0.0  # when it was last seen so
        self._stacks = 0.0  # since when the thread had been there whose stack was written last

    def look(self, now: float) -> None:
        """Look at the worker, once every `look_s`; tell the master where it hangs or is silent."""
        seen = pulse.read()
        if seen.incarnation != self._incarnation:
            self._begin(seen.incarnation)
        if not seen.incarnation:
            return
        self.look_s = min(_LOOK_S, seen.lease_s / 5)
        if _is_stopped(self._worker):
            self._stopped = now
            return
        place = seen.longest
        stuck = None
        if place is not None:
            stuck = self._stuck(place, now - max(place.since, self._stopped), seen.hang_s)
        if stuck is not None or now - seen.heard > seen.lease_s / 2:
            self._speak(seen, place, stuck)

    def _begin(self, incarnation: str) -> None:
        if self._client is not None:
            self._client.close()
        self._client, self._incarnation, self._fenced = None, incarnation, False
        self._remarked.clear()

    def _stuck(self, place: pulse.Place, seconds: float, hang_s: float) -> pb.Stuck | None:
        over = 0 < hang_s <= seconds
        remarkable = min(_REMARKABLE_S, hang_s / 2 or _REMARKABLE_S)
        since, before_s = self._remarked.get(place.kind, (0.0, 0.0))
        # What is only slow each time is told of ever more seldom.
        if not over and (seconds < max(remarkable, 2 * before_s) or since == place.since):
            return None
        self._remarked[place.kind] = place.since, seconds
        if not over or self._stacks != place.since:
            self._write_stack(place, seconds)
        if over:
            self._stacks = place.since
        return pb.Stuck(what=str(place), seconds=seconds, over=over)

    def _write_stack(self, place: pulse.Place, seconds: float) -> None:
        print(f"in {place} for {seconds:.0f} s; its stacks:", file=sys.stderr, flush=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._worker, STACK_SIGNAL)
        time.sleep(_WRITTEN_S)

    def _speak(self, seen: pulse.Pulse, place: pulse.Place | None, stuck: pb.Stuck | None) -> None:
        if self._fenced:
            return  # the worker hears of it once it has the GIL again
        request = pb.HeartbeatRequest(round=seen.round, stuck=stuck)
        if place is not None:
            request.state = f"in {place}"
            if stuck is not None and place.of_task:
                request.trying.CopyFrom(
                    pb.Trying(
                        task=place.task, attempt=place.attempt, start=place.start, end=place.end
                    )
                )
        try:
            if self._client is None:
                self._client = self._connect(seen.incarnation)
            reply = self._client.heartbeat_with(request, patience_s=seen.lease_s / 4)
            self._fenced = reply.fenced
        except EdlError as error:
            print(f"the keeper of worker {self._index}: {error}", file=sys.stderr, flush=True)


def _is_stopped(pid: int) -> bool:
    """Tell whether the worker is stopped (SIGSTOP), or has ended: it is as silent as it looks."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True  # it has ended just now
    return stat.rpartition(")")[2].split()[0] in ("T", "t", "Z", "X")
