"""A journal with a decision of every kind, and tasks in every state, as this version writes it.

A version whose decisions look otherwise writes this file anew, and keeps what it has made before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edl.common.settings import JobSettings
from edl.master import opening
from edl.master.books.decisions import (
    Add,
    Cancel,
    Close,
    Done,
    Doubt,
    Durable,
    Ended,
    Failed,
    Fenced,
    Forgive,
    HandBack,
    Lease,
    LeaseSome,
    Lost,
    OpenEpoch,
    Prove,
    Recovered,
    Tries,
    written,
)
from edl.master.books.plan import Kind
from edl.master.books.task import Failure
from edl.master.books.task_queue import Decision
from edl.master.state import dump_queue

DECISIONS: list[Decision[Any]] = [
    OpenEpoch(),
    LeaseSome("a", "a/1", 4),  # 1 to 4
    Prove(Kind.TRAIN),
    Done("a", 1, 1),
    Done("a", 2, 1),
    Durable([1]),
    HandBack("a", 3, 1),
    Fenced(3, 2, [12, 8]),
    Failed("a", 4, 1, Failure(4, 8, "ValueError: bad", traceback="...")),
    Fenced(4, 2, [4, 4]),
    Forgive(),
    Recovered({2: 4, 3: 8, 4: 4}),
    Fenced(2, 2, [16, 4]),
    Lease("round-1", "1", True),  # 2, which came back
    Done("round-1", 2, 2, doubtful=True),
    LeaseSome("b", "b/1", 1),  # 3
    Ended("b", "crashed", True),
    Lost("b"),
    Fenced(3, 3, [8, 8]),
    LeaseSome("c", "c/1", 1),  # 3
    Tries("c", 3, 3, 8, 12),
    Ended("c", "was killed", False),
    Lost("c"),
    Fenced(3, 4, [8, 8]),
    LeaseSome("d", "d/1", 3),  # 3, with care
    Tries("d", 3, 4, 8, 12),
    LeaseSome("e", "e/1", 3),  # 5 to 7
    Doubt(5, 0),
    Failed("e", 6, 1, Failure(4, 8, "ValueError: bad", record=99, traceback="...")),
    Ended("e", "was killed by SIGKILL", False),
    Lost("e"),
    Add(Kind.EVALUATE, [("v", 0, 16)], 0, "cut-1", group="e-1"),
    Add(Kind.EVALUATE, [("v", 0, 8), ("v", 8, 16)], 0, "cut-2", group="e-2"),
    Add(Kind.EVALUATE_END, [("", 0, 0)], payload=b"\x00\xff", group="e-2-end"),
    Cancel("e-1"),
    Lease("a", "a/2", False),
    Done("a", 10**12 + 1, 1, b"\xfe"),
    Lease("a", "a/3", False),
    Close(),
]


def write(job_dir: Path, *, compacts: bool) -> None:
    """Make the journal of the job whose settings are in this folder.

    compacts: the queue's state stands in the place of all decisions but the last four.
    """
    settings = JobSettings.of_job(job_dir)
    data = [settings.training_data, 128]
    described = {"training": [data], "validation": [data], "prediction": [], "metrics": {}}
    (job_dir / "describe.json").write_text(json.dumps(described))
    books = opening.begin(settings, job_dir, described)
    journal, queue = books.journal, books.queue
    for number, decision in enumerate(DECISIONS):
        if compacts and number == len(DECISIONS) - 4:
            journal.compact({"queue": dump_queue(queue)})
        queue.decide(decision)
        journal.append(*written(decision))
    journal.commit()
    journal.close()
