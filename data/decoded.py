"""Row groups of Parquet, decoded once: as Arrow files on disk, which all processes of a job map.

They lie in the job's folder beside the other indices, outside of a job in a temporary one. Together
they take no more than a limit, nor more than half of what is free on that disk; the one that was
used longest ago goes first, which does not hurt whoever has it mapped. A row group is decoded some
rows at a time, while those before are written, into memory that the next rows use again: a whole
one at once would take half as long again. One that finds no room, or whose disk cannot be written,
is held in memory instead, up to 1 GiB.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrow import Converter
from .arrow_values import Column, View
from .files import DataFile, cache_folder, kept

log = logging.getLogger(__name__)

_HELD_NBYTES = 1 << 30
_MAPPED = 512  # a guess: a process has 65,530 maps, and each takes some milliseconds to make
_SUFFIX = ".arrow"
Batches = Generator[Any, None, None]  # of Arrow
_DEAD_S = 600.0  # nobody who lives pauses so long between two pieces of a file


class Group:
    """A decoded row group. `nbytes`: of memory that it holds; a mapped one has none."""

    def __init__(self, table: Any, nbytes: int = 0) -> None:
        self.nbytes = nbytes
        self._table = table
        self._columns: dict[str, tuple[list[View | None], NDArray[np.int64]]] = {}

    def column(self, name: str, converter: Converter, low: int, high: int) -> Column:
        """Return rows [low, high) of a column, the faults counted from `low`."""
        array = self._table.column(name)
        if name not in self._columns:
            bounds = np.cumsum([0, *map(len, array.chunks)], dtype=np.int64)
            self._columns[name] = [converter.view(each) for each in array.chunks], bounds
        views, bounds = self._columns[name]
        parts: list[NDArray[Any]] = []
        at = max(0, int(np.searchsorted(bounds, low, side="right")) - 1)
        while at < len(views) and (bounds[at] < high or not parts):
            view, start = views[at], int(bounds[at])
            first, last = max(low, start), max(low, min(high, int(bounds[at + 1])))
            values = None if view is None else view(first - start, last - start)
            if values is None:
                return converter.column(array.slice(low, high - low))
            parts.append(values)
            at += 1
        if not parts:
            return converter.column(array.slice(low, high - low))
        return Column(parts[0] if len(parts) == 1 else np.concatenate(parts), {})


class Decoded:
    """The row groups of all files of a reader, in files of at most `limit` bytes together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._groups: OrderedDict[tuple[str, str], Group] = OrderedDict()
        self._held = self._room = 0  # bytes in memory; bytes that may be written unasked
        self._lock = threading.Lock()
        self._temporary: Path | None = None
        self._warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoded, (self._limit,)

    def get(self, file: DataFile, kind: str, rows: int, decode: Callable[[], Batches]) -> Group:
        """Return the row group of so many rows that `kind` names.

        It comes by `decode`, batch by batch, where nobody has decoded it yet.
        """
        key = (file.name, kind)
        with self._lock:
            if key not in self._groups:
                self._groups[key] = group = self._load(file, kind, rows, decode)
                self._held += group.nbytes
                while len(self._groups) > 1 and (
                    self._held > _HELD_NBYTES or len(self._groups) > _MAPPED
                ):
                    self._held -= self._groups.popitem(last=False)[1].nbytes
            self._groups.move_to_end(key)
            return self._groups[key]

    def _load(self, file: DataFile, kind: str, rows: int, decode: Callable[[], Batches]) -> Group:
        import pyarrow

        begun: list[Batches] = []  # and nothing of it is written

        def make(to: Path) -> None:
            batches = decode()
            first = next(batches)
            begun.append(_together(first, batches))
            nbytes = first.nbytes * rows // max(1, first.num_rows)  # by its first rows
            if nbytes > self._room:
                # Others fill the same folder: so look again when a part of what is left is full.
                self._room = _make_room(to.parent, nbytes, self._limit) // 4
            sink = pyarrow.OSFile(str(to), "wb")
            with (
                sink,
                pyarrow.ipc.new_file(sink, first.schema) as writer,
                contextlib.closing(_ahead(begun.pop())) as ahead,
            ):
                for batch in ahead:
                    self._room -= batch.nbytes
                    writer.write_batch(batch)

        try:
            return _mapped(pyarrow, kept(file, kind, make, self._folder()))
        except (OSError, pyarrow.ArrowException) as error:
            # Nothing can be written, or what is there is torn.
            table = pyarrow.Table.from_batches(begun.pop() if begun else decode())
            if not self._warned:
                log.warning("Decoded row groups of %s stay in memory: %s.", file.name, error)
                self._warned = True
            return Group(table, table.nbytes)

    def _folder(self) -> Path:
        folder = cache_folder()
        if folder is not None:
            return folder
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="edl-decoded-"))
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary


def _together(first: Any, others: Batches) -> Batches:
    with contextlib.closing(others):  # and the file, as soon as no more is wanted
        yield first
        yield from others


def _ahead(batches: Batches) -> Batches:
    """Yield the batches, of which the next one is decoded while one is written."""
    with contextlib.closing(batches), ThreadPoolExecutor(1, "decode") as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch


def _mapped(pyarrow: Any, path: Path) -> Group:
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(),) * 2)  # the newest now; the system's own clock is coarse
    with pyarrow.memory_map(str(path)) as source:  # a map outlives the descriptor
        return Group(pyarrow.ipc.open_file(source).read_all())


def _make_room(folder: Path, nbytes: int, limit: int) -> int:
    """Remove what was used longest ago until so much more is within the limit.

    Return how much there is. Raises OSError where it is too much.
    """
    there = []
    for path in folder.glob("*.tmp"):  # of one who was killed while he wrote
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _DEAD_S:
                path.unlink()
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            status = path.stat()
            there.append((status.st_mtime_ns, status.st_size, path))
    used = sum(size for _, size, _ in there)
    room = min(limit, (shutil.disk_usage(folder).free + used) // 2)
    if nbytes > room:
        raise OSError(f"{nbytes:,} bytes are more than the {room:,} that may be kept on disk")
    for _, size, path in sorted(there):
        if used + nbytes <= room:
            break
        path.unlink(missing_ok=True)
        used -= size
    return room - used
