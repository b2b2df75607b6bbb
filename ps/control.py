"""The master's calls of the parameter servers: fences, cuts, checkpoints, figures.

All of it is gRPC, and none of it needs the kernels that pulls and pushes bring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..common.identity import Identity, job_identity
from ..proto import ps_pb2 as pb
from .client import Shard, Shards, open_shard
from .cuts import Cuts


class PsControl:
    """The master's client of all shards of a job.

    Calls may run in threads and be repeated.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str,
        master_epoch: int | None = None,
        identity: Identity | None = None,
    ) -> None:
        """Open the shards.

        `master_epoch`: of the master that calls; None: somebody who is no master.

        `identity` is by default that of this process.
        """
        self._token = token
        self._identity = identity or job_identity(token)
        self._master_epoch = master_epoch
        self._shards = Shards(dict(enumerate(addresses)), self._open)
        self.cuts = Cuts(self._shards)

    @property
    def num_shards(self) -> int:
        return len(self._shards)

    def update(self, addresses: Sequence[str], version: int) -> None:
        """Follow servers that were replaced (see `Shards.update`)."""
        self._shards.update(addresses, version)

    def close(self) -> None:
        """Give up all calls that run: they raise Unreachable."""
        self._shards.close()

    def fence(self, attempts: Mapping[int, int], *, timeout_s: float) -> dict[int, dict[int, int]]:
        """Refuse lower attempts of the tasks from now on.

        Returns by shard: task -> position applied.

        A task that a shard has retired is missing from its answer.
        """
        return self._fence(self._shards, attempts, timeout_s)

    def fence_at(
        self, shard: int, address: str, attempts: Mapping[int, int], *, timeout_s: float
    ) -> dict[int, int]:
        """Fence on the server at `address`, which is to replace the one of this shard."""
        replacement = Shards({shard: address}, self._open)
        try:
            return self._fence(replacement, attempts, timeout_s)[shard]
        finally:
            replacement.close()

    def snapshot(
        self, cut: str, directory: str, *, timeout_s: float
    ) -> tuple[list[tuple[str, int, str]], int]:
        """Have every shard write its part of the cut.

        Returns all files (name, nbytes, sha256) and the version.
        """
        request = pb.SnapshotRequest(cut=cut, directory=directory)
        replies = self._shards.call_all("Snapshot", request, timeout_s)
        files = [
            (f.name, f.nbytes, f.sha256) for index in sorted(replies) for f in replies[index].files
        ]
        return files, max(reply.version for reply in replies.values())

    def values(
        self, cut: str, directory: str, since: str, *, timeout_s: float
    ) -> tuple[list[tuple[str, int, str]], dict[str, int]] | None:
        """Have every shard write what serving needs of the cut, and what is new since another.

        `since` "": all of it. Returns all files, as `snapshot`, and the rows by table; None: a
        shard does not know that other cut.
        """
        request = pb.SnapshotRequest(cut=cut, directory=directory, values_only=True, since=since)
        replies = self._shards.call_all("Snapshot", request, timeout_s)
        if any(reply.unknown for reply in replies.values()):
            return None
        files, rows = [], Counter[str]()
        for index in sorted(replies):
            files += [(f.name, f.nbytes, f.sha256) for f in replies[index].files]
            rows.update(replies[index].rows)
        return files, dict(rows)

    def flush(self, *, timeout_s: float) -> dict[int, tuple[int, int]]:
        """Step, in sync mode, with what waits.

        Returns by shard: version, pushes that were waiting.
        """
        replies = self._shards.call_all("Flush", pb.FlushRequest(), timeout_s)
        return {index: (reply.version, reply.pushes) for index, reply in replies.items()}

    def retire(self, low_water: int, *, timeout_s: float) -> None:
        """Drop the tasks below the mark from the ledgers for good."""
        self._shards.call_all("Retire", pb.RetireRequest(low_water=low_water), timeout_s)

    def describe(self, *, timeout_s: float) -> dict[int, pb.DescribeReply]:
        """Return by shard its version, sizes and counters (DescribeReply of ps.proto)."""
        return self._shards.call_all("Describe", pb.DescribeRequest(), timeout_s)

    def _fence(
        self, shards: Shards[Shard], attempts: Mapping[int, int], timeout_s: float
    ) -> dict[int, dict[int, int]]:
        request = pb.FenceRequest(
            entries=[pb.FenceRequest.Entry(task=t, attempt=a) for t, a in attempts.items()],
            master_epoch=self._master_epoch or 0,
        )
        replies = shards.call_all("Fence", request, timeout_s)
        return {i: {e.task: e.applied for e in reply.entries} for i, reply in replies.items()}

    def _open(self, index: int, address: str) -> Shard:
        return open_shard(index, address, self._token, self._identity, self._master_epoch)
