"""A job alone writes to its folders: it is refused, ends or goes without where another one does."""

from __future__ import annotations

import contextlib
import json
import re
import time

import pytest

from edl.common import claims as module
from edl.common import deltas, storage
from edl.common.claims import FILE, Claim, Holder
from edl.common.clock import FakeClock
from edl.common.conditional import seen, swap
from edl.common.errors import UsageError
from edl.common.places import Place
from edl.common.settings import JobSettings
from edl.durable.journal import Journal
from edl.jobs.claims import Claims
from edl.master.owning import named, remembered
from edl.proto import master_pb2 as pb

WAIT_S = 60.0


@pytest.fixture
def claimed(tmp_path, monkeypatch):
    """Return claimed(setting) -> claims, renewed all the time, to the folder of that name."""
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    made = []

    def claim(*names):
        me = Holder("a-1", "a", "a", "h", master="m")
        places = {name: Place(tmp_path / name) for name in names}
        made.append(Claims({name: Claim(place, me) for name, place in places.items()}))
        made[-1].take(tmp_path, has_begun=False)
        return made[-1]

    yield claim
    for each in made:
        each.close()


def steal(folder):
    """Put another job into OWNER, as if this one had slept for longer than its claim lasts."""
    place, data = Place(folder), json.dumps({"owner": "b-1", "job": "b", "host": "x"}).encode()
    while swap(place, FILE, data, seen(place, FILE)) is None:
        pass


def step(job, worker, task, until):
    """Train a task up to here; the servers tell of it."""
    worker.train(task, until=until)
    task.position = until
    server = job.runtime.wait_for("server", 0)
    about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
    job.client(about).heartbeat(version=job.servers.pushes)


def test_a_job_whose_checkpoints_folder_is_anothers_by_now_ends_and_writes_nothing(
    start, claimed, tmp_path
):
    """Broken once: two jobs in one folder wrote and removed each other's checkpoints."""
    folder = tmp_path / "checkpoint_dir"
    job = start([("a", 8)], checkpoint_dir=str(folder), claims=claimed("checkpoint_dir"))
    worker = job.worker()
    task = worker.lease()
    worker.train(task)
    worker.done(task)

    steal(folder)

    status = job.end()
    assert (1, "failed") == (job.code, status["state"])
    assert re.fullmatch(
        f"--checkpoint_dir: {folder} is written to by the job 'b', on x, by now: this job writes "
        f"there no more; go on with: edl train --resume {job.folder}",
        status["message"],
    )
    assert [] == storage.find_checkpoints(folder)


def test_no_checkpoint_is_written_where_a_loss_is_found_out_by_the_write_itself(start, tmp_path):
    folder = tmp_path / "checkpoint_dir"
    me = Holder("a-1", "a", "a", "h", master="m")
    claim = Claim(Place(folder), me)
    claim.take()
    job = start([("a", 8)], checkpoint_dir=str(folder), claims=Claims({"checkpoint_dir": claim}))
    steal(folder)

    worker = job.worker()
    for _ in range(2):
        task = worker.lease()
        worker.train(task)
        worker.done(task)

    status = job.end()
    assert "is written to by the job 'b', on x" in status["message"]
    assert [] == storage.find_checkpoints(folder)


def test_a_job_whose_deltas_folder_is_anothers_by_now_trains_on_without_them(
    start, claimed, tmp_path
):
    folder = tmp_path / "delta_dir"
    job = start(
        [("a", 40)],
        delta_dir=str(folder),
        delta_s=0.01,
        keep_last=False,
        claims=claimed("delta_dir"),
    )
    worker = job.worker()
    task = worker.lease()
    step(job, worker, task, 2)
    deadline = time.monotonic() + WAIT_S
    while not deltas.listed(Place(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    steal(folder)
    job.until(lambda s: any("training goes on" in event["text"] for event in s["events"]))
    before = {path.name for path in folder.iterdir()}

    step(job, worker, task, 4)
    worker.done(task)
    worker.work()

    status = job.end()
    told = [event["text"] for event in status["events"] if "'b'" in event["text"]]
    why = f"{folder} is written to by the job 'b', on x, by now: this job writes there no more"
    assert [f"--delta_dir: {why}; training goes on"] == told
    assert 0 == job.code
    assert before == {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_folder_of_a_running_job_refuses_a_new_one_and_ends_one_that_goes_on(tmp_path, has_begun):
    place, clock, told = Place(tmp_path / "x"), FakeClock(), []
    theirs = Claim(place, Holder("b-1", "b", "b", "x", master="theirs"))
    theirs.take()

    def wait(seconds):
        told.append((tmp_path / "starting").read_text())
        clock.advance(seconds)
        theirs.renew()

    ours = Claim(place, Holder("a-1", "a", "a", "h", master="ours"), clock, wait)
    lost = []

    if has_begun:
        claims = Claims({"delta_dir": ours})
        claims.take(tmp_path, has_begun=True)
        claims.hear(lambda name, why: lost.append((name, why)))
    else:
        with pytest.raises(UsageError, match="--delta_dir: the job 'b', which is running, writes"):
            Claims({"delta_dir": ours}).take(tmp_path, has_begun=False)

    assert has_begun == bool(lost)
    assert "whether that still runs is seen within 25 s" in told[0]
    assert not (tmp_path / "starting").exists()


def test_a_folder_that_cannot_be_asked_is_told_of_and_asked_again(tmp_path):
    (tmp_path / "file").touch()
    claims = Claims({"output": Claim(Place(tmp_path / "file" / "x"), Holder("a-1", "a", "a"))})

    claims.take(tmp_path, has_begun=False)
    claims.close()

    assert ["--output: whether another job writes there is not known"] == [
        note.rpartition(":")[0].partition(": [")[0] for note in claims.notes
    ]


def test_whoever_goes_on_with_a_checkpoint_is_the_same_owner(start, tmp_path):
    """Broken once: a job that was resumed had another name, and its deltas were a stranger's."""
    job = start([("a", 8)], checkpoint_dir=str(tmp_path / "c"), delta_dir=str(tmp_path / "d"))
    job.worker().work()
    job.end()
    checkpoint = storage.latest(tmp_path / "c")
    there = Place(tmp_path / "d")
    cut = deltas.about(deltas.said(there / str(deltas.listed(there)[-1])))

    goes_on = JobSettings(job_name="it-r1", resume=str(checkpoint.place))

    assert cut.job == checkpoint.books["owner"] == named(goes_on, "another token")
    begins = JobSettings(job_name="new", checkpoint_dir_for_init=str(checkpoint.place))
    assert "new-2cf24dba5fb0" == named(begins, "hello")  # for each master of this token
    with contextlib.closing(Journal(tmp_path / "its.sqlite")) as journal:
        assert cut.job == remembered(journal, lambda: named(goes_on, "another token"))
        assert cut.job == remembered(journal, lambda: "not asked")


@pytest.mark.parametrize("owner", [None, 3, "", "a/b", "x" * 300])
def test_a_checkpoint_without_a_name_that_can_be_one_makes_a_new_owner(tmp_path, owner):
    books = {} if owner is None else {"owner": owner}
    about = {"version": 8, "num_shards": 1, "num_slots": 4, "files": [], "model": {}}
    place = storage.version_directory(tmp_path, 8)
    place.mkdir()
    storage.write_manifest(place, **about, books=books)

    assert "it-2cf24dba5fb0" == named(JobSettings(job_name="it", resume=str(place)), "hello")
