"""Small values between replicas, and the end of all of them at once when one is preempted.

Values travel as bytes (values.py) over a group of torch.distributed of its own (gloo, on the CPU),
so nothing is ever unpickled and the group of the gradients is left alone. As with any collective,
all replicas make the same calls in the same order. A value that cannot travel is an error on all of
them, not a wait. What is reduced asynchronously has a group and a thread for itself, which does one
after the other, in the order of the calls.

Preemption: SIGTERM or SIGINT sets a flag and nothing else. Between any two optimizer steps replicas
`exchange` their flags without waiting: what one call starts, the next one reads. So all of them
learn of it between the same two steps, where they save and leave with exit code 143; the second
SIGINT kills at once.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import logging
import operator
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import reduce
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

from ..common.errors import UsageError
from . import env, values
from .session import find, forget, only, put

log = logging.getLogger(__name__)

T = TypeVar("T")

PREEMPTED = 143  # 128 + SIGTERM: schedulers do not take it for a failure
TIMEOUT_S = 1800.0  # torch's own for gloo: a replica may compile kernels or read data meanwhile


class Control:
    """The replicas, as far as they talk of anything but gradients. Without a group: alone.

    `another` makes one more such group; all replicas call it together.
    """

    def __init__(
        self,
        group: distributed.ProcessGroup | None = None,
        rank: int = 0,
        replicas: int = 1,
        another: Callable[[], distributed.ProcessGroup] | None = None,
    ) -> None:
        if group is None and replicas > 1:
            raise UsageError(
                f"this is replica {rank} of {replicas}, and they do not know each other: "
                "call edl.adaptive.init_process_group() first"
            )
        self.rank = rank
        self.replicas = replicas
        self._group = group
        self._another = another
        self._background: _Background | None = None
        self._pending: Callable[[], tuple[tuple[bool, ...], int]] | None = None

    @property
    def group(self) -> distributed.ProcessGroup | None:
        """The group over which they talk; None where this process is alone."""
        return self._group

    def broadcast(self, value: T, source: int = 0) -> T:
        """Return the value that replica `source` gave, whatever the others give."""
        data = _encode(value) if self.rank == source else b""
        return _decode(self.broadcast_bytes(data, source))  # type: ignore[no-any-return]

    def broadcast_bytes(self, data: bytes, source: int = 0) -> bytes:
        """Return the bytes that replica `source` gave."""
        if self._group is None:
            return data
        nbytes = torch.tensor([len(data)])
        self._group.broadcast(nbytes, source).wait()
        tensor = _tensor(data) if self.rank == source else torch.empty(int(nbytes), dtype=_BYTE)
        if len(tensor):
            self._group.broadcast(tensor, source).wait()
        return data if self.rank == source else tensor.numpy().tobytes()

    def gather(self, value: T) -> list[T]:
        """Return the values of all replicas, by rank."""
        return [_decode(data) for data in self._gather(_encode(value))]

    def _gather(self, data: bytes) -> list[bytes]:
        if self._group is None:
            return [data]
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.replicas)]
        self._group.allgather([sizes], [torch.tensor([len(data)])]).wait()
        longest = int(max(map(int, sizes)))
        padded = torch.zeros(longest, dtype=_BYTE)
        padded[: len(data)] = _tensor(data)
        given = [torch.empty(longest, dtype=_BYTE) for _ in range(self.replicas)]
        self._group.allgather([given], [padded]).wait()
        return [
            tensor[: int(size)].numpy().tobytes() for tensor, size in zip(given, sizes, strict=True)
        ]

    def allreduce(self, value: T, reduce_fn: Callable[[T, T], T] = operator.add) -> T:
        """Reduce all replicas' values in the order of the ranks, so the same everywhere."""
        return reduce(reduce_fn, self.gather(value))

    def allreduce_async(self, value: T, reduce_fn: Callable[[T, T], T] = operator.add) -> Future[T]:
        """Reduce the values as they are now; `result()` waits for it."""
        if self._background is None:
            group = self._another() if self._group is not None and self._another else None
            self._background = _Background(Control(group, self.rank, self.replicas))
        peers, data = self._background.peers, _encode(value)
        return self._background.run(lambda: reduce(reduce_fn, map(_decode, peers._gather(data))))

    def exchange(self, flags: Sequence[bool], steps: int = 1) -> tuple[tuple[bool, ...], int]:
        """Return which flags any replica gave in the call *before*, and the least `steps` of one.

        At the first call: none, and 1. Does not wait for the replicas to make this call.
        """
        pending, self._pending = self._pending, self._any(tuple(flags), steps)
        return pending() if pending else ((False,) * len(flags), 1)

    def settle(self) -> tuple[bool, ...]:
        """Return which flags any replica gave in the last `exchange`; () where that is known."""
        pending, self._pending = self._pending, None
        return pending()[0] if pending else ()

    def _any(
        self, flags: tuple[bool, ...], steps: int
    ) -> Callable[[], tuple[tuple[bool, ...], int]]:
        """Return a function that waits for the flags that any replica has and the least steps."""
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


class _Background:
    """A thread that talks to `peers`, in the order in which it is asked to.

    It ends when nobody has this object any more.
    """

    def __init__(self, peers: Control) -> None:
        self.peers = peers
        self._todo: _Todo = queue.SimpleQueue()
        # A daemon: a process that is preempted does not wait for what nobody will ask for.
        threading.Thread(target=_work, args=(self._todo,), name="collective", daemon=True).start()
        weakref.finalize(self, self._todo.put, None)

    def run(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._todo.put((work, future))
        return future


_Todo = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]


def _work(todo: _Todo) -> None:
    while (asked := todo.get()) is not None:
        work, future = asked
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001  whoever asks for the result gets it
            future.set_exception(error)


class Preemption:
    """A request to this process to leave. The handlers are set in the main thread only."""

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

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # No logging here: a handler may interrupt the logging of the main thread.
        if number == signal.SIGINT and self._interrupted:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._interrupted |= number == signal.SIGINT
        self.requested = True


class _Waiting:
    """The calls that wait for the replicas to meet."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []


def control() -> Control:
    """Return this process's control.

    Raises UsageError where there are others and `init_process_group` is due.
    """
    return find(Control) or only(_alone)


def met() -> bool:
    """Tell whether the replicas know each other."""
    return find(Control) is not None


def when_met(call: Callable[[], None]) -> None:
    """Have `call` called whenever the replicas meet, which all of them do together."""
    only(_Waiting).calls.append(call)


def place() -> tuple[int, int]:
    """Return this replica's rank, and how many there are.

    Before they have met, it is as the environment says.
    """
    peers = find(Control) or find(_alone)
    return (peers.rank, peers.replicas) if peers else (env.replica_rank(), env.num_replicas())


def connect(
    group: distributed.ProcessGroup | None,
    rank: int,
    replicas: int,
    another: Callable[[], distributed.ProcessGroup] | None = None,
) -> Control:
    """Talk to the other replicas over this group (gloo) from now on."""
    env.tell(rank, replicas)
    peers = put(Control, Control(group, rank, replicas, another))
    for call in only(_Waiting).calls:
        call()
    return peers


def of_all() -> Control:
    """Return a control of all ranks of torch.distributed, over a new gloo group: all call it."""
    replicas, rank = distributed.get_world_size(), distributed.get_rank()
    another = functools.partial(distributed.new_group, backend="gloo")
    return Control(another() if replicas > 1 else None, rank, replicas, another)


def preemption() -> Preemption:
    """Return this process's preemption."""
    return only(Preemption)


def initialize(
    master_addr: str | None = None,
    master_port: int | None = None,
    replica_rank: int | None = None,
    num_replicas: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Let replicas talk to each other without `init_process_group`, which does this too.

    What is not given is asked of the environment. Waits for all. Raises RuntimeError where they can
    talk already, UsageError where nobody said where they meet.
    """
    if met():
        raise RuntimeError(
            "the replicas know each other: initialize() is called once, and not after "
            "init_process_group()"
        )
    rank = env.replica_rank() if replica_rank is None else replica_rank
    replicas = env.num_replicas() if num_replicas is None else num_replicas
    check_rank(rank, replicas)
    group, another = None, None
    if replicas > 1:
        where = env.init_method()
        if master_addr or master_port:
            port = master_port or env.master_port()
            where = f"tcp://{master_addr or env.master_addr()}:{port}" if port else None
        another = _groups(where or nowhere(rank, replicas), rank, replicas, timeout_s)
        group = another()
    connect(group, rank, replicas, another)


def teardown() -> None:
    """Undo `initialize`, when all replicas have called this. Raises RuntimeError without one."""
    peers = find(Control)
    if peers is None:
        raise RuntimeError("the replicas do not know each other: initialize() was not called")
    peers.gather(None)
    forget(Control)


def check_rank(rank: int, replicas: int) -> None:
    """Check a rank. Raises UsageError where there is no such one."""
    if not 0 <= rank < replicas:
        raise UsageError(
            f"this is replica {rank} of {replicas}: ranks are 0 to {replicas - 1}. Set both, "
            "EDL_NUM_REPLICAS and EDL_REPLICA_RANK, or start the script by torchrun"
        )


def nowhere(rank: int, replicas: int) -> NoReturn:
    """Raise the UsageError for a replica that was not told where several of them meet."""
    raise UsageError(
        f"replica {rank} of {replicas} does not know where the others are: start it by torchrun, "
        "set MASTER_ADDR and MASTER_PORT, or give the address and the port of rank 0"
    )


def broadcast(value: T) -> T:
    """Return the value that rank 0 gave: one of those that values.py tells of."""
    return control().broadcast(value)


def allreduce(value: T, reduce_fn: Callable[[T, T], T] = operator.add) -> T:
    """Return the values of all replicas, reduced by `reduce_fn` in the order of the ranks."""
    return control().allreduce(value, reduce_fn)


def allreduce_async(value: T, reduce_fn: Callable[[T, T], T] = operator.add) -> Future[T]:
    """Reduce as `allreduce` does, later: `result()` waits for it, on whichever replicas want it.

    The first call of a process waits until the other replicas make it, the later ones do not.
    """
    return control().allreduce_async(value, reduce_fn)


def _alone() -> Control:
    return Control(None, env.replica_rank(), env.num_replicas())


def _groups(
    where: str, rank: int, replicas: int, timeout_s: float
) -> Callable[[], distributed.ProcessGroup]:
    """Return a function that makes groups of these replicas.

    They do not need torch.distributed's own, which stays uninitialised.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    store = next(distributed.rendezvous(where, rank, replicas, timeout=timeout))[0]  # type: ignore[attr-defined]
    numbers = itertools.count()

    def another() -> distributed.ProcessGroup:
        own = PrefixStore(f"edl-control-{next(numbers)}", store)
        # Any, since torch's stubs know no base of it.
        group: Any = ProcessGroupGloo(own, rank, replicas, timeout)
        return cast("distributed.ProcessGroup", group)

    return another


def _encode(value: object) -> bytes:
    """Encode the value, or what is wrong with it: whoever waits for it shall get to know."""
    try:
        return b"\1" + values.encode(value)
    except UsageError as error:
        return b"\0" + str(error).encode()


def _decode(data: bytes) -> Any:
    if data[:1] == b"\0":
        raise UsageError(data[1:].decode())
    return values.decode(data[1:])


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=_BYTE) if data else torch.empty(0, dtype=_BYTE)
