"""Replicas forked from a warm process: started, ended, and orphaned by a killed nursery."""

import os
import signal
import sys

import pytest
from tools.turns import in_turn

from edl.common.errors import JobError
from edl.runtime.nursery import Nursery

MAIN = """
import os, signal, sys
from edl.worker import nursery
def main():
    print(sys.argv, os.environ.get("COLOUR"), os.getsid(0) == os.getpid(), flush=True)
    if sys.argv[1] == "sleep":
        signal.pause()
    return int(sys.argv[1])
nursery.run(main, "ps")
"""


@pytest.fixture
def nursery(tmp_path):
    made = Nursery([sys.executable, "-c", MAIN], tmp_path / "nursery.log")
    yield made
    made.close()


def env(**more):
    return {"PATH": os.environ["PATH"], **more}


def test_a_forked_replica_has_its_own_arguments_environment_session_and_log(nursery, tmp_path):
    child = nursery.start(["replica", "7"], env(COLOUR="red"), tmp_path / "replica.log")
    assert child.wait(300) == 7
    assert (tmp_path / "replica.log").read_text() == "['replica', '7'] red True\n"


@in_turn(0)
def test_a_killed_replica_is_reported_by_its_signal_while_others_run(nursery, tmp_path):
    children = [nursery.start(["r", "sleep"], env(), tmp_path / f"{i}.log") for i in range(2)]
    os.kill(children[0].pid, signal.SIGKILL)
    assert children[0].wait(300) == -signal.SIGKILL
    assert children[1].poll() is None
    os.kill(children[1].pid, signal.SIGTERM)
    assert children[1].wait(300) == -signal.SIGTERM


def test_replicas_outlive_a_killed_nursery_and_their_end_is_still_noticed(nursery, tmp_path):
    child = nursery.start(["r", "sleep"], env(), tmp_path / "replica.log")
    os.kill(nursery.pid, signal.SIGKILL)
    assert nursery.start(["r", "0"], env(), tmp_path / "other.log") is None
    os.kill(child.pid, 0)  # still there
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(300) == -signal.SIGKILL


@in_turn(2)
def test_whoever_waits_for_slow_imports_says_so_and_ends_with_their_stack(tmp_path):
    slow = "from edl.common.process import show_stacks; show_stacks(); import time; time.sleep(60)"
    log = tmp_path / "nursery.log"
    made = Nursery([sys.executable, "-c", slow], log)
    said = []
    try:
        with pytest.raises(JobError, match="importing torch has taken"):
            made.await_ready(3.0, 0.5, lambda what, seconds: said.append(what))
    finally:
        os.kill(made.pid, signal.SIGKILL)
        made.close()

    assert "importing torch" in said
    assert "Current thread" in log.read_text()


def test_imports_that_fail_are_one_sentence(tmp_path):
    made = Nursery([sys.executable, "-c", "raise ImportError('libtorch')"], tmp_path / "log")

    with pytest.raises(JobError, match="importing torch has failed: see"):
        made.await_ready(60.0, 30.0, lambda what, seconds: None)

    made.close()
