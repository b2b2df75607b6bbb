"""Claims: the right of one job to write to a folder, on this or many machines' disk, or at a store.

    <folder>/OWNER   JSON: the job, where it runs, and a number that its master raises every BEAT_S

Whoever begins to write into a folder puts itself into OWNER, on the condition that the file still
is what was read (conditional.py): of two that begin at once one does. It goes on to raise the
number, on the same condition, so whoever has lost the folder learns it by the next beat, and before
each write that it asks `hold` about.

Whether the job in OWNER still runs its lock says where that can be seen (same machine, same view of
files). Elsewhere the file is watched: clocks of machines differ, so what counts is that it has not
changed for EXPIRES_S by one's own clock. The same job takes its own claim back at once, whatever
became of its masters, and so does one that goes on with its checkpoint: by `id` and `owner`.

A job's own folder needs no claim: its lock is one (paths.py).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import paths
from .clock import Clock, MonotonicClock
from .conditional import Seen, seen, swap
from .errors import JobError, UsageError
from .foreign import must_be, parse
from .listen import own_machine
from .places import Place
from .settings import ANALYZE
from .stores import Asking

log = logging.getLogger(__name__)

FILE = "OWNER"
BEAT_S = 10.0
EXPIRES_S = 25.0  # two beats, and half of one for a store that is slow
_LOOK_S = 1.0
_LAST_ASKING = Asking(patience_s=5.0)  # to give a claim up: who waits for it loses EXPIRES_S else
_HELD, _GIVEN_UP = "held", "given up"


class Taken(JobError):
    """Another job writes to the folder."""


@dataclass(frozen=True)
class Holder:
    """A job that writes to folders, as OWNER has it.

    `owner`: its name as such, which those that go on with it by --resume keep. `id`: of all its
    masters. `machine`: its view of files, in which `folder` is the job's and `lock` that folder's.
    `master`: one process; `beat`: what it counts.
    """

    owner: str
    job: str
    id: str = ""
    host: str = ""
    machine: str = ""
    folder: str = ""
    lock: str = ""
    master: str = ""
    beat: int = 0
    state: str = _HELD

    @classmethod
    def of_job(cls, owner: str, job: str, id: str, folder: Path) -> Holder:
        """Return this process as the master of the job in a folder."""
        host, master = own_machine(), secrets.token_hex(8)
        where = str(folder.absolute())
        return cls(owner, job, id, host, _machine(), where, _lock_of(folder), master)

    @property
    def lives(self) -> bool | None:
        """Tell whether the job runs, by its lock; None: that cannot be seen from here."""
        if self.state != _HELD:
            return False
        if not (self.lock and self.machine) or self.machine != _machine():
            return None
        folder = Path(self.folder)
        try:
            there = os.stat(folder / paths.LOCK)
        except FileNotFoundError:  # what replaces a job's folder asks whether it runs
            return False
        except OSError:
            return None
        return self.lock == _identity(there) and paths.is_locked(folder)

    def refusal(self, place: Place | str) -> str:
        """Return why another job may not write there."""
        return (
            f"the job {self.job!r}, which is running, writes to {place}: name another folder, or "
            f"end it ({self.how_to_end})"
        )

    @property
    def how_to_end(self) -> str:
        """The command that ends the job."""
        home = Path(self.folder).parent.parent
        where = "" if home == paths.home().absolute() else f"EDL_HOME={home} "
        there = "" if self.machine == _machine() else f" on {self.host}"
        return f"`{where}edl stop {self.job}`{there}"


def _machine() -> str:
    """Return a name that only processes share to which paths mean the same; "": there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/mnt')}"
    except OSError:  # no Linux, or one that hides it
        return ""


def _lock_of(folder: Path) -> str:
    """Return which file the lock of a job's folder is; "": it has none, as in a pod."""
    try:
        return _identity(os.stat(folder / paths.LOCK))
    except OSError:
        return ""


def _identity(file: os.stat_result) -> str:
    return f"{file.st_dev}:{file.st_ino}"


_KINDS = {field.name: int if field.name == "beat" else str for field in dataclasses.fields(Holder)}


def _read(place: Place, file: Seen | None) -> Holder | None:
    """Return who is in OWNER. Raises Taken where that cannot be told."""
    if file is None:
        return None
    try:
        values = parse(file.data)
        must_be(values, dict)
        known = {name: value for name, value in values.items() if name in _KINDS}
        must_be(known, {"owner": str, "job": str})
        for name, value in known.items():
            must_be(value, _KINDS[name], name)
        return Holder(**known)
    except ValueError as error:
        raise Taken(
            f"{place}/{FILE}, which says who writes there, cannot be read: {error}. Remove it if "
            "no job writes there"
        ) from error


def folders(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the folders of others to which a job with these settings writes, by the settings."""
    command = settings.get("command")
    of_train = ("checkpoint_dir", "delta_dir") if command == "train" else ()
    names = (*of_train, "output") if command != ANALYZE else ()  # whose output is a file
    return {name: str(settings[name]) for name in names if settings.get(name)}


def running(place: Place) -> Holder | None:
    """Return the job that is known, from here, to run and to write there. Raises OSError."""
    if place.is_local and place.name == paths.CHECKPOINTS:
        folder = place.path.parent.absolute()
        if paths.is_locked(folder):  # its own folder
            return Holder("", folder.name, folder=str(folder), machine=_machine())
    try:
        there = _read(place, seen(place, FILE))
    except Taken:
        return None  # whoever begins to write says so
    return there if there is not None and there.lives else None


def owner_of(place: Place) -> str:
    """Return the owner whose claim a folder has; "": none, or it was given up. Raises OSError."""
    try:
        there = _read(place, seen(place, FILE))
    except Taken:
        return ""
    return there.owner if there is not None and there.state == _HELD else ""


def check_alone(places: Mapping[str, str], own: Path, say: Callable[[str], str]) -> None:
    """Refuse folders to which another job writes that is known from here to run.

    Each of the two would remove what the other has written. `places`: by the settings that name
    them, which `say` names; `own`: the folder of the job that asks. Of a job on another machine the
    new one's master learns whether it runs, by waiting. Raises UsageError.
    """
    for name, path in places.items():
        try:
            there = running(Place(path))
        except OSError as error:
            raise UsageError(f"{say(name)}: {error}.") from error
        if there is not None and Path(there.folder) != own.absolute():
            raise UsageError(f"{say(name)}: {there.refusal(path)}.")


class Claim:
    """The claim of one job to one folder. May be used by many threads.

    `wait(seconds)` pauses between two looks of `take`.
    """

    def __init__(
        self,
        place: Place,
        me: Holder,
        clock: Clock | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.place = place
        self.lost = ""  # why this job may not write there any more
        self._me, self._clock, self._wait = me, clock or MonotonicClock(), wait
        self._held: Seen | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, tell: Callable[[str], object] = log.info) -> None:
        """Take the folder, once no job that may still run has it.

        `tell` hears what is waited for, EXPIRES_S at most. Raises Taken where another job runs that
        writes there, OSError.
        """
        watched: tuple[str, int] | None = None
        began = expires = self._clock.now()
        while True:
            before = seen(self.place, FILE)
            there = _read(self.place, before)
            now = self._clock.now()
            if there is None or self._is_free(there):
                if self._put(before):
                    return
            elif watched == (there.master, there.beat):
                if now > expires and self._put(before):
                    return
            elif watched is None:
                watched, expires = (there.master, there.beat), now + EXPIRES_S
                tell(
                    f"{self.place} is the folder of the job {there.job!r}, on {there.host}: "
                    f"whether that still runs is seen within {EXPIRES_S:.0f} s"
                )
            else:
                raise Taken(there.refusal(self.place))
            if now - began > 3 * EXPIRES_S:
                raise Taken(f"{self.place}/{FILE} changes whenever it is to be written")
            self._wait(_LOOK_S)

    def _is_free(self, there: Holder) -> bool:
        """Return whether a claim may be taken at once. Raises Taken where its job runs."""
        if there.id == self._me.id:
            return True
        if there.lives:
            raise Taken(there.refusal(self.place))
        return there.lives is False or there.owner == self._me.owner

    def renew(self) -> None:
        """Say that this job still runs. Raises Taken where another one has the folder, OSError."""
        with self._lock:
            if self.lost:
                raise Taken(self.lost)
            try:
                self._renew()
            except Taken as error:
                self.lost = str(error)
                raise

    def _renew(self) -> None:
        if self._held is not None and self._put(self._held):
            return
        before = seen(self.place, FILE)  # it was removed, or is another's
        there = _read(self.place, before)
        if (
            there is not None
            and there.master != self._me.master
            and (self._held is not None or not self._is_free(there))
        ):
            raise Taken(
                f"{self.place} is written to by the job {there.job!r}, on {there.host}, by now: "
                "this job writes there no more"
            )
        if not self._put(before):
            raise OSError(f"{self.place}/{FILE} changes whenever it is to be written")

    def hold(self) -> None:
        """Be sure, before a write, that the folder is this job's. Raises Taken.

        What keeps OWNER from being written keeps the write too, which says so.
        """
        try:
            self.renew()
        except OSError as error:
            log.debug("claim of %s -> not renewed: %s", self.place, error)

    def keep(self, on_lost: Callable[[str], object]) -> None:
        """Renew the claim from now on, in a thread, until `close`. `on_lost` hears why, once."""

        def run() -> None:
            while not self._closed.wait(BEAT_S):
                try:
                    self.renew()
                except Taken as error:
                    if not self._closed.is_set():
                        on_lost(str(error))
                    return
                except OSError as error:
                    log.warning("claim of %s -> not renewed: %s", self.place, error)

        self._thread = threading.Thread(target=run, name="claim", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Renew the claim no more, and give it up where it is held: nobody has to wait."""
        self._closed.set()
        with self._lock:
            held, was_lost = self._held, bool(self.lost)
            self.lost = self.lost or f"this job has given {self.place} up"
            if held is None or was_lost:
                return
            try:
                self._put(held, _GIVEN_UP, _LAST_ASKING)
            except OSError as error:
                log.warning("claim of %s -> not given up: %s", self.place, error)

    def _put(self, before: Seen | None, state: str = _HELD, asking: Asking | None = None) -> bool:
        self._me = dataclasses.replace(self._me, beat=self._me.beat + 1, state=state)
        data = json.dumps(dataclasses.asdict(self._me), indent=1).encode()
        written = swap(self.place, FILE, data, before, asking)
        self._held = written or self._held
        return written is not None
