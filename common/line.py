"""A line to a process of the job that may be started again, and then elsewhere.

Every call stands under a deadline and is repeated, with backoff, while nobody answers, for
`patience_s` in all; what is called must therefore bear repeating. Before each repeat the line looks
where the process serves now.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

from . import rpc
from .errors import Unreachable
from .identity import Identity
from .retry import Backoff, retry

log = logging.getLogger(__name__)

_ANSWER_S = 5.0  # beyond what a call may be held; a guess
_BACKOFF = Backoff(0.05, 1.0)


class Line:
    """A line to one service, which follows it to another address. Safe to share among threads.

    `stub`: the service's. `where` tells the address of now (None: the one that was given). `who` is
    at the other end, and `advice` says what to look at where it stays silent, both for messages.
    """

    def __init__(
        self,
        address: str,
        stub: Callable[[Any], Any],
        *,
        who: str,
        advice: str,
        token: str,
        identity: Identity | None,
        patience_s: float,
        where: Callable[[], str | None],
    ) -> None:
        self.patience_s = patience_s
        self._make_stub = stub
        self._who, self._advice = who, advice
        self._token, self._identity = token, identity
        self._where = where
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connect(address)

    def close(self) -> None:
        """Give up all calls that run."""
        with self._lock:
            self._closed.set()
            self._channel.close()

    def _connect(self, address: str) -> None:
        self.address = address
        self._channel = rpc.Channel(address, self._token, identity=self._identity)
        self._stub = self._make_stub(self._channel)

    def _follow(self) -> None:
        """Connect to where the service is now. Calls on the old line end as unanswered."""
        try:
            found = self._where()
        except OSError:  # a disk that fails is no reason to end: it is asked again
            return
        with self._lock:
            if found is None or found == self.address or self._closed.is_set():
                return
            log.info("%s -> moved from=%s to=%s", self._who, self.address, found)
            old = self._channel
            self._connect(found)
            old.close()

    def _call(
        self, method: str, request: object, wait_s: float = 0.0, patience_s: float | None = None
    ) -> Any:
        """Return the answer to a call that may be held for `wait_s`.

        Raises Unreachable, Unauthenticated.
        """
        patience_s = self.patience_s if patience_s is None else patience_s

        def attempt(left_s: float) -> Any:
            timeout_s = min(wait_s + _ANSWER_S, max(left_s, 0.1))
            return rpc.call(getattr(self._stub, method), request, timeout_s)

        try:
            return retry(
                attempt,
                _BACKOFF,
                wait_s + patience_s,
                on=(Unreachable, ValueError),  # ValueError: closed under the call
                wait=self._pause,
                jitter=lambda: random.uniform(0.5, 1.0),
            )
        except (Unreachable, ValueError) as error:
            if self._closed.is_set():
                text = f"the line to the {self._who} at {self.address} is closed"
                raise Unreachable(text) from error
            raise Unreachable(
                f"the {self._who} at {self.address} did not answer within {patience_s:g} s "
                f"({error}){self._advice}"
            ) from error

    def call_once(self, method: str, request: object) -> Any:
        """Return the answer to a call that is not repeated here.

        Raises Unreachable; the next call then goes where the process serves by now.
        """
        try:
            return rpc.call(getattr(self._stub, method), request, _ANSWER_S)
        except Unreachable:
            self._follow()
            raise

    def _pause(self, seconds: float) -> bool:
        """Wait for so long, look where the service is, and return whether the line is closed."""
        if not self._closed.wait(seconds):
            self._follow()
        return self._closed.is_set()
