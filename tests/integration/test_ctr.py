"""The tutorial from raw files to answers, run as it is written."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tools.own import free_port
from tools.stage import kill_jobs
from tools.turns import in_turn

PAGE = Path(__file__).parents[2] / "docs" / "ctr.md"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PORTS = ("8000", "8010", "8011", "8020", "8021", "8022", "8023")


def pieces(text):
    """Yield the blocks of the page; of Python with the name of the file that it is."""
    for match in BLOCK.finditer(text):
        kind, code = match.groups()
        if kind == "python":
            yield re.findall(r"`(\w+\.py)`", text[: match.start()])[-1], code
        elif not code.startswith("pip install"):
            yield "", code


@pytest.fixture
def home(tmp_path):
    yield tmp_path / "home"
    kill_jobs(tmp_path / "home")


@in_turn(0, 6)
def test_each_block_of_the_page_does_what_the_page_says(tmp_path, home):
    """Broken once: the definition in the export lacks its analysis."""
    script = ["set -euo pipefail"]
    script += [f'edl() {{ {sys.executable} -m edl "$@"; }}']
    script += [f'python() {{ {sys.executable} "$@"; }}']
    for name, code in pieces(PAGE.read_text()):
        if name:
            (tmp_path / name).write_text(code)
        else:
            script += [code, 'echo "===== $SECONDS s"']
    text = "\n".join(script)
    for port in PORTS:
        text = re.sub(rf"\b{port}\b", str(free_port()), text)
    text = text.replace("edl serve ctr ", f"edl serve ctr --grpc_port {free_port()} ")

    started = subprocess.Popen(
        ["bash", "-c", text],
        cwd=tmp_path,
        env={**os.environ, "EDL_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = started.communicate(timeout=600)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    logs = [path.read_text() for path in sorted(tmp_path.glob("*.log"))]
    assert 0 == started.returncode, (told, logs)
    assert "78,147/78,147 records" in told
    assert max(map(float, re.findall(r"auc (0\.\d+)", told))) > 0.91
    found = re.findall(r"(\d+) answers, off by (\S+) at most", told)
    assert ["6512", "6512"] == [count for count, _ in found], told
    assert all(float(off) < 1e-4 for _, off in found), told
    answers = re.findall(r'\{"model_name".*\}$', told, re.MULTILINE)
    before, after = map(json.loads, answers)
    assert int(before["model_version"]) > 0
    assert before["model_version"] != after["model_version"]
    assert before["outputs"][0]["data"] != after["outputs"][0]["data"]
