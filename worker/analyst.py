"""A worker of `edl data analyze`: it summarizes shards of the data, and at the end merges them all.

A task is a shard, and its summary a file of its own in the job's folder, put in place whole: to do
it again changes nothing, so a worker that is killed costs its task alone. The last task, which
comes once all others are done, merges the files in the order of the tasks. Neither torch nor
servers are needed, so such a worker is there at once.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ..common import faults, paths
from ..common.clock import MonotonicClock
from ..common.errors import DataError, EdlError, Fenced, JobError
from ..common.files import write_file
from ..common.settings import JobSettings
from ..data import analysis_file
from ..data.analysis import Sizes
from ..data.analyze import Shard, merged, shard_size, shards_of, summarize, write
from ..data.open import open_reader
from ..data.reader import RecordReader, schema_of
from ..data.schema_given import schema_given
from ..master.client import MasterClient
from ..proto import master_pb2 as pb
from . import pulse, reports
from .task_reader import Lease
from .trainer import Beat

if TYPE_CHECKING:
    from ..ps.worker_client import PsClient
    from .taught import School

log = logging.getLogger(__name__)

_GET_TASK_WAIT_S = 10.0  # how long the master may hold a request for a task


def describe(settings: JobSettings, job_dir: Path) -> None:
    """Write `job_dir`/describe.json: the sources, their records, and those of a task."""
    (job_dir / paths.DESCRIBING).write_text(paths.COUNTING)
    reader = _open(settings)
    sources = reader.sources()
    if not any(source.records for source in sources):
        raise DataError("the data has no records: check the path and the format")
    counted = [[source.name, source.records] for source in sources]
    schema = schema_of(reader).to_json()
    described = {"training": counted, "shard": shard_size(sources), "schema": schema}
    write_file(job_dir / "describe.json", json.dumps(described).encode())


def _open(settings: JobSettings) -> RecordReader:
    schema = schema_given(settings.schema)
    return open_reader(settings.training_data, schema=schema, **settings.data_reader_params)


class Shop:
    """The maker of analysts, which have no door: no other member asks them for anything."""

    address = ""

    def maker(
        self, master: MasterClient, settings: JobSettings, _index: int, _name: str, _on_step: object
    ) -> Analyst:
        return Analyst(master, settings, Path(os.environ["EDL_JOB_DIR"]))


class _Left(Exception):
    """This worker is to go: it leaves its task as it is."""


class Analyst:
    """One incarnation of an analyst: a Member (trainer.py), and its own maker.

    `job_dir` is where the parts go.
    """

    fatal: tuple[type[EdlError], ...] = (DataError,)  # such data nobody can summarize
    ps: PsClient | None = None
    school: School | None = None

    def __init__(self, master: MasterClient, settings: JobSettings, job_dir: Path) -> None:
        self.status = reports.Status(MonotonicClock())
        self._master = master
        self._settings = settings
        self._sizes = Sizes(vocabulary=settings.vocabulary)
        self._job_dir = job_dir
        self._lease: Lease | None = None
        self._draining = threading.Event()
        self._fenced = threading.Event()

    def make(self) -> Analyst:
        with pulse.section(pulse.OPEN):
            self._reader = _open(self._settings)
            self._sources = self._reader.sources()
        return self

    # -- for the heartbeat thread and signal handlers

    def drain(self) -> None:
        """Leave the task under way to others, and go."""
        self._draining.set()

    def fence(self) -> None:
        """End at once: the master has declared this incarnation lost."""
        self._fenced.set()

    def beat(self) -> Beat:
        """Return what the heartbeat tells."""
        lease, progress = self._lease, []
        if lease is not None and lease.position:
            task = lease.task
            progress = [pb.Progress(task=task.id, attempt=task.attempt, position=lease.position)]
        return Beat(progress, 0, self.status.scalars())

    # -- the loop

    def run(self) -> None:
        """Work until all is done or this worker is drained. Raises Fenced, or DataError."""
        try:
            while not self._is_told_to_go:
                self.status.state = "waiting"
                reply = self._master.get_task(_GET_TASK_WAIT_S)
                if reply.outcome == pb.GetTaskReply.FENCED:
                    self._fenced.set()
                elif reply.outcome == pb.GetTaskReply.TASK:
                    self._do(Lease(reply.task))
                elif reply.outcome != pb.GetTaskReply.WAIT:
                    break  # finished, or drain
        except _Left:
            self._hand_back()
        if self._fenced.is_set():
            raise Fenced("the master has declared this worker lost")
        self._master.send_reports(self.status.state)

    @property
    def _is_told_to_go(self) -> bool:
        return self._draining.is_set() or self._fenced.is_set()

    def _do(self, lease: Lease) -> None:
        self._lease, task = lease, lease.task
        self.status.state = "analyzing"
        if task.skips:
            raise DataError(
                f"{task.source}: all workers have ended that read records {task.start} to "
                f"{task.end}: their logs say how (`edl logs`); perhaps a record is too large for "
                "the memory that there is."
            )
        if task.careful:
            self._master.begins(task.id, task.attempt, 0, lease.size)
        with pulse.section(pulse.ANALYZE, task.id, task.attempt, 0, lease.size):
            try:
                if task.kind == pb.ANALYZE:
                    self._summarize(lease)
                else:
                    self._merge()
            except OSError as error:
                raise JobError(f"the analysis cannot be written: {error}") from error
        report = reports.done(lease, b"", 0)
        self._master.report_later(report, lambda accepted: reports.log_end(lease, accepted))
        self._lease = None

    def _summarize(self, lease: Lease) -> None:
        task = lease.task

        def read(end: int) -> None:
            self.status.rate.add(end - task.start - lease.position)
            lease.position = lease.used = end - task.start
            faults.point("worker.analyze", task=task.id, position=lease.position)
            pulse.excuse()  # it hangs where it is long at one block
            if self._is_told_to_go:
                raise _Left

        shard = Shard(task.id, task.source, task.start, task.end)
        part = summarize(self._reader, self._sizes, shard, read)
        self._parts.mkdir(exist_ok=True)
        analysis_file.save(part, self._part(task.id))

    def _merge(self) -> None:
        """Write the JSON, and remove the parts; again, also if it was cut off, changes nothing."""
        whole = self._job_dir / "analysis.json"
        if not whole.exists():
            shards = shards_of(self._sources, shard_size(self._sources))
            parts = (analysis_file.load(self._part(each.number), self._sizes) for each in shards)
            write(merged(parts, self._sizes, self._sources), whole)
        faults.point("worker.merge")
        write_file(Path(self._settings.output), whole.read_bytes())
        shutil.rmtree(self._parts, ignore_errors=True)

    @property
    def _parts(self) -> Path:
        return self._job_dir / "parts"

    def _part(self, number: int) -> Path:
        return self._parts / f"part-{number:08d}.npz"

    def _hand_back(self) -> None:
        lease = self._lease
        if lease is not None and not self._fenced.is_set():
            self.status.state = "draining"
            self._master.report_later(reports.handed_back(lease))
            log.info("task=%d -> handed back", lease.task.id)
        self._lease = None
