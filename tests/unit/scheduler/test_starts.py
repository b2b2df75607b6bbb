"""A queued job whose master ends before it serves is begun a few times, with pauses, and ends."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from edl.common import paths
from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.jobs import queue, start, tries
from edl.jobs.local import LocalJob
from edl.scheduler import local
from edl.scheduler.jobs import Given, Shape

_DIES = "echo 'edl: error: there is no file m.py' >&2; exit 2"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalJob:
    """A job in the queue whose master says what is wrong and ends."""
    monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr(start, "_MASTER", ("sh", "-c", _DIES, "sh"))
    return queue.put(JobSettings(job_name="j"), 5)


def a_round(place: local.LocalPlace, told: list[str]) -> list[str]:
    """Begin what may be begun; return whose turn it was."""
    seen = place.look()
    place.act({job.name: Given(Shape(1, 0, 1), "so") for job in seen.jobs}, seen, told.append)
    for each in seen.jobs:
        paths.wait_until_unlocked(paths.job_folder(each.name))
    return [each.name for each in seen.jobs]


@pytest.mark.parametrize("is_killed", [False, True], ids=["one scheduler", "another each time"])
def test_it_is_begun_three_times_after_growing_pauses_and_ends_with_the_reason(
    job: LocalJob, is_killed: bool
) -> None:
    clock, told, begun = Clock(), [], []
    places = [local.LocalPlace(4, clock)]
    for _ in range(60):
        if is_killed:
            places.append(local.LocalPlace(4, clock))
        if a_round(places[-1], told):
            begun.append(clock.now - 1000.0)
        clock.now += 1.0
    for place in places:  # what init does for a scheduler that is gone
        for child in place._begun.values():
            child.wait(60)

    assert [0.0, 10.0, 30.0] == begun
    status = job.status()
    assert ("failed", 1 if is_killed else 2) == (status["state"], status["exit_code"])
    assert (
        "its master ended at each of 3 starts; at the last one: there is no file m.py"
        == status["message"]
    )
    assert f"j: {status['message']}" == told[-1]


def test_the_status_says_between_two_starts_how_the_last_one_ended(job: LocalJob) -> None:
    place, told = local.LocalPlace(4, Clock()), []
    a_round(place, told)
    a_round(place, told)

    status = job.status()

    assert "queued" == status["state"]
    assert (
        "its master has ended at its start, 1 of 3 times, and it is begun again after "
        "1970-01-01T00:16:50Z: there is no file m.py" == status["message"]
    )
    assert f"waits: {status['message']}" == place.look().ignored["j"]


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("it cannot be"), 2), (OSError("it cannot be"), 1)]
)
def test_a_start_that_cannot_be_counts_as_one(
    job: LocalJob, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def go_on(_job: LocalJob) -> None:
        raise error

    monkeypatch.setattr(queue, "go_on", go_on)
    a_round(local.LocalPlace(4, Clock()), [])

    assert tries.Tries(1, 1000, "it cannot be", code) == tries.read(job.folder)


@pytest.mark.parametrize("values", ['{"of": "another version"}', "{", "[]"])
def test_a_job_whose_settings_cannot_be_read_ends_with_the_reason(
    job: LocalJob, values: str
) -> None:
    (job.folder / "settings.json").write_text(values)
    clock, told = Clock(), []
    place = local.LocalPlace(4, clock)
    turns = 0
    for _ in range(60):
        turns += bool(a_round(place, told))
        clock.now += 1.0

    assert 3 == turns
    assert "failed" == job.status()["state"]
    assert "settings.json is not of this version" in job.status()["message"]


@pytest.mark.parametrize("values", ["[]", '{"number": -1}', "{", '{"number": 1, "last": 1.5}'])
def test_tries_that_cannot_be_read_leave_the_job_alone(job: LocalJob, values: str) -> None:
    (job.folder / "tries.json").write_text(values)
    seen = local.LocalPlace(4).look()

    assert ("tries.json" in seen.ignored["j"], []) == (True, seen.jobs)
    assert ("queued", True) == (job.status()["state"], "tries.json" in job.status()["message"])


def test_tries_of_a_later_version_are_read(job: LocalJob) -> None:
    tries.write(job.folder, tries.Tries(2, 7, "so"))
    values = json.loads((job.folder / "tries.json").read_text())
    (job.folder / "tries.json").write_text(json.dumps({**values, "more": 1}))

    assert tries.Tries(2, 7, "so") == tries.read(job.folder)


def test_a_plan_for_which_there_is_no_room_is_told_of_and_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(path: Path, *_parts: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(local.storage, "write_file", write)
    told: list[str] = []
    local.LocalPlace(1).keep({"at": 0, "jobs": [], "ignored": {}}, told.append)

    assert 1 == len(told)
    assert "No space left on device" in told[0]
