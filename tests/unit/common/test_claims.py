"""Claims to folders: of two jobs one has it, and no job waits for one that is known to be gone."""

from __future__ import annotations

import json
import os
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tools.stores import clear_memory, world
from tools.turns import examples

from edl.common import claims, conditional, paths
from edl.common.claims import BEAT_S, EXPIRES_S, Claim, Holder, Taken
from edl.common.clock import FakeClock
from edl.common.places import Place

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))


@pytest.fixture(params=["path", "memory", "flaky"])
def place(request, tmp_path):
    clear_memory()
    world("of-claims", new=True)
    where = {"path": f"{tmp_path}/x", "memory": "memory://c/x", "flaky": "flaky://of-claims/x"}
    return Place(where[request.param])


def holder(name, **more):
    return Holder(**{"owner": f"{name}-1", "job": name, "id": name, "host": "h", **more})


def claim(place, name, waits=(), **more):
    """Return a claim; each pause of `take` does the next of `waits`, and takes no time."""
    clock, left = FakeClock(), iter(waits)

    def wait(seconds):
        clock.advance(seconds)
        next(left, lambda: None)()

    return Claim(place, holder(name, master=name, **more), clock, wait)


def a_job(name, **more):
    folder, lock = paths.claim(name)
    return Holder.of_job(f"{name}-1", name, name, folder), lock


def steal(place, job):
    """Put another job into OWNER, whose claim had run out."""
    data = json.dumps({"owner": f"{job}-1", "job": job, "host": "x"}).encode()
    while conditional.swap(place, claims.FILE, data, conditional.seen(place, claims.FILE)) is None:
        pass


def there(place):
    return json.loads(place.read(claims.FILE))


def test_a_folder_is_of_the_first_and_of_nobody_once_it_is_given_up(place):
    first, second = claim(place, "first"), claim(place, "second")

    first.take()
    assert ("first", "held") == (there(place)["job"], there(place)["state"])
    first.close()
    second.take()

    assert "second" == there(place)["job"]
    with pytest.raises(Taken, match="this job has given .* up"):
        first.renew()


def test_a_job_that_beats_elsewhere_is_seen_to_run_and_refuses_others(place):
    first, told = claim(place, "first"), []
    first.take()
    second = claim(place, "second", [lambda: None, lambda: None, first.renew])

    with pytest.raises(Taken, match=r"'first', which is running, writes to .*: name another"):
        second.take(told.append)

    words = "is the folder of the job 'first', on h: whether that still runs is seen within 25 s"
    assert [f"{place} {words}"] == told
    first.hold()


def test_a_job_that_is_silent_for_longer_than_its_claim_lasts_is_gone(place):
    first, second = claim(place, "first"), claim(place, "second")
    first.take()

    second.take()

    assert EXPIRES_S < second._clock.now() < EXPIRES_S + 3
    with pytest.raises(Taken, match="'second'"):
        first.hold()
    assert "this job writes there no more" in first.lost
    second.hold()


def test_who_slept_and_lost_nothing_goes_on(place):
    first = claim(place, "first")
    first.take()
    first._clock.advance(10 * EXPIRES_S)

    first.hold()

    assert "first" == there(place)["job"]


def test_the_same_job_takes_its_claim_back_at_once_by_its_id(place):
    before, after = claim(place, "it"), claim(place, "it")
    after._me = holder("it", owner="another-name", master="the next")
    before.take()

    after.take()

    assert 0.0 == after._clock.now()
    with pytest.raises(Taken):  # a master that was thought dead
        before.renew()


def test_a_job_that_goes_on_elsewhere_with_a_checkpoint_takes_it_at_once_by_the_owner(place):
    before = claim(place, "it")
    after = claim(place, "it-r1", owner="it-1")
    before.take()

    after.take()

    assert 0.0 == after._clock.now()
    with pytest.raises(Taken, match="'it-r1'"):
        before.hold()


def test_of_a_job_of_this_machine_its_lock_says_at_once_whether_it_runs(place):
    me, lock = a_job("first")
    first, same = Claim(place, me), claim(place, "first-r1", owner="first-1")
    first.take()

    assert "first" == claims.running(place).job
    for other in (claim(place, "second"), same):  # who goes on with it, too: it runs
        with pytest.raises(Taken, match=r"end it \(`edl stop first`\)"):
            other.take()
        assert 0.0 == other._clock.now()
    os.close(lock)
    assert claims.running(place) is None
    second = claim(place, "second")
    second.take()
    assert 0.0 == second._clock.now()


def test_a_job_whose_folder_another_of_its_name_has_replaced_is_gone(place):
    me, lock = a_job("it")
    Claim(place, me).take()
    os.close(lock)
    _, lock = a_job("it")  # which moves the first one's away
    second = claim(place, "second")

    second.take()

    assert 0.0 == second._clock.now()
    os.close(lock)


def test_a_folder_that_was_wiped_is_claimed_anew(place):
    first = claim(place, "first")
    first.take()
    place.remove([claims.FILE])

    first.hold()

    assert "first" == there(place)["job"]


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"owner": 1}', b'{"owner": "a", "job": 3}'])
def test_what_is_no_claim_is_a_sentence(place, content):
    place.write(claims.FILE, content)

    with pytest.raises(Taken, match=r"OWNER, which says who writes there, cannot be read: .*Remo"):
        claim(place, "first").take()
    assert claims.running(place) is None


def test_a_later_versions_claim_is_read(place):
    more = {"owner": "a-1", "job": "a", "id": "a", "more": {"of": "it"}}
    place.write(claims.FILE, json.dumps(more).encode())

    claim(place, "a").take()

    assert "more" not in there(place)


def test_a_store_that_is_away_for_a_while_costs_no_claim(monkeypatch):
    monkeypatch.setattr(claims, "_LAST_ASKING", None)
    away = world("away", new=True)
    place = Place("flaky://away/x")
    first = claim(place, "first")
    first.take()
    away.down, away.error = True, PermissionError(13, "Access Denied")

    first.hold()  # the write that follows says why it cannot be
    with pytest.raises(OSError, match="Access Denied"):
        first.renew()
    away.down = False
    first.hold()

    assert "" == first.lost


def test_a_claim_is_kept_by_a_thread_until_it_is_lost(place, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    heard, over = [], threading.Event()
    first = claim(place, "first")
    first.take()
    first.keep(lambda why: (heard.append(why), over.set()))
    beat = there(place)["beat"]
    while there(place)["beat"] < beat + 3:
        over.wait(0.01)
    assert [] == heard
    for _ in range(1200):  # a store without conditional writes may lose one to a renewal
        steal(place, "b")
        if over.wait(0.05):
            break

    assert ["'b', on x"] == [why[why.index("'b'") : why.index(", by now")] for why in heard]
    first.close()
    assert "b" == there(place)["job"]


def test_of_many_that_begin_at_once_one_has_the_folder(tmp_path):
    place, won, begin = Place(tmp_path / "x"), [], threading.Barrier(8)

    def run(name):
        begin.wait(60)
        data = name.encode()
        if conditional.swap(place, claims.FILE, data, None) is not None:
            won.append(data)

    threads = [threading.Thread(target=run, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [place.read(claims.FILE)] == won


class Jobs(RuleBasedStateMachine):
    """Jobs of several machines that beat, sleep, die and begin, each by a clock of its own."""

    @initialize()
    def begin(self):
        clear_memory()
        self.place = Place("memory://jobs/x")
        self.now = 0.0
        self.writers = []  # claims whose masters run, and may believe that the folder is theirs
        self.asleep = set()
        self.beats = {}  # claim: when it last did
        self.count = 0

    @rule(same=st.booleans())
    def come(self, same):
        """Begin a job, or another master of the last one, while the others beat as they do."""
        self.count += 0 if same and self.count else 1
        made = Claim(self.place, holder(f"job-{self.count}", master=str(len(self.beats))))
        clock = FakeClock(1000.0 * len(self.beats))
        made._clock = clock

        def wait(seconds):
            clock.advance(seconds)
            self.pass_time(seconds)

        made._wait = wait
        awake = [c for c in self.writers if c not in self.asleep]
        try:
            made.take(lambda _: None)
        except Taken:
            assert awake, "it was refused, and nobody is awake"
            return
        others = [c for c in awake if c in self.writers and c._me.id != made._me.id]
        assert not others, "it has the folder of a job that is awake"
        self.writers.append(made)
        self.beats[made] = self.now

    @rule(seconds=st.sampled_from([1.0, BEAT_S, 3 * EXPIRES_S]))
    def pass_time(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            for each in self.writers:
                if each not in self.asleep and self.now - self.beats[each] >= BEAT_S:
                    self.beats[each] = self.now
                    self.beat(each)

    def beat(self, each):
        try:
            each.renew()
        except Taken:
            self.writers.remove(each)

    @rule(data=st.data())
    def sleep(self, data):
        if self.writers:
            self.asleep.add(data.draw(st.sampled_from(self.writers)))

    @rule()
    def wake(self):
        for each in self.asleep & {*self.writers}:
            self.beats[each] = self.now
            self.beat(each)
        self.asleep.clear()

    @rule(data=st.data())
    def end(self, data):
        if self.writers:
            each = data.draw(st.sampled_from(self.writers))
            each.close()
            self.writers.remove(each)

    @invariant()
    def one_writer_holds(self):
        """Of all that ask before they write, one may."""
        held = []
        for each in [*self.writers]:
            if each in self.asleep:
                continue
            try:
                each.renew()
            except Taken:
                self.writers.remove(each)
            else:
                self.beats[each] = self.now
                held.append(each)
        assert len(held) <= 1


Jobs.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=15, deadline=None)
TestJobs = Jobs.TestCase
