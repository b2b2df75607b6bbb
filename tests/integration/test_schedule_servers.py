"""The scheduler gives a real job, which its servers bind, more of them; counts are exact."""

import contextlib
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time

import pytest
from tools.jobs import ZOO, Job, write_records
from tools.stage import counts, each, edl, kill_jobs
from tools.waiting import until

from edl.common import faults
from edl.common.settings import JobSettings
from edl.jobs.local import LocalJob

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


@pytest.mark.slow
def test_a_job_whose_servers_bind_it_is_given_more_of_them(tmp_path):
    """Broken once: LocalPlace changes the workers alone."""
    home, socket, kept = tmp_path / "home", tmp_path / "stations", tmp_path / "checkpoints"
    data = write_records(tmp_path / "records.npz", RECORDS)
    job = LocalJob(home / "jobs" / "ps")
    edl(
        *(home, "train", "--queue", "--job_name", "ps", "--training_data", data),
        *("--model_zoo", ZOO, "--model_def", "counting", "--model_params", "delay_s=0.02"),
        *("--minibatch_size", 4, "--num_minibatches_per_task", 16, "--use_async"),
        *("--num_workers", 4, "--num_ps", 1, "--max_ps", 2, "--checkpoint_dir", kept),
    )
    about = {"EDL_HOME": str(home), "OMP_NUM_THREADS": "1", faults.VARIABLE: f"{socket},ps.push"}
    flags = ("schedule", "serve", "--workers", "6", "--every", "0.5")
    with Stations(socket, lambda: JobSettings.of_job(job.folder).num_ps) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        serves = subprocess.Popen(
            (sys.executable, "-m", "edl", *flags),
            env={**os.environ, "PYTHONUNBUFFERED": "1", **about},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: time.sleep(0.2) or len(job.status().get("servers") or []) == 2)
            serving.servers = lambda: 1000  # the rest, as fast as it can
            until(lambda: time.sleep(0.2) or job.result())
            serves.send_signal(signal.SIGINT)
            told = serves.communicate(timeout=300)[0]
        finally:
            serves.kill()
            serves.wait()
            kill_jobs(home)
            serving.shutdown()

    result = job.result()
    assert "1 -> 2 servers" in told
    assert (0, RECORDS) == (result["exit_code"], result["records_done"])
    assert counts(Job(tmp_path / "unused", checkpoint_dir=str(kept))) == each(RECORDS)
