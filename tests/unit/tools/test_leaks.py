"""The check of tests/conftest.py: a test that leaves something behind fails, and no other."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tools import leaks
from tools.turns import in_turn

TESTS = Path(__file__).parents[2]
KINDS = ("thread", "process", "orphan", "descriptor", "shared_memory")
SUITE = """
import mmap, os, subprocess, sys, tempfile, threading
from pathlib import Path

import pytest
from tools.waiting import until

ends, kept = threading.Event(), []


@pytest.fixture(scope="module", autouse=True)
def _cleaning():
    yield
    ends.set()
    for process in kept:
        process.kill()
        process.wait()


def test_nothing():
    threading.Thread(target=int).start()
    subprocess.run(["true"], check=True)


def test_thread():
    threading.Thread(target=ends.wait, name="forgotten").start()


def test_process():
    kept.append(subprocess.Popen(["sleep", "300"]))


def test_orphan(tmp_path):
    subprocess.run(["sh", "-c", "sleep 301 & echo $! > orphan"], check=True)
    line = Path("/proc", Path("orphan").read_text().strip(), "cmdline")
    until(lambda: line.read_bytes().startswith(b"sleep"))  # before that it has no environment


def test_descriptor(tmp_path):
    kept_open = os.open(tmp_path / "forgotten", os.O_CREAT)


def test_shared_memory():
    descriptor = os.memfd_create("forgotten")
    os.truncate(descriptor, 4096)
    globals()["region"] = mmap.mmap(descriptor, 4096)
    os.close(descriptor)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the check said of each test of a suite that leaks, by the test's kind."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_leaking.py").write_text(SUITE)
    checked = (TESTS / "conftest.py").read_text() + "\nleaks.GRACE_S = 0.2\n"
    (folder / "conftest.py").write_text(checked)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_leaking.py"]
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    os.kill(int((folder / "orphan").read_text()), 9)
    said = re.findall(
        r"ERROR at teardown of test_(\w+) .*?AssertionError: left behind: (.*?)\n",
        ended.stdout,
        re.DOTALL,
    )
    assert f"6 passed, {len(said)} errors" in ended.stdout, ended.stdout
    return dict(said)


@in_turn(2)
def test_only_tests_that_leave_something_behind_fail(told):
    assert set(KINDS) == set(told)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("thread", r"thread 'forgotten'"),
        ("process", r"process \d+ \(sleep 300\)"),
        ("orphan", r"process \d+ \(sleep 301\)"),
        ("descriptor", r"1 x descriptor of \S+/forgotten"),
        ("shared_memory", r".*; shared memory /memfd:forgotten \(deleted\)"),
    ],
)
def test_what_is_left_behind_is_named(told, kind, says):
    assert re.fullmatch(says, told[kind])


def test_what_is_on_its_way_to_its_end_is_waited_for():
    before, ends = leaks.Held.now(), threading.Event()
    process = subprocess.Popen(["sleep", "0.05"])

    def end() -> None:
        ends.wait(60)
        process.wait()

    threading.Thread(target=end).start()

    ends.set()

    assert [] == leaks.left_since(before)


def test_thread_that_is_just_being_begun_is_awaited(monkeypatch):
    before, thread = leaks.Held.now(), threading.Thread(target=int)
    threading._limbo[thread] = thread  # as `start` does, until the thread has begun
    monkeypatch.setattr(leaks.time, "sleep", lambda _: thread.start())

    assert leaks.left_since(before) == []
    assert not thread.is_alive()
