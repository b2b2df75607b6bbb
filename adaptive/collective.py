"""Small values between replicas, and the end of all of them at once when one is preempted.

Values travel as JSON in byte tensors over a group of torch.distributed of its own (gloo, on the
CPU), so nothing is ever unpickled and the group of the gradients is left alone. As with any
collective, all replicas make the same calls in the same order.

Preemption: SIGTERM or SIGINT sets a flag and nothing else. Between any two optimizer steps replicas
`exchange` their flags without waiting: what one call starts, the next one reads. So all of them learn of it between the same two steps, where they save and leave with exit code 143;
the second SIGINT kills at once.
"""

from __future__ import annotations

import json
import logging
import operator
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import reduce
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from ..common.errors import UsageError
from . import env
from .session import only, put

log = logging.getLogger(__name__)

T = TypeVar("T")

PREEMPTED = 143  # 128 + SIGTERM: schedulers do not take it for a failure


class Control:
    """The replicas, as far as they talk of anything but gradients. Without a group: alone."""

    def __init__(
        self, group: distributed.ProcessGroup | None = None, rank: int = 0, replicas: int = 1
    ) -> None:
        if group is None and replicas > 1:
            raise UsageError(
                f"this is replica {rank} of {replicas}, and they do not know each other: "
                "call edl.adaptive.init_process_group() first"
            )
        self.rank = rank
        self.replicas = replicas
        self._group = group
        self._pending: Callable[[], tuple[tuple[bool, ...], int]] | None = None

    def broadcast(self, value: T, source: int = 0) -> T:
        """The value that replica `source` gave, whatever the others give. Tuples become lists."""
        data = _encode(value) if self.rank == source else b""
        return _decode(self.broadcast_bytes(data, source))  # type: ignore[no-any-return]

    def broadcast_bytes(self, data: bytes, source: int = 0) -> bytes:
        """The bytes that replica `source` gave."""
        if self._group is None:
            return data
        nbytes = torch.tensor([len(data)])
        self._group.broadcast(nbytes, source).wait()
        tensor = _tensor(data) if self.rank == source else torch.empty(int(nbytes), dtype=_BYTE)
        if len(tensor):
            self._group.broadcast(tensor, source).wait()
        return data if self.rank == source else tensor.numpy().tobytes()

    def gather(self, value: T) -> list[T]:
        """The values of all replicas, by rank."""
        data = _encode(value)
        if self._group is None:
            return [_decode(data)]
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.replicas)]
        self._group.allgather([sizes], [torch.tensor([len(data)])]).wait()
        longest = int(max(map(int, sizes)))
        padded = torch.zeros(longest, dtype=_BYTE)
        padded[: len(data)] = _tensor(data)
        given = [torch.empty(longest, dtype=_BYTE) for _ in range(self.replicas)]
        self._group.allgather([given], [padded]).wait()
        return [
            _decode(tensor[: int(size)].numpy().tobytes())
            for tensor, size in zip(given, sizes, strict=True)
        ]

    def allreduce(self, value: T, reduce_fn: Callable[[T, T], T] = operator.add) -> T:
        """All replicas' values reduced in the order of the ranks, so the same everywhere."""
        return reduce(reduce_fn, self.gather(value))

    def exchange(self, flags: Sequence[bool], steps: int = 1) -> tuple[tuple[bool, ...], int]:
        """Which flags any replica gave in the call *before*, and the least `steps` that one gave.

        At the first call: none, and 1. Does not wait for the replicas to make this call.
        """
        pending, self._pending = self._pending, self._any(tuple(flags), steps)
        return pending() if pending else ((False,) * len(flags), 1)

    def settle(self) -> tuple[bool, ...]:
        """Which flags any replica gave in the last call of `exchange`; () where that is known."""
        pending, self._pending = self._pending, None
        return pending()[0] if pending else ()

    def _any(
        self, flags: tuple[bool, ...], steps: int
    ) -> Callable[[], tuple[tuple[bool, ...], int]]:
        """What waits for, and gives, the flags that any replica has and the least steps."""
        if self._group is None:
            return lambda: (flags, steps)
        tensor = torch.tensor([*flags, -steps], dtype=torch.int32)
        work = self._group.allreduce(tensor, distributed.ReduceOp.MAX)

        def result() -> tuple[tuple[bool, ...], int]:
            work.wait()
            *any_flags, least = tensor.tolist()
            return tuple(map(bool, any_flags)), -least

        return result


_BYTE = torch.uint8


class Preemption:
    """Whether this process was asked to leave. The handlers are set in the main thread only."""

    def __init__(self) -> None:
        self.requested = False
        self._interrupted = False

    def install(self) -> None:
        """Let SIGTERM and SIGINT set the flag. Again: no effect."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) != self._handle:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # No logging here: a handler may interrupt the logging of the main thread.
        if number == signal.SIGINT and self._interrupted:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._interrupted |= number == signal.SIGINT
        self.requested = True


def control() -> Control:
    """This process's. Raises UsageError where there are others and `init_process_group` is due."""
    return only(_alone)


def connect(group: distributed.ProcessGroup | None, rank: int, replicas: int) -> Control:
    """Talk to the other replicas over this group (gloo) from now on."""
    return put(_alone, Control(group, rank, replicas))


def preemption() -> Preemption:
    """This process's."""
    return only(Preemption)


def broadcast(value: T) -> T:
    """The value that rank 0 gave: numbers, texts, and lists and dicts of them."""
    return control().broadcast(value)


def allreduce(value: T, reduce_fn: Callable[[T, T], T] = operator.add) -> T:
    """The values of all replicas, reduced by `reduce_fn` in the order of the ranks."""
    return control().allreduce(value, reduce_fn)


def _alone() -> Control:
    return Control(None, env.replica_rank(), env.num_replicas())


def _encode(value: object) -> bytes:
    try:
        return json.dumps(value).encode()
    except TypeError as error:
        raise UsageError(
            f"{value!r} cannot be sent to the other replicas: {error}; "
            "give numbers, texts, or lists and dicts of them"
        ) from error


def _decode(data: bytes) -> Any:
    return json.loads(data)


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=_BYTE) if data else torch.empty(0, dtype=_BYTE)
