"""A teacher's place on a registry's list: taken, renewed, and given up at its end.

A registry that is away is asked again, with pauses that grow to a third of the time to live or ten
seconds; one that was started again knows the teacher within such a third.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass

from ..common import background
from ..common.errors import EdlError, Unreachable, UsageError
from ..common.retry import Backoff
from ..common.teacher_address import served_at, why_no_name
from .client import RegistryClient
from .roll import Entry, why_no_ttl

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0  # until a registry that is away is asked again
_LEAVE_S = 8.0  # for a call that is under way, and that of the leaving: each ends by itself


@dataclass(frozen=True)
class Place:
    """The registry at which a teacher registers, its name there, and for how long at a time."""

    registry: str
    name: str
    ttl_s: float

    def __post_init__(self) -> None:
        """Check what a user said. Raises UsageError."""
        try:
            foreign = served_at(self.registry) is not None
        except ValueError:
            foreign = True
        if foreign:
            raise UsageError(f"--registry {self.registry!r} is no HOST:PORT")
        if why := why_no_name(self.name):
            raise UsageError(f"--name {self.name!r} {why}")
        if why := why_no_ttl(self.ttl_s):
            raise UsageError(f"--ttl_s {self.ttl_s:g} {why}")


def pause_s(ttl_s: float, failures: int) -> float:
    """Return the seconds until a teacher registers again, after so many failures in a row."""
    regular_s = ttl_s / 3
    return Backoff(_FIRST_PAUSE_S, min(regular_s, _LONGEST_PAUSE_S)).after(failures) or regular_s


class Registering:
    """A teacher that registers, from its making until `leave`."""

    def __init__(
        self, client: RegistryClient, name: str, entry: Entry, say: Callable[[str], None]
    ) -> None:
        """Register, and renew it in a thread; `say` is told what a user should know.

        Raises UsageError where the registry refuses the teacher, and EdlError where none is there
        or it has another identity. One that is away is said, and asked again.
        """
        self._client, self._name, self._entry, self._say = client, name, entry, say
        self._leaving = threading.Event()
        self._said = ""  # the kind of trouble that was said last
        self._failures = 0
        refused = self._register(first=True)
        if refused:
            raise UsageError(refused)
        self._work = background.begin("register", self._renew)

    def leave(self) -> None:
        """Take the teacher from the list, if the registry is there to hear it."""
        self._leaving.set()
        wait([self._work], _LEAVE_S)

    def _renew(self) -> None:
        while not self._leaving.wait(self._pause_s()):
            if refused := self._register():
                self._not_registered("refused", refused)
        with suppress(EdlError):  # then its time to live ends it
            self._client.leave(self._name, self._entry)

    def _pause_s(self) -> float:
        return pause_s(self._entry.ttl_s, self._failures) * random.uniform(0.8, 1.0)

    def _register(self, first: bool = False) -> str:
        """Register once. Return why it is refused; "": it is not, or nobody answers."""
        where = self._client.address
        try:
            refused = self._client.register(self._name, self._entry)
        except Unreachable as error:
            why = f"the registry at {where} does not answer ({error}): it is asked again and again"
            self._not_registered("away", why)
            return ""
        except EdlError as error:
            if first:
                raise
            refused = str(error)
        if not refused:
            if self._said or first:
                self._say(f"registered as {self._name} at {where}")
            self._said, self._failures = "", 0
        return refused

    def _not_registered(self, kind: str, why: str) -> None:
        """Say so, once until something of another kind is the trouble."""
        self._failures += 1
        if kind != self._said:
            self._say(f"not registered as {self._name}: {why}")
        self._said = kind
