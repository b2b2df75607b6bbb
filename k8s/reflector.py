"""A copy of the objects that a selector names, kept by list and watch; each change is told once.

A list gives all and the version that a watch goes on from; bookmarks keep that version young. A
watch that breaks or is refused as too old (410 Gone) begins anew with a list, and so does every one
after `resync_s`, which finds what an event that never came would have told. An event that says
nothing new is not told again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..common.errors import PeerError
from ..common.retry import Backoff
from .api import Api, Object

log = logging.getLogger(__name__)

_WATCH_S = 60.0  # of one watch; a broken way is then noticed at the latest
_RESYNC_S = 120.0
_BACKOFF = Backoff(1.0, 10.0)  # guesses


@dataclass(frozen=True)
class Change:
    """An object as it was (None: it is new) and as it is. `gone`: it exists no more."""

    before: Object | None
    after: Object
    gone: bool = False


class Cache:
    """The objects by uid. Pure: lists and events in, changes out."""

    def __init__(self) -> None:
        self._objects: dict[str, Object] = {}

    def replace(self, items: Iterable[Object]) -> list[Change]:
        """Return the changes that a list tells of: an object that is not in it is gone."""
        items = list(items)
        there = {item["metadata"]["uid"] for item in items}
        gone = [self._objects.pop(uid) for uid in self._objects.keys() - there]
        changes = [Change(each, each, gone=True) for each in gone]
        return changes + [change for item in items if (change := self._set(item))]

    def apply(self, kind: str, item: Object) -> list[Change]:
        """Return the changes that an event tells of: ADDED, MODIFIED or DELETED."""
        if kind == "DELETED":
            before = self._objects.pop(item["metadata"]["uid"], None)
            return [] if before is None else [Change(before, item, gone=True)]
        change = self._set(item)
        return [change] if change else []

    @property
    def objects(self) -> Mapping[str, Object]:
        return self._objects

    def _set(self, item: Object) -> Change | None:
        about = item["metadata"]
        before = self._objects.get(about["uid"])
        if before and before["metadata"]["resourceVersion"] == about["resourceVersion"]:
            return None
        self._objects[about["uid"]] = item
        return Change(before, item)


class Reflector:
    """A thread that calls `on_change` for each change, and `on_list` after each list."""

    def __init__(
        self,
        api: Api,
        kind: str,
        selector: str,
        on_change: Callable[[Change], None],
        on_list: Callable[[float, Mapping[str, Object]], None] = lambda _asked, _objects: None,
        *,
        resync_s: float = _RESYNC_S,
        on_silence: Callable[[PeerError | None], None] = lambda _error: None,
    ) -> None:
        """Prepare to follow the objects of a kind; `start` begins it.

        `on_list(asked, objects)`: all there were; asked for at this moment of `time.monotonic`.
        `on_silence` is told when the API server begins to fail, and (None) when it answers again.
        """
        self._api = api
        self._kind = kind
        self._selector = selector
        self._on_change = on_change
        self._on_list = on_list
        self._resync_s = resync_s
        self._on_silence = on_silence
        self._cache = Cache()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{kind.lower()}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 0.0) -> None:
        """Tell no change any more once the one that is being told has been."""
        self._closed.set()
        if timeout_s:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                version, until = self._list()
            except PeerError as error:
                failures += 1
                if failures == 1:
                    self._on_silence(error)
                self._closed.wait(_BACKOFF.after(failures))
                continue
            if failures:
                self._on_silence(None)
            failures, began = 0, time.monotonic()
            try:
                while time.monotonic() < until and not self._closed.is_set():
                    version = self._watch(version)
            except PeerError as error:
                log.info("%s -> listed anew: %s", self._kind, error)
                if time.monotonic() - began < _BACKOFF.first_s:
                    self._closed.wait(_BACKOFF.first_s)

    def _list(self) -> tuple[str, float]:
        asked = time.monotonic()
        items, version = self._api.list(self._kind, self._selector, patience_s=0.0)
        self._tell(self._cache.replace(items))
        if not self._closed.is_set():
            self._on_list(asked, self._cache.objects)
        return version, asked + self._resync_s

    def _watch(self, version: str) -> str:
        for event in self._api.watch(self._kind, self._selector, version, _WATCH_S):
            found: dict[str, Any] = event["object"]
            version = found["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._tell(self._cache.apply(event["type"], found))
            if self._closed.is_set():
                break
        return version

    def _tell(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if self._closed.is_set():
                return
            self._on_change(change)
