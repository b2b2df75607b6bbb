"""A shard restored from its own snapshots: the newest chain whose base is whole.

It is taken as far as it is whole.

recorder.py writes them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from ...common import faults
from ...common.errors import CheckpointError
from ..books.state import ShardBooks
from ..books.store import Store
from . import cut as snapshot
from .chain import Folder, Link, Parent, link_name

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """The snapshot at which a replacement begins.

    `link` None: none was whole, all of it is lost.

    `ancestors`: incarnations whose files are not needed once there are two chains of one's own.
    """

    link: Link | None
    parent: Parent
    ancestors: tuple[str, ...]
    notes: list[str] = field(default_factory=list)


def restore(store: Store, folder: Folder, incarnation: str, *, of: str, at_least: int) -> Restored:
    """Make `store` what the newest whole snapshot of the lineage of incarnation `of` says.

    `incarnation` is whose store it is. Raises CheckpointError where what is found is older than
    `at_least`: the others have forgotten what it lacks.
    """
    notes: list[str] = []
    _set_parent(folder, incarnation, Parent(of), notes)
    try:
        link, ancestors = _restore(store, folder, of, notes)
        number = link.number if link else 0
        if number < at_least:
            newest = f"ends at {link.number}" if link else "is gone"
            raise CheckpointError(
                f"server {store.index} cannot be recovered: what is whole of its snapshots in "
                f"{folder.path}/{of} {newest}, and work up to {at_least} has been taken for safe: "
                f"start the job again from a checkpoint. {' '.join(notes)}"
            )
    except OSError as error:
        raise CheckpointError(f"{folder.path} cannot be read: {error}") from error
    parent = Parent(of, number)
    _set_parent(folder, incarnation, parent, notes)
    return Restored(link, parent, ancestors, notes)


def _set_parent(folder: Folder, incarnation: str, parent: Parent, notes: list[str]) -> None:
    try:
        folder.set_parent(incarnation, parent)
    except OSError as error:  # a full disk can still be read; each link names the parent too
        log.error("cannot write to %s: %s", folder.path, error)
        notes.append(f"cannot write to {folder.path}: {error}")


def _restore(
    store: Store, folder: Folder, of: str, notes: list[str]
) -> tuple[Link | None, tuple[str, ...]]:
    link, lineage = None, _lineage(folder, of, notes)
    for incarnation, most in lineage:
        links, wrong = folder.links(incarnation, most)
        _note(notes, *wrong)
        link = _load_newest(store, folder, incarnation, links, notes)
        if link is not None:
            break
    return link, tuple(incarnation for incarnation, _ in lineage)


def _lineage(folder: Folder, of: str, notes: list[str]) -> list[tuple[str, int | None]]:
    """Return the incarnation, its parent, and so on.

    Of each the highest number that is of this line.
    """
    lineage: list[tuple[str, int | None]] = []
    most: int | None = None
    while of and of not in (known for known, _ in lineage):
        lineage.append((of, most))
        parent, wrong = folder.parent(of)
        _note(notes, *wrong)
        if parent is None:
            break
        of = parent.incarnation
        if parent.number is not None:
            most = parent.number if most is None else min(most, parent.number)
    return lineage


def _load_newest(
    store: Store, folder: Folder, incarnation: str, links: list[Link], notes: list[str]
) -> Link | None:
    """Load the newest chain whose base is whole, as far as it is whole."""
    here = None
    for base in reversed([link for link in links if not link.previous]):
        try:
            parts = _load_base(store, folder, incarnation, base)
        except CheckpointError as error:
            _note(notes, str(error))
            continue
        here = base
        while True:
            more = [link for link in links if link.previous == here.number]
            for link in reversed(more):  # two, where one failed and came into being all the same
                try:
                    parts = _load_delta(store, folder, incarnation, link)
                except CheckpointError as error:
                    _note(notes, str(error))
                    continue
                here = link
                break
            else:
                break
        books = ShardBooks(here.version, here.low_water, here.ledger, here.pushes, parts.sums())
        store.restorer.set_books(books)
        break
    numbers = {link.number for link in links}
    for link in links:
        if link.previous and link.previous not in numbers:
            name = f"{folder.path}/{incarnation}/{link_name(link.previous)}"
            _note(notes, f"snapshot {link.number} is of no use: {name} is missing or damaged")
    return here


def _load_base(store: Store, folder: Folder, incarnation: str, link: Link) -> snapshot.Parts:
    spec = snapshot.spec_of(link.model, f"{folder.path}/{incarnation}/{link_name(link.number)}")
    parts = snapshot.Parts(store.index, store.slot_map, spec)
    store.restorer.begin(spec, ShardBooks(link.version), new_job=False)
    faults.point("ps.recover", number=link.number)
    for record in link.files:
        where = f"{folder.path}/{incarnation}/{record.name}"
        parts.load(
            store, folder.read_checked(incarnation, record), store.restorer.insert_rows, where
        )
    return parts


def _load_delta(store: Store, folder: Folder, incarnation: str, link: Link) -> snapshot.Parts:
    """Load a delta, all of which is read before any of it is used."""
    files = [folder.read_checked(incarnation, record) for record in link.files]
    assert store.spec is not None
    parts = snapshot.Parts(store.index, store.slot_map, store.spec)
    for data, record in zip(files, link.files, strict=True):
        parts.load(
            store, data, store.restorer.put_rows, f"{folder.path}/{incarnation}/{record.name}"
        )
    return parts


def _note(notes: list[str], *texts: str) -> None:
    for text in texts:
        log.warning("a snapshot is skipped: %s", text)
        notes.append(text)
