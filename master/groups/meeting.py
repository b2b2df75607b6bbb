"""The place where a group's workers meet: they come into a round, are told of it, and leave it.

The rules are those of rounds.py; here they become the answers to what members ask, and a round that
is formed becomes positions of the queue (standing.py). Members find each other by keys that they
put here.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ...common import faults
from ...proto import master_pb2 as pb
from ..books.decisions import HandBack
from ..core import Core
from ..membership import WORKER
from .orders import Orders, written
from .pauses import Pauses
from .rounds import Farewell, Peer, Rounds
from .stalls import Stalls
from .standing import Standing

log = logging.getLogger(__name__)

FOLDER = "group"  # of snapshots, in the job's


class Meeting:
    """The place where the workers of a group meet.

    `afresh`: the newest round began from the base, not from a member's state.
    """

    def __init__(
        self, core: Core, rounds: Rounds, orders: Orders, standing: Standing, *, sharded: bool
    ) -> None:
        self._core = core
        self._rounds = rounds
        self._orders = orders
        self._standing = standing
        self._sharded = sharded
        self._pauses = Pauses()
        self._stalls = Stalls()
        self._keys: dict[str, bytes] = {}
        self._last = ""  # the incarnation that was asked to leave its state
        self._gave_up: list[int] = []  # workers that did not come back: the master ends them
        self.afresh = False

    @property
    def lessee(self) -> str:
        """The name of the newest round, which holds the leases of train tasks."""
        return f"round-{self._rounds.number}"

    def is_member(self, incarnation: str, round_: int) -> bool:
        """Tell whether this worker trains in this round, which is not over."""
        return round_ == self._rounds.number and self._rounds.is_running(incarnation)

    @property
    def changing(self) -> bool:
        """Tell whether the round is to end, in order: somebody waits to come in."""
        return self._rounds.newcomers

    def join(self, request: pb.JoinRequest) -> None:
        """Let a worker wait for the next round.

        What it did alone in the one before comes back: a member's stream of tasks ends with its
        round.
        """
        me = request.replica.incarnation
        for task in self._core.queue.leases.held_by(me):
            self._core.decide(HandBack(me, task.id, task.attempt))
        peer = _peer_of(request)
        was = self._rounds.running
        self._rounds.join(peer, request.round, request.broken, self._core.clock.now())
        if was and not self._rounds.running:
            log.info("round=%d -> over worker=%d", self._rounds.number, peer.index)

    def joined(self, request: pb.JoinRequest) -> pb.JoinReply | None:
        """Return the round that a worker was asked into; None while there is none."""
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
            afresh=self.afresh,
            restore=self._standing.base.path,
            version=version,
            parts=world,
            givers=[_told(giver, world) for giver in givers],
        )

    def leave(self, request: pb.JoinRequest) -> pb.JoinReply | None:
        """Let a member go, in order.

        The last one saves the state first. May come twice.

        None: it has a part of a sharded state that somebody may need yet.
        """
        if self._sharded:
            return self._farewell(request)
        me = request.replica.incarnation
        last = self._rounds.leave(me, self._core.clock.now()) and request.version >= 0
        if last and not self._core.ended:
            self._last = me
        reply = pb.JoinReply(outcome=pb.JoinReply.LEAVE)
        if self._last == me:
            reply.save = str(self.folder / f"left-{request.version}-{me}")
        return reply

    def _farewell(self, request: pb.JoinRequest) -> pb.JoinReply | None:
        me = request.replica.incarnation
        leaver = _peer_of(request)
        if self._core.ended or self._standing.is_left:
            return pb.JoinReply(outcome=pb.JoinReply.LEAVE)
        what = self._rounds.farewell(leaver, self._core.clock.now())
        if what is Farewell.GO:
            return pb.JoinReply(outcome=pb.JoinReply.LEAVE)
        version, world = self._rounds.wanted
        reply = pb.JoinReply(outcome=pb.JoinReply.WAIT, version=version, parts=world)
        if what is Farewell.SAVE:
            reply.save = str(self.folder / f"left-{version}-{me}")
            reply.givers.extend(_told(giver, world) for giver in self._rounds.givers)
            return reply
        # It makes the step that it has not made yet, where that is asked for.
        return reply if leaver.version + 1 == version else None

    def watched(self, request: pb.WatchRoundRequest, is_leaving: bool) -> pb.WatchRoundReply | None:
        """Return what a member must know now; None: nothing new."""
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

    def put_key(self, request: pb.PutKeyRequest) -> None:
        if request.round == self._rounds.number:
            self._keys[request.key] = request.value

    def get_key(self, request: pb.GetKeyRequest) -> pb.GetKeyReply | None:
        """Return what is known by this key; None: nothing yet."""
        if request.round != self._rounds.number or not self._rounds.running:
            return pb.GetKeyReply(round_over=True)
        value = self._keys.get(request.key)
        return None if value is None else pb.GetKeyReply(found=True, value=value)

    def reported(self, report: pb.ReportOrderRequest) -> None:
        """Hear what became of an order, or where the last member has saved the state.

        May come twice.
        """
        if report.id:
            self._orders.reported(report)
        else:
            self._leave_state(report)

    def _leave_state(self, report: pb.ReportOrderRequest) -> None:
        """Keep the state that the last member has saved."""
        if self._rounds.running or report.version < self._standing.base.version:
            return
        written(report).write_manifest(report.directory, report.version)
        self._standing.keep(report.directory, report.version, report.applied)
        self._standing.is_left = True
        self._core.tell(f"the last worker has left its state, of step {report.version}")
        self._core.save()

    def _form(self) -> None:
        """Begin the next round where the furthest of its members stands."""
        core, queue = self._core, self._core.queue
        since, in_order = self._rounds.ended_at, not self._rounds.broken
        lessee, formed = self.lessee, self._rounds.form()
        self._pauses.formed(
            since, len(formed.members), in_order=in_order, all_train=self._rounds.all_train
        )
        self._keys.clear()
        self._standing.is_left = False
        self.afresh = formed.afresh
        if self._sharded:
            self._orders.round_began()
        version, there = formed.version, formed.applied
        if formed.afresh:
            version, there = self._standing.base.version, self._standing.base.applied
        before = queue.records_done
        self._standing.stand_at(there, lessee)
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

    # -- as the group sees it

    def settle(self, *, may_form: bool) -> None:
        """Give up who does not come back, and form a round where it may be."""
        core, now = self._core, self._core.clock.now()
        for peer in self._rounds.overdue(now):
            core.tell(f"worker {peer.index} did not come back to the group: killed")
            self._gave_up.append(peer.index)
        if may_form and self._rounds.ready(core.replicas.wanted, now):
            self._form()
        elif not self._rounds.running:
            core.loop.wake_at(self._rounds.last_call)

    def overdue(self) -> list[int]:
        """Return the workers that did not come back in time, each once."""
        gave_up, self._gave_up = self._gave_up, []
        return gave_up

    def asks(self) -> None:
        """Note that a member asks for a task: it has what the round begins with."""
        if self._sharded:
            self._rounds.settle()
        cost_s = self._pauses.trains(self._core.clock.now())
        if cost_s is not None:
            self._core.recorder.cost(WORKER, cost_s)

    def lost(self, incarnation: str) -> None:
        """Forget a worker that is gone."""
        self._rounds.lost(incarnation, self._core.clock.now())
        self._orders.lost(incarnation)

    def failed(self) -> None:
        """Break the round: a member cannot finish the step under way."""
        self._rounds.break_(self._core.clock.now())

    def stalls(self, incarnation: str, trying: pb.Trying, seconds: float) -> None:
        """Note that a member has been in a step for so long; break the round where all have."""
        rounds, step = self._rounds, (trying.task, trying.start, trying.end)
        if not rounds.is_running(incarnation):
            return
        members = [member.incarnation for member in rounds.members]
        if len(members) > 1 and self._stalls.told(rounds.number, members, incarnation, step):
            self._core.tell(
                f"round {rounds.number}: all {len(members)} workers wait in the same step for "
                f"{seconds:.0f} s: it begins anew"
            )
            rounds.break_(self._core.clock.now())

    @property
    def folder(self) -> Path:
        """The folder of the group's snapshots."""
        return self._core.job_dir / FOLDER


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
    """Return a member as the others need it: `parts`, of a state in `world` of them."""
    parts = sorted(rank for of, rank in peer.parts if of == world)
    return pb.Peer(index=peer.index, address=peer.address, version=peer.version, parts=parts)
