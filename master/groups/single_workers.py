"""Workers that train each by itself: each leases tasks of its own, and nobody waits for another."""

from __future__ import annotations

from collections.abc import Sequence

from ...common.errors import UsageError
from ...proto import master_pb2 as pb
from ..books.decisions import LeaseSome
from ..books.task import Task
from ..core import Core
from ..membership import WORKER, Member
from .meeting import Meeting

_MOST_TASKS = 32  # of one lease: half of what the books remember of a worker (task_queue.py)


class SingleWorkers:
    """The Workers (group.py) of a job with servers alone."""

    trains_in_rounds = False
    lessee = ""

    def __init__(self, core: Core) -> None:
        self._core = core
        # Tasks that a checkpoint left in the midst come first: the order is that of its job.
        self._awaits_fences = bool(core.queue.fencing)

    def lessee_of(self, incarnation: str, _round: int) -> str:
        return incarnation

    def owes(self, _incarnation: str) -> str:
        return ""

    def lease(self, request: pb.GetTaskRequest, _evaluating: bool) -> list[Task] | None:
        """Return a worker's next tasks.

        Near the end of an epoch everybody gets a share of what is left.
        """
        core = self._core
        self._awaits_fences = self._awaits_fences and bool(core.queue.fencing)
        if self._awaits_fences:
            return []
        share = core.queue.todo // (2 * max(1, core.members.count(WORKER)))
        most = max(1, min(request.most, _MOST_TASKS, share))
        return core.lease(LeaseSome(request.replica.incarnation, request.request_id, most))

    def all_train(self, workers: Sequence[Member]) -> bool:
        """Tell whether all have made a step: those that start have a first one before them."""
        return all("loss" in worker.scalars for worker in workers)

    def failed(self) -> None:
        """Do nothing: nobody waits for the worker that has failed."""

    def lost(self, _incarnation: str) -> None:
        """Do nothing: nobody waits for the worker that is gone."""

    def overdue(self) -> list[int]:
        return []

    def members(self) -> Meeting:
        raise UsageError("this job keeps its parameters on servers: there are no rounds")
