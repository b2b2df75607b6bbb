"""Others' trainers: 1 replica, 2, and 1 again end as one process that nothing interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from launched import books
from tools import rounds
from tools.launched import DEADLINE_S, Launched, Storm, workers
from tools.turns import some

from edl.common.order import order
from edl.launch import DRAINED

SCRIPTS = Path(__file__).parents[1] / "launched"
EXAMPLES = Path(__file__).parents[2] / "docs/examples"
KINDS = {
    "bert": ["transformers.trainer", "accelerate", "edl.integrations.transformers"],
    "digits": ["lightning.pytorch", "sklearn.datasets", "edl.integrations.lightning"],
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes of a test find what the tests import."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def needed(kind: str) -> list[str]:
    for module in KINDS[kind]:
        library = module.split(".")[0]
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed: the extras transformers and lightning")
    return KINDS[kind]


def expected_steps() -> list[list[int]]:
    """Return the records of each step of one process, sorted."""
    steps = []
    for epoch in range(books.EPOCHS):
        records = order(books.SEED, epoch, 0, books.RECORDS, shuffle=True).tolist()
        starts = range(0, books.RECORDS, books.BATCH)
        steps += [sorted(records[start : start + books.BATCH]) for start in starts]
    return steps


def difference(folder: Path) -> float:
    """Return by how much the parameters of the two differ, at most."""
    plain, elastic = (torch.load(folder / f"{name}.pt") for name in ("plain", "elastic"))
    assert plain.keys() == elastic.keys()
    return max(float((plain[name] - elastic[name]).abs().max()) for name in plain)


def check(kind: str, folder: Path, told: int, killed: int, *example: str) -> None:
    ends = rounds.run(folder, told, killed, needed(kind), SCRIPTS / f"{kind}.py", *example)

    first, (survivor, struck), last, plain, shown = ends
    assert ([DRAINED], -9, [0], [0]) == (first, struck, last, plain)
    assert [0] * bool(example) == shown
    assert survivor != 0
    assert expected_steps() == books.counted(folder)
    assert difference(folder) < 2e-5
    if kind == "digits":  # what is due after a step comes before that step's state is saved
        done = [(folder / f"validated{of}").read_text().split() for of in ("-plain", "")]
        assert done[0] == list(dict.fromkeys(done[1]))  # what a kill takes back is done again


@pytest.mark.parametrize(
    ("kind", "example", "steps"),
    some(
        [
            pytest.param("bert", "trainer_bert.py --sentences 1500 --epochs 3 --output", 72),
            pytest.param("digits", "lightning_digits.py --epochs 4", 96),
        ],
        parts=4,
    ),
    ids=KINDS,
)
def test_each_record_counts_once_and_the_parameters_are_those_of_one_process(
    kind, example, steps, tmp_path
):
    """The example of docs/trainers.md runs beside it, and learns."""
    script, *arguments = example.split()
    if arguments[-1] == "--output":
        arguments.append(str(tmp_path / "bert"))
    check(kind, tmp_path, 5, 11, str(EXAMPLES / script), *arguments)

    *_, last = (tmp_path / "example.out").read_text().splitlines()
    name, accuracy, *after = last.split()
    assert ["accuracy", "after", str(steps), "steps"] == [name, *after]
    assert float(accuracy) > 0.8


# 21 steps in epochs of 7. Whoever is told after a step makes room after the next one.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "killed"), [(1, 4), (6, 9), (7, 10), (8, 15), (13, 16), (5, 20), (12, 21), (19, 21)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_wherever_it_is_interrupted(kind, told, killed, tmp_path):
    check(kind, tmp_path, told, killed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_under_edl_launch_while_nodes_come_and_go_and_die(kind, tmp_path):
    """The replicas are 1, 2 (a node came), 1 (killed), 2, 2 (a worker killed), 1 (told to go)."""
    needed(kind)
    script = [str(SCRIPTS / f"{kind}.py"), str(tmp_path)]
    job = Launched(tmp_path, "--nodes", "1:2", "--local_nodes", "1")
    storm = Storm(job)
    books.set_limit(tmp_path, 1, 4)
    with job.start(*script):
        storm.reach(1, 4, world=1)
        joined = job.join()
        storm.reach(2, 10, world=2)
        joined.kill()
        storm.reach(3, 14, world=1)
        joined = job.join()
        storm.reach(4, 16, world=2)
        os.kill(workers(joined.pid)[0], signal.SIGKILL)
        storm.reach(5, 17, world=2)
        joined.terminate()
        time.sleep(3)  # a held rank 0 would hold up rank 1, which has been told alone
        books.set_limit(tmp_path, 5, books.STEPS)
        storm.watch_round(6)
        (tmp_path / "limit").unlink()

        assert 0 == job.wait(), job.said()
    subprocess.run([sys.executable, *script, "plain"], check=True, timeout=DEADLINE_S)
    print((tmp_path / "books-0").read_text(), difference(tmp_path))
    lines = (tmp_path / "books-0").read_text().splitlines()
    steps = [list(map(int, line.split()[:2])) for line in lines]
    assert [6, books.STEPS] == steps[-1]
    for round in 2, 6:  # planned: nothing is done twice
        first = steps.index(next(each for each in steps if each[0] == round))
        assert steps[first][1] == steps[first - 1][1] + 1
    assert expected_steps() == books.counted(tmp_path)
    assert difference(tmp_path) < 2e-5
