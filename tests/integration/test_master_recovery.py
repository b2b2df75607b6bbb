"""The master is killed at every failpoint and at any moment; nobody but the user notices.

Real processes and the counting model: row r ends as the number of times that record r was applied,
which must be the number of epochs. Workers and servers are the same processes before and after.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from tools.jobs import WAIT_S, counting_job, send
from tools.servers import dense, table
from tools.turns import in_turn, some

RECORDS, EPOCHS = 2000, 2
POINTS = ["lease", "commit", "answer", "requeue", "cut", "epoch_end", "evaluate", "shutdown"]


class Controller:
    """Answers failpoints: kills who reaches `point` for the n-th time, and lets all else go on."""

    def __init__(self, folder):
        self.path = str(folder / "faults")
        self.killed = []
        self.kills = {}  # point: visits until it kills, once for each entry
        self.on_told = lambda told: None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def environment(self, *points):
        return ",".join([self.path, *points])

    def _serve(self):
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line):
        with line, contextlib.suppress(BrokenPipeError):  # who asks may be killed meanwhile
            asked = line.makefile().readline()
            if not asked:
                return
            told = json.loads(asked)
            self.on_told(told)
            left = self.kills.get(told["point"], [])
            if left:
                left[0] -= 1
                if left[0] == 0:
                    left.pop(0)
                    self.killed.append(told["point"])
                    os.kill(told["pid"], signal.SIGKILL)
                    return
            line.sendall(b'{"do": "continue"}\n')

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join(WAIT_S)
        self._socket.close()


@pytest.fixture
def controller(tmp_path):
    made = Controller(tmp_path)
    yield made
    made.close()


def counting(folder, delay_s=0.01, records=RECORDS, **settings):
    return counting_job(folder, records, delay_s, **{"num_epochs": EPOCHS, **settings})


def check_books(job, code, records=RECORDS, epochs=EPOCHS):
    assert code == 0, job.logs()
    ids, counts = table(job.checkpoint(), "counts")
    assert list(ids) == list(range(records))
    wrong = {int(i): float(c) for i, c in zip(ids, counts[:, 0], strict=True) if c != epochs}
    assert wrong == {}
    assert dense(job.checkpoint(), "total") == np.float32(records * epochs)


def pids(status):
    return {
        (role, each["index"]): each["pid"]
        for role in ("workers", "servers")
        for each in status[role]
        if each["pid"]
    }


def running(status):
    return status["state"] == "running" and len(pids(status)) == 4 and status["records_done"] > 0


def restarts(job):
    text = (job.folder / "logs" / "master.log").read_text()
    return text.count("started again (epoch ")


@pytest.mark.parametrize("point", some(POINTS, 4))
def test_a_master_killed_at_a_failpoint_goes_on(point, tmp_path, controller, monkeypatch):
    monkeypatch.setenv("EDL_FAULTS", controller.environment(f"master.{point}", "master.recover"))
    controller.kills = {f"master.{point}": [3 if point == "lease" else 1], "master.recover": [1]}
    more = {"checkpoint_steps": 40} if point == "cut" else {}
    job = counting(tmp_path / point, **more)
    if point == "evaluate":
        job = counting(tmp_path / point, validation_data=str(tmp_path / "records.npz"))
    with job:
        before = pids(job.watch(running))
        if point == "requeue":
            send(before["workers", 0], signal.SIGKILL)
            del before["workers", 0]
        code = job.wait()
        after = {
            (r, each["index"]): each for r in ("workers", "servers") for each in job.result()[r]
        }

    assert [f"master.{point}", "master.recover"] == controller.killed
    assert 2 == restarts(job)
    check_books(job, code)
    status = job.result()
    assert {"worker": 0, "server": 0} == {k: status["restarts"][k] for k in ("worker", "server")}
    lost = 1 if point == "requeue" else 0
    assert status["restarts"]["preemptions"] in (lost, len(before) * (point == "shutdown"))
    assert len(after) == 4
    if point == "evaluate":
        epochs = sorted(e["epoch"] for e in status["evaluations"])
        assert [0, 1] == epochs
        assert {float(e["metrics"]["records"]) for e in status["evaluations"]} == {1.0}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_master_killed_at_random_moments_goes_on_and_no_worker_is_restarted(seed, tmp_path):
    rng = random.Random(seed)
    moments = sorted(rng.uniform(0.1, 0.8) for _ in range(3))
    of_task = (0, 4)[seed]  # several tasks leased at once, or one
    settings = {"use_async": bool(seed % 2), "num_minibatches_per_task": of_task}
    job = counting(tmp_path / f"random-{seed}", delay_s=0.03, **settings)
    with job:
        first = pids(job.watch(running))
        for moment in moments:
            job.watch(lambda s, m=moment: s["records_done"] >= m * s["records_total"])
            send(job.about()["pid"], signal.SIGKILL)
            assert first == pids(job.watch(running))
        code = job.wait()

    assert 3 == restarts(job)
    check_books(job, code)
    assert 0 == job.result()["restarts"]["preemptions"]


def test_a_master_that_sleeps_longer_than_a_lease_loses_nobody(tmp_path):
    job = counting(tmp_path / "sleeps", lease_s=1.0)
    with job:
        first = pids(job.watch(running))
        master = job.about()["pid"]
        send(master, signal.SIGSTOP)
        time.sleep(2.5)  # more than two leases: this is what is tested
        send(master, signal.SIGCONT)
        assert first == pids(job.watch(running))
        code = job.wait()

    check_books(job, code)
    assert 0 == job.result()["restarts"]["preemptions"]


def test_workers_step_on_while_the_master_is_away(tmp_path):
    """Workers have tasks, and nothing in a step waits for the master."""
    settings = {"num_minibatches_per_task": 62, "log_loss_steps": 1, "num_epochs": 1}
    job = counting(tmp_path / "away", delay_s=0.1, **settings)

    def steps():
        logs = (job.folder / "logs" / f"worker-{index}.log" for index in range(2))
        return [path.read_text().count(" step=") for path in logs]

    with job:
        job.watch(lambda s: running(s) and s["records_done"] < 800)  # in their first tasks, of 992
        master = job.about()["pid"]
        send(master, signal.SIGSTOP)
        before, deadline = steps(), time.monotonic() + 300
        while any(now < then + 10 for now, then in zip(steps(), before, strict=True)):
            assert time.monotonic() < deadline, job.logs()
            time.sleep(0.02)
        send(master, signal.SIGCONT)
        code = job.wait()

    check_books(job, code, epochs=1)


def stop_between_decisions(job, master):
    """Stop the master where it does not hold the journal's lock: no other could begin."""
    deadline = time.monotonic() + 300
    while True:
        send(master, signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(job.folder / "journal.sqlite", 0)) as journal:
                journal.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError:
            assert time.monotonic() < deadline, job.logs()
            send(master, signal.SIGCONT)


@in_turn(0)
def test_of_two_masters_the_older_one_ends_by_itself_and_harms_nothing(tmp_path):
    job = counting(tmp_path / "two", delay_s=0.02)
    with job:
        first = pids(job.watch(running))
        old = job.about()["pid"]
        stop_between_decisions(job, old)
        with open(job.folder / "logs" / "second.log", "ab") as out:
            second = subprocess.Popen(
                [sys.executable, "-m", "edl.master", "--job-dir", str(job.folder), "--serve"],
                env={**os.environ, "EDL_TOKEN": job.token, "EDL_JOB_DIR": str(job.folder)},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + 300
            while job.about()["pid"] == old:
                assert time.monotonic() < deadline, job.logs()
                time.sleep(0.05)
            assert first == pids(job.watch(running))
            send(old, signal.SIGCONT)
            assert 1 == job.wait(), job.logs()  # its supervisor passes its code on
            told = (job.folder / "logs" / "master.log").read_text().splitlines()
            assert [1] == [
                line.startswith("edl: error: another master, of epoch 2") for line in told
            ][-1:]
            code = second.wait(300)
        finally:
            second.kill()
    check_books(job, code)
    assert 0 == job.result()["restarts"]["preemptions"]


@pytest.mark.slow
def test_a_master_with_ten_thousand_open_tasks_leases_again_in_less_than_5_s(
    tmp_path, controller, monkeypatch
):
    """The machine must have nothing else to do: most of the time is the start of a Python."""
    monkeypatch.setenv("EDL_FAULTS", controller.environment("master.lease"))
    leased = []
    controller.on_told = lambda told: leased.append((told["pid"], told["at"]))
    job = counting(tmp_path / "many", records=10_400, minibatch_size=1, num_minibatches_per_task=1)
    with job:
        job.watch(running)
        old = job.about()["pid"]
        killed = time.monotonic()
        send(old, signal.SIGKILL)
        status = job.watch(lambda s: running(s) and any(pid != old for pid, _ in leased))
        took_s = next(at for pid, at in leased if pid != old) - killed
        open_tasks = sum(status["tasks"][name] for name in ("todo", "leased", "fencing"))
    print(f"{open_tasks} open tasks: leasing again {took_s:.2f} s after the kill")

    assert open_tasks >= 10_000
    assert took_s < 5.0


@in_turn(3)
def test_early_stopping_ends_at_the_same_record_and_keeps_the_same_best_when_the_master_is_killed(
    tmp_path, controller, monkeypatch
):
    monkeypatch.setenv("EDL_FAULTS", controller.environment("master.evaluate"))
    controller.kills = {"master.evaluate": [2, 1]}  # in the second epoch's evaluation, twice
    job = counting(
        tmp_path / "early",
        delay_s=0.0,
        records=640,
        num_epochs=9,
        validation_data=str(tmp_path / "records.npz"),
        early_stopping="records:max:2",  # which is 1 each time: the first is the best
    )
    with job:
        code = job.wait()

    status = job.result()
    assert ["master.evaluate"] * 2 == controller.killed
    assert 2 == status["restarts"]["master"]
    check_books(job, code, 640, 3)
    assert "records was best at version 40 (1), and no better in 2 evaluations" in status["message"]
    assert (1.0, 0) == (status["best"]["value"], status["best"]["epoch"])
    ids, counts = table(status["best"]["checkpoint"], "counts")
    assert (640, {1.0}) == (len(ids), set(counts[:, 0]))
