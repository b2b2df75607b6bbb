"""The end of a job: what ends it, how it stops when somebody asks, how its processes leave.

Scripts, as those of course.py, that read from top to bottom.
"""

from __future__ import annotations

import os

from ..common import faults
from ..durable.loop import Script
from .checkpoints import Checkpoints
from .core import EXIT_INTERRUPTED, Core, go_on_with
from .groups.group import Group
from .membership import SERVER, TEACHER, WORKER
from .processes import Processes

_SERVER_GRACE_S = 10.0
_FAILED_GRACE_S = 2.0


class Shutdown:
    """The end of a job. `over`: all processes have left."""

    def __init__(
        self, core: Core, group: Group, processes: Processes, checkpoints: Checkpoints
    ) -> None:
        self._core = core
        self._group = group
        self._processes = processes
        self._checkpoints = checkpoints
        self._leaving = False
        self.reason = ""  # why the job is to stop
        self.over = False

    def stop(self, reason: str) -> None:
        """Stop the job in order; asked again it changes nothing."""
        core = self._core
        if core.status.state in ("starting", "running"):
            core.status.state = "stopping"
            self.reason = reason
            core.tell(f"stopping: {reason or 'asked to'}")
            core.save()
            self.go_on()

    def go_on(self) -> None:
        """Stop a job that is stopping, where its master was killed meanwhile."""
        if self._core.status.state == "stopping":
            self._core.loop.spawn(self._stopping(self.reason))

    def settle(self) -> None:
        """Have the processes leave where the end of the job is decided."""
        if self._core.ended and not self._leaving:
            self._leaving = True
            self._core.loop.spawn(self._leave())

    def check(self) -> None:
        """See whether something has come to pass that ends the job."""
        if self._core.ended:
            return
        dead, failed = self._core.replicas.dead_server, self._core.replicas.all_workers_failed
        if self._core.queue.broken is not None:
            self._core.fail(f"the definition or the data is broken: {self._core.queue.broken}")
        elif dead is not None:
            self._core.fail(
                f"parameter server {dead.index} {dead.last_end}"
                f"{self._last_line(SERVER, dead.index)}"
                f"; {self._core.how_to_go_on()}"
            )
        elif failed is not None:
            self._core.fail(
                f"all workers failed; the last was worker {failed.index}, which {failed.last_end}"
                f"{self._last_line(WORKER, failed.index)}; {self._core.how_to_go_on()}"
            )

    def _last_line(self, role: str, index: int) -> str:
        """Return what a process said last, for a message."""
        if self._core.settings.runtime == "kubernetes":
            return ""  # the cluster keeps their logs; what lies here is not theirs
        path = self._core.job_dir / "logs" / f"{role}-{index}.log"
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.path.getsize(path) - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f" (its last words: {lines[-1].strip()}; all of them: {path})" if lines else ""

    # -- scripts

    def _stopping(self, reason: str) -> Script[None]:
        """Stop because somebody wants it: hand everything back, keep what was learnt."""
        yield lambda: self._core.changing is None or self._core.ended
        together = self._group.workers.trains_in_rounds
        resume = yield from (self._stop_members() if together else self._stop_workers())
        if not self._core.ended:
            text = f"stopped ({reason or 'asked to'}) at record {self._core.queue.records_done}"
            self._core.end("stopped", EXIT_INTERRUPTED, f"{text}; {go_on_with(resume)}", resume)

    def _stop_workers(self) -> Script[str | None]:
        """Stop the workers; returns what the job goes on with.

        It is a checkpoint of the servers, once the workers have left.
        """
        queue, running = self._core.queue, self._core.replicas.running
        grace_s = self._core.settings.drain_grace_s
        trains = self._core.settings.command == "train"
        saves = trains and self._group.connected
        if saves:
            # Workers level what a lost one left uneven; without them there is no cut any more.
            until = self._core.clock.now() + grace_s
            self._core.loop.wake_at(until)
            yield from self._core.until(
                lambda: not (queue.uneven and running(WORKER)) or self._core.clock.now() >= until,
                lambda: "the workers to level what the servers hold",
            )
        self._core.replicas.scale(0)
        self._processes.stop_all(WORKER, grace_s)
        yield from self._core.until(
            lambda: not running(WORKER) and not queue.fencing, self._what_stops_waits_for
        )
        if trains and not saves:  # nothing was done that what it began from has not
            return self._core.status.newest_checkpoint
        # Not `version`: the servers' heartbeats tell it up to a second late.
        if saves and queue.records_done:
            if queue.uneven:
                self._core.tell("no checkpoint: a worker was killed in the midst of a push")
            elif not self._core.ended:
                yield from self._checkpoints.write(last=True)
                return self._core.status.checkpoint
        return self._core.resume

    def _what_stops_waits_for(self) -> str:
        there = [str(slot.index) for slot in self._core.replicas.running(WORKER)]
        if there:
            return f"worker {', '.join(there)} to hand back and leave"
        return f"the servers to answer about task {', '.join(map(str, self._fenced()))}"

    def _fenced(self) -> list[int]:
        return [fence.task for fence in self._core.queue.fencing][:5]

    def _stop_members(self) -> Script[str | None]:
        """Stop the members of a round; returns what the job goes on with.

        It is what the last worker leaves, all having stopped at one step.

        Where none did in time, the journal and the newest snapshot go on.
        """
        self._core.replicas.scale(0)
        self._processes.stop_all(WORKER, self._core.settings.drain_grace_s)
        yield from self._core.until(
            lambda: not self._core.replicas.running(WORKER), self._what_stops_waits_for
        )
        left = self._group.cuts.left
        if left is not None and not self._core.ended:
            self._group.cuts.stand()
            yield from self._core.until(
                lambda: not self._core.queue.fencing, self._what_stops_waits_for
            )
            if not self._core.queue.uneven:
                yield from self._checkpoints.keep(left)
                return self._core.status.checkpoint
            self._core.tell("no checkpoint: a worker was killed in the midst of a push")
        return (
            self._core.resume
            if self._core.queue.records_done
            else self._core.status.newest_checkpoint
        )

    def _leave(self) -> Script[None]:
        """Have workers leave first, so that none sees its servers vanish.

        Whoever does not go is killed.
        """
        faults.point("master.shutdown")
        grace_s = self._core.settings.drain_grace_s
        if self._core.status.state != "done":  # what they hold is void, and the servers may be gone
            grace_s = _FAILED_GRACE_S
            self._processes.stop_all(WORKER, grace_s)
        until = self._core.clock.now() + grace_s
        self._core.loop.wake_at(until)
        yield lambda: not self._core.replicas.running(WORKER) or self._core.clock.now() >= until
        self._processes.stop_all(WORKER, 0)
        yield lambda: not self._core.replicas.running(WORKER)
        self._processes.servers_may_leave = True
        self._processes.stop_all(SERVER, _SERVER_GRACE_S)
        self._processes.stop_all(TEACHER, _SERVER_GRACE_S)
        yield lambda: not self._core.replicas.running(SERVER)
        yield lambda: not self._core.replicas.running(TEACHER)
        self.over = True
