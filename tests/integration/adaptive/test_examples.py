"""The examples of docs/adaptive.md run as they stand there."""

import contextlib
import difflib
import io
import re
import runpy
import sys
from pathlib import Path

import pytest
from elastic import generation

import edl

ROOT = Path(edl.__file__).resolve().parent
PAGE = (ROOT / "docs/adaptive.md").read_text()
BEFORE, AFTER = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(say, script, *arguments):
    """Run a script as a program. Tells what it printed."""
    printed = io.StringIO()
    sys.argv = [str(script), *arguments]
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(script), run_name="__main__")
    say(printed.getvalue().splitlines())


def linear(say):
    run(say, ROOT / "docs/examples/adaptive_linear.py", "--epochs", "4", "--autoscale")


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_linear_example_finds_the_weights(tmp_path, replicas):
    ended = generation(linear, tmp_path, replicas)

    ((*epochs, weights), *others) = [replica.said[0] for replica in ended]
    found = [float(word) for word in weights.split()[1:]]
    assert 4 == len(epochs)
    assert [3.0, -2.0, 0.5, 1.0] == pytest.approx(found, abs=0.1)
    assert [[]] * (replicas - 1) == others


def five_lines(say):
    script = Path("five_lines.py")
    script.write_text(AFTER)
    run(say, script.resolve())


def test_the_port_of_five_lines_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert [0] == [replica.code for replica in generation(five_lines, tmp_path, 1)]


def test_the_port_is_five_lines():
    changes = difflib.ndiff(BEFORE.splitlines(), AFTER.splitlines())

    assert 5 == sum(line.startswith("+ ") for line in changes)
