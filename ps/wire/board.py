"""The board: what compiled code answers small pulls from, and whether it is still so.

A board has the addresses of a store's tables and chunks, and its version. The store says when they
change (`Board.step_made`, `Board.set_valid`); a kernel reads them (compiled_reply.py), and asks at
the end whether what it read was so (`is_valid`).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ...kernels.compile import (
    INTEGER,
    INTS_1D,
    compiled,
    inlined,
    integers,
    offset_of,
    read_integer_last,
    record_at,
    release_integer,
    write_integer_first,
)
from ...nn.initializers import key_of
from ..books.dense import ChunkKey
from ..books.view import StoreView
from . import frames

MOST_TABLES = 63
MOST_CHUNKS = 256  # each is up to two of the buffers of one sendmsg, which takes 1,024
_MOST_NBYTES = 64 << 20  # of all chunks: a connection that idles may hold values of before a pin
ZEROS, UNIFORM, OTHER = range(3)  # how the first values of a row are made
_FIRSTS = {"zeros": ZEROS, "uniform": UNIFORM}

Ints = NDArray[np.int64]

# Records that Python and the kernels share. Addresses are int64, an offset counts bytes of `names`.
BOARD = integers(
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
        ("first", np.int64),  # how first values are made: ZEROS, UNIFORM or OTHER
        ("key", np.uint64),
        ("scale", np.float64),
    ]
)
CHUNK = integers(
    "value", "nbytes",  # where its bytes are
    "changed",  # by the step to this version
    "descriptor", "descriptor_nbytes",  # its offset
)  # fmt: skip


class Board:
    """The state of a store that compiled code reads: tables, chunks and version.

    It says where they are, and whether these are still so. Keeps alive what it points to until each
    connection that was served by it has had its next request, or idled for its patience.
    """

    def __init__(self, view: StoreView) -> None:
        """Take at most 63 tables, and all chunks.

        No chunks where they are more than 256 or 64 MiB.
        """
        tables, chunks = view.tables, view.chunks
        nbytes = sum(chunk.value.nbytes for chunk in chunks.values())
        whole = len(chunks) <= MOST_CHUNKS and nbytes <= _MOST_NBYTES
        names, lines = b"", []
        self._held: list[object] = []
        for name, table in list(tables.items())[:MOST_TABLES]:
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
                    _FIRSTS.get(spec.initializer, OTHER),
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
        """Note whether pulls may be answered of it."""
        self._set_valid(self.address, int(valid))


# -- Compiled by numba. Addresses are int64.

board_at, table_at, chunk_at = record_at(BOARD), record_at(TABLE), record_at(CHUNK)
TABLE_NBYTES, CHUNK_NBYTES = TABLE.itemsize, CHUNK.itemsize
VERSION, CHANGED = offset_of(BOARD, "version"), offset_of(CHUNK, "changed")
_VALID = offset_of(BOARD, "valid")


def _step_made(board, lines, version):  # type: ignore[no-untyped-def]
    for line in lines:  # `_find_chunks` (compiled_reply.py) of other threads reads these
        release_integer(board_at(board).chunks + CHUNK_NBYTES * line + CHANGED, version)
    # only now: who reads the version first (`_find_chunks`) lacks no chunk of it
    release_integer(board + VERSION, version)


def _set_valid(board, valid):  # type: ignore[no-untyped-def]
    # before anything is changed: what is read beside that, `is_valid` then refuses
    write_integer_first(board + _VALID, valid)


@inlined
def is_valid(board):  # type: ignore[no-untyped-def]
    """Tell whether all that was read of the board until now was so.

    The other end of `_set_valid`.
    """
    return read_integer_last(board + _VALID) != 0
