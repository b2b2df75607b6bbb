"""Shared memory between a worker and a server of the same host.

A client makes regions and the server maps them: large bodies are copied into one, and large replies
are gathered into another by the server. What is in a reply is handed out as views of its region,
which is free again when the last of them is gone.
"""

from __future__ import annotations

import collections
import os
import weakref
from collections.abc import Callable

import numpy as np

from ...common.errors import PeerError
from ...wire.regions import make_region
from . import frames
from .frames import Bytes, Head

_REGION_NBYTES = 1 << 20  # the smallest
# Tells the server of a region and sends it the descriptor, if there is one, until the deadline.
Tell = Callable[[Head, int | None, float], None]


class _Region:
    """Shared memory that is free again when no view of the bytes that it lends is left."""

    def __init__(self, number: int, memory: Bytes, free: collections.deque[_Region]) -> None:
        self.number = number
        self.memory = memory
        self._free = free

    def lend(self) -> Bytes:
        view = np.frombuffer(memoryview(self.memory), np.uint8)  # type: ignore[arg-type]
        weakref.finalize(view, self._free.append, self).atexit = False
        return view


class Regions:
    """The regions of one connection, whose number the server knows."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}  # by number
        self._free: collections.deque[_Region] = collections.deque()

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def free(self) -> int:
        """Return how many regions nobody looks at."""
        return len(self._free)

    @property
    def sizes(self) -> dict[int, int]:
        """Return the bytes of the regions by number."""
        return dict(self._sizes)

    def lend(self, nbytes: int, tell: Tell, deadline: float) -> tuple[int, Bytes]:
        """Lend a free region of at least `nbytes`: its number, its bytes.

        Raises PeerError where too many replies are still looked at.
        """
        free = sorted((self._free.popleft() for _ in range(len(self._free))), key=_nbytes)
        fit = next((region for region in free if _nbytes(region) >= nbytes), None)
        if fit is None:
            if free:
                tell(Head(frames.UNMAP, body_region=free[-1].number), None, deadline)
                del self._sizes[free.pop().number]
            fit = self._mapped(nbytes, tell, deadline)
        self._free.extend(region for region in free if region is not fit)
        return fit.number, fit.lend()

    def _mapped(self, nbytes: int, tell: Tell, deadline: float) -> _Region:
        numbers = (n for n in range(1, frames.MAX_REGIONS + 1) if n not in self._sizes)
        number = next(numbers, 0)
        if not number:
            raise PeerError(f"{frames.MAX_REGIONS} replies of one connection are still looked at")
        size = max(_REGION_NBYTES, 1 << (nbytes - 1).bit_length())
        fd, memory = make_region(size)
        try:
            tell(Head(frames.MAP, body_nbytes=size, body_region=number), fd, deadline)
        finally:
            os.close(fd)
        self._sizes[number] = size
        return _Region(number, memory, self._free)


def _nbytes(region: _Region) -> int:
    return len(region.memory)
