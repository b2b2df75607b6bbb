"""The versions of one model: which answers, which ends, which is let go. Pure.

A version is installed whole or not at all. Whoever asks holds the one that was right at that moment
until he is answered, whatever is installed meanwhile. The newest is the default. Of older ones the
last are kept; what is not kept any more is asked by nobody new, and is given back to be closed once
nobody holds it: each exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .kserve.refused import Refused, Why

Served = TypeVar("Served")

_MOST_FAILED = 8  # that are told of: each generation of a job that is followed may be one


@dataclass(eq=False)
class Held(Generic[Served]):
    """An installed version. `holders`: requests that are under way on it."""

    version: str
    served: Served
    holders: int = 0
    is_retired: bool = False


class Versions(Generic[Served]):
    """The versions of a model."""

    def __init__(self, model: str, keep: int = 1) -> None:
        self.model, self.keep = model, keep
        self._open: list[Held[Served]] = []  # the newest last
        self._retired: set[Held[Served]] = set()
        self._has_ended = False
        self.failed: dict[str, str] = {}  # the last versions that could not be opened, and why
        self.swaps = 0

    @property
    def newest(self) -> Served | None:
        """The one that answers by default; None: none is there yet, or all has ended."""
        return self._open[-1].served if self._open else None

    @property
    def names(self) -> list[str]:
        """The versions that may be asked, the oldest first."""
        return [each.version for each in self._open]

    @property
    def all(self) -> list[Served]:
        """All that may be asked, the oldest first."""
        return [each.served for each in self._open]

    def install(self, version: str, served: Served) -> list[Served]:
        """Make a version the newest; one of the same name gives way to it.

        Return what is to be closed now.
        """
        if self._has_ended:
            return [served]
        self.swaps += 1
        self.failed.pop(version, None)
        same = [each for each in self._open if each.version == version]
        self._open = [each for each in self._open if each.version != version]
        self._open.append(Held(version, served))
        older = self._open[: -self.keep]
        self._open = self._open[-self.keep :]
        return self._retire([*same, *older])

    def fail(self, version: str, why: str) -> None:
        """Note that a version could not be opened: all is as it was."""
        self.failed.pop(version, None)
        self.failed[version] = why
        for oldest in list(self.failed)[:-_MOST_FAILED]:
            del self.failed[oldest]

    def hold(self, version: str = "") -> Held[Served]:
        """Return a version for a request, which `release` takes back; "": the newest.

        Raises Refused.
        """
        if not self._open:
            what = "is ending" if self._has_ended else "is not there yet: it is being loaded"
            raise Refused(Why.AWAY, f"the model {self.model!r} {what}")
        if version:
            there = next((each for each in self._open if each.version == version), None)
            if there is None:
                raise Refused(
                    Why.UNKNOWN,
                    f"the model {self.model!r} has no version {version[:80]!r}: it has "
                    f"{', '.join(map(repr, self.names))}",
                )
        else:
            there = self._open[-1]
        there.holders += 1
        return there

    def release(self, held: Held[Served]) -> list[Served]:
        """Take back what a request has held. Return what is to be closed now."""
        if held.holders < 1:
            raise ValueError(f"version {held.version} is held by nobody")
        held.holders -= 1
        if held.is_retired and not held.holders:
            self._retired.discard(held)
            return [held.served]
        return []

    def end(self) -> list[Served]:
        """Let nobody ask any more. Return what is to be closed now."""
        self._has_ended = True
        ended, self._open = self._open, []
        return self._retire(ended)

    def _retire(self, these: list[Held[Served]]) -> list[Served]:
        for each in these:
            each.is_retired = True
        self._retired.update(each for each in these if each.holders)
        return [each.served for each in these if not each.holders]
