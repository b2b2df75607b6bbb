"""The thread that pushes the rows of a round's steps to the servers, while the group goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ...common import background
from ...ps.books.ledger import Span
from ...ps.worker_client import PsClient, PushOutcome
from ..servers.rows import Ids, Values
from .process_group import RoundOver

Rows = dict[str, tuple[Ids, Values]]  # by table: distinct ids[U], gradients[U, D]


class Pusher:
    """The pushes of a round's spans to some shards, or none, one after the other, in a thread."""

    def __init__(self, ps: PsClient, shards: Sequence[int], patience_s: float) -> None:
        self._ps = ps
        self._shards = shards
        self._patience_s = patience_s
        self._waiting: deque[tuple[Span, Callable[[], Rows], Sequence[int]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self.servers_version = ps.servers_version  # of those that have acknowledged the last span
        background.begin("push-rows", self._run).add_done_callback(self._end)

    def push(self, span: Span, rows: Callable[[], Rows], versions: Sequence[int]) -> None:
        """Push a span after all that were handed over before.

        `rows()` waits for its rows.
        """
        with self._changed:
            self._waiting.append((span, rows, versions))
            self._changed.notify_all()

    def wait(self, most: int) -> None:
        """Wait until at most so many pushes lack their acknowledgement.

        Raises RoundOver where one was refused, and Unreachable.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or len(self._waiting) <= most)
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Push nothing more.

        A push under way goes on; it is refused if its lease is over.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                span, rows, versions = self._waiting[0]
            servers_version = self._push(span, rows(), versions)
            with self._changed:
                self.servers_version = servers_version
                self._waiting.popleft()
                self._changed.notify_all()

    def _end(self, run: Future[None]) -> None:
        """Have `wait` raise what the thread died of."""
        with self._changed:
            self._error = run.exception(0)
            self._changed.notify_all()

    def _push(self, span: Span, rows: Rows, versions: Sequence[int]) -> int:
        """Push a span, and return the version of the servers that have it."""
        if not self._shards:
            return self._ps.servers_version
        result = self._ps.push(
            span, versions, tables=rows, shards=self._shards, timeout_s=self._patience_s
        )
        if result.outcome != PushOutcome.APPLIED:
            raise RoundOver(f"{span}: {result.outcome.value} on the servers")
        return result.servers_version
