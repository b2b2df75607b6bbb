"""A file of an object store or the like, read in ranges: several at once, and some ahead.

What is read at once is asked for in ranges of 8 MiB, eight of them at a time. Whoever knows what he
will read, as the columns of a row group, names it first (`Ahead`): it is all on its way at once,
and the parts that came are worked on while the others come. Deadlines and further tries are the
file system's own, as for all that it does; a range that comes short is an error.
"""

from __future__ import annotations

import asyncio
import bisect
import io
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Self

# A request of so many bytes, and so many requests at once. A guess: a connection gives some
# 100 MB/s after some 50 ms, so that a longer request gains little.
RANGE_NBYTES, AT_ONCE = 8 << 20, 8
_GAP_NBYTES = 1 << 20  # between what is wanted: sooner had than a request more. A guess, too.

Span = tuple[int, int]  # [start, end)


class Ranges(io.RawIOBase):
    """A file of a remote file system, read in ranges: as many as are asked for, several at once."""

    def __init__(self, fs: Any, path: str, size: int) -> None:
        self._fs, self._path, self._size, self._at = fs, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer. Raises OSError where the store gives other bytes than it was asked for."""
        target = memoryview(buffer).cast("B")
        end = min(self._size, self._at + len(target))
        starts = list(range(self._at, end, RANGE_NBYTES))
        ends = [min(end, start + RANGE_NBYTES) for start in starts]
        paths = [self._path] * len(starts)
        parts = self._fs.cat_ranges(paths, starts, ends, batch_size=AT_ONCE, on_error="raise")
        for start, stop, part in zip(starts, ends, parts, strict=True):
            target[start - self._at : stop - self._at] = self._whole(start, stop, part)
        read = max(0, end - self._at)
        self._at += read
        return read

    def _whole(self, start: int, stop: int, part: Any) -> Any:
        if len(part) == self._size:  # the range was not heeded
            part = part[start:stop]
        if len(part) != stop - start:
            raise OSError(f"{len(part)} bytes came where {stop - start} were asked for")
        return part


class Ahead(Ranges):
    """The same, of which these spans are on their way from now until `close`.

    To be read in the order in which they stand in the file; all else is asked for when it is read.
    """

    def __init__(self, fs: Any, path: str, size: int, spans: Iterable[Span]) -> None:
        super().__init__(fs, path, size)
        self._parts = cut(spans)
        self._starts = [start for start, _ in self._parts]
        self._came: list[Future[Any]] = [Future() for _ in self._parts]
        self._all = asyncio.run_coroutine_threadsafe(self._fetch(), fs.loop)

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Ask for nothing more."""
        self._all.cancel()
        super().close()

    async def _fetch(self) -> None:
        few = asyncio.Semaphore(AT_ONCE)

        async def fetch(span: Span, came: Future[Any]) -> None:
            async with few:
                start, stop = span
                try:
                    part = await self._fs._cat_file(self._path, start=start, end=stop)
                    came.set_result(memoryview(self._whole(start, stop, part)))
                except Exception as error:  # noqa: BLE001 - of any kind: it is raised to the reader
                    came.set_exception(error)

        await asyncio.gather(*map(fetch, self._parts, self._came))

    def read(self, nbytes: int = -1) -> Any:
        """Return what was on its way, as it came and not copied where it is in one part."""
        start = self._at
        end = self._size if nbytes < 0 else min(self._size, start + nbytes)
        found, at, part = [], start, bisect.bisect_right(self._starts, start) - 1
        while 0 <= part < len(self._parts) and at < end:
            first, stop = self._parts[part]
            if not first <= at < stop:
                break
            found.append(self._came[part].result()[at - first : min(end, stop) - first])
            at, part = at + len(found[-1]), part + 1
        if at < end:  # nobody has named it
            return super().read(max(0, end - start))
        self._at = end
        return found[0] if len(found) == 1 else b"".join(found)


def cut(spans: Iterable[Span]) -> Sequence[Span]:
    """Return the ranges to ask for: what lies together in one, what is long in several."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found:
            first, last = found[-1]
            start = max(start, last)
            if start - last <= _GAP_NBYTES and end - first <= RANGE_NBYTES:
                found[-1] = first, max(last, end)
                continue
        pieces = range(start, end, RANGE_NBYTES)
        found.extend((at, min(end, at + RANGE_NBYTES)) for at in pieces)
    return found
