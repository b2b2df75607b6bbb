"""Channels of the job: its token and certificate, and calls of a channel that is closed."""

import contextlib
import socket
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tools import own, proxy

from edl.common import rpc
from edl.common.errors import EdlError, Unauthenticated, Unreachable, UsageError
from edl.common.identity import CERTIFIED_NAME, Identity
from edl.common.reflection import VARIABLE, reflect
from edl.proto import ps_pb2, ps_pb2_grpc


class Servicer(ps_pb2_grpc.ParameterServerServicer):
    def Describe(self, request, context):
        return ps_pb2.DescribeReply(shard=7)


class AsyncServicer(ps_pb2_grpc.ParameterServerServicer):
    async def Describe(self, request, context):
        return ps_pb2.DescribeReply(shard=7)


@pytest.fixture(params=[rpc.Server, rpc.AsyncServer], ids=["threads", "coroutines"])
def serve(request):
    def serve(**options):
        def register(server):
            ps_pb2_grpc.add_ParameterServerServicer_to_server(servicer, server)
            reflect(server, ps_pb2)

        servicer = AsyncServicer() if request.param is rpc.AsyncServer else Servicer()
        return request.param(
            register,
            token="right",
            **options,
        )

    return serve


@pytest.fixture
def address(serve):
    server = serve()
    yield server.address
    server.stop()


@pytest.fixture(scope="module")
def certified():
    return Identity.create("right")


@pytest.fixture
def encrypted(certified, serve):
    """Yield the address of a server with the job's certificate."""
    server = serve(identity=certified, host="127.0.0.2")
    yield server.address
    server.stop()


def describe(channel):
    stub = ps_pb2_grpc.ParameterServerStub(channel)
    return rpc.call(stub.Describe, ps_pb2.DescribeRequest(), 5.0).shard


def test_a_call_carries_the_token(address):
    assert 7 == describe(rpc.Channel(address, "right"))


def test_a_call_with_another_token_is_refused(address):
    with pytest.raises(Unauthenticated):
        describe(rpc.Channel(address, "wrong"))


PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY")


@pytest.mark.parametrize("variable", [*PROXIES, "GRPC_ADDRESS_HTTP_PROXY"])
def test_no_proxy_variable_comes_between_processes_of_a_job(monkeypatch, address, variable):
    for other in (*PROXIES, "no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(other, raising=False)
    by_address = variable.startswith("GRPC")
    monkeypatch.setenv(variable, "127.0.0.1:9" if by_address else "http://127.0.0.1:9")
    monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES", "127.0.0.0/8")

    assert 7 == describe(rpc.Channel(address, "right"))


def test_without_the_token_a_message_is_refused_before_it_is_taken_in(serve):
    server = serve(receive_nbytes=1000)  # whoever takes it in finds that it is too large
    message = ps_pb2.DescribeRequest().SerializeToString() + b"\x0a\xfd\xff\x0f" + bytes(1 << 18)
    found = {}
    with grpc.insecure_channel(server.address) as channel:
        for name, path, token in (
            ("without", "/edl.v1.ParameterServer/Describe", ""),
            ("with another", "/edl.v1.ParameterServer/Describe", "wr\u00f6ng".encode().hex()),
            ("of no method", "/no.such/Method", ""),
            ("with", "/edl.v1.ParameterServer/Describe", "right"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(path)(message, timeout=30, metadata=[(rpc.TOKEN_KEY, token)])
            found[name] = refused.value.code().name
        health = channel.unary_unary("/grpc.health.v1.Health/Check")(message, timeout=30)
    server.stop()

    refused = dict.fromkeys(("without", "with another", "of no method"), "UNAUTHENTICATED")
    assert {**refused, "with": "RESOURCE_EXHAUSTED"} == found
    serving = health_pb2.HealthCheckResponse.SERVING
    assert serving == health_pb2.HealthCheckResponse.FromString(health).status


def test_calls_that_race_with_the_end_of_their_channel_are_errors_and_no_crash(address):
    for _ in range(20):
        channel = rpc.Channel(address, "right")
        begun = threading.Barrier(3)
        found = []

        def call_until_closed(channel=channel, begun=begun, found=found):
            stub = ps_pb2_grpc.ParameterServerStub(channel)
            begun.wait(300)
            try:
                while True:
                    stub.Describe.future(ps_pb2.DescribeRequest(), timeout=5.0).result()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told below
                found.append(error)

        threads = [threading.Thread(target=call_until_closed) for _ in range(2)]
        for thread in threads:
            thread.start()
        begun.wait(300)
        channel.close()
        for thread in threads:
            thread.join(300)
        assert 2 == len(found)


def test_a_peer_that_is_not_there_is_unreachable():
    with pytest.raises(Unreachable):
        describe(rpc.Channel("127.0.0.1:1", "right"))


def test_the_jobs_certificate_and_token_are_taken_at_any_address(encrypted, certified):
    assert encrypted.startswith("127.0.0.2:")
    assert 7 == describe(rpc.Channel(encrypted, "right", identity=certified))


def test_the_certificate_without_the_token_is_refused(encrypted, certified):
    with pytest.raises(Unauthenticated, match="token is missing or wrong"):
        describe(rpc.Channel(encrypted, "wrong", identity=certified))


def test_a_server_with_another_certificate_is_refused(encrypted):
    other = Identity.create("right")

    with pytest.raises(Unauthenticated, match="another job's certificate"):
        describe(rpc.Channel(encrypted, "right", identity=other))


@pytest.mark.parametrize(
    "other", [Identity.create("right"), Identity("right")], ids=["other", "none"]
)
def test_a_client_that_trusts_the_server_but_has_not_its_certificate_is_refused(
    encrypted, certified, other
):
    trusts = grpc.ssl_channel_credentials(
        certified.certificate_pem.encode(),
        other.key_pem.encode() or None,
        other.certificate_pem.encode() or None,
    )
    options = [("grpc.ssl_target_name_override", CERTIFIED_NAME)]
    with grpc.secure_channel(encrypted, trusts, options) as channel:
        health = health_pb2_grpc.HealthStub(channel)  # which asks for no token

        with pytest.raises(Unreachable):
            rpc.call(health.Check, health_pb2.HealthCheckRequest(), 5.0)


def test_a_plain_call_of_an_encrypted_server_says_what_it_lacks(encrypted):
    with pytest.raises(Unreachable, match="EDL_IDENTITY"):
        describe(rpc.Channel(encrypted, "right"))


def test_an_encrypted_call_of_a_plain_server_says_what_that_lacks(address, certified):
    with pytest.raises(Unreachable, match="does not encrypt"):
        describe(rpc.Channel(address, "right", identity=certified))


def test_without_a_certificate_nothing_listens_or_calls_off_loopback(serve):
    with pytest.raises(EdlError, match="set EDL_IDENTITY"):
        serve(host=own.address())
    with pytest.raises(EdlError, match="set EDL_IDENTITY"):
        rpc.Channel("10.0.0.1:1", "right")


def test_server_and_channel_have_host_and_identity_of_their_environment(
    monkeypatch, certified, serve
):
    monkeypatch.setenv("EDL_HOST", own.address())
    for name, value in certified.variables().items():
        monkeypatch.setenv(name, value)
    server = serve()

    found = describe(rpc.Channel(server.address, "right"))
    server.stop()

    assert (7, own.address()) == (found, server.address.rpartition(":")[0])


def test_health_is_served_plain_at_its_port_and_nothing_else_is(monkeypatch, certified):
    port = own.free_port()
    monkeypatch.setenv("EDL_HEALTH_PORT", str(port))
    for name, value in certified.variables().items():
        monkeypatch.setenv(name, value)
    server = rpc.serve_health()

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reply = rpc.call(health.Check, health_pb2.HealthCheckRequest(), 5.0)
        with pytest.raises(EdlError, match="UNIMPLEMENTED"):
            describe(channel)
        too_large = health_pb2.HealthCheckRequest(service="x" * 10_000)
        with pytest.raises(EdlError, match="RESOURCE_EXHAUSTED"):
            rpc.call(health.Check, too_large, 5.0)
    server.stop(0).wait(300)

    assert health_pb2.HealthCheckResponse.SERVING == reply.status


def test_without_a_port_health_is_not_served(monkeypatch):
    monkeypatch.delenv("EDL_HEALTH_PORT", raising=False)

    assert rpc.serve_health() is None


def test_a_health_port_that_is_taken_is_one_clear_error(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("EDL_HEALTH_PORT", str(taken.getsockname()[1]))

        with pytest.raises(UsageError, match="set EDL_HEALTH_PORT to a port that is free"):
            rpc.serve_health()


@pytest.mark.slow
def test_a_half_open_channel_is_made_anew(address):
    """The test takes the quarter of a minute that gRPC's ping does."""
    with proxy.Proxy(address) as between:
        channel = rpc.Channel(between.address, "right")
        describe(channel)
        between.go_deaf()
        until = time.monotonic() + 300
        shard = None
        while shard is None and time.monotonic() < until:
            with contextlib.suppress(Unreachable):
                shard = describe(channel)
        channel.close()

    assert (7, 2) == (shard, between.accepted)


@pytest.mark.parametrize("is_on", [True, False])
def test_a_server_tells_its_services_to_who_has_the_token(serve, monkeypatch, is_on):
    """Broken once: it tells them whatever the environment says."""
    reflection_pb2_grpc = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2_grpc")
    from grpc_reflection.v1alpha import reflection_pb2

    monkeypatch.setenv(VARIABLE, "1" if is_on else "0")
    server = serve()

    def services(token):
        with grpc.insecure_channel(server.address) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            told = stub.ServerReflectionInfo(
                iter([asked]), metadata=[("x-edl-token", token)], timeout=30
            )
            (reply,) = told
            return {each.name for each in reply.list_services_response.service}

    try:
        if is_on:
            assert "edl.v1.ParameterServer" in services("right")
        codes = {"right": grpc.StatusCode.UNIMPLEMENTED, "wrong": grpc.StatusCode.UNAUTHENTICATED}
        for token in ("wrong",) if is_on else ("right", "wrong"):
            with pytest.raises(grpc.RpcError) as raised:
                services(token)
            assert codes[token] == raised.value.code()
    finally:
        server.stop()
