"""Row groups of Parquet, decoded once: as Arrow files on disk, which all processes of a job map.

They lie in the job's folder beside the other indices, outside of a job in a temporary one. Together
they take no more than a limit, nor more than half of what is free on that disk; the one that was
used longest ago goes first, which does not hurt whoever has it mapped. A row group that finds no
room, or a disk that cannot be written, is held in memory instead, up to 1 GiB.
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
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ..common import background
from .arrow import Converter
from .arrow_values import Column, View
from .files import DataFile, cache_folder, kept_path, put

log = logging.getLogger(__name__)

_HELD_NBYTES = 1 << 30
_MAPPED = 512  # a guess: a process has 65,530 maps, and each takes some milliseconds to make
_SUFFIX = ".arrow"
_DEAD_S = 600.0  # nobody who lives pauses so long between two pieces of a file


class Group:
    """A decoded row group. `nbytes`: of memory that it holds; a mapped one has none."""

    def __init__(self, table: Any, nbytes: int = 0) -> None:
        self.nbytes = nbytes
        self._table = table
        self._columns: dict[str, tuple[View | None, Any]] = {}

    def column(self, name: str, converter: Converter, low: int, high: int) -> Column:
        """Return rows [low, high) of a column, the faults counted from `low`."""
        if name not in self._columns:
            array = self._table.column(name)
            view = converter.view(array.chunk(0)) if array.num_chunks == 1 else None
            self._columns[name] = view, array
        view, array = self._columns[name]
        if view is not None and (values := view(low, high)) is not None:
            return Column(values, {})
        return converter.column(array.slice(low, high - low))


class Decoded:
    """The row groups of all files of a reader, in files of at most `limit` bytes together."""

    def __init__(self, limit: int) -> None:
        self._groups: OrderedDict[tuple[str, str], Group] = OrderedDict()
        self._held = 0  # bytes in memory
        self._lock = threading.Lock()
        self._disk = _Disk(limit)
        self._writing: tuple[str, str] | None = None  # the group that is being written
        self._warned = False
        weakref.finalize(self, self._disk.close)

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoded, (self._disk.limit,)

    def get(self, file: DataFile, kind: str, decode: Callable[[], Any]) -> Group:
        """Return the row group that `kind` names, by `decode` where nobody has decoded it yet."""
        key = (file.name, kind)
        with self._lock:
            if key not in self._groups:
                self._map_written(wait=True)  # so that one is in memory and not two
                self._hold(key, self._load(file, key, decode))
                while len(self._groups) > 1 and (
                    self._held > _HELD_NBYTES or len(self._groups) > _MAPPED
                ):
                    self._held -= self._groups.popitem(last=False)[1].nbytes
            else:
                self._map_written(wait=False)
            self._groups.move_to_end(key)
            return self._groups[key]

    def _hold(self, key: tuple[str, str], group: Group) -> None:
        if key in self._groups:
            self._held -= self._groups[key].nbytes
        self._groups[key] = group
        self._held += group.nbytes

    def _load(self, file: DataFile, key: tuple[str, str], decode: Callable[[], Any]) -> Group:
        """Return a group that is there, or else one in memory, which is being written by now."""
        import pyarrow

        trouble = None
        try:
            path = kept_path(file, key[1], self._disk.folder())
            if path.exists():
                return _mapped(path)
        except (OSError, pyarrow.ArrowException) as error:  # what is there is torn
            trouble = error
        table = decode()
        if trouble is None:
            table = table.unify_dictionaries().combine_chunks()
            self._disk.begin(path, table)
            self._writing = key
        else:
            self._warn(file.name, trouble)
        return Group(table, table.nbytes)

    def _map_written(self, wait: bool) -> None:
        """Have what is on disk by now mapped instead of in memory."""
        import pyarrow

        if self._writing is None or not (wait or self._disk.is_done()):
            return
        key, self._writing = self._writing, None
        try:
            path = self._disk.written()
            if path is not None and key in self._groups:
                self._hold(key, _mapped(path))
        except (OSError, pyarrow.ArrowException) as error:  # nothing can be written
            self._warn(key[0], error)

    def _warn(self, name: str, error: Exception) -> None:
        if not self._warned:
            log.warning("Decoded row groups of %s stay in memory: %s.", name, error)
            self._warned = True


class _Disk:
    """The folder of decoded row groups; one at a time is written, while it is read from memory.

    The thread that writes knows no more than this, so that it keeps no reader.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._room = 0  # bytes that may be written unasked
        self._writing: Future[Path] | None = None
        self._writer = 0  # the process of it: in a fork it is nobody's
        self._thread: threading.Thread | None = None
        self._temporary: Path | None = None

    def folder(self) -> Path:
        folder = cache_folder()
        if folder is not None:
            return folder
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="edl-decoded-"))
        return self._temporary

    def begin(self, path: Path, table: Any) -> None:
        """Begin to write a table of one chunk a column; the one before has been asked for."""
        used_ns = time.time_ns()

        def write() -> Path:
            put(path, lambda to: self._write(to, table, used_ns))
            return path

        self._writing, thread = background.prepare("decoded row group", write)
        thread.daemon = False  # Python's end waits for it: it is in the midst of Arrow's code
        self._writer, self._thread = os.getpid(), thread
        thread.start()

    def is_done(self) -> bool:
        return self._writing is None or self._writing.done() or self._writer != os.getpid()

    def written(self) -> Path | None:
        """Return what was written last, once it is. Raises what writing it raised."""
        writing, self._writing = self._writing, None
        if writing is None or self._writer != os.getpid():
            return None
        return writing.result()  # as long as a file takes to be written

    def close(self) -> None:
        """Remove the folder that only this process knew."""
        # A reader's end may come while the writer collects garbage, of which it is: that waits for
        # nobody, and its file goes with the folder.
        if threading.current_thread() is not self._thread:
            with contextlib.suppress(Exception):  # it was to be a file of a folder that goes
                self.written()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _write(self, to: Path, table: Any, used_ns: int) -> None:
        import pyarrow

        if table.nbytes > self._room:
            # Others fill the same folder: so look again when a part of what is left is full.
            self._room = _make_room(to.parent, table.nbytes, self.limit) // 4
        self._room -= table.nbytes
        with (
            pyarrow.OSFile(str(to), "wb") as sink,
            pyarrow.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
        os.utime(to, ns=(used_ns, used_ns))


def _mapped(path: Path) -> Group:
    import pyarrow

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
