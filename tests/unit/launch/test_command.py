from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.own import free_port
from tools.turns import in_turn

from edl.cli import main as cli
from edl.common import claims, paths
from edl.common.errors import UsageError
from edl.common.launched import parse_nodes
from edl.common.places import Place
from edl.launch import load, script
from edl.launch.reach import host_towards
from edl.launch.settings import LaunchSettings


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent.py"], "The script absent.py is not there"),
        (["."], "The script . is a folder"),
        (["--nodes", "4:1", "X"], "--nodes 4:1: MIN is above MAX; did you mean 1:4?"),
        (["--nodes", "0:1", "X"], "--nodes 0:1: a job needs at least 1 node."),
        (["--nodes", "many", "X"], "--nodes many is no range: say MIN:MAX"),
        (["--nproc_per_node", "0", "X"], "--nproc_per_node 0: a node runs at least 1 worker."),
        (["--nodes", "2", "--local_nodes", "3", "X"], "--local_nodes 3: between 0 and MAX"),
        (["--last_call", "soon", "X"], "--last_call: 'soon' is no time"),
        (["--lease", "1s", "X"], "--lease 1s: at least 4s."),
        (["--job_name", "A B", "X"], "--job_name 'A B': small letters"),
        (["--join", "127.0.0.1:1", "X"], "--join 127.0.0.1:1 needs --token_file"),
        (["--join", "127.0.0.1:1", "--token_file", "none", "X"], "--token_file none: No such file"),
        (["--join", "ghost", "X"], "There is no job 'ghost' here"),
        (["--join", "ghost", "--nodes", "2", "X"], "--nodes is of the job"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(arguments, said, tmp_path, capsys):
    (tmp_path / "x.py").touch()
    given = [str(tmp_path / "x.py") if each == "X" else each for each in arguments]

    assert 2 == cli.run(["launch", *given])

    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("text", "nodes"), [("3", (3, 3)), ("1:4", (1, 4))])
def test_a_range_of_nodes(text, nodes):
    assert nodes == parse_nodes(text)


def test_settings_come_back_from_a_job_s_folder(tmp_path):
    given = LaunchSettings("j", 1, 2, "/c", silent_s=7.0)
    (tmp_path / "settings.json").write_text(given.to_json())

    assert given == LaunchSettings.of_job(tmp_path)
    assert (1, 2, 7.0) == (given.policy.min_nodes, given.policy.max_nodes, given.policy.silent_s)


def test_a_folder_without_settings_is_named(tmp_path):
    with pytest.raises(UsageError, match="is no job's folder"):
        LaunchSettings.of_job(tmp_path)


def test_a_node_is_reached_by_the_address_on_the_way_to_the_coordinator(monkeypatch):
    monkeypatch.delenv("EDL_HOST", raising=False)

    assert "127.0.0.1" == host_towards("127.0.0.1:5")


def test_the_command_line_and_the_coordinator_start_without_torch():
    code = "import sys, edl.cli.main, edl.launch.serve, edl.launch.command, edl.launch.node"

    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('torch' in sys.modules)"],
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )

    assert "False\n" == done.stdout, done.stderr


def test_a_worker_gets_its_arguments_and_one_log(tmp_path):
    asked = "import sys; print(sys.argv[1:], flush=True); print('error', file=sys.stderr)"

    done = subprocess.run(
        [sys.executable, "-I", "-S", script.__file__, str(os.getpid()), "-c", asked, "--a", "b"],
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )

    assert ("['--a', 'b']\nerror\n", "") == (done.stdout, done.stderr)


def test_a_worker_dies_with_its_agent():
    agent = (
        "import os, subprocess, sys; subprocess.Popen([sys.executable, '-I', '-S', sys.argv[1], "
        "str(os.getpid()), '-c', "
        '\'import time; print("trains"); time.sleep(20); print("outlived")\']).wait()'
    )
    command = [sys.executable, "-c", agent, script.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"trains\n" == process.stdout.readline()

        process.kill()

        assert b"" == process.stdout.read()  # ends when nobody is left to write
        assert -9 == process.wait(300)


def test_a_worker_whose_agent_has_died_does_not_start():
    done = subprocess.run(
        [sys.executable, "-I", "-S", script.__file__, "1", "-c", "print('trained')"],
        capture_output=True,
        check=False,
        timeout=300,
    )

    assert (1, b"") == (done.returncode, done.stdout)


@in_turn(3)
def test_the_example_of_the_documentation_trains_and_saves(tmp_path, monkeypatch):
    page = (Path(cli.__file__).parents[1] / "docs" / "launch.md").read_text()
    (tmp_path / "train.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    told |= {"MASTER_PORT": str(free_port()), "EDL_CHECKPOINT_PATH": str(tmp_path / "state")}

    done = subprocess.run(
        [sys.executable, "train.py", "2"],
        cwd=tmp_path,
        env={**os.environ, **told},
        capture_output=True,
        check=True,
        text=True,
        timeout=300,
    )

    assert done.stdout.startswith("rank 0 of 1: loss ")
    monkeypatch.setenv("EDL_CHECKPOINT_PATH", str(tmp_path / "state"))
    assert {"epoch": 2, "world_size": 1} == load().progress


def test_the_folder_of_states_of_a_running_job_is_refused(tmp_path, capsys):
    """Broken once: two launched jobs in one --checkpoint_dir went on with each other's states."""
    states, script = tmp_path / "states", tmp_path / "x.py"
    script.touch()
    folder, lock = paths.claim("first")
    me = claims.Holder.of_job("first-1", "first", "first", folder)
    claims.Claim(Place(states), me).take()

    assert 2 == cli.run(["launch", "--checkpoint_dir", str(states), str(script)])

    os.close(lock)
    said = f"--checkpoint_dir: the job 'first', which is running, writes to {states}: name another"
    assert said in capsys.readouterr().err
