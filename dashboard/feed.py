"""The messages of one job for those who watch it: a snapshot, then changes, each with a number.

Readers remember the number of the last message that they had, and no queue is kept for them: who is
slow, or comes back after its line was cut, gets the changes since then while they are kept, and
else one snapshot. So nothing comes twice, and memory does not grow with readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from ..common import finite
from .changes import calm, change
from .model import Snapshot

_KEPT = 240  # changes: a minute of a job of which something changes four times a second
_KEPT_NBYTES = 8 << 20
_ROWS_S = 2.0  # how old the passing figures of replicas may be


class Feed:
    """The messages of one job. `name` makes ids of messages those of this feed."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._number = 0
        self._kept: deque[tuple[int, str]] = deque()
        self._nbytes = 0
        self._rows_at = -math.inf
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def snapshot(self) -> Snapshot | None:
        """Return what all readers know, once they have read; None: nothing was heard so far."""
        return self._snapshot

    def put(self, snapshot: Snapshot) -> None:
        """Have this be what readers know next."""
        before, self._snapshot = self._snapshot, snapshot
        made = None
        if before is not None:
            if snapshot["live"] and self._clock() - self._rows_at < _ROWS_S:
                self._snapshot = snapshot = calm(snapshot, before)
            made = change(before, snapshot)
            if made == {}:
                return
        if made is None or made.get("status", {}).keys() & {"workers", "servers"}:
            self._rows_at = self._clock()
        self._number += 1
        if made is None:
            self._kept.clear()
            self._nbytes = 0
        else:
            self._keep(self._message("change", made))
        self.wake()

    async def next(self, after: int, wait_s: float) -> tuple[int, str] | None:
        """Return the message that follows number `after`, and its number; None: none in time.

        -1: the first one, which is a snapshot.
        """
        if after == self._number or self._snapshot is None:
            news = asyncio.get_running_loop().create_future()
            self._waiting.add(news)
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news, wait_s)
            finally:
                self._waiting.discard(news)
        if after == self._number or self._snapshot is None:
            return None
        if self._kept and self._kept[0][0] <= after + 1 <= self._number:
            place = after + 1 - self._kept[0][0]
            return self._kept[place]
        return self._number, self._message("snapshot", self._snapshot)

    def wake(self) -> None:
        """Have all who wait look again, though there is nothing new."""
        for news in self._waiting:
            if not news.done():
                news.set_result(None)

    def known(self, last_id: str) -> int:
        """Return the number of the message of which this is the id; -1: of none of this feed's."""
        name, _, number = last_id.rpartition("-")
        if name != self._name or not number.isdecimal() or int(number) > self._number:
            return -1
        return int(number)

    def _keep(self, text: str) -> None:
        self._kept.append((self._number, text))
        self._nbytes += len(text)
        while len(self._kept) > _KEPT or self._nbytes > _KEPT_NBYTES:
            self._nbytes -= len(self._kept.popleft()[1])

    def _message(self, event: str, values: Any) -> str:
        return f"id: {self._name}-{self._number}\nevent: {event}\ndata: {encode(values)}\n\n"


def encode(values: Any) -> str:
    """Return values as JSON that every browser reads (common/finite.py): a loss may be NaN."""
    return finite.dumps(values, separators=(",", ":"))
