"""Channels of the job: the token, and what happens to calls of a channel that is closed."""

import contextlib
import threading
import time

import proxy
import pytest

from edl.common import rpc
from edl.common.errors import Unauthenticated, Unreachable
from edl.proto import ps_pb2, ps_pb2_grpc


class Servicer(ps_pb2_grpc.ParameterServerServicer):
    def Describe(self, request, context):
        return ps_pb2.DescribeReply(shard=7)


@pytest.fixture
def address():
    server = rpc.Server(
        lambda server: ps_pb2_grpc.add_ParameterServerServicer_to_server(Servicer(), server),
        token="right",
    )
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


def test_calls_that_race_with_the_end_of_their_channel_are_errors_and_no_crash(address):
    for _ in range(20):
        channel = rpc.Channel(address, "right")
        begun = threading.Barrier(3)
        found = []

        def call_until_closed(channel=channel, begun=begun, found=found):
            stub = ps_pb2_grpc.ParameterServerStub(channel)
            begun.wait(10)
            try:
                while True:
                    stub.Describe.future(ps_pb2.DescribeRequest(), timeout=5.0).result()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told below
                found.append(error)

        threads = [threading.Thread(target=call_until_closed) for _ in range(2)]
        for thread in threads:
            thread.start()
        begun.wait(10)
        channel.close()
        for thread in threads:
            thread.join(10)
        assert 2 == len(found)


def test_a_peer_that_is_not_there_is_unreachable():
    with pytest.raises(Unreachable):
        describe(rpc.Channel("127.0.0.1:1", "right"))


@pytest.mark.slow
def test_a_half_open_channel_is_made_anew(address):
    """Takes the quarter of a minute that gRPC's ping does."""
    with proxy.Proxy(address) as between:
        channel = rpc.Channel(between.address, "right")
        describe(channel)
        between.go_deaf()
        until = time.monotonic() + 30
        shard = None
        while shard is None and time.monotonic() < until:
            with contextlib.suppress(Unreachable):
                shard = describe(channel)
        channel.close()

    assert (7, 2) == (shard, between.accepted)
