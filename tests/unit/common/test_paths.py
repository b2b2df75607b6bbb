"""Folders of jobs and the lock that says whether one runs."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from edl.common import paths
from edl.common.errors import UsageError

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_claimed_job_counts_as_running_until_its_lock_is_let_go() -> None:
    folder, descriptor = paths.claim("census")
    running = paths.is_locked(folder)

    os.close(descriptor)

    assert (True, False) == (running, paths.is_locked(folder))


def test_job_of_a_name_that_runs_cannot_be_claimed_again() -> None:
    _, descriptor = paths.claim("census")

    with pytest.raises(UsageError, match="'census' is running already: choose another --job_name"):
        paths.claim("census")

    os.close(descriptor)


def test_a_job_is_not_seen_before_it_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be taken for one whose master is gone."""
    seen = []
    is_locked = paths.is_locked

    def watched(name: str) -> None:
        real = getattr(paths, name)

        def call(*given: object) -> object:
            seen.extend((folder.name, is_locked(folder)) for folder in paths.job_folders())
            return real(*given)

        monkeypatch.setattr(paths, name, call)

    for name in ("lock", "is_locked", "why_unwritable"):
        watched(name)
    os.close(paths.claim("census")[1])
    seen.clear()
    folder, descriptor = paths.claim("census")

    assert [("census", False)] * len(seen) == seen  # the ended one, until the new one is there
    assert [folder] == paths.job_folders()
    assert is_locked(folder)
    assert {"census"} == {each.name for each in paths.jobs_folder().iterdir()}
    os.close(descriptor)


def test_who_looks_whether_a_job_runs_keeps_nobody_from_starting_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, descriptor = paths.claim("census")
    os.close(descriptor)
    flock = paths.fcntl.flock
    looker = os.open(folder / paths.LOCK, os.O_RDONLY)
    flock(looker, paths.fcntl.LOCK_SH)
    refused = []

    def refusing(number: int, how: int) -> None:
        try:
            flock(number, how)
        except BlockingIOError:
            refused.append(how)
            if len(refused) == 3:
                os.close(looker)
            raise

    monkeypatch.setattr(paths.fcntl, "flock", refusing)
    os.close(paths.lock(folder))

    assert 3 == len(refused)


def test_ended_job_of_the_same_name_is_kept_aside(home: Path) -> None:
    folder, descriptor = paths.claim("census")
    (folder / "result.json").write_text("{}")
    os.close(descriptor)

    folder, descriptor = paths.claim("census")
    os.close(descriptor)

    assert not (folder / "result.json").exists()
    assert 1 == len(list((home / "old").glob("census.*/result.json")))


def test_a_user_whose_home_nobody_knows_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def expanduser(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("EDL_HOME")
    monkeypatch.setattr(Path, "expanduser", expanduser)

    with pytest.raises(UsageError, match="set EDL_HOME to a folder"):
        paths.home()


def test_a_disk_that_has_room_for_names_alone_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken once: an empty file was made there, and that was taken for room."""

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)

    assert f"{home.parent} cannot be written (No space left on device)" == paths.why_unwritable(
        home
    )
    with pytest.raises(UsageError, match="No space left on device\\). Set EDL_HOME to a fo"):
        paths.claim("census")
    assert not home.exists()


def test_job_can_go_on_that_has_begun_and_is_neither_done_nor_run() -> None:
    folder, descriptor = paths.claim("census")
    result = folder / "result.json"
    assert not paths.can_go_on(folder)
    (folder / paths.JOURNAL).touch()
    assert (True, False) == (paths.can_go_on(folder), paths.stands(folder))
    os.close(descriptor)
    assert paths.stands(folder)

    for resume, can in ((None, False), ("/some/checkpoint", False), (str(folder), True)):
        result.write_text(json.dumps({"resume": resume}))
        assert can is paths.stands(folder)

    paths.put_aside_failure(folder)
    assert [False, True] == [result.exists(), (folder / paths.FAILED).exists()]
    assert paths.stands(folder)


def test_folder_of_a_job_is_for_its_owner_only() -> None:
    folder, descriptor = paths.claim("census")
    os.close(descriptor)

    assert 0o700 == stat.S_IMODE(folder.stat().st_mode)


def test_home_that_cannot_be_made_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "file"))

    with pytest.raises(UsageError, match="Set EDL_HOME to a folder"):
        paths.claim("census")
