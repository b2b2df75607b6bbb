"""The memory of the tensor plane stays within its budget, and buffers are used again."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest
from tools.waiting import FAR_S, until

from edl.common.errors import EdlError
from edl.proto import ps_pb2 as pb
from edl.ps.books.aggregation import Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.parameters import Invalid
from edl.ps.wire.buffers import Buffers
from edl.ps.wire.shard import ShardPush

from .planes import push


def test_slow_server_bounds_the_memory_of_pushes(start):
    budget = 4 << 20
    shard = start(budget_nbytes=budget)
    entered, go = threading.Semaphore(0), threading.Event()
    apply, shard.store.push = shard.store.push, None

    def slow(*arguments, **options):
        entered.release()
        assert go.wait(FAR_S)
        return apply(*arguments, **options)

    shard.store.push = slow
    connection = shard.connect()
    ids = np.arange(20_000)  # 1.4 MB
    replies = []

    def one(task):
        values = np.ones((len(ids), 16), np.float32)
        request = ShardPush(Span(task, 1, 0, 8), 0, tables={"t": (ids, values)})
        replies.append(connection.start_push(request, FAR_S)().outcome)

    threads = [threading.Thread(target=one, args=(task,)) for task in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert entered.acquire(timeout=FAR_S)
    until(lambda: shard.plane.buffers.waiting == 6)

    assert shard.plane.buffers.nbytes <= budget
    go.set()
    for thread in threads:
        thread.join(FAR_S)
    assert replies == 8 * [pb.PushReply.APPLIED]
    assert shard.plane.buffers.nbytes <= budget


def test_push_that_a_pin_waits_for_needs_no_budget(start):
    shard = start(budget_nbytes=2 << 20)
    store, ids = shard.store, np.arange(20_000)  # 1.4 MB
    assert store.push(Span(1, 1, 0, 8), 0, Update()).outcome is Outcome.APPLIED
    store.pins.freeze("c", FAR_S)
    connection = shard.connect()
    replies = []

    def one(task, first):
        tables = {"t": (ids, np.ones((len(ids), 16), np.float32))}
        request = ShardPush(Span(task, 1, first, first + 8), 0, tables=tables)
        replies.append((task, connection.start_push(request, FAR_S)().outcome))

    threads = [threading.Thread(target=one, args=spans) for spans in ((0, 0), (1, 8))]
    threads[0].start()  # held back with all of the budget
    until(lambda: shard.plane.buffers.nbytes)
    threads[1].start()
    until(lambda: shard.plane.buffers.waiting)

    assert store.pins.pin("c", {1: 16}, FAR_S) == (True, 2)

    for thread in threads:
        thread.join(FAR_S)
    assert sorted(replies) == [(0, pb.PushReply.APPLIED), (1, pb.PushReply.APPLIED)]
    assert shard.plane.buffers.nbytes <= 2 << 20


def test_memory_that_is_given_back_wakes_one_of_those_that_wait_for_it(monkeypatch):
    monkeypatch.setattr("edl.ps.wire.buffers._LOOK_S", FAR_S)
    buffers, looks, taken = Buffers(1 << 20), [], []

    def take(number):
        taken.append((number, buffers.take(1 << 20, lambda: looks.append(number) or False)))

    first = buffers.take(1 << 20)
    for number in range(5):
        threading.Thread(target=take, args=(number,), daemon=True).start()
        until(lambda number=number: buffers.waiting == number + 1)
    for number in range(5):
        buffers.give(taken[-1][1] if taken else first)
        until(lambda number=number: len(taken) == number + 1)

    assert list(range(5)) == [number for number, _ in taken]
    assert list(range(5)) == looks  # each, before it waited


def test_push_beyond_the_budget_is_refused(start):
    shard = start(budget_nbytes=1 << 20)

    with pytest.raises(EdlError, match="this server takes"):
        shard.connect().start_push(push(0, 8, np.arange(20_000)), FAR_S)()


def test_buffers_that_do_not_fit_make_room():
    buffers = Buffers(4 << 20)
    buffers.give(buffers.take(3 << 20))

    assert len(buffers.take(2 << 20)) == 4 << 20  # the one that is there
    with pytest.raises(Invalid):
        buffers.take(5 << 20)
    buffers = Buffers(4 << 20)
    for size in (1, 2, 4):
        buffers.give(buffers.take(size << 20))
    assert (buffers.nbytes, buffers.kept) == (4 << 20, 4 << 20)


def test_large_buffers_may_have_huge_pages():
    buffer = Buffers(8 << 20).take(3 << 20)

    assert (len(buffer), buffer.ctypes.data % (2 << 20)) == (4 << 20, 0)
    smaps = re.findall(
        r"^(\w+)-(\w+) (\S+).*?VmFlags: (.*?)$",
        Path("/proc/self/smaps").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    (found,) = [
        (access, flags.split())
        for begin, end, access, flags in smaps
        if int(begin, 16) <= buffer.ctypes.data < int(end, 16)
    ]
    assert found[0] == "rw-p"  # memory that is shared has none, unless the system is told to
    assert "hg" in found[1]
