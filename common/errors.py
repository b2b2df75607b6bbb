"""The one tree of errors.

    EdlError
    ├── UsageError          a flag, a file of flags or a contradiction among them      exit 2
    │   └── DefinitionError a model-zoo definition that breaks its contract            exit 2
    ├── DataError           a data source that cannot be read at all                   exit 1
    │   └── RecordError     one broken record (rule 7: quarantined, never dropped)
    ├── CheckpointError     a checkpoint that is torn, corrupt, missing or unfit       exit 1
    ├── JobError            the job failed; the message says why                       exit 1
    │   └── JobFailed       likewise, in Python: with its exit code and its last words
    ├── ImageError          a container image was not built or pushed                  exit 1
    ├── ReportError         a job's report that is not of this version or not made so  exit 1
    ├── NotPinned           a server does not hold the cut that was asked for       exit 1
    └── PeerError           another process did not answer as it must
        ├── Unreachable     no answer within the deadline
        ├── Unauthenticated the job's token was missing or wrong, or the certificate another's
        └── Fenced          this process was declared lost; what it holds is void

Messages are whole sentences for the user: what is wrong, where, and what to do.
"""

from __future__ import annotations


class EdlError(Exception):
    """Anything that `edl` raises on purpose."""

    exit_code = 1


class UsageError(EdlError):
    """The user asked for something impossible."""

    exit_code = 2


class DefinitionError(UsageError):
    """A model-zoo definition lacks a function or has a wrong one."""


class DataError(EdlError):
    """A data source cannot be opened, is empty, or lacks a column."""


class RecordError(DataError):
    """One record cannot be read.

    `source` is the file (or URL), `record` the 0-based number of the record in it.
    """

    def __init__(self, source: str, record: int, reason: str) -> None:
        super().__init__(f"{source}: record {record}: {reason}")
        self.source = source
        self.record = record
        self.reason = reason


class CheckpointError(EdlError):
    """A checkpoint is torn, corrupt, missing or does not fit the job."""


class JobError(EdlError):
    """The job failed."""


class JobFailed(JobError):
    """A job that somebody waited for in Python has failed.

    `reason`: why, as its status says it; `exit_code`: of `edl train`; `log_tail`: the last lines of
    its workers, or of its master; `where`: the name and flags by which `edl logs` finds it.
    """

    def __init__(self, where: str, reason: str, exit_code: int, log_tail: str) -> None:
        said = f"\n{log_tail}" if log_tail else ""
        super().__init__(f"Job {where} failed: {reason} (all it said: `edl logs {where}`){said}")
        self.where = where
        self.reason = reason
        self.exit_code = exit_code
        self.log_tail = log_tail

    def __reduce__(self) -> tuple[type[JobFailed], tuple[str, str, int, str]]:
        return type(self), (self.where, self.reason, self.exit_code, self.log_tail)


class ImageError(EdlError):
    """A container image cannot be built or pushed."""


class ReportError(EdlError):
    """A job's report to schedulers is not of this version, or not as its schema says."""


class PeerError(EdlError):
    """Another process of the job did not answer as it must."""


class Unreachable(PeerError):
    """No answer within the deadline."""


class Unauthenticated(PeerError):
    """The job's token was missing or wrong, or the peer has another job's certificate."""


class Fenced(PeerError):
    """This process was declared lost by the master: its leases are void."""


class NotPinned(EdlError):
    """A server does not hold the cut: it was let go, or the server was replaced since."""
