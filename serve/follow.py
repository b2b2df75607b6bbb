"""A follower of a model that is still being trained: the newest generation, as deltas come.

`Pursuit` is pure: told what names a folder has, it asks for what leads on and keeps the newest
generation. What cannot be read is passed over for a while, and told; where nothing leads on from
here, it goes on from a base. It never goes back, and it stays with the job that it has followed
first, which goes on under the same name when it is resumed: what another job writes into the folder
is told, and not taken. The first one is the job that has the folder (common/claims.py); where none
has, that of the newest base. `Follower` is the thread that looks into the folder, every so often,
for stores tell nobody of what comes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, Self, TypeVar

from ..common import claims, deltas, faults, storage
from ..common.deltas import About, Name
from ..common.errors import CheckpointError, EdlError
from ..common.places import Place
from .deltas import Gap, Generation, applied, must_follow, opened, read

log = logging.getLogger(__name__)

_LONGEST_S = 60.0  # until what could not be read is tried again
_END_S = 10.0


class Reached(Protocol):
    """A state that is one cut of a job."""

    @property
    def about(self) -> About: ...

    @property
    def is_heavy(self) -> bool:
        """Tell whether it is better to go on from a base that leads as far as the deltas."""
        ...


State = TypeVar("State", bound=Reached)


class _Stranger(CheckpointError):
    """A base or a delta is of the job of this name, which is not the one that is followed."""


class Source(Protocol[State]):
    """A folder of bases and deltas. What it raises is CheckpointError or OSError."""

    def owner(self) -> str:
        """Return the job that writes there by its claim; "": none is known to."""
        ...

    def about(self, name: Name) -> About | None:
        """Return what a base or delta says of itself; None: it is not there, or not whole yet."""
        ...

    def read(self, name: Name, here: State | None) -> State:
        """Return the state that a delta leads to from `here`, or that of a base (None)."""
        ...


class Folder:
    """The Source that is a folder, or a URL."""

    def __init__(self, where: str | Place) -> None:
        """Find the folder. Raises UsageError where there is no such kind."""
        self.place = Place(where)

    def names(self) -> list[Name]:
        """Return the bases and deltas that a listing shows. Raises OSError."""
        return deltas.listed(self.place)

    def owner(self) -> str:
        return claims.owner_of(self.place)

    def about(self, name: Name) -> About | None:
        place = self.place / str(name)
        if not place.has(storage.MANIFEST):
            return None
        return deltas.about(deltas.said(place))

    def read(self, name: Name, here: Generation | None) -> Generation:
        manifest = read(self.place / str(name))
        return opened(manifest) if here is None else applied(here, manifest)


class Pursuit(Generic[State]):
    """The newest state that a folder leads to. Pure: `now` is passed in."""

    def __init__(
        self,
        source: Source[State],
        tell: Callable[[str], None] = lambda _: None,
        how_to_change: str = "start this anew to follow that one",
    ) -> None:
        """`how_to_change`: what somebody does who wants another job to be followed."""
        self._source, self._tell, self._how_to_change = source, tell, how_to_change
        self.here: State | None = None
        self._bad: dict[Name, tuple[int, float]] = {}  # how often it failed; when to try again
        self._told: set[str] = set()

    def look(self, names: Iterable[Name], now: float) -> bool:
        """Take one step on where one leads on; return whether it did. Call again until it does not.

        Raises nothing that the source raises: that is told.
        """
        listed = list(names)
        self._bad = {name: bad for name, bad in self._bad.items() if name in listed}
        here = self.here
        number = here.about.number if here else 0
        job = here.about.job if here else self._owner()
        if job is None:
            return False
        bad = {name for name, (_, until) in self._bad.items() if now < until}
        heavy = here is not None and here.is_heavy
        for name in deltas.candidates(listed, number, bad, base_first=heavy):
            if self._take(name, now, job):
                return True
        if here is not None and listed and max(name.number for name in listed) < number:
            for name in deltas.candidates(listed, 0, bad):  # of another job, or listed late
                self._take(name, now, job)
        return False

    def _owner(self) -> str | None:
        try:
            return self._source.owner()
        except OSError as error:
            self._say(f"who writes there is not known: {error}")
            return None

    def _take(self, name: Name, now: float, job: str) -> bool:
        """Go to a cut of this job ("": of any); return whether that could be."""
        here = self.here
        try:
            about = self._source.about(name)
            if about is None:
                return False  # not yet
            if job and about.job != job:
                raise _Stranger(about.job)
            if here is not None and about.number <= here.about.number:
                raise Gap(f"{name} is older than cut {here.about.number}, which is here")
            if name.since is not None and here is not None:
                must_follow(about, here.about)
            new = self._source.read(name, here if name.since is not None else None)
            if new.about != about:
                raise CheckpointError(f"{name} was written anew as it was read")
        except (CheckpointError, OSError) as error:
            tries = self._bad.get(name, (0, 0.0))[0] + 1
            self._bad[name] = tries, now + min(2.0**tries, _LONGEST_S)
            if isinstance(error, _Stranger):
                told = f"of another job, {error}, nothing is taken: "
                told += (
                    f"{job} is followed; {self._how_to_change}" if here else f"{job} writes there"
                )
                self._say(told)
            else:
                self._say(f"{name} is passed over: {error}")
            return False
        if here is not None and name.since is None and not here.is_heavy:
            self._say(f"going on from {name} after cut {here.about.number}")
        self.here = new
        return True

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


class Follower:
    """A thread that follows one job's deltas, and hands over each new generation.

    `current`: the newest one, None until there is one. `on_generation` is called by the thread;
    what it raises is told, and the generation counts as handed over. `period_s`: between two looks.
    """

    def __init__(
        self,
        url: str,
        on_generation: Callable[[Generation], None],
        *,
        period_s: float = 1.0,
        tell: Callable[[str], None] = log.warning,
    ) -> None:
        """Prepare the thread. Raises UsageError where there is no such kind of folder."""
        self._folder = Folder(url)
        self._pursuit: Pursuit[Generation] = Pursuit(self._folder, tell)
        self._on_generation, self._period_s, self._tell = on_generation, period_s, tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._failed = ""
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self if self._thread.ident else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def current(self) -> Generation | None:
        return self._pursuit.here

    def start(self) -> Self:
        """Begin to look; return this."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop; a look under way may still end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def first(self, timeout_s: float) -> Generation:
        """Wait for the first generation. Raises EdlError where none comes in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.current is not None, timeout_s):
                why = f": {self._failed}" if self._failed else ""
                raise EdlError(
                    f"{self._folder.place} had no base that is whole in {timeout_s:g} s{why}. A "
                    "job writes one a moment after its first step, with --delta_dir."
                )
        assert self.current is not None
        return self.current

    def look(self) -> int:
        """Look once, and hand over what is new; return how many generations that were."""
        count = 0
        try:
            names = self._folder.names()
        except OSError as error:
            self._fail(f"{self._folder.place} cannot be listed: {error}")
            return 0
        self._failed = ""
        while not self._stop.is_set() and self._pursuit.look(names, time.monotonic()):
            count += 1
        if count and (here := self.current) is not None:
            faults.point("serve.generation", number=here.about.number)
            self._hand_over(here)
        return count

    def _hand_over(self, generation: Generation) -> None:
        try:
            self._on_generation(generation)
        except Exception as error:  # noqa: BLE001  the callback is anybody's; the next one may do
            self._tell(f"cut {generation.about.number} was not taken: {error!r}")
        with self._changed:
            self._changed.notify_all()

    def _fail(self, text: str) -> None:
        if text != self._failed:
            self._failed = text
            self._tell(text)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(self._period_s)


def follow(
    url: str,
    on_generation: Callable[[Generation], None],
    *,
    period_s: float = 1.0,
    tell: Callable[[str], None] = log.warning,
) -> Follower:
    """Follow the deltas of a job from now on; `close` the answer to end it.

    `on_generation` is called, by another thread, with each newest generation; those that came and
    went between two looks are left out. Raises UsageError where there is no such kind of folder.
    """
    return Follower(url, on_generation, period_s=period_s, tell=tell).start()
