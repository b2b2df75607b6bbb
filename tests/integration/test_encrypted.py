"""Whole jobs whose processes are not at 127.0.0.1: encrypted, with the books they always have."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tools import own
from tools.jobs import Job, write_records
from tools.stage import Stage, counts, each
from tools.turns import some

from edl.common import rpc
from edl.common.errors import Unreachable
from edl.common.identity import Identity

RECORDS = 256


def health(address):
    """Return the health that a stranger is told, who has neither token nor certificate."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return rpc.call(stub.Check, health_pb2.HealthCheckRequest(), 5.0).status


@pytest.mark.parametrize(
    ("host", "transport"),
    some([pytest.param("127.0.0.2", "auto"), pytest.param("own", "tcp")]),
)
def test_a_job_with_a_certificate_applies_each_record_once(tmp_path, monkeypatch, host, transport):
    """Broken once: rpc.Server listens plainly; a worker tells of 127.0.0.1; replicas inherit the
    master's port of health."""
    host, port = own.address() if host == "own" else host, own.free_port()
    monkeypatch.setenv("EDL_HOST", host)
    monkeypatch.setenv("EDL_HEALTH_PORT", str(port))
    stage = Stage(tmp_path, 20)
    job = Job(
        tmp_path / "job",
        Identity.create("a token"),
        model_def="staged",
        training_data=str(write_records(tmp_path / "records.npz", RECORDS)),
        minibatch_size=16,
        num_minibatches_per_task=4,
        num_workers=2,
        num_ps=2,
        shuffle=False,
        use_async=True,
        transport=transport,
        envs=stage.envs,
    )
    with job:
        status = job.watch(
            lambda s: stage.reached(20) and all(r["address"] for r in s["workers"] + s["servers"])
        )
        processes = [job.about(), *status["workers"], *status["servers"]]
        for process in processes:
            with pytest.raises(Unreachable, match="EDL_IDENTITY"):
                health(process["address"])
        assert health_pb2.HealthCheckResponse.SERVING == health(f"{host}:{port}")
        stage.open(20)
        assert 0 == job.wait(), job.logs()

    told = [p[name] for p in processes for name in ("address", "metrics_address")]
    assert 10 * [host] == [address.rpartition(":")[0] for address in told]
    assert each(RECORDS) == counts(job)


def test_a_job_without_a_certificate_does_not_begin_off_loopback(tmp_path, monkeypatch):
    """Broken once: serve.run does not look before it describes (the records are counted first)."""
    monkeypatch.setenv("EDL_HOST", own.address())
    data = str(write_records(tmp_path / "records.npz", RECORDS))
    with Job(tmp_path / "job", model_def="counting", training_data=data) as job:
        assert 1 == job.wait()

    assert job.logs().splitlines()[1].startswith(f"edl: error: {own.address()} is not on loopback")
    assert not (job.folder / "describe.json").exists()
