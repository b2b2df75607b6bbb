"""A process that is told to end before it can hand anything back."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from grpc_health.v1 import health_pb2

from edl.common import process, rpc
from edl.common.errors import EdlError
from edl.launch.status import end_of
from edl.master.replicas import describe_end

INSIDE = ["unshare", "--pid", "--fork", "--kill-child"]


@pytest.mark.skipif(
    subprocess.run([*INSIDE, "true"], check=False, capture_output=True).returncode != 0,
    reason="process 1 needs the right to make a namespace of processes",
)
@pytest.mark.parametrize("role", ["worker", "ps"])
def test_a_replica_that_is_process_1_ends_at_sigterm_while_it_imports(role):
    """Nobody is at the master's address; the replica would try for two minutes."""
    command = ["-X", "importtime", "-m", f"edl.{role}", "--index=0", "--incarnation=a"]
    outer = subprocess.Popen(
        [*INSIDE, sys.executable, *command, "--master=127.0.0.1:1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert outer.stderr is not None
    try:
        next(line for line in outer.stderr if line.rstrip().endswith("numpy"))
        children = f"/proc/{outer.pid}/task/{outer.pid}/children"
        with open(children) as file:
            os.kill(int(file.read()), signal.SIGTERM)
        outer.communicate(timeout=300)
    finally:
        outer.kill()
        outer.communicate()

    assert outer.returncode == 128 + signal.SIGTERM


def test_a_server_may_open_as_many_files_as_the_machine_allows():
    code = (
        "import resource as r; from edl.common.process import allow_many_files;"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 512)); allow_many_files();"
        "print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert "(512, 512)" == done.stdout.strip()


_DEAF = """
import signal, threading
from edl.common import process, rpc

def main():
    server = rpc.Server(lambda _server: None, token="t")

    def refuse(self):
        raise RuntimeError("can't start new thread")

    threading.Thread.start = refuse
    print(server.address, flush=True)
    signal.pause()

process.end_with(main)
"""


def test_a_server_that_gets_no_thread_for_its_calls_ends_and_says_why():
    """Broken once: gRPC's thread that takes calls ended alone, and the process answered nobody."""
    server = subprocess.Popen(
        [sys.executable, "-c", _DEAF], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        channel = rpc.Channel(server.stdout.readline().strip(), "t")
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        with pytest.raises(EdlError):
            rpc.call(check, health_pb2.HealthCheckRequest(), 10.0)
        channel.close()
        _, said = server.communicate(timeout=60)
    finally:
        server.kill()
        server.communicate()

    assert process.STARVED == server.returncode
    assert "no more threads or memory" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("MemoryError", 71),
        ('RuntimeError("can\'t start new thread")', 71),
        ("OSError(12, 'Cannot allocate memory')", 71),
        ("RuntimeError", 1),
    ],
)
def test_a_main_that_finds_no_threads_or_memory_ends_with_a_code_of_its_own(raised, code):
    # What a process does at its end may fail too, and hides the error.
    main = f"def main():\n    try:\n        raise {raised}\n    finally:\n        int('x')\n"
    command = f"from edl.common import process\n{main}process.end_with(main)"
    ended = subprocess.run([sys.executable, "-c", command], check=False, capture_output=True)

    assert code == ended.returncode


def test_the_code_is_told_in_words_by_whoever_started_the_process():
    assert "ended with exit code 1" == describe_end(1) == end_of(1)
    assert "exit code 71 (the system gives no more threads or memory" in describe_end(71)
    assert describe_end(71) == end_of(71)


def test_threads_are_tried_before_they_are_needed(monkeypatch):
    """gRPC's core, where it gets none, tries again each second, and tells nobody but a log."""
    began = []
    start = threading.Thread.start

    def some(thread):
        if len(began) == 5:
            raise RuntimeError("can't start new thread")
        began.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", some)

    process.check_threads(5)
    began.clear()
    with pytest.raises(RuntimeError) as raised:
        process.check_threads(6)
    assert process.lacks_thread(raised.value)
    assert not any(thread.is_alive() for thread in began)
