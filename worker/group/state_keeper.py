"""The seam to the keepers of a group's state (`StateKeeper`), and the keeper of a whole state.

sharded_keeper.py has the keeper of a part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...master.client import MasterClient
from ...proto import master_pb2 as pb
from ..trainer import Shown
from .cuts import Cuts, saved
from .orders import Orders, OrderSink
from .peers import Fetch, StateServicer
from .round import Round
from .state import GroupState

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Door:
    """The door at which other members get the state: `states`, at `address`, behind `token`."""

    address: str
    states: StateServicer
    token: str


class StateKeeper(Protocol):
    """The keeper of a member's state.

    The group's loop calls these in this order in each round.
    """

    @property
    def orders(self) -> OrderSink: ...

    @property
    def version(self) -> int:
        """Steps of the state that is here; -1: none is."""
        ...

    def scalars(self) -> dict[str, float]:
        """Return what is shown of the state beside the loss."""
        ...

    def request(self) -> pb.JoinRequest:
        """Return what the master is told of the state when this member joins a round."""
        ...

    def enter(self, reply: pb.JoinReply) -> None:
        """Begin a round; tasks below its low water are asked for no more."""

    def begin(self, restore: str) -> None:
        """Take the first state of a job: that of a checkpoint, unless `restore` is ""."""

    def share(self, reply: pb.JoinReply, over: Callable[[], bool]) -> None:
        """See to it that all members get what they lack.

        `over`: the round is.
        """

    def fetch(self, round_: Round) -> Fetch | None:
        """Begin to fetch the state while others train with it; None: what is needed is here."""
        ...

    def next_order(self, settled: bool, idle: Callable[[], bool]) -> pb.Order | None:
        """Return what is to be carried out now, between two steps.

        `settled`: nothing is under way on the servers. `idle()`: there is nothing to train.
        """
        ...

    def carry_out(self, order: pb.Order) -> None: ...

    def leave(self, round_: int, status: Shown) -> None:
        """Go, once the state is safe without this member.

        `round_`: its last one.
        """

    def fence(self) -> None:
        """Wait for nobody: the master has declared this incarnation lost.

        Any thread may call.
        """

    def close(self) -> None:
        """End with this incarnation."""


class WholeKeeper:
    """A keeper of the whole state, as each member has it; a latecomer fetches it meanwhile."""

    def __init__(
        self,
        master: MasterClient,
        state: GroupState,
        door: Door,
        *,
        first_values: str,
        take_all: Callable[[str], GroupState | None] | None = None,
    ) -> None:
        """Keep this state.

        `first_values`: the checkpoint that gives them to a new job, if one does. `take_all(cut)` is
        that of Cuts.
        """
        self.orders = Orders()
        self._master = master
        self._state = state
        self._door = door
        self._first_values = first_values
        self._cuts: Cuts[GroupState] = Cuts(
            master, state.copy, lambda cut, order: cut.write(order.directory), take_all
        )

    @property
    def version(self) -> int:
        return self._state.version

    def scalars(self) -> dict[str, float]:
        batch = self._state.batch
        return {} if batch is None else batch.scalars()

    def request(self) -> pb.JoinRequest:
        state, address = self._state, self._door.address
        return pb.JoinRequest(address=address, version=state.version, applied=state.applied)

    def enter(self, reply: pb.JoinReply) -> None:
        self._state.retire(reply.low_water)

    def begin(self, restore: str) -> None:
        self._state.begin()
        if restore or self._first_values:
            self._state.read(restore or self._first_values, ledger=bool(restore))

    def share(self, reply: pb.JoinReply, _over: Callable[[], bool]) -> None:
        """Hand out a copy of the state, as it is now, where somebody lacks what this member has."""
        newest = reply.peers[0].version
        lacking = any(peer.version < newest for peer in reply.peers)
        mine = reply.peers[reply.rank].version == newest
        self._door.states.offer(reply.round, self._state.pack() if lacking and mine else None)

    def fetch(self, round_: Round) -> Fetch | None:
        rank, newest = round_.rank, round_.peers[0].version
        if round_.peers[rank].version == newest:
            return None
        there = [peer for peer in round_.peers if peer.version == newest]
        source = there[-1 - rank % len(there)]  # not all from the same one
        log.info("round=%d -> fetching step=%d from=%d", round_.number, newest, source.index)
        return Fetch(source.address, self._door.token, round_.number, self._state.unpack)

    def next_order(self, settled: bool, _idle: Callable[[], bool]) -> pb.Order | None:
        return self.orders.next(settled)

    def carry_out(self, order: pb.Order) -> None:
        self._cuts.carry_out(order)

    def leave(self, round_: int, _status: Shown) -> None:
        """Leave the state to the next ones, where nobody else has it."""
        state = self._state
        asked = pb.JoinRequest(version=state.version, round=round_, leaves=True)
        directory = self._master.join(asked).save
        if directory:
            files = state.write(Path(directory))
            self._master.report_order(saved(directory, state, files))
        self._door.states.offer(round_ + 1, None)

    def fence(self) -> None:
        """Do nothing: nothing here waits for others."""

    def close(self) -> None:
        """Do nothing: nothing is open."""
