"""The answers of the loop's thread to questions of others: at once, or when there is one.

Whoever must wait is parked (parking.py) until what it waits for may have come, or its time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TypeVar

from ..common.errors import EdlError, Unreachable
from .core import Core, as_told
from .groups.group import Group
from .parking import Parked, Parking

Answer = TypeVar("Answer")

# What who waits for an answer waits for.
TASK, SERVERS, ROUND, TEACHERS = "task", "servers", "round", "teachers"
CHECKPOINT = "checkpoint"


class Asking:
    """The questions that wait for the loop's thread.

    `ask`, `ask_and_wait` and `post` may be called from any thread.
    """

    def __init__(self, core: Core, group: Group) -> None:
        self._core = core
        self._group = group
        self._parking = Parking()
        # What was new when those who wait were asked.
        self._asked_tasks = self._asked_servers = self._asked_teachers = 0
        self._teachers: Callable[[], int] = lambda: 0

    def follow_teachers(self, version: Callable[[], int]) -> None:
        """Ask those who wait for teachers again where `version` of their list has risen."""
        self._teachers = version

    def ask(self, answer: Callable[[], Answer]) -> Future[Answer]:
        """Return the answer that the loop's thread will give, and that may tell of decisions."""
        future: Future[Answer] = Future()

        def event() -> None:
            try:
                self._core.answer(future, answer())
            except EdlError as error:
                future.set_exception(as_told(error))
                raise

        return self.post(event, future)

    def ask_and_wait(
        self,
        topic: str,
        answer: Callable[[], Answer | None],
        otherwise: Callable[[], Answer],
        wait_s: float,
        come: Callable[[], object] = lambda: None,
        request: Hashable = None,
    ) -> Future[Answer]:
        """Return the answer once there is one, or `otherwise` after `wait_s`.

        `answer` is asked again when what `topic` names may have come; `come` happens once, when the
        request comes. `request`: what a repeat of it is known by.
        """
        future: Future[Answer] = Future()

        def park() -> None:
            come()
            deadline = self._core.clock.now() + wait_s
            self._parking.park(topic, Parked(answer, otherwise, deadline, future, request))

        return self.post(park, future)

    def post(self, event: Callable[[], None], future: Future[Answer]) -> Future[Answer]:
        """Have the loop's thread call `event`, which gives the future its answer in its time."""
        # Whoever asked may go away; it is answered all the same.
        future.set_running_or_notify_cancel()
        if not self._core.loop.post(event):
            future.set_exception(Unreachable("the job is over"))
        return future

    # -- the loop's thread

    def settle(self, now: float) -> None:
        """Answer those who wait where there is an answer by now, or their time is up."""
        news, self._asked_tasks = self._core.saves > self._asked_tasks, self._core.saves
        self._parking.settle(TASK, lambda: news or self._core.queue.todo > 0, self._give)
        version = self._group.server_map.version
        newer, self._asked_servers = version > self._asked_servers, version
        self._parking.settle(SERVERS, lambda: newer, self._give)
        for topic in (ROUND, CHECKPOINT):
            self._parking.settle(topic, lambda: True, self._give)
        version = self._teachers()
        others, self._asked_teachers = version > self._asked_teachers, version
        self._parking.settle(TEACHERS, lambda: others, self._give)
        for parked in self._parking.overdue(now):
            if not self._give(parked):
                self._core.answer(parked.future, parked.otherwise())

    def _give(self, parked: Parked) -> bool:
        """Answer a caller where there is an answer; return whether there was one."""
        try:
            reply = parked.answer()
        except EdlError as error:
            parked.future.set_exception(as_told(error))
            raise
        if reply is not None:
            self._core.answer(parked.future, reply)
        return reply is not None

    @property
    def next_deadline(self) -> float | None:
        """The time at which somebody has waited for long enough; None where nobody waits."""
        return self._parking.next_deadline()

    def take_parked(self) -> list[Parked]:
        """Return all who wait; they wait no more."""
        return self._parking.take_all()
