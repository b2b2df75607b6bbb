"""The coordinator as a process: its folder, its port, its end.

Started by a supervisor (durable/supervisor.py), and again by it when it is killed. DIR/master.json
says where it serves, DIR/result.json is its last status, as of any job.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import grpc

from ..common import log as logs
from ..common import paths, rpc, storage
from ..common.clock import MonotonicClock
from ..common.errors import EdlError
from ..durable.journal import Journal
from ..proto import master_pb2_grpc, rendezvous_pb2_grpc
from .coordinator import FORMAT, Coordinator
from .servicer import LookServicer, RendezvousServicer
from .settings import LaunchSettings

log = logging.getLogger("edl.launch")

JOURNAL = "rendezvous.sqlite"
_RPC_THREADS = 512  # a held call has one, a node two calls; they are made as needed
_GOODBYE_S = 20.0  # beyond what the scripts have to end


def serve(job_dir: Path, stop: str = "") -> int:
    """Coordinate the job to its end, and return its exit code.

    `stop`: why it is to be stopped at once.
    """
    logs.configure(role="coordinator")
    try:
        return _serve(job_dir, stop)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code


def _serve(job_dir: Path, stop: str) -> int:
    settings = LaunchSettings.of_job(job_dir)
    journal = Journal(job_dir / JOURNAL, FORMAT)
    coordinator = Coordinator(settings, journal, MonotonicClock())
    server = _listen(coordinator, settings.port, job_dir)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: _stop_soon(coordinator, signal.Signals(number)))
    about = {"address": server.address, "pid": os.getpid()}
    storage.write_file(job_dir / "master.json", json.dumps(about).encode())
    log.info("serving address=%s", server.address)
    if stop:
        coordinator.stop(stop)
    try:
        code = coordinator.run(settings.stop_timeout_s + _GOODBYE_S)
        result = json.dumps(coordinator.final_status())
        storage.write_file(job_dir / "result.json", result.encode())
    finally:
        server.stop()
        journal.close()
    return code


def _stop_soon(coordinator: Coordinator, number: signal.Signals) -> None:
    # Not from the handler itself: it may have interrupted the holder of the lock.
    threading.Thread(target=coordinator.stop, args=(number.name,), daemon=True).start()


def _listen(coordinator: Coordinator, port: int, job_dir: Path) -> rpc.Server:
    """Serve where the one before did: nodes on other machines know no other place."""

    def register(server: grpc.Server) -> None:
        rendezvous_pb2_grpc.add_RendezvousServicer_to_server(
            RendezvousServicer(coordinator), server
        )
        master_pb2_grpc.add_MasterServicer_to_server(LookServicer(coordinator), server)

    def listen(port: int) -> rpc.Server:
        return rpc.Server(register, token=rpc.job_token(), port=port, threads=_RPC_THREADS)

    before = paths.master_address(job_dir)
    if before is None:
        return listen(port)
    try:
        return listen(int(before.rpartition(":")[2]))
    except EdlError:  # another process has it by now: local nodes look where
        return listen(0)
