"""Turns: of the threads that serve connections, one at a time runs Python.

A call that lets go of the GIL must get it back. Where many threads want it, that takes two context
switches, and a request has up to a dozen such calls: they were half of the CPU time of a server to
which 16 processes pushed over TLS. So a thread that has received a request awaits its turn before
it asks for the GIL, and has it until it waits for something else: its next request, the rest of
this one, another push. What takes long in kernels (store) and system calls (wire) is done without a
turn.

A turn is a courtesy, not a lock: nothing is safe because of it. Who has waited for its patience, in
which nobody got a turn, takes it away from who has it, and was stopped, or forgot to end it. Where
others got theirs the queue is only long: if all of a thousand lost patience with it, they would all
ask for the GIL, and a push cost twenty times of what it does. Theirs is longer also so that they do
not wake too often.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
from typing import Any

import numpy as np
from numba import types

from ...kernels.compile import (
    INTEGER,
    acquire_integer,
    compare_and_swap,
    compiled,
    fetch_add,
    inlined,
    load_integer,
    offset_of,
    read_integer,
    record_at,
    release_integer,
)
from .frames import Bytes

_PATIENCE_S = 0.01  # many times what a turn takes
_CROWD = 16  # for each so many who await a turn, patience is once longer than it is alone
_CLOCK_REALTIME = 0  # that of sem_timedwait; if it is set back meanwhile, patience is longer

TURNS = np.dtype(  # what Python and the kernels share
    [
        ("semaphore", np.int64, 4),  # sem_t
        ("owner", np.int64),  # a thread; 0: nobody
        ("count", np.int64),  # of turns so far
        ("awaiting", np.int64),  # how many await one
        ("patience", np.int64),  # ns
    ]
)


class Turns:
    """The turns of a process's threads.

    A thread may ask for a turn that it has, and end one that it has not (any more).
    """

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self.record = np.zeros(1, TURNS)
        self.record["patience"] = int(patience_s * 1e9)
        self._address = int(self.record.ctypes.data)
        self._take = compiled(_take, INTEGER, INTEGER)
        self._end = compiled(_end, INTEGER, INTEGER)
        self._receive = compiled(_receive, *[INTEGER] * 5)
        compiled(_prepare, INTEGER)(self._address)

    def take(self) -> None:
        """Await this thread's turn."""
        self._take(self._address, threading.get_ident())

    def end(self) -> None:
        """Give the turn to the next one, if it was this thread's."""
        self._end(self._address, threading.get_ident())

    def receive(self, fd: int, into: Bytes) -> int:
        """End the turn, receive what is there, and await the next turn.

        Returns how many bytes; 0: closed; -1: nothing in time. Raises OSError.
        """
        me = threading.get_ident()
        got: int = self._receive(fd, into.ctypes.data, len(into), self._address, me)
        if got >= 0:
            return got
        if got == -errno.EAGAIN:
            return -1
        raise OSError(-got, os.strerror(-got))


@functools.cache
def of_this_process() -> Turns:
    """Return the turns of this process, which has one GIL."""
    return Turns()


# -- Compiled by numba. Addresses are int64.

EAGAIN = errno.EAGAIN
EINTR = errno.EINTR  # by a signal, or by SIGCONT

_ssize, _int = types.int64, types.int32
_recv: Any = types.ExternalFunction("recv", _ssize(_int, _ssize, _ssize, _int))
_errno: Any = types.ExternalFunction("__errno_location", _ssize())
_gettime: Any = types.ExternalFunction("clock_gettime", _int(_int, _ssize))
_sem_init: Any = types.ExternalFunction("sem_init", _int(_ssize, _int, _int))
_sem_post: Any = types.ExternalFunction("sem_post", _int(_ssize))
_sem_timedwait: Any = types.ExternalFunction("sem_timedwait", _int(_ssize, _ssize))


_turns_at = record_at(TURNS)
_OWNER, _COUNT = offset_of(TURNS, "owner"), offset_of(TURNS, "count")
_AWAITING = offset_of(TURNS, "awaiting")


def _prepare(turns):  # type: ignore[no-untyped-def]
    _sem_init(turns, np.int32(0), np.int32(1))


@inlined
def last_error():  # type: ignore[no-untyped-def]
    """Return this thread's errno."""
    return load_integer(_errno()) & 0xFFFFFFFF


@inlined
def await_turn(turns, me, clock):  # type: ignore[no-untyped-def]
    """Wait until it is the turn of the thread `me`.

    `turns` is the address of a TURNS; `clock` int64[2] is memory to work in.
    """
    until, patience = np.int64(clock.ctypes.data), _turns_at(turns).patience
    owner, count, awaiting = turns + _OWNER, turns + _COUNT, turns + _AWAITING
    if read_integer(owner) == me:  # only this thread writes its own name; others take it away
        return
    crowd = fetch_add(awaiting, 1)
    while acquire_integer(owner) != me:  # of the `compare_and_swap` and `release_integer` below
        before = read_integer(count)  # of others' `fetch_add` below
        _gettime(np.int32(_CLOCK_REALTIME), until)
        nanoseconds = clock[1] + patience * (1 + crowd // _CROWD)
        clock[0] += nanoseconds // 1_000_000_000
        clock[1] = nanoseconds % 1_000_000_000
        if _sem_timedwait(turns, until) == 0:
            release_integer(owner, me)
        else:
            theirs = read_integer(owner)  # 0: `end_turn` has just been there
            if theirs != 0 and read_integer(count) == before:
                compare_and_swap(owner, theirs, me)
        crowd = read_integer(awaiting)  # of others' `fetch_add` around this loop
    fetch_add(count, 1)
    fetch_add(awaiting, -1)


@inlined
def end_turn(turns, me):  # type: ignore[no-untyped-def]
    if compare_and_swap(turns + _OWNER, me, 0):
        _sem_post(turns)


def _take(turns, me):  # type: ignore[no-untyped-def]
    await_turn(turns, me, np.empty(2, np.int64))


def _end(turns, me):  # type: ignore[no-untyped-def]
    end_turn(turns, me)


def _receive(fd, address, nbytes, turns, me):  # type: ignore[no-untyped-def]
    end_turn(turns, me)
    while True:
        got = _recv(np.int32(fd), address, nbytes, np.int32(0))
        if got > 0:
            await_turn(turns, me, np.empty(2, np.int64))
        if got >= 0:
            return got
        error = last_error()
        if error != EINTR:
            return -error
