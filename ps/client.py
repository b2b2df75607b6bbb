"""Calls of all shards of a job at once, and again while one does not answer.

They follow shards that move.

Every call of a shard is idempotent (a push by the ledger), so an unreachable shard is asked again
until the caller's deadline, and only that shard. Workers call by worker_client.py, the master by
control.py.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..common import rpc
from ..common.errors import EdlError, Unreachable
from ..common.identity import Identity
from ..common.retry import Backoff, retry
from ..proto import ps_pb2_grpc
from .wire.grpc import start
from .wire.shard import Reply, Waiter

_BACKOFF = Backoff(0.05, 1.0)
_LEAST_S = 0.001  # for a call whose deadline is now

# Answers where the servers are now and by which version of their map, held up to the seconds given
# for a version newer than the one given.
Find = Callable[[int, float], tuple[Sequence[str], int]]


@dataclass
class Shard:
    """One server, and the channel to it."""

    address: str
    channel: rpc.Channel
    stub: ps_pb2_grpc.ParameterServerStub

    def close(self) -> None:
        """Give up the calls that run: they raise Unreachable."""
        self.channel.close()


def open_shard(
    index: int, address: str, token: str, identity: Identity, master_epoch: int | None = None
) -> Shard:
    """Open the shard `index` at this address.

    A server that is another shard's is Unreachable.
    """
    channel = rpc.Channel(address, token, master_epoch, index, identity)
    return Shard(address, channel, ps_pb2_grpc.ParameterServerStub(channel))


One = TypeVar("One", bound=Shard)


class Shards(Generic[One]):
    """The shards of a job by their index.

    Any thread may call.
    """

    def __init__(
        self,
        addresses: Mapping[int, str],
        connect: Callable[[int, str], One],
        *,
        servers_version: int = 1,
        find: Find | None = None,
    ) -> None:
        """Open the shards.

        `addresses` are those of `servers_version`; `connect(index, address)` opens one.

        `find` is asked while a server does not answer.
        """
        self._connect = connect
        self._find = find
        # Of the map of servers: a call that begins now asks those of this version or newer ones.
        self.servers_version = servers_version
        self._updating = threading.Lock()
        self._shards = {index: connect(index, address) for index, address in addresses.items()}
        self._closed = threading.Event()

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(shard.address for shard in self._shards.values())

    def update(self, addresses: Sequence[str], version: int) -> None:
        """Follow servers that were replaced to their addresses by this version of their map.

        What was known of a replaced one is void, and calls that run there are made again. An older
        version changes nothing.
        """
        if len(addresses) != len(self):
            raise ValueError(f"{len(addresses)} addresses for {len(self)} shards")
        with self._updating:
            if version <= self.servers_version:
                return
            for index, address in enumerate(addresses):
                replaced = self._shards[index]
                if replaced.address != address:
                    self._shards[index] = self._connect(index, address)
                    replaced.close()
            self.servers_version = version  # last: a push that begins before may ask an old one

    def close(self) -> None:
        """Give up all calls that run: they raise Unreachable."""
        self._closed.set()
        for shard in self._shards.values():
            shard.close()

    def ask(
        self,
        begin: Callable[[One, int, float], Waiter[Reply]],
        deadline: float,
        shards: Iterable[int] | None = None,
    ) -> list[Reply]:
        """Return the replies of all shards, or of these, in their order.

        `begin(shard, index, left_s)` starts a call. It is begun on all, then gathered, and begun
        again on the unreachable until the deadline. Raises Unreachable, and what a shard answers.
        """
        indices = list(self._shards if shards is None else shards)
        replies: dict[int, Reply] = {}

        def attempt(left_s: float) -> list[Reply]:
            left_s = max(_LEAST_S, left_s)
            missing = [index for index in indices if index not in replies]
            waiters = [(i, _begun(begin, self._shards[i], i, left_s)) for i in missing]
            failure = _gather(waiters, replies)
            if failure is None:
                return [replies[index] for index in indices]
            index, error = failure
            if not isinstance(error, Unreachable):
                raise error
            address = self._shards[index].address
            raise Unreachable(f"parameter server {index} at {address}: {error}") from error

        return retry(
            attempt,
            _BACKOFF,
            deadline - time.monotonic(),
            on=(Unreachable,),
            wait=self._wait,
            jitter=lambda: random.uniform(0.5, 1.0),
        )

    # `Any`: messages of ps.proto; the generated stubs do not tie a method's name to their types.

    def call(self, method: str, requests: Mapping[int, Any], deadline: float) -> dict[int, Any]:
        """Make an RPC of these shards, each with its own request.

        Returns the replies by shard.
        """
        replies = self.ask(
            lambda shard, index, left_s: start(
                getattr(shard.stub, method), requests[index], left_s
            ),
            deadline,
            requests,
        )
        return dict(zip(requests, replies, strict=True))

    def call_all(
        self, method: str, request: Any, timeout_s: float, shards: Iterable[int] | None = None
    ) -> dict[int, Any]:
        """Make an RPC of all shards, or of these, with the same request.

        Returns the replies by shard.
        """
        indices = self._shards if shards is None else shards
        return self.call(method, dict.fromkeys(indices, request), time.monotonic() + timeout_s)

    def _wait(self, seconds: float) -> bool:
        """Wait until an unreachable server may be asked again, or has moved.

        True: closed.
        """
        until = time.monotonic() + seconds
        if self._find is not None and not self._closed.is_set():
            known = self.servers_version
            addresses, version = self._find(known, seconds)
            if version > known:
                self.update(addresses, version)
                return self._closed.is_set()
        return self._closed.wait(max(0.0, until - time.monotonic()))


def _begun(
    begin: Callable[[One, int, float], Waiter[Reply]], shard: One, index: int, left_s: float
) -> Waiter[Reply]:
    """Begin a call; the waiter raises what that raises, so that all other shards are begun."""
    try:
        return begin(shard, index, left_s)
    except EdlError as error:
        failure = error

    def failed() -> Reply:
        raise failure

    return failed


def _gather(
    waiters: Iterable[tuple[int, Waiter[Reply]]], replies: dict[int, Reply]
) -> tuple[int, EdlError] | None:
    """Wait for all replies, and return the first error.

    One that asking again cannot cure goes before all others.
    """
    failure: tuple[int, EdlError] | None = None
    for index, wait in waiters:
        try:
            replies[index] = wait()
        except EdlError as error:
            if failure is None or isinstance(failure[1], Unreachable):
                failure = (index, error)
    return failure
