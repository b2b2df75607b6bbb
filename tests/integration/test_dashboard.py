"""A real job as a page shows it: over HTTP while a worker is killed, and from its folder later."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest
from tools.jobs import WAIT_S, counting_job
from tools.turns import in_turn

from edl.common import storage
from edl.dashboard import changes

pytest.importorskip("starlette")


@contextlib.contextmanager
def dashboard(home, *arguments):
    """Run `edl dashboard`; yield its address without the token, and the token."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edl", "dashboard", *arguments],
        env={**os.environ, "EDL_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        told = urlsplit(process.stdout.readline().strip())
        yield f"{told.scheme}://{told.netloc}", told.query.partition("token=")[2]
    finally:
        process.terminate()
        process.stdout.close()
        assert 0 == process.wait(WAIT_S)


def ask(address, token, path, body=None, **headers):
    told = {"authorization": f"Bearer {token}", **headers}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}{path}", data, told)
    return urllib.request.urlopen(request, timeout=WAIT_S)


def messages(reply):
    """Yield the events of a stream: their names and values."""
    name = ""
    for line in reply:
        text = line.decode().strip()
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


def watched(address, token, until):
    """Follow a job until `until(snapshot)`; return the snapshot and the ids of all its events."""
    shown, ids = {}, []
    with ask(address, token, "/api/jobs/it/stream") as reply:
        for name, values in messages(reply):
            ids += [event["id"] for event in values.get("events", [])]
            shown = values if name == "snapshot" else changes.apply(shown, values)
            if until(shown):
                return shown, ids
    raise AssertionError(f"the stream ended: {shown}")


def is_at_work(snapshot):
    has_rows = [shard.get("rows", 0) > 0 for shard in snapshot["shards"]]
    return len(has_rows) == 2 and all(has_rows) and snapshot["meter"]["applied"] > 100


def is_gone(snapshot):
    return all(life["ended"] is not None for life in snapshot["incarnations"])


def lives(snapshot, role="worker"):
    found = [life for life in snapshot["incarnations"] if life["role"] == role]
    return sorted((life["index"], life["end"]) for life in found)


@in_turn(2)
def test_a_job_is_watched_while_a_worker_is_killed_and_shown_from_its_folder_afterwards(tmp_path):
    folder = tmp_path / "jobs" / "it"
    folder.mkdir(parents=True)
    released = tmp_path / "released"  # until then there is work for a minute
    slow = {"delay_s": 1.5, "until": str(released)}
    with (
        counting_job(folder, 1200, 0, model_params=slow) as job,
        dashboard(tmp_path, "--allow_actions", "--demo") as (address, token),
    ):
        (folder / "token").write_text(job.token)
        job.about()
        at_work, _ = watched(address, token, is_at_work)
        answers = []
        page = ask(address, token, "/").read().decode()
        csrf = {"x-edl-csrf": re.search('name="edl-csrf" content="([^"]*)"', page)[1]}
        for asked in ({"action": "checkpoint"}, {"action": "kill", "role": "worker", "index": 1}):
            with ask(address, token, "/api/jobs/it/actions", asked, **csrf) as reply:
                answers.append(json.load(reply)["message"])
        released.touch()
        shown, ids = watched(address, token, is_gone)
        assert 0 == job.wait()
        log = ask(address, token, "/api/jobs/it/logs?role=master&index=0").read().decode()
        (listed,) = json.load(ask(address, token, "/api/jobs"))["jobs"]
        now = json.load(ask(address, token, "/api/jobs/it"))

    result = job.result()
    (question,) = result["requested"]
    assert f"it: {question['checkpoint']} is written" == answers[0]
    assert 0 < storage.read_manifest(question["checkpoint"]).version < result["version"]
    assert ids == sorted(set(ids))
    assert result == listed == now["status"] == shown["status"]
    meter, told = shown["meter"], result["records"]
    assert (0, 0, 1200) == (meter["lost"], meter["twice"], meter["applied"])
    assert told.items() <= meter.items()
    assert result["records_done"] == meter["applied"]
    states = dict(shown["tasks"]["runs"])
    assert states.keys() <= {"done", "recomputed"}
    assert 19 == sum(states.values())  # of 64 records, in one epoch
    assert [(0, "finished"), (1, "finished"), (1, "killed")] == lives(shown)
    assert "registered" in log
    assert ("ended", False) == (now["health"]["level"], now["live"])
    assert ["server-0", "server-1"] == [shard["name"] for shard in at_work["shards"]]
    assert all(shard["nbytes"] > 0 for shard in at_work["shards"])
    assert at_work["live"]
    used = shown["goodput"]
    assert 0 < used["waiting_servers"] < used["useful"] + used["waiting_servers"] + used["idle"]
    assert 0 <= used["waiting_data"]

    out = tmp_path / "it.html"
    arguments = [sys.executable, "-m", "edl", "dashboard", "--from", folder, "--export", out]
    subprocess.run(arguments, check=True, timeout=WAIT_S)
    saved = json.loads(re.search('id="edl-snapshot">(.*?)</script>', out.read_text())[1])
    for name in ("status", "meter", "tasks", "incarnations", "events", "goodput"):
        assert now[name] == saved[name]
    assert {"loss", "records_per_s"} <= saved["scalars"].keys()
