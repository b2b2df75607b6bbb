"""The meaning of a SIGKILL, as far as the kernel tells."""

import signal

from edl.runtime.memory import oom_kills, why_killed


def test_kills_for_want_of_memory_are_counted_and_named_only_with_a_sigkill(tmp_path):
    counters = tmp_path / "vmstat"
    counters.write_text("pgpgin 5\noom_kill 3\noom_kill_x 9\n")

    assert 3 == oom_kills(counters)
    assert 0 == oom_kills(tmp_path / "none")
    assert "want of memory" in why_killed(-signal.SIGKILL, 1)
    assert ["", ""] == [why_killed(-signal.SIGKILL, 0), why_killed(-signal.SIGTERM, 1)]
