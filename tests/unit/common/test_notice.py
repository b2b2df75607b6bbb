from __future__ import annotations

import threading

from edl.common import notice

WAIT_S = 300.0


def test_notice_is_told_once_the_command_ends_with_0(tmp_path):
    told = threading.Event()
    gate = tmp_path / "gate"

    thread = notice.watch(f"while ! test -e {gate}; do sleep 0.01; done", told.set)
    assert not told.is_set()
    gate.touch()

    assert told.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_command_that_fails_is_started_again_and_said_once(tmp_path, caplog):
    """Broken once: any end is taken for the notice."""
    told = threading.Event()
    tries = tmp_path / "tries"

    notice.watch(f"echo x >> {tries}; test $(wc -l < {tries}) = 3", told.set, again_s=0.0)

    assert told.wait(WAIT_S)
    assert tries.read_text() == "x\nx\nx\n"
    assert [r.message for r in caplog.records if "ended with 1" in r.message] != []
    assert sum("ended with" in r.message for r in caplog.records) == 1


def test_without_a_command_nothing_runs():
    assert notice.watch("") is None
