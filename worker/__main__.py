"""`python -m edl.worker`: a worker's process, or (`--describe`) the check before the job starts.

The process outlives its incarnation: where the master has declared it lost (it slept past its
lease, say), it drops its leases and registers as a new incarnation.
"""

from __future__ import annotations

from ..common.process import end_at_sigterm, leave, show_stacks

if __name__ == "__main__":
    show_stacks()
    end_at_sigterm()  # what is imported now takes seconds

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from prometheus_client import Counter, Gauge

from ..common import faults, listen, notice, rpc
from ..common import log as logs
from ..common.clock import MonotonicClock
from ..common.errors import EdlError, Fenced, Unreachable, UsageError
from ..common.identity import job_identity
from ..common.settings import JobSettings
from ..data.reader import RecordReader
from ..kernels.malloc import keep_freed_memory
from ..master.client import MasterClient
from ..model_zoo.spec import Definition
from ..nn.fitness import least_records
from ..nn.model_spec import ModelSpec
from ..nn.optimizers import SGD
from ..proto import master_pb2 as pb
from ..proto import worker_pb2_grpc
from ..ps.worker_client import PsClient
from . import keeper, nursery, pulse
from .describe import be_deterministic, describe, load, model_maker, open_readers
from .group.allreduce import AllReduceTrainer, GroupTrainer
from .group.batch_rule import make_rule
from .group.hybrid import HybridTrainer
from .group.loop import GroupWorker
from .group.peers import StateServicer
from .group.slices import RoundLeases, SliceStream
from .leaving import leave_in_time
from .servers.loop import Worker
from .servers.trace import TracedClient, WorkerTrace, ignore
from .servers.trainer import PsTrainer, model_spec
from .task_stream import TaskStream
from .tasks import DefinitionTasks

log = logging.getLogger("edl.worker")


def main() -> int:
    """Run; returns the exit code: 0 done or drained, 1 failed, 2 the definition is at fault."""
    parser = argparse.ArgumentParser(prog="python -m edl.worker")
    parser.add_argument("--describe", action="store_true")
    parser.add_argument("--nursery", metavar="STRATEGY")
    parser.add_argument("--job-dir", default=os.environ.get("EDL_JOB_DIR", ""))
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--incarnation", default="")
    parser.add_argument("--master", default="")
    given = parser.parse_args()
    if given.nursery:
        return nursery.run(main, given.nursery)
    try:
        if given.describe:
            job_dir = Path(given.job_dir)
            settings = JobSettings.of_job(job_dir)
            os.environ.update(settings.envs)  # as the workers have it
            describe(settings, job_dir)
            return 0
        return _work(given.master, given.index, given.incarnation)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code


def _work(master_address: str, index: int, incarnation: str) -> int:
    keep_freed_memory()
    keeper.start(index, lambda name: _line(master_address, index, name))  # before any thread
    process = _Process(master_address, index)
    signal.signal(signal.SIGTERM, process.on_sigterm)
    lives = 0
    while True:
        name = incarnation if lives == 0 else f"{incarnation}.{lives}"
        try:
            process.live(name)
            return 0
        except Fenced as error:
            log.warning("incarnation=%s -> fenced reason=%r; registering anew", name, str(error))
            lives += 1


def _line(master_address: str, index: int, incarnation: str) -> MasterClient:
    replica = pb.Replica(role=pb.WORKER, index=index, incarnation=incarnation)
    return MasterClient(master_address, replica=replica)


class _Process:
    """What all incarnations share: the health server, the metrics port, the deadline."""

    def __init__(self, master_address: str, index: int) -> None:
        self._master_address = master_address
        self._index = index
        self._health = rpc.serve_health()
        self._states = StateServicer()
        self._server = rpc.Server(
            lambda server: worker_pb2_grpc.add_WorkerServicer_to_server(self._states, server),
            token=rpc.job_token(),
            threads=2,
        )
        _, self._metrics_address = listen.serve_metrics()
        self._records = Counter("edl_records_processed", "Records used.", ["role"])
        self._loss = Gauge("edl_train_loss", "Loss of the last minibatch.")
        self._notice: threading.Thread | None = None
        self._worker: Worker | GroupWorker | None = None
        self._ps: PsClient | None = None
        self._patience_s = 120.0
        self._master: MasterClient | None = None
        self._grace_s = JobSettings().drain_grace_s

    def on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        if self._worker is None:  # it holds nothing yet, or nothing any more
            signal.signal(signum, signal.SIG_DFL)
            os.kill(
                os.getpid(), signum
            )  # so that it counts as what it is; of no effect on process 1
            os._exit(128 + signum)
        else:
            # Not from the handler itself: it may have interrupted the holder of the stream's lock.
            threading.Thread(target=self._leave, args=(self._worker,), daemon=True).start()

    def _leave(self, worker: Worker | GroupWorker) -> None:
        """In order; at once where that cannot be."""
        worker.drain()
        master = self._master
        assert master is not None

        def end(why: str) -> None:
            log.warning("leaving at once: %s", why)
            leave(0)

        def ask(patience_s: float) -> None:
            master.heartbeat(
                progress=worker.progress(),
                version=worker.version,
                scalars=worker.scalars(),
                state="draining",
                round_=worker.number,
                patience_s=patience_s,
            )

        leave_in_time(ask, end, self._grace_s)

    def live(self, incarnation: str) -> None:
        """One incarnation, to its end. Raises Fenced where another must follow."""
        master = _line(self._master_address, self._index, incarnation)
        master.patience_s = self._patience_s
        try:
            faults.point("worker.register")
            reply = master.register(
                self._server.address,
                self._metrics_address,
                os.getpid(),
                socket.gethostname(),
            )
            if reply.fenced:
                raise UsageError(f"the master does not know incarnation {incarnation!r}: leaving")
            settings = JobSettings.from_json(reply.settings_json)
            self._patience_s = master.patience_s = settings.master_timeout_s
            self._master, self._grace_s = master, settings.drain_grace_s
            logs.configure(settings.log_level, settings.log_format, "worker", self._index)
            if self._notice is None:
                self._notice = notice.watch(settings.preemption_notice)
            pulse.live(incarnation, lease_s=settings.lease_s, hang_s=settings.hang_s)
            self._run(master, settings, incarnation)
        finally:
            pulse.live("")
            master.close()

    def _run(self, master: MasterClient, settings: JobSettings, incarnation: str) -> None:
        beat = _Heartbeat(master, interval_s=min(1.0, settings.lease_s / 5))
        beat.start()
        try:
            worker: Worker | GroupWorker
            if settings.strategy == "ps":
                worker = self._build(master, settings, incarnation)
            else:
                worker = self._build_member(master, settings)
            self._worker = worker
            beat.attach(worker, self._ps)
            worker.run()
            faults.point("worker.shutdown")
        finally:
            self._worker = None
            beat.stop()
            if self._ps is not None:
                self._ps.close()  # a push that still waits for its servers is given up

    def _build(self, master: MasterClient, settings: JobSettings, incarnation: str) -> Worker:
        """Load the definition and connect to the servers."""
        _set_threads(settings)
        recorded = settings.deterministic and settings.command == "train"
        if recorded:
            be_deterministic()
        definition, readers = _load(settings)
        make_model = model_maker(definition, settings)
        # Servers that restore a checkpoint to evaluate or predict keep its model, optimizer included.
        optimizer = definition.optimizer() if definition.has("optimizer") else SGD(lr=0.0)
        with pulse.section(pulse.MODEL):
            spec = model_spec(make_model(), optimizer, settings.seed)
        ps = self._connect(master, settings, spec, TracedClient if recorded else PsClient)
        trainer = PsTrainer(
            make_model,
            definition.loss if definition.has("loss") else None,
            ps,
            spec,
            device=choose_device(settings.device),
            get_model_steps=settings.get_model_steps,
            ahead=bool(settings.pull_ahead),
            push_pull=settings.push_brings_dense,
            wire=settings.gradient_wire,
            compile=settings.compile,
            patience_s=settings.server_wait_s,
        )
        stream = TaskStream(
            master,
            readers,
            definition.feed,
            minibatch=settings.minibatch_size,
            seed=settings.seed,
            shuffle=settings.shuffle,
            prepare=trainer.prepare,
            least=least_records(trainer.model),
            several=not settings.num_minibatches_per_task,
        )
        tasks = DefinitionTasks(
            definition,
            output=settings.output,
            worker=self._index,
            form=settings.prediction_format,
        )
        if settings.command == "train":
            with pulse.section(pulse.BEGIN):
                tasks.train_begin(trainer.model)

        return Worker(
            master,
            stream,
            trainer,
            tasks,
            clock=MonotonicClock(),
            pull_ahead=settings.pull_ahead,
            push_window=settings.push_window,
            log_loss_steps=settings.log_loss_steps,
            on_step=self._on_step,
            on_gradients=self._trace(incarnation) if recorded else ignore,
            definition_file=definition.file,
        )

    def _connect(
        self, master: MasterClient, settings: JobSettings, spec: ModelSpec, client: type[PsClient]
    ) -> PsClient:
        """To the servers, once all of them are there."""
        servers = master.get_servers(0, 10.0)
        while not servers.slot_map_version:
            servers = master.get_servers(0, 10.0)
        token = rpc.job_token()
        self._ps = client(
            list(servers.addresses),
            token=token,
            spec=spec,
            transport=settings.transport,
            identity=job_identity(token),
            servers_version=servers.slot_map_version,
            find=self._finder(master),
        )
        return self._ps

    def _build_member(self, master: MasterClient, settings: JobSettings) -> GroupWorker:
        """Load the definition; the state comes with the first round."""
        _set_threads(settings)
        definition, readers = _load(settings)
        make_model = model_maker(definition, settings)
        device = choose_device(settings.device)
        with pulse.section(pulse.MODEL):
            spec = model_spec(make_model(), definition.optimizer(), settings.seed)
        clock, follower = MonotonicClock(), None
        if settings.batch_rule == "adaptive":
            from .group import adaptive_batch  # what others need not import

            follower = adaptive_batch.Follower(adaptive_batch.make(settings, spec.optimizer), clock)
        prepare: Callable[[Any], Any] = lambda features: None
        trainer: GroupTrainer
        member: type[GroupWorker] = GroupWorker
        backend = "nccl" if device.type == "cuda" else "gloo"
        if settings.strategy == "hybrid":
            trainer = hybrid = HybridTrainer(
                make_model,
                definition.loss,
                self._connect(master, settings, spec.of_servers, PsClient),
                spec,
                staleness=settings.resolved_staleness or 0,
                patience_s=settings.server_wait_s,
                device=device,
                compile=settings.compile,
            )
            prepare = hybrid.prepare
            if device.type == "cuda":
                backend = "cpu:gloo,cuda:nccl"  # rows are the CPU's
        elif settings.fully_shard:
            # What others need not import: 1.5 s.
            from .group.sharded import ShardedTrainer, units
            from .group.sharded_worker import ShardedWorker

            member = ShardedWorker
            trainer = ShardedTrainer(
                make_model,
                definition.loss,
                spec,
                device=device,
                plan=definition.shard_plan or units,
                most=settings.local_batch_size,
                warmup_steps=settings.lr_warmup_steps,
            )
        else:
            trainer = AllReduceTrainer(
                make_model,
                definition.loss,
                spec,
                device=device,
                compile=settings.compile,
                warmup_steps=settings.lr_warmup_steps,
                batch=follower.batch if follower is not None else None,
            )
        tasks = DefinitionTasks(definition, output=settings.output, worker=self._index)
        with pulse.section(pulse.BEGIN):
            tasks.train_begin(trainer.model)
        least = least_records(trainer.model)

        def make_stream(leases: RoundLeases, rank: int, shares: int, minibatch: int) -> SliceStream:
            return SliceStream(
                leases,
                readers,
                definition.feed,
                rank=rank,
                shares=shares,
                most=settings.local_batch_size,
                minibatch=minibatch,
                seed=settings.seed,
                shuffle=settings.shuffle,
                prepare=prepare,
                least=least,
            )

        return member(
            master,
            trainer,
            tasks,
            make_stream,
            make_rule(definition, settings),
            first_values=settings.checkpoint_dir_for_init,
            address=self._server.address,
            states=self._states,
            token=rpc.job_token(),
            backend=backend,
            clock=clock,
            log_loss_steps=settings.log_loss_steps,
            on_step=self._on_step,
            follower=follower,
        )

    def _on_step(self, loss: float, records: int) -> None:
        self._loss.set(loss)
        self._records.labels("worker").inc(records)

    def _trace(self, incarnation: str) -> WorkerTrace:
        assert isinstance(self._ps, TracedClient)
        folder = Path(os.environ["EDL_JOB_DIR"]) / "trace"
        return WorkerTrace(folder, self._index, incarnation, self._ps)

    def _finder(self, master: MasterClient) -> Callable[[int, float], tuple[Sequence[str], int]]:
        """For PsClient, while a server does not answer."""

        def find(known: int, wait_s: float) -> tuple[Sequence[str], int]:
            worker = self._worker
            pulse.excuse()
            if worker is not None:
                worker.state = "waiting for servers"
            try:
                reply = master.get_servers(known, wait_s, patience_s=1.0)
            except Unreachable as error:
                log.info("servers -> nobody tells where they are error=%r", str(error))
                return (), known
            return reply.addresses, reply.slot_map_version

        return find


def _load(settings: JobSettings) -> tuple[Definition, dict[int, RecordReader]]:
    with pulse.section(pulse.IMPORT):
        definition = load(settings)
    with pulse.section(pulse.OPEN):
        return definition, open_readers(definition, settings)


class _Heartbeat(threading.Thread):
    """Says that the worker lives, and tells it what the master answers."""

    def __init__(self, master: MasterClient, *, interval_s: float) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._master = master
        self._interval_s = interval_s
        self._ended = threading.Event()  # not _stop: that name is the Thread's own
        self._worker: Worker | GroupWorker | None = None
        self._ps: PsClient | None = None

    def attach(self, worker: Worker | GroupWorker, ps: PsClient | None) -> None:
        self._worker, self._ps = worker, ps

    def _follow(self, servers_version: int) -> None:
        """A server was replaced: calls that still wait for the old one are made at the new one."""
        if self._ps is not None and servers_version > self._ps.servers_version:
            reply = self._master.get_servers(self._ps.servers_version, 0.0)
            self._ps.update(reply.addresses, reply.slot_map_version)

    def stop(self) -> None:
        self._ended.set()

    def run(self) -> None:
        while not self._ended.is_set():
            worker = self._worker
            try:
                if worker is not None:
                    reply = self._master.heartbeat(
                        progress=worker.progress(),
                        version=worker.version,
                        scalars=worker.scalars(),
                        state=worker.state,
                        round_=worker.number,
                    )
                else:
                    reply = self._master.heartbeat(state="starting")
            except Unreachable as error:
                # The loop meets the same silence at its next call, and reports it.
                log.warning("heartbeat -> unanswered error=%r", str(error))
                return
            pulse.beat()
            if worker is not None:
                if reply.fenced:
                    worker.fence()
                    return
                if reply.drain:
                    worker.drain()
                self._follow(reply.slot_map_version)
            self._ended.wait(reply.interval_s or self._interval_s)


def choose_device(wanted: str) -> torch.device:
    """The torch device for --device. Raises UsageError for cuda where there is none."""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UsageError("--device cuda, but torch sees no CUDA device here: use --device auto")
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def _set_threads(settings: JobSettings) -> None:
    workers = max(1, settings.num_workers)
    torch.set_num_threads(settings.worker_threads or max(1, (os.cpu_count() or 1) // workers))


if __name__ == "__main__":
    leave(main())
