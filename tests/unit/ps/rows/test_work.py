"""Work that two threads share: all of it is done once, and errors come out where it is needed."""

from __future__ import annotations

import threading

import pytest
from tools.waiting import FAR_S, until

from edl.common.errors import EdlError
from edl.ps.rows import work
from edl.ps.rows.work import Work, _core_is_idle


class Pieces:
    """Pieces that note who did them. Those of the thread that helps wait for `go`."""

    def __init__(self, count, fail=()):
        self.by = [[] for _ in range(count)]
        self.go = threading.Event()
        self.helping = threading.Event()
        self._fail = fail

    def __call__(self, number):
        if threading.current_thread() is not threading.main_thread():
            self.helping.set()
            assert self.go.wait(FAR_S)
        self.by[number].append(threading.current_thread())
        if number in self._fail:
            raise EdlError(f"piece {number}")

    def all(self):
        return [lambda number=number: self(number) for number in range(len(self.by))]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(work.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(work, "_core_is_idle", lambda: True)
    work._helpers.cache_clear()
    yield
    for helper in work._helpers():
        helper.shutdown()
    work._helpers.cache_clear()


def test_each_piece_is_done_once_by_one_of_two_threads():
    pieces = Pieces(5)

    with Work(pieces.all()) as shared:
        assert pieces.helping.wait(FAR_S)
        pieces.go.set()
        shared.wait(0)
        assert pieces.by[0] not in ([], [threading.main_thread()])

    assert [len(by) for by in pieces.by] == [1] * 5


def test_who_helped_helps_again_each_time_on_another_core(monkeypatch):
    chosen = []
    monkeypatch.setattr(work, "_this_core", lambda: len(chosen) % 2)
    monkeypatch.setattr(work.os, "sched_setaffinity", lambda *told: chosen.append(told))

    for _ in range(3):
        pieces = Pieces(2)
        with Work(pieces.all()) as shared:
            assert pieces.helping.wait(FAR_S)
            pieces.go.set()
            shared.wait(0)
            helper = pieces.by[0][0]
            assert shared._help.result(FAR_S) is None
        until(work._helpers)  # it is free a moment later

    assert helper is not threading.main_thread()
    assert chosen == [(helper.native_id, {other}) for other in (1, 0, 1)]


def test_thread_that_may_not_be_sent_to_another_core_helps_all_the_same(monkeypatch):
    def forbid(thread, cores):
        raise PermissionError("seccomp")

    monkeypatch.setattr(work.os, "sched_setaffinity", forbid)
    pieces = Pieces(2)

    with Work(pieces.all()) as shared:
        assert pieces.helping.wait(FAR_S)
        pieces.go.set()
        shared.wait(1)

    assert [len(by) for by in pieces.by] == [1, 1]


def test_nobody_waits_for_help_that_has_not_begun():
    busy = Pieces(2)

    with Work(busy.all()):
        assert busy.helping.wait(FAR_S)  # the only thread is at this work
        late = Pieces(3)
        with Work(late.all()) as shared:
            shared.wait(2)
        busy.go.set()

    assert late.by == [[threading.main_thread()]] * 3


def test_error_of_the_thread_that_helps_is_raised_where_the_work_is_needed():
    pieces = Pieces(2, fail=[0])
    pieces.go.set()

    def work():
        with Work(pieces.all()) as shared:
            assert pieces.helping.wait(FAR_S)
            shared.wait(0)

    with pytest.raises(EdlError, match="piece 0"):
        work()


def test_after_an_error_no_piece_is_begun_and_none_is_under_way():
    pieces = Pieces(3)

    def work():
        with Work(pieces.all()):
            assert pieces.helping.wait(FAR_S)
            threading.Timer(0.01, pieces.go.set).start()
            raise OSError("hung up")

    with pytest.raises(OSError, match="hung up"):
        work()

    assert [len(by) for by in pieces.by] == [1, 0, 0]


def test_only_as_many_pieces_are_begun_as_there_is_room_for():
    pieces = Pieces(5)

    with Work(pieces.all(), ahead=2) as shared:
        pieces.go.set()
        shared.wait(1)
        assert shared._help.result(FAR_S) is None  # the thread that helps found no more
        assert [len(by) for by in pieces.by] == [1, 1, 0, 0, 0]
        shared.release()
        shared.wait(2)
        assert [len(by) for by in pieces.by] == [1, 1, 1, 0, 0]

    assert [len(by) for by in pieces.by] == [1] * 5


def test_help_is_asked_for_again_when_a_core_gets_free(monkeypatch):
    monkeypatch.setattr(work, "_core_is_idle", lambda: False)
    pieces = Pieces(3)
    pieces.go.set()

    def second():
        """Do the second piece; whoever is at it, the other thread does the third."""
        pieces(1)
        assert pieces.helping.wait(FAR_S)

    with Work([pieces.all()[0], second, pieces.all()[2]]) as shared:
        shared.wait(0)
        monkeypatch.setattr(work, "_core_is_idle", lambda: True)
        shared.wait(1)

    assert [len(by) for by in pieces.by] == [1] * 3
    assert pieces.by[0] == [threading.main_thread()]


@pytest.mark.parametrize("lack", ["_helpers", "_core_is_idle"])
def test_where_no_core_is_idle_nobody_is_asked(monkeypatch, lack):
    alone = Pieces(2)

    with monkeypatch.context() as patched:
        patched.setattr(work, lack, lambda: None)
        with Work(alone.all()) as shared:
            shared.wait(1)

    assert alone.by == [[threading.main_thread()]] * 2


@pytest.mark.parametrize(("running", "idle"), [(3, True), (4, False)])
def test_core_is_idle_while_fewer_threads_run_than_there_are_cores(
    monkeypatch, tmp_path, running, idle
):
    told = tmp_path / "loadavg"
    told.write_text(f"0.10 0.20 0.30 {running}/567 8910\n")
    with monkeypatch.context() as patched, told.open() as opened:
        patched.setattr(work, "_loads", opened.fileno)
        patched.setattr(work, "_num_cores", lambda: 4)
        found = [_core_is_idle() for _ in range(2)]

    assert found == [idle, idle]
