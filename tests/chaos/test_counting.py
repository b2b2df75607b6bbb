"""Storms of kills, stops, drains and rescaling over real processes, checked record by record.

The counting model (tests/zoo/counting.py): row r ends as the number of times that record r was
applied. It must equal the number of epochs for every record, whatever happened to the workers.
A storm acts when the job has reached drawn fractions of its records. The seed draws all of it, also
how pulls and pushes travel, how many pushes are under way at once and whether pulls run ahead.
In a hybrid job servers are killed as well.
"""

import random
import signal

import numpy as np
import pytest
from tools.jobs import Job, send, write_records
from tools.servers import dense, table
from tools.turns import some

RECORDS, EPOCHS = 4000, 2
CI_SEEDS = range(2)
ALL_SEEDS = range(50)


def storm(seed):
    """Return [(fraction, action, argument)] in order."""
    rng = random.Random(seed)
    moments = sorted(rng.uniform(0.02, 0.95) for _ in range(rng.randint(4, 8)))
    actions = [rng.choice(["kill", "kill", "stop", "drain", "scale"]) for _ in moments]
    return [
        (moment, action, rng.randint(1, 4) if action == "scale" else rng.random())
        for moment, action in zip(moments, actions, strict=True)
    ]


def run_storm(folder, seed, strategy="ps", **more):
    sync = seed % 2 == 1
    rng = random.Random(-seed)
    settings = {"use_async": True}
    if sync:
        settings = {"grads_to_wait": rng.choice([1, 2, 3])}
        settings["envs"] = {"GRADS_TO_WAIT": str(settings["grads_to_wait"])}
    on_the_way = random.Random(f"on the way {seed}")
    settings["transport"] = on_the_way.choice(["auto", "tcp"])
    settings["pull_ahead"], settings["push_window"] = on_the_way.choice([(0, 1), (1, 1), (1, 2)])
    settings |= {"model_def": "counting", "model_params": {"delay_s": 0.004}}
    if strategy == "allreduce":
        settings = {
            "strategy": strategy,
            "model_def": "tally",
            "model_params": {"records": RECORDS, "delay_s": 0.008},
            "envs": {"MINIBATCH": "16"},
            "local_batch_size": on_the_way.choice([0, 0, 3]),
            "snapshot_s": 0.5,
        }
    if strategy == "hybrid":
        settings = {
            "strategy": strategy,
            "model_def": "hybrid",
            "model_params": {"records": RECORDS, "delay_s": 0.008},
            "envs": {"MINIBATCH": "16"},
            "transport": settings["transport"],
            "local_batch_size": on_the_way.choice([0, 0, 3]),
            "staleness": on_the_way.choice([0, 1, 3]),
            "snapshot_s": 0.5,
        }
    job = Job(
        folder,
        training_data=str(write_records(folder.parent / "records.npz", RECORDS)),
        minibatch_size=16,
        num_minibatches_per_task=8,
        num_epochs=EPOCHS,
        num_workers=rng.randint(1, 4),
        num_ps=rng.randint(1, 3),
        lease_s=1.0,
        seed=seed,
        **settings,
        **more,
    )
    done = []
    with job:
        stopped = []
        for moment, action, argument in storm(seed):
            status = job.watch(
                lambda s, moment=moment: (
                    s["records_done"] >= moment * s["records_total"] > 0
                    and any(w["pid"] for w in s["workers"])
                    or s["state"] not in ("starting", "running")
                )
            )
            if status["state"] != "running":
                break
            for pid in stopped:
                send(pid, signal.SIGCONT)  # it sleeps no longer: a zombie, if its lease is over
            stopped = []
            pids = [w["pid"] for w in status["workers"] if w["pid"]]
            if action == "scale":
                client = job.client()
                client.scale(argument)
                client.close()
            else:
                pid = pids[int(argument * len(pids))]
                number = {
                    "kill": signal.SIGKILL,
                    "stop": signal.SIGSTOP,
                    "drain": signal.SIGTERM,
                }[action]
                send(pid, number)
                if action == "stop":
                    stopped.append(pid)
            done.append(action)
            servers = [s["pid"] for s in status["servers"] if s["pid"]]
            if strategy == "hybrid" and servers and on_the_way.random() < 0.4:
                send(on_the_way.choice(servers), signal.SIGKILL)
                done.append("server")
        for pid in stopped:
            send(pid, signal.SIGCONT)
        code = job.wait()
    return job, code, done


def check_group(job, code):
    """Check that a job of all-reduce, or hybrid, has applied each record once an epoch."""
    assert code == 0, job.logs()
    counts = np.round(dense(job.checkpoint(), "counts"), 3)
    wrong = {i: float(count) for i, count in enumerate(counts) if count != EPOCHS}
    assert wrong == {}
    if job.settings.strategy == "hybrid":
        ids, rows = table(job.checkpoint(), "rows")
        assert list(ids) == list(range(RECORDS))
        wrong = {
            int(i): float(c)
            for i, c in zip(ids, np.round(rows[:, 0], 3), strict=True)
            if c != EPOCHS
        }
        assert wrong == {}


def check_books(job, code):
    assert code == 0, job.logs()
    ids, counts = table(job.checkpoint(), "counts")
    assert list(ids) == list(range(RECORDS))
    wrong = {int(i): float(c) for i, c in zip(ids, counts[:, 0], strict=True) if c != EPOCHS}
    assert wrong == {}
    assert dense(job.checkpoint(), "total") == np.float32(RECORDS * EPOCHS)


@pytest.mark.parametrize("seed", some(CI_SEEDS))
def test_each_record_is_applied_once_an_epoch_through_a_storm(seed, tmp_path):
    job, code, _ = run_storm(tmp_path / f"storm-{seed}", seed)
    check_books(job, code)


@pytest.mark.parametrize("strategy", some(["hybrid", "allreduce"]))
def test_each_record_is_applied_once_an_epoch_by_a_group(strategy, tmp_path):
    job, code, _ = run_storm(tmp_path / "storm", 0, strategy)
    check_group(job, code)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("strategy", "more"),
    [("allreduce", {}), ("allreduce", {"fully_shard": True}), ("hybrid", {})],
)
def test_fifty_storms_over_a_group(strategy, more, tmp_path):
    for seed in ALL_SEEDS:
        job, code, done = run_storm(tmp_path / f"storm-{seed}", seed, strategy, **more)
        check_group(job, code)
        restarts = job.result()["restarts"]
        print(f"seed={seed} actions={done} restarts={restarts}", flush=True)
        assert restarts["worker"] == 0, "a member crashed"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_storms(tmp_path):
    happened = []
    for seed in ALL_SEEDS:
        job, code, done = run_storm(tmp_path / f"storm-{seed}", seed)
        check_books(job, code)
        happened += done
        status = job.result()
        print(f"seed={seed} actions={done} restarts={status['restarts']}", flush=True)
    assert {"kill", "stop", "drain", "scale"} <= set(happened)
