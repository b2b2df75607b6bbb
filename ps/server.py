"""The life of one parameter-server process.

serve -> register -> (restore) -> beat once a second until told to go. While it has no store yet,
calls are answered UNAVAILABLE. It beats at once when shard 0's version crosses a multiple that the
master waits for (checkpoint, evaluation), so that the master need not poll.

Ends with 0 when drained (by the master or SIGTERM), with 1 when the master declared it lost, or did
not answer for `master_timeout_s`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Any

import numpy as np
from prometheus_client import start_http_server

from ..common import paths, rpc, storage
from ..common.errors import Unreachable
from ..common.identity import Identity
from ..common.settings import JobSettings
from ..nn.model_spec import ModelSpec, TableSpec
from ..nn.optimizers import SGD
from ..proto import master_pb2 as pb
from ..proto import master_pb2_grpc, ps_pb2_grpc
from . import snapshot
from .aggregation import Policy, Update
from .parameters import Parameters
from .plane import Plane
from .servicer import ParameterServerServicer
from .slots import SlotMap
from .store import Store

log = logging.getLogger(__name__)

_BEAT_S = 1.0
_CALL_S = 5.0
_NO_IDS, _NO_ROWS = np.zeros(0, np.int64), np.zeros((0, 1), np.float32)
_THREADS = 256  # a frozen shard holds one for each push; they are made as needed


class Listeners:
    """Where a shard listens: its gRPC service at `address`, and its tensor plane."""

    def __init__(self, servicer: ParameterServerServicer, identity: Identity) -> None:
        self._plane = Plane(
            lambda: servicer.store, servicer.metrics, index=servicer.index, identity=identity
        )
        servicer.listening = self._plane.listening
        self._rpc = rpc.Server(
            lambda server: ps_pb2_grpc.add_ParameterServerServicer_to_server(servicer, server),
            token=identity.token,
            threads=_THREADS,
        )
        self.address = self._rpc.address

    def close(self, grace_s: float = 0.5) -> None:
        self._rpc.stop(grace_s)
        self._plane.close()


class Server:
    """One shard as a process: its listeners, its metrics, its line to the master."""

    def __init__(self, *, index: int, incarnation: str, master: str, identity: Identity) -> None:
        self.index = index
        self._replica = pb.Replica(role=pb.SERVER, index=index, incarnation=incarnation)
        self._wake = threading.Event()
        self._draining = False
        self._servicer = ParameterServerServicer(index)
        threading.Thread(target=_load_kernels, name="kernels", daemon=True).start()
        self._listeners = Listeners(self._servicer, identity)
        self.address = self._listeners.address
        self._http, _ = start_http_server(
            0, addr="127.0.0.1", registry=self._servicer.metrics.registry
        )
        self._token = identity.token
        self._channel = rpc.Channel(master, self._token)
        self._master_address = master
        self._master = master_pb2_grpc.MasterStub(self._channel)

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """End with 0 soon. Safe to call from a signal handler."""
        self._draining = True
        self._wake.set()

    def close(self) -> None:
        self._listeners.close()
        self._http.shutdown()
        self._channel.close()

    def _follow_master(self) -> None:
        """Go where the master serves now: one that was started again may serve elsewhere."""
        folder = os.environ.get("EDL_JOB_DIR")
        found = paths.master_address(folder) if folder else None
        if found is not None and found != self._master_address:
            log.info("master -> moved from=%s to=%s", self._master_address, found)
            self._channel.close()
            self._master_address = found
            self._channel = rpc.Channel(found, self._token)
            self._master = master_pb2_grpc.MasterStub(self._channel)

    def register(self, patience_s: float) -> JobSettings | None:
        """Say hello; the job's settings. None: declared lost already, or drained meanwhile.

        Raises Unreachable after `patience_s` without an answer.
        """
        request = pb.RegisterRequest(
            replica=self._replica,
            address=self.address,
            metrics_address=f"127.0.0.1:{self._http.server_port}",
            pid=os.getpid(),
            host=socket.gethostname(),
        )
        deadline = time.monotonic() + patience_s
        while not self._draining:
            try:
                reply = rpc.call(self._master.Register, request, _CALL_S)
                return None if reply.fenced else JobSettings.from_json(reply.settings_json)
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
                self._wake.wait(0.2)
                self._follow_master()
        return None

    def open_store(self, settings: JobSettings, restore: str) -> Store:
        """The shard, empty or from a checkpoint. `restore`: one to continue, with its ledger."""
        store = Store(
            index=self.index,
            slot_map=SlotMap(settings.num_ps),
            policy=Policy(
                use_async=settings.use_async,
                grads_to_wait=settings.grads_to_wait,
                staleness=settings.resolved_staleness,
                lr_staleness_modulation=settings.lr_staleness_modulation,
            ),
            on_version=self._watch(settings),
        )
        if path := restore or settings.checkpoint_dir_for_init:
            manifest = storage.load(path)
            snapshot.restore(store, manifest, new_job=not restore)
            log.info("restored checkpoint=%s version=%d", manifest.directory, store.version)
        self._servicer.attach(store)
        return store

    def beat_until_end(self, store: Store, patience_s: float) -> int:
        """Heartbeats until the end; the exit code."""
        heard = time.monotonic()
        while not self._draining:
            self._wake.wait(_BEAT_S)
            self._wake.clear()
            if self.draining:
                break
            self._servicer.metrics.observe(store)
            try:
                reply = self._beat(store)
            except Unreachable as error:
                if time.monotonic() - heard > patience_s:
                    log.error(
                        "the master at %s has not answered for %.0f s (%s): giving up",
                        self._master_address,
                        patience_s,
                        error,
                    )
                    return 1
                self._follow_master()
                continue
            heard = time.monotonic()
            if reply.fenced:
                log.error("the master has declared this server lost: ending")
                return 1
            if reply.drain:
                self._draining = True
            if reply.low_water:
                store.retire(reply.low_water)
        log.info("drained version=%d", store.version)
        return 0

    def _beat(self, store: Store) -> Any:
        request = pb.HeartbeatRequest(
            replica=self._replica,
            version=store.version,
            state="serving" if store.initialized else "waiting",
        )
        return rpc.call(self._master.Heartbeat, request, _CALL_S)

    def _watch(self, settings: JobSettings) -> Any:
        """What the store calls at each version."""
        marks = [n for n in (settings.checkpoint_steps, settings.evaluation_steps) if n > 0]
        if settings.max_steps > 0:
            marks.append(settings.max_steps)

        def passed(version: int) -> None:
            if self.index == 0 and any(version % mark == 0 for mark in marks):
                self._wake.set()

        return passed


def _load_kernels() -> None:
    """Half a second that no first request shall wait for (a dozen the first time of all)."""
    spec = ModelSpec((), (TableSpec("any", 1),), SGD())
    Parameters(spec, SlotMap(1), 0).check(Update({}, {"any": (_NO_IDS, _NO_ROWS)}), ids_too=True)
