"""A job leaves deltas, and whoever follows them has one cut of it after the other, whatever dies.

Real processes and the counting model: row r is the number of times that record r was applied, and
the dense `total` counts all records. So the rows of a cut sum up to its `total` and to the records
that its manifest names; a mixture of two cuts would not.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tools
from tools.jobs import counting_job, send
from tools.redis_server import SERVER, redis_server

from edl.chaos.controller import CONTINUE, Controller
from edl.serve.follow import Folder, Pursuit, follow
from edl.serve.redis_writer import connected

RECORDS, EPOCHS = 1600, 2


def job(folder, **settings):
    given = {"snapshot_s": 0.3, "delta_dir": str(folder.parent / "deltas"), "delta_s": 0.2}
    return counting_job(folder, RECORDS, 0.05, **{"num_epochs": EPOCHS, **given, **settings})


def check(generation):
    """Check that dense values and rows are of one cut, which is that of the manifest."""
    counts = generation.tables["counts"]
    ids = np.concatenate([ids for ids, _ in counts.blocks()])
    rows = np.concatenate([rows for _, rows in counts.blocks()])[:, 0]
    assert len(ids) == len(np.unique(ids)) == len(counts)
    np.testing.assert_array_equal(rows, counts.rows(ids)[:, 0])
    assert rows.sum() == generation.dense["total"][0] == generation.about.records
    assert 0 <= rows.min() <= rows.max() <= EPOCHS
    return generation.about.records


class Seen:
    """What a follower was handed."""

    def __init__(self):
        self.numbers, self.records, self.told = [], [], []
        self.changed = threading.Condition()

    def __call__(self, generation):
        records = check(generation)
        with self.changed:
            self.numbers.append(generation.about.number)
            self.records.append(records)
            self.changed.notify_all()

    def wait(self, more, timeout_s=120.0):
        with self.changed:
            until = len(self.numbers) + more
            if not self.changed.wait_for(lambda: len(self.numbers) >= until, timeout_s):
                raise AssertionError(f"{self.numbers}, {self.told}")


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
        deadline = time.monotonic() + 60
        while seen.records[-1] < RECORDS * EPOCHS and time.monotonic() < deadline:
            time.sleep(0.05)

    assert not [text for text in seen.told if "not taken" in text], seen.told
    assert RECORDS * EPOCHS == seen.records[-1], (seen.records, seen.told)
    assert sorted(seen.numbers) == seen.numbers
    folder = Folder(str(tmp_path / "deltas"))
    late = Pursuit(folder)  # who begins now
    while late.look(folder.names(), time.monotonic()):
        check(late.here)
    assert seen.numbers[-1] == late.here.about.number


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


class Process:
    """A process that is started again whenever it was killed."""

    def __init__(self, *arguments):
        self.arguments, self.starts, self.process = arguments, 0, None

    def keep(self):
        if self.process is None or self.process.poll() is not None:
            self.starts += 1
            self.process = subprocess.Popen(
                [sys.executable, *self.arguments],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)


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
    follower = Process(str(Path(tools.__path__[0]) / "follower.py"), root, str(out))
    with (
        tempfile.TemporaryDirectory() as short,
        Controller(Path(short) / "faults", POINTS, decide) as controller,
        redis_server(short) as url,
        connected(url) as client,
    ):
        monkeypatch.setenv("EDL_FAULTS", controller.variable)
        writer = Process("-m", "edl", "delta", "redis", root, url)
        slow = {"delay_s": 0.3}
        with job(tmp_path / "job", model_params=slow, delta_s=0.1, server_timeout_s=20.0) as going:
            try:
                checks = keep_reading(going, client, (follower, writer))
                assert 0 == going.wait(), going.logs()
                deadline = time.monotonic() + 120
                while redis_records(client) < RECORDS * EPOCHS or not ends(out):
                    follower.keep()
                    writer.keep()
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            finally:
                follower.end()
                writer.end()

    assert not controller.errors
    assert {*POINTS} == {*killed}, killed
    lines = [[float(word) for word in line.split()] for line in out.read_text().splitlines()]
    for _, *records in lines:
        assert 1 == len({*records}), lines
    assert checks > 10
    print(seed, killed, len(lines), checks, follower.starts, writer.starts)


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
        pipe.get(f"edl:{space}:dense:total")
        text, rows, total = pipe.execute()
        if json.loads(text)["space"] == space:
            found = np.frombuffer(b"".join(rows), "<f4").sum()
            assert found == np.frombuffer(total, "<f4")[0]
            return int(found)
    return 0


def ends(out):
    lines = out.read_text().splitlines() if out.exists() else []
    return bool(lines) and int(lines[-1].split()[1]) == RECORDS * EPOCHS
