"""A replay of a recorded job in one process: it computes again what was applied, on the same state.

Each shard moves along its recorded steps as far as it can. A step needs its gradients; gradients
are computed once all shards have reached the versions that they were computed on, wherever the
shards are by then (shards.py keeps those states). What was computed and never applied is left out.
The run itself was such a course of things, so there always is a next step; where there is none, or
where gradients are not those that a server has applied (their digest is in the trace), the replay
ends with the first difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..common.settings import JobSettings
from ..model_zoo.spec import Definition
from ..nn.device import choose_device
from ..nn.fitness import least_records
from ..nn.moved import take_first_rows
from ..proto import master_pb2 as pb
from ..ps.books.aggregation import Update
from ..ps.books.trace import digest
from ..worker.describe import be_deterministic, load, model_maker, open_readers
from ..worker.model import Passes, dense_tensors, model_spec
from ..worker.schemas import with_described
from ..worker.servers.trainer import PsTrainer
from ..worker.task_reader import Lease, TaskReader
from .recording import Computed, Recording, Step, read
from .shards import Difference, LocalPs, Shard


@dataclass
class Epoch:
    """The records that were applied of an epoch, on the timeline that counts, and their losses."""

    records: int = 0
    losses: list[float] = field(default_factory=list)


class Replay:
    """The replay of one job.

    `run` raises Difference at the first thing that is not as it was recorded.
    """

    def __init__(
        self,
        settings: JobSettings,
        recording: Recording,
        definition: Definition,
        *,
        on_state: Callable[[Shard], None],
        on_loss: Callable[[Computed, float | None], None],
    ) -> None:
        """Make ready to replay.

        `on_state` sees each shard as it begins and after each of its steps; `on_loss` each
        minibatch that was computed.
        """
        self.shards = [Shard(timeline, settings) for timeline in recording.timelines]
        self.computed = 0
        self._recording = recording
        self._on_state = on_state
        self._on_loss = on_loss
        make_model = model_maker(definition, settings)
        self._spec = model_spec(make_model(), definition.optimizer(), settings.seed)
        self._ps = LocalPs(settings.num_ps, self._spec)
        self._trainer = PsTrainer(
            make_model,
            definition.loss,
            self._ps,
            self._spec,
            device=choose_device(settings.device, 0),
            passes=Passes.of(settings),
        )
        self._reader = TaskReader(
            open_readers(definition, settings),
            definition.feed,
            minibatch=settings.minibatch_size,
            seed=settings.seed,
            shuffle=settings.shuffle,
            prepare=self._trainer.prepare,
            least=least_records(self._trainer.model),
        )
        self._reader.views = settings.teacher_views
        model = make_model()
        self._first = {
            name: np.array(tensor.detach().cpu().float().numpy(), order="C")
            for name, (tensor, _) in dense_tensors(model).items()
        }
        self._first_rows = take_first_rows(model)
        self._by_address = {shard.timeline.address: shard for shard in self.shards}
        self._updates: dict[Computed, list[Update]] = {}
        self._wanted: dict[Computed, set[Step]] = defaultdict(set)

    def close(self) -> None:
        self._ps.close()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Replay all that was recorded, or until that holds; once. Raises Difference."""
        self._want()
        moved = True
        while moved and not until():
            moved = self._begin_shards()
            for shard in self.shards:
                moved |= self._advance(shard)
        if until():
            return
        for shard in self.shards:
            if not shard.begun:
                raise Difference(
                    f"{shard.timeline.name} began from version {shard.timeline.version} of "
                    f"{shard.timeline.parent!r}, which the trace does not reach"
                )
            if (step := shard.next) is not None:
                raise Difference(
                    f"{step.line}: {shard.timeline.name} applied {step.span}, computed on its "
                    f"version {step.on}: nothing in the trace leads there"
                )

    def epochs(self) -> dict[int, Epoch]:
        """Return the records that were applied, and their losses, by epoch.

        They are those along the last incarnation of server 0 and its parents.
        """
        last = [shard for shard in self.shards if shard.timeline.index == 0][-1]
        found: dict[int, Epoch] = defaultdict(Epoch)
        for step in self._lineage(last):
            if step.span is None:
                continue
            computed = self._candidates(last.timeline.index, step)[0]
            found[computed.epoch].records += computed.used
            if computed.loss is not None:
                found[computed.epoch].losses.append(computed.loss)
        return dict(sorted(found.items()))

    # -- inside

    def _lineage(self, shard: Shard) -> Iterable[Step]:
        timeline = shard.timeline
        if timeline.parent:
            steps = list(self._lineage(self._parent(shard)))
            kept = [step for step in steps if step.version < timeline.version]
            there = [step for step in steps if step.version == timeline.version]
            yield from kept
            yield from there[: timeline.pushes]
        yield from timeline.steps

    def _parent(self, shard: Shard) -> Shard:
        """Return the incarnation that was in the state of the snapshot.

        It is the one that it names, or, where that one's own snapshots were damaged, one before it.
        """
        name = shard.timeline.parent
        named = {other.timeline.incarnation: other for other in self.shards}
        start = shard.timeline.version, shard.timeline.pushes
        while (other := named.get(name)) is not None:
            if (other.timeline.version, other.timeline.pushes) <= start:
                return other
            name = other.timeline.parent
        raise Difference(f"{shard.timeline.name} began from {name!r}, which left no trace")

    def _candidates(self, index: int, step: Step) -> list[Computed]:
        """Return what the step may have applied; more than one where a span was computed again."""
        assert step.span is not None
        computed = self._recording.computed.get(step.span, ())
        return [c for c in computed if c.pulls[0].versions[index] == step.on]

    def _want(self) -> None:
        """Find out which minibatches are to be computed, and which versions they read."""
        for shard in self.shards:
            for step in shard.timeline.steps:
                if step.span is None:
                    continue
                candidates = self._candidates(shard.timeline.index, step)
                if not candidates:
                    raise Difference(
                        f"{step.line}: {shard.timeline.name} applied {step.span}, computed on its "
                        f"version {step.on}: no worker's trace has that"
                    )
                for computed in candidates:
                    self._wanted[computed].add(step)
        for computed in self._wanted:
            for shard, version in chain(*self._reads(computed)):
                shard.reads[version] += 1

    def _reads(self, computed: Computed) -> list[list[tuple[Shard, int]]]:
        """Return by pull, by server: the shard that answered, and its version."""
        try:
            return [
                [(self._by_address[a], v) for a, v in zip(p.addresses, p.versions, strict=True)]
                for p in computed.pulls
            ]
        except KeyError as error:
            raise Difference(
                f"{computed.span} was computed on a server at {error}, which left no trace"
            ) from None

    def _begin_shards(self) -> bool:
        begun = False
        for shard in self.shards:
            if shard.begun:
                continue
            if not shard.timeline.parent:
                index = shard.timeline.index
                chunks = self._ps.first_chunks(self._first)[index]
                shard.begin(self._spec, chunks, self._ps.first_rows(self._first_rows)[index])
            else:
                parent = self._parent(shard)
                if parent.state != (shard.timeline.version, shard.timeline.pushes):
                    continue
                shard.begin_from(parent, self._spec)
            begun = True
            self._on_state(shard)
        return begun

    def _advance(self, shard: Shard) -> bool:
        """Move a shard as far as it can go by itself; returns whether it moved."""
        moved = False
        while (step := shard.next) is not None and not self._is_awaited(shard):
            update = None
            if step.span is not None:
                computed = self._of(shard, step)
                if computed is None:
                    break
                update = self._updates[computed][shard.timeline.index]
            shard.apply(update)
            if step.span is not None:
                self._done(shard, step)
            moved = True
            self._on_state(shard)
        return moved

    def _is_awaited(self, shard: Shard) -> bool:
        """Tell whether a replacement that has not begun begins from the shard's state of now."""
        return any(
            not other.begun
            and other.timeline.parent
            and self._parent(other) is shard
            and shard.state == (other.timeline.version, other.timeline.pushes)
            for other in self.shards
        )

    def _of(self, shard: Shard, step: Step) -> Computed | None:
        """Return the gradients that the step applied; None: they cannot be computed yet."""
        complete = True
        for computed in self._candidates(shard.timeline.index, step):
            if computed not in self._updates and not self._compute(computed):
                complete = False
            elif digest(self._updates[computed][shard.timeline.index]) == step.digest:
                return computed
        if not complete:
            return None
        raise Difference(
            f"{step.line}: the gradients of {step.span} that {shard.timeline.name} applied, "
            f"computed on its version {step.on}, are not those that are computed here"
        )

    def _compute(self, computed: Computed) -> bool:
        """Compute a minibatch's gradients; False: not all it read is there. Raises Difference."""
        reads = self._reads(computed)
        if not all(shard.has(version) for shard, version in chain(*reads)):
            return False
        self._ps.at(reads)
        self._trainer.outdated()
        span = computed.span
        batch = self._batch(computed)
        pulled = self._trainer.begin(batch.prepared or {}, None)
        if computed.used:
            gradients = self._trainer.gradients(
                batch.features,
                batch.labels,
                batch.prepared or {},
                pulled,
                (computed.epoch, span.task, span.start),
            )
        else:
            gradients = self._trainer.empty()
        self._trainer.push(span.task, span.attempt, span.start, span.end, gradients)
        self._updates[computed] = self._ps.updates
        self.computed += 1
        for shard, version in chain(*reads):
            shard.forget(version)
        self._on_loss(computed, gradients.loss)
        return True

    def _batch(self, computed: Computed) -> Any:
        span = computed.span
        task = pb.Task(
            id=span.task,
            attempt=span.attempt,
            kind=pb.TRAIN,
            source=computed.source,
            start=computed.first,
            end=computed.last,
            epoch=computed.epoch,
            skips=computed.skips,
        )
        return next(self._reader.read(Lease(task), span.start, boundaries=(span.end,)))

    def _done(self, shard: Shard, step: Step) -> None:
        """Note that the step has been made: its gradients are needed once less."""
        for computed in self._candidates(shard.timeline.index, step):
            self._wanted[computed].discard(step)
            if self._wanted[computed]:
                continue
            del self._wanted[computed]
            if self._updates.pop(computed, None) is None:  # another one of that span was applied
                for read, version in chain(*self._reads(computed)):
                    read.forget(version)


def open_replay(
    job_dir: Path,
    on_state: Callable[[Shard], None],
    on_loss: Callable[[Computed, float | None], None],
) -> tuple[JobSettings, Replay]:
    """Return the replay of a job's folder.

    Raises UsageError, or what its definition and data raise.
    """
    settings = with_described(JobSettings.of_job(job_dir), job_dir)
    recording = read(job_dir)
    be_deterministic()
    return settings, Replay(settings, recording, load(settings), on_state=on_state, on_loss=on_loss)
