"""The report of a master's job (common/report.py), out of its books and of who works now."""

from __future__ import annotations

from collections.abc import Sequence

from ..common.report import VERSION, Bounds, Configuration, Model, Report, StepTimes
from ..common.settings import JobSettings
from ..durable.schema import Json
from .books.queue_view import QueueView
from .core import Core
from .groups.group import Group
from .membership import DRAINING, SERVER, TEACHER, WORKER, Member
from .recorder import Spent
from .servers_fit import ServersFit

_CAUSES = "data", "servers", "teachers"  # of waits
_IDLE = ("", "starting", DRAINING)  # states of those who do not work yet, or no more


class Reporter:
    """The report of a job, and the looks at it that its samples are made of."""

    def __init__(self, core: Core, group: Group) -> None:
        self._core = core
        self._group = group
        self._model: Model | None = None  # the newest, also while who has told it is away
        self._servers = ServersFit(core.loop)

    def look(self, now: float, records_done: int) -> None:
        """Show the recorder how far the job is, and in which configuration."""
        core = self._core
        workers, servers = core.members.of(WORKER), core.members.of(SERVER)
        self._model = _model(core.settings, workers) or self._model
        slots = core.replicas.slots.values()
        if any(slot.waits and slot.role != TEACHER for slot in slots):  # the cluster has no room
            core.recorder.forget_changes()
        members = tuple(member.incarnation for member in (*workers, *servers))
        is_same = self._trains() and self._are_all(workers, servers)
        core.recorder.look(
            now,
            records_done,
            self._configuration(workers, servers) if is_same else None,
            (self._group.workers.lessee, members),
            Spent.told([worker.scalars for worker in workers]),
        )
        self._servers.look(core.recorder.samples)

    def usage(self, now: float, records_done: int) -> dict[str, Json]:
        """Return what the job has used by now: the machines' time, and the records done."""
        core = self._core
        others = (*core.members.of(SERVER), *core.members.of(TEACHER))
        core.machines.look(
            now,
            records_done,
            [(worker.host, worker.state) for worker in core.members.of(WORKER)],
            [each.host for each in others],
            [(each.host, each.incarnation, _waited(each)) for each in core.members.of(WORKER)],
        )
        return core.machines.usage()

    def report(self, records_done: int) -> Report:
        """Return the report of now."""
        core, settings = self._core, self._core.settings
        queue, recorder, planned = core.queue, core.recorder, core.queue.records_planned
        return Report(
            version=VERSION,
            records_left=None if planned is None else planned - records_done,
            records_total=queue.plan.records,
            epochs=queue.plan.epochs,
            samples=recorder.samples,
            model=self._model,
            resize=recorder.resize,
            workers=Bounds(minimum=settings.min_workers or None),
            nodes=Bounds(),
            priority=_priority(settings.worker_pod_priority),
            nearly_done=nearly_done(queue),
            suspended=False,
            servers_model=self._servers.model,
        )

    def _trains(self) -> bool:
        core = self._core
        return core.status.state == "running" and not core.evaluations.running

    def _are_all(self, workers: Sequence[Member], servers: Sequence[Member]) -> bool:
        """Tell whether these are all that are wanted, and all work."""
        core, settings = self._core, self._core.settings
        wanted = 0 if settings.strategy == "allreduce" else settings.num_ps
        return (
            (len(workers), len(servers)) == (core.replicas.wanted, wanted)
            and all(member.state not in _IDLE for member in (*workers, *servers))
            and self._group.workers.all_train(workers)
        )

    def _configuration(
        self, workers: Sequence[Member], servers: Sequence[Member]
    ) -> Configuration | None:
        if not workers:
            return None
        told = max(workers, key=lambda member: member.version).scalars
        minibatch = told.get("round_minibatch", self._core.settings.minibatch_size)
        nodes = len({member.host for member in workers})
        return Configuration(len(servers), len(workers), nodes, int(minibatch))


def _waited(worker: Member) -> dict[str, float]:
    """Return the seconds that a worker has waited, by cause, of those that it measures."""
    told = {cause: worker.scalars.get(f"waited_{cause}_s") for cause in _CAUSES}
    return {cause: seconds for cause, seconds in told.items() if seconds is not None}


def nearly_done(queue: QueueView) -> bool:
    """Tell whether nothing is left to be leased, but for what may come back."""
    return queue.all_epochs_opened and (not queue.todo or queue.plan_done)


def _priority(stated: str) -> str | None:
    """Return the job's priority; a fraction of workers that is high is none."""
    return None if stated.replace(".", "", 1).isdecimal() else stated or None


def _model(settings: JobSettings, workers: Sequence[Member]) -> Model | None:
    """Return the model that the first worker which has fitted one has told; None: none has."""
    told = next((w.scalars for w in workers if "step_gamma" in w.scalars), None)
    if told is None:
        return None
    return Model(
        step=StepTimes(**{name: told[f"step_{name}"] for name in StepTimes.__annotations__}),
        noise_sqr=told["noise_sqr"],
        noise_var=told["noise_var"],
        initial_batch=settings.minibatch_size,
        largest_batch=settings.max_minibatch_size,
        local_batch=settings.local_batch_size or None,
    )
