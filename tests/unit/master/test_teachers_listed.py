"""A job's teachers as its master lists them for scripts, over gRPC."""

import contextlib
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from edl.common import rpc
from edl.common.errors import Unauthenticated
from edl.common.identity import Identity
from edl.master.servicer import TeachersServicer
from edl.proto import master_pb2 as pb
from edl.proto import registry_pb2_grpc
from edl.registry.client import RegistryClient
from edl.registry.roll import Entry

JOB = Identity("the job's token")
VERSION = 3 << 32 | 5


class Front:
    """A master that knows two teachers; `asked`: what it was asked."""

    def __init__(self):
        self.asked = []

    def get_teachers(self, request):
        self.asked.append((request.known_version, request.wait_s))
        future = Future()
        future.set_result(pb.GetTeachersReply(version=VERSION, addresses=["h:1", "h:2"]))
        return future


@pytest.fixture
def front():
    return Front()


@pytest.fixture
def line(front):
    """Yield what makes lines to the master."""
    servicer = TeachersServicer(SimpleNamespace(front=front), 15.0)
    with contextlib.ExitStack() as undo:
        server = rpc.AsyncServer(
            lambda made: registry_pb2_grpc.add_RegistryServicer_to_server(servicer, made),
            token=JOB.token,
            identity=JOB,
            host="127.0.0.1",
        )
        undo.callback(server.stop, 0.0)

        def make(identity=JOB):
            client = RegistryClient(server.address, identity)
            undo.callback(client.close)
            return client

        yield make


def test_they_go_by_one_name(line, front):
    reply = line().list("teachers", VERSION - 1, 600.0)

    assert [("h:1", 15.0), ("h:2", 15.0)] == [(t.address, t.ttl_s) for t in reply.teachers]
    assert VERSION == reply.version
    assert [(VERSION - 1, 60.0)] == front.asked


def test_another_name_is_nobodys(line, front):
    reply = line().list("lenet")
    assert ([], ["teachers"]) == ([*reply.teachers], [*reply.names])

    assert reply == line().list("lenet", reply.version, 0.01)
    assert [] == front.asked


def test_nobody_registers_there(line):
    assert "register at an `edl registry`" in line().register("teachers", Entry("h:3", "f", "i", 9))


def test_who_has_not_the_jobs_identity_is_told_nothing(line):
    with pytest.raises(Unauthenticated):
        line(Identity("another")).list("teachers")
