"""Cuts of a group of workers: a copy that one member takes of its state between two steps.

Of a sharded state (worker/group/sharded_state.py) each member has a part: then all of a round take
the cut, after the same step, and each writes its share of the files.
"""

from __future__ import annotations

import itertools
import logging
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from ...common import faults, storage
from ...common.errors import EdlError, JobError, Unreachable
from ...common.places import Place
from ...durable.loop import Script
from ...proto import master_pb2 as pb
from ..books.saved import books_of
from ..core import RETRY_S, Core
from .meeting import Meeting
from .orders import Orders, written
from .rounds import Rounds
from .servers import Cut, Snapshot
from .standing import Standing

log = logging.getLogger(__name__)

_WRITE_S = 1800.0  # a member writes all it holds
_LONGEST_CUT_S = 180.0  # until servers and group stand at one place; a guess beyond honest pushes


class GroupCuts:
    """The Cuts (group.py) of a group of workers."""

    def __init__(
        self,
        core: Core,
        rounds: Rounds,
        orders: Orders,
        meeting: Meeting,
        standing: Standing,
    ) -> None:
        self._core = core
        self._rounds = rounds
        self._orders = orders
        self._meeting = meeting
        self._standing = standing
        self._numbers = itertools.count(1)

    def take(self) -> Script[tuple[Cut, dict[str, Any]]]:
        cut = yield from self.have_taken(pb.Order.TAKE)
        return cut, books_of(self._core.queue, cut.applied)

    def now(self) -> Script[tuple[Cut, dict[str, Any] | None]]:
        """Return the state of now, which is no cut: nothing is leased to train meanwhile."""
        yield lambda: self._rounds.running
        return Cut("", self._core.version, {}), None

    def have_taken(self, kind: pb.Order.Kind) -> Script[Cut]:
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
            name = f"cut-{core.journal.epoch}-{next(self._numbers)}"
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

    def snapshot(self, cut: str, directory: Place) -> Snapshot:
        """Have the members that took the cut write it.

        Blocks; raises EdlError.
        """
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
        if cut:
            self._core.loop.post(lambda: self._orders.drop(cut))

    @property
    def left(self) -> Cut | None:
        return self._standing.left

    def stand(self) -> None:
        base = self._standing.base
        self._standing.stand_at(base.applied, self._meeting.lessee)
        self._core.version = base.version

    def kept(self, left: Cut, directory: Place) -> Snapshot:
        there = storage.load(left.name)
        for file in there.files:
            storage.copy(there, file, directory)
        return Snapshot(there.files, there.model, there.num_shards)
