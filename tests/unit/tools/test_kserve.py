"""The stand-in for servers of KServe's v2 protocol does what the protocol's specification says.

Requests are written here byte by byte, without edl's client: over HTTP as in the examples of the
Open Inference Protocol and of Triton's extension binary_tensor_data, over gRPC as tritonclient
2.73.0 wrote them.
"""

import http.client
import json

import grpc
import numpy as np
import pytest
from tools.kserve import Spec, StandIn

MODEL = "/v2/models/mymodel"


@pytest.fixture
def server():
    """Yield the model of the specification's examples: two inputs, one output of [3, 2] FP32."""

    def compute(them):
        assert them["input0"].tolist() == [[1, 2], [3, 4]]
        assert them["input1"].tolist() == [True, False, True]
        return {"output0": np.array([[1.0, 1.1], [2.0, 2.1], [3.0, 3.1]], np.float32)}

    inputs = [Spec("input0", "UINT32", [2, 2]), Spec("input1", "BOOL", [3])]
    with StandIn(inputs, [Spec("output0", "FP32", [3, 2])], compute, model="mymodel") as server:
        yield server


@pytest.fixture
def ask(server):
    """Yield a function that sends a request over HTTP: (status, headers, body)."""
    connection = http.client.HTTPConnection(server.target("http"), timeout=10)

    def ask(verb, path, body=None, headers=()):
        connection.request(verb, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.headers, response.read()

    yield ask
    connection.close()


def told(answer):
    status, _, body = answer
    return status, json.loads(body)


def test_health_and_metadata_over_http(server, ask):
    assert (200, {"live": True}) == told(ask("GET", "/v2/health/live"))
    assert 200 == ask("GET", "/v2/health/ready")[0]
    assert (200, {"name": "mymodel", "ready": True}) == told(ask("GET", f"{MODEL}/ready"))
    status, about = told(ask("GET", "/v2"))
    assert (200, {"name", "version", "extensions"}) == (status, set(about))
    assert (
        200,
        {
            "name": "mymodel",
            "versions": ["1", "3"],
            "platform": "stand-in",
            "inputs": [
                {"name": "input0", "datatype": "UINT32", "shape": [2, 2]},
                {"name": "input1", "datatype": "BOOL", "shape": [3]},
            ],
            "outputs": [{"name": "output0", "datatype": "FP32", "shape": [3, 2]}],
        },
    ) == told(ask("GET", MODEL))
    assert told(ask("GET", f"{MODEL}/versions/1"))[0] == 200
    assert told(ask("GET", f"{MODEL}/config"))[1]["max_batch_size"] == 0

    server.is_ready = False
    assert 400 == ask("GET", "/v2/health/ready")[0]


REQUEST = {
    "id": "42",
    "inputs": [
        {"name": "input0", "shape": [2, 2], "datatype": "UINT32", "data": [1, 2, 3, 4]},
        {"name": "input1", "shape": [3], "datatype": "BOOL", "data": [True, False, True]},
    ],
    "outputs": [{"name": "output0"}],
}


def test_an_inference_in_json(ask):
    status, answer = told(ask("POST", f"{MODEL}/infer", json.dumps(REQUEST)))

    (output,) = answer.pop("outputs")
    assert (200, {"id": "42", "model_name": "mymodel", "model_version": "3"}) == (status, answer)
    assert ("output0", [3, 2], "FP32") == (output["name"], output["shape"], output["datatype"])
    np.testing.assert_allclose([1.0, 1.1, 2.0, 2.1, 3.0, 3.1], output["data"])


def test_an_inference_in_bytes(ask):
    request = {
        "model_name": "mymodel",
        "inputs": [
            {
                "name": "input0",
                "shape": [2, 2],
                "datatype": "UINT32",
                "parameters": {"binary_data_size": 16},
            },
            {
                "name": "input1",
                "shape": [3],
                "datatype": "BOOL",
                "parameters": {"binary_data_size": 3},
            },
        ],
        "outputs": [{"name": "output0", "parameters": {"binary_data": True}}],
    }
    head = json.dumps(request).encode()
    body = head + np.array([1, 2, 3, 4], "<u4").tobytes() + b"\x01\x00\x01"
    sizes = {"Inference-Header-Content-Length": str(len(head))}

    status, headers, answer = ask("POST", f"{MODEL}/versions/1/infer", body, sizes)

    nbytes = int(headers["Inference-Header-Content-Length"])
    (output,) = json.loads(answer[:nbytes])["outputs"]
    assert (200, {"binary_data_size": 24}) == (status, output["parameters"])
    assert "data" not in output
    np.testing.assert_allclose(
        [1.0, 1.1, 2.0, 2.1, 3.0, 3.1], np.frombuffer(answer[nbytes:], "<f4"), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("path", "change", "status", "text"),
    [
        ("/v2/models/other/infer", {}, 404, "unknown model"),
        (f"{MODEL}/versions/9/infer", {}, 404, "unknown version 9"),
        (f"{MODEL}/infer", {"inputs": REQUEST["inputs"][:1]}, 400, "expected 2 inputs"),
        (f"{MODEL}/infer", {"outputs": [{"name": "z"}]}, 400, "unexpected inference output"),
        ("/v2/nothing", {}, 404, "no such path"),
    ],
)
def test_errors_over_http_are_statuses_and_a_json_object(ask, path, change, status, text):
    found, answer = told(ask("POST", path, json.dumps(REQUEST | change)))
    assert (status, ["error"]) == (found, list(answer))
    assert text in answer["error"]


def test_calls_over_grpc_are_answered_byte_for_byte():
    def compute(them):
        assert them["record"].tolist() == [7, -1]
        return {"logits": them["x"]}

    inputs = [Spec("record", "INT64", [-1]), Spec("x", "FP32", [-1, 1])]
    outputs = [Spec("logits", "FP32", [-1, 1])]
    with (
        StandIn(inputs, outputs, compute, model="m") as server,
        grpc.insecure_channel(server.target("grpc")) as channel,
    ):

        def call(name, request):
            method = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            return method(bytes.fromhex(request), timeout=10).hex()

        assert ["0801"] * 2 == [call(f"Server{each}", "") for each in ("Live", "Ready")]
        assert "0801" == call("ModelReady", "0a016d120133")
        theirs = (
            "0a016d1201332a120a067265636f72641205494e5436341a01022a0d0a01781204465033321a0202"
            "013a100700000000000000ffffffffffffffff3a080000c03f00000040"
        )
        logits = "2a120a066c6f676974731204465033321a02020132080000c03f00000040"
        assert f"0a016d120133{logits}" == call("ModelInfer", theirs)

        with pytest.raises(grpc.RpcError) as error:
            call("ModelMetadata", "0a0178")
        assert grpc.StatusCode.NOT_FOUND == error.value.code()
        with pytest.raises(grpc.RpcError) as error:
            call("ModelInfer", "0a016d")
        assert grpc.StatusCode.INVALID_ARGUMENT == error.value.code()
