"""The servers are changed for more or fewer ones, at a moment at which all stand alike."""

from __future__ import annotations

import json

import pytest

from edl.common.errors import CheckpointError, JobError
from edl.common.settings import JobSettings
from edl.ps.books.ledger import Entry, Ledger, Span


def texts(job):
    return [event["text"] for event in job.cli.status()[1]["events"]]


def told(job, text):
    job.until(lambda status: any(text in event["text"] for event in status["events"]))


def serving(job):
    """The incarnations of the servers that run."""
    servers = [each for each in job.runtime.started if each.role == "server"]
    return {each.index: each.incarnation for each in servers}


def renewed(job, before, count):
    """Have so many servers come in the place of those before; they stand where those stood.

    Of attempts they know the first ones alone: others are refused unless they are told.
    """
    fresh = [job.runtime.wait_for("server", i, before.get(i, "")) for i in range(count)]
    entries = [Entry(each.task, 1, each.applied) for each in job.servers.ledgers[0].entries()]
    job.servers.ledgers = [Ledger(entries, tasks_below=10**9) for _ in range(count)]
    for index in range(count):
        job.register_server(index, before.get(index, ""), port=9000)
    told(job, f"goes on with {count} servers")
    return fresh


@pytest.fixture
def trains(start):
    """A job of two servers and one worker that has done a task, and half of another."""
    job = start([("a", 40)], drain_grace_s=60.0)
    worker = job.worker()
    done, held = worker.lease(), worker.lease()
    worker.train(done)
    assert worker.done(done)
    worker.train(held, until=2)
    return job


@pytest.mark.parametrize("servers", [1, 3])
def test_other_servers_begin_where_all_stood_and_are_told_the_attempts(trains, servers):
    """Broken once: they are told nothing, and apply nothing of an attempt beyond the first."""
    job, before = trains, serving(trains)

    assert job.cli.scale(2, servers) == 1
    fresh = renewed(job, before, servers)

    arguments = {job.runtime.arguments["server", server.index] for server in fresh}
    assert len(arguments) == 1
    flag, checkpoint = arguments.pop()
    assert (flag, checkpoint.split("/")[-2]) == ("--restore", "servers")
    reply = job.client().get_servers(1, 0.0)
    assert (reply.slot_map_version, len(reply.addresses)) == (2, servers)
    worker = job.worker(0)
    assert JobSettings.from_json(worker.registered.settings_json).num_ps == servers
    assert JobSettings.of_job(job.folder).num_ps == servers
    job.worker(1).leave()
    worker.work()
    status = job.end()
    assert (job.code, status["records_done"]) == (0, 40)
    assert len(job.servers.ledgers) == servers
    assert job.is_whole()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"deterministic": True}, "a --deterministic job keeps its servers"),
        ({"strategy": "allreduce", "num_ps": 0}, "only a job that trains with --strategy ps"),
        ({"runtime": "kubernetes"}, "--checkpoint_dir on a volume"),
    ],
)
def test_a_job_whose_servers_cannot_change_says_why_and_goes_on(start, settings, why):
    job = start(**settings)

    with pytest.raises(JobError, match=why):
        job.cli.scale(2, 3)

    assert not any("wanted" in text for text in texts(job))


def test_what_is_asked_for_meanwhile_comes_after_the_change(trains):
    job, before = trains, serving(trains)
    job.cli.scale(2, 3)
    job.cli.scale(4)
    assert job.cli.scale(3, 1) == 4
    # Not who serves when that is over: those of the change that comes after may be there by then.
    fresh = {each.index: each.incarnation for each in renewed(job, before, 3)}

    renewed(job, fresh, 1)

    job.runtime.wait_for("worker", 2)
    status = job.cli.status()[1]
    assert (len(status["workers"]), len(status["servers"])) == (3, 1)


def test_what_only_workers_level_they_level_before_the_servers_change(trains):
    """Broken once: the cut waits for workers, who wait for the servers to have changed."""
    job, before = trains, serving(trains)
    held = job.queue.tasks[max(job.queue.unretired)]
    job.servers.push(Span(held.id, held.attempt, 2, 4), shard=0)  # and the worker is killed

    job.cli.scale(1, 3)

    worker = job.worker(0)  # again
    task = worker.lease()
    assert (task.id, task.position, list(task.boundaries)) == (held.id, 2, [4])
    worker.train(task)
    assert worker.done(task)
    renewed(job, before, 3)


def test_a_job_whose_state_cannot_be_written_stays_as_it_is(trains):
    job, before = trains, serving(trains)

    def snapshot(cut, directory):
        raise CheckpointError("the disk is full")

    job.servers.snapshot = snapshot
    job.cli.scale(2, 3)

    told(job, "stays on 2 servers: the disk is full")
    assert serving(job) == before
    del job.servers.snapshot
    job.runtime.wait_for("worker", 1)
    job.worker(1).leave()
    job.worker(0).work()
    job.end()
    assert job.code == 0
    assert job.is_whole()


@pytest.mark.parametrize("renews", [False, True])
def test_a_master_that_is_killed_meanwhile_is_followed_by_one_that_goes_on_with_it(trains, renews):
    job, before = trains, serving(trains)
    if not renews:
        job.servers.down.set()  # nothing is written yet
    job.cli.scale(1, 3)
    if renews:
        for index in range(3):
            job.runtime.wait_for("server", index, before.get(index, ""))
        job.until(lambda status: len(status["servers"]) == 3)
    job.restart()
    job.servers.down.clear()

    renewed(job, before, 3)

    worker = job.worker(0)
    assert JobSettings.from_json(worker.registered.settings_json).num_ps == 3
    worker.work()
    job.end()
    assert (job.code, job.is_whole()) == (0, True)


def test_a_stop_waits_for_the_change_and_leaves_what_the_new_servers_hold(trains):
    job, before = trains, serving(trains)
    job.cli.scale(1, 3)
    job.runtime.wait_for("server", 2)
    job.cli.stop("test")

    entries = list(job.servers.ledgers[0].entries())
    job.servers.ledgers = [Ledger(entries, tasks_below=10**9) for _ in range(3)]
    for index in range(3):
        job.register_server(index, before.get(index, ""), port=9000)

    status = job.end()
    assert (job.code, status["records_done"]) == (130, 6)
    manifest = json.loads((job.folder / status["resume"] / "MANIFEST.json").read_text())
    assert manifest["books"]["settings"]["num_ps"] == 3
