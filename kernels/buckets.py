"""Buckets: an open-addressed array from int64 ids to words, as kernels look into it.

A bucket is a cache line of four entries: the ids, then for each its word, of which the lower half
is the row's number plus one (0: no entry) and the upper half, the tag, is its user's. Within a line
all four are compared at once, so that a lookup costs one cache miss and no mispredicted branch; an
entry for which there is no room stands in the next bucket that has some. An id's home is
`hash * buckets / 2^64`.

The index of a server's table grows (ps/rows/index.py); that of a file lies as it was written
(serve/table_file.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from .compile import (
    high_product,
    inlined,
    instruction,
    load_integer,
    offset_of,
    pointer,
    read_integer,
    store_integer,
)

ENTRIES = 4  # of a bucket
BUCKET = np.dtype([("ids", np.int64, ENTRIES), ("words", np.int64, ENTRIES)])  # one cache line
ENTRY_WORD = np.dtype([("row", np.uint32), ("tag", np.uint32)])  # row: its number + 1; 0: no entry
BUCKET_NBYTES = BUCKET.itemsize
WORD = offset_of(BUCKET, "words")  # from an entry's id to its word
TAG = WORD + offset_of(ENTRY_WORD, "tag")
ROW = 0xFFFFFFFF
AHEAD = 64  # ids whose buckets are being loaded while those before them are looked at


# -- Compiled by numba. Buckets are int64; an entry's address is that of its id.


@instruction(types.int64, types.int64, types.int64)
def match(builder: ir.IRBuilder, address: ir.Value, id: ir.Value) -> ir.Value:
    """Return the number of the bucket's first entry whose id is `id`; 4: there is none.

    The bucket is at `address`.

    It may be one that was taken out, whose word is 0: then none of those after it has a word.
    """
    integer = ir.IntType(64)
    four = ir.VectorType(integer, ENTRIES)
    line = pointer(builder, address, four)
    ids = builder.load(line, align=32)
    wanted = builder.insert_element(ir.Constant(four, ir.Undefined), id, integer(0))
    wanted = builder.shuffle_vector(
        wanted, wanted, ir.Constant(ir.VectorType(ir.IntType(32), ENTRIES), [0] * ENTRIES)
    )
    hit = builder.bitcast(builder.icmp_signed("==", ids, wanted), ir.IntType(ENTRIES))
    none = integer(1 << ENTRIES)
    return builder.cttz(builder.or_(builder.zext(hit, integer), none), ir.IntType(1)(1))


class Shape(NamedTuple):
    """An array of buckets in registers: `old` and `new` are uint64, how many there are.

    They differ, and `cursor` is not 0, while the array grows from the one to the other: buckets
    from the cursor on have their entries where they will be.
    """

    buckets: np.int64
    old: np.uint64
    new: np.uint64
    cursor: np.int64


@inlined
def home_of(id, shape):  # type: ignore[no-untyped-def]
    """Return the bucket where to look for an id first."""
    h = np.uint64(id) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    # both, without a branch: while the array grows it would be guessed wrong half of the time
    before, after = np.int64(high_product(h, shape.old)), np.int64(high_product(h, shape.new))
    return before if before < shape.cursor else after


@inlined
def probe(base, id, home):  # type: ignore[no-untyped-def]
    """Return (word, address) of the entry of an id; word 0 where it is unknown."""
    bucket = base + BUCKET_NBYTES * home
    word, address = look(bucket, id)
    while word == 0 and is_full(bucket):
        bucket += BUCKET_NBYTES
        word, address = look(bucket, id)
    return word, address


@inlined
def look(bucket, id):  # type: ignore[no-untyped-def]
    """Return what `probe` does, of one bucket."""
    number = match(bucket, id)
    address = bucket + 8 * number
    # the row's number stays; the tag is changed meanwhile by `set_bit`, `release_word` (passes.py)
    # and `clear_bits` (below)
    return read_integer(address + WORD) if number < ENTRIES else 0, address


@inlined
def is_full(address):  # type: ignore[no-untyped-def]
    return load_integer(address + BUCKET_NBYTES - 8) != 0  # entries come from the left


@inlined
def put(address, id, word):  # type: ignore[no-untyped-def]
    """Put an entry into the bucket at `address` or the next one that is not full."""
    while is_full(address):
        address += BUCKET_NBYTES
    while load_integer(address + WORD) != 0:
        address += 8
    store_integer(address, id)
    store_integer(address + WORD, word)
