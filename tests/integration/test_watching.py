"""A person or a probe can watch a running job: status, metrics, health, TensorBoard."""

import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tools.jobs import Job, write_records
from tools.turns import in_turn

from edl.common import report

tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def fetch(address):
    return urllib.request.urlopen(f"http://{address}/metrics", timeout=300).read().decode()


def healthy(address):
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=300)
    return reply.status == health_pb2.HealthCheckResponse.SERVING


@in_turn(2)
def test_a_running_job_is_visible_to_people_probes_and_tensorboard(tmp_path):
    data = str(write_records(tmp_path / "records.npz", 2000))
    with Job(
        tmp_path / "job",
        model_def="counting",
        model_params={"delay_s": 0.03},
        training_data=data,
        validation_data=data,
        minibatch_size=16,
        num_epochs=2,
        num_ps=2,
        use_async=True,
        output=str(tmp_path / "out"),
    ) as job:
        status = job.watch(
            lambda s: (
                s["records_done"] > 400 and any(w["state"] == "training" for w in s["workers"])
            )
        )
        later = job.watch(lambda s: s["records_done"] > status["records_done"])
        replicas = [*status["workers"], *status["servers"]]
        master = job.about()
        pages = {r["metrics_address"]: fetch(r["metrics_address"]) for r in replicas}
        master_page = fetch(master["metrics_address"])
        health = [healthy(r["address"]) for r in replicas] + [healthy(master["address"])]
        assert job.wait() == 0, job.logs()

    assert [True] * 5 == health
    worker, server = (pages[status[kind][0]["metrics_address"]] for kind in ("workers", "servers"))
    assert "edl_records_processed_total" in worker
    assert "edl_train_loss" in worker
    assert "edl_ps_embedding_rows" in server
    assert "edl_tasks{" in master_page

    events = tensorboard.EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"loss/train", "throughput/records_per_second", "cluster/workers"} <= tags
    assert any(tag.startswith("eval/") for tag in tags)
    assert {"queue/todo", "queue/leased"} <= tags

    result = job.result()
    assert {"records": 1.0} == result["metrics"]
    assert result["records_done"] == 4000
    for told in (status, later, result):  # the report to schedulers
        found = report.read(told["report"])
        assert found.records_left == 4000 - told["records_done"]
        assert (found.records_total, found.epochs, found.model) == (4000, 2, None)
    assert (False, True) == (report.read(status["report"]).nearly_done, found.nearly_done)
    # none where one worker was at the end before the other began, on a busy machine
    told = {(s.servers, s.workers, s.nodes, s.minibatch) for s in found.samples}
    assert told <= {(2, 2, 1, 16)}
    assert sum(s.records_per_s * s.seconds for s in found.samples) <= 4000
