"""How a node agent talks to the coordinator.

Each call stands under a deadline and is repeated, with backoff, while the coordinator is unreachable,
for `patience_s` in all: the coordinator may be started anew meanwhile, training goes on.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from ..common import rpc
from ..common.errors import Unreachable
from ..common.identity import Identity
from ..proto import rendezvous_pb2 as pb
from ..proto import rendezvous_pb2_grpc

HELD_S = 3.0  # of a held call; a guess: a fifth of the lease
_ANSWER_S = 5.0  # beyond that
_BACKOFF_S = (0.05, 1.0)  # first and longest pause between tries


class RendezvousClient:
    """One node's line to the coordinator. Safe to share among threads.

    `where` tells the address of now (None: the one that was given). Raises Unreachable when nobody has
    answered for `patience_s`, Unauthenticated where the token or the certificate is another job's.
    """

    def __init__(
        self,
        address: str,
        identity: Identity,
        *,
        patience_s: float,
        where: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.node = uuid.uuid4().hex
        self.patience_s = patience_s
        self.address = address
        self._identity = identity
        self._where = where
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connect(address)

    def close(self) -> None:
        """Give up all calls that run."""
        with self._lock:
            self._closed.set()
            self._channel.close()

    def beat(
        self,
        *,
        host: str,
        pid: int,
        round: int,
        report: pb.NodeReport | None,
        wait_s: float = HELD_S,
    ) -> pb.BeatReply:
        request = pb.BeatRequest(
            node=self.node, host=host, pid=pid, round=round, report=report, wait_s=wait_s
        )
        reply: pb.BeatReply = self._call("Beat", request, wait_s)
        return reply

    def join(
        self, *, nproc: int, store: str, newest: int, failure: pb.WorkerFailure | None = None
    ) -> pb.JoinReply:
        """Wait for a round, however long it takes, or for the end of the job."""
        request = pb.JoinRequest(
            node=self.node,
            request_id=uuid.uuid4().hex,
            nproc=nproc,
            store=store,
            newest=newest,
            failure=failure,
            wait_s=HELD_S,
        )
        while True:  # how long a node may wait for others is the coordinator's to say
            reply: pb.JoinReply = self._call("Join", request, HELD_S)
            if reply.round or reply.closed:
                return reply

    def finish(self, round: int) -> pb.FinishReply:
        """Wait until all of the round have finished, or it is over."""
        request = pb.FinishRequest(node=self.node, round=round, wait_s=HELD_S)
        while True:
            reply: pb.FinishReply = self._call("Finish", request, HELD_S)
            if reply.closed or reply.restart:
                return reply

    def leave(self, patience_s: float = _ANSWER_S) -> None:
        self._call("Leave", pb.LeaveRequest(node=self.node), 0.0, patience_s)

    # -- inside

    def _connect(self, address: str) -> None:
        self.address = address
        self._channel = rpc.Channel(address, self._identity.token, identity=self._identity)
        self._stub: Any = rendezvous_pb2_grpc.RendezvousStub(self._channel)

    def _follow(self) -> None:
        found = self._where()
        with self._lock:
            if found is None or found == self.address or self._closed.is_set():
                return
            old = self._channel
            self._connect(found)
            old.close()

    def _call(
        self, method: str, request: Any, wait_s: float, patience_s: float | None = None
    ) -> Any:
        patience_s = self.patience_s if patience_s is None else patience_s
        give_up = time.monotonic() + wait_s + patience_s
        pause_s = _BACKOFF_S[0]
        while True:
            left_s = max(give_up - time.monotonic(), 0.1)
            try:
                timeout_s = min(wait_s + _ANSWER_S, left_s)
                return rpc.call(getattr(self._stub, method), request, timeout_s)
            except (Unreachable, ValueError) as error:  # ValueError: closed under the call
                if self._closed.is_set():
                    raise Unreachable("the line to the coordinator is closed") from error
                if time.monotonic() + pause_s >= give_up:
                    raise Unreachable(
                        f"the coordinator at {self.address} did not answer within {patience_s:g} s "
                        f"({error}): does `edl launch` still run there, and can this machine reach it?"
                    ) from error
            self._closed.wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _BACKOFF_S[1])
            self._follow()
