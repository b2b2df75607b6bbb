"""The recovery snapshots of one shard, as files: what is written, what is whole, what came before.

    <snapshot_dir>/<job id>/shard-K/<incarnation>/
        PARENT, PARENT.copy         the incarnation that this one was restored from, and its number
        000000000012.*.safetensors  pieces of snapshot 12 (cut.py)
        000000000012.link           its books, and size and sha256 of each piece; written last

Snapshots build on each other: a *base* has everything, each further *link* of its chain what has
changed since the one before, which it names. Numbers rise over all incarnations of the shard and
none is used twice. A link without a whole file that says so does not exist.

An incarnation writes into its own folder only, so one that was declared lost and lives on can spoil
nothing. Before it removes old links of its own it looks whether another has been restored from
them.

`.link` and PARENT begin with a line that has the format, and size and checksum of all that follows:
whatever byte is torn off or bit turned over, it is found.

The folder may be any that fsspec knows (common/places.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...common.errors import CheckpointError, UsageError
from ...common.foreign import must_be, parse, plain_name
from ...common.places import Place
from ...common.storage import FileRecord, Part, check_names
from ..books.ledger import Entry

FORMAT = 1
_MAGIC = "edl-recovery"
_PARENTS = ("PARENT", "PARENT.copy")  # one may be damaged before there is a link that names it too
_LINK = ".link"
_PARENT_VALUES = {"incarnation": str}
_LINK_VALUES = {
    "number": int,
    "base": int,
    "previous": int,
    "version": int,
    "low_water": int,
    "ledger": [{"task": int, "attempt": int, "applied": int}],
    "pushes": int,
    "model": dict,
    "files": [{"name": str, "nbytes": int, "sha256": str}],
}


@dataclass(frozen=True)
class Parent:
    """The snapshot, and whose it is, at which an incarnation began; 0: at none."""

    incarnation: str
    number: int | None = None  # not known yet


@dataclass(frozen=True)
class Link:
    """One snapshot: the books, and the files of what has changed since `previous` (0: of all)."""

    number: int
    base: int  # the first of its chain
    previous: int
    version: int
    low_water: int
    ledger: tuple[Entry, ...]
    pushes: int
    model: dict[str, Any]
    files: tuple[FileRecord, ...]
    parent: Parent | None = None

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


class Folder:
    """The folder of a shard. Raises OSError where it fails."""

    def __init__(self, snapshot_dir: str, job: str, index: int) -> None:
        """Find the folder; raise UsageError where there is no such kind of folder."""
        try:
            self.place = Place(snapshot_dir) / job / f"shard-{index}"
        except UsageError as error:
            raise UsageError(f"--snapshot_dir {error}") from error

    @property
    def path(self) -> str:
        return str(self.place)

    # -- Files

    def write(self, incarnation: str, name: str, *parts: Part) -> FileRecord:
        """Write a file that is there whole or not at all."""
        return (self.place / incarnation).write(name, *parts)

    def read(self, incarnation: str, name: str) -> bytes:
        """Return a small file's bytes; raise CheckpointError where it cannot be read."""
        path = self.place / incarnation / name
        try:
            return (self.place / incarnation).read(name)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing") from error
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error

    def read_checked(self, incarnation: str, record: FileRecord) -> bytes:
        """Return a file that is what was written.

        Raises CheckpointError, which names it.
        """
        return (self.place / incarnation).read_checked(record)

    def names(self, incarnation: str = "") -> list[str]:
        """Return the files of an incarnation; without one: the incarnations."""
        return (self.place / incarnation if incarnation else self.place).names()

    def remove(self, incarnation: str, names: Sequence[str]) -> None:
        """Remove these files; links first, so that none is ever without its pieces."""
        in_order = sorted(names, key=lambda name: not name.endswith(_LINK))
        (self.place / incarnation).remove(in_order)

    # -- Links

    def commit(self, incarnation: str, link: Link) -> FileRecord:
        """Write a snapshot's link, which is its last write."""
        return self.write(incarnation, link_name(link.number), _sealed(dataclasses.asdict(link)))

    def links(self, incarnation: str, most: int | None) -> tuple[list[Link], list[str]]:
        """Return the links with numbers up to `most`, ascending, and what is wrong with others."""
        links, faults = [], []
        for name in self.names(incarnation):
            if name.endswith(_LINK):
                try:
                    link = self._link(incarnation, name)
                except CheckpointError as error:
                    faults.append(str(error))
                    continue
                if most is None or link.number <= most:
                    links.append(link)
        return sorted(links, key=lambda link: link.number), faults

    def _link(self, incarnation: str, name: str) -> Link:
        values = self._unsealed(incarnation, name, _LINK_VALUES)
        parent = values.pop("parent")
        return Link(
            **{
                **values,
                "ledger": tuple(Entry(**entry) for entry in values["ledger"]),
                "files": tuple(FileRecord(**file) for file in values["files"]),
                "parent": Parent(**parent) if parent else None,
            }
        )

    # -- Parents

    def set_parent(self, incarnation: str, parent: Parent) -> None:
        """Write where this incarnation begins."""
        for name in _PARENTS:
            self.write(incarnation, name, _sealed(dataclasses.asdict(parent)))

    def parent(self, incarnation: str) -> tuple[Parent | None, list[str]]:
        """Return the parent, None where it began at none, and what was wrong on the way."""
        faults: list[str] = []
        names = self.names(incarnation)
        for name in _PARENTS:
            if name in names:
                try:
                    return Parent(**self._unsealed(incarnation, name, _PARENT_VALUES)), faults
                except CheckpointError as error:
                    faults.append(str(error))
        links, _ = self.links(incarnation, None)
        return (links[-1].parent if links else None), faults

    def has_child(self, incarnation: str) -> bool:
        """Return whether another incarnation has been restored from this one, or is about to be."""
        for other in self.names():
            parent, _ = self.parent(other) if other != incarnation else (None, [])
            if parent is not None and parent.incarnation == incarnation:
                return True
        return False

    def _unsealed(self, incarnation: str, name: str, kind: Mapping[str, Any]) -> dict[str, Any]:
        data, path = self.read(incarnation, name), f"{self.path}/{incarnation}/{name}"
        head, _, body = data.partition(b"\n")
        magic, _, rest = head.decode(errors="replace").partition(" ")
        number, _, _ = rest.partition(" ")
        if magic == _MAGIC and number != str(FORMAT):
            raise CheckpointError(f"{path} has format {number!r}; this version reads {FORMAT}")
        if head != _head(body):
            raise CheckpointError(
                f"{path} is torn or damaged: its checksum is not that of its text"
            )
        try:
            values: dict[str, Any] = parse(body)
            must_be(values, kind)
            if more := values.keys() - kind.keys() - {"parent", "number"}:
                raise ValueError(f"it has {sorted(more)}, which mean nothing")
            _must_stay(values)
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        return values


def _must_stay(values: Mapping[str, Any]) -> None:
    """Raise ValueError where a name leads out of its folder."""
    check_names([file["name"] for file in values.get("files", ())])
    parent = values if "incarnation" in values else values.get("parent")
    if parent is None:
        return
    must_be(parent, _PARENT_VALUES, "parent")
    if parent.get("number") is not None:
        must_be(parent["number"], int, "number")
    if parent["incarnation"] and not plain_name(parent["incarnation"]):
        raise ValueError(f"{parent['incarnation']!r} is no name of an incarnation")


def link_name(number: int) -> str:
    return f"{number:012d}{_LINK}"


def _sealed(values: dict[str, Any]) -> bytes:
    body = json.dumps(values).encode()
    return _head(body) + b"\n" + body


def _head(body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return f"{_MAGIC} {FORMAT} {len(body)} {digest}".encode()
