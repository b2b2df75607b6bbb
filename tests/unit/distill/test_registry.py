"""A registry over gRPC, with teachers that register and students that follow."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from tools.waiting import until

from edl.common.clock import FakeClock
from edl.common.errors import EdlError, Unauthenticated, Unreachable, UsageError
from edl.common.identity import Identity
from edl.distill import DistillReader, Rules
from edl.distill.alone import check_place
from edl.distill.following import Following
from edl.distill.frames import Part
from edl.distill.server import Teacher
from edl.distill.teachers import Untaught
from edl.registry.client import RegistryClient
from edl.registry.identity import VARIABLE
from edl.registry.registering import Place, Registering
from edl.registry.roll import Entry
from edl.registry.serve import Registry

IDENTITY = Identity("the teachers' token")
TTL_S = 30.0  # no test waits for its end


class Town:
    """A registry, its teachers and lines to it; all end with the test."""

    def __init__(self, undo):
        self.undo, self.clock, self.said = undo, FakeClock(), []
        self.ends = {}  # of teachers, by address
        self.registry = self.begin()
        self.address = self.registry.address

    def begin(self, port=0, identity=IDENTITY):
        """Start a registry."""
        made = Registry(identity, "127.0.0.1", port, clock=self.clock)
        self.undo.callback(made.close)
        return made

    def begin_anew(self, identity=IDENTITY):
        """Start another registry where the last one was."""
        self.registry.close()
        self.registry = self.begin(int(self.address.rpartition(":")[2]), identity)

    def client(self, identity=IDENTITY):
        made = RegistryClient(self.address, identity)
        self.undo.callback(made.close)
        return made

    def teacher(self, factor=2.0):
        """Return the address of a teacher that multiplies."""
        made = Teacher(identity=IDENTITY)
        self.undo.callback(made.close)
        made.begin(lambda parts, _rows: [Part("/logits", factor * parts[0].values)], {})
        address = f"127.0.0.1:{made.listening.tcp_port}"
        self.ends[address] = made.close
        return address

    def registering(self, address, name="lenet", fingerprint="f", ttl_s=TTL_S):
        entry = Entry(address, fingerprint, f"process at {address}", ttl_s)
        made = Registering(self.client(), name, entry, self.said.append)
        self.undo.callback(made.leave)
        return made

    def addresses(self, name="lenet"):
        return [each.address for each in self.client().list(name).teachers]


@pytest.fixture
def town(monkeypatch):
    monkeypatch.setenv(VARIABLE, IDENTITY.to_variable())
    with contextlib.ExitStack() as undo:
        yield Town(undo)


@contextlib.contextmanager
def later(work):
    """Do work in another thread, and give a list that will have its result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    yield found
    thread.join(60)


def test_who_waits_is_told_at_once_of_who_comes_and_who_leaves(town):
    client = town.client()
    version, began = client.list("lenet").version, time.monotonic()
    with later(lambda: client.list("lenet", version, 60.0)) as found:
        place = town.registering("127.0.0.1:7001")
    assert ["127.0.0.1:7001"] == [each.address for each in found[0].teachers]

    with later(lambda: client.list("lenet", found[0].version, 60.0)) as found:
        place.leave()
    assert [] == [*found[0].teachers]
    assert time.monotonic() - began < TTL_S / 2


def test_who_waits_is_not_told_of_other_names_and_renewals(town):
    client, entry = town.client(), Entry("127.0.0.1:7001", "f", "i", TTL_S)
    client.register("lenet", entry)
    known = client.list("lenet")
    with later(lambda: client.list("lenet", known.version, 0.2)) as found:
        client.register("lenet", entry)
        client.register("bert", Entry("127.0.0.1:7002", "g", "i", TTL_S))

    assert known == found[0]


def test_one_that_is_silent_for_its_time_to_live_is_gone(town):
    client = town.client()
    entries = [
        Entry(f"127.0.0.1:{port}", "f", "i", ttl_s) for port, ttl_s in ((7001, 6), (7002, 9))
    ]
    assert ["", ""] == [client.register("lenet", each) for each in entries]
    for _ in range(6):
        town.clock.advance(1.0)
        client.list("lenet")

    assert ["127.0.0.1:7002"] == town.addresses()
    version = client.list("lenet").version
    with later(lambda: client.list("lenet", version, 60.0)) as found:
        for _ in range(3):
            town.clock.advance(1.0)
            client.list("lenet")
    assert [] == [*found[0].teachers]


def test_a_name_that_nobody_has_is_told_with_those_that_are_there(town):
    town.registering("127.0.0.1:7001", "bert")
    town.registering("127.0.0.1:7002", "alexnet")

    assert ["alexnet", "bert"] == [*town.client().list("lenet").names]
    assert [] == [*town.client().list("bert").names]


def test_another_identity_is_refused_in_a_sentence(town, monkeypatch):
    other = Identity("another token")
    with pytest.raises(Unauthenticated, match="has another identity: set EDL_TEACHERS_IDENTITY"):
        town.client(other).list("lenet")
    monkeypatch.setenv(VARIABLE, other.to_variable())
    with pytest.raises(Unauthenticated, match="has another identity"):
        check_place(Place(town.address, "lenet", TTL_S))


def test_tls_between_hosts(monkeypatch):
    """A registry with a certificate is for those who have it, on loopback too."""
    certified = Identity.create("token")
    with contextlib.ExitStack() as undo:
        registry = Registry(certified, "127.0.0.1")
        undo.callback(registry.close)
        client = RegistryClient(registry.address, certified)
        undo.callback(client.close)
        assert "" == client.register("lenet", Entry("10.0.0.5:1", "f", "i", TTL_S))
        stranger = RegistryClient(registry.address, Identity.create("token"))
        undo.callback(stranger.close)
        with pytest.raises((Unauthenticated, Unreachable)):
            stranger.list("lenet")


@pytest.mark.parametrize(
    ("registry", "name", "ttl_s", "why"),
    [
        ("host", "lenet", 15.0, "--registry 'host' is no HOST:PORT"),
        ("edl://h:1/n", "lenet", 15.0, "--registry 'edl://h:1/n' is no HOST:PORT"),
        ("h:1", "a b", 15.0, "--name 'a b' is no name: letters"),
        ("h:1", "lenet", 0.5, "--ttl_s 0.5 is no time to live: seconds from 1 to 3600"),
        ("h:1", "lenet", float("nan"), "--ttl_s nan is no time to live"),
    ],
)
def test_a_place_that_is_none_is_refused(registry, name, ttl_s, why):
    with pytest.raises(UsageError, match=why):
        Place(registry, name, ttl_s)


def test_a_teacher_that_others_could_not_reach_is_refused(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UsageError, match=f"set {VARIABLE} to what `edl registry` has printed"):
        check_place(Place("10.0.0.5:7000", "lenet", TTL_S))
    monkeypatch.setenv(VARIABLE, IDENTITY.to_variable())
    with pytest.raises(UsageError, match="set EDL_HOST to the address of this host"):
        check_place(Place("10.0.0.5:7000", "lenet", TTL_S))
    with pytest.raises(UsageError, match="has no certificate"):
        RegistryClient("10.0.0.5:7000", IDENTITY)


def test_teachers_of_another_model_are_refused_under_the_name(town):
    town.registering("127.0.0.1:7001")
    with pytest.raises(UsageError, match="their fingerprint is f, and its own g"):
        town.registering("127.0.0.1:7002", fingerprint="g")


def test_a_teacher_registers_once_its_registry_is_there_and_again_where_it_is_another(town):
    town.registry.close()
    check_place(Place(town.address, "lenet", TTL_S))  # to be away is no fault
    town.registering("127.0.0.1:7001")
    (away,) = town.said
    assert away.startswith(f"not registered as lenet: the registry at {town.address} does not")

    town.begin_anew()
    until(lambda: town.said[1:] == [f"registered as lenet at {town.address}"])
    assert town.addresses() == ["127.0.0.1:7001"]


def test_what_is_no_registry_is_told(town):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    client = RegistryClient(f"127.0.0.1:{port}", IDENTITY)
    town.undo.callback(client.close)
    with pytest.raises(Unreachable):
        client.list("lenet")


# -- students

IMAGES = np.arange(4.0, dtype=np.float32)[:, None]


def reader(town, notes, name="lenet", rules=None):
    made = DistillReader(["image"], ["logits"], rules=rules or Rules(wait_s=60.0), on_note=notes)
    made.set_dynamic_teacher(town.address, name)
    return made


def told(notes, *parts):
    return any(all(part in note for part in parts) for note in notes)


def test_students_follow_a_name_while_teachers_come_and_go(town, monkeypatch):
    """And while the registry is away, and is another. Broken once: Following asks nobody but those
    that it heard of first."""
    notes, steps, lists = [], iter(range(100)), []
    address = town.teacher()
    first = town.registering(address)
    hear = Following.heard

    def heard(self, source, addresses, missing=""):
        hear(self, source, addresses, missing)
        lists.append(list(addresses))

    monkeypatch.setattr(Following, "heard", heard)

    def batches():
        for _ in range(3):
            yield (IMAGES + next(steps),)
        second = town.teacher()
        town.registering(second)
        first.leave()
        town.ends[address]()
        until(lambda: lists[-1] == [second])
        for _ in range(3):
            yield (IMAGES + next(steps),)
        town.registry.close()
        until(lambda: told(notes, "does not answer", "the last list holds, 1 of 'lenet'"))
        for _ in range(3):
            yield (IMAGES + next(steps),)
        town.begin_anew()
        until(lambda: told(notes, "tells of 1 teacher"))  # not yet registered again, and kept
        for _ in range(3):
            yield (IMAGES + next(steps),)

    for step, (image, logits) in enumerate(reader(town, notes.append).wrap(batches())):
        np.testing.assert_array_equal(IMAGES + step, image)
        np.testing.assert_array_equal(2 * image, logits)

    assert step == 11
    assert 2 == len(notes), notes


def test_a_student_waits_for_the_first_with_a_word(town):
    notes = []
    town.registering("127.0.0.1:7001", "bert")
    found = reader(town, notes.append).wrap([(IMAGES,)])
    with later(lambda: next(found)[1]) as logits:
        until(lambda: notes)
        town.registering(town.teacher())
    found.close()

    np.testing.assert_array_equal(2 * IMAGES, logits[0])
    where = f"'lenet' at {town.address} (there are bert)"
    assert f"nobody has registered as {where}: this student waits by its rules" == notes[0]


def test_why_nobody_came_is_told(town):
    rules = Rules(wait_s=0.5)
    town.registering("127.0.0.1:7001", "bert")
    with pytest.raises(Untaught, match=r"nobody has registered as 'lenet' at .* \(there are bert"):
        next(reader(town, lambda _: None, rules=rules).wrap([(IMAGES,)]))
    town.registry.close()
    with pytest.raises(Untaught, match=f"the registry at {town.address} does not answer"):
        next(reader(town, lambda _: None, rules=rules).wrap([(IMAGES,)]))


def test_a_student_of_another_identity_is_told_at_once_whatever_its_rules(town, monkeypatch):
    monkeypatch.setenv(VARIABLE, Identity("another").to_variable())
    began = time.monotonic()
    with pytest.raises(Untaught, match="has another identity"):
        next(reader(town, lambda _: None, rules=Rules(without="hard_labels")).wrap([(IMAGES,)]))
    assert time.monotonic() - began < 60.0


def test_a_registry_of_another_identity_later_takes_no_teacher_away(town):
    notes = []
    town.registering(town.teacher())

    def batches():
        yield from [(IMAGES,)] * 9  # one more than is asked ahead: the first one is answered
        town.begin_anew(Identity("another"))
        until(lambda: told(notes, "has another identity", "the last list holds, 1 of"))
        yield (IMAGES,)

    assert 10 == len([*reader(town, notes.append).wrap(batches())])


@pytest.mark.parametrize(("where", "name"), [("h", "lenet"), ("h:1", "a/b"), ("h:1", "")])
def test_a_registry_or_a_name_that_is_none_is_refused(where, name):
    with pytest.raises(UsageError, match="the teacher 'edl://"):
        DistillReader(["image"]).set_dynamic_teacher(where, name)


def test_a_port_of_something_else_is_told(town):
    """A teacher's own port, say."""
    town.address = town.teacher()
    with pytest.raises(EdlError):
        town.client().list("lenet")
