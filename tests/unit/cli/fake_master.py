"""A master's process for tests: `python fake_master.py SCRIPT --job-dir DIR`.

SCRIPT: done (an end at once), stop (serves until it is asked to stop), deaf (ignores that it is),
die (serves, then exits without a result), usage (an error before it serves), silent (ends before
it serves, without a word), alone (as stop, in a process of its own that keeps the lock).
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from edl.common import rpc
from edl.proto import master_pb2 as pb
from edl.proto import master_pb2_grpc

script, _, folder = sys.argv[1:]
if script == "deaf":  # with a worker in a session of its own, which notes its number
    note = "import os, sys, time; print('worker', os.getpid(), flush=True); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", note], start_new_session=True)
job = Path(folder)
over = threading.Event()
status = {
    "job_name": job.name,
    "state": "running",
    "command": "train",
    "exit_code": None,
    "records_done": 50,
    "records_total": 100,
    "started_s_ago": 2.0,
    "restarts": {"worker": 1},
    "metrics": {"auc": 0.75},
    "checkpoint": "/checkpoints/version-000000000007",
    "events": [{"t": 0.5, "text": "worker-0 is here"}],
}


class Master(master_pb2_grpc.MasterServicer):
    def Status(self, request, context):
        if script == "done" and request.known_revision:
            over.set()
        return pb.StatusReply(revision=request.known_revision + 1, status_json=json.dumps(status))

    def Stop(self, request, context):
        print(f"asked to stop: {request.reason}", flush=True)
        if script in ("stop", "alone"):
            over.set()
        return pb.StopReply()


if script == "alone" and "again" not in os.environ:
    print("supervisor", os.getpid(), flush=True)
    env = {**os.environ, "again": ""}
    subprocess.run([sys.executable, *sys.argv], env=env, close_fds=False, check=False)
if script == "usage":
    print("edl: error: the definition lacks loss", file=sys.stderr)
    sys.exit(2)
if script == "silent":
    print("half a word")
    sys.exit(7)
server = rpc.Server(
    lambda server: master_pb2_grpc.add_MasterServicer_to_server(Master(), server),
    token=os.environ["EDL_TOKEN"],
)
partial = job / ".master.json"
partial.write_text(json.dumps({"address": server.address, "pid": os.getpid()}))
partial.rename(job / "master.json")
if script == "die":
    os._exit(9)
over.wait(300)
code = 3 if script == "done" else 0
ended = {
    **status,
    "state": "done",
    "exit_code": code,
    "records_done": 100,
    "events": status["events"] + [{"t": 2.0, "text": "all is done"}],
}
if script == "done":
    ended["quarantined"] = [
        {"source": "train.csv", "records": [3], "error": "ValueError: x", "task": 1}
    ]
(job / "result.json").write_text(json.dumps(ended))
server.stop(0.1)
sys.exit(code)
