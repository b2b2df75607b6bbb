"""Turns: of the threads that serve connections, one at a time runs Python.

A call that lets go of the GIL must get it back. Where many threads want it, that takes two context
switches, and a request has up to a dozen such calls: they were half of the CPU time of a server to
which 16 processes pushed over TLS. So a thread that has received a request awaits its turn before
it asks for the GIL, and has it until it waits for something else: its next request, the rest of this
one, another push. What takes long in kernels (store) and system calls (wire) is done without a turn.

A turn is a courtesy, not a lock: nothing is safe because of it. Who has waited for its patience, in which
nobody got a turn, takes it away from who has it, and was stopped, or forgot to end it. Where others
got theirs the queue is only long: if all of a thousand lost patience with it, they would all ask for the
GIL, and a push cost twenty times of what it does. Theirs is longer also so that they do not wake too often.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...kernels.compile import (
    INTEGER,
    INTS_1D,
    acquire_integer,
    compare_and_swap,
    compiled,
    fetch_add,
    inlined,
    load_integer,
    read_integer,
    release_integer,
)
from .frames import Bytes

_PATIENCE_S = 0.01  # many times what a turn takes
# Of the words, before which a semaphore stands: a thread, or 0; how many had a turn so far; how many
# await one; ns.
_OWNER, _COUNT, _AWAITING, _PATIENCE = range(4, 8)
_CROWD = (
    16  # that await a turn: so many times more there are, so many times longer is their patience
)
_CLOCK_REALTIME = 0  # that of sem_timedwait; if it is set back meanwhile, patience is longer

Ints = NDArray[np.int64]


class Turns:
    """A thread may ask for a turn that it has, and end one that it has not (any more)."""

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self.words: Ints = np.zeros(_PATIENCE + 1, np.int64)
        self.words[_PATIENCE] = int(patience_s * 1e9)
        self._take = compiled(_take, INTS_1D, INTEGER)
        self._end = compiled(_end, INTS_1D, INTEGER)
        self._receive = compiled(_receive, *[INTEGER] * 3, INTS_1D, INTEGER)
        compiled(_prepare, INTS_1D)(self.words)

    def take(self) -> None:
        """Await this thread's turn."""
        self._take(self.words, threading.get_ident())

    def end(self) -> None:
        """It is the next one's turn, if it was this thread's."""
        self._end(self.words, threading.get_ident())

    def receive(self, fd: int, into: Bytes) -> int:
        """End the turn, receive what is there, await the next turn. How many bytes; 0: closed; -1:
        nothing in time. Raises OSError."""
        me = threading.get_ident()
        got: int = self._receive(fd, into.ctypes.data, len(into), self.words, me)
        if got >= 0:
            return got
        if got == -errno.EAGAIN:
            return -1
        raise OSError(-got, os.strerror(-got))


@functools.cache
def of_this_process() -> Turns:
    """It has one GIL."""
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


def _prepare(words):  # type: ignore[no-untyped-def]
    _sem_init(np.int64(words.ctypes.data), np.int32(0), np.int32(1))


@inlined
def last_error():  # type: ignore[no-untyped-def]
    """errno of this thread."""
    return load_integer(_errno()) & 0xFFFFFFFF


@inlined
def await_turn(words, me, clock):  # type: ignore[no-untyped-def]
    """`clock` int64[2] is memory to work in."""
    turn, until = np.int64(words.ctypes.data), np.int64(clock.ctypes.data)
    owner, count, awaiting = turn + 8 * _OWNER, turn + 8 * _COUNT, turn + 8 * _AWAITING
    if read_integer(owner) == me:  # only this thread writes its own name; others take it away
        return
    crowd = fetch_add(awaiting, 1)
    while acquire_integer(owner) != me:  # of the `compare_and_swap` and `release_integer` below
        before = read_integer(count)  # of others' `fetch_add` below
        _gettime(np.int32(_CLOCK_REALTIME), until)
        nanoseconds = clock[1] + words[_PATIENCE] * (1 + crowd // _CROWD)
        clock[0] += nanoseconds // 1_000_000_000
        clock[1] = nanoseconds % 1_000_000_000
        if _sem_timedwait(turn, until) == 0:
            release_integer(owner, me)
        else:
            theirs = read_integer(owner)  # 0: `end_turn` has just been there
            if theirs != 0 and read_integer(count) == before:
                compare_and_swap(owner, theirs, me)
        crowd = read_integer(awaiting)  # of others' `fetch_add` around this loop
    fetch_add(count, 1)
    fetch_add(awaiting, -1)


@inlined
def end_turn(words, me):  # type: ignore[no-untyped-def]
    turn = np.int64(words.ctypes.data)
    if compare_and_swap(turn + 8 * _OWNER, me, 0):
        _sem_post(turn)


def _take(words, me):  # type: ignore[no-untyped-def]
    await_turn(words, me, np.empty(2, np.int64))


def _end(words, me):  # type: ignore[no-untyped-def]
    end_turn(words, me)


def _receive(fd, address, nbytes, words, me):  # type: ignore[no-untyped-def]
    end_turn(words, me)
    while True:
        got = _recv(np.int32(fd), address, nbytes, np.int32(0))
        if got > 0:
            await_turn(words, me, np.empty(2, np.int64))
        if got >= 0:
            return got
        error = last_error()
        if error != EINTR:
            return -error
