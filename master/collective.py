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

import itertools
import json
import logging
import shutil
from collections.abc import Callable, Mapping
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
from .decisions import Durable, Fenced, Lost, Recovered
from .membership import WORKER
from .plan import Kind
from .rounds import Farewell, Peer, Rounds
from .servers import Cut, Snapshot

log = logging.getLogger(__name__)

_LAST_CALL_S = 10.0  # for workers that are to come, when a job or all of its group starts; a guess
_WRITE_S = 1800.0  # a member writes all it holds
_LONGEST_CUT_S = 180.0  # until servers and group stand at one place; a guess beyond honest pushes
_FOLDER = "group"  # of snapshots, in the job's


@dataclass
class _Ordered:
    """Work that a member was given. `future`: what became of it, with all `members` who were;
    `told`: what they have said so far."""

    order: pb.Order
    member: str
    members: int
    future: Future[pb.ReportOrderRequest]
    told: list[pb.ReportOrderRequest]

    def fail(self, error: EdlError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def report(self, report: pb.ReportOrderRequest) -> None:
        """A member's answer. The last one resolves the future: all files, of one step."""
        if report.error:
            self.fail(EdlError(report.error))
        self.told.append(report)
        if len(self.told) < self.members or self.future.done():
            return
        if len({each.version for each in self.told}) > 1:
            self.fail(Unreachable("the members took it after different steps"))
            return
        for other in self.told[:-1]:
            report.files.extend(other.files)
        self.future.set_result(report)


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
    """What the job's course needs of the group, as ServerGroup is for servers. See the module.

    `restore`: the checkpoint that it begins from, whose books the queue goes on with.
    """

    def __init__(self, core: Core, restore: str) -> None:
        # What the group begins from where nobody has its state: a checkpoint, its steps, its ledger.
        self._base = Base(
            restore, 0, {n: core.queue.tasks[n].position for n in core.queue.unretired}
        )
        if restore:
            self._base.version = storage.load(restore).version
        self._afresh = False  # the newest round began from there
        self.gave_up: list[int] = []  # workers that did not come back: the master ends them
        self._core = core
        self._sharded = core.settings.fully_shard
        self._rounds = Rounds(
            last_call_s=_LAST_CALL_S,
            patience_s=3 * core.settings.lease_s,
            sharded=self._sharded,
        )
        self._keys: dict[str, bytes] = {}
        self._orders: dict[int, _Ordered] = {}
        # above those of the masters before, which the members know
        self._order_numbers = itertools.count((core.journal.epoch << 32) + 1)
        self._holders: dict[str, list[Peer]] = {}  # by cut: who has it, by rank
        self._cut_numbers = itertools.count(1)
        self._newly_durable = self._snapshotting = False
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
        """Of what it is asked; with another one, what was asked may be void."""
        return self._rounds.number

    @property
    def connected(self) -> bool:
        return self._rounds.number > 0

    def reply(self) -> pb.GetServersReply:
        """Where the servers are: there are none."""
        return pb.GetServersReply()

    @property
    def shards(self) -> Collective:
        """What is called in the background."""
        return self

    def snapshot(self, cut: str, directory: Path) -> Snapshot:
        """Have the member that took the cut write it. Blocks; raises EdlError."""
        return self._group_snapshot(cut, directory)

    def _group_snapshot(self, cut: str, directory: Path) -> Snapshot:
        future: Future[pb.ReportOrderRequest] = Future()
        if not self._core.loop.post(
            lambda: self._order(pb.Order.WRITE, cut, future, str(directory))
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
            self._core.loop.post(lambda: self._drop(cut))

    def kept(self, left: Cut, directory: Path) -> Snapshot:
        """In the background: bring what the last worker has left to the folder of a checkpoint."""
        there = storage.load(left.name)
        for file in there.files:
            storage.copy_file(there.directory / file.name, directory / file.name)
        return Snapshot(there.files, there.model, there.num_shards)

    def steps(self) -> Script[int]:
        """Its steps so far."""
        yield lambda: self.connected
        return self._core.version

    def flush(self) -> Script[None]:
        """Nothing waits for others: a step has them all."""
        yield lambda: True

    def now(self) -> Script[tuple[Cut, dict[str, Any] | None]]:
        """What an evaluation reads: the state of now, since nothing is leased to train meanwhile."""
        yield lambda: self._rounds.running
        return Cut("", self._core.version, {}), None

    def cut(self) -> Script[tuple[Cut, dict[str, Any]]]:
        """A copy of the state between two steps, and the books of that very state."""
        cut = yield from self._take(pb.Order.TAKE, lambda: self._rounds.running)
        return cut, self._core.queue.books(cut.applied)

    def _take(self, kind: Any, ready: Callable[[], bool]) -> Script[Cut]:
        """Raises JobError where group and servers are never found at one place."""
        core = self._core
        began: float | None = None
        while True:
            yield from core.until(ready, lambda: "a round of workers, for a cut")
            name = f"cut-{core.journal.epoch}-{next(self._cut_numbers)}"
            future: Future[pb.ReportOrderRequest] = Future()
            self._order(kind, name, future)
            try:
                taken = yield future
            except Unreachable as error:  # its member is gone: another one
                log.info("cut=%s -> lost error=%r", name, str(error))
                self._drop(name)
                continue
            if taken.version < 0:
                self._drop(name)
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
        """Do what the state calls for: form rounds, retire, begin snapshots."""
        core = self._core
        if core.ended:
            return
        now = core.clock.now()
        for peer in self._rounds.overdue(now):
            core.tell(f"worker {peer.index} did not come back to the group: killed")
            self.gave_up.append(peer.index)
        if self._may_form and self._rounds.ready(core.replicas.wanted, now):
            self._form()
        elif not self._rounds.running:
            core.loop.wake_at(self._rounds.last_call)
        if not self._snapshotting and self.connected and core.settings.snapshot_s > 0:
            self._snapshotting = True
            core.loop.spawn(self._snapshots())
        self._retire()

    def close(self) -> None:
        """Whoever waits for a member need not wait any longer."""
        for ordered in self._orders.values():
            ordered.fail(Unreachable("the job is over"))
        self._orders.clear()

    # -- rounds

    @property
    def _may_form(self) -> bool:
        return True

    @property
    def lessee(self) -> str:
        """Who holds the leases of train tasks, in the queue's books."""
        return f"round-{self._rounds.number}"

    def is_member(self, incarnation: str, round_: int) -> bool:
        """It trains in this round, which is not over."""
        return round_ == self._rounds.number and self._rounds.is_running(incarnation)

    def owes(self, incarnation: str) -> bool:
        """It has a part in the leases of the newest round: it has not left it in order."""
        return self._rounds.owes(incarnation)

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

    def begun(self) -> None:
        """A member of the round asks for a task: all have what the round begins with."""
        if self._sharded:
            self._rounds.settle()

    @property
    def left(self) -> Cut | None:
        """What the last worker has left; `name`: the folder with the files."""
        base = self._base
        return Cut(base.path, base.version, base.applied) if self._is_left else None

    def stand(self) -> None:
        """Have the queue's positions be those of the base: nobody goes on from another state."""
        self._stand_at(self._base.applied, self.lessee)
        self._core.version = self._base.version

    def _left(self, report: pb.ReportOrderRequest) -> None:
        """The last member has saved the state."""
        if self._rounds.running or report.version < self._base.version:
            return
        _written(report).write_manifest(Path(report.directory), report.version)
        self._base = Base(report.directory, report.version, dict(report.applied))
        self._newly_durable = self._is_left = True
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
        orders = [
            o.order for o in self._orders.values() if o.member == me and o.order.id > request.orders
        ]
        if signal == pb.WatchRoundReply.NOTHING and not orders:
            return None
        return pb.WatchRoundReply(signal=signal, orders=orders)

    def lost(self, incarnation: str) -> None:
        """A worker is gone."""
        self._rounds.lost(incarnation, self._core.clock.now())
        for number, ordered in [*self._orders.items()]:
            if ordered.member == incarnation:
                del self._orders[number]
                ordered.fail(Unreachable("the worker that had it is gone"))
        for cut, holders in [*self._holders.items()]:
            left = [holder for holder in holders if holder.incarnation != incarnation]
            if len(left) < len(holders):
                self._holders[cut] = left
                self._drop(cut)

    def failed(self) -> None:
        """A member cannot finish the step under way: its content fails."""
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
            self._forget_cuts()
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
        self._fence()

    def _fence(self) -> None:
        """Nobody else's books count: what a round held goes on where the next one begins."""
        for fence in self._core.queue.fencing:
            at = [self._at.get(fence.task, 0)]
            self._core.decide(Fenced(fence.task, fence.attempt, at))

    # -- orders

    def _order(
        self, kind: Any, cut: str, future: Future[pb.ReportOrderRequest], directory: str = ""
    ) -> None:
        if kind in (pb.Order.TAKE, pb.Order.TAKE_ALL):
            members = self._rounds.members
            self._holders[cut] = list(members if self._sharded else members[:1])
        holders = self._holders.get(cut, [])
        if not holders:
            future.set_exception(Unreachable("the worker that had it is gone"))
            return
        told: list[pb.ReportOrderRequest] = []
        for rank, holder in enumerate(holders):
            order = pb.Order(
                id=next(self._order_numbers),
                kind=kind,
                cut=cut,
                directory=directory,
                round=self._rounds.number,
                rank=rank,
                addresses=[each.address for each in holders] if self._sharded else (),
            )
            ordered = _Ordered(order, holder.incarnation, len(holders), future, told)
            self._orders[order.id] = ordered

    def _drop(self, cut: str) -> None:
        if self._holders.get(cut):
            self._order(pb.Order.DROP, cut, Future())
        self._holders.pop(cut, None)

    def _forget_cuts(self) -> None:
        """Those that not all have taken: members of a new round take none of an old one."""
        for number, ordered in [*self._orders.items()]:
            if ordered.order.kind == pb.Order.TAKE:
                del self._orders[number]
                ordered.fail(Unreachable("its round is over"))

    def reported(self, report: pb.ReportOrderRequest) -> None:
        """What became of an order, or the state of the last member. May come twice."""
        if not report.id:
            self._left(report)
            return
        ordered = self._orders.pop(report.id, None)
        if ordered is not None:
            ordered.report(report)

    # -- snapshots, and what they make superfluous

    def _snapshots(self) -> Script[None]:
        """One now and then, for as long as there is training."""
        core = self._core
        kept = core.version
        while not core.ended:
            yield from core.loop.sleep(core.settings.snapshot_s)
            if core.version == kept or core.status.state != "running":
                continue
            cut = yield from self._take(pb.Order.TAKE, lambda: self._rounds.running)
            try:
                written = yield core.loop.background(lambda: self._write(cut))  # noqa: B023
            except (OSError, EdlError) as error:
                core.tell(f"snapshot of step {cut.version} cannot be written: {error}")
            else:
                kept, older = cut.version, Path(self._base.path)
                self._base, self._newly_durable = Base(str(written), kept, cut.applied), True
                core.save()
                if older.parent == self._folder:
                    shutil.rmtree(older, ignore_errors=True)
            self._drop(cut.name)

    @property
    def _folder(self) -> Path:
        return self._core.job_dir / _FOLDER

    def _write(self, cut: Cut) -> Path:
        """In the background."""
        directory = storage.free_directory(self._folder, cut.version)
        directory.mkdir(parents=True, exist_ok=True)
        self._group_snapshot(cut.name, directory).write_manifest(directory, cut.version)
        return directory

    def _retire(self) -> None:
        """Forget what is done, and what the newest snapshot has."""
        queue, running = self._core.queue, self._core.evaluations.running
        gone = [n for n in queue.done_results if queue.tasks[n].group not in running]
        if self._newly_durable:
            self._newly_durable = False
            gone += self._durable_tasks()
        if gone:
            self._core.decide(Durable(gone))

    def _durable_tasks(self) -> list[int]:
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
