"""A worker's teachers: those of its job, and those of others, each asked by the identity it has."""

import contextlib
import threading

import numpy as np
import pytest
import torch
from tools.waiting import until

from edl.common.clock import MonotonicClock
from edl.common.identity import TOKEN_VARIABLE, Identity
from edl.common.settings import JobSettings
from edl.data.views import Seen
from edl.distill.frames import Part
from edl.distill.server import Teacher
from edl.distill.teachers import Untaught
from edl.proto import master_pb2 as pb
from edl.registry.client import RegistryClient
from edl.registry.identity import VARIABLE
from edl.registry.roll import Entry
from edl.registry.serve import Registry
from edl.worker.taught import School

JOB, OTHERS = Identity("the job's token"), Identity("the teachers' token")
CPU = torch.device("cpu")
SEEN = Seen("data", np.arange(3))
FEATURES = torch.arange(3.0)[:, None]


class Master:
    """A master that tells of one teacher, and of no change."""

    def __init__(self, *addresses):
        self._addresses, self._closed = addresses, threading.Event()
        self.notes, self.met = [], []

    def get_teachers(self, known, wait_s, met=None):
        if known:
            self._closed.wait(wait_s)
        self.met += [met] if met else []
        first = self.met[0][1] if self.met else ""
        return pb.GetTeachersReply(version=1, addresses=self._addresses, fingerprint=first)

    def heartbeat_with(self, request):
        self.notes += request.notes

    def close(self):
        self._closed.set()


@pytest.fixture
def undo(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, JOB.token)
    monkeypatch.setenv(VARIABLE, OTHERS.to_variable())
    with contextlib.ExitStack() as stack:
        yield stack


def teacher(undo, identity, factor, **about):
    made = Teacher(identity=identity)
    undo.callback(made.close)
    made.begin(lambda parts, _rows: [Part("", np.float32(factor) * parts[0].values)], about)
    return f"127.0.0.1:{made.listening.tcp_port}"


def registry(undo):
    made = Registry(OTHERS, "127.0.0.1")
    undo.callback(made.close)
    client = RegistryClient(made.address, OTHERS)
    undo.callback(client.close)
    return client


def register(client, address):
    assert "" == client.register("lenet", Entry(address, "f", address, 60.0))


def school(undo, master, **settings):
    settings = {"teacher_wait_s": 60.0, **settings}
    made = School(master, JobSettings(model_def="taught_lenet", **settings), MonotonicClock())
    undo.callback(made.close)
    undo.callback(master.close)
    return made


def taught(school):
    return school.ask(FEATURES, None, SEEN).to(CPU).teacher


def test_those_who_have_registered_are_asked_as_they_come_and_go(undo):
    client = registry(undo)
    first, second = teacher(undo, OTHERS, 2), teacher(undo, OTHERS, 3)
    register(client, first)
    mine = school(undo, Master(), teachers=f"edl://{client.address}/lenet")
    assert torch.equal(2 * FEATURES, taught(mine))

    client.leave("lenet", Entry(first, "f", first, 60.0))
    register(client, second)
    until(lambda: mine.teachers.there == [second])
    assert torch.equal(3 * FEATURES, taught(mine))


def test_the_jobs_own_fixed_ones_and_those_of_a_registry_are_asked_beside_each_other(undo):
    """Broken once: the link to the job's own is made with the identity of the others."""
    client = registry(undo)
    own, fixed, found = teacher(undo, JOB, 2), teacher(undo, OTHERS, 2), teacher(undo, OTHERS, 2)
    register(client, found)
    where = f"{fixed},edl://{client.address}/lenet"
    options = {"num_teachers": 1, "teacher_wait_s": 10.0}  # less than a call to a registry is held
    mine = school(undo, Master(own), teachers=where, **options)
    until(lambda: set(mine.teachers.there) == {own, fixed, found})

    for only in (own, fixed, found):
        mine.teachers.update([only])
        assert torch.equal(2 * FEATURES, taught(mine))


def test_another_identity_ends_the_job_and_says_why(undo, monkeypatch):
    client = registry(undo)
    monkeypatch.setenv(VARIABLE, Identity("another").to_variable())
    mine = school(
        undo,
        Master(),
        teachers=f"edl://{client.address}/lenet",
        without_teachers="hard_labels",
    )

    with pytest.raises(Untaught, match=f"the registry at {client.address} has another identity"):
        taught(mine)


def test_the_user_is_told_that_nobody_has_registered(undo):
    client, master = registry(undo), Master()
    mine = school(undo, master, teachers=f"edl://{client.address}/lenet", teacher_wait_s=0.5)

    with pytest.raises(Untaught, match="no teacher is there, nobody has registered as 'lenet'"):
        taught(mine)
    until(lambda: master.notes)
    assert "nobody has registered as 'lenet'" in master.notes[0]


def test_another_teacher_than_the_jobs_is_not_asked_and_the_master_tells_of_it(undo):
    """Broken once: whoever is free is asked."""
    mine = teacher(undo, OTHERS, 2, fingerprint="ab" * 16)
    other = teacher(undo, OTHERS, 3, fingerprint="cd" * 16)
    master = Master()
    master.met.append(("h:1", "ab" * 16))  # by another worker
    it = school(undo, master, teachers=f"{other},{mine}")
    for _ in range(20):
        assert torch.equal(2 * FEATURES, taught(it))

    assert {("h:1", "ab" * 16), (other, "cd" * 16), (mine, "ab" * 16)} == {*master.met}
    assert [mine] == it.teachers.there
    assert [] == master.notes
