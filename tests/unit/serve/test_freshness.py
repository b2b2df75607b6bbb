"""A job that is followed for days: what is counted of it stays small, and what is old is told."""

import asyncio
import datetime
import types

import pytest
from prometheus_client import generate_latest
from tools import asgi
from tools.served import FAR_S, Adding

from edl.proto import kserve_pb2 as pb
from edl.serve import freshness
from edl.serve.kserve.asking import Asking
from edl.serve.kserve.http import App
from edl.serve.kserve.rpc import Service
from edl.serve.repository import Repository

WRITTEN = datetime.datetime(2026, 11, 29, 10, tzinfo=datetime.UTC)


def cut(number, created=WRITTEN):
    made = Adding(number)
    made.about |= {"created": created.isoformat(timespec="seconds")}
    return made


@pytest.fixture
def place():
    """Return a repository whose model `adding` may be 60 s old, and its clock."""
    clock = [WRITTEN.timestamp()]
    repository = Repository(now=lambda: clock[0])
    repository.add("adding", max_age_s=60.0)
    repository.swap("adding", cut(1))
    yield repository, clock
    repository.close()


def ready(repository):
    """Return the answers about the server and its model over HTTP, and those of gRPC."""
    asking = Asking(repository, FAR_S)
    app, rpc = App(repository, asking), Service(asking).handler()

    async def ask():
        paths = ("/v2/health/ready", "/v2/models/adding/ready", "/v2/health/live")
        http = [await asgi.ask(app, "GET", path) for path in paths]
        told = []
        for name, asked in (
            ("ServerReady", pb.HealthRequest()),
            ("ModelReady", pb.ModelRequest(name="adding")),
        ):
            details = types.SimpleNamespace(method=f"/inference.GRPCInferenceService/{name}")
            told.append((await rpc.service(details).unary_unary(asked, None)).is_so)
        return http, told

    return asyncio.run(ask())


def test_a_model_that_is_older_than_it_may_be_is_not_ready_and_says_why(place):
    repository, clock = place

    clock[0] += 60
    fresh = ready(repository)
    clock[0] += 1
    old = ready(repository)
    stale_gauge = generate_latest(repository.metrics.registry).decode()
    repository.swap("adding", cut(2, WRITTEN + datetime.timedelta(seconds=50)))
    again = ready(repository)

    assert [([200, 200, 200], [True, True])] * 2 == [
        ([each.status for each in http], rpc) for http, rpc in (fresh, again)
    ]
    assert ([503, 503, 200], [False, False]) == ([each.status for each in old[0]], old[1])
    for reply in old[0][:2]:
        assert (
            "'adding' answers with is 61 s old, and --max_age_s is 60: see" in reply.told["error"]
        )
    assert 'edl_serve_ready{model="adding"} 0.0' in stale_gauge
    assert 'edl_serve_cut_age_seconds{model="adding"} 61.0' in stale_gauge


def test_a_model_that_is_too_old_answers_all_the_same(place):
    repository, clock = place
    clock[0] += 1000

    held = repository.model("adding").hold()

    assert "1" == held.version
    repository.model("adding").release(held)


def test_the_series_of_metrics_do_not_grow_with_the_versions(place):
    repository, _ = place
    model = repository.model("adding")

    def series():
        return {
            line.rpartition(" ")[0]
            for line in generate_latest(repository.metrics.registry).decode().splitlines()
        }

    def day(first):
        for number in range(first, first + 20):
            repository.swap("adding", cut(number))
            model.metrics.ended("answered", 0.1)
            model.fail(f"{number}.1", "torn")
        return series()

    assert day(2) == day(22)
    assert len(model.told()["failed"]) <= 8
    assert "41.1" in model.told()["failed"]


@pytest.mark.parametrize(
    ("created", "age_s"),
    [
        ("2026-11-29T10:00:00+00:00", 30.0),
        ("2026-11-29T11:00:00+01:00", 30.0),
        ("2026-11-29T10:00:00", 30.0),
        ("2026-11-29T10:01:00+00:00", 0.0),  # of a clock that is ahead
    ],
)
def test_the_age_of_a_cut_is_what_its_writer_says(created, age_s):
    now = WRITTEN.timestamp() + 30

    assert age_s == freshness.age_s({"created": created}, now)
    assert "" == freshness.too_old("m", {"created": created}, 30.0, now)


def test_what_does_not_say_when_it_was_written_is_fresh_only_where_any_age_will_do():
    assert "" == freshness.too_old("m", {}, 0.0, 0.0)
    assert "does not say when it was written" in freshness.too_old("m", {}, 1.0, 0.0)
