"""Checkpoints, and the cuts of the servers that they are made of."""

from __future__ import annotations

import re
import threading

from tools.stores import world

from edl.common import storage
from edl.common.errors import Unreachable
from edl.master.books.saved import queue_of as queue_from
from edl.proto import master_pb2 as pb


def test_a_checkpoint_is_written_at_the_end_with_the_books(start, tmp_path):
    job = start([("a", 8)], checkpoint_dir=str(tmp_path / "c"))

    job.worker().work()

    status = job.end()
    manifest = storage.latest(tmp_path / "c")
    assert manifest is not None
    assert str(manifest.directory) == status["checkpoint"]
    books = manifest.books
    assert ([], 1) == (books["tasks"], books["epochs_opened"])
    assert queue_from(job.queue.plan, books).plan_done


def test_checkpoints_come_every_so_many_versions_and_old_ones_go(start, tmp_path):
    job = start(
        [("a", 8)], checkpoint_dir=str(tmp_path / "c"), checkpoint_steps=2, keep_checkpoint_max=1
    )
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    client = job.client(about)

    client.heartbeat(version=2)

    first = job.until(lambda s: s["checkpoint"])["checkpoint"]
    books = storage.read_manifest(first).books
    assert ([], [[2, 3]]) == (
        books["tasks"],
        books["untouched"],
    )  # the first is applied, done or not
    worker.done(task)
    worker.work()
    last = job.end()["checkpoint"]
    assert first != last
    assert [last] == [str(path) for path in storage.find_checkpoints(tmp_path / "c")]


def test_a_checkpoint_of_the_same_state_is_not_written_over(start, tmp_path):
    """While it is written again it is none: a crash then would leave no checkpoint at all."""
    job = start([("a", 4)], checkpoint_dir=str(tmp_path / "c"), checkpoint_steps=1)
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    job.client(about).heartbeat(version=4)
    saved = job.until(lambda s: s["checkpoint"])["checkpoint"]
    worker.done(task)

    worker.work()

    assert saved == job.end()["checkpoint"]
    assert 1 == job.servers.calls.count("snapshot")


def test_a_store_that_fails_costs_a_checkpoint_and_the_next_one_is_written(start):
    there = world("of-a-job", new=True)
    job = start(
        [("a", 8)], checkpoint_dir="flaky://of-a-job/c", checkpoint_steps=2, keep_checkpoint_max=1
    )
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    client = job.client(about)
    there.down, there.error = True, PermissionError(13, "Access Denied")

    client.heartbeat(version=2)

    said = job.until(lambda s: "training goes on" in str(s["events"]))["events"]
    (text,) = [event["text"] for event in said if "training goes on" in event["text"]]
    assert re.fullmatch(
        r"checkpoint flaky://of-a-job/c cannot be written: flaky://of-a-job/c/version-\d+/"
        r"MANIFEST.json cannot be read: Access Denied; training goes on",
        text,
    )
    there.down = False
    worker.done(task)
    worker.work()
    last = job.end()["checkpoint"]
    assert [last] == [str(place) for place in storage.find_checkpoints("flaky://of-a-job/c")]


def test_stop_hands_back_writes_a_checkpoint_and_says_how_to_go_on(start, tmp_path):
    job = start([("a", 8)], checkpoint_dir=str(tmp_path / "c"))
    worker = job.worker()
    task = worker.lease()
    worker.train(task, until=2)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    job.client(about).heartbeat(version=1)

    job.cli.stop("enough")

    status = job.end()
    assert (130, "stopped") == (job.code, status["state"])
    manifest = storage.latest(tmp_path / "c")
    assert manifest is not None
    books = manifest.books
    assert ([[1, 0, 2, 2, []]], [[2, 3]]) == (books["tasks"], books["untouched"])
    assert f"edl train --resume {manifest.directory}" in status["message"]


def test_a_groups_snapshot_is_not_written_again_for_spans_that_only_servers_count(start):
    """A span whose records are all skipped is a push to the servers, and no step of the group."""
    job = start([("a", 12)], strategy="hybrid", snapshot_s=0.05)
    worker = job.worker()
    about = worker.client.join(pb.JoinRequest(wait_s=20.0, version=-1))
    watch = pb.WatchRoundRequest(round=about.round, wait_s=2.0)
    replica = job.runtime.wait_for("server", 0)
    server = job.client(pb.Replica(role=pb.SERVER, index=0, incarnation=replica.incarnation))

    server.heartbeat(version=1)

    assert [] == list(worker.client.watch_round(watch).orders)
    worker.client.heartbeat(version=1, round_=about.round)
    assert [pb.Order.TAKE] == [o.kind for o in worker.client.watch_round(watch).orders]


def test_a_cut_that_is_tried_again_has_another_name(start, tmp_path):
    """A shard may have pinned the name that the first try gave it: that state is too old now."""
    job = start([("a", 8)], checkpoint_dir=str(tmp_path / "c"))
    names, cut = [], job.servers.take_cut

    def once_lost(name, hold_s):
        names.append(name)
        if len(names) == 1:
            raise Unreachable("the reply is lost")
        return cut(name, hold_s)

    job.servers.take_cut = once_lost

    job.worker().work()

    job.end()
    assert 2 == len(set(names))


def test_sync_mode_flushes_at_the_end_of_each_epoch(start):
    job = start([("a", 4)], num_epochs=2, grads_to_wait=4)

    job.worker().work()

    job.end()
    assert 2 == job.servers.calls.count("flush")


def test_no_flush_falls_into_a_cut(start, tmp_path):
    job = start([("a", 4)], checkpoint_dir=str(tmp_path / "c"), checkpoint_steps=1)
    order, cut, flush, go_on = [], job.servers.take_cut, job.servers.flush, threading.Event()

    def slow(name, hold_s):
        order.append("cut")
        assert go_on.wait(300)
        order.append("cut is done")
        return cut(name, hold_s)

    job.servers.take_cut = slow
    job.servers.flush = lambda: order.append("flush") or flush()
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    job.client(about).heartbeat(version=1)
    job.until(lambda s: order == ["cut"])
    worker.done(task)
    job.until(lambda s: s["tasks"]["done"] == 1)
    for _ in range(2):
        job.until(lambda s: True)

    go_on.set()

    worker.work()
    job.end()
    assert ["cut", "cut is done", "flush", "cut", "cut is done"] == order
