"""The dashboard's application, asked without sockets: who may ask, and that nothing is markup."""

import asyncio
import contextlib
import json
import math

import pytest
from tools import asgi
from tools.strict_json import strict

from edl.common.errors import JobError, UsageError
from edl.dashboard.actions import Actions
from edl.dashboard.app import Dashboard

TOKEN = "a-token"
HOSTILE = "<script>alert(1)</script>"
COOKIE = ("cookie", f"edl={TOKEN}")
HOST = ("host", "127.0.0.1:4321")


class FakeJob:
    """A job of a cluster, say: it is looked at."""

    name = "demo"
    where = "demo"

    def __init__(self):
        self.done = []

    def look(self):
        event = {"id": 1, "t": 0.5, "text": HOSTILE, "kind": "other"}
        return {"job_name": HOSTILE, "state": "running", "started_s_ago": 1.0, "events": [event]}

    status = look

    def lines(self, *, role, index, tail, follow):
        if role == "teacher":
            raise UsageError("Job 'demo' has no such log; there are: master.")
        return iter([f"{role} {index} {tail}", HOSTILE])

    def checkpoint(self, timeout_s):
        self.done.append(("checkpoint", timeout_s))
        return "/checkpoints/version-000000000700"

    def stop(self, reason):
        self.done.append(("stop", reason))
        return "is stopping"

    def scale(self, *numbers):
        if numbers[0] > 100:
            raise JobError("Job 'demo' is over: done.")
        self.done.append(("scale", *numbers))
        return 2


class FakeJobs:
    """One job."""

    look_every_s = 0.01

    def __init__(self):
        self.job = FakeJob()

    def find(self, name):
        if name != "demo":
            raise UsageError(f"There is no job {name!r} here.")
        return self.job

    def statuses(self):
        return [self.job.status()]


def app(allowed=False):
    return Dashboard(FakeJobs(), TOKEN, Actions(allowed), hosts=("shown.example",))


def ask(path, *headers, method="GET", body=b"", of=None, host=HOST):
    of = of or app()
    given = [host, *headers]
    return asyncio.run(asgi.ask(of.asgi, method, path, [body], given))


def act(of, asked, *headers):
    body = json.dumps(asked).encode()
    more = headers or (("x-edl-csrf", of.asgi.csrf),)
    return ask("/api/jobs/demo/actions", COOKIE, *more, method="POST", body=body, of=of)


# -- who may ask


@pytest.mark.parametrize(
    "path", ["/", "/page/app.js", "/api/jobs", "/api/jobs/demo", "/api/jobs/demo/stream"]
)
@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("cookie", "edl=wrong"),),
        (("cookie", f"other={TOKEN}"),),
        (("cookie", ";;=;"),),
        (("authorization", "Bearer wrong"),),
        (("authorization", TOKEN),),
    ],
)
def test_who_has_no_token_is_told_nothing(path, headers):
    reply = ask(path, *headers)

    assert 401 == reply.status
    assert HOSTILE.encode() not in reply.body


def test_the_address_with_the_token_sets_a_cookie_that_other_sites_do_not_send():
    reply = ask(f"/?token={TOKEN}")

    assert (303, "./") == (reply.status, reply.headers["location"])
    assert f"edl={TOKEN}; Path=/; HttpOnly; SameSite=Strict" == reply.headers["set-cookie"]
    assert 401 == ask("/?token=wrong").status
    assert 200 == ask("/api/jobs", COOKIE).status
    assert 200 == ask("/api/jobs", ("authorization", f"Bearer {TOKEN}")).status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:4321", 200),
        ("localhost:8080", 200),  # of a kubectl port-forward
        ("[::1]:4321", 200),
        ("shown.example", 200),
        ("evil.example:4321", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
        ("[::1", 421),
    ],
)
def test_a_name_that_is_not_ours_is_refused(host, status):
    assert status == ask("/api/jobs", COOKIE, host=("host", host)).status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:4321", 200),
        ("http://127.0.0.1:9999", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_page_of_another_origin_is_refused(origin, status):
    assert status == ask("/api/jobs", COOKIE, ("origin", origin)).status


def test_every_answer_forbids_what_a_page_does_not_need():
    for reply in (ask("/", COOKIE), ask("/api/jobs", COOKIE), ask("/api/jobs")):
        told = reply.headers["content-security-policy"]
        assert told.startswith("default-src 'self'")
        assert "unsafe" not in told
        assert "nosniff" == reply.headers["x-content-type-options"]
        assert "no-store" == reply.headers["cache-control"]


# -- what is told


def test_a_job_is_told_as_json_and_names_are_no_markup():
    reply = ask("/api/jobs/demo", COOKIE)

    assert "application/json" == reply.headers["content-type"]
    assert HOSTILE == reply.told["status"]["job_name"]
    assert [HOSTILE] == [event["text"] for event in reply.told["events"]]
    assert ("edl-dashboard-1", True) == (reply.told["schema"], reply.told["live"])
    assert [] == reply.told["actions"]
    allowed = ask("/api/jobs/demo", COOKIE, of=app(allowed=True)).told["actions"]
    assert ["scale", "checkpoint", "stop", "suspend", "resume"] == allowed


def test_the_list_has_the_status_of_each_job():
    assert [FakeJob().status()] == ask("/api/jobs", COOKIE).told["jobs"]


def test_logs_are_plain_text_whatever_is_in_them():
    reply = ask("/api/jobs/demo/logs?role=worker&index=1&tail=7", COOKIE)

    assert "text/plain; charset=utf-8" == reply.headers["content-type"]
    assert f"worker 1 7\n{HOSTILE}" == reply.body.decode()
    # the master has no index, however it is asked for
    assert "master None 500" in ask("/api/jobs/demo/logs?role=master&index=0", COOKIE).body.decode()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/jobs/other", 404),
        ("/api/jobs/other/stream", 404),
        ("/api/jobs/..%2f..%2fetc", 404),
        ("/api/jobs/demo/logs?role=../x", 400),
        ("/api/jobs/demo/logs?role=worker&index=x", 400),
        ("/api/jobs/demo/logs?role=teacher", 400),
        ("/page/..%2f__init__.py", 404),
        ("/page/nothing.js", 404),
        ("/nothing", 404),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(path, status):
    reply = ask(path, COOKIE)

    assert status == reply.status
    assert b"Traceback" not in reply.body


def test_the_api_describes_itself():
    told = ask("/api/openapi.json", COOKIE).told
    snapshot = ask("/api/jobs/demo", COOKIE).told

    properties = set(told["components"]["schemas"]["Snapshot"]["properties"])
    assert set(snapshot) == properties - {"not_finite"}  # which is there where numbers are null


# -- actions


def test_an_action_is_done_where_it_is_allowed():
    of = app(allowed=True)

    reply = act(of, {"action": "scale", "num_workers": 3})
    assert (200, "demo: 2 -> 3 workers wanted") == (reply.status, reply.told["message"])
    assert "is stopping" in act(of, {"action": "stop"}).told["message"]
    written = act(of, {"action": "checkpoint"}).told["message"]
    assert "demo: /checkpoints/version-000000000700 is written" == written
    scaled, stopped, (name, at_most_s) = of._jobs.job.done
    assert (("scale", 3, 0, None), ("stop", "the dashboard")) == (scaled, stopped)
    assert ("checkpoint", True) == (name, at_most_s <= 30)  # a browser does not wait for ever


def test_without_the_pages_header_nothing_is_done():
    of = app(allowed=True)

    for headers in ([("x-edl-csrf", "wrong")], [("x-other", "")], [("x-edl-csrf", TOKEN)]):
        assert 403 == act(of, {"action": "stop"}, *headers).status
    assert [] == of._jobs.job.done


def test_a_dashboard_that_only_shows_does_nothing():
    of = app()

    reply = act(of, {"action": "stop"})
    assert (403, True) == (reply.status, "--allow-actions" in reply.told["error"])
    assert [] == of._jobs.job.done


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"action": "scale"}, 400),
        ({"action": "scale", "num_workers": -1}, 400),
        ({"action": "scale", "num_workers": "3"}, 400),
        ({"action": "scale", "num_workers": True}, 400),
        ({"action": "scale", "num_workers": 101}, 409),
        ({"action": "kill", "role": "worker", "index": 0}, 403),
        ({"action": ["stop"]}, 403),
        ([], 400),
        ("x" * 20_000, 413),
    ],
)
def test_an_action_that_cannot_be_is_refused_in_a_sentence(asked, status):
    of = app(allowed=True)

    reply = act(of, asked)
    assert (status, True) == (reply.status, bool(reply.told["error"]))
    assert [] == of._jobs.job.done


# -- streams


async def _stream(of, path, *headers, messages):
    """Return so many messages of a stream, which is then hung up on."""
    found, enough = [], asyncio.Event()

    async def receive():
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        text = message.get("body", b"").decode()
        if text and not text.startswith("retry: "):
            found.append(text)
            if len(found) >= messages:
                enough.set()

    given = [(name.encode(), value.encode()) for name, value in (HOST, COOKIE, *headers)]
    scope = {"type": "http", "method": "GET", "path": path, "headers": given, "query_string": b""}
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(of.asgi(scope, receive, send), 30.0)
    return found


def test_a_stream_begins_with_a_snapshot_and_goes_on_where_it_was_cut():
    async def run():
        of = app()
        async with of.open():
            (first,) = await _stream(of, "/api/jobs/demo/stream", messages=1)
            watch = of._watches._all["demo"]
            watch._model.history([{"id": 2, "t": 1.0, "text": "later"}])
            watch._put()
            number = first.partition("id: ")[2].partition("\n")[0]
            (then,) = await _stream(
                of, "/api/jobs/demo/stream", ("last-event-id", number), messages=1
            )
        return first, then

    first, then = asyncio.run(run())
    assert "event: snapshot" in first
    assert HOSTILE in json.loads(first.partition("data: ")[2])["events"][0]["text"]
    assert "event: change" in then
    assert [2] == [each["id"] for each in json.loads(then.partition("data: ")[2])["events"]]


def test_the_list_of_jobs_is_a_stream_too():
    async def run():
        of = app()
        async with of.open():
            return await _stream(of, "/api/stream", messages=1)

    (first,) = asyncio.run(run())
    assert first.startswith("event: jobs\ndata: ")


def test_an_action_that_does_not_come_is_given_up():
    of = Dashboard(FakeJobs(), TOKEN, Actions(True), body_s=0.01)
    given = [HOST, COOKIE, ("x-edl-csrf", of.asgi.csrf)]

    reply = asyncio.run(
        asgi.ask(of.asgi, "POST", "/api/jobs/demo/actions", [b"{"], given, stalls=True)
    )
    assert (408, []) == (reply.status, of._jobs.job.done)


def test_all_of_the_interface_is_strict_json_where_metrics_are_none(monkeypatch):
    told = {"state": "running", "started_s_ago": 1.0, "loss": math.nan}
    told |= {"evaluations": [{"version": 1, "epoch": 0, "metrics": {"auc": math.nan}}]}
    monkeypatch.setattr(FakeJob, "look", lambda _: told)
    monkeypatch.setattr(FakeJob, "status", lambda _: told)

    jobs, job = (strict(ask(path, COOKIE).body) for path in ("/api/jobs", "/api/jobs/demo"))

    assert (None, "nan") == (jobs["jobs"][0]["loss"], jobs["not_finite"]["/jobs/0/loss"])
    assert [1, 1.0, None] == job["scalars"]["auc"][0]
    said = ("/status/loss", "/status/evaluations/0/metrics/auc", "/scalars/auc/0/2")
    assert {*said, "/scalars/loss/0/2"} == job["not_finite"].keys()
