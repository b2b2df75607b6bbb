"""The parameter servers, as the master needs them. All calls block and may be repeated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...common.errors import PeerError
from ...common.places import Place, Where
from ...common.storage import MANIFEST, FileRecord, write_manifest
from ...ps.books.slots import SlotMap
from ...ps.control import PsControl
from ...ps.cuts import Cut

# The only door to ps: others of this folder take `Cut` from here.
__all__ = ["NUM_SLOTS", "Cut", "RemoteServers", "Servers", "Snapshot"]

NUM_SLOTS = SlotMap(1).num_slots
_RPC_TIMEOUT_S = 10.0  # of small calls
_SNAPSHOT_TIMEOUT_S = 1800.0  # a shard writes all it holds


@dataclass(frozen=True)
class Snapshot:
    """The files of all shards, and the model they hold (ModelSpec as JSON)."""

    files: tuple[FileRecord, ...]
    model: dict[str, Any]
    num_shards: int

    def write_manifest(
        self, directory: Where, version: int, books: dict[str, Any] | None = None
    ) -> None:
        """Write the manifest: the folder is a snapshot from now on, with `books` a checkpoint."""
        write_manifest(
            directory,
            version=version,
            num_shards=self.num_shards,
            num_slots=NUM_SLOTS,
            files=self.files,
            model=self.model,
            books=books,
        )


class Servers(Protocol):
    """The shards of a job as one. Raises Unreachable where one does not answer in time."""

    def fence(self, attempts: Mapping[int, int]) -> Mapping[int, Sequence[int]]:
        """Refuse attempts below these; afterwards none of them is ever applied.

        Answers the applied positions by task, one per shard.
        """
        ...

    def fence_one(self, shard: int, address: str, attempts: Mapping[int, int]) -> Mapping[int, int]:
        """Fence on the server at `address`, which replaces the one of this shard.

        Answers its applied positions by task; those that it has retired are missing.
        """
        ...

    def replace(self, addresses: Sequence[str], version: int) -> None:
        """Call the servers at these addresses from now on.

        Calls that run at old ones are repeated.
        """
        ...

    def take_cut(self, name: str, hold_s: float) -> Cut | None:
        """Pin one state of all shards; None where pushes in flight did not arrive in `hold_s`."""
        ...

    @property
    def uneven(self) -> Mapping[int, Sequence[int]]:
        """The tasks of which shards stood apart when the last cut began: positions by shard."""
        ...

    def unpin(self, name: str) -> None:
        """Forget a cut."""
        ...

    def snapshot(self, cut: str, directory: Place) -> Snapshot:
        """Write a pinned cut."""
        ...

    def values(
        self, cut: str, directory: Place, since: str
    ) -> tuple[Snapshot, dict[str, int]] | None:
        """Write what serving needs of a pinned cut: what is new since another, or all ("").

        Answers the rows by table as well. None: a shard does not know that other cut.
        """
        ...

    def flush(self) -> int:
        """Step with the pushes that wait for others, in sync mode; returns the version."""
        ...

    def version(self) -> int:
        """Return the version now."""
        ...

    def close(self) -> None: ...


class RemoteServers:
    """The servers of a job over gRPC."""

    def __init__(self, addresses: Sequence[str], token: str, master_epoch: int = 1) -> None:
        self._client = PsControl(addresses, token=token, master_epoch=master_epoch)

    def fence(self, attempts: Mapping[int, int]) -> Mapping[int, Sequence[int]]:
        answers = self._client.fence(attempts, timeout_s=_RPC_TIMEOUT_S)
        for shard, applied in answers.items():
            if missing := sorted(attempts.keys() - applied.keys()):
                raise PeerError(f"server {shard} has retired tasks {missing}, which are not done")
        shards = sorted(answers)
        return {task: [answers[shard][task] for shard in shards] for task in attempts}

    def fence_one(self, shard: int, address: str, attempts: Mapping[int, int]) -> Mapping[int, int]:
        return self._client.fence_at(shard, address, attempts, timeout_s=_RPC_TIMEOUT_S)

    def replace(self, addresses: Sequence[str], version: int) -> None:
        self._client.update(addresses, version)

    def take_cut(self, name: str, hold_s: float) -> Cut | None:
        return self._client.cuts.take(name, hold_s=hold_s, timeout_s=hold_s + _RPC_TIMEOUT_S)

    @property
    def uneven(self) -> Mapping[int, Sequence[int]]:
        return self._client.cuts.uneven

    def unpin(self, name: str) -> None:
        self._client.cuts.unpin(name, timeout_s=_RPC_TIMEOUT_S)

    def snapshot(self, cut: str, directory: Place) -> Snapshot:
        directory.remove([MANIFEST])  # an older job's: no half of it may survive
        files, _ = self._client.snapshot(cut, str(directory), timeout_s=_SNAPSHOT_TIMEOUT_S)
        return self._snapshot(directory, files)

    def values(
        self, cut: str, directory: Place, since: str
    ) -> tuple[Snapshot, dict[str, int]] | None:
        where = str(directory)
        written = self._client.values(cut, where, since, timeout_s=_SNAPSHOT_TIMEOUT_S)
        if written is None:
            return None
        files, rows = written
        return self._snapshot(directory, files), rows

    def _snapshot(self, directory: Place, files: Iterable[tuple[str, int, str]]) -> Snapshot:
        records = tuple(FileRecord(*file) for file in files)
        books = next(record.name for record in records if record.name.endswith(".json"))
        model = json.loads(directory.read(books))["model"]
        return Snapshot(records, model, self._client.num_shards)

    def flush(self) -> int:
        return max(version for version, _ in self._client.flush(timeout_s=_RPC_TIMEOUT_S).values())

    def version(self) -> int:
        return max(r.version for r in self._client.describe(timeout_s=_RPC_TIMEOUT_S).values())

    def close(self) -> None:
        self._client.close()
