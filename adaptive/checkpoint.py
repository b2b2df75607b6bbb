"""Checkpoints: the named states of a training process, saved and loaded by all replicas together.

    <checkpoint_path>/checkpoint-000007/    a file for each state, and common/storage.py's manifest
    <checkpoint_path>/.partial-…/           being written, or left behind by a process that died

To save: every state is brought to one value on all replicas (`sync`), rank 0 writes them into a
partial folder, with a manifest of sizes and checksums, and renames it; all but the last two go
afterwards. So whatever happens there is a whole one, and all replicas wait until it stands.

To load: the replica that sees the newest whole checkpoint reads it and sends the states to the
others, so the folder need not be shared: a machine's own disk will do as long as that machine comes
back. The small states are sent at once, when the replicas meet, so that making a loader waits for
nobody. What is loaded before they meet is what this process sees, and is loaded again when they do.
A checkpoint that is torn or damaged is named in a warning and the one before it is taken. What a
state writes is its own affair; those of this package are JSON and tensors, never pickles.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..common.clock import Clock, MonotonicClock
from ..common.errors import CheckpointError
from ..common.files import sync_directory
from ..common.storage import (
    Manifest,
    newest_whole,
    read_checked,
    write_file,
    write_manifest,
)
from . import collective, env
from .collective import Control, control
from .session import only

log = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d{6,})")
_PARTIAL = ".partial-"
_SMALL = (
    1 << 16
)  # bytes of a state that is sent with all others; loaders' and sums' have some hundred
_KEPT = 2  # the newest, and one to fall back on should its disk have lied


class State:
    """Something that outlives a restart, under a name that no other state of the process has.

    Constructing registers it. All replicas construct the same states in the same order.
    Raises ValueError where there is one of this name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        states().register(self)

    def save(self, fileobj: BinaryIO) -> None:
        """Write the state. Called on rank 0, after `sync`."""

    def load(self, fileobj: BinaryIO) -> None:
        """Take over what `save` wrote. Called on every replica."""

    def sync(self) -> None:
        """Bring the state to one value on all replicas. Called on every replica before `save`."""


class States:
    """The states of this process by name, their newest checkpoint, and when the next one is due."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._due_from = self._clock.now()
        self._states: dict[str, State] = {}
        self._reader: int | None = None  # who reads the newest checkpoint,
        self._manifest: Manifest | None = None  # there: what it is
        self._held: dict[str, bytes | None] | None = None  # the states of it, large ones as None
        self._saved: set[str] = set()  # names of states of which there is a newer one by now
        self._said = False  # that there is nothing to go on from
        self._early: dict[State, bool] = {}  # asked for before the replicas met: was it loaded?
        collective.when_met(self._meet)

    def register(self, state: State) -> None:
        if state.name in self._states:
            raise ValueError(f"there is a state {state.name!r} already: give this one its own name")
        self._states[state.name] = state

    def forget(self, state: State) -> None:
        """Leave this state out from now on."""
        self._states.pop(state.name, None)

    def due(self) -> bool:
        """Tell whether the environment's interval has passed since the last checkpoint.

        It is asked once.
        """
        interval_s, now = env.checkpoint_interval_s(), self._clock.now()
        if interval_s is None or now < self._due_from + interval_s:
            return False
        self._due_from = now
        return True

    def load(self, state: State) -> bool:
        """Give the state what the newest checkpoint holds for it; False where that is nothing.

        Raises CheckpointError where the bytes are not those that were written.
        """
        met = collective.met()
        loaded = self._load(state, control() if met else Control())
        if not met:
            self._early[state] = loaded
        return loaded

    def _load(self, state: State, peers: Control) -> bool:
        if self._held is None or state.name in self._saved:
            self._look(peers)
        if self._held is None or state.name not in self._held:
            return False
        data = self._held[state.name]
        if data is None:
            data = (self._read(state.name) if self._manifest else None) or b""
            data = peers.broadcast_bytes(data, self._reader or 0)
        state.load(io.BytesIO(data))
        return True

    def save(self) -> Path | None:
        """Save a checkpoint of all states; return where, None where no folder was named for it.

        Raises CheckpointError on every replica where rank 0 could not write it.
        """
        peers = control()
        for state in self._states.values():
            state.sync()
        root = _root()
        path, problem = None, None
        if peers.rank == 0 and root is not None:
            try:
                path = _write(root, list(self._states.values()))
            except OSError as error:
                problem = f"cannot write a checkpoint to {root}: {error}"
        if problem := peers.broadcast(problem):
            raise CheckpointError(problem)
        self._saved.update(self._states)
        self._due_from = self._clock.now()
        return path

    def _look(self, peers: Control) -> None:
        """Find the newest whole checkpoint of all replicas, and the one that reads it."""
        manifest = newest(_root())
        versions = peers.gather(manifest.version if manifest else -1)
        # What a state of this process has not saved yet stands in the one that it began with.
        held: dict[str, bytes | None]
        held = {name: data for name, data in (self._held or {}).items() if data is not None}
        self._saved.clear()
        self._reader = versions.index(max(versions)) if max(versions) >= 0 else None
        self._manifest = manifest if peers.rank == self._reader else None
        if self._reader is not None:
            mine: dict[str, bytes | None] = self._small() if self._manifest else {}
            held |= peers.broadcast(mine, self._reader)
        elif peers.rank == 0 and (collective.met() or collective.place()[1] == 1):
            self._say_that_nothing_is_there()
        self._held = held

    def _say_that_nothing_is_there(self) -> None:
        """Say so, once, where that is not the first start of the job."""
        if not env.num_restarts() or self._said:
            return
        self._said = True
        if (root := _root()) is None:
            what = "EDL_CHECKPOINT_PATH names no folder, so nothing is ever saved"
        else:
            interval_s = env.checkpoint_interval_s()
            often = "only when preempted" if interval_s is None else f"every {interval_s:g} s"
            what = f"nothing was saved in {root} ({often}: EDL_CHECKPOINT_INTERVAL_S)"
        log.warning("restart=%d -> begins anew: %s", env.num_restarts(), what)

    def _small(self) -> dict[str, bytes | None]:
        assert self._manifest is not None
        sizes = {record.name: record.nbytes for record in self._manifest.files}
        return {
            name: self._read(name) if sizes[file] <= _SMALL else None
            for name, file in self._manifest.books["states"].items()
        }

    def _read(self, name: str) -> bytes:
        assert self._manifest is not None
        file = self._manifest.books["states"][name]
        records = {record.name: record for record in self._manifest.files}
        return read_checked(self._manifest, records[file])

    def _meet(self) -> None:
        """Load again, together, what each replica has loaded for itself."""
        early, self._early = self._early, {}
        if collective.place()[1] == 1:
            return  # it was alone with it
        self._held = None
        for state, loaded in early.items():
            if self._states.get(state.name) is state and not self.load(state) and loaded:
                raise CheckpointError(
                    f"this replica has loaded {state.name!r}, which the newest checkpoint of all "
                    "replicas does not have: call init_process_group() before anything is made"
                )


def states() -> States:
    """Return the states of this process."""
    return only(States)


def load_state(state: State) -> bool:
    """Give the state what the newest checkpoint holds for it; False where that is nothing."""
    return states().load(state)


def save_all_states() -> Path | None:
    """Save a checkpoint of all states.

    Every replica calls it, between the same two steps.
    """
    return states().save()


def save_state(state: State, directory: str | Path, sync: bool = True) -> None:
    """Write one state alone into a file of its name. Every replica calls it; rank 0 writes."""
    if sync:
        state.sync()
    if control().rank == 0:
        buffer = io.BytesIO()
        state.save(buffer)
        write_file(Path(directory) / _file_name(state.name), buffer.getbuffer())


def newest(root: Path | None) -> Manifest | None:
    """Return the newest whole checkpoint below a folder; a warning names those that are torn."""
    return newest_whole(_checkpoints(root))


def _write(root: Path, states: list[State]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    older = _checkpoints(root)
    number = _number(older[-1]) + 1 if older else 0
    for partial in root.glob(f"{_PARTIAL}*"):  # of processes that died: a job has one rank 0
        shutil.rmtree(partial)
    with _partial(root) as folder:
        files, names = [], {}
        for state in states:
            buffer = io.BytesIO()
            state.save(buffer)
            record = write_file(folder / _file_name(state.name), buffer.getbuffer())
            files.append(record)
            names[state.name] = record.name
        write_manifest(
            folder,
            version=number,
            num_shards=1,
            num_slots=1,
            files=files,
            model={},
            books={"states": names},
        )
        path = root / f"checkpoint-{number:06d}"
        folder.rename(path)
    sync_directory(root)
    log.info("checkpoint=%d -> saved states=%d path=%s", number, len(states), path)
    for old in older[: 1 - _KEPT]:
        shutil.rmtree(old, ignore_errors=True)  # what stays is tried again at the next
    return path


@contextlib.contextmanager
def _partial(root: Path) -> Iterator[Path]:
    folder = root / f"{_PARTIAL}{os.getpid()}"
    folder.mkdir()
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder
        undo.pop_all()


def _file_name(state: str) -> str:
    """Return a state's name as that of a file: letters and digits stay, anything else is %XX."""
    return re.sub(r"[^\w-]", lambda m: "".join(f"%{b:02x}" for b in m[0].encode()), state)


def _root() -> Path | None:
    path = env.checkpoint_path()
    return Path(path) if path else None


def _checkpoints(root: Path | None) -> list[Path]:
    """Return the checkpoints, oldest first; nothing is checked."""
    if root is None or not root.is_dir():
        return []
    return sorted((p for p in root.iterdir() if _NAME.fullmatch(p.name)), key=_number)


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])
