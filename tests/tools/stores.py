"""A store of objects for tests: slow, failing, and with a listing that comes late.

`flaky://NAME/...` is one that lives in memory, known to fsspec as any other; `world(NAME)` is what
a test sees and orders of it.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem


class World:
    """One such store. All that is called raises `error`, `fails` times or while it is `down`."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.shown: list[frozenset[str]] = [frozenset()]  # the names after each change
        self.lag = 0  # a listing is older by so many changes
        self.fails = 0
        self.down = False
        self.up_for: int | None = None  # calls until it is down
        self.late = False  # a put that fails has put all the same
        self.error: Exception = OSError(5, "the store is out of order")
        self.calls: list[str] = []
        self.before: Callable[[str, str], None] = lambda _what, _path: None
        self.lock = threading.Lock()

    def call(self, what: str, path: str) -> None:
        """Count a call; raise where it fails."""
        self.before(what, path)
        with self.lock:
            self.calls.append(f"{what} {path}")
            if self.up_for is not None:
                self.up_for -= 1
                self.down = self.down or self.up_for < 0
            if self.down or self.fails > 0:
                self.fails -= 1
                raise self.error

    def put(self, path: str, data: bytes) -> None:
        with self.lock:
            self.objects[path] = data
            self.shown.append(frozenset(self.objects))

    def remove(self, path: str) -> None:
        with self.lock:
            if self.objects.pop(path, None) is not None:
                self.shown.append(frozenset(self.objects))

    def listed(self) -> frozenset[str]:
        with self.lock:
            return self.shown[max(0, len(self.shown) - 1 - self.lag)]


_worlds: dict[str, World] = {}


def world(name: str, new: bool = False) -> World:
    """Return the store of that name."""
    if new or name not in _worlds:
        _worlds[name] = World()
    return _worlds[name]


class Flaky(AbstractFileSystem):  # type: ignore[misc]
    """What fsspec knows of it. Several calls may come at once, as to an async file system."""

    protocol = "flaky"
    async_impl = True

    @staticmethod
    def _world(path: str) -> World:
        return world(path.split("/")[0])

    def makedirs(self, path: str, **_: Any) -> None:
        self._world(path).call("makedirs", path)

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        there = self._world(path)
        if there.late:
            there.put(path, value)
        there.call("put", path)
        there.put(path, value)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        return self._data("get", path)[start:end]

    def _data(self, what: str, path: str) -> bytes:
        there = self._world(path)
        there.call(what, path)
        if path not in there.objects:
            raise FileNotFoundError(path)
        return there.objects[path]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self._data("info", path)), "type": "file"}

    def ls(self, path: str, **_: Any) -> list[Any]:
        there = self._world(path)
        there.call("ls", path)
        names = {name[len(path) + 1 :] for name in there.listed() if name.startswith(f"{path}/")}
        if not names:
            raise FileNotFoundError(path)
        found = []
        for name in sorted({each.split("/")[0] for each in names}):
            data = there.objects.get(f"{path}/{name}", b"gone" if name in names else None)
            kind = "directory" if data is None else "file"
            found.append({"name": f"{path}/{name}", "size": len(data or b""), "type": kind})
        return found

    def rm_file(self, path: str) -> None:
        there = self._world(path)
        there.call("rm", path)
        if path not in there.objects:
            raise FileNotFoundError(path)
        there.remove(path)

    def _open(self, path: str, **_: Any) -> Any:
        return io.BytesIO(self._data("open", path))


fsspec.register_implementation("flaky", Flaky, clobber=True)


def clear_memory() -> None:
    """Forget what `memory://` holds, its empty folders too."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
