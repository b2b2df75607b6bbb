"""What Triton's client asks beyond KServe's v2 protocol: answered, or refused with a word.

The bodies are those that tritonclient sends: gzip.compress and zlib.compress of the whole of them.
"""

import gzip
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.served import INFER, Adding, request, serving
from tools.turns import examples

from edl.serve.batcher import Rules
from edl.serve.kserve import compression
from edl.serve.kserve.http import Limits
from edl.serve.kserve.refused import Refused, Why

BOTH = pytest.mark.parametrize(
    ("encoding", "compress", "decompress"),
    [
        ("gzip", gzip.compress, gzip.decompress),
        ("deflate", zlib.compress, zlib.decompress),
        ("GZip", gzip.compress, gzip.decompress),
    ],
)


@BOTH
def test_a_body_that_is_compressed_is_answered_as_any(encoding, compress, decompress):
    given_headers = [("Content-Encoding", encoding)]
    with serving() as (_, ask):
        plain = ask("POST", INFER, [request(3)])
        reply = ask("POST", INFER, [compress(request(3))], given_headers)
        told = json.loads(request())
        del told["inputs"][0]["data"]
        told["inputs"][0]["parameters"] = {"binary_data_size": 8}
        head = json.dumps(told).encode()
        raw = ask(
            *("POST", INFER, [compress(head + b"\0\0\0\0\0\0\x80?")]),
            [*given_headers, ("Inference-Header-Content-Length", str(len(head)))],
        )

    assert (200, plain.body) == (reply.status, reply.body)
    assert "content-encoding" not in reply.headers
    assert (200, [2.0]) == (raw.status, raw.told["outputs"][0]["data"])


@BOTH
def test_an_answer_is_compressed_for_whom_that_is_right(encoding, compress, decompress):
    asked = request(500, parameters={"binary_data_output": True})
    with serving() as (_, ask):
        plain = ask("POST", INFER, [asked])
        reply = ask("POST", INFER, [asked], [("Accept-Encoding", f"br, {encoding}")])
        small = ask("POST", INFER, [request()], [("Accept-Encoding", encoding)])

    assert encoding.lower() == reply.headers["content-encoding"]
    assert plain.body == decompress(reply.body)
    assert str(len(reply.body)) == reply.headers["content-length"]
    for name in ("inference-header-content-length", "content-type"):
        assert plain.headers[name] == reply.headers[name]
    assert "content-encoding" not in small.headers


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("", ""),
        ("identity", ""),
        ("br", ""),
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate"),
        ("deflate;q=0.5, gzip;q=0.8", "gzip"),
        ("gzip;q=0", ""),
        ("gzip; q=0.0, deflate", "deflate"),
        ("gzip;q=x", ""),
        ("*", ""),
        (";;,,=", ""),
    ],
)
def test_of_what_is_accepted_the_best_is_chosen(accepted, encoding):
    assert encoding == compression.chosen(accepted)


BOMB = gzip.compress(b"\0" * (1 << 22), mtime=0)  # else each process names its case otherwise


@pytest.mark.parametrize(
    ("body", "encoding", "status", "told"),
    [
        (b"\x1f\x8b", "gzip", 400, "ends in the midst of its gzip"),
        (b"{}", "gzip", 400, "the body is no gzip"),
        (zlib.compress(b"{}")[:-1], "deflate", 400, "ends in the midst of its deflate"),
        (gzip.compress(b"{}", mtime=0) + b"x", "gzip", 400, "behind the body's gzip are 1 bytes"),
        (b"", "gzip", 400, "ends in the midst of its gzip"),
        (b"{}", "br", 400, "Content-Encoding 'br' is not taken: send gzip, deflate"),
        (b"{}", "gzip, gzip", 400, "is not taken"),
        (BOMB, "gzip", 413, "more than 10000 bytes once it is unpacked"),
    ],
)
def test_a_body_that_cannot_be_unpacked_is_refused(body, encoding, status, told):
    with serving(limits=Limits(body_nbytes=10_000)) as (_, ask):
        reply = ask("POST", INFER, [body], [("Content-Encoding", encoding)])
        after = ask("POST", INFER, [request()])

    assert (status, 200) == (reply.status, after.status)
    assert told in reply.told["error"]


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate"]), st.integers(0, 400))
def test_as_many_bytes_are_unpacked_as_may_be(body, encoding, most):
    compressed = (gzip if encoding == "gzip" else zlib).compress(body)

    if len(body) <= most:
        assert body == compression.unpacked(compressed, encoding, most)
    else:
        with pytest.raises(Refused, match="once it is unpacked") as refused:
            compression.unpacked(compressed, encoding, most)
        assert Why.TOO_LARGE is refused.value.why


def test_a_models_configuration_is_that_of_triton():
    rules = Rules(max_batch_size=32, max_queue_delay_s=0.002)
    with serving(rules=rules) as (_, ask):
        newest = ask("GET", "/v2/models/adding/config").told
        named = ask("GET", "/v2/models/adding/versions/1/config").told
        other = ask("GET", "/v2/models/adding/versions/7/config").status

    expected = {
        "name": "adding",
        "platform": "edl",
        "backend": "edl",
        "max_batch_size": 1 << 20,
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [2]},
            {"name": "day", "data_type": "TYPE_INT64", "dims": []},
        ],
        "output": [
            {"name": "sum", "data_type": "TYPE_FP32", "dims": []},
            {"name": "number", "data_type": "TYPE_INT64", "dims": []},
        ],
        "dynamic_batching": {
            "preferred_batch_size": [32],
            "max_queue_delay_microseconds": 2000,
        },
    }
    assert expected == newest == named
    assert 404 == other


def test_statistics_count_requests_rows_and_batches():
    with serving(Adding(1), Adding(2), keep=2) as (_, ask):
        before = ask("GET", "/v2/models/adding/stats").told["model_stats"][0]
        for rows in (1, 3):
            ask("POST", INFER, [request(rows)])
        ask("POST", INFER, [request(day=-1)])
        ask("POST", INFER, [b"{}"])
        (told,) = ask("GET", "/v2/models/stats").told["model_stats"]
        older = ask("GET", "/v2/models/adding/versions/1/stats").told["model_stats"][0]
        other = ask("GET", "/v2/models/other/stats").status

    assert (0, 0, 0) == (
        before["inference_count"],
        before["execution_count"],
        before["last_inference"],
    )
    assert ("adding", "2", 5, 3) == (
        *(told["name"], told["version"]),
        *(told["inference_count"], told["execution_count"]),
    )
    spent = told["inference_stats"]
    assert {"success": 2, "fail": 2, "queue": 3, "compute_infer": 3} == {
        name: each["count"] for name, each in spent.items() if each["count"]
    }
    assert all(each["ns"] > 0 for each in spent.values() if each["count"])
    assert told["last_inference"] > 1.7e12  # milliseconds
    assert ({**told, "version": "1"}, 404) == (older, other)


def test_the_index_has_all_versions_and_why_one_is_not_there():
    path = "/v2/repository/index"
    with serving(Adding(1), Adding(2), keep=2) as (repository, ask):
        repository.model("adding").fail("3", "torn")
        repository.add("coming")
        everything = ask("POST", path).told
        ready = ask("POST", path, [b'{"ready": true}']).told
        wrong = [ask("POST", path, [body]).status for body in (b"[]", b"{", b" " * (1 << 17))]
        got = ask("GET", path).status

    def said(version, state="READY", reason="", name="adding"):
        return {"name": name, "version": version, "state": state, "reason": reason}

    loading = said("", "LOADING", name="coming")
    assert [said("1"), said("2"), said("3", "UNAVAILABLE", "torn"), loading] == everything
    assert [said("1"), said("2")] == ready
    assert ([400, 400, 413], 405) == (wrong, got)


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/v2/repository/models/adding/load", "are not loaded and unloaded by calls"),
        ("POST", "/v2/repository/models/adding/unload", "are not loaded and unloaded by calls"),
        ("GET", "/v2/systemsharedmemory/status", "do not travel by shared memory"),
        ("POST", "/v2/cudasharedmemory/region/a/register", "do not travel by shared memory"),
        ("GET", "/v2/trace/setting", "not set by calls"),
        ("POST", "/v2/models/adding/trace/setting", "not set by calls"),
        ("GET", "/v2/logging", "not set by calls"),
        ("POST", "/v2/models/adding/generate", "texts are not generated"),
        ("POST", "/v2/models/adding/versions/1/generate_stream", "texts are not generated"),
    ],
)
def test_what_triton_has_and_this_server_has_not_is_refused_with_a_word(method, path, told):
    with serving() as (_, ask):
        reply = ask(method, path)

    assert 501 == reply.status
    assert told in reply.told["error"]


def changed(place, **parameters):
    told = json.loads(request())
    if place == "request":
        told["parameters"] = parameters
    elif place == "input":
        told["inputs"][0]["parameters"] = parameters
        del told["inputs"][0]["data"]
    else:
        told["outputs"] = [{"name": "sum", "parameters": parameters}]
    return json.dumps(told).encode()


@pytest.mark.parametrize(
    ("place", "parameters", "told"),
    [
        ("output", {"classification": 2}, "classes are not sought here"),
        ("output", {"shared_memory_region": "a"}, "shared memory"),
        ("input", {"shared_memory_region": "a", "shared_memory_byte_size": 8}, "shared memory"),
        ("request", {"sequence_id": 7, "sequence_start": True}, "sequences are not served"),
    ],
)
def test_parameters_that_would_change_the_answer_are_refused_and_never_passed_over(
    place, parameters, told
):
    with serving() as (_, ask):
        reply = ask("POST", INFER, [changed(place, **parameters)])

    assert 501 == reply.status
    assert told in reply.told["error"]


def test_parameters_that_change_nothing_are_taken():
    """As tritonclient sends them: no classes, a priority, a timeout in microseconds."""
    with serving() as (_, ask):
        replies = [
            ask("POST", INFER, [changed("output", classification=0, binary_data=False)]),
            ask("POST", INFER, [changed("request", priority=1, timeout=5000)]),
        ]

    assert [200, 200] == [reply.status for reply in replies]


def test_without_the_token_nothing_of_it_is_told():
    with serving(token="secret") as (_, ask):
        said = [
            ask(method, path).status
            for method, path in (
                ("GET", "/v2/models/adding/config"),
                ("GET", "/v2/models/adding/stats"),
                ("GET", "/v2/models/stats"),
                ("POST", "/v2/repository/index"),
            )
        ]

    assert [401] * 4 == said
