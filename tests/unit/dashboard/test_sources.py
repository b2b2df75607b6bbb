"""Jobs whose processes are gone: told from their folders, which stay as they are."""

import json
import os

import pytest
from kept.folders import HERE, JOB, Kept

from edl.common.errors import UsageError
from edl.dashboard.model import meter_of
from edl.dashboard.sources import FolderJobs, LocalSource, model_of
from edl.jobs.local import LocalJob

(PS,) = HERE.glob("*e5532ee/ps")


@pytest.fixture
def crashed(tmp_path, monkeypatch):
    """Return the folder of a job of which all processes were killed."""
    monkeypatch.chdir(Kept(PS).place(tmp_path / "home"))
    folder = tmp_path / "home" / JOB
    os.utime(folder / "master.json", (1e9, 1e9))  # whoever has its pid now came later
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_job_that_was_killed_is_told_from_its_journal_which_stays_as_it_is(crashed):
    before = contents(crashed)
    job = FolderJobs(crashed).find(None)

    told = model_of(job).snapshot(0.0)

    assert before == contents(crashed)
    status, meter = told["status"], told["meter"]
    assert ("dead", False, "bad") == (status["state"], told["live"], told["health"]["level"])
    assert "edl train --resume" in status["message"]
    assert (152, 256) == (status["records_done"], status["records_total"])
    assert (0, 0, 256) == (meter["lost"], meter["twice"], meter["total"])
    assert 8 == meter["quarantined"]
    assert {"epoch": 1, "by": []}.items() <= told["tasks"].items()
    assert 8 == sum(count for _, count in told["tasks"]["runs"])
    assert 0 == status["restarts"]["master"]
    assert not any("started again" in event["text"] for event in told["events"])
    assert all(life["ended"] is not None for life in told["incarnations"])


def test_a_job_that_has_ended_is_its_result(crashed):
    result = {"job_name": "it", "state": "done", "exit_code": 0, "message": "all done"}
    (crashed / "result.json").write_text(json.dumps(result))

    told = model_of(LocalJob(crashed)).snapshot(0.0)
    assert (result, "ended") == (told["status"], told["health"]["level"])
    assert meter_of(result) is None


def test_another_job_of_the_same_name_is_another_model(crashed):
    source = LocalSource(LocalJob(crashed))
    assert not source.hear()[0].anew

    crashed.rename(crashed.with_name("before"))
    crashed.mkdir()
    assert [True, False] == [source.hear()[0].anew, source.hear()[0].anew]


def test_a_folder_that_is_no_jobs_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no settings.json"):
        FolderJobs(tmp_path)


@pytest.mark.parametrize(("told_at", "state"), [(1e9, "dead"), (None, "silent")])
def test_a_master_whose_pid_another_process_has_is_gone(crashed, told_at, state):
    """Broken once: a job that died before the machine was started again was silent for ever."""
    told = json.loads((crashed / "master.json").read_text())
    (crashed / "master.json").write_text(json.dumps({**told, "pid": os.getpid()}))
    if told_at is not None:  # else it was just now
        os.utime(crashed / "master.json", (told_at, told_at))

    assert state == model_of(LocalJob(crashed)).snapshot(0.0)["status"]["state"]


def test_a_journal_that_cannot_be_read_is_said_so(crashed):
    (crashed / "journal.sqlite").write_bytes(b"not a journal" * 100)

    told = model_of(LocalJob(crashed)).snapshot(0.0)
    assert "dead" == told["status"]["state"]
