"""Jobs whose teachers are asked about each record once: later their answers come from a cache.

A test's docstring says what was broken once to see it fail.
"""

import contextlib
import signal

import pytest
from tools.jobs import send
from tools.pupils import MINIBATCH, RECORDS, must_be_taught, scale_teachers, taught_job
from tools.turns import in_turn

from edl.distill import segments


def cached(folder, **settings):
    """Return settings of a job whose records come again an epoch later, and not sooner."""
    own = {"teacher_batch_size": MINIBATCH, "num_teachers": 1, "shuffle": False}
    # Nobody is silent here, and who were taken for lost would have his records asked again.
    own["lease_s"] = 30.0
    return {"teacher_cache": str(folder / "cache"), **own, **settings}


@in_turn(1)
@pytest.mark.parametrize("strategy", ["ps", pytest.param("allreduce", marks=pytest.mark.slow)])
def test_from_the_second_epoch_on_no_teacher_is_asked_and_others_learn_of_it_too(
    tmp_path, strategy
):
    """Broken once: (1) Cached.ask finds nothing; (2) Cache.flush writes nothing, so that the second
    job has none, nor other workers; (3) Seen has the number within the task for the record's."""
    # An epoch lasts 6 s: others' answers are written, and known of.
    delay_s = 0.2 if strategy == "ps" else 0.05
    settings = cached(tmp_path, num_epochs=3, delay_s=delay_s)
    job = taught_job(tmp_path, strategy=strategy, **settings)
    rows, cached_records = told_at_most(job)

    must_be_taught(job, 3)
    # On a busy machine others' answers may be heard of later than the records come again; and a
    # member of a group that has no slice yet asks about another's records, to compute along.
    assert RECORDS <= rows <= 1.5 * RECORDS
    assert 1.5 * RECORDS <= cached_records <= 2 * RECORDS

    (tmp_path / "teach").write_text("raise")
    settings = cached(tmp_path, num_teachers=0, shuffle=True, delay_s=0.05)  # some heartbeats long
    alone = taught_job(tmp_path, strategy=strategy, name="alone", **settings)
    rows, cached_records = told_at_most(alone)

    must_be_taught(alone, 1)
    assert rows == 0
    assert 0 < cached_records <= RECORDS  # those of the last moment are not told any more


def told_at_most(job):
    """Let a job end, and return the most rows of its teachers and records of its cache it told."""
    most = {"rows": 0, "cached": 0}

    def look(status):
        assert 0 == status["teaching"]["untaught"]
        most["rows"] = max(most["rows"], sum(each["rows"] for each in status["teachers"]))
        most["cached"] = max(most["cached"], status["teaching"]["cached"])
        return status["records_done"] >= status["records_total"] > 0

    with job:
        job.watch(look)
        assert 0 == job.wait(), job.logs()
    return most["rows"], most["cached"]


def kept(folder):
    """Return how many records have their answers in files."""
    found = set()
    for path in folder.glob("*/*.safetensors"):
        with contextlib.suppress(FileNotFoundError):  # written as one with others, meanwhile
            rows = segments.read_rows(path, path.parent.name)
            found.update(rows.table[:, segments.RECORD].tolist())
    return len(found)


@in_turn(3)
def test_workers_that_are_killed_leave_a_cache_that_others_go_on_with(tmp_path):
    """No teacher is there any more when the last worker comes."""
    job = taught_job(tmp_path, num_epochs=6, delay_s=0.05, **cached(tmp_path, shuffle=True))
    with job:
        # What a worker has not written yet ends with it, so all is awaited, however fast it goes.
        job.watch(lambda status: kept(tmp_path / "cache") == RECORDS)
        scale_teachers(job, 0)
        job.watch(lambda status: not [t for t in status["teachers"] if t["state"] == "teaching"])
        for worker in job.watch(lambda status: True)["workers"]:
            assert send(worker["pid"], signal.SIGKILL)
        assert 0 == job.wait(), job.logs()

    assert 0 == job.result()["teaching"]["untaught"]
    must_be_taught(job, 6)


def test_a_cache_that_lacks_a_record_fails_with_its_name(tmp_path):
    with taught_job(tmp_path, **cached(tmp_path)) as job:
        assert 0 == job.wait(), job.logs()
    files = sorted((tmp_path / "cache").glob("*/*.safetensors"))
    files[0].write_bytes(files[0].read_bytes()[:-1])

    alone = taught_job(tmp_path, name="alone", **cached(tmp_path, num_teachers=0))
    with alone:
        assert 1 == alone.wait(), alone.logs()

    result = alone.result()
    assert "has no answer about record" in result["message"]
    assert [] == result["quarantined"]
    assert any(f"{files[0]} is passed over" in each["text"] for each in result["events"]), result
