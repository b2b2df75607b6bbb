"""The logs of a job's processes, interleaved as they come, each line with its process before it."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from ..common.errors import UsageError

# A file that grows has no event in the standard library; four looks a second cost nothing.
_LOOK_S = 0.25


def lines(
    folder: Path,
    is_over: Callable[[], bool],
    *,
    role: str | None = None,
    index: int | None = None,
    tail: int | None = None,
    follow: bool = False,
) -> Iterator[str]:
    """Yield all lines, or the last `tail` of each file; `follow`: also what comes until the end.

    `folder` is the job's. Raises UsageError where the job has no such log.
    """
    if index is not None and role is None:
        raise UsageError("--index needs --role: worker, server or master.")
    pattern = f"{role or '*'}-{index}" if index is not None else f"{role}*" if role else "*"
    logs = folder / "logs"
    names = sorted(path.stem for path in logs.glob("*.log"))
    chosen = sorted(path.stem for path in logs.glob(f"{pattern}.log"))
    if not chosen and not follow:
        raise UsageError(
            f"Job {folder.name!r} has no such log; there are: {', '.join(names) or 'none yet'}."
        )
    several = len(chosen) != 1 or (follow and index is None and role != "master")
    readers: dict[Path, _Reader] = {}
    first = True
    while True:
        over = is_over()  # asked before reading: what was written before the end is read
        for path in sorted(logs.glob(f"{pattern}.log")):
            reader = readers.setdefault(path, _Reader(path))
            fresh = reader.lines(last=over or not follow)
            kept = deque(fresh, maxlen=tail if first else None)
            yield from (f"{path.stem:<10} | {line}" if several else line for line in kept)
        first = False
        if over or not follow:
            return
        time.sleep(_LOOK_S)


class _Reader:
    """A reader of the whole lines of a file that may still grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self, *, last: bool) -> Iterator[str]:
        """Return what is new; with `last` also a line without an end."""
        data = self._rest
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            data += file.read()
            self._offset = file.tell()
        *whole, self._rest = data.split(b"\n")
        if last and self._rest:
            whole.append(self._rest)
            self._rest = b""
        return (line.decode(errors="replace") for line in whole)
