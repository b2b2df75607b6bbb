"""A worker of `edl data analyze`, against a master that hands out the plan's tasks."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.turns import in_turn

from edl.common.errors import DataError, Fenced
from edl.common.settings import ANALYZE, JobSettings
from edl.data import analyze as module
from edl.data.analysis import Sizes
from edl.data.analyze import Shard, analyze, shards_of, write
from edl.data.open import open_reader
from edl.data.reader import Source
from edl.master.books.plan import plan_of
from edl.proto import master_pb2 as pb
from edl.worker.analyst import Analyst, describe

RECORDS = 1000
END = pb.Task(id=1 << 40, kind=pb.ANALYZE_END)


class Master:
    """A master that leases these tasks, one at a time; `on_lease` is called before each."""

    def __init__(self, *tasks, ending=pb.GetTaskReply.FINISHED):
        self.tasks, self.ending, self.told = list(tasks), ending, []
        self.on_lease = lambda: None

    def get_task(self, _wait_s):
        if not self.tasks:
            return pb.GetTaskReply(outcome=self.ending)
        self.on_lease()
        return pb.GetTaskReply(outcome=pb.GetTaskReply.TASK, task=self.tasks.pop(0))

    def begins(self, task, _attempt, start, end):
        self.told.append(("begins", task, start, end))

    def report_later(self, report, told=lambda _: None):
        what = "done" if report.done else "handed back"
        self.told.append((what, report.task, report.records))
        told(True)

    def send_reports(self, _state):
        """Do nothing: a report was taken when it was told."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a job's folder beside its data; a shard has 256 records."""
    monkeypatch.setattr(module, "SHARD", 256)
    monkeypatch.setattr(module, "BLOCK", 100)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, RECORDS)
    np.savez(tmp_path / "data.npz", id=ids, x=rng.normal(size=RECORDS))
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def settings_of(folder):
    data, out = folder.parent / "data.npz", folder.parent / "out.json"
    return JobSettings(
        command=ANALYZE, training_data=str(data), output=str(out), vocabulary=20, num_ps=0
    )


def analyst(folder, master):
    return Analyst(master, settings_of(folder), folder).make()


def shard(folder, number, **more):
    """Return the task of a shard, as the master's plan has it."""
    source = str(folder.parent / "data.npz")
    start, end = 256 * (number - 1), min(256 * number, RECORDS)
    return pb.Task(id=number, kind=pb.ANALYZE, source=source, start=start, end=end, **more)


def test_parts_of_any_workers_in_any_order_give_the_bytes_of_one_process(folder):
    """Broken to see it fail: the parts are merged in another order."""
    first = Master(shard(folder, 3), shard(folder, 1))
    second = Master(*(shard(folder, n) for n in (2, 4, 1)))
    for master in (first, second, Master(END)):
        analyst(folder, master).run()
    reader = open_reader(str(folder.parent / "data.npz"))
    write(analyze(reader, Sizes(vocabulary=20)), folder / "alone.json")

    assert (folder / "alone.json").read_bytes() == (folder.parent / "out.json").read_bytes()
    assert [("done", 3, 256), ("done", 1, 256)] == first.told
    assert not (folder / "parts").exists()


def test_merge_that_was_cut_off_behind_its_end_is_done_again(folder):
    analyst(folder, Master(*(shard(folder, n) for n in (1, 2, 3, 4)), END)).run()
    before = (folder.parent / "out.json").read_bytes()
    (folder.parent / "out.json").unlink()
    analyst(folder, Master(END)).run()

    assert before == (folder.parent / "out.json").read_bytes()


def test_a_part_that_is_missing_ends_the_job_in_a_sentence(folder):
    with pytest.raises(DataError, match=r"part-00000002.npz, which the workers of this job"):
        analyst(folder, Master(shard(folder, 1), shard(folder, 3), shard(folder, 4), END)).run()

    assert not (folder.parent / "out.json").exists()


def test_who_is_told_to_go_hands_its_task_back_and_leaves_no_part(folder):
    master = Master(shard(folder, 1), shard(folder, 2))
    worker = analyst(folder, master)
    master.on_lease = lambda: len(master.tasks) == 1 and worker.drain()
    worker.run()

    assert [("done", 1), ("handed back", 2)] == [told[:2] for told in master.told]
    assert ["part-00000001.npz"] == [path.name for path in (folder / "parts").iterdir()]


def test_who_is_fenced_reports_nothing(folder):
    master = Master(shard(folder, 1))
    worker = analyst(folder, master)
    master.on_lease = worker.fence

    with pytest.raises(Fenced):
        worker.run()
    assert [] == master.told


def test_a_careful_task_is_told_before_it_is_read(folder):
    master = Master(shard(folder, 2, careful=True))
    analyst(folder, master).run()

    assert [("begins", 2, 0, 256), ("done", 2, 256)] == master.told


def test_records_that_end_their_workers_end_the_job_in_a_sentence(folder):
    with pytest.raises(DataError, match="all workers have ended that read records 256 to 512"):
        analyst(folder, Master(shard(folder, 2, skips=range(256)))).run()


def test_heartbeat_tells_how_far_it_is(folder):
    beats = []

    class Watched(Analyst):
        @property
        def _is_told_to_go(self):  # asked after each block
            beats.append([p.position for p in self.beat().progress])
            return super()._is_told_to_go

    Watched(Master(shard(folder, 1)), settings_of(folder), folder).make().run()

    assert [[], [1], [101], [201], [256], []] == beats


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=5).filter(any))
def test_tasks_of_the_plan_are_the_shards(counts):
    sources = [Source(f"{n}.csv", count) for n, count in enumerate(counts)]
    described = {"training": [[s.name, s.records] for s in sources], "shard": 256}
    plan = plan_of(JobSettings(command=ANALYZE, num_ps=0), described)
    tasks = [Shard(n, *plan.task(n)[1]) for n in range(1, plan.tasks_of(0) + 1)]

    assert shards_of(sources, 256) == tasks


def test_the_check_before_the_start_counts_the_records(folder):
    describe(settings_of(folder), folder)

    described = json.loads((folder / "describe.json").read_text())
    source = str(folder.parent / "data.npz")
    assert ([[source, RECORDS]], 256) == (described["training"], described["shard"])
    assert "columns" in described["schema"]


@in_turn(1)
def test_its_process_never_imports_torch():
    code = (
        "import sys, edl.worker.__main__ as worker\n"
        "for analyst in (True, False): worker._shop(analyst); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE, text=True)

    assert ["False", "True"] == done.stdout.splitlines()
