"""Small pulls, answered by compiled code: two system calls, no Python and no GIL.

The thread of a connection sends what is left of its last reply and waits for its next request in
here. A pull of rows that all exist is received, looked up and answered on the spot; so a small pull
costs what the system calls and the cache misses cost. Any other request (a push, dense chunks, a
cut, a region, a row that is unknown, a long or a broken frame, a table that somebody has alone) is
handed to Python as it came, whole where it is small, and in its turn (turns.py): a pull changes
nothing, so it may be begun again. Where bytes are encrypted the thread waits, receives and sends in
Python (the ssl module), and only what is between is done here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ..common.kernels import (
    INTEGER,
    INTS_1D,
    compiled,
    inlined,
    load_integer,
    store_integer,
)
from . import frames
from .frames import Bytes
from .index import AHEAD
from .lock import try_share, unshare
from .rows import STRIDE, TILE, WEIGHT_NBYTES, gather_rows
from .table import Table
from .turns import Turns, await_turn, end_turn, of_this_process

REPLY_NBYTES = 512 << 10  # at most: beyond, two threads gather and send
BROKEN = -2  # the reply could not be sent
VALID, VERSION, SLOT_MAP = range(3)  # of a board's words
NANOSECONDS, NBYTES = -2, -1  # of the counters; before them, calls by the bound of their time
_MOST_TABLES = 63
_NAME, _NAME_NBYTES, _DIM, _WIRE, _ROW_NBYTES, _STRIDE, _LINES, _HEAD, _MEMORY, _LOCK = range(10)
_BEGINS = frames.MAGIC | frames.PROTOCOL << 32  # the first eight bytes of a head
_BEGINS_MASK = (1 << 40) - 1
_PULL = _BEGINS | frames.PULL << 40
_PULL_KNOWN = _PULL | frames.KNOWN << 48
_PULLED = _BEGINS | frames.PULLED << 40
_ROWS = frames.ROWS  # the first eight bytes of a pull's array, but for the length of the name
_HEAD_NBYTES, _ARRAY_NBYTES, _ALIGN = frames.HEAD_NBYTES, frames.ARRAY_NBYTES, frames.ALIGN
_MAX_COUNT = 1 << 16
_ASKED = 2 * _MOST_TABLES + 2
_MSG_WAITALL, _MSG_NOSIGNAL, _CLOCK_MONOTONIC = 0x100, 0x4000, 1

Ints = NDArray[np.int64]


class Board:
    """What compiled code needs of a store: where its tables are, its version, and whether these
    are still so. Keeps alive what it points to."""

    def __init__(self, tables: Mapping[str, Table], slot_map_version: int, version: int) -> None:
        """At most 63 tables."""
        self.words: Ints = np.array([1, version, slot_map_version], np.int64)
        names, lines = b"", []
        self._held = []
        for name, table in list(tables.items())[:_MOST_TABLES]:
            rows, word = table.rows_and_lock()
            self._held.append((rows, word))
            text = name.encode()
            lines.append(
                [
                    len(names),
                    len(text),
                    table.spec.dim,
                    frames.PLAIN[table.spec.dtype],
                    rows.layout[WEIGHT_NBYTES],
                    rows.layout[STRIDE],
                    rows.index.lines.ctypes.data,
                    rows.index.head.ctypes.data,
                    rows.memory.ctypes.data,
                    word.ctypes.data,
                ]
            )
            names += text.ljust(frames.padded(len(text)), b"\0")
        self.tables: Ints = np.array(lines, np.int64).reshape(-1)
        self.names: Ints = np.frombuffer(names + bytes(8), np.int64).copy()


def prepare(encrypted: bool) -> None:
    """Compile what connections need, and those that are encrypted: seconds, where it is not kept
    yet, that no peer should wait."""
    of_this_process()
    _serving()
    if encrypted:
        _answering()


def _serving() -> Callable[..., int]:
    return compiled(_serve, *[INTEGER] * 4, *[INTS_1D] * 8)


def _answering() -> Callable[..., int]:
    return compiled(_answer_one, INTEGER, *[INTS_1D] * 5)


class SmallPulls:
    """Of one connection."""

    def __init__(
        self, fd: int | None, first: Bytes, bounds: Ints, counters: Ints, turns: Turns
    ) -> None:
        """`fd` None: bytes are encrypted. `first`: where requests are received. `bounds`: of the
        buckets of times, in ns; `counters` int64[len(bounds) + 3]: calls by bucket, nanoseconds and
        bytes received."""
        self.fd, self._bounds, self._counters, self._turns = fd, bounds, counters, turns.words
        self._first: Ints = first.view(np.int64)
        self._reply: Ints = np.empty(REPLY_NBYTES // 8, np.int64)
        self.reply = memoryview(self._reply).cast("B")  # type: ignore[arg-type]
        if fd is None:
            self._answer = _answering()
        else:
            self._serve = _serving()

    def serve(self, board: Board, window: int, told: int) -> int:
        """End the turn, send the `told` bytes in `reply`, then answer until something else comes, and
        await a turn for it: its first bytes, at most `window` where nothing was answered before, are
        in `first`. How many; 0: closed; -1: ask the socket; BROKEN."""
        return self._serve(
            self.fd, window, told, threading.get_ident(), self._first, self._reply, board.words,
            board.tables, board.names, self._bounds, self._counters, self._turns,
        )  # fmt: skip

    def answer(self, board: Board, got: int) -> int:
        """Answer the `got` bytes in `first`: how long `reply` is. 0: it is not for here. Negative:
        so many bytes of it are still to come."""
        return self._answer(got, self._first, self._reply, board.words, board.tables, board.names)


# -- Compiled by numba. Addresses are int64.

_ssize, _int = types.int64, types.int32
_recv: Any = types.ExternalFunction("recv", _ssize(_int, _ssize, _ssize, _int))
_send: Any = types.ExternalFunction("send", _ssize(_int, _ssize, _ssize, _int))
_gettime: Any = types.ExternalFunction("clock_gettime", _int(_int, _ssize))


@inlined
def _padded(nbytes):  # type: ignore[no-untyped-def]
    return (nbytes + _ALIGN - 1) & -_ALIGN


def _serve(  # type: ignore[no-untyped-def]
    fd, window, total, me, first, reply, words, tables, names, bounds, counters, turns
):
    end_turn(turns, me)
    request, answer = np.int64(first.ctypes.data), np.int64(reply.ctypes.data)
    most, places = 8 * len(first), np.empty(len(first), np.int64)
    asked, clock = np.empty(_ASKED, np.int64), np.empty(2, np.int64)
    if _sent(fd, answer, total) < total:
        return BROKEN
    while True:
        got = _recv(np.int32(fd), request, window, np.int32(0))
        if got < _HEAD_NBYTES:
            break
        _gettime(np.int32(_CLOCK_MONOTONIC), np.int64(clock.ctypes.data))
        began = 1_000_000_000 * clock[0] + clock[1]
        nbytes = _length(request, most)
        if got > nbytes:
            break
        if got < nbytes:
            rest = _recv(np.int32(fd), request + got, nbytes - got, np.int32(_MSG_WAITALL))
            got += max(rest, 0)
            if got < nbytes:
                break
        window = most
        if not _is_pull(request, words):
            break
        total = _answer(request, nbytes, answer, places, asked, words, tables, names)
        if total == 0:
            break
        if _sent(fd, answer, total) < total:
            return BROKEN
        _gettime(np.int32(_CLOCK_MONOTONIC), np.int64(clock.ctypes.data))
        took = 1_000_000_000 * clock[0] + clock[1] - began
        bucket = 0
        while bucket < len(bounds) and took > bounds[bucket]:
            bucket += 1
        counters[bucket] += 1
        counters[NANOSECONDS] += took
        counters[NBYTES] += nbytes
    if got > 0:
        await_turn(turns, me, clock)
    return got


@inlined
def _sent(fd, address, nbytes):  # type: ignore[no-untyped-def]
    """How many of them; fewer where the peer takes nothing."""
    sent = 0
    while sent < nbytes:
        part = _send(np.int32(fd), address + sent, nbytes - sent, np.int32(_MSG_NOSIGNAL))
        if part <= 0:
            break
        sent += part
    return sent


def _answer_one(got, first, reply, words, tables, names):  # type: ignore[no-untyped-def]
    request, answer = np.int64(first.ctypes.data), np.int64(reply.ctypes.data)
    if got < _HEAD_NBYTES:
        return 0
    nbytes = _length(request, 8 * len(first))
    if got != nbytes or not _is_pull(request, words):
        return min(got - nbytes, 0) if nbytes > 0 else 0
    places, asked = np.empty(len(first), np.int64), np.empty(_ASKED, np.int64)
    return _answer(request, nbytes, answer, places, asked, words, tables, names)


@inlined
def _length(request, most):  # type: ignore[no-untyped-def]
    """Of a frame whose body is on the socket, by its head; 0: more than `most`, or malformed."""
    told, body = load_integer(request + 16) & 0xFFFFFFFF, load_integer(request + 24)
    regions = load_integer(request + 72)
    if load_integer(request) & _BEGINS_MASK != _BEGINS or regions & 0xFFFFFFFF != 0:
        return 0
    if told > most or body < 0 or body > most or (told | body) & (_ALIGN - 1) != 0:
        return 0
    return _HEAD_NBYTES + told + body if _HEAD_NBYTES + told + body <= most else 0


@inlined
def _is_pull(request, words):  # type: ignore[no-untyped-def]
    """Of rows alone, over the socket, by this slot map."""
    slot_map, regions = load_integer(request + 8) & 0xFFFFFFFF, load_integer(request + 72)
    known = load_integer(request) in (_PULL, _PULL_KNOWN)
    return known and regions == 0 and slot_map in (0, words[SLOT_MAP])


@inlined
def _answer(request, nbytes, answer, places, asked, words, tables, names):  # type: ignore[no-untyped-def]
    """Write the reply. How long it is; 0: Python has to answer.

    `asked` int64[_ASKED]: by array its table's line and its ids; behind them, where those end.
    """
    num_tables = len(tables) // 10
    # which tables; the head of the reply
    at = request + _HEAD_NBYTES
    end = at + (load_integer(request + 16) & 0xFFFFFFFF)
    ids, place = end, answer + _HEAD_NBYTES
    count, seen, values = 0, 0, 0
    while at < end:
        line = -1
        name_nbytes = (load_integer(at) >> 16) & 0xFFFF
        name_end = at + _ARRAY_NBYTES + _padded(name_nbytes)
        rows = load_integer(at + 8)
        plain = load_integer(at) & ~(0xFFFF << 16) == _ROWS
        if plain and name_end <= end and 0 <= rows <= _MAX_COUNT:
            for t in range(num_tables):
                if tables[10 * t + _NAME_NBYTES] != name_nbytes:
                    continue
                name, theirs = tables[10 * t + _NAME] // 8, at + _ARRAY_NBYTES
                while theirs < name_end and load_integer(theirs) == names[name]:
                    name += 1
                    theirs += 8
                if theirs == name_end and (seen >> t) & 1 == 0:
                    line = 10 * t
                    seen |= 1 << t
        if line < 0:
            return 0
        asked[2 * count], asked[2 * count + 1] = line, ids
        ids += 8 * rows
        values += _padded(rows * tables[line + _ROW_NBYTES])
        at = name_end
        place += _ARRAY_NBYTES
        count += 1
        if place - answer + values > REPLY_NBYTES:
            return 0
    if end + _padded(ids - end) != request + nbytes:
        return 0
    asked[2 * count + 1] = ids
    version = words[VERSION]
    sizes = answer + _HEAD_NBYTES
    for k in range(10):
        store_integer(answer + 8 * k, 0)
    store_integer(answer, _PULLED)
    store_integer(answer + 16, place - sizes)
    store_integer(answer + 24, values)
    store_integer(answer + 56, version)

    found, homes = np.empty(TILE, np.int64), np.empty(AHEAD, np.int64)
    for number in range(count):
        line, ids = asked[2 * number], asked[2 * number + 1]
        rows, row_nbytes = (asked[2 * number + 3] - ids) >> 3, tables[line + _ROW_NBYTES]
        stop = place + _padded(rows * row_nbytes)
        base, head = tables[line + _LINES], tables[line + _HEAD]
        memory, stride = tables[line + _MEMORY], tables[line + _STRIDE]
        kind = _ROWS | tables[line + _WIRE] << 8 | tables[line + _DIM] << 32
        store_integer(sizes + _ARRAY_NBYTES * number, kind)
        store_integer(sizes + _ARRAY_NBYTES * number + 8, rows)
        if not try_share(tables[line + _LOCK]):
            return 0
        old, new = np.uint64(load_integer(head)), np.uint64(load_integer(head + 8))
        cursor = load_integer(head + 16)
        if rows > 0:  # they may end before
            for zeros in range(stop - _ALIGN, stop, 8):
                store_integer(zeros, 0)
        unknown = gather_rows(
            base, old, new, cursor, memory, stride, row_nbytes, ids, rows, place, found, homes, places
        )  # fmt: skip
        valid = words[VALID] != 0
        unshare(tables[line + _LOCK])
        if unknown > 0 or not valid:
            return 0
        place = stop
    return place - answer
