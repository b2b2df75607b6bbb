"""The coordinator as a process: its folder, its port, its end.

Started by a supervisor (durable/supervisor.py), and again by it when it is killed. DIR/master.json
says where it serves, DIR/result.json is its last status, as of any job.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Protocol

import grpc

from ..common import finite, paths, rpc, storage
from ..common import log as logs
from ..common.clock import MonotonicClock
from ..common.errors import EdlError, JobError
from ..common.files import no_room
from ..common.identity import job_id
from ..common.locations import is_local
from ..durable.journal import Journal
from ..jobs.claims import Claims
from ..proto import master_pb2_grpc, rendezvous_pb2_grpc
from ..runtime.base import OnReport, Runtime
from ..runtime.local import LocalRuntime
from .coordinator import FORMAT, Coordinator
from .fleet import Crew, Fleet
from .servicer import LookServicer, RendezvousServicer
from .settings import LaunchSettings

log = logging.getLogger("edl.launch")

JOURNAL = "rendezvous.sqlite"
BOARD = "EDL_TENSORBOARD_LOGDIR"  # where adaptive/env.py tells scripts to write events
_RPC_THREADS = 512  # a held call has one, a node two calls; they are made as needed
_GOODBYE_S = 20.0  # beyond what the scripts have to end


class Home(Protocol):
    """The place where a coordinator lives: it tells what its user wants, and runs the agents."""

    @property
    def crew(self) -> Crew: ...

    def start_runtime(self, report: OnReport, address: str) -> Runtime:
        """Return what runs the agents, which find the coordinator at `address`."""
        ...

    def serve(self, coordinator: Coordinator) -> None:
        """Hand on, from now on, what the user wants of the job, and show its status."""
        ...


class LocalHome:
    """A home on this machine: signals stop the job, whose agents are processes here."""

    def __init__(self, job_dir: Path, settings: LaunchSettings) -> None:
        self._job_dir = job_dir
        told = ("--nproc", str(settings.nproc_per_node), "--logs", str(job_dir / "logs"))
        self.crew = Crew(
            role="node",
            env={BOARD: os.environ.get(BOARD) or str(job_dir / "tensorboard")},
            arguments=(*told, "--", *settings.python),
            grace_s=settings.stop_timeout_s + _GOODBYE_S,
            in_pods=False,
        )

    def start_runtime(self, report: OnReport, address: str) -> Runtime:
        command = {self.crew.role: (sys.executable, "-m", "edl.launch")}
        return LocalRuntime(self._job_dir, master_address=address, report=report, command=command)

    def serve(self, coordinator: Coordinator) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: _stop_soon(coordinator, signal.Signals(number)))


def serve(job_dir: Path, stop: str = "") -> int:
    """Coordinate a job of this machine to its end, and return its exit code.

    `stop`: why it is to be stopped at once.
    """
    logs.configure(role="coordinator")
    try:
        settings = LaunchSettings.of_job(job_dir)
        return run(settings, job_dir, LocalHome(job_dir, settings), settings.local_nodes, stop)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if not (why := no_room(error, job_dir)):
            raise
        with contextlib.suppress(OSError):  # the log may lie on that disk too
            print(f"edl: error: {why}", file=sys.stderr)
        return JobError.exit_code


def run(settings: LaunchSettings, job_dir: Path, home: Home, number: int, stop: str = "") -> int:
    """Coordinate a job to its end, and return its exit code. `number`: of agents at first."""
    name, token = settings.job_name, rpc.job_token()
    owner = f"{name}-{job_id(token)}"
    claims = Claims.of_job(_places(settings, job_dir), name, job_dir, owner, token)
    try:
        claims.take(job_dir, has_begun=(job_dir / JOURNAL).exists())
        return _run(settings, job_dir, home, number, claims, stop)
    finally:
        claims.close()


def _places(settings: LaunchSettings, job_dir: Path) -> dict[str, str]:
    """Return the folder of the states, where that is not in the job's own."""
    folder = settings.checkpoint_dir
    own = is_local(folder) and Path(folder).is_relative_to(job_dir.absolute())
    return {} if own else {"checkpoint_dir": folder}


def _run(
    settings: LaunchSettings, job_dir: Path, home: Home, number: int, claims: Claims, stop: str
) -> int:
    journal = Journal(job_dir / JOURNAL, FORMAT)
    coordinator = Coordinator(settings, journal, MonotonicClock())
    server = _listen(coordinator, settings.port, job_dir)
    about = {"address": server.address, "pid": os.getpid()}
    storage.write_file(job_dir / "master.json", json.dumps(about).encode())
    log.info("serving address=%s", server.address)
    make_runtime = functools.partial(_runtime, home, server.address)
    coordinator.keep(Fleet(home.crew, make_runtime), number)
    home.serve(coordinator)
    claims.hear(lambda name, why: coordinator.stop(f"--{name}: {why}"))
    if stop:
        coordinator.stop(stop)
    try:
        code = coordinator.run(settings.stop_timeout_s + _GOODBYE_S)
        result = finite.dumps(coordinator.final_status())
        storage.write_file(job_dir / "result.json", result.encode())
    finally:
        server.stop()
        journal.close()
    return code


def _runtime(home: Home, address: str, report: OnReport) -> Runtime:
    return home.start_runtime(report, address)


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
