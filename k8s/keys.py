"""A queue of the jobs to be looked at, and when. Pure: `now` comes from outside.

A key that is put in twice is looked at once; one that is being looked at waits until that is over,
so that nobody ever looks at one job twice at a time; failures of one key are retried with growing
pauses.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from ..common.retry import Backoff

Key = TypeVar("Key")

_BACKOFF = Backoff(0.5, 60.0)  # guesses


class Keys(Generic[Key]):
    """A queue in which each key is once, with the time from which it is to be looked at."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: Key, at: float) -> None:
        """Look at a key from then on; the earliest of several times counts."""
        self._due[key] = min(at, self._due.get(key, at))

    def take(self, now: float) -> Key | None:
        """Take out the key that has waited longest, until `done`; None where none is due."""
        due = [key for key, at in self._due.items() if at <= now and key not in self._busy]
        if not due:
            return None
        key = min(due, key=self._due.__getitem__)
        del self._due[key]
        self._busy.add(key)
        return key

    def done(self, key: Key) -> None:
        """Note that a key has been looked at, without a failure."""
        self._busy.discard(key)
        self._failures.pop(key, None)

    def failed(self, key: Key, now: float) -> float:
        """Note a failure; return the pause after which it is looked at again."""
        self._busy.discard(key)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause_s = _BACKOFF.after(failures)
        self.add(key, now + pause_s)
        return pause_s

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next key is due; None: until one is put in or done."""
        waiting = [at for key, at in self._due.items() if key not in self._busy]
        return max(0.0, min(waiting) - now) if waiting else None
