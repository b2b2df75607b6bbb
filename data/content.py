"""Digests of the files of a job's data, which tell whether they are what they were.

Each costs a millisecond, or some requests of a store.

A position of a checkpoint means the same records only in the same data, and files are replaced by
others of the same name and length. A file of up to `WHOLE_NBYTES` is read whole. Of a larger one
the digest is of its size, its head, its tail and blocks between, and it is told with the time at
which the file was written: where that alone differs, the data may be the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from ..common.contents import Content
from ..common.stores import at_once
from .files import DataFile
from .open import files_of

WHOLE_NBYTES = 1 << 20
_BLOCK_NBYTES = 4096
_BLOCKS, _BLOCKS_AFAR = 32, 8  # spread evenly, the first at the head and the last at the tail
_AT_ONCE = 16  # files of a store, of which little is read
_OF_A_FOLDER = 256  # files of a folder that are looked into; all are told by their names


def contents(path: str, format: str | None, sources: Iterable[str]) -> list[Content]:
    """Return the content of each of these sources of the data at `path`, in their order.

    Raises DataError where a file cannot be read.
    """
    files = files_of(path, format)
    by_name = {file.name: file for file in files}
    names = dict.fromkeys(sources)
    beside = [file for file in files if file.name not in names]  # labels; all of a folder
    shared = _of_many(beside)
    own = _each([by_name[name] for name in names if name in by_name])
    found = []
    for name in names:
        digest, written = own.get(name, ("", ""))
        if beside:
            digest = hashlib.sha256(f"{digest} {shared[0]}".encode()).hexdigest()[:32]
            written = max(written, shared[1])
        found.append((name, digest, written))
    return found


def _each(files: Sequence[DataFile]) -> dict[str, tuple[str, str]]:
    found: Iterable[tuple[str, str]]
    away = [file.fs for file in files if not file.is_local]
    if away:  # as the one of them that takes the fewest calls at a time
        fs = min(away, key=lambda fs: bool(fs.async_impl))
        found = at_once(fs, _of, files, _AT_ONCE)
    else:
        found = map(_of, files)
    return dict(zip([file.name for file in files], found, strict=True))


def _of_many(files: Sequence[DataFile]) -> tuple[str, str]:
    """Return the content of files that make one source: of their names, and of some of them."""
    if not files:
        return "", ""
    count = min(len(files), _OF_A_FOLDER)
    some = [files[number * len(files) // count] for number in range(count)]
    found = _each(some)
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n".encode())
    for file in some:
        digest.update(found[file.name][0].encode())
    return digest.hexdigest()[:32], max(written for _, written in found.values())


def _of(file: DataFile) -> tuple[str, str]:
    nbytes, *more = file.stamp()
    digest = hashlib.sha256(f"{nbytes} ".encode())
    whole = nbytes <= WHOLE_NBYTES
    with file.reading() as read:
        if whole:
            digest.update(read(0, nbytes).tobytes())
        else:
            count = (_BLOCKS if file.is_local else _BLOCKS_AFAR) - 1
            for number in range(count + 1):
                at = number * (nbytes - _BLOCK_NBYTES) // count
                digest.update(read(at, _BLOCK_NBYTES).tobytes())
    return digest.hexdigest()[:32], "" if whole or not more else str(more[0])
