"""Real processes, short ones: `python -c`. Nothing sleeps; every wait is for an event."""

from __future__ import annotations

import dataclasses
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools.turns import in_turn

from edl.common.errors import EdlError
from edl.runtime.base import Exit, Replica
from edl.runtime.local import LocalRuntime

WAIT_S = 300.0

PROLOGUE = """
import os, signal, sys
def ready():
    with open(os.environ["READY"], "w") as fifo:
        fifo.write("x")
"""


class Processes:
    """A runtime whose replicas run the code that a test gives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exits: queue.SimpleQueue[Exit] = queue.SimpleQueue()
        self.fifo = folder / "fifo"
        os.mkfifo(self.fifo)
        self.runtimes: list[LocalRuntime] = []

    def runtime(self, code: str) -> LocalRuntime:
        made = LocalRuntime(
            self.folder,
            master_address="host:1",
            report=self.exits.put,
            command=dict.fromkeys(("worker", "server"), (sys.executable, "-c", PROLOGUE + code)),
        )
        self.runtimes.append(made)
        return made

    def start(self, code: str, wait: bool = False, **env: str) -> tuple[LocalRuntime, Replica]:
        """Start one worker; with `wait`, once it has called ready()."""
        runtime = self.runtime(code)
        replica = runtime.start("worker", 3, "abc", {"READY": str(self.fifo), **env}, ("--more",))
        if wait:
            assert "x" == self.fifo.read_text()
        return runtime, replica

    def exit(self) -> Exit:
        return self.exits.get(timeout=WAIT_S)

    def log(self) -> str:
        return (self.folder / "logs" / "worker-3.log").read_text()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    for runtime in made.runtimes:
        runtime.close()


def test_an_exit_code_is_reported_with_its_replica(processes):
    _, replica = processes.start("sys.exit(7)")

    assert Exit(replica, 7) == processes.exit()
    assert ("worker", 3, "abc") == (replica.role, replica.index, replica.incarnation)


def test_a_kill_is_reported_as_minus_its_signal(processes):
    _, replica = processes.start("ready(); signal.pause()", wait=True)

    os.kill(replica.pid, signal.SIGKILL)

    assert Exit(replica, -signal.SIGKILL) == processes.exit()


def test_a_replica_gets_its_arguments_and_environment_and_its_output_is_kept(processes):
    code = "print(sys.argv[1:], os.environ['COLOUR']); print('bad', file=sys.stderr)"

    processes.start(code, COLOUR="red")

    processes.exit()
    told = "['--index', '3', '--incarnation', 'abc', '--master', 'host:1', '--more'] red"
    assert sorted([told, "bad"]) == sorted(processes.log().splitlines())


def test_the_log_of_a_replacement_is_appended(processes):
    runtime, _ = processes.start("print('once')")
    processes.exit()

    runtime.start("worker", 3, "next", {})

    processes.exit()
    assert "once\nonce\n" == processes.log()


def test_stop_asks_first(processes):
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); ready(); signal.pause()"
    runtime, replica = processes.start(code, wait=True)

    runtime.stop(replica, 60)

    assert Exit(replica, 5) == processes.exit()


def test_stop_kills_whoever_does_not_go_within_the_grace(processes):
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()\nwhile True: signal.pause()"
    runtime, replica = processes.start(code, wait=True)

    runtime.stop(replica, 0.1)

    assert Exit(replica, -signal.SIGKILL) == processes.exit()


def test_stop_without_grace_kills_at_once_even_a_stopped_process(processes):
    runtime, replica = processes.start("ready(); signal.pause()", wait=True)
    os.kill(replica.pid, signal.SIGSTOP)

    runtime.stop(replica, 0)

    assert Exit(replica, -signal.SIGKILL) == processes.exit()


def test_stopping_what_has_ended_is_harmless(processes):
    runtime, replica = processes.start("pass")
    processes.exit()

    runtime.stop(replica, 1)
    runtime.stop(replica, 0)

    assert processes.exits.empty()


def test_what_a_replica_started_goes_with_it(processes):
    code = (
        "import subprocess; child = subprocess.Popen(['sleep', '1000'])\n"
        "print(child.pid, flush=True); ready(); signal.pause()"
    )
    _, replica = processes.start(code, wait=True)
    grandchild = os.pidfd_open(int(processes.log()))

    os.kill(replica.pid, signal.SIGKILL)

    processes.exit()
    assert select.select([grandchild], [], [], WAIT_S)[0]
    os.close(grandchild)


def test_a_replica_is_a_session_of_its_own(processes):
    """Ctrl-C in the terminal is to reach the master alone."""
    processes.start("print(os.getsid(0) == os.getpid())")

    processes.exit()
    assert "True\n" == processes.log()


def test_close_kills_all_and_reports_nothing(processes):
    runtime, replica = processes.start("ready(); signal.pause()", wait=True)

    runtime.close()

    with pytest.raises(ProcessLookupError):
        os.kill(replica.pid, 0)
    assert processes.exits.empty()
    with pytest.raises(EdlError, match="the job is ending"):
        runtime.start("worker", 0, "late", {})


def test_a_process_of_an_earlier_master_is_adopted_and_its_end_reported_as_unknown(processes):
    first, replica = processes.start("ready(); signal.pause()", wait=True)
    first.detach()
    second = processes.runtime("")

    second.adopt(replica)
    os.kill(replica.pid, signal.SIGTERM)

    assert Exit(replica, -signal.SIGKILL, unknown=True) == processes.exit()
    assert processes.exits.empty()  # the first one has let go


def test_an_adopted_process_is_asked_to_stop_and_then_killed(processes):
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()\nwhile True: signal.pause()"
    first, replica = processes.start(code, wait=True)
    first.detach()
    second = processes.runtime("")
    second.adopt(replica)

    second.stop(replica, 0.1)

    assert Exit(replica, -signal.SIGKILL, unknown=True) == processes.exit()


def test_close_kills_adopted_processes_too(processes):
    first, replica = processes.start("ready(); signal.pause()", wait=True)
    first.detach()
    second = processes.runtime("")
    second.adopt(replica)
    handle = os.pidfd_open(replica.pid)

    second.close()

    assert select.select([handle], [], [], WAIT_S)[0]
    os.close(handle)


def test_a_process_that_ended_before_it_was_adopted_is_reported_at_once(processes):
    first, replica = processes.start("pass")
    processes.exit()

    first.adopt(replica)

    assert Exit(replica, -signal.SIGKILL, unknown=True) == processes.exit()


def test_a_stranger_who_has_the_pid_by_now_is_neither_watched_nor_killed(processes):
    first, replica = processes.start("ready(); signal.pause()", wait=True)
    first.detach()
    second = processes.runtime("")
    before = dataclasses.replace(replica, started=replica.started - 1)

    second.adopt(before)

    assert Exit(before, -signal.SIGKILL, unknown=True) == processes.exit()
    second.stop(before, 0)
    second.close()
    assert psutil.Process(replica.pid).is_running()
    os.kill(replica.pid, signal.SIGKILL)


def test_a_start_without_a_pid_is_reported_as_ended(processes):
    runtime = processes.runtime("")

    runtime.adopt(Replica("worker", 0, "never"))

    assert Exit(Replica("worker", 0, "never"), -signal.SIGKILL, unknown=True) == processes.exit()


@in_turn(0)
def test_detach_leaves_all_alive(processes):
    runtime, replica = processes.start("ready(); signal.pause()", wait=True)

    runtime.detach()
    runtime.close()

    assert psutil.Process(replica.pid).is_running()
    os.kill(replica.pid, signal.SIGKILL)


def test_a_command_that_cannot_be_run_is_an_error(tmp_path):
    runtime = LocalRuntime(
        tmp_path, master_address="", report=lambda _: None, command={"worker": ("/no/such/file",)}
    )

    with pytest.raises(EdlError, match="worker 0 cannot be started"):
        runtime.start("worker", 0, "x", {})


def test_replicas_come_out_of_the_nursery_once_it_is_ready_and_nobody_waits_for_it(tmp_path):
    asked: list[list[str]] = []

    class Full:
        ready = False

        def start(self, argv, env, log):
            asked.append(list(argv))
            assert env["COLOUR"] == "red"
            # gone: the slow way

    exits: queue.SimpleQueue[Exit] = queue.SimpleQueue()
    runtime = LocalRuntime(
        tmp_path,
        master_address="host:1",
        report=exits.put,
        command=dict.fromkeys(("worker", "server"), (sys.executable, "-c", "import sys")),
        nursery=Full(),
    )

    for number, (role, Full.ready) in enumerate(
        [("worker", False), ("server", False), ("server", True), ("worker", True)]
    ):
        runtime.start(role, 0, f"{role} {number}", {"COLOUR": "red"})

    assert [0, 0, 0, 0] == [exits.get(timeout=WAIT_S).code for _ in range(4)]
    assert [
        ["import sys", "--index", "0", "--incarnation", name, "--master", "host:1"]
        for name in ("server 2", "worker 3")
    ] == asked


def test_a_fork_that_does_not_lead_a_group_yet_is_killed_all_the_same(tmp_path):
    child = subprocess.Popen((sys.executable, "-c", "import signal; signal.pause()"))

    class Nursery:
        ready = True

        def start(self, argv, env, log):
            return child  # in our group, as a fork is before its setsid

    exits: queue.SimpleQueue[Exit] = queue.SimpleQueue()
    runtime = LocalRuntime(tmp_path, master_address="", report=exits.put, nursery=Nursery())
    replica = runtime.start("worker", 0, "x", {})
    try:
        runtime.stop(replica, 0)

        assert -signal.SIGKILL == exits.get(timeout=300.0).code
    finally:
        child.kill()


def test_a_pid_that_a_thread_has_by_now_is_of_a_process_that_ended(processes):
    first, replica = processes.start("pass")
    processes.exit()
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    before = dataclasses.replace(replica, pid=thread.native_id)

    try:
        first.adopt(before)
    finally:
        ends.set()
        thread.join()

    assert Exit(before, -signal.SIGKILL, unknown=True) == processes.exit()
