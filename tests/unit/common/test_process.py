"""A process that is told to end before it can hand anything back."""

import os
import signal
import subprocess
import sys

import pytest

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
