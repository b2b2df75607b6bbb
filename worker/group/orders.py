"""The master's orders that a member has not carried out yet; a round that ends takes none along."""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from ...proto import master_pb2 as pb


class OrderSink(Protocol):
    """The sink that takes the orders of a round as they are heard."""

    @property
    def known(self) -> int:
        """The number up to which the master need not say orders again."""
        ...

    def put(self, order: pb.Order) -> None: ...


class Orders:
    """Orders that each member carries out as soon as it can."""

    def __init__(self) -> None:
        self.known = 0
        self._waiting: deque[pb.Order] = deque()

    def put(self, order: pb.Order) -> None:
        """Remember an order, unless it was known."""
        if order.id > self.known:
            self.known = order.id
            self._waiting.append(order)

    def next(self, settled: bool) -> pb.Order | None:
        """Return the next order; None where none can be carried out now.

        `settled`: nothing is under way on the servers.
        """
        if not self._waiting or (self._waiting[0].kind == pb.Order.TAKE_ALL and not settled):
            return None
        return self._waiting.popleft()


class AgreedOrders:
    """Orders of which those to take a cut wait until all members have them."""

    def __init__(self) -> None:
        self._others = Orders()
        self._lock = threading.Lock()
        self._round = self._taken = 0
        # Of this round, or of one that this member has not heard of:
        self._takes: list[pb.Order] = []

    @property
    def known(self) -> int:
        """The number up to which the master need not say orders again."""
        return self._others.known

    def begin(self, round_: int) -> None:
        """Begin a round: cuts that an earlier one should have taken are asked for again."""
        with self._lock:
            self._round, self._taken = round_, 0
            self._takes = [order for order in self._takes if order.round >= round_]

    def put(self, order: pb.Order) -> None:
        """Remember an order, unless it was known or is of a round that is over."""
        if order.kind != pb.Order.TAKE:
            self._others.put(order)
            return
        with self._lock:
            if order.id > self.known and order.round >= self._round:
                self._takes.append(order)
            self._others.known = max(self.known, order.id)

    def forget(self, cut: str) -> None:
        """Count a cut as taken, since it is wanted no more."""
        with self._lock:
            left = [order for order in self._takes if order.cut != cut]
            self._taken += len(self._takes) - len(left)
            self._takes = left

    @property
    def told(self) -> int:
        """Cuts that this member was told to take in the round."""
        with self._lock:
            return self._taken + sum(order.round == self._round for order in self._takes)

    def next_take(self, agreed: int, idle: bool) -> pb.Order | None:
        """Return the next cut if it is time: all know of it, or there is nothing to train."""
        with self._lock:
            if not (idle or self._taken < agreed):
                return None
            if not self._takes or self._takes[0].round != self._round:
                return None
            self._taken += 1
            return self._takes.pop(0)

    def next_other(self) -> pb.Order | None:
        """Return the next order that is not to take a cut."""
        return self._others.next(settled=True)
