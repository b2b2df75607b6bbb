"""The oracle of deltas: what a consumer publishes is one cut of the counting job, and no mixture.

Row r of a cut is how often record r had been applied, each of the counters, which are spread over
the servers, is how many records had been, and the manifest says it once more, by the master's
books. Rows of two cuts, or rows of one and dense values of another, do not agree in that. A
consumer (consumer.py) writes down what it publishes, a file each; here it is judged.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common import deltas
from ..common.deltas import About
from ..common.errors import CheckpointError
from ..common.places import Place


@dataclass(frozen=True)
class Published:
    """A state that a consumer has published: what its manifest says, and what it is made of."""

    job: str
    cut: str
    number: int
    records: int
    ids: list[int]
    counts: list[float]  # the rows of these ids
    answers: list[float]  # of a model that was made of it, for these ids
    seen: list[float]  # the counters: each of all records
    reader: int  # a process


@dataclass(frozen=True)
class Course:
    """The course of a counting job: records 0, 1, ... in whole minibatches of neighbours, so often.

    `waiting`: the most pushes that may wait on each server for their version, which no row has yet,
    and another server may have others. Where none waits, a cut is known to the last record.
    """

    records: int
    epochs: int
    minibatch: int
    servers: int
    waiting: int = 0

    def why_no_cut(self, state: Published) -> str:
        """Return what shows that a state is no cut of such a job; "" where nothing does."""
        ids, counts = np.array(state.ids, np.int64), np.array(state.counts)
        if len({*state.ids}) != len(ids) or not np.isin(ids, np.arange(self.records)).all():
            return "a row is there twice, or of no record"
        missing = {state.records - counted for counted in state.seen}
        waiting, left = divmod(max(missing, default=0.0), self.minibatch)
        parts = int(waiting) * self.servers  # of minibatches that some servers have
        lacks = state.records - counts.sum()
        wrong = len(missing) != 1 or left or not 0 <= waiting <= self.waiting
        if wrong or not 0 <= lacks <= parts * self.minibatch:
            return (
                f"its rows count {counts.sum():g} records, its manifest {state.records}, its "
                f"servers {sorted({*state.seen})}"
            )
        if state.answers != state.counts:
            return "a model that is made of it answers with other rows"
        rows = np.zeros(self.records)
        rows[ids] = counts
        if not np.isin(rows, np.arange(self.epochs + 1)).all():
            return f"a record is counted {rows.max():g} times in {self.epochs} epochs"
        each = rows.reshape(-1, self.minibatch)
        if (each != each[:, :1]).any(axis=1).sum() > parts:
            return "a minibatch is there in part"
        return ""

    def badly_followed(self, states: Sequence[Published], newest: About | None) -> list[str]:
        """Return what is wrong with the states that consumers published, one after the other.

        `newest`: the last whole cut of the job.
        """
        wrong = [
            f"cut {state.number} is a mixture: {why}"
            for state in states
            if (why := self.why_no_cut(state))
        ]
        first: dict[str, Published] = {}
        for state in states:
            if _content(first.setdefault(state.cut, state)) != _content(state):
                wrong.append(f"cut {state.number} was read twice, with other rows")
        for before, after in itertools.pairwise(states):
            if before.reader == after.reader and after.number <= before.number:
                wrong.append(f"a consumer went back from cut {before.number} to {after.number}")
        all_records = self.records * self.epochs
        if newest is None or newest.records != all_records:
            records = newest.records if newest else 0
            wrong.append(f"the last cut has {records} records, and the job {all_records}")
        if newest and (not states or states[-1].cut != newest.cut):
            number = states[-1].number if states else None
            wrong.append(f"the consumer is at cut {number}, and the last one is {newest.number}")
        return wrong


def _content(state: Published) -> object:
    return sorted(zip(state.ids, state.counts, strict=True)), state.seen


def newest(root: Place) -> About | None:
    """Return the last cut of a folder of deltas that is whole. Raises OSError."""
    for name in reversed(deltas.listed(root)):
        try:
            return deltas.about(deltas.said(root / str(name)))
        except CheckpointError:  # half a one
            continue
    return None


def publish(folder: Path, state: Published) -> None:
    """Write a state down, whole or not at all."""
    new = folder / f".{state.reader}"
    new.write_text(json.dumps(dataclasses.asdict(state)))
    os.replace(new, folder / f"{time.time_ns():020}.json")


def read(folder: Path) -> Iterator[Published]:
    """Return the states that were published, the newest first."""
    for path in sorted(folder.glob("*.json"), reverse=True):
        yield Published(**json.loads(path.read_text()))
