"""Small pulls, answered by compiled code: two system calls, no Python and no GIL.

The thread of a connection sends what is left of its last reply and waits for its next request in
here. A pull of rows, and of the dense chunks that changed, is received, looked up and answered on the
spot; so a small pull costs what the system calls and the cache misses cost. Any other request (a
push, a cut, a region, an unknown row whose first values are normally distributed, a long or a broken
frame, a table that somebody has alone) is handed to Python as it came, whole where it is small, and
in its turn (turns.py): a pull changes nothing, so it may be begun again. Where bytes are encrypted
the thread waits, receives and sends in Python (the ssl module), and only what is between is done
here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...kernels.compile import (
    INTEGER,
    INTS_1D,
    acquire_integer,
    compiled,
    inlined,
    load_double,
    load_integer,
    part,
    release_integer,
    store_float,
    store_integer,
)
from ...kernels.lanes import copy_4
from ...kernels.uniform import uniform_row
from ...nn.initializers import key_of
from ..books.dense import ChunkKey
from ..books.view import StoreView
from ..rows.halves import FLOAT32, narrow
from ..rows.index import AHEAD
from ..rows.lock import try_share, unshare
from ..rows.passes import KIND, STRIDE, TILE, WEIGHT_NBYTES, copy_row, gather_rows
from . import frames
from .frames import Bytes
from .turns import EAGAIN, EINTR, Turns, await_turn, end_turn, last_error, of_this_process

REPLY_NBYTES = 512 << 10  # at most, but for large chunks: beyond, two threads gather and send
IDLE, BROKEN = -2, -3  # nothing came in time; the reply could not be sent
VALID, VERSION, SLOT_MAP, WHOLE = range(4)  # of a board's words; whole: no chunk is left out
NANOSECONDS, NBYTES = -2, -1  # of the counters; before them, calls by the bound of their time
_MOST_TABLES = 63
_MOST_CHUNKS = 256  # each is up to two of the buffers of one sendmsg, which takes 1,024
_MOST_NBYTES = 64 << 20  # of all chunks: a connection that idles may hold values of before a pin
_COPIED_NBYTES = 4 << 10  # of a chunk: a larger one is sent from where it lives (a guess)
_NAME, _NAME_NBYTES, _DIM, _WIRE, _ROW_NBYTES, _STRIDE, _LINES, _HEAD, _MEMORY, _LOCK = range(10)
_KIND, _FIRST, _KEY, _SCALE, _TABLE = range(10, 15)  # of first values; a table's numbers in all
_ZEROS, _UNIFORM, _OTHER = range(3)
_FIRSTS = {"zeros": _ZEROS, "uniform": _UNIFORM}
_VALUE, _NBYTES, _CHANGED, _TOLD, _TOLD_NBYTES, _CHUNK = range(6)  # a chunk's numbers; how many
_BEGINS = frames.MAGIC | frames.PROTOCOL << 32  # the first eight bytes of a head
_BEGINS_MASK = (1 << 40) - 1
_PULL = _BEGINS | frames.PULL << 40
_DENSE, _KNOWN = frames.DENSE << 48, frames.KNOWN << 48
_PULLED = _BEGINS | frames.PULLED << 40
_ROWS = frames.ROWS  # the first eight bytes of a pull's array, but for the length of the name
_HEAD_NBYTES, _ARRAY_NBYTES, _ALIGN = frames.HEAD_NBYTES, frames.ARRAY_NBYTES, frames.ALIGN
_MAX_COUNT = 1 << 16
_MAX_NBYTES = 1 << 62
_ASKED = 2 * _MOST_TABLES + 2
_PIECES = 2 * (2 * _MOST_CHUNKS + 1)
_MESSAGE, _IOV, _IOV_LENGTH = 7, 2, 3  # struct msghdr in words, and where two of its fields stand
_MSG_WAITALL, _MSG_NOSIGNAL, _CLOCK_MONOTONIC = 0x100, 0x4000, 1

Ints = NDArray[np.int64]


class Board:
    """What compiled code needs of a store: where its tables and chunks are, its version, and whether
    these are still so. Keeps alive what it points to until each connection that was served by it
    has had its next request, or idled for its patience."""

    def __init__(self, view: StoreView) -> None:
        """At most 63 tables; all chunks, or where they are more than 256 or 64 MiB none."""
        tables, chunks = view.tables, view.chunks
        nbytes = sum(chunk.value.nbytes for chunk in chunks.values())
        whole = len(chunks) <= _MOST_CHUNKS and nbytes <= _MOST_NBYTES
        self.words: Ints = np.array([1, view.version, view.slot_map_version, whole], np.int64)
        names, lines = b"", []
        self._held: list[Any] = []
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
                    rows.layout[KIND],
                    _FIRSTS.get(table.spec.initializer, _OTHER),
                    key_of(table.seed, table.spec.name).view(np.int64),
                    np.float64(table.spec.scale).view(np.int64),
                ]
            )
            names += text.ljust(frames.padded(len(text)), b"\0")
        self.tables: Ints = np.array(lines, np.int64).reshape(-1)
        self._line_of: dict[ChunkKey, int] = {}
        lines, told, place = [], [], len(names)
        for (tensor, number), chunk in chunks.items() if whole else ():
            value = chunk.value
            nbytes = frames.ARRAY_NBYTES + frames.padded(len(tensor.encode()))
            self._line_of[tensor, number] = len(lines)
            self._held.append(value)
            lines.append([value.ctypes.data, value.nbytes, chunk.changed, place, nbytes])
            told.append((frames.CHUNK, frames.FLOAT32, tensor, number, len(value)))
            place += nbytes
        names += frames.describe(tuple(told))[1]
        self.chunks: Ints = np.array(lines, np.int64).reshape(-1)
        self.names: Ints = np.frombuffer(names + bytes(8), np.int64).copy()
        self._made = compiled(_made, INTS_1D, INTS_1D, INTS_1D, INTEGER)

    def step_made(self, changed: Collection[ChunkKey], version: int) -> None:
        """Show `version`, and that these chunks have changed since the one before."""
        if changed and self._line_of:
            lines = np.array([self._line_of[key] for key in changed], np.int64)
            self._made(self.words, self.chunks, lines, version)
        else:
            self.words[VERSION] = version

    def set_valid(self, valid: bool) -> None:
        """Whether pulls may be answered of it."""
        self.words[VALID] = valid


def prepare(encrypted: bool) -> None:
    """Compile what connections need, and those that are encrypted: seconds, where it is not kept
    yet, that no peer should wait."""
    of_this_process()
    Board(StoreView(0, 0, {}, {}))
    _serving()
    if encrypted:
        _answering()


def _serving() -> Callable[..., int]:
    return compiled(_serve, *[INTEGER] * 4, *[INTS_1D] * 9)


def _answering() -> Callable[..., int]:
    return compiled(_answer_one, INTEGER, *[INTS_1D] * 6)


class SmallPulls:
    """Of one connection."""

    def __init__(
        self,
        fd: int | None,
        first: Bytes,
        reply: Bytes,
        bounds: Ints,
        counters: Ints,
        turns: Turns,
    ) -> None:
        """`fd` None: bytes are encrypted. `first`: where requests are received; `reply`: of
        REPLY_NBYTES. `bounds`: of the
        buckets of times, in ns; `counters` int64[len(bounds) + 3]: calls by bucket, nanoseconds and
        bytes received."""
        self.fd, self._bounds, self._counters, self._turns = fd, bounds, counters, turns.words
        self._first: Ints = first.view(np.int64)
        self._reply: Ints = reply.view(np.int64)
        self.reply = memoryview(self._reply).cast("B")  # type: ignore[arg-type]
        if fd is None:
            self._answer = _answering()
        else:
            self._serve = _serving()

    def serve(self, board: Board, window: int, told: int) -> int:
        """End the turn, send the `told` bytes in `reply`, then answer until something else comes, and
        await a turn for it: its first bytes, at most `window` where nothing was answered before, are
        in `first`. How many; 0: closed; -1: ask the socket; IDLE;
        BROKEN."""
        return self._serve(
            self.fd, window, told, threading.get_ident(), self._first, self._reply, board.words,
            board.tables, board.chunks, board.names, self._bounds, self._counters, self._turns,
        )  # fmt: skip

    def answer(self, board: Board, got: int) -> int:
        """Answer the `got` bytes in `first`: how long `reply` is. 0: it is not for here. Negative:
        so many bytes of it are still to come."""
        return self._answer(
            got, self._first, self._reply, board.words, board.tables, board.chunks, board.names
        )


# -- Compiled by numba. Addresses are int64.

_ssize, _int = types.int64, types.int32
_recv: Any = types.ExternalFunction("recv", _ssize(_int, _ssize, _ssize, _int))
_sendmsg: Any = types.ExternalFunction("sendmsg", _ssize(_int, _ssize, _int))
_gettime: Any = types.ExternalFunction("clock_gettime", _int(_int, _ssize))


def _made(words, chunks, lines, version):  # type: ignore[no-untyped-def]
    for line in lines:
        chunks[_CHUNK * line + _CHANGED] = version
    # only now: who reads the version first lacks no chunk of it
    release_integer(np.int64(words.ctypes.data) + 8 * VERSION, version)


@inlined
def _padded(nbytes):  # type: ignore[no-untyped-def]
    return (nbytes + _ALIGN - 1) & -_ALIGN


def _serve(  # type: ignore[no-untyped-def]
    fd, window, told, me, first, reply, words, tables, chunks, names, bounds, counters, turns
):
    end_turn(turns, me)
    request, answer = np.int64(first.ctypes.data), np.int64(reply.ctypes.data)
    most, places = 8 * len(first), np.empty(len(first), np.int64)
    asked, clock = np.empty(_ASKED + _MOST_CHUNKS, np.int64), np.empty(2, np.int64)
    pieces, message = np.empty(_PIECES, np.int64), np.zeros(_MESSAGE, np.int64)
    pieces[0], pieces[1] = answer, told
    if told > 0 and not _sent(fd, pieces, 1, message):
        return BROKEN
    while True:
        got = _recv(np.int32(fd), request, window, np.int32(0))
        if got < 0:
            error = last_error()
            if error == EINTR:
                continue  # not one thread of a thousand asks for the GIL because the process had stopped
            if error == EAGAIN:
                return IDLE
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
        count = _answer(
            request, nbytes, answer, places, asked, pieces, _COPIED_NBYTES, words, tables, chunks, names
        )  # fmt: skip
        if count == 0:
            break
        if not _sent(fd, pieces, count, message):
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
def _sent(fd, pieces, count, message):  # type: ignore[no-untyped-def]
    """Send `count` pieces, each an address and its bytes; False where the peer takes nothing.
    `message` int64[_MESSAGE] are zeros at first."""
    first = 0
    while first < count:
        message[_IOV], message[_IOV_LENGTH] = pieces.ctypes.data + 16 * first, count - first
        address = np.int64(message.ctypes.data)
        part = _sendmsg(np.int32(fd), address, np.int32(_MSG_NOSIGNAL))
        if part <= 0:
            if part < 0 and last_error() == EINTR:
                continue
            return False
        while first < count and part >= pieces[2 * first + 1]:
            part -= pieces[2 * first + 1]
            first += 1
        if part > 0:
            pieces[2 * first] += part
            pieces[2 * first + 1] -= part
    return True


def _answer_one(got, first, reply, words, tables, chunks, names):  # type: ignore[no-untyped-def]
    request, answer = np.int64(first.ctypes.data), np.int64(reply.ctypes.data)
    if got < _HEAD_NBYTES:
        return 0
    nbytes = _length(request, 8 * len(first))
    if got != nbytes or not _is_pull(request, words):
        return min(got - nbytes, 0) if nbytes > 0 else 0
    places, asked = np.empty(len(first), np.int64), np.empty(_ASKED + _MOST_CHUNKS, np.int64)
    pieces = np.empty(_PIECES, np.int64)
    count = _answer(
        request, nbytes, answer, places, asked, pieces, _MAX_NBYTES, words, tables, chunks, names
    )
    return pieces[1] if count > 0 else 0


@part
def _put_first(tables, line, id, target):  # type: ignore[no-untyped-def]
    """The first values of the row `id` of a table."""
    dim, kind = tables[line + _DIM], tables[line + _KIND]
    row = np.empty(dim if kind != FLOAT32 else 0, np.float32)
    values = np.int64(row.ctypes.data) if kind != FLOAT32 else target
    if tables[line + _FIRST] == _UNIFORM:
        numbers = np.int64(tables.ctypes.data) + 8 * line
        key, scale = np.uint64(tables[line + _KEY]), load_double(numbers + 8 * _SCALE)
        uniform_row(id, key, scale, dim, values)
    else:
        for j in range(dim):
            store_float(values + 4 * j, np.float32(0.0))
    if kind != FLOAT32:
        narrow(values, target, dim, kind, False, 0, 0)


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
    """Of no cut, over the socket, by this slot map."""
    slot_map, regions = load_integer(request + 8) & 0xFFFFFFFF, load_integer(request + 72)
    is_pull = load_integer(request) & ~(_DENSE | _KNOWN) == _PULL
    return is_pull and regions == 0 and slot_map in (0, words[SLOT_MAP])


@inlined
def _answer(  # type: ignore[no-untyped-def]
    request, nbytes, answer, places, asked, pieces, most_copied, words, tables, chunks, names
):
    """Write the reply, but for chunks of more than `most_copied` bytes, into `answer`, of
    REPLY_NBYTES. How many pieces (address, bytes) it then has; 0: Python has to answer.

    `asked` int64[_ASKED + _MOST_CHUNKS]: by array its table's line and its ids; behind them, where
    those end; from _ASKED on the lines of the chunks that changed.
    """
    num_tables = len(tables) // _TABLE
    flags = load_integer(request)
    if flags & _DENSE != 0 and words[WHOLE] == 0:
        return 0
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
                if tables[_TABLE * t + _NAME_NBYTES] != name_nbytes:
                    continue
                name, theirs = tables[_TABLE * t + _NAME] // 8, at + _ARRAY_NBYTES
                while theirs < name_end and load_integer(theirs) == names[name]:
                    name += 1
                    theirs += 8
                if theirs == name_end and (seen >> t) & 1 == 0:
                    line = _TABLE * t
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
    # which chunks: those that changed after this version are there or will be asked for again
    version = acquire_integer(np.int64(words.ctypes.data) + 8 * VERSION)
    sizes, told = answer + _HEAD_NBYTES, place
    copied = values
    chosen = _ASKED
    if flags & _DENSE != 0:
        known = load_integer(request + 64) if flags & _KNOWN != 0 else -1
        if known > version:
            known = -1  # the caller saw a server that is gone
        for line in range(0, len(chunks), _CHUNK):
            if chunks[line + _CHANGED] > known:
                asked[chosen] = line
                chosen += 1
                place += chunks[line + _TOLD_NBYTES]
                size = chunks[line + _NBYTES]
                values += _padded(size)
                copied += _padded(size) - (size if size > most_copied else 0)
        if place - answer + copied > REPLY_NBYTES:
            return 0
    for k in range(10):
        store_integer(answer + 8 * k, 0)
    store_integer(answer, _PULLED)
    store_integer(answer + 16, place - sizes)
    store_integer(answer + 24, values)
    store_integer(answer + 56, version)

    for k in range(_ASKED, chosen):
        line = asked[k]
        word = chunks[line + _TOLD] // 8
        for _ in range(chunks[line + _TOLD_NBYTES] // 8):
            store_integer(told, names[word])
            told += 8
            word += 1

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
        if not valid or (unknown > 0 and tables[line + _FIRST] == _OTHER):
            return 0
        for k in range(unknown):
            i = places[k]
            _put_first(tables, line, load_integer(ids + 8 * i), place + i * row_nbytes)
        place = stop

    begin, count = answer, 0
    for k in range(_ASKED, chosen):
        line = asked[k]
        value, size = chunks[line + _VALUE], chunks[line + _NBYTES]
        if size <= most_copied:
            copy_row(value, place, size)
            place += size
        else:
            pieces[2 * count], pieces[2 * count + 1] = begin, place - begin
            pieces[2 * count + 2], pieces[2 * count + 3] = value, size
            count, begin = count + 2, place
        for _ in range(size, _padded(size), 4):
            copy_4(answer + 32, place)  # zeros: the task of a head
            place += 4
    if place > begin:
        pieces[2 * count], pieces[2 * count + 1] = begin, place - begin
        count += 1
    return count if words[VALID] != 0 else 0
