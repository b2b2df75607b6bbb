"""The examples of docs/adaptive.md run as they stand there, those of AdaptDL on few records."""

import contextlib
import difflib
import io
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.elastic import generation
from tools.turns import in_turn, some

import edl

ROOT = Path(edl.__file__).resolve().parent
EXAMPLES = ROOT / "docs/examples"
PAGE = (ROOT / "docs/adaptive.md").read_text()
BEFORE, AFTER = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(say, script, *arguments):
    """Run a script as a program. Tells what it printed."""
    printed = io.StringIO()
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(script), run_name="__main__")
    say(printed.getvalue().splitlines())


def linear(say):
    run(say, EXAMPLES / "adaptive_linear.py", "--epochs", "4", "--autoscale")


@pytest.mark.parametrize("replicas", some([1, 2]))
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


@pytest.mark.parametrize(("example", "lines"), [("cifar", 12), ("ncf", 13)])
def test_the_ports_of_adaptdl_s_examples_are_few_lines(example, lines):
    plain, adaptive = (
        (EXAMPLES / f"{kind}_{example}.py").read_text().partition("\n\n\ndef main")[2].splitlines()
        for kind in ("plain", "adaptive")
    )

    changes = [change for change in difflib.ndiff(plain, adaptive) if change.startswith("+ ")]
    assert lines == len(changes)


def pictures(say):
    run(say, EXAMPLES / "adaptive_cifar.py", "--cifar", "pictures", "--epochs", "1")


@in_turn(0)
def test_the_cifar_example_reads_its_binary_version(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    Path("pictures").mkdir()
    for name, size in (("data_batch_1", 32), ("data_batch_2", 32), ("test_batch", 16)):
        rows = random.integers(0, 256, (size, 3073), np.uint8)
        rows[:, 0] %= 10
        rows.tofile(f"pictures/{name}.bin")

    first, others = (r.said[0] for r in generation(pictures, tmp_path / "kept", 2))
    assert (["epoch 0: accuracy"], []) == ([line[:17] for line in first], others)


def films(say):
    torch.manual_seed(0)  # from some first weights it takes many more epochs
    run(
        say,
        EXAMPLES / "adaptive_ncf.py",
        "--ratings",
        "u.data",
        "--epochs",
        "20",
        "--largest",
        "256",
    )


@in_turn(3)
def test_the_ncf_example_finds_who_likes_what(tmp_path, monkeypatch):
    """Train on ratings that are made up, in the format of u.data.

    There are 128 users of 8 kinds, a film is for one kind, a user has rated 12 of the 15 that are.
    By chance 10 of 100 films are a hit for 0.1 of the users.
    """
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    rows = [
        (user, 15 * (user % 8) + film, 4, when)
        for user in range(128)
        for when, film in enumerate(random.choice(15, 12, replace=False))
    ]
    Path("u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))

    epochs, others = (replica.said[0] for replica in generation(films, tmp_path / "kept", 2))
    assert 0.8 < float(epochs[-1].split()[4].rstrip(","))
    assert [] == others
