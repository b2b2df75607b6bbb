"""The orders to the members of a group about cuts of their state: take, write, drop.

An order goes to all who have the cut and is over when all have answered. The members learn of their
orders by a long poll (`waiting_for`).
"""

from __future__ import annotations

import itertools
import json
from concurrent.futures import Future
from dataclasses import dataclass

from ...common import storage
from ...common.errors import EdlError, Unreachable
from ...proto import master_pb2 as pb
from .rounds import Peer, Rounds
from .servers import Snapshot

GONE = "the worker that had it is gone"


@dataclass
class _Ordered:
    """A member's share of an order.

    `future`: what became of it, with all `members` who were told; `told`: what they have said so
    far.
    """

    order: pb.Order
    member: str
    members: int
    future: Future[pb.ReportOrderRequest]
    told: list[pb.ReportOrderRequest]

    def fail(self, error: EdlError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def report(self, report: pb.ReportOrderRequest) -> None:
        """Take a member's answer. The last one resolves the future: all files, of one step."""
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


class Orders:
    """The orders that the members of a group have.

    `sharded`: each member has a part of the state; else the first one has it all.

    `epoch`: the master's, so that its numbers are above those of the masters before, which the
    members know.
    """

    def __init__(self, rounds: Rounds, *, sharded: bool, epoch: int) -> None:
        self._rounds = rounds
        self._sharded = sharded
        self._open: dict[int, _Ordered] = {}
        self._numbers = itertools.count((epoch << 32) + 1)
        self._holders: dict[str, list[Peer]] = {}  # by cut: who has it, by rank

    def give(
        self,
        kind: pb.Order.Kind,
        cut: str,
        future: Future[pb.ReportOrderRequest],
        directory: str = "",
    ) -> None:
        """Give an order to all who have the cut, or are to take it.

        `future` is resolved when all have answered.
        """
        if kind in (pb.Order.TAKE, pb.Order.TAKE_ALL):
            members = self._rounds.members
            self._holders[cut] = list(members if self._sharded else members[:1])
        holders = self._holders.get(cut, [])
        if not holders:
            future.set_exception(Unreachable(GONE))
            return
        told: list[pb.ReportOrderRequest] = []
        for rank, holder in enumerate(holders):
            order = pb.Order(
                id=next(self._numbers),
                kind=kind,
                cut=cut,
                directory=directory,
                round=self._rounds.number,
                rank=rank,
                addresses=[each.address for each in holders] if self._sharded else (),
            )
            ordered = _Ordered(order, holder.incarnation, len(holders), future, told)
            self._open[order.id] = ordered

    def drop(self, cut: str) -> None:
        """Have a cut forgotten by all who have it."""
        if self._holders.get(cut):
            self.give(pb.Order.DROP, cut, Future())
        self._holders.pop(cut, None)

    def waiting_for(self, member: str, after: int) -> list[pb.Order]:
        """Return the orders of a member with numbers above `after`."""
        return [o.order for o in self._open.values() if o.member == member and o.order.id > after]

    def reported(self, report: pb.ReportOrderRequest) -> None:
        """Hear from a member what became of an order. May come twice."""
        ordered = self._open.pop(report.id, None)
        if ordered is not None:
            ordered.report(report)

    def round_began(self) -> None:
        """Have the members of a new round take no cut of an old one that not all have taken."""
        for number, ordered in [*self._open.items()]:
            if ordered.order.kind == pb.Order.TAKE:
                del self._open[number]
                ordered.fail(Unreachable("its round is over"))

    def lost(self, incarnation: str) -> None:
        """Forget a member that is gone, with all that it has of cuts."""
        for number, ordered in [*self._open.items()]:
            if ordered.member == incarnation:
                del self._open[number]
                ordered.fail(Unreachable(GONE))
        for cut, holders in [*self._holders.items()]:
            left = [holder for holder in holders if holder.incarnation != incarnation]
            if len(left) < len(holders):
                self._holders[cut] = left
                self.drop(cut)

    def close(self) -> None:
        """Fail all orders: whoever waits for a member need not wait any longer."""
        for ordered in self._open.values():
            ordered.fail(Unreachable("the job is over"))
        self._open.clear()


def written(report: pb.ReportOrderRequest) -> Snapshot:
    """Return the files that members say they have written, the books once each."""
    files = tuple(storage.FileRecord(f.name, f.nbytes, f.sha256) for f in report.files)
    shards = sum(file.name.endswith(".json") for file in files)
    return Snapshot(files, json.loads(report.model_json), shards)
