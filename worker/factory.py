"""The factory of the member that the job's settings ask for: its trainer, its stream, its loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..common import cores, rpc
from ..common.clock import Clock, MonotonicClock
from ..common.errors import EdlError, Unreachable
from ..common.identity import job_identity
from ..common.settings import JobSettings
from ..data.reader import RecordReader
from ..distill.teachers import Untaught
from ..master.client import MasterClient
from ..model_zoo.spec import Definition
from ..nn.device import choose_device
from ..nn.fitness import least_records
from ..nn.model_spec import ModelSpec
from ..nn.optimizers import SGD
from ..proto import worker_pb2_grpc
from ..ps.worker_client import PsClient
from . import pulse
from .describe import be_deterministic, load, model_maker, open_readers
from .group.allreduce import AllReduceTrainer
from .group.batch_rule import make_rule
from .group.hybrid import HybridTrainer
from .group.loop import GroupWorker, OnBegin, RoundPlan, begin_alike
from .group.peers import StateServicer
from .group.slices import SliceReader
from .group.state_keeper import Door, StateKeeper, WholeKeeper
from .model import Passes, model_spec
from .reports import Status
from .schemas import of_settings
from .servers.loop import Worker
from .servers.trace import TracedClient, WorkerTrace, ignore
from .servers.trainer import Exchange, PsTrainer
from .task_reader import TaskReader
from .task_stream import TaskStream
from .tasks import DefinitionTasks
from .taught import School, taught_loss
from .trainer import GroupTrainer, Member, StepT

log = logging.getLogger("edl.worker")
_DEPTH = 2  # minibatches that are read ahead


@dataclass(frozen=True)
class Place:
    """A worker's place in its job: which one it is, and where other members find it."""

    index: int
    incarnation: str
    door: Door


@dataclass(frozen=True)
class _Parts:
    """The parts that every strategy is made of."""

    definition: Definition
    readers: dict[int, RecordReader]
    make_model: Callable[[], torch.nn.Module]
    device: torch.device
    spec: ModelSpec


class Shop:
    """The door at which other members find a worker's process, and its factories."""

    def __init__(self) -> None:
        states, token = StateServicer(), rpc.job_token()
        self._server = rpc.Server(
            lambda server: worker_pb2_grpc.add_WorkerServicer_to_server(states, server),
            token=token,
            threads=2,
        )
        self._door = Door(self._server.address, states, token)

    @property
    def address(self) -> str:
        return self._server.address

    def maker(
        self,
        master: MasterClient,
        settings: JobSettings,
        index: int,
        incarnation: str,
        on_step: Callable[[float, int], None],
    ) -> Factory:
        return Factory(master, settings, Place(index, incarnation, self._door), on_step)


class Factory:
    """The maker of one member.

    `member`, `ps` and `school` (the teachers) are there once they are made.
    """

    fatal: tuple[type[EdlError], ...] = (Untaught,)  # the job ends by its own rules

    def __init__(
        self,
        master: MasterClient,
        settings: JobSettings,
        place: Place,
        on_step: Callable[[float, int], None],
    ) -> None:
        """Make nothing yet.

        `on_step(loss, records)` is called after each step.
        """
        self.member: Member | None = None
        self.ps: PsClient | None = None
        self.school: School | None = None
        self._master = master
        self._settings = settings
        self._place = place
        self._clock: Clock = MonotonicClock()
        self._status = Status(self._clock, log_loss_steps=settings.log_loss_steps, on_step=on_step)

    def make(self) -> Member:
        """Load the definition, connect to the servers that there are, and make the member."""
        settings = self._settings
        in_pod = settings.runtime == "kubernetes"
        mine = cores.share(settings.num_workers, own_quota=in_pod)
        torch.set_num_threads(settings.worker_threads or mine)
        if settings.strategy == "ps":
            self.member = self._on_servers()
        elif settings.strategy == "hybrid":
            self.member = self._hybrid()
        elif settings.fully_shard:
            self.member = self._sharded()
        else:
            self.member = self._all_reduce()
        return self.member

    def _load(self) -> _Parts:
        settings = self._settings
        with pulse.section(pulse.IMPORT):
            definition = load(settings)
        with pulse.section(pulse.OPEN):
            readers = open_readers(definition, settings)
        make_model = model_maker(definition, settings)
        device = choose_device(settings.device, self._place.index)
        # Servers that restore a checkpoint to evaluate or predict keep its model and optimizer.
        optimizer = definition.optimizer() if definition.has("optimizer") else SGD(lr=0.0)
        with pulse.section(pulse.MODEL):
            spec = model_spec(make_model(), optimizer, settings.seed)
        return _Parts(definition, readers, make_model, device, spec)

    def _tasks(self, parts: _Parts, model: torch.nn.Module) -> DefinitionTasks:
        settings = self._settings
        tasks = DefinitionTasks(
            parts.definition,
            output=settings.output,
            worker=self._place.index,
            form=settings.prediction_format,
            schema=of_settings(settings),
        )
        if settings.command == "train":
            with pulse.section(pulse.BEGIN):
                tasks.train_begin(model)
        return tasks

    def _reader(
        self,
        parts: _Parts,
        minibatch: int,
        prepare: Callable[[Any], Any],
        least: int,
    ) -> TaskReader:
        reader = TaskReader(
            parts.readers,
            parts.definition.feed,
            minibatch=minibatch,
            seed=self._settings.seed,
            shuffle=self._settings.shuffle,
            prepare=prepare,
            least=least,
            ask=None if self.school is None else self.school.ask,
        )
        reader.views = self._settings.teacher_views
        reader.id_columns = [*filter(None, self._settings.id_columns.split(","))]
        return reader

    def _loss(self, definition: Definition) -> Callable[[Any, Any], Any]:
        """Return the loss, of what is taught too; the teachers are asked from now on."""
        if not definition.takes_teacher:
            return definition.loss
        if self._settings.has_teachers and self._settings.command == "train":
            self.school = School(self._master, self._settings, self._clock)
            self._status.more = self.school.scalars
        return taught_loss(definition.loss)

    def _depth(self) -> int:
        """Return how many minibatches are read ahead."""
        return max(_DEPTH, self.school.teachers.ahead if self.school is not None else 0)

    # -- the model on servers

    def _on_servers(self) -> Worker:
        settings = self._settings
        recorded = settings.deterministic and settings.command == "train"
        if recorded:
            be_deterministic()
        parts = self._load()
        definition = parts.definition
        ps = self._connect(parts.spec, TracedClient if recorded else PsClient)
        trainer = PsTrainer(
            parts.make_model,
            self._loss(definition) if definition.has("loss") else None,
            ps,
            parts.spec,
            device=parts.device,
            passes=Passes.of(settings),
            exchange=Exchange(
                get_model_steps=settings.get_model_steps,
                ahead=bool(settings.pull_ahead),
                push_pull=settings.push_brings_dense,
                wire=settings.gradient_wire,
                patience_s=settings.server_wait_s,
            ),
            phases=self._status.phases,
        )
        least = least_records(trainer.model)
        stream = TaskStream(
            self._master,
            self._reader(parts, settings.minibatch_size, trainer.prepare, least),
            several=not settings.num_minibatches_per_task,
            depth=self._depth,
        )
        return Worker(
            self._master,
            stream,
            trainer,
            self._tasks(parts, trainer.model),
            self._status,
            pull_ahead=settings.pull_ahead,
            push_window=settings.push_window,
            on_gradients=self._trace(ps) if isinstance(ps, TracedClient) else ignore,
        )

    def _trace(self, ps: TracedClient) -> WorkerTrace:
        folder = Path(os.environ["EDL_JOB_DIR"]) / "trace"
        return WorkerTrace(folder, self._place.index, self._place.incarnation, ps)

    def _connect(self, spec: ModelSpec, client: type[PsClient]) -> PsClient:
        """Connect to the servers, once all of them are there."""
        servers = self._master.get_servers(0, 10.0)
        while not servers.slot_map_version:
            servers = self._master.get_servers(0, 10.0)
        token = rpc.job_token()
        self.ps = client(
            list(servers.addresses),
            token=token,
            spec=spec,
            transport=self._settings.transport,
            identity=job_identity(token),
            servers_version=servers.slot_map_version,
            find=self._find_servers,
        )
        return self.ps

    def _find_servers(self, known: int, wait_s: float) -> tuple[Sequence[str], int]:
        """Ask where they are, for PsClient, while a server does not answer."""
        pulse.excuse()
        if self.member is not None:
            self.member.status.state = "waiting for servers"
        try:
            reply = self._master.get_servers(known, wait_s, patience_s=1.0)
        except Unreachable as error:
            log.info("servers -> nobody tells where they are error=%r", str(error))
            return (), known
        return reply.addresses, reply.slot_map_version

    # -- a member of a group; the state comes with the first round

    def _hybrid(self) -> Member:
        settings, parts = self._settings, self._load()
        trainer = HybridTrainer(
            parts.make_model,
            self._loss(parts.definition),
            self._connect(parts.spec.of_servers, PsClient),
            parts.spec,
            device=parts.device,
            passes=Passes.of(settings),
            staleness=settings.resolved_staleness or 0,
            patience_s=settings.server_wait_s,
        )
        keeper = WholeKeeper(
            self._master,
            trainer.state,
            self._place.door,
            first_values=settings.checkpoint_dir_for_init,
            take_all=trainer.take_cut,
        )
        return self._in_group(parts, trainer, keeper, prepare=trainer.prepare)

    def _sharded(self) -> Member:
        # What others need not import: 1.5 s.
        from .group.sharded import ShardedTrainer, units
        from .group.sharded_keeper import ShardedKeeper

        settings, parts = self._settings, self._load()
        trainer = ShardedTrainer(
            parts.make_model,
            self._loss(parts.definition),
            parts.spec,
            device=parts.device,
            plan=parts.definition.shard_plan or units,
            most=settings.local_batch_size,
            warmup_steps=settings.lr_warmup_steps,
            passes=Passes.of(settings),
        )
        first_values = settings.checkpoint_dir_for_init
        keeper = ShardedKeeper(self._master, trainer, self._place.door, first_values=first_values)
        return self._in_group(parts, trainer, keeper)

    def _all_reduce(self) -> Member:
        settings, parts = self._settings, self._load()
        batch = None
        if settings.batch_rule == "adaptive":
            from .group import adaptive_batch  # what others need not import

            batch = adaptive_batch.make(settings, parts.spec.dense_optimizer)
        trainer = AllReduceTrainer(
            parts.make_model,
            self._loss(parts.definition),
            parts.spec,
            device=parts.device,
            passes=Passes.of(settings),
            warmup_steps=settings.lr_warmup_steps,
            batch=batch,
        )
        keeper = WholeKeeper(
            self._master,
            trainer.state,
            self._place.door,
            first_values=settings.checkpoint_dir_for_init,
        )
        if batch is None:
            return self._in_group(parts, trainer, keeper)
        from .group.follower import Follower  # as above

        follower = Follower(trainer, self._clock)
        return self._in_group(parts, trainer, keeper, on_begin=follower.enter)

    def _in_group(
        self,
        parts: _Parts,
        trainer: GroupTrainer[StepT],
        keeper: StateKeeper,
        *,
        prepare: Callable[[Any], Any] = lambda _features: None,
        on_begin: OnBegin = begin_alike,
    ) -> GroupWorker[StepT]:
        settings = self._settings
        tasks = self._tasks(parts, trainer.model)
        least = least_records(trainer.model)

        def make_reader(rank: int, shares: int, minibatch: int) -> SliceReader:
            whole = self._reader(parts, minibatch, prepare, least)
            return SliceReader(whole, rank=rank, shares=shares, most=settings.local_batch_size)

        rule = make_rule(parts.definition, settings)
        plan = RoundPlan(make_reader, rule, parts.device, on_begin, self._depth)
        return GroupWorker(self._master, trainer, keeper, tasks, plan, self._status)
