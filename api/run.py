"""`edl.train` and `edl.submit`: a job as the command line starts it, from Python.

There is no second path: what was typed or lies in memory becomes files (staged.py), arguments
become the flags that they are named after (given.py), and all else is the command line's own: its
checks, its starts, its follower. The job's processes are started by exec, so that neither threads
nor CUDA in this process matter to them, and the job outlives it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli.begin import begin_here, check_begin, settled, values_given, wishes_given
from ..cli.options import given_values
from ..common.errors import JobError, UsageError
from ..common.settings import JobSettings
from .definition import asked
from .given import DATA, OTHERS, check_names, defaults_of, flags_of
from .job import Job
from .memory import is_place
from .result import Result
from .screen import open_screen
from .staged import Staged

if TYPE_CHECKING:
    from ..jobs.follow import Source
    from ..jobs.local import LocalJob
    from ..jobs.queue import Wishes
    from ..model_zoo.check import Finding
    from ..serve.make import Given


def train(definition: object = None, **given: Any) -> Result:
    """Train as `edl train` does, show it, and return what came of it.

    `definition`: a name, a path, a module or an edl.Definition; or its functions are given by name
    (model=, loss=, optimizer=, feed=, ...). The rest are the flags of `edl train`, by their names;
    training_data and validation_data are paths, or a DataFrame, a dict of arrays, an Arrow table, a
    Dataset.

    An interrupt stops the job in order, with a checkpoint: Result.resume() goes on. Raises
    UsageError and TypeError before anything is started, JobFailed.
    """
    return ended("train", definition, given)


def ended(command: str, definition: object, given: dict[str, Any]) -> Result:
    """Run a job of the command, show it, and return what came of it. Raises EdlError, TypeError."""
    if given.get("queue"):
        raise UsageError("--queue leaves the start to a scheduler: say edl.submit(...).result().")
    with wanted(command, command, definition, given) as begun, begun.followed() as (job, source):
        from ..jobs.follow import follow

        try:
            follow(
                source,
                open_screen(begun.settings if job.path is None else JobSettings.of_job(job.path)),
            )
        except JobError as error:
            raise job.failure(str(error)) from error
    return job.result()


def submit(definition: object = None, **given: Any) -> Job:
    """Start a job as `edl.train` does, and return it at once.

    With queue=True a scheduler is to start it. Raises UsageError and TypeError before anything is
    started; a definition that is not sound is told by the job (Job.result).
    """
    with wanted("submit", "train", definition, given) as begun:
        return begun.begin()


def check(definition: object = None, data: object = None, **given: Any) -> list[Finding]:
    """Try a definition on a batch in this process, as `edl zoo check` does; return what was found.

    The definition is sound where no finding's `level` is "error". Takes the functions of a
    definition by name, as `edl.train`, and the flags of `edl zoo check`. Raises DefinitionError.
    """
    from ..model_zoo.check import check_file

    params = ("model_params", "optimizer_params", "teacher_params", "data_reader_params", "schema")
    known = ("model_def", "model_zoo", *params)
    with Staged() as staged:
        what = asked(definition, given)
        given = {"training_data": data, **given}
        check_names("check", given)
        if others := sorted(given.keys() - {*known, "training_data", "minibatch_size"}):
            raise TypeError(f"check() takes what `edl zoo check` does, and no {others[0]!r}")
        flags = flags_of(_in_files(what, given, staged))
        return check_file(
            str(flags.pop("model_def", "")), str(flags.pop("training_data", "")), **flags
        )


def _in_files(
    what: str | dict[str, Any] | None, given: dict[str, Any], staged: Staged
) -> dict[str, Any]:
    """Return the arguments, with a path in place of what is in no file yet."""
    made = dict(given)
    if isinstance(what, str):
        made["model_def"] = what
    elif what is not None:
        made["model_def"] = staged.definition(what)
    for name in DATA:
        data = made.get(name)
        if data is not None and not is_place(data):
            made[name] = staged.data(name, data)
    return made


@dataclass(frozen=True)
class Wanted:
    """A job that is to begin: all of it was checked, and nothing is started."""

    settings: JobSettings
    before: LocalJob | None  # it stands, and goes on
    init: Given | None
    wishes: Wishes | None
    kind: str  # of its objects in a cluster
    staged: Staged
    definition: str  # the text of one that was typed, for pods

    @property
    def job(self) -> Job:
        return Job(self.settings.job_name, self.settings.runtime, self.settings.namespace)

    def begin(self) -> Job:
        """Begin it, and leave it to itself."""
        if self.settings.runtime == "kubernetes":
            with self._submitted():
                return self.job
        if self.wishes is not None:
            from ..jobs import queue

            queue.put(self.settings, int(time.time()), self.wishes, self._prepare())
            return self.job
        from ..jobs.reap import reap

        reap(*begin_here(self.settings, self.before, self.init, self._prepare()))
        return self.job

    @contextlib.contextmanager
    def followed(self) -> Iterator[tuple[Job, Source]]:
        """Begin it; yield it with what happens to it."""
        if self.settings.runtime == "kubernetes":
            from ..k8s.outside.follow import ClusterSource

            with self._submitted() as found:
                yield self.job, ClusterSource(found)
            return
        from ..jobs.local_source import LocalSource

        begun = begin_here(self.settings, self.before, self.init, self._prepare())
        yield self.job, LocalSource(*begun)

    @contextlib.contextmanager
    def _submitted(self) -> Iterator[Any]:
        from ..k8s.outside import submit as cluster
        from ..k8s.outside.job import connected

        with connected(self.settings.namespace) as api:
            yield cluster.submit(api, self.settings, self.kind, self.wishes, self.definition)

    def _prepare(self) -> Callable[[Path], JobSettings] | None:
        """Return what puts the files of the job into its folder."""
        predicts = self.settings.command == "predict" and not self.settings.output
        if not self.staged.settings and not predicts:
            return None

        def put(folder: Path) -> JobSettings:
            made = self.staged.move(self.settings, folder)
            return dataclasses.replace(made, output=str(folder.absolute())) if predicts else made

        return put


@contextlib.contextmanager
def wanted(
    caller: str, command: str, definition: object, given: dict[str, Any]
) -> Iterator[Wanted]:
    """Check all that was asked for, in the order of the command line."""
    what = asked(definition, given)
    check_names(caller, given)
    with Staged() as staged:
        flags = {**OTHERS, **flags_of(_in_files(what, given, staged))}
        if flags["init_dense"] is not None:
            flags["init_dense"] = Path(flags["init_dense"])
        wishes, init = wishes_given(flags), values_given(flags)
        kind = flags.pop("kind")
        values, origins = given_values(flags.pop("config"), flags)
        for name in defaults_of(given):
            values.pop(name, None)
            origins.pop(name, None)
        settings, before = settled(command, values, origins)
        if init is not None:
            check_begin(settings, before is not None, wishes is not None)
        _check(settings, before, wishes, kind)
        text = ""
        if settings.runtime == "kubernetes":
            settings, text = staged.for_pods(settings)
        yield Wanted(settings, before, init, wishes, kind, staged, text)


def _check(
    settings: JobSettings, before: LocalJob | None, wishes: Wishes | None, kind: str
) -> None:
    """Refuse what does not go together. Raises UsageError."""
    if settings.runtime != "kubernetes" and kind != "auto":
        raise UsageError("--as is of jobs in a cluster: add --runtime kubernetes, or leave it out.")
    if before is not None and wishes is not None:
        raise UsageError("--queue is of a new job, not of a job that stands: leave it out.")
