"""A member of an all-reduce group that shards the model: what is other than in group_worker.py.

A round begins when all of its members have their parts (sharded_state.py), which they put together out
of those of the round before, from whoever has them. Until all have, each keeps what it held; so
whenever a member dies, the others have a whole state between them, of the step before or after.
Nobody trains meanwhile.

A cut is taken by all after the same step: how many orders to take one a member has had travels with
the vote of each step, and where all have had as many, they are carried out. Who has nothing to train
takes it at once; should another one have made a step more, the master asks again.

Whoever leaves hands its parts out until the master says that nobody needs them. Where all leave, one
of them writes the state.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...common.errors import EdlError
from ...proto import master_pb2 as pb
from ...proto import worker_pb2 as peers_pb
from .loop import _JOIN_WAIT_S, GroupWorker, _Orders, _Round, _Steps, _told
from .peers import PartClient
from .process_group import RoundOver
from .sharded_state import Part, Read, ShardedState, Span, Stretch, pack, unpack

log = logging.getLogger(__name__)

Parts = Mapping[int, Sequence[str]]  # by rank: where it can be had


class ShardedWorker(GroupWorker):
    """See the module, and GroupWorker. Its trainer is a ShardedTrainer."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._orders = self._turns = _Turns()
        self._client = PartClient(self._token)
        self._states.answer = self._answer

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._client.close()

    # -- rounds

    def _request(self, **more: Any) -> pb.JoinRequest:
        state = self._trainer.state
        request = super()._request(**more)
        request.parts.extend(pb.Part(world=world, rank=rank) for world, rank in state.held())
        request.pending = state.pending is not None
        return request

    def _train(self, reply: pb.JoinReply) -> bool:
        state = self._trainer.state
        state.layout = len(reply.peers), reply.rank
        state.meet(-1 if reply.afresh else reply.version)
        self._trainer.agreed = self._trainer.takes = 0
        self._turns.begin(reply.round)
        return super()._train(reply)

    def _steps(self, round_: _Round) -> _Steps:
        return _ShardedSteps(self, round_)

    def _offer_state(self, reply: pb.JoinReply) -> None:
        """Get what this member has to have in the round."""
        trainer, state, round_ = self._trainer, self._trainer.state, self._round
        assert round_ is not None

        def over() -> bool:
            return round_.is_broken

        if not reply.afresh:
            peers = [*reply.peers, *reply.givers]
            if state.version != reply.version:
                held = next(peer.address for peer in peers if peer.parts)
                request = peers_pb.FetchPartRequest(version=reply.version)
                state.unpack_books(self._client.fetch(held, request, over), reply.version)
            there = {
                rank: [peer.address for peer in peers if rank in peer.parts]
                for rank in range(reply.parts)
            }
            state.assemble(reply.parts, self._reader(state, there, over, version=reply.version))
            trainer.follow()
            sizes = [part.numel for part in state.current]
            log.info("round=%d -> assembled step=%d values=%s", reply.round, state.version, sizes)
        trainer.source = self._of_round(reply, over)

    def _of_round(self, reply: pb.JoinReply, over: Callable[[], bool]) -> Read:
        """Reads the parts of now, of whoever is in the round."""
        state = self._trainer.state
        addresses = {rank: [peer.address] for rank, peer in enumerate(reply.peers)}

        def read(world: int, rank: int, spans: Sequence[Span]) -> list[Stretch]:
            return self._reader(state, addresses, over, version=state.version)(world, rank, spans)

        return read

    def _reader(
        self, state: ShardedState, there: Parts, over: Callable[[], bool], **which: Any
    ) -> Read:
        """Reads parts: those that this member has itself, others where they are. `which`: of a version
        or a cut. What it returns raises RoundOver where one cannot be had any more."""
        device = state.device

        def read(world: int, rank: int, spans: Sequence[Span]) -> list[Stretch]:
            own = _named(state.parts, world, rank)
            if own is not None:
                return own.read(spans)
            request = peers_pb.FetchPartRequest(world=world, rank=rank, **which)
            request.stretches.extend(
                peers_pb.Stretch(number=number, start=start, stop=stop)
                for number, start, stop in spans
            )
            if not there.get(rank):
                raise RoundOver(f"nobody has part {rank} of {world}")
            return unpack(self._client.fetch(there[rank][0], request, over), device)

        return read

    def _answer(self, request: peers_pb.FetchPartRequest) -> peers_pb.FetchPartReply:
        """To a member that asks for a part, or for the books."""
        state = self._trainer.state
        if request.cut:
            cut = self._cuts.get(request.cut)
            if cut is None:
                return peers_pb.FetchPartReply(gone=True)
            state = cut
        with state.lock:
            if not request.cut and state.version != request.version:
                return peers_pb.FetchPartReply(gone=state.version > request.version)
            if not request.world:
                return peers_pb.FetchPartReply(found=True, data=state.pack_books())
            part = _named(state.parts, request.world, request.rank)
            if part is None:
                return peers_pb.FetchPartReply(gone=True)
            spans = [(each.number, each.start, each.stop) for each in request.stretches]
            stretches = part.read(spans)
        return peers_pb.FetchPartReply(found=True, data=pack(stretches))

    def _leave(self) -> None:
        """Go, once nobody needs what this member has; write the state, where all go."""
        self.state = "draining"
        state = self._trainer.state
        while not self._fenced.is_set():
            reply = self._master.join(self._request(wait_s=_JOIN_WAIT_S, leaves=True))
            if reply.outcome != pb.JoinReply.WAIT:
                return
            if reply.version == state.version + 1:
                state.meet(reply.version)
            if reply.save:
                self._save(reply)

    def _save(self, reply: pb.JoinReply) -> None:
        state = self._trainer.state
        there = {
            rank: [giver.address for giver in reply.givers if rank in giver.parts]
            for rank in range(reply.parts)
        }
        read = self._reader(state, there, self._fenced.is_set, version=reply.version)
        try:
            files = state.write_share(Path(reply.save), 0, 1, reply.parts, read)
        except RoundOver as error:  # a giver is gone, or somebody has come: the master knows
            log.warning("leaving -> not saved error=%r", str(error))
            return
        saved = pb.ReportOrderRequest(
            directory=reply.save,
            version=state.version,
            applied=state.applied,
            files=_told(files),
            model_json=state.spec.to_json(),
        )
        self._master.report_order(saved)

    # -- orders

    def _carry_out(self, order: pb.Order) -> None:
        if order.kind == pb.Order.DROP:
            self._turns.forget(order.cut)
        super()._carry_out(order)

    def _write(self, order: pb.Order) -> None:
        """This member's share of a cut, with what it needs of the others."""
        report = pb.ReportOrderRequest(id=order.id)
        try:
            cut = self._cuts[order.cut]
            assert isinstance(cut, ShardedState)
            there = {rank: [address] for rank, address in enumerate(order.addresses)}
            read = self._reader(cut, there, self._fenced.is_set, cut=order.cut)
            members = len(order.addresses)
            files = cut.write_share(Path(order.directory), order.rank, members, members, read)
            report.model_json = cut.spec.to_json()
            report.files.extend(_told(files))
        except Exception as error:  # noqa: BLE001 - the master waits, and tells the user
            report.error = f"{order.directory}: {error}"
        with contextlib.suppress(EdlError):  # the job is over, or the loop meets the same silence
            self._master.report_order(report)


class _Turns(_Orders):
    """Orders of which those to take a cut wait until all members have them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._round = self._taken = 0
        self._cuts: list[
            pb.Order
        ] = []  # of this round, or of one that this member has not heard of

    def begin(self, round_: int) -> None:
        """What a round before should have taken is asked for again."""
        with self._lock:
            self._round, self._taken = round_, 0
            self._cuts = [order for order in self._cuts if order.round >= round_]

    def put(self, order: pb.Order) -> None:
        if order.kind != pb.Order.TAKE:
            super().put(order)
            return
        with self._lock:
            if order.id > self.known and order.round >= self._round:
                self._cuts.append(order)
            self.known = max(self.known, order.id)

    def forget(self, cut: str) -> None:
        """It is wanted no more: count it as taken."""
        with self._lock:
            left = [order for order in self._cuts if order.cut != cut]
            self._taken += len(self._cuts) - len(left)
            self._cuts = left

    @property
    def told(self) -> int:
        """Cuts that this member was told to take in the round."""
        with self._lock:
            return self._taken + sum(order.round == self._round for order in self._cuts)

    def turn(self, agreed: int, idle: bool) -> pb.Order | None:
        """The next cut, if it is time for it."""
        with self._lock:
            if not (idle or self._taken < agreed):
                return None
            if not self._cuts or self._cuts[0].round != self._round:
                return None
            self._taken += 1
            return self._cuts.pop(0)


class _ShardedSteps(_Steps):
    """The steps of one round."""

    _worker: ShardedWorker

    def _do_orders(self) -> None:
        turns, trainer = self._worker._turns, self._trainer
        while True:
            idle = not any(lease.task.kind == pb.TRAIN for lease in self._stream.held())
            order = turns.turn(trainer.agreed, idle) or turns.next(settled=True)
            if order is None:
                break
            self._worker._carry_out(order)
        trainer.takes = turns.told


def _named(parts: Sequence[Part], world: int, rank: int) -> Part | None:
    return next((part for part in parts if part.name == (world, rank)), None)
