"""Teachers of one student have one fingerprint: at the start, and when one joins.

A test's docstring says what was broken once to see it fail.
"""

import contextlib
import hashlib
import socket

import numpy as np
import pytest

from edl.common.errors import UsageError
from edl.common.identity import Identity
from edl.distill import DistillReader, Rules
from edl.distill.alike import Alike
from edl.distill.cached import Cached
from edl.distill.frames import Part
from edl.distill.link import Stranger
from edl.distill.roll_call import call_roll
from edl.distill.server import Teacher
from edl.registry.client import RegistryClient
from edl.registry.identity import VARIABLE
from edl.registry.roll import Entry
from edl.registry.serve import Registry

IDENTITY = Identity("the teachers' token")
ME, OTHER = "ab" * 16, "cd" * 16
X = np.arange(4.0, dtype=np.float32)[:, None]


class Town:
    """Teachers over real sockets, which end with the test."""

    def __init__(self, undo):
        self.undo, self.rows = undo, {}

    def teacher(self, fingerprint=ME, identity=IDENTITY, port=0):
        """Return the address of one that doubles, or triples where it is another."""
        made = Teacher(identity=identity, port=port)
        self.undo.callback(made.close)
        address = f"127.0.0.1:{made.listening.tcp_port}"
        self.rows[address] = 0
        factor = 2 if fingerprint == ME else 3

        def teach(parts, rows):
            self.rows[address] += rows
            return [Part("/logits", factor * parts[0].values)]

        about = {"fingerprint": fingerprint} if fingerprint else {}
        made.begin(teach, about, max_batch_size=4)
        return address

    def registry(self, *addresses, fingerprint=ME):
        """Return the address of a registry, of whose name `lenet` these are."""
        made = Registry(IDENTITY, "127.0.0.1")
        self.undo.callback(made.close)
        client = RegistryClient(made.address, IDENTITY)
        self.undo.callback(client.close)
        for each in addresses:
            assert "" == client.register("lenet", Entry(each, fingerprint, each, 60.0))
        return made.address


@pytest.fixture
def town(monkeypatch):
    monkeypatch.setenv(VARIABLE, IDENTITY.to_variable())
    with contextlib.ExitStack() as undo:
        yield Town(undo)


def reader(teachers, notes=None, **rules):
    note = notes.append if notes is not None else lambda _: None
    made = DistillReader(["image"], rules=Rules(**{"wait_s": 60.0, **rules}), on_note=note)
    return made.set_fixed_teacher(teachers)


def one(told, known):
    """Return what one sentence says of both."""
    return rf"the teacher at {told} is another one \({OTHER}\) than that at {known} \({ME}\)"


def test_two_teachers_at_the_start_are_refused_in_a_sentence_that_names_both(town):
    """Broken once: each batch is taught by whoever is free."""
    mine, other = town.teacher(), town.teacher(OTHER)
    with pytest.raises(UsageError, match=one(other, mine)):
        next(reader([mine, other]).wrap([(X,)]))
    assert {mine: 0, other: 0} == town.rows

    with pytest.raises(UsageError, match=one(other, mine)):
        call_roll([f"edl://{town.registry(mine)}/lenet", other], IDENTITY)


def test_who_is_not_there_or_tells_nothing_is_no_fault_at_the_start(town):
    mine, silent = town.teacher(), town.teacher("")
    empty = f"edl://{town.registry()}/lenet"

    for asked in (
        ["127.0.0.1:1", silent, empty, mine, town.teacher()],
        ["kserve+http://127.0.0.1:1/lenet", "edl://127.0.0.1:1/lenet"],
    ):
        assert call_roll(asked, IDENTITY) is None


@pytest.mark.parametrize("is_set", [True, False])
def test_a_wrong_identity_is_told_at_the_start(town, monkeypatch, is_set):
    """Broken once: the student waits for --teacher_wait_s."""
    address = town.teacher()
    monkeypatch.setenv(VARIABLE, Identity("another").to_variable() if is_set else "")

    said = "is not what it was given" if is_set else "is not set"
    with pytest.raises(UsageError, match=rf"{address} does not know .* for {VARIABLE} {said} \("):
        next(reader(address).wrap([(X,)]))


def test_an_identity_without_a_certificate_is_told_for_another_host(town, monkeypatch):
    monkeypatch.setattr("edl.wire.reach.is_loopback", lambda _host: False)
    with pytest.raises(UsageError, match="has no certificate"):
        call_roll([town.teacher()], IDENTITY)


def test_another_one_that_joins_later_is_not_asked_and_that_is_told_once(town):
    """Broken once: only those of a cache are compared."""
    notes, mine = [], town.teacher()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    other = f"127.0.0.1:{port}"

    def batches():
        yield from [(X,)] * 20
        town.teacher(OTHER, port=port)
        for _ in range(100_000):
            yield (X,)
            if notes:
                break
        yield from [(X,)] * 20

    for _, logits in reader([mine, other], notes).wrap(batches()):
        np.testing.assert_array_equal(2 * X, logits)

    assert 0 == town.rows[other]
    (note,) = notes
    assert note.startswith(
        f"the teacher at {other} is asked no more: the teacher at {other} is anot"
    )
    assert f"than that at {mine} ({ME})" in note


def test_another_one_at_the_same_address_is_not_asked(town):
    notes, address = [], town.teacher()
    it = reader(address, notes, wait_s=0.5)
    list(it.wrap([(X,)]))
    town.undo.pop_all().close()
    town.teacher(OTHER, port=int(address.rpartition(":")[2]))

    with pytest.raises(Exception, match=rf"is another one \({OTHER}\) than the one of before"):
        list(it.wrap([(X,)]))
    assert 0 == town.rows[address]
    for _, logits in it.set_fixed_teacher(address).wrap([(X,)]):  # said anew: it is meant
        np.testing.assert_array_equal(3 * X, logits)


class Job:
    """What the students of a job agree on by its master, which tells the user of strangers."""

    def __init__(self):
        self.agreed, self.met = "", []

    def agree(self, address, told):
        self.met.append((address, told))
        self.agreed = self.agreed or told
        return self.agreed


def test_students_of_a_job_agree_on_the_first_that_one_of_them_has_met():
    job = Job()
    first, second = Alike(agree=job.agree), Alike(agree=job.agree)
    first.meet("h:1", {"fingerprint": ME})
    with pytest.raises(Stranger, match=rf"h:2 is another one \({OTHER}\) than the others") as told:
        second.meet("h:2", {"fingerprint": OTHER})
    second.meet("h:1", {"fingerprint": ME})
    second.meet("h:1", {"fingerprint": ME})
    first.meet("h:3", {})  # a foreign one

    assert told.value.is_told  # by the master
    assert [("h:1", ME), ("h:2", OTHER), ("h:1", ME)] == job.met


def test_a_cache_tells_the_others_whose_answers_it_has(tmp_path):
    job = Job()
    before = Cached(tmp_path, "a job", alone=False)
    before._alike.meet("h:1", {"fingerprint": ME})
    before.close()

    cached = Cached(tmp_path, "a job", alone=False, agree=job.agree)
    with pytest.raises(
        Stranger, match=f"than that whose answers are in --teacher_cache {tmp_path}"
    ):
        cached._alike.meet("h:2", {"fingerprint": OTHER})
    cached.close()
    assert [("", ME), ("h:2", OTHER)] == job.met


def test_a_mark_of_an_earlier_edl_holds_no_more_and_that_is_told(tmp_path):
    """Its fingerprint told less, so that each teacher would be another one for the same job."""
    notes = []
    name = tmp_path / f"job-{hashlib.sha256(b'a job').hexdigest()[:12]}.teacher"
    name.write_text(f"{OTHER}\n")  # as version 0.1.0.dev wrote it

    cached = Cached(tmp_path, "a job", alone=False, on_note=notes.append)
    assert "" == cached.teacher
    cached._alike.meet("h:1", {"fingerprint": ME})
    cached.close()

    assert ME == cached.teacher
    (note,) = notes
    assert note.startswith(f"{name} is of an earlier edl")
    with contextlib.closing(Cached(tmp_path, "a job", alone=False, on_note=notes.append)) as last:
        assert ME == last.teacher
    assert 1 == len(notes)
