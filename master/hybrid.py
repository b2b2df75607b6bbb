"""A hybrid job: dense parameters with the members of a group, tables on servers; both keep books.

A span counts when the group has applied its dense part and every server its rows. Neither waits for
the other in a step, so they may stand at different positions of a task when something is lost. What
comes back is fenced on the servers, and leased again from the least of all positions, the others
being boundaries of minibatches: then a span is new to a side as a whole, or not at all. A server drops
what it has as a duplicate, and the members what the group has (worker/group/hybrid.py).

A server that is replaced ends the round, for the members would run ahead of it. A checkpoint's cut is
taken by a member where nothing is under way (`TAKE_ALL`), so that both sides stand at the same place.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from ..common.errors import EdlError
from ..durable.loop import Script
from ..durable.schema import Json
from ..proto import master_pb2 as pb
from .collective import Collective
from .core import Core
from .server_group import ServerGroup
from .servers import Cut, Snapshot

_HOLD_S = 2.0  # pushes are held back for a cut, of which there are none under way


class Hybrid(Collective):
    """The group of a job that has servers as well. See the module."""

    def __init__(self, core: Core, restore: str, servers: ServerGroup) -> None:
        super().__init__(core, restore)
        self._servers = servers
        self._known_servers = 0  # the version of those that the round trains with
        self._left_numbers = itertools.count(1)
        servers.beside = self._position

    def memory(self) -> Json:
        return {"servers": self._servers.memory(), "collective": super().memory()}

    def remember(self, memory: Json) -> None:
        self._servers.remember(memory["servers"])
        self._known_servers = self._servers.version
        super().remember(memory["collective"])

    # -- as the job's course sees it

    @property
    def version(self) -> int:
        return super().version + self._servers.version  # both only rise

    def reply(self) -> pb.GetServersReply:
        return self._servers.reply()

    def cut(self) -> Script[tuple[Cut, dict[str, Any]]]:
        queue = self._core.queue
        cut = yield from self._take(
            pb.Order.TAKE_ALL, lambda: self._rounds.running and not queue.uneven
        )
        return cut, queue.books(cut.applied)

    def snapshot(self, cut: str, directory: Path) -> Snapshot:
        rows = self._servers.shards.snapshot(cut, directory)
        return _together(self._group_snapshot(cut, directory), rows)

    def unpin(self, cut: str) -> None:
        super().unpin(cut)
        if cut:
            self._servers.shards.unpin(cut)

    def kept(self, left: Cut, directory: Path) -> Snapshot:
        shards = self._servers.shards
        name = f"left-{self._core.journal.epoch}-{next(self._left_numbers)}"
        cut = shards.cut(name, _HOLD_S)
        if cut is None:
            raise EdlError("the servers do not stand at one place")
        try:
            rows = shards.snapshot(cut.name, directory)
        finally:
            shards.unpin(cut.name)
        return _together(super().kept(left, directory), rows)

    def settle(self) -> None:
        self._servers.tend()
        if self._servers.version != self._known_servers:
            self._known_servers = self._servers.version
            self.failed()
        self._newly_durable |= self._servers.newly_covered
        self._servers.newly_covered = False
        super().settle()

    def close(self) -> None:
        super().close()
        self._servers.close()

    # -- the two books

    @property
    def _may_form(self) -> bool:
        return self._servers.connected

    def _position(self, task: int) -> int:
        """Where the group stands in a task, or less: it drops what it has."""
        known = self._core.queue.tasks.get(task)
        return max(self._at.get(task, 0), known.position if known else 0)

    def _fence(self) -> None:
        """The servers have a say: see ServerGroup.tend."""

    def _durable_tasks(self) -> list[int]:
        there = set(self._servers.durable_tasks())
        return [task for task in super()._durable_tasks() if task in there]


def _together(group: Snapshot, rows: Snapshot) -> Snapshot:
    """The group is one more shard."""
    return Snapshot((*rows.files, *group.files), group.model, rows.num_shards + group.num_shards)
