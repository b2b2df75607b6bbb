"""Pytest tries again, by pyproject.toml, what a machine does to a test, and no assertion."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = """
import pathlib

HERE = pathlib.Path(__file__).parent

def first(name):
    told = HERE / name
    was_there = told.exists()
    told.touch()
    return not was_there

def taken():
    raise OSError(98, "Address already in use")

def test_assertion():
    assert not first("assertion")

def test_port():
    if first("port"):
        taken()

def test_assertion_after_a_port():
    if first("after"):
        try:
            taken()
        except OSError:
            assert False

def test_error():
    if first("error"):
        raise ValueError("Address already in use, says a test")
"""
from tools.turns import in_turn


@in_turn(0)
def test_an_assertion_is_never_tried_again_and_a_port_that_was_taken_is(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    options = [
        "-q",
        "-rfR",
        "-p",
        "no:cacheprovider",
        "--reruns",
        "1",
        "-c",
        ROOT / "pyproject.toml",
    ]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", ROOT, tmp_path]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    told = set(re.findall(r"^(FAILED|RERUN) .*::test_(\w+)", done.stdout, re.MULTILINE))
    assert told == {
        ("RERUN", "port"),
        *(("FAILED", name) for name in ("assertion", "assertion_after_a_port", "error")),
    }, done.stdout
    assert "3 failed, 1 passed, 1 rerun" in done.stdout
