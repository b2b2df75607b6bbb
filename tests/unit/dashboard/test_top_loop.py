"""The edges of `edl top`: the terminal that is given back, logs, and errors that are told."""

import asyncio
import io
import itertools
import os
import signal
import termios
import threading
import time

import pytest
from rich.console import Console
from rich.text import Text
from tools.waiting import until

from edl.common.errors import JobError, UsageError
from edl.dashboard.asides import Asides
from edl.dashboard.terminal import logs
from edl.dashboard.terminal.events import Follow, Lines
from edl.dashboard.terminal.logs import LogReader
from edl.dashboard.terminal.machine import LINES
from edl.dashboard.terminal.terminal import Terminal
from edl.dashboard.terminal.top import Top

from .top_snapshots import HOSTILE

FAR_S = 20.0
CLEARED = b"\x1b[H\x1b[2J"  # the last of what takes a terminal
GIVEN_BACK = b"\x1b[?2004l\x1b[?25h\x1b[?1049l"


class FakeJob:
    """A job of a cluster, say: it is looked at."""

    name = where = "demo"

    def __init__(self):
        self.done = []
        self.state = "running"
        self.log = ["a line"]

    def look(self):
        worker = {"index": 0, "state": "training", "heartbeat_age_s": 0.1}
        return {"job_name": "demo", "state": self.state, "workers": [worker]}

    status = look

    def lines(self, *, role, index, tail, follow, until):
        if role == "master":
            raise UsageError("Job 'demo' has no such log.")
        yield from self.log
        while not until():
            threading.Event().wait(0.001)

    def stop(self, reason):
        if self.done:
            raise JobError("Job 'demo' is over: done.")
        self.done.append(reason)
        return "is stopping"


class FakeJobs:
    """One job. `fails`: so often before it can be listed, or found."""

    look_every_s = 0.01

    def __init__(self, fails=0):
        self.job = FakeJob()
        self.fails = fails

    def _try(self):
        if self.fails:
            self.fails -= 1
            raise JobError("The API server does not answer.")

    def find(self, name):
        self._try()
        return self.job

    def statuses(self):
        self._try()
        return [self.job.status()]


class FakeTerminal:
    """A screen that is remembered, and keys out of a pipe."""

    size = 80, 24
    ascii_only = False

    def __init__(self):
        self.reads, self.writes = os.pipe()
        self.text = ""
        self.is_ours = False
        self.error = None

    def __enter__(self):
        self.is_ours = True
        return self

    def __exit__(self, *exception):
        self.is_ours = False

    def fileno(self):
        return self.reads

    def read(self):
        return os.read(self.reads, 100)

    def draw(self, lines, width):
        if self.error is not None:
            raise self.error
        self.text = "\n".join(line.plain for line in lines)

    def forget(self):
        self.text = ""

    async def press(self, keys, part=""):
        """Press keys, and wait until the screen says so."""
        os.write(self.writes, keys.encode())
        deadline = time.monotonic() + FAR_S
        while part not in self.text:
            assert time.monotonic() < deadline, f"no {part!r} in {self.text}"
            await asyncio.sleep(0.001)


@pytest.fixture
def terminal():
    made = FakeTerminal()
    yield made
    os.close(made.reads)
    os.close(made.writes)


def drive(terminal, jobs, act, job=""):
    """Run `edl top` while `act()` uses it, and leaves it."""

    async def both():
        top = asyncio.create_task(Top(jobs, job, Asides(jobs), terminal).run())
        try:
            await act()
        except BaseException:
            top.cancel()
            await asyncio.gather(top, return_exceptions=True)
            raise
        await top

    asyncio.run(both())
    assert not terminal.is_ours


def test_a_job_is_opened_stopped_and_left(terminal):
    jobs = FakeJobs()

    async def act():
        await terminal.press("", "> demo")
        await terminal.press("\r", "> master")
        await terminal.press("x", "Stop demo?  y: yes")
        await terminal.press("y", "demo is stopping")
        await terminal.press("x", "Stop demo?")
        await terminal.press("y", "Job 'demo' is over: done.")
        await terminal.press("\x1b", "edl top  jobs")
        await terminal.press("q")

    drive(terminal, jobs, act)
    assert ["edl top"] == jobs.job.done


def test_the_log_of_a_process_is_followed_and_another_one_says_why_not(terminal):
    jobs = FakeJobs()
    jobs.job.log = [HOSTILE, "the last line"]

    async def act():
        await terminal.press("", "> master")
        await terminal.press("jl", "the last line")
        assert r"[red]\x1b[2J" in terminal.text
        await terminal.press("q", "worker-0")
        await terminal.press("kl", "(this log cannot be read: Job 'demo' has no such log.)")
        await terminal.press("qq")

    drive(terminal, jobs, act, "demo")


@pytest.mark.parametrize("job", ["", "demo"])
def test_what_cannot_be_read_is_told_and_read_again(terminal, job, monkeypatch):
    monkeypatch.setattr("edl.dashboard.terminal.top._AGAIN_S", 0.01)

    async def act():
        await terminal.press("", "The API server does not answer.")
        await terminal.press("", "demo")
        await terminal.press("", "> master" if job else "> demo")
        await terminal.press("q")

    drive(terminal, FakeJobs(fails=3), act, job)


def test_an_error_ends_it_and_is_raised_once_the_terminal_is_given_back(terminal):
    terminal.error = RuntimeError("a bug")

    async def act():
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="a bug"):
        drive(terminal, FakeJobs(), act)
    assert not terminal.is_ours


def test_a_status_that_nobody_understands_ends_it_with_the_error(terminal):
    jobs = FakeJobs()
    jobs.job.look = lambda: {"job_name": "demo", "state": "running", "workers": [{}]}

    async def act():
        await asyncio.sleep(0)

    with pytest.raises(KeyError):
        drive(terminal, jobs, act, "demo")


def test_a_terminal_that_is_gone_ends_it(terminal):
    terminal.error = OSError(5, "Input/output error")

    async def act():
        await asyncio.sleep(0)

    drive(terminal, FakeJobs(), act)


# -- the terminal itself


@pytest.fixture
def pair():
    ours, theirs = os.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def drained(ours, end):
    """Return what has come to the other end, up to these bytes."""
    told = b""
    while not told.endswith(end):
        told += os.read(ours, 10_000)
    return told


def console(descriptor):
    file = open(descriptor, "w", closefd=False, encoding="utf-8")  # noqa: SIM115
    return Console(file=file, force_terminal=True)


def test_a_terminal_is_given_back_after_an_error(pair):
    ours, theirs = pair
    before = termios.tcgetattr(theirs)

    def fail():
        with Terminal(theirs, console(theirs)) as terminal:
            assert not termios.tcgetattr(theirs)[3] & (termios.ECHO | termios.ICANON)
            terminal.draw([Text("drawn")], 5)
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        fail()

    assert before == termios.tcgetattr(theirs)
    told = drained(ours, GIVEN_BACK)
    assert told.startswith(b"\x1b[?1049h\x1b[?25l\x1b[?2004h")
    assert b"drawn" in told


def test_what_is_said_meanwhile_is_said_afterwards(pair):
    ours, theirs = pair
    errors = os.dup(theirs)
    try:
        with Terminal(theirs, console(theirs), errors) as terminal:
            os.write(errors, b"a warning")
            terminal.draw([Text("drawn")], 5)
            os.write(theirs, b"|")
            assert b"warning" not in drained(ours, b"|")
        drained(ours, GIVEN_BACK + b"a warning")
        assert os.isatty(errors)
    finally:
        os.close(errors)


def test_a_pause_gives_the_terminal_back_meanwhile(pair, monkeypatch):
    _, theirs = pair
    before = termios.tcgetattr(theirs)
    seen = []

    def stop(pid, number):
        seen.append((pid, number, before == termios.tcgetattr(theirs)))

    monkeypatch.setattr(os, "kill", stop)
    with Terminal(theirs, console(theirs)) as terminal:
        terminal.pause()
        assert before != termios.tcgetattr(theirs)
    assert [(os.getpid(), signal.SIGSTOP, True)] == seen


def test_only_another_frame_is_written_and_another_size_on_an_empty_screen(pair):
    ours, theirs = pair
    with Terminal(theirs, console(theirs)) as terminal:
        drained(ours, CLEARED)
        told = []
        for text in ("one", "one", "two", "more", "more"):
            terminal.draw([Text(text)], len(text))
            os.write(theirs, b"|")
            told.append(drained(ours, b"|"))
            if len(told) == 4:
                terminal.forget()
    assert [b"\x1b[H\x1b[2Jone|", b"|", b"\x1b[Htwo|"] == told[:3]
    assert [b"\x1b[H\x1b[2Jmore|"] * 2 == told[3:]
    assert (80, 24) == terminal.size  # of a terminal that does not know it


def test_what_the_terminal_cannot_write_is_written_as_a_question_mark(pair):
    ours, theirs = pair
    file = io.TextIOWrapper(open(theirs, "wb", closefd=False), encoding="ascii")  # noqa: SIM115
    with Terminal(theirs, Console(file=file, force_terminal=True)) as terminal:
        drained(ours, CLEARED)
        terminal.draw([Text("ä")], 1)
        drained(ours, b"?")
        assert terminal.ascii_only


# -- logs


def read(job, log, told):
    jobs = FakeJobs()
    jobs.job = job
    reader = LogReader(jobs, "demo", log, lambda: told.append(1))
    reader.start()
    return reader


def test_many_lines_are_told_once_and_the_last_are_kept():
    job, told = FakeJob(), []
    job.log = ["x" * 10_000, *map(str, range(LINES + 10))]
    reader = read(job, Follow("worker", 0, "worker-0"), told)
    try:
        until(lambda: reader._fresh and reader._fresh[-1] == str(LINES + 9))
        taken = reader.take()
    finally:
        reader.close()

    assert [1] == told
    assert (LINES, str(LINES + 9), False) == (len(taken.lines), taken.lines[-1], taken.over)
    assert Lines("worker-0") == reader.take()


def test_a_line_without_an_end_is_cut_and_a_log_that_ends_is_told():
    job, told = FakeJob(), []
    job.lines = lambda **_: iter(["x" * 10_000])
    reader = read(job, Follow("worker", 0, "worker-0"), told)
    until(lambda: len(told) == 2)

    assert Lines("worker-0", ("x" * logs._LONGEST,), True) == reader.take()


def test_a_log_that_is_let_go_of_is_read_no_further():
    job, told = FakeJob(), []
    numbers = itertools.count()
    job.lines = lambda **_: map(str, numbers)
    reader = read(job, Follow("worker", 0, "worker-0"), told)
    until(lambda: told)
    reader.close()
    until(lambda: not any(thread.name == "top-log" for thread in threading.enumerate()))
