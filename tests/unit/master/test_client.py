"""The line to a master that ends and serves again, elsewhere."""

from __future__ import annotations

import json
import threading

import grpc
import pytest

from edl.common import rpc
from edl.common.errors import Unreachable
from edl.master.client import MasterClient
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc

TOKEN = "secret"


class Answering(master_pb2_grpc.MasterServicer):
    """A master that says its name, and holds what it is told to hold."""

    def __init__(self, name):
        self.name = name
        self.held = threading.Event()
        self.release = threading.Event()
        self.reported = []
        self.silent = False

    def Status(self, request, context):
        return pb.StatusReply(revision=1, status_json=json.dumps(self.name))

    def Heartbeat(self, request, context):
        self.reported.append([report.task for report in request.reports])
        if self.silent:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return pb.HeartbeatReply(accepted=[report.task != 3 for report in request.reports])

    GetTask = Heartbeat

    def GetServers(self, request, context):
        self.held.set()
        self.release.wait(300)
        return pb.GetServersReply(slot_map_version=7)


@pytest.fixture
def serve():
    servers = []

    def make(name):
        master = Answering(name)
        server = rpc.Server(
            lambda s: master_pb2_grpc.add_MasterServicer_to_server(master, s), token=TOKEN
        )
        servers.append(server)
        return master, server

    yield make
    for server in servers:
        server.stop(0)


def test_a_call_goes_to_the_master_that_serves_now(serve):
    _, old = serve("old")
    _, new = serve("new")
    client = MasterClient(old.address, token=TOKEN, patience_s=300, where=lambda: new.address)
    before = client.status()[1]

    old.stop(0)

    assert ("old", "new") == (before, client.status()[1])
    assert new.address == client.address
    client.close()


def test_the_address_is_in_the_jobs_folder(serve, tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_JOB_DIR", str(tmp_path))
    _, old = serve("old")
    _, new = serve("new")
    client = MasterClient(old.address, token=TOKEN, patience_s=300)
    old.stop(0)
    (tmp_path / "master.json").write_text(json.dumps({"address": new.address, "pid": 1}))

    assert "new" == client.status()[1]
    client.close()


def test_a_long_poll_of_another_thread_moves_with_the_line(serve):
    held, old = serve("old")
    free, new = serve("new")
    free.release.set()
    where = [old.address]
    client = MasterClient(old.address, token=TOKEN, patience_s=300, where=lambda: where[0])
    versions = []
    poll = threading.Thread(
        target=lambda: versions.append(client.get_servers(0, 10).slot_map_version)
    )
    poll.start()
    assert held.held.wait(300)

    where[0] = new.address
    client._follow()  # as another thread's call does, when it is not answered
    poll.join(300)

    assert [7] == versions
    held.release.set()
    client.close()


def test_closing_gives_up_all_calls(serve):
    held, server = serve("old")
    client = MasterClient(server.address, token=TOKEN, patience_s=300, where=lambda: None)
    errors = []

    def poll():
        with pytest.raises(Unreachable, match="is closed") as error:
            client.get_servers(0, 10)
        errors.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    assert held.held.wait(300)

    client.close()
    thread.join(300)

    assert 1 == len(errors)
    held.release.set()


def test_a_master_that_stays_away_is_one_error(serve):
    _, server = serve("old")
    client = MasterClient(server.address, token=TOKEN, patience_s=0.1, where=lambda: None)
    server.stop(0)

    with pytest.raises(Unreachable, match="did not answer within 0.1 s"):
        client.status()
    client.close()


def report(task):
    return pb.ReportTaskRequest(task=task, attempt=1, done=True)


def test_reports_left_for_later_go_with_the_next_call_and_each_is_told_its_own_answer(serve):
    master, server = serve("here")
    me = pb.Replica(role=pb.WORKER, incarnation="w")
    client = MasterClient(server.address, token=TOKEN, replica=me, patience_s=300)
    told = {}
    for task in range(1, 101):  # more than one call carries
        client.report_later(report(task), lambda accepted, task=task: told.update({task: accepted}))
    client.heartbeat()
    client.send_reports()
    client.heartbeat()

    assert [[*range(1, 65)], [*range(65, 101)], []] == master.reported
    assert {task: task != 3 for task in range(1, 101)} == told
    client.close()


def test_reports_of_a_call_that_nobody_answers_are_left_for_the_next(serve):
    master, server = serve("here")
    me = pb.Replica(role=pb.WORKER, incarnation="w")
    client = MasterClient(server.address, token=TOKEN, replica=me, patience_s=300)
    client.report_later(report(1))
    master.silent = True
    with pytest.raises(Unreachable):
        client.heartbeat(patience_s=0.0)
    client.report_later(report(2))
    master.silent = False
    client.heartbeat()

    assert [1, 2] == master.reported[-1]
    client.close()
