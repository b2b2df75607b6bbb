"""What the scripts of others' trainers have in common: records, books, and how far they may go.

Run by `edl launch`. FOLDER gets lines `ROUND STEP RECORD...` in `books-RANK`, one for each
optimizer step; rank 0 holds after the step that `limit` names until it names a later one or SIGTERM
comes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from edl.adaptive import collective

RECORDS, BATCH, EPOCHS, WIDTH = 54, 8, 3, 6
STEPS = EPOCHS * -(-RECORDS // BATCH)
SEED = 0
HOLD_S = 300.0


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
        limit = self._folder / "limit"
        while self._rank == 0 and limit.exists() and step >= int(limit.read_text()):
            if collective.preemption().requested:
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)


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
