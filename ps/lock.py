"""A lock that many may share, or one may have alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SharedLock:
    """`with lock:` shares it. Not reentrant. Who wants it alone goes before who comes to share."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._sharing = 0
        self._alone = False
        self._waiting = 0  # to be alone

    def __enter__(self) -> None:
        with self._changed:
            while self._alone or self._waiting:
                self._changed.wait()
            self._sharing += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._sharing -= 1
            if self._waiting and not self._sharing:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[Callable[[], None]]:
        """Have it for oneself; what is yielded goes over to sharing it, with nobody in between."""
        with self._changed:
            self._waiting += 1
            while self._alone or self._sharing:
                self._changed.wait()
            self._waiting -= 1
            self._alone = True
        alone = True

        def share() -> None:
            nonlocal alone
            with self._changed:
                alone = self._alone = False
                self._sharing += 1
                self._changed.notify_all()

        try:
            yield share
        finally:
            with self._changed:
                if alone:
                    self._alone = False
                else:
                    self._sharing -= 1
                self._changed.notify_all()
