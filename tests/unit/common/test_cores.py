"""Threads are kept off each other's core, and nothing fails where they cannot be."""

from __future__ import annotations

import os
import threading

import pytest

from edl.common import cores

FAR_S = 60.0
ALLOWED = os.sched_getaffinity(0)
pytestmark = pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two cores")


@pytest.fixture
def load(monkeypatch):
    """load(running, cores): so many threads run on so many cores."""

    def loaded(running, count):
        monkeypatch.setattr(cores, "_running", lambda: running)
        monkeypatch.setattr(cores, "_count", lambda: count)

    loaded(2, 2)
    yield loaded
    os.sched_setaffinity(0, ALLOWED)


def test_who_waits_stays_on_its_core(load):
    with cores.kept():
        assert os.sched_getaffinity(0) == {cores.this()}

    assert os.sched_getaffinity(0) == ALLOWED


def test_who_shares_a_core_leaves_it_at_once(load):
    shared = cores.this()

    with cores.apart(shared):
        assert cores.this() != shared
        assert os.sched_getaffinity(0) == ALLOWED - {shared}

    assert os.sched_getaffinity(0) == ALLOWED


def test_core_that_is_not_there_keeps_nobody_away(load):
    with cores.apart(2**32 - 2):
        assert os.sched_getaffinity(0) == ALLOWED


def test_after_an_error_all_cores_are_allowed_again(load):
    with pytest.raises(OSError, match="hung up"), cores.kept():
        raise OSError("hung up")

    assert os.sched_getaffinity(0) == ALLOWED


@pytest.mark.parametrize("kept", [cores.kept, lambda: cores.apart(cores.this())])
def test_where_more_run_than_there_are_cores_all_stay_free(load, kept):
    load(3, 2)

    with kept():
        assert os.sched_getaffinity(0) == ALLOWED


@pytest.mark.parametrize("kept", [cores.kept, lambda: cores.apart(cores.this())])
def test_kernel_that_refuses_stops_nobody(load, monkeypatch, kept):
    def refuse(thread, chosen):
        raise PermissionError("seccomp")

    with monkeypatch.context() as patched:
        patched.setattr(os, "sched_setaffinity", refuse)
        with kept():
            cores.send_away(threading.get_native_id())
            assert os.sched_getaffinity(0) == ALLOWED


def test_thread_that_waits_is_sent_to_another_core(load):
    go, here, found = threading.Event(), [], []

    def work():
        assert go.wait(FAR_S)
        found.append(cores.this())

    def ask():
        with cores.kept():  # what the caller may use is not what others may
            here.append(cores.this())
            cores.send_away(worker.native_id)

    worker, caller = threading.Thread(target=work), threading.Thread(target=ask)
    worker.start()
    caller.start()
    caller.join(FAR_S)
    allowed = os.sched_getaffinity(worker.native_id)
    go.set()
    worker.join(FAR_S)

    assert allowed == ALLOWED - set(here)
    assert found[0] in allowed


@pytest.mark.parametrize(("running", "idle"), [(3, True), (4, False)])
def test_core_is_idle_while_fewer_threads_run_than_there_are_cores(
    monkeypatch, tmp_path, running, idle
):
    told = tmp_path / "loadavg"
    told.write_text(f"0.10 0.20 0.30 {running}/567 8910\n")
    with monkeypatch.context() as patched, told.open() as opened:
        patched.setattr(cores, "_loads", opened.fileno)
        patched.setattr(cores, "_count", lambda: 4)
        found = [cores.one_is_idle() for _ in range(2)]

    assert found == [idle, idle]
