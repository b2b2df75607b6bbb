"""Small pulls, answered by compiled code: two system calls, no Python and no GIL.

The thread of a connection sends what is left of its last reply and waits for its next request in
here. A pull of rows, and of the dense chunks that changed, is received, looked up and answered on
the spot (compiled_reply.py); so a small pull costs what the system calls and the cache misses cost.
Any other request (a push, a cut, a region, or what the compiled reply is not for) is handed to
Python as it came, whole where it is small, and in its turn (turns.py). Where bytes are encrypted
the thread waits, receives and sends in Python (the ssl module), and only what is between is done
here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...kernels.compile import (
    INTEGER,
    compiled,
    inlined,
    integers,
    load_integer,
    part,
    record_at,
    store_integer,
)
from ..books.view import StoreView
from . import frames
from .board import MOST_CHUNKS, MOST_TABLES, Board
from .compiled_reply import (
    ASKED,
    CONNECTION,
    MOST_PIECES,
    PIECE,
    PIECE_NBYTES,
    connection_at,
    frame_nbytes,
    is_pull,
    piece_at,
    write_reply,
)
from .frames import Bytes
from .turns import EAGAIN, EINTR, Turns, await_turn, end_turn, last_error, of_this_process

IDLE, BROKEN = -2, -3  # nothing came in time; the reply could not be sent
NANOSECONDS, NBYTES = -2, -1  # of the counters; before them, calls by the bound of their time
_COPIED_NBYTES = 4 << 10  # of a chunk: a larger one is sent from where it lives (a guess)
_MAX_NBYTES = 1 << 62
_MSG_WAITALL, _MSG_NOSIGNAL, _CLOCK_MONOTONIC = 0x100, 0x4000, 1
_MESSAGE = integers(  # struct msghdr
    "name", "name_nbytes", "pieces", "num_pieces", "control", "control_nbytes", "flags"
)

Ints = NDArray[np.int64]


def prepare(encrypted: bool) -> None:
    """Compile what connections need, with `encrypted` what encrypted ones need besides.

    It takes seconds where it is not kept yet, for which no peer should wait.
    """
    of_this_process()
    Board(StoreView(0, 0, {}, {}))
    _serving()
    if encrypted:
        _answering()


def _serving() -> Callable[..., int]:
    return compiled(_serve, *[INTEGER] * 5)


def _answering() -> Callable[..., int]:
    return compiled(_answer_one, *[INTEGER] * 3)


class SmallPulls:
    """The small pulls of one connection."""

    def __init__(
        self,
        fd: int | None,
        first: Bytes,
        reply: Bytes,
        bounds: Ints,
        counters: Ints,
        turns: Turns,
    ) -> None:
        """Receive requests into `first`, and make replies in `reply`, of REPLY_NBYTES.

        `fd` None: bytes are encrypted. `bounds`: of the buckets of times, in ns; `counters`
        int64[len(bounds) + 3]: calls by bucket, nanoseconds and bytes received.
        """
        self.fd = fd
        self.reply = memoryview(reply)  # type: ignore[arg-type]
        memory = {
            "request": first,
            "reply": reply,
            "asked": np.empty(MOST_TABLES, ASKED),
            "chosen": np.empty(MOST_CHUNKS, np.int64),
            "pieces": np.empty(MOST_PIECES, PIECE),
            "message": np.zeros(1, _MESSAGE),
            "turns": turns.record,
            "bounds": bounds,
            "counters": counters,
        }
        self._record = np.zeros(1, CONNECTION)
        self._held = memory  # the record has the addresses
        self._address = int(self._record.ctypes.data)
        mine = self._record[0]
        for name, array in memory.items():
            mine[name] = array.ctypes.data
        mine["fd"], mine["most"] = -1 if fd is None else fd, len(first)
        mine["num_bounds"] = len(bounds)
        if fd is None:
            self._answer = _answering()
        else:
            self._serve = _serving()

    def serve(self, board: Board, window: int, told: int) -> int:
        """End the turn, send the `told` bytes in `reply`, and answer until something else comes.

        A turn is then awaited for that. Return how many of its first bytes are in `first`, at most
        `window` where nothing was answered before; 0: closed; -1: ask the socket; IDLE; BROKEN.
        """
        return self._serve(self._address, board.address, window, told, threading.get_ident())

    def answer(self, board: Board, got: int) -> int:
        """Answer the `got` bytes in `first`, and return how long `reply` is.

        0: it is not for here. Negative: so many bytes of it are still to come.
        """
        return self._answer(self._address, board.address, got)


# -- Compiled by numba. Addresses are int64.

_HEAD_NBYTES = frames.HEAD_NBYTES
_ssize, _int = types.int64, types.int32
_recv: Any = types.ExternalFunction("recv", _ssize(_int, _ssize, _ssize, _int))
_sendmsg: Any = types.ExternalFunction("sendmsg", _ssize(_int, _ssize, _int))
_gettime: Any = types.ExternalFunction("clock_gettime", _int(_int, _ssize))
_message_at = record_at(_MESSAGE)


@inlined
def _now(clock):  # type: ignore[no-untyped-def]
    """Return the nanoseconds of a clock that only goes on.

    `clock` int64[2], a struct timespec, is memory to work in.
    """
    _gettime(np.int32(_CLOCK_MONOTONIC), np.int64(clock.ctypes.data))
    return 1_000_000_000 * clock[0] + clock[1]


@inlined
def _add(counter, amount):  # type: ignore[no-untyped-def]
    store_integer(counter, load_integer(counter) + amount)


@inlined
def _count(mine, took, nbytes):  # type: ignore[no-untyped-def]
    bucket, end = 0, mine.counters + 8 * (mine.num_bounds + 3)
    while bucket < mine.num_bounds and took > load_integer(mine.bounds + 8 * bucket):
        bucket += 1
    _add(mine.counters + 8 * bucket, 1)
    _add(end + 8 * NANOSECONDS, took)
    _add(end + 8 * NBYTES, nbytes)


def _serve(connection, board, window, told, me):  # type: ignore[no-untyped-def]
    mine = connection_at(connection)
    end_turn(mine.turns, me)
    fd, request, most = np.int32(mine.fd), mine.request, mine.most
    places, clock = np.empty(most >> 3, np.int64), np.empty(2, np.int64)
    first = piece_at(mine.pieces)
    first.address, first.nbytes = mine.reply, told
    if told > 0 and not _sent(mine, 1):
        return BROKEN
    while True:
        got = _recv(fd, request, window, np.int32(0))
        if got < 0:
            error = last_error()
            if error == EINTR:
                continue  # not one of a thousand asks for the GIL because the process had stopped
            if error == EAGAIN:
                return IDLE
        if got < _HEAD_NBYTES:
            break
        began = _now(clock)
        nbytes = frame_nbytes(request, most)
        if got > nbytes:
            break
        if got < nbytes:
            rest = _recv(fd, request + got, nbytes - got, np.int32(_MSG_WAITALL))
            got += max(rest, 0)
            if got < nbytes:
                break
        window = most
        if not is_pull(request, board):
            break
        count = write_reply(mine, board, nbytes, _COPIED_NBYTES, places)
        if count == 0:
            break
        if not _sent(mine, count):
            return BROKEN
        _count(mine, _now(clock) - began, nbytes)
    if got > 0:
        await_turn(mine.turns, me, clock)
    return got


@part
def _sent(mine, count):  # type: ignore[no-untyped-def]
    """Send `count` pieces; return False where the peer takes nothing."""
    address, end = mine.pieces, mine.pieces + PIECE_NBYTES * count
    message = _message_at(mine.message)
    while address < end:
        message.pieces, message.num_pieces = address, (end - address) // PIECE_NBYTES
        part = _sendmsg(np.int32(mine.fd), mine.message, np.int32(_MSG_NOSIGNAL))
        if part <= 0:
            if part < 0 and last_error() == EINTR:
                continue
            return False
        while address < end and part >= piece_at(address).nbytes:
            part -= piece_at(address).nbytes
            address += PIECE_NBYTES
        if part > 0:
            piece = piece_at(address)
            piece.address += part
            piece.nbytes -= part
    return True


def _answer_one(connection, board, got):  # type: ignore[no-untyped-def]
    mine = connection_at(connection)
    if got < _HEAD_NBYTES:
        return 0
    nbytes = frame_nbytes(mine.request, mine.most)
    if got != nbytes or not is_pull(mine.request, board):
        return min(got - nbytes, 0) if nbytes > 0 else 0
    places = np.empty(mine.most >> 3, np.int64)
    count = write_reply(mine, board, nbytes, _MAX_NBYTES, places)
    return piece_at(mine.pieces).nbytes if count > 0 else 0
