"""Checkpoints on disk: versioned directories, atomic and checksummed.

    <checkpoint_dir>/version-000000001234/   a cut of all shards (….1: a later one of that version)
        shard-00000-of-00002.*               written by the servers, each file by rename
        MANIFEST.json                        written last: names, sizes and sha256 of all files

The manifest holds a checksum of itself. A directory without a valid one is no checkpoint, however
many files it has; files that the manifest does not name (of an attempt that was given up) are
ignored. A checkpoint that is asked for by name must be whole, or CheckpointError says which file is
not and why; `latest` skips torn ones. It may be a stranger's: see foreign.py.
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
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .foreign import must_be, open_plain, parse, plain_name, read_plain

log = logging.getLogger(__name__)

MANIFEST = "MANIFEST.json"
FORMAT = 2
_VERSION_NAME = re.compile(r"version-(\d{12,})(?:\.(\d{1,6}))?")
_READ_NBYTES = 1 << 20
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
class FileRecord:
    """A file of a checkpoint."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A complete checkpoint. `model` is a ModelSpec as JSON, `books` the master's."""

    directory: Path
    version: int
    num_shards: int
    num_slots: int
    files: tuple[FileRecord, ...]
    model: dict[str, Any]
    books: dict[str, Any]
    created: str


def version_directory(checkpoint_dir: str | Path, version: int) -> Path:
    """Return where the checkpoint of a version belongs."""
    return Path(checkpoint_dir) / f"version-{version:012d}"


def free_directory(checkpoint_dir: str | Path, version: int) -> Path:
    """Return where to write a checkpoint of a version.

    No complete one is ever written over.

    There may be one of that version: a run that is stopped before its first step, or pushes that
    wait for their step. The new one, "version-….1", counts as newer.
    """
    first = version_directory(checkpoint_dir, version)
    names = itertools.chain([first], (Path(f"{first}.{n}") for n in itertools.count(1)))
    return next(path for path in names if not (path / MANIFEST).exists())


Part = bytes | memoryview  # of bytes


def record_of(name: str, parts: Sequence[Part]) -> FileRecord:
    """Return what a file of these bytes is."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return FileRecord(name, sum(map(len, parts)), digest.hexdigest())


def write_file(path: Path, *parts: Part) -> FileRecord:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.ExitStack() as undo:
        undo.callback(_discard, temporary)
        with open(temporary, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        undo.pop_all()
    _sync_directory(path.parent)
    return record_of(path.name, parts)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, which is there whole once this returns."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        with open(source, "rb") as read, open(target, "wb") as written:
            shutil.copyfileobj(read, written)
            written.flush()
            os.fsync(written.fileno())


def write_manifest(
    directory: str | Path,
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
    if model is None:
        model = _model_of(Path(directory), files)
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
    values = json.loads(json.dumps(values))  # as a reader will have them
    values["checksum"] = _checksum(values)
    path = Path(directory)
    _sync_directory(path.parent)
    write_file(path / MANIFEST, json.dumps(values, indent=1).encode())
    return Manifest(path, version, num_shards, num_slots, tuple(files), model, books or {}, created)


def read_manifest(directory: str | Path, *, checksums: bool = True) -> Manifest:
    """Return the checkpoint in a version's directory.

    Every file is there, of its size and checksum.

    Raises CheckpointError with the file and what is wrong with it.
    """
    path = Path(directory)
    try:
        values = parse(read_plain(path / MANIFEST))
        must_be(values, dict)
        if values.get("format") != FORMAT:
            raise CheckpointError(
                f"{path / MANIFEST} has format {values.get('format')}; this version reads {FORMAT}"
            )
        must_be(values, _VALUES)
        if values.pop("checksum") != _checksum(values):
            raise CheckpointError(f"{path / MANIFEST} is damaged: its checksum is another")
        manifest = Manifest(
            path,
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
            f"{path} is no complete checkpoint: cannot read {MANIFEST}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path / MANIFEST} is damaged: {error}") from error
    for record in manifest.files:
        _check_size(path, record)
    if checksums:
        for record in manifest.files:
            _check_sum(path, record)
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
    path = manifest.directory / record.name
    _check_size(manifest.directory, record)
    try:
        data = read_plain(path, record.nbytes)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != record.sha256:
        raise CheckpointError(f"{path} is damaged: its sha256 is not the manifest's")
    return data


def find_checkpoints(checkpoint_dir: str | Path) -> list[Path]:
    """Return the directories of all versions that have a manifest, oldest first.

    Nothing is checked.
    """
    return [path for path in _version_directories(checkpoint_dir) if (path / MANIFEST).is_file()]


def latest(checkpoint_dir: str | Path) -> Manifest | None:
    """Return the newest checkpoint that is whole; a torn one is skipped with a warning."""
    return newest_whole(_version_directories(checkpoint_dir))


def newest_whole(directories: Sequence[Path], *, checksums: bool = True) -> Manifest | None:
    """Return the last of these that is a whole checkpoint.

    Those that are not are named in a warning.
    """
    for path in reversed(directories):
        try:
            return read_manifest(path, checksums=checksums)
        except CheckpointError as error:
            log.warning("checkpoint skipped: %s", error)
    return None


def load(path: str | Path, *, checksums: bool = True) -> Manifest:
    """Return the checkpoint in a version's directory, or the newest whole one below a folder.

    That folder is a checkpoint_dir. Not `checksums`: of files only the sizes are compared.

    Raises CheckpointError where there is none, or where the version that is named is not whole.
    """
    path = Path(path)
    if _VERSION_NAME.fullmatch(path.name) or (path / MANIFEST).exists():
        return read_manifest(path, checksums=checksums)
    manifest = newest_whole(_version_directories(path), checksums=checksums)
    if manifest is None:
        raise CheckpointError(
            f"there is no complete checkpoint in {path}: name a checkpoint_dir, or a folder "
            "version-... in one"
        )
    return manifest


def prune(checkpoint_dir: str | Path, keep_max: int) -> list[Path]:
    """Remove all but the last `keep_max` complete checkpoints (0: keep all). What was removed.

    Torn ones older than the oldest that is kept go too; a newer one may still be in the making.
    """
    if keep_max <= 0:
        return []
    directories = _version_directories(checkpoint_dir)
    complete = [path for path in directories if _is_complete(path)]
    kept = complete[-keep_max:]
    removed = directories[: directories.index(kept[0])] if kept else []
    for path in removed:
        (path / MANIFEST).unlink(missing_ok=True)  # first, so that no half is ever taken for whole
        shutil.rmtree(path)
    return removed


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _model_of(directory: Path, files: Sequence[FileRecord]) -> dict[str, Any]:
    name = next((record.name for record in files if record.name.endswith(".json")), None)
    if name is None:
        raise CheckpointError(f"no server wrote its books to {directory}")
    model: dict[str, Any] = json.loads(read_plain(directory / name))["model"]
    return model


def _version_directories(checkpoint_dir: str | Path) -> list[Path]:
    """Return the checkpoints there by version, ascending."""
    root = Path(checkpoint_dir)
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _VERSION_NAME.fullmatch(path.name)]
    return sorted((path for path in found if path.is_dir()), key=_age)


def _age(path: Path) -> tuple[int, int]:
    match = _VERSION_NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _is_complete(path: Path) -> bool:
    try:
        read_manifest(path, checksums=False)
    except CheckpointError:
        return False
    return True


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
        raise CheckpointError(f"{path} is torn: {nbytes} bytes instead of {record.nbytes}")


def _check_sum(directory: Path, record: FileRecord) -> None:
    path = directory / record.name
    digest = hashlib.sha256()
    try:
        with open_plain(path) as file:
            while block := file.read(_READ_NBYTES):
                digest.update(block)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if digest.hexdigest() != record.sha256:
        raise CheckpointError(f"{path} is damaged: its sha256 is not the manifest's")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
