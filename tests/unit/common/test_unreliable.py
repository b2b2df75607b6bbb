"""A bad network, made inside the caller."""

import os
import subprocess
import sys

import pytest

from edl.common.errors import UsageError
from edl.common.unreliable import Lost, Network


class Peer:
    """A peer that counts what arrives; time passes where somebody sleeps."""

    def __init__(self) -> None:
        self.arrived = 0
        self.now = 0.0

    def begin(self):
        self.arrived += 1
        return lambda: "reply"

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def network(self, text: str, caller: str = "worker", index: int = 0) -> Network:
        return Network(text, caller, index, lambda: self.now, self.sleep)

    def call(self, network: Network, method: str = "Push", peer: str = "ps") -> str:
        try:
            return network.start(peer, method, self.begin)()
        except Lost:
            return "lost"


@pytest.mark.parametrize(
    ("fault", "told", "arrived"),
    [("drop=1", "lost", 0), ("lose=1", "lost", 1), ("dup=1", "reply", 2), ("cut", "lost", 0)],
)
def test_a_fault_is_of_the_request_or_of_the_reply(fault, told, arrived):
    peer = Peer()

    assert (told, arrived) == (peer.call(peer.network(f"worker>ps:{fault}")), peer.arrived)


def test_a_rule_is_of_one_caller_one_peer_and_one_method():
    peer = Peer()
    network = peer.network("worker>ps.Push:drop=1;master>ps:drop=1")

    assert ["lost", "reply", "reply"] == [
        peer.call(network),
        peer.call(network, "Pull"),
        peer.call(network, "GetTask", "master"),
    ]
    assert "lost" == peer.call(peer.network("master>ps:drop=1", caller="master"), "Fence")


def test_a_cut_has_a_beginning_and_an_end():
    peer = Peer()
    network = peer.network("worker>ps:cut=10:5")
    told = []
    for now in (9.9, 10.0, 14.9, 15.0):
        peer.now = now
        told.append(peer.call(network))

    assert ["reply", "lost", "lost", "reply"] == told


def test_a_delay_takes_its_time():
    peer = Peer()
    peer.call(peer.network("worker>ps:delay=1:0.25,slow=0.5"))

    assert 0.75 == peer.now


def test_a_request_is_overtaken_by_the_next():
    peer = Peer()
    network = peer.network("worker>ps.Push:reorder=1")
    order = []

    class Overtaker:
        """An event that stands where the first request waits, and sends the second."""

        def set(self):
            pass

        def clear(self):
            pass

        def wait(self, timeout):
            network._rules[0].chances.clear()
            network.start("ps", "Push", lambda: order.append("second") or (lambda: "reply"))

    network._rules[0].overtaken = Overtaker()
    network.start("ps", "Push", lambda: order.append("first") or (lambda: "reply"))

    assert ["second", "first"] == order


def test_the_seed_says_which_calls_are_hit():
    def fates(seed: int, index: int) -> list[str]:
        peer = Peer()
        network = peer.network(f"seed={seed};worker>ps:lose=0.5", index=index)
        return [peer.call(network) for _ in range(32)]

    assert fates(1, 0) == fates(1, 0)
    assert fates(1, 0) != fates(2, 0) != fates(2, 1)


def test_the_rules_of_a_file_change_while_the_process_runs(tmp_path):
    peer, path = Peer(), tmp_path / "net"
    network = peer.network(str(path))
    told = [peer.call(network)]
    path.write_text("worker>ps:drop=1")
    told.append(peer.call(network))
    path.unlink()
    told.append(peer.call(network))

    assert ["reply", "lost", "reply"] == told


@pytest.mark.parametrize("text", ["worker>ps:loose=1", "worker-ps:lose=1", "worker>ps:delay=1"])
def test_what_is_no_rule_is_one_clear_error(text):
    with pytest.raises(UsageError, match="EDL_NET"):
        Peer().network(text)


def test_calls_over_grpc_meet_it_as_an_unreachable_peer():
    code = """
from edl.common import rpc
from edl.common.errors import Unreachable
from edl.proto import ps_pb2 as pb, ps_pb2_grpc
from edl.ps.wire.grpc import start

class Servicer(ps_pb2_grpc.ParameterServerServicer):
    calls = 0
    def Describe(self, request, context):
        self.calls += 1
        return pb.DescribeReply(shard=7)

servicer = Servicer()
server = rpc.Server(
    lambda s: ps_pb2_grpc.add_ParameterServerServicer_to_server(servicer, s), token="t"
)
stub = ps_pb2_grpc.ParameterServerStub(rpc.Channel(server.address, "t"))
for call in (rpc.call, lambda *a: start(*a)()):
    try:
        call(stub.Describe, pb.DescribeRequest(), 5.0)
        print("replied")
    except Unreachable as error:
        print(error, servicer.calls)
server.stop()
"""
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "EDL_NET": "worker>ps.Describe:lose=1", "EDL_ROLE": "worker"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    line = "UNAVAILABLE: worker>ps.Describe: the reply was lost"
    assert [f"{line} 1", f"{line} 2"] == said.stdout.splitlines()
