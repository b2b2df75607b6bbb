"""A pool of connections of which each carries one request at a time: a call takes an idle one."""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

from ..common.errors import Unreachable


class _Connection(Protocol):
    def abort(self) -> None:
        """Wake whoever waits for it."""
        ...

    def close(self) -> None: ...


One = TypeVar("One", bound=_Connection)


class Pool(Generic[One]):
    """The connections of one peer, idle ones and those in use. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[One] = []
        self._all = set[One]()
        self._closed = False

    def take(self) -> One | None:
        """Return an idle connection; None: there is none. Raises Unreachable once closed."""
        if self._closed:
            raise Unreachable("the connection was closed")
        try:
            return self._idle.pop()  # atomic
        except IndexError:
            return None

    def add(self, one: One) -> One:
        """Return a new connection, which is in use now. Raises Unreachable once closed."""
        with self._lock:
            if not self._closed:
                self._all.add(one)
                return one
        one.close()
        raise Unreachable("the connection was closed")

    def give(self, one: One) -> None:
        """Take back a connection for the next call."""
        with self._lock:
            if not self._closed:
                self._idle.append(one)
                return
        self.drop(one)

    def drop(self, one: One) -> None:
        """Close a connection that is in use."""
        with self._lock:
            self._all.discard(one)
        one.close()

    def drop_idle(self) -> None:
        """Close those that are idle: what befell another of the same peer has befallen them."""
        with self._lock:
            stale, self._idle = self._idle, []
            self._all.difference_update(stale)
        for one in stale:
            one.close()

    def close(self) -> None:
        """Have all who wait woken, and let none be taken any more."""
        with self._lock:
            self._closed = True
            for one in self._all:
                one.abort()
        self.drop_idle()
