"""Nurseries of jobs are forks of the tests' own, in all that a job can see."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tools import leaks, warm_nursery

COMMAND = (sys.executable, "-m", "edl.worker", "--nursery", "ps")
PIPE = subprocess.PIPE
FAR_S = 120.0
from tools.turns import in_turn


@pytest.fixture
def warm():
    """Wait for the one of this run of tests."""
    address = Path(os.environ.get(warm_nursery.VARIABLE, "not there"))
    if not address.is_absolute():
        pytest.skip("without -n there is none")
    deadline = time.monotonic() + FAR_S
    while not address.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def nursery(*prefix):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLOUR": "yes"}
    return subprocess.Popen([*prefix, *COMMAND], stdin=PIPE, stdout=PIPE, env=env)


def differing():
    """Return in what this process is elsewhere than the tests' nursery."""
    sys.path.append(str(Path(warm_nursery.__file__).with_name("warm")))
    here = importlib.import_module("surroundings").where({**os.environ, "OMP_NUM_THREADS": "1"})
    there = json.loads(Path(os.environ[warm_nursery.VARIABLE] + ".json").read_text())
    return {
        name: (here.get(name), there.get(name))
        for name in here.keys() | there.keys()
        if here.get(name) != there.get(name)
    }


def forks():
    """Return the processes that are known by this test's mark: the one asked for, and its fork."""
    return leaks.marked() - {os.getpid()}


def test_a_fork_is_ready_is_known_by_its_mark_and_ends_with_its_input(warm):
    """Broken once: `_show` wrote nothing, so that what a fork leaves would not be found."""
    with nursery() as asked:
        assert b'{"ready": true}\n' == asked.stdout.readline()
        assert len(forks()) == 2, differing()
        assert {"yes"} == {psutil.Process(pid).environ()["COLOUR"] for pid in forks()}
        asked.stdin.close()
        assert 0 == asked.wait(FAR_S)


def test_a_fork_is_killed_with_the_process_that_it_stands_for(warm):
    with nursery() as asked:
        assert asked.stdout.readline()
        asked.kill()
        assert -signal.SIGKILL == asked.wait(FAR_S)
        assert b"" == asked.stdout.read()  # nobody has the other end any more


@in_turn(1)
@pytest.mark.parametrize("elsewhere", [["env", "OMP_NUM_THREADS=2"], ["unshare", "--mount"]])
def test_whoever_is_elsewhere_imports_for_himself(warm, elsewhere):
    """Broken once: without namespaces, a job in a mount of its own wrote beside it."""
    if elsewhere[0] == "unshare" and os.getuid():
        pytest.skip("needs root")
    with nursery(*elsewhere) as asked:
        assert b'{"ready": true}\n' == asked.stdout.readline()
        assert forks() == {asked.pid}
        asked.stdin.close()
        assert 0 == asked.wait(FAR_S)
