from __future__ import annotations

import mmap
import queue

import numpy as np

from edl.ps.rows import memory
from edl.ps.rows.memory import Memory

HUGE = 2 << 20


def resident_pages(piece):
    """Return how many pages of `piece` are in memory."""
    libc = memory.ctypes.CDLL(None)
    pages = -(-piece.nbytes // mmap.PAGESIZE)
    present = (memory.ctypes.c_ubyte * pages)()
    address = memory.ctypes.c_void_p(piece.ctypes.data)
    assert 0 == libc.mincore(address, memory.ctypes.c_size_t(piece.nbytes), present)
    return sum(bool(byte & 1) for byte in present)


def test_a_reservation_is_zeros_that_take_no_memory():
    reserved = Memory(128, 100_000_000)

    assert 12_800_000_000 <= reserved.bytes.nbytes < 12_800_000_000 + HUGE
    assert 0 == reserved.bytes.ctypes.data % HUGE
    assert 0 == resident_pages(reserved.bytes[: 64 * HUGE])
    assert not reserved.bytes[:: 64 * HUGE].any()


def test_what_is_about_to_be_used_is_prepared_and_keeps_its_values():
    reserved = Memory(1, 16 * HUGE)
    reserved.bytes[:] = 0
    reserved.bytes[3 * HUGE + 5] = 7
    ahead = Memory(1, 16 * HUGE)

    reserved.use(8 * HUGE, wait=True)
    ahead.use(8 * HUGE, wait=True)

    assert 7 == reserved.bytes[3 * HUGE + 5]
    assert 9 * HUGE // mmap.PAGESIZE <= resident_pages(ahead.bytes)  # and a quarter of 8
    assert not np.any(ahead.bytes[: 10 * HUGE])


def test_without_address_space_the_room_is_less(monkeypatch):
    def scarce(descriptor, nbytes, flags, real=mmap.mmap):
        if nbytes > 1 << 30:
            raise OSError(12, "Cannot allocate memory")
        return real(descriptor, nbytes, flags=flags)

    monkeypatch.setattr(memory.mmap, "mmap", scarce)

    reserved = Memory(64, 1 << 30)

    assert 1 << 28 < reserved.bytes.nbytes < 1 << 30


def test_huge_pages_near_to_the_writer_are_left_to_small_ones(monkeypatch):
    """A writer would come upon one half way, and have to clear it himself."""
    prepared, asked = [], queue.SimpleQueue()

    def madvise(address, nbytes, advice):
        if advice == memory._POPULATE_WRITE:
            prepared.append((address - reserved.bytes.ctypes.data) // HUGE)

    monkeypatch.setattr(memory, "_madvise", lambda: madvise)
    monkeypatch.setattr(memory, "_asked", lambda: asked)
    reserved = Memory(1, 400 * HUGE)

    for used in (80, 200):
        reserved.use(used * HUGE)
        _, end = asked.get_nowait()
        reserved.prepare(end)

    assert [*range(84, 100), *range(204, 232)] == prepared
