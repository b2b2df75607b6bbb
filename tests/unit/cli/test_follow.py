"""A job from its start to its end, with real processes and a master that follows a script."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edl.common import paths
from edl.common.identity import IDENTITY_VARIABLE, Identity
from edl.jobs import local as jobs

HERE = Path(__file__).parent


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate(timeout=300)


def launch(
    started: list[subprocess.Popen[str]], script: str, log_format: str = "text"
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "run_job.py"), script, log_format],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # so that a test can interrupt all of it, as a terminal does
    )
    started.append(process)
    return process


def read_until(process: subprocess.Popen[str], part: str) -> None:
    """Return lines of stdout up to one with `part`; the test's timeout is the deadline."""
    assert process.stdout is not None
    for line in process.stdout:
        if part in line:
            return
    raise AssertionError(f"ended without {part!r}: {process.communicate()[1]}")


def test_job_is_shown_to_its_end_and_its_code_is_the_commands(
    started: list[subprocess.Popen[str]],
) -> None:
    out, _ = (process := launch(started, "done")).communicate(timeout=300)

    expected = """\
starting: checking the definition, counting the data
[0:00] worker-0 is here
running · 50 % 50/100 records · auc 0.7500 · tasks 0/? · workers - · servers -
[0:02] all is done

state        finished with quarantined data
records      100 % 100/100 records
time         0:02 · 50 records/s in the mean
metrics      auc 0.7500
restarts     preempted: workers 0, servers 0, master 0 · failed: workers 1, servers 0
quarantined  train.csv record 3: ValueError: x
checkpoint   /checkpoints/version-000000000007
next         edl evaluate --model_def iris --validation_data /v.csv \
--checkpoint_dir_for_init /checkpoints/version-000000000007
"""
    assert (expected, 3) == (out, process.returncode)


def test_json_format_is_one_object_per_line(started: list[subprocess.Popen[str]]) -> None:
    out, _ = launch(started, "done", "json").communicate(timeout=300)

    lines = [json.loads(line) for line in out.splitlines()]
    assert ["note", "event", "status", "event", "end"] == [line["event"] for line in lines]
    assert (3, 100) == (lines[-1]["exit_code"], lines[-1]["records_done"])


def test_first_interrupt_stops_gracefully(started: list[subprocess.Popen[str]]) -> None:
    process = launch(started, "stop")
    read_until(process, "running")

    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=300)

    assert "stopping: the workers hand back" in out
    assert "state        done" in out
    assert "asked to stop: Ctrl-C" in (paths.job_folder("census") / "logs/master.log").read_text()
    assert 130 == process.returncode


def test_job_outlives_its_command_line(started: list[subprocess.Popen[str]]) -> None:
    process = launch(started, "stop")
    read_until(process, "running")

    process.kill()
    process.wait(300)
    lived = paths.is_locked(paths.job_folder("census"))
    client = jobs.find("census").client()
    client.stop("test")
    client.close()
    with open(paths.job_folder("census") / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # to be had when the master is gone

    assert (True, "done") == (lived, jobs.find("census").status()["state"])


def test_a_job_that_was_started_with_an_identity_is_found_without_it(
    started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity.create("secret")
    monkeypatch.setenv(IDENTITY_VARIABLE, identity.to_variable())
    process = launch(started, "stop")
    read_until(process, "running")
    monkeypatch.delenv(IDENTITY_VARIABLE)

    client = jobs.find("census").client()
    state = client.status()[1]["state"]
    client.stop("test")
    client.close()
    process.communicate(timeout=300)

    assert ("running", identity) == (state, Identity.of_folder(paths.job_folder("census")))


def test_a_master_whose_supervisor_is_killed_is_followed_to_its_end(
    started: list[subprocess.Popen[str]],
) -> None:
    process = launch(started, "alone")
    read_until(process, "running")

    pids = (paths.job_folder("census") / "logs/master.log").read_text()
    os.kill(int(re.findall(r"supervisor (\d+)", pids)[0]), signal.SIGKILL)
    read_until(process, "the master's supervisor was killed; the master goes on")
    client = jobs.find("census").client()
    client.stop("test")
    client.close()
    out, _ = process.communicate(timeout=300)

    assert "state        done" in out
    assert 0 == process.returncode


def test_followed_log_ends_with_the_job(started: list[subprocess.Popen[str]]) -> None:
    process = launch(started, "stop")
    read_until(process, "running")
    lines = jobs.find("census").lines(role="master", follow=True)

    os.killpg(process.pid, signal.SIGINT)

    assert ["asked to stop: Ctrl-C"] == list(lines)


def test_second_interrupt_kills(started: list[subprocess.Popen[str]]) -> None:
    process = launch(started, "deaf")
    read_until(process, "running")

    os.killpg(process.pid, signal.SIGINT)
    read_until(process, "stopping")
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=300)

    assert ("killing the job" in out, 130) == (True, process.returncode)
    assert not paths.is_locked(paths.job_folder("census"))
    log = (paths.job_folder("census") / "logs/master.log").read_text()
    (worker,) = re.findall(r"worker (\d+)", log)
    result = jobs.find("census").result()
    assert ("stopped", 130, "killed", 50) == tuple(
        result[name] for name in ("state", "exit_code", "message", "records_done")
    )
    assert not psutil.pid_exists(int(worker)) or "zombie" == psutil.Process(int(worker)).status()


def test_master_that_dies_is_one_error_with_the_end_of_its_log(
    started: list[subprocess.Popen[str]],
) -> None:
    _, err = (process := launch(started, "silent")).communicate(timeout=300)

    assert err.startswith("edl: error: The master of job 'census' exited with 7 before the job was")
    assert err.endswith("half a word\n")
    assert 1 == process.returncode


def test_master_that_dies_while_it_serves_is_noticed(
    started: list[subprocess.Popen[str]],
) -> None:
    _, err = (process := launch(started, "die")).communicate(timeout=300)

    assert ("exited with 9" in err, "Traceback" in err) == (True, False)
    assert 1 == process.returncode


def test_usage_error_of_the_definition_is_told_as_the_masters_own(
    started: list[subprocess.Popen[str]],
) -> None:
    _, err = (process := launch(started, "usage")).communicate(timeout=300)

    assert ("edl: error: the definition lacks loss\n", 2) == (err, process.returncode)
    result = json.loads((paths.job_folder("census") / "result.json").read_text())
    assert ("failed", 2, "the definition lacks loss") == (
        result["state"],
        result["exit_code"],
        result["message"],
    )


def test_terminal_gets_the_live_panel_and_the_summary() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="90", LINES="40")
        os.execv(sys.executable, [sys.executable, str(HERE / "run_job.py"), "done", "text"])
    seen = b""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and select.select([terminal], [], [], 1.0)[0] is not None:
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end of a terminal is closed
            break
    _, state = os.waitpid(pid, 0)
    os.close(terminal)

    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert 3 == os.waitstatus_to_exitcode(state)
    assert "edl train · census · running" in text
    assert "next         edl evaluate" in text
