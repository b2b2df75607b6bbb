"""The group of an all-reduce job: its rounds, its state as the one shard that it is, its snapshots.

To the books the group is one shard, whose ledger each member carries beside the parameters. A round
holds the leases of train tasks: its members ask for them by number and all get the same ones. When a
round ends they come back and are fenced at once, at the positions of the state that the next round
begins with, so the same queue as with parameter servers keeps every record's count.

A cut is a copy that one member takes of its state between two steps and writes beside training.
Snapshots are such cuts: what the group begins from should all its members be lost at once.

Of a sharded state (worker/group/sharded_state.py) each member has a part: then all of a round take the cut,
after the same step, and each writes its share of the files.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import shutil
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common import faults, storage
from ..common.errors import EdlError, JobError, Unreachable
from ..durable.loop import Script
from ..durable.schema import Json, dump, load
from ..proto import master_pb2 as pb
from .books import books_of
from .core import RETRY_S, Core
from .decisions import Lease
from .meeting import Meeting
from .membership import WORKER
from .orders import Orders, written
from .rounds import Peer, Rounds
from .servers import Cut, Snapshot
from .standing import Base, Standing
from .task import Task

log = logging.getLogger(__name__)

_LAST_CALL_S = 10.0  # for workers that are to come, when a job or all of its group starts; a guess
_WRITE_S = 1800.0  # a member writes all it holds
_LONGEST_CUT_S = 180.0  # until servers and group stand at one place; a guess beyond honest pushes


@dataclass(frozen=True)
class CollectiveMemory:
    """The part of the journal that a group has. `members`: of the newest round, by rank; `world`: the
    parts of its state; `givers`: who leaves, with parts that may be needed."""

    base: Base
    afresh: bool
    round: int
    members: list[Peer]
    world: int
    givers: list[Peer]


class Collective:
    """The workers of an all-reduce job as its Group (group.py). See the module.

    `restore`: the checkpoint that it begins from, whose books the queue goes on with. `alone`: there
    are no servers beside it. `standing`: where its books stand.
    """

    trains_in_rounds = True
    map_version = 0

    def __init__(self, core: Core, restore: str, *, alone: bool = True) -> None:
        self._core = core
        sharded = core.settings.fully_shard
        self._rounds = Rounds(
            last_call_s=_LAST_CALL_S, patience_s=3 * core.settings.lease_s, sharded=sharded
        )
        self._orders = Orders(self._rounds, sharded=sharded, epoch=core.journal.epoch)
        self.standing = Standing(core, restore, alone=alone)
        self._meeting = Meeting(core, self._rounds, self._orders, self.standing, sharded=sharded)
        self._cut_numbers = itertools.count(1)
        self._snapshotting = False

    def memory(self) -> Json:
        rounds = self._rounds
        memory = CollectiveMemory(
            base=self.standing.base,
            afresh=self._meeting.afresh,
            round=rounds.number,
            members=[member.lasting() for member in rounds.members],
            world=rounds.world,
            givers=[giver.lasting() for giver in rounds.givers],
        )
        return dump(CollectiveMemory, memory)

    def remember(self, memory: Json) -> None:
        known = load(CollectiveMemory, memory)
        self.standing.remember(known.base)
        self._meeting.afresh = known.afresh
        members, givers = tuple(known.members), tuple(known.givers)
        there = {member.incarnation for member in self._core.members.of(WORKER)}
        self._rounds.remember(known.round, members, known.world, givers)
        for member in (*members, *givers):
            if member.incarnation not in there:
                self.lost(member.incarnation)

    # -- as the job's course sees it

    @property
    def version(self) -> int:
        return self._rounds.number

    @property
    def connected(self) -> bool:
        return self._rounds.number > 0

    def servers(self) -> pb.GetServersReply:
        """There are none."""
        return pb.GetServersReply()

    def arguments(self, index: int) -> tuple[str, ...]:
        return ()

    def covered(self, index: int, coverage: pb.Coverage) -> None:
        """Nobody has snapshots of servers."""

    def snapshot(self, cut: str, directory: Path) -> Snapshot:
        """Have the members that took the cut write it. Blocks; raises EdlError."""
        future: Future[pb.ReportOrderRequest] = Future()
        if not self._core.loop.post(
            lambda: self._orders.give(pb.Order.WRITE, cut, future, str(directory))
        ):
            raise Unreachable("the job is over")
        try:
            done = future.result(_WRITE_S)
        except FutureTimeout:
            raise EdlError(f"a member has not written {directory} in {_WRITE_S:g} s") from None
        return written(done)

    def unpin(self, cut: str) -> None:
        """Forget a cut."""
        if cut:
            self._core.loop.post(lambda: self._orders.drop(cut))

    def kept(self, left: Cut, directory: Path) -> Snapshot:
        there = storage.load(left.name)
        for file in there.files:
            storage.copy_file(there.directory / file.name, directory / file.name)
        return Snapshot(there.files, there.model, there.num_shards)

    def steps(self) -> Script[int]:
        yield lambda: self.connected
        return self._core.version

    def flush(self) -> Script[None]:
        """Nothing waits for others: a step has them all."""
        yield lambda: True

    def now(self) -> Script[tuple[Cut, dict[str, Any] | None]]:
        """The state of now is no cut: nothing is leased to train meanwhile."""
        yield lambda: self._rounds.running
        return Cut("", self._core.version, {}), None

    def take_cut(self) -> Script[tuple[Cut, dict[str, Any]]]:
        """The cut is a copy of the state between two steps, which a member has."""
        cut = yield from self.take(pb.Order.TAKE)
        return cut, books_of(self._core.queue, cut.applied)

    def take(self, kind: pb.Order.Kind) -> Script[Cut]:
        """Have the members take a cut, of the group alone (TAKE) or with the servers (TAKE_ALL).

        Raises JobError where group and servers are never found at one place.
        """
        core = self._core
        together = kind == pb.Order.TAKE_ALL

        def ready() -> bool:
            return self._rounds.running and not (together and core.queue.uneven)

        began: float | None = None
        while True:
            yield from core.until(ready, lambda: "a round of workers, for a cut")
            name = f"cut-{core.journal.epoch}-{next(self._cut_numbers)}"
            future: Future[pb.ReportOrderRequest] = Future()
            self._orders.give(kind, name, future)
            try:
                taken = yield future
            except Unreachable as error:  # its member is gone: another one
                log.info("cut=%s -> lost error=%r", name, str(error))
                self._orders.drop(name)
                continue
            if taken.version < 0:
                self._orders.drop(name)
                began = core.clock.now() if began is None else began
                if core.clock.now() - began > _LONGEST_CUT_S:
                    raise JobError(
                        f"the group and the servers did not stand at one place within "
                        f"{_LONGEST_CUT_S:.0f} s: spans have come to some of them only"
                    )
                yield from core.loop.sleep(RETRY_S)
                continue
            faults.point("master.cut", cut=name)
            return Cut(name, taken.version, dict(taken.applied))

    def settle(self) -> None:
        if self._core.ended:
            return
        self.tend(may_form=True)
        self._core.retire(self.standing.durable_tasks() if self.standing.newly_durable else [])
        self.standing.newly_durable = False

    def tend(self, *, may_form: bool) -> None:
        """Form a round, where it may be, and begin snapshots; retire nothing."""
        core = self._core
        self._meeting.settle(may_form=may_form)
        if not self._snapshotting and self.connected and core.settings.snapshot_s > 0:
            self._snapshotting = True
            core.loop.spawn(self._snapshots())

    def close(self) -> None:
        self._orders.close()

    # -- its workers

    def members(self) -> Meeting:
        return self._meeting

    @property
    def lessee(self) -> str:
        return self._meeting.lessee

    def lessee_of(self, incarnation: str, round: int) -> str:
        return self.lessee if self._meeting.is_member(incarnation, round) else incarnation

    def owes(self, incarnation: str) -> str:
        return self.lessee if self._rounds.owes(incarnation) else ""

    def overdue(self) -> list[int]:
        return self._meeting.overdue()

    def lost(self, incarnation: str) -> None:
        self._meeting.lost(incarnation)

    def failed(self) -> None:
        self._meeting.failed()

    def lease(self, request: pb.GetTaskRequest, *, evaluating: bool) -> list[Task] | None:
        """All members of the round get the same tasks, but for those that one does alone, on the state
        that all have by then."""
        core, me = self._core, request.replica.incarnation
        if not self._meeting.is_member(me, request.round):
            return None
        self._meeting.asks()
        together = Lease(self.lessee, str(request.number))
        if core.queue.leases.knows(together.worker, together.request):
            return core.lease(together)
        if self._meeting.changing:
            return None  # the others get the same answer: none of them has this one
        tasks = core.lease(Lease(me, request.request_id, planned=False))
        # What servers still fence comes first once they have: the order of tasks is then that of one
        # worker, however long they take.
        if not tasks and not evaluating and not core.queue.fencing:
            tasks = core.lease(dataclasses.replace(together, planned=True))
        return tasks

    # -- the end

    @property
    def left(self) -> Cut | None:
        return self.standing.left

    def stand(self) -> None:
        self.standing.stand_at(self.standing.base.applied, self.lessee)
        self._core.version = self.standing.base.version

    # -- snapshots

    def _snapshots(self) -> Script[None]:
        """One now and then, for as long as there is training."""
        core = self._core
        kept = core.version
        while not core.ended:
            yield from core.loop.sleep(core.settings.snapshot_s)
            if core.version == kept or core.status.state != "running":
                continue
            cut = yield from self.take(pb.Order.TAKE)
            try:
                directory = yield core.loop.background(lambda: self._write(cut))  # noqa: B023
            except (OSError, EdlError) as error:
                core.tell(f"snapshot of step {cut.version} cannot be written: {error}")
            else:
                kept, older = cut.version, Path(self.standing.base.path)
                self.standing.keep(str(directory), kept, cut.applied)
                core.save()
                if older.parent == self._meeting.folder:
                    shutil.rmtree(older, ignore_errors=True)
            self._orders.drop(cut.name)

    def _write(self, cut: Cut) -> Path:
        """Have a cut written, and return its folder. Runs in the background."""
        directory = storage.free_directory(self._meeting.folder, cut.version)
        directory.mkdir(parents=True, exist_ok=True)
        self.snapshot(cut.name, directory).write_manifest(directory, cut.version)
        return directory
