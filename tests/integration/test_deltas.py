"""A job leaves deltas, and whoever follows them has one cut of it after the other, whatever dies.

Real processes and the counting model of the fault matrix, whose oracle says whether what readers
have is a cut (chaos/followed.py).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tools.jobs import counting_job, send
from tools.redis_server import SERVER, redis_server
from tools.turns import in_turn

from edl.chaos import followed
from edl.chaos.cell import DEFINITION
from edl.chaos.consumer import published
from edl.chaos.controller import CONTINUE, Controller
from edl.chaos.counting import SEEN
from edl.chaos.kept import Kept
from edl.common.places import Place
from edl.serve.follow import Folder, Pursuit, follow
from edl.serve.live import LiveModels
from edl.serve.redis_writer import connected

RECORDS, EPOCHS = 1600, 2
COURSE = followed.Course(RECORDS, EPOCHS, minibatch=16, servers=2)


def job(folder, **settings):
    given = {
        "model_def": DEFINITION,
        "num_epochs": EPOCHS,
        "without_teachers": "hard_labels",
        "shuffle": False,
        "snapshot_s": 0.3,
        "delta_dir": str(folder.parent / "deltas"),
        "delta_s": 0.2,
    }
    return counting_job(folder, RECORDS, 0.05, **{**given, **settings})


class Seen:
    """What a follower was handed."""

    def __init__(self):
        self.states, self.told = [], []
        self.models = LiveModels()
        self.changed = threading.Condition()

    def __call__(self, generation):
        state = published(generation, self.models)
        with self.changed:
            self.states.append(state)
            self.changed.notify_all()

    def wait(self, more, timeout_s=120.0):
        with self.changed:
            until = len(self.states) + more
            if not self.changed.wait_for(lambda: len(self.states) >= until, timeout_s):
                raise AssertionError(f"{[state.number for state in self.states]}, {self.told}")


@in_turn(1)
def test_a_follower_has_cut_after_cut_while_servers_and_the_master_are_killed(tmp_path):
    seen = Seen()
    with (
        job(tmp_path / "job") as running,
        follow(str(tmp_path / "deltas"), seen, period_s=0.05, tell=seen.told.append),
    ):
        seen.wait(3)
        send(running.watch(lambda _: True)["servers"][0]["pid"], signal.SIGKILL)
        seen.wait(2)
        send(running.about()["pid"], signal.SIGKILL)
        seen.wait(2)
        assert 0 == running.wait(), running.logs()
        newest = followed.newest(Place(tmp_path / "deltas"))
        deadline = time.monotonic() + 60
        while seen.states[-1].cut != newest.cut and time.monotonic() < deadline:
            time.sleep(0.05)

    assert not [text for text in seen.told if "not taken" in text], seen.told
    assert [] == COURSE.badly_followed(seen.states, newest), seen.told
    folder = Folder(str(tmp_path / "deltas"))
    late, states = Pursuit(folder), []  # who begins now
    while late.look(folder.names(), time.monotonic()):
        states.append(published(late.here, seen.models))
    assert [] == COURSE.badly_followed(states, newest)


POINTS = [
    "ps.delta.begin",
    "ps.delta.mid",
    "ps.snapshot.mid",
    "master.cut",
    "master.delta",
    "master.delta_written",
    "serve.generation",
    "redis.switch",
    "redis.apply",
]


@pytest.mark.slow
@pytest.mark.skipif(SERVER is None, reason="there is no redis-server here")
@pytest.mark.parametrize("seed", range(3))
def test_readers_have_one_cut_whoever_is_killed_at_every_moment_that_has_a_name(
    tmp_path, monkeypatch, seed
):
    """Servers, master, a follower and a Redis writer, each at each point that it reaches."""
    draw, killed = random.Random(seed), []
    left = {point: [draw.randint(1, 3), draw.randint(1, 4)] for point in POINTS}
    left["redis.switch"] = [1, 1]
    for point in POINTS:  # a master that is killed five times in a row is not started again
        if point.startswith("master."):
            left[point] = [draw.randint(1, 4)]

    def decide(hit):
        if visits := left[hit.point]:
            visits[0] -= 1
            if not visits[0]:
                visits.pop(0)
                killed.append(hit.point)
                os.kill(hit.pid, signal.SIGKILL)
        return CONTINUE

    root, out = str(tmp_path / "deltas"), tmp_path / "followed"
    with (
        tempfile.TemporaryDirectory() as short,
        Controller(Path(short) / "faults", POINTS, decide) as controller,
        redis_server(short) as url,
        connected(url) as client,
    ):
        monkeypatch.setenv("EDL_FAULTS", controller.variable)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        commands = ["edl.chaos.consumer", root, str(out)], ["edl", "delta", "redis", root, url]
        follower, writer = (Kept(["-m", *each], env, tmp_path / "log") for each in commands)
        slow = {"delay_s": 0.3}
        with job(tmp_path / "job", model_params=slow, delta_s=0.1, server_timeout_s=20.0) as going:
            try:
                checks = keep_reading(going, client, (follower, writer))
                assert 0 == going.wait(), going.logs()
                deadline = time.monotonic() + 120
                newest = followed.newest(Place(root))
                while redis_records(client) < RECORDS * EPOCHS or not is_at(out, newest):
                    follower.keep()
                    writer.keep()
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            finally:
                follower.end()
                writer.end()

    assert not controller.errors
    assert {*POINTS} == {*killed}, killed
    states = [*followed.read(out)][::-1]
    assert [] == COURSE.badly_followed(states, newest)
    assert checks > 10
    print(seed, killed, len(states), checks, follower.starts, writer.starts)


def keep_reading(going, client, processes):
    """Read from Redis while the job runs; return how often."""
    checks = 0
    while going.process.poll() is None:
        for process in processes:
            process.keep()
        checks += redis_records(client) > 0
        time.sleep(0.05)
    return checks


def redis_records(client):
    """Return the records of the cut that a Redis server has, once it has been checked; 0: none."""
    while (text := client.get("edl:cut")) is not None:
        space = json.loads(text)["space"]
        pipe = client.pipeline(transaction=True)
        pipe.get("edl:cut")
        pipe.hvals(f"edl:{space}:rows:counts")
        pipe.mget([f"edl:{space}:dense:seen.{number}" for number in range(SEEN)])
        text, rows, seen = pipe.execute()
        if json.loads(text)["space"] == space:
            found = np.frombuffer(b"".join(rows), "<f4").sum()
            assert {found} == {*np.frombuffer(b"".join(seen), "<f4")}
            return int(found)
    return 0


def is_at(out, newest):
    last = next(followed.read(out), None)
    return last is not None and last.cut == newest.cut
