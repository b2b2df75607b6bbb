"""The claims of a job to the folders that it alone writes to: taken at its start, held to its end.

What one claim is, common/claims.py says.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from ..common import paths, storage
from ..common.claims import Claim, Holder, Taken
from ..common.errors import UsageError
from ..common.identity import job_id
from ..common.places import Place

log = logging.getLogger(__name__)


class Claims:
    """The claims of a job, by the names of the settings that name the folders.

    `notes`: what the user is to be told of them.
    """

    def __init__(self, claims: Mapping[str, Claim] | None = None) -> None:
        self._claims = dict(claims or {})
        self.notes: list[str] = []
        self._lost: dict[str, str] = {}  # why, by name
        self._on_lost: Callable[[str, str], object] | None = None
        self._lock = threading.Lock()

    @classmethod
    def of_job(
        cls, places: Mapping[str, str], job_name: str, job_dir: Path, owner: str, token: str
    ) -> Self:
        """Return the claims to these places. Raises UsageError where there is no such kind."""
        me = Holder.of_job(owner, job_name, job_id(token), job_dir)
        return cls({name: Claim(Place(path), me) for name, path in places.items()})

    def take(self, job_dir: Path, *, has_begun: bool) -> None:
        """Take all folders, and renew the claims from then on.

        Raises UsageError where another job has one, but of a job that `has_begun`: that one ends in
        order once it `hear`s. Where a folder cannot be asked now it is later.
        """

        def tell(text: str) -> None:
            log.info("starting: %s", text)
            with contextlib.suppress(OSError):
                storage.write_file(job_dir / paths.STARTING, text.encode())

        try:
            for name, claim in self._claims.items():
                try:
                    claim.take(tell)
                except Taken as error:
                    if not has_begun:
                        raise UsageError(f"--{name}: {error}.") from error
                    claim.lost = str(error)
                    self._tell_lost(name, claim.lost)
                    continue
                except OSError as error:
                    self.notes.append(
                        f"--{name}: whether another job writes there is not known: {error}"
                    )
                claim.keep(functools.partial(self._tell_lost, name))
        finally:
            (job_dir / paths.STARTING).unlink(missing_ok=True)

    def hear(self, on_lost: Callable[[str, str], object]) -> None:
        """Call `on_lost(name, why)`, from any thread, for each folder that is another job's."""
        with self._lock:
            self._on_lost, lost = on_lost, dict(self._lost)
        for name, why in lost.items():
            on_lost(name, why)

    def _tell_lost(self, name: str, why: str) -> None:
        """Note that a folder is lost, and tell it once: who renews finds out, and who holds."""
        with self._lock:
            is_new = name not in self._lost
            self._lost.setdefault(name, why)
            on_lost = self._on_lost
        if is_new and on_lost is not None:
            on_lost(name, why)

    def hold(self, folder: Place) -> None:
        """Be sure, before a write, that a folder is still this job's. Raises Taken."""
        for name, claim in self._claims.items():
            if claim.place != folder:
                continue
            try:
                claim.hold()
            except Taken as error:
                self._tell_lost(name, str(error))
                raise

    def close(self) -> None:
        """Give up what is held."""
        for claim in self._claims.values():
            claim.close()
