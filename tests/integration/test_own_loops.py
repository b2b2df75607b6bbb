"""Loops with accelerate and Lightning Fabric: a node comes, a worker is killed, nothing is lost."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from launched import books
from tools.launched import Launched, Storm, workers
from tools.turns import some

from edl.common.order import order

BOUNDS = [0, 8, 16, 24, 32, 40, 47, 54]  # the last two steps of an epoch share what is left
LIBRARIES = "accelerate", "lightning"
SCRIPT = Path(__file__).parents[1] / "launched" / "own_loop.py"


def records_of_steps() -> list[list[int]]:
    """Return the records of each step, whoever reads them."""
    steps = []
    for epoch in range(books.EPOCHS):
        records = order(books.SEED, epoch, 0, books.RECORDS, shuffle=True).tolist()
        steps += [records[start:stop] for start, stop in itertools.pairwise(BOUNDS)]
    return steps


def trained_by_one_process() -> dict[str, torch.Tensor]:
    inputs, targets, model, optimizer = books.regression()
    for records in records_of_steps():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[records]), targets[records]).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(
    ("library", "saves"),
    some(
        [pytest.param(library, saves) for library in LIBRARIES for saves in ("own", "edl")],
        parts=4,
    ),
)
def test_a_loop_ends_as_one_process_whoever_joins_or_is_killed(
    library, saves, tmp_path, monkeypatch
):
    """The ranks are 1, 2 (a node came), 2 (a worker was killed)."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: the extras transformers and lightning")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    job = Launched(tmp_path, "--nodes", "1:2", "--local_nodes", "1")
    storm = Storm(job)
    books.set_limit(tmp_path, 1, 4)
    with job.start(str(SCRIPT), str(tmp_path), library, saves):
        storm.reach(1, 4, world=1)
        joined = job.join()
        storm.reach(2, 9, world=2)
        os.kill(workers(joined.pid)[0], signal.SIGKILL)
        (tmp_path / "limit").unlink()  # rank 0 waits for the killed one, until it is ended

        assert 0 == job.wait(), job.said()
    rounds = {int(line.split()[0]) for line in (tmp_path / "books-0").read_text().splitlines()}
    assert {1, 2, 3} == rounds
    assert list(map(sorted, records_of_steps())) == books.counted(tmp_path)
    found, expected = torch.load(tmp_path / "elastic.pt"), trained_by_one_process()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)
