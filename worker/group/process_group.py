"""torch's process group of a round: made through the master, given up where a member is lost.

The members find each other by a store whose keys live at the master, under the job's identity, so
no member of the group has to outlive the others. gloo's operations end only with their timeout, or
with their connections: `abort` shuts those down, so whoever waits in an all-reduce is free in a
moment. nccl has an abort of its own, and does not say what it has cut off (`confirm`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist

from ...common import background
from ...common.clock import MonotonicClock
from ...common.errors import EdlError
from ...common.listen import own_host
from ...master.client import MasterClient
from ...nn.device import gpu_of

_KEY_WAIT_S = 10.0  # of one question
_MEMBER_S = 900.0  # for a member to tell its address: it may read a large checkpoint before
_MAKE_S = 30.0
_OPERATION_S = 1800.0


class RoundOver(EdlError):
    """The end of a round while its process group was being made, or used."""


class MasterStore(dist.Store):  # type: ignore[misc,name-defined]
    """torch's store on the master, for one round.

    Raises RoundOver once that is over.
    """

    def __init__(self, master: MasterClient, round_: int) -> None:
        super().__init__()
        self._master = master
        self._round = round_
        self._clock = MonotonicClock()

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._master.put_key(self._round, key, data)

    def get(self, key: str) -> bytes:
        until = self._clock.now() + _MEMBER_S
        while self._clock.now() < until:
            reply = self._master.get_key(self._round, key, _KEY_WAIT_S)
            if reply.round_over:
                raise RoundOver(f"round {self._round} is over")
            if reply.found:
                return bytes(reply.value)
        raise RoundOver(f"no member of round {self._round} told {key!r} in {_MEMBER_S:g} s")

    def wait(self, keys: Sequence[str], _timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._master.get_key(self._round, key, 0.0).found for key in keys)

    def set_timeout(self, _timeout: timedelta) -> None:
        """Do nothing: each wait has its own."""


class ProcessGroup:
    """torch's default process group while a round lasts.

    `abort` may come from any thread. `ends_in_order`: no member waits for another in it any more.
    """

    def __init__(self) -> None:
        self.ends_in_order = False
        self._lock = threading.Lock()
        self._before = _connections()
        self._made: dict[str, int] | None = None
        self._is_aborted = False
        self._making: Future[Any] = Future()
        self._store: MasterStore | None = None
        self._nccl = False

    def open(
        self, master: MasterClient, round_: int, rank: int, world: int, device: torch.device
    ) -> None:
        """Make the round's process group, with all its members, for models on this kind of device.

        Raises RoundOver, EdlError or torch's errors if a member is lost meanwhile.
        """
        _choose_interface()
        _leave_losses_to_master()
        # nccl asks it for keys at the first operation, and torch keeps only the half in C++.
        self._store = MasterStore(master, round_)
        backend = _agree(self._store, rank, world, device)
        self._nccl = "nccl" in backend
        with self._lock:
            self._before = _connections()  # those that members fetched parts by are not the group's
        with _made_aside(self._making):
            dist.init_process_group(
                backend,
                store=self._store,
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=_MAKE_S),
            )
        # of operations: a member that computes slowly is no failure, one that is lost is told of
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=_OPERATION_S))
        with self._lock:
            self._made = _new(self._before)
            if self._is_aborted:  # meanwhile: not all of its connections were there yet
                raise RoundOver(f"round {round_} is over")

    def confirm(self) -> None:
        """Return when all members have all of the operations so far.

        Raises RoundOver or torch's errors if some have not. On gloo an operation that fails says
        so. One of nccl that is given up ends without an error, and what it leaves, or has passed on
        to another member, may be anything: so each says by gloo that its own have ended in order.
        """
        if not self._nccl:
            return
        torch.cuda.synchronize()
        if self._is_aborted:
            raise RoundOver("the group was given up")
        votes = torch.ones(1)
        dist.all_reduce(votes)
        if votes.item() != dist.get_world_size():
            raise dist.DistError("the group was given up")

    def abort(self) -> None:
        """Have whoever waits in an operation of the group get an error now."""
        with self._lock:
            if self._is_aborted:
                return
            self._is_aborted = True
            _settle(self._making, error=RoundOver("the round is over before its group is made"))
            for name, fd in (_new(self._before) if self._made is None else self._made).items():
                _shut_down(name, fd)
            if self._made is not None and self._nccl:
                dist.distributed_c10d._abort_process_group()

    def close(self) -> None:
        """End the process group.

        Whoever still waits for this member gets an error, also while something here refers to the
        group yet: gloo's connections would be open for as long.
        """
        if dist.is_initialized() and not (self._nccl and self.ends_in_order):
            self.abort()
        with self._lock:
            self._is_aborted = True
        if dist.is_initialized():
            dist.destroy_process_group()
        else:  # its making failed: the next one is called as those of the others are
            dist.distributed_c10d._world.group_count = 0
        self._making, self._store = Future(), None


def backend_of(gpus: Sequence[str]) -> str:
    """Return torch's backend for members on these GPUs ("": on a CPU).

    nccl wants a GPU of its own for each. Tensors on the CPU (rows of tables, votes) are gloo's.
    """
    return "cpu:gloo,cuda:nccl" if all(gpus) and len(set(gpus)) == len(gpus) else "gloo"


def _agree(store: MasterStore, rank: int, world: int, device: torch.device) -> str:
    """Return the backend that all members of the round use: the first one chooses."""
    store.set(f"edl/gpu/{rank}", gpu_of(device))
    if rank == 0:
        gpus = [store.get(f"edl/gpu/{each}").decode() for each in range(world)]
        store.set("edl/backend", backend_of(gpus))
    return store.get("edl/backend").decode()


@contextlib.contextmanager
def _made_aside(made: Future[Any]) -> Iterator[None]:
    """Have gloo's constructor run in a thread within this context.

    The thread is left to itself once `made` has failed: it waits for the connections of members
    that died just then, beyond its timeout, and nothing wakes it.
    """
    torchs, gloo = dist.distributed_c10d, dist.distributed_c10d.ProcessGroupGloo

    class Aside(type):
        """A type that makes gloo's groups; torch asks whether a group is one of these."""

        def __call__(cls, *arguments: Any, **named: Any) -> Any:
            def make() -> None:
                _settle(made, gloo(*arguments, **named))

            def fail(making: Future[None]) -> None:
                if (error := making.exception(0)) is not None:
                    _settle(made, error=error)

            background.begin("make-group", make).add_done_callback(fail)
            return made.result()

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, gloo)

    setattr(torchs, "ProcessGroupGloo", Aside("Aside", (), {}))  # noqa: B010
    try:
        yield
    finally:
        setattr(torchs, "ProcessGroupGloo", gloo)  # noqa: B010


def _settle(made: Future[Any], group: Any = None, error: BaseException | None = None) -> None:
    with contextlib.suppress(InvalidStateError):  # the other thread was first
        if error is None:
            made.set_result(group)
        else:
            made.set_exception(error)


def _leave_losses_to_master() -> None:
    """Keep torch from ending a process in which nccl fails: the master tells of a lost member.

    An abort would also wait for torch's watchdog, which sleeps for four times what a dump may take.
    """
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1")


def _choose_interface() -> None:
    """Have gloo and nccl listen where this process does, not where the host's name leads."""
    host = own_host()
    for name, addresses in psutil.net_if_addrs().items():
        if host in (each.address for each in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _new(before: dict[str, int]) -> dict[str, int]:
    return {name: fd for name, fd in _connections().items() if name not in before}


def _connections() -> dict[str, int]:
    """Return this process's sockets, by what the kernel calls them."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if (name := os.readlink(f"/proc/self/fd/{fd}")).startswith("socket:"):
                found[name] = int(fd)
    return found


def _shut_down(name: str, fd: int) -> None:
    """Shut the connection down, if that is still what the descriptor is.

    gloo's listener stays: it ends the process where accept fails. A connection of gRPC that was
    opened at the same time only has to be made anew.
    """
    with contextlib.suppress(OSError):
        copy = socket.socket(fileno=os.dup(fd))
        with copy:
            if os.readlink(f"/proc/self/fd/{copy.fileno()}") == name:
                copy.getpeername()
                copy.shutdown(socket.SHUT_RDWR)
