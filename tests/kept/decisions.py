"""A journal with a decision of every kind, and tasks in every state, as this version's master writes it.

A version whose decisions look otherwise writes this file anew, and keeps what it has made before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edl.common.settings import JobSettings
from edl.master import serve
from edl.master.state import dump_fields

_BAD = {"start": 4, "end": 8, "error": "ValueError: bad", "source": "", "traceback": "..."}
DECISIONS: list[tuple[str, dict[str, Any]]] = [
    ("open_epoch", {}),
    ("lease_some", {"worker": "a", "request": "a/1", "most": 4}),  # 1 to 4
    ("prove", {"kind": 1}),
    ("done", {"worker": "a", "task": 1, "attempt": 1, "result": b"", "doubtful": False}),
    ("done", {"worker": "a", "task": 2, "attempt": 1, "result": b"", "doubtful": False}),
    ("durable", {"tasks": [1]}),
    ("hand_back", {"worker": "a", "task": 3, "attempt": 1}),
    ("fenced", {"task": 3, "attempt": 2, "applied": [12, 8]}),
    ("failed", {"worker": "a", "task": 4, "attempt": 1, "failure": {**_BAD, "record": None}}),
    ("fenced", {"task": 4, "attempt": 2, "applied": [4, 4]}),
    ("forgive", {}),
    ("recovered", {"applied": {2: 4, 3: 8, 4: 4}}),
    ("fenced", {"task": 2, "attempt": 2, "applied": [16, 4]}),
    ("lease", {"worker": "round-1", "request": "1", "planned": True}),  # 2, which came back
    ("done", {"worker": "round-1", "task": 2, "attempt": 2, "result": b"", "doubtful": True}),
    ("lease_some", {"worker": "b", "request": "b/1", "most": 1}),  # 3
    ("ended", {"worker": "b", "how": "crashed", "certain": True, "lessee": ""}),
    ("lost", {"worker": "b"}),
    ("fenced", {"task": 3, "attempt": 3, "applied": [8, 8]}),
    ("lease_some", {"worker": "c", "request": "c/1", "most": 1}),  # 3
    (
        "tries",
        {"worker": "c", "task": 3, "attempt": 3, "start": 8, "end": 12, "lessee": ""},
    ),
    ("ended", {"worker": "c", "how": "was killed", "certain": False, "lessee": ""}),
    ("lost", {"worker": "c"}),
    ("fenced", {"task": 3, "attempt": 4, "applied": [8, 8]}),
    ("lease_some", {"worker": "d", "request": "d/1", "most": 3}),  # 3, with care
    (
        "tries",
        {"worker": "d", "task": 3, "attempt": 4, "start": 8, "end": 12, "lessee": ""},
    ),
    ("lease_some", {"worker": "e", "request": "e/1", "most": 3}),  # 5 to 7
    ("doubt", {"task": 5, "position": 0}),
    ("failed", {"worker": "e", "task": 6, "attempt": 1, "failure": {**_BAD, "record": 99}}),
    ("ended", {"worker": "e", "how": "was killed by SIGKILL", "certain": False, "lessee": ""}),
    ("lost", {"worker": "e"}),
    ("add", {"kind": 2, "pieces": [["v", 0, 16]], "epoch": 0, "cut": "cut-1", "group": "e-1"}),
    ("add", {"kind": 2, "pieces": [["v", 0, 8], ["v", 8, 16]], "cut": "cut-2", "group": "e-2"}),
    ("add", {"kind": 4, "pieces": [["", 0, 0]], "payload": b"\x00\xff", "group": "e-2-end"}),
    ("cancel", {"group": "e-1"}),
    ("lease", {"worker": "a", "request": "a/2", "planned": False}),
    (
        "done",
        {"worker": "a", "task": 10**12 + 1, "attempt": 1, "result": b"\xfe", "doubtful": False},
    ),
    ("lease", {"worker": "a", "request": "a/3", "planned": False}),
    ("close", {}),
]


def write(job_dir: Path, *, compacts: bool) -> None:
    """Make the journal of the job whose settings are in this folder.

    compacts: the queue's state stands in the place of all decisions but the last four.
    """
    settings = JobSettings.of_job(job_dir)
    data = [settings.training_data, 128]
    described = {"training": [data], "validation": [data], "prediction": [], "metrics": {}}
    (job_dir / "describe.json").write_text(json.dumps(described))
    journal, queue, _, _ = serve._begin(settings, job_dir, described)
    for number, (kind, arguments) in enumerate(DECISIONS):
        if compacts and number == len(DECISIONS) - 4:
            journal.compact({"queue": dump_fields(queue)})
        getattr(queue, kind)(**arguments)
        journal.append(kind, arguments)
    journal.commit()
    journal.close()
