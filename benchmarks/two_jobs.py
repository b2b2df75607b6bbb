"""ElasticDL's experiment: two jobs on a cluster too small for both, elastic and gang-scheduled.

    python tests/tools/kube.py --nodes 3 --cpu 8          # in another shell: the cluster, 24 cores
    python -m benchmarks.two_jobs [--rounds N]      # docs/two-jobs.svg and a table

Each job asks for 13 of 24 cores: a master, a server, 6 workers of 2. The second one comes DELAY_S
after the first. *Gang*: it begins when the first has ended, since there is no room for all of it
before. *Elastic*: as many of its workers as there is room for begin at once, the others when the
first has ended. *Filling*: each may have 11 workers, of which the first 6 have the higher priority,
so that a job takes what nobody else wants and gives it back. The cores are asked for, not used: a
minibatch of the counting model sleeps, so a job's speed is that of its workers.

*Makespan*: from the first submission until both are done. *Occupancy*: cores asked for by pods that
run, of all, on average over it. *Goodput*: unique records a second over it; each record's count is
exact or this fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import measure, page
from benchmarks.faults.ours import counts_of
from edl.k8s import names, observe
from edl.k8s.api import Api, Object
from edl.k8s.reflector import Change, Reflector

RECORDS, EPOCHS, BATCH = 8192, 4, 16
PAUSE_S = 0.2  # of a minibatch
DELAY_S = 15.0
DEADLINE_S = 600.0
KINDS: dict[str, dict[str, object]] = {
    "gang": {},
    "elastic": {},
    "filling": {"num_workers": 11, "worker_pod_priority": "0.5", "ps_pod_priority": "high"},
}
ROOT = Path(__file__).resolve().parents[1]


def ended(status: dict) -> bool:
    return status["exit_code"] is not None


class Watch:
    """A watch on the cores that running pods ask for, and on the jobs' last words.

    By the label app.kubernetes.io/name, as they change.
    """

    def __init__(self, api: Api, *more: str) -> None:
        self._changed = threading.Condition()
        self._cores: dict[str, dict[str, float]] = {"edl": {}, **{name: {} for name in more}}
        self.series = {name: [(time.monotonic(), 0.0)] for name in self._cores}
        self._statuses: dict[str, dict] = {}
        ours = "app.kubernetes.io/name"
        self._reflectors = [
            Reflector(api, "Pod", f"{ours} in ({','.join(self._cores)})", self._pod),
            Reflector(api, "ConfigMap", f"{ours}=edl", self._status),
        ]
        for each in self._reflectors:
            each.start()

    def close(self) -> None:
        for each in self._reflectors:
            each.close()

    def wait(self, job: str, until: Callable[[dict], object] = ended) -> dict:
        """Return the first status that is so; from now on."""

        def look() -> bool:
            return job in self._statuses and bool(until(self._statuses[job]))

        with self._changed:
            if not self._changed.wait_for(look, DEADLINE_S):
                raise TimeoutError(f"{job}, for {DEADLINE_S:g} s: {self._statuses.get(job)}")
            return self._statuses[job]

    def wait_for_cores(self, name: str, cores: float) -> None:
        """Wait until so many are asked for by pods of this name that run."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.series[name][-1][1] == cores, DEADLINE_S):
                raise TimeoutError(f"{name}: {self.series[name][-1][1]} cores, not {cores}")

    def over(
        self, name: str, began: float, ended: float
    ) -> tuple[list[tuple[float, float]], float]:
        """Return the cores over time from `began` on, and how many on average."""
        with self._changed:
            told = [(t, cores) for t, cores in self.series[name] if t < ended]
        first = [(began, cores) for t, cores in told if t <= began][-1:]
        series = [*first, *((t, cores) for t, cores in told if t > began)]
        series.append((ended, series[-1][1]))
        area = sum(cores * (later - t) for (t, cores), (later, _) in itertools.pairwise(series))
        return [(t - began, cores) for t, cores in series], area / (ended - began)

    def _pod(self, change: Change) -> None:
        about = change.after["metadata"]
        name = about["labels"]["app.kubernetes.io/name"]
        runs = not change.gone and isinstance(observe.observe(change.after), observe.Running)
        with self._changed:
            self._cores[name][about["uid"]] = _cores(change.after) if runs else 0.0
            self.series[name].append((time.monotonic(), sum(self._cores[name].values())))
            self._changed.notify_all()

    def _status(self, change: Change) -> None:
        text = (change.after.get("data") or {}).get("status.json")
        if text:
            job = change.after["metadata"]["labels"][names.JOB_LABEL]
            with self._changed:
                self._statuses[job] = json.loads(text)
                self._changed.notify_all()


def cores_of(api: Api) -> float:
    """Return the cores of the cluster."""
    nodes, _ = api.list("Node")
    return sum(float(names.quantity(n["status"]["allocatable"]["cpu"], "cpu")) for n in nodes)


def _cores(pod: Object) -> float:
    containers = pod["spec"]["containers"]
    return sum(float(names.quantity(c["resources"]["requests"]["cpu"], "cpu")) for c in containers)


def experiment(api: Api, total: float, kind: str, folder: Path) -> dict:
    """Measure one makespan: seconds, occupancy, records/s, and cores over time."""
    watch = Watch(api)
    jobs = [f"job-{secrets.token_hex(3)}" for _ in range(2)]
    began = time.monotonic()
    try:
        submit(api, jobs[0], folder, **KINDS[kind])
        if kind == "gang":
            watch.wait(jobs[0])
        else:
            threading.Event().wait(DELAY_S)  # the second user comes
        submit(api, jobs[1], folder, **KINDS[kind])
        for job in jobs:
            status = watch.wait(job)
            assert status["state"] == "done", status
            assert set(counts_of(folder / job, RECORDS).tolist()) == {float(EPOCHS)}, job
        ended = time.monotonic()
    finally:
        watch.close()
        for job in jobs:
            api.delete("Job", names.object_name(job))
    series, cores = watch.over("edl", began, ended)
    return {
        "s": ended - began,
        "occupancy": cores / total,
        "goodput": 2 * RECORDS * EPOCHS / (ended - began),
        "series": series,
    }


def submit(api: Api, job: str, folder: Path, **more: object) -> None:
    data = folder / "records.npz"
    if not data.exists():
        np.savez(data, record=np.arange(RECORDS, dtype=np.int64))
    flags = {
        "job_name": job,
        "namespace": api.namespace,
        "image_name": "edl:test",
        "model_zoo": ROOT / "tests" / "zoo",
        "model_def": "counting",
        "model_params": f"delay_s={PAUSE_S}",
        "training_data": data,
        "minibatch_size": BATCH,
        "num_minibatches_per_task": 4,
        "num_epochs": EPOCHS,
        "num_workers": 6,
        "num_ps": 1,
        "use_async": "true",
        "checkpoint_dir": folder / job,
        "volume": f"host_path={folder},mount_path={folder}",
        "job_volume": f"host_path={folder / 'volume'},type=DirectoryOrCreate",
        "master_resource_request": "cpu=0.5,memory=512Mi",
        "ps_resource_request": "cpu=0.5,memory=512Mi",
        "worker_resource_request": "cpu=2,memory=512Mi",
        **more,
    }
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, "-m", "edl", "train", "--runtime=kubernetes", "--detach"]
    subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_jobs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--namespace", default="default")
    given = parser.parse_args()
    api = Api.connect(given.namespace)
    total = cores_of(api)
    found: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(dir=os.environ.get("EDL_SHARED", "/var/tmp")) as text:
        folder = Path(text)
        folder.chmod(0o777)
        for number in range(given.rounds):
            turn = number % len(KINDS)
            for name in (*list(KINDS)[turn:], *list(KINDS)[:turn]):
                found[name].append(experiment(api, total, name, folder))
                made = found[name][-1]
                print(f"  {number} {name}: {made['s']:.1f} s", file=sys.stderr, flush=True)
    print(report(found, total))
    lines = {name: each[-1]["series"] for name, each in found.items()}
    panel = page.Panel("cores asked for by running pods", "seconds", lines, steps=True)
    (page.DOCS / "two-jobs.svg").write_text(page.picture([panel]))


def report(found: dict[str, list[dict]], total: float) -> str:
    rows = [
        f"| {name} | {measure.spread([e['s'] for e in each])} "
        f"| {measure.spread([e['s'] / g['s'] for e, g in zip(each, found['gang'], strict=True)])} "
        f"| {measure.spread([e['occupancy'] for e in each])} "
        f"| {measure.spread([e['goodput'] for e in each])} |"
        for name, each in found.items()
    ]
    head = "| scheduling | makespan, s | of gang | occupancy | goodput, unique records/s |"
    return "\n".join(
        [f"{total:g} cores.", "", head, "|---|---|---|---|---|", *rows, "", measure.machine()]
    )


if __name__ == "__main__":
    main()
