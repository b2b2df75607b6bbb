"""A job of this machine: its folder, its master, its end.

The state comes from the best witness: result.json (it ended), the master's answer (it runs), the
lock (it starts, or does not answer), else the master died without a word.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common import finite, paths, storage
from ..common.errors import EdlError, JobError, Unreachable, UsageError
from ..common.foreign import must_be, parse, read_plain
from ..common.identity import Identity
from . import logs, transfer, tries, view
from .job import INTERRUPTED, Kind, Report, Status, as_of_now, ended_as
from .wait import not_written

if TYPE_CHECKING:
    import psutil

    from ..master.client import MasterClient

HERE = "here"  # the kind of this machine in a price table
_KILLED_S = 10.0  # a killed process is gone at once; only a hung disk takes longer
_GO_S = 10.0  # for a master that is told to go before it has begun
_LOOK_S = 0.05
_COARSE_S = 10.0  # by which the clocks of processes and of files may differ: a guess
_PATIENCE_S = 3.0  # a master on this machine answers in milliseconds, unless it is stopped


@dataclass(frozen=True)
class LocalJob:
    """A job of this machine."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def where(self) -> str:
        return self.name

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "master.log"

    def address(self) -> tuple[str, int] | None:
        """Return the address and the pid of the master, once it serves; None before."""
        values = _read_json(self.folder / "master.json")
        return (values["address"], values["pid"]) if values else None

    def client(self, patience_s: float = _PATIENCE_S) -> MasterClient:
        """Return a client of the master. Raises JobError where no master was ever there."""
        from ..master.client import MasterClient

        found = self.address()
        if found is None:
            raise JobError(f"Job {self.name!r} has no master yet: try again, or see {self.log}.")
        identity = Identity.of_folder(self.folder)
        return MasterClient(
            found[0],
            token=identity.token,
            identity=identity,
            patience_s=patience_s,
            where=lambda: paths.master_address(self.folder),
        )

    def result(self) -> Status | None:
        """Return the last status of a job that ended, None before."""
        result = _read_json(self.folder / "result.json")
        return None if result is None else as_of_now(result)

    def status(self) -> Status:
        """Return the state now, of a job in any condition."""
        try:
            if (result := self.result()) is not None:
                return result
        except EdlError as error:  # of one job: the others are listed all the same
            return {"job_name": self.name, "state": "dead", "message": str(error)}
        if paths.is_queued(self.folder):
            return {"job_name": self.name, "state": "queued", "message": self._waits()}
        locked = paths.is_locked(self.folder)
        state, message = "starting" if locked else "dead", f"see {self.log}"
        if locked and (waits := paths.waited_for(self.folder)):
            message = f"{waits}; {message}"
        if self.address() is not None and not self.is_over():
            client = self.client()
            try:
                return client.status()[1]
            except Unreachable as error:
                state, message = "silent" if locked else "dead", str(error)
            finally:
                client.close()
        if state == "dead" and (result := self.result()) is not None:  # it has ended meanwhile
            return result
        return {"job_name": self.name, "state": state, "message": message, **self.left_to_go_on()}

    def _waits(self) -> str:
        """Return what a job that is queued waits for, and whether it has been begun in vain."""
        waits = "it waits for the scheduler: `edl schedule status`"
        try:
            tried = tries.read(self.folder)
        except EdlError as error:
            return f"{waits}; {error}"
        return tried.told() if tried.why else waits

    def how_to_go_on(self) -> str:
        """Return what to do where the job stands without a master; else ""."""
        if not paths.stands(self.folder):
            return ""
        command = f"edl train --resume {shlex.quote(str(self.folder))}"
        return f"its master is gone; nothing that was acknowledged is lost: {command}"

    def left_to_go_on(self) -> Status:
        """Return what is told of a job that stands without a master, and what it goes on from."""
        how = self.how_to_go_on()
        return {"message": how, "resume": str(self.folder)} if how else {}

    def give_up(self, exit_code: int, message: str, last: Status | None = None) -> Status:
        """Leave a result for a job whose master ended before it could; `last`: its last status."""
        result = {**(last or {}), "job_name": self.name, "state": ended_as(exit_code)}
        result |= {"exit_code": exit_code, "message": message, "resume": None}
        if (self.folder / paths.JOURNAL).exists() and result.get("records_done"):
            result["resume"] = str(self.folder.absolute())
        storage.write_file(self.folder / "result.json", finite.dumps(result).encode())
        return result

    def is_over(self) -> bool:
        """Return whether nothing more comes from this job."""
        if self.result() is not None:
            return True
        found = self.address()
        return not paths.is_locked(self.folder) and (
            found is None or not _is_alive(found[1], paths.told_at(self.folder))
        )

    def last_words(self, lines: int = 20) -> str:
        """Return the end of the master's log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def look(self) -> Status | None:
        return self.status()

    def kinds(self, machines: Iterable[str]) -> dict[str, Kind]:
        return dict.fromkeys(machines, (HERE, "on-demand"))

    def events(self) -> Report:
        told = self.status().get("events") or []
        return Report(told, lambda _wide: view.events(told))

    def lines(
        self,
        *,
        role: str | None = None,
        index: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        until: Callable[[], bool] | None = None,
    ) -> Iterator[str]:
        def is_over() -> bool:
            return (until is not None and until()) or self.is_over()

        return logs.lines(self.folder, is_over, role=role, index=index, tail=tail, follow=follow)

    def stop(self, reason: str) -> str:
        """End the job in order, or at once where its master does not serve yet."""
        if paths.is_queued(self.folder):
            self.give_up(INTERRUPTED, reason)
            return "is taken out of the queue: it had not begun."
        self.check_running()
        if self.address() is None and end_start(self):
            return "is stopped: it had not begun yet."
        with contextlib.closing(self.client()) as client:
            client.stop(reason)
            events = client.status()[1].get("events")
        last = f" ({events[-1]['text']})" if events else ""
        return (
            f"is stopping{last}: `edl status {self.name}` shows when it has, and what it waits for."
        )

    def checkpoint(self, timeout_s: float) -> str:
        self.check_running()
        with contextlib.closing(self.client()) as client:
            written = client.checkpoint(timeout_s)
        if not written:
            raise not_written(timeout_s)
        return written

    def fetch(
        self, path: str, dest: str, force: bool, _say: Callable[[str], None]
    ) -> tuple[str, int]:
        target = transfer.place_for(path, dest, force)
        return str(target), transfer.copy(self.folder, path, target)

    def scale(
        self,
        num_workers: int,
        num_ps: int = 0,
        num_teachers: int | None = None,
        max_teachers: int = 0,
    ) -> int:
        self.check_running()
        with contextlib.closing(self.client()) as client:
            return client.scale(num_workers, num_ps, num_teachers, max_teachers)

    def cancel(self, reason: str) -> None:
        if paths.is_queued(self.folder):
            self.give_up(INTERRUPTED, reason)
            return
        self.check_running()
        last = self.status()
        kill(self)
        if self.result() is None:
            self.give_up(INTERRUPTED, reason, last)

    def check_running(self) -> None:
        """Raise JobError where nothing more comes from this job."""
        if self.is_over():
            raise JobError(f"Job {self.name!r} is over: {self.status().get('state')}.")


class LocalJobs:
    """The jobs of this machine."""

    starting = "train"
    goals = ("done", "running", "failed", "stopped", "ended")
    look_every_s = 0.25

    @property
    def place(self) -> str:
        return str(paths.jobs_folder())

    def find(self, name: str | None) -> LocalJob:
        return find(name)

    def names(self) -> list[str]:
        return [job.name for job in all_jobs()]

    def statuses(self) -> list[Status]:
        return [job.status() for job in all_jobs()]


def kill(job: LocalJob, process: subprocess.Popen[bytes] | None = None) -> None:
    """End every process of the job, now.

    `process`, its supervisor, is ended first, so that nobody starts the master again, and then the
    master, so that it starts no others. None: it is looked for. The rest are known by the job's
    folder in their environment, whoever their parent is by now.
    """
    import psutil

    if process is not None:
        process.kill()
    found = job.address()
    master = found[1] if found else None
    first = {each.pid for each in _supervisors(job)} if process is None else set()
    killed = []
    order = sorted(psutil.process_iter(), key=lambda e: (e.pid not in first, e.pid != master))
    for each in order:
        with contextlib.suppress(psutil.Error):
            if _is_of(job, each):
                each.kill()
                killed.append(each)
    psutil.wait_procs(killed, _KILLED_S)
    if process is not None:
        process.wait(_KILLED_S)


def end_start(job: LocalJob) -> bool:
    """End a job whose master does not serve yet. False: it serves by now, and ends in order.

    Who supervises it is asked first, as by Ctrl-C; what does not go is killed.
    """
    for each in _supervisors(job):
        each.terminate()
    until = time.monotonic() + _GO_S
    while paths.is_locked(job.folder) and time.monotonic() < until:
        if job.address() is not None:
            return False
        time.sleep(_LOOK_S)
    if job.address() is not None and paths.is_locked(job.folder):
        return False
    kill(job)
    if job.result() is None:
        job.give_up(INTERRUPTED, "stopped before it had begun")
    return True


def _supervisors(job: LocalJob) -> list[psutil.Process]:
    """Return the processes of the job that none of its own has started."""
    import psutil

    mine = {each.pid: each for each in psutil.process_iter() if _is_of(job, each)}
    first = []
    for each in mine.values():
        with contextlib.suppress(psutil.Error):
            if each.ppid() not in mine:
                first.append(each)
    return first


def _is_of(job: LocalJob, process: psutil.Process) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        where = process.environ().get("EDL_JOB_DIR")
        return where == str(job.folder) and process.pid != os.getpid()
    return False


def all_jobs() -> list[LocalJob]:
    """Return all jobs by time of start, the last one last."""
    return [LocalJob(path) for path in sorted(paths.job_folders(), key=_started)]


def find(name: str | None) -> LocalJob:
    """Return the job of that name; without one the only job, or the only one that runs.

    Raises UsageError where there is none, or where several might be meant.
    """
    jobs = all_jobs()
    if name is not None:
        for job in jobs:
            if job.name == name:
                return job
        raise UsageError(f"There is no job {name!r} here. {_listed(jobs)}")
    running = [job for job in jobs if not job.is_over()]
    for those in (running, jobs):
        if len(those) == 1:
            return those[0]
    raise UsageError(f"Which job? {_listed(running or jobs)}")


def _listed(jobs: Iterable[LocalJob]) -> str:
    names = [job.name for job in jobs]
    if not names:
        return f"There are no jobs in {paths.jobs_folder()}: `edl train` starts one."
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"There are: {', '.join(names[-20:])}{more}."


def _started(folder: Path) -> float:
    for name in ("settings.json", "."):
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return 0.0


def _is_alive(pid: int, told_at: float) -> bool:
    """Return whether a process lives that had this pid at a moment: another one may have it now."""
    import psutil

    try:
        return psutil.Process(pid).create_time() <= told_at + _COARSE_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # not ours to look at
        return True


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = finite.restored(parse(read_plain(path)))
        must_be(values, dict)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EdlError(f"{path} is damaged: {error}") from error
    return values
