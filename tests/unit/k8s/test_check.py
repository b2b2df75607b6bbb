"""The check of a definition in its own container: what it leaves and what the master believes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from edl import __version__
from edl.common.errors import JobError, UsageError
from edl.common.settings import JobSettings
from edl.k8s import check

DESCRIBED = {"training": [["a", 3]]}


def leave(folder: Path, **result: object) -> Path:
    found = {"version": __version__, "code": 0, "said": "", **result}
    (folder / check.RESULT).write_text(json.dumps(found))
    return folder


def test_what_the_check_has_found_is_read(tmp_path):
    assert check.read(leave(tmp_path, described=DESCRIBED)) == DESCRIBED


def test_what_is_wrong_is_the_last_line_with_its_code(tmp_path):
    leave(tmp_path, code=2, said="noise\nedl: error: iris has no model.")

    with pytest.raises(check.CheckFailed, match="^iris has no model.$") as found:
        check.read(tmp_path)

    assert found.value.exit_code == 2


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"code": -11}, "killed by SIGSEGV"),
        ({}, "ends its process"),
        ({"described": 7}, "ends its process"),
    ],
)
def test_a_check_that_ended_otherwise_is_an_error_that_says_how(tmp_path, result, said):
    with pytest.raises(JobError, match=said):
        check.read(leave(tmp_path, **result))


def test_images_of_two_versions_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="holds edl 0.0.9"):
        check.read(leave(tmp_path, version="0.0.9"))


@pytest.mark.parametrize("kind", ["link", "fifo", "none", "text", "list"])
def test_nothing_but_a_plain_file_is_read_and_nothing_of_it_is_told(tmp_path, kind):
    """The user's code could leave a link to the master's token. Broken once: it is followed."""
    secret, path = tmp_path / "token", tmp_path / check.RESULT
    secret.write_text(json.dumps({"version": "token-of-the-master"}))
    match kind:
        case "link":
            path.symlink_to(secret)
        case "fifo":
            os.mkfifo(path)
        case "text":
            path.write_text("token-of-the-master")
        case "list":
            path.write_text("[1]")

    with pytest.raises(JobError) as found:
        check.read(tmp_path)

    assert "token-of-the-master" not in str(found.value)


@pytest.fixture
def told(tmp_path, monkeypatch) -> Path:
    """Make a folder with settings; what `edl.worker --describe` does is in `worker`."""
    (tmp_path / "settings.json").write_text(JobSettings().to_json())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "worker"))
    (tmp_path / "into").mkdir()
    return tmp_path


def run(told: Path, script: str) -> int:
    worker = told / "worker"
    worker.write_text(f"#!/bin/sh\n{script}\n")
    worker.chmod(0o755)
    return check.main([str(told), str(told / "into"), str(told / "job"), "uid-1"])


def test_the_check_leaves_what_it_found(told):
    script = f"echo '{json.dumps(DESCRIBED)}' > \"$5/describe.json\""

    assert run(told, script) == 0
    assert check.read(told / "into") == DESCRIBED


def test_a_check_that_was_killed_ends_as_one_out_of_memory(told):
    assert run(told, "kill -9 $$") == check.OUT_OF_MEMORY


def test_a_definition_that_ends_its_process_is_named(told):
    assert run(told, "echo bye; exit 0") == 0
    with pytest.raises(JobError, match="ends its process.*bye"):
        check.read(told / "into")


def test_a_job_that_has_begun_is_not_checked_again_and_another_ones_folder_is_not_believed(told):
    job = told / "job"
    job.mkdir()
    (job / "describe.json").write_text("{}")
    (job / "owner").write_text("uid-1")
    assert run(told, "exit 9") == 0
    assert not (told / "into" / check.RESULT).exists()

    (job / "owner").write_text("uid-of-another")
    run(told, "exit 9")
    assert (told / "into" / check.RESULT).exists()


def test_what_the_check_derives_of_the_data_stays_out_of_the_jobs_folder(told, monkeypatch):
    """The job's folder is the master's to write. Broken once: the check keeps EDL_JOB_DIR."""
    monkeypatch.setenv("EDL_JOB_DIR", str(told / "job"))
    script = '[ "$EDL_JOB_DIR" = "$5" ] || exit 9'

    assert run(told, f"{script}; echo '{json.dumps(DESCRIBED)}' > \"$5/describe.json\"") == 0
    assert check.read(told / "into") == DESCRIBED
