"""A student's teachers from where they are named: a fixed list, registries, its job's master.

A registry is followed by calls that it holds until its list changes. While it is away the list that
was last heard holds; at the beginning there is none, and the student waits by its rules.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial

from ..common import background
from ..common.clock import Clock, MonotonicClock
from ..common.errors import EdlError, Unreachable
from ..common.identity import Identity
from ..common.retry import Backoff
from ..common.teacher_address import Registered, registered_at
from ..registry.client import RegistryClient
from ..registry.roll import Known
from .teachers import Teachers

log = logging.getLogger(__name__)

_HELD_S = 20.0  # of a call
_LEAST_HELD_S = 0.05
_BACKOFF = Backoff(0.2, 5.0)
_END_S = 5.0  # for a call that is given up


class Following:
    """The teachers of a student, by source, from its making until `close`. Any thread may call."""

    def __init__(
        self,
        teachers: Teachers,
        addresses: Sequence[str],
        identity: Identity,
        *,
        clock: Clock | None = None,
        on_note: Callable[[str], None] = log.warning,
    ) -> None:
        """Have those asked that are named, and those of registries (edl://...) among the addresses.

        `on_note` is told what a user should know. Raises EdlError where a registry may not be
        called without a certificate.
        """
        self._teachers, self._on_note = teachers, on_note
        self._lock = threading.Lock()
        self._lists: dict[str, list[str]] = {}
        self._missing: dict[str, str] = {}  # why a source has none
        self._closed = threading.Event()
        clock = clock or MonotonicClock()
        found = [where for each in addresses if (where := registered_at(each)) is not None]
        self._followers = [
            Follower(where, RegistryClient(where.registry, identity), self, clock)
            for where in found
        ]
        named = {where.address for where in found}
        self.heard("", [each for each in addresses if each not in named])
        self._work = [
            background.begin("follow-registry", partial(each.follow, self._closed))
            for each in self._followers
        ]

    def heard(self, source: str, addresses: Sequence[str], missing: str = "") -> None:
        """Have these of a source asked from now on. `missing`: why there are none."""
        with self._lock:
            self._lists[source] = list(addresses)
            self._missing = {**self._missing, source: missing}
            self._teachers.missing = "; ".join(filter(None, self._missing.values()))
            every = [each for addresses in self._lists.values() for each in addresses]
            self._teachers.update([*dict.fromkeys(every)])

    def lacks(self, source: str, missing: str) -> None:
        """Say why nobody of a source is known yet."""
        self.heard(source, self.of(source), missing)

    def of(self, source: str) -> list[str]:
        """Return the addresses that a source told last."""
        with self._lock:
            return self._lists.get(source, [])

    def give_up(self, why: str) -> None:
        """Say that a source will never tell: the user must mend something."""
        self._teachers.give_up(why)

    def note(self, text: str) -> None:
        """Tell the user."""
        self._on_note(text)

    def close(self) -> None:
        """Follow nobody any more."""
        self._closed.set()
        for follower in self._followers:
            follower.client.close()
        wait(self._work, _END_S)


class Follower:
    """One name of one registry, as it is followed."""

    def __init__(
        self, where: Registered, client: RegistryClient, following: Following, clock: Clock
    ) -> None:
        self.client = client
        self._where, self._following, self._clock = where, following, clock
        self._known = Known()
        self._failures = 0
        self._said = ""  # of the kinds of words: the last one

    def follow(self, closed: threading.Event) -> None:
        """Follow until `closed`."""
        while not closed.wait(_BACKOFF.after(self._failures) * random.uniform(0.5, 1.0)):
            self.hear(closed)

    def hear(self, closed: threading.Event) -> None:
        """Ask once, and pass on what the registry says."""
        left_s = self._known.until - self._clock.now()
        wait_s = max(_LEAST_HELD_S, min(_HELD_S, left_s))
        try:
            reply = self.client.list(self._where.name, self._known.version, wait_s)
        except EdlError as error:
            self._failures += 1
            if not closed.is_set():
                self._unheard(error)
            return
        self._failures = 0
        teachers = {each.address: each.ttl_s for each in reply.teachers}
        self._known.heard(reply.version, teachers, self._clock.now())
        addresses, missing = self._known.addresses, ""
        if not addresses:
            others = f"there are {', '.join(reply.names)}"
            others = others if reply.names else "nor under another name"
            name, registry = self._where.name, self._where.registry
            missing = f"nobody has registered as {name!r} at {registry} ({others})"
            self._say("nobody", f"{missing}: this student waits by its rules")
        elif self._said:
            count = f"{len(addresses)} teacher{'s' if len(addresses) > 1 else ''}"
            self._say("", f"the registry at {self._where.registry} tells of {count}")
        self._following.heard(self._where.address, addresses, missing)

    def _unheard(self, error: EdlError) -> None:
        registry, where = self._where.registry, self._where.address
        why = str(error)
        if isinstance(error, Unreachable):
            why = f"the registry at {registry} does not answer ({error})"
        if not self._known.version:  # never heard
            self._following.lacks(where, why)
            if not isinstance(error, Unreachable):
                self._following.give_up(why)
                return
        count = len(self._following.of(where))
        meanwhile = (
            f"the last list holds, {count} of {self._where.name!r}"
            if count
            else "it is asked again"
        )
        self._say(type(error).__name__, f"{why}: {meanwhile}")

    def _say(self, kind: str, text: str) -> None:
        """Say something, once until something of another kind is to be said."""
        if kind != self._said:
            self._said = kind
            self._following.note(text)
