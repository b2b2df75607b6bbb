"""The way of a round's state to a member that lacks it, while the one that has it trains on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from ...common import background, rpc
from ...common.errors import Unreachable
from ...proto import worker_pb2 as pb
from ...proto import worker_pb2_grpc
from .process_group import RoundOver

_PART_NBYTES = 16 << 20
_PART_S = 30.0
_TRIES, _AGAIN_S = 5, 0.2  # the channel makes its connection anew meanwhile
_BEGINS_S = 0.02  # for a member that has been told of the round to begin it


class StateServicer(worker_pb2_grpc.WorkerServicer):
    """The calls by which members get the state with which a round began.

    `answer`: stretches of a sharded one.
    """

    answer: Callable[[pb.FetchPartRequest], pb.FetchPartReply] | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._round = 0
        self._blob: bytes | None = None

    def offer(self, round_: int, blob: bytes | None) -> None:
        """Offer this state only, from now on; None: nobody needs the state of this round."""
        with self._lock:
            self._round, self._blob = round_, blob

    def FetchState(self, request: pb.FetchStateRequest, _context: object) -> pb.FetchStateReply:
        with self._lock:
            round_, blob = self._round, self._blob
        if round_ < request.round:  # it has not begun it yet
            return pb.FetchStateReply()
        if round_ > request.round or blob is None:
            return pb.FetchStateReply(gone=True)
        part = blob[request.offset : request.offset + _PART_NBYTES]
        return pb.FetchStateReply(nbytes=len(blob), part=part)

    def FetchPart(self, request: pb.FetchPartRequest, _context: object) -> pb.FetchPartReply:
        answer = self.answer
        return pb.FetchPartReply() if answer is None else answer(request)


class PartClient:
    """The client that gets stretches of a sharded state from other members."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._lock = threading.Lock()
        self._channels: dict[str, rpc.Channel] = {}

    def fetch(self, address: str, request: pb.FetchPartRequest, over: Callable[[], bool]) -> bytes:
        """Fetch stretches once the other one has them.

        Raises RoundOver where it has them no more, or does not answer, or `over` says so.
        """
        with self._lock:
            if address not in self._channels:
                self._channels[address] = rpc.Channel(address, self._token)
            stub = worker_pb2_grpc.WorkerStub(self._channels[address])
        pause = threading.Event()
        failed = 0
        while not over():
            try:
                reply = rpc.call(stub.FetchPart, request, _PART_S)
            except Unreachable as error:
                # Its connection may have been shut down with those of a process group.
                failed += 1
                if failed == _TRIES:
                    raise RoundOver(f"the member at {address} does not answer") from error
                pause.wait(_AGAIN_S)
                continue
            if reply.found:
                return bytes(reply.data)
            if reply.gone:
                break
            pause.wait(_BEGINS_S)
        raise RoundOver(f"the member at {address} has its part of the state no more")

    def close(self) -> None:
        with self._lock:
            for channel in self._channels.values():
                channel.close()


class Fetch:
    """A state of a round that is fetched in the background; `unpack` makes it this member's."""

    def __init__(
        self, address: str, token: str, round_: int, unpack: Callable[[bytes], None]
    ) -> None:
        self._address, self._token, self._round = address, token, round_
        self._unpack = unpack
        self._over = threading.Event()
        self._blob: Future[bytes] = background.begin("fetch-state", self._run)

    def give_up(self) -> None:
        """Ask for no more of the state."""
        self._over.set()

    def is_over(self, wait_s: float) -> bool:
        """Tell whether the state is here, or will not come; wait for that so long."""
        return not wait([self._blob], wait_s).not_done

    @property
    def error(self) -> BaseException | None:
        """The reason why the state will not come, once the fetch is over."""
        return self._blob.exception(0)

    def unpack(self) -> None:
        """Make the state this member's, once it is here."""
        self._unpack(self._blob.result(0))

    def _run(self) -> bytes:
        channel = rpc.Channel(self._address, self._token)
        try:
            return self._fetch(worker_pb2_grpc.WorkerStub(channel))
        finally:
            channel.close()

    def _fetch(self, stub: worker_pb2_grpc.WorkerStub) -> bytes:
        blob = bytearray()
        while not self._over.is_set():
            request = pb.FetchStateRequest(round=self._round, offset=len(blob))
            reply = rpc.call(stub.FetchState, request, _PART_S)
            if reply.gone:
                break
            blob += reply.part
            if blob and len(blob) == reply.nbytes:
                return bytes(blob)
            if not reply.part:
                self._over.wait(_BEGINS_S)
        raise Unreachable("the member that had the state is in another round")
