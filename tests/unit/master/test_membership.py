from __future__ import annotations

import pytest

from edl.common.clock import FakeClock
from edl.master.membership import SERVER, WORKER, Member, Membership

pytestmark = pytest.mark.fast


def member(incarnation: str, clock: FakeClock, index: int = 0, role: str = WORKER) -> Member:
    return Member(role, index, incarnation, clock.now())


def names(members: list[Member]) -> list[str]:
    return [m.incarnation for m in members]


def test_who_never_registered_is_fenced():
    assert not Membership(10).heard("ghost", 0.0)


def test_a_repeated_registration_changes_nothing():
    clock, members = FakeClock(), Membership(10)

    answers = [members.register(member("a", clock)) for _ in range(2)]

    assert [(True, []), (True, [])] == answers
    assert ["a"] == names(members.of(WORKER))


def test_a_new_incarnation_of_an_index_replaces_the_old_one():
    clock, members = FakeClock(), Membership(10)
    members.register(member("old", clock))

    accepted, lost = members.register(member("new", clock))

    assert (True, ["old"]) == (accepted, names(lost))
    assert not members.heard("old", 0.0)
    assert (False, []) == members.register(member("old", clock))


def test_a_server_and_a_worker_of_one_index_are_strangers():
    clock, members = FakeClock(), Membership(10)
    members.register(member("worker", clock, 3))
    members.register(member("server", clock, 3, SERVER))

    assert ["server"] == names(members.lose_index(SERVER, 3))

    assert members.heard("worker", 0.0)


def test_a_worker_silent_for_longer_than_the_lease_is_lost():
    clock, members = FakeClock(), Membership(10)
    members.register(member("quiet", clock, 0))
    members.register(member("loud", clock, 1))
    clock.advance(9)
    members.heard("loud", clock.now())
    clock.advance(1)
    assert [] == members.expire(clock.now())

    clock.advance(0.1)

    assert ["quiet"] == names(members.expire(clock.now()))
    assert not members.heard("quiet", clock.now())
    assert members.heard("loud", clock.now())


def test_a_silent_server_is_not_lost():
    clock, members = FakeClock(), Membership(10)
    members.register(member("server", clock, role=SERVER))

    assert [] == members.expire(1000.0)


def test_what_a_member_says_is_kept_and_a_version_never_falls():
    clock, members = FakeClock(), Membership(10)
    members.register(member("a", clock))

    members.heard("a", 1.0, version=7, state="training", scalars={"loss": 0.5})
    members.heard("a", 2.0, version=3)

    found = members.get("a")
    assert found is not None
    assert (7, "training", {"loss": 0.5}, 2.0) == (
        found.version,
        found.state,
        found.scalars,
        found.last_heard,
    )


def test_the_next_expiry_is_that_of_the_worker_heard_longest_ago():
    members = Membership(lease_s=10.0)
    assert members.next_expiry() is None
    for index, heard in enumerate((5.0, 3.0, 8.0)):
        members.register(Member(WORKER, index, f"w{index}", heard))
    members.register(Member(SERVER, 0, "s0", 0.0))

    assert members.next_expiry() == 13.0
    assert members.expire(13.0) == []
    assert [member.incarnation for member in members.expire(13.001)] == ["w1"]
    assert members.next_expiry() == 15.0
