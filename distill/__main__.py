"""`python -m edl.distill --index I --incarnation X --master HOST:PORT`: one teacher of a job.

The job's token comes in EDL_TOKEN, its certificate in EDL_IDENTITY. Exit codes: 0 drained or
declared lost; 1 without a master; 2 the definition is at fault.
"""

from __future__ import annotations

from ..common.process import allow_many_files, end_at_sigterm, end_with

if __name__ == "__main__":
    end_at_sigterm()  # what is imported now takes seconds

import argparse
import logging
import os
import signal
import sys
import threading
from concurrent.futures import wait
from types import FrameType

import torch

from ..common import background, cores, faults, listen, notice, rpc
from ..common import log as logs
from ..common.errors import EdlError, Unreachable, UsageError
from ..common.identity import job_identity
from ..common.settings import JobSettings
from ..kernels.malloc import keep_freed_memory
from ..master.client import MasterClient
from ..model_zoo.spec import load_definition
from ..nn.device import choose_device
from ..proto import master_pb2 as pb
from .metrics import Metrics
from .server import Teacher
from .teaching import Teaching

log = logging.getLogger("edl.distill")

_BEAT_S = 1.0
_DRAIN_S = 2.0  # for those who have asked already


def main() -> int:
    """Run a teacher's process, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m edl.distill", description="One teacher.")
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--incarnation", required=True, help="unique name of this process")
    parser.add_argument("--master", required=True, help="host:port of the master")
    given = parser.parse_args()
    keep_freed_memory()
    allow_many_files()
    logs.configure(role="teacher", index=given.index)
    replica = pb.Replica(role=pb.TEACHER, index=given.index, incarnation=given.incarnation)
    process = _Process(MasterClient(given.master, replica=replica), given.index)
    signal.signal(signal.SIGTERM, process.on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the master drains us
    try:
        return process.run()
    except Unreachable as error:
        log.error("the master did not answer: %s", error)
        return 1
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code


class _Process:
    """One teacher: its health, its metrics, its line to the master."""

    def __init__(self, master: MasterClient, index: int) -> None:
        self._master, self._index = master, index
        self._leaving = threading.Event()
        self._health = rpc.serve_health()
        _, self._metrics_address = listen.serve_metrics()
        self._metrics = Metrics()

    def on_sigterm(self, _signum: int, _frame: FrameType | None) -> None:
        self._leaving.set()

    def run(self) -> int:
        """Serve until told to go; return the exit code."""
        host = listen.own_host()
        teacher = Teacher(identity=job_identity(rpc.job_token()), host=host)
        try:
            address = listen.joined(host, teacher.listening.tcp_port)
            faults.point("teacher.register")
            reply = self._master.register(
                address, self._metrics_address, os.getpid(), listen.own_machine()
            )
            if reply.fenced:
                raise UsageError("the master does not know this teacher: leaving")
            settings = JobSettings.from_json(reply.settings_json)
            logs.configure(settings.log_level, settings.log_format, "teacher", self._index)
            notice.watch(settings.preemption_notice)
            loaded = background.begin("load", lambda: _load(settings, self._index))
            while not loaded.done() and not self._leaving.is_set():
                self._master.heartbeat(state="starting")
                wait([loaded], min(_BEAT_S, settings.lease_s / 5))
            if self._leaving.is_set():
                return 0
            teaching, about = loaded.result(0)
            teacher.begin(
                teaching,
                about,
                max_batch_size=settings.teacher_batch_size,
                max_queue_delay_s=settings.teacher_queue_delay_s,
            )
            log.info("serving address=%s", address)
            return self._serve(teacher, settings)
        finally:
            teacher.close()
            self._master.close()

    def _serve(self, teacher: Teacher, settings: JobSettings) -> int:
        """Beat once a second, or more often where the lease is short, until told to go."""
        interval_s = min(_BEAT_S, settings.lease_s / 5)
        rows, busy_s = 0, 0.0
        while not self._leaving.is_set():
            now_rows, now_busy_s = teacher.rows, teacher.busy_s
            told = now_rows - rows, now_busy_s - busy_s
            rows, busy_s = now_rows, now_busy_s
            self._metrics.beat(told[0], teacher.queued)
            scalars = {
                "rows": float(rows),
                "rows_per_s": told[0] / interval_s,
                "queued": float(teacher.queued),
                "busy_share": min(1.0, told[1] / interval_s),
            }
            reply = self._master.heartbeat(scalars=scalars, state="teaching")
            if reply.fenced:
                log.warning("declared lost: leaving, another one takes this place")
                return 0  # a pause of the machine is no failure
            if reply.drain:
                break
            self._leaving.wait(interval_s)
        self._master.heartbeat(state="draining", patience_s=_DRAIN_S)
        teacher.drain(_DRAIN_S)
        return 0


def _load(settings: JobSettings, index: int) -> tuple[Teaching, dict[str, str]]:
    """Return the definition's teacher, and what is told of it."""
    definition = load_definition(
        settings.model_def,
        settings.model_zoo,
        settings.model_params,
        optimizer_params=settings.optimizer_params,
        teacher_params=settings.teacher_params,
    )
    in_pod = settings.runtime == "kubernetes"
    mine = cores.share(settings.most_teachers, own_quota=in_pod)
    torch.set_num_threads(settings.worker_threads or mine)
    torch.manual_seed(settings.seed)
    teaching = Teaching(
        definition, choose_device(settings.device, index), replies=settings.teacher_replies
    )
    return teaching, {"fingerprint": teaching.fingerprint, "definition": definition.name}


if __name__ == "__main__":
    end_with(main)
