from __future__ import annotations

import sqlite3

import pytest

from edl.common.errors import JobError
from edl.master.evaluation import Evaluations, pack
from edl.master.journal import Journal


def test_decisions_come_back_in_their_order_bytes_included(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    decisions = [("lease", {"worker": "w", "request": "r"}), ("done", {"result": b"\x00\xff"})]
    for kind, arguments in decisions:
        journal.append(kind, arguments)
    journal.close()

    assert decisions == list(Journal(tmp_path / "j.sqlite").replay())


def test_a_decision_is_there_for_others_when_append_returns(tmp_path):
    Journal(tmp_path / "j.sqlite").append("lost", {"worker": "w"})

    rows = sqlite3.connect(tmp_path / "j.sqlite").execute("SELECT kind FROM decisions").fetchall()

    assert [("lost",)] == rows


def test_every_decision_is_synced_to_the_disk(tmp_path):
    connection = Journal(tmp_path / "j.sqlite")._connection

    settings = [
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    ]

    assert ["wal", 2] == settings  # 2 is FULL


def test_a_journal_that_cannot_be_opened_is_one_clear_error(tmp_path):
    with pytest.raises(JobError, match="Make room on its disk"):
        Journal(tmp_path / "missing" / "j.sqlite")


def test_a_value_that_json_lacks_is_refused(tmp_path):
    with pytest.raises(TypeError, match="set cannot stand in the journal"):
        Journal(tmp_path / "j.sqlite").append("lost", {"worker": {1}})


def test_metric_states_are_packed_as_the_worker_reads_them():
    from edl.worker.tasks import unpack_results

    states = [b"", b"abc", bytes(300)]

    assert states == unpack_results(pack(states))


def test_metrics_that_are_no_object_are_refused():
    evaluations = Evaluations()
    round_ = evaluations.begin(1, 0, "")

    with pytest.raises(JobError, match="evaluation-1"):
        evaluations.end(round_.name, b"[1]")


def test_the_latest_metrics_are_those_of_the_last_evaluation():
    evaluations = Evaluations()
    for value in (1, 2):
        evaluations.end(evaluations.begin(value, 0, "").name, b'{"auc": %d}' % value)

    assert {"auc": 2} == evaluations.latest
