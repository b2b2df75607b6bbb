"""A job leaves deltas, and whoever follows them has one cut of it after the other, whatever dies.

Real processes and the counting model: row r is the number of times that record r was applied, and
the dense `total` counts all records. So the rows of a cut sum up to its `total` and to the records
that its manifest names; a mixture of two cuts would not.
"""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
from tools.jobs import Job, send, write_records

from edl.serve.follow import Folder, Pursuit, follow

RECORDS, EPOCHS = 1600, 2


def job(folder, **settings):
    data = str(write_records(folder.parent / "records.npz", RECORDS))
    given = {
        "model_def": "counting",
        "model_params": {"delay_s": 0.05},
        "training_data": data,
        "minibatch_size": 16,
        "num_minibatches_per_task": 4,
        "num_epochs": EPOCHS,
        "num_workers": 2,
        "num_ps": 2,
        "lease_s": 5.0,
        "use_async": True,
        "snapshot_s": 0.3,
        "delta_dir": str(folder.parent / "deltas"),
        "delta_s": 0.2,
    }
    return Job(folder, **{**given, **settings})


def check(generation):
    """Check that dense values and rows are of one cut, which is that of the manifest."""
    counts = generation.tables["counts"]
    ids = np.concatenate([ids for ids, _ in counts.blocks()])
    rows = np.concatenate([rows for _, rows in counts.blocks()])[:, 0]
    assert len(ids) == len(np.unique(ids)) == len(counts)
    np.testing.assert_array_equal(rows, counts.rows(ids)[:, 0])
    assert rows.sum() == generation.dense["total"][0] == generation.about.records
    assert 0 <= rows.min() <= rows.max() <= EPOCHS
    return generation.about.records


class Seen:
    """What a follower was handed."""

    def __init__(self):
        self.numbers, self.records, self.told = [], [], []
        self.changed = threading.Condition()

    def __call__(self, generation):
        records = check(generation)
        with self.changed:
            self.numbers.append(generation.about.number)
            self.records.append(records)
            self.changed.notify_all()

    def wait(self, more, timeout_s=120.0):
        with self.changed:
            until = len(self.numbers) + more
            if not self.changed.wait_for(lambda: len(self.numbers) >= until, timeout_s):
                raise AssertionError(f"{self.numbers}, {self.told}")


def test_a_follower_has_cut_after_cut_while_servers_and_the_master_are_killed(tmp_path):
    seen = Seen()
    with (
        job(tmp_path / "job") as running,
        follow(str(tmp_path / "deltas"), seen, period_s=0.05, tell=seen.told.append),
    ):
        seen.wait(3)
        send(running.watch(lambda _: True)["servers"][0]["pid"], signal.SIGKILL)
        seen.wait(2)
        send(running.about()["pid"], signal.SIGKILL)
        seen.wait(2)
        assert 0 == running.wait(), running.logs()
        deadline = time.monotonic() + 60
        while seen.records[-1] < RECORDS * EPOCHS and time.monotonic() < deadline:
            time.sleep(0.05)

    assert not [text for text in seen.told if "not taken" in text], seen.told
    assert RECORDS * EPOCHS == seen.records[-1], (seen.records, seen.told)
    assert sorted(seen.numbers) == seen.numbers
    folder = Folder(str(tmp_path / "deltas"))
    late = Pursuit(folder)  # who begins now
    while late.look(folder.names(), time.monotonic()):
        check(late.here)
    assert seen.numbers[-1] == late.here.about.number
