"""The scheduler gives a real job, which its servers bind, more of them; counts are exact."""

import contextlib
import json
import socketserver
import threading
import time

import pytest
from tools.jobs import ZOO, Job, write_records
from tools.stage import counts, each, kill_jobs
from tools.waiting import until

from edl.common import faults, paths
from edl.common.settings import JobSettings
from edl.jobs import queue
from edl.scheduler.local import LocalPlace
from edl.scheduler.policy import make_policy
from edl.scheduler.service import Service, claim

RECORDS = 6000
SERVE_S = 0.1  # of a push, shared out among the servers


class Stations(socketserver.ThreadingUnixStreamServer):
    """Where each push to a server waits until those before it were served."""

    daemon_threads = True

    def __init__(self, path, servers):
        super().__init__(str(path), Call)
        self.servers = servers
        self.locks = [threading.Lock() for _ in range(4)]


class Call(socketserver.StreamRequestHandler):
    def handle(self):
        index = json.loads(self.rfile.readline())["index"]
        with self.server.locks[index]:
            time.sleep(SERVE_S / self.server.servers())
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(b'{"do": "continue"}\n')


@pytest.fixture
def stations(tmp_path, monkeypatch):
    """Serve the pushes of the job "ps", by how many servers its settings say that it has."""
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = paths.job_folder("ps")
    with Stations(tmp_path / "stations", lambda: JobSettings.of_job(folder).num_ps) as serving:
        monkeypatch.setenv(faults.VARIABLE, f"{tmp_path / 'stations'},ps.push")
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving
        kill_jobs(tmp_path / "home")
        serving.shutdown()


def test_a_job_whose_servers_bind_it_is_given_more_of_them(stations, tmp_path):
    """Broken once: LocalPlace changes the workers alone."""
    settings = JobSettings(
        job_name="ps",
        model_zoo=str(ZOO),
        model_def="counting",
        model_params={"delay_s": 0.02},
        training_data=str(write_records(tmp_path / "records.npz", RECORDS)),
        minibatch_size=4,
        num_minibatches_per_task=16,
        num_workers=4,
        num_ps=1,
        use_async=True,
        checkpoint_dir=str(tmp_path / "checkpoints"),
    )
    told = []
    claim()
    service = Service(LocalPlace(6), make_policy("finish"), time.time, told.append)
    job = queue.put(settings, int(time.time()), most_servers=2)

    def has_others():
        service.round()
        time.sleep(0.5)
        return len(job.status().get("servers") or []) == 2

    until(has_others)
    stations.servers = lambda: 1000  # the rest, as fast as it can
    until(job.result)

    result = job.result()
    assert any("1 -> 2 servers" in line for line in told), told
    assert (0, RECORDS) == (result["exit_code"], result["records_done"])
    assert counts(Job(tmp_path / "unused", checkpoint_dir=settings.checkpoint_dir)) == each(RECORDS)
