"""A home of its own for every test, and jobs with a fake master."""

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.apiserver import ApiServer
from tools.clustered import FLAGS, add_pod, say

from edl.cli import main as cli
from edl.common import paths, rpc
from edl.common.settings import JobSettings
from edl.jobs.local import LocalJob
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc

Run = Callable[..., tuple[int, str, str]]

STATUS: dict[str, Any] = {
    "revision": 5,
    "job_name": "census",
    "state": "running",
    "exit_code": None,
    "message": "",
    "command": "train",
    "started_s_ago": 42.3,
    "records_done": 38912,
    "records_total": 64000,
    "epoch": 1,
    "num_epochs": 3,
    "records_per_s": 1930.4,
    "loss": 0.48213,
    "version": 608,
    "tasks": {"todo": 40, "leased": 2, "fencing": 1, "done": 83, "total": 126},
    "workers": [
        {
            "index": 0,
            "incarnation": "a",
            "pid": 1200,
            "state": "training",
            "task": 84,
            "records_per_s": 960.1,
            "heartbeat_age_s": 0.2,
            "address": "127.0.0.1:1",
            "metrics_address": "127.0.0.1:2",
        },
        {
            "index": 1,
            "incarnation": "b",
            "pid": 1203,
            "state": "starting",
            "task": None,
            "records_per_s": None,
            "heartbeat_age_s": None,
            "address": "",
            "metrics_address": "",
        },
    ],
    "servers": [
        {
            "index": 0,
            "state": "serving",
            "version": 608,
            "address": "127.0.0.1:3",
            "metrics_address": "127.0.0.1:4",
            "pid": 1188,
        }
    ],
    "metrics": {"auc": 0.73125},
    "evaluations": [{"version": 600, "epoch": 0, "metrics": {"auc": 0.73125}}],
    "quarantined": [
        {
            "source": "/data/census.csv",
            "records": [17, 18],
            "error": "ValueError: could not convert string to float: 'x'",
            "task": 3,
        }
    ],
    "restarts": {"worker": 1, "server": 0, "preemptions": 2, "server_preemptions": 3, "master": 1},
    "checkpoint": "/checkpoints/version-000000000600",
    "events": [
        {"t": 1.0, "text": "worker-0 is here"},
        {"t": 12.25, "text": "worker-1 is lost: task 17 is leased again from position 128"},
    ],
}


class FakeMaster(master_pb2_grpc.MasterServicer):  # type: ignore[misc]
    """A master that answers one status, and remembers what it was asked to do."""

    def __init__(self, status: dict[str, Any]) -> None:
        self.status = status
        self.asked: list[str] = []

    def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        return pb.StatusReply(revision=1, status_json=json.dumps(self.status))

    def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopReply:
        self.asked.append(f"stop: {request.reason}")
        return pb.StopReply()

    def Checkpoint(self, request: pb.CheckpointRequest, context: Any) -> pb.CheckpointReply:
        self.asked.append(f"checkpoint {request.request_id}")
        if self.status["command"] == "evaluate":
            return pb.CheckpointReply(refused="only a job that trains has checkpoints")
        if len(self.asked) < self.status.get("answers_at", 0):
            return pb.CheckpointReply(pending=True)
        return pb.CheckpointReply(checkpoint="/checkpoints/version-000000000700")

    def Scale(self, request: pb.ScaleRequest, context: Any) -> pb.ScaleReply:
        servers = f", {request.num_servers} servers" if request.num_servers else ""
        taught = f", {request.num_teachers}:{request.max_teachers} teachers"
        teachers = taught if request.HasField("num_teachers") else ""
        self.asked.append(f"scale: {request.num_workers}{servers}{teachers}")
        if request.num_servers > 8:
            return pb.ScaleReply(refused="it keeps its servers")
        return pb.ScaleReply(previous=2)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "home"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `edl` in this process; its code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Yield a cluster without EdlJobs and without metrics, which a kubeconfig names."""
    found = ApiServer()
    found.unknown = {"edljobs", "podmetrics"}
    named = [("clusters", "cluster", {"server": found.address}), ("users", "user", {"token": "t"})]
    named += [("contexts", "context", {"cluster": "c", "user": "c", "namespace": "lab"})]
    config: dict[str, Any] = {k: [{"name": "c", part: about}] for k, part, about in named}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({**config, "current-context": "c"}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr("edl.k8s.outside.job.PATIENCE_S", 0.5)
    yield found
    found.close()


@pytest.fixture
def running() -> Iterator[Callable[[str], FakeMaster]]:
    """Yield a function that makes a job of that name that runs, by a fake master in here."""
    ends: list[Callable[[], None]] = []

    def start(name: str) -> FakeMaster:
        folder, lock = paths.claim(name)
        master = FakeMaster({**STATUS, "job_name": name})

        def register(server: Any) -> None:
            master_pb2_grpc.add_MasterServicer_to_server(master, server)

        server = rpc.Server(register, token="secret", threads=4)
        (folder / "token").write_text("secret")
        (folder / "settings.json").write_text(JobSettings(job_name=name).to_json())
        values = {"address": server.address, "pid": os.getpid()}
        (folder / "master.json").write_text(json.dumps(values))
        ends.extend([server.stop, lambda: os.close(lock)])
        return master

    yield start
    for end in ends:
        end()


@pytest.fixture
def ended() -> Callable[..., LocalJob]:
    """Return a function that makes a job that is over: with a result, or (None) dead."""

    def make(name: str, result: dict[str, Any] | None) -> LocalJob:
        folder, lock = paths.claim(name)
        os.close(lock)
        if result is not None:
            (folder / "result.json").write_text(json.dumps({**STATUS, "job_name": name, **result}))
        return LocalJob(folder)

    return make


@pytest.fixture
def dead_pid() -> int:
    """Return the number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(300)
    return process.pid


@pytest.fixture
def status() -> dict[str, Any]:
    """Return a status as the master answers it."""
    return STATUS


# -- a cluster


@pytest.fixture
def submitted(run: Run, server: ApiServer) -> Run:
    """Return a function that submits the job demo, with further flags."""

    def call(*flags: str) -> tuple[int, str, str]:
        return run("submit", *FLAGS, *flags)

    return call


@pytest.fixture
def demo(submitted: Run, server: ApiServer, status: dict[str, Any]) -> Run:
    """Submit the job demo, whose master runs and has said its status."""
    submitted("--job_volume=claim_name=c")
    add_pod(server, "master")
    say(server, {**status, "job_name": "demo", "quarantined": []})
    return submitted


@pytest.fixture
def edljobs(server: ApiServer) -> None:
    """Have the cluster know EdlJobs, and run a controller."""
    server.unknown.discard("edljobs")
    renewed = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    server.add("leases", "edl-controller", spec={"holderIdentity": "c-1", "renewTime": renewed})


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Yield a function that does something in a thread, while the main one runs a command."""
    futures: list[Future[None]] = []
    with ThreadPoolExecutor() as pool:
        yield lambda act: futures.append(pool.submit(act))
        for future in futures:
            future.result(300)
