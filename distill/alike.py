"""The one teacher that a student learns from, whoever answers: all have one fingerprint.

Whom a connection reaches says who it is, and is asked only where that is the fingerprint that is
known. Who is met first says it, where nobody knows it yet; the students of one job agree on it by
the job's master. A teacher that tells no fingerprint (a foreign one, say) is compared with nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..common.teacher_address import another_one
from .cache import is_fingerprint
from .frames import Part
from .link import CONNECT_S, Answer, Link, Stranger

# Tells who is met, an address and a fingerprint, and returns the fingerprint that all have agreed
# on, whose strangers the user is told of there; "": nobody knows. Raises PeerError.
Agree = Callable[[str, str], str]


class AboutLink(Link, Protocol):
    """A way to a teacher that says who it is."""

    def about(self, timeout_s: float) -> dict[str, Any]:
        """Return what it tells of itself. Raises PeerError."""
        ...


class Alike:
    """The fingerprint of a student's teachers. Any thread may call."""

    def __init__(
        self,
        known: str = "",
        *,
        whose: str = "",
        must_tell: str = "",
        agree: Agree = lambda _address, _told: "",
        on_known: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Begin with the fingerprint that is `known`; "": whoever is met first says it.

        `whose`: who had that one, in words. `must_tell`: what a fingerprint is needed for, where it
        is. `on_known` is called once one becomes known.
        """
        self.teacher = known
        self._whose, self._must_tell = whose, must_tell
        self._agree, self._on_known = agree, on_known
        self._lock = threading.Lock()
        self._has_agreed = False  # the others know of the known one
        self._met: dict[str, str] = {}  # fingerprints, by address

    def link(self, address: str, link: AboutLink) -> Link:
        """Return the way to a teacher by which only the right one is asked."""
        return _Checked(address, link, self.meet)

    def meet(self, address: str, about: dict[str, Any]) -> None:
        """Hear what a teacher tells of itself. Raises Stranger for another one, PeerError."""
        told = about.get("fingerprint")
        if self._must_tell and not is_fingerprint(told):
            raise Stranger(f"the teacher at {address} does not tell which it is, {self._must_tell}")
        if not told or self._met.get(address) == told:
            return
        if self.teacher and not self._has_agreed:
            self._agree("", self.teacher)
        agreed = self._agree(address, str(told))
        with self._lock:
            self._has_agreed = True
            if not self.teacher:
                self.teacher = agreed or str(told)
                self._whose = f"that at {address}" if self.teacher == told else "the others"
                self._on_known(self.teacher)
        if told != self.teacher:
            raise Stranger(
                another_one(address, str(told), self._whose or "the others", self.teacher),
                is_told=agreed not in ("", told),
            )
        self._met[address] = str(told)


class _Checked:
    """A way to a teacher, which must be the right one each time."""

    def __init__(
        self, address: str, link: AboutLink, meet: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._address, self._link, self._meet = address, link, meet

    def teach(self, parts: Sequence[Part], rows: int, timeout_s: float, whole: bool) -> Answer:
        self._meet(self._address, self._link.about(min(timeout_s, CONNECT_S)))
        return self._link.teach(parts, rows, timeout_s, whole)

    def close(self) -> None:
        self._link.close()
