"""`edl top` itself: in a terminal of its own, driven by keys, and in a pipe."""

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest
from tools.waiting import until

from edl.cli.main import run
from edl.common import rpc
from edl.dashboard.sources import LocalSource
from edl.jobs.local import LocalJob
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc

TOKEN = "of-the-job"
FAR_S = 100.0
HOSTILE = "an \x1b[31mevil\x1b[2J \x07line"
STATUS = {
    "job_name": "it",
    "state": "running",
    "command": "train",
    "started_s_ago": 2.0,
    "records_done": 50,
    "records_total": 100,
    "records_per_s": 25.0,
    "records": {"applied": 50, "leased": 8, "todo": 42, "quarantined": 0, "recomputed": 0}
    | {"total": 100},
    "workers": [
        {"index": 0, "state": "training", "incarnation": "abc", "heartbeat_age_s": 0.1, "task": 3}
    ],
    "servers": [{"index": 0, "state": "serving", "incarnation": "def", "heartbeat_age_s": 0.2}],
    "events": [{"id": 1, "t": 0.5, "text": "worker 0 registered (pid 1)", "kind": "start"}],
}


class Master(master_pb2_grpc.MasterServicer):
    """A master of one job that runs for ever, and notes what it is asked."""

    def __init__(self):
        self.asked = []
        self.polls = 0

    def Status(self, request, context):
        if request.known_revision:  # a long poll: nothing is new
            self.polls += 1
            over = time.monotonic() + request.wait_s
            while context.is_active() and time.monotonic() < over:
                time.sleep(0.01)
        return pb.StatusReply(revision=1, status_json=json.dumps(STATUS))

    def Scale(self, request, context):
        self.asked.append(("scale", request.num_workers))
        return pb.ScaleReply(previous=1)

    def Stop(self, request, context):
        self.asked.append(("stop", request.reason))
        return pb.StopReply()


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return the master of a job `it` that runs, beside one that has ended."""
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    old, folder = tmp_path / "jobs" / "old", tmp_path / "jobs" / "it"
    for each in (old, folder):
        (each / "logs").mkdir(parents=True)
        (each / "settings.json").write_text("{}")
    (old / "result.json").write_text(json.dumps({"job_name": "old", "state": "done"}))
    (folder / "token").write_text(TOKEN)
    (folder / "logs" / "worker-0.log").write_text(f"first\n{HOSTILE}\n")
    master = Master()
    master.folder = folder
    server = rpc.Server(
        lambda server: master_pb2_grpc.add_MasterServicer_to_server(master, server), token=TOKEN
    )
    about = {"address": server.address, "pid": os.getpid()}
    (folder / "master.json").write_text(json.dumps(about))
    yield master
    server.stop(0.1)


class Screen:
    """A terminal in which `edl top` runs."""

    def __init__(self, *arguments, lines=24, columns=80, **environment):
        self.ours, self.theirs = os.openpty()
        self.resize(lines, columns)
        self.before = termios.tcgetattr(self.theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edl", "top", *arguments],
            env={**os.environ, "TERM": "xterm", **environment},
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
        )
        self.all = b""
        self.seen = 0  # of `all`

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait(FAR_S)
        os.close(self.ours)
        os.close(self.theirs)

    def resize(self, lines, columns):
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys):
        os.write(self.ours, keys.encode())

    def until(self, part):
        """Read on until a text is drawn; return the frame that has it."""
        deadline = time.monotonic() + FAR_S
        while part not in (text := re.sub(r"\x1b\[[0-9;]*m", "", self.all[self.seen :].decode())):
            assert time.monotonic() < deadline, f"no {part!r} in {text}"
            self._read(0.1)
        self.seen = len(self.all)
        return text

    def end(self):
        """Return the exit code, once all is read."""
        deadline = time.monotonic() + FAR_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.01)
        self._read(0.0)
        return self.process.wait(1.0)

    def _read(self, wait_s):
        while select.select([self.ours], [], [], wait_s)[0]:
            with contextlib.suppress(OSError):
                self.all += os.read(self.ours, 65536)
            wait_s = 0.0

    def is_as_before(self):
        return (
            self.before == termios.tcgetattr(self.theirs)
            and self.all.endswith(b"\x1b[?2004l\x1b[?25h\x1b[?1049l")
            and 1 == self.all.count(b"\x1b[?1049h")
        )


def test_jobs_are_driven_by_keys_and_the_terminal_is_as_before(job):
    with Screen() as screen:
        listed = screen.until("jobs · 2")
        assert "> it" in listed  # the one that runs is first
        assert "\x1b[?1049h" in listed
        screen.press("s")
        screen.until("sort: done")

        screen.press("\r")
        assert "0 lost · 0 twice · applied 50" in screen.until("worker-0")
        screen.press("ssss")
        screen.until("rate▼")
        screen.press("SSSS\x1b[B")
        screen.until("> worker-0")
        screen.press("l")
        assert r"an \x1b[31mevil\x1b[2J \x07line" in screen.until("evil")
        with open(job.folder / "logs" / "worker-0.log", "a") as file:
            file.write("one more\n")
        screen.until("one more")
        screen.press("q+")
        screen.until("Scale it from 1 to 2 workers?")
        screen.press("n+")
        assert [] == job.asked
        screen.until("Scale it from 1 to 2 workers?")
        screen.press("+y")
        screen.until("it: 1 -> 3 workers wanted")
        assert [("scale", 3)] == job.asked

        screen.resize(20, 60)
        screen.process.send_signal(signal.SIGWINCH)
        screen.until("\x1b[2J")
        screen.press("q")
        screen.until("jobs · 2")
        screen.press("q")
        assert 0 == screen.end()
        assert screen.is_as_before()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_the_terminal_is_as_before(job, number):
    with Screen("it") as screen:
        screen.until("worker-0")
        screen.process.send_signal(number)

        assert 0 == screen.end()
        assert screen.is_as_before()


def test_a_job_is_let_go_of_in_the_midst_of_a_long_poll(job):
    source, over = LocalSource(LocalJob(job.folder)), threading.Event()
    heard = []
    thread = threading.Thread(target=source.run, args=(heard.append, over))
    thread.start()
    until(lambda: job.polls)  # which lasts two seconds
    began = time.monotonic()
    over.set()
    source.close()
    thread.join(FAR_S)

    assert time.monotonic() - began < 1.5
    assert ["running"] == [each.status["state"] for each in heard]


def test_a_log_is_followed_until_nobody_reads_it(job):
    lines = LocalJob(job.folder).lines(role="worker", index=0, follow=True, until=lambda: True)

    assert ["first", HOSTILE] == list(lines)


# -- in a pipe


def printed(capsys, *arguments):
    assert 0 == run(["top", *arguments])
    return capsys.readouterr().out


def test_a_pipe_gets_all_there_is_once(job, capsys):
    told = printed(capsys)
    assert "\x1b" not in told
    assert ["it", "old"] == [line.split()[0] for line in told.splitlines()[3:]]

    told = printed(capsys, "it")
    assert "0 lost · 0 twice · applied 50" in told
    assert "worker 0 registered (pid 1)" in told
    assert "\x1b" not in told


def test_a_terminal_that_cannot_draw_gets_the_same(job):
    with Screen("it", TERM="dumb") as screen:
        text = screen.until("worker 0 registered")

        assert 0 == screen.end()
        assert "\x1b[?1049h" not in text


def test_as_data_it_is_what_the_dashboard_answers(job, capsys):
    pytest.importorskip("starlette")
    import asyncio

    from tools import asgi

    from edl.dashboard.actions import Actions
    from edl.dashboard.app import Dashboard
    from edl.jobs.local import LocalJobs

    def ask(path):
        of = Dashboard(LocalJobs(), TOKEN, Actions(True)).asgi
        given = [("host", "127.0.0.1:1"), ("authorization", f"Bearer {TOKEN}")]
        return json.loads(asyncio.run(asgi.ask(of, "GET", path, [b""], given)).body)

    page, told = ask("/api/jobs/it"), json.loads(printed(capsys, "it", "-o", "json"))
    for each in (page, told):
        each.update(at=0.0, heard_s=0.0)
    assert page == told
    assert ask("/api/jobs") == json.loads(printed(capsys, "-o", "json"))


def test_a_folder_is_shown_whose_processes_are_gone(job, capsys):
    folder = job.folder.with_name("old")

    assert "old · done" in printed(capsys, "--from", str(folder))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nobody"], "There is no job 'nobody' here"),
        (["it", "--pods"], "is of jobs in a cluster"),
        (["--from", "nowhere"], "no settings.json"),
        (["--from", "nowhere", "-n", "team"], "leave out --runtime"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(job, capsys, arguments, why):
    assert 2 == run(["top", *arguments])
    told = capsys.readouterr().err

    assert why in told
    assert 1 == told.count("\n")
