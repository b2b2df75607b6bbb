"""A Redis server as a copy of a job's newest cut: against a real server, which the test starts."""

from __future__ import annotations

import json
import tempfile

import numpy as np
import pytest
from tools.deltas import Writer as DeltaWriter
from tools.redis_server import SERVER, redis_server
from tools.trained import train, train_on

from edl.cli.main import run
from edl.common.errors import UsageError
from edl.serve.follow import Folder, Pursuit
from edl.serve.redis_writer import Mirror, connected

pytestmark = pytest.mark.skipif(SERVER is None, reason="there is no redis-server here")


@pytest.fixture(scope="module")
def server():
    with tempfile.TemporaryDirectory() as folder, redis_server(folder) as url:
        yield url


@pytest.fixture
def client(server):
    with connected(server) as made:
        made.flushall()
        yield made


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained"), 2)


@pytest.fixture
def job(first, tmp_path):
    return first, DeltaWriter(first.stores, tmp_path / "deltas")


STEPS = iter(range(100, 1000))


def more(job):
    trained, writer = job
    train_on(trained, [next(STEPS)])
    return writer.delta()


def mirror_of(job, client, told=None):
    told = told if told is not None else []
    return Mirror(str(job[1].root), client, "edl:", told.append)


def step_on(mirror, now=0.0):
    count = 0
    while mirror.step(now) is not None:
        count += 1
    return count


def newest(job):
    folder = Folder(str(job[1].root))
    pursuit = Pursuit(folder)
    while pursuit.look(folder.names(), 0.0):
        pass
    return pursuit.here


def read(client):
    """Return (cut, rows by table and id, dense values), as a reader that follows the rules."""
    told = json.loads(client.get("edl:cut"))
    while True:
        space = told["space"]
        pipe = client.pipeline(transaction=True)
        pipe.get("edl:cut")
        for table in told["tables"]:
            pipe.hgetall(f"edl:{space}:rows:{table}")
        for tensor in told["dense"]:
            pipe.get(f"edl:{space}:dense:{tensor}")
        text, *found = pipe.execute()
        told = json.loads(text)
        if told["space"] == space:
            break
    tables = dict(zip(told["tables"], found, strict=False))
    dense = dict(zip(told["dense"], found[len(tables) :], strict=True))
    return told, tables, dense


def assert_is(generation, client):
    told, tables, dense = read(client)
    assert generation.about.cut == told["cut"]
    assert generation.version == told["version"]
    for name, table in generation.tables.items():
        assert len(table) == len(tables[name])
        ids = np.array([int(id) for id in tables[name]], np.int64)
        rows = np.stack([np.frombuffer(row, "<f4") for row in tables[name].values()])
        assert told["tables"][name] == rows.shape[1]
        np.testing.assert_array_equal(table.rows(ids), rows)
    for name, values in generation.dense.items():
        assert list(values.shape) == told["dense"][name]
        np.testing.assert_array_equal(values.reshape(-1), np.frombuffer(dense[name], "<f4"))


def test_the_server_has_each_cut_whole_and_nothing_of_older_bases(job, client):
    mirror = mirror_of(job, client)
    job[1].base()
    assert 1 == step_on(mirror)
    assert_is(newest(job), client)
    for _ in range(3):
        more(job)
        assert 1 == step_on(mirror)
        assert_is(newest(job), client)
    job[1].base()
    assert 1 == step_on(mirror)
    assert_is(newest(job), client)

    space = read(client)[0]["space"]
    assert all(key == b"edl:cut" or space in key.decode() for key in client.keys("edl:*"))


def test_another_writer_goes_on_where_one_was_killed(job, client):
    job[1].base()
    step_on(mirror_of(job, client))
    space = read(client)[0]["space"]
    more(job)

    assert 1 == step_on(mirror_of(job, client))
    assert_is(newest(job), client)
    assert space == read(client)[0]["space"]  # by the delta


@pytest.mark.parametrize("point", ["redis.switch", "redis.apply"])
def test_a_writer_that_fails_before_the_end_changes_nothing(job, client, monkeypatch, point):
    told = []
    job[1].base()
    if point == "redis.apply":
        step_on(mirror_of(job, client))
        before = newest(job)
        more(job)

    def fails(name, **_):
        if name == point:
            raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("edl.common.faults.point", fails)
        assert 0 == step_on(mirror_of(job, client, told))
    if point == "redis.apply":
        assert_is(before, client)
    else:
        assert client.get("edl:cut") is None

    assert 1 == step_on(mirror_of(job, client))
    assert_is(newest(job), client)
    spaces = {key.decode().split(":")[1] for key in client.keys("edl:*:*:*")}
    assert {read(client)[0]["space"]} == spaces
    assert told


def test_two_writers_at_once_leave_one_cut(job, client, monkeypatch):
    """The second one does all of it while the first is about to switch."""
    job[1].base()
    other, inside = mirror_of(job, client), []

    def overtakes(name, **_):
        if name in ("redis.switch", "redis.apply") and not inside:
            inside.append(name)
            step_on(other)

    monkeypatch.setattr("edl.common.faults.point", overtakes)
    mirror = mirror_of(job, client)
    step_on(mirror)
    assert_is(newest(job), client)
    more(job)
    inside.clear()
    step_on(mirror)
    step_on(mirror)

    assert_is(newest(job), client)
    spaces = {key.decode().split(":")[1] for key in client.keys("edl:*:*:*")}
    assert {read(client)[0]["space"]} == spaces


def test_what_lies_there_and_is_not_ours_is_left_alone(job, client):
    client.set("edl:cut", "something else")
    job[1].base()

    with pytest.raises(UsageError, match="choose another --prefix"):
        step_on(mirror_of(job, client))
    assert b"something else" == client.get("edl:cut")


def test_a_server_that_is_away_is_told_once_and_waited_for(job, tmp_path):
    told = []
    with connected(f"unix://{tmp_path}/nobody") as nobody:
        mirror = mirror_of(job, nobody, told)
        for _ in range(3):
            assert mirror.step(0.0) is None

    assert 1 == len(told)
    assert "ConnectionError" in told[0]


def test_the_command_brings_a_server_to_the_newest_cut_and_shows_the_folder(
    job, client, server, capsys
):
    job[1].base()
    more(job)

    assert 0 == run(["delta", "redis", str(job[1].root), server, "--once"])
    assert_is(newest(job), client)
    assert 0 == run(["delta", "redis", str(job[1].root), server, "--once"])
    assert 0 == run(["delta", "show", str(job[1].root)])
    out = capsys.readouterr().out
    assert "cut 2: cut-2 of job" in out
    assert "delta-000000000001-000000000002" in out


def test_a_folder_without_a_base_is_a_sentence(tmp_path, server, capsys):
    assert 2 == run(["delta", "show", str(tmp_path)])
    assert "has no base and no delta" in capsys.readouterr().err
    assert 2 == run(["delta", "redis", str(tmp_path), "http://x", "--once"])
    assert "is no URL of a Redis server" in capsys.readouterr().err
