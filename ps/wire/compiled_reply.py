"""The reply to one small pull, written by compiled code.

The request is looked up in the store's board (board.py); rows and small chunks are copied, larger
chunks are sent from where they live. What is not for here (an unknown row whose first values are
normally distributed, a long or a broken frame, a table that somebody has alone) is left to Python,
as it came: a pull changes nothing, so it may be begun again.
"""

from __future__ import annotations

import numpy as np

from ...kernels.compile import (
    acquire_integer,
    inlined,
    integers,
    load_integer,
    offset_of,
    part,
    read_integer,
    record_at,
    store_float,
    store_integer,
)
from ...kernels.lanes import copy_4
from ...kernels.uniform import uniform_row
from ..rows.halves import FLOAT32, narrow
from ..rows.index import index_at, shape_of
from ..rows.lock import try_share, unshare
from ..rows.passes import Place, copy_row, gather_rows
from . import frames
from .board import (
    CHANGED,
    CHUNK_NBYTES,
    MOST_CHUNKS,
    OTHER,
    TABLE_NBYTES,
    UNIFORM,
    VERSION,
    board_at,
    chunk_at,
    is_valid,
    table_at,
)

REPLY_NBYTES = 512 << 10  # at most, but for large chunks: beyond, two threads gather and send
_MAX_COUNT = 1 << 16

# Records that Python and the kernels share. Addresses are int64.
CONNECTION = integers(
    "fd", "request", "most", "reply",  # where requests are received, how many bytes; replies
    "asked", "chosen", "pieces", "message",  # addresses of memory to work in
    "turns", "bounds", "num_bounds", "counters",  # addresses (pulls.py), and how many bounds
    # of the answer that is being made: arrays of the request, chunks, where to write on, bytes of
    # values, those of them in `reply`, and what it says the version is
    "num_asked", "num_chosen", "place", "values", "copied", "version",
)  # fmt: skip
ASKED = integers("table", "ids", "rows")  # an array of the request: addresses, and how many
PIECE = integers("address", "nbytes")  # struct iovec
MOST_PIECES = 2 * MOST_CHUNKS + 1


# -- Compiled by numba

connection_at = record_at(CONNECTION)
piece_at, _asked_at = record_at(PIECE), record_at(ASKED)
_head_at, _array_at = record_at(frames.HEAD_DTYPE), record_at(frames.ARRAY_DTYPE)
PIECE_NBYTES, _ASKED_NBYTES = PIECE.itemsize, ASKED.itemsize
_HEAD_ZEROS = offset_of(frames.HEAD_DTYPE, "task")  # of a reply to a pull, as in all of its head
_HEAD_NBYTES, _ARRAY_NBYTES, _ALIGN = frames.HEAD_NBYTES, frames.ARRAY_NBYTES, frames.ALIGN
_MAGIC, _PROTOCOL, _ROWS = frames.MAGIC, frames.PROTOCOL, frames.ROWS
_PULL, _PULLED, _DENSE, _KNOWN = frames.PULL, frames.PULLED, frames.DENSE, frames.KNOWN


@inlined
def _padded(nbytes):  # type: ignore[no-untyped-def]
    return (nbytes + _ALIGN - 1) & -_ALIGN


@inlined
def frame_nbytes(request, most):  # type: ignore[no-untyped-def]
    """Return the length of a frame whose body is on the socket, by its head.

    0: it is more than `most`, or malformed.
    """
    head = _head_at(request)
    told, body = np.int64(head.descriptors_nbytes), np.int64(head.body_nbytes)
    if head.magic != _MAGIC or head.protocol != _PROTOCOL or head.body_region != 0:
        return 0
    if told > most or body < 0 or body > most or (told | body) & (_ALIGN - 1) != 0:
        return 0
    return _HEAD_NBYTES + told + body if _HEAD_NBYTES + told + body <= most else 0


@inlined
def is_pull(request, board):  # type: ignore[no-untyped-def]
    """Tell whether the request is a pull of no cut, over the socket, by this slot map."""
    head, slot_map = _head_at(request), board_at(board).slot_map_version
    if head.op != _PULL or np.int64(head.flags) & ~(_DENSE | _KNOWN) != 0 or head.reply_region != 0:
        return False
    return head.code == 0 or np.int64(head.code) == slot_map


@part
def write_reply(mine, board, nbytes, most_copied, places):  # type: ignore[no-untyped-def]
    """Write the reply into `mine.reply`, of REPLY_NBYTES, and return how many pieces it has.

    Chunks of more than `most_copied` bytes are pieces where they live. 0: Python has to answer.

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
        chunk = chunk_at(load_integer(mine.chosen + 8 * k))
        told = board_at(board).names + chunk.descriptor
        for at in range(told, told + chunk.descriptor_nbytes, 8):
            store_integer(place, load_integer(at))
            place += 8
    for number in range(mine.num_asked):
        if not _write_rows(mine, board, number, sizes + _ARRAY_NBYTES * number, places):
            return 0
    count = _write_chunks(mine, most_copied)
    return count if is_valid(board) else 0


@part
def _find_tables(mine, board, frame_end):  # type: ignore[no-untyped-def]
    """Find the tables that the request asks, by array; False where Python has to answer.

    Takes note of where, behind their descriptors, those of the chunks begin, and of the bytes of
    values.
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
        asked.table = board_at(board).tables + TABLE_NBYTES * number
        asked.ids, asked.rows = ids, rows
        ids += 8 * rows
        values += _padded(rows * table_at(asked.table).row_nbytes)
        at = text_end
        place += _ARRAY_NBYTES
        count += 1
        if place - mine.reply + values > REPLY_NBYTES:
            return False
    mine.num_asked, mine.place, mine.values, mine.copied = count, place, values, values
    return end + _padded(ids - end) == frame_end


@part
def _table_named(board, text, text_end, name_nbytes):  # type: ignore[no-untyped-def]
    """Return the number of the table of this name; -1: there is none."""
    shown = board_at(board)
    for number in range(shown.num_tables):
        table = table_at(shown.tables + TABLE_NBYTES * number)
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
    """Find the chunks that the reply has, and its version; False: Python has to answer."""
    head, shown = _head_at(mine.request), board_at(board)
    # of `_step_made`: chunks that changed after this version are there or will be asked for again
    mine.version = acquire_integer(board + VERSION)
    mine.num_chosen = 0
    if np.int64(head.flags) & _DENSE == 0:
        return True
    if shown.whole == 0:
        return False
    known = head.known if np.int64(head.flags) & _KNOWN != 0 else -1
    if known > mine.version:
        known = -1  # the caller saw a server that is gone
    for number in range(shown.num_chunks):
        address = shown.chunks + CHUNK_NBYTES * number
        if read_integer(address + CHANGED) > known:  # beside `_step_made`
            chunk = chunk_at(address)
            store_integer(mine.chosen + 8 * mine.num_chosen, address)
            mine.num_chosen += 1
            mine.place += chunk.descriptor_nbytes
            size = _padded(chunk.nbytes)
            mine.values += size
            mine.copied += size - (chunk.nbytes if chunk.nbytes > most_copied else 0)
    return mine.place - mine.reply + mine.copied <= REPLY_NBYTES


@part
def _write_rows(mine, board, number, descriptor, places):  # type: ignore[no-untyped-def]
    """Write the rows of an array that was asked, and its descriptor.

    False: Python has to answer.
    """
    asked = _asked_at(mine.asked + _ASKED_NBYTES * number)
    table, array = table_at(asked.table), _array_at(descriptor)
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
    valid = is_valid(board)
    unshare(table.lock)
    if not valid or (unknown > 0 and table.first == OTHER):
        return False
    for k in range(unknown):
        id = load_integer(asked.ids + 8 * places[k])
        _put_first(table, id, start + places[k] * row_nbytes)
    mine.place = stop
    return True


@part
def _put_first(table, id, target):  # type: ignore[no-untyped-def]
    """Write the first values of the row `id` of a table."""
    row = np.empty(table.dim if table.kind != FLOAT32 else 0, np.float32)
    values = np.int64(row.ctypes.data) if table.kind != FLOAT32 else target
    if table.first == UNIFORM:
        uniform_row(id, table.key, table.scale, table.dim, values)
    else:
        for j in range(table.dim):
            store_float(values + 4 * j, np.float32(0.0))
    if table.kind != FLOAT32:
        narrow(values, target, table.dim, table.kind, False, 0, 0)
    return row.size  # used until here, or numba would have freed it before


@part
def _write_chunks(mine, most_copied):  # type: ignore[no-untyped-def]
    """Write the values of the chosen chunks behind those of rows.

    Returns how many pieces the reply then has.
    """
    begin, place, count = mine.reply, mine.place, 0
    for k in range(mine.num_chosen):
        chunk = chunk_at(load_integer(mine.chosen + 8 * k))
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
    piece = piece_at(mine.pieces + PIECE_NBYTES * number)
    piece.address, piece.nbytes = address, nbytes
