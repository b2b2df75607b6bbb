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
    load_integer,
    offset_of,
    part,
    read_integer,
    read_integer_last,
    record_at,
    release_integer,
    store_float,
    store_integer,
    write_integer_first,
)
from ...kernels.lanes import copy_4
from ...kernels.uniform import uniform_row
from ...nn.initializers import key_of
from ..books.dense import ChunkKey
from ..books.view import StoreView
from ..rows.halves import FLOAT32, narrow
from ..rows.index import index_at, shape_of
from ..rows.lock import try_share, unshare
from ..rows.passes import Place, copy_row, gather_rows
from . import frames
from .frames import Bytes
from .turns import EAGAIN, EINTR, Turns, await_turn, end_turn, last_error, of_this_process

REPLY_NBYTES = 512 << 10  # at most, but for large chunks: beyond, two threads gather and send
IDLE, BROKEN = -2, -3  # nothing came in time; the reply could not be sent
NANOSECONDS, NBYTES = -2, -1  # of the counters; before them, calls by the bound of their time
_MOST_TABLES = 63
_MOST_CHUNKS = 256  # each is up to two of the buffers of one sendmsg, which takes 1,024
_MOST_NBYTES = 64 << 20  # of all chunks: a connection that idles may hold values of before a pin
_COPIED_NBYTES = 4 << 10  # of a chunk: a larger one is sent from where it lives (a guess)
_ZEROS, _UNIFORM, _OTHER = range(3)
_FIRSTS = {"zeros": _ZEROS, "uniform": _UNIFORM}
_MAX_COUNT = 1 << 16
_MAX_NBYTES = 1 << 62
_MSG_WAITALL, _MSG_NOSIGNAL, _CLOCK_MONOTONIC = 0x100, 0x4000, 1


def _integers(*names: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in names])


# Records that Python and the kernels share. Addresses are int64, an offset counts bytes of `names`.
BOARD = _integers(
    "valid", "version", "slot_map_version",
    "whole",  # no chunk is left out
    "tables", "num_tables", "chunks", "num_chunks", "names",  # addresses, and how many
)  # fmt: skip
TABLE = np.dtype(
    [
        ("name", np.int64),  # its offset
        ("name_nbytes", np.int64),
        ("dim", np.int64),
        ("wire", np.int64),  # a number of frames.PLAIN
        ("kind", np.int64),  # of the weights (halves.py)
        ("row_nbytes", np.int64),
        ("rows", np.int64),  # the address of the first
        ("stride", np.int64),
        ("index", np.int64),  # the address of its record
        ("lock", np.int64),  # the address of its word
        ("first", np.int64),  # how first values are made: one of _FIRSTS
        ("key", np.uint64),
        ("scale", np.float64),
    ]
)
CHUNK = _integers(
    "value", "nbytes",  # where its bytes are
    "changed",  # by the step to this version
    "descriptor", "descriptor_nbytes",  # its offset
)  # fmt: skip
CONNECTION = _integers(
    "fd", "request", "most", "reply",  # where requests are received, so many bytes; where replies are made
    "asked", "chosen", "pieces", "message",  # addresses of memory to work in
    # of the answer that is being made: arrays of the request, chunks, where to write on, bytes of
    # values, those of them in `reply`, and what it says the version is
    "num_asked", "num_chosen", "place", "values", "copied", "version",
)  # fmt: skip
_ASKED = _integers("table", "ids", "rows")  # an array of the request: addresses, and how many
_PIECE = _integers("address", "nbytes")  # struct iovec
_MESSAGE = _integers(  # struct msghdr
    "name", "name_nbytes", "pieces", "num_pieces", "control", "control_nbytes", "flags"
)
_MOST_PIECES = 2 * _MOST_CHUNKS + 1

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
        names, lines = b"", []
        self._held: list[Any] = []
        for name, table in list(tables.items())[:_MOST_TABLES]:
            rows, word = table.rows_and_lock()
            self._held.append((rows, word))
            text, layout, spec = name.encode(), rows.layout[0], table.spec
            lines.append(
                (
                    len(names),
                    len(text),
                    spec.dim,
                    frames.PLAIN[spec.dtype],
                    layout["kind"],
                    layout["weight_nbytes"],
                    layout["rows"],
                    layout["stride"],
                    rows.index.address,
                    word.ctypes.data,
                    _FIRSTS.get(spec.initializer, _OTHER),
                    key_of(table.seed, spec.name),
                    spec.scale,
                )
            )
            names += text.ljust(frames.padded(len(text)), b"\0")
        self._tables = np.array(lines, TABLE)
        self._line_of: dict[ChunkKey, int] = {}
        chunk_lines: list[tuple[int, ...]] = []
        told, place = [], len(names)
        for (tensor, number), chunk in chunks.items() if whole else ():
            value = chunk.value
            nbytes = frames.ARRAY_NBYTES + frames.padded(len(tensor.encode()))
            self._line_of[tensor, number] = len(chunk_lines)
            self._held.append(value)
            chunk_lines.append((value.ctypes.data, value.nbytes, chunk.changed, place, nbytes))
            told.append((frames.CHUNK, frames.FLOAT32, tensor, number, len(value)))
            place += nbytes
        names += frames.describe(tuple(told))[1]
        self._chunks = np.array(chunk_lines, CHUNK)
        self._names: Ints = np.frombuffer(names + bytes(8), np.int64).copy()
        addresses = [self._tables.ctypes.data, len(self._tables), self._chunks.ctypes.data]
        addresses += [len(self._chunks), self._names.ctypes.data]
        state = (1, view.version, view.slot_map_version, whole)
        self._record = np.array([(*state, *addresses)], BOARD)
        self.address = int(self._record.ctypes.data)
        self._step_made = compiled(_step_made, INTEGER, INTS_1D, INTEGER)
        self._set_valid = compiled(_set_valid, INTEGER, INTEGER)

    def step_made(self, changed: Collection[ChunkKey], version: int) -> None:
        """Show `version`, and that these chunks have changed since the one before."""
        lines = [self._line_of[key] for key in changed] if self._line_of else []
        self._step_made(self.address, np.array(lines, np.int64), version)

    def set_valid(self, valid: bool) -> None:
        """Whether pulls may be answered of it."""
        self._set_valid(self.address, int(valid))


def prepare(encrypted: bool) -> None:
    """Compile what connections need, and those that are encrypted: seconds, where it is not kept
    yet, that no peer should wait."""
    of_this_process()
    Board(StoreView(0, 0, {}, {}))
    _serving()
    if encrypted:
        _answering()


def _serving() -> Callable[..., int]:
    return compiled(_serve, INTEGER, INTEGER, *[INTS_1D] * 3, *[INTEGER] * 3)


def _answering() -> Callable[..., int]:
    return compiled(_answer_one, INTEGER, INTEGER, INTEGER)


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
        self.reply = memoryview(reply)  # type: ignore[arg-type]
        work = (
            np.empty(_MOST_TABLES, _ASKED),
            np.empty(_MOST_CHUNKS, np.int64),
            np.empty(_MOST_PIECES, _PIECE),
            np.zeros(1, _MESSAGE),
        )
        self._record = np.zeros(1, CONNECTION)
        self._held = first, reply, work  # the record has their addresses
        self._address = int(self._record.ctypes.data)
        mine = self._record[0]
        mine["fd"], mine["most"] = -1 if fd is None else fd, len(first)
        mine["request"], mine["reply"] = first.ctypes.data, reply.ctypes.data
        for name, memory in zip(("asked", "chosen", "pieces", "message"), work, strict=True):
            mine[name] = memory.ctypes.data
        if fd is None:
            self._answer = _answering()
        else:
            self._serve = _serving()

    def serve(self, board: Board, window: int, told: int) -> int:
        """End the turn, send the `told` bytes in `reply`, then answer until something else comes, and
        await a turn for it: its first bytes, at most `window` where nothing was answered before, are
        in `first`. How many; 0: closed; -1: ask the socket; IDLE;
        BROKEN."""
        me, address = threading.get_ident(), board.address
        return self._serve(
            self._address, address, self._bounds, self._counters, self._turns, window, told, me
        )

    def answer(self, board: Board, got: int) -> int:
        """Answer the `got` bytes in `first`: how long `reply` is. 0: it is not for here. Negative:
        so many bytes of it are still to come."""
        return self._answer(self._address, board.address, got)


# -- Compiled by numba. Addresses are int64.

_ssize, _int = types.int64, types.int32
_recv: Any = types.ExternalFunction("recv", _ssize(_int, _ssize, _ssize, _int))
_sendmsg: Any = types.ExternalFunction("sendmsg", _ssize(_int, _ssize, _int))
_gettime: Any = types.ExternalFunction("clock_gettime", _int(_int, _ssize))


_mine_at = record_at(CONNECTION)
_board_at, _table_at, _chunk_at = record_at(BOARD), record_at(TABLE), record_at(CHUNK)
_asked_at, _piece_at = record_at(_ASKED), record_at(_PIECE)
_message_at = record_at(_MESSAGE)
_head_at, _array_at = record_at(frames.HEAD_DTYPE), record_at(frames.ARRAY_DTYPE)
_TABLE_NBYTES, _CHUNK_NBYTES, _ASKED_NBYTES = TABLE.itemsize, CHUNK.itemsize, _ASKED.itemsize
_PIECE_NBYTES = _PIECE.itemsize
_VALID, _VERSION = offset_of(BOARD, "valid"), offset_of(BOARD, "version")
_CHANGED = offset_of(CHUNK, "changed")
_HEAD_ZEROS = offset_of(frames.HEAD_DTYPE, "task")  # of a reply to a pull, as in all of its head
_HEAD_NBYTES, _ARRAY_NBYTES, _ALIGN = frames.HEAD_NBYTES, frames.ARRAY_NBYTES, frames.ALIGN
_MAGIC, _PROTOCOL, _ROWS = frames.MAGIC, frames.PROTOCOL, frames.ROWS
_PULL, _PULLED, _DENSE, _KNOWN = frames.PULL, frames.PULLED, frames.DENSE, frames.KNOWN


def _step_made(board, lines, version):  # type: ignore[no-untyped-def]
    for line in lines:  # `_find_chunks` of other threads reads these
        release_integer(_board_at(board).chunks + _CHUNK_NBYTES * line + _CHANGED, version)
    # only now: who reads the version first (`_find_chunks`) lacks no chunk of it
    release_integer(board + _VERSION, version)


def _set_valid(board, valid):  # type: ignore[no-untyped-def]
    # before anything is changed: what is read beside that, `_is_valid` then refuses
    write_integer_first(board + _VALID, valid)


@inlined
def _is_valid(board):  # type: ignore[no-untyped-def]
    """Whether all that was read of the board until now was so: the other end of `_set_valid`."""
    return read_integer_last(board + _VALID) != 0


@inlined
def _padded(nbytes):  # type: ignore[no-untyped-def]
    return (nbytes + _ALIGN - 1) & -_ALIGN


@inlined
def _now(clock):  # type: ignore[no-untyped-def]
    """Nanoseconds of a clock that only goes on; `clock` int64[2] is a struct timespec."""
    _gettime(np.int32(_CLOCK_MONOTONIC), np.int64(clock.ctypes.data))
    return 1_000_000_000 * clock[0] + clock[1]


@inlined
def _count(bounds, counters, took, nbytes):  # type: ignore[no-untyped-def]
    bucket = 0
    while bucket < len(bounds) and took > bounds[bucket]:
        bucket += 1
    counters[bucket] += 1
    counters[NANOSECONDS] += took
    counters[NBYTES] += nbytes


def _serve(connection, board, bounds, counters, turns, window, told, me):  # type: ignore[no-untyped-def]
    end_turn(turns, me)
    mine = _mine_at(connection)
    fd, request, most = np.int32(mine.fd), mine.request, mine.most
    places, clock = np.empty(most >> 3, np.int64), np.empty(2, np.int64)
    first = _piece_at(mine.pieces)
    first.address, first.nbytes = mine.reply, told
    if told > 0 and not _sent(mine, 1):
        return BROKEN
    while True:
        got = _recv(fd, request, window, np.int32(0))
        if got < 0:
            error = last_error()
            if error == EINTR:
                continue  # not one thread of a thousand asks for the GIL because the process had stopped
            if error == EAGAIN:
                return IDLE
        if got < _HEAD_NBYTES:
            break
        began = _now(clock)
        nbytes = _length(request, most)
        if got > nbytes:
            break
        if got < nbytes:
            rest = _recv(fd, request + got, nbytes - got, np.int32(_MSG_WAITALL))
            got += max(rest, 0)
            if got < nbytes:
                break
        window = most
        if not _is_pull(request, board):
            break
        count = _answer(mine, board, nbytes, _COPIED_NBYTES, places)
        if count == 0:
            break
        if not _sent(mine, count):
            return BROKEN
        _count(bounds, counters, _now(clock) - began, nbytes)
    if got > 0:
        await_turn(turns, me, clock)
    return got


@part
def _sent(mine, count):  # type: ignore[no-untyped-def]
    """Send `count` pieces; False where the peer takes nothing."""
    address, end = mine.pieces, mine.pieces + _PIECE_NBYTES * count
    message = _message_at(mine.message)
    while address < end:
        message.pieces, message.num_pieces = address, (end - address) // _PIECE_NBYTES
        part = _sendmsg(np.int32(mine.fd), mine.message, np.int32(_MSG_NOSIGNAL))
        if part <= 0:
            if part < 0 and last_error() == EINTR:
                continue
            return False
        while address < end and part >= _piece_at(address).nbytes:
            part -= _piece_at(address).nbytes
            address += _PIECE_NBYTES
        if part > 0:
            piece = _piece_at(address)
            piece.address += part
            piece.nbytes -= part
    return True


def _answer_one(connection, board, got):  # type: ignore[no-untyped-def]
    mine = _mine_at(connection)
    if got < _HEAD_NBYTES:
        return 0
    nbytes = _length(mine.request, mine.most)
    if got != nbytes or not _is_pull(mine.request, board):
        return min(got - nbytes, 0) if nbytes > 0 else 0
    places = np.empty(mine.most >> 3, np.int64)
    count = _answer(mine, board, nbytes, _MAX_NBYTES, places)
    return _piece_at(mine.pieces).nbytes if count > 0 else 0


@inlined
def _length(request, most):  # type: ignore[no-untyped-def]
    """Of a frame whose body is on the socket, by its head; 0: more than `most`, or malformed."""
    head = _head_at(request)
    told, body = np.int64(head.descriptors_nbytes), np.int64(head.body_nbytes)
    if head.magic != _MAGIC or head.protocol != _PROTOCOL or head.body_region != 0:
        return 0
    if told > most or body < 0 or body > most or (told | body) & (_ALIGN - 1) != 0:
        return 0
    return _HEAD_NBYTES + told + body if _HEAD_NBYTES + told + body <= most else 0


@inlined
def _is_pull(request, board):  # type: ignore[no-untyped-def]
    """Of no cut, over the socket, by this slot map."""
    head, slot_map = _head_at(request), _board_at(board).slot_map_version
    if head.op != _PULL or np.int64(head.flags) & ~(_DENSE | _KNOWN) != 0 or head.reply_region != 0:
        return False
    return head.code == 0 or np.int64(head.code) == slot_map


@part
def _answer(mine, board, nbytes, most_copied, places):  # type: ignore[no-untyped-def]
    """Write the reply, but for chunks of more than `most_copied` bytes, into `mine.reply`, of
    REPLY_NBYTES. How many pieces it then has; 0: Python has to answer.

    `places` int64[most / 8] is memory to work in.
    """
    if not _find_tables(mine, board, mine.request + nbytes):
        return 0
    sizes, place = mine.reply + _HEAD_NBYTES, mine.place
    if not _find_chunks(mine, board, most_copied):
        return 0
    for at in range(mine.reply, sizes, 8):
        store_integer(at, 0)
    head = _head_at(mine.reply)
    head.magic, head.protocol, head.op = _MAGIC, _PROTOCOL, _PULLED
    head.descriptors_nbytes, head.body_nbytes = mine.place - sizes, mine.values
    head.version = mine.version
    for k in range(mine.num_chosen):
        chunk = _chunk_at(load_integer(mine.chosen + 8 * k))
        told = _board_at(board).names + chunk.descriptor
        for at in range(told, told + chunk.descriptor_nbytes, 8):
            store_integer(place, load_integer(at))
            place += 8
    for number in range(mine.num_asked):
        if not _write_rows(mine, board, number, sizes + _ARRAY_NBYTES * number, places):
            return 0
    count = _write_chunks(mine, most_copied)
    return count if _is_valid(board) else 0


@part
def _find_tables(mine, board, frame_end):  # type: ignore[no-untyped-def]
    """Which tables the request asks, by array; False where Python has to answer.

    Takes note of where, behind their descriptors, those of the chunks begin, and of the bytes of values.
    """
    head, seen = _head_at(mine.request), 0
    at = mine.request + _HEAD_NBYTES
    end = at + np.int64(head.descriptors_nbytes)
    ids, place, values, count = end, mine.reply + _HEAD_NBYTES, 0, 0
    while at < end:
        array = _array_at(at)
        rows, text = np.int64(array.count), at + _ARRAY_NBYTES
        text_end = text + _padded(np.int64(array.name_nbytes))
        if array.kind != _ROWS or array.wire != 0 or array.number != 0:
            return False
        if text_end > end or not 0 <= rows <= _MAX_COUNT:
            return False
        number = _table_named(board, text, text_end, np.int64(array.name_nbytes))
        if number < 0 or (seen >> number) & 1 != 0:
            return False
        seen |= 1 << number
        asked = _asked_at(mine.asked + _ASKED_NBYTES * count)
        asked.table = _board_at(board).tables + _TABLE_NBYTES * number
        asked.ids, asked.rows = ids, rows
        ids += 8 * rows
        values += _padded(rows * _table_at(asked.table).row_nbytes)
        at = text_end
        place += _ARRAY_NBYTES
        count += 1
        if place - mine.reply + values > REPLY_NBYTES:
            return False
    mine.num_asked, mine.place, mine.values, mine.copied = count, place, values, values
    return end + _padded(ids - end) == frame_end


@part
def _table_named(board, text, text_end, name_nbytes):  # type: ignore[no-untyped-def]
    """The number of the table of this name; -1: there is none."""
    shown = _board_at(board)
    for number in range(shown.num_tables):
        table = _table_at(shown.tables + _TABLE_NBYTES * number)
        if table.name_nbytes == name_nbytes:
            name, theirs = shown.names + table.name, text
            while theirs < text_end and load_integer(theirs) == load_integer(name):
                name += 8
                theirs += 8
            if theirs == text_end:
                return number
    return -1


@part
def _find_chunks(mine, board, most_copied):  # type: ignore[no-untyped-def]
    """Which chunks the reply has, and of which version it is; False where Python has to answer."""
    head, shown = _head_at(mine.request), _board_at(board)
    # of `_step_made`: chunks that changed after this version are there or will be asked for again
    mine.version = acquire_integer(board + _VERSION)
    mine.num_chosen = 0
    if np.int64(head.flags) & _DENSE == 0:
        return True
    if shown.whole == 0:
        return False
    known = head.known if np.int64(head.flags) & _KNOWN != 0 else -1
    if known > mine.version:
        known = -1  # the caller saw a server that is gone
    for number in range(shown.num_chunks):
        address = shown.chunks + _CHUNK_NBYTES * number
        if read_integer(address + _CHANGED) > known:  # beside `_step_made`
            chunk = _chunk_at(address)
            store_integer(mine.chosen + 8 * mine.num_chosen, address)
            mine.num_chosen += 1
            mine.place += chunk.descriptor_nbytes
            size = _padded(chunk.nbytes)
            mine.values += size
            mine.copied += size - (chunk.nbytes if chunk.nbytes > most_copied else 0)
    return mine.place - mine.reply + mine.copied <= REPLY_NBYTES


@part
def _write_rows(mine, board, number, descriptor, places):  # type: ignore[no-untyped-def]
    """The rows of an array that was asked, and what is told of them; False: Python has to answer."""
    asked = _asked_at(mine.asked + _ASKED_NBYTES * number)
    table, array = _table_at(asked.table), _array_at(descriptor)
    array.kind, array.wire, array.name_nbytes = _ROWS, table.wire, 0
    array.number, array.count = table.dim, asked.rows
    start, row_nbytes = mine.place, table.row_nbytes
    stop = start + _padded(asked.rows * row_nbytes)
    if not try_share(table.lock):
        return False
    if asked.rows > 0:  # they may end before
        for zeros in range(stop - _ALIGN, stop, 8):
            store_integer(zeros, 0)
    shape, place = shape_of(index_at(table.index)), Place(table.rows, table.stride)
    unknown = gather_rows(shape, place, row_nbytes, asked.ids, asked.rows, start, places)
    valid = _is_valid(board)
    unshare(table.lock)
    if not valid or (unknown > 0 and table.first == _OTHER):
        return False
    for k in range(unknown):
        id = load_integer(asked.ids + 8 * places[k])
        _put_first(table, id, start + places[k] * row_nbytes)
    mine.place = stop
    return True


@part
def _put_first(table, id, target):  # type: ignore[no-untyped-def]
    """The first values of the row `id` of a table."""
    row = np.empty(table.dim if table.kind != FLOAT32 else 0, np.float32)
    values = np.int64(row.ctypes.data) if table.kind != FLOAT32 else target
    if table.first == _UNIFORM:
        uniform_row(id, table.key, table.scale, table.dim, values)
    else:
        for j in range(table.dim):
            store_float(values + 4 * j, np.float32(0.0))
    if table.kind != FLOAT32:
        narrow(values, target, table.dim, table.kind, False, 0, 0)
    return row.size  # used until here, or numba would have freed it before


@part
def _write_chunks(mine, most_copied):  # type: ignore[no-untyped-def]
    """The values of the chosen chunks, behind those of rows; how many pieces the reply then has."""
    begin, place, count = mine.reply, mine.place, 0
    for k in range(mine.num_chosen):
        chunk = _chunk_at(load_integer(mine.chosen + 8 * k))
        if chunk.nbytes <= most_copied:
            copy_row(chunk.value, place, chunk.nbytes)
            place += chunk.nbytes
        else:
            _put_piece(mine, count, begin, place - begin)
            _put_piece(mine, count + 1, chunk.value, chunk.nbytes)
            count, begin = count + 2, place
        for _ in range(chunk.nbytes, _padded(chunk.nbytes), 4):
            copy_4(mine.reply + _HEAD_ZEROS, place)
            place += 4
    if place > begin:
        _put_piece(mine, count, begin, place - begin)
        count += 1
    return count


@inlined
def _put_piece(mine, number, address, nbytes):  # type: ignore[no-untyped-def]
    piece = _piece_at(mine.pieces + _PIECE_NBYTES * number)
    piece.address, piece.nbytes = address, nbytes
