"""The common part of the scripts of others' trainers: records, books, how far they may go.

Run by `edl launch`. FOLDER gets lines `ROUND STEP RECORD...` in `books-RANK`, one for each
optimizer step. While `limit` has ROUND and STEP, rank 0 goes no further than that: it holds after
the step, and in earlier rounds after each, until SIGTERM comes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from edl.adaptive import collective
from edl.common.order import order

RECORDS, BATCH, EPOCHS, WIDTH = 54, 8, 3, 6
STEPS = EPOCHS * -(-RECORDS // BATCH)
SEED = 0
HOLD_S = 300.0


class Order(torch.utils.data.Sampler[int]):
    """The order of the records that the elastic trainers have, epoch by epoch, for a plain one."""

    epoch = -1

    def __len__(self) -> int:
        return RECORDS

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        yield from order(SEED, self.epoch, 0, RECORDS, shuffle=True).tolist()


def regression() -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module, torch.optim.Optimizer]:
    """Return inputs, targets, a model and its optimizer, the same in all processes."""
    torch.manual_seed(SEED)
    inputs = torch.randn(RECORDS, WIDTH)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return inputs, inputs.sum(1, keepdim=True), model, optimizer


class Books:
    """The books of one rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rank = int(os.environ.get("RANK") or 0)
        self._seen: list[int] = []

    def saw(self, records: torch.Tensor) -> None:
        self._seen += records.tolist()

    def stepped(self, step: int) -> None:
        with open(self._folder / f"books-{self._rank}", "a") as books:
            print(os.environ.get("EDL_ROUND", "0"), step, *self._seen, file=books)
        self._seen = []
        deadline = time.monotonic() + HOLD_S
        while self._rank == 0 and not self._may_go_on(step):
            if collective.preemption().requested:
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _may_go_on(self, step: int) -> bool:
        limit = self._folder / "limit"
        if not limit.exists():
            return True
        least_round, last_step = map(int, limit.read_text().split())
        return int(os.environ["EDL_ROUND"]) >= least_round and step < last_step


def set_limit(folder: Path, round: int, step: int) -> None:
    """Let rank 0 go as far as this."""
    (folder / "limit.new").write_text(f"{round} {step}")
    (folder / "limit.new").replace(folder / "limit")


def counted(folder: Path) -> list[list[int]]:
    """Return the records of each step that counted, sorted, by step from 1.

    A round takes back the steps that it makes again, and those after them.
    """
    lines = sorted(
        [int(word) for word in line.split()]
        for path in folder.glob("books-*")
        for line in path.read_text().splitlines()
    )
    steps: dict[int, tuple[int, list[int]]] = {}
    for round, step, *records in lines:
        if step in steps and steps[step][0] == round:
            records += steps[step][1]
        else:
            steps = {number: known for number, known in steps.items() if number < step}
        steps[step] = round, records
    assert list(steps) == list(range(1, len(steps) + 1)), list(steps)
    return [sorted(records) for _, records in steps.values()]
