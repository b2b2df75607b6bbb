from __future__ import annotations

import sqlite3

import pytest

from edl.common.errors import Fenced, JobError
from edl.durable import journal as journal_module
from edl.durable.journal import Journal
from edl.master.evaluation import Evaluations, pack

pytestmark = pytest.mark.fast


def test_decisions_come_back_in_their_order_bytes_included(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    decisions = [("lease", {"worker": "w", "request": "r"}), ("done", {"result": b"\x00\xff"})]
    for kind, arguments in decisions:
        journal.append(kind, arguments)
    journal.commit()
    journal.close()

    assert (None, decisions) == Journal(tmp_path / "j.sqlite").replay()


@pytest.mark.parametrize("write", [Journal.commit, lambda j: j.put("job", {})])
def test_decisions_are_there_for_others_together_when_they_are_written(tmp_path, write):
    journal = Journal(tmp_path / "j.sqlite")
    for worker in "ab":
        journal.append("lost", {"worker": worker})
    other = sqlite3.connect(tmp_path / "j.sqlite")
    before = other.execute("SELECT kind FROM decisions").fetchall()

    write(journal)

    after = other.execute("SELECT kind FROM decisions").fetchall()
    assert ([], [("lost",), ("lost",)], 0) == (before, after, journal.waiting)


def test_decisions_that_could_not_be_written_are_written_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "_BUSY_S", 0.0)
    journal = Journal(tmp_path / "j.sqlite")
    journal.append("lost", {"worker": "a"})
    other = sqlite3.connect(tmp_path / "j.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JobError, match="is locked"):
        journal.commit()
    other.execute("ROLLBACK")

    journal.append("lost", {"worker": "b"})
    journal.commit()

    told = [arguments["worker"] for _, arguments in journal.replay()[1]]
    assert (["a", "b"], 2) == (told, journal.length)


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


def test_a_journal_that_another_process_holds_says_what_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "_BUSY_S", 0.0)
    holder = Journal(tmp_path / "j.sqlite")
    holder._connection.execute("BEGIN IMMEDIATE")

    with pytest.raises(JobError, match="is locked.*end that process and start the job again"):
        Journal(tmp_path / "j.sqlite")
    holder.close()


def test_a_value_that_json_lacks_is_refused(tmp_path):
    with pytest.raises(TypeError, match="set cannot stand in the journal"):
        Journal(tmp_path / "j.sqlite").append("lost", {"worker": {1}})


def test_each_master_that_opens_the_journal_is_of_the_next_epoch(tmp_path):
    epochs = [Journal(tmp_path / "j.sqlite").epoch for _ in range(3)]

    assert [1, 2, 3] == epochs


def test_an_older_master_can_decide_nothing_any_more(tmp_path):
    old = Journal(tmp_path / "j.sqlite")
    old.append("lost", {"worker": "w"})
    old.commit()
    new = Journal(tmp_path / "j.sqlite")

    old.append("lost", {})
    acts = [old.commit, lambda: old.compact({"a": 1}), old.check]
    for act in [*acts, lambda: old.put("job", {})]:
        with pytest.raises(Fenced, match="another master, of epoch 2, has taken over"):
            act()
    assert (None, [("lost", {"worker": "w"})]) == new.replay()


def test_the_newest_master_passes_the_check_also_after_others_have_read(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    journal.append("lost", {})
    journal.commit()
    rows = sqlite3.connect(tmp_path / "j.sqlite").execute("SELECT kind FROM decisions").fetchall()

    journal.check()
    journal.append("lost", {})

    assert (1, 2) == (len(rows), journal.length)


def test_a_state_replaces_the_decisions_that_led_to_it(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    journal.append("before", {})
    journal.compact({"old": 1})
    journal.append("between", {})
    journal.compact({"payload": b"\xff"})
    journal.append("after", {"n": 1})
    journal.commit()
    journal.close()

    journal = Journal(tmp_path / "j.sqlite")

    assert ({"payload": b"\xff"}, [("after", {"n": 1})]) == journal.replay()
    assert 1 == journal.length


def test_a_named_state_replaces_the_one_before_and_nothing_else(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    journal.compact({"queue": 1})
    journal.append("a", {})
    journal.put("job", {"n": 1})
    journal.put("job", {"n": b"2"})
    journal.put("other", {})
    journal.close()

    journal = Journal(tmp_path / "j.sqlite")

    assert ({"n": b"2"}, {}, None) == tuple(map(journal.get, ("job", "other", "none")))
    assert ({"queue": 1}, [("a", {})]) == journal.replay()


def test_a_state_that_cannot_be_stored_leaves_the_decisions(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    journal.append("a", {})
    journal.commit()
    journal._connection.execute(
        "CREATE TRIGGER full BEFORE DELETE ON decisions BEGIN SELECT RAISE(FAIL, 'full'); END"
    )

    with pytest.raises(JobError, match="full"):
        journal.compact({"n": 1})

    assert (None, [("a", {})]) == journal.replay()


def test_a_file_that_is_no_journal_is_one_clear_error(tmp_path):
    (tmp_path / "j.sqlite").write_bytes(b"what is this" * 1000)

    with pytest.raises(JobError, match="is damaged.*--resume CHECKPOINT"):
        Journal(tmp_path / "j.sqlite")


def test_a_journal_with_damaged_pages_is_one_clear_error(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    for number in range(2000):
        journal._connection.execute("PRAGMA synchronous=OFF")
        journal.append("lease", {"worker": "w", "request": str(number)})
    journal.close()
    content = bytearray((tmp_path / "j.sqlite").read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    (tmp_path / "j.sqlite").write_bytes(content)

    with pytest.raises(JobError, match="is damaged"):
        Journal(tmp_path / "j.sqlite").replay()


def test_a_decision_that_is_no_json_is_one_clear_error(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    journal._connection.execute("INSERT INTO decisions (kind, arguments) VALUES ('lost', '{')")

    with pytest.raises(JobError, match="is damaged"):
        journal.replay()


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
