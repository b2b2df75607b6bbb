"""Workers that train together: a round leases train tasks, and all its members get the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...proto import master_pb2 as pb
from ..books.decisions import Lease
from ..books.task import Task
from ..core import Core
from ..membership import Member
from .meeting import Meeting
from .rounds import Rounds


class RoundWorkers:
    """The Workers (group.py) of a job whose workers meet in rounds (rounds.py)."""

    trains_in_rounds = True

    def __init__(self, core: Core, rounds: Rounds, meeting: Meeting) -> None:
        self._core = core
        self._rounds = rounds
        self._meeting = meeting

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

    def all_train(self, workers: Sequence[Member]) -> bool:
        """Tell whether the round is one of all these workers, who have all made a step in it."""
        rounds = self._rounds
        there = len(rounds.members) == len(workers) and rounds.all_train
        return there and all(w.scalars.get("round") == rounds.number for w in workers)

    def lost(self, incarnation: str) -> None:
        self._meeting.lost(incarnation)

    def failed(self) -> None:
        self._meeting.failed()

    def lease(self, request: pb.GetTaskRequest, evaluating: bool) -> list[Task] | None:
        """Return the tasks of the round, or those that this worker does alone.

        All members get the same ones, but for those that one does alone, on the state that all have
        by then.
        """
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
        # What servers still fence comes first once they have: the order of tasks is then that of
        # one worker, however long they take.
        if not tasks and not evaluating and not core.queue.fencing:
            tasks = core.lease(dataclasses.replace(together, planned=True))
        return tasks
