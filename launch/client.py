"""The line from a node agent to its coordinator.

Each call is repeated while the coordinator is unreachable (common/line.py): it may be started anew
meanwhile, training goes on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from ..common.identity import Identity
from ..common.line import Line
from ..proto import rendezvous_pb2 as pb
from ..proto import rendezvous_pb2_grpc

HELD_S = 3.0  # of a held call; a guess: a fifth of the lease


class RendezvousClient(Line):
    """One node's line to the coordinator.

    Safe to share among threads. `where` tells the address of now (None: the one that was given).
    `node`: its name; "": a new one.
    Raises Unreachable when nobody has answered for `patience_s`, Unauthenticated where the token or
    the certificate is another job's.
    """

    def __init__(
        self,
        address: str,
        identity: Identity,
        *,
        patience_s: float,
        where: Callable[[], str | None] = lambda: None,
        node: str = "",
    ) -> None:
        self.node = node or uuid.uuid4().hex
        super().__init__(
            address,
            rendezvous_pb2_grpc.RendezvousStub,
            who="coordinator",
            advice=": does `edl launch` still run there, and can this machine reach it?",
            token=identity.token,
            identity=identity,
            patience_s=patience_s,
            where=where,
        )

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

    def leave(self, patience_s: float) -> None:
        self._call("Leave", pb.LeaveRequest(node=self.node), 0.0, patience_s)
