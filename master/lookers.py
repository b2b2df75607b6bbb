"""The lookers at a job's status, some of whom wait for a newer one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from ..common import finite, report
from ..durable.schema import Json
from ..proto import master_pb2 as pb
from .core import Core
from .groups.group import Group
from .parking import Parked
from .reporting import Reporter


class Lookers:
    """The lookers at a job's status. `watch` is shown the status now and then."""

    def __init__(self, core: Core, group: Group, watch: Callable[[dict[str, Json]], None]) -> None:
        self._core = core
        self._group = group
        self._reporter = Reporter(core, group)
        self._watch = watch
        self._waiting: list[tuple[int, Parked]] = []  # the revision that each knows

    def park(self, request: pb.StatusRequest, future: Future[pb.StatusReply]) -> None:
        """Answer with a newer status than is known, or with that of now when the time is up."""
        deadline = self._core.clock.now() + request.wait_s
        parked = Parked(lambda: None, self._reply, deadline, future)
        self._waiting.append((request.known_revision, parked))

    def settle(self, now: float) -> None:
        """Show the status, and answer those who wait for it, after each batch of events."""
        began = self._core.clock.now()
        if self._core.status.tick(now):
            self._watch(self._render(looks=True))
        self._release(now)
        ended = self._core.clock.now()
        self._core.status.took(ended, ended - began)

    def _release(self, now: float) -> None:
        """Answer those whose time has come, all with the same reply, which is made once."""
        waiting, self._waiting = self._waiting, []
        reply = None
        for known, parked in waiting:
            if self._core.status.revision > known or now >= parked.deadline:
                reply = reply or self._reply()
                parked.future.set_result(reply)
            else:
                self._waiting.append((known, parked))

    def take_parked(self) -> list[Parked]:
        """Return all who wait; they wait no more."""
        waiting, self._waiting = self._waiting, []
        return [parked for _, parked in waiting]

    def status(self) -> dict[str, Json]:
        """Return the status of the job now."""
        return self._render(looks=False)

    def as_json(self) -> str:
        """Return the status as JSON."""
        return finite.dumps(self.status())

    def _render(self, *, looks: bool) -> dict[str, Json]:
        """Return the status. `looks`: throughput is measured by this look at it."""
        now = self._core.clock.now()
        status = self._core.status.render(
            now=now,
            settings=self._core.settings,
            queue=self._core.queue,
            members=self._core.members,
            replicas=self._core.replicas,
            evaluations=self._core.evaluations,
            version=self._core.version,
            lessee=self._group.workers.lessee,
        )
        done = status["records_done"]
        if looks:
            self._reporter.look(now, done)
        status["teaching"] |= self._core.lessons.totals
        told = report.write(self._reporter.report(done))
        return {**status, "usage": self._reporter.usage(now, done), "report": told}

    def _reply(self) -> pb.StatusReply:
        return pb.StatusReply(revision=self._core.status.revision, status_json=self.as_json())
