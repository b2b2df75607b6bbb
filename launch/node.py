"""A node agent's view of its job: it beats, and knows when its round is over.

Without torch. One thread holds a beat open at the coordinator, so that the end of a round is known
at once and nobody polls. What the script reports lies in a file that goes along with the beats: so
no training process has gRPC in it, which does not survive the forks of data loaders.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path

from ..common.errors import EdlError
from ..proto import rendezvous_pb2 as pb
from .client import HELD_S, RendezvousClient
from .settings import LaunchSettings

log = logging.getLogger("edl.launch")

_HELLO_PATIENCE_S = 10.0  # a coordinator that runs answers in milliseconds
_LEAVE_S = 5.0  # a coordinator may be started anew just now
_LEAVE_IN_POD_S = 1.0  # who made the pod sees it end
_QUICK_S = 0.1  # no two beats are closer


class Node:
    """A node's line to its coordinator: it beats in a thread and knows whether the round is over.

    `host`: the address by which the others reach this machine. `settings` are the job's. `failure`:
    the failure that ended the workers, told by the next join. Raises EdlError where the coordinator
    does not answer.
    """

    def __init__(self, client: RendezvousClient, host: str, report_file: Path) -> None:
        self.host = host
        self.report_file = report_file
        self.failure: pb.WorkerFailure | None = None
        self._client = client
        self._reported = 0
        self._round = 0
        self._over = 0  # the last round of which the end is known
        self._closed = ""
        self._error: EdlError | None = None
        self._ends = threading.Event()
        client.patience_s = _HELLO_PATIENCE_S
        hello = client.beat(host=host, pid=os.getpid(), round=0, report=None, wait_s=0.0)
        self.settings = LaunchSettings.from_json(hello.settings_json)
        client.patience_s = self.settings.coordinator_timeout_s
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    @property
    def closed(self) -> str:
        """Return how the job ended; "" while it has not."""
        return self._closed

    def join(self, nproc: int, store: str, newest: int) -> pb.JoinReply:
        """Wait for the next round; its workers do not run meanwhile."""
        self._round = 0
        reply = self._client.join(nproc=nproc, store=store, newest=newest, failure=self.failure)
        self.failure = None
        self._round, self._closed = reply.round, reply.closed or self._closed
        return reply

    def must_restart(self) -> bool:
        """Return whether the round is over.

        Raises EdlError if the coordinator is gone for too long.
        """
        if self._error is not None:
            raise self._error
        return self._round <= self._over

    def finish(self) -> pb.FinishReply:
        """Say that all workers of this node have ended with 0, and wait for the others."""
        reply = self._client.finish(self._round)
        self._closed = reply.closed or self._closed
        return reply

    def leave(self) -> None:
        self._ends.set()
        try:
            self._client.leave(_LEAVE_IN_POD_S if os.environ.get("EDL_POD") else _LEAVE_S)
        except EdlError as error:  # its lease will end
            log.warning("not told that this node leaves: %s", error)
        self._client.close()

    def _beat(self) -> None:
        while not self._ends.is_set():
            began, round = time.monotonic(), self._round
            wait_s = 0.0 if self._closed else HELD_S
            try:
                reply = self._client.beat(
                    host=self.host,
                    pid=os.getpid(),
                    round=round,
                    report=self._report(),
                    wait_s=wait_s,
                )
            except EdlError as error:
                if not self._ends.is_set():
                    log.error("%s", error)
                    self._error = error
                return
            if reply.restart:
                self._over = max(self._over, round)
            self._closed = reply.closed or self._closed
            self._ends.wait(max(0.0, _QUICK_S - (time.monotonic() - began)))
            if self._closed:
                self._ends.wait(1.0)  # it only tells that it lives

    def _report(self) -> pb.NodeReport | None:
        """Return what the script has said since the last one."""
        try:
            changed = self.report_file.stat().st_mtime_ns
            if changed == self._reported:
                return None
            values = json.loads(self.report_file.read_bytes())
        except FileNotFoundError:
            return None
        self._reported = changed
        return pb.NodeReport(**values)
