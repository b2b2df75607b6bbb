"""The life of one parameter-server process.

serve -> register -> (restore) -> beat once a second until told to go. While it has no store yet,
calls are answered UNAVAILABLE. It beats at once when shard 0's version crosses a multiple that the
master waits for (checkpoint, evaluation), so that the master need not poll, and when more of its
ledger has become safe. Notes and coverage go with each beat until one is answered.

A master that comes back may have another address: `master.json` in the job's folder says which.

Ends with 0 when drained (by the master or SIGTERM), with 1 when the master declared it lost, or did
not answer for `master_timeout_s`, or when a step failed half way or memory for a checkpoint.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np

from ..common import faults, listen, rpc, storage
from ..common.errors import CheckpointError, Unreachable
from ..common.identity import Identity, job_id
from ..common.reflection import reflect
from ..common.settings import JobSettings
from ..master.client import MasterClient
from ..nn.model_spec import ModelSpec, TableSpec
from ..nn.optimizers import SGD
from ..proto import master_pb2 as pb
from ..proto import ps_pb2, ps_pb2_grpc
from .books.aggregation import Policy, Update
from .books.parameters import Parameters
from .books.slots import SlotMap
from .books.store import Store
from .books.trace import ShardTrace
from .servicer import ParameterServerServicer
from .snapshots import cut as snapshot
from .snapshots.chain import Folder
from .snapshots.changes import Changes
from .snapshots.recorder import Coverage, Recorder, Snapshots
from .snapshots.recovery import Restored, restore
from .wire.plane import Plane

log = logging.getLogger(__name__)

_BEAT_S = 1.0
_JOIN_S = 5.0
_NO_IDS, _NO_ROWS = np.zeros(0, np.int64), np.zeros((0, 1), np.float32)
_THREADS = 256  # a frozen shard holds one for each push; they are made as needed


class Listeners:
    """The listeners of a shard: its gRPC service at `address`, and its tensor plane."""

    def __init__(self, servicer: ParameterServerServicer, identity: Identity) -> None:
        self._plane = Plane(
            lambda: servicer.store,
            servicer.metrics.calls,
            index=servicer.index,
            identity=identity,
            host=listen.own_host(),
        )
        servicer.listening = self._plane.listening

        def register(server: grpc.Server) -> None:
            ps_pb2_grpc.add_ParameterServerServicer_to_server(servicer, server)
            reflect(server, ps_pb2)

        self._rpc = rpc.Server(
            register,
            token=identity.token,
            identity=identity,
            threads=_THREADS,
            receive_nbytes=rpc.LARGEST_NBYTES,
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
        self._trace: ShardTrace | None = None
        self._health = rpc.serve_health()
        self._servicer = ParameterServerServicer(index)
        threading.Thread(target=_load_kernels, name="kernels", daemon=True).start()
        self._listeners = Listeners(self._servicer, identity)
        self.address = self._listeners.address
        self._http, self._metrics_address = listen.serve_metrics(self._servicer.metrics.registry)
        self._job_dir = os.environ.get("EDL_JOB_DIR", "")
        self._master = MasterClient(master, token=identity.token, identity=identity)
        self._token = identity.token
        self._snapshots: Snapshots | None = None
        self._telling = threading.Lock()
        self._notes: list[str] = []  # no answered beat has had these
        self._coverage: Coverage | None = None

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """End with 0 soon. Safe to call from a signal handler."""
        self._draining = True
        self._wake.set()

    def close(self) -> None:
        if self._snapshots is not None:
            self._snapshots.stop()
        self._listeners.close()
        self._http.shutdown()
        self._http.server_close()
        self._master.close()

    def register(self, patience_s: float) -> JobSettings | None:
        """Say hello, and return the job's settings.

        None: declared lost already, or drained meanwhile.

        Raises Unreachable after `patience_s` without an answer.
        """
        request = pb.RegisterRequest(
            replica=self._replica,
            address=self.address,
            metrics_address=self._metrics_address,
            pid=os.getpid(),
            host=listen.own_machine(),
        )
        deadline = time.monotonic() + patience_s
        faults.point("ps.register")
        while not self._draining:
            try:
                reply = self._master.call_once("Register", request)
                self._job_dir = self._job_dir or reply.job_dir
                return None if reply.fenced else JobSettings.from_json(reply.settings_json)
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
                self._wake.wait(0.2)
        return None

    def open_store(
        self, settings: JobSettings, checkpoint: str = "", recover: tuple[str, int] = ("", 0)
    ) -> Store:
        """Return the shard, empty, from a snapshot or from a checkpoint.

        `recover`: the incarnation to begin where it ended, and the snapshot that it must be at
        least. Where it has none and need not: `checkpoint`, to continue, with its ledger.
        """
        self._open_trace(settings)
        with self._starting():
            store, folder = self._new_store(settings), self._folder(settings)
            restored = None
            if recover[1] and folder is None:
                raise CheckpointError(
                    f"server {self.index} cannot be recovered: where its snapshots are is not "
                    "known. Set --snapshot_dir."
                )
            if recover[0] and folder is not None:
                of, number = recover
                restored = restore(store, folder, self._replica.incarnation, of=of, at_least=number)
                self._tell_of(restored)
                if restored.link is None:
                    store = self._new_store(settings)
            path = checkpoint or settings.checkpoint_dir_for_init
            if path and not (restored and restored.link):
                manifest = storage.load(path)
                dense = settings.strategy != "hybrid"
                snapshot.restore(store, manifest, new_job=not checkpoint, dense=dense)
                log.info("restored checkpoint=%s version=%d", manifest.place, store.version)
        if self._trace is not None:
            if restored and (link := restored.link):
                from_ = restored.parent.incarnation
                about = {"parent": from_, "version": link.version, "pushes": link.pushes}
            else:
                about = {"checkpoint": path, "new_job": not checkpoint}
            self._trace.begin(address=self.address, **about)
        changes = Changes(store)
        self._servicer.attach(store, changes)
        if folder is not None:
            recorder = Recorder(store, folder, self._replica.incarnation, restored, changes)
            metrics, interval_s = self._servicer.metrics, settings.snapshot_s
            self._snapshots = Snapshots(recorder, interval_s, self._tell, metrics.snapshot_taken)
            metrics.snapshots_begin(interval_s)
            self._snapshots.start()
        return store

    def _open_trace(self, settings: JobSettings) -> None:
        if settings.deterministic and settings.command == "train":
            folder = Path(self._job_dir) / "trace"
            self._trace = ShardTrace(folder, self.index, self._replica.incarnation)

    def _folder(self, settings: JobSettings) -> Folder | None:
        """Return the folder for snapshots.

        None: no snapshots are wanted, or there is no place for them.
        """
        where = settings.snapshot_dir or (self._job_dir and f"{self._job_dir}/snapshots")
        if settings.snapshot_s <= 0 or not where:
            return None
        return Folder(where, job_id(self._token), self.index)

    def _tell_of(self, restored: Restored) -> None:
        for note in restored.notes:
            self._tell(f"a snapshot is skipped: {note}", None)
        link, of = restored.link, restored.parent.incarnation
        if link is None:
            self._tell(f"no snapshot of {of} is there: beginning as at the start of the job", None)
            return
        log.info("restored snapshot=%d of=%s version=%d", link.number, of, link.version)
        self._tell(f"restored from snapshot {link.number} of {of}, version {link.version}", None)

    def _tell(self, note: str, coverage: Coverage | None) -> None:
        """Tell the master a note and the coverage with the next beat, which is now."""
        with self._telling:
            if note:
                self._notes.append(note)
            self._coverage = coverage or self._coverage
        self._wake.set()

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Beat while the shard is read: that may take longer than a silent server is waited for."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(_BEAT_S):
                try:
                    self._draining = self._beat(None).drain or self._draining
                except Unreachable:
                    continue

        beats = threading.Thread(target=beat, name="starting", daemon=True)
        beats.start()
        try:
            yield
        finally:
            over.set()
            beats.join(_JOIN_S)

    def _new_store(self, settings: JobSettings) -> Store:
        store = Store(
            index=self.index,
            slot_map=SlotMap(settings.num_ps),
            policy=Policy.of(settings),
            on_version=self._watch(settings),
            trace=self._trace,
        )
        store.leased.expect(self._wake.set)
        return store

    def beat_until_end(self, store: Store, patience_s: float) -> int:
        """Beat until the end; return the exit code."""
        heard = time.monotonic()
        while not self._draining:
            self._wake.wait(_BEAT_S)
            self._wake.clear()
            if self.draining:
                break
            if store.torn:
                log.error("a step failed half way (see above): ending, to be replaced")
                return 1
            if self._servicer.exhausted:
                log.error(
                    "out of memory as it wrote a checkpoint: ending, to be replaced. Where that "
                    "comes again, give servers more memory or use more of them (--num_ps)"
                )
                return 1
            self._servicer.metrics.observe(store)
            asks = store.leased.asks
            try:
                reply = self._beat(store)
            except Unreachable as error:
                if time.monotonic() - heard > patience_s:
                    log.error(
                        "the master at %s has not answered for %.0f s (%s): giving up",
                        self._master.address,
                        patience_s,
                        error,
                    )
                    return 1
                continue
            heard = time.monotonic()
            if reply.fenced:
                log.error("the master has declared this server lost: ending")
                return 1
            if reply.drain:
                self._draining = True
            store.leased.tell(reply.tasks_below if reply.HasField("tasks_below") else None, asks)
            if reply.low_water:
                store.masters.retire(reply.low_water)
        self._hand_over(store)
        log.info("drained version=%d", store.version)
        return 0

    def _hand_over(self, store: Store) -> None:
        """Write a last snapshot where the job goes on, for a replacement to begin there.

        Only what comes meanwhile is then computed again.
        """
        if self._snapshots is None:
            return
        try:
            if self._beat(store).drain:
                return  # the job is over
        except Unreachable:
            log.info("the master does not answer: whether the job is over is not known")
        self._snapshots.stop()
        self._snapshots.once()

    def _beat(self, store: Store | None) -> pb.HeartbeatReply:
        state = "starting" if store is None else "serving" if store.initialized else "waiting"
        with self._telling:
            notes, coverage = list(self._notes), self._coverage
        request = pb.HeartbeatRequest(
            replica=self._replica,
            version=store.version if store else 0,
            state=state,
            coverage=_message(coverage) if coverage else None,
            notes=notes,
            scalars=self._servicer.metrics.scalars(),
        )
        reply: pb.HeartbeatReply = self._master.call_once("Heartbeat", request)
        with self._telling:
            del self._notes[: len(notes)]
            if self._coverage is coverage:
                self._coverage = None
        return reply

    def _watch(self, settings: JobSettings) -> Callable[[int], None]:
        """Return the function that the store calls at each version."""
        marks = [n for n in (settings.checkpoint_steps, settings.evaluation_steps) if n > 0]
        if settings.max_steps > 0:
            marks.append(settings.max_steps)

        def passed(version: int) -> None:
            if self.index == 0 and any(version % mark == 0 for mark in marks):
                self._wake.set()

        return passed


def _message(coverage: Coverage) -> pb.Coverage:
    tasks = [pb.Coverage.Task(task=e.task, position=e.applied) for e in coverage.ledger]
    return pb.Coverage(snapshot=coverage.number, low_water=coverage.low_water, tasks=tasks)


def _load_kernels() -> None:
    """Load the kernels: half a second that no first request shall wait for.

    The first time of all it takes a dozen.
    """
    spec = ModelSpec((), (TableSpec("any", 1),), SGD())
    Parameters(spec, SlotMap(1), 0).check(Update({}, {"any": (_NO_IDS, _NO_ROWS)}), ids_too=True)
