"""Deltas and bases: what a running job leaves for whoever serves its model, and how to follow them.

    <delta_dir>/base-000000000007/                 all of cut 7
    <delta_dir>/delta-000000000006-000000000007/   what has changed from cut 6 to cut 7

Both are folders as a checkpoint is (storage.py), but for the optimizer's state and the books of
whoever trains on: a reader of checkpoints reads them. Their MANIFEST.json, written last, says in
its books, under "delta", what an `About` has. Cuts are numbered as they are written, over all
masters of a folder. A number may come twice, of two masters that know nothing of each other; the
name of a cut never does, and it is by the name that a delta belongs to a state: it is applied to
the very cut that it begins from, or not at all. Where there is none that fits, one goes on from a
later base.

Each cut has a delta where the servers know the cut before; now and then it has a base as well.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from . import storage
from .errors import CheckpointError
from .foreign import must_be
from .places import Place
from .storage import Manifest

KEY = "delta"  # in a manifest's books
MOST = 10**18 - 1  # the number of a cut that no other one can follow
_BASE = re.compile(r"base-(\d{12,18})")
_DELTA = re.compile(r"delta-(\d{12,18})-(\d{12,18})")
_VALUES = {
    "job": str,
    "since": str,
    "cut": str,
    "number": int,
    "records": int,
    "rows": dict,
    "deletions": dict,
}


class Name(NamedTuple):
    """The name of a folder: the cut that it leads to, and the one before; None: a base."""

    number: int
    since: int | None = None

    def __str__(self) -> str:
        if self.since is None:
            return f"base-{self.number:012d}"
        return f"delta-{self.since:012d}-{self.number:012d}"


def parsed(name: str) -> Name | None:
    """Return what a folder's name says; None: it is no base and no delta."""
    found = None
    if match := _BASE.fullmatch(name):
        found = Name(int(match[1]))
    elif (match := _DELTA.fullmatch(name)) and int(match[1]) < int(match[2]):
        found = Name(int(match[2]), int(match[1]))
    return found if str(found) == name else None  # with zeros before it, it is no cut's


def listed(root: Place) -> list[Name]:
    """Return the bases and deltas of a folder by number, also where a listing lacks the newest.

    Raises OSError.
    """
    names = root.names()
    if not root.is_local:
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            names.append(root.read(storage.LATEST).decode())
    return found({*names})


def found(names: Iterable[str]) -> list[Name]:
    """Return the bases and deltas among the names of a folder, by number."""
    return sorted(filter(None, map(parsed, names)), key=lambda name: (name.number, str(name)))


@dataclass(frozen=True)
class About:
    """The account of a base or a delta: its job, from which cut to which.

    `since`: the name of the cut that it is applied to; "": none, a base. `records`: that the model
    was trained on at this cut. `rows`: those in it by table. `deletions`: ids by table that are not
    there any more.
    """

    job: str
    cut: str
    number: int
    since: str = ""
    records: int = 0
    rows: Mapping[str, int] = None  # type: ignore[assignment]
    deletions: Mapping[str, list[int]] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.rows or {})
        object.__setattr__(self, "deletions", self.deletions or {})

    def as_books(self) -> dict[str, Any]:
        """Return it as the books of a manifest hold it."""
        return {KEY: asdict(self)}


def said(place: Place) -> Manifest:
    """Return the manifest of a base or a delta, of whose files only the sizes are looked at.

    Raises CheckpointError.
    """
    return storage.read_manifest(place, checksums=False)


def about(manifest: Manifest) -> About:
    """Return what a manifest says of a base or a delta.

    Raises CheckpointError where it is neither, or its folder has another's name.
    """
    where = manifest.place
    values = manifest.books.get(KEY)
    try:
        if values is None:
            raise ValueError("it is no base and no delta of a running job")
        must_be(values, _VALUES)
        must_be([*values["rows"].values()], [int], "rows")
        must_be([*values["deletions"].values()], [[int]], "deletions")
        name = parsed(where.name)
        if name is None or name.number != values["number"]:
            raise ValueError(f"its folder is not named after its cut, {values['number']}")
        if (name.since is None) != (not values["since"]):
            raise ValueError("its folder's name does not say whether it is a base")
        return About(**{key: values[key] for key in _VALUES})
    except ValueError as error:
        raise CheckpointError(f"{where} cannot be applied: {error}") from error


def candidates(
    names: Iterable[Name], here: int, bad: Collection[Name] = (), *, base_first: bool = False
) -> Iterator[Name]:
    """Yield what leads on from cut number `here` (0: nothing is there), the best first.

    A delta from here, then bases after it, the newest first; `bad`: none of these. `base_first`:
    bases, where they lead as far as the deltas.
    """
    known = [name for name in names if name.number > here and name not in bad]
    deltas = [name for name in known if name.since == here and here]
    bases = [name for name in known if name.since is None]
    ordered = [*reversed(deltas), *reversed(bases)]
    if base_first and known:
        newest = max(name.number for name in known)
        ordered.sort(key=lambda name: not (name.since is None and name.number == newest))
    yield from ordered


def obsolete(names: Iterable[Name], bases: int = 2) -> list[Name]:
    """Return what nobody needs who begins at one of the newest so many bases, oldest first."""
    known = found(map(str, names))
    numbers = [name.number for name in known if name.since is None][-bases:]
    if len(numbers) < bases:
        return []
    oldest = numbers[0]
    return [
        name
        for name in known
        if name.number < oldest or (name.number == oldest and name.since is not None)
    ]
