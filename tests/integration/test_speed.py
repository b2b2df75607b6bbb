"""The knobs of speed leave the books exact.

How pulls and pushes travel, how many are under way, how gradients are coded, whether the model is
compiled. Real processes, and the real tensor plane.

A test's docstring says what was broken once to see it fail.
"""

import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tools.jobs import Job, send, write_records
from tools.servers import dense, table
from tools.stage import Stage, counts, each
from tools.turns import in_turn, some
from zoo import plain

from edl.common import rpc
from edl.nn import torch_optimizer
from edl.proto import ps_pb2 as pb
from edl.proto import ps_pb2_grpc


def carriers(server, token):
    """Return how clients are connected to the tensor plane of a server of a job's status."""
    channel = rpc.Channel(server["address"], token)
    plane = rpc.call(ps_pb2_grpc.ParameterServerStub(channel).Plane, pb.PlaneRequest(), 10.0)
    channel.close()
    listed = psutil.Process(server["pid"]).net_connections("all")
    found = set()
    if [c.laddr for c in listed].count(f"@{plane.unix_name}") > 1:  # one of them listens
        found.add("unix")
    if any(
        c.status == psutil.CONN_ESTABLISHED and c.laddr.port == plane.tcp_port
        for c in listed
        if c.status != psutil.CONN_NONE
    ):
        found.add("tcp")
    if "memfd:edl-region" in Path(f"/proc/{server['pid']}/maps").read_text():
        found.add("shm")
    return found


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        ("auto", {"unix", "shm"}),
        *some([pytest.param("unix", {"unix"}), pytest.param("tcp", {"tcp"})]),
        ("grpc", set()),
    ],
)
def test_gradients_travel_as_the_user_wants_and_count_exactly(transport, expected, tmp_path):
    """Broken once: (1) the worker leaves `transport` out; (2) its pushes leave a row out."""
    records, minibatch = 12_288, 4096  # large enough for shared memory
    stage = Stage(tmp_path, records - 1)
    job = Job(
        tmp_path / "job",
        model_def="staged",
        training_data=str(write_records(tmp_path / "records.npz", records)),
        minibatch_size=minibatch,
        num_workers=1,
        shuffle=False,
        transport=transport,
        envs=stage.envs,
    )
    with job:
        status = job.watch(lambda s: stage.reached(records - 1))
        found = carriers(status["servers"][0], job.token)
        stage.open(records - 1)
        assert 0 == job.wait(), job.logs()

    assert expected == found
    assert each(records) == counts(job)


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_gradients_in_fewer_bytes_count_exactly_where_their_codes_are_exact(wire, tmp_path):
    """Broken once: (1) the worker leaves `wire` out; (2) quantize.decode doubles the scales."""
    records, epochs = 320, 2
    job = Job(
        tmp_path / "job",
        model_def="coded",
        training_data=str(write_records(tmp_path / "records.npz", records)),
        minibatch_size=16,
        num_epochs=epochs,
        num_workers=1,
        gradient_wire=wire,
    )
    with job:
        assert 0 == job.wait(), job.logs()

    ids, rows = table(job.checkpoint(), "counts")
    assert list(range(records)) == ids.tolist()
    np.testing.assert_array_equal(rows[:, 0], 127 * epochs)
    assert 127 * epochs * records == dense(job.checkpoint(), "total")
    inexact = rows[:, 1] / epochs
    assert (inexact != 1 + 2.0**-13).all()
    np.testing.assert_allclose(inexact, 1, atol=2.0**-9)


def test_two_pushes_under_way_and_a_pull_ahead_count_exactly_under_kills(tmp_path):
    """Broken once: Ledger.fence forgets what is applied."""
    rng = random.Random(3)
    records = 1600
    job = Job(
        tmp_path / "job",
        model_def="counting",
        model_params={"delay_s": 0.015},
        training_data=str(write_records(tmp_path / "records.npz", records)),
        minibatch_size=16,
        num_workers=2,
        num_ps=2,
        use_async=True,
        pull_ahead=1,
        push_window=2,
        lease_s=2.0,
    )
    killed = []

    def busy(status):
        return [w["pid"] for w in status["workers"] if w["task"] and w["pid"] not in killed]

    with job:
        for moment in (0.1, 0.5):
            status = job.watch(
                lambda s, moment=moment: s["records_done"] >= moment * records and busy(s)
            )
            killed.append(rng.choice(busy(status)))
            send(killed[-1], signal.SIGKILL)
        assert 0 == job.wait(), job.logs()

    assert 2 == job.result()["restarts"]["preemptions"]
    assert each(records) == counts(job)


CXX = os.environ.get("CXX", "g++")


@pytest.mark.skipif(shutil.which(CXX) is None, reason=f"torch.compile needs a C++ compiler ({CXX})")
@in_turn(2)
def test_a_compiled_definition_learns_what_plain_torch_learns(tmp_path):
    """Broken once: (1) the worker leaves `compile` out; (2) its dense gradients are doubled."""
    records, steps, seed = 64, 12, 3
    job = Job(
        tmp_path / "job",
        model_def="plain",
        training_data=str(write_records(tmp_path / "records.npz", records)),
        minibatch_size=records,
        num_epochs=steps,
        num_workers=1,
        seed=seed,
        compile=True,
        envs={"TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )
    with job:
        assert 0 == job.wait(), job.logs()

    torch.manual_seed(seed)
    model = plain.model()
    x, y = plain.feed({"record": np.arange(records)}, "train")
    optimizer = torch_optimizer(plain.optimizer(), model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        plain.loss(model(x), y).backward()
        optimizer.step()
    assert steps == dense(job.checkpoint(), "compiled")
    for name, expected in model.named_parameters():
        found = dense(job.checkpoint(), name)
        np.testing.assert_allclose(
            found, expected.detach().reshape(-1), rtol=1e-4, atol=1e-5, err_msg=name
        )
