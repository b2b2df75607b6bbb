"""Jobs that come to a cluster: shared out by `edl schedule`, in gangs, and left to themselves.

    python tests/tools/kube.py --nodes 6 --cpu 4          # in another shell: the cluster, 24 cores
    edl kernels --optimizer sgd --dim 1 --dim 16           # as the image of a cluster has them
    python -m benchmarks.scheduled_jobs [--workload eight|two] [--how finish fifo alone] [--kills N]

*eight*: eight jobs come over ten minutes, two each of servers, all-reduce, both, and a script.
*two*: ElasticDL's two jobs (benchmarks/two_jobs.py), the second one DELAY_S after the first. A
record takes RECORD_S of a worker, so that what a job is given is what it is worth; cores are asked
for, not used.

*finish*: each job may have from 1 worker to MOST, as the scheduler's plans say. *fifo*: whole gangs
of GANG workers in the order of their coming, by the same service. *alone*: no scheduler; each asks
for MOST workers and takes what there is room for. With `--kills N` the service is killed so often
with SIGKILL, and started again.

*JCT*: from a job's submission until its EdlJob has ended. *Occupancy*: cores asked for by pods that
run, of all, on average until the last job has ended. Each record's count is exact, or this fails.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from benchmarks import measure
from benchmarks.two_jobs import ROOT, Watch, cores_of
from edl.common import storage
from edl.k8s import names
from edl.k8s.api import Api, Object

RECORD_S = 0.01
BATCH = 64
GANG, MOST = 6, 12
SPAN_S = 600.0  # in which the eight come
DELAY_S = 15.0
DEADLINE_S = 3600.0
WORK = (400, 2000, 800, 3000, 500, 1600, 1000, 2400)  # of the eight: s of one worker
TWO_WORK = 2400  # as ElasticDL's: about 400 s of one job with its 6 workers
MODELS = {"ps": "counting", "allreduce": "tally", "hybrid": "hybrid"}
STRATEGIES = ("ps", "allreduce", "hybrid", "script")


@dataclass(frozen=True)
class Arrival:
    """A job that comes: when, its strategy, its records."""

    at_s: float
    strategy: str
    records: int


def arrivals(workload: str) -> list[Arrival]:
    """Return the jobs of a workload, the same each time."""
    if workload == "two":
        records = round(TWO_WORK / RECORD_S / BATCH) * BATCH
        return [Arrival(i * DELAY_S, "ps", records) for i in range(2)]
    rng = random.Random(8)
    times = sorted([0.0, *(rng.uniform(0, SPAN_S) for _ in WORK[1:])])
    return [
        Arrival(at, STRATEGIES[i % 4], round(work / RECORD_S / BATCH) * BATCH)
        for i, (at, work) in enumerate(zip(times, WORK, strict=True))
    ]


def submit(
    api: Api, job: str, folder: Path, it: Arrival, how: str, size: tuple[float, int]
) -> None:
    """Submit one job as it would be under this way of scheduling.

    `size`: the cores of a worker, and the most of them.
    """
    cores, most = size
    most = GANG if how == "fifo" else most
    common = {
        "job_name": job,
        "namespace": api.namespace,
        "image_name": "edl:test",
        "volume": f"host_path={folder},mount_path={folder}",
        "job_volume": f"host_path={folder / 'volume'},type=DirectoryOrCreate",
        "master_resource_request": "cpu=0.2,memory=512Mi",
        "worker_resource_request": f"cpu={cores:g},memory=512Mi",
    }
    least = GANG if how == "fifo" else 1
    command = [sys.executable, "-m", "edl", "submit"] + ([] if how == "alone" else ["--queue"])
    if it.strategy == "script":
        flags = {**common, "nodes": f"{least}:{most}"}
        script = [ROOT / "benchmarks" / "counted_script.py", "--", folder / job, it.records]
        script += [BATCH, RECORD_S]
    else:
        flags = {**common, "as": "edljob", **_model(job, folder, it), "num_workers": most}
        flags["min_workers"] = least
        script = []
    words = [f"--{name}={value}" for name, value in flags.items()]
    subprocess.run([*command, *words, *map(str, script)], check=True, stdout=subprocess.DEVNULL)


def _model(job: str, folder: Path, it: Arrival) -> dict[str, object]:
    """Return the flags of a job of a definition."""
    data = folder / f"{it.records}.npz"
    if not data.exists():
        np.savez(data, record=np.arange(it.records, dtype=np.int64))
    more = {} if it.strategy == "ps" else {"envs": f"MINIBATCH={BATCH}"}
    sizes = "" if it.strategy == "ps" else f",records={it.records}"
    return {
        **more,
        "strategy": it.strategy,
        "model_zoo": ROOT / "tests" / "zoo",
        "model_def": MODELS[it.strategy],
        "model_params": f"record_s={RECORD_S}{sizes}",
        "training_data": data,
        "minibatch_size": BATCH,
        "num_minibatches_per_task": 4,
        "num_ps": 1,
        "use_async": "true" if it.strategy == "ps" else "false",
        "checkpoint_dir": folder / job,
        "ps_resource_request": "cpu=0.5,memory=512Mi",
    }


def counts_of(folder: Path, it: Arrival) -> np.ndarray:
    """Return how often the job has applied each record, [records]."""
    from tools.servers import dense, table

    if it.strategy == "script":
        return np.load(folder / "counts.npy")
    found = storage.latest(str(folder))
    assert found is not None, folder
    if it.strategy == "ps":
        ids, rows = table(str(found.directory), "counts")
        assert np.array_equal(np.arange(it.records), ids)
        return rows.ravel()
    return dense(str(found.directory), "counts")


class Service:
    """The controller, and the scheduler, as processes here."""

    def __init__(self, api: Api, folder: Path, how: str) -> None:
        """Start what this way of scheduling needs."""
        self._log = (folder / "services.log").open("a")
        self.folder = folder
        allow = {"hostPaths": [f"{folder}*"], "mounts": [f"{folder}*"]}
        where = ["--namespace", api.namespace]
        self._env = {**os.environ, "EDL_ALLOW": yaml.safe_dump(allow), "PYTHONUNBUFFERED": "1"}
        self._all = [self._start("-m", "edl.k8s", *where, "--master_image", "edl:test")]
        self._rule = ["--runtime", "kubernetes", *where, "--objective", how]
        if how != "alone":
            self._schedule()

    def kill(self) -> None:
        """Kill the scheduler with SIGKILL, and start another."""
        self._all[-1].kill()
        self._all.pop().wait()
        self._schedule()

    def close(self) -> None:
        """End them."""
        for process in self._all:
            process.terminate()
            process.wait()
        self._log.close()

    def _schedule(self) -> None:
        self._all.append(self._start("-m", "edl", "schedule", "serve", *self._rule))

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        log = self._log
        return subprocess.Popen(
            [sys.executable, *command], env=self._env, stdout=log, stderr=log, cwd="/"
        )


def play(
    api: Api, how: str, given: list[Arrival], folder: Path, size: tuple[float, int], kills: int
) -> dict:
    """Play a workload once: JCTs, makespan, occupancy. `size`: as of `submit`."""
    folder.mkdir()
    folder.chmod(0o777)
    total, watch, service = cores_of(api), Watch(api), Service(api, folder, how)
    jobs = [f"{how}-{i}-{secrets.token_hex(2)}" for i in range(len(given))]
    began = time.monotonic()
    span = max(it.at_s for it in given) or 1.0
    kill_at = [span * (i + 1) / (kills + 1) for i in range(kills)] if how != "alone" else []
    try:
        for job, it in sorted(zip(jobs, given, strict=True), key=lambda pair: pair[1].at_s):
            while kill_at and kill_at[0] <= it.at_s:
                _sleep_until(began + kill_at.pop(0))
                service.kill()
                print("  the scheduler was killed", file=sys.stderr, flush=True)
            _sleep_until(began + it.at_s)
            submit(api, job, folder, it, how, size)
        ends = {job: _ended(api, job) for job in jobs}
        over = time.monotonic()
        for job, it in zip(jobs, given, strict=True):
            counts = counts_of(folder / job, it)
            assert np.array_equal(np.round(counts, 3), np.ones(it.records)), job
    finally:
        service.close()
        watch.close()
        for job in jobs:
            api.delete(names.KIND, job)
    jcts = [_jct(it) for it in ends.values()]
    _, busy = watch.over("edl", began, over)
    return {
        "jcts": jcts,
        "makespan": over - began,
        "occupancy": busy / total,
        "restarts": sum(it["status"]["restarts"] for it in ends.values()),
        "masters": sum(it["status"]["masters"] for it in ends.values()),
    }


def _ended(api: Api, job: str) -> Object:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        it = api.get(names.KIND, job)
        assert it is not None, job
        phase = (it.get("status") or {}).get("phase")
        assert phase != "Failed", it["status"]
        if phase == "Succeeded":
            return it
        time.sleep(1.0)
    raise TimeoutError(job)


def _jct(it: Object) -> float:
    import datetime

    times = it["metadata"]["creationTimestamp"], it["status"]["completionTime"]
    begun, ended = map(datetime.datetime.fromisoformat, times)
    return (ended - begun).total_seconds()


def _sleep_until(then: float) -> None:
    threading.Event().wait(max(0.0, then - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduled_jobs")
    parser.add_argument("--workload", choices=("eight", "two"), default="eight")
    parser.add_argument("--how", nargs="+", default=["finish", "fifo", "alone"])
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--cores", type=float, help="that a worker asks for")
    parser.add_argument("--most", type=int, default=MOST, help="workers of a job")
    parser.add_argument("--namespace", default="default")
    given = parser.parse_args()
    api = Api.connect(given.namespace)
    cores = given.cores or (2.0 if given.workload == "two" else 1.0)
    jobs = arrivals(given.workload)
    head = "| how | mean JCT, s | longest | makespan, s | occupancy | crashes | masters |"
    print(head, "|---|---|---|---|---|---|---|", sep="\n")
    with tempfile.TemporaryDirectory(dir=os.environ.get("EDL_SHARED", "/var/tmp")) as text:
        Path(text).chmod(0o777)
        for how in given.how:
            found = play(api, how, jobs, Path(text) / how, (cores, given.most), given.kills)
            jcts = found["jcts"]
            print(
                f"| {how} | {np.mean(jcts):.0f} | {max(jcts):.0f} | {found['makespan']:.0f} "
                f"| {found['occupancy']:.3f} | {found['restarts']} | {found['masters']} |",
                flush=True,
            )
            print(f"  {[round(each) for each in jcts]}", file=sys.stderr, flush=True)
    print(f"\n{measure.machine()}")


if __name__ == "__main__":
    main()
