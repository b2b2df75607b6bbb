"""The keeper's looks, with the time given: when it speaks for its worker, and what it says."""

import os

import pytest

from edl.proto import master_pb2 as pb
from edl.worker import keeper, pulse

LEASE_S, HANG_S = 4.0, 100.0


class Line:
    """A line to a master that writes down what it hears."""

    def __init__(self):
        self.heard = []

    def heartbeat_with(self, request, patience_s):
        self.heard.append(request)
        return pb.HeartbeatReply()

    def close(self):
        """Do nothing: there is nothing to let go of."""


class Keeper(keeper._Keeper):
    stacks = 0

    def _write_stack(self, place, seconds):
        self.stacks += 1


@pytest.fixture
def line():
    pulse.live("w", lease_s=LEASE_S, hang_s=HANG_S)
    yield Line()
    pulse.live("")


@pytest.fixture
def kept(line):
    return Keeper(os.getpid(), 0, lambda incarnation: line)


def now():
    return pulse.read().heard


def test_it_is_silent_as_long_as_the_worker_is_heard_and_speaks_where_it_is_not(kept, line):
    kept.look(now() + 0.4 * LEASE_S)
    assert [] == line.heard

    kept.look(now() + 0.6 * LEASE_S)

    assert [pb.HeartbeatRequest()] == line.heard


def test_it_does_not_speak_for_a_worker_that_is_stopped_or_gone(line):
    gone = Keeper(2**22 + 1, 0, lambda incarnation: line)

    gone.look(now() + 3 * LEASE_S)

    assert [] == line.heard


def test_a_thread_that_stays_in_user_code_is_remarked_on_once_and_over_the_limit_each_time(
    kept, line
):
    with pulse.section(pulse.FEED, 7, 2, 16, 32):
        for seconds in (1.0, 52.0, 55.0, 101.0, 102.0):
            pulse.beat()
            kept.look(pulse.read().longest.since + seconds)

    told = [(r.stuck.what, r.stuck.over) for r in line.heard if r.HasField("stuck")]
    where = "feed (positions 16-32 of task 7)"
    assert [(where, False), (where, True), (where, True)] == told
    assert pb.Trying(task=7, attempt=2, start=16, end=32) == line.heard[-1].trying
    assert 2 == kept.stacks


def test_a_place_is_remarked_on_once_and_later_ones_where_they_last_twice_as_long(kept, line):
    def stay(*seconds):
        with pulse.section(pulse.STEP, 7, 2, 16, 32):
            since = pulse.read().longest.since
            for each in seconds:
                pulse.beat()
                kept.look(since + each)

    stay(51.0, 60.0)
    stay(52.0, 90.0)  # the limit is 100 s: what is over is told of each time
    stay(51.0)

    told = [round(r.stuck.seconds) for r in line.heard if r.HasField("stuck")]
    assert [51] == told


def test_who_waits_for_a_server_that_is_known_to_be_late_does_not_hang(kept, line):
    with pulse.section(pulse.EVALUATE, 7, 2, 16, 32):
        before = pulse.read().longest.since
        pulse.excuse()

        assert pulse.read().longest.since >= before

    assert None is pulse.read().longest
