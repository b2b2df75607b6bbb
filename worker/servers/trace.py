"""The trace of a worker of a --deterministic job: what it computed, on what; for `edl replay`.

<job>/trace/worker-INDEX-INCARNATION.jsonl: a line for each minibatch whose gradients were computed,
written before they are pushed: the span and where its records are, and of each pull that it saw the
versions (by server) and which servers answered. The first pull brought the dense values; others are
of tables that the forward pulls itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ps.books.trace import Lines
from ...ps.worker_client import PsClient, Pulled
from ..task_reader import Batch


class TracedClient(PsClient):
    """A client that remembers versions and servers of its pulls.

    They are those since the last one that brought dense values.
    """

    pulls: list[dict[str, Any]]

    def pull(self, tables: Mapping[str, Any], **how: Any) -> Pulled:
        pulled = super().pull(tables, **how)
        if pulled.initialized and not how.get("cut"):
            before = [] if how.get("dense") is not None else self.pulls
            seen = {"versions": pulled.versions, "servers": pulled.addresses}
            self.pulls = [*before, seen]
        return pulled


class WorkerTrace:
    """The trace of one incarnation."""

    def __init__(self, folder: Path, index: int, incarnation: str, client: TracedClient) -> None:
        self._lines = Lines(folder / f"worker-{index}-{incarnation}.jsonl")
        self._client = client

    def __call__(self, batch: Batch, loss: float | None) -> None:
        """Note that the gradients of this minibatch have been computed."""
        task = batch.lease.task
        self._lines.add(
            {
                "span": [task.id, task.attempt, batch.start, batch.end],
                "epoch": task.epoch,
                "source": task.source,
                "records": [task.start, task.end],
                "skips": sorted(task.skips),
                "used": batch.used,
                "pulls": self._client.pulls,
                "loss": loss,
            }
        )


def ignore(batch: Batch, loss: float | None) -> None:
    """Keep no trace."""
