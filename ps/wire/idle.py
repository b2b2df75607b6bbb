"""Idle connections, for all of which one thread waits (epoll).

A connection has a thread and buffers of its own while it is busy. Once it has had no request for a
while it is put here, and both are given back: what is left are a socket and some small objects.
When its peer says something, or is gone, it is woken.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class _Waits(Protocol):
    def fileno(self) -> int: ...


One = TypeVar("One", bound=_Waits)


class Idle(Generic[One]):
    """A thread that holds connections until there is something to receive.

    Then it calls `wake`, which never blocks.
    """

    def __init__(self, wake: Callable[[One], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._held: dict[int, One] = {}
        self._closed = False
        self._events = select.epoll()
        self._ended = os.eventfd(0)
        self._events.register(self._ended, select.EPOLLIN)
        threading.Thread(target=self._wait, name="idle", daemon=True).start()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, one: One) -> bool:
        """Take over a connection, at which the caller may not look any more.

        False: this is closed, and does not hold it.
        """
        with self._lock:
            if self._closed:
                return False
            fd = one.fileno()
            self._events.register(fd, select.EPOLLIN)
            self._held[fd] = one
            return True

    def close(self) -> None:
        """End the thread, which takes no connection any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.eventfd_write(self._ended, 1)

    def _wait(self) -> None:
        while not self._closed:
            for fd, _ in self._events.poll():  # until `close`, at the latest
                if fd != self._ended:
                    with self._lock:  # before it is closed, and another one has its number
                        self._events.unregister(fd)
                        one = self._held.pop(fd)
                    self._wake(one)
        with self._lock:  # `close` is through
            self._events.close()
            os.close(self._ended)
        for one in self._held.values():
            self._wake(one)
        self._held.clear()
