"""The meaning of a SIGKILL, as far as the kernel tells."""

import signal

import pytest

from edl.runtime.memory import Kills, oom_kills

KILLED = -signal.SIGKILL


@pytest.mark.parametrize(
    ("own", "counter"),
    [
        ("0::/job.slice/a\n", "job.slice/a/memory.events"),
        ("0::/\n", "memory.events"),  # in a container
        ("4:cpu,memory:/job\n1:name=systemd:/\n0::/\n", "memory/job/memory.oom_control"),
        ("4:memory:/docker/77\n0::/\n", "memory/memory.oom_control"),  # in a container of v1
    ],
)
def test_kills_are_those_of_the_processs_own_memory_group(tmp_path, own, counter):
    """Broken once: those of the whole machine were counted."""
    (tmp_path / "own").write_text(own)
    path = tmp_path / "groups" / counter
    path.parent.mkdir(parents=True)
    path.write_text("low 5\noom_kill_disable 0\noom 9\noom_kill 3\noom_group_kill 1\n")

    assert 3 == oom_kills(tmp_path / "groups", tmp_path / "own")


def test_a_kernel_that_does_not_tell_has_killed_nobody(tmp_path):
    (tmp_path / "own").write_text("4:memory:/job\n0::/\n")

    assert 0 == oom_kills(tmp_path / "groups", tmp_path / "own")
    assert 0 == oom_kills(tmp_path / "groups", tmp_path / "none")


def test_a_kill_is_told_as_a_guess_of_one_process_and_only_with_a_sigkill():
    counted = [7]
    kills = Kills(lambda: counted[0])
    first, second, third = kills.begin(), kills.begin(), kills.begin()
    counted[0] += 1
    late = kills.begin()

    assert "" == kills.why(-signal.SIGTERM, first)
    assert "" == kills.why(KILLED, late)
    assert "may have been for want of memory" in kills.why(KILLED, first)
    assert "" == kills.why(KILLED, second)  # the same kill was another's end
    counted[0] += 1
    assert "may have been" in kills.why(KILLED, third)
