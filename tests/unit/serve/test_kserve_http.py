"""KServe's v2 protocol over HTTP, asked of the application without sockets."""

import asyncio
import functools
import json
import threading

import numpy as np
import pytest
from tools import asgi
from tools.served import FAR_S, INFER, Adding, asked, request, serving

from edl.serve.batcher import Rules
from edl.serve.kserve import answers, tensors
from edl.serve.kserve.http import Limits


def numbers(reply):
    return next(each["data"] for each in reply.told["outputs"] if each["name"] == "number")


def test_a_model_answers_with_its_name_its_version_and_the_id_of_the_request():
    with serving(Adding(3)) as (_, ask):
        reply = ask("POST", INFER, [request(2, id="seven")])

    expected = {
        "model_name": "adding",
        "model_version": "3",
        "id": "seven",
        "outputs": [
            {"name": "sum", "datatype": "FP32", "shape": [2], "data": [4.0, 8.0]},
            {"name": "number", "datatype": "INT64", "shape": [2], "data": [3, 3]},
        ],
    }
    assert (200, expected) == (reply.status, reply.told)
    assert "application/json" == reply.headers["content-type"]


def test_bytes_come_behind_the_json_where_they_are_asked_for():
    with serving() as (_, ask):
        reply = ask("POST", INFER, [request(2, parameters={"binary_data_output": True})])

    nbytes = int(reply.headers["inference-header-content-length"])
    head, raw = json.loads(reply.body[:nbytes]), reply.body[nbytes:]
    assert [8, 16] == [each["parameters"]["binary_data_size"] for each in head["outputs"]]
    np.testing.assert_array_equal([2, 6], np.frombuffer(raw[:8], np.float32))
    assert str(len(reply.body)) == reply.headers["content-length"]


def test_health_is_ready_only_while_each_model_is_whole_and_the_server_goes_on():
    with serving(ready=False) as (repository, ask):
        said = [ask("GET", "/v2/health/ready").status]
        said.append(ask("GET", "/v2/models/adding/ready").status)
        early = ask("POST", INFER, [request()])
        repository.swap("adding", Adding())
        said.append(ask("GET", "/v2/health/ready").status)
        said.append(ask("GET", "/v2/models/adding/ready").status)
        repository.is_ending = True
        said.append(ask("GET", "/v2/health/ready").status)
        late = ask("POST", INFER, [request()])
        live = ask("GET", "/v2/health/live").status

    assert [503, 503, 200, 200, 503] == said
    assert (503, 200, 200) == (early.status, late.status, live)
    assert "it is being loaded" in early.told["error"]


def test_metadata_tells_of_the_server_and_of_the_model_and_of_what_could_not_be_opened():
    with serving(Adding(1), Adding(2), keep=2) as (repository, ask):
        repository.model("adding").fail("3", "torn")
        server = ask("GET", "/v2").told
        model = ask("GET", "/v2/models/adding").told
        older = ask("GET", "/v2/models/adding/versions/1").told

    assert ["adding"] == server["models"]
    assert ["binary_tensor_data", "model_configuration", "statistics"] == server["extensions"]
    assert ["1", "2"] == model["versions"]
    assert [
        {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "day", "datatype": "INT64", "shape": [-1]},
    ] == model["inputs"]
    assert ("2", {"3": "torn"}) == (model["parameters"]["version"], model["parameters"]["failed"])
    assert 1 == older["parameters"]["cut"]


def test_the_newest_version_is_the_default_and_older_ones_are_asked_by_name():
    with serving(Adding(1), Adding(2), Adding(3), keep=2) as (_, ask):
        replies = [
            ask("POST", path, [request()])
            for path in (INFER, *(f"/v2/models/adding/versions/{n}/infer" for n in (1, 2, 3)))
        ]

    assert [200, 404, 200, 200] == [each.status for each in replies]
    assert [[3], [2], [3]] == [numbers(each) for each in replies if each.status == 200]
    assert "no version '1': it has '2', '3'" in replies[1].told["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("POST", "/v2/models/other/infer", 404, "no model 'other': there are 'adding'"),
        ("GET", "/v2/models/adding/infer", 405, "is asked by POST, not GET"),
        ("POST", "/v2/models/adding", 405, "is asked by GET, not POST"),
        ("GET", "/v2/models/adding/versions/1/x", 404, "there is nothing at"),
        ("GET", "/v2/models/a/b/c/d/e", 404, "there is nothing at"),
        ("GET", "/", 404, "models are at /v2/models/NAME"),
        ("POST", INFER, 400, "no JSON of the protocol"),
    ],
)
def test_what_is_not_there_is_told(method, path, status, told):
    with serving() as (_, ask):
        reply = ask(method, path)
        after = ask("POST", INFER, [request()])

    assert (status, 200) == (reply.status, after.status)
    assert told in reply.told["error"]


@pytest.mark.parametrize(
    ("day", "status", "told"),
    [(-1, 400, "days begin with 0"), (5000, 500, "the model failed: ZeroDivisionError")],
)
def test_what_the_model_refuses_is_another_thing_than_its_failure(day, status, told):
    with serving() as (_, ask):
        reply = ask("POST", INFER, [request(day=day)])

    assert status == reply.status
    assert told in reply.told["error"]


def test_a_body_that_is_too_large_is_refused_before_and_while_it_comes():
    limits = Limits(body_nbytes=100)
    with serving(limits=limits) as (_, ask):
        said = ask("POST", INFER, [b"x"], [("Content-Length", "101")])
        whole = ask("POST", INFER, [b"x" * 101])
        pieces = ask("POST", INFER, [b"x" * 60, b"x" * 60], stalls=True)

    assert [413] * 3 == [each.status for each in (said, whole, pieces)]
    assert all("100 are taken (--max_body_mib)" in e.told["error"] for e in (said, whole))
    assert "close" == pieces.headers["connection"]


def test_a_body_may_come_in_pieces_and_one_that_never_ends_is_given_up():
    with serving(limits=Limits(body_s=0.02)) as (_, ask):
        text = request()
        whole = ask("POST", INFER, [text[:9], text[9:]])
        stalled = ask("POST", INFER, [text[:9]], stalls=True)

    assert (200, 408) == (whole.status, stalled.status)


def test_a_body_without_the_token_is_not_waited_for():
    with serving(token="secret") as (_, ask):
        reply = ask("POST", INFER, [b"{"], stalls=True)

    assert 401 == reply.status


def test_a_large_request_and_a_large_answer_are_read_and_written_beside_the_loop(monkeypatch):
    monkeypatch.setattr(tensors, "LARGE_NBYTES", 1000)
    monkeypatch.setattr(answers, "AT_ONCE", 100)
    threads = []

    def noted(of, *given):
        threads.append(threading.current_thread() is threading.main_thread())
        return of(*given)

    for module, name in ((tensors, "from_http"), (answers, "as_http")):
        of = getattr(module, name)
        monkeypatch.setattr(module, name, functools.partial(noted, of))
    with serving() as (_, ask):
        replies = [ask("POST", INFER, [request(rows)]) for rows in (1, 200)]

    assert [200, 200] == [reply.status for reply in replies]
    assert [True, True, False, False] == threads
    assert asked(200)["x"].sum(axis=1).tolist() == [
        value - 1 for value in replies[1].told["outputs"][0]["data"]
    ]


def test_without_the_token_only_health_and_metrics_are_told():
    with serving(token="secret") as (_, ask):
        right = [("Authorization", "Bearer secret")]
        opened = [ask("GET", path).status for path in ("/v2/health/ready", "/metrics")]
        closed = [
            ask(method, path, [b"{}"], headers).status
            for method, path in (("GET", "/v2"), ("GET", "/v2/models/adding"), ("POST", INFER))
            for headers in ([], [("Authorization", "Bearer other")], [("Authorization", "secret")])
        ]
        answered = ask("POST", INFER, [request()], right).status

    assert ([200, 200], [401] * 9, 200) == (opened, closed, answered)


def test_requests_that_are_under_way_are_answered_by_the_version_that_they_began_with():
    """Broken once: `release` closes a version that is not the newest, whoever holds it."""
    old, new = Adding(1), Adding(2)
    with serving(old) as (repository, ask):

        async def swapped(app):
            old.may_answer.clear()
            old.computing.clear()
            first = asyncio.create_task(asgi.ask(app, "POST", INFER, [request()]))
            second = asyncio.create_task(asgi.ask(app, "POST", INFER, [request(3)]))
            await asyncio.to_thread(old.computing.wait, FAR_S)
            repository.swap("adding", new)
            third = asyncio.create_task(asgi.ask(app, "POST", INFER, [request()]))
            await asyncio.sleep(0)
            open_still = old.closed
            old.may_answer.set()
            return open_still, await first, await second, await third

        open_still, *replies = ask(swapped)

    assert 0 == open_still
    assert [[1], [1, 1, 1], [2]] == [numbers(each) for each in replies]
    assert (1, 1) == (old.closed, new.closed)


def test_who_waits_longer_than_is_promised_is_told_so_and_holds_nothing_any_more():
    served = Adding()
    with serving(served, timeout_s=0.02) as (_, ask):
        served.may_answer.clear()
        reply = ask("POST", INFER, [request()])
        served.may_answer.set()

    assert (504, 1) == (reply.status, served.closed)
    assert "has not answered within 0.02 s" in reply.told["error"]


def test_who_waits_in_the_queue_too_long_is_told_the_same():
    served = Adding()
    with serving(served, timeout_s=0.05) as (_, ask):

        async def two(app):
            served.may_answer.clear()
            served.computing.clear()
            first = asyncio.create_task(asgi.ask(app, "POST", INFER, [request()]))
            await asyncio.to_thread(served.computing.wait, FAR_S)
            late = await asgi.ask(app, "POST", INFER, [request(2)])
            served.may_answer.set()
            await first
            return late

        served.batches.clear()
        late = ask(two)

    assert "has not answered within 0.05 s" in late.told["error"]
    assert [1] == served.batches


def test_a_queue_that_is_full_is_a_503():
    served = Adding()
    with serving(served, rules=Rules(max_queued=2)) as (_, ask):

        async def three(app):
            served.may_answer.clear()
            served.computing.clear()
            first = asyncio.create_task(asgi.ask(app, "POST", INFER, [request()]))
            await asyncio.to_thread(served.computing.wait, FAR_S)
            waiting = asyncio.create_task(asgi.ask(app, "POST", INFER, [request(2)]))
            await asyncio.sleep(0)
            full = await asgi.ask(app, "POST", INFER, [request(2)])
            served.may_answer.set()
            return [each.status for each in (await first, await waiting, full)]

        assert [200, 200, 503] == ask(three)


def test_metrics_count_requests_batches_swaps_and_failures():
    with serving(Adding(1), Adding(2)) as (repository, ask):
        ask("POST", INFER, [request(3)])
        ask("POST", INFER, [request(day=-1)])
        ask("POST", "/v2/models/adding/versions/made-up/infer", [b"{}"])
        repository.model("adding").fail("3", "torn")
        text = ask("GET", "/metrics").body.decode()

    for line in (
        'edl_serve_requests_total{model="adding",outcome="answered"} 1.0',
        'edl_serve_requests_total{model="adding",outcome="invalid"} 1.0',
        'edl_serve_requests_total{model="adding",outcome="unknown"} 1.0',
        'edl_serve_batch_rows_sum{model="adding"} 4.0',
        'edl_serve_version{model="adding"} 2.0',
        'edl_serve_swaps_total{model="adding"} 2.0',
        'edl_serve_load_failures_total{model="adding"} 1.0',
        'edl_serve_ready{model="adding"} 1.0',
    ):
        assert line in text


def test_a_version_whose_example_fails_is_closed_and_what_answers_goes_on():
    broken = Adding(2)
    broken.example = asked(1, day=5000)
    with serving(Adding(1)) as (repository, ask):
        with pytest.raises(ZeroDivisionError):
            repository.swap("adding", broken)
        reply = ask("POST", INFER, [request()])

    assert ([1], 1) == (numbers(reply), broken.closed)
