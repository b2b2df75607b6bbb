"""Files that may be a stranger's: nothing in them is believed before it has been looked at.

A checkpoint, a snapshot or a job's folder may come from anywhere. A name out of one stays inside
its folder, what is opened is a plain file, and no more is read than it may hold. What JSON says has
the types that it must have, or is a ValueError with the place and one reason.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

MOST_JSON_NBYTES = 256 << 20  # of a manifest, with the books of a million tasks


def plain_name(name: str) -> bool:
    """Return whether this names something right in a folder, and nothing else."""
    return bool(name) and name not in (".", "..") and not any(c in name for c in "/\\\0")


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading, in its folder. Raises OSError.

    Not a pipe or a device, which may never end, and no link that leads out of the folder: in a
    ConfigMap that is mounted, each file is a link into a folder of that folder.
    """
    if path.is_symlink() and not path.resolve().is_relative_to(path.parent.resolve()):
        raise OSError(errno.EPERM, "a link that leads out of its folder", str(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", str(path))
    return open(descriptor, "rb")


def read_plain(path: Path, most: int = MOST_JSON_NBYTES) -> bytes:
    """Read a plain file of at most so many bytes. Raises OSError."""
    with open_plain(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > most:
            raise OSError(errno.EFBIG, f"{nbytes} bytes, where {most} are believed", str(path))
        return file.read(nbytes)


def parse(data: bytes | str, *, yields: bool = False) -> Any:
    """Return the values of JSON. Raises ValueError, also where it is too deep.

    `yields`: other threads run meanwhile, at each number, which takes somewhat longer; json's C
    code alone keeps Python's lock to the end of the text.
    """
    try:
        return json.loads(data, **(_YIELDING if yields else {}))
    except RecursionError as error:
        raise ValueError("it is too deep") from error


def _float(text: str) -> float:
    return float(text)


def _int(text: str) -> int:
    return int(text)


# Functions of Python, which float and int are not: at their begin a thread hands over the lock.
_YIELDING: dict[str, Any] = {"parse_float": _float, "parse_int": _int}


def must_be(value: Any, kind: Any, where: str = "it") -> None:
    """Check that the value is of this kind. Raises ValueError where it is not.

    A kind is str, dict or list (whatever they hold), int (from 0 on, below 2^63); [kind] for a list
    of such, (kind, ...) for one of so many, {name: kind} for a dict that has these names.
    """
    if isinstance(kind, list):
        must_be(value, list, where)
        for number, each in enumerate(value):
            must_be(each, kind[0], f"{where}[{number}]")
    elif isinstance(kind, tuple):
        must_be(value, list, where)
        if len(value) != len(kind):
            raise ValueError(f"{where} has {len(value)} values instead of {len(kind)}")
        for number, (each, one) in enumerate(zip(value, kind, strict=True)):
            must_be(each, one, f"{where}[{number}]")
    elif isinstance(kind, Mapping):
        must_be(value, dict, where)
        for name, one in kind.items():
            if name not in value:
                raise ValueError(f"{where} has no {name!r}")
            must_be(value[name], one, name if where == "it" else f"{where}.{name}")
    elif not _is(value, kind):
        raise ValueError(f"{where} is {_short(value)}, not {_KINDS[kind]}")


_KINDS = {
    int: "a whole number from 0 on",
    str: "a text",
    dict: "an object",
    list: "a list",
}


def _is(value: object, kind: type) -> bool:
    if kind is int:
        return type(value) is int and 0 <= value < 1 << 63
    return isinstance(value, kind)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
