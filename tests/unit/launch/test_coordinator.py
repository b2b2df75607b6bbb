"""The coordinator over real gRPC, with nodes that are only clients."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import grpc
import pytest
from tools.waiting import until

from edl.common import report, rpc
from edl.common.clock import MonotonicClock
from edl.common.errors import EdlError, Fenced, Unauthenticated, Unreachable
from edl.common.identity import Identity
from edl.common.report import Bounds
from edl.durable.journal import Journal
from edl.launch.client import RendezvousClient
from edl.launch.coordinator import Coordinator
from edl.launch.node import Node
from edl.launch.servicer import LookServicer, RendezvousServicer
from edl.launch.settings import LaunchSettings
from edl.master.client import MasterClient
from edl.proto import master_pb2_grpc, rendezvous_pb2_grpc

TOKEN = "secret"
DEADLINE_S = 300.0


class Served:
    """A coordinator that can be ended without a word and started again at its port."""

    def __init__(self, folder, **settings) -> None:
        self.folder = folder
        told = {"min_nodes": 1, "max_nodes": 2, "last_call_s": 0.0, **settings}
        self.settings = LaunchSettings(job_name="j", checkpoint_dir=str(folder), **told)
        self.port = 0
        self.nodes: list[Node] = []
        self.older: list[tuple[Coordinator, threading.Thread, Journal]] = []
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.folder / "rendezvous.sqlite")
        self.coordinator = Coordinator(self.settings, self.journal, MonotonicClock())

        def register(server: grpc.Server) -> None:
            rendezvous_pb2_grpc.add_RendezvousServicer_to_server(
                RendezvousServicer(self.coordinator), server
            )
            master_pb2_grpc.add_MasterServicer_to_server(LookServicer(self.coordinator), server)

        self.server = rpc.Server(register, token=TOKEN, port=self.port)
        self.port = int(self.server.address.rpartition(":")[2])
        self.codes: list[int] = []
        self.thread = threading.Thread(target=self.run, args=(self.coordinator,), daemon=True)
        self.thread.start()

    def run(self, coordinator: Coordinator) -> None:
        with contextlib.suppress(Fenced):  # as it is when another has taken over
            self.codes.append(coordinator.run(DEADLINE_S))

    def stop(self) -> None:
        self.server.stop(0)
        self.coordinator.stop("the test ends")
        for node in self.nodes:
            self.coordinator.leave(node._client.node)
        self.thread.join(DEADLINE_S)
        self.journal.close()
        for coordinator, thread, journal in self.older:
            with pytest.raises(Fenced):
                coordinator.stop("the test ends")
            thread.join(DEADLINE_S)
            journal.close()

    def restart(self) -> None:
        self.older.append((self.coordinator, self.thread, self.journal))
        self.server.stop(0)
        self.start()

    def node(self, token: str = TOKEN, patience_s: float = DEADLINE_S) -> Node:
        client = RendezvousClient(self.server.address, Identity(token), patience_s=patience_s)
        self.nodes.append(Node(client, "127.0.0.1", self.folder / f"report-{len(self.nodes)}"))
        return self.nodes[-1]

    def status(self, until) -> dict:
        client = MasterClient(self.server.address, token=TOKEN)
        revision, deadline = 0, time.monotonic() + DEADLINE_S
        try:
            while True:
                revision, status = client.status(revision, 1.0)
                if until(status):
                    return status
                assert time.monotonic() < deadline, status
        finally:
            client.close()


@pytest.fixture
def served(tmp_path):
    made: list[Served] = []

    def make(**settings) -> Served:
        made.append(Served(tmp_path, **settings))
        return made[-1]

    yield make
    for each in made:
        for node in each.nodes:
            node.leave()
        each.stop()


def test_two_nodes_come_into_one_round_with_the_store_of_the_first(served):
    job = served(min_nodes=2)
    first, second = job.node(), job.node()
    replies = {}
    threads = [
        threading.Thread(target=lambda n=n, i=i: replies.update({i: n.join(1, f"h:{i}", 0)}))
        for i, n in enumerate((first, second))
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    told = [
        (replies[i].round, replies[i].rank, replies[i].num_nodes, replies[i].store) for i in (0, 1)
    ]
    assert [(1, 0, 2, "h:0"), (1, 1, 2, "h:0")] == told


def test_a_node_that_waits_is_known_to_those_who_run_at_once(served):
    job = served()
    first = job.node()
    assert 1 == first.join(1, "h:0", 0).round
    assert not first.must_restart()

    second = job.node()

    def join() -> None:
        with contextlib.suppress(EdlError):  # the coordinator ends meanwhile
            second.join(1, "h:1", 0)

    threading.Thread(target=join, daemon=True).start()

    until(first.must_restart)


def test_a_round_goes_on_when_the_coordinator_is_started_anew(served):
    job = served()
    node = job.node()
    node.join(1, "h:0", 0)

    job.restart()

    status = job.status(lambda status: status["nodes"][0]["pid"] == os.getpid())
    assert ("running", 1) == (status["state"], status["round"])
    assert not node.must_restart()
    assert "done" == node.finish().closed


def test_a_node_whose_line_breaks_is_lost_within_seconds(served):
    job = served(silent_s=1e6)
    node = job.node()
    node.join(1, "h:0", 0)

    node.report_file.write_text('{"throughput": 1}')
    job.status(lambda status: status["throughput"] == 1)  # a beat is held
    node._ends.set()
    node._client.close()  # as the kernel does when the process is killed

    lost = job.status(lambda status: not status["nodes"])
    assert "waiting" == lost["state"]


def test_what_a_script_reports_is_in_the_status(served):
    job = served()
    node = job.node()
    node.join(1, "h:0", 0)

    node.report_file.write_text('{"throughput": 12.5, "remaining_s": 60.0}')

    status = job.status(lambda status: status["throughput"] is not None)
    assert (12.5, True) == (status["throughput"], 50 < status["remaining_s"] <= 60)
    told = report.read(status["report"])
    (sample,) = told.samples
    assert (sample.workers, sample.nodes, sample.records_per_s) == (1, 1, 12.5)
    assert (told.nodes, told.nearly_done) == (Bounds(1, 2), False)
    assert 50 * 12.5 < told.records_left <= 60 * 12.5


def test_a_wrong_token_is_refused(served):
    with pytest.raises(Unauthenticated):
        served().node(token="another")


def test_a_coordinator_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("edl.launch.node._HELLO_PATIENCE_S", 0.2)
    client = RendezvousClient("127.0.0.1:1", Identity(TOKEN), patience_s=0.0)

    with pytest.raises(Unreachable, match="the coordinator at 127.0.0.1:1 did not answer"):
        Node(client, "127.0.0.1", tmp_path / "report")


def test_a_stopped_job_closes_its_nodes_and_ends_with_130(served):
    job = served()
    node = job.node()
    node.join(1, "h:0", 0)

    job.coordinator.stop("Ctrl-C")
    until(lambda: node.closed)
    node.leave()

    job.thread.join(DEADLINE_S)
    assert ("stopped", [130]) == (node.closed, job.codes)


def test_to_scale_a_launched_job_says_how_it_grows(served):
    client = MasterClient(served().server.address, token=TOKEN)

    with pytest.raises(EdlError, match="edl launch --join"):
        client.scale(3)
