"""Cuts: one state of all shards, found without asking the workers (docs/adr/0002).

A cut is frozen, pinned at the union of the shards' ledgers, read, and let go.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..common.errors import EdlError, PeerError
from ..proto import ps_pb2 as pb
from .books.ledger import Entry
from .client import One, Shards

_LET_GO_S = 1.0  # of a shard when a cut has failed: what does not answer thaws by itself


@dataclass(frozen=True)
class Cut:
    """One state of all shards, pinned.

    `applied`: position by task of the ledgers.
    """

    name: str
    version: int
    applied: Mapping[int, int]


class Cuts:
    """The way to take cuts of these shards."""

    def __init__(self, shards: Shards[One]) -> None:
        self._shards = shards
        # Tasks of which the shards stood at different positions when the last cut began: by shard.
        self.uneven: dict[int, tuple[int, ...]] = {}

    def take(self, cut: str, *, hold_s: float, timeout_s: float) -> Cut | None:
        """Freeze, then pin at the union of the ledgers: one state of all shards.

        None where a worker's pushes did not reach every shard within `hold_s` (it was lost in the
        midst of a push, say): nothing is pinned and all shards run on; try again later. `uneven`
        then says at which tasks they differ.
        """
        deadline = time.monotonic() + timeout_s
        try:
            frozen = self.freeze(cut, hold_s=hold_s, timeout_s=timeout_s)
            ledgers = [entries for entries, _ in frozen.values()]
            self.uneven = _uneven(ledgers)
            targets: dict[int, int] = {}
            for entry in (entry for entries in ledgers for entry in entries):
                targets[entry.task] = max(entry.applied, targets.get(entry.task, 0))
            left_s = max(0.0, deadline - time.monotonic())
            pins = self.pin(cut, targets, hold_s=hold_s, timeout_s=left_s)
            if all(reached for reached, _ in pins.values()):
                version = max(version for _, version in pins.values())
                return Cut(cut, version, dict(sorted(targets.items())))
        except EdlError:
            self._try_unpin(cut)
            raise
        self.unpin(cut, timeout_s=timeout_s)
        return None

    def freeze(
        self, cut: str, *, hold_s: float, timeout_s: float
    ) -> dict[int, tuple[tuple[Entry, ...], int]]:
        """Hold back pushes for at most `hold_s`.

        Returns by shard: its ledger and its version.
        """
        request = pb.FreezeRequest(cut=cut, timeout_s=hold_s)
        replies = self._shards.call_all("Freeze", request, timeout_s)
        return {
            index: (tuple(Entry(e.task, e.attempt, e.applied) for e in reply.ledger), reply.version)
            for index, reply in replies.items()
        }

    def pin(
        self, cut: str, targets: Mapping[int, int], *, hold_s: float, timeout_s: float
    ) -> dict[int, tuple[bool, int]]:
        """Let through what `targets` (task -> position) name, then pin.

        Returns by shard: whether the targets were reached, and the version.

        A shard that does not reach its targets within `hold_s` pins nothing and thaws.
        """
        entries = [pb.LedgerEntry(task=t, applied=p) for t, p in targets.items()]
        request = pb.PinRequest(cut=cut, targets=entries, timeout_s=hold_s)
        replies = self._shards.call_all("Pin", request, timeout_s)
        return {index: (reply.reached, reply.version) for index, reply in replies.items()}

    def unpin(self, cut: str, *, timeout_s: float) -> None:
        """Forget the cut; let go of its freeze."""
        self._shards.call_all("Unpin", pb.UnpinRequest(cut=cut), timeout_s)

    def _try_unpin(self, cut: str) -> None:
        """Let go of a cut on the shards that still answer; the others thaw by themselves."""
        for index in range(len(self._shards)):
            try:
                self._shards.call_all("Unpin", pb.UnpinRequest(cut=cut), _LET_GO_S, [index])
            except PeerError:
                continue


def _uneven(ledgers: Sequence[Iterable[Entry]]) -> dict[int, tuple[int, ...]]:
    """Return the positions by shard of the tasks at which the shards differ."""
    by_shard = [{e.task: e.applied for e in entries} for entries in ledgers]
    tasks = sorted({task for there in by_shard for task in there})
    found = {task: tuple(there.get(task, 0) for there in by_shard) for task in tasks}
    return {task: at for task, at in found.items() if len(set(at)) > 1}
