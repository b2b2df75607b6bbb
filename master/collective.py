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
import json
import logging
import shutil
from collections.abc import Mapping
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
from .core import RETRY_S, Core
from .decisions import Fenced, Lease, Lost, Recovered
from .membership import WORKER
from .orders import Orders
from .plan import Kind
from .rounds import Farewell, Peer, Rounds
from .servers import Cut, Snapshot
from .task import Task

log = logging.getLogger(__name__)

_LAST_CALL_S = 10.0  # for workers that are to come, when a job or all of its group starts; a guess
_WRITE_S = 1800.0  # a member writes all it holds
_LONGEST_CUT_S = 180.0  # until servers and group stand at one place; a guess beyond honest pushes
_FOLDER = "group"  # of snapshots, in the job's


@dataclass
class Base:
    """A checkpoint or snapshot ("": the first values of the model), its steps and its ledger."""

    path: str
    version: int
    applied: Mapping[int, int]


@dataclass(frozen=True)
class CollectiveMemory:
    """What the journal keeps of a group. `members`: of the newest round, by rank; `world`: the parts
    of its state; `givers`: who leaves, with parts that may be needed."""

    base: Base
    afresh: bool
    round: int
    members: list[Peer]
    world: int
    givers: list[Peer]


class Collective:
    """The workers of an all-reduce job as its Group (group.py). See the module.

    `restore`: the checkpoint that it begins from, whose books the queue goes on with. `alone`: there
    are no servers beside it, so that it answers the fences of what a round held, and at once.
    """

    trains_in_rounds = True
    map_version = 0

    def __init__(self, core: Core, restore: str, *, alone: bool = True) -> None:
        self._alone = alone
        # What the group begins from where nobody has its state: a checkpoint, its steps, its ledger.
        self._base = Base(
            restore, 0, {n: core.queue.tasks[n].position for n in core.queue.unretired}
        )
        if restore:
            self._base.version = storage.load(restore).version
        self._afresh = False  # the newest round began from there
        self._gave_up: list[int] = []  # workers that did not come back: the master ends them
        self._core = core
        self._sharded = core.settings.fully_shard
        self._rounds = Rounds(
            last_call_s=_LAST_CALL_S,
            patience_s=3 * core.settings.lease_s,
            sharded=self._sharded,
        )
        self._keys: dict[str, bytes] = {}
        self._orders = Orders(self._rounds, sharded=self._sharded, epoch=core.journal.epoch)
        self._cut_numbers = itertools.count(1)
        self.newly_durable = self._snapshotting = False
        self._at: Mapping[int, int] = self._base.applied  # where the newest round began, by task
        self._last = ""  # the incarnation that was asked to leave its state
        self._is_left = False  # it did, and nobody has gone on since

    def memory(self) -> Json:
        """What a successor must know."""
        rounds = self._rounds
        memory = CollectiveMemory(
            base=self._base,
            afresh=self._afresh,
            round=rounds.number,
            members=[member.lasting() for member in rounds.members],
            world=rounds.world,
            givers=[giver.lasting() for giver in rounds.givers],
        )
        return dump(CollectiveMemory, memory)

    def remember(self, memory: Json) -> None:
        """Go on where the master before ended. Raises ValueError where it wrote something else."""
        known = load(CollectiveMemory, memory)
        self._base, self._at, self._afresh = known.base, known.base.applied, known.afresh
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
        return _written(done)

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
        return cut, self._core.queue.books(cut.applied)

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
        self._core.retire(self.durable_tasks() if self.newly_durable else [])
        self.newly_durable = False

    def tend(self, *, may_form: bool) -> None:
        """Form a round, where it may be, and begin snapshots; retire nothing."""
        core = self._core
        now = core.clock.now()
        for peer in self._rounds.overdue(now):
            core.tell(f"worker {peer.index} did not come back to the group: killed")
            self._gave_up.append(peer.index)
        if may_form and self._rounds.ready(core.replicas.wanted, now):
            self._form()
        elif not self._rounds.running:
            core.loop.wake_at(self._rounds.last_call)
        if not self._snapshotting and self.connected and core.settings.snapshot_s > 0:
            self._snapshotting = True
            core.loop.spawn(self._snapshots())

    def close(self) -> None:
        self._orders.close()

    # -- rounds

    @property
    def lessee(self) -> str:
        return f"round-{self._rounds.number}"

    def is_member(self, incarnation: str, round_: int) -> bool:
        """It trains in this round, which is not over."""
        return round_ == self._rounds.number and self._rounds.is_running(incarnation)

    def lessee_of(self, incarnation: str, round: int) -> str:
        return self.lessee if self.is_member(incarnation, round) else incarnation

    def owes(self, incarnation: str) -> str:
        return self.lessee if self._rounds.owes(incarnation) else ""

    def overdue(self) -> list[int]:
        gave_up, self._gave_up = self._gave_up, []
        return gave_up

    def members(self) -> Collective:
        return self

    def lease(self, request: pb.GetTaskRequest, *, evaluating: bool) -> list[Task] | None:
        """What comes next in the round: the same for all its members, or a task that one does alone
        on the state that all have by then."""
        core, me = self._core, request.replica.incarnation
        if not self.is_member(me, request.round):
            return None
        if self._sharded:
            self._rounds.settle()  # who asks for a task has what the round begins with
        together = Lease(self.lessee, str(request.number))
        if core.queue.knows(together.worker, together.request):
            return core.lease(together)
        if self.changing:
            return None  # the others get the same answer: none of them has this one
        tasks = core.lease(Lease(me, request.request_id, planned=False))
        # What servers still fence comes first once they have: the order of tasks is then that of one
        # worker, however long they take.
        if not tasks and not evaluating and not core.queue.fencing:
            tasks = core.lease(dataclasses.replace(together, planned=True))
        return tasks

    @property
    def changing(self) -> bool:
        """The round is to end, in order: somebody waits to come in."""
        return self._rounds.newcomers

    def join(self, request: pb.JoinRequest) -> None:
        """A worker wants to be in the next round."""
        peer = _peer_of(request)
        was = self._rounds.running
        self._rounds.join(peer, request.round, request.broken, self._core.clock.now())
        if was and not self._rounds.running:
            log.info("round=%d -> over worker=%d", self._rounds.number, peer.index)

    def joined(self, request: pb.JoinRequest) -> pb.JoinReply | None:
        """The round that a worker was asked into; None while there is none."""
        me, rounds = request.replica.incarnation, self._rounds
        if not rounds.is_running(me) or request.round == rounds.number:
            return None
        ranks = [peer.incarnation for peer in rounds.members]
        version, world = rounds.wanted
        givers = [giver for giver in rounds.givers if giver.can_be(version)]
        return pb.JoinReply(
            round=rounds.number,
            rank=ranks.index(me),
            peers=[_told(peer, world) for peer in rounds.members],
            low_water=self._core.queue.low_water,
            afresh=self._afresh,
            restore=self._base.path,
            version=version,
            parts=world,
            givers=[_told(giver, world) for giver in givers],
        )

    def leave(self, request: pb.JoinRequest) -> pb.JoinReply | None:
        """A member goes, in order. The last one saves the state first. May come twice.

        None: it has a part of a sharded state that somebody may need yet."""
        if self._sharded:
            return self._farewell(request)
        me = request.replica.incarnation
        last = self._rounds.leave(me, self._core.clock.now()) and request.version >= 0
        if last and not self._core.ended:
            self._last = me
        reply = pb.JoinReply(outcome=pb.JoinReply.LEAVE)
        if self._last == me:
            reply.save = str(self._folder / f"left-{request.version}-{me}")
        return reply

    def _farewell(self, request: pb.JoinRequest) -> pb.JoinReply | None:
        me = request.replica.incarnation
        leaver = _peer_of(request)
        if self._core.ended or self._is_left:
            return pb.JoinReply(outcome=pb.JoinReply.LEAVE)
        what = self._rounds.farewell(leaver, self._core.clock.now())
        if what is Farewell.GO:
            return pb.JoinReply(outcome=pb.JoinReply.LEAVE)
        version, world = self._rounds.wanted
        reply = pb.JoinReply(outcome=pb.JoinReply.WAIT, version=version, parts=world)
        if what is Farewell.SAVE:
            reply.save = str(self._folder / f"left-{version}-{me}")
            reply.givers.extend(_told(giver, world) for giver in self._rounds.givers)
            return reply
        # It makes the step that it has not made yet, where that is asked for.
        return reply if leaver.version + 1 == version else None

    @property
    def left(self) -> Cut | None:
        base = self._base
        return Cut(base.path, base.version, base.applied) if self._is_left else None

    def stand(self) -> None:
        self._stand_at(self._base.applied, self.lessee)
        self._core.version = self._base.version

    def _leave_state(self, report: pb.ReportOrderRequest) -> None:
        """The last member has saved the state."""
        if self._rounds.running or report.version < self._base.version:
            return
        _written(report).write_manifest(Path(report.directory), report.version)
        self._base = Base(report.directory, report.version, dict(report.applied))
        self.newly_durable = self._is_left = True
        self._core.tell(f"the last worker has left its state, of step {report.version}")
        self._core.save()

    def watched(self, request: pb.WatchRoundRequest, is_leaving: bool) -> pb.WatchRoundReply | None:
        """What a member must know now; None: nothing new."""
        me = request.replica.incarnation
        signal = pb.WatchRoundReply.NOTHING
        if not self.is_member(me, request.round):
            signal = pb.WatchRoundReply.BROKEN
            if self._rounds.number == request.round and not self._rounds.broken:
                return None  # it ends in order
        elif not request.told_to_change and (is_leaving or self.changing):
            signal = pb.WatchRoundReply.CHANGE
        orders = self._orders.waiting_for(me, request.orders)
        if signal == pb.WatchRoundReply.NOTHING and not orders:
            return None
        return pb.WatchRoundReply(signal=signal, orders=orders)

    def lost(self, incarnation: str) -> None:
        self._rounds.lost(incarnation, self._core.clock.now())
        self._orders.lost(incarnation)

    def failed(self) -> None:
        self._rounds.break_(self._core.clock.now())

    def put_key(self, request: pb.PutKeyRequest) -> None:
        if request.round == self._rounds.number:
            self._keys[request.key] = request.value

    def get_key(self, request: pb.GetKeyRequest) -> pb.GetKeyReply | None:
        """None: not there yet."""
        if request.round != self._rounds.number or not self._rounds.running:
            return pb.GetKeyReply(round_over=True)
        value = self._keys.get(request.key)
        return None if value is None else pb.GetKeyReply(found=True, value=value)

    def _form(self) -> None:
        """Begin the next round where the furthest of its members stands."""
        core, queue = self._core, self._core.queue
        lessee, formed = self.lessee, self._rounds.form()
        self._keys.clear()
        self._is_left = False
        self._afresh = formed.afresh
        if self._sharded:
            self._orders.round_began()
        version, there = formed.version, formed.applied
        if formed.afresh:
            version, there = self._base.version, self._base.applied
        before = queue.records_done
        self._stand_at(there, lessee)
        core.version = version
        text = f"round {formed.number}: {len(formed.members)} workers, from step {core.version}"
        if formed.afresh and formed.number > 1:
            again = max(0, before - queue.records_done)
            text += f", which was saved; {again} records that were done are computed again"
        core.tell(text)
        if core.status.state == "starting":
            core.status.state = "running"
        core.save()
        faults.point("master.round", round=formed.number)

    def _stand_at(self, there: Mapping[int, int], lessee: str) -> None:
        """The queue goes on at the positions of a state."""
        core, queue = self._core, self._core.queue
        self._at = there
        core.decide(Lost(lessee))
        core.decide(Recovered({task: there.get(task, 0) for task in queue.unretired}))
        for fence in queue.fencing if self._alone else ():  # else servers have a say
            core.decide(Fenced(fence.task, fence.attempt, [there.get(fence.task, 0)]))

    def position(self, task: int) -> int:
        """A position that the group has reached in a task, maybe not its last: it drops what it has."""
        known = self._core.queue.tasks.get(task)
        return max(self._at.get(task, 0), known.position if known else 0)

    def reported(self, report: pb.ReportOrderRequest) -> None:
        """What became of an order, or the state of the last member. May come twice."""
        if report.id:
            self._orders.reported(report)
        else:
            self._leave_state(report)

    # -- snapshots, and what they make superfluous

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
                written = yield core.loop.background(lambda: self._write(cut))  # noqa: B023
            except (OSError, EdlError) as error:
                core.tell(f"snapshot of step {cut.version} cannot be written: {error}")
            else:
                kept, older = cut.version, Path(self._base.path)
                self._base, self.newly_durable = Base(str(written), kept, cut.applied), True
                core.save()
                if older.parent == self._folder:
                    shutil.rmtree(older, ignore_errors=True)
            self._orders.drop(cut.name)

    @property
    def _folder(self) -> Path:
        return self._core.job_dir / _FOLDER

    def _write(self, cut: Cut) -> Path:
        """In the background."""
        directory = storage.free_directory(self._folder, cut.version)
        directory.mkdir(parents=True, exist_ok=True)
        self.snapshot(cut.name, directory).write_manifest(directory, cut.version)
        return directory

    def durable_tasks(self) -> list[int]:
        """Train tasks that the newest snapshot has."""
        done = (self._core.queue.tasks[n] for n in self._core.queue.done_tasks)
        return [
            t.id for t in done if t.kind == Kind.TRAIN and self._base.applied.get(t.id) == t.size
        ]


def _peer_of(request: pb.JoinRequest) -> Peer:
    return Peer(
        request.replica.incarnation,
        request.replica.index,
        request.address,
        request.version,
        dict(request.applied),
        frozenset((part.world, part.rank) for part in request.parts),
        request.pending,
    )


def _told(peer: Peer, world: int) -> pb.Peer:
    """As the others need it: `parts`, of a state in `world` of them."""
    parts = sorted(rank for of, rank in peer.parts if of == world)
    return pb.Peer(index=peer.index, address=peer.address, version=peer.version, parts=parts)


def _written(report: pb.ReportOrderRequest) -> Snapshot:
    """What members say that they have written: the books once each."""
    files = tuple(storage.FileRecord(f.name, f.nbytes, f.sha256) for f in report.files)
    shards = sum(file.name.endswith(".json") for file in files)
    return Snapshot(files, json.loads(report.model_json), shards)
