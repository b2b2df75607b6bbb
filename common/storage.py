"""Checkpoints: versioned folders here or at a store, atomic and checksummed.

    <checkpoint_dir>/version-000000001234/   a cut of all shards (….1: a later one of that version)
        shard-00000-of-00002.*               written by the servers, each whole or not at all
        MANIFEST.json                        written last: names, sizes and sha256 of all files
    <checkpoint_dir>/LATEST                  at a store: the name of the last one that was written

The manifest holds a checksum of itself. A directory without a valid one is no checkpoint, however
many files it has; files that the manifest does not name (of an attempt that was given up) are
ignored. A checkpoint that is asked for by name must be whole, or CheckpointError says which file is
not and why; `latest` skips torn ones. It may be a stranger's: see foreign.py.

A store's listing may lack the newest: LATEST names it. What counts as there is what can be read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import copies, finite
from .errors import CheckpointError
from .files import FileRecord, Part, copy_file, record_of, sync_directory, write_file
from .foreign import must_be, open_plain, parse, plain_name
from .places import Place, Where

__all__ = ["FileRecord", "Part", "copy_file", "record_of", "write_file"]  # and all that is below

log = logging.getLogger(__name__)

MANIFEST = "MANIFEST.json"
LATEST = "LATEST"
FORMAT = 2
_VERSION_NAME = re.compile(r"version-(\d{12,})(?:\.(\d{1,6}))?")
_MOST_LATEST_NBYTES = 64
_VALUES = {
    "version": int,
    "num_shards": int,
    "num_slots": int,
    "files": [{"name": str, "nbytes": int, "sha256": str}],
    "model": dict,
    "books": dict,
    "created": str,
    "checksum": str,
}


@dataclass(frozen=True)
class Manifest:
    """A complete checkpoint. `model` is a ModelSpec as JSON, `books` the master's."""

    place: Place
    version: int
    num_shards: int
    num_slots: int
    files: tuple[FileRecord, ...]
    model: dict[str, Any]
    books: dict[str, Any]
    created: str

    @property
    def directory(self) -> Path:
        """The folder of this machine that it is in; of one at a store: that of `file`'s copies."""
        return self.place.path if self.place.is_local else copies.folder(self.place, self.files)

    def file(self, record: FileRecord) -> Path:
        """Return a file of it on this machine: itself, or a copy that was checked."""
        if self.place.is_local:
            return self.place.path / record.name
        return self.place.copy(record, self.directory)

    def fetch(self, names: Sequence[str]) -> list[Path]:
        """Return these files of it, as `file` does, several at once from a store."""
        if not self.place.is_local:
            with contextlib.suppress(OSError):  # `copy` says why
                copies.make_room(self.directory)
        records = {record.name: record for record in self.files}
        return list(self.place.each(lambda name: self.file(records[name]), names))


def version_directory(checkpoint_dir: str | Path, version: int) -> Path:
    """Return where the checkpoint of a version belongs."""
    return Path(checkpoint_dir) / f"version-{version:012d}"


def free_directory(checkpoint_dir: Where, version: int) -> Place:
    """Return where to write a checkpoint of a version.

    No complete one is ever written over.

    There may be one of that version: a run that is stopped before its first step, or pushes that
    wait for their step. The new one, "version-….1", counts as newer. At a store nothing is written
    where an attempt was given up: what that has asked for may still come.
    """
    root, first = Place(checkpoint_dir), f"version-{version:012d}"
    names = itertools.chain([first], (f"{first}.{n}" for n in itertools.count(1)))
    return next(place for place in map(root.__truediv__, names) if not _is_taken(place))


def _is_taken(place: Place) -> bool:
    return place.has(MANIFEST) or (not place.is_local and bool(place.names()))


def write_manifest(
    directory: Where,
    *,
    version: int,
    num_shards: int,
    num_slots: int,
    files: Sequence[FileRecord],
    model: dict[str, Any] | None = None,
    books: dict[str, Any] | None = None,
) -> Manifest:
    """Make the directory a checkpoint: the last write of it.

    `model` None: the one that the servers wrote into their books (shard-*.json).
    """
    model = _model_of(Place(directory), files) if model is None else model
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    values = {
        "format": FORMAT,
        "version": version,
        "num_shards": num_shards,
        "num_slots": num_slots,
        "files": [dataclasses.asdict(record) for record in files],
        "model": model,
        "books": books or {},
        "created": created,
    }
    values = json.loads(finite.dumps(values))  # as a reader will have them
    values["checksum"] = _checksum(values)
    place = Place(directory)
    if place.is_local:
        sync_directory(place.path.parent)
    place.write(MANIFEST, json.dumps(values, indent=1).encode())
    _note_latest(place)
    records = tuple(files)
    return Manifest(place, version, num_shards, num_slots, records, model, books or {}, created)


def _note_latest(place: Place) -> None:
    """Write at a store where the newest is: a listing may not show it yet."""
    try:
        if not place.is_local:
            place.parent.write(LATEST, place.name.encode())
    except OSError as error:  # the checkpoint is whole without
        log.warning("%s", error)


def read_manifest(directory: Where, *, checksums: bool = True) -> Manifest:
    """Return the checkpoint in a version's directory.

    Every file is there, of its size and checksum.

    Raises CheckpointError with the file and what is wrong with it.
    """
    manifest = _read(Place(directory))
    _check_sizes(manifest)
    if checksums:
        for _ in manifest.place.each(manifest.place.check, manifest.files):
            pass
    return manifest


def _read(place: Place) -> Manifest:
    """Return what a manifest says, of which no file has been looked at."""
    path = place / MANIFEST
    try:
        values = parse(place.read(MANIFEST))
        must_be(values, dict)
        if values.get("kind") == "exported model":
            raise CheckpointError(
                f"{place} is an exported model: name the checkpoint that it was made of"
            )
        if values.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} has format {values.get('format')}; this version reads {FORMAT}"
            )
        must_be(values, _VALUES)
        if values.pop("checksum") != _checksum(values):
            raise CheckpointError(f"{path} is damaged: its checksum is another")
        values = finite.restored(values)
        manifest = Manifest(
            place,
            values["version"],
            values["num_shards"],
            values["num_slots"],
            tuple(FileRecord(f["name"], f["nbytes"], f["sha256"]) for f in values["files"]),
            values["model"],
            values["books"],
            values["created"],
        )
        check_names([record.name for record in manifest.files], but=(MANIFEST,))
    except OSError as error:
        raise CheckpointError(
            f"{place} is no complete checkpoint: cannot read {MANIFEST}: {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    return manifest


def check_names(names: Sequence[str], but: Sequence[str] = ()) -> None:
    """Check names. Raises ValueError where one is no file's name in the folder, or comes twice."""
    seen = set(but)
    for name in names:
        if not plain_name(name):
            raise ValueError(f"{name!r} is no name of a file in this folder")
        if name in seen:
            raise ValueError(f"the file {name!r} is named twice")
        seen.add(name)


def read_checked(manifest: Manifest, record: FileRecord) -> bytes:
    """Return a file's bytes. Raises CheckpointError unless they are what was written."""
    return manifest.place.read_checked(record)


def read_all(
    manifest: Manifest, records: Sequence[FileRecord]
) -> Iterator[tuple[FileRecord, bytes]]:
    """Yield these files of a checkpoint, as `read_checked`; from a store some are read ahead."""
    return manifest.place.each(lambda record: (record, read_checked(manifest, record)), records)


def copy(manifest: Manifest, record: FileRecord, to: Place) -> None:
    """Copy a file of a checkpoint to another place. Raises CheckpointError, OSError."""
    if not (manifest.place.is_local and to.is_local):
        to.write(record.name, read_checked(manifest, record))
    elif not manifest.place.has(record.name):
        raise CheckpointError(f"{manifest.place / record.name} is missing")
    else:
        to.make()
        copy_file(manifest.file(record), to.path / record.name)


def find_checkpoints(checkpoint_dir: Where) -> list[Place]:
    """Return the directories of all versions that have a manifest, oldest first.

    Nothing is checked.
    """
    return [place for place in _version_directories(checkpoint_dir) if place.has(MANIFEST)]


def latest(checkpoint_dir: Where) -> Manifest | None:
    """Return the newest checkpoint that is whole; a torn one is skipped with a warning."""
    return newest_whole(_version_directories(checkpoint_dir))


def newest_whole(directories: Sequence[Where], *, checksums: bool = True) -> Manifest | None:
    """Return the last of these that is a whole checkpoint.

    Those that are not are named in a warning.
    """
    for path in reversed(directories):
        try:
            return read_manifest(path, checksums=checksums)
        except CheckpointError as error:
            log.warning("checkpoint skipped: %s", error)
    return None


def load(path: Where, *, checksums: bool = True) -> Manifest:
    """Return the checkpoint in a version's directory, or the newest whole one below a folder.

    That folder is a checkpoint_dir. Not `checksums`: of files only the sizes are compared, as of
    all at a store: whoever uses one compares it on its way here, and each would read all of them.

    Raises CheckpointError where there is none, or where the version that is named is not whole.
    """
    place = Place(path)
    checksums = checksums and place.is_local
    try:
        if _VERSION_NAME.fullmatch(place.name) or place.has(MANIFEST):
            return read_manifest(place, checksums=checksums)
        manifest = newest_whole(_version_directories(place), checksums=checksums)
    except OSError as error:
        raise CheckpointError(str(error)) from error
    if manifest is None:
        raise CheckpointError(
            f"there is no complete checkpoint in {path}: name a checkpoint_dir, or a folder "
            "version-... in one"
        )
    return manifest


def prune(checkpoint_dir: Where, keep_max: int) -> list[Place]:
    """Remove all but the last `keep_max` complete checkpoints (0: keep all). What was removed.

    Torn ones older than the oldest that is kept go too; a newer one may still be in the making.
    """
    if keep_max <= 0:
        return []
    directories = _version_directories(checkpoint_dir)
    complete = [path for path in directories if _is_complete(path)]
    kept = complete[-keep_max:]
    removed = directories[: directories.index(kept[0])] if kept else []
    for place in removed:
        remove(place)
    return removed


def remove(place: Place) -> None:
    """Remove a checkpoint, or what there is of one."""
    names: list[str] = []
    with contextlib.suppress(CheckpointError):
        if not place.is_local:  # a listing may not show all of them
            names = [record.name for record in _read(place).files]
    place.remove_all([MANIFEST, *names])  # it first, so that no half is ever taken for whole


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _model_of(place: Place, files: Sequence[FileRecord]) -> dict[str, Any]:
    name = next((record.name for record in files if record.name.endswith(".json")), None)
    if name is None:
        raise CheckpointError(f"no server wrote its books to {place}")
    model: dict[str, Any] = json.loads(place.read(name))["model"]
    return model


def _version_directories(checkpoint_dir: Where) -> list[Place]:
    """Return the checkpoints there by version, ascending; at a store some may be gone."""
    root = Place(checkpoint_dir)
    names = {name for name in root.names() if _VERSION_NAME.fullmatch(name)}
    if root.is_local:
        names = {name for name in names if (root.path / name).is_dir()}
    else:
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            newest = root.read(LATEST, _MOST_LATEST_NBYTES).decode()
            names |= {newest} if _VERSION_NAME.fullmatch(newest) else set()
    return [root / name for name in sorted(names, key=_age)]


def _age(name: str) -> tuple[int, int]:
    match = _VERSION_NAME.fullmatch(name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _is_complete(place: Place) -> bool:
    try:
        read_manifest(place, checksums=False)
    except CheckpointError:
        return False
    return True


def _check_sizes(manifest: Manifest) -> None:
    if manifest.place.is_local:
        for record in manifest.files:
            _check_size(manifest.place.path, record)
        return
    try:
        sizes = _sizes(manifest.place, [record.name for record in manifest.files])
    except OSError as error:
        raise CheckpointError(f"cannot read {manifest.place}: {error}") from error
    for record in manifest.files:
        path = manifest.place / record.name
        if record.name not in sizes:
            raise CheckpointError(f"{path} is missing")
        if sizes[record.name] != record.nbytes:
            raise CheckpointError(_torn(path, sizes[record.name], record))


def _sizes(place: Place, names: Sequence[str]) -> dict[str, int]:
    """Return how long these files at a store are; those that are not there are missing.

    A listing says so at once; what it does not show is asked for by name.
    """
    found = {name: int(about["size"] or 0) for name, about in place.listing().items()}
    asked = [name for name in names if not found.get(name)]
    sizes = zip(asked, place.each(place.size, asked), strict=True)
    return found | {name: nbytes for name, nbytes in sizes if nbytes is not None}


def _check_size(directory: Path, record: FileRecord) -> None:
    path = directory / record.name
    try:
        with open_plain(path) as file:
            nbytes = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {error.strerror}") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if nbytes != record.nbytes:
        raise CheckpointError(_torn(path, nbytes, record))


def _torn(path: Path | Place, nbytes: int, record: FileRecord) -> str:
    return f"{path} is torn: {nbytes} bytes instead of {record.nbytes}"
