"""Teachers of no job register, are killed and come; their registry is killed too; nobody notices.

A test's docstring says what was broken once to see it fail.
"""

import contextlib
import signal
import time

import numpy as np
import pytest
from tools.jobs import send
from tools.pupils import Edl, must_be_taught, scale_teachers, taught_job
from tools.turns import in_turn
from tools.waiting import until

from edl.common.identity import TOKEN_VARIABLE, Identity
from edl.distill import DistillReader, Rules
from edl.registry.client import RegistryClient
from edl.registry.identity import VARIABLE

IDENTITY = Identity("the teachers' token")
MINIBATCH = 16


class Town:
    """A registry, teachers and a line to it, as processes that end with the test."""

    def __init__(self, folder, undo):
        self._folder, self._undo = folder, undo
        self._registry, self.address = self._begin_registry(0)

    def _begin_registry(self, port):
        made = self._undo.enter_context(Edl(self._folder, "registry", f"--port={port}"))
        return made, made.told("registry at ")

    def kill_registry(self):
        self._registry.send(signal.SIGKILL)

    def begin_registry(self):
        self._registry, _ = self._begin_registry(int(self.address.rpartition(":")[2]))

    def teacher(self):
        """Start a teacher, and wait for nothing."""
        words = f"teach pupil --registry {self.address} --ttl_s 1".split()
        return self._undo.enter_context(Edl(self._folder, *words))

    def addresses(self):
        client = RegistryClient(self.address, IDENTITY)
        try:
            return [each.address for each in client.list("pupil").teachers]
        finally:
            client.close()


@pytest.fixture
def town(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, IDENTITY.to_variable())
    with contextlib.ExitStack() as undo:
        yield Town(tmp_path, undo)


@in_turn(3)
def test_a_script_is_taught_while_teachers_and_the_registry_are_killed(town):
    """Broken once: Registering registers once only."""
    notes, number = [], iter(range(1000))
    first, second, third = town.teacher(), town.teacher(), None

    def some():
        for _ in range(30):  # more than are asked ahead
            n = MINIBATCH * next(number)
            yield np.arange(n, n + MINIBATCH), np.zeros(MINIBATCH)

    def batches():
        nonlocal third
        yield from some()  # nobody may be there yet
        until(lambda: len(town.addresses()) == 2)
        first.send(signal.SIGKILL)
        third, killed = town.teacher(), time.monotonic()
        yield from some()
        until(lambda: first.told("teaching at ") not in town.addresses())
        assert time.monotonic() - killed < 30.0
        until(lambda: len(town.addresses()) == 2)
        yield from some()
        town.kill_registry()
        until(lambda: any("the last list holds, 2 of 'pupil'" in note for note in notes))
        yield from some()
        town.begin_registry()
        yield from some()
        until(lambda: len(town.addresses()) == 2)
        second.send(signal.SIGTERM)
        until(lambda: town.addresses() == [third.told("teaching at ")])
        yield from some()

    reader = DistillReader(
        ["record", "more"],
        ["lesson"],
        feeds=["record", "more"],
        rules=Rules(wait_s=200.0),
        on_note=notes.append,
    )
    reader.set_dynamic_teacher(town.address, "pupil")
    found = [*reader.wrap(batches())]

    assert [0] == [n for n, note in enumerate(notes) if "nobody has registered" in note], notes
    assert 180 == len(found)
    records = np.concatenate([record for record, _, _ in found])
    np.testing.assert_array_equal(np.arange(180 * MINIBATCH), records)
    lessons = np.concatenate([lesson[:, 0] for _, _, lesson in found])
    np.testing.assert_array_equal(records % 997 + 1, lessons)


@pytest.mark.slow
def test_a_job_is_taught_by_those_who_have_registered(town, tmp_path):
    """They come while it runs, one is killed, and so is the registry."""
    job = taught_job(
        tmp_path,
        num_teachers=0,
        teachers=f"edl://{town.address}/pupil",
        num_epochs=8,
        delay_s=0.02,
    )
    with job:
        job.watch(lambda status: status["state"] == "running")
        first = town.teacher()
        job.watch(lambda status: status["teaching"]["records"] >= 200)
        town.teacher()
        until(lambda: len(town.addresses()) == 2)
        town.kill_registry()
        first.send(signal.SIGKILL)
        records = job.last["teaching"]["records"]
        job.watch(lambda status: status["teaching"]["records"] >= records + 1000)
        town.begin_registry()
        assert 0 == job.wait(), job.logs()

    assert 0 == job.result()["teaching"]["untaught"]
    must_be_taught(job, 8)


@pytest.mark.slow
def test_a_script_asks_the_teachers_of_a_job_beside_it(tmp_path, monkeypatch):
    """By the job's token, at its master, which is killed meanwhile."""
    job = taught_job(tmp_path, num_epochs=30, delay_s=0.02)
    with job:
        job.watch(lambda status: status["teaching"]["records"] >= 100)
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setenv(TOKEN_VARIABLE, job.token)

        def batches():
            for number in range(200):
                if number in (50, 100):
                    scale_teachers(job, number // 50)
                if number == 150:
                    send(job.about()["pid"], signal.SIGKILL)
                yield np.arange(number, number + MINIBATCH), np.zeros(MINIBATCH)

        reader = DistillReader(["record", "more"], ["lesson"], feeds=["record", "more"])
        reader.set_dynamic_teacher(job.about()["address"], "teachers")
        for number, (record, _, lesson) in enumerate(reader.wrap(batches())):
            np.testing.assert_array_equal(np.arange(number, number + MINIBATCH), record)
            np.testing.assert_array_equal(record % 997 + 1, lesson[:, 0])
        assert 199 == number
        assert 0 == job.wait(), job.logs()

    assert 1 == job.result()["restarts"]["master"]
    must_be_taught(job, 30)
