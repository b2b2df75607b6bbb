"""The roll of a registry, and a student's view of it over registries that begin anew."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.registry import roll
from edl.registry.registering import pause_s
from edl.registry.roll import ASLEEP_S, Entry, Known, Roll, epoch_of, why_no_ttl

NAMES = ["bert", "lenet"]
ADDRESSES = [f"h:{port}" for port in range(1, 4)]
TTL_S = 6.0


def entry(address="h:1", fingerprint="f", incarnation="i", ttl_s=TTL_S):
    return Entry(address, fingerprint, incarnation, ttl_s)


class Model:
    """What a roll must say, by the most simple means: every entry with its end."""

    def __init__(self):
        self.of = {name: {} for name in NAMES}

    def listed(self, name, now):
        return [e for e, until in self.of[name].values() if until > now]

    def register(self, name, mine, now):
        there = self.of[name]
        for address in [at for at, (_, until) in there.items() if until <= now]:
            del there[address]
        if mine.address in there and there[mine.address][0].incarnation != mine.incarnation:
            del there[mine.address]
        if any(
            e.fingerprint != mine.fingerprint and e.address != mine.address
            for e, _ in there.values()
        ):
            return False
        there[mine.address] = mine, now + mine.ttl_s
        return True

    def pass_time(self, before, seconds):
        for name, there in self.of.items():
            slept = seconds if seconds > ASLEEP_S else 0.0
            self.of[name] = {
                at: (e, until + slept) for at, (e, until) in there.items() if until > before
            }

    def leave(self, name, address, incarnation):
        if self.of[name].get(address, (entry(incarnation=""),))[0].incarnation == incarnation:
            del self.of[name][address]


EVENTS = st.one_of(
    st.tuples(
        st.just("register"),
        st.sampled_from(NAMES),
        st.builds(
            Entry,
            st.sampled_from(ADDRESSES),
            st.sampled_from("ffg"),
            st.sampled_from("ij"),
            st.sampled_from([1.0, 3.0, 6.0]),
        ),
    ),
    st.tuples(
        st.just("leave"),
        st.sampled_from(NAMES),
        st.sampled_from(ADDRESSES),
        st.sampled_from("ij"),
    ),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 2.5])),
)


@given(st.lists(EVENTS, max_size=60))
def test_a_roll_is_what_its_entries_and_their_ends_say(events):
    """Broken once: (1) `leave` does not look at the incarnation; (2) an emptied name keeps its
    version; (3) `_soonest` is not lowered by a short time to live, or (4) a sleep counts.
    """
    made, model, now = Roll(7), Model(), 0.0
    versions = {name: {made.listed(name)[0]: []} for name in NAMES}
    for kind, *given_ in events:
        changes = made.changes
        if kind == "pass":
            model.pass_time(now, *given_)
            now += given_[0]
            made.pass_time(now)
        elif kind == "leave":
            made.pass_time(now)
            made.leave(*given_)
            model.leave(*given_)
        else:
            assert model.register(*given_, now) == (not made.register(*given_, now))
        for name in NAMES:
            version, there = made.listed(name)
            assert model.listed(name, now) == there
            if version in versions[name]:  # then the list is the one of then
                assert versions[name][version] == there
            elif made.changes == changes:
                raise AssertionError("a list has changed, and nobody who waits is told")
            versions[name][version] = there
        assert [name for name in NAMES if model.listed(name, now)] == made.names


def let_pass(made, since, until):
    """Tell a roll the time each second."""
    for now in np.arange(since, until, 1.0):
        made.pass_time(now)
    made.pass_time(until)


def test_a_renewal_is_no_change():
    made = Roll(1)
    made.register("lenet", entry(), 0.0)
    version, changes = made.listed("lenet")[0], made.changes

    made.register("lenet", entry(), TTL_S / 3)
    let_pass(made, TTL_S / 3, TTL_S + 1)

    assert (version, changes) == (made.listed("lenet")[0], made.changes)
    let_pass(made, TTL_S + 1, TTL_S + TTL_S / 3)
    assert [] == made.names


def test_time_in_which_the_registry_stood_still_counts_for_nobody():
    """It is stopped for a minute, say: no teacher could register meanwhile."""
    made = Roll(1)
    made.register("lenet", entry(), 0.0)
    made.register("lenet", entry("h:2"), 1.0)

    made.pass_time(61.0)
    assert 2 == len(made.listed("lenet")[1])
    let_pass(made, 61.0, 60.0 + TTL_S)
    assert [entry("h:2")] == made.listed("lenet")[1]


def test_who_leaves_takes_only_itself_from_the_list():
    made = Roll(1)
    made.register("lenet", entry(incarnation="new"), 0.0)

    made.leave("lenet", "h:1", "old")
    assert [entry(incarnation="new")] == made.listed("lenet")[1]

    made.leave("lenet", "h:1", "new")
    assert [] == made.listed("lenet")[1]


def test_who_is_known_stays_so_over_two_restarts():
    known = Known()
    known.heard(1 << 32, {"h:1": 6.0}, 0.0)
    known.heard(2 << 32, {}, 5.0)
    assert 11.0 == known.until

    known.heard(3 << 32, {"h:2": 6.0}, 10.0)

    assert ["h:2", "h:1"] == known.addresses
    assert 16.0 == known.until


def test_versions_of_two_registries_differ():
    lists = {Roll(epoch).listed("lenet")[0] for epoch in (1, 2, (1 << roll.EPOCH_BITS) - 1)}

    assert 3 == len(lists)
    assert max(lists) < 1 << 63
    assert 0 not in lists


@pytest.mark.parametrize(
    ("name", "mine", "why"),
    [
        ("", entry(), "'' is no name"),
        ("a/b", entry(), "'a/b' is no name"),
        ("lenet", entry(ttl_s=math.nan), "nan is no time to live: seconds from 1 to 3600"),
        ("lenet", entry(ttl_s=0.1), "0.1 is no time to live"),
        ("lenet", entry(address="h"), "the address 'h' is no HOST:PORT"),
        ("lenet", entry(address="kserve+http://h:1/m"), "is no HOST:PORT"),
        ("lenet", entry(fingerprint=""), "1 to 256 characters"),
        ("lenet", entry(incarnation="i" * 257), "1 to 256 characters"),
    ],
)
def test_what_is_no_teacher_is_refused(name, mine, why):
    made = Roll(1)

    assert why in made.register(name, mine, 0.0)
    assert [] == made.names


def test_one_name_is_of_one_teacher():
    made = Roll(1)
    made.register("lenet", entry("h:1", "digits"), 0.0)

    refused = made.register("lenet", entry("h:2", "fashion"), 0.0)

    assert "their fingerprint is digits, and its own fashion" in refused
    let_pass(made, 0.0, TTL_S)
    assert "" == made.register("lenet", entry("h:2", "fashion"), TTL_S)


def test_a_registry_is_bounded(monkeypatch):
    monkeypatch.setattr(roll, "MOST_TEACHERS", 2)
    made = Roll(1)
    assert ["", ""] == [made.register("lenet", entry(f"h:{n}"), 0.0) for n in (1, 2)]

    assert "no room for more" in made.register("bert", entry("h:3"), 0.0)
    assert "" == made.register("lenet", entry("h:2"), 0.0)


@pytest.mark.parametrize("ttl_s", [math.nan, math.inf, 0.0, -1.0, 0.99, 3600.1])
def test_a_time_to_live_is_bounded(ttl_s):
    assert "seconds from 1 to 3600" in why_no_ttl(ttl_s)


def test_pauses_grow_to_a_third_of_the_time_to_live():
    assert 5.0 == pause_s(15.0, 0)
    assert [0.2, 0.4, 0.8, 1.6, 3.2, 5.0] == [pause_s(15.0, n) for n in range(1, 7)]
    assert 10.0 == pause_s(3600.0, 50)
    assert 1 / 3 == pause_s(1.0, 9)


@given(
    st.lists(st.sampled_from(["restart", "die", "come", "", "", ""]), max_size=40),
    st.lists(st.sampled_from([True, True, False]), min_size=41, max_size=41),
)
def test_a_living_teacher_stays_known_over_restarts_and_a_dead_one_goes(events, hears):
    """A second of each event; teachers register every two of six seconds, the student hears now
    and then.

    Broken once: (1) Known.heard keeps nobody; (2) it keeps those of before for ever.
    """
    registry, epoch, known = Roll(1), 1, Known()
    living, died = {}, {}  # since when
    learned, heard = 0, set()  # of this registry, and of whom
    for now, event in enumerate(events):
        if event == "restart":
            epoch += 1
            registry = Roll(epoch)
        if event == "die" and living:
            address = min(living)
            died[address] = now
            del living[address]
        if event == "come":
            living[f"h:{now + 1}"] = now
        for address, since in living.items():
            if (now - since) % 2 == 0:
                assert "" == registry.register("lenet", entry(address), now)
        registry.pass_time(now)
        if hears[now] or known.until <= now:
            version, there = registry.listed("lenet")
            learned = learned if epoch_of(known.version) == epoch else now
            known.heard(version, {each.address: each.ttl_s for each in there}, now)
            heard |= set(known.addresses)
            gone = {at for at, then in died.items() if now - max(then, learned) >= TTL_S}
            assert not gone & set(known.addresses)
        assert heard & set(living) <= set(known.addresses)
