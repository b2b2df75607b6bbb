"""A hybrid job: dense parameters with the members of a group, tables on servers; both keep books.

A span counts when the group has applied its dense part and every server its rows. Neither waits for
the other in a step, so they may stand at different positions of a task when something is lost. What
comes back is fenced on the servers, and leased again from the least of all positions, the others
being boundaries of minibatches: then a span is new to a side as a whole, or not at all. A server
drops what it has as a duplicate, and the members what the group has (worker/group/hybrid.py).

A server that is replaced ends the round, for the members would run ahead of it. A checkpoint's cut
is taken by a member where nothing is under way (`TAKE_ALL`), so that both sides stand at the same
place.
"""

from __future__ import annotations

import itertools
from typing import Any

from ...common.errors import EdlError
from ...common.places import Place
from ...durable.loop import Script
from ...durable.schema import Json
from ...proto import master_pb2 as pb
from ..books.saved import books_of
from ..core import Core
from .collective import Collective
from .group_cuts import GroupCuts
from .server_group import ServerGroup
from .servers import Cut, Snapshot

_HOLD_S = 2.0  # pushes are held back for a cut, of which there are none under way


class Hybrid:
    """A group and servers as one Group (group.py).

    `group` does not answer fences (alone=False), and `servers` ask it for its position (beside).
    """

    def __init__(self, core: Core, group: Collective, servers: ServerGroup) -> None:
        self._core = core
        self._group = group
        self._servers = servers
        self._known_servers = 0  # the version of those that the round trains with
        self.cuts = HybridCuts(core, group.cuts, servers)
        self.server_map = servers.server_map
        self.workers = group.workers

    @property
    def version(self) -> int:
        return self._group.version + self._servers.version  # both only rise

    @property
    def connected(self) -> bool:
        return self._group.connected

    def memory(self) -> Json:
        return {"servers": self._servers.memory(), "collective": self._group.memory()}

    def remember(self, memory: Json) -> None:
        if memory.keys() != {"servers", "collective"}:
            raise ValueError(f"a hybrid group has no {sorted(memory)}")
        self._servers.remember(memory["servers"])
        self._known_servers = self._servers.version
        self._group.remember(memory["collective"])

    def settle(self) -> None:
        group, servers = self._group, self._servers
        servers.tend()
        if servers.version != self._known_servers:
            self._known_servers = servers.version
            group.workers.failed()
        if self._core.ended:
            return
        group.tend(may_form=servers.connected)
        durable: list[int] = []
        if group.standing.newly_durable or servers.server_map.newly_covered:
            group.standing.newly_durable = servers.server_map.newly_covered = False
            there = set(servers.server_map.durable_tasks())
            durable = [task for task in group.standing.durable_tasks() if task in there]
        self._core.retire(durable)

    def close(self) -> None:
        self._group.close()
        self._servers.close()

    def steps(self) -> Script[int]:
        return (yield from self._group.steps())

    def flush(self) -> Script[None]:
        yield from self._group.flush()


class HybridCuts:
    """The Cuts (group.py) of both sides at once: the group is one more shard."""

    def __init__(self, core: Core, group: GroupCuts, servers: ServerGroup) -> None:
        self._core = core
        self._group = group
        self._servers = servers
        self._left_numbers = itertools.count(1)

    def take(self) -> Script[tuple[Cut, dict[str, Any]]]:
        cut = yield from self._group.have_taken(pb.Order.TAKE_ALL)
        return cut, books_of(self._core.queue, cut.applied)

    def now(self) -> Script[tuple[Cut, dict[str, Any] | None]]:
        return (yield from self._group.now())

    def snapshot(self, cut: str, directory: Place) -> Snapshot:
        rows = self._servers.cuts.snapshot(cut, directory)
        return _together(self._group.snapshot(cut, directory), rows)

    def unpin(self, cut: str) -> None:
        self._group.unpin(cut)
        if cut:
            self._servers.cuts.unpin(cut)

    @property
    def left(self) -> Cut | None:
        return self._group.left

    def stand(self) -> None:
        self._group.stand()

    def kept(self, left: Cut, directory: Place) -> Snapshot:
        shards = self._servers.shards
        name = f"left-{self._core.journal.epoch}-{next(self._left_numbers)}"
        cut = shards.take_cut(name, _HOLD_S)
        if cut is None:
            raise EdlError("the servers do not stand at one place")
        try:
            rows = shards.snapshot(cut.name, directory)
        finally:
            shards.unpin(cut.name)
        return _together(self._group.kept(left, directory), rows)


def _together(group: Snapshot, rows: Snapshot) -> Snapshot:
    """Return the files of the group and of the servers: the group is one more shard."""
    return Snapshot((*rows.files, *group.files), group.model, rows.num_shards + group.num_shards)
