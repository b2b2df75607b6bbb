"""A writer: it follows a job's history and has one logger write what is new of it.

Nothing comes twice, whenever this process is killed. The cursor is kept after what it covers is
kept by the logger, and a logger that can say what it has of each series is asked when it is opened:
what was under way is told again but for that. Of one that cannot say it, the cursor is kept before
it is told, so that what was under way at a kill may be missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..jobs.history import Reader
from .core import Known, fresh, tell
from .kept import Kept, is_first_time, load, save
from .logger import Logger, Run

log = logging.getLogger(__name__)

_PAUSE_S = 2.0  # after the first failure; each further one doubles it
_LONGEST_PAUSE_S = 60.0


class Writer:
    """The writer of one logger. `say`: tells the job's people a sentence."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Logger],
        run: Run,
        history: Path,
        job: str,
        say: Callable[[str], None],
    ) -> None:
        """Prepare to write.

        `history`: the folder that has it. `job`: whose it is.
        """
        self.name = name
        self._make, self._run, self._history, self._job = make, run, history, job
        self._say = say
        self._logger: Logger | None = None
        self._known: Known | None = {}
        self._reached = Kept()  # told, and perhaps not kept by the logger yet
        self._failures = 0
        self._again_at = 0.0

    def turn(self, now: float) -> bool:
        """Have the logger write what is new; return whether all is told. What it raises is told."""
        if now < self._again_at:
            return False
        try:
            self._open()
            while self._write():
                pass
        except Exception as error:  # noqa: BLE001 - whatever a logger's library raises, all else goes on
            self.fail(error, now)
            return False
        self._failures = 0
        return True

    def finish(self, outcome: str, now: float) -> bool:
        """End the run; return whether that is done."""
        if not self.turn(max(now, self._again_at)):
            return False
        try:
            assert self._logger is not None
            self._logger.finish(outcome)
            self._keep(replace(self._reached, state=self._logger.state()))
        except Exception as error:  # noqa: BLE001 - the same
            self.fail(error, now)
            return False
        return True

    def fail(self, error: Exception, now: float) -> None:
        """Note that the logger does not work: it is told once, and tried again later."""
        log.warning("logger=%s -> failed", self.name, exc_info=error)
        self._logger = None
        self._again_at = now + min(_LONGEST_PAUSE_S, _PAUSE_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        words = " ".join(str(error).split())[:300]
        self.complain(f"{type(error).__name__}: {words}; it is tried again")

    def complain(self, why: str) -> None:
        """Tell the job's people what is wrong with this logger, once for a job."""
        if is_first_time(self._run.folder, self.name):
            goes_on = "training and other loggers go on (logs/loggers.log)"
            self._say(f"logger {self.name}: {why}; {goes_on}")

    def _open(self) -> None:
        if self._logger is not None:
            return
        loaded = load(self._run.folder, self.name)
        kept = loaded.of(self._job)
        logger = self._make()
        self._known = logger.open(self._run, kept.state)
        if not loaded.job:  # no cursor of this run is here: what was told elsewhere counts
            kept = replace(kept, cursor=replace(kept.cursor, last=dict(self._known or {})))
        self._reached, self._logger = replace(kept, state=logger.state()), logger
        self._keep(self._reached)

    def _write(self) -> bool:
        """Tell what is new; return whether there may be more."""
        logger, before = self._logger, self._reached
        assert logger is not None
        reader = Reader(self._history, before.cursor.offset)
        told, cursor = tell(before.cursor, reader.lines(), reader.offset)
        if reader.offset == before.cursor.offset:
            return False
        self._reached = replace(before, cursor=cursor)
        if not told:
            return True
        if self._known is None:
            self._keep(self._reached)
        sure = logger.write(fresh(told, self._known or {}))
        self._reached = replace(self._reached, state=logger.state())
        self._keep(self._reached if sure or self._known is None else before)
        return True

    def _keep(self, kept: Kept) -> None:
        save(self._run.folder, self.name, kept)
