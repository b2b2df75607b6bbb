"""Nodes that come and go under jobs: a burst, its end, a notice, all spot nodes taken at once.

    python tests/tools/kube.py --nodes 1 --cpu 4      # in another shell: the node that stays
    K8S_ATTACH=1 python -m benchmarks.fake_cloud [--freeze S] [--mixed]

Masters and servers are on the node that stays, workers, of a core each, on spot nodes of 4 that a
fake cloud makes for placeholders, BOOT_S after they wait (tests/tools/cloud.py). `edl schedule
serve --nodes_by pods` asks for them, with the rights that the manifests give it. A record takes
RECORD_S of a worker, so that a job's speed is that of its workers.

One small job runs all the time. *Burst*: two larger ones come beside it, and end. *Notice*: a node
is told that it will be taken; how long until its workers have handed back. *Taken*: all nodes are
gone at once; how long until records are done again. All counts are exact, or this fails.

`--mixed` is another play: of four workers two are on the node that stays (`spec.worker.low`), and
all spot nodes are taken at once; the longest time without a record more is told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from tools.cloud import Cloud
from tools.kube import Cluster
from tools.kube_api import Object
from tools.kube_namespace import Namespace, fresh
from tools.kube_objects import IMAGE, phase
from tools.schedulers import install, running
from tools.servers import assert_exact

from edl.common import storage

RECORD_S = 0.02
BATCH = 16
BOOT_S = 15.0
MOST = 4
POOL, SPOT = ("edl.dev/pool", "cloud"), ("karpenter.sh/capacity-type", "spot")
SHORT = 24_000  # records: 8 minutes of one worker
DEADLINE_S = 1800.0


def job(name: str, folder: Path, records: int, most: int) -> Object:
    """Return an EdlJob that waits for the scheduler, its workers bound to the pool."""
    data = folder / f"{records}.npz"
    if not data.exists():
        np.savez(data, record=np.arange(records, dtype=np.int64))
    cores = {role: {"requests": {"cpu": cpu, "memory": "512Mi"}} for role, cpu in CORES.items()}
    stays = {"nodeSelector": {"type": "prockubelet"}}
    spec = {
        "image": IMAGE,
        "suspend": True,
        "scheduling": {},
        "settings": {
            "model_zoo": str(ROOT / "tests" / "zoo"),
            "model_def": "counting",
            "model_params": {"record_s": RECORD_S},
            "training_data": str(data),
            "minibatch_size": BATCH,
            "num_minibatches_per_task": 4,
            "use_async": True,
            "lease_s": 5,
            "checkpoint_dir": str(folder / name),
        },
        "jobVolume": {"hostPath": {"path": str(folder / "volume"), "type": "DirectoryOrCreate"}},
        "volumes": [{"name": "data", "hostPath": {"path": str(folder)}}],
        "volumeMounts": [{"name": "data", "mountPath": str(folder)}],
        "master": {**stays, "resources": cores["master"]},
        "ps": {**stays, "replicas": 1, "resources": cores["ps"]},
        "worker": {
            "replicas": 1,
            "maxReplicas": most,
            "nodeSelector": dict([POOL]),
            "resources": cores["worker"],
        },
    }
    about = {"name": name}
    return {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": about, "spec": spec}


CORES = {"master": "200m", "ps": "500m", "worker": "1"}


class Played:
    """A play of jobs, and what was seen of it, by the clock."""

    def __init__(self, here: Namespace, cloud: Cloud, began: float) -> None:
        """Begin to look once a second."""
        self._here, self._cloud, self.began = here, cloud, began
        self._over = threading.Event()
        self.rows: list[tuple[float, int, int]] = []  # s, nodes, workers that run
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._over.set()
        self._thread.join()

    def tell(self, text: str) -> None:
        """Print what happens, with the time."""
        print(f"{time.monotonic() - self.began:6.0f} s  {text}", flush=True)

    def _look(self) -> None:
        last = (-1, -1)
        while not self._over.wait(1.0):
            with contextlib.suppress(Exception):  # it looks again
                pods = self._here.objects("pods", "edl.dev/role=worker").values()
                runs = sum(phase(pod) == "Running" for pod in pods)
                now = (len(self._cloud.nodes()), runs)
                if now != last:
                    self.rows.append((time.monotonic() - self.began, *now))
                    self.tell(f"{now[0]} nodes, {now[1]} workers")
                    last = now


def wait_for(until: Callable[[], object], what: str, every_s: float = 0.5) -> float:
    """Return how long it took until this was so, s."""
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < DEADLINE_S, what
        time.sleep(every_s)
    return time.monotonic() - began


def done(here: Namespace, name: str) -> int:
    """Return the records that a job has done."""
    found = here.objects("configmaps", f"edl.dev/job-name={name}").get(f"edl-{name}-status")
    return int(json.loads(found["data"]["status.json"])["records_done"]) if found else 0


def workers_on(here: Namespace, node: str) -> list[str]:
    """Return the workers on a node whose processes run."""
    pods = here.objects("pods", "edl.dev/role=worker")
    return [n for n, pod in pods.items() if pod["spec"].get("nodeName") == node and _lives(pod)]


def _lives(pod: Object) -> bool:
    states = [each["state"] for each in pod.get("status", {}).get("containerStatuses") or []]
    return any("running" in state for state in states)


def play(cluster: Cluster, here: Namespace, folder: Path, freeze_s: float) -> None:
    """Play all of it, and print what happens."""
    long = round((freeze_s + 700) * 3 / RECORD_S / 1000) * 1000  # as long as all of it, with three
    jobs = {"small": (long, 3), "burst-1": (SHORT, 6), "burst-2": (SHORT, 6)}
    flags = (
        *("--nodes_by", "pods", "--pool", "=".join(POOL), "--spot", "=".join(SPOT)),
        *("--node", "cpu=4,memory=8Gi", "--max_nodes", str(MOST), "--freeze", f"{freeze_s:g}"),
        *("--prices", str(folder / "prices.yaml"), "--every", "2"),
    )
    (folder / "prices.yaml").write_text("pool: {on-demand: 1.0, spot: 0.3}\n")
    cloud = Cloud(cluster, here.name, boot_s=BOOT_S, idle_s=20.0, notice_s=10.0, most=MOST)
    played = Played(here, cloud, time.monotonic())
    try:
        with running(here, folder, *flags) as log:
            here.apply(job("small", folder, *jobs["small"]))
            wait_for(lambda: done(here, "small") > 500, "the small job trains")
            played.tell("two larger jobs come")
            here.apply(job("burst-1", folder, *jobs["burst-1"]))
            here.apply(job("burst-2", folder, *jobs["burst-2"]))
            ends = ("burst-1", "burst-2")
            wait_for(lambda: all(_ended(here, name) for name in ends), "the burst ends")
            peak = max(nodes for _, nodes, _ in played.rows)
            played.tell(f"the burst is over; most nodes at once: {peak}")
            wait_for(lambda: len(cloud.nodes()) < peak, "nodes are given back")
            wait_for(lambda: done(here, "small") and _settled(cloud), "it settles")
            _notice(here, cloud, played)
            _taken(here, cloud, played)
            wait_for(lambda: _ended(here, "small"), "the small job ends")
            print(log.read_text())
        for name, (records, _) in jobs.items():
            found = storage.latest(str(folder / name))
            assert found is not None, name
            assert_exact(found.directory, records, 1)
        played.tell("the counts of all jobs are exact")
    finally:
        played.close()
        cloud.close()
    print(played.rows)


def play_mixed(cluster: Cluster, here: Namespace, folder: Path) -> None:
    """Take all spot nodes under a job that has workers elsewhere, too."""
    key, value = POOL
    cluster.kubectl("label", "nodes", "--selector=type=prockubelet", "--overwrite", f"{key}=stays")
    records = 30_000
    it = job("mixed", folder, records, 4)
    low = {"nodeSelector": {key: value}}
    places = {"highFraction": 0.5, "nodeSelector": {key: "stays"}, "low": low, "replicas": 4}
    it["spec"]["worker"] |= {**places, "resources": {"requests": {"cpu": "500m"}}}
    it["spec"] |= {"suspend": False}
    del it["spec"]["scheduling"]
    cloud = Cloud(cluster, here.name, idle_s=1e6)
    played = Played(here, cloud, time.monotonic())
    try:
        with running(here, folder, "--every", "60"):
            there = [cloud.add(dict([POOL])) for _ in range(2)]
            here.apply(it)
            wait_for(lambda: sum(len(workers_on(here, node)) for node in there) == 2, "two there")
            wait_for(lambda: done(here, "mixed") > 3000, "the job trains")
            cloud.take(there)
            played.tell(f"all {len(there)} spot nodes are taken")
            longest = _longest_pause(here, "mixed", until=played.began + DEADLINE_S)
            it = here.objects("edljobs")["mixed"]
        found = storage.latest(str(folder / "mixed"))
        assert found is not None
        assert_exact(found.directory, records, 1)
        masters = it["status"]["masters"]
        played.tell(f"no record more for {longest:.1f} s at most; masters {masters}; counts exact")
    finally:
        played.close()
        cloud.close()
        cluster.kubectl("label", "nodes", "--selector=type=prockubelet", f"{key}-")


def _settled(cloud: Cloud) -> bool:
    return not cloud.is_going


def _notice(here: Namespace, cloud: Cloud, played: Played) -> None:
    (name,) = [node for node in cloud.nodes() if workers_on(here, node)][:1]
    before = workers_on(here, name)
    cloud.notice(name)
    took = wait_for(lambda: not workers_on(here, name), "the workers leave", 0.02)
    played.tell(f"a notice: {len(before)} workers had left {name} after {took:.2f} s")
    wait_for(lambda: name not in cloud.nodes(), "the node goes")


def _taken(here: Namespace, cloud: Cloud, played: Played) -> None:
    wait_for(lambda: any(workers_on(here, node) for node in cloud.nodes()), "workers come back")
    time.sleep(10)
    there = list(cloud.nodes())
    cloud.take(there)
    played.tell(f"all {len(there)} nodes are taken")
    longest = _longest_pause(here, "small", until=time.monotonic() + 120.0)
    played.tell(f"no record more for {longest:.0f} s at most")


def _longest_pause(here: Namespace, name: str, until: float) -> float:
    """Return the longest time without a record more, until then or the job's end, s."""
    last, risen, longest = done(here, name), time.monotonic(), 0.0
    while time.monotonic() < until and not _ended(here, name):
        if (now := done(here, name)) > last:
            longest = max(longest, time.monotonic() - risen)
            last, risen = now, time.monotonic()
        time.sleep(0.2)
    return longest


def _ended(here: Namespace, name: str) -> bool:
    it = here.objects("edljobs")[name]
    assert it.get("status", {}).get("phase") != "Failed", it["status"]
    return phase(it) == "Succeeded"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fake_cloud")
    parser.add_argument("--mixed", action="store_true", help="some workers on the node that stays")
    parser.add_argument("--freeze", type=float, default=600.0, help="s without a change back")
    given = parser.parse_args()
    where = os.environ.get("EDL_SHARED", "/var/tmp")
    folder = Path(tempfile.mkdtemp(dir=where, prefix="edl-fake-cloud-"))
    folder.chmod(0o777)
    with Cluster() as cluster, fresh(cluster, "privileged") as here:
        install(here)
        cluster.establish("edljobs.edl.dev")
        if given.mixed:
            play_mixed(cluster, here, folder)
        else:
            play(cluster, here, folder, given.freeze)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
