"""The questions to a job and the things done to it, wherever it runs.

`LocalJob` (jobs/local.py) and `ClusterJob` (k8s/outside/job.py) are the two kinds of `Job`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

Status = dict[str, Any]  # docs/cli.md lists its fields
Kind = tuple[str, str]  # of a machine, as a price table has it, and the market it was had on

STOPPED = "stopped"  # by somebody's wish: in order, at once, or before it had begun
ENDED = ("done", "failed", STOPPED)
INTERRUPTED = 130  # the exit code of one that was stopped


def ended_as(exit_code: int) -> str:
    """Return the state of a job that has ended with this code and is not done."""
    return STOPPED if exit_code == INTERRUPTED else "failed"


def as_of_now(status: Status) -> Status:
    """Return a status of any version: an earlier one says `failed` of a job that was stopped."""
    if status.get("state") == "failed" and status.get("exit_code") == INTERRUPTED:
        return {**status, "state": STOPPED}
    return status


# What docs/cli.md lists, of a job that has told nothing yet. A script's job has other fields.
_NULLS = (
    *("exit_code", "command", "started_s_ago", "run_s", "records_before", "records_done"),
    *("records_total", "epoch", "num_epochs", "records_per_s", "loss", "version", "minibatch"),
    *("gain", "predictions", "best", "began_from", "checkpoint", "resume", "report", "usage"),
)
_TABLES = ("tasks", "records", "task_runs", "metrics", "wanted", "restarts")
_LISTS = ("workers", "servers", "evaluations", "quarantined", "requested", "events")


@dataclass(frozen=True)
class Report:
    """Rows of data, and how people are shown them."""

    rows: Any  # what JSON and YAML can say
    drawn: Callable[[bool], Any]  # something that rich prints, or a list; the argument: wide
    empty: str = ""  # is told instead where there are no rows; "": they are drawn all the same


def whole(status: Status) -> Status:
    """Return a status with all fields: those that nobody has told yet are null, or empty."""
    if status.get("command") == "launch":
        return status
    untold: Status = {"message": ""}
    untold |= dict.fromkeys(_NULLS) | {name: {} for name in _TABLES}
    untold |= {name: [] for name in _LISTS}
    return status | {name: value for name, value in untold.items() if name not in status}


class Job(Protocol):
    """A job of any place. Methods that end or change it raise JobError where it is over."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str:
        """Return the name with the flags by which a command finds the job."""

    def status(self) -> Status:
        """Return the job's state now. Raises UsageError where there is no such job."""

    def look(self) -> Status | None:
        """Return the job's state now, None where it is gone. Raises Unreachable for what passes."""

    def kinds(self, machines: Iterable[str]) -> dict[str, Kind]:
        """Return kind and market of these machines of the job, by name, where they are known."""

    def events(self) -> Report: ...

    def lines(
        self,
        *,
        role: str | None,
        index: int | None,
        tail: int | None,
        follow: bool,
        until: Callable[[], bool] | None = None,
    ) -> Iterator[str]:
        """Yield the lines of the job's logs. Raises UsageError where there is no such log.

        `role` is master, worker or server; `tail`: only the last of each log; `follow`: also what
        comes until the job ends, or until `until()`, which is asked now and then.
        """

    def stop(self, reason: str) -> str:
        """End the job in order; return what happens now, for the user."""

    def checkpoint(self, timeout_s: float) -> str:
        """Have a checkpoint of now written, while training goes on; return where it is.

        Raises JobError where there can be none, TooLate where it is not there in time.
        """

    def fetch(
        self, path: str, dest: str, force: bool, say: Callable[[str], None]
    ) -> tuple[str, int]:
        """Copy a file or a folder of the job; return where it stands now, and its bytes.

        `path` is relative to the job's folder; `force`: what stands there is replaced. Raises
        UsageError for what cannot be, JobError where it did not come whole.
        """

    def scale(
        self,
        num_workers: int,
        num_ps: int = 0,
        num_teachers: int | None = None,
        max_teachers: int = 0,
    ) -> int:
        """Ask for so many of each; return how many workers were wanted before.

        0 workers or servers, None: as many as there are. `max_teachers`: from `num_teachers` to so
        many by need; 0: no need. Raises JobError where those of this job cannot change.
        """

    def cancel(self, reason: str) -> None:
        """End the job at once, without a checkpoint; what is known of it stays."""


class Jobs(Protocol):
    """The jobs of one place: of this machine, or of a namespace of a cluster."""

    @property
    def place(self) -> str: ...

    @property
    def starting(self) -> str:
        """Return the command that starts a job in this place."""

    @property
    def goals(self) -> tuple[str, ...]:
        """Return the states that can be waited for (jobs/wait.py)."""

    @property
    def look_every_s(self) -> float:
        """Return how often a state that is waited for is looked at."""

    def find(self, name: str | None) -> Job:
        """Return the job of that name; without a name the only one, or the only one that runs.

        Raises UsageError where there is none, or where several might be meant.
        """

    def names(self) -> list[str]: ...

    def statuses(self) -> list[Status]:
        """Return the status of each job, by time of start."""
