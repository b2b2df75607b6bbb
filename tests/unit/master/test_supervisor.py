"""The supervisor, with masters that are scripts of one line. Real processes; nothing sleeps."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edl.common.identity import Identity
from edl.durable.supervisor import supervise

ROOT = Path(__file__).parents[3]

# Each life of the master takes one line of the script: Python, run with these names.
MASTER = """
import json, os, signal, sys
from pathlib import Path
job = Path(sys.argv[sys.argv.index("--job-dir") + 1])
lives = job / "lives"
life = len(lives.read_text().splitlines()) if lives.exists() else 0
with open(lives, "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
def die(number=9): os.kill(os.getpid(), number)
def ready():
    with open(job / "ready", "w") as fifo: fifo.write(str(os.getpid()))
exec((job / "script").read_text().splitlines()[life])
"""


@pytest.fixture
def job(tmp_path):
    os.mkfifo(tmp_path / "ready")
    return tmp_path


def run(job, *lives, **more):
    (job / "script").write_text("\n".join(lives))
    return supervise(job, (sys.executable, "-c", MASTER), **more)


def lives(job):
    return [json.loads(line) for line in (job / "lives").read_text().splitlines()]


@pytest.mark.parametrize("code", [0, 1, 3, 130])
def test_the_masters_exit_code_is_passed_on(job, code):
    assert code == run(job, f"sys.exit({code})")
    assert [["--job-dir", str(job), "--serve"]] == lives(job)


def test_a_master_that_is_killed_is_started_again_and_told_how(job, capfd):
    assert 3 == run(job, "die()", "die(11)", "sys.exit(3)")

    told = [life[3:] for life in lives(job)]
    assert [[], ["--after", "was killed by SIGKILL"], ["--after", "was killed by SIGSEGV"]] == told
    assert "the master was killed by SIGKILL: started again" in capfd.readouterr().err


def test_a_master_without_threads_or_memory_is_started_again_and_told_so(job):
    assert 0 == run(job, "sys.exit(71)", "sys.exit(0)")

    assert [] == lives(job)[0][3:]
    after, how = lives(job)[1][3:]
    assert "--after" == after
    assert how.startswith("ended with exit code 71 (the system gives no more threads or memory")


def test_five_quick_deaths_in_a_row_are_enough(job, capfd):
    assert 1 == run(job, *["die()"] * 6)

    assert 5 == len(lives(job))
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("edl: error: the master was killed by SIGKILL, 5 times in a row")
    assert last.endswith(f"go on with `edl train --resume {job}`")


def test_deaths_after_a_long_life_are_not_counted(job):
    times = iter([0.0, 11.0] * 20)

    assert 0 == run(job, *["die()"] * 9, "sys.exit(0)", now=lambda: next(times))


def test_a_master_killed_after_its_last_word_is_not_started_again(job):
    said = '(job / "result.json").write_text(json.dumps({"exit_code": 3})); die()'

    assert 3 == run(job, said)
    assert 1 == len(lives(job))


def test_the_result_of_an_older_job_is_no_last_word(job):
    (job / "result.json").write_text(json.dumps({"exit_code": 0}))

    assert 1 == run(job, "die()", "sys.exit(1)")


def start(job, *lives, more=""):
    (job / "script").write_text("\n".join(lives))
    code = f"""
import sys
from pathlib import Path
from edl.durable.supervisor import supervise
sys.exit(supervise(Path({str(job)!r}), (sys.executable, "-c", {MASTER!r}){more}))
"""
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_handed_on(job, number):
    handles = f"signal.signal({int(number)}, lambda *_: sys.exit(130)); ready(); signal.pause()"
    supervisor = start(job, handles)
    (job / "ready").read_text()

    supervisor.send_signal(number)

    assert 130 == supervisor.wait(300)


def test_a_master_that_dies_of_the_signal_that_was_asked_for_stays_dead(job):
    supervisor = start(job, "ready(); signal.pause()")
    (job / "ready").read_text()

    supervisor.send_signal(signal.SIGTERM)

    assert 130 == supervisor.wait(300)
    assert 1 == len(lives(job))


def test_a_master_that_is_killed_while_it_stops_goes_on_stopping(job):
    dies = "signal.signal(signal.SIGTERM, lambda *_: die()); ready(); signal.pause()"
    supervisor = start(job, dies, "sys.exit(130)")
    (job / "ready").read_text()

    supervisor.send_signal(signal.SIGTERM)

    assert 130 == supervisor.wait(300)
    told = ["--after", "was killed by SIGKILL", "--stop", "SIGTERM"]
    assert [[], told] == [life[3:] for life in lives(job)]


def test_a_master_that_has_begun_and_dies_of_the_signal_is_started_to_stop_in_order(job):
    (job / "journal.sqlite").touch()
    supervisor = start(job, "ready(); signal.pause()", "sys.exit(130)")
    (job / "ready").read_text()

    supervisor.send_signal(signal.SIGTERM)

    assert 130 == supervisor.wait(300)
    assert ["--stop", "SIGTERM"] == lives(job)[1][-2:]


@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGTERM, lambda *_: die()); "])
def test_a_pod_that_is_told_to_go_has_no_other_master(job, before):
    """Broken once: one that had no handler yet was started again, and lived for the whole grace."""
    (job / "journal.sqlite").touch()
    supervisor = start(job, f"{before}ready(); signal.pause()", more=", ends_with_pod=True")
    (job / "ready").read_text()

    supervisor.send_signal(signal.SIGTERM)

    assert 130 == supervisor.wait(300)
    assert 1 == len(lives(job))


def test_the_master_goes_on_without_its_supervisor_and_keeps_the_lock(job):
    lock = os.open(job / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.set_inheritable(lock, True)
    (job / "script").write_text("ready(); signal.pause()")
    pid = os.fork()
    if pid == 0:  # the supervisor, as the command line starts it: it alone has the lock
        supervise(job, (sys.executable, "-c", MASTER))
        os._exit(0)
    os.close(lock)
    master = int((job / "ready").read_text())

    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    probe = os.open(job / "lock", os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.kill(master, signal.SIGTERM)
    fcntl.flock(probe, fcntl.LOCK_SH)  # once it is gone
    os.close(probe)


def test_the_supervisor_is_light():
    code = (
        "import sys, edl.master.__main__, edl.durable.supervisor\n"
        "print([m for m in ('grpc', 'numpy', 'torch', 'sqlite3', 'psutil') if m in sys.modules])"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == out.stdout.strip()


def test_the_token_of_the_folder_serves_one_who_starts_a_master_by_hand(job, monkeypatch):
    monkeypatch.delenv("EDL_TOKEN", raising=False)
    (job / "token").write_text("secret\n")

    assert 7 == run(job, "sys.exit(7 if os.environ['EDL_TOKEN'] == 'secret' else 1)")


def test_the_identity_of_the_folder_does_so_too(job, monkeypatch):
    monkeypatch.delenv("EDL_TOKEN", raising=False)
    identity = Identity.create("secret")
    identity.save(job)

    code = f"sys.exit(7 if os.environ['EDL_IDENTITY'] == {identity.to_variable()!r} else 1)"
    assert 7 == run(job, code)
