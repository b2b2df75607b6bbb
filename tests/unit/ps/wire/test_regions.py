"""Shared regions of the tensor plane: used again, and checked before they are used."""

from __future__ import annotations

import fcntl
import gc
import os
import threading

import numpy as np
import pytest
from tools.waiting import FAR_S, until

from edl.proto import ps_pb2 as pb
from edl.ps.wire import frames
from edl.ps.wire.frames import Head
from edl.wire.regions import make_region

from .planes import frame, pull, received


def test_region_is_used_again_when_its_views_are_gone(start):
    shard = start()
    connection = shard.connect("shm")
    request = pull(("t", np.arange(10_000)))
    connection.start_pull(request, FAR_S)()  # tells the client how wide rows are
    held = connection.start_pull(request, FAR_S)().tables["t"]
    expected = held.copy()
    (link,) = connection._pool._all
    regions = link.regions.sizes

    again = connection.start_pull(request, FAR_S)().tables["t"]

    assert not np.shares_memory(held, again)
    np.testing.assert_array_equal(held, expected)
    assert len(link.regions) == len(regions) + 1
    del held, again
    gc.collect()
    for _ in range(5):
        connection.start_pull(request, FAR_S)()
    assert len(link.regions) == len(regions) + 1
    assert link.regions.free == len(link.regions)


def test_rows_are_views_of_shared_memory(start):
    connection = start().connect("shm")
    request = pull(("t", np.arange(10_000)))
    connection.start_pull(request, FAR_S)()

    rows = connection.start_pull(request, FAR_S)().tables["t"]

    assert not rows.flags.owndata


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW])
def test_region_that_could_shrink_is_refused(start, seals):
    shard = start()
    fd = os.memfd_create("region", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)

    assert "sealed" in shared(shard, fd, 4096)


def test_region_that_is_too_short_is_refused(start):
    fd, _ = make_region(4096)

    assert "long enough" in shared(start(), fd, 8192)


def test_descriptor_that_is_no_memory_is_refused(start):
    assert "no shared region" in shared(start(), os.open("/dev/null", os.O_RDWR), 4096)


def shared(shard, fd, nbytes):
    """Return the error that the server tells of a region."""
    sock, peer = shard.unix_peer()
    told = bytearray(1000)
    sock.sendall(frames.pack_head(Head(frames.MAP, body_nbytes=nbytes, body_region=1)))
    assert sock.recv_into(told) == frames.HEAD_NBYTES
    peer.send_descriptor(fd)
    os.close(fd)
    count = sock.recv_into(told)
    sock.close()
    assert frames.parse_head(told, frames.REPLIES).op == frames.ERROR
    return frames.error_text(told[frames.HEAD_NBYTES : count])


def test_regions_are_not_shared_over_tcp(start):
    shard = start()
    sock, _ = shard.peer()
    sock.sendall(frames.pack_head(Head(frames.MAP, body_nbytes=4096, body_region=1)))
    told = b"".join(iter(lambda: received(sock), b""))

    assert frames.parse_head(told, frames.REPLIES).op == frames.ERROR


class Later:
    """A peer whose push of rows of ones lies in a region, its values not yet."""

    def __init__(self, shard, ids):
        self._sock, peer = shard.unix_peer()
        fd, self._memory = make_region(1 << 20)
        self._sock.sendall(frames.pack_head(Head(frames.MAP, body_nbytes=1 << 20, body_region=1)))
        self.reply()
        peer.send_descriptor(fd)
        os.close(fd)
        self.reply()
        self._ids = np.asarray(ids, np.int64)
        self._memory[: self._ids.nbytes] = self._ids.view(np.uint8)
        head = Head(frames.PUSH, frames.LATER, attempt=1, end=8, body_region=1)
        told = (frames.ROWS, frames.FLOAT32, "t", 16, len(ids))
        self._sock.sendall(frame(head, told))

    def complete(self):
        values = np.ones((len(self._ids), 16), np.float32)
        start = frames.padded(self._ids.nbytes)
        self._memory[start : start + values.nbytes] = values.reshape(-1).view(np.uint8)
        self._sock.sendall(b"V")

    def reply(self):
        """Return the head of the reply; None: the server hung up."""
        told = self._sock.recv(1000)
        return frames.parse_head(told, frames.REPLIES) if told else None

    def close(self):
        self._sock.close()


def test_ids_in_a_region_are_checked_before_the_values_are_there(start, monkeypatch):
    shard = start()
    checked = threading.Event()
    check_rows = shard.store.check_rows
    monkeypatch.setattr(
        shard.store, "check_rows", lambda *asked: (check_rows(*asked), checked.set())
    )
    before = shard.store.pull(dense=False, known_version=None, tables=[("t", np.arange(3))])

    peer = Later(shard, np.arange(3))
    assert checked.wait(FAR_S)
    assert shard.store.version == 0
    peer.complete()

    assert peer.reply().code == pb.PushReply.APPLIED
    after = shard.store.pull(dense=False, known_version=None, tables=[("t", np.arange(3))])
    np.testing.assert_array_equal(after[2][0], before[2][0] - 1)


@pytest.mark.parametrize("ends", ["stops", "dies"])
def test_push_whose_values_never_come_changes_nothing(start, ends):
    shard = start(stall_s=0.05 if ends == "stops" else FAR_S)

    peer = Later(shard, np.arange(3))
    if ends == "dies":
        peer.close()
    else:
        assert peer.reply() is None
    until(lambda: not shard.plane.connections)

    assert (shard.store.version, shard.store.ledger()) == (0, ())


def test_refusal_waits_for_the_values_so_that_the_region_is_free(start):
    shard = start()

    peer = Later(shard, [1, 1])
    peer.complete()

    assert (peer.reply().op, shard.store.version) == (frames.ERROR, 0)
    peer._sock.sendall(frames.pack_head(Head(frames.PULL)))
    assert peer.reply().op == frames.PULLED


def test_body_in_a_region_that_is_not_shared_is_malformed(start):
    shard = start()
    sock, _ = shard.unix_peer()
    head = Head(frames.PULL, body_region=3)
    sock.sendall(frame(head, (frames.ROWS, frames.NONE, "t", 0, 4)))
    told = b"".join(iter(lambda: received(sock), b""))

    assert frames.error_text(told[frames.HEAD_NBYTES :]) == "region 3 has 0 bytes, not 32"
