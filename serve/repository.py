"""The models of a server, by name: who answers now, and what comes next.

A new version is opened and warmed by whoever brings it (`swap`), while the one before answers; then
it takes its place in one step. Each request holds the version that it began with.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from ..common.errors import UsageError
from . import freshness
from .batcher import Asked, Batcher, Rules
from .kserve.refused import Refused, Why
from .kserve.taken import Inputs
from .metrics import Metrics
from .servable import Servable
from .versions import Held, Versions

log = logging.getLogger("edl.serve")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_WARMED = 3  # calls: the first ones of a model take long


class Model:
    """A model by its name, in all its versions. Any thread may call."""

    def __init__(
        self,
        name: str,
        rules: Rules,
        keep: int,
        metrics: Metrics,
        *,
        max_age_s: float = 0.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`max_age_s`: of what answers, to be ready; 0: any. `now`: seconds since 1970."""
        self.name, self._max_age_s, self._now = name, max_age_s, now
        self._lock = threading.Lock()
        self._versions = Versions[Servable](name, keep)
        self.metrics = metrics.of(
            name,
            queued=lambda: self._batcher.queued,
            ready=lambda: float(not self.unready()),
            version=self._number,
            age=lambda: freshness.age_s(self.about() or {}, self._now()),
            now=now,
        )
        self._batcher = Batcher(name, rules, watched=self.metrics)

    def unready(self) -> str:
        """Return why the model is not ready; "": a whole one answers, and is fresh enough."""
        about = self.about()
        if about is None:
            return f"the model {self.name!r} is not there yet: it is being loaded"
        return freshness.too_old(self.name, about, self._max_age_s, self._now())

    def _number(self) -> float:
        """Return the newest version as a number; NaN: there is none, or it is no number."""
        newest = self._versions.newest
        try:
            return float(newest.version) if newest is not None else math.nan
        except ValueError:
            return math.nan

    def about(self) -> dict[str, Any] | None:
        """Return what the one that answers by default says of itself; None: there is none."""
        newest = self._versions.newest
        return None if newest is None else newest.about

    def told(self) -> dict[str, Any]:
        """Return what a model's metadata says of its versions."""
        with self._lock:
            return {
                "versions": self._versions.names,
                "failed": dict(self._versions.failed),
                "swaps": self._versions.swaps,
            }

    def hold(self, version: str = "") -> Held[Servable]:
        """Return a version, which `release` takes back. Raises Refused."""
        with self._lock:
            return self._versions.hold(version)

    def release(self, held: Held[Servable]) -> None:
        with self._lock:
            closed = self._versions.release(held)
        _close(closed)

    def ask(
        self, held: Held[Servable], inputs: Inputs, rows: int, over: Callable[[Asked], None]
    ) -> Asked:
        """Queue a request. Raises Refused; `over` is called otherwise, once and by any thread.

        The version is released in either case. Where the request says so, call `help` soon.
        """

        def ended(asked: Asked) -> None:
            try:
                over(asked)
            finally:
                self.release(held)

        with contextlib.ExitStack() as undo:
            undo.callback(self.release, held)
            asked = self._batcher.ask(held, inputs, rows, ended, helps=True)
            undo.pop_all()
        return asked

    def help(self) -> None:
        """Compute what waits, if that is quick."""
        self._batcher.help()

    def give_up(self, asked: Asked) -> None:
        """Forget a request that nobody waits for."""
        self._batcher.give_up(asked)

    def swap(self, served: Servable) -> None:
        """Let a whole, warm version answer from now on."""
        with self._lock:
            newest = self._versions.newest
            closed = self._versions.install(served.version, served)
        before = newest.version if newest is not None else ""
        self.metrics.swapped()
        log.info(
            "model=%s -> serves version=%s before=%s", self.name, served.version, before or "none"
        )
        _close(closed)

    def fail(self, version: str, why: str) -> None:
        """Tell that a version could not be opened; whatever answers goes on."""
        with self._lock:
            self._versions.fail(version, why)
        self.metrics.failed()
        log.error("model=%s -> not opened version=%s reason=%r", self.name, version, why)

    def close(self) -> None:
        """End: what is being computed is answered first."""
        self._batcher.close()
        with self._lock:
            closed = self._versions.end()
        _close(closed)


def _close(these: list[Servable]) -> None:
    for served in these:
        log.info("model=%s -> closed version=%s", served.name, served.version)
        served.close()


class Repository:
    """All models of a server."""

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        keep: int = 1,
        metrics: Metrics | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Hold no model yet. `keep`: versions of each that may be asked."""
        self.rules, self._keep, self._now = rules or Rules(), keep, now
        self.metrics = metrics or Metrics()
        self._models: dict[str, Model] = {}
        self.is_ending = False

    @property
    def names(self) -> list[str]:
        return list(self._models)

    def unready(self) -> str:
        """Return why not each model answers, fresh enough, and goes on to; "": it does."""
        if self.is_ending:
            return "the server is ending"
        found = (why for each in self._models.values() if (why := each.unready()))
        return next(found, "" if self._models else "there is no model yet")

    def add(self, name: str, max_age_s: float = 0.0) -> Model:
        """Announce a model that is to come. Raises UsageError for a name that is none.

        `max_age_s`: of what answers, for the model to be ready; 0: any.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be a model's name: use letters, digits, '.', '_' and '-' "
                "(NAME=PATH gives another)."
            )
        if name in self._models:
            raise UsageError(f"Two models are named {name!r}: give one another name (NAME=PATH).")
        self._models[name] = Model(
            name, self.rules, self._keep, self.metrics, max_age_s=max_age_s, now=self._now
        )
        return self._models[name]

    def model(self, name: str) -> Model:
        """Return a model. Raises Refused."""
        found = self._models.get(name)
        if found is None:
            raise Refused(
                Why.UNKNOWN,
                f"there is no model {name[:80]!r}: there are {', '.join(map(repr, self._models))}",
            )
        return found

    def swap(self, name: str, served: Servable) -> None:
        """Warm a whole version, and let it answer from now on.

        Raises what its example raises: then all is as it was, and the version is closed.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(served.close)
            warm(served)
            undo.pop_all()
        self.model(name).swap(served)

    def close(self) -> None:
        self.is_ending = True
        for each in self._models.values():
            each.close()


def warm(served: Servable) -> None:
    """Let a version compute its example, where it has one, before anybody asks it."""
    example: Inputs | None = getattr(served, "example", None)
    if not example:
        return
    for _ in range(_WARMED):
        served.infer({name: array[:1] for name, array in example.items()})
        served.infer(example)
