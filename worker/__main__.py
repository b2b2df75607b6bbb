"""`python -m edl.worker`: a worker's process, or (`--describe`) the check before the job starts.

The process outlives its incarnation: where the master has declared it lost (it slept past its
lease, say), it drops its leases and registers as a new incarnation.
"""

from __future__ import annotations

from ..common.process import check_threads, end_at_sigterm, end_with, leave, show_stacks

if __name__ == "__main__":
    show_stacks()
    end_at_sigterm()  # what is imported now takes seconds

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, Protocol

from ..common import faults, listen, notice, rpc
from ..common import log as logs
from ..common.errors import EdlError, Fenced, Unreachable, UsageError
from ..common.settings import ANALYZE, JobSettings
from ..kernels.malloc import keep_freed_memory
from ..master.client import MasterClient
from ..proto import master_pb2 as pb
from . import keeper, nursery, pulse
from .leaving import leave_in_time
from .metrics import Metrics
from .trainer import Beat, Member

if TYPE_CHECKING:
    from ..ps.worker_client import PsClient
    from .taught import School

log = logging.getLogger("edl.worker")


def main() -> int:
    """Run a worker's process, and return its exit code.

    0: done or drained, 1: failed, 2: the definition is at fault.
    """
    parser = argparse.ArgumentParser(prog="python -m edl.worker")
    parser.add_argument("--describe", action="store_true")
    parser.add_argument("--nursery", metavar="STRATEGY")
    parser.add_argument("--analyze", action="store_true", help="of a job that trains nothing")
    parser.add_argument("--job-dir", default=os.environ.get("EDL_JOB_DIR", ""))
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--incarnation", default="")
    parser.add_argument("--master", default="")
    given = parser.parse_args()
    if given.nursery:
        return nursery.run(main, given.nursery)
    try:
        if given.describe:
            job_dir = Path(given.job_dir)
            settings = JobSettings.of_job(job_dir)
            os.environ.update(settings.envs)  # as the workers have it
            _describe(settings, job_dir)
            return 0
        return _work(given.master, given.index, given.incarnation, _shop(given.analyze))
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code


class Maker(Protocol):
    """The maker of one member, which may come by servers and teachers with it.

    `fatal`: errors that are no fault of some records, and end the job.
    """

    ps: PsClient | None
    school: School | None
    fatal: tuple[type[EdlError], ...]

    def make(self) -> Member: ...


class Shop(Protocol):
    """The part of what a worker does that all incarnations of its process share.

    `address`: where other members find it.
    """

    @property
    def address(self) -> str: ...

    def maker(
        self,
        master: MasterClient,
        settings: JobSettings,
        index: int,
        incarnation: str,
        on_step: Callable[[float, int], None],
        /,
    ) -> Maker:
        """Return the maker of a member; `on_step(loss, records)` is called after each step."""
        ...


# What trains imports torch, which takes seconds; what analyzes does not.


def _describe(settings: JobSettings, job_dir: Path) -> None:
    if settings.command == ANALYZE:
        from .analyst import describe
    else:
        from .describe import describe
    describe(settings, job_dir)


def _shop(analyzes: bool) -> Callable[[], Shop]:
    if analyzes:
        from . import analyst

        return analyst.Shop
    from . import factory

    return factory.Shop


def _work(master_address: str, index: int, incarnation: str, make_shop: Callable[[], Shop]) -> int:
    keep_freed_memory()
    keeper.start(index, lambda name: _line(master_address, index, name))  # before any thread
    check_threads()
    process = _Process(master_address, index, make_shop())
    signal.signal(signal.SIGTERM, process.on_sigterm)
    lives = 0
    while True:
        name = incarnation if lives == 0 else f"{incarnation}.{lives}"
        try:
            process.live(name)
            return 0
        except Fenced as error:
            log.warning("incarnation=%s -> fenced reason=%r; registering anew", name, str(error))
            lives += 1


def _line(master_address: str, index: int, incarnation: str) -> MasterClient:
    replica = pb.Replica(role=pb.WORKER, index=index, incarnation=incarnation)
    return MasterClient(master_address, replica=replica)


class _Process:
    """The things that all incarnations share: the health server, the metrics port, the deadline."""

    def __init__(self, master_address: str, index: int, shop: Shop) -> None:
        self._master_address = master_address
        self._index = index
        self._health = rpc.serve_health()
        self._shop = shop
        _, self._metrics_address = listen.serve_metrics()
        self._metrics = Metrics()
        self._notice: threading.Thread | None = None
        self._member: Member | None = None
        self._patience_s = 120.0
        self._master: MasterClient | None = None
        self._grace_s = JobSettings().drain_grace_s
        self._is_told_to_go = False

    def on_sigterm(self, signum: int, _frame: FrameType | None) -> None:
        self._is_told_to_go = True
        if self._member is None:  # it holds nothing yet, or nothing any more
            _end_by(signum)
        else:
            # Not from the handler itself: it may have interrupted the holder of the stream's lock.
            threading.Thread(target=self._leave, args=(self._member,), daemon=True).start()

    def _leave(self, member: Member) -> None:
        """Have the member end in order; end the process at once where that cannot be."""
        member.drain()
        master = self._master
        assert master is not None

        def end(why: str) -> None:
            log.warning("leaving at once: %s", why)
            leave(0)

        def ask(patience_s: float) -> None:
            _say(master, member.beat(), "draining", patience_s)

        leave_in_time(ask, end, self._grace_s)

    def live(self, incarnation: str) -> None:
        """Live one incarnation, to its end.

        Raises Fenced where another must follow. Where the process was told to go meanwhile, none
        may: its signal ends it, as one that holds nothing.
        """
        master = _line(self._master_address, self._index, incarnation)
        master.patience_s = self._patience_s
        try:
            faults.point("worker.register")
            reply = master.register(
                self._shop.address,
                self._metrics_address,
                os.getpid(),
                listen.own_machine(),
            )
            if reply.fenced:
                raise UsageError(f"the master does not know incarnation {incarnation!r}: leaving")
            settings = JobSettings.from_json(reply.settings_json)
            self._patience_s = master.patience_s = settings.master_timeout_s
            self._master, self._grace_s = master, settings.drain_grace_s
            logs.configure(settings.log_level, settings.log_format, "worker", self._index)
            if self._notice is None:
                self._notice = notice.watch(settings.preemption_notice)
            pulse.live(incarnation, lease_s=settings.lease_s, hang_s=settings.hang_s)
            self._run(master, settings, incarnation)
        except Fenced:
            if self._is_told_to_go:
                _end_by(signal.SIGTERM)
            raise
        finally:
            pulse.live("")
            master.close()

    def _run(self, master: MasterClient, settings: JobSettings, incarnation: str) -> None:
        factory = self._shop.maker(master, settings, self._index, incarnation, self._metrics.step)
        beat = _Heartbeat(master, interval_s=min(1.0, settings.lease_s / 5))
        beat.start()
        try:
            self._member = factory.make()
            beat.attach(self._member, factory.ps)
            self._member.run()
            if factory.school is not None:  # the last second's records count, too
                _say(master, self._member.beat(), self._member.status.state)
            faults.point("worker.shutdown")
        except factory.fatal as error:
            master.heartbeat_with(pb.HeartbeatRequest(fails=str(error)))
            raise
        finally:
            self._member = None
            beat.stop()
            if factory.school is not None:
                factory.school.close()
            if factory.ps is not None:
                factory.ps.close()  # a push that still waits for its servers is given up


class _Heartbeat(threading.Thread):
    """The thread that says that the worker lives, and tells it what the master answers."""

    def __init__(self, master: MasterClient, *, interval_s: float) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._master = master
        self._interval_s = interval_s
        self._ended = threading.Event()  # not _stop: that name is the Thread's own
        self._member: Member | None = None
        self._ps: PsClient | None = None

    def attach(self, member: Member, ps: PsClient | None) -> None:
        """Tell of this member from now on.

        `ps`: its servers, if it has some.
        """
        self._member, self._ps = member, ps

    def _follow(self, servers_version: int) -> None:
        """Have calls that still wait for a server that was replaced be made at the new one."""
        if self._ps is not None and servers_version > self._ps.servers_version:
            reply = self._master.get_servers(self._ps.servers_version, 0.0)
            self._ps.update(reply.addresses, reply.slot_map_version)

    def stop(self) -> None:
        self._ended.set()

    def run(self) -> None:
        while not self._ended.is_set():
            member = self._member
            try:
                if member is not None:
                    reply = _say(self._master, member.beat(), member.status.state)
                else:
                    reply = self._master.heartbeat(state="starting")
            except Unreachable as error:
                # The loop meets the same silence at its next call, and reports it.
                log.warning("heartbeat -> unanswered error=%r", str(error))
                return
            pulse.beat()
            if member is not None:
                if reply.fenced:
                    member.fence()
                    return
                if reply.drain:
                    member.drain()
                self._follow(reply.slot_map_version)
            self._ended.wait(reply.interval_s or self._interval_s)


def _end_by(signum: int) -> NoReturn:
    """End this process by a signal, so that it counts as what it is."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    os._exit(128 + signum)  # signals of no handler have no effect on process 1


def _say(
    master: MasterClient, beat: Beat, state: str, patience_s: float | None = None
) -> pb.HeartbeatReply:
    return master.heartbeat(
        progress=beat.progress,
        version=beat.version,
        scalars=beat.scalars,
        state=state,
        round_=beat.round,
        patience_s=patience_s,
    )


if __name__ == "__main__":
    end_with(main)
