"""A change of the number of servers of a job that goes on: a pause, and nothing is lost.

    1  the workers hand back at their exact positions and leave
    2  one state of all servers is written, as a checkpoint is
    3  those servers are killed, and as many as are wanted begin from it     the journal knows it
    4  they are told the attempts of all tasks, then where they are is told
    5  workers are started, as many as are wanted

A master that is killed before 3 is followed by one that begins again at 1, after it by one that
goes on at 4: how many servers there are tells which. What comes in between (a worker killed as it
pushes, which only workers level; a disk that is full) puts the workers back and is tried again, in
the end given up: the job stays on the servers that it has.
"""

from __future__ import annotations

import dataclasses
import logging

from ..common import faults, storage
from ..common.errors import EdlError
from ..common.places import Place
from ..durable.loop import Script
from .checkpoints import Checkpoints
from .core import Core
from .groups.server_group import ServerGroup
from .membership import SERVER, WORKER
from .processes import Processes
from .replicas import ServersWanted

log = logging.getLogger(__name__)

_NAME = "servers"  # of the named state in the journal: what ServersWanted has, or nothing
_TRIES = 3


def ask(core: Core, servers: int, workers: int) -> str:
    """Have the job go on with so many servers, and then so many workers; return why it does not.

    "": it will. Asked again meanwhile, the newest numbers count.
    """
    settings, changing = core.settings, core.changing
    if changing is not None:
        changing.workers, changing.then = workers, servers
        _remember(core)
        return ""
    if settings.command != "train" or settings.strategy != "ps":
        return "only a job that trains with --strategy ps can change its servers"
    if settings.deterministic:
        return "a --deterministic job keeps its servers: a replay has as many as it began with"
    if not settings.keeps_checkpoints:
        return (
            "servers are changed by way of a checkpoint that all pods can read: give the job a "
            "--checkpoint_dir on a volume or at a store (s3://...)"
        )
    if core.status.state != "running":
        return f"the servers of a job change while it trains: it is {core.status.state}"
    _begin(core, ServersWanted(servers, workers))
    return ""


def _begin(core: Core, wanted: ServersWanted) -> None:
    core.changing = wanted
    _remember(core)
    core.recorder.decided(SERVER, core.clock.now())
    core.tell(f"servers wanted: {wanted.servers} (were {core.settings.num_ps})", kind="scale")


def _remember(core: Core) -> None:
    core.journal.put(_NAME, {} if core.changing is None else vars(core.changing))


def recall(core: Core, servers: int, has_failed: bool) -> None:
    """Go on with as many servers as the master before had, and with what it was about.

    A job that `has_failed`, and goes on, does so as it was.
    """
    if core.settings.num_ps == servers == core.replicas.servers and not core.journal.get(_NAME):
        return
    core.settings = dataclasses.replace(core.settings, num_ps=servers)
    if core.replicas.servers != servers:
        core.replicas.renew_servers(servers)
    if has_failed:
        _remember(core)
    elif wanted := core.journal.get(_NAME):
        core.changing = ServersWanted(**wanted)


class ServersChange:
    """The scripts that change the servers, once somebody has asked."""

    def __init__(
        self, core: Core, group: ServerGroup, processes: Processes, checkpoints: Checkpoints
    ) -> None:
        self._core = core
        self._group = group
        self._processes = processes
        self._checkpoints = checkpoints
        self._runs = False

    def settle(self) -> None:
        """Begin what was asked for, or was under way when the master before was killed."""
        if self._core.changing is not None and not self._runs:
            self._runs = True
            self._core.loop.spawn(self._change(self._core.changing))

    def _change(self, wanted: ServersWanted) -> Script[None]:
        core = self._core
        if core.settings.num_ps != wanted.servers:
            written = yield from self._written(wanted)
            if written is not None:
                self._begin_others(wanted.servers, written)
        faults.point("master.servers_change")
        yield lambda: self._group.connected or core.ended
        core.changing, self._runs = None, False
        if not self._is_over:
            self._processes.want_workers(wanted.workers)
        core.save()
        _remember(core)
        if core.settings.num_ps != wanted.servers:
            core.recorder.forget_changes()
        elif not core.ended:
            core.tell(f"goes on with {wanted.servers} servers")
        if wanted.then not in (0, wanted.servers) and not self._is_over:
            _begin(core, ServersWanted(wanted.then, wanted.workers))

    # -- up to where the journal knows of it

    def _written(self, wanted: ServersWanted) -> Script[Place | None]:
        """Return where the state of all servers is written; None: there is no such place."""
        core, why = self._core, ""
        for _ in range(_TRIES):
            yield from self._drained()
            if self._is_over:
                return None
            try:
                faults.point("master.servers_cut")
                cut, books = yield from self._group.cuts.take(gives_up=True)
                return (yield from self._checkpoints.hand_over(cut, books))
            except (OSError, EdlError) as error:
                why = str(error)
                log.warning("servers -> not changed yet error=%r", why)
            yield from self._levelled(wanted)
        core.tell(f"stays on {core.settings.num_ps} servers: {why}")
        return None

    @property
    def _is_over(self) -> bool:
        return self._core.status.state != "running"

    def _drained(self) -> Script[None]:
        """Have the workers hand back what they have, and leave."""
        core = self._core
        grace_s = core.settings.drain_grace_s
        core.replicas.scale(0)
        core.save()
        self._processes.stop_all(WORKER, grace_s)
        yield from core.until(
            lambda: not core.replicas.running(WORKER) and not core.queue.fencing or self._is_over,
            lambda: "the workers to leave, before the servers change",
        )

    def _levelled(self, wanted: ServersWanted) -> Script[None]:
        """Let workers go on until all servers stand where each task does."""
        core = self._core
        until = core.clock.now() + core.settings.drain_grace_s
        core.replicas.scale(wanted.workers)
        core.loop.wake_at(until)
        yield lambda: not core.queue.uneven or core.clock.now() >= until or self._is_over

    def _begin_others(self, servers: int, written: Place) -> None:
        """Have other servers begin from the checkpoint, which is durable, in the place of these."""
        core = self._core
        before = self._processes.renew_servers(servers)
        core.settings = dataclasses.replace(core.settings, num_ps=servers)
        self._group.forget(str(written))
        core.save()
        faults.point("master.servers_renewed")
        self._processes.kill(before)
        if core.settings.runtime != "kubernetes":  # there the EdlJob has said so
            settings = core.settings.to_json().encode()
            storage.write_file(core.job_dir / "settings.json", settings)
        self._checkpoints.handed_over(written)
