"""The checkpoints that somebody asks for: each of a state that is no older than the question.

A question has an id, by which it may be repeated: it asks for no other checkpoint. What comes while
one is being written is answered by the next one, all of it together. How the last ones ended stands
in the status, so that the next master, and whoever reads no more than that, knows it.
"""

from __future__ import annotations

from ..durable.loop import Script
from ..durable.schema import Json
from ..proto import master_pb2 as pb
from .checkpoints import Checkpoints
from .core import Core
from .groups.group import Group

MOST = 32  # questions whose end is known


class Requested:
    """The questions for a checkpoint of now."""

    def __init__(self, core: Core, group: Group, checkpoints: Checkpoints) -> None:
        self._core = core
        self._group = group
        self._checkpoints = checkpoints
        self._waiting: list[str] = []  # for one that is to begin
        self._written: list[str] = []  # by the one that has begun
        self._runs = False

    def ask(self, request_id: str) -> None:
        """Have a checkpoint written, unless this question is known."""
        if request_id in (*self._waiting, *self._written) or self._ended(request_id) is not None:
            return
        if refused := self._refusal():
            self._end([request_id], refused)
            return
        self._waiting.append(request_id)
        if not self._runs:
            self._runs = True
            self._core.loop.spawn(self._run())

    def answer(self, request_id: str) -> pb.CheckpointReply | None:
        """Return how a question ended; None: it has not."""
        ended = self._ended(request_id)
        if ended is not None:
            return pb.CheckpointReply(checkpoint=ended["checkpoint"], refused=ended["refused"])
        if self._core.ended:
            return pb.CheckpointReply(refused=self._over())
        return None

    def _ended(self, request_id: str) -> dict[str, str] | None:
        known: list[Json] = self._core.status.requested
        return next((each for each in known if each["id"] == request_id), None)

    def _end(self, request_ids: list[str], refused: str) -> None:
        status = self._core.status
        where = "" if refused else status.checkpoint or ""
        ended = [{"id": each, "checkpoint": where, "refused": refused} for each in request_ids]
        status.requested = [*status.requested, *ended][-MOST:]
        self._core.save_soon()

    def _refusal(self) -> str:
        """Return why no checkpoint can be written now; "": it can."""
        core = self._core
        if core.settings.command != "train":
            return f"only a job that trains has checkpoints: this one is to {core.settings.command}"
        if not core.settings.keeps_checkpoints:
            return (
                "a checkpoint would end with the job's pods: give it a --checkpoint_dir on a "
                "volume or at a store (s3://...), or a --job_volume"
            )
        if core.ended:
            return self._over()
        if core.status.state != "running":
            return f"a checkpoint is written while a job trains: it is {core.status.state}"
        return ""

    def _over(self) -> str:
        newest = self._core.status.newest_checkpoint
        kept = f"; its last checkpoint is {newest}" if newest else ""
        return f"the job has ended: {self._core.status.state}{kept}"

    def _run(self) -> Script[None]:
        while self._waiting:
            yield lambda: self._core.ended or self._group.connected and not self._checkpoints.busy
            self._written, self._waiting = self._waiting, []
            if not (why := self._refusal()):  # which may have come while it waited
                why = yield from self._checkpoints.write()
            self._end(self._written, why)
            self._written = []
        self._runs = False
