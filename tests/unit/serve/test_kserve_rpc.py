"""KServe's v2 protocol over gRPC: the calls, their statuses, and who may call."""

import asyncio
import types

import grpc
import pytest
from tools.served import FAR_S, Adding

from edl.proto import kserve_pb2 as pb
from edl.serve.kserve.asking import Asking
from edl.serve.kserve.rpc import SERVICE, Service, TokenCheck, bounds
from edl.serve.repository import Repository


class Aborted(Exception):
    pass


class Context:
    async def abort(self, code, details):
        raise Aborted(code, details)


@pytest.fixture
def call():
    repository = Repository()
    repository.add("adding")
    repository.swap("adding", Adding(3))

    def called(name, request):
        service = Service(Asking(repository, FAR_S)).handler()
        handler = service.service(types.SimpleNamespace(method=f"/{SERVICE}/{name}"))
        sent = handler.request_deserializer(request.SerializeToString())
        return asyncio.run(handler.unary_unary(sent, Context()))

    yield called
    repository.close()


def infer(day=1, model="adding", **more):
    request = pb.InferRequest(model_name=model, id="9", **more)
    x = request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    x.contents.fp32_contents.extend([1, 2])
    request.inputs.add(name="day", datatype="INT64", shape=[1]).contents.int64_contents.append(day)
    return request


def test_a_model_answers_values_with_bytes(call):
    reply = call("ModelInfer", infer())

    assert ("adding", "3", "9") == (reply.model_name, reply.model_version, reply.id)
    assert ["sum", "number"] == [each.name for each in reply.outputs]
    assert [b"\0\0\xc0@", b"\3" + b"\0" * 7] == list(reply.raw_output_contents)


def test_only_what_is_asked_for_is_answered(call):
    request = infer()
    request.outputs.add(name="number")

    reply = call("ModelInfer", request)

    assert (["number"], 1) == ([e.name for e in reply.outputs], len(reply.raw_output_contents))


@pytest.mark.parametrize(
    ("request_", "code", "told"),
    [
        (infer(model="other"), "NOT_FOUND", "no model 'other'"),
        (infer(model_version="7"), "NOT_FOUND", "no version '7'"),
        (infer(raw_input_contents=[b""]), "INVALID_ARGUMENT", "2 inputs, and raw_input_contents"),
        (infer(day=-1), "INVALID_ARGUMENT", "days begin with 0"),
        (infer(day=5000), "INTERNAL", "the model failed"),
        (pb.InferRequest(model_name="adding"), "INVALID_ARGUMENT", "'x' is missing"),
    ],
)
def test_what_is_wrong_has_a_status_and_is_told(call, request_, code, told):
    with pytest.raises(Aborted) as aborted:
        call("ModelInfer", request_)

    said, details = aborted.value.args
    assert (grpc.StatusCode[code], True) == (said, told in details)


def test_health_and_metadata_are_told(call):
    model = pb.ModelRequest(name="adding")

    assert call("ServerLive", pb.HealthRequest()).is_so
    assert call("ServerReady", pb.HealthRequest()).is_so
    assert call("ModelReady", model).is_so
    extensions = call("ServerMetadata", pb.ServerMetadataRequest()).extensions
    assert ["binary_tensor_data", "model_configuration", "statistics"] == extensions
    told = call("ModelMetadata", model)
    assert (["3"], "x", [-1, 2]) == (told.versions, told.inputs[0].name, told.inputs[0].shape)


@pytest.mark.parametrize(
    ("method", "metadata", "passes"),
    [
        ("ModelInfer", (), False),
        ("ModelInfer", (("authorization", "Bearer other"),), False),
        ("ModelInfer", (("authorization", "Bearer secret"),), True),
        ("ModelInfer", (("x-edl-token", "secret"),), True),
        ("ServerReady", (), True),
        ("ServerMetadata", (), False),
    ],
)
def test_who_has_no_token_is_refused_but_for_health(method, metadata, passes):
    details = types.SimpleNamespace(method=f"/{SERVICE}/{method}", invocation_metadata=metadata)

    async def goes_on(_details):
        return "goes on"

    check = TokenCheck("secret")
    found = asyncio.run(check.intercept_service(goes_on, details))

    assert passes == (found == "goes on")
    if not passes:
        with pytest.raises(Aborted) as aborted:
            asyncio.run(found.stream_stream(None, Context()))
        assert grpc.StatusCode.UNAUTHENTICATED == aborted.value.args[0]


def test_configuration_statistics_and_index_are_told_as_by_triton(call):
    model = pb.ModelRequest(name="adding")

    call("ModelInfer", infer())
    config = call("ModelConfig", model).config
    (told,) = call("ModelStatistics", model).model_stats
    (of_all,) = call("ModelStatistics", pb.ModelRequest()).model_stats
    index = call("RepositoryIndex", pb.RepositoryIndexRequest()).models

    # 11 and 9 are TYPE_FP32 and TYPE_INT64 of model_config.proto.
    assert [("x", 11, [2]), ("day", 9, [])] == [(e.name, e.data_type, e.dims) for e in config.input]
    assert [("sum", 11), ("number", 9)] == [(e.name, e.data_type) for e in config.output]
    assert (1 << 20, [256]) == (
        config.max_batch_size,
        config.dynamic_batching.preferred_batch_size,
    )
    assert ("adding", "3", 1, 1) == (
        *(told.name, told.version),
        *(told.inference_count, told.inference_stats.success.count),
    )
    assert told == of_all
    assert [("adding", "3", "READY")] == [(e.name, e.version, e.state) for e in index]


def with_parameters(of, **parameters):
    """Return a request with parameters of its own, of its first input or of an output."""
    request = infer()
    places = {"request": request, "input": request.inputs[0]}
    place = places.get(of) or request.outputs.add(name="sum")
    for name, value in parameters.items():
        place.parameters[name].CopyFrom(value)
    return request


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (with_parameters("output", classification=pb.Parameter(int64_param=2)), "classes"),
        (with_parameters("request", sequence_id=pb.Parameter(int64_param=7)), "sequences"),
        (
            with_parameters("input", shared_memory_region=pb.Parameter(string_param="a")),
            "shared memory",
        ),
    ],
)
def test_parameters_that_would_change_the_answer_are_refused(call, request_, told):
    with pytest.raises(Aborted) as aborted:
        call("ModelInfer", request_)

    said, details = aborted.value.args
    assert (grpc.StatusCode.UNIMPLEMENTED, True) == (said, told in details)


def test_parameters_that_change_nothing_are_taken(call):
    none = with_parameters("output", classification=pb.Parameter(int64_param=0))

    assert ["sum"] == [each.name for each in call("ModelInfer", none).outputs]


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("ModelStreamInfer", "send each one by ModelInfer"),
        ("RepositoryModelLoad", "not loaded and unloaded by calls"),
        ("SystemSharedMemoryRegister", "shared memory"),
        ("TraceSetting", "not set by calls"),
    ],
)
def test_calls_that_are_not_served_are_refused_with_a_word(method, told):
    service = Service(Asking(Repository(), FAR_S)).handler()
    handler = service.service(types.SimpleNamespace(method=f"/{SERVICE}/{method}"))

    with pytest.raises(Aborted) as aborted:
        asyncio.run(handler.stream_stream(None, Context()))
    assert grpc.StatusCode.UNIMPLEMENTED == aborted.value.args[0]
    assert told in aborted.value.args[1]


def test_connections_of_strangers_are_few_and_end_by_themselves():
    """Over real sockets: two of them wait for a handshake that does not come, more have no room."""

    async def strangers():
        server = grpc.aio.server(options=bounds(1 << 20, 2, begin_s=0.2))
        port = server.add_insecure_port("127.0.0.1:0")
        server.add_generic_rpc_handlers((Service(Asking(Repository(), FAR_S)).handler(),))
        await server.start()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        async with asyncio.timeout(FAR_S):
            ended = [await reader.read() for reader, _ in silent]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ServerLive")
            reply = await call(b"", timeout=FAR_S, wait_for_ready=True)
        for _, writer in silent:
            writer.close()
        await server.stop(0)
        return ended, pb.HealthReply.FromString(reply).is_so

    (first, second, *others), is_live = asyncio.run(strangers())
    assert ([b""] * 3, True) == (others, is_live)
    assert all(b"handshake timeout" in each for each in (first, second))
