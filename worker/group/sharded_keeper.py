"""The keeper of a sharded state: a member's part, and a mirror of another's.

A round begins when all of its members have their parts (sharded_state.py), which they put together
out of those of the round before, from whoever has them. Until all have, each keeps what it held; so
whenever a member dies, the others have a whole state between them, of the step before or after.
Nobody trains meanwhile.

A cut is taken by all after the same step: how many orders to take one a member has had travels with
the vote of each step, and where all have had as many, they are carried out. Who has nothing to
train takes it at once; should another one have made a step more, the master asks again.

Whoever leaves hands its parts out until the master says that nobody needs them. Where all leave,
one of them writes the state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from ...common.storage import FileRecord
from ...master.client import MasterClient
from ...proto import master_pb2 as pb
from ...proto import worker_pb2 as peers_pb
from ..trainer import Shown
from .cuts import Cuts, saved
from .orders import AgreedOrders
from .parts import Part, Range, Read, Stretch, pack, unpack
from .peers import Fetch, PartClient
from .process_group import RoundOver
from .round import Round
from .sharded import ShardedTrainer
from .sharded_state import ShardedState
from .state_keeper import Door

log = logging.getLogger(__name__)

_LEAVE_WAIT_S = 2.0  # between two looks whether this worker is fenced

Addresses = Mapping[int, Sequence[str]]  # by rank: where its part can be had


class ShardedKeeper:
    """The StateKeeper of a ShardedTrainer's parts."""

    def __init__(
        self, master: MasterClient, trainer: ShardedTrainer, door: Door, *, first_values: str
    ) -> None:
        """Keep nothing yet.

        `first_values`: the checkpoint that gives them to a new job, if one does.
        """
        self.orders = AgreedOrders()
        self._master = master
        self._trainer = trainer
        self._state: ShardedState = trainer.state
        self._address = door.address
        self._first_values = first_values
        self._fenced = threading.Event()
        self._client = PartClient(door.token)
        self._cuts: Cuts[ShardedState] = Cuts(master, self._state.copy, self._write)
        door.states.answer = self._answer

    @property
    def version(self) -> int:
        return self._state.version

    def scalars(self) -> dict[str, float]:
        return {}

    def fence(self) -> None:
        self._fenced.set()

    def close(self) -> None:
        self._client.close()

    # -- rounds

    def request(self) -> pb.JoinRequest:
        state = self._state
        return pb.JoinRequest(
            address=self._address,
            version=state.version,
            applied=state.applied,
            parts=[pb.Part(world=world, rank=rank) for world, rank in state.held()],
            pending=state.pending is not None,
        )

    def enter(self, reply: pb.JoinReply) -> None:
        state = self._state
        state.retire(reply.low_water)
        state.layout = len(reply.peers), reply.rank
        state.meet(-1 if reply.afresh else reply.version)
        self._trainer.agreed = self._trainer.takes = 0
        self.orders.begin(reply.round)

    def begin(self, restore: str) -> None:
        self._state.begin()
        if restore or self._first_values:
            self._state.read(restore or self._first_values, ledger=bool(restore))

    def share(self, reply: pb.JoinReply, over: Callable[[], bool]) -> None:
        """Get the parts that this member has to have in the round."""
        state = self._state
        self._trainer.is_over = over
        if not reply.afresh:
            peers = [*reply.peers, *reply.givers]
            if state.version != reply.version:
                held = next(peer.address for peer in peers if peer.parts)
                request = peers_pb.FetchPartRequest(version=reply.version)
                state.unpack_shared(self._client.fetch(held, request, over), reply.version)
            there = _by_rank(peers, reply.parts)
            state.assemble(reply.parts, self._reader(state, there, over, version=reply.version))
            self._trainer.follow()
            sizes = [part.numel for part in state.current]
            log.info("round=%d -> assembled step=%d values=%s", reply.round, state.version, sizes)
        self._trainer.source = self._of_round(reply, over)

    def fetch(self, _round: Round) -> Fetch | None:
        """Return None, for nothing is to be fetched: nobody trains before all have their parts."""
        return None

    def _of_round(self, reply: pb.JoinReply, over: Callable[[], bool]) -> Read:
        """Return a function that reads the parts of now, of whoever is in the round."""
        state = self._state
        addresses = {rank: [peer.address] for rank, peer in enumerate(reply.peers)}

        def read(world: int, rank: int, ranges: Sequence[Range]) -> list[Stretch]:
            return self._reader(state, addresses, over, version=state.version)(world, rank, ranges)

        return read

    def _reader(
        self,
        state: ShardedState,
        there: Addresses,
        over: Callable[[], bool],
        *,
        version: int = 0,
        cut: str = "",
    ) -> Read:
        """Return a function that reads parts, of a version or a cut.

        Those that this member has itself are read here, others where they are. The function raises
        RoundOver where one cannot be had any more.
        """

        def read(world: int, rank: int, ranges: Sequence[Range]) -> list[Stretch]:
            own = _named(state.parts, world, rank)
            if own is not None:
                return own.read(ranges)
            request = peers_pb.FetchPartRequest(world=world, rank=rank, version=version, cut=cut)
            request.stretches.extend(
                peers_pb.Stretch(number=number, start=start, stop=stop)
                for number, start, stop in ranges
            )
            if not there.get(rank):
                raise RoundOver(f"nobody has part {rank} of {world}")
            return unpack(self._client.fetch(there[rank][0], request, over), state.device)

        return read

    def _answer(self, request: peers_pb.FetchPartRequest) -> peers_pb.FetchPartReply:
        """Answer a member that asks for a part, or for what is not in parts."""
        state = self._state
        if request.cut:
            cut = self._cuts.get(request.cut)
            if cut is None:
                return peers_pb.FetchPartReply(gone=True)
            state = cut
        with state.lock:
            if not request.cut and state.version != request.version:
                return peers_pb.FetchPartReply(gone=state.version > request.version)
            if not request.world:
                return peers_pb.FetchPartReply(found=True, data=state.pack_shared())
            part = _named(state.parts, request.world, request.rank)
            if part is None:
                return peers_pb.FetchPartReply(gone=True)
            ranges = [(each.number, each.start, each.stop) for each in request.stretches]
            stretches = part.read(ranges)
        return peers_pb.FetchPartReply(found=True, data=pack(stretches))

    def leave(self, round_: int, status: Shown) -> None:
        """Go, once nobody needs what this member has; write the state, where all go."""
        status.state = "draining"
        while not self._fenced.is_set():
            request = self.request()
            request.round, request.wait_s, request.leaves = round_, _LEAVE_WAIT_S, True
            reply = self._master.join(request)
            if reply.outcome != pb.JoinReply.WAIT:
                return
            if reply.version == self._state.version + 1:
                self._state.meet(reply.version)
            if reply.save:
                self._save(reply)

    def _save(self, reply: pb.JoinReply) -> None:
        state = self._state
        there = _by_rank(reply.givers, reply.parts)
        read = self._reader(state, there, self._fenced.is_set, version=reply.version)
        try:
            files = state.write_share(reply.save, 0, 1, reply.parts, read)
        except RoundOver as error:  # a giver is gone, or somebody has come: the master knows
            log.warning("leaving -> not saved error=%r", str(error))
            return
        self._master.report_order(saved(reply.save, state, files))

    # -- orders

    def next_order(self, _settled: bool, idle: Callable[[], bool]) -> pb.Order | None:
        order = self.orders.next_take(self._trainer.agreed, idle()) or self.orders.next_other()
        if order is None:
            self._trainer.takes = self.orders.told
        return order

    def carry_out(self, order: pb.Order) -> None:
        if order.kind == pb.Order.DROP:
            self.orders.forget(order.cut)
        self._cuts.carry_out(order)

    def _write(self, cut: ShardedState, order: pb.Order) -> list[FileRecord]:
        """Write this member's share of a cut, with what it needs of the others."""
        there = {rank: [address] for rank, address in enumerate(order.addresses)}
        read = self._reader(cut, there, self._fenced.is_set, cut=order.cut)
        members = len(order.addresses)
        return cut.write_share(order.directory, order.rank, members, members, read)


def _by_rank(peers: Sequence[pb.Peer], parts: int) -> Addresses:
    return {rank: [peer.address for peer in peers if rank in peer.parts] for rank in range(parts)}


def _named(parts: Sequence[Part], world: int, rank: int) -> Part | None:
    return next((part for part in parts if part.name == (world, rank)), None)
