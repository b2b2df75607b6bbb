"""The phases of the matrix, its columns: moments of a job at which a fault may strike."""

from __future__ import annotations

from dataclasses import dataclass

from .scene import REGISTERS


@dataclass(frozen=True)
class Phase:
    """A moment of a job: a failpoint, and up to which of its hits one may be drawn.

    `of_deltas`: only a job that leaves deltas comes there.
    """

    name: str
    about: str
    points: tuple[str, ...]
    latest: int
    of_deltas: bool = False


PHASES = (
    Phase("register", "a replica says hello to the master", REGISTERS, 1),
    Phase("pull", "a worker is about to pull", ("worker.pull",), 60),
    Phase("compute", "a worker has pulled and computes", ("worker.compute",), 60),
    Phase("push", "a server has a push, and has not applied it", ("ps.push",), 150),
    Phase("applied", "it has applied it, and has not answered", ("ps.applied",), 150),
    Phase("snapshot begin", "a server begins a snapshot", ("ps.snapshot.begin",), 6),
    Phase("snapshot mid", "some of its files are written", ("ps.snapshot.mid",), 6),
    Phase("snapshot commit", "all are, its manifest is not", ("ps.snapshot.commit",), 6),
    Phase("requeue", "a worker was killed, its task is not fenced yet", ("master.requeue",), 1),
    Phase("evaluate", "a worker evaluates", ("worker.evaluate",), 8),
    Phase("epoch end", "all tasks of an epoch are done", ("master.epoch_end",), 2),
    Phase("shutdown", "all is done, everybody is told to leave", ("master.shutdown",), 1),
    Phase("cut", "all servers have pinned one cut", ("master.cut",), 6, True),
    Phase("delta begin", "a server begins its part of a delta", ("ps.delta.begin",), 18, True),
    Phase("delta mid", "some of its files may be written", ("ps.delta.mid",), 18, True),
    Phase("delta commit", "all parts are, the manifest is not", ("master.delta",), 6, True),
    Phase("delta written", "it is, and not noted yet", ("master.delta_written",), 6, True),
    Phase("publish", "a consumer has read a new cut", ("serve.generation",), 6, True),
)
