"""Others' trainers: 1 replica, 2, and 1 again end as one process that nothing interrupts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from launched import books
from tools import rounds

from edl.common.order import order
from edl.launch import DRAINED

SCRIPTS = Path(__file__).parents[1] / "launched"
KINDS = {
    "bert": ["transformers.trainer", "accelerate", "edl.integrations.transformers"],
    "digits": ["lightning.pytorch", "sklearn.datasets", "edl.integrations.lightning"],
}


def needed(kind: str) -> list[str]:
    for module in KINDS[kind]:
        library = module.split(".")[0]
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed: pip install edl[transformers,lightning]")
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


def check(kind: str, folder: Path, told: int, killed: int) -> None:
    ends = rounds.run(SCRIPTS / f"{kind}.py", folder, told, killed, *needed(kind))

    first, (survivor, struck), last, plain = ends
    assert ([DRAINED], -9, [0], [0]) == (first, struck, last, plain)
    assert survivor != 0
    assert expected_steps() == books.counted(folder)
    assert difference(folder) < 2e-5
    if kind == "digits":  # what is due after a step comes before that step's state is saved
        assert (folder / "validated-plain").read_text() == (folder / "validated").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_counts_once_and_the_parameters_are_those_of_one_process(kind, tmp_path):
    check(kind, tmp_path, told=5, killed=11)


# 21 steps in epochs of 7. Whoever is told after a step makes room after the next one.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "killed"), [(1, 4), (6, 9), (7, 10), (8, 15), (13, 16), (5, 20), (12, 21), (19, 21)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_wherever_it_is_interrupted(kind, told, killed, tmp_path):
    check(kind, tmp_path, told, killed)
